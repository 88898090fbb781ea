//! Tables that change while a volume is mounted.

use std::time::{Duration, Instant};

use kestrel_client::fs::{LockWait, LockedRange, wait};
use kestrel_types::placement::{Member, NodeId, PlacementMap, Rule, SlotMap};
use kestrel_types::request::{Op, Outcome};
use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};

use crate::client::{Client, READ, at, name};
use crate::cluster::{Cluster, DEADLINE, until};

/// The table after `table`, in which the node `from` owns nothing and `to` what that had.
fn moved(table: &PlacementMap, from: NodeId, to: NodeId) -> PlacementMap {
    let owner = |slot| table.map.owner(slot).id;
    let map = SlotMap::new(table.map.members().to_vec(), |slot| match owner(slot) {
        owner if owner == from => to,
        owner => owner,
    });
    PlacementMap { version: table.version + 1, map: map.unwrap(), ..table.clone() }
}

fn with(table: &PlacementMap, member: Member) -> PlacementMap {
    let members = table.map.members().iter().cloned().chain([member]).collect();
    let map = SlotMap::new(members, |slot| table.map.owner(slot).id).unwrap();
    PlacementMap { version: table.version + 1, map, ..table.clone() }
}

/// Once the client has fetched the new placement map, requests for rows that moved go to the new
/// owner.
#[test]
fn requests_after_a_placement_change() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let file = client.create(&cluster.name_at(1, 0));
    client.write(&file, &[1; 100_000]);
    let next = moved(&cluster.table, 2, 3);
    cluster.place(&next, 0..3);
    cluster.forget();
    // Many at once: the table is fetched once, and all go on.
    let names: Vec<String> = (1..40).map(|number| cluster.name_at(1, number)).collect();
    let asked: Vec<_> = names.iter().map(|name| client.start(Op::MkDir(at(name), 0o755))).collect();
    asked.into_iter().for_each(|reply| assert!(reply.recv().unwrap().is_ok()));
    assert_eq!(client.metadata().placement().as_deref(), Some(&next));
    assert!(cluster.notes(1).take().is_empty(), "it leads nothing any more");
    assert_eq!(
        cluster.notes(2).take().iter().filter(|op| matches!(op, Op::MkDir(..))).count(),
        names.len()
    );
    let before = cluster.misdirected();
    assert!((1..=names.len() as u64).contains(&before));
    // What is open there stays there.
    client.write(&file, &[2; 100_000]);
    assert_eq!(client.read(&file), [2; 100_000]);
    client.close(file);
    let ops = cluster.notes(1).take();
    assert!(
        ops.iter().any(|op| matches!(op, Op::Commit(_)))
            && ops.iter().any(|op| matches!(op, Op::Release(_)))
    );
    assert_eq!(cluster.misdirected(), before);
}

/// Any answer makes a client notice a newer placement map; the client connects to new nodes and
/// waits for them.
#[test]
fn placement_map_with_a_new_node() {
    let mut cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let member = cluster.add();
    let joined = with(&cluster.table, member);
    let next = moved(&joined, 2, 4);
    cluster.place(&next, 0..4);
    // The new one does not serve yet.
    let reply = client.start(Op::MkDir(at(&cluster.name_at(1, 0)), 0o755));
    until("the table is there", || client.metadata().nodes().len() == 4);
    assert!(reply.recv_timeout(Duration::from_millis(300)).is_err());
    let begun = Instant::now();
    assert!(client.call(Op::MkDir(at(&cluster.name_at(2, 0)), 0o755)).is_ok());
    assert!(begun.elapsed() < Duration::from_secs(1), "others go on");
    cluster.serve(3);
    assert!(reply.recv().unwrap().is_ok());
    assert_eq!(cluster.notes(3).take().len(), 1);
}

/// The client asks again while the old owner has the new placement map and the others do not.
#[test]
fn retry_until_all_have_the_placement_map() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    // The old owner gives it up, and no table says yet which node has it.
    let next = moved(&cluster.table, 2, 3);
    let mut frozen = next.clone();
    frozen.version = 1;
    cluster.place(&frozen, [1]);
    let reply = client.start(Op::MkDir(at(&cluster.name_at(1, 0)), 0o755));
    until("it is asked again and again", || cluster.misdirected() > 3);
    assert!(reply.try_recv().is_err());
    cluster.place(&next, 0..3);
    assert!(reply.recv().unwrap().is_ok());
}

/// A misdirected call waits no longer than a call may take, and a farewell does not wait.
#[test]
fn deadlines_of_misdirected_calls() {
    let cluster = Cluster::start();
    let client = Client::try_mount(&cluster.url(0), Duration::from_secs(1)).unwrap();
    let mut never = moved(&cluster.table, 2, 3);
    never.version = 1;
    cluster.place(&never, [1]);
    let mkdir = || Op::MkDir(at(&cluster.name_at(1, 0)), 0o755);
    let begun = Instant::now();
    let Err(Outcome::Failed(why)) = client.call(mkdir()) else { panic!("it cannot succeed") };
    assert!(why.errno == libc::EIO && why.reason.contains("agree"), "{why}");
    assert!((Duration::from_millis(900)..Duration::from_secs(5)).contains(&begun.elapsed()));
    let reply = client.start(mkdir());
    client.fs.shutdown().unwrap();
    assert!(reply.recv_timeout(Duration::from_secs(5)).unwrap().is_err());
}

/// A request for a lock goes to the new home of the file, and can be cancelled on the way.
#[test]
fn lock_request_to_a_new_home() {
    let cluster = Cluster::start();
    let (client, other) = (Client::mount(&cluster.url(0)), Client::mount(&cluster.url(1)));
    let file = client.create(&cluster.name_at(1, 0));
    let its = other.create(&cluster.name_at(1, 0));
    let next = moved(&cluster.table, 2, 3);
    let mut frozen = next.clone();
    frozen.version = 1;
    cluster.place(&frozen, [1]);
    let span = |owner| LockSpan {
        ino: file.ino(),
        owner,
        pid: 5,
        kind: LockKind::Posix,
        mode: LockMode::Write,
        start: 0,
        end: LOCK_END,
    };
    // Cancelled while no node keeps it.
    let (waiting, (send, cancelled)) = (LockWait::default(), std::sync::mpsc::channel());
    client.fs.set_lock(
        &file,
        span(7),
        Some(waiting.clone()),
        Box::new(move |result| send.send(result).unwrap()),
    );
    until("it is asked", || cluster.misdirected() > 1);
    client.fs.cancel_lock(&waiting);
    assert_eq!(
        cancelled.recv_timeout(Duration::from_secs(5)).unwrap().unwrap_err().errno,
        libc::EINTR
    );
    cluster.place(&next, 0..3);
    wait(|done| client.fs.set_lock(&file, span(7), None, done)).unwrap();
    // A call that waits for it at its new home is cancelled there.
    let (waiting, (send, cancelled)) = (LockWait::default(), std::sync::mpsc::channel());
    other.fs.set_lock(
        &its,
        span(8),
        Some(waiting.clone()),
        Box::new(move |result| send.send(result).unwrap()),
    );
    assert!(cancelled.recv_timeout(Duration::from_millis(300)).is_err());
    other.fs.cancel_lock(&waiting);
    assert_eq!(
        cancelled.recv_timeout(Duration::from_secs(5)).unwrap().unwrap_err().errno,
        libc::EINTR
    );
    let range = LockedRange { owner: 7, kind: LockKind::Posix, start: 0, end: LOCK_END };
    wait(|done| client.fs.unlock(&file, range, done)).unwrap();
    wait(|done| other.fs.set_lock(&its, span(8), None, done)).unwrap();
    let asked = |place: usize| {
        cluster.notes(place).locks.lock().iter().filter(|ino| **ino == file.ino()).count()
    };
    assert!(asked(1) == 0 && asked(2) > 0);
}

#[test]
fn names_with_exceptions_are_followed() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let hot = cluster.name_at(0, 0);
    let mut next = PlacementMap { version: 2, ..cluster.table.clone() };
    let slot = (0..).find(|slot| next.map.owner(*slot).id == 3).unwrap();
    next.exceptions.set(name(&hot), Some(Rule::Override(slot))).unwrap();
    cluster.place(&next, 0..3);
    client.close(client.create(&hot));
    assert!(cluster.notes(2).take().iter().any(|op| matches!(op, Op::Create { .. })));
    assert!(cluster.notes(0).take().iter().all(|op| !matches!(op, Op::Create { .. })));
}

/// A client opens its files at other nodes before the node that leaves is gone.
#[test]
fn opens_moved_before_a_node_leaves() {
    let mut cluster = Cluster::start();
    // Its numbers come from the node that leaves.
    let client = Client::mount(&cluster.url(1));
    let files: Vec<_> = (0..4).map(|number| client.create(&cluster.name_at(1, number))).collect();
    let reader = client.open(files[0].ino(), READ);
    files.iter().for_each(|file| client.write(file, &[1; 100_000]));
    client.unlink(&cluster.name_at(1, 1));
    // Stored, and not committed.
    client.fs.write(&files[2], 0, &[2; 200_000], false).unwrap();
    let drained = moved(&cluster.table, 2, 3);
    let leaving = drained.with_leaving(2).unwrap();
    cluster.place(&leaving, 0..3);
    cluster.forget();
    assert!(client.call(Op::MkDir(at(&cluster.name_at(1, 9)), 0o755)).is_ok());
    until("the session there has ended", || client.metadata().nodes().len() == 2);
    // It is still a member, with a part of the figures: what is added up does not pass over it.
    let answers = client.metadata().ask_each(&serde_json::json!({"verb": "status"}), DEADLINE);
    let told: Vec<_> = answers.iter().map(|answer| (answer.node, answer.answer.is_ok())).collect();
    assert_eq!(told, [(1, true), (2, false), (3, true)]);
    let why = answers[1].answer.as_ref().unwrap_err().to_string();
    assert!(why.contains("moved out of it; ask the volume by its URL"), "{why}");
    let asked = cluster.notes(1).take();
    assert_eq!(asked.iter().filter(|op| matches!(op, Op::Release(_))).count(), 5);
    assert!(asked.iter().all(|op| !matches!(op, Op::AllocObjects(_) | Op::Open(..))));
    assert_eq!(cluster.notes(2).take().iter().filter(|op| matches!(op, Op::Open(..))).count(), 5);
    // All are open, and written where they are open now.
    files.iter().for_each(|file| client.write(file, &[3; 100_000]));
    assert!(cluster.notes(2).take().iter().any(|op| matches!(op, Op::Commit(_))));
    let gone = moved(&leaving.without(2, 1).unwrap(), 1, 3);
    cluster.place(&gone, [0, 2]);
    cluster.kill(1);
    assert!(client.call(Op::MkDir(at(&cluster.name_at(0, 9)), 0o755)).is_ok());
    until("the table is there", || client.metadata().placement().as_deref() == Some(&gone));
    for file in &files {
        client.write(file, &[4; 150_000]);
        assert_eq!(client.read(file)[..150_000], [4; 150_000]);
    }
    client.close(reader);
    files.into_iter().for_each(|file| client.close(file));
    assert_eq!(client.fs.metadata().stats().open_files, 0);
    assert!(cluster.notes(1).take().is_empty());
}

/// A node that has left takes the opens there with it, and a node that stays after all is used
/// again.
#[test]
fn opens_lost_with_a_node_that_has_left() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let (lost, kept) =
        (client.create(&cluster.name_at(1, 0)), client.create(&cluster.name_at(0, 0)));
    let drained = moved(&cluster.table, 2, 3);
    let gone = drained.without(2, 1).unwrap();
    cluster.place(&gone, 0..3);
    assert!(client.call(Op::MkDir(at(&cluster.name_at(1, 9)), 0o755)).is_ok());
    until("the table is there", || client.metadata().placement().as_deref() == Some(&gone));
    client.fs.write(&lost, 0, &[1; 100], false).unwrap();
    assert!(wait(|done| client.fs.flush(&lost, done)).is_err(), "it is open nowhere");
    client.write(&kept, &[1; 100_000]);
    drop(wait(|done| client.fs.release(lost, done)));
    client.close(kept);
    assert_eq!(client.fs.metadata().stats().open_files, 0);
    // Another one does not leave after all.
    let leaving = moved(&gone, 3, 1).with_leaving(3).unwrap();
    cluster.place(&leaving, [0, 2]);
    assert!(client.call(Op::MkDir(at(&cluster.name_at(2, 8)), 0o755)).is_ok());
    until("the session there has ended", || client.metadata().nodes().len() == 1);
    let mut stays = moved(&leaving, 1, 3);
    stays.leaving.clear();
    cluster.place(&stays, [0, 2]);
    assert!(client.call(Op::MkDir(at(&cluster.name_at(0, 8)), 0o755)).is_ok());
    until("it is connected to again", || client.metadata().nodes().len() == 2);
    client.close(client.create(&cluster.name_at(2, 0)));
    assert!(cluster.notes(2).take().iter().any(|op| matches!(op, Op::Create { .. })));
}
