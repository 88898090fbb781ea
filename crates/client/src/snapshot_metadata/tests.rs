use std::sync::Mutex;

use kestrel_types::name::InodeRef;
use kestrel_types::op_counters::{self, WorkerCounters};

use super::*;

/// Metadata with a directory 20, mode 0750, and in it a file 21, mode 0640, named `f`. Notes what
/// it is asked.
#[derive(Default)]
struct Live(Mutex<Vec<Op>>);

fn inode(ino: InodeId) -> Box<Inode> {
    let kind = if ino == 20 { Kind::Dir } else { Kind::File };
    let mut inode = Inode::new(ino, kind, 0, 5);
    inode.xattrs = ino == 22;
    (inode.uid, inode.gid, inode.mode) = (7, 8, if ino == 20 { 0o750 } else { 0o640 });
    Box::new(inode)
}

impl Metadata for Live {
    fn submit(&self, request: Request, done: Done) {
        let Op::At(5, op) = &request.op else { panic!("not at the snapshot: {request:?}") };
        let reply = match &**op {
            Op::GetAttr(asked) => Ok(Answer::Inode(inode(asked.ino))),
            Op::Lookup(place) => Ok(Answer::Entry { parent: place.base, inode: inode(21) }),
            Op::Open(asked, _) => {
                Ok(Answer::Opened { inode: inode(asked.ino), created: false, parent: None })
            }
            Op::Access(..) => Ok(Answer::Done),
            Op::ListXattr(_) => Ok(Answer::Bytes(b"user.a\0trusted.b\0"[..].into())),
            Op::GetXattr(_, name) if **name == *b"user.a" => Ok(Answer::Bytes(b"value"[..].into())),
            other => panic!("not expected: {other:?}"),
        };
        self.0.lock().unwrap().push((**op).clone());
        done(reply);
    }

    fn stats(&self) -> NodeStats {
        op_counters::sum(&[WorkerCounters::default()], 1)
    }

    fn close(&self) -> FsResult<()> {
        panic!("the live volume stays open")
    }
}

fn at(root: InodeId) -> (Arc<Live>, SnapshotMetadata) {
    let live = Arc::new(Live::default());
    let kept = Arc::new(KeptInodes::new(1 << 20));
    (live.clone(), SnapshotMetadata::new(live, (5, root), kept))
}

fn ask(metadata: &SnapshotMetadata, uid: u32, op: Op) -> Reply {
    let answer = Arc::new(Mutex::new(None));
    let told = answer.clone();
    let creds = Creds { uid, gid: 9, groups: Some(Arc::new([])) };
    metadata
        .submit(Request { creds, op }, Box::new(move |reply| *told.lock().unwrap() = Some(reply)));
    let reply = answer.lock().unwrap().take();
    reply.expect("answered")
}

fn errno(reply: Reply) -> i32 {
    match reply {
        Err(Outcome::Failed(error)) => error.errno,
        other => panic!("{other:?}"),
    }
}

fn place() -> PathRef {
    PathRef::new(20, Name::new(b"f").unwrap())
}

fn by_id(ino: InodeId) -> InodeRef {
    InodeRef::by_id(ino)
}

const READS: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// The first walk asks, the second does not, and permissions are looked at each time.
#[test]
fn second_walk_sends_nothing() {
    let (live, metadata) = at(ROOT);
    for pass in 0..2 {
        ask(&metadata, 7, Op::GetAttr(by_id(20))).unwrap();
        ask(&metadata, 7, Op::Access(by_id(20), READ)).unwrap();
        ask(&metadata, 7, Op::Lookup(place())).unwrap();
        let opened = ask(&metadata, 7, Op::Open(by_id(21), READS)).unwrap();
        assert!(matches!(opened, Answer::Opened { inode, .. } if inode.ino == 21), "pass {pass}");
        ask(&metadata, 7, Op::Release(21)).unwrap();
        let opened = ask(&metadata, 7, Op::ListXattr(by_id(21))).unwrap();
        assert!(matches!(opened, Answer::Bytes(names) if names.is_empty()));
        assert_eq!(live.0.lock().unwrap().len(), 3, "pass {pass}");
    }
    assert_eq!(errno(ask(&metadata, 1, Op::Lookup(place()))), libc::EACCES);
    assert_eq!(errno(ask(&metadata, 1, Op::Open(by_id(21), READS))), libc::EACCES);
    assert_eq!(errno(ask(&metadata, 1, Op::Access(by_id(20), READ))), libc::EACCES);
    assert_eq!(live.0.lock().unwrap().len(), 3);
}

/// Extended attributes are asked for once, and are those that the caller may read.
#[test]
fn extended_attributes_are_asked_for_once() {
    let (live, metadata) = at(ROOT);
    let get = |uid, name: &[u8]| ask(&metadata, uid, Op::GetXattr(by_id(22), name.into()));
    ask(&metadata, 0, Op::GetAttr(by_id(22))).unwrap();
    for _ in 0..2 {
        let names = ask(&metadata, 0, Op::ListXattr(by_id(22))).unwrap();
        assert!(matches!(names, Answer::Bytes(names) if names.len() == 17));
        let value = get(7, b"user.a").unwrap();
        assert!(matches!(value, Answer::Bytes(value) if *value == *b"value"));
        assert_eq!(errno(get(0, b"user.absent")), libc::ENODATA);
        assert_eq!(errno(get(0, b"system.posix_acl_access")), libc::ENODATA);
        assert_eq!(errno(get(0, b"system.other")), libc::EOPNOTSUPP);
    }
    assert_eq!(live.0.lock().unwrap().len(), 3);
    assert_eq!(errno(get(1, b"user.a")), libc::EACCES);
    // Users are not told of all names: the node knows which.
    ask(&metadata, 7, Op::ListXattr(by_id(22))).unwrap();
    assert_eq!(live.0.lock().unwrap().len(), 4);
}

/// A directory that no node has let this client list is asked for, though its mode is known.
#[test]
fn listing_a_directory_is_asked_for_once() {
    let (live, metadata) = at(ROOT);
    ask(&metadata, 7, Op::GetAttr(by_id(20))).unwrap();
    for _ in 0..2 {
        ask(&metadata, 7, Op::Open(by_id(20), READS)).unwrap();
    }
    assert_eq!(live.0.lock().unwrap().len(), 2);
}

/// What changes something is refused, what is only counted is done here.
#[test]
fn a_snapshot_is_read_only() {
    let (live, metadata) = at(ROOT);
    for op in [
        Op::MkDir(place(), 0o755),
        Op::Unlink(place()),
        Op::Open(by_id(21), OpenFlags { write: true, ..READS }),
        Op::Open(by_id(21), OpenFlags { truncate: true, ..READS }),
        Op::SnapshotCreate { dir: 20, name: Name::new(b"s").unwrap() },
        Op::AllocObjects(1),
    ] {
        assert_eq!(errno(ask(&metadata, 0, op)), libc::EROFS);
    }
    ask(&metadata, 0, Op::Sync).unwrap();
    assert!(live.0.lock().unwrap().is_empty());
}

/// With another root than the volume's, that directory has the number of the root.
#[test]
fn a_directory_as_root() {
    let (live, metadata) = at(20);
    let root = ask(&metadata, 0, Op::GetAttr(by_id(ROOT))).unwrap();
    assert!(matches!(root, Answer::Inode(inode) if inode.ino == ROOT));
    assert_eq!(*live.0.lock().unwrap(), [Op::GetAttr(by_id(20))]);
    let again = ask(&metadata, 0, Op::GetAttr(by_id(ROOT))).unwrap();
    assert!(matches!(again, Answer::Inode(inode) if inode.ino == ROOT));
}

/// A snapshot that this process has removed answers nothing any more.
#[test]
fn a_removed_snapshot_is_stale() {
    let (_, metadata) = at(ROOT);
    ask(&metadata, 0, Op::GetAttr(by_id(20))).unwrap();
    metadata.kept.forget(5);
    assert_eq!(errno(ask(&metadata, 0, Op::GetAttr(by_id(20)))), libc::ESTALE);
}
