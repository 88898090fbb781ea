//! Object numbers at hand, so that storing never waits for a metadata request.
//!
//! Of several nodes each hands out numbers of its own, and numbers of one ascend. Which of them is
//! asked may change, so numbers of different nodes have no order that means anything; what has one
//! is the *turn* in which this client takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_blockstore::Packer;
use kestrel_blockstore::packer::ObjectIds;
use kestrel_types::ids::ObjectId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds, Op, Request};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::metadata::Metadata;

/// Numbers asked for at once.
const BLOCK: u32 = 1024;

/// Fewer left than this: ask for more.
const LOW: u64 = BLOCK as u64 / 2;

/// Most stretches of lost numbers that are remembered; each loss of a session makes a few.
const LOST_MAX: usize = 1 << 16;

/// Numbers handed to this client, `start..end`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Block {
    start: ObjectId,
    end: ObjectId,
    /// The node that handed them out; 0 if there is only one.
    node: NodeId,
    /// Turn of the first one.
    turn: u64,
}

impl Block {
    fn has(&self, object: ObjectId) -> bool {
        (self.start..self.end).contains(&object)
    }

    fn len(&self) -> u64 {
        self.end - self.start
    }

    /// The turn after that of the last number.
    fn turn_end(&self) -> u64 {
        self.turn + self.len()
    }
}

/// What is known of one of the nodes that hand out numbers.
#[derive(Debug, Clone, Copy)]
struct Giver {
    node: NodeId,
    /// The end of all numbers that it handed out.
    end: ObjectId,
    /// Counts the losses of the session there.
    generation: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The block that numbers are taken from, and the next one.
    block: Block,
    next: ObjectId,
    /// The block that follows.
    reserve: Option<Block>,
    /// The next turn that no block has yet.
    turn: u64,
    /// A request for more is under way.
    asking: bool,
    /// Counts requests that nobody waits for any more.
    given_up: u64,
    /// Requests that brought nothing.
    failures: u64,
    givers: Vec<Giver>,
    /// Nodes with numbers that are not used any more.
    avoided: Vec<NodeId>,
    /// Blocks that objects in use may have numbers of, in the order of their turns; none if nobody
    /// will ask.
    held: Option<Vec<Block>>,
    /// Numbers handed out in sessions that are lost, oldest first.
    lost: Vec<Block>,
}

impl State {
    fn take(&mut self) -> Option<ObjectId> {
        if self.next == self.block.end {
            self.block = self.reserve.take()?;
            self.next = self.block.start;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn left(&self) -> u64 {
        self.block.end - self.next
    }

    /// What is taken next has this turn or a later one.
    fn floor(&self) -> u64 {
        match self.reserve {
            Some(reserve) if self.left() == 0 => reserve.turn,
            // Not the next turn that no block has: one may have come and not have been taken in.
            _ => self.block.turn + (self.next - self.block.start),
        }
    }

    fn giver(&mut self, node: NodeId) -> &mut Giver {
        let at = self.givers.iter().position(|giver| giver.node == node).unwrap_or_else(|| {
            self.givers.push(Giver { node, end: 0, generation: 0 });
            self.givers.len() - 1
        });
        &mut self.givers[at]
    }

    /// Gives numbers their turn.
    fn number(&mut self, node: NodeId, start: ObjectId, count: u32) -> Block {
        let block = Block { start, end: start.saturating_add(count.into()), node, turn: self.turn };
        self.turn = block.turn_end();
        block
    }

    /// Numbers have come: they are taken when those at hand are used up, unless they are of no use.
    fn take_in(&mut self, first: ObjectId, count: u32) {
        let block = match &self.held {
            Some(held) => held.iter().find(|block| block.start == first).copied(),
            None => Some(self.number(0, first, count)),
        };
        let Some(block) = block else { return };
        // Turns are taken in their order: what has an earlier one than is at hand counts as done
        // with.
        let in_turn = self.reserve.is_none() && block.turn >= self.block.turn_end();
        if in_turn && !self.avoided.contains(&block.node) {
            self.reserve = Some(block);
        } else {
            self.forget(block);
        }
    }

    /// No object has, or will have, a number of this block.
    fn forget(&mut self, block: Block) {
        self.held.iter_mut().for_each(|held| held.retain(|other| *other != block));
    }

    /// Takes no more numbers at hand of these nodes.
    fn drop_those_of(&mut self, is_one: impl Fn(NodeId) -> bool) {
        if is_one(self.block.node) {
            self.next = self.block.end;
        }
        if let Some(block) = self.reserve.take_if(|block| is_one(block.node)) {
            self.forget(block);
        }
    }
}

/// The numbers of a client, which outlive the session they were handed out in.
#[derive(Debug, Clone, Default)]
pub struct ObjectNumbers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Counts losses, for callers that only look whether there are any.
    losses: AtomicU64,
    answered: Condvar,
}

impl ObjectNumbers {
    /// Numbers that can tell which of them may be in use, for a client that its server may forget.
    /// The thread that brings an answer of a node says so first: [`ObjectNumbers::gave`].
    pub fn remembered() -> Self {
        let state = State { held: Some(Vec::new()), ..State::default() };
        Self(Arc::new(Shared { state: Mutex::new(state), ..Shared::default() }))
    }

    /// Counts how often the session with a node was lost. Looked at when the node is asked, for
    /// [`ObjectNumbers::gave`].
    pub fn generation(&self, node: NodeId) -> u64 {
        self.0.state.lock().giver(node).generation
    }

    /// A node that was asked in this generation has handed out these numbers. They are not used if
    /// the session has been lost since.
    pub fn gave(&self, node: NodeId, generation: u64, (first, count): (ObjectId, u32)) {
        let mut state = self.0.state.lock();
        if state.giver(node).generation != generation {
            return;
        }
        if first < state.giver(node).end {
            // A later answer has overtaken it, and the node may have been told that what is below
            // is done with.
            return;
        }
        let block = state.number(node, first, count);
        state.giver(node).end = block.end;
        state.held.iter_mut().for_each(|held| held.push(block));
    }

    /// The node that was asked does not answer: a caller that waits for numbers asks another one.
    pub fn ask_again(&self) {
        let mut state = self.0.state.lock();
        if state.asking {
            state.asking = false;
            state.given_up += 1;
            drop(state);
            self.0.answered.notify_all();
        }
    }

    /// From now on numbers of these nodes, and of no others, are not used for new objects.
    pub fn avoid(&self, nodes: &[NodeId]) {
        let mut state = self.0.state.lock();
        state.avoided = nodes.to_vec();
        state.drop_those_of(|node| nodes.contains(&node));
    }

    /// The node may have ended the session in which it handed out numbers, or has: what has them is
    /// not kept from being deleted any more, unless something refers to it. Numbers at hand are
    /// dropped. Whether there were any that an object may have.
    pub fn lose(&self, node: NodeId) -> bool {
        let mut state = self.0.state.lock();
        state.giver(node).generation += 1;
        state.drop_those_of(|other| other == node);
        let Some(held) = &mut state.held else { return false };
        let lost: Vec<Block> = held.extract_if(.., |block| block.node == node).collect();
        let any = !lost.is_empty();
        state.lost.extend(lost);
        let too_many = state.lost.len().saturating_sub(LOST_MAX);
        state.lost.drain(..too_many);
        if any {
            self.0.losses.fetch_add(1, Ordering::Release);
        }
        any
    }

    /// Counts losses of numbers that objects may have.
    pub fn losses(&self) -> u64 {
        self.0.losses.load(Ordering::Acquire)
    }

    /// Whether an object has a number of a session that is lost, or may be.
    pub fn is_lost(&self, object: ObjectId) -> bool {
        self.losses() > 0 && self.0.state.lock().lost.iter().any(|block| block.has(object))
    }

    /// Objects below this number that a node gave a number to are referred to or given up. It is
    /// not above any number that the node will hand out.
    pub fn done_below(&self, node: NodeId, packer: &Packer) -> ObjectId {
        let held = self.0.state.lock().held.clone().unwrap_or_default();
        // What is not held is newer than all that is, or lost.
        let turn = |object| {
            let block = held.iter().find(|block| block.has(object));
            block.map_or(u64::MAX, |block| block.turn + (object - block.start))
        };
        let oldest = packer.oldest_open(turn);
        let mut state = self.0.state.lock();
        state.held.iter_mut().for_each(|held| held.retain(|block| block.turn_end() > oldest));
        let open = state.held.iter().flatten().filter(|block| block.node == node);
        let open = open.map(|block| block.start + oldest.saturating_sub(block.turn)).min();
        let end =
            || state.givers.iter().find(|giver| giver.node == node).map_or(0, |giver| giver.end);
        open.unwrap_or_else(end)
    }

    /// Blocks of a node in which objects may be open, as first number and count.
    pub fn held_of(&self, node: NodeId) -> Vec<(ObjectId, u32)> {
        let state = self.0.state.lock();
        let of_node = state.held.iter().flatten().filter(|block| block.node == node);
        of_node.map(|block| (block.start, block.len() as u32)).collect()
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

    /// Asks for a block. `given_up` requests were before it. The state is not locked: the answer
    /// may come before this returns.
    fn ask(&self, given_up: u64) {
        let shared = self.numbers.0.clone();
        let request = Request { creds: Creds::root(), op: Op::AllocObjects(BLOCK) };
        let answered = move |reply| {
            let mut state = shared.state.lock();
            let is_awaited = state.given_up == given_up;
            state.asking &= !is_awaited;
            match reply {
                // They may be of no use: then the waiting caller asks again.
                Ok(Answer::Objects { first, count }) => state.take_in(first, count),
                _ if !is_awaited => {}
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
    fn next(&self) -> kestrel_blockstore::Result<ObjectId> {
        let mut state = self.numbers.0.state.lock();
        let failures = state.failures;
        loop {
            if state.reserve.is_none() && !state.asking && state.left() < LOW {
                state.asking = true;
                let given_up = state.given_up;
                MutexGuard::unlocked(&mut state, || self.ask(given_up));
            }
            if let Some(id) = state.take() {
                return Ok(id);
            }
            if state.failures != failures {
                return Err(kestrel_blockstore::Error::Closed { during: "getting object numbers" });
            }
            if state.asking {
                self.numbers.0.answered.wait(&mut state);
            }
        }
    }

    fn floor(&self) -> u64 {
        self.numbers.0.state.lock().floor()
    }

    fn is_lost(&self, object: ObjectId) -> bool {
        self.numbers.is_lost(object)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use kestrel_types::error::{FsError, FsResult};
    use kestrel_types::op_counters::NodeStats;
    use kestrel_types::request::{Done, Reply};

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

    fn block(first: ObjectId) -> Reply {
        Ok(Answer::Objects { first, count: BLOCK })
    }

    /// Node 1 gives numbers from `first` on.
    fn give(numbers: &ObjectNumbers, answer: Done, first: ObjectId) {
        numbers.gave(1, numbers.generation(1), (first, BLOCK));
        answer(block(first));
    }

    /// A thread that finds no number left waits for the one request under way, and returns its
    /// failure.
    #[test]
    fn shared_request_for_object_ids() {
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
            give(&numbers, asked.recv().unwrap(), 5000);
            waiting.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        got.sort_unstable();
        assert_eq!(got, [5000, 5001, 5002, 5003]);
        assert!(asked.try_recv().is_err(), "half a block is left");
        assert_eq!(pool.floor(), 4);
        assert_eq!(numbers.held_of(1), [(5000, BLOCK)]);
    }

    /// Takes a number, while these blocks are given.
    fn next(
        pool: &ObjectIdPool,
        numbers: &ObjectNumbers,
        asked: &mpsc::Receiver<Done>,
        given: &[ObjectId],
    ) -> ObjectId {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.next().unwrap());
            given.iter().for_each(|first| give(numbers, asked.recv().unwrap(), *first));
            waiting.join().unwrap()
        })
    }

    #[test]
    fn numbers_at_hand_and_under_way_go_with_the_session() {
        let (send, asked) = mpsc::channel();
        let numbers = ObjectNumbers::remembered();
        let pool = ObjectIdPool::new(Arc::new(Slow(send)), numbers.clone());
        assert_eq!((next(&pool, &numbers, &asked, &[5000]), numbers.losses()), (5000, 0));
        let floor = pool.floor();
        assert!(
            numbers.lose(1)
                && numbers.is_lost(5000)
                && numbers.is_lost(5001)
                && !numbers.is_lost(9000)
        );
        assert!(
            pool.floor() > floor && numbers.held_of(1).is_empty(),
            "nobody keeps them from being deleted"
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.next().unwrap());
            let answer: Done = asked.recv().unwrap();
            let before = numbers.generation(1);
            assert!(!numbers.lose(1), "no object can have any");
            numbers.gave(1, before, (7000, BLOCK));
            answer(block(7000));
            give(&numbers, asked.recv().unwrap(), 9000);
            assert_eq!(
                waiting.join().unwrap(),
                9000,
                "the answer of before was given to the lost session"
            );
        });
        assert_eq!((numbers.losses(), numbers.held_of(1)), (1, vec![(9000, BLOCK)]));
    }

    /// The pool asks another node for numbers instead of one that is away or leaves.
    #[test]
    fn object_ids_from_another_node() {
        let (send, asked) = mpsc::channel();
        let numbers = ObjectNumbers::remembered();
        let pool = ObjectIdPool::new(Arc::new(Slow(send)), numbers.clone());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.next().unwrap());
            let late: Done = asked.recv().unwrap();
            numbers.ask_again();
            let answer: Done = asked.recv().unwrap();
            numbers.gave(2, 0, (800, BLOCK));
            answer(block(800));
            assert_eq!(waiting.join().unwrap(), 800);
            // Its failure concerns nobody any more.
            late(Err(FsError::new(libc::EIO, "no answer").into()));
        });
        assert_eq!(pool.next().unwrap(), 801);
        let floor = pool.floor();
        numbers.avoid(&[2]);
        assert!(pool.floor() > floor && !numbers.is_lost(801));
        assert_eq!(next(&pool, &numbers, &asked, &[5000]), 5000);
        assert_eq!(
            (numbers.held_of(1), numbers.held_of(2)),
            (vec![(5000, BLOCK)], vec![(800, BLOCK)])
        );
        // What it gives all the same is not used.
        assert!(numbers.lose(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.next().unwrap());
            let answer: Done = asked.recv().unwrap();
            numbers.gave(2, 0, (2000, BLOCK));
            answer(block(2000));
            give(&numbers, asked.recv().unwrap(), 7000);
            assert_eq!(waiting.join().unwrap(), 7000);
        });
    }

    #[test]
    fn numbers_that_no_object_can_have_keep_no_session() {
        let (send, asked) = mpsc::channel();
        let numbers = ObjectNumbers::remembered();
        let pool = ObjectIdPool::new(Arc::new(Slow(send)), numbers.clone());
        assert_eq!(next(&pool, &numbers, &asked, &[5000]), 5000);
        for _ in 0..600 {
            pool.next().unwrap();
        }
        give(&numbers, asked.recv().unwrap(), 9000);
        assert_eq!(numbers.held_of(1), [(5000, BLOCK), (9000, BLOCK)]);
        numbers.avoid(&[1]);
        assert_eq!(numbers.held_of(1), [(5000, BLOCK)], "the next block was not begun");
    }

    #[test]
    fn answers_out_of_order_are_of_no_use() {
        let numbers = ObjectNumbers::remembered();
        numbers.gave(1, 0, (9000, BLOCK));
        numbers.gave(1, 0, (5000, BLOCK));
        assert_eq!(
            numbers.held_of(1),
            [(9000, BLOCK)],
            "the node may know that what is below 9000 is done with"
        );
        numbers.gave(2, 0, (700, BLOCK));
        let mut state = numbers.0.state.lock();
        state.take_in(700, BLOCK);
        assert_eq!(state.take(), Some(700));
        state.take_in(9000, BLOCK);
        assert_eq!(
            (state.reserve, state.held.as_ref().unwrap().len()),
            (None, 1),
            "its turn is over"
        );
    }
}
