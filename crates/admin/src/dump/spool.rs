//! Changes committed during a dump, kept in a file until the rows are written. Written from the
//! commit path: compact and without waiting for anything but the page cache.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kestrel_engine::Mutation;
use kestrel_types::key::{Key, KeyRef};

use super::DumpError;

/// The spool.
pub struct Spool(Arc<Mutex<State>>);

struct State {
    file: BufWriter<File>,
    bytes: u64,
    bytes_max: u64,
    failed: Option<DumpError>,
}

/// Gets a copy of every batch.
pub type Tap = Box<dyn FnMut(&[Mutation]) + Send>;

/// Gets the changes back, in commit order.
pub type Visit<'a> = &'a mut dyn FnMut(Key, Option<Vec<u8>>) -> Result<(), DumpError>;

impl Spool {
    /// A spool in an empty file that takes up to `bytes_max` bytes.
    pub fn new(file: File, bytes_max: u64) -> Self {
        let file = BufWriter::with_capacity(1 << 16, file);
        Self(Arc::new(Mutex::new(State { file, bytes: 0, bytes_max, failed: None })))
    }

    /// What the engine calls with each batch.
    pub fn tap(&self) -> Tap {
        let state = self.0.clone();
        Box::new(move |batch| {
            let mut state = lock(&state);
            if state.failed.is_none()
                && let Err(error) = state.append(batch)
            {
                state.failed = Some(error);
            }
        })
    }

    /// Reads everything back. Call after the tap has ended.
    pub fn finish(self, visit: Visit<'_>) -> Result<(), DumpError> {
        let mut state = lock(&self.0);
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        state.file.flush()?;
        let file = state.file.get_mut();
        file.rewind()?;
        read(&mut BufReader::with_capacity(1 << 16, file), visit)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic elsewhere cannot have left the state half-changed: it is only written by whole calls.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn append(&mut self, batch: &[Mutation]) -> Result<(), DumpError> {
        self.bytes += write(&mut self.file, batch)?;
        if self.bytes > self.bytes_max { Err(DumpError::TooBusy) } else { Ok(()) }
    }
}

/// Appends a batch as [`read`] reads it; the bytes that it takes.
pub(crate) fn write(out: &mut impl Write, batch: &[Mutation]) -> io::Result<u64> {
    let (mut frame, mut bytes) = (Vec::new(), 0);
    for mutation in batch {
        frame.clear();
        mutation.key.borrow().encode_into(&mut frame);
        bytes += write_string(out, &frame)? + 1;
        out.write_all(&[u8::from(mutation.value.is_some())])?;
        if let Some(value) = &mutation.value {
            bytes += write_string(out, value)?;
        }
    }
    Ok(bytes)
}

/// Reads changes back, in their order.
pub(crate) fn read(input: &mut impl Read, visit: Visit<'_>) -> Result<(), DumpError> {
    while let Some(bytes) = read_string(input)? {
        let damaged = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the spool file was changed by somebody else",
            )
        };
        let key = KeyRef::decode(&bytes).ok_or_else(damaged)?.to_owned();
        let mut present = [0];
        input.read_exact(&mut present)?;
        let value =
            if present[0] == 1 { Some(read_string(input)?.ok_or_else(damaged)?) } else { None };
        visit(key, value)?;
    }
    Ok(())
}

fn write_string(out: &mut impl Write, bytes: &[u8]) -> io::Result<u64> {
    out.write_all(&(bytes.len() as u64).to_be_bytes())?;
    out.write_all(bytes)?;
    Ok(bytes.len() as u64 + 8)
}

fn read_string(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 8];
    match input.read(&mut len)? {
        0 => return Ok(None),
        read => input.read_exact(&mut len[read..])?,
    }
    let len = u64::from_be_bytes(len);
    let mut bytes = Vec::new();
    if input.take(len).read_to_end(&mut bytes)? as u64 != len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(bytes))
}
