//! Envelopes round trip; whatever comes in their place is an error or another envelope, never a
//! panic.

use std::sync::Arc;

use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_meta::feeds::{FeedPart, FeedPlace, FeedQuestion};
use kestrel_meta::node::{ReferencePart, TreePart};
use kestrel_meta::stop::Want;
use kestrel_types::acl::{AccessAcl, Acl, Acls, Named};
use kestrel_types::clone::CloneInfo;
use kestrel_types::compression::Compression;
use kestrel_types::feed::{FeedEvent, FeedEventKind, FeedPosition, FeedTarget};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::{NAME_MAX, Name};
use kestrel_types::placement::{Exceptions, Member as MapMember, PlacementMap, SlotMap};
use kestrel_types::policy::{Consistency, Policy, PolicyRecord};
use kestrel_types::request::{Creds, DirEntry, Op, Request};
use kestrel_types::retention::Retention;
use kestrel_types::snapshot::SnapshotInfo;
use kestrel_types::snapshot_changes::{HistoryCursor, SnapshotUsage};
use kestrel_types::stat::DirStat;
use kestrel_types::tier::Tier;
use kestrel_types::token::{Ids, Subtree, TokenId, TokenRecord};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::addresses::NodeAddress;
use crate::message::changes::{Announced, Attempt, ChangeMessage, Charge};
use crate::message::clones::{CloneMessage, CloneReport};
use crate::message::leases::{HoldId, LeaseMessage};
use crate::message::polls::{PollAnswer, PollQuestion, Weight};
use crate::message::snapshot_reads::{ReadId, SnapshotReadMessage};
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};
use crate::message::sums::{Also, Names, SumMessage};
use crate::message::{Fetched, TokensMessage};

#[path = "tests/quotas.rs"]
mod quotas;
#[path = "tests/snapshot_changes.rs"]
mod snapshot_changes;

/// Small and large ones alike, so that every length of a varint occurs.
fn number() -> BoxedStrategy<u64> {
    (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift).boxed()
}

fn bytes(max: usize) -> BoxedStrategy<Box<[u8]>> {
    vec(any::<u8>(), 0..=max).prop_map(Into::into).boxed()
}

fn table() -> BoxedStrategy<Table> {
    any::<u8>().prop_filter_map("a table", Table::from_u8).boxed()
}

fn any_key() -> BoxedStrategy<Key> {
    (table(), number(), bytes(SUFFIX_MAX))
        .prop_map(|(table, id, suffix)| Key::new(table, id, &suffix))
        .boxed()
}

fn any_row() -> BoxedStrategy<Row> {
    (any_key(), option::of(bytes(60))).boxed()
}

fn any_span() -> BoxedStrategy<Span> {
    (table(), number(), option::of(bytes(SUFFIX_MAX)), any::<u32>())
        .prop_map(|(table, id, after, rows_max)| Span { table, id, after, rows_max })
        .boxed()
}

fn any_txn() -> BoxedStrategy<TxnId> {
    (any::<u32>(), number(), number())
        .prop_map(|(node, epoch, number)| TxnId { node, epoch, number })
        .boxed()
}

fn any_locked() -> BoxedStrategy<LockedRowsId> {
    (number(), number()).prop_map(|(epoch, number)| LockedRowsId { epoch, number }).boxed()
}

fn any_error() -> BoxedStrategy<FsError> {
    (1..4096, "[a-z ]{0,40}").prop_map(|(errno, why)| FsError::because(errno, why)).boxed()
}

fn any_want() -> BoxedStrategy<Want> {
    prop_oneof![
        (number(), bytes(NAME_MAX)).prop_map(|(parent, name)| Want::Name(parent, name)),
        number().prop_map(Want::Id),
    ]
    .boxed()
}

fn any_policy() -> BoxedStrategy<PolicyRecord> {
    let values = [
        None,
        Some(Consistency::Strict),
        Some(Consistency::CloseToOpen),
        Some(Consistency::Immutable),
    ];
    let codings =
        [None, Some(Compression::None), Some(Compression::Lz4), Some(Compression::Zstd(9))];
    let times = [None, Some(Retention::NONE), Retention::from_hours(168)];
    let own = (
        prop::sample::select(values.to_vec()),
        prop::sample::select(codings.to_vec()),
        prop::sample::select(times.to_vec()),
        prop::option::of(prop::sample::select(&Tier::ALL[..])),
    );
    (own, any::<[bool; 2]>())
        .prop_map(|((consistency, compression, trash, tier), [removed, in_use])| PolicyRecord {
            own: Policy { consistency, compression, trash, feed: trash, tier },
            base: None,
            removed,
            in_use,
        })
        .boxed()
}

fn any_acls() -> BoxedStrategy<Option<Arc<Acls>>> {
    let named = (any::<bool>(), 0..u32::MAX, 0u8..8).prop_map(|(group, id, perm)| Named {
        group,
        id,
        perm,
    });
    let named = vec(named, 0..4).prop_map(|mut named| {
        named.sort_by_key(|one| one.group);
        named.into_boxed_slice()
    });
    let default = ([0u8..8, 0u8..8, 0u8..8, 0u8..8], named.clone()).prop_map(
        |([user_obj, group_obj, mask, other], named)| Acl {
            user_obj,
            group_obj,
            mask: Some(mask),
            other,
            named,
        },
    );
    let access = (0u8..8, named).prop_map(|(group_obj, named)| AccessAcl { group_obj, named });
    (option::of(access), option::of(default))
        .prop_map(|(access, default)| Acls::new(access, default))
        .boxed()
}

fn any_fetched() -> BoxedStrategy<Fetched> {
    prop_oneof![
        (number(), 0..=0o7777u16, any::<[u32; 2]>(), any_policy(), any_acls()).prop_map(
            |(ino, mode, [uid, gid], policy, acls)| Fetched::Dir {
                ino,
                mode,
                uid,
                gid,
                policy,
                acls
            }
        ),
        (number(), bytes(NAME_MAX)).prop_map(|(parent, name)| Fetched::At(parent, name)),
        Just(Fetched::None),
        Just(Fetched::Busy),
    ]
    .boxed()
}

fn ids() -> BoxedStrategy<Vec<InodeId>> {
    vec(number(), 0..5).boxed()
}

fn about_rows() -> BoxedStrategy<Message> {
    let mode = prop_oneof![Just(RowLockMode::Shared), Just(RowLockMode::Exclusive)];
    let missing = (vec(any_key(), 0..4), vec(any_span(), 0..3))
        .prop_map(|(keys, spans)| Missing { keys, spans });
    let spans = vec((any_span(), vec((bytes(SUFFIX_MAX), bytes(60)), 0..4)), 0..3);
    let mutation = any_row().prop_map(|(key, value)| Mutation { key, value });
    prop_oneof![
        (any_txn(), any::<u32>(), number(), mode, missing).prop_map(
            |(txn, round, table, mode, rows)| { Message::Borrow { txn, round, table, mode, rows } }
        ),
        (any_txn(), any::<u32>(), any_locked(), vec(any_row(), 0..4), spans).prop_map(
            |(txn, round, locked, rows, spans)| Message::Lent { txn, round, locked, rows, spans }
        ),
        (any_txn(), any_locked(), vec(mutation, 0..4), any::<bool>()).prop_map(
            |(txn, locked, mutations, below)| Message::Prepare { txn, locked, mutations, below }
        ),
    ]
    .boxed()
}

fn any_name() -> BoxedStrategy<Name> {
    vec(1u8..47, 1..=255).prop_filter_map("a name", |name| Name::new(&name).ok()).boxed()
}

fn question_about_names() -> BoxedStrategy<PollQuestion> {
    prop_oneof![
        (ids(), option::of((number(), any_name())))
            .prop_map(|(files, after)| PollQuestion::Locate(files, after)),
        (ids(), option::of((any::<u32>(), number())))
            .prop_map(|(dirs, after)| PollQuestion::Tree(dirs, after)),
    ]
    .boxed()
}

fn any_cursor() -> BoxedStrategy<Option<HistoryCursor>> {
    option::of(vec(any::<u8>(), 1..20).prop_map(HistoryCursor::from)).boxed()
}

fn any_feed_position() -> BoxedStrategy<FeedPosition> {
    any::<(u64, u16, u32)>()
        .prop_map(|(stamp, worker, number)| FeedPosition { stamp, worker, number })
        .boxed()
}

fn any_feed_question() -> BoxedStrategy<FeedQuestion> {
    (number(), vec(any::<u8>(), 0..30), any_feed_position(), any::<u32>())
        .prop_map(|(feed, path, after, limit)| FeedQuestion {
            place: FeedPlace { feed, path: path.into() },
            after,
            limit,
        })
        .boxed()
}

fn any_feed_part() -> BoxedStrategy<FeedPart> {
    let path = || vec(any::<u8>(), 0..30).prop_map(Box::<[u8]>::from);
    let before = option::of((1u64.., Just(Kind::File)));
    let to = option::of((path(), before));
    let event =
        (any_feed_position(), number(), path(), to).prop_map(|(position, ino, path, to)| {
            let kind = if to.is_some() { FeedEventKind::Rename } else { FeedEventKind::Create };
            let to = to.map(|(path, before)| FeedTarget { path, before });
            (position, FeedEvent { kind, ino, file: Kind::Dir, path, to })
        });
    (any::<[u64; 3]>(), vec(event, 0..5), option::of(any_feed_position()))
        .prop_map(|([began, trimmed, complete], events, more)| FeedPart {
            began,
            trimmed,
            complete,
            events,
            more,
        })
        .boxed()
}

fn any_question() -> BoxedStrategy<PollQuestion> {
    prop_oneof![
        Just(PollQuestion::Usage),
        Just(PollQuestion::Entries),
        ids().prop_map(PollQuestion::Held),
        question_about_names(),
        (number(), question_about_names())
            .prop_map(|(snapshot, question)| PollQuestion::At(snapshot, Box::new(question))),
        quotas::any_question(),
        snapshot_changes::any_question(),
        ids().prop_map(PollQuestion::Clones),
        (number(), any::<u32>(), any_cursor())
            .prop_map(|(snapshot, node, after)| PollQuestion::Removal(snapshot, node, after)),
        any_feed_question().prop_map(|asked| PollQuestion::Feed(Box::new(asked))),
        (number(), ids()).prop_map(|(round, objects)| PollQuestion::Weigh(round, objects)),
        (number(), ids()).prop_map(|(round, objects)| PollQuestion::Confirm(round, objects)),
        (number(), ids()).prop_map(|(round, objects)| PollQuestion::Forget(round, objects)),
    ]
    .boxed()
}

fn any_answer() -> BoxedStrategy<PollAnswer> {
    let weight = prop_oneof![
        Just(Weight::Used),
        Just(Weight::Part(ReferencePart::None)),
        Just(Weight::Part(ReferencePart::Damaged)),
        (-1i64 << 51..1 << 51).prop_map(|bytes| Weight::Part(ReferencePart::Bytes(bytes))),
    ];
    let places = vec((any::<u32>(), number()), 0..5);
    let entry =
        (any_name(), number()).prop_map(|(name, ino)| DirEntry { name, ino, kind: Kind::Fifo });
    let located = (vec((number(), entry), 0..5), option::of((number(), any_name())));
    let names =
        vec((any_name(), number()).prop_map(|(name, entries)| NameCount { name, entries }), 0..5);
    prop_oneof![
        any::<[i64; 3]>().prop_map(PollAnswer::Usage),
        ids().prop_map(PollAnswer::Held),
        (any::<[i64; 3]>(), places, any::<[bool; 2]>(), ids()).prop_map(
            |(sum, children, [more, clones], based)| {
                PollAnswer::Tree(TreePart { sum, children, more, based, clones })
            }
        ),
        (number(), number(), ids(), ids()).prop_map(|(epoch, changes, pending, links)| {
            PollAnswer::Clones(CloneReport { epoch, changes, pending, links })
        }),
        vec(weight, 0..5).prop_map(PollAnswer::Weighed),
        ids().prop_map(PollAnswer::Confirmed),
        located.prop_map(|(found, next)| PollAnswer::Located(found, next)),
        Just(PollAnswer::Done),
        Just(PollAnswer::Gone),
        quotas::any_answer(),
        snapshot_changes::any_answer(),
        (number(), number(), any_cursor()).prop_map(|(rows, bytes, next)| PollAnswer::Removal(
            SnapshotUsage { rows, bytes, next }
        )),
        any_error().prop_map(PollAnswer::Failed),
        any_feed_part().prop_map(|part| PollAnswer::Feed(Box::new(part))),
        (any::<u32>(), number(), names).prop_map(|(node, entries, names)| PollAnswer::Entries(
            LoadReport { node, entries, names }
        )),
    ]
    .boxed()
}

fn any_message() -> BoxedStrategy<Message> {
    let vote = prop_oneof![Just(Vote::Yes), Just(Vote::No), any_error().prop_map(Vote::Failed)];
    prop_oneof![
        (number(), number(), any_want()).prop_map(|(number, table, want)| Message::Fetch {
            number,
            table,
            want
        }),
        (number(), any_fetched()).prop_map(|(number, found)| Message::Fetched(number, found)),
        about_rows(),
        (any_txn(), any::<u32>()).prop_map(|(txn, round)| Message::Refused(txn, round)),
        vec((any_txn(), ids()), 0..4).prop_map(Message::Invalidate),
        vec(any_txn(), 0..4).prop_map(Message::Invalidated),
        (any_txn(), vote).prop_map(|(txn, vote)| Message::Voted(txn, vote)),
        (any_txn(), any::<bool>(), number()).prop_map(|(txn, commit, cut)| Message::Decide(
            txn,
            commit,
            if commit { cut } else { 0 }
        )),
        any_snapshot_message().prop_map(Message::Snapshot),
        quotas::any_message().prop_map(Message::Quota),
        any_clone_message().prop_map(Message::Clone),
        any_snapshot_read().prop_map(Message::SnapshotRead),
        (number(), number(), number()).prop_map(|(number, table, dir)| {
            let op = Op::Parent(dir);
            let request = Box::new(Request { creds: Creds::root(), op });
            Message::Forward { number, table, request }
        }),
        (number(), any_error()).prop_map(|(number, why)| {
            Message::Forwarded { number, reply: Err(Outcome::Failed(why)) }
        }),
        any_txn().prop_map(Message::Decided),
        any_txn().prop_map(Message::Ask),
        any_txn().prop_map(Message::Alive),
        (number(), number(), any_question()).prop_map(|(number, table, question)| Message::Poll {
            number,
            table,
            question
        }),
        any_change().prop_map(Message::Change),
        any_lease().prop_map(Message::Lease),
        any_sum().prop_map(Message::Sum),
        any_tokens().prop_map(Message::Tokens),
        vec(any_address(), 0..3).prop_map(Message::Addresses),
        (number(), any_answer()).prop_map(|(number, answer)| Message::Polled { number, answer }),
    ]
    .boxed()
}

fn any_clone_message() -> BoxedStrategy<CloneMessage> {
    prop_oneof![
        (number(), number()).prop_map(|(dir, table)| CloneMessage::Want { dir, table }),
        (number(), number(), any::<bool>()).prop_map(|(dir, names, done)| CloneMessage::Given {
            dir,
            names,
            done
        }),
        (number(), any_error()).prop_map(|(dir, why)| CloneMessage::Failed { dir, why }),
    ]
    .boxed()
}

fn any_snapshot_message() -> BoxedStrategy<SnapshotMessage> {
    let order = || (number(), number()).prop_map(|(table, number)| SnapshotOrder { table, number });
    let info = || {
        (number(), number(), any_name(), any::<(i64, bool, bool)>(), vec(any_name(), 0..3))
            .prop_map(|(id, dir, name, (created, removing, cutting), holds)| SnapshotInfo {
                id,
                dir,
                name,
                created,
                removing,
                cutting,
                hidden: false,
                holds,
                clones: vec![CloneInfo {
                    id: 1,
                    stamp: 9,
                    dir,
                    source: id,
                    snapshot: id,
                    created,
                    uid: 7,
                }],
            })
    };
    prop_oneof![
        order().prop_map(SnapshotMessage::Stop),
        (order(), number().prop_map(|stamp| stamp >> 1), number())
            .prop_map(|(order, stamp, start)| SnapshotMessage::Stopped { order, stamp, start }),
        (order(), info()).prop_map(|(order, info)| SnapshotMessage::Make { order, info }),
        order().prop_map(SnapshotMessage::Made),
        (order(), any_error()).prop_map(|(order, why)| SnapshotMessage::Declined { order, why }),
        order().prop_map(SnapshotMessage::Resume),
        (order(), vec(info(), 0..3), ids()).prop_map(|(order, records, dropped)| {
            SnapshotMessage::Keep { order, records, dropped }
        }),
        (order(), ids()).prop_map(|(order, cleared)| SnapshotMessage::Kept { order, cleared }),
    ]
    .boxed()
}

fn any_snapshot_read() -> BoxedStrategy<SnapshotReadMessage> {
    use SnapshotReadMessage as M;
    let id = || (number(), any::<u32>()).prop_map(|(number, round)| ReadId { number, round });
    let missing = (vec(any_key(), 0..4), vec(any_span(), 0..3))
        .prop_map(|(keys, spans)| Missing { keys, spans });
    let spans = vec((any_span(), vec((bytes(SUFFIX_MAX), bytes(60)), 0..4)), 0..3);
    let dirs = vec((number(), ids()), 0..4);
    prop_oneof![
        (id(), number(), number(), missing).prop_map(|(id, table, snapshot, rows)| M::Rows {
            id,
            table,
            snapshot,
            rows
        }),
        (id(), vec(any_row(), 0..4), spans).prop_map(|(id, rows, spans)| M::GotRows {
            id,
            rows,
            spans
        }),
        (id(), number(), dirs).prop_map(|(id, table, dirs)| M::Parents { id, table, dirs }),
        (id(), vec(ids(), 0..4)).prop_map(|(id, dirs)| M::GotParents { id, dirs }),
        id().prop_map(M::Gone),
        id().prop_map(M::Busy),
        id().prop_map(M::TooLarge),
    ]
    .boxed()
}

fn any_address() -> BoxedStrategy<NodeAddress> {
    (any::<u32>(), number(), "[a-z0-9.:]{1,40}")
        .prop_map(|(node, epoch, address)| NodeAddress { node, epoch, address })
        .boxed()
}

fn any_tokens() -> BoxedStrategy<TokensMessage> {
    let id = || any::<[u8; 8]>().prop_map(TokenId);
    let record =
        (id(), "[a-z ]{1,20}", any::<(i64, Option<i64>, Option<i64>)>(), any::<(bool, u32, u32)>());
    let record =
        record.prop_map(|(id, name, (issued, expires, revoked), (flag, one, two))| TokenRecord {
            id,
            name,
            issued,
            expires,
            revoked,
            verifier: [one as u8; 32],
            read_only: flag,
            admin: !flag,
            subtree: flag.then(|| Subtree { dir: u64::from(two) + 1, path: "/a".into() }),
            uids: if flag { Ids::All } else { Ids::Ranges([(one.min(two), one.max(two))].into()) },
            gids: Ids::All,
            squash: flag.then_some((one, two)),
            map: [(one, two)].into(),
        });
    prop_oneof![
        any::<[u8; 32]>().prop_map(TokensMessage::Digest),
        vec(record, 0..3).prop_map(TokensMessage::Records),
        vec(id(), 0..3).prop_map(TokensMessage::Prune),
    ]
    .boxed()
}

fn any_lease() -> BoxedStrategy<LeaseMessage> {
    let hold = (number(), number()).prop_map(|(epoch, number)| HoldId { epoch, number });
    prop_oneof![
        (number(), number(), any::<bool>())
            .prop_map(|(number, epoch, exclusive)| LeaseMessage::Ask { number, epoch, exclusive }),
        number().prop_map(|epoch| LeaseMessage::Release { epoch }),
        (number(), any::<bool>()).prop_map(|(number, sums)| LeaseMessage::Granted { number, sums }),
        (any_txn(), any::<u32>(), any::<u32>())
            .prop_map(|(txn, round, node)| LeaseMessage::Fence { txn, round, node }),
        (any_txn(), any::<u32>(), any::<u32>(), hold)
            .prop_map(|(txn, round, node, hold)| LeaseMessage::Fenced { txn, round, node, hold }),
    ]
    .boxed()
}

fn any_sum() -> BoxedStrategy<SumMessage> {
    let text = || vec(any::<u8>(), 0..20).prop_map(Box::<[u8]>::from);
    let also = option::of((option::of(text()), number()))
        .prop_map(|names| names.map_or(Also::Nothing, |(after, most)| Also::Names { after, most }));
    let names =
        (vec((text(), text()), 0..4), any::<bool>()).prop_map(|(rows, end)| Names { rows, end });
    let count = || -(1i64 << 52) + 1..1 << 52;
    let stat = (count(), count(), any::<i64>(), any::<i64>(), number()).prop_map(
        |(children, subdirs, bytes, mtime, change)| DirStat {
            children,
            subdirs,
            bytes,
            mtime,
            change,
        },
    );
    prop_oneof![
        (number(), number(), number(), number(), also).prop_map(
            |(number, table, epoch, dir, also)| {
                SumMessage::Ask { number, table, epoch, dir, also }
            }
        ),
        (number(), number(), number(), stat, option::of(names)).prop_map(
            |(number, epoch, dir, sum, names)| SumMessage::Sum { number, epoch, dir, sum, names }
        ),
        (number(), number(), number()).prop_map(|(number, dir, pause)| SumMessage::Refused {
            number,
            dir,
            pause
        }),
        (number(), number(), number(), vec(number(), 0..4)).prop_map(
            |(number, epoch, holder, dirs)| SumMessage::Revoke { number, epoch, holder, dirs }
        ),
        number().prop_map(|number| SumMessage::Revoked { number }),
    ]
    .boxed()
}

fn any_charge() -> BoxedStrategy<Charge> {
    let announced = ("[a-z.]{1,20}:[0-9]{1,5}", any::<bool>())
        .prop_map(|(address, idle)| Announced { address, idle });
    (number(), any::<u32>(), prop::collection::btree_map(any::<u32>(), announced, 0..4))
        .prop_map(|(era, last_node, expected)| Charge { era, last_node, expected })
        .boxed()
}

fn any_change() -> BoxedStrategy<ChangeMessage> {
    let attempt = || (number(), number()).prop_map(|(epoch, number)| Attempt { epoch, number });
    let placement = || {
        (1u64.., 1u32..4).prop_map(|(version, nodes)| {
            let members =
                (1..=nodes).map(|id| MapMember { id, address: format!("node-{id}") }).collect();
            let (map, exceptions) = (SlotMap::even(members).unwrap(), Exceptions::default());
            Arc::new(PlacementMap { version, ..PlacementMap::new(map, exceptions) })
        })
    };
    let mutation = any_row().prop_map(|(key, value)| Mutation { key, value });
    prop_oneof![
        Just(ChangeMessage::Join),
        (attempt(), placement()).prop_map(|(attempt, next)| ChangeMessage::Begin { attempt, next }),
        attempt().prop_map(ChangeMessage::Clean),
        attempt().prop_map(ChangeMessage::Copy),
        (attempt(), number(), number(), vec(mutation, 0..4)).prop_map(
            |(attempt, stream, number, rows)| {
                ChangeMessage::Rows { attempt, stream, number, rows }
            }
        ),
        (attempt(), number(), number()).prop_map(|(attempt, stream, number)| {
            ChangeMessage::GotRows { attempt, stream, number }
        }),
        attempt().prop_map(ChangeMessage::Ready),
        attempt().prop_map(ChangeMessage::Freeze),
        attempt().prop_map(ChangeMessage::Frozen),
        (attempt(), any_error())
            .prop_map(|(attempt, why)| ChangeMessage::Declined { attempt, why }),
        attempt().prop_map(ChangeMessage::Abort),
        placement().prop_map(ChangeMessage::Adopt),
        number().prop_map(ChangeMessage::Adopted),
        attempt().prop_map(ChangeMessage::Ask),
        (placement(), any_charge())
            .prop_map(|(next, charge)| ChangeMessage::Entrust { next, charge }),
    ]
    .boxed()
}

fn any_envelope() -> BoxedStrategy<Envelope> {
    (any::<u32>(), 0..STAMP_MAX, any_message())
        .prop_map(|(from, stamp, message)| Envelope { from, stamp, message })
        .boxed()
}

fn encoded(envelope: &Envelope) -> Vec<u8> {
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes).unwrap();
    bytes
}

proptest! {
    #[test]
    fn envelopes_round_trip(envelope in any_envelope()) {
        prop_assert_eq!(Envelope::decode(&encoded(&envelope)), Ok(envelope));
    }

    #[test]
    fn what_is_cut_or_has_a_tail_is_refused(envelope in any_envelope()) {
        let mut bytes = encoded(&envelope);
        for len in 0..bytes.len() {
            prop_assert!(Envelope::decode(&bytes[..len]).is_err(), "{len}");
        }
        bytes.push(0);
        prop_assert!(Envelope::decode(&bytes).is_err());
    }

    #[test]
    fn a_changed_byte_does_no_harm(
        envelope in any_envelope(),
        change in 1u8..,
        at in any::<prop::sample::Index>()
    ) {
        let mut bytes = encoded(&envelope);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        if let Ok(read) = Envelope::decode(&bytes) {
            prop_assert_eq!(Envelope::decode(&encoded(&read)), Ok(read));
        }
    }

    #[test]
    fn garbage_is_no_envelope(kind in 0u8..26, rest in vec(any::<u8>(), 0..300)) {
        let _ = Envelope::decode(&rest);
        let mut bytes = vec![VERSION, 1, 0, 0, 0, 0, 0, 0, 0, 1, kind];
        bytes.extend_from_slice(&rest);
        let _ = Envelope::decode(&bytes);
    }
}

#[test]
fn bytes_are_pinned() {
    let txn = TxnId { node: 2, epoch: 3, number: 300 };
    let envelope = Envelope { from: 1, stamp: 5, message: Message::Decide(txn, true, 0) };
    assert_eq!(encoded(&envelope), [13, 1, 0, 0, 0, 0, 0, 0, 0, 5, 12, 2, 3, 0xac, 2, 1]);
    let revoke = SumMessage::Revoke { number: 300, epoch: 3, holder: 0, dirs: vec![7] };
    let revoke = Envelope { message: Message::Sum(revoke), ..envelope.clone() };
    assert_eq!(encoded(&revoke), [13, 1, 0, 0, 0, 0, 0, 0, 0, 5, 24, 4, 0xac, 2, 3, 0, 1, 7]);
    let mut other = encoded(&envelope);
    other[0] = 1;
    assert!(Envelope::decode(&other).is_err());
    let late = Envelope { stamp: STAMP_MAX, ..envelope };
    assert!(Envelope::decode(&encoded(&late)).is_err());
}

/// An envelope that fits no frame is not encoded, and large counts take no memory.
#[test]
fn oversized_envelopes_and_counts() {
    let txn = TxnId { node: 2, epoch: 3, number: 300 };
    let row = Mutation {
        key: Key::new(Table::Chunk, 7, b"12345678"),
        value: Some(vec![0; 1 << 20].into()),
    };
    let locked = LockedRowsId { epoch: 1, number: 1 };
    let message = Message::Prepare { txn, locked, mutations: vec![row; 4], below: false };
    let mut out = vec![1, 2, 3];
    assert!(Envelope { from: 1, stamp: 5, message }.encode(&mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
    // Invalidate with 2^40 transactions, and for one with 2^40 directories.
    let head = [VERSION, 1, 0, 0, 0, 0, 0, 0, 0, 5, INVALIDATE];
    let (one, many) = (&[1, 2, 3, 4][..], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x20][..]);
    for rest in [[many, &[2, 3, 4, 1, 1]].concat(), [one, many, &[1]].concat()] {
        assert!(Envelope::decode(&[&head[..], &rest].concat()).is_err());
    }
}
