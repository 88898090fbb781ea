//! Locks of two clients of one volume, decided by the server's lock manager without a network
//! between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{FileHandle, Fs, LockWait, LockedRange, Outdated, wait};
use kestrel_client::metadata::{Embedded, LockCall, LockServer, Metadata};
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_server::locks::{LockOwner, Locks, Set, Ticket};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Done, Request};
use kestrel_types::wire::{
    LOCK_END, LockAnswer, LockKind, LockMode, LockReply, LockRequest, LockSpan,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use common::{client, open};

type Answer = Box<dyn FnOnce(LockReply) + Send>;

/// The lock manager, and the calls that wait for its answers.
#[derive(Default)]
struct Desk {
    locks: Locks,
    waiting: FxHashMap<Ticket, Answer>,
    calls: u64,
}

/// A client's way to the node and to the desk.
struct Session {
    node: Embedded,
    desk: Arc<Mutex<Desk>>,
    number: u64,
}

impl Metadata for Session {
    fn submit(&self, request: Request, done: Done) {
        self.node.submit(request, done);
    }

    fn locks(&self) -> Option<&dyn LockServer> {
        Some(self)
    }

    fn stats(&self) -> NodeStats {
        self.node.stats()
    }

    fn close(&self) -> FsResult<()> {
        Ok(())
    }
}

impl LockServer for Session {
    fn lock(&self, request: LockRequest, done: Answer) -> LockCall {
        let mut desk = self.desk.lock();
        desk.calls += 1;
        let (call, session, mut woken) = (desk.calls, self.number, Vec::new());
        let reply = match request {
            LockRequest::Get(span) => {
                Some(Ok(desk.locks.test(session, &span).map_or(LockAnswer::Free, LockAnswer::Held)))
            }
            LockRequest::Set { lock, wait } => {
                match desk.locks.set(session, &lock, wait.then_some(call), &mut woken) {
                    Ok(Set::Granted) => Some(Ok(LockAnswer::Done)),
                    Ok(Set::Waiting) => None,
                    Err(error) => Some(Err(error)),
                }
            }
            LockRequest::Unlock { ino, owner, kind, start, end } => {
                let owner = LockOwner { session, id: owner };
                let done = desk.locks.unlock(owner, ino, kind, (start, end), &mut woken);
                Some(done.map(|()| LockAnswer::Done))
            }
            LockRequest::ReleaseOwner { ino, owner, kind } => {
                desk.locks.release_owner(LockOwner { session, id: owner }, ino, kind, &mut woken);
                Some(Ok(LockAnswer::Done))
            }
        };
        let mut answers: Vec<Answer> =
            woken.iter().filter_map(|ticket| desk.waiting.remove(ticket)).collect();
        match reply {
            Some(reply) => {
                drop(desk);
                done(reply);
            }
            None => {
                desk.waiting.insert(Ticket { session, call }, done);
                drop(desk);
            }
        }
        answers.drain(..).for_each(|answer| answer(Ok(LockAnswer::Done)));
        let desk = self.desk.clone();
        LockCall::new(move || {
            let mut desk = desk.lock();
            if desk.locks.cancel(session, call) {
                let answer = desk.waiting.remove(&Ticket { session, call });
                drop(desk);
                answer.unwrap()(Err(FsError::new(libc::EINTR, "cancelled")));
            }
        })
    }
}

fn two_clients() -> (Arc<Fs>, Arc<Fs>) {
    let engine = Arc::new(MemoryEngine::default());
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, SECOND).unwrap();
    let clock = Arc::new(ManualClock::new(2 * SECOND));
    let node =
        Node::open(engine, clock.clone(), NodeConfig { workers: 2, ..NodeConfig::default() })
            .unwrap();
    let (store, desk) = (Arc::new(MemoryStore::new()), Arc::new(Mutex::new(Desk::default())));
    let make = |number: u64| {
        let session = Session { node: Embedded::new(node.clone()), desk: desk.clone(), number };
        client(Arc::new(session), store.clone(), clock.clone(), number * 1_000_000)
    };
    (make(1), make(2))
}

/// The process that the tests lock for.
const OWNER: u64 = 77;

fn span(file: &FileHandle, mode: LockMode) -> LockSpan {
    LockSpan {
        ino: file.ino(),
        owner: OWNER,
        pid: 5,
        kind: LockKind::Posix,
        mode,
        start: 0,
        end: LOCK_END,
    }
}

fn all(owner: u64) -> LockedRange {
    LockedRange { owner, kind: LockKind::Posix, start: 0, end: LOCK_END }
}

/// Asks for a lock without waiting; whether the content was found changed.
fn lock(fs: &Arc<Fs>, file: &FileHandle, mode: LockMode) -> Result<bool, i32> {
    let granted = wait(|done| fs.set_lock(file, span(file, mode), None, done));
    granted.map(|outdated| heard(fs, file, outdated)).map_err(|error| error.errno)
}

/// What the mount does with the answer; whether the kernel had to hear anything.
fn heard(fs: &Fs, file: &FileHandle, outdated: Option<Outdated>) -> bool {
    outdated.inspect(|outdated| fs.kernel_has(file.ino(), outdated.content)).is_some()
}

/// Starts to wait for a lock.
fn start(
    fs: &Arc<Fs>,
    file: &Arc<FileHandle>,
    mode: LockMode,
) -> (LockWait, Receiver<Result<bool, i32>>) {
    let ((send, done), waiting) = (mpsc::channel(), LockWait::default());
    let (again, handle) = (fs.clone(), file.clone());
    let answer = Box::new(move |result: FsResult<Option<Outdated>>| {
        let outdated = result.map(|outdated| heard(&again, &handle, outdated));
        send.send(outdated.map_err(|error| error.errno)).unwrap();
    });
    fs.set_lock(file, span(file, mode), Some(waiting.clone()), answer);
    (waiting, done)
}

fn write(fs: &Arc<Fs>, file: &FileHandle, text: &str) {
    fs.write(file, 0, text.as_bytes(), false).unwrap();
}

fn read(fs: &Arc<Fs>, file: &FileHandle) -> String {
    String::from_utf8(wait(|done| fs.read(file, 0, 100, done)).unwrap()).unwrap()
}

#[test]
fn who_gets_a_lock_sees_what_its_last_holder_wrote() {
    let (a, b) = two_clients();
    let (here, there) = (open(&a, "f"), open(&b, "f"));
    assert_eq!(lock(&a, &here, LockMode::Write), Ok(false));
    write(&a, &here, "first");
    let (_, granted) = start(&b, &there, LockMode::Write);
    assert!(granted.try_recv().is_err() && read(&b, &there).is_empty());
    wait(|done| a.unlock(&here, all(OWNER), done)).unwrap();
    assert_eq!(granted.recv().unwrap(), Ok(true), "the kernel's pages are outdated");
    assert_eq!(read(&b, &there), "first");
    // A downgrade shows what was written as well.
    write(&b, &there, "later");
    assert_eq!(lock(&b, &there, LockMode::Read), Ok(false));
    assert_eq!(lock(&a, &here, LockMode::Read), Ok(true));
    assert_eq!(read(&a, &here), "later");
}

#[test]
fn closes_give_up_what_belongs_to_who_closes() {
    let (a, b) = two_clients();
    let (here, there) = (open(&a, "f"), open(&b, "f"));
    lock(&a, &here, LockMode::Write).unwrap();
    // Another process closes: nothing changes. The holder closes, through whatever descriptor: its
    // locks go.
    let other = open(&a, "f");
    wait(|done| a.flush_of_owner(&other, OWNER + 1, done)).unwrap();
    assert_eq!(lock(&b, &there, LockMode::Read), Err(libc::EAGAIN));
    wait(|done| a.flush_of_owner(&other, OWNER, done)).unwrap();
    assert_eq!(lock(&b, &there, LockMode::Write), Ok(false));
    wait(|done| b.unlock(&there, all(OWNER), done)).unwrap();
    // A lock of the description goes with its handle, which no close of a process announces.
    lock(&a, &here, LockMode::Write).unwrap();
    wait(|done| a.release_of_owner(other, None, done)).unwrap();
    assert_eq!(lock(&b, &there, LockMode::Read), Err(libc::EAGAIN));
    wait(|done| a.release_of_owner(here, None, done)).unwrap();
    assert_eq!(lock(&b, &there, LockMode::Read), Ok(false));
}

#[test]
fn a_wait_that_is_cancelled_leaves_nothing_behind() {
    let (a, b) = two_clients();
    let (here, there) = (open(&a, "f"), open(&b, "f"));
    lock(&a, &here, LockMode::Write).unwrap();
    let (waiting, granted) = start(&b, &there, LockMode::Write);
    b.cancel_lock(&waiting);
    assert_eq!(granted.recv().unwrap(), Err(libc::EINTR));
    wait(|done| a.unlock(&here, all(OWNER), done)).unwrap();
    assert_eq!(lock(&a, &here, LockMode::Write), Ok(false));
    // Cancelled before it was asked for.
    let ((send, done), waiting) = (mpsc::channel(), LockWait::default());
    b.cancel_lock(&waiting);
    let answer = Box::new(move |result: FsResult<Option<Outdated>>| {
        send.send(result.unwrap_err().errno).unwrap()
    });
    b.set_lock(&there, span(&there, LockMode::Write), Some(waiting), answer);
    assert_eq!(done.recv().unwrap(), libc::EINTR);
    assert!(b.locks_to_reclaim(&|_| true).is_empty() && a.locks_to_reclaim(&|_| true).len() == 1);
}

/// Handles of a file that lost its locks fail, and new handles do not.
#[test]
fn handles_after_lost_locks() {
    let (a, _) = two_clients();
    let (locked, quiet) = (open(&a, "f"), open(&a, "g"));
    lock(&a, &locked, LockMode::Write).unwrap();
    let (send, told) = mpsc::channel();
    a.when_outdated(Box::new(move |ino, _, go_on| {
        send.send(ino).unwrap();
        go_on();
    }));
    a.locks_lost(&|_| true);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [locked.ino()]);
    let errno = |result: FsResult<()>| result.unwrap_err().errno;
    assert_eq!(errno(a.write(&locked, 0, b"x", false)), libc::EIO);
    assert_eq!(errno(wait(|done| a.read(&locked, 0, 1, done)).map(drop)), libc::EIO);
    assert_eq!(errno(wait(|done| a.flush(&locked, done))), libc::EIO);
    assert_eq!(lock(&a, &locked, LockMode::Write), Err(libc::EIO));
    write(&a, &quiet, "goes on");
    let fresh = open(&a, "f");
    assert_eq!(read(&a, &fresh), "");
    wait(|done| a.release_of_owner(locked, None, done)).unwrap();
}
