//! A server of what never changes: changes are refused, and a client goes on with whichever process
//! serves the same.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Client, Fixture, LEASE, at, create, errno, hello, opened, seen};
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Accessed, Op, OpenFlags, SetAttr};
use kestrel_types::wire::{Reclaim, ReclaimOpen, SessionState, ToServer};

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// A server of a tree with one file, and the file.
fn served() -> (Fixture, InodeRef) {
    let fixture = Fixture::new();
    let mut writer = Client::connected(1, &fixture);
    let (inode, _) = opened(&writer.execute(&fixture, create("a")));
    assert_eq!(errno(&writer.execute(&fixture, Op::Release(inode.ino))), 0);
    writer.send(&fixture, vec![ToServer::Bye]);
    fixture.sync();
    (fixture.immutable(), seen(&inode, "a"))
}

/// Every change is refused with EROFS, numbers of objects and access times as well; reading is not.
#[test]
fn changes_refused() {
    let (fixture, file) = served();
    let mut client = Client::connected(2, &fixture);
    let before = fixture.rows();
    let write = OpenFlags { write: true, ..READ };
    for op in [
        create("b"),
        Op::MkNod { place: at("b"), kind: Kind::File, mode: 0o644, rdev: 0 },
        Op::Unlink(at("a")),
        Op::Open(file.clone(), write),
        Op::Open(file.clone(), OpenFlags { truncate: true, ..READ }),
        Op::SetAttr(file.clone(), SetAttr { mode: Some(0), ..SetAttr::default() }),
        Op::Accessed(file.clone(), Accessed { at: 7, relative: false }),
        Op::AllocObjects(5),
        Op::QuotaCheck { repair: true },
    ] {
        let shown = format!("{op:?}");
        assert_eq!(errno(&client.execute(&fixture, op)), libc::EROFS, "{shown}");
    }
    assert_eq!(errno(&client.execute(&fixture, Op::Lookup(at("a")))), 0);
    assert_eq!(errno(&client.execute(&fixture, Op::Open(file.clone(), READ))), 0);
    assert_eq!(errno(&client.execute(&fixture, Op::GetAttr(file.clone()))), 0);
    assert_eq!(errno(&client.execute(&fixture, Op::Release(file.ino))), 0);
    assert_eq!(fixture.rows(), before);
}

/// A client with a session at another process says what it has open and goes on, as often as it
/// comes; what it had open here before counts no more.
#[test]
fn sessions_of_other_processes() {
    let (mut fixture, file) = served();
    let before = fixture.rows();
    let mut client = Client::new(2);
    client.incarnation = 5;
    client.established = true;
    assert_eq!(client.connect(&fixture), SessionState::Restarted);
    let open = |count| Reclaim {
        opens: vec![ReclaimOpen { file: file.clone(), count, linkable: false }],
        last: true,
        ..Reclaim::default()
    };
    assert!(client.reclaim(&fixture, open(2)).lost_opens.is_empty());
    assert_eq!(fixture.server.stats(0).opens, 2);
    assert_eq!(errno(&client.execute(&fixture, Op::Open(file.clone(), READ))), 0);
    // Elsewhere it has closed two of them meanwhile.
    assert_eq!(client.connect(&fixture), SessionState::Restarted);
    assert!(client.reclaim(&fixture, open(1)).lost_opens.is_empty());
    assert_eq!(fixture.server.stats(0).opens, 1);
    assert_eq!(errno(&client.execute(&fixture, Op::Release(file.ino))), 0);
    assert_eq!(errno(&client.execute(&fixture, Op::Release(file.ino))), libc::EBADF);
    // One that says nothing any more is forgotten, whether it reclaimed or not.
    let mut silent = Client::new(3);
    silent.send_hello(&fixture, hello(3, 9, true));
    assert_eq!(fixture.server.stats(0).sessions, 2);
    fixture.pass(2 * LEASE);
    let stats = fixture.server.stats(fixture.now);
    assert_eq!((stats.sessions, stats.opens), (0, 0));
    // It comes again after that.
    assert_eq!(client.connect(&fixture), SessionState::Restarted);
    assert!(client.reclaim(&fixture, open(1)).lost_opens.is_empty());
    assert_eq!(errno(&client.execute(&fixture, Op::GetAttr(file.clone()))), 0);
    assert_eq!(fixture.rows(), before);
}
