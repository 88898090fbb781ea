//! Chunks: the extents of a stretch of a file, for reading it.
//!
//! Reads the engine without a worker's role. Extents that a concurrent change replaced stay readable for the grace period.

use std::ops::ControlFlow;

use kestrel_types::codec::Reader;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::Table;
use kestrel_types::request::Answer;

use crate::engine::Engine;
use crate::pipeline::engine_error;
use crate::rows::number_of;

/// Most chunks after the first in one request.
pub const CHUNKS_MAX: u64 = 4096;

/// Reads them; and the position to wait for before they may be shown in mode `commit`.
pub fn run(engine: &dyn Engine, ino: InodeId, first: u64, last: u64) -> FsResult<(Answer, Position)> {
    if last < first || last - first > CHUNKS_MAX {
        return Err(FsError::new(libc::EINVAL, "too many chunks in one request"));
    }
    let (mut chunks, mut wait, mut damage) = (Vec::new(), 0, None);
    let after = first.checked_sub(1).map(u64::to_be_bytes);
    let deleted_at = engine
        .scan(Table::Chunk, ino, after.as_ref().map(|after| &after[..]), &mut |suffix, row, changed_at| {
            let number = number_of(suffix);
            if number > last {
                return ControlFlow::Break(());
            }
            let mut reader = Reader::new(row);
            match ExtentList::decode(&mut reader).and_then(|list| reader.end().map(|()| list)) {
                Ok(list) => chunks.push((number, list.extents().to_vec())),
                Err(why) => {
                    damage = Some(why);
                    return ControlFlow::Break(());
                }
            }
            wait = wait.max(changed_at);
            ControlFlow::Continue(())
        })
        .map_err(engine_error)?;
    match damage {
        Some(why) => Err(FsError::because(
            libc::EIO,
            format!("metadata: damaged chunk row of inode {ino}: {why}; run kestrel fsck"),
        )),
        None => Ok((Answer::Chunks(chunks), wait.max(deleted_at))),
    }
}
