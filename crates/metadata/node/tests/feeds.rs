//! Change feeds of a node: which events there are, that a reader that applies them has what is
//! there, and that nothing is skipped, crashes and many threads among it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use common::rules::{create, fixture, lookup, mkdir, rename};
use common::{Fixture, at, config, name, stress, user};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{Engine, EngineError};
use kestrel_meta::feeds::{FeedPart, FeedPlace, FeedQuestion, merge};
use kestrel_meta::node::{Durability, Node, NodeConfig, Replies};
use kestrel_model::{FeedMirror, NamesBelow};
use kestrel_types::clock::{Clock, SECOND};
use kestrel_types::feed::{FeedEvent, FeedEventKind, FeedId, FeedPage, FeedPosition, FeedStart};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{
    Answer, Commit, Creds, DirEntry, NewData, Op, OpenFlags, RenameFlags, Reply, Request, SetAttr,
    XattrFlags,
};
use parking_lot::Mutex;

const HOUR: i64 = 3600 * SECOND;

fn policy(dir: InodeId, value: &str) -> Op {
    let value = value.as_bytes().into();
    Op::SetXattr(InodeRef::by_id(dir), b"kestrel.feed"[..].into(), value, XattrFlags::default())
}

fn unset(dir: InodeId) -> Op {
    Op::RemoveXattr(InodeRef::by_id(dir), b"kestrel.feed"[..].into())
}

fn exchange(from: &str, to: &str) -> Op {
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    Op::Rename(at(ROOT, from), at(ROOT, to), flags)
}

fn make(path: &str) -> Op {
    Op::MkNod { place: at(ROOT, path), kind: Kind::File, mode: 0o644, rdev: 0 }
}

/// What has a path, named as a client names it that has seen it there.
fn seen(node: &Node, path: &str) -> Option<(InodeRef, u64)> {
    let request = Request { creds: Creds::root(), op: lookup(path) };
    match node.call(request) {
        Ok(Answer::Entry { parent, inode }) => {
            let last = path.rsplit('/').next().unwrap();
            let seen = InodeRef { ino: inode.ino, seen: Some((parent, name(last))) };
            Some((seen, inode.data_change))
        }
        _ => None,
    }
}

fn write(node: &Node, path: &str, size: u64) -> Option<Op> {
    let (inode, base) = seen(node, path)?;
    let (data, mtime) = (NewData::Unchanged, 5);
    Some(Op::Commit(Commit { inode, base, data, size: Some(size), mtime, kill_suid: false }))
}

fn read(node: &Node, dir: InodeId, from: FeedStart, limit: u32) -> Result<FeedPage, Reply> {
    let op = Op::FeedRead { dir, from, limit };
    match node.call(Request { creds: Creds::root(), op }) {
        Ok(Answer::Feed(page)) => Ok(*page),
        other => Err(other),
    }
}

fn after(page: &FeedPage) -> FeedStart {
    FeedStart::After(page.feed, page.next)
}

/// All events below a directory from a position on, as `event path[ -> to]`, and where to go on.
fn told(f: &Fixture, dir: InodeId, from: FeedStart) -> (Vec<String>, FeedStart) {
    let page = read(&f.node, dir, from, 4096).unwrap();
    assert!(!page.more);
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let line = |event: &FeedEvent| match &event.to {
        Some(to) => format!("{} {} -> {}", event.kind.name(), text(&event.path), text(&to.path)),
        None => format!("{} {}", event.kind.name(), text(&event.path)),
    };
    (page.events.iter().map(|(_, event)| line(event)).collect(), after(&page))
}

fn refused(f: &Fixture, dir: InodeId, from: FeedStart) -> i32 {
    common::errno(&read(&f.node, dir, from, 10).unwrap_err())
}

/// Each change of a name, of content and of attributes is an event, with the paths of then.
#[test]
fn events_of_changes() {
    let f = fixture();
    let dir = f.inode(mkdir("t")).ino;
    f.call(policy(dir, "1h")).unwrap();
    let (events, next) = told(&f, dir, FeedStart::Now);
    assert!(events.is_empty());
    f.inode(mkdir("t/d"));
    f.inode(make("t/d/f"));
    f.call(write(&f.node, "t/d/f", 5).unwrap()).unwrap();
    let (file, _) = seen(&f.node, "t/d/f").unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    f.call(Op::SetAttr(file.clone(), set)).unwrap();
    f.call(Op::SetAttr(file.clone(), SetAttr { size: Some(2), ..SetAttr::default() })).unwrap();
    let value = b"v"[..].into();
    f.call(Op::SetXattr(file.clone(), b"user.a"[..].into(), value, XattrFlags::default())).unwrap();
    let truncate = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    f.call(Op::Open(file, truncate)).unwrap();
    f.call(rename("t/d", "t/e")).unwrap();
    f.inode(Op::Symlink(at(ROOT, "t/s"), b"target"[..].into()));
    f.call(exchange("t/s", "t/e/f")).unwrap();
    f.call(rename("t/s", "t/e/f")).unwrap();
    f.call(Op::Unlink(at(ROOT, "t/e/f"))).unwrap();
    f.call(Op::RmDir(at(ROOT, "t/e"), None)).unwrap();
    // Not below it.
    f.inode(make("outside"));
    f.call(Op::SetAttr(InodeRef::by_id(dir), SetAttr { mode: Some(0o700), ..SetAttr::default() }))
        .unwrap();
    let (events, next) = told(&f, dir, next);
    let expected = [
        "create d",
        "create d/f",
        "modify d/f",
        "attributes d/f",
        "modify d/f",
        "attributes d/f",
        "modify d/f",
        "rename d -> e",
        "create s",
        "exchange e/f -> s",
        "rename s -> e/f",
        "remove e/f",
        "remove e",
    ];
    assert_eq!(events, expected);
    assert_eq!(told(&f, dir, next).0, Vec::<String>::new());
    assert_eq!(told(&f, dir, FeedStart::Oldest).0, expected);
    f.check();
}

/// A directory's feed has what is below another one that has a feed, not what is below one that has
/// `none`; a reader further down sees what is below it, and moves over its edge.
#[test]
fn feeds_in_feeds() {
    let f = fixture();
    let outer = f.inode(mkdir("t")).ino;
    f.call(policy(outer, "1h")).unwrap();
    let inner = f.inode(mkdir("t/i")).ino;
    f.call(policy(inner, "2h")).unwrap();
    let plain = f.inode(mkdir("t/p")).ino;
    let left_out = f.inode(mkdir("t/n")).ino;
    f.call(policy(left_out, "none")).unwrap();
    let start = |dir| told(&f, dir, FeedStart::Now).1;
    let starts = [outer, inner, plain].map(|dir| (dir, start(dir)));
    for path in ["t/a", "t/i/a", "t/p/a", "t/n/a"] {
        f.inode(make(path));
    }
    f.call(rename("t/a", "t/i/b")).unwrap();
    f.call(rename("t/i/a", "t/p/b")).unwrap();
    f.call(rename("t/p/a", "t/n/b")).unwrap();
    f.call(rename("t/n/a", "t/p/c")).unwrap();
    f.call(exchange("t/p/b", "t/i/b")).unwrap();
    let [outer, inner, plain] = starts.map(|(dir, from)| told(&f, dir, from).0);
    assert_eq!(
        outer,
        [
            "create a",
            "create i/a",
            "create p/a",
            "rename a -> i/b",
            "rename i/a -> p/b",
            "moved-out p/a",
            "moved-in p/c",
            "exchange i/b -> p/b",
        ]
    );
    assert_eq!(inner, ["create a", "moved-in b", "moved-out a", "moved-in b"]);
    assert_eq!(plain, ["create a", "moved-in b", "moved-out a", "moved-in c", "moved-in b"]);
    assert_eq!(refused(&f, left_out, FeedStart::Now), libc::ENODATA);
    assert_eq!(refused(&f, ROOT, FeedStart::Now), libc::ENODATA);
    f.check();
}

/// What the trash takes was removed, and what comes out of it came from elsewhere.
#[test]
fn trash() {
    let f = fixture();
    for dir in [".trash", ".trash/kept", ".trash/removing"] {
        f.inode(Op::MkDir(at(ROOT, dir), 0o700));
    }
    let keep = |value: &'static [u8]| {
        let flags = XattrFlags::default();
        Op::SetXattr(InodeRef::by_id(ROOT), b"kestrel.trash"[..].into(), value.into(), flags)
    };
    f.call(keep(b"1h")).unwrap();
    f.call(policy(ROOT, "1h")).unwrap();
    let (_, next) = told(&f, ROOT, FeedStart::Now);
    f.inode(make("one"));
    f.inode(make("two"));
    f.call(rename("one", "two")).unwrap();
    f.call(Op::Unlink(at(ROOT, "two"))).unwrap();
    f.inode(mkdir("tree"));
    f.call(rename("tree", ".trash/removing/x")).unwrap();
    f.call(Op::RmDir(at(ROOT, ".trash/removing/x"), None)).unwrap();
    let (events, next) = told(&f, ROOT, next);
    let expected = [
        "create one",
        "create two",
        "rename one -> two",
        "remove two",
        "create tree",
        "remove tree",
    ];
    assert_eq!(events, expected);
    f.inode(mkdir(".trash/back"));
    f.call(rename(".trash/back", "back")).unwrap();
    assert_eq!(told(&f, ROOT, next).0, ["moved-in back"]);
    f.check();
}

/// A file with several names: a link is a name that was made, and content is told by the name that
/// the writer knows.
#[test]
fn several_names() {
    let f = fixture();
    f.call(policy(ROOT, "1h")).unwrap();
    let (_, next) = told(&f, ROOT, FeedStart::Now);
    f.inode(make("one"));
    f.inode(Op::Link(seen(&f.node, "one").unwrap().0, at(ROOT, "two")));
    f.call(write(&f.node, "two", 7).unwrap()).unwrap();
    f.call(Op::Unlink(at(ROOT, "two"))).unwrap();
    f.call(write(&f.node, "one", 8).unwrap()).unwrap();
    let (events, _) = told(&f, ROOT, next);
    assert_eq!(events, ["create one", "create two", "modify two", "remove two", "modify one"]);
    f.check();
}

/// A clone is one event of the feed around it, and records nothing by a policy that it has copied.
#[test]
fn clones() {
    let f = fixture();
    f.call(policy(ROOT, "1h")).unwrap();
    let dir = f.inode(mkdir("t")).ino;
    f.call(policy(dir, "2h")).unwrap();
    f.inode(mkdir("t/d"));
    f.inode(make("t/d/f"));
    let (_, next) = told(&f, ROOT, FeedStart::Now);
    let clone = f.inode(Op::CloneDir { source: dir, at: None, place: at(ROOT, "c") }).ino;
    f.inode(make("c/d/g"));
    assert_eq!(told(&f, ROOT, next).0, ["moved-in c", "create c/d/g"]);
    assert_eq!(told(&f, clone, next).0, ["create d/g"]);
    f.call(policy(clone, "2h")).unwrap();
    f.inode(make("c/d/h"));
    assert_eq!(told(&f, clone, FeedStart::Oldest).0, ["create d/h"]);
    f.check();
}

/// What fails is no event, and neither are reads and access times.
#[test]
fn no_events() {
    let f = fixture();
    f.call(policy(ROOT, "1h")).unwrap();
    f.inode(make("file"));
    f.inode(mkdir("dir"));
    let (_, next) = told(&f, ROOT, FeedStart::Now);
    assert_eq!(f.errno(make("file")), libc::EEXIST);
    assert_eq!(f.errno(Op::Unlink(at(ROOT, "none"))), libc::ENOENT);
    f.call(rename("file", "file")).unwrap();
    let (file, _) = seen(&f.node, "file").unwrap();
    f.call(Op::Open(file.clone(), OpenFlags::default())).unwrap();
    f.call(Op::Release(file.ino)).unwrap();
    f.engine.fail_commit(EngineError::Io("injected".into()));
    assert_eq!(f.errno(make("failed")), libc::EIO);
    assert_eq!(told(&f, ROOT, next).0, Vec::<String>::new());
    let open = f.inode(create("open"));
    f.call(Op::Unlink(at(ROOT, "open"))).unwrap();
    let base = open.data_change;
    let inode = InodeRef { ino: open.ino, seen: Some((ROOT, name("open"))) };
    let (data, size) = (NewData::Unchanged, Some(3));
    f.call(Op::Commit(Commit { inode, base, data, size, mtime: 5, kill_suid: false })).unwrap();
    assert_eq!(told(&f, ROOT, next).0, ["create open", "remove open"]);
    f.check();
}

/// Events go when they are older than the policy says, and a reader that comes later hears so;
/// those of a feed that has ended go all, and a cursor of it is of no use for the next.
#[test]
fn retention() {
    let f = fixture();
    let dir = f.inode(mkdir("t")).ino;
    f.call(policy(dir, "2h")).unwrap();
    let (_, start) = told(&f, dir, FeedStart::Now);
    f.inode(make("t/a"));
    f.clock.advance(HOUR);
    f.inode(make("t/b"));
    let trim = |f: &Fixture| {
        let hours_of = &mut |dir| f.node.feed_hours(dir);
        while f.node.trim_feeds(f.clock.now(), hours_of).unwrap() {}
    };
    trim(&f);
    assert_eq!(told(&f, dir, start).0, ["create a", "create b"]);
    f.clock.advance(HOUR + SECOND);
    trim(&f);
    assert_eq!(refused(&f, dir, start), libc::ESTALE);
    let (events, later) = told(&f, dir, FeedStart::Oldest);
    assert_eq!(events, ["create b"]);
    f.call(unset(dir)).unwrap();
    assert_eq!(refused(&f, dir, later), libc::ESTALE);
    assert_eq!(refused(&f, dir, FeedStart::Oldest), libc::ENODATA);
    f.inode(make("t/c"));
    f.call(policy(dir, "1h")).unwrap();
    f.inode(make("t/d"));
    assert_eq!(refused(&f, dir, later), libc::ESTALE);
    assert_eq!(told(&f, dir, FeedStart::Oldest).0, ["create d"]);
    trim(&f);
    assert_eq!(told(&f, dir, FeedStart::Oldest).0, ["create d"]);
    // Nothing is left of feeds that ended.
    f.call(unset(dir)).unwrap();
    trim(&f);
    trim(&f);
    assert_eq!(rows(&f), 0);
    f.check();
}

/// Rows of table `feed`.
fn rows(f: &Fixture) -> usize {
    let mut count = 0;
    let visit = &mut |_: kestrel_types::key::KeyRef<'_>, _: &[u8]| {
        count += 1;
        std::ops::ControlFlow::Continue(())
    };
    f.engine.scan_table(kestrel_types::key::Table::Feed, None, visit).unwrap();
    count
}

/// The superuser alone reads a feed; a cursor of another one, and one out of the air, is refused.
#[test]
fn refusals() {
    let f = fixture();
    let dir = f.inode(mkdir("t")).ino;
    f.call(policy(dir, "1h")).unwrap();
    f.inode(make("t/a"));
    let op = |dir, from| Op::FeedRead { dir, from, limit: 10 };
    assert_eq!(f.errno_as(&user(100, 10, &[]), op(dir, FeedStart::Now)), libc::EPERM);
    assert_eq!(f.errno(op(4711, FeedStart::Now)), libc::ENOENT);
    let page = read(&f.node, dir, FeedStart::Oldest, 10).unwrap();
    let of = |feed| FeedStart::After(feed, page.next);
    for feed in [FeedId { began: 5, ..page.feed }, FeedId { dir: ROOT, ..page.feed }] {
        assert_eq!(refused(&f, dir, of(feed)), libc::ESTALE);
    }
    assert_eq!(
        refused(&f, dir, FeedStart::After(page.feed, FeedPosition::default())),
        libc::ESTALE
    );
    let future = FeedPosition { stamp: u64::MAX, ..page.next };
    let page = read(&f.node, dir, FeedStart::After(page.feed, future), 10).unwrap();
    assert!(page.events.is_empty() && page.next == future);
    assert_eq!(f.errno(policy(dir, "soon")), libc::EINVAL);
    f.check();
}

/// Pages of any size have the same events, and each goes on where the one before ended.
#[test]
fn pages() {
    let f = fixture();
    f.call(policy(ROOT, "1h")).unwrap();
    for number in 0..50 {
        f.inode(make(&format!("f{number}")));
    }
    let all = read(&f.node, ROOT, FeedStart::Oldest, 4096).unwrap().events;
    assert_eq!(all.len(), 50);
    for limit in [0, 1, 7, 49, 50, 51] {
        let (mut found, mut from) = (Vec::new(), FeedStart::Oldest);
        loop {
            let page = read(&f.node, ROOT, from, limit).unwrap();
            assert!(page.events.len() <= limit.max(1) as usize);
            from = after(&page);
            found.extend(page.events);
            if !page.more {
                break;
            }
        }
        assert_eq!(found, all);
    }
    f.check();
}

type Heard = Arc<Mutex<Option<Reply>>>;

/// The reply, which another thread may give.
fn reply(heard: &Heard) -> Reply {
    loop {
        if let Some(reply) = heard.lock().take() {
            return reply;
        }
        std::thread::yield_now();
    }
}

/// In mode commit a reader hears of a change only when power loss does not take it any more.
#[test]
fn durable_events() {
    let durability = Durability::Commit;
    // A thread for replies would wait for that of the change that is lost.
    let config = NodeConfig { durability, replies: Replies::Inline, ..config(2) };
    let mut f = Fixture::with_engine(config, MemoryEngine::new(SyncWhen::Told));
    let send = |f: &Fixture, op| {
        let (heard, request) = (Heard::default(), Request { creds: Creds::root(), op });
        let done = heard.clone();
        f.node.submit(request, Box::new(move |reply| *done.lock() = Some(reply)));
        heard
    };
    let synced = |f: &Fixture, op| {
        let heard = send(f, op);
        f.engine.sync().unwrap();
        reply(&heard)
    };
    let read = |from| Op::FeedRead { dir: ROOT, from, limit: 10 };
    let page_of = |reply| match reply {
        Ok(Answer::Feed(page)) => *page,
        other => panic!("{other:?}"),
    };
    synced(&f, policy(ROOT, "1h")).unwrap();
    synced(&f, make("one")).unwrap();
    let (made, page) = (send(&f, make("two")), send(&f, read(FeedStart::Oldest)));
    assert!(made.lock().is_none() && page.lock().is_none());
    f.engine.sync().unwrap();
    reply(&made).unwrap();
    let page = page_of(reply(&page));
    assert_eq!(page.events.len(), 2);
    let _lost = send(&f, make("three"));
    f = f.crash(true);
    assert_eq!(page_of(synced(&f, read(FeedStart::Oldest))).events, page.events);
    synced(&f, make("four")).unwrap();
    assert_eq!(page_of(synced(&f, read(after(&page)))).events.len(), 1);
    f.check();
}

/// A reader that applies the events below a directory.
struct Reader {
    dir: InodeId,
    from: FeedStart,
    mirror: FeedMirror,
}

fn list(node: &Node, dir: InodeId) -> Vec<DirEntry> {
    let op = Op::ReadDir { dir, after: None, limit: 100_000, check: false };
    match node.call(Request { creds: Creds::root(), op }) {
        Ok(Answer::Entries { entries, .. }) => entries,
        _ => Vec::new(),
    }
}

/// Adds the paths of all names below a directory.
fn scan(node: &Node, dir: InodeId, at: &[u8], names: &mut NamesBelow) {
    for entry in list(node, dir) {
        let path = match at {
            [] => entry.name.as_bytes().to_vec(),
            at => [at, b"/", entry.name.as_bytes()].concat(),
        };
        names.insert(path.clone(), entry.ino);
        if entry.kind == Kind::Dir {
            scan(node, entry.ino, &path, names);
        }
    }
}

impl Reader {
    fn new(node: &Node, dir: InodeId) -> Self {
        let from = after(&read(node, dir, FeedStart::Now, 1).unwrap());
        let mut mirror = FeedMirror::default();
        scan(node, dir, b"", &mut mirror.names);
        Self { dir, from, mirror }
    }

    /// Applies what there is; whether there was something.
    fn follow(&mut self, node: &Node, limit: u32) -> bool {
        let mut any = false;
        loop {
            let page = read(node, self.dir, self.from, limit).unwrap();
            self.from = after(&page);
            any |= !page.events.is_empty();
            for (_, event) in &page.events {
                let scan = &mut |dir, path: &[u8], names: &mut _| scan(node, dir, path, names);
                self.mirror.apply(event, scan).unwrap();
            }
            if !page.more {
                return any;
            }
        }
    }

    fn compare(&self, node: &Node) {
        let mut names = NamesBelow::new();
        scan(node, self.dir, b"", &mut names);
        if self.mirror.names == names {
            return;
        }
        // What differs, and what the feed has of it: an event that was skipped, or none.
        let mut events = Vec::new();
        let mut from = FeedStart::Oldest;
        loop {
            let page = read(node, self.dir, from, 4096).unwrap();
            from = after(&page);
            events.extend(page.events);
            if !page.more {
                break;
            }
        }
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let (told, there) = (&self.mirror.names, &names);
        for path in told.keys().chain(there.keys()) {
            let (told, there) = (told.get(path), there.get(path));
            if told == there {
                continue;
            }
            println!("{}: told {told:?}, there {there:?}", text(path));
            let ino = told.or(there);
            let of_it = |event: &FeedEvent| {
                let before = event.to.as_ref().and_then(|to| to.before);
                Some(&event.ino) == ino
                    || before.is_some_and(|(before, _)| Some(&before) == ino)
                    || path.starts_with(&event.path)
                    || event.to.as_ref().is_some_and(|to| path.starts_with(&to.path))
            };
            for (position, event) in events.iter().filter(|(_, event)| of_it(event)) {
                let to = event.to.as_ref().map(|to| (text(&to.path), to.before));
                let FeedEvent { kind, ino, path, .. } = event;
                println!("  {position:?} {kind:?} {ino} {} {to:?}", text(path));
            }
        }
        panic!("the feed does not tell of what is there");
    }
}

type Raw = (u8, u8, u8, u8);

fn run(raws: &[Raw], workers: usize) {
    let mut f = Fixture::new(config(workers));
    for dir in ["t", "t/a", "t/b", "u"] {
        f.inode(mkdir(dir));
    }
    let dirs = ["t", "t/a", "t/b"].map(|path| f.inode(lookup(path)).ino);
    f.call(policy(dirs[0], "1h")).unwrap();
    f.call(policy(dirs[1], "2h")).unwrap();
    // That of `b` is a part of that of `t`.
    let mut readers = dirs.map(|dir| Reader::new(&f.node, dir));
    let path = |number: u8| {
        let dirs = ["t", "t/a", "t/b", "u", "t/a/x", "t/b/y", "u/x"];
        let names = ["x", "y", "z"];
        format!("{}/{}", dirs[usize::from(number) % 7], names[usize::from(number) / 7 % 3])
    };
    for (what, one, two, kind) in raws {
        let (one, two) = (path(*one), path(*two));
        let op = match what % 16 {
            0..=2 => make(&one),
            3..=4 => mkdir(&one),
            5..=6 => Op::Unlink(at(ROOT, &one)),
            7 => Op::RmDir(at(ROOT, &one), None),
            8..=10 => rename(&one, &two),
            11 => exchange(&one, &two),
            12 => match seen(&f.node, &one) {
                Some((file, _)) => Op::Link(file, at(ROOT, &two)),
                None => continue,
            },
            13 => match write(&f.node, &one, (*kind).into()) {
                Some(op) => op,
                None => continue,
            },
            14 => match seen(&f.node, &one) {
                Some((file, _)) => {
                    let mode = Some(u16::from(*kind) | 0o600);
                    Op::SetAttr(file, SetAttr { mode, ..SetAttr::default() })
                }
                None => continue,
            },
            _ => {
                match kind % 3 {
                    0 => f = f.crash(false),
                    1 => f.engine.fail_commit(EngineError::Io("injected".into())),
                    _ => f.engine.fail_commit(EngineError::NoSpace),
                }
                continue;
            }
        };
        let _result = f.call(op);
        for reader in &mut readers {
            reader.follow(&f.node, u32::from(*kind) % 3 + 1);
            reader.compare(&f.node);
        }
    }
    f.check();
}

/// A timestamp of which the ceiling could not be recorded is issued again after a crash: no reader
/// has a cursor behind it.
#[test]
fn unrecorded_timestamps() {
    run(&[(15, 0, 0, 1), (15, 0, 0, 0), (0, 0, 0, 0), (15, 0, 0, 0), (0, 42, 0, 0)], 1);
}

proptest! {
    /// A reader that applies the events of a directory has its tree: of a feed, of one within it,
    /// and of a part of one; over crashes and commits that failed.
    #[test]
    fn replayed_feeds(raws in prop::collection::vec(any::<Raw>(), 1..120), workers in 1usize..3) {
        run(&raws, workers);
    }
}

/// A reader beside many threads, which reads while they change shared names, misses nothing.
#[test]
fn replay_beside_threads() {
    for workers in [1, 3] {
        let f = Fixture::new(config(workers));
        f.call(policy(ROOT, "1h")).unwrap();
        let mut reader = Reader::new(&f.node, ROOT);
        let ended = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (node, seen) = (f.node.clone(), ended.clone());
            let reader = &mut reader;
            let thread = scope.spawn(move || {
                let mut pages = 0;
                while !seen.load(Ordering::Acquire) {
                    pages += u32::from(reader.follow(&node, 100));
                }
                reader.follow(&node, 4096);
                pages
            });
            stress::run(&f.node, 6, 3_000);
            ended.store(true, Ordering::Release);
            assert!(thread.join().unwrap() > 0);
        });
        reader.compare(&f.node);
        f.check();
    }
}

/// A reader of pages that are made of the parts of several nodes gets every event once and in
/// order, whatever each node has, and however far it is.
#[test]
fn pages_of_several_nodes() {
    proptest!(|(
        stamps in prop::collection::vec((1u64..60, 1u32..4), 0..60),
        limits in prop::collection::vec(1u32..9, 1..4),
        seed in any::<u64>(),
    )| {
        let event = |ino| FeedEvent {
            kind: FeedEventKind::Create,
            ino,
            file: Kind::File,
            path: (*b"f").into(),
            to: None,
        };
        // What each node has recorded in the end.
        let mut recorded: BTreeMap<FeedPosition, (u32, FeedEvent)> = BTreeMap::new();
        for (number, (stamp, node)) in stamps.iter().enumerate() {
            let worker = FeedPosition::worker_of(*node, 1);
            let position = FeedPosition { stamp: *stamp, worker, number: number as u32 };
            recorded.insert(position, (*node, event(number as u64)));
        }
        let mut random = seed;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        let place = FeedPlace { feed: 7, path: Box::default() };
        let (mut read, mut from, mut now) = (Vec::new(), FeedStart::Oldest, 0);
        for round in 0..400 {
            now = (now + below(8)).min(70);
            let limit = limits[round % limits.len()];
            let asked = FeedQuestion::new(place.clone(), from, limit);
            let parts: Vec<FeedPart> = (1..4).map(|node| {
                let complete = if now == 70 { now } else { now + below(6) };
                let looked_at = 1 + below(5) as usize;
                let mut own = recorded
                    .range((Bound::Excluded(asked.after), Bound::Unbounded))
                    .take_while(|(position, _)| **position <= FeedPosition::end_of(complete))
                    .filter(|(_, (of, _))| *of == node)
                    .map(|(position, (_, event))| (*position, event.clone()));
                let events: Vec<_> = own.by_ref().take(looked_at).collect();
                let more = own.next().and_then(|_| events.last().map(|(last, _)| *last));
                FeedPart { complete, events, more, ..FeedPart::default() }
            }).collect();
            let page = merge(&asked, from, parts).unwrap();
            prop_assert!(page.events.len() <= limit as usize);
            read.extend(page.events.into_iter().map(|(position, _)| position));
            from = FeedStart::After(page.feed, page.next);
            if now == 70 && !page.more {
                break;
            }
        }
        prop_assert!(read.iter().eq(recorded.keys()), "{read:?} of {recorded:?}");
    });
}
