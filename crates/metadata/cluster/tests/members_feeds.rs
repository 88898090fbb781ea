//! Change feeds of directories at several members, messages carried by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_types::feed::{FeedRow, FeedStart};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Op, RenameFlags, SetAttr};

use common::errno;
use common::feeds::{FEED, record};
use common::members::{Cluster, at, mknod};

fn unset(dir: u64) -> Op {
    Op::RemoveXattr(InodeRef::by_id(dir), FEED.into())
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename(at(from), at(to), RenameFlags::default())
}

impl Cluster {
    fn did(&mut self, op: Op) {
        let reply = self.ask(1, op.clone());
        assert_eq!(errno(&reply), 0, "{op:?}: {reply:?}");
    }
}

/// A reader hears of the changes that all members make, in their order, by pages of any length, and
/// goes on by its cursor when members have restarted.
#[test]
fn feed_of_all_members() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    assert_eq!(
        errno(&cluster.ask(1, Op::FeedRead { dir: top, from: FeedStart::Now, limit: 1 })),
        61
    );
    cluster.did(record(top));
    let (none, start) = cluster.events(top, FeedStart::Oldest, 10);
    assert_eq!(none, [""; 0]);
    let changes = [
        (Op::MkDir(at("a1/b2"), 0o755), "create b2"),
        (mknod("a1/b2/c3"), "create b2/c3"),
        (mknod("a1/c1"), "create c1"),
        (rename("a1/c1", "a1/c2"), "rename c1 -> c2"),
        (rename("a1/c2", "a1/b2/c3"), "rename c2 -> b2/c3"),
        (mknod("f2"), ""),
        (rename("f2", "a1/d3"), "moved-in d3"),
        (rename("a1/b2", "a1/e3"), "rename b2 -> e3"),
        (mknod("a1/e3/c2"), "create e3/c2"),
        (Op::Unlink(at("a1/e3/c3")), "remove e3/c3"),
        (rename("a1/e3/c2", "f3"), "moved-out e3/c2"),
        (Op::RmDir(at("a1/e3"), None), "remove e3"),
        (Op::Link(InodeRef::by_id(0), at("a1/f1")), "create f1"),
    ];
    let (mut told, mut from) = (Vec::new(), start);
    for (number, (op, event)) in changes.into_iter().enumerate() {
        let op = match op {
            Op::Link(_, place) => {
                Op::Link(InodeRef::by_id(cluster.inode(1, Op::Lookup(at("a1/d3"))).ino), place)
            }
            op => op,
        };
        cluster.did(op);
        if !event.is_empty() {
            told.push(event.to_owned());
        }
        if number % 4 == 3 {
            cluster.restart(number as u32 / 4 % 3 + 1);
        }
        let (new, next) = cluster.events(top, from, 10);
        assert_eq!(new, [event].into_iter().filter(|event| !event.is_empty()).collect::<Vec<_>>());
        from = next;
    }
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let file = cluster.inode(1, Op::Lookup(at("a1/d3")));
    cluster.did(Op::SetAttr(InodeRef::by_id(file.ino), chmod));
    for limit in [1, 2, 5, 100] {
        assert_eq!(cluster.events(top, start, limit).0, told, "{limit}");
        assert_eq!(cluster.events(top, FeedStart::Oldest, limit).0, told, "{limit}");
    }
    cluster.did(unset(top));
    let read = Op::FeedRead { dir: top, from, limit: 1 };
    assert_eq!(errno(&cluster.ask(1, read.clone())), libc::ESTALE);
    cluster.did(record(top));
    assert_eq!(errno(&cluster.ask(1, read)), libc::ESTALE);
    assert_eq!(cluster.page(top, FeedStart::Oldest, 10).events, []);
}

/// A row that cannot be read is told to the reader, whichever node has it.
#[test]
fn damaged_row_of_another_node() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    cluster.did(record(top));
    for name in ["a1/b1", "a1/b2", "a1/b3"] {
        cluster.did(mknod(name));
    }
    let page = cluster.page(top, FeedStart::Oldest, 10);
    for (position, _) in page.events {
        let row = Mutation {
            key: FeedRow::Event(position).key(top),
            value: Some(b"no event"[..].into()),
        };
        let engine = cluster.members[&position.node()].node().engine().clone();
        let mut event = None;
        let read = engine.get_many(&[row.key.borrow()], &mut |_, found| {
            event = found.value.map(Box::<[u8]>::from);
        });
        read.unwrap();
        let whole = Mutation { key: row.key.clone(), value: event };
        engine.commit(BatchKind::Growing, vec![row]).unwrap();
        let read = Op::FeedRead { dir: top, from: FeedStart::Oldest, limit: 10 };
        let reply = cluster.ask(1, read);
        assert_eq!(errno(&reply), libc::EIO);
        assert!(format!("{reply:?}").contains("damaged row of the feed"), "{reply:?}");
        engine.commit(BatchKind::Growing, vec![whole]).unwrap();
    }
    assert_eq!(cluster.page(top, FeedStart::Oldest, 10).events.len(), 3);
}
