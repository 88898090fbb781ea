//! Attributes as `os.stat_result`.

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::inode::Inode;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Block size that is told of files, bytes.
const BLOCK_BYTES: u64 = 4096;

/// Unit of `st_blocks`, bytes.
const SECTOR_BYTES: u64 = 512;

/// Makes `os.stat_result`s.
pub struct StatMaker<'py> {
    class: Bound<'py, PyAny>,
}

impl<'py> StatMaker<'py> {
    /// Finds the class.
    ///
    /// # Errors
    /// If it is not there.
    pub fn new(py: Python<'py>) -> PyResult<Self> {
        let class = py.import(intern!(py, "os"))?.getattr(intern!(py, "stat_result"))?;
        Ok(Self { class })
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// Those of making the object.
    pub fn make(&self, inode: &Inode) -> PyResult<Bound<'py, PyAny>> {
        let py = self.class.py();
        let Inode { ino, uid, gid, size, atime, mtime, ctime, .. } = *inode;
        let whole = |time: Nanos| time.div_euclid(SECOND);
        let exact = |time: Nanos| time as f64 / SECOND as f64;
        let numbers = (inode.st_mode(), ino, 0, inode.nlink, uid, gid, size);
        let whole = (whole(atime), whole(mtime), whole(ctime));
        let (mode, ino, dev, nlink, uid, gid, size) = numbers;
        let fields = (mode, ino, dev, nlink, uid, gid, size, whole.0, whole.1, whole.2);
        let named = PyDict::new(py);
        for (name, time) in [("atime", atime), ("mtime", mtime), ("ctime", ctime)] {
            named.set_item(format!("st_{name}"), exact(time))?;
            named.set_item(format!("st_{name}_ns"), time)?;
        }
        named.set_item(intern!(py, "st_blksize"), BLOCK_BYTES)?;
        named.set_item(intern!(py, "st_blocks"), size.div_ceil(SECTOR_BYTES))?;
        named.set_item(intern!(py, "st_rdev"), inode.rdev)?;
        self.class.call1((fields, named))
    }
}
