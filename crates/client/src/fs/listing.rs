//! Listing directories.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::request::{Answer, Op};

use super::{Caller, DirHandle, Done, Fs, unexpected};
use crate::dir_stream::{BATCH_ENTRIES, DirStream, Step};

/// One entry as a listing gives it.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: InodeId,
    /// Type.
    pub kind: Kind,
    /// Cookie of the entry that follows.
    pub next: u64,
}

/// Takes entries until it breaks, because it is full. Handed back when the listing pauses or ends.
pub trait Sink: Send + 'static {
    /// Takes an entry, or breaks and leaves it for the next call.
    fn entry(&mut self, entry: Listed<'_>) -> ControlFlow<()>;
}

impl Fs {
    /// Opens a directory for listing; checks read permission.
    pub fn opendir(self: &Arc<Self>, caller: Caller, ino: InodeId, done: Done<Arc<DirHandle>>) {
        const R_OK: u32 = libc::R_OK as u32;
        self.access(
            caller,
            ino,
            R_OK,
            Box::new(move |allowed| {
                done(allowed.map(|()| Self::open_directory(ino)));
            }),
        );
    }

    /// Opens a directory that may be read: whoever calls has had that checked.
    pub fn open_directory(ino: InodeId) -> Arc<DirHandle> {
        Arc::new(DirHandle { ino, stream: Mutex::new(DirStream::default()) })
    }

    /// Gives the entries from `cookie` on to `sink` until it is full or the directory ends.
    pub fn readdir<S: Sink>(
        self: &Arc<Self>,
        dir: Arc<DirHandle>,
        mut cookie: u64,
        mut sink: S,
        done: Done<S>,
    ) {
        loop {
            let step = dir.stream.lock().at(cookie);
            match step {
                Step::End => return done(Ok(sink)),
                Step::Dot(parent, next) => {
                    // The number of `..` matters to nobody who lists; the kernel asks by LOOKUP when it wants the parent.
                    let name: &[u8] = if parent { b".." } else { b"." };
                    if sink.entry(Listed { name, ino: dir.ino, kind: Kind::Dir, next }).is_break() {
                        return done(Ok(sink));
                    }
                    cookie = next;
                }
                Step::Entries(entries) => {
                    for (entry, next) in &entries {
                        let listed = Listed {
                            name: entry.name.as_bytes(),
                            ino: entry.ino,
                            kind: entry.kind,
                            next: *next,
                        };
                        if sink.entry(listed).is_break() {
                            return done(Ok(sink));
                        }
                        cookie = *next;
                    }
                }
                Step::Fetch(fetch) => {
                    let op = Op::ReadDir {
                        dir: dir.ino,
                        after: fetch.after.clone(),
                        limit: BATCH_ENTRIES,
                        check: false,
                    };
                    let fs = self.clone();
                    return self.ask(Caller::ROOT, op, move |answer| match batch(answer) {
                        Ok((entries, end)) => {
                            dir.stream.lock().supply(fetch, entries, end);
                            fs.readdir(dir, cookie, sink, done);
                        }
                        // A directory that was removed while it is open lists as empty, as on local file systems.
                        Err(error) if matches!(error.errno, libc::ENOENT | libc::ESTALE) => done(Ok(sink)),
                        Err(error) => done(Err(error)),
                    });
                }
            }
        }
    }
}

fn batch(answer: FsResult<Answer>) -> Result<(Vec<kestrel_types::request::DirEntry>, bool), FsError> {
    match answer? {
        Answer::Entries { entries, end, .. } => Ok((entries, end)),
        other => Err(unexpected(&other)),
    }
}
