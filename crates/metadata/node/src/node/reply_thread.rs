//! Gives replies that waited for the log.
//!
//! The engine calls back on its syncer thread, which must not be kept: a callback of ours may send
//! the next request, and that may have to wait for the very sync that the thread is there for. So
//! callbacks run on a thread of their own, in the order of the positions they waited for; threads
//! that wait are woken at once. A simulation runs everything on one thread: its engine syncs when
//! it is told to, so callbacks may run inside that ([`Replies::Inline`]).
//!
//! What could not be made durable fails. Not where another process may go on with the store: what
//! became of it that one knows, so callbacks hear nothing, as when the process crashes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use kestrel_engine::EngineError;
use kestrel_types::op_counters::WorkerCounters;
use kestrel_types::request::{Outcome, Reply};

use crate::stop::engine_error;
use crate::worker::ReplyTarget;

/// A reply on its way out.
pub(super) struct PendingReply {
    pub sink: ReplyTarget,
    pub reply: Reply,
    pub kind: usize,
    pub since: Instant,
}

/// The threads that run callbacks that waited for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    /// A thread of the node's own.
    Thread,
    /// The thread on which the engine says that the position is durable. For engines without a
    /// syncer thread.
    Inline,
}

/// The thread that runs callbacks, if there is one. At most one round is queued for each batch that
/// waits for the log.
pub(super) struct ReplyThread {
    rounds: Option<Sender<Vec<(ReplyTarget, Reply)>>>,
    thread: Option<JoinHandle<()>>,
}

/// A way to hand replies to the reply thread, from any thread.
#[derive(Clone)]
pub(super) struct ReplyQueue {
    rounds: Option<Sender<Vec<(ReplyTarget, Reply)>>>,
    counters: Arc<[WorkerCounters]>,
    worker: usize,
    /// Callbacks do not hear of a failure of the store.
    silent: bool,
}

impl ReplyThread {
    pub fn start(replies: Replies) -> std::io::Result<Self> {
        if replies == Replies::Inline {
            return Ok(Self { rounds: None, thread: None });
        }
        let (rounds, incoming) = channel();
        let thread = std::thread::Builder::new()
            .name("kestrel-replies".into())
            .spawn(move || deliver(&incoming))?;
        Ok(Self { rounds: Some(rounds), thread: Some(thread) })
    }

    /// A queue with replies that count in worker `worker` of the counters. `silent`: others can
    /// claim the store.
    pub fn tray(&self, counters: Arc<[WorkerCounters]>, worker: usize, silent: bool) -> ReplyQueue {
        ReplyQueue { rounds: self.rounds.clone(), counters, worker, silent }
    }
}

impl Drop for ReplyThread {
    fn drop(&mut self) {
        self.rounds = None;
        // The last callback may hold the last reference to the node, and so end here on the thread
        // itself.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            // A callback that panicked has already been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

fn deliver(incoming: &Receiver<Vec<(ReplyTarget, Reply)>>) {
    for round in incoming {
        for (sink, reply) in round {
            sink.give(reply);
        }
    }
}

impl ReplyQueue {
    /// Gives a reply that need not wait, on this thread.
    pub fn give_here(self, pending: PendingReply) {
        self.counters[self.worker].reply_shared(
            pending.kind,
            pending.reply.is_err(),
            pending.since.elapsed(),
        );
        pending.sink.give(pending.reply);
    }

    /// The log has reached the position that these replies waited for, or never will.
    pub fn give(self, pending_replies: Vec<PendingReply>, result: &Result<(), EngineError>) {
        let end = Instant::now();
        let mut round = Vec::new();
        for pending in pending_replies {
            if self.silent
                && result.is_err()
                && matches!(pending.sink, ReplyTarget::Callback(_) | ReplyTarget::Sink(..))
            {
                continue;
            }
            // A refusal too: it waited because it was learned from changes that may not have been
            // made now.
            let reply = match result {
                Err(error) => Err(Outcome::Failed(engine_error(error.clone()))),
                Ok(()) => pending.reply,
            };
            let took = end.saturating_duration_since(pending.since);
            self.counters[self.worker].reply_shared(pending.kind, reply.is_err(), took);
            match pending.sink {
                sink @ (ReplyTarget::Callback(_) | ReplyTarget::Sink(..)) => {
                    round.push((sink, reply))
                }
                sink => sink.give(reply),
            }
        }
        self.call(round);
    }

    /// Runs callbacks that waited for the log.
    pub fn call(&self, round: Vec<(ReplyTarget, Reply)>) {
        let here = match &self.rounds {
            _ if round.is_empty() => return,
            Some(rounds) => match rounds.send(round) {
                Ok(()) => return,
                // The courier is gone with its node; nobody is left to send more.
                Err(unsent) => unsent.0,
            },
            None => round,
        };
        here.into_iter().for_each(|(sink, reply)| sink.give(reply));
    }
}
