//! Extent lists of chunks from the metadata, a page at a time.
//!
//! A node answers with as many lists as a message holds, and passes over chunks without extents at
//! once: a file is gone through in the time of what it has, however large its holes are. Two pages
//! may be of different moments, as two reads are: a caller that keeps lists checks that the content
//! is still what it was.

use std::sync::Arc;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, ExtentList};
use kestrel_types::ids::InodeId;
use kestrel_types::request::{Answer, Op};

use super::{Caller, Done, Fs, unexpected};

/// The first lists of a window of chunks.
#[derive(Debug)]
pub struct Page {
    /// Chunks that have extents, by number, ascending.
    pub lists: Vec<(u64, Arc<ExtentList>)>,
    /// Last chunk of the window that is told of; those behind it are on the next page.
    pub until: u64,
}

impl Fs {
    /// The lists of the chunks from `first` to at most `last` of a file.
    pub fn chunk_page(self: &Arc<Self>, ino: InodeId, first: u64, last: u64, done: Done<Page>) {
        self.ask(Caller::ROOT, Op::Chunks { ino, first, last }, move |answer| match answer {
            Ok(Answer::Chunks { chunks, end }) => done(page(ino, first, last, &chunks, end)),
            Ok(other) => done(Err(unexpected(&other))),
            Err(error) => done(Err(error)),
        });
    }
}

/// Checks what the node answered.
fn page(
    ino: InodeId,
    first: u64,
    last: u64,
    chunks: &[(u64, Vec<Extent>)],
    end: bool,
) -> FsResult<Page> {
    let wrong = |why: &str| {
        FsError::because(
            libc::EIO,
            format!("the metadata node told chunks of inode {ino} wrongly: {why}"),
        )
    };
    let mut lists = Vec::with_capacity(chunks.len());
    let mut from = first;
    for (chunk, extents) in chunks {
        if !(from..=last).contains(chunk) {
            return Err(wrong("they are out of order, or were not asked for"));
        }
        let list = ExtentList::from_extents(extents).map_err(|why| wrong(&why.to_string()))?;
        lists.push((*chunk, Arc::new(list)));
        from = chunk.saturating_add(1);
    }
    let until = match (end, lists.last()) {
        (true, _) => last,
        (false, Some((chunk, _))) => *chunk,
        (false, None) => return Err(wrong("more would follow nothing")),
    };
    Ok(Page { lists, until })
}
