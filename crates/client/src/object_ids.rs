//! Object numbers at hand, so that storing never waits for a metadata request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Counts the losses of the session in which numbers were handed out.
    generation: u64,
    /// Numbers of earlier generations are below this.
    lost_below: ObjectId,
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

    /// The end of all numbers that were handed out.
    fn highest(&self) -> ObjectId {
        let held = self.held.iter().flatten().map(|block| block.end).max().unwrap_or(0);
        self.reserve.map_or(0, |block| block.end).max(self.end).max(held).max(self.lost_below)
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
    /// A copy of the state's, for who only looks.
    lost_below: AtomicU64,
    answered: Condvar,
}

impl ObjectNumbers {
    /// Numbers that can tell which of them may be in use, for a client whose server may forget it.
    pub fn remembered() -> Self {
        let state = State { held: Some(Vec::new()), ..State::default() };
        Self(Arc::new(Shared { state: Mutex::new(state), ..Shared::default() }))
    }

    /// Numbers taken from now on are not below this.
    fn floor(&self) -> ObjectId {
        let state = self.0.state.lock();
        match state.reserve {
            Some(block) if state.left() == 0 => block.start,
            _ => state.next,
        }
    }

    /// The node may have ended the session in which numbers were handed out, or has: what has them is not kept from being deleted
    /// any more, unless something refers to it. Numbers at hand are dropped; those that follow are of a new generation.
    pub fn lose(&self) {
        let mut state = self.0.state.lock();
        let highest = state.highest();
        state.generation += 1;
        (state.lost_below, state.next, state.end) = (highest, highest, highest);
        state.reserve = None;
        state.held.iter_mut().for_each(Vec::clear);
        self.0.lost_below.store(highest, Ordering::Release);
    }

    /// Objects of earlier generations have numbers below this. Numbers are handed out in ascending order.
    pub fn lost_below(&self) -> ObjectId {
        self.0.lost_below.load(Ordering::Acquire)
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

    /// Asks for a block, for this generation. The state is not locked: the answer may come before this returns.
    fn ask(&self, generation: u64) {
        let shared = self.numbers.0.clone();
        let request = Request { creds: Creds::root(), op: Op::AllocObjects(BLOCK) };
        let answered = move |reply| {
            let mut state = shared.state.lock();
            state.asking = false;
            match reply {
                // It may have been given to a session that has ended since; who waits asks again.
                Ok(Answer::Objects { .. }) if state.generation != generation => {}
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
                let generation = state.generation;
                MutexGuard::unlocked(&mut state, || self.ask(generation));
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

    fn lost_below(&self) -> ObjectId {
        self.numbers.lost_below()
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

    #[test]
    fn numbers_at_hand_and_under_way_go_with_the_session() {
        let (send, asked) = mpsc::channel();
        let numbers = ObjectNumbers::remembered();
        let pool = ObjectIdPool::new(Arc::new(Slow(send)), numbers.clone());
        let give = |first| {
            let answer: Done = asked.recv().unwrap();
            answer(Ok(Answer::Objects { first, count: BLOCK }));
        };
        let next = |given: &[ObjectId]| {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| pool.next().unwrap());
                given.iter().for_each(|first| give(*first));
                waiting.join().unwrap()
            })
        };
        assert_eq!((next(&[5000]), numbers.lost_below()), (5000, 0));
        numbers.lose();
        let end = 5000 + u64::from(BLOCK);
        assert_eq!((numbers.lost_below(), numbers.floor()), (end, end));
        assert!(numbers.held_from(0).is_empty(), "nobody keeps them from being deleted");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.next().unwrap());
            let answer: Done = asked.recv().unwrap();
            numbers.lose();
            answer(Ok(Answer::Objects { first: 7000, count: BLOCK }));
            give(9000);
            assert_eq!(waiting.join().unwrap(), 9000, "the answer of before was given to the lost session");
        });
        assert_eq!((numbers.lost_below(), numbers.held_from(0)), (end, vec![(9000, BLOCK)]));
    }
}
