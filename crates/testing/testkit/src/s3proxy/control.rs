//! The control port: plain HTTP, one request per connection.
//!
//! `GET /counts` tells the counts as JSON, `POST /counts` does and begins anew; `GET /rules` tells
//! the rules, `PUT /rules` replaces them by those in its body; `POST /restored` has archives make
//! readable what they were asked for.

use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::http::{Collector, Head, answer, pass_body};
use super::rule::Rule;
use super::server::Proxy;

/// Largest set of rules, bytes.
const RULES_BYTES_MAX: usize = 64 << 10;

/// How long either side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers one request.
///
/// # Errors
/// Those of the connection.
pub fn serve(proxy: &Proxy, client: TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let mut client = BufReader::new(client);
    let Some(head) = Head::read(&mut client)? else { return Ok(()) };
    let mut body = Collector { bytes: Vec::new(), limit: RULES_BYTES_MAX };
    pass_body(head.request_framing(), &mut client, &mut body)?;
    let (status, text) = match (head.word(0), head.word(1)) {
        ("GET", "/counts") => ("200 OK", proxy.counts.json(false)),
        ("POST", "/counts") => ("200 OK", proxy.counts.json(true)),
        ("GET", "/rules") => ("200 OK", proxy.plan.texts().join("\n")),
        ("PUT", "/rules") => match Rule::parse_all(&String::from_utf8_lossy(&body.bytes)) {
            Ok(rules) => {
                proxy.plan.set(rules);
                ("200 OK", proxy.plan.texts().join("\n"))
            }
            Err(why) => ("400 Bad Request", why),
        },
        ("POST", "/restored") => ("200 OK", proxy.classes.end_restores().to_string()),
        _ => ("404 Not Found", "GET or POST /counts, GET or PUT /rules, POST /restored".into()),
    };
    answer(client.get_mut(), status, "text/plain", format!("{text}\n").as_bytes(), true)
}

/// Asks a proxy's control port; the text of its answer.
///
/// # Errors
/// If it does not answer, or refuses: why.
pub fn request_control(
    control: &str,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, String> {
    let failed = |error: io::Error| format!("{control}: {error}");
    let client = TcpStream::connect(control).map_err(failed)?;
    client.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    let mut client = BufReader::new(client);
    let head = Head::new(&[
        &format!("{method} {path} HTTP/1.1"),
        "Host: control",
        "Connection: close",
        &format!("Content-Length: {}", body.len()),
    ]);
    let sent = client
        .get_mut()
        .write_all(head.raw())
        .and_then(|()| client.get_mut().write_all(body.as_bytes()));
    sent.map_err(failed)?;
    let answer =
        Head::read(&mut client).map_err(failed)?.ok_or_else(|| format!("{control}: no answer"))?;
    let mut text = Collector { bytes: Vec::new(), limit: 16 << 20 };
    pass_body(answer.answer_framing(method), &mut client, &mut text).map_err(failed)?;
    let text = String::from_utf8_lossy(&text.bytes).trim_end().to_string();
    if answer.status() == 200 { Ok(text) } else { Err(text) }
}
