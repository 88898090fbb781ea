//! Logs of ranks of jobs: what a process of a job makes, at the speed of memory.

use std::ffi::{c_char, c_int, c_void};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use kestrel_client::error::VolumeError;
use kestrel_client::job::{ChangeLog, JobRecord, Jobs, LogAttrs, LogDir, LogOptions};
use kestrel_client::native::{NativeVolume, umask};
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::Resources;
use kestrel_types::perm::with_umask;
use parking_lot::Mutex;

use crate::arguments::{bytes, check_flags, options, path, text_or_null};
use crate::boundary::{CallError, CallResult, guarded};
use crate::handles::{self, Handled};
use crate::names::mode_bits;
use crate::structs::kestrel_log_options;

/// `KESTREL_TAKE_OVER`.
const TAKE_OVER: i32 = 1;

/// The variables that name volume and job, which `kestrel job start` prints.
const VOLUME_ENV: &str = "KESTREL_JOB_VOLUME";
const NUMBER_ENV: &str = "KESTREL_JOB_NUMBER";

/// The log of a rank.
pub struct OpenLog {
    jobs: Jobs,
    record: JobRecord,
    /// None: it is closed, or a panic has ended it.
    log: Mutex<Option<ChangeLog>>,
}

impl Handled for OpenLog {
    fn kind() -> &'static str {
        "log"
    }

    fn volume(&self) -> Option<usize> {
        None
    }

    fn end(&self, _: &NativeVolume) -> CallResult<()> {
        Ok(())
    }
}

/// What the environment says, if nothing is given.
fn given_or_env(given: Option<&str>, name: &str) -> CallResult<String> {
    match given.map(str::to_string).or_else(|| std::env::var(name).ok()) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => {
            let why = format!(
                "which job? Give volume and job, or set {VOLUME_ENV} and {NUMBER_ENV} as \
                 `kestrel job start` says"
            );
            Err(CallError { errno: libc::EINVAL, about: Vec::new(), why: why.into() })
        }
    }
}

/// A call about a log.
fn with<T>(
    handle: i64,
    call: impl FnOnce(&mut ChangeLog) -> Result<T, VolumeError>,
) -> CallResult<T> {
    let open = handles::get::<OpenLog>(handle)?;
    let mut place = open.log.lock();
    // Out of its place: after a panic there is none.
    let closed = CallError::new(libc::EBADF, "the log is closed, or a defect has ended it");
    let mut log = place.take().ok_or(closed)?;
    let result = call(&mut log);
    *place = Some(log);
    Ok(result?)
}

/// The attributes of what is made, and the directory and name of a path; directories that are
/// missing are made.
fn make(
    handle: i64,
    path: &[u8],
    attrs: LogAttrs,
    call: impl FnOnce(&mut ChangeLog, LogDir, &[u8]) -> Result<u64, VolumeError>,
) -> CallResult<()> {
    let cut = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let above = LogAttrs { mode: with_umask(0o777, umask()) as u16, mtime: None, ..attrs };
    let made = with(handle, |log| {
        let dir = log.make_dirs(&path[..cut], above)?;
        call(log, dir, &path[cut..])
    });
    made.map(drop).map_err(|why| why.about(path))
}

fn attrs(mode: u32) -> CallResult<LogAttrs> {
    // SAFETY: they take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    Ok(LogAttrs { mode: with_umask(mode_bits(mode)?, umask()) as u16, uid, gid, mtime: None })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_log_open(
    volume: *const c_char,
    job: *const c_char,
    rank: u32,
    given: *const kestrel_log_options,
) -> i64 {
    guarded("kestrel_log_open", || {
        // SAFETY: kestrel.h says what the pointers are.
        let (volume, job, given) =
            unsafe { (text_or_null(volume)?, text_or_null(job)?, options(given)?) };
        check_flags(given.flags as i32, TAKE_OVER)?;
        let (volume, job) = (given_or_env(volume, VOLUME_ENV)?, given_or_env(job, NUMBER_ENV)?);
        let take_over = given.flags as i32 & TAKE_OVER != 0;
        let mut how = LogOptions { take_over, ..LogOptions::default() };
        if given.sync_every_ms > 0 {
            how.sync_every = Duration::from_millis(given.sync_every_ms);
        }
        let opened = (|| {
            let jobs = Jobs::of(&volume, &StoreOptions::default())?;
            let record = jobs.join(&jobs.find(&job)?, rank, false)?;
            let log = Mutex::new(Some(ChangeLog::open(&jobs, &record, how)?));
            Ok(OpenLog { jobs, record, log })
        })();
        let opened = opened.map_err(|why: VolumeError| match CallError::from(why) {
            why if why.why.contains(&volume) => why,
            why => why.about(volume),
        })?;
        handles::add(Arc::new(opened))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_log_mkdirs(log: i64, path: *const c_char, mode: u32) -> c_int {
    guarded("kestrel_log_mkdirs", || {
        let attrs = attrs(mode)?;
        // SAFETY: kestrel.h says what the pointer is.
        let path = unsafe { self::path(path) }?;
        with(log, |log| log.make_dirs(path, attrs)).map(drop).map_err(|why| why.about(path))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_log_create(
    log: i64,
    path: *const c_char,
    mode: u32,
    content: *const c_void,
    len: usize,
) -> c_int {
    guarded("kestrel_log_create", || {
        let attrs = attrs(mode)?;
        // SAFETY: kestrel.h says what the pointers are.
        let (path, mut content) = unsafe { (self::path(path)?, bytes(content, len)?) };
        let content: &mut dyn Read = &mut content;
        make(log, path, attrs, |log, dir, name| log.create_from(dir, name, attrs, content))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_log_symlink(
    log: i64,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    guarded("kestrel_log_symlink", || {
        let attrs = attrs(0o777)?;
        // SAFETY: kestrel.h says what the pointers are.
        let (target, path) = unsafe { (self::path(target)?, self::path(path)?) };
        make(log, path, attrs, |log, dir, name| log.symlink(dir, name, attrs, target))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_log_sync(log: i64) -> c_int {
    guarded("kestrel_log_sync", || with(log, |log| log.sync()))
}

/// Ends the use of a log: its handle is closed, and what was made is in the store.
fn close(handle: i64) -> CallResult<Arc<OpenLog>> {
    let open = handles::take::<OpenLog>(handle)?;
    let log = open.log.lock().take();
    match log {
        Some(log) => log.close()?,
        None => return Err(CallError::new(libc::EIO, "a defect of the library has ended the log")),
    }
    Ok(open)
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_log_close(log: i64) -> c_int {
    guarded("kestrel_log_close", || close(log).map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_log_finish(log: i64) -> i64 {
    guarded("kestrel_log_finish", || {
        let open = close(log)?;
        let rows = open.jobs.finish(&open.record, &Resources::default())?;
        Ok(i64::try_from(rows).unwrap_or(i64::MAX))
    })
}
