//! Inodes the kernel refers to by number, and where each was last seen.
//!
//! The metadata core finds a file by directory and name. The kernel, once it has looked a name up,
//! speaks of the inode's number until it forgets it; this table leads from the number back to the
//! name. It is no cache of attributes: an entry that became stale costs the node a second look,
//! never a wrong answer.
//!
//! What has lost its last name may still be somebody's working directory, or be held by an `O_PATH`
//! descriptor, which the node knows nothing of. Its last attributes stay here until the kernel
//! forgets it.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::{InodeRef, Name};

use crate::handover::{HexBytes, InodeNote};

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 64;

/// Where an inode is.
#[derive(Debug)]
enum InodeLocation {
    /// Not known, or it never had a name.
    Unknown,
    /// It was seen under this name.
    Named(InodeId, Name),
    /// It lost its last name. Its attributes since then; of the content, only a symbolic link's
    /// target.
    Removed(Box<Inode>),
}

#[derive(Debug)]
struct InodeState {
    /// Lookups the kernel has not forgotten yet.
    lookups: u64,
    kind: Kind,
    place: InodeLocation,
    /// `data_change` that the kernel's page cache of the file corresponds to; 0 if unknown.
    cached_change: u64,
    /// `data_change` that the size corresponds to which the kernel was told last; 0 if unknown.
    told_change: u64,
    /// Opens that were told to drop the cached pages, of which nothing has been heard since: the
    /// pages may still be there.
    dropping: u32,
    /// How many of these the kernel's pages have been dropped since.
    dropped: u32,
}

impl InodeState {
    /// One open fewer has still to drop the cached pages.
    fn drop_settled(&mut self) {
        self.dropping = self.dropping.saturating_sub(1);
        self.dropped = self.dropped.min(self.dropping);
    }
}

/// What an open does with the kernel's cached pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCacheAction {
    /// They hold the present content.
    Keep,
    /// They may hold another.
    Drop,
    /// The kernel does not know the file by number, so there are none.
    Unknown,
}

/// The table.
#[derive(Debug)]
pub struct InodeTable {
    shards: Vec<Mutex<FxHashMap<InodeId, Box<InodeState>>>>,
}

impl Default for InodeTable {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl InodeTable {
    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, Box<InodeState>>> {
        // Numbers are handed out in sequence, so their low bits spread evenly.
        &self.shards[ino as usize % SHARDS]
    }

    /// Notes that the kernel learned of `ino` once more, at this place (`None`: it has no name).
    pub fn learned(&self, ino: InodeId, kind: Kind, place: Option<(InodeId, &Name)>) {
        let mut shard = self.shard(ino).lock();
        let known = shard.entry(ino).or_insert_with(|| {
            Box::new(InodeState {
                lookups: 0,
                kind,
                place: InodeLocation::Unknown,
                cached_change: 0,
                told_change: 0,
                dropping: 0,
                dropped: 0,
            })
        });
        known.lookups += 1;
        known.kind = kind;
        match (&mut known.place, place) {
            (InodeLocation::Named(dir, name), Some((new_dir, new_name)))
                if *dir == new_dir && name == new_name => {}
            (known, Some((dir, name))) => *known = InodeLocation::Named(dir, name.clone()),
            (_, None) => {}
        }
    }

    /// Notes that the kernel forgot `count` of its lookups.
    pub fn forgot(&self, ino: InodeId, count: u64) {
        let mut shard = self.shard(ino).lock();
        if let Some(known) = shard.get_mut(&ino) {
            known.lookups = known.lookups.saturating_sub(count);
            if known.lookups == 0 {
                shard.remove(&ino);
            }
        }
    }

    /// Notes that an inode moved; with a `dir` of 0, to a directory that is not known.
    pub fn moved(&self, ino: InodeId, dir: InodeId, name: &Name) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino) {
            known.place = if dir == 0 {
                InodeLocation::Unknown
            } else {
                InodeLocation::Named(dir, name.clone())
            };
        }
    }

    /// How to ask a node about `ino`. Directories are found by number alone.
    pub fn reference(&self, ino: InodeId) -> InodeRef {
        if ino == ROOT {
            return InodeRef::by_id(ino);
        }
        let shard = self.shard(ino).lock();
        let seen =
            shard.get(&ino).filter(|known| known.kind != Kind::Dir).and_then(|known| match &known
                .place
            {
                InodeLocation::Named(dir, name) => Some((*dir, name.clone())),
                InodeLocation::Unknown | InodeLocation::Removed(_) => None,
            });
        InodeRef { ino, seen }
    }

    /// Notes that an inode lost a name; with the last one its attributes stay for as long as the
    /// kernel knows it.
    pub fn removed(&self, inode: &Inode) {
        if inode.nlink > 0 {
            return;
        }
        if let Some(known) = self.shard(inode.ino).lock().get_mut(&inode.ino) {
            let mut inode = Box::new(inode.clone());
            if inode.kind == Kind::File {
                inode.data = Data::None;
            }
            known.place = InodeLocation::Removed(inode);
        }
    }

    /// Notes that a file was closed for the last time here, when its attributes were these. Without
    /// a name it is gone now.
    pub fn closed(&self, inode: &Inode) {
        let mut shard = self.shard(inode.ino).lock();
        let Some(known) = shard.get_mut(&inode.ino) else { return };
        let gone = |ctime: Nanos| {
            let ctime = inode.ctime.max(ctime);
            InodeLocation::Removed(Box::new(Inode {
                nlink: 0,
                ctime,
                data: Data::None,
                ..inode.clone()
            }))
        };
        match &known.place {
            InodeLocation::Unknown if inode.nlink == 0 => known.place = gone(inode.ctime),
            InodeLocation::Removed(last) if inode.change > last.change => {
                known.place = gone(last.ctime)
            }
            _ => {}
        }
    }

    /// Looks at, or changes, the attributes of something that lost its last name; `None` if `ino`
    /// did not.
    pub fn with_removed<T>(&self, ino: InodeId, look: impl FnOnce(&mut Inode) -> T) -> Option<T> {
        match &mut self.shard(ino).lock().get_mut(&ino)?.place {
            InodeLocation::Removed(inode) => Some(look(inode)),
            InodeLocation::Unknown | InodeLocation::Named(..) => None,
        }
    }

    /// Records which content the kernel's page cache of a file corresponds to, and tells whether
    /// that is what it held before, so that an open may keep the cached pages.
    pub fn cached_as(&self, ino: InodeId, data_change: u64) -> bool {
        match self.shard(ino).lock().get_mut(&ino) {
            Some(known) => std::mem::replace(&mut known.cached_change, data_change) == data_change,
            None => false,
        }
    }

    /// Records of which content the kernel is told the size, and answers whether it was told that
    /// before.
    pub fn told_as(&self, ino: InodeId, data_change: u64) -> bool {
        match self.shard(ino).lock().get_mut(&ino) {
            Some(known) => std::mem::replace(&mut known.told_change, data_change) == data_change,
            None => false,
        }
    }

    /// The kernel has dropped its pages of a file, and was told its size, when it had this content
    /// or a later one.
    pub fn told_all(&self, ino: InodeId, data_change: u64) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino) {
            (known.cached_change, known.told_change) = (data_change, data_change);
            // Opens that are told to drop them have been answered before.
            known.dropped = known.dropping;
        }
    }

    /// Whether the kernel's pages and size of a file are those of this content. (Not while an open
    /// has still to drop them.)
    pub fn is_told_all(&self, ino: InodeId, data_change: u64) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|known| {
            known.dropping <= known.dropped
                && [known.cached_change, known.told_change] == [data_change; 2]
        })
    }

    /// Records, for the answer to an open, which content the kernel's page cache will correspond
    /// to. The kernel drops what it held of another content only when it handles that answer; an
    /// open that overtakes it must drop them too. So a caller that gets [`PageCacheAction::Drop`]
    /// says [`InodeTable::pages_dropped`] with the first thing that comes through the open file.
    pub fn opened_as(&self, ino: InodeId, data_change: u64) -> PageCacheAction {
        match self.shard(ino).lock().get_mut(&ino) {
            Some(known) => {
                let same = std::mem::replace(&mut known.cached_change, data_change) == data_change;
                if same && known.dropping == 0 {
                    return PageCacheAction::Keep;
                }
                known.dropping += 1;
                PageCacheAction::Drop
            }
            None => PageCacheAction::Unknown,
        }
    }

    /// The kernel has handled the answer to an open that got [`PageCacheAction::Drop`].
    pub fn pages_dropped(&self, ino: InodeId) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino) {
            known.drop_settled();
        }
    }

    /// The kernel never hears of an open: what was recorded for its answer did not happen. `drops`
    /// if that was to drop the pages, which are therefore still those of another content.
    pub fn open_abandoned(&self, ino: InodeId, drops: bool) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino) {
            known.told_change = 0;
            if drops {
                known.cached_change = 0;
                known.drop_settled();
            }
        }
    }

    /// Records that a change of ours led from the content `from` to `to`, and that the kernel made
    /// it in its pages and size too. If these were another content's, which somebody else has
    /// changed since, they are still of no use to the next open.
    pub fn cached_moved(&self, ino: InodeId, from: u64, to: u64) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino) {
            for change in [&mut known.cached_change, &mut known.told_change] {
                if *change == from {
                    *change = to;
                }
            }
        }
    }

    /// Some of those in the table that are no directories, at most `count`.
    pub fn files(&self, count: usize) -> Vec<InodeId> {
        let some = |shard: &Mutex<FxHashMap<InodeId, Box<InodeState>>>| {
            let shard = shard.lock();
            let files =
                shard.iter().filter(|(_, known)| known.kind != Kind::Dir).map(|(ino, _)| *ino);
            files.take(count.div_ceil(SHARDS)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(some).take(count).collect()
    }

    /// All of it, written down.
    pub fn notes(&self) -> Vec<InodeNote> {
        let note = |ino: InodeId, known: &InodeState| {
            let (seen, removed) = match &known.place {
                InodeLocation::Unknown => (None, None),
                InodeLocation::Named(dir, name) => {
                    (Some((*dir, HexBytes::new(name.as_bytes()))), None)
                }
                InodeLocation::Removed(inode) => (None, Some(HexBytes::of_inode(inode))),
            };
            InodeNote {
                ino,
                lookups: known.lookups,
                kind: known.kind as u8,
                seen,
                removed,
                cached: (known.cached_change, known.told_change),
                dropping: (known.dropping, known.dropped),
            }
        };
        let of = |shard: &Mutex<FxHashMap<InodeId, Box<InodeState>>>| {
            let shard = shard.lock();
            shard.iter().map(|(ino, known)| note(*ino, known)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Takes in what another client has written down.
    ///
    /// # Errors
    /// `EINVAL` if it makes no sense.
    pub fn take_notes(&self, notes: &[InodeNote]) -> FsResult<()> {
        for note in notes {
            let place = match (&note.seen, &note.removed) {
                (_, Some(inode)) => InodeLocation::Removed(Box::new(inode.inode()?)),
                (Some((dir, name)), None) => InodeLocation::Named(*dir, name.name()?),
                (None, None) => InodeLocation::Unknown,
            };
            let state = InodeState {
                lookups: note.lookups,
                kind: note.kind()?,
                place,
                cached_change: note.cached.0,
                told_change: note.cached.1,
                dropping: note.dropping.0,
                dropped: note.dropping.1,
            };
            self.shard(note.ino).lock().insert(note.ino, Box::new(state));
        }
        Ok(())
    }

    /// Inodes in the table.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inode is known until the kernel has forgotten it as often as it has looked it up.
    #[test]
    fn inode_lookup_counts() {
        let table = InodeTable::default();
        let (a, b) = (Name::new(b"a").unwrap(), Name::new(b"b").unwrap());
        table.learned(20, Kind::File, Some((1, &a)));
        table.learned(20, Kind::File, Some((1, &a)));
        assert_eq!(table.reference(20).seen, Some((1, a)));
        table.moved(20, 17, &b);
        assert_eq!(table.reference(20).seen, Some((17, b.clone())));
        table.forgot(20, 1);
        assert_eq!(table.len(), 1);
        table.forgot(20, 5);
        assert_eq!(table.len(), 0);
        table.moved(20, 1, &b);
        assert_eq!(table.reference(20).seen, None);
    }

    /// The kernel's pages of a file are kept only when those of another content are surely gone.
    #[test]
    fn page_cache_kept_for_same_content() {
        let table = InodeTable::default();
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Unknown);
        table.learned(20, Kind::File, None);
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Drop);
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Drop, "it overtook the first");
        table.pages_dropped(20);
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Drop);
        table.pages_dropped(20);
        table.pages_dropped(20);
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Keep);
        assert_eq!(table.opened_as(20, 8), PageCacheAction::Drop);
    }

    /// An open of which the kernel never hears drops no pages, so the next one must.
    #[test]
    fn pages_after_an_abandoned_open() {
        let table = InodeTable::default();
        table.learned(20, Kind::File, None);
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Drop);
        table.pages_dropped(20);
        assert_eq!(table.opened_as(20, 7), PageCacheAction::Keep);
        assert_eq!(table.opened_as(20, 8), PageCacheAction::Drop);
        table.open_abandoned(20, true);
        assert_eq!(table.opened_as(20, 8), PageCacheAction::Drop);
        table.pages_dropped(20);
        assert_eq!(table.opened_as(20, 8), PageCacheAction::Keep);
        table.told_as(20, 8);
        table.open_abandoned(20, false);
        assert!(!table.is_told_all(20, 8), "the kernel may not have heard the size");
        assert_eq!(table.opened_as(20, 8), PageCacheAction::Keep, "it had the pages before");
    }

    /// A client that takes a mount over knows each inode as the one before did.
    #[test]
    fn table_in_notes() {
        let table = InodeTable::default();
        let name = Name::new(b"a\xff").unwrap();
        table.learned(20, Kind::File, Some((1, &name)));
        table.learned(20, Kind::File, Some((1, &name)));
        table.learned(21, Kind::Dir, None);
        table.cached_as(20, 7);
        table.opened_as(20, 8);
        let again = InodeTable::default();
        let json = serde_json::to_string(&table.notes()).unwrap();
        again.take_notes(&serde_json::from_str::<Vec<_>>(&json).unwrap()).unwrap();
        assert_eq!((again.len(), again.reference(20).seen), (2, Some((1, name))));
        assert_eq!(again.opened_as(20, 8), PageCacheAction::Drop, "one has still to drop them");
        again.forgot(20, 1);
        again.forgot(20, 1);
        assert_eq!(again.len(), 1);
        let odd = InodeNote { kind: 99, ..InodeNote::default() };
        assert_eq!(again.take_notes(&[odd]).unwrap_err().errno, libc::EINVAL);
    }

    #[test]
    fn pages_are_kept_only_for_the_content_they_hold() {
        let table = InodeTable::default();
        assert!(!table.cached_as(20, 7));
        table.learned(20, Kind::File, None);
        assert!(!table.cached_as(20, 7));
        assert!(table.cached_as(20, 7));
        assert!(!table.cached_as(20, 8));
        table.cached_moved(20, 8, 9);
        assert!(table.cached_as(20, 9), "a change of our own");
        table.cached_moved(20, 11, 12);
        assert!(!table.cached_as(20, 12), "somebody else's change lies between");
    }
}
