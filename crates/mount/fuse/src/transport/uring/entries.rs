//! Memory of the entries of a ring: for each one a header and a payload buffer that the kernel
//! fills with a request and reads the reply from.
//!
//! The owner of an entry: the kernel from its registration or the commit of its reply until its
//! completion comes; then the serving thread, and from the moment its [`Reply`](crate::Reply)
//! exists, what a reply needs is the reply's. So only the owner reads or writes it, and no lock is
//! taken, with one exception: large requests (WRITE) are handed to the file system where they lie,
//! and the reply may come while they are still being looked at. Such a reply is kept beside until
//! the handler has returned ([`Entries::borrow`]).
//!
//! Memory: address space for all entries that there may ever be is reserved at the start. An entry
//! gets its memory when it is opened, and physical pages as far as a request or reply ever reached
//! into it: 512 bytes, and up to the largest payload.

use std::io::{self, IoSlice};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::abi::{self, InHeader, Opcode, OutHeader, UringEntInOut, Wire};

/// Distance of headers: what they need, and lines of the cache for themselves.
const HEADER_STRIDE: usize = 512;

const _: () = assert!(abi::URING_HEADER_BYTES <= HEADER_STRIDE);

/// Where the third part of the header lies.
const IN_OUT_AT: usize = abi::URING_OP_AT + abi::URING_OP_BYTES;

/// The payload may be overwritten.
const FREE: u8 = 0;
/// The file system looks at the payload.
const BORROWED: u8 = 1;
/// It still looks, and the reply has come.
const ANSWERED: u8 = 2;

/// All entries of a ring, opened or not.
pub(super) struct Entries {
    headers: Region,
    payloads: Region,
    payload_bytes: usize,
    slots: Box<[Slot]>,
}

/// What an entry needs beside the memory that the kernel sees.
#[derive(Default)]
struct Slot {
    /// Longest reply that the request allows.
    room: AtomicU32,
    /// FREE, BORROWED or ANSWERED.
    payload: AtomicU8,
    /// A reply that waits until the payload is free.
    kept: Mutex<Vec<u8>>,
}

/// A request as it lies in an entry.
pub(super) struct Arrived {
    pub(super) header: InHeader,
    /// The operation's structure, and what older requests left behind it.
    pub(super) fixed: [u8; abi::URING_OP_BYTES],
    /// Length of names and data in the payload buffer.
    pub(super) payload_bytes: usize,
}

impl Entries {
    /// Room for `count` entries with payloads of up to `payload_bytes`.
    pub(super) fn new(count: usize, payload_bytes: usize) -> io::Result<Entries> {
        let payload_bytes = payload_bytes.next_multiple_of(PAGE_BYTES_MAX);
        let headers = Region::reserve(count * HEADER_STRIDE)?;
        headers.open(0, count * HEADER_STRIDE)?;
        Ok(Entries {
            headers,
            payloads: Region::reserve(count * payload_bytes)?,
            payload_bytes,
            slots: (0..count).map(|_| Slot::default()).collect(),
        })
    }

    /// How many there can be.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Gives an entry its memory, and answers where it is: header and payload.
    pub(super) fn open(&self, index: usize) -> io::Result<[libc::iovec; 2]> {
        self.payloads.open(index * self.payload_bytes, self.payload_bytes)?;
        Ok([
            libc::iovec {
                iov_base: self.header(index).as_ptr().cast(),
                iov_len: abi::URING_HEADER_BYTES,
            },
            libc::iovec {
                iov_base: self.payload(index).as_ptr().cast(),
                iov_len: self.payload_bytes,
            },
        ])
    }

    fn header(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.slots.len());
        // SAFETY: the region has a stride for each index below the capacity.
        unsafe { self.headers.start.add(index * HEADER_STRIDE) }
    }

    fn payload(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.slots.len());
        // SAFETY: as above.
        unsafe { self.payloads.start.add(index * self.payload_bytes) }
    }

    /// Reads a structure in a header.
    fn read<T: Wire>(&self, index: usize, at: usize) -> T {
        // SAFETY: within the header's stride (all places are constants of this file); any bit
        // pattern is a `Wire`. The caller owns the entry.
        unsafe { self.header(index).add(at).cast::<T>().read_unaligned() }
    }

    fn write<T: Wire>(&self, index: usize, at: usize, value: T) {
        // SAFETY: as for `read`.
        unsafe { self.header(index).add(at).cast::<T>().write_unaligned(value) }
    }

    /// The request that the kernel has put into an entry. For the entry's owner.
    #[inline]
    pub(super) fn arrived(&self, index: usize) -> Arrived {
        let header: InHeader = self.read(index, 0);
        // SAFETY: the bytes lie within the header's stride.
        let fixed = unsafe {
            self.header(index)
                .add(abi::URING_OP_AT)
                .cast::<[u8; abi::URING_OP_BYTES]>()
                .read_unaligned()
        };
        let in_out: UringEntInOut = self.read(index, IN_OUT_AT);
        let payload_bytes = (in_out.payload_sz as usize).min(self.payload_bytes);
        let room = room(header.opcode, &fixed).unwrap_or(u32::MAX).min(self.payload_bytes as u32);
        self.slots[index].room.store(room, Ordering::Relaxed);
        Arrived { header, fixed, payload_bytes }
    }

    /// What the kernel calls the request in an entry.
    pub(super) fn commit_id(&self, index: usize) -> u64 {
        self.read::<UringEntInOut>(index, IN_OUT_AT).commit_id
    }

    /// Copies the payload to the start of `buffer`. For the entry's owner.
    #[inline]
    pub(super) fn copy_payload<'b>(
        &self,
        index: usize,
        bytes: usize,
        buffer: &'b mut [u8],
    ) -> &'b [u8] {
        let buffer = &mut buffer[..bytes];
        // SAFETY: the payload is as long as that, and the owner alone uses it.
        unsafe {
            self.payload(index).copy_to_nonoverlapping(NonNull::from(&mut *buffer).cast(), bytes)
        };
        buffer
    }

    /// The payload where it lies, until [`give_back`](Entries::give_back). Replies are kept
    /// meanwhile. For the entry's owner.
    pub(super) fn borrow(&self, index: usize, bytes: usize) -> &[u8] {
        let bytes = bytes.min(self.payload_bytes);
        self.slots[index].payload.store(BORROWED, Ordering::Release);
        // SAFETY: the payload is as long as that. The kernel does not write before the commit,
        // which follows the reply, and a reply leaves it alone until it is given back; the caller
        // does not use it longer.
        unsafe { std::slice::from_raw_parts(self.payload(index).as_ptr(), bytes) }
    }

    /// Ends the loan; whether a reply came meanwhile, so that the entry is ready to be committed.
    pub(super) fn give_back(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        if slot.payload.swap(FREE, Ordering::AcqRel) != ANSWERED {
            return false;
        }
        let kept = std::mem::take(&mut *slot.kept.lock());
        self.put(index, &[IoSlice::new(&kept)]);
        true
    }

    /// Puts a reply, given in pieces of which the first begins with the whole header, into an
    /// entry. For the reply's owner.
    #[inline]
    pub(super) fn answer(&self, index: usize, parts: &[IoSlice<'_>]) -> Answered {
        let slot = &self.slots[index];
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let fits = bytes - size_of::<OutHeader>() <= slot.room.load(Ordering::Relaxed) as usize;
        let mut refusal = [0; size_of::<OutHeader>()];
        let refused;
        let parts = if fits {
            parts
        } else {
            let unique = OutHeader::read(&parts[0]).map_or(0, |header| header.unique);
            let len = size_of::<OutHeader>() as u32;
            refusal.copy_from_slice(OutHeader { len, error: -libc::EIO, unique }.bytes());
            refused = [IoSlice::new(&refusal)];
            &refused[..]
        };
        let ready = slot.payload.load(Ordering::Acquire) == FREE || !self.keep(slot, parts);
        if ready {
            self.put(index, parts);
        }
        Answered { ready, fits }
    }

    /// Keeps a reply until the payload is given back; false if it is by now.
    #[cold]
    fn keep(&self, slot: &Slot, parts: &[IoSlice<'_>]) -> bool {
        let mut kept = slot.kept.lock();
        kept.clear();
        parts.iter().for_each(|part| kept.extend_from_slice(part));
        slot.payload
            .compare_exchange(BORROWED, ANSWERED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The one copy of a reply: header to header, the rest to the payload. It is no longer than the
    /// payload.
    #[inline]
    fn put(&self, index: usize, parts: &[IoSlice<'_>]) {
        let mut skip = size_of::<OutHeader>();
        let mut at = 0;
        for part in parts {
            let part = &part[skip.min(part.len())..];
            skip = 0;
            assert!(at + part.len() <= self.payload_bytes);
            // SAFETY: it fits, as just asserted; the reply's owner alone uses the payload. A part
            // of the payload itself cannot be passed: while it is borrowed, replies are kept.
            unsafe {
                self.payload(index)
                    .add(at)
                    .as_ptr()
                    .copy_from_nonoverlapping(part.as_ptr(), part.len());
            }
            at += part.len();
        }
        if let Some(header) = OutHeader::read(&parts[0]) {
            self.write(index, 0, header);
        }
        let in_out: UringEntInOut = self.read(index, IN_OUT_AT);
        self.write(index, IN_OUT_AT, UringEntInOut { payload_sz: at as u32, ..in_out });
    }
}

/// What became of a reply.
pub(super) struct Answered {
    /// The entry is to be committed now; else when the payload is given back.
    pub(super) ready: bool,
    /// It was no longer than requested; else the caller gets EIO, as over the device.
    pub(super) fits: bool,
}

/// The most that the caller takes, where the request has a limit. The structures' sizes follow from
/// the operation.
#[inline]
fn room(opcode: u32, fixed: &[u8]) -> Option<u32> {
    match Opcode::from_u32(opcode)? {
        Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => {
            Some(abi::ReadIn::read(fixed)?.size)
        }
        Opcode::Getxattr | Opcode::Listxattr => {
            Some(abi::GetxattrIn::read(fixed)?.size.max(size_of::<abi::GetxattrOut>() as u32))
        }
        _ => None,
    }
}

/// Payloads begin on pages, of the size that this machine has.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Reserved address space, opened piece by piece.
struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; the header of this file names the thread that may touch it when.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn reserve(bytes: usize) -> io::Result<Region> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        let start = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let region = Region { start: start.ok_or_else(io::Error::last_os_error)?, bytes };
        // Huge pages would take two megabytes for the first byte of any payload. Kernels without
        // them do not mind. SAFETY: our own mapping.
        unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
        Ok(region)
    }

    /// Makes a part usable.
    fn open(&self, at: usize, bytes: usize) -> io::Result<()> {
        assert!(at + bytes <= self.bytes);
        // SAFETY: a part of our own mapping, on page boundaries or rounded up to them by the
        // kernel.
        let rc = unsafe {
            libc::mprotect(
                self.start.add(at).as_ptr().cast(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `reserve`; no thread has an entry any more, and the ring that the
        // kernel knew it by is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Entries {
        let entries = Entries::new(2, 100_000).unwrap();
        entries.open(1).unwrap();
        entries
    }

    /// Plays the kernel: puts a request into entry 1.
    fn request(entries: &Entries, opcode: Opcode, size: u32, payload: &[u8]) -> Arrived {
        entries.write(1, 0, InHeader { opcode: opcode as u32, unique: 77, ..InHeader::default() });
        entries.write(1, abi::URING_OP_AT, abi::ReadIn { size, ..Default::default() });
        let in_out =
            UringEntInOut { commit_id: 77, payload_sz: payload.len() as u32, ..Default::default() };
        entries.write(1, IN_OUT_AT, in_out);
        // SAFETY: open, and longer than that.
        unsafe {
            entries.payload(1).as_ptr().copy_from_nonoverlapping(payload.as_ptr(), payload.len())
        };
        entries.arrived(1)
    }

    /// Plays the kernel: what it would read.
    fn reply(entries: &Entries) -> (OutHeader, Vec<u8>) {
        let len = entries.read::<UringEntInOut>(1, IN_OUT_AT).payload_sz as usize;
        (entries.read(1, 0), entries.copy_payload(1, len, &mut vec![0; len]).to_vec())
    }

    fn header(bytes: usize) -> Vec<u8> {
        OutHeader { len: (16 + bytes) as u32, error: 0, unique: 77 }.bytes().to_vec()
    }

    #[test]
    fn replies_come_in_pieces_and_leave_in_one() {
        let entries = entries();
        assert_eq!(entries.capacity(), 2);
        let arrived = request(&entries, Opcode::Read, 6, b"");
        assert_eq!((arrived.header.unique, arrived.payload_bytes), (77, 0));
        let first = [header(6), b"ab".to_vec()].concat();
        let parts = [IoSlice::new(&first), IoSlice::new(b""), IoSlice::new(b"cdef")];
        let answered = entries.answer(1, &parts);
        assert!(answered.ready && answered.fits);
        let (header, payload) = reply(&entries);
        assert_eq!((header.unique, header.error, &payload[..]), (77, 0, &b"abcdef"[..]));
        assert_eq!(entries.commit_id(1), 77);
    }

    #[test]
    fn longer_than_requested_is_an_error() {
        let entries = entries();
        for (opcode, size, bytes, fits) in [
            (Opcode::Read, 4, 4, true),
            (Opcode::Read, 4, 5, false),
            (Opcode::Getxattr, 0, 8, true),
            (Opcode::Getxattr, 0, 9, false),
            (Opcode::Getattr, 4, 104, true),
            (Opcode::Read, u32::MAX, 200_000, false),
        ] {
            request(&entries, opcode, 0, b"");
            entries.write(1, abi::URING_OP_AT, abi::GetxattrIn { size, padding: 0 });
            request(&entries, opcode, size, b"");
            if opcode == Opcode::Getxattr {
                entries.write(1, abi::URING_OP_AT, abi::GetxattrIn { size, padding: 0 });
                entries.arrived(1);
            }
            let body = vec![1; bytes];
            let answered = entries.answer(1, &[IoSlice::new(&header(bytes)), IoSlice::new(&body)]);
            assert_eq!((answered.ready, answered.fits), (true, fits), "{opcode:?} {size} {bytes}");
            let (header, payload) = reply(&entries);
            assert_eq!(
                (header.error, payload.len()),
                if fits { (0, bytes) } else { (-libc::EIO, 0) }
            );
        }
    }

    #[test]
    fn a_reply_waits_for_the_payload() {
        let entries = entries();
        let data: Vec<u8> = (0..90_000u32).map(|n| n as u8).collect();
        let arrived = request(&entries, Opcode::Write, 0, &data);
        let borrowed = entries.borrow(1, arrived.payload_bytes);
        let written = [header(8), vec![9; 8]].concat();
        assert!(!entries.answer(1, &[IoSlice::new(&written)]).ready);
        assert_eq!(borrowed, data, "not overwritten");
        assert!(entries.give_back(1), "answered meanwhile");
        assert_eq!(reply(&entries).1, [9; 8]);

        let arrived = request(&entries, Opcode::Write, 0, &data);
        entries.borrow(1, arrived.payload_bytes);
        assert!(!entries.give_back(1), "not answered yet");
        assert!(entries.answer(1, &[IoSlice::new(&written)]).ready);
    }
}
