//! The receivers of answers.

use std::sync::Arc;
use std::time::Duration;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::request::{Outcome, Reply, Request};
use kestrel_types::wire::{Answered, LockReply};
use parking_lot::{Condvar, Mutex};

/// Takes a reply, on a thread of the connection; must not wait.
pub use kestrel_types::request::Done;

/// As [`Done`], and takes back a request that another node leads ([`Outcome::Misdirected`]).
pub type CompletionOrBack = Box<dyn FnOnce(Reply, Option<Request>) + Send>;

/// A call for [`super::Remote::submit_many_or_back`].
pub struct CallOrBack {
    /// What is asked.
    pub request: Request,
    /// How long the reply may take, if that is not the usual time.
    pub left: Option<Duration>,
    /// Gets the reply.
    pub done: CompletionOrBack,
}

/// Takes the answer about a lock, on a thread of the connection; must not wait.
pub type LockDone = Box<dyn FnOnce(LockReply) + Send>;

/// The receivers of answers.
pub(super) enum CallCompletion {
    Op(Done),
    OpOrBack(CompletionOrBack),
    Lock(LockDone),
    /// The caller that waits for it in [`super::admin::Conversations`].
    Admin,
}

impl CallCompletion {
    /// Gives it; `misdirected` is the request if another node leads it.
    pub fn give(self, result: FsResult<Answered>, misdirected: Option<Request>) {
        match (self, result) {
            (CallCompletion::Op(done), result) => done(reply(result)),
            (CallCompletion::OpOrBack(done), result) => done(reply(result), misdirected),
            (CallCompletion::Lock(done), Ok(Answered::Lock(reply))) => done(reply),
            (CallCompletion::Lock(done), Err(error)) => done(Err(error)),
            (CallCompletion::Lock(done), Ok(_)) => done(Err(misfit())),
            (CallCompletion::Admin, _) => {}
        }
    }
}

fn reply(result: FsResult<Answered>) -> Reply {
    match result {
        Ok(Answered::Op(reply)) => reply,
        Ok(_) => Err(Outcome::Failed(misfit())),
        Err(error) => Err(Outcome::Failed(error)),
    }
}

/// The link lets only fitting answers pass; this is the error if it does not.
fn misfit() -> FsError {
    FsError::new(libc::EIO, "the metadata server answered something that was not asked")
}

/// Waits for the reply to what `submit` submits.
pub(super) fn wait(submit: impl FnOnce(Done)) -> Reply {
    let slot = Arc::new((Mutex::new(None), Condvar::new()));
    let filled = slot.clone();
    submit(Box::new(move |reply| {
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
