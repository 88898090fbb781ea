//! What each call passes: the check for `fork`, the end of a panic, errno and text of an error, and
//! no `SIGPIPE` for the program.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use kestrel_client::error::VolumeError;
use kestrel_types::error::FsError;

/// Why a call failed.
#[derive(Debug, Clone)]
pub struct CallError {
    /// Linux errno value, above zero.
    pub errno: c_int,
    /// What the error is about: a path, a handle; may be empty.
    pub about: Vec<u8>,
    /// Why, and what to do.
    pub why: Cow<'static, str>,
}

/// What a call comes to.
pub type CallResult<T> = Result<T, CallError>;

impl CallError {
    /// An error with a fixed reason.
    pub const fn new(errno: c_int, why: &'static str) -> Self {
        Self { errno, about: Vec::new(), why: Cow::Borrowed(why) }
    }

    /// The same error, which is about something.
    pub fn about(mut self, about: impl Into<Vec<u8>>) -> Self {
        self.about = about.into();
        self
    }

    /// "What: why", as `kestrel_error` has it.
    fn text(&self, call: &str) -> Cow<'static, CStr> {
        let about = String::from_utf8_lossy(&self.about);
        let what = if about.is_empty() { call.into() } else { format!("{call} {about}") };
        let text = format!("{what}: {}", self.why);
        // What is about a path has no NUL; a text from elsewhere ends at one.
        let end = text.find('\0').unwrap_or(text.len());
        CString::new(&text[..end]).unwrap_or_default().into()
    }
}

impl From<FsError> for CallError {
    fn from(error: FsError) -> Self {
        let said = std::io::Error::from_raw_os_error(error.errno).to_string();
        let said = said.rsplit_once(" (os error").map_or(&*said, |(said, _)| said);
        let why = Cow::Owned(format!("{said} ({})", error.reason));
        Self { errno: error.errno, about: Vec::new(), why }
    }
}

impl From<VolumeError> for CallError {
    fn from(error: VolumeError) -> Self {
        Self { errno: error.errno(), about: Vec::new(), why: Cow::Owned(error.to_string()) }
    }
}

/// What a function of the library returns.
pub trait Returned {
    /// As the program sees it.
    type C;
    /// Of a call that succeeded.
    fn good(self) -> Self::C;
    /// Of one that failed.
    fn bad(errno: c_int) -> Self::C;
}

impl Returned for () {
    type C = c_int;
    fn good(self) -> c_int {
        0
    }
    fn bad(errno: c_int) -> c_int {
        -errno
    }
}

impl Returned for c_int {
    type C = c_int;
    fn good(self) -> c_int {
        self
    }
    fn bad(errno: c_int) -> c_int {
        -errno
    }
}

impl Returned for i64 {
    type C = i64;
    fn good(self) -> i64 {
        self
    }
    fn bad(errno: c_int) -> i64 {
        -i64::from(errno)
    }
}

/// The process that uses the library; 0 before its first call.
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The text of this thread's last error.
    static TEXT: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
    /// This thread is in a call of the library.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
    /// Where this thread panicked, and why.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Whether this process may use the library: its parent did not, before it forked.
pub fn is_owner() -> bool {
    let pid = std::process::id();
    match OWNER.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == pid,
    }
}

/// Has panics in calls end up in the error's text. Those of the library's own threads are printed,
/// as the standard library does.
fn keep_panics() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match IN_CALL.get() {
            // A thread that is ending has no place for it.
            true => drop(PANIC.try_with(|place| place.replace(info.to_string()))),
            false => print(info),
        }));
    });
}

/// The error that a panic is.
fn defect(payload: &(dyn Any + Send)) -> CallError {
    let told = PANIC.try_with(RefCell::take).unwrap_or_default();
    let told = match payload.downcast_ref::<&str>() {
        Some(text) if told.is_empty() => (*text).to_string(),
        _ => told,
    };
    let why = format!(
        "a defect of the library: {}; close the volume, open it again, and report this text",
        told.replace('\n', " ")
    );
    CallError { errno: libc::EIO, about: Vec::new(), why: Cow::Owned(why) }
}

/// Runs the body of an exported function. An error becomes a negative errno, and its text that of
/// this thread.
pub fn guarded<T: Returned>(call: &'static str, body: impl FnOnce() -> CallResult<T>) -> T::C {
    if !is_owner() {
        tell(call, &of_parent());
        return T::bad(libc::EOWNERDEAD);
    }
    let _quiet = NoBrokenPipe::begin();
    match caught(body) {
        Ok(value) => value.good(),
        Err(failure) => {
            tell(call, &failure);
            T::bad(failure.errno)
        }
    }
}

/// Keeps `SIGPIPE` from a program: HTTP's connections are written with writev(2), which sends it
/// where the other side has closed. It goes to the thread that writes: the one of a call, or one
/// of the library's, which inherits that it is blocked from the call that starts it.
struct NoBrokenPipe {
    /// What was blocked before; none if the signal was among it.
    before: Option<libc::sigset_t>,
}

/// The set of `SIGPIPE` alone.
fn broken_pipe() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call makes it a set; neither can fail with a signal that there is.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

impl NoBrokenPipe {
    fn begin() -> Self {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both are sets of this frame. It cannot fail, and fills `before`.
        let before = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &broken_pipe(), before.as_mut_ptr());
            before.assume_init()
        };
        // SAFETY: a set that was filled.
        let was_blocked = unsafe { libc::sigismember(&before, libc::SIGPIPE) } == 1;
        Self { before: (!was_blocked).then_some(before) }
    }
}

impl Drop for NoBrokenPipe {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: sets and a time that live until the calls return. The first one takes the
            // signal if it is waiting, else does nothing.
            unsafe {
                libc::sigtimedwait(&broken_pipe(), std::ptr::null_mut(), &at_once);
                libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut());
            }
        }
    }
}

/// The same for what returns nothing; in a process that `fork` made it does nothing.
pub fn guarded_free(body: impl FnOnce()) {
    if is_owner() {
        let _quiet = NoBrokenPipe::begin();
        // There is nothing to tell it with; the memory is lost.
        let _ = caught(|| {
            body();
            Ok(())
        });
    }
}

/// Runs something that may panic.
pub fn caught<T>(body: impl FnOnce() -> CallResult<T>) -> CallResult<T> {
    keep_panics();
    let before = IN_CALL.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    IN_CALL.set(before);
    match result {
        Ok(result) => result,
        Err(payload) => {
            let failure = defect(&*payload);
            // Dropping it may panic as well.
            std::mem::forget(payload);
            Err(failure)
        }
    }
}

/// Has this thread's text say why an operation failed that another thread ran.
pub fn tell(call: &str, failure: &CallError) {
    // A thread that is ending has no text any more.
    let _ = TEXT.try_with(|text| text.replace(failure.text(call)));
}

fn of_parent() -> CallError {
    CallError::new(
        libc::EOWNERDEAD,
        "this process was forked from one that used the library, of which it can use nothing; fork \
         before the first call, or execute a program that opens the volume anew",
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_error() -> *const c_char {
    let text = TEXT.try_with(|text| text.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        // SAFETY: it is this thread's text, which no call replaces meanwhile.
        unsafe { CStr::from_ptr(kestrel_error()) }.to_string_lossy().into_owned()
    }

    /// A panic is an error with a text, and the thread goes on.
    #[test]
    fn panic_at_the_boundary() {
        let panics = || -> CallResult<()> { panic!("of {}", 7) };
        assert_eq!(guarded("kestrel_try", panics), -libc::EIO);
        assert!(text().starts_with("kestrel_try: a defect of the library: "), "{}", text());
        assert!(text().contains("of 7") && text().contains("boundary.rs"), "{}", text());
        assert_eq!(guarded("kestrel_try", || Ok(5i64)), 5);
    }

    /// A socket that was closed does not end the program, which gets its own signals afterwards.
    #[test]
    fn broken_pipe_in_a_call() {
        // SAFETY: the test harness ignores the signal; nothing else of these tests makes one.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let mut ends = [0; 2];
        let failed = guarded("kestrel_try", || {
            // SAFETY: the descriptors are those of this pipe, and of nobody else.
            let written = unsafe {
                libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC);
                libc::close(ends[0]);
                libc::write(ends[1], c"x".as_ptr().cast(), 1)
            };
            let why = std::io::Error::last_os_error();
            Ok(if written < 0 { why.raw_os_error().unwrap_or(0) } else { 0 })
        });
        // SAFETY: as above; and a set of this frame.
        let is_blocked = unsafe {
            libc::close(ends[1]);
            let mut now = MaybeUninit::uninit();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::signal(libc::SIGPIPE, before);
            libc::sigismember(now.as_ptr(), libc::SIGPIPE)
        };
        assert_eq!((failed, is_blocked), (libc::EPIPE, 0));
    }

    /// What failed, what it was about, why.
    #[test]
    fn text_of_an_error() {
        let error = FsError::new(libc::ENOENT, "there is no such name");
        let failure = CallError::from(error).about(*b"/a/b");
        assert_eq!(guarded::<i64>("open", || Err(failure)), -i64::from(libc::ENOENT));
        assert_eq!(text(), "open /a/b: No such file or directory (there is no such name)");
        assert_eq!(
            guarded::<()>("close", || Err(CallError::new(libc::EBADF, "a\0b"))),
            -libc::EBADF
        );
        assert_eq!(text(), "close: a");
    }
}
