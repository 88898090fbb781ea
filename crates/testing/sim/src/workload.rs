//! The calls of clients: every operation, on few names, so that they are in each other's way.

use kestrel_types::extent::Extent;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{CHUNK_BYTES, Data, InodeFlags, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::policy::{PolicyField, XATTR_PREFIX};
use kestrel_types::range::Range;
use kestrel_types::request::{
    Accessed, Commit, Creds, NewData, Op, OpenFlags, RenameFlags, Request, SetAttr, SetTime,
    XattrFlags,
};
use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockRequest, LockSpan};

use crate::client::{Client, SeenInode, Versions};

/// All names that clients use.
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A client's next action.
pub enum ClientAction {
    /// An operation.
    Op(Request),
    /// A lock.
    Lock(LockRequest),
}

fn name(client: &mut Client) -> Name {
    let text = client.prng.pick(&NAMES).expect("not empty");
    Name::new(text.as_bytes()).expect("a valid name")
}

/// A directory that it has seen; the root half of the time.
fn dir(client: &mut Client) -> u64 {
    let dirs: Vec<u64> = client
        .seen_inodes
        .iter()
        .filter(|seen| seen.inode.kind == Kind::Dir)
        .map(|seen| seen.inode.ino)
        .collect();
    if client.prng.chance(40) { 1 } else { *client.prng.pick(&dirs).expect("the root is known") }
}

fn place(client: &mut Client) -> PathRef {
    let mut place = PathRef::new(dir(client), name(client));
    while place.dirs.len() < 2 && client.prng.chance(25) {
        let above = name(client);
        place.dirs.push(&above);
    }
    place
}

fn pick_seen(client: &mut Client, wanted: impl Fn(&SeenInode) -> bool) -> Option<SeenInode> {
    let those: Vec<&SeenInode> = client.seen_inodes.iter().filter(|seen| wanted(seen)).collect();
    client.prng.pick(&those).map(|seen| (*seen).clone())
}

fn any(client: &mut Client) -> InodeRef {
    pick_seen(client, |_| true).map_or(InodeRef::by_id(1), |seen| seen.reference())
}

fn creds(client: &mut Client) -> Creds {
    if client.prng.chance(85) {
        return Creds::root();
    }
    let uid = 1000 + client.prng.below(2) as u32;
    Creds { uid, gid: 1000, groups: Some([].into()) }
}

fn mode(client: &mut Client) -> u32 {
    *client.prng.pick(&[0o777, 0o755, 0o700, 0o1777]).expect("not empty")
}

fn flags(client: &mut Client) -> OpenFlags {
    let write = client.prng.chance(70);
    OpenFlags {
        read: true,
        write,
        truncate: write && client.prng.chance(10),
        ..OpenFlags::default()
    }
}

/// A file it has open, for writing if so wanted.
fn handle(client: &mut Client, write: bool) -> Option<u64> {
    let handles = client
        .handles
        .iter()
        .filter(|(_, handle)| handle.free > 0 && (handle.writes > 0 || !write));
    let open: Vec<u64> = handles.map(|(ino, _)| *ino).collect();
    client.prng.pick(&open).copied()
}

fn commit(client: &mut Client) -> Option<Op> {
    let ino = handle(client, true)?;
    let file = pick_seen(client, |seen| seen.inode.ino == ino)?;
    Some(commit_to(client, &file, 1))
}

/// New content of a file, in this many chunks.
fn commit_to(client: &mut Client, file: &SeenInode, chunks: u64) -> Op {
    let (size, base) = (file.inode.size, file.inode.data_change);
    let len = 1 + client.prng.below(6);
    let inline_only = matches!(file.inode.data, Data::Inline(_));
    let object = client.objects.first().copied();
    let offset = client.prng.below(100) as u32 * 64;
    let (data, size) = match (client.prng.below(4), object) {
        (0, Some(object)) => (NewData::Packed(Range { object, offset, len: len as u32 }), len),
        (1, Some(object)) if !inline_only => {
            let extent = Extent::of_range(
                client.prng.below(4) as u32,
                Range { object, offset, len: len as u32 },
            );
            let chunk = client.prng.below(chunks);
            let end = chunk * CHUNK_BYTES + u64::from(extent.end());
            (NewData::Patches(vec![(chunk, extent)]), size.max(end))
        }
        (2, _) => (NewData::Unchanged, client.prng.below(8)),
        _ => {
            let bytes: Vec<u8> = (0..len).map(|_| client.prng.below(256) as u8).collect();
            (NewData::Inline(bytes.into()), len)
        }
    };
    let size = Some(size);
    Op::Commit(Commit { inode: file.reference(), base, data, size, mtime: 7, kill_suid: false })
}

/// Something that content of several nodes is about.
fn content(client: &mut Client) -> Option<Op> {
    if client.objects.is_empty() {
        return Some(Op::AllocObjects(8));
    }
    let is_file = |seen: &SeenInode| seen.inode.kind == Kind::File;
    let file = pick_seen(client, is_file)?;
    let chunk = client.prng.below(6);
    Some(match client.prng.below(20) {
        0..=11 => commit_to(client, &file, 6),
        12..=14 => {
            let to = pick_seen(client, is_file)?;
            let whole = client.prng.chance(50);
            let len = if whole { file.inode.size } else { 1 + client.prng.below(8) };
            let to_offset =
                if whole { 0 } else { client.prng.below(6) * CHUNK_BYTES + client.prng.below(8) };
            let from_offset = if whole { 0 } else { chunk * CHUNK_BYTES };
            // The model keeps a note of every byte.
            if len > 64 {
                return None;
            }
            Op::Clone { from: file.reference(), from_offset, to: to.reference(), to_offset, len }
        }
        15 | 16 => {
            let size = Some(chunk * CHUNK_BYTES + client.prng.below(8));
            Op::SetAttr(
                file.reference(),
                SetAttr { size, through_handle: true, ..SetAttr::default() },
            )
        }
        _ => Op::Chunks { ino: file.inode.ino, first: 0, last: 9 },
    })
}

/// Flags of something: mostly none, or soon nothing could change. The root stays as it is: checks
/// at the end make names in it.
fn set_flags(client: &mut Client) -> Op {
    let inode = any(client);
    let flags = match client.prng.below(10) {
        0 | 1 if inode.ino == ROOT => InodeFlags::NO_DUMP,
        0 => InodeFlags::IMMUTABLE,
        1 => InodeFlags::APPEND,
        2 => InodeFlags::NO_DUMP,
        _ => InodeFlags::default(),
    };
    Op::SetFlags(inode, flags)
}

/// A read of something.
fn accessed(client: &mut Client) -> Op {
    let at = 3 + client.prng.below(8).cast_signed();
    Op::Accessed(any(client), Accessed { at, relative: client.prng.chance(50) })
}

fn set_attr(client: &mut Client) -> Op {
    if client.prng.chance(15) {
        return set_flags(client);
    }
    if client.prng.chance(15) {
        return accessed(client);
    }
    let inode = any(client);
    let mut set = SetAttr::default();
    match client.prng.below(4) {
        0 => set.mode = Some(mode(client) as u16),
        1 => set.size = Some(client.prng.below(8)),
        2 => set.uid = Some(1000 + client.prng.below(2) as u32),
        _ => set.mtime = Some(SetTime::At(5)),
    }
    Op::SetAttr(inode, set)
}

fn xattr(client: &mut Client) -> Op {
    let inode = any(client);
    let key: Box<[u8]> =
        if client.prng.chance(50) { b"user.a"[..].into() } else { b"user.b"[..].into() };
    match client.prng.below(5) {
        0 | 1 => {
            let (create, replace) = (client.prng.chance(20), client.prng.chance(10));
            let value = client.prng.below(1000).to_string().into_bytes();
            Op::SetXattr(
                inode,
                key,
                value.into(),
                XattrFlags { create, replace: replace && !create },
            )
        }
        2 => Op::GetXattr(inode, key),
        3 => Op::ListXattr(inode),
        _ => Op::RemoveXattr(inode, key),
    }
}

/// What a client may expect to remove or replace: often nothing in particular.
fn expected(client: &mut Client) -> Option<u64> {
    client.prng.chance(30).then(|| dir(client))
}

fn rename(client: &mut Client) -> Op {
    let (from, to) = (place(client), place(client));
    let replaced = expected(client);
    let flags = match client.prng.below(10) {
        0 => RenameFlags { no_replace: true, ..RenameFlags::default() },
        1 | 2 => RenameFlags { exchange: true, ..RenameFlags::default() },
        _ => RenameFlags { replaced, ..RenameFlags::default() },
    };
    Op::Rename(from, to, flags)
}

fn lock(client: &mut Client) -> LockRequest {
    let (ino, owner) = (100 + client.prng.below(2), 1 + client.prng.below(2));
    let kind = if client.prng.chance(30) { LockKind::Flock } else { LockKind::Posix };
    let (start, end) = if kind == LockKind::Posix { (0, 9) } else { (0, LOCK_END) };
    let mode = if client.prng.chance(40) { LockMode::Read } else { LockMode::Write };
    let span = LockSpan { ino, owner, pid: 1, kind, mode, start, end };
    match client.prng.below(10) {
        0..=3 => LockRequest::Unlock { ino, owner, kind, start, end },
        4 => LockRequest::Get(span),
        5 => LockRequest::ReleaseOwner { ino, owner, kind },
        prng => LockRequest::Set { lock: span, wait: prng < 8 },
    }
}

/// A change of a snapshot, or a listing.
fn snapshot_op(client: &mut Client) -> Op {
    let make = |client: &mut Client| {
        let dir = dir(client);
        Op::SnapshotCreate { dir, name: snapshot_name(client) }
    };
    let known = client.prng.pick(&client.snapshots).cloned();
    let Some(known) = known.filter(|_| client.prng.chance(60)) else {
        let dir = client.prng.chance(60).then(|| dir(client));
        return match client.prng.below(10) {
            0..=5 => make(client),
            6 => Op::SnapshotRemove { dir: dir.unwrap_or(ROOT), name: snapshot_name(client) },
            _ => Op::SnapshotList { dir, ancestors: client.prng.chance(50) },
        };
    };
    let (dir, name) = (known.dir, known.name);
    let held = known.holds.first().cloned();
    match (client.prng.below(10), held) {
        (0..=5, Some(tag)) => Op::SnapshotHold { dir, name, tag, hold: false },
        (0..=5, None) => Op::SnapshotRemove { dir, name },
        (6, _) => {
            let (tag, hold) = (snapshot_name(client), client.prng.chance(70));
            Op::SnapshotHold { dir, name, tag, hold }
        }
        (7, _) => Op::SnapshotRename { dir, from: name, to: snapshot_name(client) },
        _ => make(client),
    }
}

fn snapshot_name(client: &mut Client) -> Name {
    let text = client.prng.pick(&["s", "t", "u", "v", "_w"]).expect("not empty");
    Name::new(text.as_bytes()).expect("a valid name")
}

/// A clone of a directory, as it is or as it was at a snapshot that the client has seen.
fn clone_op(client: &mut Client) -> Op {
    let at = client.prng.pick(&client.snapshots).map(|info| info.id);
    let at = at.filter(|_| client.prng.chance(50));
    // The whole tree cannot be cloned into itself as it is now.
    let source = if at.is_some() && client.prng.chance(50) { ROOT } else { dir(client) };
    Op::CloneDir { source, at, place: place(client) }
}

/// A read at a snapshot that the client has seen; now and then of what it may not do there.
fn past_op(client: &mut Client) -> Option<Op> {
    let id = client.prng.pick(&client.snapshots)?.id;
    let read = OpenFlags { read: true, ..OpenFlags::default() };
    let op = match client.prng.below(24) {
        0..=3 => Op::Lookup(place(client)),
        4..=6 => Op::GetAttr(any(client)),
        7..=10 => Op::ReadDir { dir: dir(client), after: None, limit: 100, check: true },
        11 => Op::RemovalCheck { dir: dir(client), after: None, limit: 100 },
        12 => Op::ReadDirPlus { dir: dir(client), after: None, limit: 100 },
        13 => Op::OpenAt(place(client), read),
        14 => Op::Open(any(client), read),
        15 => Op::GetXattr(any(client), b"user.a"[..].into()),
        16 => Op::ListXattr(any(client)),
        17 => Op::ReadLink(any(client)),
        18 => Op::Access(any(client), client.prng.below(8) as u32),
        19 => Op::Parent(dir(client)),
        20 => Op::TreeUsage(dir(client)),
        21 | 22 => {
            let file = pick_seen(client, |seen| seen.inode.kind == Kind::File)?;
            Op::Chunks { ino: file.inode.ino, first: 0, last: 9 }
        }
        _ => Op::MkDir(place(client), 0o777),
    };
    Some(Op::At(id, Box::new(op)))
}

/// A comparison of two snapshots that the client has seen, or of one with the present.
fn compare_op(client: &mut Client) -> Option<Op> {
    let one = client.prng.pick(&client.snapshots)?.id;
    let other = client.prng.pick(&client.snapshots)?.id;
    let newer = client.prng.chance(60).then(|| one.max(other));
    let older = if client.prng.chance(95) { one.min(other) } else { one.max(other) };
    let dir = if client.prng.chance(60) { ROOT } else { dir(client) };
    let (files, limit, after) = (Vec::new(), 10_000, None);
    Some(Op::SnapshotChanges { dir, older, newer, files, limit, after })
}

/// A policy is set, unset or looked at. Immutable trees are rare, or soon nothing could change.
fn policy_op(client: &mut Client) -> Op {
    let inode = InodeRef::by_id(dir(client));
    let fields = [PolicyField::Consistency, PolicyField::Compression];
    let field = *client.prng.pick(&fields).expect("not empty");
    let key = |name: &str| [XATTR_PREFIX, name.as_bytes()].concat().into_boxed_slice();
    let (own, effective) = (key(field.name()), key("policy"));
    let values: Vec<&str> =
        field.values().split(", ").flat_map(|some| some.split(" or ")).collect();
    let value = *client.prng.pick(&values).expect("not empty");
    // The root stays as it is: checks at the end make names in it.
    let spared = value == "immutable" && (inode.ino == ROOT || client.prng.chance(60));
    match client.prng.below(10) {
        0..=3 if !spared => {
            Op::SetXattr(inode, own, value.as_bytes().into(), XattrFlags::default())
        }
        4..=6 => Op::GetXattr(inode, effective),
        7 => Op::GetXattr(inode, own),
        _ => Op::RemoveXattr(inode, own),
    }
}

/// An action about snapshots, clones or policies, if the run has such.
fn version_op(client: &mut Client) -> Option<Op> {
    let versions = client.versions;
    if versions == Versions::default() || !client.prng.chance(25) {
        return None;
    }
    match client.prng.below(20) {
        0..=4 if versions.clones => Some(clone_op(client)),
        0..=6 if versions.snapshots => Some(snapshot_op(client)),
        7..=14 if versions.snapshots => past_op(client),
        15 | 16 if versions.snapshots => compare_op(client),
        _ if versions.policies => Some(policy_op(client)),
        _ => None,
    }
}

/// Draws a client's next action.
pub fn action(client: &mut Client) -> ClientAction {
    if let Some(op) = version_op(client) {
        return ClientAction::Op(Request { creds: creds(client), op });
    }
    let op = match client.prng.below(100) {
        0..=5 => return ClientAction::Lock(lock(client)),
        _ if client.objects.is_empty() && client.prng.chance(20) => Op::AllocObjects(8),
        6..=11 => Op::Lookup(place(client)),
        12..=15 => Op::GetAttr(any(client)),
        16..=20 => set_attr(client),
        21..=34 => {
            let exclusive = client.prng.chance(30);
            Op::Create { place: place(client), mode: mode(client), flags: flags(client), exclusive }
        }
        35..=37 => Op::OpenAt(place(client), flags(client)),
        38 | 39 => {
            let file = pick_seen(client, |seen| seen.inode.kind == Kind::File);
            let inode = file.map_or(InodeRef::by_id(5), |file| file.reference());
            Op::Open(inode, flags(client))
        }
        40 | 41 => Op::TmpFile { dir: dir(client), mode: 0o600, exclusive: client.prng.chance(30) },
        42..=49 => match handle(client, false) {
            Some(ino) => Op::Release(ino),
            None => Op::ReadDir { dir: dir(client), after: None, limit: 100, check: true },
        },
        50..=52 => {
            Op::MkNod { place: place(client), kind: Kind::File, mode: mode(client), rdev: 0 }
        }
        53..=58 => Op::MkDir(place(client), mode(client)),
        59 | 60 => Op::Symlink(place(client), b"a"[..].into()),
        61..=66 => Op::Unlink(place(client)),
        67..=70 => Op::RmDir(place(client), expected(client)),
        71..=79 => rename(client),
        80..=83 => {
            let file = pick_seen(client, |seen| seen.inode.kind != Kind::Dir);
            let inode = file.map_or_else(|| any(client), |file| file.reference());
            Op::Link(inode, place(client))
        }
        84 => Op::RemovalCheck { dir: dir(client), after: None, limit: 100 },
        85 | 86 => Op::ReadDir { dir: dir(client), after: None, limit: 100, check: true },
        87..=92 => match commit(client) {
            Some(op) => op,
            None => Op::Parent(dir(client)),
        },
        93..=96 => xattr(client),
        97 => Op::ReadLink(any(client)),
        98 => Op::Access(any(client), client.prng.below(8) as u32),
        _ => Op::Sync,
    };
    ClientAction::Op(Request { creds: creds(client), op })
}

/// A directory moves into another one, or out of it: of two such moves at a time each may be fine,
/// and both together a cycle.
fn move_dir(client: &mut Client) -> Op {
    let (outer, inner, other) = (name(client), name(client), name(client));
    let mut deep = PathRef::new(1, inner);
    deep.dirs.push(&other);
    let high = PathRef::new(1, outer);
    match client.prng.below(8) {
        0 | 1 => Op::MkDir(high, 0o777),
        2..=5 => Op::Rename(high, deep, RenameFlags::default()),
        _ => Op::Rename(deep, high, RenameFlags::default()),
    }
}

/// Directories are looked at, and now and then something in one of them comes or goes.
fn look(client: &mut Client) -> Op {
    let mut place = PathRef::new(dir(client), name(client));
    if client.prng.chance(30) {
        place = PathRef::new(1, name(client));
    }
    match client.prng.below(12) {
        0..=6 => Op::GetAttr(InodeRef::by_id(dir(client))),
        7 => Op::Lookup(place),
        8 => Op::ReadDir { dir: dir(client), after: None, limit: 100, check: true },
        9 => Op::MkDir(place, 0o777),
        10 => Op::MkNod { place, kind: Kind::File, mode: 0o666, rdev: 0 },
        _ => Op::Unlink(place),
    }
}

/// What clients of several nodes mostly do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bias {
    /// Directories move.
    pub moves: bool,
    /// Directories are looked at.
    pub looks: bool,
}

/// Draws the next action of a client of several nodes.
pub fn cluster_action(client: &mut Client, bias: Bias) -> Request {
    if bias.moves && client.prng.chance(50) {
        return Request { creds: Creds::root(), op: move_dir(client) };
    }
    if bias.looks && client.prng.chance(80) {
        return Request { creds: Creds::root(), op: look(client) };
    }
    if client.prng.chance(30)
        && let Some(op) = content(client)
    {
        return Request { creds: Creds::root(), op };
    }
    loop {
        let ClientAction::Op(Request { creds, op }) = action(client) else { continue };
        let op = match op {
            Op::Open(inode, flags) if client.prng.chance(30) => {
                Op::Open(InodeRef::by_id(inode.ino), flags)
            }
            op => op,
        };
        return Request { creds, op };
    }
}
