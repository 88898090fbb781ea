//! Clients across a network: what they asked for happens once, whatever breaks; what they had open
//! outlives the node.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::Engine;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, NodeConfig, Origin, Replies, SessionRecord};
use kestrel_meta::txn::WINDOW;
use kestrel_types::clock::SECOND;
use kestrel_types::ids::ROOT;
use kestrel_types::key::Table;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{
    Answer, Creds, Done, Op, OpenFlags, RenameFlags, Reply, Request, SetAttr,
};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;
use proptest::prelude::*;

use common::steps::{Raw, World, raws};
use common::{Fixture, at, config, errno, name};

const CLIENT: ClientId = ClientId([7; 16]);

fn serving(workers: usize) -> NodeConfig {
    NodeConfig {
        durability: Durability::Commit,
        serves: true,
        replies: Replies::Inline,
        ..config(workers)
    }
}

fn fixture(workers: usize) -> Fixture {
    let fixture = Fixture::with_engine(serving(workers), MemoryEngine::new(SyncWhen::Told));
    fixture.node.end_grace().unwrap();
    fixture
}

type Heard = Arc<Mutex<Option<Reply>>>;

fn sink() -> (Heard, Done) {
    let heard: Heard = Arc::default();
    let sink = heard.clone();
    (heard, Box::new(move |reply| *sink.lock() = Some(reply)))
}

fn send(fixture: &Fixture, seq: u64, retry: bool, op: Op) -> Heard {
    let (heard, done) = sink();
    let origin = Origin { client: CLIENT, seq, retry };
    fixture.node.submit_from(Request { creds: Creds::root(), op }, origin, done);
    heard
}

/// Sends a request and syncs; the reply.
fn ask(fixture: &Fixture, seq: u64, retry: bool, op: Op) -> Reply {
    let heard = send(fixture, seq, retry, op);
    fixture.engine.sync().unwrap();
    heard.lock().take().expect("a reply after the sync")
}

fn create(path: &str) -> Op {
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    Op::Create { place: at(ROOT, path), mode: 0o644, flags, exclusive: true }
}

fn claim(fixture: &Fixture, inode: InodeRef, count: u32) -> Reply {
    let (heard, done) = sink();
    fixture.node.reclaim_open(inode, count, false, done);
    fixture.engine.sync().unwrap();
    heard.lock().take().expect("a reply after the sync")
}

fn ino(reply: &Reply) -> u64 {
    match reply {
        Ok(
            Answer::Inode(inode)
            | Answer::Entry { inode, .. }
            | Answer::Opened { inode, .. }
            | Answer::Removed(inode),
        ) => inode.ino,
        other => panic!("{other:?}"),
    }
}

fn rows(fixture: &Fixture, table: Table) -> usize {
    let mut rows = 0;
    let count = &mut |_: kestrel_types::key::KeyRef<'_>, _: &[u8]| {
        rows += 1;
        ControlFlow::Continue(())
    };
    fixture.engine.scan_table(table, None, count).unwrap();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn requests_happen_once_and_opens_live_on(raws in raws(150), workers in 1..4usize) {
        let world =
            World::new(Fixture::with_engine(serving(workers), MemoryEngine::new(SyncWhen::Told)),
                false);
        world.serve(&raws).map_err(TestCaseError::fail)?;
    }
}

/// A recorded answer is given again until its client is forgotten.
#[test]
fn recorded_answers_until_client_is_forgotten() {
    let mut fixture = fixture(2);
    let first = ask(&fixture, 1, false, create("a"));
    let ino = ino(&first);
    // Nothing that changed nothing is recorded.
    assert_eq!(errno(&ask(&fixture, 2, false, create("a"))), libc::EEXIST);
    assert_eq!(errno(&ask(&fixture, 3, false, Op::Lookup(at(ROOT, "a")))), 0);
    assert_eq!(rows(&fixture, Table::Txn), 1);
    fixture = fixture.crash(true);
    assert_eq!(ask(&fixture, 1, true, create("a")), first);
    assert_eq!(errno(&ask(&fixture, 2, true, create("a"))), libc::EEXIST);
    // The answer told of an open, so there is one.
    assert_eq!(errno(&ask(&fixture, 4, false, Op::Release(ino))), 0);
    assert_eq!(errno(&ask(&fixture, 5, false, Op::Release(ino))), libc::EBADF);
    fixture.node.end_grace().unwrap();
    // The slot goes to the request a window later; a client that asks for the old one then has
    // broken the rule.
    assert_eq!(errno(&ask(&fixture, WINDOW + 1, false, create("b"))), 0);
    assert_eq!(errno(&ask(&fixture, 1, true, create("a"))), libc::EINVAL);
    assert_eq!(rows(&fixture, Table::Txn), 1);
    fixture.node.forget_client(CLIENT).unwrap();
    assert_eq!(rows(&fixture, Table::Txn), 0);
    assert_eq!(errno(&ask(&fixture, WINDOW + 1, true, create("b"))), libc::EEXIST);
}

/// An open by path that changed something counts once.
#[test]
fn repeated_open_by_path() {
    let mut fixture = fixture(2);
    let made = ino(&ask(&fixture, 1, false, create("a")));
    let open = |flags| Op::OpenAt(at(ROOT, "a"), flags);
    let truncate = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let first = ask(&fixture, 2, false, open(truncate));
    assert_eq!(errno(&ask(&fixture, 3, false, open(OpenFlags::default()))), 0);
    assert_eq!(rows(&fixture, Table::Txn), 2, "an open that changed nothing is not recorded");
    fixture = fixture.crash(true);
    // Once more, though the name leads elsewhere now.
    assert_eq!(
        errno(&ask(
            &fixture,
            4,
            false,
            Op::Rename(at(ROOT, "a"), at(ROOT, "b"), RenameFlags::default())
        )),
        0
    );
    assert_eq!(ask(&fixture, 2, true, open(truncate)), first);
    assert_eq!(errno(&ask(&fixture, 5, false, Op::Release(made))), 0);
    assert_eq!(errno(&ask(&fixture, 6, false, Op::Release(made))), libc::EBADF);
    // What was not recorded is asked as if for the first time.
    assert_eq!(errno(&ask(&fixture, 3, true, open(OpenFlags::default()))), libc::ENOENT);
    fixture.node.end_grace().unwrap();
    fixture.check();
}

#[test]
fn whatever_fails_on_the_way_a_request_happens_once() {
    let flags = RenameFlags::default();
    // None of these succeeds twice.
    let script = [
        create("a"),
        Op::MkDir(at(ROOT, "d"), 0o755),
        Op::Symlink(at(ROOT, "s"), b"a"[..].into()),
        Op::Rename(at(ROOT, "a"), at(ROOT, "d/a"), flags),
        Op::Unlink(at(ROOT, "d/a")),
        Op::RmDir(at(ROOT, "d"), None),
    ];
    for durability in [Durability::Commit, Durability::Fsync] {
        let new = |upto: usize| {
            let config = NodeConfig { durability, ..serving(2) };
            let fixture = Fixture::with_engine(config, MemoryEngine::new(SyncWhen::Told));
            fixture.node.end_grace().unwrap();
            for (number, op) in script[..upto].iter().enumerate() {
                assert_eq!(
                    errno(&ask(&fixture, number as u64 + 1, false, op.clone())),
                    0,
                    "{op:?}"
                );
            }
            fixture
        };
        for (number, op) in script.iter().enumerate() {
            let seq = number as u64 + 1;
            let again = |fixture: Fixture, happened: &str| {
                let reply = ask(&fixture, seq, true, op.clone());
                assert_eq!(errno(&reply), 0, "{op:?} after {happened}");
                assert_eq!(
                    ask(&fixture, seq, true, op.clone()),
                    reply,
                    "{op:?} after {happened}, once more"
                );
                fixture.node.end_grace().unwrap();
                fixture.check();
            };
            let why = || kestrel_engine::EngineError::Io("injected".into());
            let fixture = new(number);
            fixture.engine.fail_commit(why());
            assert_eq!(errno(&ask(&fixture, seq, false, op.clone())), libc::EIO, "{op:?}");
            again(fixture, "a commit that failed");
            let fixture = new(number);
            let heard = send(&fixture, seq, false, op.clone());
            fixture.engine.fail_sync(why());
            fixture.engine.sync().unwrap_err();
            let reply = heard.lock().take().unwrap();
            assert_eq!(
                errno(&reply),
                if durability == Durability::Commit { libc::EIO } else { 0 },
                "{op:?}"
            );
            again(fixture.crash(true), "a sync that failed");
            for power_loss in [false, true] {
                let fixture = new(number);
                let heard = send(&fixture, seq, false, op.clone());
                assert_eq!(heard.lock().is_none(), durability == Durability::Commit, "{op:?}");
                again(
                    fixture.crash(power_loss),
                    if power_loss { "a power loss" } else { "a crash" },
                );
            }
        }
    }
}

#[test]
fn files_without_names_wait_for_their_clients() {
    let mut fixture = fixture(2);
    let kept = ino(&ask(&fixture, 1, false, create("kept")));
    let gone = ino(&ask(&fixture, 2, false, create("gone")));
    let named = ino(&ask(&fixture, 3, false, create("named")));
    for (seq, path) in [(4, "kept"), (5, "gone")] {
        assert_eq!(errno(&ask(&fixture, seq, false, Op::Unlink(at(ROOT, path)))), 0);
    }
    fixture = fixture.crash(true);
    assert!(fixture.node.in_grace());
    assert!(fixture.node.due_objects(i64::MAX, 10, &|_| false).unwrap().is_empty());
    // Nobody may open what only its own client can know.
    let open = |ino| Op::Open(InodeRef::by_id(ino), OpenFlags::default());
    assert_eq!(fixture.errno(open(kept)), libc::ESTALE);
    assert_eq!(ino(&claim(&fixture, InodeRef::by_id(kept), 2)), kept);
    assert_eq!(errno(&claim(&fixture, InodeRef::by_id(kept), 0)), libc::EINVAL);
    assert_eq!(errno(&claim(&fixture, InodeRef::by_id(ROOT), 1)), libc::EISDIR);
    // Not claimed yet, but it may be: losing its name does not delete it, nor does a release that
    // leaves it closed.
    assert_eq!(errno(&ask(&fixture, 6, false, Op::Unlink(at(ROOT, "named")))), 0);
    assert_eq!(ino(&claim(&fixture, InodeRef::by_id(named), 1)), named);
    assert_eq!(errno(&ask(&fixture, 7, false, Op::Release(named))), 0);
    assert_eq!(ino(&claim(&fixture, InodeRef::by_id(named), 1)), named);
    // A symbolic link is never open.
    assert_eq!(errno(&ask(&fixture, 8, false, Op::Symlink(at(ROOT, "s"), b"x"[..].into()))), 0);
    assert_eq!(errno(&ask(&fixture, 9, false, Op::Unlink(at(ROOT, "s")))), 0);
    assert_eq!(rows(&fixture, Table::Link), 3);
    assert_eq!(fixture.node.end_grace().unwrap(), 1, "only the one that nobody claimed");
    fixture.engine.sync().unwrap();
    assert_eq!(fixture.node.end_grace().unwrap(), 0);
    assert_eq!(errno(&claim(&fixture, InodeRef::by_id(gone), 1)), libc::ESTALE);
    for ino in [kept, kept, named] {
        assert_eq!(
            errno(&claim(&fixture, InodeRef::by_id(ino), 1)),
            0,
            "an expired session's claim"
        );
        assert_eq!(errno(&ask(&fixture, 10, false, Op::Release(ino))), 0);
        assert_eq!(errno(&ask(&fixture, 11, false, Op::Release(ino))), 0);
    }
    assert_eq!((rows(&fixture, Table::Link), fixture.node.stats().open_files), (0, 0));
    fixture.check();
}

/// A file that was made without a name may be given one after a restart by a client that did not
/// make it and cannot say so in its claim, and by one with an open that is counted again; one that was
/// made to stay without a name, or lost its name, may not. What the node notes of it goes with the
/// file.
#[test]
fn names_for_nameless_files_after_a_restart() {
    let mut fixture = fixture(2);
    let make = |exclusive| Op::TmpFile { dir: ROOT, mode: 0o600, exclusive };
    // An open that changes something is recorded, so it is answered again.
    let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let open = |ino| Op::Open(InodeRef::by_id(ino), flags);
    let link = |ino, path: &str| Op::Link(InodeRef::by_id(ino), at(ROOT, path));
    let made: Vec<u64> = (1..=4).map(|seq| ino(&ask(&fixture, seq, false, make(false)))).collect();
    let [claimed, again, closed, unclaimed] = made[..] else { unreachable!() };
    let exclusive = ino(&ask(&fixture, 5, false, make(true)));
    let removed = ino(&ask(&fixture, 6, false, create("removed")));
    assert_eq!(errno(&ask(&fixture, 7, false, Op::Unlink(at(ROOT, "removed")))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 4);
    assert_eq!(errno(&ask(&fixture, 8, false, Op::Release(closed))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 3);
    // Another client opens it; the one that made it does not live to see the restart.
    for (seq, ino) in [(9, claimed), (10, again)] {
        assert_eq!(errno(&ask(&fixture, seq, false, open(ino))), 0);
    }
    fixture = fixture.crash(true);
    assert_eq!(rows(&fixture, Table::Moved), 3);
    for file in [claimed, exclusive, removed] {
        assert_eq!(ino(&claim(&fixture, InodeRef::by_id(file), 1)), file);
    }
    assert_eq!(ino(&ask(&fixture, 10, true, open(again))), again);
    assert_eq!(errno(&ask(&fixture, 11, false, link(claimed, "claimed"))), 0);
    assert_eq!(errno(&ask(&fixture, 12, false, link(again, "again"))), 0);
    assert_eq!(errno(&ask(&fixture, 13, false, link(exclusive, "x"))), libc::ENOENT);
    assert_eq!(errno(&ask(&fixture, 14, false, link(removed, "x"))), libc::ENOENT);
    fixture.check();
    // What has got a name and lost it gets none any more, after another restart either.
    assert_eq!(errno(&ask(&fixture, 15, false, Op::Unlink(at(ROOT, "claimed")))), 0);
    assert_eq!(fixture.node.end_grace().unwrap(), 1, "nobody claimed {unclaimed}");
    fixture.engine.sync().unwrap();
    assert_eq!(rows(&fixture, Table::Moved), 1, "where {again} is");
    fixture = fixture.crash(true);
    assert_eq!(ino(&claim(&fixture, InodeRef::by_id(claimed), 1)), claimed);
    assert_eq!(errno(&ask(&fixture, 16, false, link(claimed, "x"))), libc::ENOENT);
    fixture.node.end_grace().unwrap();
    fixture.engine.sync().unwrap();
    assert_eq!(rows(&fixture, Table::Moved), 0);
    // A node of one process only keeps no note, and takes none for a place.
    assert_eq!(errno(&ask(&fixture, 17, false, make(false))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 1);
    fixture.config = NodeConfig { durability: Durability::Fsync, ..config(1) };
    fixture = fixture.crash(false);
    assert_eq!((rows(&fixture, Table::Moved), rows(&fixture, Table::Link)), (0, 0));
}

/// A writer finds its file after a rename and a restart.
#[test]
fn file_found_after_rename_and_restart() {
    let mut fixture = fixture(3);
    let rename =
        |from: &str, to: &str| Op::Rename(at(ROOT, from), at(ROOT, to), RenameFlags::default());
    let seen = |ino, path: &str| InodeRef { ino, seen: Some((ROOT, name(path))) };
    let chmod = |inode| Op::SetAttr(inode, SetAttr { mode: Some(0o600), ..SetAttr::default() });
    let open = ino(&ask(&fixture, 1, false, create("a")));
    let closed = ino(&ask(&fixture, 2, false, create("b")));
    assert_eq!(errno(&ask(&fixture, 3, false, Op::Release(closed))), 0);
    assert_eq!(errno(&ask(&fixture, 4, false, rename("a", "a2"))), 0);
    assert_eq!(errno(&ask(&fixture, 5, false, rename("b", "b2"))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 1);
    // Opened by a client that saw it before the rename: from now on a restart must not lose it
    // either.
    let flags = OpenFlags::default();
    assert_eq!(errno(&ask(&fixture, 6, false, Op::Open(seen(closed, "b"), flags))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 2);
    fixture = fixture.crash(true);
    assert_eq!(errno(&claim(&fixture, seen(open, "a"), 1)), 0);
    assert_eq!(errno(&ask(&fixture, 7, false, rename("a2", "a3"))), 0);
    assert_eq!(errno(&ask(&fixture, 8, false, chmod(seen(open, "a")))), 0);
    assert_eq!(errno(&ask(&fixture, 9, false, chmod(seen(closed, "b")))), 0);
    fixture.check();
    // What nobody claimed is no longer looked for, though it is found until the next restart.
    assert_eq!(fixture.node.end_grace().unwrap(), 0);
    assert_eq!(rows(&fixture, Table::Moved), 1);
    fixture.engine.sync().unwrap();
    assert_eq!(errno(&ask(&fixture, 10, false, chmod(seen(closed, "b")))), 0);
    assert_eq!(errno(&ask(&fixture, 11, false, Op::Release(open))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 0);
    assert_eq!(errno(&ask(&fixture, 12, false, chmod(seen(open, "a")))), 0);
    fixture.check();
    // A node of one process only has nothing open at its start.
    assert_eq!(errno(&ask(&fixture, 13, false, Op::Open(seen(open, "a"), flags))), 0);
    assert_eq!(rows(&fixture, Table::Moved), 1);
    fixture.config = NodeConfig { durability: Durability::Fsync, ..config(1) };
    fixture = fixture.crash(false);
    assert!(!fixture.node.in_grace());
    assert_eq!(rows(&fixture, Table::Moved), 0);
}

#[test]
fn a_name_that_goes_takes_the_way_to_it_along() {
    let fixture = fixture(2);
    let rename =
        |from: &str, to: &str| Op::Rename(at(ROOT, from), at(ROOT, to), RenameFlags::default());
    for (number, path) in ["unlinked", "linked", "replaced"].iter().enumerate() {
        let seq = 10 * number as u64;
        let ino = ino(&ask(&fixture, seq + 1, false, create(path)));
        assert_eq!(errno(&ask(&fixture, seq + 2, false, rename(path, "moved"))), 0);
        assert_eq!(rows(&fixture, Table::Moved), 1);
        let end = match number {
            0 => Op::Unlink(at(ROOT, "moved")),
            1 => Op::Link(InodeRef::by_id(ino), at(ROOT, "second")),
            _ => {
                assert_eq!(errno(&ask(&fixture, seq + 3, false, create("other"))), 0);
                rename("other", "moved")
            }
        };
        assert_eq!(errno(&ask(&fixture, seq + 4, false, end)), 0, "{path}");
        assert_eq!(rows(&fixture, Table::Moved), usize::from(number == 2), "{path}");
        fixture.check();
        assert_eq!(errno(&ask(&fixture, seq + 5, false, Op::Release(ino))), 0, "{path}");
        let _ = ask(&fixture, seq + 6, false, Op::Unlink(at(ROOT, "moved")));
    }
    fixture.check();
}

#[test]
fn sessions_are_on_record_until_they_are_forgotten() {
    let mut fixture = fixture(1);
    let record = |fixture: &Fixture, session: &SessionRecord| {
        let (heard, done) = sink();
        fixture.node.record_session(session, done);
        assert!(heard.lock().is_none(), "durable before it is answered");
        fixture.engine.sync().unwrap();
        assert_eq!(heard.lock().take(), Some(Ok(Answer::Done)));
    };
    let other = SessionRecord {
        client: ClientId([0; 16]),
        since: SECOND,
        who: "x".repeat(300),
        ended: None,
    };
    let session = SessionRecord { client: CLIENT, since: 5, who: "host".into(), ended: None };
    record(&fixture, &session);
    record(&fixture, &other);
    // A client with a number that begins with zeros: its answers lie beside the sessions.
    let (heard, done) = sink();
    let origin = Origin { client: other.client, seq: 1, retry: false };
    fixture.node.submit_from(Request { creds: Creds::root(), op: create("a") }, origin, done);
    fixture = fixture.crash(true);
    assert!(heard.lock().as_ref().is_none_or(|reply| errno(reply) == libc::EIO));
    let cut = SessionRecord { who: "x".repeat(256), ..other.clone() };
    assert_eq!(fixture.node.sessions().unwrap(), [cut.clone(), session.clone()]);
    fixture.node.end_session(CLIENT, 77).unwrap();
    let ended = SessionRecord { ended: Some(77), ..session };
    assert_eq!(fixture.node.sessions().unwrap(), [cut.clone(), ended]);
    assert_eq!(fixture.node.end_session(ClientId([9; 16]), 1).unwrap_err().errno, libc::ENOENT);
    fixture.node.forget_client(other.client).unwrap();
    fixture.node.forget_client(CLIENT).unwrap();
    assert!(fixture.node.sessions().unwrap().is_empty());
    fixture.check();
}

#[test]
fn whoever_is_not_numbered_pays_nothing() {
    let fixture = Fixture::new(config(2));
    let ino = ino(&fixture.call(create("a")));
    assert_eq!(fixture.errno(Op::Rename(at(ROOT, "a"), at(ROOT, "b"), RenameFlags::default())), 0);
    assert_eq!(fixture.errno(Op::Release(ino)), 0);
    assert_eq!((rows(&fixture, Table::Txn), rows(&fixture, Table::Moved)), (0, 0));
    assert!(!fixture.node.in_grace());
    assert_eq!(fixture.node.end_grace().unwrap(), 0);
}

#[test]
fn one_thread_does_the_same_every_time() {
    let run = || {
        let fixture = fixture(3);
        let order: Arc<Mutex<Vec<(u64, Reply)>>> = Arc::default();
        for round in 0..20 {
            let requests = (0..50u64).map(|number| {
                let seq = round * 50 + number + 1;
                let order = order.clone();
                let done: Done = Box::new(move |reply| order.lock().push((seq, reply)));
                let path = format!("f{}", seq * 7 % 40);
                let op = match seq % 3 {
                    0 => Op::Unlink(at(ROOT, &path)),
                    1 => create(&path),
                    _ => Op::Rename(at(ROOT, &path), at(ROOT, "f1"), RenameFlags::default()),
                };
                (
                    Request { creds: Creds::root(), op },
                    Some(Origin { client: CLIENT, seq, retry: false }),
                    done,
                )
            });
            fixture.node.submit_many_from(requests.collect());
            fixture.clock.advance(SECOND);
            fixture.engine.sync().unwrap();
        }
        let mut left = Vec::new();
        for table in Table::ALL {
            let collect = &mut |key: kestrel_types::key::KeyRef<'_>, row: &[u8]| {
                left.push((key.to_owned(), row.to_vec()));
                ControlFlow::Continue(())
            };
            fixture.engine.scan_table(table, None, collect).unwrap();
        }
        let order = std::mem::take(&mut *order.lock());
        assert_eq!(order.len(), 1000);
        (order, left)
    };
    assert!(run() == run());
}

/// Worth something only if the sequences reach what they are about.
#[test]
fn sequences_reach_claims_and_moves() {
    let (mut answers, mut moves) = (0, 0);
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..100 {
        let sequence: Vec<Raw> = raws(300).new_tree(&mut runner).unwrap().current();
        let fixture = Fixture::with_engine(serving(2), MemoryEngine::new(SyncWhen::Told));
        let tally: Arc<Mutex<(usize, usize)>> = Arc::default();
        let count = tally.clone();
        let engine = fixture.engine.clone();
        let guard = engine.tap(Box::new(move |batch| {
            let put = |table: Table| {
                batch.iter().filter(|m| m.key.table == table && m.value.is_some()).count()
            };
            let mut tally = count.lock();
            tally.0 += put(Table::Txn);
            tally.1 += put(Table::Moved);
        }));
        // The engine may not be shared over a crash: only the part before the first one is counted.
        let quiet: Vec<Raw> =
            sequence.iter().map(|raw| Raw { who: 64 + raw.who % 8, ..*raw }).collect();
        World::new(fixture, false).serve(&quiet).unwrap();
        drop(guard);
        answers += tally.lock().0;
        moves += tally.lock().1;
    }
    println!("answers {answers}, rows of moved files {moves}");
    assert!(answers > 2000 && moves > 50);
}
