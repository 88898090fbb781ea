//! One row in memory: a single allocation of a 24-byte head, the key's suffix and the value.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};

/// `value_len` of a row that is the memory of a deletion.
const TOMBSTONE: u32 = u32::MAX;

/// No version of this row is in the sorted runs, so deleting it needs no tombstone there.
const NEW: u8 = 1;
/// Read or written since the clock hand passed.
const REFERENCED: u8 = 2;
/// Replaced or removed: no longer in the index, kept until its group's order is settled.
const DEAD: u8 = 4;

#[repr(C)]
struct Head {
    position: Position,
    id: u64,
    value_len: u32,
    suffix_len: u16,
    table: Table,
    flags: AtomicU8,
}

const HEAD: usize = size_of::<Head>();

/// Bytes that glibc's allocator adds in front of an allocation.
const ALLOCATOR_HEAD: usize = 8;

/// A pointer to a row. Copying it does not copy the row.
///
/// Invariant: rows are created, changed and freed only under their shard's write lock, read under
/// at least its read lock, and freed exactly once, after the last pointer to them left the shard.
/// All methods rely on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPtr(NonNull<Head>);

// SAFETY: a row is plain memory without thread affinity; the shard's lock orders all access (see
// above).
unsafe impl Send for RowPtr {}
// SAFETY: as above; the only field changed under a read lock is atomic.
unsafe impl Sync for RowPtr {}

/// Bytes allocated for a row, in the allocator's granularity, so that small changes of length fit
/// in place.
fn room(suffix_len: usize, value_len: usize) -> usize {
    (HEAD + suffix_len + value_len + ALLOCATOR_HEAD).next_multiple_of(16) - ALLOCATOR_HEAD
}

fn layout(suffix_len: usize, value_len: usize) -> Layout {
    let size = room(suffix_len, value_len);
    // Lengths are at most 512 and 2^32, so this cannot fail on 64-bit targets; if it did, it is out
    // of memory.
    Layout::from_size_align(size, align_of::<Head>())
        .unwrap_or_else(|_| handle_alloc_error(Layout::new::<Head>()))
}

impl RowPtr {
    /// Allocates a row.
    pub fn new(key: KeyRef<'_>, value: Option<&[u8]>, position: Position, is_new: bool) -> Self {
        let len = value.map_or(0, <[u8]>::len);
        assert!(
            len < TOMBSTONE as usize && key.suffix.len() <= usize::from(u16::MAX),
            "row above its limit"
        );
        let layout = layout(key.suffix.len(), len);
        // SAFETY: the layout is never of size zero.
        let memory = unsafe { alloc(layout) };
        let Some(head) = NonNull::new(memory.cast::<Head>()) else { handle_alloc_error(layout) };
        // SAFETY: the allocation is aligned for and at least as large as head, suffix and value
        // together.
        unsafe {
            head.write(Head {
                position,
                id: key.id,
                value_len: if value.is_some() { len as u32 } else { TOMBSTONE },
                suffix_len: key.suffix.len() as u16,
                table: key.table,
                flags: AtomicU8::new(REFERENCED | if is_new { NEW } else { 0 }),
            });
            let body = head.add(1).cast::<u8>();
            body.copy_from_nonoverlapping(NonNull::from(key.suffix).cast(), key.suffix.len());
            if let Some(value) = value {
                body.add(key.suffix.len())
                    .copy_from_nonoverlapping(NonNull::from(value).cast(), len);
            }
        }
        Self(head)
    }

    /// Frees the row.
    ///
    /// # Safety
    /// No copy of the pointer may be used afterwards.
    pub unsafe fn free(self) {
        let layout = layout(self.suffix().len(), self.value_room());
        // SAFETY: allocated by `new` with the same layout: in-place changes never change the room.
        unsafe { dealloc(self.0.cast().as_ptr(), layout) };
    }

    fn head(&self) -> &Head {
        // SAFETY: valid by the type's invariant.
        unsafe { self.0.as_ref() }
    }

    fn value_room(&self) -> usize {
        match self.head().value_len {
            TOMBSTONE => 0,
            len => len as usize,
        }
    }

    fn body(&self, from: usize, len: usize) -> &[u8] {
        // SAFETY: suffix and value lie behind the head, initialised by `new` or `replace`.
        unsafe { std::slice::from_raw_parts(self.0.add(1).cast::<u8>().add(from).as_ptr(), len) }
    }

    /// The key's suffix.
    pub fn suffix(&self) -> &[u8] {
        self.body(0, usize::from(self.head().suffix_len))
    }

    /// The key.
    pub fn key(&self) -> KeyRef<'_> {
        KeyRef { table: self.head().table, id: self.head().id, suffix: self.suffix() }
    }

    /// The value, or `None` for a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        match self.head().value_len {
            TOMBSTONE => None,
            len => Some(self.body(usize::from(self.head().suffix_len), len as usize)),
        }
    }

    /// Log position of the last change that is not in the sorted runs, 0 if the row is clean.
    pub fn position(&self) -> Position {
        self.head().position
    }

    /// Bytes of memory the row costs, without index and order.
    pub fn bytes(&self) -> usize {
        room(usize::from(self.head().suffix_len), self.value_room()) + ALLOCATOR_HEAD
    }

    /// Overwrites value and position if the new value fits exactly the room of the old one. Needs
    /// the write lock.
    pub fn replace(self, value: Option<&[u8]>, position: Position) -> bool {
        let suffix_len = usize::from(self.head().suffix_len);
        let len = value.map_or(0, <[u8]>::len);
        if len >= TOMBSTONE as usize || room(suffix_len, len) != room(suffix_len, self.value_room())
        {
            return false;
        }
        // SAFETY: exclusive by the write lock; the room was just checked; `value` is not part of
        // this row.
        unsafe {
            let head = self.0.as_ptr();
            (*head).position = position;
            (*head).value_len = if value.is_some() { len as u32 } else { TOMBSTONE };
            if let Some(value) = value {
                let body = self.0.add(1).cast::<u8>().add(suffix_len);
                body.copy_from_nonoverlapping(NonNull::from(value).cast(), len);
            }
        }
        true
    }

    /// The row's newest version is now in the sorted runs. Needs the write lock.
    pub fn set_clean(self) {
        // SAFETY: exclusive by the write lock.
        unsafe { (*self.0.as_ptr()).position = 0 };
    }

    fn has(&self, flag: u8) -> bool {
        self.head().flags.load(Ordering::Relaxed) & flag != 0
    }

    fn set(&self, flag: u8) {
        if !self.has(flag) {
            self.head().flags.fetch_or(flag, Ordering::Relaxed);
        }
    }

    /// Whether no version of the row can be in the sorted runs.
    pub fn is_new(&self) -> bool {
        self.has(NEW)
    }

    /// A version of the row is about to enter the sorted runs.
    pub fn set_old(&self) {
        self.head().flags.fetch_and(!NEW, Ordering::Relaxed);
    }

    /// Notes a use, for eviction. A read lock is enough.
    pub fn touch(&self) {
        self.set(REFERENCED);
    }

    /// Whether the row was used since the last call.
    pub fn was_touched(&self) -> bool {
        self.head().flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }

    /// Marks a row that left the index.
    pub fn set_dead(&self) {
        self.set(DEAD);
    }

    /// Whether the row left the index.
    pub fn is_dead(&self) -> bool {
        self.has(DEAD)
    }

    /// Has the processor load the row.
    pub fn prefetch(self) {
        prefetch(self.0.as_ptr().cast());
        prefetch(self.0.as_ptr().cast::<u8>().wrapping_add(64));
    }

    /// The address, for the index.
    pub fn address(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// The row at an address.
    ///
    /// # Safety
    /// The address must come from [`RowPtr::address`] of a row that still lives.
    pub unsafe fn at(address: u64) -> Self {
        // SAFETY: by the caller's promise the address is that of a row, so it is not null.
        Self(unsafe {
            NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize))
        })
    }
}

/// Has the processor load a cache line.
pub(super) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless; SSE is part of x86_64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows keep the bytes that they are given, and change in place when the new bytes fit.
    #[test]
    fn row_updates_in_place() {
        let key = KeyRef::new(Table::Entry, 9, b"name");
        let row = RowPtr::new(key, Some(b"value"), 3, true);
        assert_eq!(
            (row.key(), row.value(), row.position(), row.is_new()),
            (key, Some(b"value".as_slice()), 3, true)
        );
        assert!(row.replace(Some(b"VALU"), 4));
        assert!(!row.replace(Some(&[1; 100]), 5));
        assert_eq!((row.value(), row.position()), (Some(b"VALU".as_slice()), 4));
        row.set_old();
        assert!(!row.is_new() && row.was_touched() && !row.was_touched());
        // SAFETY: the only pointer.
        unsafe { row.free() };
        let gone = RowPtr::new(key, None, 7, false);
        assert_eq!((gone.value(), gone.position()), (None, 7));
        // SAFETY: the only pointer.
        unsafe { gone.free() };
    }
}
