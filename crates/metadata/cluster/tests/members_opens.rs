//! Open files over several members: where opens count, files that lose their names, claims after a
//! restart.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use kestrel_cluster::{Message, PollQuestion};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::SECOND;
use kestrel_types::inode::Inode;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, RenameFlags, Request, SetAttr};
use kestrel_types::wire::ClientId;

use common::errno;
use common::members::{Cluster, at, mknod};

const FLAGS: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

fn create(path: &str) -> Op {
    Op::Create { place: at(path), mode: 0o644, flags: FLAGS, exclusive: false }
}

/// A file of the root that was seen under this name.
fn seen(ino: u64, name: &str) -> InodeRef {
    InodeRef { ino, seen: Some((1, Name::new(name.as_bytes()).unwrap())) }
}

fn open(cluster: &mut Cluster, member: NodeId, op: Op) -> Inode {
    match cluster.ask(member, op) {
        Ok(Answer::Opened { inode, .. }) => *inode,
        other => panic!("{other:?}"),
    }
}

fn rename(cluster: &mut Cluster, from: &str, to: &str) {
    let rename = Op::Rename(at(from), at(to), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(1, rename)), 0, "{from} to {to}");
}

/// How many files each member has counted opens of.
fn counts(cluster: &Cluster) -> Vec<u64> {
    cluster.members.values().map(|member| member.node().stats().open_files).collect()
}

fn orphans(cluster: &Cluster) -> usize {
    cluster.members.values().map(|member| member.node().orphans()).sum()
}

/// Time passes, and everything that is said is heard.
fn wait(cluster: &mut Cluster, seconds: i64) {
    for _ in 0..20 * seconds {
        cluster.carry(|_, _| false);
        cluster.tick(SECOND / 20);
    }
}

/// An open counts at the cluster member that leads it, and only there.
#[test]
fn opens_counted_at_their_leader() {
    let mut cluster = Cluster::new(3);
    let file = open(&mut cluster, 2, create("a2"));
    assert_eq!(counts(&cluster), [0, 1, 0]);
    // It is renamed to another member's name, and asked for by the old one: a transaction of two.
    rename(&mut cluster, "a2", "b3");
    let before = cluster.engines[&2].appended();
    assert_eq!(open(&mut cluster, 2, Op::Open(seen(file.ino, "a2"), FLAGS)).ino, file.ino);
    assert_eq!(cluster.engines[&2].appended(), before, "an open writes nothing");
    assert_eq!(open(&mut cluster, 3, Op::OpenAt(at("b3"), FLAGS)).ino, file.ino);
    assert_eq!(counts(&cluster), [0, 1, 1]);
    for (member, reply) in [(3, 0), (2, 0), (2, 0), (2, libc::EBADF), (3, libc::EBADF)] {
        assert_eq!(errno(&cluster.ask(member, Op::Release(file.ino))), reply);
    }
    assert_eq!(counts(&cluster), [0, 0, 0]);
}

/// An open that changes nothing records no answer, and one that truncates does.
#[test]
fn recorded_answers_of_opens() {
    let mut cluster = Cluster::new(2);
    let origin = |seq| Some(Origin { client: ClientId([7; 16]), seq, retry: false });
    assert_eq!(errno(&cluster.ask_from(1, create("a1"), origin(1))), 0);
    let before = cluster.engines[&1].appended();
    for (seq, op) in
        [(2, create("a1")), (3, Op::OpenAt(at("a1"), FLAGS)), (4, Op::OpenAt(at("b1"), FLAGS))]
    {
        let expected = if seq == 4 { libc::ENOENT } else { 0 };
        assert_eq!(errno(&cluster.ask_from(1, op, origin(seq))), expected);
    }
    assert_eq!(cluster.engines[&1].appended(), before);
    let truncate = Op::OpenAt(at("a1"), OpenFlags { truncate: true, ..FLAGS });
    assert_eq!(errno(&cluster.ask_from(1, truncate, origin(5))), 0);
    assert!(cluster.engines[&1].appended() > before);
    // After a restart a client that repeats the creation has the file open again.
    cluster.restart(1);
    assert_eq!(counts(&cluster), [0, 0]);
    let retry = origin(1).map(|origin| Origin { retry: true, ..origin });
    let again = cluster.ask_from(1, create("a1"), retry);
    assert!(matches!(again, Ok(Answer::Opened { created: true, .. })), "{again:?}");
    assert_eq!(counts(&cluster), [1, 0]);
}

/// A file that is open at another cluster member outlives its last name.
#[test]
fn unlinked_file_open_elsewhere() {
    let mut cluster = Cluster::new(3);
    let file = open(&mut cluster, 1, create("a1"));
    rename(&mut cluster, "a1", "b2");
    open(&mut cluster, 2, Op::OpenAt(at("b2"), FLAGS));
    assert_eq!(errno(&cluster.ask(1, Op::Release(file.ino))), 0);
    // It goes with a rename, led by a third member.
    cluster.inode(3, mknod("c3"));
    rename(&mut cluster, "c3", "b2");
    wait(&mut cluster, 20);
    assert_eq!(orphans(&cluster), 1);
    // Where it is open it can be looked at and cut; it is opened by number, at its home.
    let set = SetAttr { size: Some(9), through_handle: true, ..SetAttr::default() };
    let cut = cluster.inode(2, Op::SetAttr(seen(file.ino, "b2"), set));
    assert_eq!((cut.nlink, cut.size), (0, 9));
    for truncate in [false, true] {
        let flags = OpenFlags { truncate, ..FLAGS };
        assert_eq!(errno(&cluster.ask(2, Op::Open(seen(file.ino, "b2"), flags))), libc::ESTALE);
    }
    assert_eq!(open(&mut cluster, 1, Op::Open(InodeRef::by_id(file.ino), FLAGS)).size, 9);
    assert_eq!(counts(&cluster), [1, 1, 0]);
    assert_eq!(errno(&cluster.ask(2, Op::Release(file.ino))), 0);
    wait(&mut cluster, 20);
    assert_eq!(cluster.inode(3, Op::GetAttr(InodeRef::by_id(file.ino))).nlink, 0);
    assert_eq!(errno(&cluster.ask(1, Op::Release(file.ino))), 0);
    wait(&mut cluster, 1);
    assert_eq!((orphans(&cluster), counts(&cluster)), (0, vec![0, 0, 0]));
    assert_eq!(errno(&cluster.ask(1, Op::GetAttr(InodeRef::by_id(file.ino)))), libc::ESTALE);
}

/// A file that was never renamed is deleted by its own cluster member, which asks no other.
#[test]
fn unlinked_file_that_was_never_renamed() {
    let mut cluster = Cluster::new(2);
    for (path, open_then) in [("a2", false), ("b2", true)] {
        let file = open(&mut cluster, 2, create(path));
        if !open_then {
            assert_eq!(errno(&cluster.ask(2, Op::Release(file.ino))), 0);
        }
        assert_eq!(errno(&cluster.ask(2, Op::Unlink(at(path)))), 0);
        assert_eq!(orphans(&cluster), usize::from(open_then), "{path}");
        let is_question = |message: &Message| matches!(message, Message::Poll { .. });
        cluster.tick(SECOND);
        assert!(cluster.carry(|_, message| is_question(message)).is_none(), "nobody else is asked");
        if open_then {
            assert_eq!(errno(&cluster.ask(2, Op::Release(file.ino))), 0);
            assert_eq!(orphans(&cluster), 0, "gone with the last release");
        }
    }
}

/// A name that is found by its directory may be opened at another member than its owner.
#[test]
fn opens_led_by_other_members() {
    let mut cluster = Cluster::new(3);
    let dirs = ["a1", "a2", "a3"].map(|name| cluster.inode(1, Op::MkDir(at(name), 0o755)).ino);
    // Some directory has the entry of the name at another member than the one that leads requests
    // for it from the root.
    for (name, dir) in ["a1", "a2", "a3"].into_iter().zip(dirs) {
        let owner = cluster.placement.owner_of(dir, b"walked").id;
        let leader = cluster.placement.owner_of(1, b"walked").id;
        let path = format!("{name}/walked");
        let file = open(&mut cluster, leader, create(&path));
        assert_eq!(counts(&cluster)[leader as usize - 1], 1);
        assert_eq!(errno(&cluster.ask(owner, Op::Unlink(at(&path)))), 0);
        wait(&mut cluster, 1);
        assert_eq!(orphans(&cluster), 1, "{path}: made at {owner}, open at {leader}");
        assert_eq!(errno(&cluster.ask(leader, Op::Release(file.ino))), 0);
        wait(&mut cluster, 10);
        assert_eq!(orphans(&cluster), 0);
    }
}

/// A file that was made without a name gets one at another cluster member.
#[test]
fn link_of_unnamed_file_at_another_member() {
    let mut cluster = Cluster::new(3);
    let home = cluster.placement.home_of(1).id;
    let tmp = |exclusive| Op::TmpFile { dir: 1, mode: 0o600, exclusive };
    let (file, secret) =
        (open(&mut cluster, home, tmp(false)), open(&mut cluster, home, tmp(true)));
    assert_eq!(counts(&cluster)[home as usize - 1], 2);
    for node in 1..=3 {
        assert_eq!(
            errno(
                &cluster.ask(node, Op::Link(InodeRef::by_id(secret.ino), at(&format!("a{node}"))))
            ),
            libc::ENOENT
        );
    }
    let elsewhere = (1..=3).find(|node| *node != home).unwrap();
    let name = format!("b{elsewhere}");
    assert_eq!(cluster.inode(elsewhere, Op::Link(InodeRef::by_id(file.ino), at(&name))).nlink, 1);
    open(&mut cluster, elsewhere, Op::OpenAt(at(&name), FLAGS));
    // From now on it may be open anywhere: its home does not decide alone when its own last release
    // comes.
    assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&name)))), 0);
    for ino in [file.ino, secret.ino] {
        assert_eq!(errno(&cluster.ask(home, Op::Release(ino))), 0);
    }
    wait(&mut cluster, 10);
    assert_eq!(orphans(&cluster), 1);
    assert_eq!(errno(&cluster.ask(elsewhere, Op::Release(file.ino))), 0);
    wait(&mut cluster, 10);
    assert_eq!(orphans(&cluster), 0);
}

/// A cluster member that waits for claims keeps each file alive.
#[test]
fn files_kept_during_the_grace_period() {
    let mut cluster = Cluster::new(3);
    cluster.serves = true;
    (1..=3).for_each(|id| cluster.restart(id));
    cluster.members.values().for_each(|member| assert_eq!(member.node().end_grace().unwrap(), 0));
    let file = open(&mut cluster, 1, create("a1"));
    rename(&mut cluster, "a1", "b2");
    let same = open(&mut cluster, 3, Op::Open(seen(file.ino, "c3"), FLAGS));
    assert_eq!(same.ino, file.ino);
    assert_eq!(errno(&cluster.ask(1, Op::Release(file.ino))), 0);
    assert_eq!(errno(&cluster.ask(2, Op::Unlink(at("b2")))), 0);
    cluster.restart(3);
    wait(&mut cluster, 20);
    assert_eq!(orphans(&cluster), 1);
    // The claim is of a file with a record that another member owns.
    let claimed = cluster.claim(3, seen(file.ino, "c3"));
    assert!(
        matches!(&claimed, Ok(Answer::Opened { inode, .. }) if inode.ino == file.ino),
        "{claimed:?}"
    );
    assert_eq!(counts(&cluster), [0, 0, 1]);
    cluster.members[&3].node().end_grace().unwrap();
    wait(&mut cluster, 20);
    assert_eq!(orphans(&cluster), 1);
    assert_eq!(errno(&cluster.ask(3, Op::Release(file.ino))), 0);
    wait(&mut cluster, 10);
    assert_eq!(orphans(&cluster), 0);
    let gone = cluster.claim(3, seen(file.ino, "c3"));
    assert_eq!(errno(&gone), libc::ESTALE, "it does not exist any more");
}

/// A claim that is decided after the grace period does not count.
#[test]
fn claim_after_the_grace_period() {
    let mut cluster = Cluster::new(2);
    cluster.serves = true;
    cluster.restart(2);
    let file = open(&mut cluster, 1, create("a1"));
    rename(&mut cluster, "a1", "b2");
    assert_eq!(errno(&cluster.ask(2, Op::Unlink(at("b2")))), 0);
    assert_eq!(errno(&cluster.ask(1, Op::Release(file.ino))), 0);
    let claim = cluster.begin_claim(2, seen(file.ino, "b2"));
    let held = cluster.carry(|_, message| matches!(message, Message::Voted(..))).unwrap();
    cluster.members[&2].node().end_grace().unwrap();
    cluster.under_way.push_back(held);
    wait(&mut cluster, 5);
    let reply = claim.lock().take().unwrap();
    assert_eq!(errno(&reply), libc::ESTALE);
    assert_eq!((counts(&cluster), orphans(&cluster)), (vec![0, 0], 0));
}

/// After a restart the home of files without names asks the other members about them again.
#[test]
fn orphans_after_a_restart_of_their_home() {
    let mut cluster = Cluster::new(2);
    let file = open(&mut cluster, 1, create("a1"));
    rename(&mut cluster, "a1", "b2");
    open(&mut cluster, 2, Op::OpenAt(at("b2"), FLAGS));
    assert_eq!(errno(&cluster.ask(2, Op::Unlink(at("b2")))), 0);
    cluster.restart(1);
    assert_eq!(orphans(&cluster), 1);
    cluster.tick(SECOND);
    let asks = |message: &Message| {
        matches!(message,
            Message::Poll { question: PollQuestion::Held(files), .. } if *files == [file.ino])
    };
    let question = cluster.carry(|to, message| to == 2 && asks(message)).unwrap();
    cluster.under_way.push_back(question);
    wait(&mut cluster, 10);
    assert_eq!(orphans(&cluster), 1);
    assert_eq!(errno(&cluster.ask(2, Op::Release(file.ino))), 0);
    wait(&mut cluster, 10);
    assert_eq!(orphans(&cluster), 0);
}

/// An open that is about to count keeps a file that loses its name meanwhile.
#[test]
fn open_in_flight_while_the_name_goes() {
    let mut cluster = Cluster::new(3);
    let file = cluster.inode(1, mknod("a1"));
    rename(&mut cluster, "a1", "b2");
    let asked = Request { creds: Creds::root(), op: Op::Open(seen(file.ino, "c3"), FLAGS) };
    let slot = cluster.submit(3, asked, None);
    // The home has given up its lock of the row that led to the name; the leader does not know it
    // yet.
    let agreed =
        cluster.carry(|to, message| to == 3 && matches!(message, Message::Voted(..))).unwrap();
    cluster.carry(|_, _| false);
    assert!(slot.lock().is_none());
    assert_eq!(errno(&cluster.ask(2, Op::Unlink(at("b2")))), 0);
    for _ in 0..20 {
        // Nobody asks the participant again so soon.
        cluster.carry(|_, message| matches!(message, Message::Prepare { .. }));
        cluster.tick(SECOND / 200);
    }
    assert_eq!(orphans(&cluster), 1);
    cluster.under_way.push_back(agreed);
    wait(&mut cluster, 10);
    assert_eq!(errno(&slot.lock().take().unwrap()), 0);
    assert_eq!((counts(&cluster), orphans(&cluster)), (vec![0, 0, 1], 1));
    assert_eq!(errno(&cluster.ask(3, Op::Release(file.ino))), 0);
    wait(&mut cluster, 10);
    assert_eq!(orphans(&cluster), 0);
}
