//! Which node owns these rows, in table `system` of a store that other machines reach too
//! ([`Engine::is_shared`]).
//!
//! - **`birth`**: the word by which the other nodes know this one ([`super::peer_identity`]). Of
//!   rows that lie in a directory it is the directory's; these can be served from any directory, so
//!   they have it.
//! - **`seat`**: the process that served them last. By it a start knows whether an earlier one may
//!   still be running ([`super::ClusterNodeConfig::exclusive`]).
//!
//! **Why that is right.** A start is sole if it is the next one of a holder that is known to have
//! ended (the directory's lock is this process's now, or the holder said that it ends) and that was
//! *settled*: none before it could answer any more. Settled is a start that was sole itself, or has
//! had a lease: the others granted it when all promises to earlier starts were over, and grant
//! these none since. A holder that is not settled leaves the question open, so the next start, sole
//! or not of that one, waits for the promises. The record is written in the epoch that the start
//! has claimed: one that was replaced meanwhile fails to write it, and ends.

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::ids::{counter_row, decode_counter, system_key};
use kestrel_meta::stop::engine_error;
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::Key;

/// Version of the record.
const VERSION: u8 = 1;

/// Longest word of a holder, bytes.
pub const HOLDER_BYTES_MAX: usize = 255;

const NODE_UUID: &str = "birth";
const SEAT: &str = "seat";

/// The process that served the rows last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The word of the directory; none: it has ended and said so.
    pub holder: Option<Box<[u8]>>,
    /// No start before it could answer anybody any more.
    pub settled: bool,
}

impl Ownership {
    /// What is on record; `None` if nobody has served the rows yet.
    ///
    /// # Errors
    /// `EIO` if that is damaged; the engine's.
    pub fn read(engine: &dyn Engine) -> FsResult<Option<Self>> {
        read(engine, SEAT, Self::decode)
    }

    /// Puts it on record; returns when it is durable.
    ///
    /// # Errors
    /// The engine's.
    pub fn write(&self, engine: &dyn Engine) -> FsResult<()> {
        let key = system_key(SEAT).to_owned();
        commit(engine, Mutation { key, value: Some(self.encode()) })
    }

    /// Whether a start of `holder`, which has the holder's lock, finds that no earlier start can be
    /// running.
    pub fn is_exclusive(ownership: Option<&Self>, holder: &[u8]) -> bool {
        ownership.is_none_or(|ownership| {
            ownership.settled && ownership.holder.as_deref().is_none_or(|last| last == holder)
        })
    }

    fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION, self.settled.into()];
        out.extend_from_slice(self.holder.as_deref().unwrap_or_default());
        out.into()
    }

    /// Reads a record as it stands in its row.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(DecodeError("ownership record of an unknown format version"));
        }
        let settled = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError("ownership record: neither settled nor not")),
        };
        let holder = &bytes[2..];
        if holder.len() > HOLDER_BYTES_MAX {
            return Err(DecodeError("ownership record: too long"));
        }
        Ok(Self { holder: (!holder.is_empty()).then(|| holder.into()), settled })
    }
}

/// The key of the record of the process that served rows last: for looking at it without opening
/// them.
pub fn ownership_key() -> Key {
    system_key(SEAT).to_owned()
}

/// The word by which others know the node that owns these rows, if it has one.
///
/// # Errors
/// `EIO` if it is damaged; the engine's.
pub fn node_uuid(engine: &dyn Engine) -> FsResult<Option<u64>> {
    read(engine, NODE_UUID, decode_counter)
}

/// Gives the rows their word; returns when it is durable.
///
/// # Errors
/// The engine's.
pub fn bear(engine: &dyn Engine, node_uuid: u64) -> FsResult<()> {
    commit(engine, counter_row(NODE_UUID, node_uuid))
}

fn read<T>(
    engine: &dyn Engine,
    name: &'static str,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) -> FsResult<Option<T>> {
    let mut found = Ok(None);
    let read = engine
        .get_many(&[system_key(name)], &mut |_, row| found = row.value.map(&decode).transpose());
    read.map_err(engine_error)?;
    found.map_err(|why| {
        FsError::because(libc::EIO, format!("metadata: damaged record {name:?}: {why}"))
    })
}

fn commit(engine: &dyn Engine, row: Mutation) -> FsResult<()> {
    engine.commit(BatchKind::Freeing, vec![row]).map_err(engine_error)?;
    engine.sync().map_err(engine_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};

    fn ownership(holder: &[u8], settled: bool) -> Ownership {
        Ownership { holder: (!holder.is_empty()).then(|| holder.into()), settled }
    }

    #[test]
    fn records_come_back() {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        assert_eq!((node_uuid(&engine), Ownership::read(&engine)), (Ok(None), Ok(None)));
        bear(&engine, 7).unwrap();
        assert_eq!(node_uuid(&engine), Ok(Some(7)));
        for written in [ownership(b"here", false), ownership(b"here", true), ownership(b"", true)] {
            written.write(&engine).unwrap();
            assert_eq!(Ownership::read(&engine), Ok(Some(written)));
        }
        for damaged in [&b""[..], b"\x01", b"\x02\x01here", b"\x01\x02here", &[1; 300]] {
            assert!(Ownership::decode(damaged).is_err());
        }
    }

    /// A start is the only one if it follows a settled start of the same holder, or an end.
    #[test]
    fn sole_starts() {
        for (last, exclusive) in [
            (None, true),
            (Some(ownership(b"here", true)), true),
            (Some(ownership(b"", true)), true),
            // One before it may answer yet.
            (Some(ownership(b"here", false)), false),
            (Some(ownership(b"", false)), false),
            (Some(ownership(b"there", true)), false),
        ] {
            assert_eq!(Ownership::is_exclusive(last.as_ref(), b"here"), exclusive, "{last:?}");
        }
    }
}
