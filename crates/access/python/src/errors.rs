//! `OSError` with errno, text and file name: Python chooses the subclass by the errno.

use kestrel_client::error::VolumeError;
use kestrel_types::error::FsError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// What the system says of an errno, and our reason.
fn text(error: &FsError) -> String {
    let said = std::io::Error::from_raw_os_error(error.errno).to_string();
    let said = said.rsplit_once(" (os error").map_or(&*said, |(said, _)| said);
    format!("{said} ({})", error.reason)
}

/// The exception for an error of a file.
pub fn of_path(py: Python<'_>, error: &FsError, path: Option<&Bound<'_, PyAny>>) -> PyErr {
    let path = path.map_or_else(|| py.None(), |path| path.clone().unbind());
    PyOSError::new_err((error.errno, text(error), path))
}

/// The exception for an error that concerns two paths.
pub fn of_two(
    py: Python<'_>,
    error: &FsError,
    (from, to): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
) -> PyErr {
    let (from, to) = (from.clone().unbind(), to.clone().unbind());
    // The fourth argument is an errno of Windows.
    PyOSError::new_err((error.errno, text(error), from, py.None(), to))
}

/// The exception for a volume that cannot be opened.
pub fn of_volume(error: &VolumeError, url: &str) -> PyErr {
    PyOSError::new_err((error.errno(), error.to_string(), url.to_string()))
}
