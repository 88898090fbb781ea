//! The Python package `kestrelfs`, its compiled part: what a Python program calls, translated to
//! [`kestrel_client::native`] and nothing else.
//!
//! Entry types: [`volume::Volume`] and [`file::File`], which Python sees as `kestrelfs._native`.
//! Programs import the files in `kestrelfs/` beside `src/`.
//!
//! | file | |
//! | --- | --- |
//! | `volume` | a volume by URL: operations by path |
//! | `file` | an open file, below `io.RawIOBase` |
//! | `calls` | running a call: without the GIL, until Ctrl-C |
//! | `paths` | paths and names, as `os.fsencode` and `os.fsdecode` have them |
//! | `stat` | attributes as `os.stat_result` |
//! | `errors` | `OSError` with errno and file name |
//!
//! # Invariants
//!
//! - The GIL is released in each call that may wait.
//! - A lock of this crate is only held by a thread that has the GIL. The thread that forks has it,
//!   so no lock is held by a thread that does not come along.
//! - A panic becomes Python's `PanicException`, at the boundary that pyo3 makes.

mod calls;
mod errors;
mod file;
mod paths;
mod stat;
mod volume;

use pyo3::prelude::*;

/// The compiled part of kestrelfs.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<volume::Volume>()?;
    module.add_class::<file::File>()?;
    module.add_function(wrap_pyfunction!(volume::was_used, module)?)?;
    Ok(())
}
