//! One of each message, and a few things that are none.

use std::sync::Arc;

use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_cluster::addresses::NodeAddress;
use kestrel_cluster::change::{Announced, Attempt, ChangeMessage, Charge};
use kestrel_cluster::lease::{HoldId, LeaseMessage};
use kestrel_cluster::sums::{Also, Names};
use kestrel_cluster::{
    CloneMessage, CloneReport, Fetched, LockedRowsId, Message, PollAnswer, PollQuestion, QuotaAsk,
    QuotaMessage, ReadId, SnapshotMessage, SnapshotOrder, SnapshotReadMessage, SumMessage,
    TokensMessage, Vote, Weight,
};
use kestrel_engine::Mutation;
use kestrel_meta::feeds::{FeedPart, FeedPlace, FeedQuestion};
use kestrel_meta::history::changes::{Found, Group};
use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::node::told::{
    ChangesPart, ChangesQuestion, ChangesWanted, MomentRows, RowsWanted,
};
use kestrel_meta::node::{
    CountedFile, CountedPage, QuotaCount, QuotaPart, ReferencePart, TreePart,
};
use kestrel_meta::rows::{Missing, Span};
use kestrel_meta::stop::Want;
use kestrel_types::acl::{AccessAcl, Acls, Named};
use kestrel_types::clone::CloneInfo;
use kestrel_types::entry::Entry;
use kestrel_types::error::FsError;
use kestrel_types::feed::{FeedEvent, FeedEventKind, FeedPosition, FeedTarget};
use kestrel_types::inode::Kind;
use kestrel_types::key::{Key, Table};
use kestrel_types::name::Name;
use kestrel_types::placement::{Exceptions, Member, PlacementMap, SlotMap};
use kestrel_types::policy::{Consistency, Policy, PolicyRecord};
use kestrel_types::quota::{OverSince, QuotaLimits, QuotaRecord, QuotaSubject, QuotaUsage};
use kestrel_types::request::{Answer, Creds, DirEntry, Op, Request};
use kestrel_types::snapshot::SnapshotInfo;
use kestrel_types::snapshot_changes::SnapshotUsage;
use kestrel_types::stat::DirStat;
use kestrel_types::token::{Ids, Subtree, TokenId, TokenRecord};

const TXN: TxnId = TxnId { node: 2, epoch: 3, number: 300 };
const OTHER: TxnId = TxnId { node: 2, epoch: 3, number: 301 };
const LOCKED: LockedRowsId = LockedRowsId { epoch: 7, number: 1 << 40 };

pub fn samples() -> Vec<(&'static str, Message)> {
    [
        rows(),
        dirs(),
        ends(),
        polls(),
        snapshot_changes(),
        changes(),
        leases(),
        sums(),
        snapshots(),
        clones(),
        quotas(),
        counts(),
        asked_of_others(),
        tokens(),
        addresses(),
    ]
    .concat()
}

fn addresses() -> Vec<(&'static str, Message)> {
    let at = |node, epoch, address: &str| NodeAddress { node, epoch, address: address.into() };
    let nodes = vec![at(1, 17, "10.0.0.1:9440"), at(300, 1 << 40, "node-300.example:9440")];
    vec![("whereabouts", Message::Addresses(nodes))]
}

fn snapshot_changes() -> Vec<(&'static str, Message)> {
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let ask = |wanted| {
        let asked = ChangesQuestion { moments: (1 << 40, 1 << 60), wanted };
        let question = PollQuestion::Changes(Box::new(asked));
        Message::Poll { number: 300, table: 5, question }
    };
    let tell = |part| {
        let answer = PollAnswer::Changes(Box::new(part));
        Message::Polled { number: 300, answer }
    };
    let key = Key::new(Table::Entry, 1, b"file");
    let rows = RowsWanted { keys: [key.clone()].into(), dirs: [1, 5 << 24].into() };
    let told = MomentRows {
        rows: vec![(key, Some(b"row"[..].into()))],
        shares: vec![(1, DirStat { children: 3, ..DirStat::default() })],
    };
    let found = Found { is_dir: true, has_gone: false };
    let names = vec![name("a"), name("b")];
    let group =
        Group { id: 5 << 24, names: names.clone(), found, is_link: true, is_complete: false };
    let cursor = || b"cursor"[..].into();
    vec![
        ("poll-changes", ask(ChangesWanted::Groups(cursor(), 1024))),
        (
            "poll-changes-grown",
            ask(ChangesWanted::Grown(vec![(1, Some(name("c"))), (7, None)], 1024)),
        ),
        ("poll-changes-rows", ask(ChangesWanted::Rows(rows, RowsWanted::default()))),
        ("polled-changes", tell(ChangesPart::Groups(vec![group], Some(cursor())))),
        ("polled-changes-grown", tell(ChangesPart::Grown(vec![(names, None)]))),
        ("polled-changes-rows", tell(ChangesPart::Rows(told, MomentRows::default()))),
    ]
}

fn tokens() -> Vec<(&'static str, Message)> {
    let id = TokenId(*b"a token!");
    let record = TokenRecord {
        id,
        name: "gpu farm".into(),
        issued: 1_700_000_000_000_000_000,
        expires: Some(1_800_000_000_000_000_000),
        revoked: None,
        verifier: *b"hash of a hash of a secret: 32 b",
        read_only: true,
        admin: false,
        subtree: Some(Subtree { dir: 5 << 24, path: "/data".into() }),
        uids: Ids::Ranges([(1000, 1999)].into()),
        gids: Ids::All,
        squash: Some((65_534, 65_534)),
        map: [(500, 1500)].into(),
    };
    vec![
        ("tokens-digest", Message::Tokens(TokensMessage::Digest([7; 32]))),
        ("tokens-records", Message::Tokens(TokensMessage::Records(vec![record]))),
        ("tokens-prune", Message::Tokens(TokensMessage::Prune(vec![id]))),
    ]
}

fn leases() -> Vec<(&'static str, Message)> {
    let hold = HoldId { epoch: 7, number: 1 << 40 };
    vec![
        ("lease-ask", Message::Lease(LeaseMessage::Ask { number: 300, epoch: 3, exclusive: true })),
        ("lease-release", Message::Lease(LeaseMessage::Release { epoch: 3 })),
        ("lease-granted", Message::Lease(LeaseMessage::Granted { number: 300, sums: true })),
        ("lease-fence", Message::Lease(LeaseMessage::Fence { txn: TXN, round: 4, node: 3 })),
        (
            "lease-fenced",
            Message::Lease(LeaseMessage::Fenced { txn: TXN, round: 4, node: 3, hold }),
        ),
    ]
}

fn sums() -> Vec<(&'static str, Message)> {
    let dir = 77 << 14;
    let sum = DirStat { children: -3, subdirs: 1, bytes: 300, mtime: 1 << 60, change: 1 << 61 };
    let dirs = vec![dir, 78 << 14];
    let also = Also::Names { after: Some(b"after"[..].into()), most: 10_240 };
    let entry = Entry::Link { ino: 79 << 14, kind: Kind::Dir }.encode();
    let names = Some(Names { rows: vec![(b"name"[..].into(), entry)], end: true });
    vec![
        (
            "sum-ask",
            Message::Sum(SumMessage::Ask {
                number: 300,
                table: 4,
                epoch: 3,
                dir,
                also: Also::Nothing,
            }),
        ),
        (
            "sum-ask-names",
            Message::Sum(SumMessage::Ask { number: 302, table: 4, epoch: 3, dir, also }),
        ),
        (
            "sum-told",
            Message::Sum(SumMessage::Sum { number: 300, epoch: 3, dir, sum, names: None }),
        ),
        (
            "sum-told-names",
            Message::Sum(SumMessage::Sum { number: 302, epoch: 3, dir, sum, names }),
        ),
        ("sum-refused", Message::Sum(SumMessage::Refused { number: 300, dir, pause: 50_000_000 })),
        ("sum-revoke", Message::Sum(SumMessage::Revoke { number: 301, epoch: 3, holder: 2, dirs })),
        ("sum-revoked", Message::Sum(SumMessage::Revoked { number: 301 })),
    ]
}

fn key(suffix: &[u8]) -> Key {
    Key::new(Table::Entry, 77 << 14, suffix)
}

fn value(text: &[u8]) -> Option<Box<[u8]>> {
    Some(text.into())
}

fn span(after: Option<&[u8]>) -> Span {
    Span { table: Table::Xattr, id: 9, after: after.map(Into::into), rows_max: 100 }
}

fn rows() -> Vec<(&'static str, Message)> {
    let missing = Missing {
        keys: vec![key(b"name"), key(b"")],
        spans: vec![span(None), span(Some(b"after"))],
    };
    let nothing = Missing { keys: vec![], spans: vec![] };
    vec![
        (
            "borrow",
            Message::Borrow {
                txn: TXN,
                round: 4,
                table: 5,
                mode: RowLockMode::Exclusive,
                rows: missing,
            },
        ),
        (
            "borrow-nothing",
            Message::Borrow {
                txn: TXN,
                round: 4,
                table: 5,
                mode: RowLockMode::Shared,
                rows: nothing,
            },
        ),
        (
            "lent",
            Message::Lent {
                txn: TXN,
                round: 4,
                locked: LOCKED,
                rows: vec![(key(b"name"), value(b"row")), (key(b"none"), None)],
                spans: vec![
                    (span(Some(b"x")), vec![(b"y"[..].into(), b"1"[..].into())]),
                    (span(None), vec![]),
                ],
            },
        ),
        ("refused", Message::Refused(TXN, 4)),
        (
            "prepare",
            Message::Prepare {
                txn: TXN,
                locked: LOCKED,
                mutations: vec![
                    Mutation { key: key(b"new"), value: value(b"row") },
                    Mutation { key: key(b"old"), value: None },
                ],
                below: false,
            },
        ),
        (
            "prepare-below",
            Message::Prepare {
                txn: TXN,
                locked: LOCKED,
                mutations: vec![Mutation { key: key(b"new"), value: value(b"row") }],
                below: true,
            },
        ),
    ]
}

fn clones() -> Vec<(&'static str, Message)> {
    let (dir, names) = (5 << 24, 300);
    let clone = |info: SnapshotInfo| CloneInfo {
        id: dir,
        stamp: info.id + 300,
        dir,
        source: info.dir,
        snapshot: info.id,
        created: -9,
        uid: 1000,
    };
    let info = snapshot_info();
    let info = SnapshotInfo { hidden: true, ..info.with_clone(clone(info.clone())) };
    let order = SnapshotOrder { table: 5, number: 300 };
    let keep = SnapshotMessage::Keep { order, records: vec![info], dropped: vec![] };
    let report =
        CloneReport { epoch: 3, changes: 300, pending: vec![1 << 60], links: vec![1 << 59] };
    vec![
        ("clone-want", Message::Clone(CloneMessage::Want { dir, table: 5 })),
        ("clone-given", Message::Clone(CloneMessage::Given { dir, names, done: false })),
        ("clone-given-all", Message::Clone(CloneMessage::Given { dir, names, done: true })),
        (
            "clone-failed",
            Message::Clone(CloneMessage::Failed { dir, why: FsError::new(28, "full") }),
        ),
        ("clone-record", Message::Snapshot(keep)),
        (
            "poll-clones",
            Message::Poll { number: 300, table: 5, question: PollQuestion::Clones(vec![1 << 60]) },
        ),
        ("polled-clones", Message::Polled { number: 300, answer: PollAnswer::Clones(report) }),
    ]
}

fn dirs() -> Vec<(&'static str, Message)> {
    let fetch = |want| Message::Fetch { number: 300, table: 5, want };
    let dir_with = |policy, acls| Fetched::Dir {
        ino: 5 << 24,
        mode: 0o1777,
        uid: 1000,
        gid: 100,
        policy,
        acls,
    };
    let named = Box::new([Named { group: false, id: 1001, perm: 7 }]);
    let acls = Acls::new(Some(AccessAcl { group_obj: 5, named }), None);
    let own = Policy { consistency: Some(Consistency::Immutable), ..Policy::default() };
    let policy = PolicyRecord { own, in_use: true, ..PolicyRecord::default() };
    vec![
        ("fetch", fetch(Want::Name(1, b"name"[..].into()))),
        ("fetch-by-id", fetch(Want::Id(5 << 24))),
        ("fetched", Message::Fetched(300, dir_with(PolicyRecord::default(), None))),
        ("fetched-policy", Message::Fetched(300, dir_with(policy, None))),
        ("fetched-acls", Message::Fetched(300, dir_with(PolicyRecord::default(), acls))),
        ("fetched-at", Message::Fetched(300, Fetched::At(1, b"name"[..].into()))),
        ("fetched-none", Message::Fetched(300, Fetched::None)),
        ("fetched-busy", Message::Fetched(300, Fetched::Busy)),
        ("invalidate", Message::Invalidate(vec![(TXN, vec![1, 5 << 24])])),
        (
            "invalidate-many",
            Message::Invalidate(vec![(TXN, vec![5 << 24]), (OTHER, vec![]), (OTHER, vec![1, 2])]),
        ),
        ("invalidated", Message::Invalidated(vec![TXN])),
        ("invalidated-many", Message::Invalidated(vec![TXN, OTHER])),
    ]
}

fn ends() -> Vec<(&'static str, Message)> {
    vec![
        ("voted-yes", Message::Voted(TXN, Vote::Yes)),
        ("voted-no", Message::Voted(TXN, Vote::No)),
        ("voted-failed", Message::Voted(TXN, Vote::Failed(FsError::because(28, "no room")))),
        ("decide", Message::Decide(TXN, true, 0)),
        ("decide-after", Message::Decide(TXN, true, 1 << 60)),
        ("decide-not", Message::Decide(TXN, false, 0)),
        ("decided", Message::Decided(TXN)),
        ("ask", Message::Ask(TXN)),
        ("alive", Message::Alive(TXN)),
    ]
}

fn polls() -> Vec<(&'static str, Message)> {
    let poll = |question| Message::Poll { number: 300, table: 5, question };
    let polled = |answer| Message::Polled { number: 300, answer };
    let parts = [
        ReferencePart::None,
        ReferencePart::Damaged,
        ReferencePart::Bytes(-4096),
        ReferencePart::Bytes(1 << 40),
    ]
    .map(Weight::Part);
    let names = vec![NameCount { name: Name::new(b"Makefile").unwrap(), entries: 300 }];
    let found = DirEntry { name: Name::new(b"c").unwrap(), ino: 300, kind: Kind::Fifo };
    let report = LoadReport { node: 2, entries: 1 << 40, names };
    let tree = TreePart {
        sum: [1000, -3, 1 << 40],
        children: vec![(0, 5 << 24), (1, 6 << 24)],
        more: true,
        based: vec![5 << 24],
        clones: true,
    };
    vec![
        ("poll-usage", poll(PollQuestion::Usage)),
        ("poll-held", poll(PollQuestion::Held(vec![1, 2 << 24]))),
        ("poll-tree", poll(PollQuestion::Tree(vec![1, 5 << 24], None))),
        ("poll-tree-after", poll(PollQuestion::Tree(vec![5 << 24], Some((0, 7 << 24))))),
        ("poll-weigh", poll(PollQuestion::Weigh(4, vec![300, 1 << 60]))),
        ("poll-confirm", poll(PollQuestion::Confirm(4, vec![300]))),
        ("poll-forget", poll(PollQuestion::Forget(4, vec![]))),
        ("poll-entries", poll(PollQuestion::Entries)),
        (
            "poll-locate",
            poll(PollQuestion::Locate(vec![300, 5 << 24], Some((1, Name::new(b"c").unwrap())))),
        ),
        ("poll-removal", poll(PollQuestion::Removal(1 << 60, 2, Some((*b"cursor").into())))),
        ("poll-feed", poll(PollQuestion::Feed(Box::new(feed_question())))),
        (
            "poll-tree-at",
            poll(PollQuestion::At(1 << 60, Box::new(PollQuestion::Tree(vec![1], None)))),
        ),
        ("polled-failed", polled(PollAnswer::Failed(FsError::new(5, "damaged")))),
        (
            "polled-removal",
            polled(PollAnswer::Removal(SnapshotUsage { rows: 300, bytes: 1 << 40, next: None })),
        ),
        ("polled-feed", polled(PollAnswer::Feed(Box::new(feed_part())))),
        ("polled-gone", polled(PollAnswer::Gone)),
        ("polled-usage", polled(PollAnswer::Usage([3, -1, 1 << 50]))),
        ("polled-held", polled(PollAnswer::Held(vec![2 << 24]))),
        ("polled-tree", polled(PollAnswer::Tree(tree))),
        (
            "polled-weighed",
            polled(PollAnswer::Weighed([vec![Weight::Used], parts.to_vec()].concat())),
        ),
        ("polled-confirmed", polled(PollAnswer::Confirmed(vec![300]))),
        ("polled-done", polled(PollAnswer::Done)),
        ("polled-entries", polled(PollAnswer::Entries(report))),
        ("polled-located", polled(PollAnswer::Located(vec![(1, found)], None))),
    ]
}

fn feed_question() -> FeedQuestion {
    let place = FeedPlace { feed: 5 << 24, path: (*b"a/b/").into() };
    let after = FeedPosition { stamp: 1 << 60, worker: 65, number: 3 };
    FeedQuestion { place, after, limit: 300 }
}

fn feed_part() -> FeedPart {
    let position = |number| FeedPosition { stamp: 1 << 60, worker: 65, number };
    let event = |path: &[u8], to| FeedEvent {
        kind: if to { FeedEventKind::Rename } else { FeedEventKind::Create },
        ino: 300,
        file: Kind::File,
        path: path.into(),
        to: to.then(|| FeedTarget { path: (*b"d").into(), before: Some((301, Kind::File)) }),
    };
    let events = vec![(position(0), event(b"c", false)), (position(1), event(b"c", true))];
    let (complete, more) = ((1 << 60) + 5, Some(position(1)));
    FeedPart { began: 1 << 59, trimmed: 7, complete, events, more }
}

fn asked_of_others() -> Vec<(&'static str, Message)> {
    use SnapshotReadMessage as M;
    let id = ReadId { number: 3 << 32, round: 300 };
    let (table, snapshot) = (4, 1 << 60);
    let key = Key::new(Table::DirId, 5 << 24, b"");
    let span = Span { table: Table::Entry, id: 1, after: Some((*b"a").into()), rows_max: 1025 };
    let rows = Missing { keys: vec![key.clone()], spans: vec![span.clone()] };
    let told = vec![(key, Some((*b"place").into()))];
    let spans = vec![(span, vec![((*b"b").into(), (*b"entry").into())])];
    let messages = [
        ("snapshot-rows", M::Rows { id, table, snapshot, rows }),
        ("snapshot-got-rows", M::GotRows { id, rows: told, spans }),
        ("snapshot-parents", M::Parents { id, table, dirs: vec![(5 << 24, vec![snapshot, 7])] }),
        ("snapshot-got-parents", M::GotParents { id, dirs: vec![vec![1, 0]] }),
        ("snapshot-gone", M::Gone(id)),
        ("snapshot-busy", M::Busy(id)),
        ("snapshot-too-large", M::TooLarge(id)),
    ];
    let op = Op::SnapshotList { dir: Some(1), ancestors: false };
    let request = Box::new(Request { creds: Creds::root(), op });
    let (number, reply) = (300, Ok(Answer::Snapshots(Vec::new())));
    let forwards = [
        ("forward", Message::Forward { number, table, request }),
        ("forwarded", Message::Forwarded { number, reply }),
    ];
    let messages = messages.map(|(name, message)| (name, Message::SnapshotRead(message)));
    messages.into_iter().chain(forwards).collect()
}

fn changes() -> Vec<(&'static str, Message)> {
    let attempt = Attempt { epoch: 7, number: 300 };
    let members = (1..=2).map(|id| Member { id, address: format!("node{id}:9440") }).collect();
    let map = SlotMap::even(members).unwrap();
    let table =
        Arc::new(PlacementMap { version: 6, ..PlacementMap::new(map, Exceptions::default()) });
    let rows = vec![
        Mutation { key: key(b"moved"), value: value(b"row") },
        Mutation { key: key(b"gone"), value: None },
    ];
    let why = FsError::because(16, "node 2 keeps locks");
    let announced = [(4, "node4:9440", false), (5, "node5:9440", true)];
    let expected =
        announced.map(|(node, address, idle)| (node, Announced { address: address.into(), idle }));
    let charge = Charge { era: 300, last_node: 3, expected: expected.into() };
    [
        ("change-join", ChangeMessage::Join),
        ("change-begin", ChangeMessage::Begin { attempt, next: table.clone() }),
        ("change-clean", ChangeMessage::Clean(attempt)),
        ("change-copy", ChangeMessage::Copy(attempt)),
        ("change-rows", ChangeMessage::Rows { attempt, stream: 9, number: 2, rows }),
        ("change-got-rows", ChangeMessage::GotRows { attempt, stream: 9, number: 2 }),
        ("change-ready", ChangeMessage::Ready(attempt)),
        ("change-freeze", ChangeMessage::Freeze(attempt)),
        ("change-frozen", ChangeMessage::Frozen(attempt)),
        ("change-declined", ChangeMessage::Declined { attempt, why }),
        ("change-abort", ChangeMessage::Abort(attempt)),
        ("change-adopt", ChangeMessage::Adopt(table.clone())),
        ("change-adopted", ChangeMessage::Adopted(6)),
        ("change-ask", ChangeMessage::Ask(attempt)),
        ("change-entrust", ChangeMessage::Entrust { next: table, charge }),
    ]
    .map(|(name, message)| (name, Message::Change(message)))
    .into()
}

fn snapshot_info() -> SnapshotInfo {
    SnapshotInfo {
        id: 1 << 60,
        dir: 5 << 24,
        name: Name::new(b"monday").unwrap(),
        created: 1_700_000_000_000_000_000,
        removing: false,
        cutting: true,
        hidden: false,
        holds: vec![],
        clones: vec![],
    }
}

fn snapshots() -> Vec<(&'static str, Message)> {
    let order = SnapshotOrder { table: 6, number: (7 << 32) + 300 };
    let name = |text: &[u8]| Name::new(text).unwrap();
    let info = snapshot_info();
    let held = SnapshotInfo { cutting: false, holds: vec![name(b"tag")], ..info.clone() };
    let removed = SnapshotInfo { removing: true, id: 1 << 59, ..held.clone() };
    let why = FsError::because(11, "the placement map is being changed");
    [
        ("snapshot-stop", SnapshotMessage::Stop(order)),
        ("snapshot-stopped", SnapshotMessage::Stopped { order, stamp: 1 << 60, start: 300 }),
        ("snapshot-make", SnapshotMessage::Make { order, info }),
        ("snapshot-made", SnapshotMessage::Made(order)),
        ("snapshot-declined", SnapshotMessage::Declined { order, why }),
        ("snapshot-resume", SnapshotMessage::Resume(order)),
        (
            "snapshot-keep",
            SnapshotMessage::Keep { order, records: vec![removed, held], dropped: vec![1 << 58] },
        ),
        ("snapshot-kept", SnapshotMessage::Kept { order, cleared: vec![1 << 59] }),
    ]
    .map(|(name, message)| (name, Message::Snapshot(message)))
    .into()
}

/// Messages about quotas.
fn quotas() -> Vec<(&'static str, Message)> {
    let order = SnapshotOrder { table: 3, number: 300 };
    let (of, limits) =
        (QuotaSubject::Dir(300), QuotaLimits { files: Some(9), ..QuotaLimits::default() });
    let records = vec![
        QuotaRecord { of, limits, above: Some(1) },
        QuotaRecord { of: QuotaSubject::User(1000), limits, above: None },
    ];
    let parts = vec![(of, [3, -1]), (QuotaSubject::Volume, [0, 1 << 40])];
    let ask = QuotaAsk { number: 300, set: order, of, what: 1, used: -5, growth: 1, free: false };
    [
        (
            "quota-sync",
            QuotaMessage::Sync { order, set: order, certain: true, records: records.clone() },
        ),
        (
            "quota-synced",
            QuotaMessage::Synced {
                order,
                newer: Some((order, records.clone())),
                parts: parts.clone(),
            },
        ),
        (
            "quota-set",
            QuotaMessage::Set { order, start: 300, records, homes: vec![(5 << 24, Some(300))] },
        ),
        ("quota-ask", QuotaMessage::Ask(ask)),
        ("quota-granted", QuotaMessage::Granted { number: 300, after: order, to: 1 << 40 }),
        ("quota-denied", QuotaMessage::Denied { number: 300, soft: true }),
        ("quota-recall", QuotaMessage::Recall { order, of: vec![of, QuotaSubject::Group(0)] }),
        ("quota-returned", QuotaMessage::Returned { order, parts }),
    ]
    .map(|(name, message)| (name, Message::Quota(message)))
    .into()
}

/// What members are asked about quotas, and say.
fn counts() -> Vec<(&'static str, Message)> {
    let owners = vec![QuotaSubject::User(7)];
    let usage = QuotaUsage { files: 3, bytes: -1 };
    let of = QuotaSubject::Dir(300);
    let part = QuotaPart { of, own: usage, used: usage, since: OverSince { files: 0, bytes: 9 } };
    let last = Some(Key::new(Table::Entry, 300, b"name"));
    let page = CountedPage {
        owners: vec![(owners[0], usage)],
        names: vec![(1, 5 << 24)],
        files: vec![CountedFile { ino: 5 << 24, bytes: 7, home: Some(300) }],
        last: last.clone(),
    };
    let count = QuotaCount { files: false, owners };
    let poll = |question| Message::Poll { number: 300, table: 3, question };
    let polled = |answer| Message::Polled { number: 300, answer };
    vec![
        ("poll-quotas", poll(PollQuestion::Quotas(Some(vec![of])))),
        ("poll-parents", poll(PollQuestion::Parents(vec![300]))),
        ("poll-count", poll(PollQuestion::Count(count, vec![(2, last), (3, None)]))),
        ("polled-quotas", polled(PollAnswer::Quotas(vec![part]))),
        ("polled-parents", polled(PollAnswer::Parents(vec![(300, 1)]))),
        ("polled-counted", polled(PollAnswer::Counted(Box::new(page)))),
    ]
}

/// Bytes that are no envelope.
pub fn bad() -> Vec<(&'static str, Vec<u8>)> {
    let head = [4, 2, 0, 0, 0, 0, 0, 0, 0, 5];
    let after = |rest: &[u8]| [&head[..], rest].concat();
    vec![
        ("bad-version", vec![1, 2, 0, 0, 0, 0, 0, 0, 0, 5, 13, 2, 3, 4]),
        ("bad-stamp", vec![4, 2, 0xff, 0, 0, 0, 0, 0, 0, 5, 13, 2, 3, 4]),
        ("bad-message", after(&[200, 2, 3, 4])),
        ("bad-count", after(&[8, 2, 3, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 1])),
        ("bad-table", after(&[5, 2, 3, 4, 5, 1, 0, 1, 9, 0xee, 0, 0, 0, 0, 0, 0, 0, 1, 0])),
        ("bad-question", after(&[16, 1, 5, 99])),
        ("bad-change", after(&[18, 99, 1, 1])),
        ("bad-tail", after(&[13, 2, 3, 4, 0])),
        ("bad-vote", after(&[11, 2, 3, 4, 9])),
        ("bad-snapshot", after(&[25, 99, 1, 1])),
    ]
}
