//! The nodes that requests go to.

use std::collections::BTreeSet;

use kestrel_client::fs::wait;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{
    Answer, Commit, NewData, Op, RenameFlags, Reply, SetAttr, XattrFlags,
};
use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};

use crate::client::{Client, READ, READ_WRITE, at, name};
use crate::cluster::{Cluster, until};

fn inode(reply: Reply) -> Inode {
    match reply.unwrap() {
        Answer::Entry { inode, .. } | Answer::Opened { inode, .. } | Answer::Inode(inode) => *inode,
        other => panic!("{other:?}"),
    }
}

/// An operation's name.
fn kind(op: &Op) -> String {
    format!("{op:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

fn commit(inode: InodeRef, base: u64) -> Op {
    let data = NewData::Inline(b"content".as_slice().into());
    Op::Commit(Commit { inode, base, data, size: Some(7), mtime: 5, kill_suid: false })
}

#[test]
fn every_operation_goes_to_the_node_that_leads_it() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let ok = |op: Op| client.call(op).unwrap();
    let mut heard = BTreeSet::new();
    for number in 0..12 {
        let file = format!("file{number}");
        let seen = |ino, text: &str| InodeRef { ino, seen: Some((ROOT, name(text))) };
        let create =
            Op::Create { place: at(&file), mode: 0o644, flags: READ_WRITE, exclusive: true };
        let made = inode(client.call(create));
        let here = seen(made.ino, &file);
        ok(Op::Lookup(at(&file)));
        ok(Op::GetAttr(here.clone()));
        ok(Op::SetAttr(here.clone(), SetAttr { mode: Some(0o600), ..SetAttr::default() }));
        ok(Op::Access(here.clone(), 4));
        let written = inode(client.call(commit(here.clone(), made.data_change)));
        let longer = SetAttr { size: Some(9), through_handle: true, ..SetAttr::default() };
        ok(Op::SetAttr(here.clone(), longer));
        // Inline bytes are not cloned, and there is nothing to compact; it is the right node that
        // says so.
        let (from, to) = (here.clone(), here.clone());
        assert!(
            client.call(Op::Clone { from, from_offset: 0, to, to_offset: 100, len: 5 }).is_err()
        );
        let compact =
            Op::Compact { inode: here.clone(), chunk: 0, old: Vec::new(), new: Vec::new() };
        assert!(client.call(compact).is_err());
        assert!(written.change > made.change);
        ok(Op::Chunks { ino: made.ino, first: 0, last: 5 });
        ok(Op::SetXattr(
            here.clone(),
            b"user.a".as_slice().into(),
            b"1".as_slice().into(),
            XattrFlags::default(),
        ));
        ok(Op::GetXattr(here.clone(), b"user.a".as_slice().into()));
        ok(Op::ListXattr(here.clone()));
        ok(Op::RemoveXattr(here.clone(), b"user.a".as_slice().into()));
        ok(Op::Open(here.clone(), READ));
        ok(Op::OpenAt(at(&file), READ));
        (0..3).for_each(|_| drop(ok(Op::Release(made.ino))));
        let (link, moved) = (format!("link{number}"), format!("moved{number}"));
        ok(Op::Link(here.clone(), at(&link)));
        ok(Op::Rename(at(&file), at(&moved), RenameFlags::default()));
        ok(Op::Unlink(at(&link)));
        ok(Op::Unlink(at(&moved)));
        let (pipe, dir, symlink) =
            (format!("pipe{number}"), format!("dir{number}"), format!("symlink{number}"));
        ok(Op::MkNod { place: at(&pipe), kind: Kind::Fifo, mode: 0o644, rdev: 0 });
        let below = inode(client.call(Op::MkDir(at(&dir), 0o755))).ino;
        let pointing = inode(client.call(Op::Symlink(at(&symlink), b"dir0".as_slice().into())));
        ok(Op::ReadLink(seen(pointing.ino, &symlink)));
        ok(Op::Parent(below));
        ok(Op::GetAttr(InodeRef::by_id(below)));
        ok(Op::TreeUsage(below));
        ok(Op::ReadDir { dir: below, after: None, limit: 10, check: true });
        let temporary =
            inode(client.call(Op::TmpFile { dir: below, mode: 0o600, exclusive: false }));
        ok(Op::Release(temporary.ino));
        ok(Op::RmDir(at(&dir), None));
        ok(Op::AllocObjects(5));
        ok(Op::Usage);
        ok(Op::Sync);
    }
    cluster.check();
    for at in 0..3 {
        let ops = cluster.notes(at).take();
        let kinds: BTreeSet<String> = ops.iter().map(kind).collect();
        assert_eq!(kinds.contains("AllocObjects"), at == 0, "numbers have one source");
        assert!(kinds.contains("Create") && kinds.contains("Chunks"), "node {} takes part", at + 1);
        heard.extend(kinds);
    }
    assert_eq!(heard.len(), 31, "all but Sweep, which nodes ask themselves: {heard:?}");
    assert_eq!(client.fs.metadata().stats().open_files, 0);
}

/// Opens of one file at two nodes: it is opened, renamed, opened again.
struct Twice<'a> {
    cluster: &'a Cluster,
    client: Client,
    places: [usize; 2],
    names: [String; 2],
}

impl<'a> Twice<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let places = [1, 2];
        let names = places.map(|at| cluster.name_at(at, 0));
        Self { cluster, client: Client::mount(&cluster.url(0)), places, names }
    }

    /// Which of the two nodes was asked for what, since the last look.
    fn asked(&self, of: &str) -> Vec<usize> {
        let asked = |place: usize| {
            let ops = self.cluster.notes(self.places[place]).take();
            std::iter::repeat_n(place, ops.iter().filter(|op| kind(op) == of).count())
        };
        [0, 1].into_iter().flat_map(asked).collect()
    }
}

/// Commits go to the node where the file was opened for writing.
#[test]
fn commits_at_the_node_open_for_writing() {
    let cluster = Cluster::start();
    let twice = Twice::new(&cluster);
    let client = &twice.client;
    for (first, second) in [(READ_WRITE, READ), (READ, READ_WRITE)] {
        client.close(client.create(&twice.names[0]));
        let ino = inode(client.call(Op::Lookup(at(&twice.names[0])))).ino;
        let one = client.open(ino, first);
        client.rename(&twice.names[0], &twice.names[1]);
        let two = client.open(ino, second);
        cluster.forget();
        let writer = usize::from(second.write);
        let [writing, reading] = if first.write { [one, two] } else { [two, one] };
        client.write(&writing, b"first");
        assert_eq!(twice.asked("Commit"), [writer]);
        // Releases of readers and of writers are alike: the one for reading is given back first,
        // wherever it was.
        client.close(reading);
        assert_eq!(twice.asked("Release"), [1 - writer]);
        client.write(&writing, b"then");
        assert_eq!(twice.asked("Commit"), [writer]);
        client.close(writing);
        assert_eq!(twice.asked("Release"), [writer]);
        client.unlink(&twice.names[1]);
    }
    cluster.check();
}

/// The last writer of a file still writes, whichever handle was closed before.
#[test]
fn last_writer_after_other_closes() {
    let cluster = Cluster::start();
    let twice = Twice::new(&cluster);
    let client = &twice.client;
    let file = client.create(&twice.names[0]);
    client.rename(&twice.names[0], &twice.names[1]);
    let again = [(); 3].map(|()| client.open(file.ino(), READ_WRITE));
    let reader = client.open(file.ino(), READ);
    client.close(file);
    for (number, file) in again.into_iter().enumerate() {
        client.write(&file, format!("version {number}").as_bytes());
        client.close(file);
    }
    assert_eq!(client.read(&reader), b"version 2");
    client.close(reader);
    let mut released = twice.asked("Release");
    released.sort_unstable();
    assert_eq!(released, [0, 1, 1, 1, 1]);
    assert_eq!(client.fs.metadata().stats().open_files, 0);
}

/// A request for a file that is unknown where it was seen goes to the file's home node, once.
#[test]
fn second_try_at_the_home_node() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let file = client.temporary();
    let (ino, home) = (file.ino(), cluster.home(file.ino()));
    // Another name than its number says leads to another node.
    let elsewhere = cluster.name_at((home + 1) % 3, 0);
    wait(|done| client.fs.link(kestrel_client::fs::Caller::ROOT, ino, at(&elsewhere), done))
        .unwrap();
    cluster.served.iter().for_each(|served| served.notes.strange.lock().push(ino));
    cluster.forget();
    let again = client.open(ino, READ_WRITE);
    client.write(&again, b"here");
    let asked = |at: usize| cluster.notes(at).take().iter().map(kind).collect::<Vec<_>>();
    assert_eq!(
        (asked((home + 1) % 3), asked(home)),
        (vec!["Open".into()], vec!["Open".into(), "Commit".into()])
    );
    let seen = InodeRef { ino, seen: Some((ROOT, name(&elsewhere))) };
    for op in [
        Op::GetAttr(seen.clone()),
        Op::SetAttr(seen.clone(), SetAttr { mode: Some(0o600), ..SetAttr::default() }),
        Op::Access(seen.clone(), 4),
        Op::SetXattr(
            seen.clone(),
            b"user.a".as_slice().into(),
            b"1".as_slice().into(),
            XattrFlags::default(),
        ),
        Op::GetXattr(seen.clone(), b"user.a".as_slice().into()),
        Op::ListXattr(seen.clone()),
        Op::RemoveXattr(seen.clone(), b"user.a".as_slice().into()),
    ] {
        client.call(op.clone()).unwrap();
        assert_eq!((asked((home + 1) % 3), asked(home)), (vec![kind(&op)], vec![kind(&op)]));
    }
    // What is nowhere is asked for twice, and no more.
    let gone = InodeRef { ino: ino + 3, seen: Some((ROOT, name(&elsewhere))) };
    cluster.served.iter().for_each(|served| served.notes.strange.lock().push(gone.ino));
    assert!(client.call(Op::GetAttr(gone)).is_err());
    assert_eq!((asked((home + 1) % 3).len(), asked(home).len()), (1, 1));
    client.close(again);
    client.close(file);
    assert_eq!(client.fs.metadata().stats().open_files, 0);
}

fn span(ino: InodeId, owner: u64) -> LockSpan {
    LockSpan {
        ino,
        owner,
        pid: 1,
        kind: LockKind::Posix,
        mode: LockMode::Write,
        start: 0,
        end: LOCK_END,
    }
}

#[test]
fn locks_are_the_homes_and_so_are_their_cancellations() {
    let cluster = Cluster::start();
    let clients = [0, 1].map(|at| Client::mount(&cluster.url(at)));
    for number in 0..6 {
        let file = format!("file{number}");
        let files = clients.each_ref().map(|client| client.create(&file));
        let ino = files[0].ino();
        wait(|done| clients[0].fs.set_lock(&files[0], span(ino, 1), None, done)).unwrap();
        let refused = wait(|done| clients[1].fs.set_lock(&files[1], span(ino, 1), None, done));
        assert_eq!(refused.unwrap_err().errno, libc::EAGAIN);
        let waiting = kestrel_client::fs::LockWait::default();
        let (send, answer) = std::sync::mpsc::channel();
        let done = Box::new(move |answer| drop(send.send(answer)));
        clients[1].fs.set_lock(&files[1], span(ino, 1), Some(waiting.clone()), done);
        until("it waits there", || cluster.notes(cluster.home(ino)).locks.lock().len() >= 3);
        clients[1].fs.cancel_lock(&waiting);
        assert_eq!(answer.recv().unwrap().unwrap_err().errno, libc::EINTR);
        cluster.forget();
    }
    cluster.check();
}
