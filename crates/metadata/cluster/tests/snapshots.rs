//! Snapshots of several members, messages carried by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Op, RenameFlags, XattrFlags};

use common::errno;
use common::members::{Cluster, at, mknod};
use common::snapshots::{create, remove};

/// A tree over three members, with a directory, a file and a link of each.
fn fill(cluster: &mut Cluster) {
    for node in 1..=3 {
        cluster.inode(node, Op::MkDir(at(&format!("a{node}")), 0o755));
        let file = cluster.inode(node, mknod(&format!("b{node}")));
        let next = node % 3 + 1;
        let file = InodeRef { ino: file.ino, seen: Some((1, name(&format!("b{node}")))) };
        assert_eq!(errno(&cluster.ask(node, Op::Link(file, at(&format!("c{next}"))))), 0);
        let value = b"value"[..].into();
        let set = Op::SetXattr(
            InodeRef::by_id(1),
            format!("user.{node}").into_bytes().into(),
            value,
            XattrFlags::default(),
        );
        assert_eq!(errno(&cluster.ask(1, set)), 0);
    }
    for node in 1..=3 {
        for other in 1..=3 {
            cluster.inode(node, mknod(&format!("a{node}/d{other}")));
        }
    }
}

/// Changes of everything that [`fill`] has made.
fn change(cluster: &mut Cluster) {
    for node in 1..=3 {
        let next = node % 3 + 1;
        let to = at(&format!("a{next}/e{node}"));
        let rename = Op::Rename(at(&format!("b{node}")), to, RenameFlags::default());
        assert_eq!(errno(&cluster.ask(node, rename)), 0);
        assert_eq!(errno(&cluster.ask(node, Op::Unlink(at(&format!("c{next}"))))), 0);
        for other in 1..=3 {
            assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&format!("a{node}/d{other}"))))), 0);
        }
        cluster.inode(node, mknod(&format!("f{node}")));
        let name = format!("user.{node}").into_bytes().into();
        assert_eq!(errno(&cluster.ask(1, Op::RemoveXattr(InodeRef::by_id(1), name))), 0);
    }
    let to = at("a2/moved");
    assert_eq!(errno(&cluster.ask(1, Op::Rename(at("a1"), to, RenameFlags::default()))), 0);
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Rows at a snapshot are those of when it was made, whatever happens after that; records are the
/// same at all members.
#[test]
fn rows_at_a_snapshot_of_three_nodes() {
    let mut cluster = Cluster::new(3);
    fill(&mut cluster);
    let before = cluster.tree();
    let one = cluster.snapshot(1, "one");
    assert!(!one.cutting && !one.removing);
    assert_eq!(cluster.tree_at(one.id), before);
    change(&mut cluster);
    assert_eq!(cluster.tree_at(one.id), before);
    let between = cluster.tree();
    let two = cluster.snapshot(1, "two");
    assert!(two.id > one.id);
    fill_again(&mut cluster);
    for _ in 0..2 {
        assert_eq!(cluster.tree_at(one.id), before);
        assert_eq!(cluster.tree_at(two.id), between);
        cluster.come_to_rest();
        let expected = vec![(one.id, false, false), (two.id, false, false)];
        assert!(cluster.records().values().all(|records| *records == expected));
        (1..=3).for_each(|node| cluster.crash(node));
    }
}

fn fill_again(cluster: &mut Cluster) {
    for node in 1..=3 {
        cluster.inode(node, mknod(&format!("c{node}")));
        cluster.inode(node, mknod(&format!("a3/d{node}")));
    }
}

/// What is wrong with a request is told before anything is stopped, and names are free again when a
/// snapshot has been removed.
#[test]
fn errors_and_names_of_snapshots() {
    let mut cluster = Cluster::new(3);
    fill(&mut cluster);
    let dir = cluster.inode(2, Op::Lookup(at("a2"))).ino;
    let file = cluster.inode(3, Op::Lookup(at("a3/d1"))).ino;
    assert_eq!(errno(&cluster.ask(1, create(dir, "_x"))), libc::EINVAL);
    assert_eq!(errno(&cluster.ask(1, create(dir + (1 << 20), "x"))), libc::ENOENT);
    assert_ne!(errno(&cluster.ask(1, create(file, "x"))), 0);
    cluster.snapshot(dir, "x");
    assert_eq!(errno(&cluster.ask(1, create(dir, "x"))), libc::EEXIST);
    let hold = |hold| Op::SnapshotHold { dir, name: name("y"), tag: name("tag"), hold };
    let rename = Op::SnapshotRename { dir, from: name("x"), to: name("y") };
    assert_eq!(errno(&cluster.ask(1, rename)), 0);
    assert_eq!(errno(&cluster.ask(1, hold(true))), 0);
    assert_eq!(errno(&cluster.ask(1, remove(dir, "y"))), libc::EBUSY);
    assert_eq!(errno(&cluster.ask(1, hold(false))), 0);
    assert_eq!(errno(&cluster.ask(1, remove(dir, "y"))), 0);
    cluster.snapshot(dir, "y");
}

/// Removal leaves nothing: no record, no history row, at no member.
#[test]
fn removal_at_all_members() {
    let mut cluster = Cluster::new(3);
    fill(&mut cluster);
    let before = cluster.tree();
    let one = cluster.snapshot(1, "one");
    change(&mut cluster);
    let two = cluster.snapshot(1, "two");
    fill_again(&mut cluster);
    assert!(cluster.history_rows() > 0);
    assert_eq!(errno(&cluster.ask(1, remove(1, "two"))), 0);
    cluster.come_to_rest();
    assert_eq!(cluster.tree_at(one.id), before);
    assert!(cluster.records().values().all(|records| *records == [(one.id, false, false)]));
    assert_eq!(errno(&cluster.ask(1, remove(1, "two"))), libc::ENOENT);
    assert_eq!(errno(&cluster.ask(1, remove(1, "one"))), 0);
    cluster.come_to_rest();
    assert_eq!(cluster.history_rows(), 0);
    assert!(cluster.records().values().all(Vec::is_empty));
    cluster.check_history_shares();
    assert!(two.id > one.id);
}
