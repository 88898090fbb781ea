//! SIGINT, SIGTERM and SIGHUP as calls on an ordinary thread.

use std::sync::atomic::{AtomicI32, Ordering};

/// Write end of the pipe that the handler writes to; -1 while there is none.
static PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handler(_signal: i32) {
    let fd = PIPE.load(Ordering::SeqCst);
    // SAFETY: write is async-signal-safe; one byte of a static is valid for reads. A full pipe
    // loses nothing that matters: it is readable already.
    unsafe { libc::write(fd, c"s".as_ptr().cast(), 1) };
}

/// Calls `act` on a thread of its own when a signal arrives that asks the process to end, with 1
/// for the first, 2 for the second and so on. Call at most once. Without a pipe or a thread to be
/// had, signals keep their default action.
pub fn on_signal(mut act: impl FnMut(u32) + Send + 'static) {
    let mut ends = [0i32; 2];
    // SAFETY: `ends` is valid for writes of two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return;
    }
    PIPE.store(ends[1], Ordering::SeqCst);
    let read_end = ends[0];
    let wait = move || {
        for number in 1.. {
            if !wait_byte(read_end) {
                return;
            }
            act(number);
        }
    };
    if std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
        return;
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeros is a valid sigaction: no flags, empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is valid and its handler only makes async-signal-safe calls.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// Blocks until the pipe has a byte; false if it never will.
fn wait_byte(fd: i32) -> bool {
    let mut byte = 0u8;
    loop {
        // SAFETY: one byte is valid for writes.
        match unsafe { libc::read(fd, (&raw mut byte).cast(), 1) } {
            1 => return true,
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}
