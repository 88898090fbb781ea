//! Files and directories of the null file system.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Answer;
use crate::abi::ROOT_ID;

/// Entries of a directory: name to node id.
pub(super) type Children = HashMap<Box<[u8]>, u64, BuildHasherDefault<NameHasher>>;

/// A file or directory. It exists as long as it has a name or the kernel remembers it.
pub(super) struct NullInode {
    pub(super) size: AtomicU64,
    /// Lookups that have not been forgotten.
    pub(super) lookups: AtomicU64,
    /// Names.
    pub(super) links: AtomicU32,
    /// Twice the number of times this slot was used, plus one for a directory.
    stamp: AtomicU32,
    /// Of directories.
    pub(super) children: Mutex<Option<Box<Children>>>,
}

impl NullInode {
    pub(super) fn is_directory(&self) -> bool {
        self.stamp.load(Ordering::Relaxed) & 1 != 0
    }

    pub(super) fn generation(&self) -> u64 {
        u64::from(self.stamp.load(Ordering::Relaxed) >> 1)
    }

    /// Children to add to: not of a directory that has been removed.
    pub(super) fn live_children(&self) -> Answer<MutexGuard<'_, Option<Box<Children>>>> {
        let children = self.children.lock();
        if self.links.load(Ordering::Relaxed) == 0 { Err(libc::ENOENT) } else { Ok(children) }
    }

    /// Whether an entry of this node may be removed by rmdir (`directory`) or unlink.
    pub(super) fn check_replaceable(&self, directory: bool) -> Answer<()> {
        match (directory, self.is_directory()) {
            (false, true) => Err(libc::EISDIR),
            (true, false) => Err(libc::ENOTDIR),
            (true, true)
                if self.children.lock().as_ref().is_some_and(|children| !children.is_empty()) =>
            {
                Err(libc::ENOTEMPTY)
            }
            _ => Ok(()),
        }
    }
}

/// Nodes by id: a table of tables, so that finding one takes no lock and growing moves nothing.
pub(super) struct NullInodes {
    pages: Box<[OnceLock<Box<[NullInode]>>]>,
    next: AtomicU64,
    free: Mutex<Vec<u64>>,
}

/// Nodes of a page.
const PAGE_NODES: usize = 1 << 12;
/// Pages: room for 2^28 nodes.
const PAGES: usize = 1 << 16;

impl NullInodes {
    pub(super) fn new() -> NullInodes {
        let nodes = NullInodes {
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
            next: AtomicU64::new(ROOT_ID),
            free: Mutex::default(),
        };
        let root = nodes.create(true, 0);
        debug_assert!(matches!(root, Ok((ROOT_ID, _))));
        nodes
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Answer<&NullInode> {
        let (page, at) = (id as usize / PAGE_NODES, id as usize % PAGE_NODES);
        self.pages.get(page).and_then(|page| page.get()).map(|page| &page[at]).ok_or(libc::ESTALE)
    }

    /// A node with one name and one lookup.
    pub(super) fn create(&self, directory: bool, file_bytes: u64) -> Answer<(u64, &NullInode)> {
        let recycled = self.free.lock().pop();
        let id = recycled.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
        let page = self.pages.get(id as usize / PAGE_NODES).ok_or(libc::ENOSPC)?;
        let node = &page.get_or_init(|| (0..PAGE_NODES).map(|_| NullInode::vacant()).collect())
            [id as usize % PAGE_NODES];
        let stamp = node.stamp.load(Ordering::Relaxed) & !1;
        node.stamp.store(stamp.wrapping_add(2) | u32::from(directory), Ordering::Relaxed);
        node.size.store(if directory { 4096 } else { file_bytes }, Ordering::Relaxed);
        node.links.store(1, Ordering::Relaxed);
        node.lookups.store(1, Ordering::Relaxed);
        *node.children.lock() = directory.then(Box::default);
        Ok((id, node))
    }

    /// One name less. The caller holds the lock of the directory it was in.
    pub(super) fn unlink(&self, id: u64) {
        let Ok(node) = self.get(id) else { return };
        if node.links.fetch_sub(1, Ordering::AcqRel) == 1
            && node.lookups.load(Ordering::Acquire) == 0
        {
            self.recycle(id, node);
        }
    }

    pub(super) fn forget(&self, id: u64, count: u64) {
        let Ok(node) = self.get(id) else { return };
        if id != ROOT_ID
            && node.lookups.fetch_sub(count, Ordering::AcqRel) == count
            && node.links.load(Ordering::Acquire) == 0
        {
            self.recycle(id, node);
        }
    }

    /// The node has neither name nor lookup. Unlink and forget may both find that, so the first one
    /// marks it.
    fn recycle(&self, id: u64, node: &NullInode) {
        if node.links.compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            *node.children.lock() = None;
            self.free.lock().push(id);
        }
    }
}

impl NullInode {
    fn vacant() -> NullInode {
        NullInode {
            size: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            links: AtomicU32::new(u32::MAX),
            stamp: AtomicU32::new(0),
            children: Mutex::new(None),
        }
    }
}

/// Hash of names: a multiply and a rotation for each eight bytes. Not for hostile input, and there
/// is none here.
#[derive(Default)]
pub(super) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut add =
            |word: u64| self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            add(chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
        add(chunks
            .remainder()
            .iter()
            .fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        // The table uses the low bits for the place and the high ones for the tag.
        self.0 ^ self.0 >> 32
    }
}
