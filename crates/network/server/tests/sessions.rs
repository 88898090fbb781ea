//! Sessions: exactly once, what they hold, and when it goes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Client, Fixture, LEASE, at, create, errno, opened, seen};
use kestrel_types::clock::SECOND;
use kestrel_types::request::{Answer, Op};
use kestrel_types::wire::{
    Answered, Body, LockAnswer, LockKind, LockMode, LockReply, LockRequest, LockSpan, Reclaim,
    ReclaimOpen, SessionState, ToClient, ToServer,
};

fn lock(ino: u64, owner: u64) -> LockSpan {
    LockSpan { ino, owner, pid: 7, kind: LockKind::Posix, mode: LockMode::Write, start: 0, end: 9 }
}

fn lock_replies(client: &Client) -> Vec<(u64, LockReply)> {
    let locks = client.received().into_iter().filter_map(|message| match message {
        ToClient::Reply(reply) => match reply.answered {
            Answered::Lock(answer) => Some((reply.id, answer)),
            _ => None,
        },
        _ => None,
    });
    locks.collect()
}

fn set(client: &mut Client, fixture: &Fixture, span: LockSpan) -> u64 {
    let call = client.call(Body::Lock(LockRequest::Set { lock: span, wait: true }));
    let id = call.id;
    client.send(fixture, vec![ToServer::Call(call)]);
    id
}

#[test]
fn nothing_is_acknowledged_before_it_is_durable() {
    let fixture = Fixture::new();
    let mut client = Client::new(1);
    client.send_hello(&fixture, common::hello(1, 1, false));
    assert!(client.received().is_empty(), "the session's record is not durable");
    fixture.sync();
    assert!(matches!(client.received().as_slice(), [ToClient::Welcome(_)]));
    let call = client.op(create("a"));
    client.send(&fixture, vec![ToServer::Call(call)]);
    assert!(client.received().is_empty());
    fixture.sync();
    assert_eq!(client.received().len(), 1);
}

/// A retry is answered from memory or from rows, and executed once.
#[test]
fn retry_answered_from_memory_and_rows() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    let mut call = client.op(Op::MkDir(at("d"), 0o755));
    let first = client.execute_call(&fixture, call.clone());
    assert_eq!(errno(&first), 0);
    call.retry = true;
    assert_eq!(client.connect(&fixture), SessionState::Known);
    assert_eq!(client.execute_call(&fixture, call.clone()), first);
    let fixture = fixture.crash(&mut [&mut client]);
    assert_eq!(client.connect(&fixture), SessionState::Restarted);
    client.reclaim(&fixture, Reclaim { last: true, ..Reclaim::default() });
    assert_eq!(client.execute_call(&fixture, call.clone()), first);
    // Once acknowledged its reply is not kept any more, and it is not executed again either.
    let mut next = client.op(Op::RmDir(at("d"), None));
    next.acked = call.seq;
    assert_eq!(errno(&client.execute_call(&fixture, next)), 0);
    client.send(&fixture, vec![ToServer::Call(call)]);
    fixture.sync();
    assert!(client.received().is_empty());
}

/// A call that is being executed is answered on the newest connection.
#[test]
fn answer_on_the_newest_connection() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    let call = client.op(create("a"));
    client.send(&fixture, vec![ToServer::Call(call.clone())]);
    let (mut old, _line) = client.take_connection();
    // Its reply is recorded: answered at once, though the disk has not synced.
    client.incarnation += 1;
    client.send_hello(&fixture, common::hello(1, 2, true));
    assert!(matches!(client.received().as_slice(),
            [ToClient::Welcome(w)] if w.session == SessionState::Known));
    client.send(&fixture, vec![ToServer::Call(kestrel_types::wire::Call { retry: true, ..call })]);
    // What the old connection still brings has no effect.
    let late = client.op(Op::MkDir(at("late"), 0o755));
    old.receive(&mut vec![ToServer::Call(late)], fixture.now);
    fixture.sync();
    assert_eq!(client.received().len(), 1);
    assert_eq!(errno(&client.execute(&fixture, Op::Lookup(at("late")))), libc::ENOENT);
    assert_eq!(errno(&client.execute(&fixture, Op::Lookup(at("a")))), 0);
    let totals = fixture.server.stats(fixture.now).totals;
    assert_eq!((totals.retries_running, totals.superseded, totals.stale_messages), (1, 1, 1));
}

/// Opens and locks end with the lease, and recorded answers stay.
#[test]
fn session_after_its_lease() {
    let mut fixture = Fixture::new();
    let mut gone = Client::connected(1, &fixture);
    let mut other = Client::connected(2, &fixture);
    let mut call = gone.op(create("a"));
    let (inode, _) = opened(&gone.execute_call(&fixture, call.clone()));
    set(&mut gone, &fixture, lock(inode.ino, 1));
    assert_eq!(lock_replies(&gone), [(2, Ok(LockAnswer::Done))]);
    let waiting = set(&mut other, &fixture, lock(inode.ino, 1));
    assert!(lock_replies(&other).is_empty());
    assert_eq!(errno(&other.execute(&fixture, Op::Unlink(at("a")))), 0);
    assert_eq!(errno(&gone.execute(&fixture, Op::GetAttr(seen(&inode, "a")))), 0);
    // One client is silent, the other sends messages.
    for _ in 0..4 {
        fixture.pass(SECOND);
        other.send(&fixture, vec![ToServer::Ping { oldest_open_object: u64::MAX }]);
    }
    fixture.sync();
    assert!(gone.is_closed());
    assert_eq!(lock_replies(&other), [(waiting, Ok(LockAnswer::Done))]);
    assert_eq!(fixture.open_files(), 0);
    assert_eq!(fixture.server.stats(fixture.now).totals.sessions_expired, 1);
    // It comes back: what it had open is gone, but its calls are not executed again.
    assert_eq!(gone.connect(&fixture), SessionState::Expired);
    let opens = vec![ReclaimOpen { file: seen(&inode, "a"), count: 1, linkable: false }];
    let locks = vec![lock(inode.ino, 1)];
    let lost = gone.reclaim(&fixture, Reclaim { opens, locks, last: true, ..Reclaim::default() });
    assert_eq!((lost.lost_opens, lost.lost_locks), (vec![inode.ino], vec![0]));
    call.retry = true;
    let (again, created) = opened(&gone.execute_call(&fixture, call));
    assert_eq!((again.ino, created), (inode.ino, true));
    assert_eq!(errno(&gone.execute(&fixture, Op::Lookup(at("a")))), libc::ENOENT);
    // Half an hour later the session is forgotten.
    gone.lose_connection();
    for _ in 0..1900 {
        fixture.pass(SECOND);
        other.send(&fixture, vec![ToServer::Ping { oldest_open_object: u64::MAX }]);
    }
    assert_eq!(fixture.server.sessions(fixture.now).len(), 1);
    assert_eq!(fixture.node.sessions().unwrap().len(), 1);
}

#[test]
fn a_process_that_was_stopped_does_not_expire_anybody() {
    let mut fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    fixture.pass(SECOND);
    fixture.now += 100 * LEASE;
    fixture.server.tick(fixture.now);
    fixture.pass(SECOND);
    assert_eq!(errno(&client.execute(&fixture, create("a"))), 0);
}

#[test]
fn after_a_restart_what_clients_hold_is_theirs_again() {
    let mut fixture = Fixture::new();
    let mut holder = Client::connected(1, &fixture);
    let mut absent = Client::connected(2, &fixture);
    let (inode, _) = opened(&holder.execute(&fixture, create("a")));
    let (other, _) = opened(&absent.execute(&fixture, create("b")));
    set(&mut holder, &fixture, lock(inode.ino, 1));
    fixture = fixture.crash(&mut [&mut holder, &mut absent]);
    assert!(fixture.server.in_use(12345), "during the grace period every object is in use");
    let mut third = Client::connected(3, &fixture);
    for name in ["a", "b"] {
        assert_eq!(errno(&third.execute(&fixture, Op::Unlink(at(name)))), 0);
    }
    let waiting = set(&mut third, &fixture, lock(inode.ino, 9));
    let others = set(&mut third, &fixture, lock(other.ino, 9));
    assert_eq!(holder.connect(&fixture), SessionState::Restarted);
    let opens = vec![ReclaimOpen { file: seen(&inode, "a"), count: 1, linkable: false }];
    let locks = vec![lock(inode.ino, 1)];
    let reclaim = Reclaim { opens, locks, last: true, ..Reclaim::default() };
    assert_eq!(holder.reclaim(&fixture, reclaim.clone()), Default::default());
    // The answer was lost: claimed again, it counts once.
    assert_eq!(holder.connect(&fixture), SessionState::Known);
    assert_eq!(holder.reclaim(&fixture, reclaim), Default::default());
    assert_eq!(fixture.open_files(), 1);
    assert!(lock_replies(&third).is_empty());
    for _ in 0..4 {
        fixture.pass(SECOND);
        for client in [&mut holder, &mut third] {
            client.send(&fixture, vec![ToServer::Ping { oldest_open_object: u64::MAX }]);
        }
    }
    // A client that did not come back has lost what it had; one that did has not.
    assert_eq!(lock_replies(&third), [(others, Ok(LockAnswer::Done))]);
    assert_eq!(errno(&holder.execute(&fixture, Op::GetAttr(seen(&inode, "a")))), 0);
    assert_eq!(errno(&third.execute(&fixture, Op::GetAttr(seen(&other, "b")))), libc::ESTALE);
    assert_eq!(errno(&holder.execute(&fixture, Op::Release(inode.ino))), 0);
    let owner = LockRequest::ReleaseOwner { ino: inode.ino, owner: 1, kind: LockKind::Posix };
    let call = holder.call(Body::Lock(owner));
    holder.send(&fixture, vec![ToServer::Call(call)]);
    assert_eq!(lock_replies(&third), [(waiting, Ok(LockAnswer::Done))]);
    assert_eq!(absent.connect(&fixture), SessionState::Expired);
}

/// A client that was granted a longer lease by an earlier start keeps its locks for that long.
#[test]
fn longer_lease_of_an_earlier_start() {
    let mut fixture = Fixture::new();
    let mut holder = Client::connected(1, &fixture);
    let (inode, _) = opened(&holder.execute(&fixture, create("a")));
    set(&mut holder, &fixture, lock(inode.ino, 1));
    // A start that ends before it has let a client in changes nothing.
    fixture = fixture.restart(&mut [&mut holder], SECOND).restart(&mut [], SECOND);
    let mut other = Client::connected(2, &fixture);
    let wanted = set(&mut other, &fixture, lock(inode.ino, 9));
    // It comes, and is gone before the Welcome reaches it: it goes on by the lease of the Welcome
    // before.
    holder.connect(&fixture);
    holder.lose_connection();
    let ping = |fixture: &mut Fixture, client: &mut Client| {
        fixture.pass(SECOND / 2);
        client.send(fixture, vec![ToServer::Ping { oldest_open_object: u64::MAX }]);
    };
    (0..5).for_each(|_| ping(&mut fixture, &mut other));
    assert!(lock_replies(&other).is_empty());
    (0..2).for_each(|_| ping(&mut fixture, &mut other));
    assert_eq!(lock_replies(&other), [(wanted, Ok(LockAnswer::Done))]);
    // No client has the longer lease any more.
    assert_eq!(fixture.node.lease_on_record(), Ok(Some(SECOND)));
    fixture.sync();
    fixture = fixture.restart(&mut [&mut other], SECOND);
    fixture.pass(SECOND + SECOND / 2);
    assert_eq!(fixture.server.stats(fixture.now).grace_left, 0);
}

/// The grace period ends when each client is back and has retried its calls.
#[test]
fn end_of_the_grace_period() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    let mut call = client.op(create("a"));
    assert_eq!(errno(&client.execute_call(&fixture, call.clone())), 0);
    let mut fixture = fixture.crash(&mut [&mut client]);
    let mut other = Client::connected(2, &fixture);
    client.connect(&fixture);
    // The answer did not reach it, so it does not claim the file; and the file is to be there for
    // the retry.
    client.reclaim(&fixture, Reclaim { last: true, ..Reclaim::default() });
    fixture.pass(SECOND / 2);
    assert_eq!(errno(&other.execute(&fixture, Op::Unlink(at("a")))), 0);
    call.retry = true;
    let (inode, created) = opened(&client.execute_call(&fixture, call));
    assert!(created && fixture.server.stats(fixture.now).grace_left > 0);
    client.send(&fixture, vec![ToServer::Ping { oldest_open_object: u64::MAX }]);
    fixture.pass(SECOND / 2);
    assert_eq!(fixture.server.stats(fixture.now).grace_left, 0);
    assert_eq!(errno(&client.execute(&fixture, Op::GetAttr(seen(&inode, "a")))), 0);
}

#[test]
fn farewell_releases_everything_at_once() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    opened(&client.execute(&fixture, create("a")));
    let objects = client.execute(&fixture, Op::AllocObjects(10));
    let Ok(Answer::Objects { first, .. }) = objects else { panic!("{objects:?}") };
    assert!(fixture.server.in_use(first) && !fixture.server.in_use(first + 10));
    client.send(&fixture, vec![ToServer::Ping { oldest_open_object: first + 1 }]);
    assert!(!fixture.server.in_use(first) && fixture.server.in_use(first + 1));
    client.send(&fixture, vec![ToServer::Bye]);
    fixture.sync();
    assert!(!fixture.server.in_use(first + 1));
    assert_eq!((fixture.open_files(), fixture.server.stats(0).sessions), (0, 0));
    assert!(fixture.node.sessions().unwrap().is_empty());
}
