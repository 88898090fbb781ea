//! Sweep: deletes some of the rows that were cut off a file with more chunks than one batch may
//! take.
//!
//! Truncating or removing such a file changes its record, or deletes it, and writes a row of table
//! `sweep` in the same batch: that is the moment at which everybody sees it. The rows of its chunks
//! beyond the cut are out of reach from then on: a file that exists may only become longer again,
//! in chunks, when they are gone ([`check_swept`](crate::content::check_swept)), and inode numbers
//! are never used again. This operation deletes [`crate::rows::SCAN_ROWS_MAX`] of them at a time,
//! with their references, and moves the row of table `sweep` on; with the last it goes. The node
//! runs it again and again, also after a crash.
//!
//! Exclusive: the file may belong to any worker, and another truncation changes the same row. Asked
//! by the node only.

use kestrel_types::ids::InodeId;
use kestrel_types::request::Answer;

use crate::content::Content;
use crate::rows::Value;
use crate::stop::Run;
use crate::view::View;

/// Runs the operation.
pub fn run(view: &mut View<'_>, ino: InodeId) -> Run<Answer> {
    view.need_exclusive()?;
    let Some(first) = view.sweep_of(ino)? else { return Ok(Answer::Done) };
    let home = view.home_of_inode(ino);
    let (chunks, rest) = view.chunks_from(ino, first)?;
    let mut content = Content::default();
    content.drop_chunks(view, chunks)?;
    content.want(view, home)?;
    view.begin()?;
    for (cell, _) in content.chunks {
        view.put(cell, Value::Absent);
    }
    view.book(&content.tally, home)?;
    view.set_sweep(ino, Some(first), rest);
    Ok(Answer::Done)
}
