//! Every message there can be, within the limits that decoding checks. Strategies are boxed: nested
//! ones would be larger than a test's stack.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::*;
use crate::clock::Nanos;
use crate::entry::tests::inode;
use crate::error::FsError;
use crate::extent::{CHUNK_BYTES, Extent, Source};
use crate::feed::{
    FeedEvent, FeedEventKind, FeedId, FeedPage, FeedPosition, FeedStart, FeedTarget,
};
use crate::inode::{Inode, InodeFlags, Kind};
use crate::name::{InodeRef, Name, PathRef};
use crate::quota::{LIMIT_MAX, OverSince, QuotaInfo, QuotaLimits, QuotaSubject, QuotaUsage};
use crate::range::{RANGE_BYTES_MAX, Range};
use crate::removal::{KeptBecause, RemovalPage};
use crate::request::{
    Accessed, Answer, Commit, Creds, DirEntry, NewData, Op, OpenFlags, Outcome, RenameFlags, Reply,
    Request, SetAttr, SetTime, Usage, XattrFlags,
};
use crate::snapshot::SnapshotInfo;
use crate::snapshot_changes::{
    ChangedDir, ChangedName, DirMoment, HistoryCursor, SnapshotChanges, SnapshotUsage,
};
use crate::token::TokenId;

pub fn call() -> BoxedStrategy<Call> {
    let body = prop_oneof![
        8 => request().prop_map(Body::Op),
        2 => lock_request().prop_map(Body::Lock),
        1 => reclaim().prop_map(Body::Reclaim),
        1 => blob(300).prop_map(Body::Admin),
    ];
    (number(), number(), number(), any::<bool>(), body)
        .prop_map(|(id, seq, acked, retry, body)| Call { id, seq, acked, retry, body })
        .boxed()
}

pub fn to_server() -> BoxedStrategy<ToServer> {
    let client =
        any::<[u8; 16]>().prop_filter("never zero", |id| *id != [0; 16]).prop_map(ClientId);
    // With the version of this build between them; others are refused.
    let versions = (0..=VERSION, VERSION..).prop_map(|(min, max)| Versions { min, max });
    let hello = (
        versions,
        ".{1,60}",
        client,
        any::<u64>(),
        ".{0,60}",
        any::<bool>(),
        any::<Option<[u8; 8]>>(),
    )
        .prop_map(|(versions, volume, client, incarnation, who, established, token)| Hello {
            versions,
            volume,
            client,
            incarnation,
            who,
            established,
            token: token.map(TokenId),
        });
    prop_oneof![
        1 => hello.prop_map(ToServer::Hello),
        8 => call().prop_map(ToServer::Call),
        1 => number().prop_map(|oldest_open_object| ToServer::Ping { oldest_open_object }),
        1 => number().prop_map(|id| ToServer::Cancel { id }),
        1 => Just(ToServer::Bye),
        1 => peer_hello().prop_map(ToServer::PeerHello),
        1 => any::<[u8; 32]>().prop_map(ToServer::PeerProof),
        1 => blob(300).prop_map(ToServer::Peer),
        1 => any::<[u8; 32]>().prop_map(ToServer::Proof),
    ]
    .boxed()
}

fn peer_hello() -> BoxedStrategy<PeerHello> {
    let versions = (0..=VERSION, VERSION..).prop_map(|(min, max)| Versions { min, max });
    (
        versions,
        any::<([u8; 16], u32, u32, u64, [u8; 16])>(),
        any::<(u64, u64, u64)>(),
        "[a-z0-9.:]{1,40}",
    )
        .prop_map(
            |(versions, (volume, from, to, table, nonce), (node_uuid, epoch, start), address)| {
                PeerHello {
                    versions,
                    volume,
                    from,
                    to,
                    table,
                    nonce,
                    node_uuid,
                    epoch,
                    start,
                    address,
                }
            },
        )
        .boxed()
}

pub fn to_client() -> BoxedStrategy<ToClient> {
    use SessionState::*;
    let state = prop_oneof![Just(New), Just(Known), Just(Restarted), Just(Expired)];
    let welcome = (any::<(u32, u64, u32)>(), state, blob(200), number(), number()).prop_map(
        |((node, epoch, lease_ms), session, descriptor, table, root)| Welcome {
            version: VERSION,
            node,
            epoch,
            descriptor,
            session,
            lease_ms,
            table,
            root,
        },
    );
    let answered = prop_oneof![
        8 => reply().prop_map(Answered::Op),
        2 => lock_reply().prop_map(Answered::Lock),
        1 => reclaim_reply().prop_map(Answered::Reclaim),
        1 => prop_oneof![blob(300).prop_map(Ok), error().prop_map(Err)].prop_map(Answered::Admin),
    ];
    prop_oneof![
        1 => welcome.prop_map(ToClient::Welcome),
        1 => error()
        .prop_map(|FsError { errno, reason }| ToClient::Refused(Refused { errno, reason })),
        8 => (number(), number(), answered)
            .prop_map(|(id, table, answered)| ToClient::Reply(ReplyTo { id, table, answered })),
        1 => (number(), blob(200)).prop_map(|(id, json)| ToClient::Event { id, json }),
        1 => number().prop_map(|table| ToClient::Pong { table }),
        1 => any::<([u8; 16], [u8; 32])>()
            .prop_map(|(nonce, proof)| ToClient::PeerChallenge(PeerChallenge { nonce, proof })),
        1 => any::<[u8; 32]>().prop_map(ToClient::Challenge),
    ]
    .boxed()
}

/// Small and large ones alike, so that every length of a varint occurs.
fn number() -> BoxedStrategy<u64> {
    (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift).boxed()
}

fn blob(len_max: usize) -> BoxedStrategy<Box<[u8]>> {
    vec(any::<u8>(), 0..len_max).prop_map(Into::into).boxed()
}

fn name() -> BoxedStrategy<Name> {
    // Any bytes, with those that no name has replaced.
    let strange = vec(any::<u8>(), 1..=255).prop_map(|bytes| {
        let bytes: Vec<u8> = bytes
            .iter()
            .map(|byte| if matches!(byte, 0 | b'/' | b'.') { b'x' } else { *byte })
            .collect();
        bytes
    });
    let plain = "[a-z0-9.]{1,10}x".prop_map(String::into_bytes);
    prop_oneof![1 => strange, 3 => plain].prop_map(|bytes| Name::new(&bytes).unwrap()).boxed()
}

fn place() -> BoxedStrategy<PathRef> {
    (number(), vec(name(), 0..4), name())
        .prop_map(|(base, dirs, name)| PathRef { base, dirs: dirs.into_iter().collect(), name })
        .boxed()
}

fn inode_ref() -> BoxedStrategy<InodeRef> {
    (number(), option::of((number(), name())))
        .prop_map(|(ino, seen)| InodeRef { ino, seen })
        .boxed()
}

fn boxed_inode() -> BoxedStrategy<Box<Inode>> {
    inode().prop_map(Box::new).boxed()
}

fn kind() -> BoxedStrategy<Kind> {
    (1u8..8).prop_map(|kind| Kind::from_u8(kind).unwrap()).boxed()
}

fn made_with() -> impl Strategy<Value = u32> + Clone {
    (mode(), prop_oneof![Just(0), 0u16..0o1000])
        .prop_map(|(mode, umask)| crate::perm::with_umask(mode, umask))
}

fn mode() -> std::ops::Range<u16> {
    0..0o10000
}

fn creds() -> BoxedStrategy<Creds> {
    (any::<(u32, u32)>(), option::of(vec(any::<u32>(), 0..20)))
        .prop_map(|((uid, gid), groups)| Creds { uid, gid, groups: groups.map(Into::into) })
        .boxed()
}

fn error() -> BoxedStrategy<FsError> {
    (1..4096i32, ".{0,80}").prop_map(|(errno, reason)| FsError::because(errno, reason)).boxed()
}

fn range() -> BoxedStrategy<Range> {
    (1u64.., any::<u32>(), 1..=RANGE_BYTES_MAX)
        .prop_map(|(object, offset, len)| Range { object, offset, len })
        .boxed()
}

fn extent() -> BoxedStrategy<Extent> {
    let hole = (0..CHUNK_BYTES).prop_flat_map(|pos| (Just(pos), 1..=CHUNK_BYTES - pos));
    let stored = (range(), any::<(u32, u32, u32)>()).prop_map(|(range, (skip, len, pos))| {
        let skip = skip % range.len;
        let len = 1 + len % (range.len - skip);
        Extent { pos: pos % (CHUNK_BYTES - len), len, source: Source::Stored { range, skip } }
    });
    prop_oneof![1 => hole.prop_map(|(pos, len)| Extent::hole(pos, len)), 4 => stored].boxed()
}

fn open_flags() -> BoxedStrategy<OpenFlags> {
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

fn set_time() -> BoxedStrategy<SetTime> {
    prop_oneof![Just(SetTime::Now), any::<Nanos>().prop_map(SetTime::At)].boxed()
}

prop_compose! {
    fn set_attr()(mode in option::of(mode()), uid in option::of(any::<u32>()),
        gid in option::of(any::<u32>()),
        size in option::of(number()), atime in option::of(set_time()),
        mtime in option::of(set_time()),
        through_handle in any::<bool>(), kill_suid in any::<bool>()) -> SetAttr {
        SetAttr { mode, uid, gid, size, atime, mtime, through_handle, kill_suid }
    }
}

fn new_data() -> BoxedStrategy<NewData> {
    prop_oneof![
        Just(NewData::Unchanged),
        blob(300).prop_map(NewData::Inline),
        range().prop_map(NewData::Packed),
        vec((number(), extent()), 0..10).prop_map(NewData::Patches),
    ]
    .boxed()
}

prop_compose! {
    fn commit()(inode in inode_ref(), base in any::<u64>(), data in new_data(),
        size in option::of(number()),
        mtime in any::<Nanos>(), kill_suid in any::<bool>()) -> Commit {
        Commit { inode, base, data, size, mtime, kill_suid }
    }
}

fn snapshot_op() -> BoxedStrategy<Op> {
    let dir = number;
    prop_oneof![
        (dir(), name()).prop_map(|(dir, name)| Op::SnapshotCreate { dir, name }),
        (dir(), name(), name()).prop_map(|(dir, from, to)| Op::SnapshotRename { dir, from, to }),
        (dir(), name()).prop_map(|(dir, name)| Op::SnapshotRemove { dir, name }),
        (dir(), name(), name(), any::<bool>())
            .prop_map(|(dir, name, tag, hold)| Op::SnapshotHold { dir, name, tag, hold }),
        (option::of(1..=u64::MAX), any::<bool>())
            .prop_map(|(dir, ancestors)| Op::SnapshotList { dir, ancestors }),
        (
            (dir(), number()),
            option::of(1..=u64::MAX),
            vec(number(), 0..4),
            (any::<u32>(), cursor())
        )
            .prop_map(|((dir, older), newer, files, (limit, after))| {
                Op::SnapshotChanges { dir, older, newer, files, limit: limit as usize, after }
            }),
        (number(), cursor()).prop_map(|(snapshot, after)| Op::SnapshotUsage { snapshot, after }),
        (dir(), option::of(1..=u64::MAX), place()).prop_map(|(source, at, place)| Op::CloneDir {
            source,
            at,
            place
        }),
        dir().prop_map(Op::CloneStep),
        (quota_subject(), quota_limits())
            .prop_map(|(of, limits)| Op::QuotaSet(of, Box::new(limits))),
        quota_subject().prop_map(Op::QuotaRemove),
        option::of(inode_ref()).prop_map(Op::QuotaList),
        any::<bool>().prop_map(|repair| Op::QuotaCheck { repair }),
        (dir(), feed_start(), any::<u32>()).prop_map(|(dir, from, limit)| Op::FeedRead {
            dir,
            from,
            limit
        }),
    ]
    .boxed()
}

fn feed_position() -> BoxedStrategy<FeedPosition> {
    any::<(u64, u16, u32)>()
        .prop_map(|(stamp, worker, number)| FeedPosition { stamp, worker, number })
        .boxed()
}

fn feed_id() -> BoxedStrategy<FeedId> {
    (number(), any::<u64>()).prop_map(|(dir, began)| FeedId { dir, began }).boxed()
}

fn feed_start() -> BoxedStrategy<FeedStart> {
    prop_oneof![
        Just(FeedStart::Now),
        Just(FeedStart::Oldest),
        (feed_id(), feed_position()).prop_map(|(feed, position)| FeedStart::After(feed, position)),
    ]
    .boxed()
}

fn feed_event() -> BoxedStrategy<FeedEvent> {
    let path = || vec(any::<u8>(), 0..30).prop_map(Box::from);
    (prop::sample::select(FeedEventKind::ALL.to_vec()), number(), path(), path())
        .prop_map(|(kind, ino, path, to)| FeedEvent {
            kind,
            ino,
            file: Kind::File,
            path,
            to: kind
                .has_target()
                .then(|| FeedTarget { path: to, before: (ino != 0).then_some((ino, Kind::Dir)) }),
        })
        .boxed()
}

fn cursor() -> BoxedStrategy<Option<HistoryCursor>> {
    option::of(vec(any::<u8>(), 1..40).prop_map(Into::into)).boxed()
}

fn changed_dir() -> BoxedStrategy<ChangedDir> {
    let moment = || {
        (number(), blob(40), boxed_inode()).prop_map(|(parent, path, inode)| DirMoment {
            parent,
            path,
            inode,
        })
    };
    let changed = (name(), option::of(boxed_inode()), option::of(boxed_inode()))
        .prop_map(|(name, older, newer)| ChangedName { name, older, newer });
    (number(), moment(), moment(), vec(changed, 0..4))
        .prop_map(|(dir, older, newer, names)| ChangedDir { dir, older, newer, names })
        .boxed()
}

fn snapshot() -> BoxedStrategy<SnapshotInfo> {
    (number(), number(), name(), any::<Nanos>(), any::<bool>(), vec(name(), 0..4))
        .prop_map(|(id, dir, name, created, removing, holds)| SnapshotInfo {
            id,
            dir,
            name,
            created,
            removing,
            cutting: false,
            hidden: false,
            holds,
            clones: Vec::new(),
        })
        .boxed()
}

fn op() -> BoxedStrategy<Op> {
    let at = (number(), plain_op()).prop_map(|(snapshot, op)| Op::At(snapshot, Box::new(op)));
    prop_oneof![10 => plain_op(), 1 => at, 1 => snapshot_op()].boxed()
}

fn plain_op() -> BoxedStrategy<Op> {
    let id = number;
    let changes = prop_oneof![
        (place(), made_with(), open_flags(), any::<bool>()).prop_map(
            |(place, mode, flags, exclusive)| Op::Create { place, mode, flags, exclusive }
        ),
        (inode_ref(), open_flags()).prop_map(|(inode, flags)| Op::Open(inode, flags)),
        (place(), open_flags()).prop_map(|(place, flags)| Op::OpenAt(place, flags)),
        (id(), made_with(), any::<bool>()).prop_map(|(dir, mode, exclusive)| Op::TmpFile {
            dir,
            mode,
            exclusive
        }),
        id().prop_map(Op::Release),
        (place(), kind(), made_with(), any::<u32>())
            .prop_map(|(place, kind, mode, rdev)| Op::MkNod { place, kind, mode, rdev }),
        (place(), made_with()).prop_map(|(place, mode)| Op::MkDir(place, mode)),
        (place(), blob(100)).prop_map(|(place, target)| Op::Symlink(place, target)),
        place().prop_map(Op::Unlink),
        (place(), option::of(1..=u64::MAX))
            .prop_map(|(place, expected)| Op::RmDir(place, expected)),
        (place(), place(), any::<(bool, bool)>(), option::of(1..=u64::MAX)).prop_map(
            |(from, to, flags, replaced)| {
                let (no_replace, exchange) = flags;
                Op::Rename(from, to, RenameFlags { no_replace, exchange, replaced })
            }
        ),
        (inode_ref(), place()).prop_map(|(inode, place)| Op::Link(inode, place)),
        (inode_ref(), set_attr()).prop_map(|(inode, changes)| Op::SetAttr(inode, changes)),
        (inode_ref(), 0u8..16).prop_map(|(inode, flags)| {
            Op::SetFlags(inode, InodeFlags::from_bits(flags).unwrap_or_default())
        }),
        (inode_ref(), any::<(i64, bool)>())
            .prop_map(|(inode, (at, relative))| Op::Accessed(inode, Accessed { at, relative })),
    ];
    let content = prop_oneof![
        commit().prop_map(Op::Commit),
        (inode_ref(), id(), vec(extent(), 0..10), vec(extent(), 0..10))
            .prop_map(|(inode, chunk, old, new)| Op::Compact { inode, chunk, old, new }),
        (inode_ref(), id(), inode_ref(), id(), id()).prop_map(
            |(from, from_offset, to, to_offset, len)| {
                Op::Clone { from, from_offset, to, to_offset, len }
            }
        ),
        (id(), id(), id()).prop_map(|(ino, first, last)| Op::Chunks { ino, first, last }),
        id().prop_map(Op::Sweep),
        any::<u32>().prop_map(Op::AllocObjects),
    ];
    let reads = prop_oneof![
        place().prop_map(Op::Lookup),
        id().prop_map(Op::Parent),
        inode_ref().prop_map(Op::GetAttr),
        (inode_ref(), any::<u32>()).prop_map(|(inode, mask)| Op::Access(inode, mask)),
        inode_ref().prop_map(Op::ReadLink),
        (id(), option::of(name()), id(), any::<bool>()).prop_map(|(dir, after, limit, check)| {
            Op::ReadDir { dir, after, limit: limit as usize, check }
        }),
        (id(), option::of(name()), id()).prop_map(|(dir, after, limit)| {
            Op::ReadDirPlus { dir, after, limit: limit as usize }
        }),
        (id(), option::of(name()), id()).prop_map(|(dir, after, limit)| {
            Op::RemovalCheck { dir, after, limit: limit as usize }
        }),
        Just(Op::Usage),
        id().prop_map(Op::TreeUsage),
        (vec(id(), 0..5), option::of((id(), name())))
            .prop_map(|(files, after)| Op::Locate { files, after }),
        Just(Op::Sync),
    ];
    let xattrs = prop_oneof![
        (inode_ref(), blob(40)).prop_map(|(inode, name)| Op::GetXattr(inode, name)),
        (inode_ref(), blob(40), blob(300), any::<(bool, bool)>()).prop_map(
            |(inode, name, value, (create, replace))| {
                Op::SetXattr(inode, name, value, XattrFlags { create, replace })
            }
        ),
        inode_ref().prop_map(Op::ListXattr),
        (inode_ref(), blob(40)).prop_map(|(inode, name)| Op::RemoveXattr(inode, name)),
    ];
    prop_oneof![4 => changes, 3 => content, 3 => reads, 1 => xattrs].boxed()
}

pub fn request() -> BoxedStrategy<Request> {
    (creds(), op()).prop_map(|(creds, op)| Request { creds, op }).boxed()
}

fn removal_page() -> impl Strategy<Value = RemovalPage> {
    let why = prop_oneof![Just(KeptBecause::Flags), Just(KeptBecause::Sticky)];
    let names = (option::of((name(), why)), option::of(name()));
    (number(), number(), vec((name(), number()), 0..4), vec(name(), 0..4), names, any::<bool>())
        .prop_map(|(files, bytes, dirs, links, (kept, last), end)| RemovalPage {
            files,
            bytes,
            dirs,
            links,
            kept,
            last,
            end,
        })
}

pub fn reply() -> BoxedStrategy<Reply> {
    let entry = (name(), number(), kind())
        .prop_map(|(name, ino, kind)| DirEntry { name, ino, kind })
        .boxed();
    let found = vec((number(), entry.clone()), 0..5);
    let answer = prop_oneof![
        (found, option::of((number(), name())))
            .prop_map(|(found, next)| Answer::Located { found, next }),
        Just(Answer::Done),
        boxed_inode().prop_map(Answer::Inode),
        (number(), boxed_inode()).prop_map(|(parent, inode)| Answer::Entry { parent, inode }),
        (boxed_inode(), any::<bool>(), option::of(number()))
            .prop_map(|(inode, created, parent)| Answer::Opened { inode, created, parent }),
        boxed_inode().prop_map(Answer::Removed),
        (number(), option::of(boxed_inode()), number(), number())
            .prop_map(|(moved, other, from, to)| Answer::Renamed { moved, other, from, to }),
        blob(300).prop_map(Answer::Bytes),
        (vec(entry, 0..10), number(), any::<bool>())
            .prop_map(|(entries, parent, end)| Answer::Entries { entries, parent, end }),
        (vec((name(), boxed_inode()), 0..10), any::<bool>())
            .prop_map(|(entries, end)| Answer::EntriesPlus { entries, end }),
        removal_page().prop_map(|page| Answer::RemovalPage(Box::new(page))),
        (vec((number(), vec(extent(), 0..5)), 0..5), any::<bool>())
            .prop_map(|(chunks, end)| Answer::Chunks { chunks, end }),
        (number(), any::<u32>()).prop_map(|(first, count)| Answer::Objects { first, count }),
        vec(snapshot(), 0..4).prop_map(Answer::Snapshots),
        (vec(changed_dir(), 0..3), vec(number(), 0..3), option::of(1..u64::MAX), cursor())
            .prop_map(|(dirs, files, newer, next)| {
                let changes = SnapshotChanges { dirs, files, newer, next };
                Answer::SnapshotChanges(Box::new(changes))
            }),
        (number(), number(), cursor()).prop_map(|(rows, bytes, next)| {
            Answer::SnapshotUsage(SnapshotUsage { rows, bytes, next })
        }),
        (number(), any::<bool>()).prop_map(|(names, done)| Answer::CloneProgress { names, done }),
        vec(quota_info(), 0..4).prop_map(Answer::Quotas),
        (feed_id(), vec((feed_position(), feed_event()), 0..4), feed_position(), any::<bool>())
            .prop_map(|(feed, events, next, more)| {
                Answer::Feed(Box::new(FeedPage { feed, events, next, more }))
            }),
        (number(), number(), number()).prop_map(|(files, dirs, bytes)| Answer::Usage(Usage {
            files,
            dirs,
            bytes
        })),
    ];
    let outcome = prop_oneof![
        3 => error().prop_map(Outcome::Failed),
        1 => Just(Outcome::NeedGroups),
        1 => boxed_inode().prop_map(Outcome::Conflict),
        1 => (number(), number(), blob(100))
            .prop_map(|(resolved, dir, target)| Outcome::Symlink { resolved: resolved as usize, dir,
                target }),
        1 => number().prop_map(|table| Outcome::Misdirected { table }),
    ];
    prop_oneof![3 => answer.prop_map(Ok), 1 => outcome.prop_map(Err)].boxed()
}

fn lock_kind() -> BoxedStrategy<LockKind> {
    prop_oneof![Just(LockKind::Posix), Just(LockKind::Flock)].boxed()
}

/// First and last byte of a lock of this kind.
fn lock_range(kind: LockKind) -> BoxedStrategy<(u64, u64)> {
    match kind {
        LockKind::Posix => (number(), number())
            .prop_map(|(a, b)| (a.min(b) & LOCK_END, a.max(b) & LOCK_END))
            .prop_map(|(a, b)| (a.min(b), a.max(b)))
            .boxed(),
        LockKind::Flock => Just((0, LOCK_END)).boxed(),
    }
}

fn span() -> BoxedStrategy<LockSpan> {
    let mode = prop_oneof![Just(LockMode::Read), Just(LockMode::Write)];
    let kind = lock_kind().prop_flat_map(|kind| (Just(kind), lock_range(kind)));
    (number(), any::<(u64, u32)>(), mode, kind)
        .prop_map(|(ino, (owner, pid), mode, (kind, (start, end)))| LockSpan {
            ino,
            owner,
            pid,
            kind,
            mode,
            start,
            end,
        })
        .boxed()
}

fn lock_request() -> BoxedStrategy<LockRequest> {
    let of_span = prop_oneof![
        (span(), any::<bool>()).prop_map(|(lock, wait)| LockRequest::Set { lock, wait }),
        span().prop_map(LockRequest::Get),
        span().prop_map(|LockSpan { ino, owner, kind, start, end, .. }| LockRequest::Unlock {
            ino,
            owner,
            kind,
            start,
            end
        }),
        span().prop_map(|LockSpan { ino, owner, kind, .. }| LockRequest::ReleaseOwner {
            ino,
            owner,
            kind
        }),
    ];
    of_span.boxed()
}

fn lock_reply() -> BoxedStrategy<LockReply> {
    prop_oneof![
        Just(Ok(LockAnswer::Done)),
        Just(Ok(LockAnswer::Free)),
        span().prop_map(|lock| Ok(LockAnswer::Held(lock))),
        error().prop_map(Err),
    ]
    .boxed()
}

fn reclaim() -> BoxedStrategy<Reclaim> {
    let open = (inode_ref(), 1u32.., any::<bool>())
        .prop_map(|(file, count, linkable)| ReclaimOpen { file, count, linkable });
    (
        vec(open, 0..5),
        vec(span(), 0..5),
        vec((number(), any::<u32>()), 0..5),
        number(),
        any::<bool>(),
    )
        .prop_map(|(opens, locks, objects, oldest_open_object, last)| Reclaim {
            opens,
            locks,
            objects,
            oldest_open_object,
            last,
        })
        .boxed()
}

fn reclaim_reply() -> BoxedStrategy<ReclaimReply> {
    prop_oneof![
        (vec(number(), 0..5), vec(any::<u32>(), 0..5))
            .prop_map(|(lost_opens, lost_locks)| Ok(Reclaimed { lost_opens, lost_locks })),
        error().prop_map(Err),
    ]
    .boxed()
}

fn quota_subject() -> BoxedStrategy<QuotaSubject> {
    prop_oneof![
        number().prop_map(QuotaSubject::Dir),
        any::<u32>().prop_map(QuotaSubject::User),
        any::<u32>().prop_map(QuotaSubject::Group),
        Just(QuotaSubject::Volume),
    ]
    .boxed()
}

fn quota_limits() -> BoxedStrategy<QuotaLimits> {
    let limit = || option::of(0..=LIMIT_MAX);
    (limit(), limit(), limit(), limit(), any::<u32>())
        .prop_map(|(bytes, files, soft_bytes, soft_files, grace)| QuotaLimits {
            bytes,
            files,
            soft_bytes,
            soft_files,
            grace,
        })
        .boxed()
}

fn quota_usage() -> BoxedStrategy<QuotaUsage> {
    (any::<i64>(), any::<i64>()).prop_map(|(files, bytes)| QuotaUsage { files, bytes }).boxed()
}

fn quota_info() -> BoxedStrategy<QuotaInfo> {
    (quota_subject(), quota_limits(), quota_usage(), quota_usage(), option::of(quota_usage()))
        .prop_map(|(of, limits, used, since, counted)| {
            let since = OverSince { bytes: since.bytes, files: since.files };
            QuotaInfo { of, limits, used, since, counted }
        })
        .boxed()
}
