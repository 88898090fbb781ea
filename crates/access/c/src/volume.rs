//! Opening and closing volumes. A volume is closed when no call of any thread uses it any more.

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kestrel_client::native::{NativeCalls, NativeOptions, NativeVolume};
use parking_lot::{Condvar, Mutex};

use crate::arguments::{answer, check_flags, options, path, text_or_null};
use crate::boundary::{CallError, CallResult, guarded};
use crate::handles::{self, Handled};
use crate::structs::{kestrel_options, kestrel_room};

/// `KESTREL_READ_ONLY`.
const READ_ONLY: i32 = 1;

/// A volume that a program has opened.
pub struct OpenVolume {
    state: Mutex<VolumeState>,
    /// Nothing is running any more.
    idle: Condvar,
    /// A call has panicked: what it was changing may be half changed.
    broken: AtomicBool,
}

struct VolumeState {
    /// None: it is closed, or about to be.
    native: Option<Arc<NativeVolume>>,
    running: usize,
}

/// The use of a volume by a call or an operation, which closing it waits for.
pub struct Use {
    volume: Arc<OpenVolume>,
    /// Given back before the use ends: the last one closes the volume.
    native: Option<Arc<NativeVolume>>,
}

impl Handled for OpenVolume {
    fn kind() -> &'static str {
        "volume"
    }

    fn volume(&self) -> Option<usize> {
        None
    }

    fn end(&self, _: &NativeVolume) -> CallResult<()> {
        Ok(())
    }
}

impl OpenVolume {
    /// A number that no other volume has at a time.
    pub fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn new(native: Arc<NativeVolume>) -> Self {
        let state = VolumeState { native: Some(native), running: 0 };
        Self { state: Mutex::new(state), idle: Condvar::new(), broken: AtomicBool::new(false) }
    }

    /// Begins a use.
    ///
    /// # Errors
    /// `EBADF` if it is closed, `EIO` after a panic.
    pub fn enter(self: &Arc<Self>) -> CallResult<Use> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(CallError::new(
                libc::EIO,
                "a defect of the library has ended an earlier call of this volume; close the \
                 volume and open it again",
            ));
        }
        let mut state = self.state.lock();
        let native = state.native.clone();
        let native =
            native.ok_or(CallError::new(libc::EBADF, "the volume is closed, or being closed"))?;
        state.running += 1;
        Ok(Use { volume: self.clone(), native: Some(native) })
    }

    /// Runs a call.
    ///
    /// # Errors
    /// Those of the call, and of [`OpenVolume::enter`].
    pub fn run<T, E>(
        self: &Arc<Self>,
        call: impl FnOnce(NativeCalls<'_>) -> Result<T, E>,
    ) -> CallResult<T>
    where
        CallError: From<E>,
    {
        self.enter()?.run(call)
    }

    /// Has no use begin any more, and waits until none is left.
    fn leave(&self) -> Option<Arc<NativeVolume>> {
        let mut state = self.state.lock();
        let native = state.native.take();
        while state.running > 0 {
            self.idle.wait(&mut state);
        }
        native
    }
}

impl Use {
    /// Runs a call.
    ///
    /// # Errors
    /// Those of the call.
    pub fn run<T, E>(&self, call: impl FnOnce(NativeCalls<'_>) -> Result<T, E>) -> CallResult<T>
    where
        CallError: From<E>,
    {
        let _watch = PanicWatch(&self.volume);
        match &self.native {
            Some(native) => Ok(call(native.calls(&|| false))?),
            None => Err(CallError::new(libc::EBADF, "the volume is closed")),
        }
    }
}

/// Notes a panic of a call.
struct PanicWatch<'a>(&'a OpenVolume);

impl Drop for PanicWatch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.native = None;
        let mut state = self.volume.state.lock();
        state.running -= 1;
        if state.running == 0 {
            self.volume.idle.notify_all();
        }
    }
}

/// A call about one path.
///
/// # Safety
/// As for [`path`].
///
/// # Errors
/// Those of the call.
pub unsafe fn at<T, E>(
    volume: i64,
    given: *const c_char,
    call: impl FnOnce(NativeCalls<'_>, &[u8]) -> Result<T, E>,
) -> CallResult<T>
where
    CallError: From<E>,
{
    // SAFETY: as of this function.
    let path = unsafe { path(given) }?;
    let volume = handles::get::<OpenVolume>(volume)?;
    volume.run(|calls| call(calls, path)).map_err(|why| why.about(path))
}

/// A call about two paths.
///
/// # Safety
/// As for [`path`].
///
/// # Errors
/// Those of the call.
pub unsafe fn at_two<T, E>(
    volume: i64,
    (from, to): (*const c_char, *const c_char),
    call: impl FnOnce(NativeCalls<'_>, &[u8], &[u8]) -> Result<T, E>,
) -> CallResult<T>
where
    CallError: From<E>,
{
    // SAFETY: as of this function.
    let (from, to) = unsafe { (path(from)?, path(to)?) };
    let volume = handles::get::<OpenVolume>(volume)?;
    let about = |why: CallError| why.about([from, b" -> ", to].concat());
    volume.run(|calls| call(calls, from, to)).map_err(about)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_volume_open(
    url: *const c_char,
    given: *const kestrel_options,
) -> i64 {
    guarded("kestrel_volume_open", || {
        // SAFETY: kestrel.h says what the pointers are.
        let url = unsafe { text_or_null(url) }?;
        let url = url.ok_or(CallError::new(libc::EFAULT, "the URL is NULL"))?;
        let opened = (|| {
            // SAFETY: as above.
            let given = unsafe { options(given) }?;
            let mut how = NativeOptions::default();
            check_flags(given.flags as i32, READ_ONLY)?;
            how.read_only = given.flags as i32 & READ_ONLY != 0;
            // SAFETY: as above.
            unsafe {
                how.token = text_or_null(given.token)?.map(str::to_string);
                if let Some(who) = text_or_null(given.who)? {
                    how.who = who.to_string();
                }
            }
            if given.deadline_ms > 0 {
                how.deadline = Duration::from_millis(given.deadline_ms);
            }
            match NativeVolume::open_shared(url, &how, &|| false) {
                Some(opened) => Ok(opened?),
                None => Err(CallError::new(libc::EINTR, "it was not opened")),
            }
        })();
        // Many of its errors name it themselves.
        let about = |why: CallError| if why.why.contains(url) { why } else { why.about(url) };
        let native = opened.map_err(about)?;
        handles::add(Arc::new(OpenVolume::new(native)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_volume_close(volume: i64) -> c_int {
    guarded("kestrel_volume_close", || {
        let volume = handles::take::<OpenVolume>(volume)?;
        // No handle of it is opened any more once it is left.
        let native = volume.leave();
        let open = handles::take_all_in(volume.number());
        let Some(native) = native else { return Ok(()) };
        let mut closed = Ok(());
        for object in open {
            closed = closed.and(object.end(&native));
        }
        closed.and(native.give_back().map_err(CallError::from))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_volume_is_read_only(volume: i64) -> c_int {
    guarded("kestrel_volume_is_read_only", || {
        let volume = handles::get::<OpenVolume>(volume)?;
        let used = volume.enter()?;
        Ok(c_int::from(used.native.as_ref().is_some_and(|native| native.is_read_only())))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_volume_room(volume: i64, out: *mut kestrel_room) -> c_int {
    guarded("kestrel_volume_room", || {
        // SAFETY: kestrel.h says what the pointer is.
        let out = unsafe { answer(out) }?;
        let room = handles::get::<OpenVolume>(volume)?.run(|calls| calls.room())?;
        out.write(kestrel_room::of(&room));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_volume_sync(volume: i64) -> c_int {
    guarded("kestrel_volume_sync", || handles::get::<OpenVolume>(volume)?.run(|calls| calls.sync()))
}
