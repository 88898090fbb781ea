//! A client that asks for anything that the protocol can carry: every request has an answer that
//! can be sent, and the volume stays whole. Numbers are those at which arithmetic ends, or of
//! things that exist; names, modes and extents are proper ones, because decoding refuses others
//! (`crates/types/src/wire`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::{BTreeMap, HashMap};

use common::{Fixture, config};
use kestrel_types::codec::Reader;
use kestrel_types::extent::{CHUNK_BYTES, Extent};
use kestrel_types::ids::{FIRST_INODE, InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::range::{RANGE_BYTES_MAX, Range};
use kestrel_types::request::{
    Answer, Commit, Creds, NewData, Op, OpenFlags, Outcome, RenameFlags, Request, SetAttr, SetTime,
    XattrFlags,
};
use kestrel_types::wire::{
    Body, Call, Checksum, Frames, decode_reply, decode_to_server, encode_call, encode_reply,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn number() -> BoxedStrategy<u64> {
    let edges: &[u64] = &[
        0,
        1,
        4095,
        4096,
        65_536,
        CHUNK_BYTES as u64 - 1,
        CHUNK_BYTES as u64,
        u32::MAX as u64,
        1 << 38,
        i64::MAX as u64,
        i64::MAX as u64 + 1,
        u64::MAX - 1,
        u64::MAX,
    ];
    prop_oneof![3 => 0..300u64, 2 => prop::sample::select(edges), 1 => any::<u64>()].boxed()
}

fn ino() -> BoxedStrategy<InodeId> {
    prop_oneof![12 => FIRST_INODE..FIRST_INODE + 8, 2 => Just(ROOT), 1 => number()].boxed()
}

fn name() -> BoxedStrategy<Name> {
    let names = ["a", "b", "c", "...", "\u{1}", &"n".repeat(255)]
        .map(|name| Name::new(name.as_bytes()).unwrap());
    prop::sample::select(names.to_vec()).boxed()
}

fn dir() -> BoxedStrategy<InodeId> {
    prop_oneof![4 => Just(ROOT), 1 => ino()].boxed()
}

fn place() -> BoxedStrategy<PathRef> {
    let dirs = prop_oneof![20 => Just(Vec::new()), 4 => vec(name(), 1..3), 1 => vec(name(), 2047)];
    (dir(), dirs, name())
        .prop_map(|(base, dirs, name)| PathRef { base, dirs: dirs.into_iter().collect(), name })
        .boxed()
}

fn file() -> BoxedStrategy<InodeRef> {
    (ino(), option::of((dir(), name()))).prop_map(|(ino, seen)| InodeRef { ino, seen }).boxed()
}

fn bytes() -> BoxedStrategy<Box<[u8]>> {
    let len = prop::sample::select(
        &[0, 1, 10, 255, 256, 4095, 4096, 16_384, 16_385, 65_536, 65_537, 300_000][..],
    );
    (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len].into()).boxed()
}

fn range() -> BoxedStrategy<Range> {
    let len = prop_oneof![1..100u32, Just(RANGE_BYTES_MAX)];
    (prop_oneof![1..5u64, number().prop_map(|object| object.max(1))], any::<u32>(), len)
        .prop_map(|(object, offset, len)| Range { object, offset, len })
        .boxed()
}

fn extents() -> BoxedStrategy<Vec<Extent>> {
    let pos = prop_oneof![0..300u32, Just(CHUNK_BYTES - RANGE_BYTES_MAX)];
    let extent = prop_oneof![
        (pos, range()).prop_map(|(pos, range)| Extent::of_range(pos, range)),
        Just(Extent::hole(CHUNK_BYTES - 1, 1)),
        Just(Extent::hole(0, CHUNK_BYTES)),
        (0..300u32, 1..300u32).prop_map(|(pos, len)| Extent::hole(pos, len)),
    ];
    prop_oneof![9 => vec(extent.clone(), 0..6), 1 => extent.prop_map(|extent| vec![extent; 5000])]
        .boxed()
}

fn set_attr() -> BoxedStrategy<SetAttr> {
    let time = || option::of(prop_oneof![Just(SetTime::Now), any::<i64>().prop_map(SetTime::At)]);
    let numbers = (
        option::of(0..0o10000u16),
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        option::of(number()),
    );
    (numbers, time(), time(), any::<(bool, bool)>())
        .prop_map(|((mode, uid, gid, size), atime, mtime, (through_handle, kill_suid))| SetAttr {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
            through_handle,
            kill_suid,
        })
        .boxed()
}

fn commit() -> BoxedStrategy<Op> {
    let data = prop_oneof![
        Just(NewData::Unchanged),
        bytes().prop_map(NewData::Inline),
        range().prop_map(NewData::Packed),
        (number(), extents()).prop_map(|(chunk, all)| NewData::Patches(
            all.into_iter().map(|extent| (chunk, extent)).collect()
        )),
        extents().prop_map(|all| NewData::Patches((0..).zip(all).collect())),
    ];
    (file(), number(), data, option::of(number()), any::<(i64, bool)>())
        .prop_map(|(inode, base, data, size, (mtime, kill_suid))| {
            Op::Commit(Commit { inode, base, data, size, mtime, kill_suid })
        })
        .boxed()
}

fn flags() -> BoxedStrategy<OpenFlags> {
    any::<[bool; 6]>()
        .prop_map(|[read, write, exec, truncate, kill_suid, append]| OpenFlags {
            read,
            write,
            exec,
            truncate,
            kill_suid,
            append,
        })
        .boxed()
}

fn mode() -> std::ops::Range<u16> {
    0..0o10000
}

fn op() -> BoxedStrategy<Op> {
    let kind = (1u8..8).prop_map(|kind| Kind::from_u8(kind).unwrap());
    let names = prop_oneof![
        place().prop_map(Op::Lookup),
        (place(), mode(), flags(), any::<bool>()).prop_map(|(place, mode, flags, exclusive)| {
            Op::Create { place, mode: mode.into(), flags, exclusive }
        }),
        (place(), mode()).prop_map(|(place, mode)| Op::MkDir(place, mode.into())),
        (place(), kind, mode(), any::<u32>()).prop_map(|(place, kind, mode, rdev)| Op::MkNod {
            place,
            kind,
            mode: mode.into(),
            rdev
        }),
        (place(), bytes()).prop_map(|(place, target)| Op::Symlink(place, target)),
        place().prop_map(Op::Unlink),
        (place(), option::of(number())).prop_map(|(place, expected)| Op::RmDir(place, expected)),
        (place(), place(), any::<(bool, bool)>(), option::of(number())).prop_map(
            |(from, to, flags, replaced)| {
                let (no_replace, exchange) = flags;
                Op::Rename(from, to, RenameFlags { no_replace, exchange, replaced })
            }
        ),
        (file(), place()).prop_map(|(file, place)| Op::Link(file, place)),
    ];
    let inodes = prop_oneof![
        ino().prop_map(Op::Parent),
        file().prop_map(Op::GetAttr),
        (file(), set_attr()).prop_map(|(file, changes)| Op::SetAttr(file, changes)),
        (file(), any::<u32>()).prop_map(|(file, mask)| Op::Access(file, mask)),
        file().prop_map(Op::ReadLink),
        (file(), flags()).prop_map(|(file, flags)| Op::Open(file, flags)),
        (place(), flags()).prop_map(|(place, flags)| Op::OpenAt(place, flags)),
        (ino(), mode(), any::<bool>()).prop_map(|(dir, mode, exclusive)| Op::TmpFile {
            dir,
            mode: mode.into(),
            exclusive
        }),
        ino().prop_map(Op::Release),
        (ino(), option::of(name()), number(), any::<bool>()).prop_map(
            |(dir, after, limit, check)| Op::ReadDir { dir, after, limit: limit as usize, check }
        ),
        ino().prop_map(Op::TreeUsage),
        Just(Op::Usage),
        Just(Op::Sync),
        number().prop_map(|count| Op::AllocObjects(count as u32)),
    ];
    let content = prop_oneof![
        3 => commit(),
        1 => (file(), number(), extents(), extents())
            .prop_map(|(inode, chunk, old, new)| Op::Compact { inode, chunk, old, new }),
        1 => (file(), number(), file(), number(), number())
        .prop_map(|(from, from_offset, to, to_offset, len)| {
            Op::Clone { from, from_offset, to, to_offset, len }
        }),
        1 => (ino(), number(), number())
        .prop_map(|(ino, first, last)| Op::Chunks { ino, first, last }),
    ];
    let xattrs = prop_oneof![
        (file(), bytes()).prop_map(|(file, name)| Op::GetXattr(file, name)),
        (file(), bytes(), bytes(), any::<(bool, bool)>()).prop_map(
            |(file, name, value, (create, replace))| {
                Op::SetXattr(file, name, value, XattrFlags { create, replace })
            }
        ),
        file().prop_map(Op::ListXattr),
        (file(), bytes()).prop_map(|(file, name)| Op::RemoveXattr(file, name)),
    ];
    prop_oneof![4 => names, 4 => inodes, 3 => content, 1 => xattrs].boxed()
}

fn request() -> BoxedStrategy<Request> {
    let groups = option::of(vec(any::<u32>(), 0..3).prop_map(Into::into));
    let creds = prop_oneof![
        2 => Just(Creds::root()),
        1 => (any::<u32>(), any::<u32>(), groups)
        .prop_map(|(uid, gid, groups)| Creds { uid, gid, groups }),
    ];
    (creds, op()).prop_map(|(creds, op)| Request { creds, op }).boxed()
}

/// The request as a node gets it; `None` if it could not be sent or was not understood.
fn received(request: Request) -> Option<Request> {
    let call = Call { id: 1, seq: 0, acked: 0, retry: false, body: Body::Op(request) };
    let mut bytes = Vec::new();
    encode_call(&call, Checksum::Off, &mut bytes).ok()?;
    let mut frames = Frames::default();
    frames.push(&bytes);
    match decode_to_server(frames.next_frame().unwrap()?) {
        Ok(kestrel_types::wire::ToServer::Call(Call { body: Body::Op(request), .. })) => {
            Some(request)
        }
        _ => None,
    }
}

/// Makes a request refer to what there is: each inode by its number, with the place where it was
/// made.
fn fit(op: &mut Op, made: &BTreeMap<InodeId, (InodeId, Name)>, known: &HashMap<InodeId, u64>) {
    let pick = |ino: &mut InodeId| {
        let at = *ino as usize % made.len();
        *ino = made.keys().nth(at).copied().unwrap_or(*ino);
    };
    let see = |file: &mut InodeRef| {
        pick(&mut file.ino);
        file.seen = made.get(&file.ino).cloned();
    };
    match op {
        Op::GetAttr(file)
        | Op::SetAttr(file, _)
        | Op::Access(file, _)
        | Op::ReadLink(file)
        | Op::Open(file, _)
        | Op::Link(file, _)
        | Op::Compact { inode: file, .. }
        | Op::GetXattr(file, _)
        | Op::SetXattr(file, ..)
        | Op::ListXattr(file)
        | Op::RemoveXattr(file, _) => see(file),
        Op::Clone { from, to, .. } => {
            see(from);
            see(to);
        }
        Op::Commit(commit) => {
            see(&mut commit.inode);
            commit.base = known.get(&commit.inode.ino).copied().unwrap_or(commit.base);
        }
        Op::Release(ino) | Op::Parent(ino) | Op::Chunks { ino, .. } => pick(ino),
        Op::ReadDir { dir, .. } | Op::TreeUsage(dir) | Op::TmpFile { dir, .. } => pick(dir),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Each request is answered, and the volume stays whole.
    #[test]
    fn answers_to_hostile_requests(
        requests in vec((request(), prop::bool::weighted(0.8)), 1..60),
    ) {
        let fixture = Fixture::new(config(2));
        // Where each inode was made, and what the last answer said of its content: most requests
        // fit that, so that more than conflicts and missing files are met.
        let mut made: BTreeMap<InodeId, (InodeId, Name)> = BTreeMap::new();
        let mut known: HashMap<InodeId, u64> = HashMap::new();
        for name in ["a", "b", "c"] {
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let place = PathRef::new(ROOT, Name::new(name.as_bytes()).unwrap());
            let inode =
                fixture.inode(Op::Create {
                    place: place.clone(), mode: 0o666, flags, exclusive: true
                });
            made.insert(inode.ino, (ROOT, place.name));
            known.insert(inode.ino, inode.data_change);
        }
        for (mut request, fits) in requests {
            if fits {
                fit(&mut request.op, &made, &known);
            }
            let Some(request) = received(request) else { continue };
            let asked = format!("{request:?}");
            let name = match &request.op {
                Op::Create { place, .. } | Op::OpenAt(place, _) | Op::MkNod { place, .. }
                | Op::MkDir(place, _) | Op::Symlink(place, _) | Op::Lookup(place)
                | Op::Link(_, place) => Some(place.name.clone()),
                _ => None,
            };
            let reply = fixture.node.call(request);
            if let Ok(
                Answer::Inode(inode) | Answer::Entry { inode, .. } | Answer::Opened { inode, .. }
            ) | Err(Outcome::Conflict(inode)) = &reply {
                known.insert(inode.ino, inode.data_change);
                let parent = match &reply {
                    Ok(Answer::Entry { parent, .. }) => Some(*parent),
                    Ok(Answer::Opened { parent, .. }) => *parent,
                    _ => None,
                };
                made.extend(parent.zip(name).map(|at| (inode.ino, at)));
            }
            let mut sent = Vec::new();
            encode_reply(&reply, &mut sent);
            let heard = decode_reply(&mut Reader::new(&sent));
            prop_assert_eq!(heard.as_ref(), Ok(&reply), "{}", &asked[..asked.len().min(500)]);
        }
        fixture.check();
        fixture.crash(false).check();
    }
}
