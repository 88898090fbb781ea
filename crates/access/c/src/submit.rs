//! What can be submitted to a queue. Reads, flushes and syncs are answered by callbacks of the
//! client, the rest runs on threads of the queue.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use kestrel_client::native::{NativeCalls, NativeFile, ReadBytes};
use kestrel_types::error::FsResult;

use crate::arguments::{answer, bytes, offset, path, room, transfer_len};
use crate::boundary::{CallError, CallResult, caught, guarded};
use crate::files::{self, OpenNativeFile};
use crate::handles;
use crate::names::{mode_bits, rename_flags};
use crate::queue::{OPEN, Queue, Ticket};
use crate::structs::kestrel_attributes;
use crate::volume::Use;

/// `KESTREL_OP_…`: what completions say they are of.
const READ: u32 = 1;
const WRITE: u32 = 2;
const FLUSH: u32 = 3;
const FSYNC: u32 = 4;
const CLOSE: u32 = 6;
const STAT: u32 = 7;
const MKDIR: u32 = 8;
const UNLINK: u32 = 9;
const RENAME: u32 = 10;

/// Memory of a program's that an operation uses until its completion.
struct Lent<T>(T);

// SAFETY: the program leaves the memory to the operation, says kestrel.h; no two threads use it at
// a time.
unsafe impl<T> Send for Lent<T> {}

impl<T> Lent<T> {
    /// The memory. (A method, so that a closure takes all of it.)
    fn into_inner(self) -> T {
        self.0
    }
}

/// A file of the queue's volume, for an operation.
fn file_of(queue: &Queue, file: i64) -> CallResult<(Arc<OpenNativeFile>, Arc<NativeFile>)> {
    let open = handles::get::<OpenNativeFile>(file)?;
    let about = |why: CallError| why.about(open.path());
    if !queue.volume.as_ref().is_some_and(|volume| Arc::ptr_eq(volume, &open.volume)) {
        return Err(about(CallError::new(libc::EXDEV, "the file is one of another volume")));
    }
    // The ticket of the operation has the use.
    let (_used, file) = open.enter().map_err(about)?;
    Ok((open, file))
}

/// Submits an operation that waits.
fn submit(
    queue: &Arc<Queue>,
    ticket: Ticket,
    operation: impl FnOnce(&Use) -> CallResult<i64> + Send + 'static,
) {
    queue.run(Box::new(move || {
        let result = caught(|| operation(ticket.used()));
        ticket.complete(result);
    }));
}

/// Submits an operation about a path.
fn submit_at<T>(
    queue: i64,
    (name, operation): (&'static str, u32),
    (given, user): (*const c_char, u64),
    call: impl FnOnce(NativeCalls<'_>, &[u8]) -> FsResult<T> + Send + 'static,
) -> CallResult<()> {
    // SAFETY: kestrel.h says what the pointer is.
    let path = unsafe { path(given) }?.to_vec();
    let queue = handles::get::<Queue>(queue)?;
    let ticket = queue.begin((name, operation), user)?;
    submit(&queue, ticket, move |used| {
        used.run(|calls| call(calls, &path)).map_err(|why| why.about(path))?;
        Ok(0)
    });
    Ok(())
}

/// Puts what was read into a program's room.
fn fill(room: &mut [u8], content: &ReadBytes) -> i64 {
    let mut filled = 0;
    for piece in content.pieces() {
        let piece = &piece[..piece.len().min(room.len() - filled)];
        room[filled..filled + piece.len()].copy_from_slice(piece);
        filled += piece.len();
    }
    filled as i64
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_read(
    queue: i64,
    file: i64,
    buffer: *mut c_void,
    len: usize,
    at: i64,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_read", || {
        // SAFETY: kestrel.h says what the pointer is, and that it stays so.
        let room = Lent(unsafe { room::<'static>(buffer, transfer_len(len)) }?);
        let at = offset(at)?;
        let queue = handles::get::<Queue>(queue)?;
        let (open, file) = file_of(&queue, file)?;
        let ticket = queue.begin(("kestrel_submit_read", READ), user)?;
        if room.0.len() > NativeFile::SUBMIT_BYTES_MAX {
            submit(&queue, ticket, move |used| {
                let room = room.into_inner();
                let read = used.run(|calls| calls.read_at(&file, at, room));
                read.map(|len| len as i64).map_err(|why| why.about(open.path()))
            });
            return Ok(());
        }
        let len = room.0.len();
        let own = file.clone();
        let done = move |content: FsResult<ReadBytes>| {
            let room = room.into_inner();
            let filled = caught(|| Ok(fill(room, &content?)));
            // Before the completion: a close that comes then is the last user of the file.
            drop(own);
            ticket.complete(filled.map_err(|why| why.about(open.path())));
        };
        file.submit_read(at, len, Box::new(done));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_write(
    queue: i64,
    file: i64,
    buffer: *const c_void,
    len: usize,
    at: i64,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_write", || {
        // SAFETY: kestrel.h says what the pointer is, and that it stays so.
        let data = Lent(unsafe { bytes::<'static>(buffer, transfer_len(len)) }?);
        let at = offset(at)?;
        let queue = handles::get::<Queue>(queue)?;
        let (open, file) = file_of(&queue, file)?;
        let ticket = queue.begin(("kestrel_submit_write", WRITE), user)?;
        submit(&queue, ticket, move |used| {
            let data = data.into_inner();
            let written = used.run(|calls| calls.write_at(&file, at, data));
            written.map(|_| data.len() as i64).map_err(|why| why.about(open.path()))
        });
        Ok(())
    })
}

/// Submits a flush or sync.
fn submit_stored(
    queue: i64,
    file: i64,
    (name, operation): (&'static str, u32),
    user: u64,
) -> CallResult<()> {
    let queue = handles::get::<Queue>(queue)?;
    let (open, file) = file_of(&queue, file)?;
    let ticket = queue.begin((name, operation), user)?;
    let own = file.clone();
    let done: Box<dyn FnOnce(FsResult<()>) + Send> = Box::new(move |stored| {
        drop(own);
        let stored = stored.map_err(|why| CallError::from(why).about(open.path()));
        ticket.complete(stored.map(|()| 0));
    });
    match operation {
        FSYNC => file.submit_fsync(done),
        _ if !file.is_writable() => done(Ok(())),
        _ => file.submit_flush(done),
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_submit_flush(queue: i64, file: i64, user: u64) -> c_int {
    guarded("kestrel_submit_flush", || {
        submit_stored(queue, file, ("kestrel_submit_flush", FLUSH), user)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_submit_fsync(queue: i64, file: i64, user: u64) -> c_int {
    guarded("kestrel_submit_fsync", || {
        submit_stored(queue, file, ("kestrel_submit_fsync", FSYNC), user)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_open(
    queue: i64,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_open", || {
        // SAFETY: kestrel.h says what the pointer is.
        let path = unsafe { self::path(path) }?.to_vec();
        let how = files::open_how(flags, mode)?;
        let queue = handles::get::<Queue>(queue)?;
        let ticket = queue.begin(("kestrel_submit_open", OPEN), user)?;
        let volume = queue.volume.clone();
        submit(&queue, ticket, move |used| match volume {
            Some(volume) => files::open(&volume, used, &path, how),
            None => Err(CallError::new(libc::EBADF, "the queue has no volume")),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_submit_close(queue: i64, file: i64, user: u64) -> c_int {
    guarded("kestrel_submit_close", || {
        let queue = handles::get::<Queue>(queue)?;
        file_of(&queue, file)?;
        let ticket = queue.begin(("kestrel_submit_close", CLOSE), user)?;
        // From now on nobody else has it.
        let open = match handles::take::<OpenNativeFile>(file) {
            Ok(open) => open,
            // Another thread has closed it in this moment: that is what this one comes to.
            Err(why) => {
                ticket.complete(Err(why));
                return Ok(());
            }
        };
        submit(&queue, ticket, move |used| used.run(|calls| open.close(calls)).map(|()| 0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_stat(
    queue: i64,
    path: *const c_char,
    flags: c_int,
    out: *mut kestrel_attributes,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_stat", || {
        let follow = crate::names::follows(flags)?;
        // SAFETY: kestrel.h says what the pointer is, and that it stays so.
        let out = unsafe { answer::<kestrel_attributes>(out) }?;
        let out: Lent<&'static mut MaybeUninit<kestrel_attributes>> = Lent(out);
        submit_at(queue, ("kestrel_submit_stat", STAT), (path, user), move |calls, path| {
            let inode = calls.stat(path, follow)?;
            out.into_inner().write(kestrel_attributes::of(&inode));
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_mkdir(
    queue: i64,
    path: *const c_char,
    mode: u32,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_mkdir", || {
        let mode = mode_bits(mode)?;
        submit_at(queue, ("kestrel_submit_mkdir", MKDIR), (path, user), move |calls, path| {
            calls.mkdir(path, mode)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_unlink(
    queue: i64,
    path: *const c_char,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_unlink", || {
        submit_at(queue, ("kestrel_submit_unlink", UNLINK), (path, user), |calls, path| {
            calls.unlink(path)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_submit_rename(
    queue: i64,
    from: *const c_char,
    to: *const c_char,
    flags: c_int,
    user: u64,
) -> c_int {
    guarded("kestrel_submit_rename", || {
        let flags = rename_flags(flags)?;
        // SAFETY: kestrel.h says what the pointer is.
        let to = unsafe { path(to) }?.to_vec();
        submit_at(queue, ("kestrel_submit_rename", RENAME), (from, user), move |calls, from| {
            calls.rename(from, &to, flags)
        })
    })
}
