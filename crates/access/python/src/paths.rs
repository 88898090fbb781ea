//! Paths and names, by the rules of `os.fsencode` and `os.fsdecode`: bytes that are not UTF-8 are
//! surrogates in a `str`.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// A path as a program gives it: `str`, `bytes` or `os.PathLike`.
pub struct PathArg {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It was given as bytes: so names come back.
    pub is_bytes: bool,
}

impl PathArg {
    /// The path that `given` is.
    ///
    /// # Errors
    /// `TypeError` if it is none, `ValueError` if it has NUL, or surrogates of no byte.
    pub fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = given.py();
        let fspath;
        let plain = if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
            given
        } else {
            fspath = py.import(intern!(py, "os"))?.call_method1(intern!(py, "fspath"), (given,))?;
            &fspath
        };
        let (bytes, is_bytes) = match plain.cast::<PyBytes>() {
            Ok(bytes) => (bytes.as_bytes().to_vec(), true),
            Err(_) => (encoded(plain)?, false),
        };
        if bytes.contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(Self { bytes, is_bytes })
    }
}

/// The bytes of a string.
fn encoded(text: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(text) = text.cast::<PyString>()
        && let Ok(utf8) = text.to_cow()
    {
        return Ok(utf8.as_bytes().to_vec());
    }
    let py = text.py();
    let os = py.import(intern!(py, "os"))?;
    let bytes = os.call_method1(intern!(py, "fsencode"), (text,))?;
    Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// A name as the program has paths: `str`, or `bytes`.
///
/// # Errors
/// Those of making a string.
pub fn name<'py>(py: Python<'py>, name: &[u8], is_bytes: bool) -> PyResult<Bound<'py, PyAny>> {
    if is_bytes {
        return Ok(PyBytes::new(py, name).into_any());
    }
    match std::str::from_utf8(name) {
        Ok(text) => Ok(PyString::new(py, text).into_any()),
        Err(_) => {
            let os = py.import(intern!(py, "os"))?;
            os.call_method1(intern!(py, "fsdecode"), (PyBytes::new(py, name),))
        }
    }
}

/// Many paths: as the program has them, and their bytes.
pub type ManyPaths = (Vec<Py<PyAny>>, Vec<Vec<u8>>);

/// The bytes of many paths.
///
/// # Errors
/// As for [`PathArg::of`].
pub fn many(given: &Bound<'_, PyAny>) -> PyResult<ManyPaths> {
    let (mut objects, mut paths) = (Vec::new(), Vec::new());
    for path in given.try_iter()? {
        let path = path?;
        paths.push(PathArg::of(&path)?.bytes);
        objects.push(path.unbind());
    }
    Ok((objects, paths))
}
