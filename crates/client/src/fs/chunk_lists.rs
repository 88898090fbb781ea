//! Chunk lists from the metadata, however many there are.
//!
//! One message does not hold the lists of thousands of chunks in many pieces: it is answered `EMSGSIZE`, and the stretch is asked
//! for in halves. The halves may be of different moments, as those of two reads are: whoever keeps lists checks that the content is
//! still what it was. A single chunk is never split: its pieces are folded long before their list outgrows a message.

use std::sync::Arc;

use kestrel_types::extent::Extent;
use kestrel_types::ids::InodeId;
use kestrel_types::request::{Answer, Op};

use super::{Caller, Done, Fs, unexpected};

/// Chunks by number, ascending, each with its extents; without those that have none.
pub type ChunkLists = Vec<(u64, Vec<Extent>)>;

impl Fs {
    /// The lists of the chunks `first..=last` of a file.
    pub(super) fn chunk_lists(self: &Arc<Self>, ino: InodeId, first: u64, last: u64, done: Done<ChunkLists>) {
        let fs = self.clone();
        self.ask(Caller::ROOT, Op::Chunks { ino, first, last }, move |answer| match answer {
            Ok(Answer::Chunks(found)) => done(Ok(found)),
            Ok(other) => done(Err(unexpected(&other))),
            Err(error) if error.errno == libc::EMSGSIZE && first < last => {
                let middle = first + (last - first) / 2;
                let again = fs.clone();
                let lower = move |lower| match lower {
                    Ok(found) => again.chunk_lists(ino, middle + 1, last, joined(found, done)),
                    Err(error) => done(Err(error)),
                };
                fs.chunk_lists(ino, first, middle, Box::new(lower));
            }
            Err(error) => done(Err(error)),
        });
    }
}

/// Takes the upper half, and gives both.
fn joined(mut lower: ChunkLists, done: Done<ChunkLists>) -> Done<ChunkLists> {
    Box::new(move |upper| {
        done(upper.map(|upper| {
            lower.extend(upper);
            lower
        }));
    })
}
