//! One client's connection: request by request to the store and back, disturbed as the plan says.

use std::io::{self, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::classes::ClassAnswer;
use super::http::{BodySink, Collector, Framing, Head, Nowhere, answer, pass_body};
use super::kind::Kind;
use super::listing;
use super::plan::Disturbance;
use super::rule::Fault;
use super::server::Proxy;
use super::socket::{Stream, is_gone, reset};

/// Bytes moved at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// Largest page of a listing that is held to be changed, bytes.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// How often a request that waits looks whether its client is still there.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// What becomes of the connection after a request.
#[derive(PartialEq, Eq)]
enum Next {
    Keep,
    Close,
    Reset,
}

struct Relay<'a> {
    proxy: &'a Proxy,
    client: BufReader<TcpStream>,
    store: Option<BufReader<Stream>>,
}

/// Serves a connection until it ends.
pub fn serve(proxy: &Proxy, client: TcpStream) {
    let _ = client.set_nodelay(true);
    let mut relay =
        Relay { proxy, client: BufReader::with_capacity(BUFFER_BYTES, client), store: None };
    loop {
        match relay.request() {
            Ok(Next::Keep) => {}
            Ok(Next::Reset) => return reset(relay.client.get_ref()),
            // A client that went away, or a store that broke off in a body: both sides see the
            // connection end.
            Ok(Next::Close) | Err(_) => return,
        }
    }
}

impl Relay<'_> {
    fn request(&mut self) -> io::Result<Next> {
        let Some(head) = Head::read(&mut self.client)? else { return Ok(Next::Close) };
        let (method, target) = (head.word(0).to_string(), head.word(1).to_string());
        let kind = Kind::of(&method, &target, head.header("x-amz-copy-source").is_some());
        let disturbance = self.proxy.plan.disturb(kind, &target);
        let proxy = self.proxy;
        let _in_flight = proxy.counts.begin(kind, &disturbance.names);
        proxy.log(kind, &head, &disturbance);
        self.delay(disturbance.delay_ms);
        match &disturbance.fault {
            Some(Fault::Reset) => Ok(Next::Reset),
            Some(Fault::Hang) => {
                while self.proxy.plan.generation() == disturbance.generation
                    && !is_gone(self.client.get_ref())
                {
                    std::thread::sleep(POLL_EVERY);
                }
                Ok(Next::Reset)
            }
            Some(Fault::Status { code, error }) => self.refuse(&head, &method, *code, error),
            fault => match proxy.classes.answer(&head) {
                Some(_) if *fault == Some(Fault::LostAnswer) => Ok(Next::Reset),
                Some(ClassAnswer { code, error }) => self.refuse(&head, &method, code, error),
                None => self.forward(kind, &head, &method, &disturbance),
            },
        }
    }

    /// Waits, unless the client gives up.
    fn delay(&self, ms: u64) {
        let end = Instant::now() + Duration::from_millis(ms);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            std::thread::sleep(left.min(10 * POLL_EVERY));
            if left > POLL_EVERY && is_gone(self.client.get_ref()) {
                return;
            }
        }
    }

    /// Answers with an error of S3, or that it is done, in the place of the store.
    fn refuse(&mut self, head: &Head, method: &str, code: u16, error: &str) -> io::Result<Next> {
        self.let_body_come(head)?;
        pass_body(head.request_framing(), &mut self.client, &mut Nowhere)?;
        let body = match error {
            "" => "<CopyObjectResult><ETag>\"0\"</ETag></CopyObjectResult>".into(),
            error => format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{error}</Code>\
                 <Message>injected by kestrel-s3proxy</Message><RequestId>0</RequestId></Error>"
            ),
        };
        let status = format!("{code} {}", if error.is_empty() { "OK" } else { error });
        answer(
            self.client.get_mut(),
            &status,
            "application/xml",
            body.as_bytes(),
            method != "HEAD",
        )?;
        Ok(if head.closes() { Next::Close } else { Next::Keep })
    }

    /// Says "100 Continue" to a client that waits for it.
    fn let_body_come(&mut self, head: &Head) -> io::Result<()> {
        if head.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.client.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        Ok(())
    }

    fn forward(
        &mut self,
        kind: Kind,
        head: &Head,
        method: &str,
        disturbance: &Disturbance,
    ) -> io::Result<Next> {
        // A connection that the store has closed meanwhile would look like a fault that no rule
        // asked for.
        if self.store.as_ref().is_some_and(|store| is_gone(store.get_ref())) {
            self.store = None;
        }
        let mut store = match self.store.take() {
            Some(store) => store,
            None => match self.proxy.store.connect() {
                Ok(stream) => BufReader::with_capacity(BUFFER_BYTES, stream),
                Err(_) => return Ok(Next::Reset),
            },
        };
        self.let_body_come(head)?;
        let mut to_store = ToStore { proxy: self.proxy, store: store.get_mut(), failed: None };
        to_store.send(head.raw());
        pass_body(head.request_framing(), &mut self.client, &mut to_store)?;
        // Even if sending failed: the store may have refused the request before it read all of it.
        let failed = to_store.failed;
        let Some(mut answer) = read_answer(&mut store)? else {
            return Ok(Next::Reset);
        };
        if (200..300).contains(&answer.status()) {
            self.proxy.classes.done(head, &mut answer);
        }
        self.proxy.counts.answered(kind, answer.status());
        let framing = answer.answer_framing(method);
        if disturbance.fault == Some(Fault::LostAnswer) {
            pass_body(framing, &mut store, &mut Nowhere)?;
            return Ok(Next::Reset);
        }
        let good = (200..300).contains(&answer.status());
        let mut next = match &disturbance.fault {
            Some(fault @ (Fault::Truncate | Fault::Short | Fault::Long | Fault::WrongBytes))
                if good && matches!(framing, Framing::Length(_)) =>
            {
                self.damage(&answer, framing, &mut store, fault, disturbance.draw)?
            }
            fault if good && kind == Kind::List && self.proxy.plan.holds_listings() => {
                self.listing(&answer, framing, &mut store, fault.as_ref())?
            }
            _ => {
                self.client.get_mut().write_all(answer.raw())?;
                pass_body(
                    framing,
                    &mut store,
                    &mut ToClient::plain(self.proxy, self.client.get_mut()),
                )?;
                Next::Keep
            }
        };
        if next == Next::Keep
            && (head.closes() || answer.closes() || framing == Framing::UntilClose)
        {
            next = Next::Close;
        }
        if !answer.closes() && framing != Framing::UntilClose && failed.is_none() {
            self.store = Some(store);
        }
        Ok(next)
    }

    /// Passes a body on that is not what the store sent.
    fn damage(
        &mut self,
        answer: &Head,
        framing: Framing,
        store: &mut BufReader<Stream>,
        fault: &Fault,
        draw: u64,
    ) -> io::Result<Next> {
        let Framing::Length(length) = framing else { return Ok(Next::Close) };
        let at = draw % length;
        let extra = vec![b'x'; 1 + (draw >> 32) as usize % 4096];
        let mut answer = answer.clone();
        match fault {
            Fault::Short => answer.set("Content-Length", Some(&at.to_string())),
            Fault::Long => {
                answer.set("Content-Length", Some(&(length + extra.len() as u64).to_string()))
            }
            _ => {}
        }
        self.client.get_mut().write_all(answer.raw())?;
        let mut to_client = ToClient::plain(self.proxy, self.client.get_mut());
        match fault {
            Fault::WrongBytes => to_client.wrong_at = Some(at),
            Fault::Short | Fault::Truncate => to_client.end_at = at,
            _ => {}
        }
        pass_body(framing, store, &mut to_client)?;
        if *fault == Fault::Long {
            to_client.take(&extra, true)?;
        }
        Ok(if *fault == Fault::Truncate { Next::Close } else { Next::Keep })
    }

    /// Passes a page of a listing on, changed or not, and keeps it for `list-repeat`.
    fn listing(
        &mut self,
        answer: &Head,
        framing: Framing,
        store: &mut BufReader<Stream>,
        fault: Option<&Fault>,
    ) -> io::Result<Next> {
        let mut collector = Collector { bytes: Vec::new(), limit: PAGE_BYTES_MAX };
        pass_body(framing, store, &mut collector)?;
        let page = String::from_utf8(collector.bytes)
            .map_err(|_| io::Error::new(ErrorKind::InvalidData, "a listing that is not UTF-8"))?;
        let page = match fault {
            Some(Fault::ListCut) => listing::cut(&page),
            Some(Fault::ListGap) => listing::gap(&page),
            Some(Fault::ListRepeat) => self.proxy.last_page().unwrap_or(page),
            _ => page,
        };
        let mut answer = answer.clone();
        answer.set("Transfer-Encoding", None);
        answer.set("Content-Length", Some(&page.len().to_string()));
        self.client.get_mut().write_all(answer.raw())?;
        ToClient::plain(self.proxy, self.client.get_mut()).take(page.as_bytes(), true)?;
        self.proxy.keep_page(page);
        Ok(Next::Keep)
    }
}

/// The answer's head; heads of information before it are left out, as the client was told by the
/// proxy.
fn read_answer(store: &mut BufReader<Stream>) -> io::Result<Option<Head>> {
    loop {
        match Head::read(store) {
            Ok(Some(head)) if (100..200).contains(&head.status()) => {}
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Sends a request. After a failure it takes the rest and keeps nothing, so that the client can
/// finish sending.
struct ToStore<'a> {
    proxy: &'a Proxy,
    store: &'a mut Stream,
    failed: Option<io::Error>,
}

impl ToStore<'_> {
    fn send(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.store.write_all(bytes).err();
        }
    }
}

impl BodySink for ToStore<'_> {
    fn take(&mut self, bytes: &[u8], payload: bool) -> io::Result<()> {
        if payload {
            self.proxy.up.wait(bytes.len(), self.proxy.plan.bandwidth().0);
            self.proxy.counts.bytes(bytes.len(), 0);
        }
        self.send(bytes);
        Ok(())
    }
}

/// Sends a body to the client, whole or not.
struct ToClient<'a> {
    proxy: &'a Proxy,
    client: &'a mut TcpStream,
    /// Payload bytes so far.
    at: u64,
    /// Nothing is sent from this byte on.
    end_at: u64,
    /// This byte is changed.
    wrong_at: Option<u64>,
}

impl<'a> ToClient<'a> {
    fn plain(proxy: &'a Proxy, client: &'a mut TcpStream) -> Self {
        Self { proxy, client, at: 0, end_at: u64::MAX, wrong_at: None }
    }
}

impl BodySink for ToClient<'_> {
    fn take(&mut self, bytes: &[u8], payload: bool) -> io::Result<()> {
        if !payload {
            return self.client.write_all(bytes);
        }
        let begin = self.at;
        self.at += bytes.len() as u64;
        let room = usize::try_from(self.end_at.saturating_sub(begin)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        self.proxy.down.wait(bytes.len(), self.proxy.plan.bandwidth().1);
        self.proxy.counts.bytes(0, bytes.len());
        match self.wrong_at {
            Some(wrong) if (begin..self.at).contains(&wrong) => {
                let mut changed = bytes.to_vec();
                changed[(wrong - begin) as usize] ^= 0x5a;
                self.client.write_all(&changed)
            }
            _ => self.client.write_all(bytes),
        }
    }
}
