//! Hint slots: memory that the program in the kernel writes and the server reads.
//!
//! A BPF array map can be mapped into the process that made it, so reading a hint costs loads, no
//! system call. The array has [`SLOTS`] slots of one [`Record`] each; a request's number chooses
//! the slot (`index`). Two requests may share one, so a slot has the number of its request, and the
//! reader compares.
//!
//! # Access to a slot
//!
//! Each slot has a sequence number, even at rest. A writer makes it odd with a
//! compare-and-exchange, so there is one at a time: a second one goes away without writing. When it
//! has written everything it makes the number even again with an exchange, which is a full barrier.
//! A reader copies the record between two loads of the number and throws the copy away unless both
//! are the same and even. So it sees one write as a whole, or nothing; never waits; and the writer
//! never waits for it. The number has 64 bits and does not come round.
//!
//! Where a request has no number yet, the slot is chosen by the thread's, and a record can be read
//! once. Therefore every LOOKUP has to be looked up here, whether its hint is wanted or not.
//!
//! The kernel writes a slot before it hands the request to the server, so a record that is there is
//! complete when the request arrives; a slot that is being written then is being written for
//! another request.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::hint::{Lookup, SystemCall, Walk};

/// Slots; a power of two. Request numbers go up by 2, so slots are shared by lookups that are 1024
/// requests apart and both waiting.
pub const SLOTS: u32 = 1024;

/// Bytes of path text in a slot. PATH_MAX (4096, the NUL included) always fits, and a text that
/// fills the slot is certain to be cut off.
pub const TEXT_BYTES: usize = 4096 + 8;

/// `Record::state`: the walk is recorded.
pub const STATE_WALK: u32 = 1;
/// `Record::state`: there is no walk, or it is not about this request.
pub const STATE_OTHER: u32 = 2;

/// The layout of a slot, in the kernel and here. All numbers in the machine's byte order.
#[repr(C)]
pub struct Record {
    /// Even: at rest. Odd: being written.
    pub sequence: AtomicU64,
    /// Header of the request: `unique` (0 where the kernel assigns it too late), `nodeid`, `pid`,
    /// `opcode`.
    pub unique: u64,
    #[allow(missing_docs)]
    pub nodeid: u64,
    #[allow(missing_docs)]
    pub tid: u32,
    #[allow(missing_docs)]
    pub opcode: u32,
    /// [`STATE_WALK`] or [`STATE_OTHER`]; with the latter only the system call below means
    /// something.
    pub state: u32,
    /// `nameidata.flags`.
    pub flags: u32,
    /// `nameidata.depth`.
    pub depth: u32,
    /// `nameidata.last.len`.
    pub component_bytes: u32,
    /// Bytes of `text` with its NUL; as the kernel's copy function returned it, so 0 or less for an
    /// error.
    pub text_bytes: i32,
    /// Thread id in the initial pid namespace.
    pub caller: u32,
    /// The system call's number, [`SystemCall::NONE`] if not recorded.
    pub call: i64,
    /// Its second and third argument, and what the third points to.
    pub args: [u64; 3],
    /// The path from the component on.
    pub text: [u8; TEXT_BYTES],
}

/// Bytes of a slot.
pub const RECORD_BYTES: usize = size_of::<Record>();

/// Bytes of a record without the text.
const HEAD_BYTES: usize = std::mem::offset_of!(Record, text);

// The kernel rounds values up to 8 bytes; ours is a multiple, so that slots lie one behind the
// other.
const _: () = assert!(RECORD_BYTES.is_multiple_of(8) && SLOTS.is_power_of_two());

/// The slot of a request.
pub fn index(key: u64, is_unique: bool) -> usize {
    // Request numbers are even; the lowest bit marks interrupts.
    let key = if is_unique { key >> 1 } else { key };
    (key & u64::from(SLOTS - 1)) as usize
}

/// A copy of a slot's fixed part.
struct Head {
    unique: u64,
    nodeid: u64,
    tid: u32,
    opcode: u32,
    state: u32,
    flags: u32,
    depth: u32,
    component_bytes: u32,
    text_bytes: i32,
    caller: u32,
    call: SystemCall,
}

/// A copy of a slot.
pub struct Copy {
    head: Head,
    /// As much of the text as there is, and up to 7 bytes more.
    text: Vec<u64>,
}

/// FUSE_LOOKUP.
pub const OPCODE_LOOKUP: u32 = 1;

impl Head {
    /// It is about that request. Without the request's number the thread must do: it waits for one
    /// request at a time.
    fn is_about(&self, lookup: &Lookup) -> bool {
        let same = if self.unique != 0 {
            self.unique == lookup.unique
        } else {
            self.tid != 0 && self.tid == lookup.tid
        };
        same && self.opcode == OPCODE_LOOKUP && self.nodeid == lookup.nodeid
    }

    /// Words that the text takes.
    fn words(&self) -> usize {
        usize::try_from(self.text_bytes).unwrap_or(0).min(TEXT_BYTES).div_ceil(8)
    }
}

impl Copy {
    /// The system call of a LOOKUP that no walk makes; [`SystemCall::NONE`] if that was not
    /// recorded.
    pub fn call_without_walk(&self) -> Option<SystemCall> {
        (self.head.state == STATE_OTHER).then_some(self.head.call)
    }

    /// The walk, if there is one and its text is whole.
    pub fn walk(&self) -> Option<Walk<'_>> {
        let Head { state, flags, depth, component_bytes, text_bytes, caller, call, .. } = self.head;
        let bytes = usize::try_from(text_bytes).ok()?;
        // Cut off: a path that the kernel made up itself.
        if state != STATE_WALK || bytes >= TEXT_BYTES {
            return None;
        }
        // SAFETY: the memory of integers, read as bytes.
        let text = unsafe {
            std::slice::from_raw_parts(self.text.as_ptr().cast::<u8>(), self.text.len() * 8)
        };
        let text = text.get(..bytes)?.strip_suffix(b"\0")?;
        Some(Walk { flags, depth, component_bytes, caller, call, text })
    }
}

/// The slots, in the map or in a test's memory.
pub struct Slots {
    base: *const u8,
    /// For each slot the sequence number of the record that was read last, if that had no request
    /// number.
    taken: Box<[AtomicU64]>,
}

// SAFETY: the memory is read with volatile and atomic loads only; what other threads or the kernel
// write meanwhile is detected by the sequence number.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// Slots at `base`.
    ///
    /// # Safety
    ///
    /// `base` must be aligned to 8 bytes and readable for [`SLOTS`] × [`RECORD_BYTES`] bytes as
    /// long as the value lives.
    pub unsafe fn new(base: *const u8) -> Slots {
        Slots { base, taken: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Calls `with` on a copy of the slot's record of this lookup.
    pub fn read<R>(&self, lookup: &Lookup, with: impl FnOnce(&Copy) -> Option<R>) -> Option<R> {
        let by_unique = index(lookup.unique, true);
        let by_tid = index(u64::from(lookup.tid), false);
        let copy = self.copy(by_unique, lookup).or_else(|| self.copy(by_tid, lookup))?;
        with(&copy)
    }

    /// A consistent copy of a slot, if it is about `lookup`.
    fn copy(&self, index: usize, lookup: &Lookup) -> Option<Copy> {
        // SAFETY: `index` is less than SLOTS.
        let slot = unsafe { self.base.add(index * RECORD_BYTES) };
        // SAFETY: the slot starts with its sequence number, aligned to 8 as the slot is, and
        // readable; the kernel writes it with atomic instructions only.
        let sequence = unsafe { &*slot.cast::<AtomicU64>() };
        let before = sequence.load(Ordering::Acquire);
        if before % 2 != 0 {
            return None;
        }
        // SAFETY: a readable, aligned slot.
        let head = unsafe { copy_head(slot) };
        if !head.is_about(lookup) {
            return None;
        }
        // SAFETY: as above; `words` is not more than there are.
        let copy = Copy { text: unsafe { copy_text(slot, head.words()) }, head };
        // The loads above must come before the second look at the number.
        fence(Ordering::Acquire);
        if sequence.load(Ordering::Relaxed) != before {
            return None;
        }
        // Without a request number, what a thread left behind looks like what it leaves now, if the
        // program did not get to record that. So a record is good for one lookup.
        if copy.head.unique == 0 && self.taken[index].swap(before, Ordering::Relaxed) == before {
            return None;
        }
        Some(copy)
    }
}

/// Copies the fixed part of a slot that may be written meanwhile.
///
/// # Safety
///
/// `slot` must be readable for [`RECORD_BYTES`] and aligned to 8.
unsafe fn copy_head(slot: *const u8) -> Head {
    let record = slot.cast::<Record>();
    macro_rules! get {
        ($field:ident) => {
            // SAFETY: within the slot and aligned, as the caller promises; volatile, since the
            // kernel may write it now.
            unsafe { (&raw const (*record).$field).read_volatile() }
        };
    }
    Head {
        unique: get!(unique),
        nodeid: get!(nodeid),
        tid: get!(tid),
        opcode: get!(opcode),
        state: get!(state),
        flags: get!(flags),
        depth: get!(depth),
        component_bytes: get!(component_bytes),
        text_bytes: get!(text_bytes),
        caller: get!(caller),
        call: SystemCall { number: get!(call), args: get!(args) },
    }
}

/// Copies the start of its text.
///
/// # Safety
///
/// As for [`copy_head`], and `words` must not be more than [`TEXT_BYTES`] / 8.
unsafe fn copy_text(slot: *const u8, words: usize) -> Vec<u64> {
    // SAFETY: within the slot, and aligned since the text starts at a multiple of 8.
    let word = |number| unsafe { slot.add(HEAD_BYTES + number * 8).cast::<u64>().read_volatile() };
    (0..words).map(word).collect()
}

const _: () = assert!(HEAD_BYTES.is_multiple_of(8) && TEXT_BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests;
