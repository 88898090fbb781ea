//! Numbers that are never handed out twice, crashes included: inodes, objects, timestamps.
//!
//! A ceiling is written to the log before any number below it is used. After a crash counting goes
//! on at the ceiling that survived; whatever used a higher number was logged after that ceiling's
//! record and is lost with it.

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::clock::{HybridClock, Nanos, SECOND};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::ids::Position;
use kestrel_types::key::{Key, KeyRef, Table};
use parking_lot::Mutex;

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};

/// Version of a counter's row.
const VERSION: u8 = 1;

/// Version of the row of the counter of shares as long as table `history` has or gets rows: a
/// program that does not know the table refuses the volume.
const VERSION_HISTORY: u8 = 2;

/// Numbers reserved by one record.
const RESERVE: u64 = 1 << 20;

/// Timestamps reserved by one record.
const CLOCK_RESERVE: u64 = 10 * SECOND as u64;

/// Key of a volume-wide record.
pub fn system_key(name: &'static str) -> KeyRef<'static> {
    KeyRef::new(Table::System, 0, name.as_bytes())
}

/// A record that holds one number.
pub fn counter_row(name: &'static str, value: u64) -> Mutation {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&value.to_be_bytes());
    Mutation { key: Key::new(Table::System, 0, name.as_bytes()), value: Some(bytes.into()) }
}

/// Reads what [`counter_row`] wrote.
pub fn decode_counter(bytes: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = Reader::new(bytes);
    if !matches!(reader.u8()?, VERSION | VERSION_HISTORY) {
        return Err(DecodeError("counter of an unknown format version"));
    }
    let value = reader.u64()?;
    reader.end()?;
    Ok(value)
}

/// The row of the counter of shares, changed to say whether table `history` has or gets rows;
/// `None` if it says so already.
pub fn with_history(shares: &[u8], history: bool) -> Option<Box<[u8]>> {
    let version = if history { VERSION_HISTORY } else { VERSION };
    let (old, rest) = shares.split_first()?;
    (*old != version).then(|| [&[version], rest].concat().into())
}

struct Counting {
    next: u64,
    ceiling: u64,
    /// Where the log says so; 0 if that is durable for sure.
    recorded: Position,
}

/// Hands out numbers in order.
pub struct Allocator {
    name: &'static str,
    state: Mutex<Counting>,
}

impl Allocator {
    /// Goes on at the recorded `ceiling`.
    pub fn new(name: &'static str, ceiling: u64) -> Self {
        Self { name, state: Mutex::new(Counting { next: ceiling, ceiling, recorded: 0 }) }
    }

    /// Of a snapshot, in which nothing is made: numbers that are never used.
    pub fn unused() -> Self {
        let counting = Counting { next: 1, ceiling: u64::MAX, recorded: 0 };
        Self { name: "", state: Mutex::new(counting) }
    }

    /// The first of `count` numbers that now belong to the caller.
    pub fn take(&self, engine: &dyn Engine, count: u64) -> Result<u64, EngineError> {
        self.take_in_block(engine, count, u64::MAX).map(|(first, _)| first)
    }

    /// As [`Allocator::take`], all of them in one block of `block` numbers; `count` is at most
    /// that. And the position to wait for before a user with its own records in another log may use
    /// them.
    pub fn take_in_block(
        &self,
        engine: &dyn Engine,
        count: u64,
        block: u64,
    ) -> Result<(u64, Position), EngineError> {
        let mut state = self.state.lock();
        let (mut next, ceiling) = (state.next, state.ceiling);
        let left = block - next % block;
        if left < count {
            next += left;
        }
        let after = next + count;
        if after > ceiling {
            let raised = after + RESERVE;
            // Frees nothing, but must not fail for want of space: an unlink may need a timestamp or
            // a number.
            state.recorded =
                engine.commit(BatchKind::Freeing, vec![counter_row(self.name, raised)])?;
            state.ceiling = raised;
        }
        state.next = after;
        Ok((next, state.recorded))
    }
}

/// Numbers a worker has taken and not used yet.
#[derive(Debug, Default)]
pub struct Block {
    next: u64,
    end: u64,
    /// Why there are no more.
    failed: Option<EngineError>,
}

impl Block {
    /// Makes sure that `count` numbers are there.
    ///
    /// # Errors
    /// The engine's. A caller that takes a number that is not there hears of it, too.
    pub fn fill(
        &mut self,
        count: u64,
        from: &Allocator,
        engine: &dyn Engine,
    ) -> Result<(), EngineError> {
        self.failed = None;
        if self.end - self.next < count {
            let take = count.max(1024);
            self.next =
                from.take(engine, take).inspect_err(|why| self.failed = Some(why.clone()))?;
            self.end = self.next + take;
        }
        Ok(())
    }

    /// Just this number.
    pub fn of_one(number: u64) -> Self {
        Self { next: number, end: number + 1, failed: None }
    }

    /// The next number, for [`Block::back_to`].
    #[inline]
    pub fn mark(&self) -> u64 {
        self.next
    }

    /// Takes the numbers back that were given out since `mark`: an operation that runs again gets
    /// the same ones.
    pub fn back_to(&mut self, mark: u64) {
        self.next = mark;
    }

    /// A number.
    ///
    /// # Errors
    /// If none is left: why [`Block::fill`] failed.
    pub fn take(&mut self) -> Result<u64, EngineError> {
        if self.next < self.end {
            self.next += 1;
            return Ok(self.next - 1);
        }
        Err(self.failed.clone().unwrap_or(EngineError::NoSpace))
    }
}

/// Commit timestamps, above everything a volume has recorded.
pub struct Timestamps {
    clock: HybridClock,
    ceiling: AtomicU64,
    /// Where the log says so; 0 if that is durable for sure.
    recorded: AtomicU64,
    raising: Mutex<()>,
}

impl Timestamps {
    /// Goes on above the recorded `ceiling`.
    pub fn new(ceiling: u64) -> Self {
        Self {
            clock: HybridClock::after(ceiling),
            ceiling: AtomicU64::new(ceiling),
            recorded: AtomicU64::new(0),
            raising: Mutex::new(()),
        }
    }

    /// Of a snapshot, in which nothing changes: timestamps that are never used.
    pub fn unused() -> Self {
        Self { ceiling: AtomicU64::new(u64::MAX), ..Self::new(0) }
    }

    /// Another node of the cluster has issued this timestamp.
    pub fn observe(&self, seen: u64) {
        self.clock.observe(seen);
    }

    /// The newest timestamp issued or observed.
    pub fn last(&self) -> u64 {
        self.clock.last()
    }

    /// A timestamp that every later one will be above, crashes included once the position beside it
    /// is durable: the newest one, unless its ceiling could not be recorded. Such a one may be
    /// issued again.
    pub fn settled(&self) -> (u64, Position) {
        let ceiling = self.ceiling.load(Ordering::Acquire);
        (self.clock.last().min(ceiling), self.recorded.load(Ordering::Acquire))
    }

    /// A timestamp above all others.
    pub fn tick(&self, engine: &dyn Engine, now: Nanos) -> Result<u64, EngineError> {
        let stamp = self.clock.tick(now);
        if stamp >= self.ceiling.load(Ordering::Acquire) {
            let _one_at_a_time = self.raising.lock();
            if stamp >= self.ceiling.load(Ordering::Acquire) {
                let raised = stamp + CLOCK_RESERVE;
                let position =
                    engine.commit(BatchKind::Freeing, vec![counter_row("clock", raised)])?;
                self.recorded.store(position, Ordering::Release);
                self.ceiling.store(raised, Ordering::Release);
            }
        }
        Ok(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};

    /// Seed 1922 of three nodes: a disk that had failed was told to be full.
    #[test]
    fn who_finds_no_number_hears_why() {
        let (engine, all, mut block) =
            (MemoryEngine::new(SyncWhen::Told), Allocator::new("inodes", 16), Block::default());
        let broken = EngineError::Io("injected".into());
        for why in [broken, EngineError::NoSpace] {
            engine.fail_commit(why.clone());
            assert_eq!((block.fill(1, &all, &engine), block.take()), (Err(why.clone()), Err(why)));
        }
        assert_eq!((block.fill(1, &all, &engine), block.take()), (Ok(()), Ok(16)));
    }
}
