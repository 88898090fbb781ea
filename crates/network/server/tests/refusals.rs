//! What clients may not do, and the errors that they get.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Client, Fixture, at, create, errno, hello, opened, seen};
use kestrel_meta::txn::WINDOW;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Commit, Creds, NewData, Op, OpenFlags, Request, SetAttr};
use kestrel_types::wire::{Answered, Body, ClientId, Hello, ToClient, ToServer, Versions};

/// The errno a Hello is refused with.
fn refused(fixture: &Fixture, hello: Hello) -> i32 {
    let mut client = Client::new(9);
    client.send_hello(fixture, hello);
    fixture.sync();
    assert!(client.is_closed());
    match client.received().as_slice() {
        [ToClient::Refused(refused)] => {
            assert!(!refused.reason.is_empty());
            refused.errno
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn reasons_of_refusals() {
    let fixture = Fixture::new();
    let newer = Versions { min: Versions::OURS.max + 1, max: Versions::OURS.max + 2 };
    assert_eq!(
        refused(&fixture, Hello { versions: newer, ..hello(1, 1, false) }),
        libc::EPROTONOSUPPORT
    );
    assert_eq!(
        refused(&fixture, Hello { volume: "other".into(), ..hello(1, 1, false) }),
        libc::ENOENT
    );
    assert_eq!(
        refused(&fixture, Hello { client: ClientId([0; 16]), ..hello(1, 1, false) }),
        libc::EPROTO
    );
    assert_eq!(refused(&fixture, hello(1, 0, false)), libc::EPROTO);
    let _client = Client::connected(1, &fixture);
    assert_eq!(refused(&fixture, hello(1, 1, true)), libc::ESTALE);
    assert_eq!(fixture.server.stats(0).totals.refused, 5);
}

/// A client that breaks the protocol loses its connection, and not its session.
#[test]
fn protocol_errors() {
    let fixture = Fixture::new();
    let root = Request { creds: Creds::root(), op: Op::Usage };
    let breaks: [fn(&mut Client, Request) -> ToServer; 4] = [
        |_, _| ToServer::Hello(hello(1, 99, true)),
        |client, request| {
            let call = client.call(Body::Op(request));
            ToServer::Call(kestrel_types::wire::Call { seq: 5, ..call })
        },
        |client, _| {
            let call = client.op(create("x"));
            ToServer::Call(kestrel_types::wire::Call { seq: 0, ..call })
        },
        |client, _| {
            let call = client.op(create("x"));
            ToServer::Call(kestrel_types::wire::Call { seq: WINDOW + 1, ..call })
        },
    ];
    let mut client = Client::connected(1, &fixture);
    for message in breaks {
        let message = message(&mut client, root.clone());
        client.send(&fixture, vec![message]);
        assert!(client.is_closed());
        assert!(matches!(client.received().as_slice(),
                [ToClient::Refused(why)] if why.errno == libc::EPROTO));
        // Nothing more is taken from that connection.
        let call = client.op(create("x"));
        client.send(&fixture, vec![ToServer::Call(call)]);
        assert!(client.received().is_empty());
        client.seq = 0;
        client.connect(&fixture);
    }
    assert_eq!(errno(&client.execute(&fixture, Op::Lookup(at("x")))), libc::ENOENT);
}

#[test]
fn handles_of_other_sessions() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(1, &fixture);
    let mut thief = Client::connected(2, &fixture);
    let (inode, _) = opened(&owner.execute(&fixture, create("a")));
    let file = || seen(&inode, "a");
    let commit = || {
        let (data, size) = (NewData::Inline((*b"x").into()), Some(1));
        Op::Commit(Commit {
            inode: file(),
            base: inode.data_change,
            data,
            size,
            mtime: 5,
            kill_suid: false,
        })
    };
    let through = || {
        Op::SetAttr(file(), SetAttr { size: Some(0), through_handle: true, ..SetAttr::default() })
    };
    let clone = || Op::Clone { from: file(), from_offset: 0, to: file(), to_offset: 0, len: 1 };
    for op in [
        commit(),
        through(),
        clone(),
        Op::Release(inode.ino),
        Op::Release(1),
        Op::Release(u64::MAX),
    ] {
        assert_eq!(errno(&thief.execute(&fixture, op)), libc::EBADF);
    }
    assert_eq!(errno(&thief.execute(&fixture, Op::Sweep(inode.ino))), libc::EPERM);
    let unprivileged = Creds { uid: 7, gid: 7, groups: Some([].into()) };
    let compact = Op::Compact { inode: file(), chunk: 0, old: Vec::new(), new: Vec::new() };
    let call = thief.call(Body::Op(Request { creds: unprivileged, op: compact }));
    assert_eq!(errno(&thief.execute_call(&fixture, call)), libc::EBADF);
    // Reading is not writing.
    let read = OpenFlags { read: true, ..OpenFlags::default() };
    assert_eq!(errno(&thief.execute(&fixture, Op::Open(file(), read))), 0);
    assert_eq!(errno(&thief.execute(&fixture, commit())), libc::EBADF);
    assert_eq!(errno(&thief.execute(&fixture, Op::Release(inode.ino))), 0);
    assert_eq!(errno(&thief.execute(&fixture, Op::Release(inode.ino))), libc::EBADF);
    assert_eq!(fixture.open_files(), 1);
    assert_eq!(errno(&owner.execute(&fixture, commit())), 0);
    assert_eq!(
        errno(&owner.execute(&fixture, Op::Open(InodeRef::by_id(1 << 40), read))),
        libc::ESTALE
    );
}

#[test]
fn a_client_has_so_many_opens_and_no_more() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    let (inode, _) = opened(&client.execute(&fixture, create("a")));
    for _ in 1..100 {
        opened(&client.execute(&fixture, create("a")));
    }
    assert_eq!(errno(&client.execute(&fixture, create("a"))), libc::ENFILE);
    assert_eq!(errno(&client.execute(&fixture, Op::Release(inode.ino))), 0);
    assert_eq!(errno(&client.execute(&fixture, create("b"))), 0);
}

#[test]
fn an_open_directory_is_nothing_to_release() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    assert_eq!(errno(&client.execute(&fixture, Op::MkDir(at("d"), 0o755))), 0);
    let (dir, _) = opened(&client.execute(&fixture, Op::OpenAt(at("d"), OpenFlags::default())));
    assert_eq!(
        opened(&client.execute(&fixture, Op::Open(InodeRef::by_id(dir.ino), OpenFlags::default())))
            .0,
        dir
    );
    assert_eq!(errno(&client.execute(&fixture, Op::Release(dir.ino))), libc::EBADF);
    let (file, _) = opened(&client.execute(&fixture, create("d/f")));
    let open = Op::OpenAt(at("d/f"), OpenFlags { write: true, ..OpenFlags::default() });
    assert_eq!(opened(&client.execute(&fixture, open)).0.ino, file.ino);
    for expected in [0, 0, libc::EBADF] {
        assert_eq!(errno(&client.execute(&fixture, Op::Release(file.ino))), expected);
    }
    assert_eq!(fixture.open_files(), 0);
}

#[test]
fn answers_to_admin_questions() {
    let fixture = Fixture::new();
    let mut client = Client::connected(1, &fixture);
    let call = client.call(Body::Admin((*b"{\"what\":1}").into()));
    client.send(&fixture, vec![ToServer::Call(call)]);
    let received = client.received();
    let [ToClient::Event { id: 1, .. }, ToClient::Reply(reply)] = received.as_slice() else {
        panic!("{received:?}")
    };
    assert_eq!(reply.answered, Answered::Admin(Ok((*b"{\"what\":1}").into())));
}
