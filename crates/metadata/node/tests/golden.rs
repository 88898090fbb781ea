//! A small volume with rows that must never change their bytes, and that every later version must
//! read.
//!
//! `golden/volume-1.txt` holds one row a line: table, id, suffix, value, in hexadecimal but for the
//! first two; `golden/clients-2.txt` the rows of tables `moved` and `txn` that clients across a
//! network leave, in version 2 of the protocol, and `golden/clients-1.txt` those that programs of
//! version 1 left. If this test fails after a change of a format (for `clients-2.txt` that includes
//! the protocol's), the change needs a new version and a new golden volume beside these.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::{Fixture, at, check, config, name};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::{Node, NodeConfig, Origin, SessionRecord};
use kestrel_meta::txn::{TxnKey, decode_answer};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::extent::Extent;
use kestrel_types::inode::{Data, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::range::Range;
use kestrel_types::request::{
    Answer, Commit, Creds, NewData, Op, OpenFlags, RenameFlags, Request, SetAttr, SetTime,
    XattrFlags,
};
use kestrel_types::wire::ClientId;

const GOLDEN: &str = include_str!("golden/volume-1.txt");
const GOLDEN_CLIENTS_V1: &str = include_str!("golden/clients-1.txt");
const GOLDEN_CLIENTS: &str = include_str!("golden/clients-2.txt");
const CLIENT: ClientId = ClientId([0xc1; 16]);

fn seen(ino: u64, dir: u64, text: &str) -> InodeRef {
    InodeRef { ino, seen: Some((dir, name(text))) }
}

/// Some of everything.
fn volume() -> Fixture {
    let f = Fixture::new(config(2));
    let file = |path: &str| {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let op = Op::Create { place: at(1, path), mode: 0o644, flags, exclusive: true };
        let inode = f.inode(op);
        f.call(Op::Release(inode.ino)).unwrap();
        inode
    };
    let dir = f.inode(Op::MkDir(at(1, "dir"), 0o2755)).ino;
    f.inode(Op::MkDir(at(1, "dir/sub"), 0o700));
    file("empty");
    let commit = |path: &str, data, size| {
        let inode = file(path);
        let inode = seen(inode.ino, 1, path);
        let base = f.inode(Op::GetAttr(inode.clone())).data_change;
        let mtime = 1_000 * SECOND;
        f.inode(Op::Commit(Commit { inode, base, data, size: Some(size), mtime, kill_suid: false }))
    };
    commit("inline", NewData::Inline(b"hello"[..].into()), 9);
    let range = |object, len| Range { object, offset: 64, len };
    commit("packed", NewData::Packed(range(5, 300)), 300);
    let patches =
        vec![(0, Extent::of_range(10, range(6, 100))), (2, Extent::of_range(0, range(7, 50)))];
    let chunked = commit("chunked", NewData::Patches(patches), 1 << 30);
    f.inode(Op::Symlink(at(1, "dir/link"), b"../inline"[..].into()));
    f.inode(Op::MkNod { place: at(1, "dir/null"), kind: Kind::Char, mode: 0o666, rdev: 0x103 });
    f.inode(Op::Link(seen(chunked.ino, 1, "chunked"), at(1, "dir/hard")));
    let value = b"value"[..].into();
    f.call(Op::SetXattr(InodeRef::by_id(dir), b"user.a"[..].into(), value, XattrFlags::default()))
        .unwrap();
    f.clock.advance(SECOND);
    let gone = commit("gone", NewData::Packed(range(8, 10)), 10);
    f.call(Op::Unlink(at(1, "gone"))).unwrap();
    assert_eq!(gone.size, 10);
    let set = SetAttr { uid: Some(1000), atime: Some(SetTime::At(-1)), ..SetAttr::default() };
    f.inode(Op::SetAttr(InodeRef::by_id(dir), set));
    f
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".into();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn dump(engine: &dyn Engine, tables: &[Table]) -> String {
    let mut out = String::new();
    for table in tables.iter().copied() {
        engine
            .scan_table(table, None, &mut |key, value| {
                writeln!(out, "{} {} {} {}", table as u8, key.id, hex(key.suffix), hex(value))
                    .unwrap();
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    out
}

#[test]
fn rows_keep_their_bytes() {
    let f = volume();
    f.check();
    let rows = dump(&*f.engine, &Table::ALL);
    assert!(rows == GOLDEN, "the format changed; now:\n{rows}");
}

/// A node with a client that has done some of everything that is answered.
fn served() -> Fixture {
    let f = Fixture::new(NodeConfig { serves: true, ..config(2) });
    f.node.end_grace().unwrap();
    let who = "host 17 /mnt";
    for (byte, ended) in [(0xc1, None), (0xc2, Some(1_001 * SECOND))] {
        let session = SessionRecord {
            client: ClientId([byte; 16]),
            since: 1_000 * SECOND,
            who: who.into(),
            ended,
        };
        f.node.record_session(&session, Box::new(|reply| assert_eq!(reply, Ok(Answer::Done))));
    }
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let ops = [
        Op::Create { place: at(1, "a"), mode: 0o644, flags, exclusive: true },
        Op::MkDir(at(1, "d"), 0o755),
        Op::Rename(at(1, "a"), at(1, "d/b"), RenameFlags::default()),
        Op::MkNod { place: at(1, "c"), kind: Kind::Char, mode: 0o600, rdev: 0x103 },
        Op::Unlink(at(1, "c")),
        Op::Symlink(at(1, "s"), b"b"[..].into()),
        Op::OpenAt(at(1, "d/b"), OpenFlags { truncate: true, ..flags }),
        Op::TmpFile { dir: 1, mode: 0o600, exclusive: false },
        Op::SetXattr(
            InodeRef::by_id(1),
            b"user.a"[..].into(),
            b"v"[..].into(),
            XattrFlags::default(),
        ),
    ];
    for (seq, op) in (1..).zip(ops) {
        let request = Request { creds: Creds::root(), op };
        let origin = Origin { client: CLIENT, seq, retry: false };
        f.node.submit_from(request, origin, Box::new(|reply| assert!(reply.is_ok(), "{reply:?}")));
    }
    f
}

#[test]
fn what_clients_leave_keeps_its_bytes() {
    let f = served();
    f.check();
    let rows = dump(&*f.engine, &[Table::Moved, Table::Txn]);
    assert!(rows == GOLDEN_CLIENTS, "the format changed; now:\n{rows}");
    let answers = answers_of(GOLDEN_CLIENTS);
    let dir = f.inode(Op::Lookup(at(1, "d"))).ino;
    assert!(
        matches!(&answers[..], [
        (1, Answer::Opened { created: true, inode: open, parent: Some(1) }),
        (2, Answer::Entry { parent: 1, .. }),
        (3, Answer::Renamed { moved, other: None, from: 1, to }),
        (4, Answer::Entry { parent: 1, inode: device }),
        (5, Answer::Removed(gone)),
        (6, Answer::Entry { parent: 1, inode: link }),
        (7, Answer::Opened { created: false, inode: again, parent: Some(parent) }),
        (8, Answer::Opened { created: true, parent: None, .. }),
        (9, Answer::Done),
    ] if [open.ino, again.ino] == [*moved; 2] && [*to, *parent] == [dir; 2]
        && (device.rdev, gone.nlink) == (0x103, 0) && link.kind == Kind::Symlink),
        "{answers:?}"
    );
}

#[test]
fn what_clients_of_version_1_left_can_be_read() {
    let answers = answers_of(GOLDEN_CLIENTS_V1);
    assert!(
        matches!(&answers[..], [
        (1, Answer::Opened { created: true, inode: open, parent: None }),
        (2, Answer::Renamed { moved, other: None, from: 0, to: 0 }),
        (3, Answer::Inode(device)),
        (4, Answer::Removed(gone)),
        (5, Answer::Inode(link)),
        (6, Answer::Done),
    ] if open.ino == *moved && (device.rdev, gone.nlink) == (0x103, 0)
    && link.kind == Kind::Symlink),
        "{answers:?}"
    );
}

/// Answers that rows of table `txn` hold, by the client's number.
fn answers_of(rows: &str) -> Vec<(u16, Answer)> {
    let answers = rows.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        match TxnKey::decode(fields[1].parse().unwrap(), &unhex(fields[2])) {
            Some(TxnKey::Answer(CLIENT, slot)) => {
                Some((slot, decode_answer(&unhex(fields[3])).unwrap().1.unwrap()))
            }
            _ => None,
        }
    });
    answers.collect()
}

#[test]
fn the_golden_volume_can_be_read() {
    let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    let rows = GOLDEN.lines().map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let table = Table::from_u8(fields[0].parse().unwrap()).unwrap();
        let key = Key::new(table, fields[1].parse().unwrap(), &unhex(fields[2]));
        Mutation { key, value: Some(unhex(fields[3]).into()) }
    });
    engine.commit(BatchKind::Growing, rows.collect()).unwrap();
    let found = check::check(&*engine, &|_| false);
    assert_eq!((found.files, found.dirs), (7, 2));
    // More workers than the volume ever had.
    let node =
        Node::open(engine.clone(), Arc::new(ManualClock::new(2_000 * SECOND)), config(3)).unwrap();
    let call = |op| node.call(Request { creds: Creds::root(), op });
    let lookup = |path: &str| match call(Op::Lookup(at(1, path))) {
        Ok(Answer::Entry { inode, .. }) => inode,
        other => panic!("{path}: {other:?}"),
    };
    assert_eq!(lookup("inline").data, Data::Inline(b"hello"[..].into()));
    assert_eq!(
        lookup("packed").data,
        Data::Packed { range: Range { object: 5, offset: 64, len: 300 }, visible: 300 }
    );
    assert_eq!((lookup("chunked").nlink, lookup("dir/hard").size), (2, 1 << 30));
    assert_eq!((lookup("dir").nlink, lookup("dir").uid, lookup("dir").atime), (3, 1000, -1));
    assert_eq!(lookup("dir/null").rdev, 0x103);
    for path in ["empty", "inline", "packed", "chunked", "dir/hard", "dir/link", "dir/null"] {
        assert!(call(Op::Unlink(at(1, path))).is_ok(), "{path}");
    }
    assert!(
        call(Op::RmDir(at(1, "dir/sub"), None)).is_ok()
            && call(Op::RmDir(at(1, "dir"), None)).is_ok()
    );
    let found = check::check(&*engine, &|_| false);
    assert_eq!((found.files, found.dirs, found.bytes), (0, 0, 0));
}
