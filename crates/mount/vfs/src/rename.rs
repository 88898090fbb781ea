//! RENAME, UNLINK and RMDIR: what they do to the nodes that the kernel knows.

use std::sync::Arc;

use kestrel_client::fs::Done;
use kestrel_fuse::Reply;
use kestrel_types::error::FsResult;
use kestrel_types::inode::Inode;
use kestrel_types::name::Name;

use crate::core::Core;

impl Core {
    /// Has `act` carry a RENAME out, moves the nodes if it was done, and answers.
    pub fn rename(
        self: &Arc<Self>,
        pid: u32,
        (from, to): ((u64, Name), (u64, Name)),
        exchange: bool,
        reply: Reply,
        act: impl FnOnce(&Arc<Self>, Done<Option<Box<Inode>>>) + Send + 'static,
    ) {
        let done = self.empty(pid, reply);
        let Some(paths) = self.naming.paths() else {
            return act(self, Box::new(move |renamed: FsResult<_>| done(renamed.map(drop))));
        };
        let leaving = paths.leaving((from.0, &from.1), (to.0, &to.1), exchange);
        let (after, left) = (paths.clone(), leaving.clone());
        let done = move |renamed: FsResult<_>| {
            let when =
                renamed.map(|gone| after.renamed((from.0, &from.1), (to.0, &to.1), exchange, gone));
            after.recalled(&left);
            match when {
                Ok(when) => after.tell(when, move || done(Ok(()))),
                Err(error) => done(Err(error)),
            }
        };
        let core = self.clone();
        paths.recall(&leaving, move || act(&core, Box::new(done)));
    }

    /// Answers an UNLINK or RMDIR, and takes the name out of the table if it is gone.
    pub fn removing(
        self: &Arc<Self>,
        pid: u32,
        at: (u64, Name),
        reply: Reply,
    ) -> Done<Option<Box<Inode>>> {
        let (core, done) = (self.clone(), self.empty(pid, reply));
        Box::new(move |removed| {
            done(removed.map(|gone| core.naming.removed(at.0, &at.1, gone)));
        })
    }
}
