//! Deleting what was cut off files with very many chunks, a batch at a time (see
//! [`crate::ops::sweep`]).

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::request::{Creds, Op, Outcome, Request};

use super::super::Node;

impl Node {
    /// Deletes some rows that truncations or removals left behind, if there are any; false if not.
    /// For something that calls it now and then, until it is false. Other requests are served
    /// between two calls. One of several nodes has nothing to do here: rows may be lent, and its
    /// member sees to it.
    ///
    /// # Errors
    /// The engine's. Nothing is lost: the next call tries again.
    pub fn sweep(&self) -> FsResult<bool> {
        if self.shares_volume() {
            return Ok(false);
        }
        let Some(ino) = self.core.sweeps.after(0) else { return Ok(false) };
        match self.call(Request { creds: Creds::root(), op: Op::Sweep(ino) }) {
            Ok(_) => Ok(true),
            Err(Outcome::Failed(error)) => Err(error),
            Err(_) => Err(FsError::new(
                libc::EIO,
                "metadata: rows that were cut off could not be deleted",
            )),
        }
    }
}
