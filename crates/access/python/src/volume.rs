//! A volume by URL: operations by path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_client::native::{Buffer, NativeCalls, NativeOptions, NativeVolume, OpenHow, Times};
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::request::{RenameFlags, SetTime, XattrFlags};
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::calls::{of_parent, run, until_signal};
use crate::errors;
use crate::file::File;
use crate::paths::{self, PathArg};
use crate::stat::StatMaker;

/// Whether the volume is in use, and how.
enum State {
    Open(Arc<NativeVolume>),
    Closed,
}

/// Whether this library has ever opened a volume, and so has started threads.
static WAS_USED: AtomicBool = AtomicBool::new(false);

/// Whether this library has ever opened a volume: a process that is forked then cannot use it.
#[pyfunction]
pub fn was_used() -> bool {
    WAS_USED.load(Ordering::Relaxed)
}

/// An open volume. Programs have it below a `kestrelfs.Volume`.
#[pyclass(module = "kestrelfs._native")]
pub struct Volume {
    url: String,
    options: NativeOptions,
    state: Mutex<State>,
}

impl Drop for Volume {
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut(), State::Closed);
        if let State::Open(volume) = state
            && let Err(error) = volume.give_back()
        {
            // Nobody is there to be told by an exception.
            eprintln!("kestrelfs: {}: {error}", self.url);
        }
    }
}

impl Volume {
    fn open_native(
        py: Python<'_>,
        url: &str,
        options: &NativeOptions,
    ) -> PyResult<Arc<NativeVolume>> {
        WAS_USED.store(true, Ordering::Relaxed);
        let opened = until_signal(py, |gone| NativeVolume::open_shared(url, options, gone))?;
        let interrupted = || PyOSError::new_err((libc::EINTR, "interrupted", url.to_string()));
        opened.ok_or_else(interrupted)?.map_err(|error| errors::of_volume(&error, url))
    }

    /// The volume, if it is open.
    fn native(&self, py: Python<'_>) -> PyResult<Arc<NativeVolume>> {
        match &*self.state.lock() {
            State::Closed => Err(PyValueError::new_err("operation on closed volume")),
            State::Open(volume) if volume.is_of_this_process() => Ok(volume.clone()),
            State::Open(_) => Err(errors::of_path(py, &of_parent(), None)),
        }
    }

    /// A call about one path.
    fn at<T: Send>(
        &self,
        path: &Bound<'_, PyAny>,
        call: impl FnOnce(NativeCalls<'_>, &[u8]) -> FsResult<T> + Send,
    ) -> PyResult<T> {
        let py = path.py();
        let bytes = PathArg::of(path)?.bytes;
        let volume = self.native(py)?;
        let result = run(py, &volume, |calls| call(calls, &bytes))?;
        result.map_err(|error| errors::of_path(py, &error, Some(path)))
    }

    /// A call about two paths.
    fn at_two(
        &self,
        (from, to): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        call: impl FnOnce(NativeCalls<'_>, &[u8], &[u8]) -> FsResult<()> + Send,
    ) -> PyResult<()> {
        let py = from.py();
        let (first, second) = (PathArg::of(from)?.bytes, PathArg::of(to)?.bytes);
        let volume = self.native(py)?;
        let result = run(py, &volume, |calls| call(calls, &first, &second))?;
        result.map_err(|error| errors::of_two(py, &error, (from, to)))
    }

    /// A call about many paths. The results become a list; the first error is raised, or errors are
    /// in the list if `keep_errors`.
    fn at_many<'py, T: Send>(
        &self,
        given: &Bound<'py, PyAny>,
        keep_errors: bool,
        call: impl FnOnce(NativeCalls<'_>, &[Vec<u8>]) -> Vec<FsResult<T>> + Send,
        show: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = given.py();
        let (objects, bytes) = paths::many(given)?;
        let volume = self.native(py)?;
        let results = run(py, &volume, |calls| Ok(call(calls, &bytes)))?;
        let results = results.map_err(|error| errors::of_path(py, &error, None))?;
        let all = PyList::empty(py);
        for (result, object) in results.into_iter().zip(&objects) {
            let shown = match result {
                Ok(value) => show(value)?,
                Err(error) => {
                    let error = errors::of_path(py, &error, Some(object.bind(py)));
                    if !keep_errors {
                        return Err(error);
                    }
                    error.into_value(py).into_bound(py).into_any()
                }
            };
            all.append(shown)?;
        }
        Ok(all)
    }
}

/// Permission bits of a mode.
fn mode_bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// An owner or group to set; -1 leaves it.
fn id_to_set(id: i64) -> PyResult<Option<u32>> {
    match id {
        -1 => Ok(None),
        id => u32::try_from(id)
            .map(Some)
            .map_err(|_| PyValueError::new_err("an id is from 0 to 4294967295, or -1")),
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (url, token = None, read_only = false, who = None))]
    fn new(
        py: Python<'_>,
        url: String,
        token: Option<String>,
        read_only: bool,
        who: Option<String>,
    ) -> PyResult<Self> {
        if url.contains('\0') {
            return Err(PyValueError::new_err("embedded null character"));
        }
        let who = who.unwrap_or_else(|| format!("python, process {}", std::process::id()));
        let options = NativeOptions { token, who, read_only, ..NativeOptions::default() };
        let volume = Self::open_native(py, &url, &options)?;
        Ok(Self { url, options, state: Mutex::new(State::Open(volume)) })
    }

    /// The URL.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// The token, for a process that opens the volume anew.
    #[getter]
    fn token(&self) -> Option<&str> {
        self.options.token.as_deref()
    }

    /// Whether the volume was asked for to be read only.
    #[getter]
    fn asked_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Whether nothing can be changed.
    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.native(py)?.is_read_only())
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        matches!(*self.state.lock(), State::Closed)
    }

    /// Closes it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let state = std::mem::replace(&mut *self.state.lock(), State::Closed);
        let State::Open(volume) = state else { return Ok(()) };
        py.detach(|| volume.give_back()).map_err(|error| errors::of_path(py, &error, None))
    }

    /// Opens a file by the flags of `os.open`.
    #[pyo3(signature = (path, flags, mode = 0o666))]
    fn open(&self, path: &Bound<'_, PyAny>, flags: i32, mode: u32) -> PyResult<File> {
        let file = self.at(path, |calls, path| {
            calls.open(path, OpenHow::from_flags(flags, mode_bits(mode))?)
        })?;
        Ok(File::new(self.native(path.py())?, file, path.clone().unbind()))
    }

    /// `os.stat`.
    #[pyo3(signature = (path, follow = true))]
    fn stat<'py>(&self, path: &Bound<'py, PyAny>, follow: bool) -> PyResult<Bound<'py, PyAny>> {
        let inode = self.at(path, |calls, path| calls.stat(path, follow))?;
        StatMaker::new(path.py())?.make(&inode)
    }

    /// `os.access`, with an exception that says why not.
    fn access(&self, path: &Bound<'_, PyAny>, mask: u32) -> PyResult<()> {
        self.at(path, |calls, path| calls.access(path, mask))
    }

    /// Names with inode numbers and types (of `d_type`), in the order of their bytes.
    fn list<'py>(&self, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let py = path.py();
        let is_bytes = PathArg::of(path)?.is_bytes;
        let entries = self.at(path, |calls, path| calls.list(path))?;
        let all = PyList::empty(py);
        for entry in entries {
            let name = paths::name(py, entry.name.as_bytes(), is_bytes)?;
            all.append((name, entry.ino, entry.kind.dirent_type()))?;
        }
        Ok(all)
    }

    /// `os.mkdir`.
    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, path: &Bound<'_, PyAny>, mode: u32) -> PyResult<()> {
        self.at(path, |calls, path| calls.mkdir(path, mode_bits(mode)))
    }

    /// `os.makedirs`.
    #[pyo3(signature = (path, mode = 0o777, exist_ok = false))]
    fn makedirs(&self, path: &Bound<'_, PyAny>, mode: u32, exist_ok: bool) -> PyResult<()> {
        self.at(path, |calls, path| calls.make_dirs(path, mode_bits(mode), exist_ok))
    }

    /// `os.unlink`.
    fn unlink(&self, path: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(path, |calls, path| calls.unlink(path))
    }

    /// `os.rmdir`.
    fn rmdir(&self, path: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(path, |calls, path| calls.rmdir(path))
    }

    /// `os.rename` and `os.replace`; with `no_replace` what is there stays (`EEXIST`), with
    /// `exchange` the two change places.
    #[pyo3(signature = (from, to, no_replace = false, exchange = false))]
    fn rename(
        &self,
        from: &Bound<'_, PyAny>,
        to: &Bound<'_, PyAny>,
        no_replace: bool,
        exchange: bool,
    ) -> PyResult<()> {
        let flags = RenameFlags { no_replace, exchange, replaced: None };
        self.at_two((from, to), |calls, from, to| calls.rename(from, to, flags))
    }

    /// `os.symlink`.
    fn symlink(&self, target: &Bound<'_, PyAny>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at_two((target, path), |calls, target, path| calls.symlink(target, path))
    }

    /// `os.link`.
    fn link(&self, path: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at_two((path, other), |calls, path, other| calls.link(path, other))
    }

    /// `os.readlink`.
    fn readlink<'py>(&self, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let is_bytes = PathArg::of(path)?.is_bytes;
        let target = self.at(path, |calls, path| calls.readlink(path))?;
        paths::name(path.py(), &target, is_bytes)
    }

    /// `os.chmod`.
    #[pyo3(signature = (path, mode, follow = true))]
    fn chmod(&self, path: &Bound<'_, PyAny>, mode: u32, follow: bool) -> PyResult<()> {
        self.at(path, |calls, path| calls.chmod(path, mode_bits(mode), follow))
    }

    /// `os.chown`.
    #[pyo3(signature = (path, uid, gid, follow = true))]
    fn chown(&self, path: &Bound<'_, PyAny>, uid: i64, gid: i64, follow: bool) -> PyResult<()> {
        let ids = (id_to_set(uid)?, id_to_set(gid)?);
        self.at(path, |calls, path| calls.chown(path, ids, follow))
    }

    /// `os.utime` with nanoseconds; none is the present time.
    #[pyo3(signature = (path, times = None, follow = true))]
    fn utime(
        &self,
        path: &Bound<'_, PyAny>,
        times: Option<(Nanos, Nanos)>,
        follow: bool,
    ) -> PyResult<()> {
        let (atime, mtime) = match times {
            Some((atime, mtime)) => (SetTime::At(atime), SetTime::At(mtime)),
            None => (SetTime::Now, SetTime::Now),
        };
        let times = Times { atime: Some(atime), mtime: Some(mtime) };
        self.at(path, |calls, path| calls.set_times(path, times, follow))
    }

    /// `os.truncate`.
    fn truncate(&self, path: &Bound<'_, PyAny>, size: u64) -> PyResult<()> {
        self.at(path, |calls, path| calls.truncate(path, size))
    }

    /// `os.getxattr`.
    #[pyo3(signature = (path, name, follow = true))]
    fn getxattr<'py>(
        &self,
        path: &Bound<'py, PyAny>,
        name: &Bound<'_, PyAny>,
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let name = PathArg::of(name)?.bytes;
        let value = self.at(path, |calls, path| calls.getxattr(path, &name, follow))?;
        Ok(PyBytes::new(path.py(), &value))
    }

    /// `os.setxattr`, with its flags.
    #[pyo3(signature = (path, name, value, flags = 0, follow = true))]
    fn setxattr(
        &self,
        path: &Bound<'_, PyAny>,
        name: &Bound<'_, PyAny>,
        value: Vec<u8>,
        flags: i32,
        follow: bool,
    ) -> PyResult<()> {
        let name = PathArg::of(name)?.bytes;
        let flags = XattrFlags {
            create: flags & libc::XATTR_CREATE != 0,
            replace: flags & libc::XATTR_REPLACE != 0,
        };
        self.at(path, |calls, path| calls.setxattr(path, (&name, &value), flags, follow))
    }

    /// `os.listxattr`.
    #[pyo3(signature = (path, follow = true))]
    fn listxattr<'py>(
        &self,
        path: &Bound<'py, PyAny>,
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let names = self.at(path, |calls, path| calls.listxattr(path, follow))?;
        names.iter().map(|name| paths::name(path.py(), name, false)).collect()
    }

    /// `os.removexattr`.
    #[pyo3(signature = (path, name, follow = true))]
    fn removexattr(
        &self,
        path: &Bound<'_, PyAny>,
        name: &Bound<'_, PyAny>,
        follow: bool,
    ) -> PyResult<()> {
        let name = PathArg::of(name)?.bytes;
        self.at(path, |calls, path| calls.removexattr(path, &name, follow))
    }

    /// Block size, blocks, free blocks, files, longest name.
    fn room(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let volume = self.native(py)?;
        let room = run(py, &volume, |calls| calls.room())?;
        let room = room.map_err(|error: FsError| errors::of_path(py, &error, None))?;
        Ok((room.block_bytes, room.blocks, room.blocks_free, room.files, room.name_max))
    }

    /// Makes all that is committed durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.native(py)?;
        let synced = run(py, &volume, |calls| calls.sync())?;
        synced.map_err(|error| errors::of_path(py, &error, None))
    }

    /// Copies a file within the volume, by reference where it is large; how many bytes.
    #[pyo3(signature = (from, to, mode = 0o666))]
    fn copy_file(&self, from: &Bound<'_, PyAny>, to: &Bound<'_, PyAny>, mode: u32) -> PyResult<()> {
        let mode = mode_bits(mode);
        self.at_two((from, to), |calls, from, to| {
            let source = calls.open(from, OpenHow::READ)?;
            let copy = calls.open(to, OpenHow::create(mode))?;
            calls.copy_range((&source, 0), (&copy, 0), u64::MAX)?;
            calls.close(copy)
        })
    }

    /// The contents of many files, with one burst of requests.
    #[pyo3(signature = (paths, keep_errors = false))]
    fn read_many<'py>(
        &self,
        paths: &Bound<'py, PyAny>,
        keep_errors: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = paths.py();
        let show = |bytes: Buffer| Ok(PyBytes::new(py, &bytes).into_any());
        self.at_many(paths, keep_errors, |calls, paths| calls.read_many(paths), show)
    }

    /// The attributes of many files, with one burst of requests.
    #[pyo3(signature = (paths, follow = true, keep_errors = false))]
    fn stat_many<'py>(
        &self,
        paths: &Bound<'py, PyAny>,
        follow: bool,
        keep_errors: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let maker = StatMaker::new(paths.py())?;
        let call = |calls: NativeCalls<'_>, paths: &[Vec<u8>]| calls.stat_many(paths, follow);
        self.at_many(paths, keep_errors, call, |inode| maker.make(&inode))
    }

    /// The names in many directories, with one burst of requests.
    #[pyo3(signature = (paths, keep_errors = false))]
    fn list_many<'py>(
        &self,
        paths: &Bound<'py, PyAny>,
        keep_errors: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = paths.py();
        let call = |calls: NativeCalls<'_>, paths: &[Vec<u8>]| calls.list_many(paths);
        self.at_many(paths, keep_errors, call, |entries| {
            let names = PyList::empty(py);
            for entry in entries {
                names.append(paths::name(py, entry.name.as_bytes(), false)?)?;
            }
            Ok(names.into_any())
        })
    }
}
