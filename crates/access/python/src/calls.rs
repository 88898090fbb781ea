//! Running a call: without the GIL, until it is answered or a signal handler raises an exception,
//! as Ctrl-C does.

use kestrel_client::native::{Gone, NativeCalls, NativeVolume};
use kestrel_types::error::{FsError, FsResult};
use parking_lot::Mutex;
use pyo3::prelude::*;

/// Runs a call of a volume. The outer error is an exception of a signal handler.
///
/// # Errors
/// What a signal handler raised meanwhile: the call has been left.
pub fn run<T: Send>(
    py: Python<'_>,
    volume: &NativeVolume,
    call: impl FnOnce(NativeCalls<'_>) -> FsResult<T> + Send,
) -> PyResult<FsResult<T>> {
    until_signal(py, |gone| call(volume.calls(gone)))
}

/// Runs something without the GIL that ends early once it hears that a signal handler has raised an
/// exception.
///
/// # Errors
/// That exception.
pub fn until_signal<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(Gone<'_>) -> T + Send,
) -> PyResult<T> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let result = py.detach(|| {
        work(&|| {
            Python::attach(|py| match py.check_signals() {
                Ok(()) => raised.lock().is_some(),
                Err(error) => {
                    *raised.lock() = Some(error);
                    true
                }
            })
        })
    });
    match raised.into_inner() {
        // What it has come to meanwhile is not told.
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// The error of what was opened before the process was forked.
pub fn of_parent() -> FsError {
    FsError::new(libc::EBADF, "it was opened before the process was forked: open it anew")
}
