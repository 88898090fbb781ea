//! Chunks: the extents of a stretch of a file, for reading it and for finding its holes.
//!
//! Only chunks that have extents are rows, so a scan passes over a hole of any size at once. The
//! answer ends after [`EXTENTS_TOLD_MAX`] extents, which bounds its size and its time; the client
//! goes on behind its last chunk.
//!
//! Reads the engine without a worker's state. Extents that a concurrent change replaced stay
//! readable for the grace period.

use std::ops::ControlFlow;

use kestrel_types::codec::Reader;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::{Table, number_of};
use kestrel_types::request::Answer;

use crate::stop::engine_error;
use kestrel_engine::Engine;

/// An answer ends with the chunk that brings it to so many extents. With those of one more chunk it
/// fits a message.
pub const EXTENTS_TOLD_MAX: usize = 4096;

/// Reads them; and the position to wait for before they may be shown in mode `commit`.
pub fn run(
    engine: &dyn Engine,
    ino: InodeId,
    first: u64,
    last: u64,
) -> FsResult<(Answer, Position)> {
    if last < first {
        return Err(FsError::new(libc::EINVAL, "the last chunk asked for lies before the first"));
    }
    let (mut chunks, mut wait, mut damage) = (Vec::new(), 0, None);
    let (mut told, mut end) = (0, true);
    let after = first.checked_sub(1).map(u64::to_be_bytes);
    let deleted_at = engine
        .scan(
            Table::Chunk,
            ino,
            after.as_ref().map(|after| &after[..]),
            &mut |suffix, row, changed_at| {
                let number = number_of(suffix);
                if number > last {
                    return ControlFlow::Break(());
                }
                if told >= EXTENTS_TOLD_MAX {
                    end = false;
                    return ControlFlow::Break(());
                }
                let mut reader = Reader::new(row);
                match ExtentList::decode(&mut reader).and_then(|list| reader.end().map(|()| list)) {
                    Ok(list) => {
                        // A row without extents counts as well: rows bound the time.
                        told += list.len().max(1);
                        chunks.push((number, list.extents().to_vec()));
                    }
                    Err(why) => {
                        damage = Some(why);
                        return ControlFlow::Break(());
                    }
                }
                wait = wait.max(changed_at);
                ControlFlow::Continue(())
            },
        )
        .map_err(engine_error)?;
    match damage {
        Some(why) => Err(FsError::because(
            libc::EIO,
            format!("metadata: damaged chunk row of inode {ino}: {why}; run kestrel fsck"),
        )),
        None => Ok((Answer::Chunks { chunks, end }, wait.max(deleted_at))),
    }
}
