//! Who gets an answer.

use std::sync::Arc;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::request::{Outcome, Reply};
use kestrel_types::wire::{Answered, LockReply};
use parking_lot::{Condvar, Mutex};

/// Takes a reply, on a thread of the connection; must not wait.
pub type Done = Box<dyn FnOnce(Reply) + Send>;

/// Takes the answer about a lock, on a thread of the connection; must not wait.
pub type LockDone = Box<dyn FnOnce(LockReply) + Send>;

/// Who gets an answer.
pub(super) enum Sink {
    Op(Done),
    Lock(LockDone),
    /// Whoever waits for it in [`super::admin::Conversations`].
    Admin,
}

impl Sink {
    /// Gives it.
    pub fn give(self, result: FsResult<Answered>) {
        match (self, result) {
            (Sink::Op(done), Ok(Answered::Op(reply))) => done(reply),
            (Sink::Op(done), Err(error)) => done(Err(Outcome::Failed(error))),
            (Sink::Op(done), Ok(_)) => done(Err(Outcome::Failed(misfit()))),
            (Sink::Lock(done), Ok(Answered::Lock(reply))) => done(reply),
            (Sink::Lock(done), Err(error)) => done(Err(error)),
            (Sink::Lock(done), Ok(_)) => done(Err(misfit())),
            (Sink::Admin, _) => {}
        }
    }
}

/// The link lets only fitting answers pass; this says so if it does not.
fn misfit() -> FsError {
    FsError::new(libc::EIO, "the metadata server answered something that was not asked")
}

/// Waits for what `ask` asks for.
pub(super) fn wait(ask: impl FnOnce(Done)) -> Reply {
    let slot = Arc::new((Mutex::new(None), Condvar::new()));
    let filled = slot.clone();
    ask(Box::new(move |reply| {
        *filled.0.lock() = Some(reply);
        filled.1.notify_one();
    }));
    let mut reply = slot.0.lock();
    loop {
        match reply.take() {
            Some(reply) => return reply,
            None => slot.1.wait(&mut reply),
        }
    }
}
