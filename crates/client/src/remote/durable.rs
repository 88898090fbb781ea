//! Bytes before the metadata that names them: in a directory that several machines share, what was
//! written is durable only after a sync, and the server cannot sync what is in this machine's
//! memory. So a commit waits here until the store has been synced after its bytes were written; all
//! that wait at one moment share a sync.

use std::sync::Arc;
use std::thread::JoinHandle;

use kestrel_blockstore::store::BlockStore;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, Source};
use kestrel_types::ids::ObjectId;
use kestrel_types::request::{NewData, Op};
use parking_lot::{Condvar, Mutex};

use crate::error::VolumeError;

/// What happens after the sync.
type Then = Box<dyn FnOnce(FsResult<()>) + Send>;

#[derive(Default)]
struct State {
    waiting: Vec<Then>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Syncs a store for waiting callers. Dropping it serves them first.
pub struct SyncFirst {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl SyncFirst {
    /// Starts the thread that syncs `store`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(store: Arc<dyn BlockStore>) -> Result<Self, VolumeError> {
        let shared = Arc::<Shared>::default();
        let ours = shared.clone();
        let thread = std::thread::Builder::new()
            .name("kestrel-sync".into())
            .spawn(move || run(&ours, &*store))
            .map_err(|why| {
                VolumeError::Io(format!("cannot start the thread kestrel-sync: {why}"))
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Calls `then` on another thread when everything written before now is durable, or cannot be
    /// made so.
    pub fn then(&self, then: Then) {
        self.shared.state.lock().waiting.push(then);
        self.shared.changed.notify_one();
    }
}

impl Drop for SyncFirst {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic has been printed by the hook; there is nothing left to do for it.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, store: &dyn BlockStore) {
    loop {
        let mut state = shared.state.lock();
        while state.waiting.is_empty() {
            if state.closed {
                return;
            }
            shared.changed.wait(&mut state);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        let synced = store.sync().map_err(|why| {
            FsError::because(libc::EIO, format!("file data cannot be made durable: {why}"))
        });
        for then in waiting {
            then(synced.clone());
        }
    }
}

/// Whether an operation makes metadata refer to bytes that its client has just stored.
pub fn names_new_bytes(op: &Op) -> bool {
    let is_stored = |source: &Source| matches!(source, Source::Stored { .. });
    match op {
        Op::Commit(commit) => match &commit.data {
            NewData::Packed(_) => true,
            NewData::Patches(patches) => {
                patches.iter().any(|(_, extent)| is_stored(&extent.source))
            }
            NewData::Unchanged | NewData::Inline(_) => false,
        },
        Op::Compact { .. } => true,
        _ => false,
    }
}

/// Whether an operation makes metadata refer to bytes that its client has just stored in such an
/// object.
pub fn names_bytes_in(op: &Op, is_one: impl Fn(ObjectId) -> bool) -> bool {
    let object = |extent: &Extent| match extent.source {
        Source::Stored { range, .. } => Some(range.object),
        Source::Hole => None,
    };
    match op {
        Op::Commit(commit) => match &commit.data {
            NewData::Packed(range) => is_one(range.object),
            NewData::Patches(patches) => {
                patches.iter().any(|(_, extent)| object(extent).is_some_and(&is_one))
            }
            NewData::Unchanged | NewData::Inline(_) => false,
        },
        // What the file refers to already is there.
        Op::Compact { old, new, .. } => new
            .iter()
            .filter_map(object)
            .any(|new| is_one(new) && !old.iter().filter_map(object).any(|old| old == new)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use kestrel_blockstore::store::MemoryStore;
    use kestrel_blockstore::store::failing::{FailingStore, Fault, Rule, StoreCall};

    use super::*;

    /// Each waiting call is completed, also when the thread ends and when the sync fails.
    #[test]
    fn sync_waiters_at_shutdown_and_failure() {
        let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
        let sync = SyncFirst::new(store).unwrap();
        let (send, done) = mpsc::channel();
        for _ in 0..100 {
            let send = send.clone();
            sync.then(Box::new(move |result| send.send(result).unwrap()));
        }
        drop((sync, send));
        assert_eq!(done.iter().map(|result| assert!(result.is_ok())).count(), 100);

        let failing = FailingStore::new(Arc::new(MemoryStore::new()), 1);
        failing.add(Rule::always(StoreCall::Sync, Fault::Errno(libc::EIO)));
        let sync = SyncFirst::new(Arc::new(failing)).unwrap();
        let (send, done) = mpsc::channel();
        sync.then(Box::new(move |result| send.send(result).unwrap()));
        assert_eq!(done.recv().unwrap().unwrap_err().errno, libc::EIO);
    }
}
