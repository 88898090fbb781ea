//! Listing directories.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Op};

use super::{Caller, DirHandle, Done, Fs, unexpected};
use crate::dir_stream::{BATCH_ENTRIES, ListingStep};
use crate::listed::ListedLookup;

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
pub trait EntrySink: Send + 'static {
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

    /// Opens a directory that may be read: the caller has had that checked.
    pub fn open_directory(ino: InodeId) -> Arc<DirHandle> {
        let (stream, listing, keeps_access_time) = Default::default();
        Arc::new(DirHandle { ino, stream, listing, keeps_access_time })
    }

    /// Closes a directory.
    pub fn closedir(&self, dir: &DirHandle) {
        self.positions.keep(dir.ino, &dir.stream.lock());
        self.listed.closed(dir.ino, &dir.listing);
    }

    /// How long attributes that came with a listing may be used; zero: not at all. On a volume with
    /// its metadata in this process nothing is gained by that.
    pub fn set_listing_ttl(&self, ttl: Duration) {
        self.listed.set_ttl(if self.is_remote() { ttl } else { Duration::ZERO });
    }

    /// What came with listings was of no use: somebody else has changed it.
    pub fn forget_listed(&self) {
        self.listed.forget_all();
    }

    /// `caller` found a directory at a name of this node's, as he asked at `since`.
    pub fn reached(&self, caller: Caller, dir: InodeId, by: (u64, &Name), since: Instant) {
        if let Some(listing) = self.listed.of(caller, dir) {
            listing.reached(caller, by, since);
        }
    }

    /// Whether `caller`, which lists a directory and looks at what is in it, found it by this name
    /// a short time ago.
    pub fn is_reached(&self, caller: Caller, dir: InodeId, by: (u64, &Name)) -> bool {
        let listing = self.listed.of(caller, dir);
        listing.is_some_and(|listing| {
            listing.is_reached(caller, by, Instant::now(), self.listed.ttl())
        })
    }

    /// As [`Fs::lookup`] in a directory, which may be answered by what came with a listing of the
    /// same thread, and tells whether it was: [`crate::listed`].
    pub fn lookup_listed(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        done: Done<(Inode, bool)>,
    ) {
        let now = Instant::now();
        let listing = if place.dirs.is_empty() { self.listed.of(caller, place.base) } else { None };
        let fs = self.clone();
        let ask = move |place, done: Done<(Inode, bool)>| {
            fs.lookup(
                caller,
                place,
                Box::new(move |found| done(found.map(|inode| (inode, false)))),
            );
        };
        let Some(listing) = listing else { return ask(place, done) };
        let start = match listing.look(caller, &place.name, now, self.listed.ttl()) {
            ListedLookup::Nothing => return ask(place, done),
            ListedLookup::Inode(inode) => {
                return done(Ok(self.introduce_listed(caller, *inode, &place, now)));
            }
            ListedLookup::Page(start) => start,
        };
        self.listed.begin(&listing, start.clone(), now);
        let op = Op::ReadDirPlus { dir: place.base, after: start, limit: BATCH_ENTRIES };
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            let page = match answer {
                Ok(Answer::EntriesPlus { entries, .. }) => entries,
                // The look-up itself says what is wrong.
                _ => Vec::new(),
            };
            fs.listed.supply(&listing, page, now);
            match listing.look(caller, &place.name, now, fs.listed.ttl()) {
                ListedLookup::Inode(inode) => {
                    done(Ok(fs.introduce_listed(caller, *inode, &place, now)))
                }
                _ => ask(place, done),
            }
        });
    }

    fn introduce_listed(
        &self,
        caller: Caller,
        mut inode: Inode,
        place: &PathRef,
        now: Instant,
    ) -> (Inode, bool) {
        if self.accesses.is_on() {
            self.accesses.show(&mut inode);
        }
        self.listed.told(caller, &inode, now);
        (self.introduce(inode, Some((place.base, &place.name))), true)
    }

    /// Gives the entries from `cookie` on to `sink` until it is full or the directory ends.
    pub fn readdir<S: EntrySink>(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<DirHandle>,
        mut cookie: u64,
        mut sink: S,
        done: Done<S>,
    ) {
        self.listed.lists(caller, dir.ino, &dir.listing);
        loop {
            let step = dir.stream.lock().at(cookie);
            match step {
                ListingStep::End => return done(Ok(sink)),
                ListingStep::Unknown => {
                    if !self.positions.resume(dir.ino, cookie, &mut dir.stream.lock()) {
                        let why = "nothing is known of that position in the directory any more; \
                                   list it from the start";
                        return done(Err(FsError::new(libc::EINVAL, why)));
                    }
                }
                ListingStep::Dot(parent, next) => {
                    // The number of `..` does not matter in a listing; the kernel asks by LOOKUP
                    // when it wants the parent.
                    let name: &[u8] = if parent { b".." } else { b"." };
                    if sink.entry(Listed { name, ino: dir.ino, kind: Kind::Dir, next }).is_break() {
                        return done(Ok(sink));
                    }
                    cookie = next;
                }
                ListingStep::Entries(entries) => {
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
                ListingStep::Fetch(fetch) => {
                    let op = Op::ReadDir {
                        dir: dir.ino,
                        after: fetch.after.clone(),
                        limit: BATCH_ENTRIES,
                        check: false,
                    };
                    self.positions.begin(dir.ino, &mut dir.stream.lock());
                    let fs = self.clone();
                    return self.ask(Caller::ROOT, op, move |answer| match batch(answer) {
                        Ok((entries, end)) => {
                            let last = entries.last().map(|entry| &entry.name);
                            dir.listing.listed(fetch.after.as_ref(), last);
                            dir.stream.lock().supply(fetch, entries, end);
                            fs.readdir(caller, dir, cookie, sink, done);
                        }
                        // A directory that was removed while it is open lists as empty, as on local
                        // file systems.
                        Err(error) if matches!(error.errno, libc::ENOENT | libc::ESTALE) => {
                            done(Ok(sink))
                        }
                        Err(error) => done(Err(error)),
                    });
                }
            }
        }
    }
}

fn batch(
    answer: FsResult<Answer>,
) -> Result<(Vec<kestrel_types::request::DirEntry>, bool), FsError> {
    match answer? {
        Answer::Entries { entries, end, .. } => Ok((entries, end)),
        other => Err(unexpected(&other)),
    }
}
