//! An open file, below `io.RawIOBase`.

use std::sync::Arc;

use kestrel_client::native::{NativeCalls, NativeFile, NativeVolume, SeekFrom};
use kestrel_types::error::{FsError, FsResult};
use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::{of_parent, run};
use crate::errors;
use crate::stat::StatMaker;

/// An open file. Programs have it below a `kestrelfs.RawFile`.
#[pyclass(module = "kestrelfs._native")]
pub struct File {
    open: Mutex<Option<(Arc<NativeVolume>, Arc<NativeFile>)>>,
    name: Py<PyAny>,
}

/// A buffer of Python's that a call fills or reads while the GIL is released: it is pinned as long
/// as the `PyBuffer` is there.
struct Pinned {
    buffer: PyBuffer<u8>,
}

impl Pinned {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(given)?;
        match buffer.is_c_contiguous() {
            true => Ok(Self { buffer }),
            false => Err(PyBufferError::new_err("the buffer is not contiguous")),
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is the exporter's, contiguous, of this length, and stays where it is
        // while the buffer is held. As with os.write, a program that changes it meanwhile gets
        // bytes of both moments.
        unsafe {
            std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes())
        }
    }

    fn bytes_mut(&mut self) -> PyResult<&mut [u8]> {
        if self.buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        // SAFETY: as in `bytes`; it is writable. As with os.readv, a program that looks at it
        // meanwhile may see bytes of both moments.
        Ok(unsafe {
            let start = self.buffer.buf_ptr().cast::<u8>();
            std::slice::from_raw_parts_mut(start, self.buffer.len_bytes())
        })
    }
}

impl File {
    /// Takes over what was opened.
    pub fn new(volume: Arc<NativeVolume>, file: NativeFile, name: Py<PyAny>) -> Self {
        Self { open: Mutex::new(Some((volume, Arc::new(file)))), name }
    }

    fn parts(&self, py: Python<'_>) -> PyResult<(Arc<NativeVolume>, Arc<NativeFile>)> {
        let open = self.open.lock();
        match &*open {
            None => Err(PyValueError::new_err("I/O operation on closed file")),
            Some((volume, _)) if !volume.is_of_this_process() => {
                Err(errors::of_path(py, &of_parent(), Some(self.name.bind(py))))
            }
            Some((volume, file)) => Ok((volume.clone(), file.clone())),
        }
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(NativeCalls<'_>, &NativeFile) -> FsResult<T> + Send,
    ) -> PyResult<T> {
        let (volume, file) = self.parts(py)?;
        let result = run(py, &volume, |calls| call(calls, &file))?;
        result.map_err(|error| errors::of_path(py, &error, Some(self.name.bind(py))))
    }
}

#[pymethods]
impl File {
    /// Whether it was opened to be read.
    fn readable(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.parts(py)?.1.is_readable())
    }

    /// Whether it was opened to be written.
    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.parts(py)?.1.is_writable())
    }

    /// Reads into a writable buffer; how many bytes, 0 at the end.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut pinned = Pinned::of(buffer)?;
        let out = pinned.bytes_mut()?;
        self.call(py, |calls, file| calls.read(file, out))
    }

    /// Reads into a writable buffer from an offset; the position stays.
    fn pread_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        let mut pinned = Pinned::of(buffer)?;
        let out = pinned.bytes_mut()?;
        self.call(py, |calls, file| calls.read_at(file, offset, out))
    }

    /// All bytes from the position on.
    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (size, position) = self.call(py, |calls, file| {
            let size = calls.file_stat(file)?.size;
            Ok((size, calls.seek(file, SeekFrom::Current(0))?))
        })?;
        let wanted = usize::try_from(size.saturating_sub(position)).unwrap_or(usize::MAX);
        let mut filled = 0;
        let bytes = PyBytes::new_with(py, wanted, |out| {
            filled = self.call(py, |calls, file| calls.read(file, out))?;
            Ok(())
        })?;
        match filled == wanted {
            true => Ok(bytes),
            // It has become shorter.
            false => Ok(PyBytes::new(py, &bytes.as_bytes()[..filled])),
        }
    }

    /// Writes all of a buffer; how many bytes that are.
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let pinned = Pinned::of(buffer)?;
        let data = pinned.bytes();
        self.call(py, |calls, file| calls.write(file, data))?;
        Ok(data.len())
    }

    /// Writes all of a buffer at an offset; the position stays.
    fn pwrite(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let pinned = Pinned::of(buffer)?;
        let data = pinned.bytes();
        self.call(py, |calls, file| calls.write_at(file, offset, data))?;
        Ok(data.len())
    }

    /// Moves the position, as `io.RawIOBase.seek`, with `os.SEEK_DATA` and `os.SEEK_HOLE`.
    #[pyo3(signature = (offset, whence = 0))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let from_start = || {
            u64::try_from(offset).map_err(|_| {
                let why = FsError::new(libc::EINVAL, "an offset is not negative");
                errors::of_path(py, &why, Some(self.name.bind(py)))
            })
        };
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(from_start()?),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            libc::SEEK_DATA => SeekFrom::Data(from_start()?),
            libc::SEEK_HOLE => SeekFrom::Hole(from_start()?),
            _ => return Err(PyValueError::new_err(format!("invalid whence: {whence}"))),
        };
        self.call(py, |calls, file| calls.seek(file, to))
    }

    /// Sets the size.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.call(py, |calls, file| calls.file_truncate(file, size))
    }

    /// Commits what was written: other clients see it.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |calls, file| match file.is_writable() {
            true => calls.flush(file),
            false => Ok(()),
        })
    }

    /// Makes what was written durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |calls, file| calls.fsync(file))
    }

    /// Attributes.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inode = self.call(py, |calls, file| calls.file_stat(file))?;
        StatMaker::new(py)?.make(&inode)
    }

    /// Closes it; what was written is stored before. Closed already, nothing happens.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some((volume, file)) = self.open.lock().take() else { return Ok(()) };
        if !volume.is_of_this_process() {
            // The parent's.
            std::mem::forget((volume, file));
            return Ok(());
        }
        let result = run(py, &volume, |calls| match Arc::into_inner(file) {
            Some(file) => calls.close(file),
            // Another thread uses it: it is closed when that ends.
            None => Ok(()),
        });
        let given_back = py.detach(|| volume.give_back());
        let name = self.name.bind(py);
        result?.and(given_back).map_err(|error| errors::of_path(py, &error, Some(name)))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some((volume, file)) = self.open.get_mut().take() else { return };
        if !volume.is_of_this_process() {
            std::mem::forget((volume, file));
        }
    }
}
