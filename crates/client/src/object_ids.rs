//! Object numbers at hand, so that storing never waits for a metadata request.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use kestrel_data::packer::ObjectIds;
use kestrel_types::ids::ObjectId;
use kestrel_types::request::{Answer, Creds, Op, Request};

use crate::metadata::Metadata;

/// Numbers asked for at once.
const BLOCK: u32 = 1024;

/// Fewer left than this: ask for more.
const LOW: u64 = BLOCK as u64 / 2;

/// Numbers handed to this client, `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    start: ObjectId,
    end: ObjectId,
}

#[derive(Debug, Default)]
struct State {
    next: ObjectId,
    end: ObjectId,
    /// The block that follows.
    reserve: Option<Block>,
    /// A request for more is under way.
    asking: bool,
    /// Requests that brought nothing.
    failures: u64,
    /// Blocks that objects in use may have numbers of, oldest first; none if nobody will ask.
    held: Option<Vec<Block>>,
}

impl State {
    fn take(&mut self) -> Option<ObjectId> {
        if self.next == self.end {
            let block = self.reserve.take()?;
            (self.next, self.end) = (block.start, block.end);
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn left(&self) -> u64 {
        self.end - self.next
    }
}

/// The numbers of a client, which outlive the session they were handed out in.
#[derive(Debug, Clone, Default)]
pub struct ObjectNumbers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
}

impl ObjectNumbers {
    /// Numbers that can tell which of them may be in use, for a client whose server may forget it.
    pub fn remembered() -> Self {
        let state = State { held: Some(Vec::new()), ..State::default() };
        Self(Arc::new(Shared { state: Mutex::new(state), answered: Condvar::new() }))
    }

    /// Numbers taken from now on are not below this.
    fn floor(&self) -> ObjectId {
        let state = self.0.state.lock();
        match state.reserve {
            Some(block) if state.left() == 0 => block.start,
            _ => state.next,
        }
    }

    /// Blocks in which objects at or above `oldest` may lie, as first number and count; forgets the others.
    pub fn held_from(&self, oldest: ObjectId) -> Vec<(ObjectId, u32)> {
        let mut state = self.0.state.lock();
        let Some(held) = &mut state.held else { return Vec::new() };
        held.retain(|block| block.end > oldest);
        held.iter().map(|block| (block.start, (block.end - block.start) as u32)).collect()
    }
}

/// Numbers that the node has handed to this client.
pub struct ObjectIdPool {
    metadata: Arc<dyn Metadata>,
    numbers: ObjectNumbers,
}

impl ObjectIdPool {
    /// Hands out `numbers`, and more as they are needed; the first is waited for.
    pub fn new(metadata: Arc<dyn Metadata>, numbers: ObjectNumbers) -> Self {
        Self { metadata, numbers }
    }

    /// Asks for a block. The state is not locked: the answer may come before this returns.
    fn ask(&self) {
        let shared = self.numbers.0.clone();
        let request = Request { creds: Creds::root(), op: Op::AllocObjects(BLOCK) };
        let answered = move |reply| {
            let mut state = shared.state.lock();
            state.asking = false;
            match reply {
                Ok(Answer::Objects { first, count }) => {
                    let block = Block { start: first, end: first + u64::from(count) };
                    state.reserve = Some(block);
                    state.held.iter_mut().for_each(|held| held.push(block));
                }
                other => {
                    log::error!("the metadata node gave no object numbers: {other:?}");
                    state.failures += 1;
                }
            }
            drop(state);
            shared.answered.notify_all();
        };
        self.metadata.submit(request, Box::new(answered));
    }
}

impl ObjectIds for ObjectIdPool {
    fn next(&self) -> kestrel_data::Result<ObjectId> {
        let mut state = self.numbers.0.state.lock();
        let failures = state.failures;
        loop {
            if state.reserve.is_none() && !state.asking && state.left() < LOW {
                state.asking = true;
                MutexGuard::unlocked(&mut state, || self.ask());
            }
            if let Some(id) = state.take() {
                return Ok(id);
            }
            if state.failures != failures {
                return Err(kestrel_data::Error::Closed { during: "getting object numbers" });
            }
            if state.asking {
                self.numbers.0.answered.wait(&mut state);
            }
        }
    }

    fn floor(&self) -> ObjectId {
        self.numbers.floor()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use kestrel_meta::node::Done;
    use kestrel_meta::stats::NodeStats;
    use kestrel_types::error::{FsError, FsResult};

    use super::*;

    /// Answers when the test says so.
    struct Slow(mpsc::Sender<Done>);

    impl Metadata for Slow {
        fn submit(&self, _: Request, done: Done) {
            self.0.send(done).unwrap();
        }
        fn stats(&self) -> NodeStats {
            NodeStats::default()
        }
        fn close(&self) -> FsResult<()> {
            Ok(())
        }
    }

    #[test]
    fn who_finds_nothing_waits_for_the_one_request_under_way_and_tells_its_failure() {
        let (send, asked) = mpsc::channel();
        let numbers = ObjectNumbers::remembered();
        let pool = ObjectIdPool::new(Arc::new(Slow(send)), numbers.clone());
        let one = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.next());
            let answer: Done = asked.recv().unwrap();
            answer(Err(FsError::new(libc::EIO, "no answer").into()));
            waiting.join().unwrap()
        });
        assert!(one.is_err());
        let mut got = std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| pool.next().unwrap())).collect();
            let answer: Done = asked.recv().unwrap();
            answer(Ok(Answer::Objects { first: 5000, count: BLOCK }));
            waiting.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        got.sort_unstable();
        assert_eq!(got, [5000, 5001, 5002, 5003]);
        assert!(asked.try_recv().is_err(), "half a block is left");
        assert_eq!(numbers.floor(), 5004);
        assert_eq!(numbers.held_from(5003), [(5000, BLOCK)]);
        assert!(numbers.held_from(5000 + u64::from(BLOCK)).is_empty());
    }
}
