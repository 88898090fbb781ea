//! Quotas at several members, messages carried by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use kestrel_cluster::{Message, QuotaMessage};
use kestrel_types::clock::SECOND;
use kestrel_types::ids::ROOT;
use kestrel_types::key::Table;
use kestrel_types::name::InodeRef;
use kestrel_types::quota::{OverSince, QuotaLimits, QuotaSubject};
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, RenameFlags, Request, SetAttr};

use common::errno;
use common::members::{Cluster, at, mknod};
use common::quotas::limits;

fn rename(from: &str, to: &str) -> Op {
    Op::Rename(at(from), at(to), RenameFlags::default())
}

/// Files and bytes of nested directories are limited by each of them over all members, and what
/// one member frees is room at the others.
#[test]
fn nested_quotas_of_members() {
    let mut cluster = Cluster::new(3);
    for dir in ["a1", "a1/b2", "a1/b2/c3", "f3"] {
        cluster.inode(1, Op::MkDir(at(dir), 0o755));
    }
    for file in ["a1/b2/d1", "a1/b2/d2", "a1/d3"] {
        cluster.inode(1, mknod(file));
        assert_eq!(cluster.write(file, 100), 0);
    }
    let outer = cluster.dir_quota("a1", limits(1000, 8));
    assert_eq!(cluster.used(outer), (5, 300));
    let inner = cluster.dir_quota("a1/b2", limits(500, None));
    assert_eq!((cluster.used(outer), cluster.used(inner)), ((5, 300), (3, 200)));
    cluster.quotas_are_exact();
    assert_eq!(cluster.write("a1/b2/d1", 401), libc::EDQUOT);
    assert_eq!(cluster.write("a1/b2/d1", 400), 0);
    assert_eq!(cluster.write("a1/b2/d2", 101), libc::EDQUOT);
    assert_eq!(cluster.write("a1/d3", 501), libc::EDQUOT);
    for name in ["a1/b2/c3/e1", "a1/b2/c3/e2", "a1/e3"] {
        assert_eq!(cluster.errno(mknod(name)), 0, "{name}");
    }
    for name in ["a1/f1", "a1/f2", "a1/b2/c3/f3"] {
        assert_eq!(cluster.errno(mknod(name)), libc::EDQUOT, "{name}");
    }
    assert_eq!(cluster.errno(Op::Unlink(at("a1/e3"))), 0);
    assert_eq!(cluster.errno(mknod("a1/f2")), 0);
    assert_eq!(cluster.errno(mknod("a1/f1")), libc::EDQUOT);
    assert_eq!(cluster.used(outer), (8, 600));
    cluster.quotas_are_exact();
    for node in 1..=3 {
        cluster.restart(node);
        cluster.quotas_are_exact();
        assert_eq!(cluster.errno(mknod("a1/f1")), libc::EDQUOT);
        assert_eq!(cluster.used(outer), (8, 600));
    }
    let told = cluster.quotas(Op::QuotaList(Some(InodeRef::by_id(match inner {
        QuotaSubject::Dir(dir) => dir,
        _ => unreachable!(),
    }))));
    let told: Vec<_> = told.iter().map(|info| (info.of, info.used.files)).collect();
    assert_eq!(told, [(inner, 5), (outer, 8)]);
    assert_eq!(cluster.ask(1, Op::QuotaRemove(inner)), Ok(Answer::Done));
    assert_eq!(cluster.used(outer), (8, 600));
    assert_eq!(cluster.errno(Op::QuotaRemove(inner)), libc::ENOENT);
    cluster.quotas_are_exact();
    assert_eq!(cluster.write("a1/b2/d2", 500), 0);
    assert_eq!(cluster.errno(mknod("f3/free")), 0);
}

/// Transactions over several members are charged: a file takes what it counts along over an edge,
/// what would not fit or must not move stays where it is.
#[test]
fn transactions_over_an_edge() {
    let mut cluster = Cluster::new(3);
    for dir in ["a1", "a2", "a1/c1", "b3"] {
        cluster.inode(1, Op::MkDir(at(dir), 0o755));
    }
    for file in ["a1/d1", "a1/d2", "b3/d3"] {
        cluster.inode(1, mknod(file));
        assert_eq!(cluster.write(file, 60), 0);
    }
    let one = cluster.dir_quota("a1", limits(1000, 100));
    let two = cluster.dir_quota("a2", limits(100, 100));
    assert_eq!(cluster.errno(rename("a1/d1", "a2/e3")), 0);
    assert_eq!(cluster.errno(rename("a1/d2", "a2/e1")), libc::EDQUOT);
    assert_eq!(cluster.errno(rename("b3/d3", "a2/e2")), libc::EDQUOT);
    assert_eq!((cluster.used(one), cluster.used(two)), ((2, 60), (1, 60)));
    for (from, to) in [("a1/c1", "a2/c1"), ("b3", "a1/b3")] {
        assert_eq!(cluster.errno(rename(from, to)), libc::EXDEV, "{from}");
    }
    assert_eq!(cluster.errno(rename("a1/c1", "a1/c2")), 0);
    assert_eq!(cluster.errno(rename("a2", "b3/a2")), 0);
    let file = cluster.inode(1, Op::Lookup(at("a1/d2")));
    let parent = cluster.inode(1, Op::Lookup(at("a1"))).ino;
    let name = kestrel_types::name::Name::new(b"d2").unwrap();
    let seen = InodeRef { ino: file.ino, seen: Some((parent, name)) };
    assert_eq!(cluster.errno(Op::Link(seen.clone(), at("b3/f1"))), libc::EXDEV);
    assert_eq!(cluster.errno(Op::Link(seen, at("a1/f3"))), 0);
    assert_eq!(cluster.used(one), (3, 60));
    assert_eq!(cluster.errno(rename("a1/f3", "b3/f3")), libc::EXDEV);
    cluster.quotas_are_exact();
    assert_eq!(cluster.write("a1/f3", 1001), libc::EDQUOT);
    assert_eq!(cluster.write("a1/f3", 1000), 0);
    assert_eq!(cluster.errno(Op::Unlink(at("a1/d2"))), 0);
    cluster.quotas_are_exact();
    assert_eq!(cluster.used(one), (2, 1000));
}

/// Users, groups and the volume; the superuser gives away more than a limit allows, and then
/// nobody else grows.
#[test]
fn owners_at_members() {
    let mut cluster = Cluster::new(3);
    let user = QuotaSubject::User(7);
    for name in ["a1", "a2", "a3"] {
        cluster.inode(1, mknod(name));
    }
    let give = |cluster: &mut Cluster, name: &str, uid| {
        let file = cluster.inode(1, Op::Lookup(at(name)));
        let seen = Some((1, kestrel_types::name::Name::new(name.as_bytes()).unwrap()));
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        cluster.errno(Op::SetAttr(InodeRef { ino: file.ino, seen }, set))
    };
    assert_eq!(give(&mut cluster, "a1", 7), 0);
    assert_eq!(cluster.set_quota(user, limits(None, 2)).used.files, 1);
    let as_user = |cluster: &mut Cluster, op: Op| {
        let creds = Creds { uid: 7, gid: 7, ..Creds::root() };
        let slot = cluster.submit(1, Request { creds, op }, None);
        for _ in 0..1000 {
            cluster.carry(|_, _| false);
            if let Some(reply) = slot.lock().take() {
                return errno(&reply);
            }
            cluster.tick(SECOND / 100);
        }
        panic!("no answer");
    };
    assert_eq!(as_user(&mut cluster, mknod("b2")), 0);
    assert_eq!(as_user(&mut cluster, mknod("b3")), libc::EDQUOT);
    for name in ["a2", "a3"] {
        assert_eq!(give(&mut cluster, name, 7), 0, "{name}");
    }
    assert_eq!(cluster.used(user), (4, 0));
    assert_eq!(give(&mut cluster, "a1", 0), 0);
    assert_eq!(as_user(&mut cluster, mknod("b1")), libc::EDQUOT);
    assert_eq!(cluster.errno(Op::Unlink(at("a2"))), 0);
    assert_eq!(cluster.errno(Op::Unlink(at("a3"))), 0);
    assert_eq!(as_user(&mut cluster, mknod("b1")), 0);
    let volume = cluster.set_quota(QuotaSubject::Volume, limits(50, None));
    assert_eq!(volume.used.files, 3);
    assert_eq!(cluster.write("b1", 51), libc::ENOSPC);
    assert_eq!(cluster.write("b1", 50), 0);
    cluster.quotas_are_exact();
    assert_eq!(as_user(&mut cluster, Op::QuotaSet(user, Box::default())), libc::EPERM);
    assert_eq!(as_user(&mut cluster, Op::QuotaCheck { repair: true }), libc::EPERM);
    assert_eq!(as_user(&mut cluster, Op::QuotaList(None)), libc::EPERM);
    let none = QuotaSubject::Dir(4711);
    assert_eq!(cluster.errno(Op::QuotaSet(none, Box::default())), libc::ENOENT);
}

/// What a member was lent and did not use does not keep others from the rest, also after the
/// leader or the member has started again; a crash does not bring back what a member freed.
#[test]
fn parts_of_members_that_restart() {
    let mut cluster = Cluster::new(3);
    let dir = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    let of = cluster.dir_quota("a1", limits(None, 12));
    assert_eq!(of, QuotaSubject::Dir(dir));
    let mut made = 0;
    for round in 0.. {
        let name = format!("a1/{}{}", ["b", "c", "d", "e"][round / 3 % 4], round % 3 + 1);
        match cluster.errno(mknod(&name)) {
            0 => made += 1,
            libc::EDQUOT => panic!("{made} of 12 fit"),
            errno => panic!("{errno}"),
        }
        match round % 4 {
            1 => cluster.crash(1),
            3 => cluster.crash(round as u32 % 3 + 1),
            _ => {}
        }
        if made == 12 {
            break;
        }
    }
    for name in ["f1", "f2", "f3"] {
        assert_eq!(cluster.errno(mknod(&format!("a1/{name}"))), libc::EDQUOT);
    }
    assert_eq!(cluster.errno(Op::Unlink(at("a1/b2"))), 0);
    cluster.crash(2);
    assert_eq!(cluster.errno(mknod("a1/f1")), 0);
    assert_eq!(cluster.errno(mknod("a1/f3")), libc::EDQUOT);
    assert_eq!(cluster.used(of), (12, 0));
    cluster.quotas_are_exact();
}

/// Above a soft limit there is the grace period, over all members, and a new one after usage has
/// been below it.
#[test]
fn soft_limits_of_members() {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    let soft =
        QuotaLimits { files: Some(10), soft_files: Some(3), grace: 100, ..limits(None, None) };
    let of = cluster.dir_quota("a1", soft);
    let since = |cluster: &mut Cluster| {
        let all = cluster.quotas(Op::QuotaList(None));
        all[0].since
    };
    for name in ["a1/b1", "a1/b2", "a1/b3"] {
        assert_eq!(cluster.errno(mknod(name)), 0);
    }
    assert_eq!(since(&mut cluster), OverSince::default());
    assert_eq!(cluster.errno(mknod("a1/c1")), 0);
    assert_ne!(since(&mut cluster), OverSince::default());
    cluster.restart(1);
    assert_ne!(since(&mut cluster), OverSince::default());
    assert_eq!(cluster.errno(mknod("a1/c2")), 0);
    cluster.clock.advance(101 * SECOND);
    for _ in 0..3 {
        cluster.tick(SECOND);
        cluster.carry(|_, _| false);
    }
    for name in ["a1/d1", "a1/d2", "a1/d3"] {
        assert_eq!(cluster.errno(mknod(name)), libc::EDQUOT, "{name}");
    }
    assert_eq!(cluster.errno(Op::Unlink(at("a1/b2"))), 0);
    assert_eq!(cluster.errno(mknod("a1/d1")), libc::EDQUOT);
    assert_eq!(cluster.errno(Op::Unlink(at("a1/c2"))), 0);
    for _ in 0..3 {
        cluster.tick(SECOND);
        cluster.carry(|_, _| false);
    }
    assert_eq!(since(&mut cluster), OverSince::default());
    assert_eq!(cluster.errno(mknod("a1/d1")), 0);
    assert_ne!(since(&mut cluster), OverSince::default());
    assert_eq!(cluster.used(of), (4, 0));
    cluster.quotas_are_exact();
}

/// Far from the limit members do not ask the leader.
#[test]
fn few_messages_far_from_the_limit() {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    cluster.dir_quota("a1", limits(None, 100_000));
    let asks = std::cell::Cell::new(0);
    for number in 0..600 {
        let slot = cluster.submit(
            1,
            Request { creds: Creds::root(), op: mknod(&format!("a1/file{number}")) },
            None,
        );
        for _ in 0..100 {
            cluster.carry(|_, message| {
                if matches!(message, Message::Quota(QuotaMessage::Ask(_))) {
                    asks.set(asks.get() + 1);
                }
                false
            });
            if slot.lock().take().is_some_and(|reply| errno(&reply) == 0) {
                break;
            }
            cluster.tick(SECOND / 100);
        }
    }
    assert!(asks.get() <= 2, "{} questions", asks.get());
    cluster.quotas_are_exact();
}

/// A member that is out of reach when a quota is made keeps it from being made; one that misses
/// only the end gets it later, and what it has committed meanwhile counts.
#[test]
fn quota_that_a_member_misses() {
    let mut cluster = Cluster::new(3);
    let dir = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    cluster.inode(1, mknod("a1/b2"));
    let of = QuotaSubject::Dir(dir);
    let set = Op::QuotaSet(of, Box::new(limits(None, 5)));
    let slot = cluster.submit(1, Request { creds: Creds::root(), op: set }, None);
    let is_set = |to: u32, message: &Message| {
        to == 3 && matches!(message, Message::Quota(QuotaMessage::Set { .. }))
    };
    for _ in 0..700 {
        while cluster.carry(is_set).is_some() {}
        cluster.tick(SECOND / 100);
    }
    assert_eq!(slot.lock().as_ref().map(errno), None, "it is tried again");
    let slot_file = cluster.submit(1, Request { creds: Creds::root(), op: mknod("a1/c3") }, None);
    for _ in 0..3000 {
        cluster.carry(|_, _| false);
        cluster.tick(SECOND / 100);
    }
    assert_eq!(slot.lock().as_ref().map(errno), Some(0));
    assert_eq!(slot_file.lock().as_ref().map(errno), Some(0));
    assert_eq!(cluster.used(of), (2, 0));
    cluster.quotas_are_exact();
}

/// A truncation that has read towards which quota a file with two names counts, before another
/// quota was set, is charged to that one, too.
#[test]
fn truncation_across_a_new_quota() {
    let mut cluster = Cluster::new(3);
    // Or nobody reads it.
    cluster.inode(1, Op::MkDir(at("other"), 0o755));
    cluster.dir_quota("other", limits(None, 1000));
    let of = QuotaSubject::Dir(ROOT);
    let reads_home = |_, message: &Message| match message {
        Message::Lent { rows, .. } => rows.iter().any(|(key, _)| key.table == Table::Quota),
        _ => false,
    };
    let mut held = 0;
    for number in 0..12 {
        let (one, two) = (format!("f{number}"), format!("g{number}"));
        let ino = cluster.inode(1, mknod(&one)).ino;
        assert_eq!(cluster.write(&one, 100), 0);
        let file = InodeRef { ino, seen: Some((ROOT, at(&one).name)) };
        assert_eq!(cluster.errno(Op::Link(file, at(&two))), 0);
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let request = Request { creds: Creds::root(), op: Op::OpenAt(at(&two), flags) };
        let slot = cluster.submit(1, request, None);
        let Some((to, envelope)) = cluster.carry(reads_home) else {
            assert_eq!(errno(&cluster.wait_for(&slot)), 0);
            continue;
        };
        held += 1;
        cluster.set_quota(of, limits(1 << 20, None));
        let now = cluster.now;
        cluster.members.get_mut(&to).unwrap().receive(envelope, now);
        assert_eq!(errno(&cluster.wait_for(&slot)), 0);
        cluster.quotas_are_exact();
        assert_eq!(cluster.errno(Op::QuotaRemove(of)), 0);
    }
    assert!(held > 0);
}
