//! Memory for bytes on their way to a reader, used again.
//!
//! A read of 100 KiB takes about as long as making memory for it: the allocator gives such pieces
//! back to the kernel, which gives them again page by page, each cleared, and they would be cleared
//! once more before they are filled. Here they are kept, begin on a page (the kernel then copies
//! page by page to its own, and not in halves), and hold the bytes that they held before: **the
//! taker fills all of it before other code sees it**.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

const PAGE: usize = 4096;

/// Smallest and largest pieces that are kept, bytes: powers of two. Others come from the allocator,
/// and go back to it.
const BYTES_MIN: usize = 16 << 10;
const BYTES_MAX: usize = 1 << 20;
const CLASSES: usize = (BYTES_MAX / BYTES_MIN).trailing_zeros() as usize + 1;

/// Pieces of memory that are not used at the moment.
#[derive(Debug)]
pub struct Buffers {
    /// By size. The one that was used last is used next: a cache may still have it.
    classes: [Mutex<Vec<Vec<u8>>>; CLASSES],
    kept: AtomicUsize,
    kept_max: usize,
}

impl Buffers {
    /// Keeps at most `kept_max` bytes of what is not used.
    pub fn new(kept_max: usize) -> Arc<Self> {
        Arc::new(Self { classes: Default::default(), kept: AtomicUsize::new(0), kept_max })
    }

    /// The class of pieces for so many bytes, and their size without the slack.
    fn class_of(len: usize) -> Option<(usize, usize)> {
        let size = len.next_power_of_two();
        let class = (size / BYTES_MIN).checked_ilog2()? as usize;
        (class < CLASSES).then_some((class, size))
    }

    /// Room for `len` bytes, which hold anything.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let Some((class, size)) = Self::class_of(len) else { return Buffer::from(vec![0; len]) };
        let kept = self.classes[class].lock().pop();
        if let Some(memory) = &kept {
            self.kept.fetch_sub(memory.len(), Ordering::Relaxed);
        }
        let memory = kept.unwrap_or_else(|| vec![0; size + PAGE]);
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Buffer { memory, start, len, home: Some(Arc::clone(self)) }
    }

    fn give_back(&self, memory: Vec<u8>) {
        let Some((class, _)) = Self::class_of(memory.len() - PAGE) else { return };
        if self.kept.fetch_add(memory.len(), Ordering::Relaxed) + memory.len() > self.kept_max {
            self.kept.fetch_sub(memory.len(), Ordering::Relaxed);
            return;
        }
        self.classes[class].lock().push(memory);
    }
}

/// Bytes in memory that is used again afterwards.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffer {
    /// The bytes, in memory that is not used again.
    pub fn into_vec(mut self) -> Vec<u8> {
        match self.home {
            Some(_) => self.to_vec(),
            None => std::mem::take(&mut self.memory),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Self { memory, start: 0, len, home: None }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_lies_on_pages() {
        let buffers = Buffers::new(1 << 20);
        let mut first = buffers.take(100_000);
        first.fill(7);
        let at = first.as_ptr();
        assert_eq!((first.len(), at as usize % PAGE), (100_000, 0));
        let second = buffers.take(100_000);
        assert_ne!(second.as_ptr(), at);
        drop(first);
        let third = buffers.take(128 << 10);
        assert_eq!((third.as_ptr(), third.len(), third[99_999]), (at, 128 << 10, 7));
        assert_ne!(buffers.take((128 << 10) + 1).as_ptr(), at);
        drop(third);
        assert_ne!(buffers.take(65_536).as_ptr(), at, "another size");
        assert_eq!(buffers.take(65_537).as_ptr(), at);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = Buffers::new(300_000);
        let many: Vec<_> = (0..5).map(|_| buffers.take(128 << 10)).collect();
        assert_eq!(buffers.kept.load(Ordering::Relaxed), 0);
        drop(many);
        assert_eq!(buffers.kept.load(Ordering::Relaxed), 2 * ((128 << 10) + PAGE));
        for len in [0, 1, 1000, BYTES_MIN / 2, BYTES_MAX + 1] {
            let other = buffers.take(len);
            assert_eq!((other.len(), other.iter().all(|byte| *byte == 0)), (len, true));
        }
        assert_eq!(buffers.kept.load(Ordering::Relaxed), 2 * ((128 << 10) + PAGE));
        assert_eq!(Buffers::class_of(BYTES_MIN), Some((0, BYTES_MIN)));
        assert_eq!(Buffers::class_of(BYTES_MAX), Some((CLASSES - 1, BYTES_MAX)));
        assert_eq!(Buffer::from(vec![1, 2]).into_vec(), [1, 2]);
        assert_eq!(buffers.take(BYTES_MIN).into_vec().len(), BYTES_MIN);
    }
}
