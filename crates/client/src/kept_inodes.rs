//! What nodes have told of snapshots. It never becomes wrong, and is dropped only to make room.
//!
//! Two generations: what is learned or used goes to the young one; when that has half of the memory
//! it becomes the old one, and the old one before it is dropped. So what has not been used while
//! half of the memory was filled is gone.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Data, Inode};
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Reply};
use kestrel_types::snapshot::SnapshotId;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 16;

/// What a list of extents takes, and what each of them takes, bytes.
const LIST_BYTES: usize = 96;
const EXTENT_BYTES: usize = 48;

/// What an inode takes beside its content, bytes.
const INODE_BYTES: usize = 320;

/// What a name takes, bytes.
const NAME_BYTES: usize = 64;

/// An inode of a snapshot.
type Key = (SnapshotId, InodeId);

/// Values of extended attributes by their names; under the empty name all names.
type Attributes = FxHashMap<Box<[u8]>, Arc<[u8]>>;

/// Answers to requests for the extents of a stretch of chunks, by its first and last chunk.
type Stretches = FxHashMap<(u64, u64), Arc<Answer>>;

#[derive(Default)]
struct Generation {
    inodes: FxHashMap<Key, Arc<Inode>>,
    /// Entries by their directories.
    names: FxHashMap<Key, FxHashMap<Name, InodeId>>,
    /// Extended attributes of each inode.
    attributes: FxHashMap<Key, Attributes>,
    /// Extents of large files: what the kernel reads again, because it needed the memory, takes no
    /// request either.
    stretches: FxHashMap<Key, Stretches>,
    /// Directories that a node has let this client list.
    listable: FxHashSet<Key>,
    bytes: usize,
}

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

impl Shard {
    /// Takes an inode in; `half` is what the young generation may have, bytes.
    fn keep(&mut self, key: Key, inode: Arc<Inode>, half: usize) {
        let content = match &inode.data {
            Data::Inline(bytes) => bytes.len(),
            _ => 0,
        };
        if self.young.inodes.insert(key, inode).is_none() {
            self.grow(INODE_BYTES + content, half);
        }
    }

    fn keep_name(&mut self, dir: Key, name: &Name, ino: InodeId, half: usize) {
        let names = self.young.names.entry(dir).or_default();
        if names.insert(name.clone(), ino).is_none() {
            self.grow(NAME_BYTES + name.as_bytes().len(), half);
        }
    }

    fn keep_attribute(&mut self, key: Key, name: &[u8], value: Arc<[u8]>, half: usize) {
        let bytes = NAME_BYTES + name.len() + value.len();
        let attributes = self.young.attributes.entry(key).or_default();
        if attributes.insert(name.into(), value).is_none() {
            self.grow(bytes, half);
        }
    }

    fn keep_stretch(&mut self, key: Key, at: (u64, u64), answer: Arc<Answer>, half: usize) {
        let Answer::Chunks { chunks, .. } = &*answer else { return };
        let extents: usize = chunks.iter().map(|(_, extents)| extents.len()).sum();
        let bytes = LIST_BYTES * (1 + chunks.len()) + EXTENT_BYTES * extents;
        if self.young.stretches.entry(key).or_default().insert(at, answer).is_none() {
            self.grow(bytes, half);
        }
    }

    fn grow(&mut self, bytes: usize, half: usize) {
        self.young.bytes += bytes;
        if self.young.bytes > half {
            self.old = mem::take(&mut self.young);
        }
    }
}

/// Inodes and names of snapshots.
pub(crate) struct KeptInodes {
    shards: Vec<Mutex<Shard>>,
    /// Bytes of the young generation of a shard.
    half: usize,
    /// Snapshots that this process has removed. Their numbers are not used again.
    gone: Mutex<FxHashSet<SnapshotId>>,
    /// How many of them there are.
    gone_count: AtomicUsize,
}

impl KeptInodes {
    /// With at most `bytes` of them.
    pub fn new(bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            half: bytes / (2 * SHARDS),
            gone: Mutex::default(),
            gone_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, (_, ino): Key) -> &Mutex<Shard> {
        // Numbers are handed out in sequence, so their low bits spread evenly.
        &self.shards[ino as usize % SHARDS]
    }

    /// An inode, if it is kept.
    pub fn inode(&self, at: SnapshotId, ino: InodeId) -> Option<Arc<Inode>> {
        let key = (at, ino);
        let mut shard = self.shard(key).lock();
        if let Some(inode) = shard.young.inodes.get(&key) {
            return Some(inode.clone());
        }
        let inode = shard.old.inodes.remove(&key)?;
        shard.keep(key, inode.clone(), self.half);
        Some(inode)
    }

    /// What an entry of a directory stands for, if that is kept.
    pub fn named(&self, at: SnapshotId, dir: InodeId, name: &Name) -> Option<InodeId> {
        let key = (at, dir);
        let mut shard = self.shard(key).lock();
        let known = |generation: &Generation| generation.names.get(&key)?.get(name).copied();
        if let Some(ino) = known(&shard.young) {
            return Some(ino);
        }
        let ino = known(&shard.old)?;
        shard.keep_name(key, name, ino, self.half);
        Some(ino)
    }

    /// Value of an extended attribute, or under the empty name all names, if that is kept.
    pub fn attribute(&self, at: SnapshotId, ino: InodeId, name: &[u8]) -> Option<Arc<[u8]>> {
        let key = (at, ino);
        let mut shard = self.shard(key).lock();
        let known = |generation: &Generation| generation.attributes.get(&key)?.get(name).cloned();
        if let Some(value) = known(&shard.young) {
            return Some(value);
        }
        let value = known(&shard.old)?;
        shard.keep_attribute(key, name, value.clone(), self.half);
        Some(value)
    }

    /// Keeps the value of an extended attribute, or under the empty name all names.
    pub fn learn_attribute(&self, at: SnapshotId, ino: InodeId, name: &[u8], value: &[u8]) {
        self.shard((at, ino)).lock().keep_attribute((at, ino), name, value.into(), self.half);
    }

    /// The extents of chunks `stretch.0..=stretch.1` of a file, if they are kept.
    pub fn stretch(
        &self,
        at: SnapshotId,
        ino: InodeId,
        stretch: (u64, u64),
    ) -> Option<Arc<Answer>> {
        let key = (at, ino);
        let mut shard = self.shard(key).lock();
        let kept = |generation: &Generation| generation.stretches.get(&key)?.get(&stretch).cloned();
        if let Some(answer) = kept(&shard.young) {
            return Some(answer);
        }
        let answer = kept(&shard.old)?;
        shard.keep_stretch(key, stretch, answer.clone(), self.half);
        Some(answer)
    }

    /// Keeps the extents of a stretch of chunks.
    pub fn learn_stretch(
        &self,
        at: SnapshotId,
        ino: InodeId,
        stretch: (u64, u64),
        answer: &Answer,
    ) {
        let (key, answer) = ((at, ino), Arc::new(answer.clone()));
        self.shard(key).lock().keep_stretch(key, stretch, answer, self.half);
    }

    /// Whether a node has let this client list a directory. One with tokens has to be asked first.
    pub fn is_listable(&self, at: SnapshotId, dir: InodeId) -> bool {
        let shard = self.shard((at, dir)).lock();
        [&shard.young, &shard.old].iter().any(|known| known.listable.contains(&(at, dir)))
    }

    /// A node has let this client list a directory.
    pub fn note_listable(&self, at: SnapshotId, dir: InodeId) {
        self.shard((at, dir)).lock().young.listable.insert((at, dir));
    }

    /// Keeps what a reply tells; `name` is the last one of the path that was asked for.
    pub fn learn(&self, at: SnapshotId, name: Option<&Name>, reply: &Reply) {
        let (inode, parent) = match reply {
            Ok(Answer::Inode(inode)) => (inode, None),
            Ok(Answer::Entry { parent, inode }) => (inode, Some(*parent)),
            Ok(Answer::Opened { inode, parent, .. }) => (inode, *parent),
            _ => return,
        };
        let key = (at, inode.ino);
        self.shard(key).lock().keep(key, Arc::new((**inode).clone()), self.half);
        if let (Some(dir), Some(name)) = (parent, name) {
            self.shard((at, dir)).lock().keep_name((at, dir), name, inode.ino, self.half);
        }
    }

    /// This process has removed a snapshot: nothing answers for it any more.
    pub fn forget(&self, at: SnapshotId) {
        if self.gone.lock().insert(at) {
            self.gone_count.fetch_add(1, Ordering::Release);
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard { young, old } = &mut *shard;
            for generation in [young, old] {
                generation.inodes.retain(|(of, _), _| *of != at);
                generation.names.retain(|(of, _), _| *of != at);
                generation.attributes.retain(|(of, _), _| *of != at);
                generation.stretches.retain(|(of, _), _| *of != at);
                generation.listable.retain(|(of, _)| *of != at);
            }
        }
    }

    /// Whether this process has removed a snapshot.
    pub fn is_gone(&self, at: SnapshotId) -> bool {
        self.gone_count.load(Ordering::Acquire) > 0 && self.gone.lock().contains(&at)
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::inode::Kind;

    use super::*;

    fn entry(ino: InodeId) -> Reply {
        Ok(Answer::Entry { parent: 1, inode: Box::new(Inode::new(ino, Kind::File, 0, 0)) })
    }

    fn name(number: u64) -> Name {
        Name::new(format!("f{number}").as_bytes()).unwrap()
    }

    /// What is used stays, what is not used goes, and the memory is bounded.
    #[test]
    fn kept_inodes_within_their_memory() {
        let kept = KeptInodes::new(SHARDS * 40 * (INODE_BYTES + NAME_BYTES));
        for ino in 16..16_000 {
            kept.learn(7, Some(&name(ino)), &entry(ino));
            assert!(kept.inode(7, 16).is_some(), "in use");
        }
        assert!(kept.inode(7, 17).is_none());
        assert!(kept.inode(7, 15_999).is_some());
        assert!(kept.inode(8, 15_999).is_none(), "another snapshot");
        let bytes = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.bytes + shard.old.bytes
        };
        let sum: usize = kept.shards.iter().map(bytes).sum();
        assert!(sum <= SHARDS * 41 * (INODE_BYTES + NAME_BYTES), "{sum}");
    }

    /// The extents of a stretch of chunks are kept for that stretch, file and snapshot.
    #[test]
    fn kept_extents() {
        let kept = KeptInodes::new(1 << 20);
        let answer = Answer::Chunks { chunks: vec![(2, Vec::new())], end: true };
        kept.learn_stretch(7, 20, (0, 3), &answer);
        kept.learn_stretch(7, 21, (0, 3), &Answer::Done);
        assert_eq!(kept.stretch(7, 20, (0, 3)).as_deref(), Some(&answer));
        for (at, ino, stretch) in [(7, 20, (0, 2)), (7, 21, (0, 3)), (8, 20, (0, 3))] {
            assert_eq!(kept.stretch(at, ino, stretch), None);
        }
        kept.forget(7);
        assert_eq!(kept.stretch(7, 20, (0, 3)), None);
    }

    /// Names lead to inodes of one directory and snapshot; a snapshot that is removed has none.
    #[test]
    fn kept_names_and_removed_snapshots() {
        let kept = KeptInodes::new(1 << 20);
        kept.learn(7, Some(&name(1)), &entry(20));
        assert_eq!(kept.named(7, 1, &name(1)), Some(20));
        assert_eq!(kept.named(7, 2, &name(1)), None);
        assert_eq!(kept.named(8, 1, &name(1)), None);
        kept.learn(8, Some(&name(1)), &entry(20));
        assert!(!kept.is_gone(7));
        kept.forget(7);
        assert!(kept.is_gone(7) && !kept.is_gone(8));
        assert_eq!((kept.named(7, 1, &name(1)), kept.inode(7, 20)), (None, None));
        assert_eq!(kept.named(8, 1, &name(1)), Some(20));
    }
}
