//! The kernel's queues of some processors, served through one io_uring by one thread at a time.
//!
//! **Entries.** Each queue begins with some entries and gets more whenever fewer than half as many
//! are left for requests to come, so that requests that the file system keeps for long (for a lock
//! that another process has) do not stop the others. There is a bound for all
//! ([`Entries::capacity`]); beyond it the requests of that processor wait until one is answered.
//! Entries are added ahead of need because the kernel (6.18) gives new ones to new requests only: a
//! request that found none, in a burst of more than were left, waits for a commit on its queue,
//! that is, for the next answer to any caller on that processor. The kernel takes the entry that
//! came back last, so those that a burst added lie still afterwards, and so does their memory.
//!
//! **Commits.** The thread that answers puts the reply into its entry, on the spot. The commit
//! itself, with which the kernel also takes the entry back, is always submitted by the thread that
//! serves the ring: the next request finishes the command, and it would do that in the thread that
//! submitted it, which may be any thread of the file system's and have no time. So answered entries
//! go to a list, and the thread that puts one there wakes the serving thread if it sleeps. Several
//! answers cost one waking.
//!
//! **Order.** Everything that is ready is submitted before a handler is called. No answer ever
//! waits for another request's handler, unless it was given by that very handler.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::abi::{self, Opcode, OutHeader, Wire};
use crate::transport::uring::cpus::CpuSet;
use crate::transport::uring::entries::Entries;
use crate::transport::uring::ring::{Command, Completion, Ring, WAKE, Waker};
use crate::transport::worker_slots::WorkerSlot;
use crate::transport::{ReplyChannel, RequestSink};

/// Payloads of at most this size (names; the longest is a symbolic link's and its target) are
/// copied out of the entry, so that the reply may be written at once.
const NAMES_BYTES: usize = 2 * (abi::NAME_BYTES_MAX + 1);

/// In the `user_data` of a registration, beside the entry's number.
const REGISTERING: u64 = 1 << 32;

/// Room for names, one for each thread.
pub(super) type Names = [u8; NAMES_BYTES];

pub(super) fn names() -> Box<Names> {
    Box::new([0; NAMES_BYTES])
}

/// The queues that one ring serves.
pub(super) struct Queues {
    /// For the thread that has the worker slot.
    core: Mutex<Core>,
    /// Answered entries.
    answers: Mutex<Answers>,
    entries: Entries,
    waker: Waker,
    /// The queues' processors, as far as this process may use them.
    home: Option<CpuSet>,
    /// Replies that the kernel would or did refuse.
    failed: Arc<AtomicU64>,
}

struct Core {
    ring: Ring,
    queues: Vec<Queue>,
    /// To which of `queues` each opened entry belongs.
    owners: Vec<u16>,
    /// Entries of each queue at the start.
    depth: usize,
    /// Answered entries being committed: the list's other half.
    committing: Vec<u32>,
    /// The kernel takes no entries any more.
    closed: bool,
}

struct Queue {
    /// Number of the processor.
    cpu: u16,
    /// Entries that the kernel has.
    registered: usize,
    /// Those of them that hold a request of the file system's.
    out: usize,
}

#[derive(Default)]
struct Answers {
    entries: Vec<u32>,
    /// The serving thread sleeps, and wants to be woken for the first answer.
    asleep: bool,
}

/// Why a thread stopped serving a ring.
pub(super) enum Left {
    /// A handler gave its slot away, or the session ends: acquire a slot.
    Slot,
    /// The ring failed.
    Failed(io::Error),
}

impl Queues {
    /// Prepares for the queues `cpus`, each with `depth` entries to begin with, and `more` in all
    /// for when they are in use.
    pub(super) fn new(
        device: OwnedFd,
        cpus: impl Iterator<Item = u16>,
        (depth, more): (usize, usize),
        payload_bytes: usize,
        failed: Arc<AtomicU64>,
    ) -> io::Result<Queues> {
        let queues: Vec<Queue> = cpus.map(|cpu| Queue { cpu, registered: 0, out: 0 }).collect();
        let home =
            CpuSet::of_thread().and_then(|all| all.only(queues.iter().map(|queue| queue.cpu)));
        let entries = Entries::new(depth * queues.len() + more, payload_bytes)?;
        // Room for the results of all entries, and a message or two.
        let mut ring = Ring::new(device, entries.capacity() as u32 + 2)?;
        let waker = ring.waker();
        // Finds out now whether this kernel can be woken, rather than when it matters.
        waker.wake()?;
        ring.next();
        let core = Core { ring, queues, owners: vec![], depth, committing: vec![], closed: false };
        Ok(Queues {
            core: Mutex::new(core),
            answers: Mutex::default(),
            entries,
            waker,
            home,
            failed,
        })
    }

    /// Registers the first entries with the kernel, if that has not happened. The calling thread
    /// has to stay until the end.
    pub(super) fn register(&self) -> io::Result<()> {
        let mut core = self.core.lock();
        if !core.owners.is_empty() {
            return Ok(());
        }
        for queue in 0..core.queues.len() {
            for _ in 0..core.depth {
                core.add(queue, &self.entries)?;
            }
        }
        core.ring.submit()?;
        // A refusal is there at once. So may be a request, if the other rings were faster.
        let mut results = (0..).map_while(|ahead| core.ring.peek(ahead));
        match results.find(|completion| completion.result < 0) {
            Some(refused) => Err(io::Error::from_raw_os_error(-refused.result)),
            None => Ok(()),
        }
    }

    /// Wakes the serving thread, to look whether the session ends.
    pub(super) fn wake(&self) {
        // It can only fail for want of memory in the kernel; the device's end is then noticed with
        // the next completion.
        let _ = self.waker.wake();
    }

    /// Serves as long as the thread has this ring's slot.
    pub(super) fn serve(
        &self,
        worker: &WorkerSlot,
        channel: &Arc<dyn ReplyChannel>,
        names: &mut Names,
        sink: &dyn RequestSink,
    ) -> Left {
        if let Some(home) = &self.home {
            home.bind_thread();
        }
        let mut core = self.core.lock();
        loop {
            let step = core.step(self);
            match step {
                Ok(Step::Request(entry)) => {
                    drop(core);
                    self.handle(entry, worker, channel, names, sink);
                    if !worker.is_acquired() {
                        return Left::Slot;
                    }
                    core = self.core.lock();
                }
                Ok(Step::Message) if worker.end().is_some() => return Left::Slot,
                Ok(Step::Message | Step::Other) => {}
                Err(error) => return Left::Failed(error),
            }
        }
    }

    /// Hands a request to the file system.
    fn handle(
        &self,
        entry: u32,
        worker: &WorkerSlot,
        channel: &Arc<dyn ReplyChannel>,
        names: &mut Names,
        sink: &dyn RequestSink,
    ) {
        let index = entry as usize;
        let arrived = self.entries.arrived(index);
        let (header, fixed, bytes) = (&arrived.header, &arrived.fixed, arrived.payload_bytes);
        let slot = u64::from(entry);
        // Data of a WRITE stays where it is, on a page boundary.
        if bytes > names.len() || header.opcode == Opcode::Write as u32 {
            let payload = self.entries.borrow(index, bytes);
            worker.with(|| sink.message_split(header, fixed, payload, slot, channel));
            if self.entries.give_back(index) {
                self.answered(entry);
            }
        } else {
            let payload = self.entries.copy_payload(index, bytes, names);
            worker.with(|| sink.message_split(header, fixed, payload, slot, channel));
        }
        // A few FORGETs come this way (of what a READDIRPLUS brought in vain). There is no answer
        // to them, but the kernel waits for the commit.
        let opcode = Opcode::from_u32(header.opcode);
        if matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)) {
            let len = size_of::<OutHeader>() as u32;
            self.send(
                slot,
                &[IoSlice::new(OutHeader { len, error: 0, unique: header.unique }.bytes())],
            );
        }
    }

    /// An entry holds its reply.
    #[inline]
    fn answered(&self, entry: u32) {
        let mut answers = self.answers.lock();
        answers.entries.push(entry);
        let asleep = std::mem::take(&mut answers.asleep);
        drop(answers);
        if asleep {
            self.wake();
        }
    }
}

impl ReplyChannel for Queues {
    #[inline]
    fn send(&self, slot: u64, parts: &[IoSlice<'_>]) {
        let answered = self.entries.answer(slot as usize, parts);
        if !answered.fits {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if answered.ready {
            self.answered(slot as u32);
        }
    }
}

/// What happened next.
enum Step {
    /// An entry holds a request.
    Request(u32),
    /// Another thread has woken this one.
    Message,
    /// Nothing that concerns another thread.
    Other,
}

impl Core {
    /// Commits what was answered, then takes the next request, or waits for something to happen.
    fn step(&mut self, shared: &Queues) -> io::Result<Step> {
        self.commit(shared)?;
        if let Some(completion) = self.ring.next() {
            let step = self.accept(completion, shared)?;
            if matches!(step, Step::Request(_)) {
                self.ring.submit()?;
            }
            return Ok(step);
        }
        let mut answers = shared.answers.lock();
        if answers.entries.is_empty() {
            answers.asleep = true;
            drop(answers);
            self.ring.submit_and_wait()?;
        }
        Ok(Step::Other)
    }

    /// Queues commits of the entries that were answered.
    fn commit(&mut self, shared: &Queues) -> io::Result<()> {
        let mut answers = shared.answers.lock();
        answers.asleep = false;
        std::mem::swap(&mut answers.entries, &mut self.committing);
        drop(answers);
        let mut committing = std::mem::take(&mut self.committing);
        for entry in committing.drain(..) {
            let queue = &mut self.queues[usize::from(self.owners[entry as usize])];
            queue.out -= 1;
            let (qid, commit_id) = (queue.cpu, shared.entries.commit_id(entry as usize));
            let args = abi::UringCmdReq { commit_id, qid, ..Default::default() };
            let command = Command {
                op: abi::URING_COMMIT_AND_FETCH,
                user_data: u64::from(entry),
                memory: (0, 0),
                args: args.bytes(),
            };
            // SAFETY: the entry's memory stays until the ring is gone.
            unsafe { self.ring.push(&command)? };
        }
        self.committing = committing;
        Ok(())
    }

    /// Looks at a result.
    fn accept(&mut self, completion: Completion, shared: &Queues) -> io::Result<Step> {
        if completion.user_data == WAKE {
            return Ok(Step::Message);
        }
        let entry = completion.user_data as u32;
        let owner = usize::from(self.owners[entry as usize]);
        let queue = &mut self.queues[owner];
        if completion.result >= 0 {
            queue.out += 1;
            self.grow(owner, shared);
            return Ok(Step::Request(entry));
        }
        // The entry is of no use any more.
        queue.registered -= 1;
        match -completion.result {
            // The end of the connection; reading the device shows which.
            libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => {
                self.closed = true
            }
            // A further entry was refused, or the kernel has ended the request itself.
            _ if completion.user_data & REGISTERING != 0 => {}
            libc::ENOENT => drop(shared.failed.fetch_add(1, Ordering::Relaxed)),
            // A caller would wait for ever.
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        Ok(Step::Other)
    }

    /// Sees to it that the kernel has entries for requests to come.
    fn grow(&mut self, queue: usize, shared: &Queues) {
        let reserve = (self.depth / 2).max(1);
        let Queue { registered, out, .. } = self.queues[queue];
        if registered - out >= reserve || self.closed {
            return;
        }
        for _ in 0..reserve {
            // Without memory for more the requests wait for others' answers.
            if self.owners.len() == shared.entries.capacity()
                || self.add(queue, &shared.entries).is_err()
            {
                return;
            }
        }
    }

    /// Queues the registration of a further entry.
    fn add(&mut self, queue: usize, entries: &Entries) -> io::Result<()> {
        let index = self.owners.len();
        let memory = entries.open(index)?;
        let args = abi::UringCmdReq { qid: self.queues[queue].cpu, ..Default::default() };
        let command = Command {
            op: abi::URING_REGISTER,
            user_data: index as u64 | REGISTERING,
            memory: (memory.as_ptr() as u64, memory.len() as u32),
            args: args.bytes(),
        };
        // SAFETY: the entry's memory stays until the ring is gone.
        unsafe { self.ring.push(&command)? };
        // The kernel reads the two addresses when the command is submitted.
        self.ring.submit()?;
        self.owners.push(queue as u16);
        self.queues[queue].registered += 1;
        Ok(())
    }
}
