//! One of each message, and a few things that are none.

use kestrel_types::acl::{AccessAcl, Acl, Acls, Named};
use kestrel_types::error::FsError;
use kestrel_types::extent::Extent;
use kestrel_types::feed::{
    FeedEvent, FeedEventKind, FeedId, FeedPage, FeedPosition, FeedStart, FeedTarget,
};
use kestrel_types::inode::{Data, Inode, InodeFlags, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::perm;
use kestrel_types::policy::{Consistency, Policy};
use kestrel_types::quota::{OverSince, QuotaInfo, QuotaLimits, QuotaSubject, QuotaUsage};
use kestrel_types::range::Range;
use kestrel_types::removal::{KeptBecause, RemovalPage};
use kestrel_types::request::{
    Accessed, Answer, Commit, Creds, DirEntry, NewData, Op, OpenFlags, Outcome, RenameFlags,
    Request, SetAttr, SetTime, Usage, XattrFlags,
};
use kestrel_types::snapshot::SnapshotInfo;
use kestrel_types::snapshot_changes::{
    ChangedDir, ChangedName, DirMoment, SnapshotChanges, SnapshotUsage,
};
use kestrel_types::token::TokenId;
use kestrel_types::wire::*;

pub enum Sample {
    ToServer(ToServer),
    ToClient(ToClient),
}

impl Sample {
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Sample::ToServer(message) => {
                encode_to_server(message, Checksum::Crc32c, &mut out).unwrap()
            }
            Sample::ToClient(message) => {
                encode_to_client(message, Checksum::Crc32c, &mut out).unwrap()
            }
        }
        out
    }

    /// Kind and payload.
    pub fn bytes(&self) -> Vec<u8> {
        let frame = self.frame();
        [&frame[4..5], &frame[HEADER_BYTES..]].concat()
    }
}

pub fn samples() -> Vec<(&'static str, Sample)> {
    let mut all: Vec<(&str, Sample)> = Vec::new();
    all.extend(sessions());
    all.extend(
        ops().into_iter().map(|(name, op)| (name, call(Body::Op(Request { creds: creds(), op })))),
    );
    all.extend(other_bodies().into_iter().map(|(name, body)| (name, call(body))));
    let reply =
        |answered| Sample::ToClient(ToClient::Reply(ReplyTo { id: 300, table: 5, answered }));
    all.extend(answers().into_iter().map(|(name, answered)| (name, reply(answered))));
    all
}

/// Payloads that are no message, each after its kind.
pub fn bad() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("bad-kind", vec![0x7f, 1, 2, 3]),
        ("bad-magic", vec![1, b'k', b's', b't', b'l', 0, 1, 0, 1]),
        ("bad-version", b"\x01KSTL\0\x06\0\x09later".to_vec()),
        ("bad-operation", vec![2, 1, 0, 1, 0, 0, 0, 0, 0, 200]),
        ("bad-name", b"\x02\x01\0\x01\0\0\0\0\0\x01\x01\0\x02..".to_vec()),
        ("bad-count", vec![2, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, b'x']),
        ("bad-varint", [&[3][..], &[0xff; 11]].concat()),
        ("bad-tail", vec![5, 0]),
    ]
}

/// Streams, each after the byte that says how it is cut.
pub fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let pong = Sample::ToClient(ToClient::Pong { table: 4 }).frame();
    vec![
        ("oversized", vec![3, 0, 0x40, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("http", b"\x07GET / HTTP/1.1\r\nHost: kestrel\r\n\r\n".to_vec()),
        ("cut-off", [&[0], &pong[..], &pong[..9]].concat()),
        ("flags", [&[9], &pong[..5], &[0xff], &pong[6..]].concat()),
    ]
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

fn place() -> PathRef {
    PathRef {
        base: 1,
        dirs: [name("data"), name("train")].into_iter().collect(),
        name: name("cat.jpg"),
    }
}

fn inode_ref() -> InodeRef {
    InodeRef { ino: 4711, seen: Some((77, name("cat.jpg"))) }
}

fn creds() -> Creds {
    Creds { uid: 1000, gid: 100, groups: Some([4, 24, 1000].into()) }
}

fn range() -> Range {
    Range { object: 99, offset: 65_540, len: 200_000 }
}

fn inode(data: Data) -> Box<Inode> {
    Box::new(Inode {
        ino: 4711,
        kind: Kind::File,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        nlink: 2,
        rdev: 0,
        size: 123_456,
        atime: 1_700_000_000_000_000_001,
        mtime: 1_700_000_000_000_000_002,
        ctime: 1_700_000_000_000_000_003,
        btime: 1_700_000_000_000_000_000,
        change: 1234,
        data_change: 1200,
        xattrs: true,
        flags: InodeFlags::default(),
        acls: None,
        data,
        effective: Policy::default(),
    })
}

fn inode_with_policy() -> Box<Inode> {
    let effective = Policy { consistency: Some(Consistency::Immutable), ..Policy::default() };
    Box::new(Inode { effective, ..*inode(Data::None) })
}

fn inode_with_acls() -> Box<Inode> {
    let named = Box::new([
        Named { group: false, id: 1001, perm: 7 },
        Named { group: true, id: 300, perm: 5 },
    ]);
    let access = AccessAcl { group_obj: 4, named: named.clone() };
    let default = Acl { user_obj: 7, group_obj: 5, mask: Some(7), other: 0, named };
    let acls = Acls::new(Some(access), Some(default));
    Box::new(Inode { kind: Kind::Dir, acls, ..*inode(Data::None) })
}

fn span() -> LockSpan {
    LockSpan {
        ino: 4711,
        owner: 0x0123_4567_89ab_cdef,
        pid: 4242,
        kind: LockKind::Posix,
        mode: LockMode::Write,
        start: 100,
        end: LOCK_END,
    }
}

fn call(body: Body) -> Sample {
    let seq = if body.is_numbered() { 20_000 } else { 0 };
    Sample::ToServer(ToServer::Call(Call { id: 300, seq, acked: 19_900, retry: true, body }))
}

fn sessions() -> Vec<(&'static str, Sample)> {
    let hello = Hello {
        versions: Versions { min: 14, max: 14 },
        volume: "data".into(),
        client: ClientId(*b"0123456789abcdef"),
        incarnation: 3,
        who: "gpu7:4242:/mnt/data".into(),
        established: true,
        token: Some(TokenId(*b"a token!")),
    };
    let welcome = Welcome {
        version: 14,
        node: 2,
        epoch: 17,
        descriptor: b"{\"magic\":\"kestrelfs\"}".as_slice().into(),
        session: SessionState::Restarted,
        lease_ms: 30_000,
        table: 5,
        root: 1,
    };
    let peer = PeerHello {
        versions: Versions { min: 14, max: 14 },
        volume: *b"uuid of a volume",
        from: 2,
        to: 1,
        table: 5,
        nonce: *b"a random number.",
        node_uuid: u64::from_be_bytes(*b"directry"),
        epoch: 17,
        start: u64::from_be_bytes(*b"aprocess"),
        address: "10.0.0.2:9440".into(),
    };
    let challenge =
        PeerChallenge { nonce: *b"another random..", proof: *b"what only members can work out.." };
    let refused = Refused { errno: libc::ENOENT, reason: "no such volume here: data".into() };
    vec![
        ("hello", Sample::ToServer(ToServer::Hello(hello))),
        ("ping", Sample::ToServer(ToServer::Ping { oldest_open_object: 12_345 })),
        ("cancel", Sample::ToServer(ToServer::Cancel { id: 300 })),
        ("bye", Sample::ToServer(ToServer::Bye)),
        ("peer-hello", Sample::ToServer(ToServer::PeerHello(peer))),
        ("peer-proof", Sample::ToServer(ToServer::PeerProof(*b"what only members can work out.."))),
        ("peer", Sample::ToServer(ToServer::Peer(b"an envelope".as_slice().into()))),
        ("welcome", Sample::ToClient(ToClient::Welcome(welcome))),
        ("refused", Sample::ToClient(ToClient::Refused(refused))),
        (
            "event",
            Sample::ToClient(ToClient::Event { id: 300, json: b"{\"done\":12}".as_slice().into() }),
        ),
        ("peer-challenge", Sample::ToClient(ToClient::PeerChallenge(challenge))),
        ("challenge", Sample::ToClient(ToClient::Challenge(*b"nonce of thirty-two random bytes"))),
        ("proof", Sample::ToServer(ToServer::Proof(*b"what only who has it can make: 3"))),
        ("pong", Sample::ToClient(ToClient::Pong { table: 4 })),
    ]
}

fn ops() -> Vec<(&'static str, Op)> {
    let flags = OpenFlags {
        read: true,
        write: true,
        exec: false,
        truncate: true,
        kill_suid: false,
        append: false,
    };
    let changes = SetAttr {
        mode: Some(0o4755),
        uid: Some(0),
        gid: Some(100),
        size: Some(1 << 40),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(-1)),
        through_handle: true,
        kill_suid: true,
    };
    let commit = |data| {
        Op::Commit(Commit {
            inode: inode_ref(),
            base: 1200,
            data,
            size: Some(300_000),
            mtime: 5,
            kill_suid: true,
        })
    };
    let rename = RenameFlags::default();
    let attribute = || b"user.label".as_slice().into();
    vec![
        ("op-lookup", Op::Lookup(place())),
        ("op-parent", Op::Parent(77)),
        ("op-getattr", Op::GetAttr(inode_ref())),
        ("op-getattr-by-id", Op::GetAttr(InodeRef::by_id(1))),
        ("op-setattr", Op::SetAttr(inode_ref(), changes)),
        ("op-setattr-nothing", Op::SetAttr(inode_ref(), SetAttr::default())),
        ("op-access", Op::Access(inode_ref(), 4)),
        ("op-readlink", Op::ReadLink(inode_ref())),
        ("op-create", Op::Create { place: place(), mode: 0o600, flags, exclusive: true }),
        (
            "op-create-umask",
            Op::Create {
                place: place(),
                mode: perm::with_umask(0o666, 0o027),
                flags,
                exclusive: false,
            },
        ),
        ("op-open", Op::Open(inode_ref(), flags)),
        ("op-open-at", Op::OpenAt(place(), flags)),
        ("op-tmpfile", Op::TmpFile { dir: 77, mode: 0o600, exclusive: true }),
        ("op-release", Op::Release(4711)),
        ("op-mknod", Op::MkNod { place: place(), kind: Kind::Char, mode: 0o666, rdev: 0x103 }),
        ("op-mkdir", Op::MkDir(place(), 0o1777)),
        ("op-symlink", Op::Symlink(place(), b"../dog.jpg".as_slice().into())),
        ("op-unlink", Op::Unlink(place())),
        ("op-rmdir", Op::RmDir(place(), Some(4711))),
        ("op-rename", Op::Rename(place(), place(), RenameFlags { no_replace: true, ..rename })),
        (
            "op-rename-over",
            Op::Rename(place(), place(), RenameFlags { replaced: Some(300), ..rename }),
        ),
        ("op-link", Op::Link(inode_ref(), place())),
        (
            "op-readdir",
            Op::ReadDir { dir: 77, after: Some(name("bird.jpg")), limit: 4096, check: true },
        ),
        ("op-readdir-first", Op::ReadDir { dir: 77, after: None, limit: 1, check: false }),
        ("op-removal-check", Op::RemovalCheck { dir: 77, after: Some(name("a")), limit: 4096 }),
        ("op-readdirplus", Op::ReadDirPlus { dir: 77, after: Some(name("bird.jpg")), limit: 4096 }),
        ("op-commit", commit(NewData::Unchanged)),
        ("op-commit-inline", commit(NewData::Inline(b"content".as_slice().into()))),
        ("op-commit-packed", commit(NewData::Packed(range()))),
        (
            "op-commit-patches",
            commit(NewData::Patches(vec![
                (0, Extent::of_range(4096, range())),
                (9, Extent::hole(0, 512)),
            ])),
        ),
        (
            "op-compact",
            Op::Compact {
                inode: inode_ref(),
                chunk: 3,
                old: vec![Extent::hole(0, 9), Extent::of_range(9, range())],
                new: vec![Extent::of_range(0, range())],
            },
        ),
        (
            "op-clone",
            Op::Clone {
                from: inode_ref(),
                from_offset: 0,
                to: InodeRef::by_id(12),
                to_offset: 4096,
                len: 1 << 30,
            },
        ),
        ("op-chunks", Op::Chunks { ino: 4711, first: 0, last: 128 }),
        ("op-sweep", Op::Sweep(4711)),
        ("op-getxattr", Op::GetXattr(inode_ref(), attribute())),
        (
            "op-setxattr",
            Op::SetXattr(
                inode_ref(),
                attribute(),
                b"cat".as_slice().into(),
                XattrFlags { create: true, replace: false },
            ),
        ),
        ("op-listxattr", Op::ListXattr(inode_ref())),
        ("op-removexattr", Op::RemoveXattr(inode_ref(), attribute())),
        ("op-alloc", Op::AllocObjects(64)),
        ("op-usage", Op::Usage),
        ("op-tree-usage", Op::TreeUsage(77)),
        ("op-sync", Op::Sync),
        (
            "op-locate",
            Op::Locate { files: vec![4711, 1 << 40], after: Some((77, name("bird.jpg"))) },
        ),
        ("op-setflags", Op::SetFlags(inode_ref(), InodeFlags::IMMUTABLE.with(InodeFlags::NO_DUMP))),
        (
            "op-accessed",
            Op::Accessed(inode_ref(), Accessed { at: 1_700_000_000_000_000_001, relative: true }),
        ),
        (
            "op-at",
            Op::At(5000, Box::new(Op::ReadDir { dir: 77, after: None, limit: 100, check: true })),
        ),
        ("op-snapshot-create", Op::SnapshotCreate { dir: 77, name: name("monday") }),
        (
            "op-snapshot-rename",
            Op::SnapshotRename { dir: 77, from: name("monday"), to: name("week-48") },
        ),
        ("op-snapshot-remove", Op::SnapshotRemove { dir: 77, name: name("monday") }),
        (
            "op-snapshot-hold",
            Op::SnapshotHold { dir: 77, name: name("monday"), tag: name("backup"), hold: true },
        ),
        ("op-snapshot-list", Op::SnapshotList { dir: Some(77), ancestors: true }),
        ("op-snapshot-list-all", Op::SnapshotList { dir: None, ancestors: false }),
        (
            "op-snapshot-changes",
            Op::SnapshotChanges {
                dir: 77,
                older: 5000,
                newer: Some(6000),
                files: Vec::new(),
                limit: 1000,
                after: Some([1, 2, 3].into()),
            },
        ),
        (
            "op-snapshot-changes-files",
            Op::SnapshotChanges {
                dir: 77,
                older: 5000,
                newer: None,
                files: vec![4711, 300],
                limit: 1000,
                after: None,
            },
        ),
        ("op-snapshot-usage", Op::SnapshotUsage { snapshot: 5000, after: None }),
        ("op-clone-dir", Op::CloneDir { source: 77, at: None, place: place() }),
        ("op-clone-dir-at", Op::CloneDir { source: 77, at: Some(5000), place: place() }),
        ("op-clone-step", Op::CloneStep(300)),
        ("op-quota-set", Op::QuotaSet(QuotaSubject::Dir(77), Box::new(quota_limits()))),
        ("op-quota-set-volume", Op::QuotaSet(QuotaSubject::Volume, Box::default())),
        ("op-quota-remove", Op::QuotaRemove(QuotaSubject::User(1000))),
        ("op-quota-list", Op::QuotaList(None)),
        ("op-quota-list-above", Op::QuotaList(Some(inode_ref()))),
        ("op-quota-check", Op::QuotaCheck { repair: true }),
        ("op-feed-read", Op::FeedRead { dir: 77, from: FeedStart::Oldest, limit: 1000 }),
        (
            "op-feed-read-after",
            Op::FeedRead {
                dir: 77,
                from: FeedStart::After(feed_id(), feed_position()),
                limit: 4096,
            },
        ),
        ("op-locate-first", Op::Locate { files: vec![4711], after: None }),
    ]
}

fn quota_limits() -> QuotaLimits {
    QuotaLimits { bytes: Some(1 << 40), soft_files: Some(9_000_000), ..QuotaLimits::default() }
}

fn quotas() -> Vec<QuotaInfo> {
    let used = QuotaUsage { files: 9_500_000, bytes: -4096 };
    let since = OverSince { bytes: 0, files: 1_700_000_000_000_000_000 };
    let dir = QuotaSubject::Dir(77);
    let info = QuotaInfo { of: dir, limits: quota_limits(), used, since, counted: None };
    let group = QuotaInfo { of: QuotaSubject::Group(100), counted: Some(used), ..info };
    vec![info, group]
}

fn other_bodies() -> Vec<(&'static str, Body)> {
    let LockSpan { ino, owner, kind, start, end, .. } = span();
    let opens = vec![
        ReclaimOpen { file: inode_ref(), count: 2, linkable: false },
        ReclaimOpen { file: InodeRef::by_id(12), count: 1, linkable: true },
    ];
    let reclaim = Reclaim {
        opens,
        locks: vec![span()],
        objects: vec![(1000, 64)],
        oldest_open_object: 1010,
        last: true,
    };
    vec![
        ("lock-set", Body::Lock(LockRequest::Set { lock: span(), wait: true })),
        ("lock-unlock", Body::Lock(LockRequest::Unlock { ino, owner, kind, start, end })),
        ("lock-get", Body::Lock(LockRequest::Get(span()))),
        (
            "lock-release",
            Body::Lock(LockRequest::ReleaseOwner { ino, owner, kind: LockKind::Flock }),
        ),
        ("reclaim", Body::Reclaim(reclaim)),
        ("admin", Body::Admin(b"{\"ask\":\"status\"}".as_slice().into())),
    ]
}

fn answers() -> Vec<(&'static str, Answered)> {
    let error = || FsError::new(libc::EACCES, "permission denied");
    let answers = vec![
        ("answer-done", Answer::Done),
        ("answer-inode", Answer::Inode(inode(Data::Packed { range: range(), visible: 123_456 }))),
        ("answer-inode-inline", Answer::Inode(inode(Data::Inline(b"content".as_slice().into())))),
        ("answer-inode-chunked", Answer::Inode(inode(Data::Chunked))),
        ("answer-inode-policy", Answer::Inode(inode_with_policy())),
        ("answer-inode-acls", Answer::Inode(inode_with_acls())),
        ("answer-entry", Answer::Entry { parent: 77, inode: inode(Data::None) }),
        ("answer-opened", Answer::Opened { inode: inode(Data::None), created: true, parent: None }),
        (
            "answer-opened-at",
            Answer::Opened { inode: inode(Data::None), created: true, parent: Some(77) },
        ),
        ("answer-removed", Answer::Removed(inode(Data::None))),
        ("answer-renamed", Answer::Renamed { moved: 4711, other: None, from: 77, to: 300 }),
        (
            "answer-replaced",
            Answer::Renamed { moved: 4711, other: Some(inode(Data::None)), from: 77, to: 77 },
        ),
        ("answer-bytes", Answer::Bytes(b"../dog.jpg".as_slice().into())),
        (
            "answer-entries",
            Answer::Entries {
                entries: vec![
                    DirEntry { name: name("a"), ino: 20, kind: Kind::Dir },
                    DirEntry { name: name("b"), ino: 300, kind: Kind::Symlink },
                ],
                parent: 1,
                end: true,
            },
        ),
        (
            "answer-entries-plus",
            Answer::EntriesPlus { entries: vec![(name("b"), inode(Data::Chunked))], end: false },
        ),
        (
            "answer-removal-page",
            Answer::RemovalPage(Box::new(RemovalPage {
                files: 300,
                bytes: 1 << 40,
                dirs: vec![(name("d"), 77)],
                links: vec![name("l")],
                kept: None,
                last: Some(name("z")),
                end: false,
            })),
        ),
        (
            "answer-removal-page-kept",
            Answer::RemovalPage(Box::new(RemovalPage {
                kept: Some((name("k"), KeptBecause::Sticky)),
                ..RemovalPage::default()
            })),
        ),
        (
            "answer-chunks",
            Answer::Chunks {
                chunks: vec![(0, vec![Extent::of_range(0, range())]), (7, Vec::new())],
                end: false,
            },
        ),
        ("answer-objects", Answer::Objects { first: 1000, count: 64 }),
        (
            "answer-located",
            Answer::Located {
                found: vec![(77, DirEntry { name: name("b"), ino: 4711, kind: Kind::File })],
                next: Some((300, name("c"))),
            },
        ),
        (
            "answer-snapshots",
            Answer::Snapshots(vec![SnapshotInfo {
                id: 5000,
                dir: 77,
                name: name("monday"),
                created: 1_700_000_000_000_000_000,
                removing: false,
                cutting: false,
                hidden: false,
                holds: vec![name("backup")],
                clones: Vec::new(),
            }]),
        ),
        (
            "answer-snapshot-changes",
            Answer::SnapshotChanges(Box::new(SnapshotChanges {
                dirs: vec![ChangedDir {
                    dir: 77,
                    older: DirMoment {
                        parent: 1,
                        path: b"a/b".as_slice().into(),
                        inode: inode(Data::None),
                    },
                    newer: DirMoment {
                        parent: 0,
                        path: b"".as_slice().into(),
                        inode: inode(Data::None),
                    },
                    names: vec![ChangedName {
                        name: name("c"),
                        older: None,
                        newer: Some(inode(Data::Chunked)),
                    }],
                }],
                files: vec![4711],
                newer: Some(6000),
                next: None,
            })),
        ),
        (
            "answer-snapshot-usage",
            Answer::SnapshotUsage(SnapshotUsage {
                rows: 1000,
                bytes: 1 << 40,
                next: Some([1, 2].into()),
            }),
        ),
        ("answer-clone-progress", Answer::CloneProgress { names: 512, done: false }),
        ("answer-quotas", Answer::Quotas(quotas())),
        ("answer-feed", Answer::Feed(Box::new(feed_page()))),
        ("answer-usage", Answer::Usage(Usage { files: 1_000_000, dirs: 5000, bytes: 1 << 50 })),
    ];
    let outcomes = vec![
        ("answer-failed", Outcome::Failed(error())),
        ("answer-need-groups", Outcome::NeedGroups),
        ("answer-conflict", Outcome::Conflict(inode(Data::Chunked))),
        (
            "answer-symlink",
            Outcome::Symlink { resolved: 1, dir: 77, target: b"/elsewhere".as_slice().into() },
        ),
        ("answer-misdirected", Outcome::Misdirected { table: 300 }),
    ];
    let others = vec![
        ("answer-lock", Answered::Lock(Ok(LockAnswer::Done))),
        ("answer-lock-free", Answered::Lock(Ok(LockAnswer::Free))),
        ("answer-lock-held", Answered::Lock(Ok(LockAnswer::Held(span())))),
        ("answer-lock-failed", Answered::Lock(Err(error()))),
        (
            "answer-reclaim",
            Answered::Reclaim(Ok(Reclaimed { lost_opens: vec![4711], lost_locks: vec![0, 300] })),
        ),
        ("answer-reclaim-failed", Answered::Reclaim(Err(error()))),
        ("answer-admin", Answered::Admin(Ok(b"{\"ok\":true}".as_slice().into()))),
        ("answer-admin-failed", Answered::Admin(Err(error()))),
    ];
    let answers = answers.into_iter().map(|(name, answer)| (name, Answered::Op(Ok(answer))));
    let outcomes = outcomes.into_iter().map(|(name, outcome)| (name, Answered::Op(Err(outcome))));
    answers.chain(outcomes).chain(others).collect()
}

fn feed_position() -> FeedPosition {
    FeedPosition { stamp: 1_795_824_000_000_000_000, worker: 3, number: 7 }
}

fn feed_id() -> FeedId {
    FeedId { dir: 1, began: 1_795_823_000_000_000_000 }
}

fn feed_page() -> FeedPage {
    let path = |text: &str| text.as_bytes().into();
    let create = FeedEvent {
        kind: FeedEventKind::Create,
        ino: 300,
        file: Kind::File,
        path: path("a/f"),
        to: None,
    };
    let to = FeedTarget { path: path("b/g"), before: Some((301, Kind::File)) };
    let rename = FeedEvent { kind: FeedEventKind::Rename, to: Some(to), ..create.clone() };
    let events = vec![(feed_position(), create), (feed_position(), rename)];
    FeedPage { feed: feed_id(), events, next: feed_position(), more: true }
}
