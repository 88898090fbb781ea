//! Many files with one burst of requests: a program that needs a batch asks for a batch.
//!
//! All look-ups leave with one write, and the answers come as they come. The bytes of a small file
//! are in its record, which is the answer. Bytes in packed ranges are read in the order in which
//! they lie. What is left (large files, symbolic links, files that are being written here) is
//! opened and read one by one. No file is held open, and an access time stays what it was.

use std::sync::Arc;

use kestrel_blockstore::Buffer;
use kestrel_types::error::FsResult;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Op, Outcome, Reply};

use super::listing::{DirEntry, Listing};
use super::waiting::{Burst, dropped};
use super::walk::check;
use super::{NativeCalls, OpenHow};
use crate::fs::{FoundContent, PackedContent};

/// Most requests that are without an answer at a time: their answers take memory.
const BURST_MAX: usize = 4096;

/// What a look-up by one request came to.
enum LookedUp {
    Inode(Box<Inode>),
    /// The path has to be walked.
    Walk,
}

impl NativeCalls<'_> {
    /// Attributes of many files, each as by [`NativeCalls::stat`].
    pub fn stat_many<P: AsRef<[u8]>>(&self, paths: &[P], follow: bool) -> Vec<FsResult<Inode>> {
        let mut all = Vec::with_capacity(paths.len());
        for paths in paths.chunks(BURST_MAX) {
            let looked_up = self.look_up(paths);
            all.extend(looked_up.into_iter().zip(paths).map(
                |(looked_up, path)| match looked_up? {
                    LookedUp::Inode(inode) if inode.kind != Kind::Symlink || !follow => {
                        let mut inode = *inode;
                        self.volume.fs()?.show_written(&mut inode);
                        Ok(inode)
                    }
                    _ => self.stat(path.as_ref(), follow),
                },
            ));
        }
        all
    }

    /// The contents of many files.
    pub fn read_many<P: AsRef<[u8]>>(&self, paths: &[P]) -> Vec<FsResult<Buffer>> {
        paths.chunks(BURST_MAX).flat_map(|paths| self.read_burst(paths)).collect()
    }

    /// The names in many directories.
    pub fn list_many<P: AsRef<[u8]>>(&self, paths: &[P]) -> Vec<FsResult<Vec<DirEntry>>> {
        paths.chunks(BURST_MAX).flat_map(|paths| self.list_burst(paths)).collect()
    }

    fn read_burst<P: AsRef<[u8]>>(&self, paths: &[P]) -> Vec<FsResult<Buffer>> {
        let mut packed: Vec<(usize, PackedContent)> = Vec::new();
        let mut open = Vec::new();
        let mut contents: Vec<FsResult<Buffer>> = Vec::with_capacity(paths.len());
        for (number, looked_up) in self.look_up(paths).into_iter().enumerate() {
            contents.push(match self.found(looked_up) {
                Ok(FoundContent::Bytes(bytes)) => Ok(bytes),
                Ok(FoundContent::Packed(content)) => {
                    packed.push((number, content));
                    Err(dropped())
                }
                Ok(FoundContent::Open) => {
                    open.push(number);
                    Err(dropped())
                }
                Err(error) => Err(error),
            });
        }
        let fs = match self.volume.fs() {
            Ok(fs) => fs,
            Err(error) => return paths.iter().map(|_| Err(error.clone())).collect(),
        };
        packed.sort_unstable_by_key(|(_, content)| content.position());
        let burst = Burst::new();
        for (number, content) in packed {
            let send = burst.sender();
            fs.read_packed(content, Box::new(move |read| drop(send.send((number, read)))));
        }
        let collected = burst.collect(self.gone, |number, read| match read {
            Ok(Some(bytes)) => contents[number] = Ok(bytes),
            Ok(None) => open.push(number),
            Err(error) => contents[number] = Err(error),
        });
        if let Err(error) = collected {
            return paths.iter().map(|_| Err(error.clone())).collect();
        }
        for number in open {
            contents[number] = self.read_opened(paths[number].as_ref());
        }
        contents
    }

    fn found(&self, looked_up: FsResult<LookedUp>) -> FsResult<FoundContent> {
        match looked_up? {
            LookedUp::Inode(inode) if inode.kind == Kind::Symlink => Ok(FoundContent::Open),
            LookedUp::Inode(inode) => self.volume.fs()?.found_content(self.volume.creds(), *inode),
            LookedUp::Walk => Ok(FoundContent::Open),
        }
    }

    /// The content of one file, opened and read.
    fn read_opened(&self, path: &[u8]) -> FsResult<Buffer> {
        let file = self.open(path, OpenHow::READ)?;
        let size = self.file_stat(&file)?.size;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        let len = self.read_at(&file, 0, &mut bytes)?;
        bytes.truncate(len);
        self.close(file)?;
        Ok(bytes.into())
    }

    fn list_burst<P: AsRef<[u8]>>(&self, paths: &[P]) -> Vec<FsResult<Vec<DirEntry>>> {
        let dirs: Vec<FsResult<Inode>> = self.stat_many(paths, true);
        let mut listings: Vec<Option<Listing>> = Vec::with_capacity(paths.len());
        let mut all: Vec<FsResult<Vec<DirEntry>>> = Vec::with_capacity(paths.len());
        for (dir, path) in dirs.into_iter().zip(paths) {
            let listing = dir.and_then(|inode| match inode.kind {
                Kind::Dir => Ok(Listing::of(inode.ino)),
                _ => self.listing(path.as_ref()),
            });
            match listing {
                Ok(listing) => {
                    listings.push(Some(listing));
                    all.push(Ok(Vec::new()));
                }
                Err(error) => {
                    listings.push(None);
                    all.push(Err(error));
                }
            }
        }
        loop {
            let is_open =
                |listing: &Option<Listing>| listing.as_ref().is_some_and(|one| !one.has_ended());
            let wanted: Vec<usize> =
                (0..listings.len()).filter(|number| is_open(&listings[*number])).collect();
            if wanted.is_empty() {
                return all;
            }
            let ops = wanted.iter().flat_map(|at| &listings[*at]).map(Listing::request).collect();
            let replies = match self.replies(ops) {
                Ok(replies) => replies,
                Err(error) => return paths.iter().map(|_| Err(error.clone())).collect(),
            };
            for (number, reply) in wanted.into_iter().zip(replies) {
                let Some(listing) = &mut listings[number] else { continue };
                match (listing.take(reply), &mut all[number]) {
                    (Ok(entries), Ok(all)) => all.extend(entries),
                    (Ok(_), Err(_)) => {}
                    (Err(error), all) => {
                        listings[number] = None;
                        *all = Err(error);
                    }
                }
            }
        }
    }

    /// Finds many paths with one burst. Paths that need more than a request each are left.
    fn look_up<P: AsRef<[u8]>>(&self, paths: &[P]) -> Vec<FsResult<LookedUp>> {
        let (mut numbers, mut ops) = (Vec::with_capacity(paths.len()), Vec::new());
        let mut all: Vec<FsResult<LookedUp>> = Vec::with_capacity(paths.len());
        for (number, path) in paths.iter().enumerate() {
            let path = path.as_ref();
            // A slash at the end, the root and `..` are for the walk.
            let place = check(path).map(|()| {
                let is_plain = !path.ends_with(b"/") && !path.ends_with(b".");
                PathRef::from_path(ROOT, path).ok().filter(|_| is_plain)
            });
            all.push(place.map(|place| {
                if let Some(place) = place {
                    numbers.push(number);
                    ops.push(Op::Lookup(place));
                }
                LookedUp::Walk
            }));
        }
        match self.replies(ops) {
            Ok(replies) => {
                for (number, reply) in numbers.into_iter().zip(replies) {
                    all[number] = match reply {
                        Ok(Answer::Entry { inode, .. }) => Ok(LookedUp::Inode(inode)),
                        Ok(_) | Err(Outcome::Symlink { .. }) => Ok(LookedUp::Walk),
                        Err(outcome) => crate::fs::plain(Err(outcome)).map(|_| LookedUp::Walk),
                    };
                }
                all
            }
            Err(error) => paths.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Sends requests together and waits for all replies, which come in the order of the requests.
    fn replies(&self, ops: Vec<Op>) -> FsResult<Vec<Reply>> {
        let fs = self.volume.fs()?;
        let burst = Burst::new();
        let mut replies: Vec<Reply> = ops.iter().map(|_| Err(dropped().into())).collect();
        let send = parking_lot::Mutex::new(burst.sender());
        let each: crate::fs::EachReply =
            Arc::new(move |number, reply| drop(send.lock().send((number, reply))));
        fs.submit_all(self.volume.creds(), ops, &each);
        drop(each);
        burst.collect(self.gone, |number, reply| {
            if let Some(place) = replies.get_mut(number) {
                *place = reply;
            }
        })?;
        Ok(replies)
    }
}
