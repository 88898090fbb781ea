//! Lines: one JSON object each, `{"crc":"xxxxxxxx","kind":payload}`. The checksum is the CRC-32C of
//! the text between the comma after it and the closing brace.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

use super::{Counts, DumpError};

/// Longest line: extents of a full chunk take some 4 MiB.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Characters before the text that is checksummed: `{"crc":"xxxxxxxx",`.
const HEAD: usize = 18;

/// Writes lines and keeps the checksum of the whole.
pub struct LineWriter<'a> {
    out: &'a mut dyn Write,
    text: Vec<u8>,
    bytes: u64,
    crc: u32,
}

impl<'a> LineWriter<'a> {
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out, text: Vec::new(), bytes: 0, crc: 0 }
    }

    /// Writes one line.
    pub fn line(&mut self, kind: &str, payload: &Value) -> Result<(), DumpError> {
        let text = &mut self.text;
        text.clear();
        text.extend_from_slice(b"{\"crc\":\"00000000\",");
        write!(text, "\"{kind}\":")?;
        serde_json::to_writer(&mut *text, payload).map_err(io::Error::from)?;
        let crc = format!("{:08x}", crc32c::crc32c(&text[HEAD..]));
        text[8..16].copy_from_slice(crc.as_bytes());
        text.extend_from_slice(b"}\n");
        self.crc = crc32c::crc32c_append(self.crc, text);
        self.bytes += text.len() as u64;
        self.out.write_all(text)?;
        Ok(())
    }

    /// Writes the last line: what all lines before it add up to.
    pub fn end(mut self, counts: &mut Counts) -> Result<(), DumpError> {
        let crc = format!("{:08x}", self.crc);
        let (rows, changes, bytes) = (counts.rows, counts.changes, self.bytes);
        self.line("end", &json!({ "rows": rows, "changes": changes, "bytes": bytes, "crc": crc }))?;
        counts.bytes = self.bytes;
        Ok(self.out.flush()?)
    }
}

/// Reads lines and checks them.
pub struct LineReader<R> {
    input: R,
    text: Vec<u8>,
    /// Number of the line read last.
    pub line: u64,
    /// Bytes and checksum of all lines but the last.
    before: (u64, u32),
    so_far: (u64, u32),
}

/// A line: its kind and its payload.
pub type Line = (String, Value);

impl<R: BufRead> LineReader<R> {
    pub fn new(input: R) -> Self {
        Self { input, text: Vec::new(), line: 0, before: (0, 0), so_far: (0, 0) }
    }

    /// An error at the present line.
    pub fn corrupt(&self, why: impl Into<String>) -> DumpError {
        DumpError::Corrupt(self.line, why.into())
    }

    /// The next line; none at the end of the file.
    pub fn next(&mut self) -> Result<Option<Line>, DumpError> {
        self.text.clear();
        self.line += 1;
        let mut limited = io::Read::take(&mut self.input, LINE_BYTES_MAX);
        if limited.read_until(b'\n', &mut self.text)? == 0 {
            return Ok(None);
        }
        self.before = self.so_far;
        self.so_far.0 += self.text.len() as u64;
        self.so_far.1 = crc32c::crc32c_append(self.so_far.1, &self.text);
        let line = self.parse().map_err(|why| self.corrupt(why))?;
        Ok(Some(line))
    }

    fn parse(&self) -> Result<Line, &'static str> {
        let text = self.text.strip_suffix(b"}\n").ok_or("the line is cut off")?;
        let (head, covered) = text.split_at_checked(HEAD).ok_or("the line is too short")?;
        let crc = head.strip_prefix(b"{\"crc\":\"").and_then(|rest| rest.strip_suffix(b"\","));
        let crc = crc
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .ok_or("the line does not begin with its checksum")?;
        if format!("{:08x}", crc32c::crc32c(covered)) != crc {
            return Err("its checksum does not match");
        }
        let (kind, payload) = covered
            .strip_prefix(b"\"")
            .and_then(|rest| rest.iter().position(|byte| *byte == b'"').map(|at| rest.split_at(at)))
            .ok_or("the line has no kind")?;
        let payload = payload.strip_prefix(b"\":").ok_or("the line has no payload")?;
        let payload = serde_json::from_slice(payload).map_err(|_| "the line is not valid JSON")?;
        Ok((String::from_utf8_lossy(kind).into_owned(), payload))
    }

    /// Checks the last line, just read, against all before it.
    pub fn check_end(&self, end: &Value, counts: &Counts) -> Result<(), DumpError> {
        let (bytes, crc) = self.before;
        let announced = |name: &str| end.get(name).and_then(Value::as_u64);
        if announced("rows") != Some(counts.rows)
            || announced("changes") != Some(counts.changes)
            || announced("bytes") != Some(bytes)
        {
            return Err(self.corrupt(
                "the last line counts other rows, changes or bytes: lines are missing or repeated",
            ));
        }
        if end.get("crc").and_then(Value::as_str) != Some(&format!("{crc:08x}")) {
            return Err(self.corrupt("the checksum of the file does not match"));
        }
        Ok(())
    }

    /// Bytes read.
    pub fn bytes(&self) -> u64 {
        self.so_far.0
    }
}
