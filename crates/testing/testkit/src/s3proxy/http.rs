//! HTTP/1.1 messages as a proxy sees them: heads that are kept as they came, and bodies by their
//! framing.

use std::io::{self, BufRead, ErrorKind, Read, Write};

/// Largest head of a request or answer, bytes.
pub const HEAD_MAX: usize = 64 << 10;

/// The first line and the headers, byte by byte as received, with the empty line that ends them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    raw: Vec<u8>,
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// Chunks, each with its length.
    Chunked,
    /// By the end of the connection (answers only).
    UntilClose,
}

impl Head {
    /// Reads a head; `None` if the connection ends before it begins.
    ///
    /// # Errors
    /// The connection's; `InvalidData` if it ends in the middle or is larger than [`HEAD_MAX`].
    pub fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut raw = Vec::new();
        loop {
            let begin = raw.len();
            let room = (HEAD_MAX - begin) as u64;
            from.take(room).read_until(b'\n', &mut raw)?;
            match &raw[begin..] {
                [] if begin == 0 => return Ok(None),
                // An empty line before a request is to be ignored (RFC 9112 §2.2).
                b"\r\n" | b"\n" if begin == 0 => raw.clear(),
                b"\r\n" | b"\n" => return Ok(Some(Self { raw })),
                [.., b'\n'] => {}
                _ => {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "a head that is cut off or too large",
                    ));
                }
            }
        }
    }

    /// A head of our own: first line and headers, without line ends.
    pub fn new(lines: &[&str]) -> Self {
        let mut raw = lines.join("\r\n").into_bytes();
        raw.extend_from_slice(b"\r\n\r\n");
        Self { raw }
    }

    /// The bytes.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The first line.
    pub fn first_line(&self) -> &str {
        let line = self.raw.split(|&byte| byte == b'\n').next().unwrap_or_default();
        std::str::from_utf8(line).unwrap_or_default().trim_end()
    }

    /// The `index`th word of the first line.
    pub fn word(&self, index: usize) -> &str {
        self.first_line().split(' ').nth(index).unwrap_or_default()
    }

    /// The status code of an answer; 0 if there is none.
    pub fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    /// The value of a header, the first of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.raw.split(|&byte| byte == b'\n').skip(1);
        lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':')).find_map(
            |(found, value)| found.trim().eq_ignore_ascii_case(name).then(|| value.trim()),
        )
    }

    /// Takes every header of this name away; with a value, adds one that has it.
    pub fn set(&mut self, name: &str, value: Option<&str>) {
        let mut kept = Vec::with_capacity(self.raw.len());
        for (number, line) in self.raw.split_inclusive(|&byte| byte == b'\n').enumerate() {
            let is_it = number > 0
                && line
                    .split(|&byte| byte == b':')
                    .next()
                    .is_some_and(|found| found.trim_ascii().eq_ignore_ascii_case(name.as_bytes()));
            let is_end = line.trim_ascii().is_empty();
            if is_end && let Some(value) = value {
                kept.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            if !is_it {
                kept.extend_from_slice(line);
            }
        }
        self.raw = kept;
    }

    /// Whether the connection ends after this message.
    pub fn closes(&self) -> bool {
        let old = self.first_line().contains("HTTP/1.0");
        self.header("connection").map_or(old, |value| value.eq_ignore_ascii_case("close"))
    }

    /// The framing of a request's body.
    pub fn request_framing(&self) -> Framing {
        self.declared().unwrap_or(Framing::Empty)
    }

    /// The framing of the body of an answer to a request with this method.
    pub fn answer_framing(&self, method: &str) -> Framing {
        if method == "HEAD" || matches!(self.status(), 100..200 | 204 | 304) {
            return Framing::Empty;
        }
        self.declared().unwrap_or(Framing::UntilClose)
    }

    fn declared(&self) -> Option<Framing> {
        if self
            .header("transfer-encoding")
            .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"))
        {
            return Some(Framing::Chunked);
        }
        self.header("content-length")?.parse().ok().map(|bytes| match bytes {
            0 => Framing::Empty,
            bytes => Framing::Length(bytes),
        })
    }
}

/// Where the bytes of a body go, piece by piece.
pub trait BodySink {
    /// Takes bytes; `payload` is false for the framing of chunks.
    ///
    /// # Errors
    /// Those of the connection behind; they end the body.
    fn take(&mut self, bytes: &[u8], payload: bool) -> io::Result<()>;
}

/// A sink that keeps nothing.
pub struct Nowhere;

impl BodySink for Nowhere {
    fn take(&mut self, _bytes: &[u8], _payload: bool) -> io::Result<()> {
        Ok(())
    }
}

/// Collects payload, up to a limit.
pub struct Collector {
    /// What came.
    pub bytes: Vec<u8>,
    /// Most that is kept.
    pub limit: usize,
}

impl BodySink for Collector {
    fn take(&mut self, bytes: &[u8], payload: bool) -> io::Result<()> {
        if !payload {
            return Ok(());
        }
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a body larger than a proxy will hold",
            ));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// Passes a whole body on, framing included.
///
/// # Errors
/// Those of either side; `UnexpectedEof` if the source ends before the body does.
pub fn pass_body(
    framing: Framing,
    from: &mut impl BufRead,
    to: &mut dyn BodySink,
) -> io::Result<()> {
    match framing {
        Framing::Empty => Ok(()),
        Framing::Length(bytes) => pass(from, bytes, to, true),
        Framing::Chunked => pass_chunks(from, to),
        Framing::UntilClose => loop {
            let bytes = from.fill_buf()?.len();
            if bytes == 0 {
                return Ok(());
            }
            pass(from, bytes as u64, to, true)?;
        },
    }
}

fn pass(
    from: &mut impl BufRead,
    mut bytes: u64,
    to: &mut dyn BodySink,
    payload: bool,
) -> io::Result<()> {
    while bytes > 0 {
        let piece = from.fill_buf()?;
        if piece.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let count = piece.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        to.take(&piece[..count], payload)?;
        from.consume(count);
        bytes -= count as u64;
    }
    Ok(())
}

fn pass_chunks(from: &mut impl BufRead, to: &mut dyn BodySink) -> io::Result<()> {
    loop {
        let line = chunk_line(from)?;
        to.take(&line, false)?;
        let size =
            std::str::from_utf8(&line).ok().and_then(|line| line.split([';', '\r', '\n']).next());
        let size = size
            .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a chunk without a length"))?;
        if size == 0 {
            break;
        }
        pass(from, size, to, true)?;
        pass(from, 2, to, false)?;
    }
    // Trailers, then an empty line.
    loop {
        let line = chunk_line(from)?;
        to.take(&line, false)?;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
    }
}

fn chunk_line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(HEAD_MAX as u64).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

/// Writes an answer with a body of known length.
///
/// # Errors
/// Those of the connection.
pub fn answer(
    to: &mut impl Write,
    status: &str,
    kind: &str,
    body: &[u8],
    with_body: bool,
) -> io::Result<()> {
    let length = format!("Content-Length: {}", body.len());
    let head =
        Head::new(&[&format!("HTTP/1.1 {status}"), &format!("Content-Type: {kind}"), &length]);
    to.write_all(head.raw())?;
    if with_body {
        to.write_all(body)?;
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Head {
        Head::read(&mut text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn heads_stay_as_they_came() {
        let text = "GET /b/k?x=%20y HTTP/1.1\r\nHost:a:1\r\nX-Odd :  v \r\nhost: second\r\n\r\n";
        let read = head(text);
        assert_eq!(read.raw(), text.as_bytes());
        assert_eq!((read.word(0), read.word(1)), ("GET", "/b/k?x=%20y"));
        assert_eq!(
            (read.header("HOST"), read.header("x-odd"), read.header("none")),
            (Some("a:1"), Some("v"), None)
        );
        assert_eq!(Head::read(&mut "".as_bytes()).unwrap(), None);
        for bad in
            ["GET / HTTP/1.1\r\nHost", &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_MAX))]
        {
            assert!(Head::read(&mut bad.as_bytes()).is_err());
        }
    }

    #[test]
    fn headers_are_replaced() {
        let mut one = head("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\n");
        one.set("content-length", Some("3"));
        assert_eq!(one.raw(), b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 3\r\n\r\n");
        one.set("a", None);
        assert_eq!(one.header("A"), None);
    }

    #[test]
    fn framing_follows_the_headers() {
        assert_eq!(
            head("PUT / HTTP/1.1\r\nContent-Length: 9\r\n\r\n").request_framing(),
            Framing::Length(9)
        );
        assert_eq!(head("GET / HTTP/1.1\r\n\r\n").request_framing(), Framing::Empty);
        let answer = head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(answer.answer_framing("GET"), Framing::Chunked);
        assert_eq!(answer.answer_framing("HEAD"), Framing::Empty);
        assert_eq!(head("HTTP/1.1 200 OK\r\n\r\n").answer_framing("GET"), Framing::UntilClose);
        assert_eq!(head("HTTP/1.1 204 No Content\r\n\r\n").answer_framing("GET"), Framing::Empty);
    }

    #[test]
    fn bodies_pass_whole_and_stop_at_their_end() {
        struct Raw(Vec<u8>);
        impl BodySink for Raw {
            fn take(&mut self, bytes: &[u8], _payload: bool) -> io::Result<()> {
                self.0.extend_from_slice(bytes);
                Ok(())
            }
        }
        let body = "5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n";
        let mut from = io::Cursor::new(format!("{body}NEXT"));
        let mut raw = Raw(Vec::new());
        pass_body(Framing::Chunked, &mut from, &mut raw).unwrap();
        assert_eq!((raw.0.as_slice(), from.position()), (body.as_bytes(), body.len() as u64));
        let mut collected = Collector { bytes: Vec::new(), limit: 6 };
        pass_body(Framing::Chunked, &mut body.as_bytes(), &mut collected).unwrap();
        assert_eq!(collected.bytes, b"hello!");
        let mut from = "abcdef".as_bytes();
        pass_body(Framing::Length(4), &mut from, &mut Nowhere).unwrap();
        assert_eq!(from, b"ef");
        assert!(pass_body(Framing::Length(9), &mut from, &mut Nowhere).is_err());
        assert!(pass_body(Framing::Chunked, &mut "zz\r\n".as_bytes(), &mut Nowhere).is_err());
    }
}
