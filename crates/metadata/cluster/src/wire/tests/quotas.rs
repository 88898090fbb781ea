//! What members say of quotas.

use kestrel_meta::node::{CountedFile, CountedPage, QuotaCount, QuotaPart};
use kestrel_types::quota::{
    LIMIT_MAX, OverSince, QuotaLimits, QuotaRecord, QuotaSubject, QuotaUsage,
};

use super::*;
use crate::message::quotas::{QuotaAsk, QuotaMessage};

fn order() -> BoxedStrategy<SnapshotOrder> {
    (number(), number()).prop_map(|(table, number)| SnapshotOrder { table, number }).boxed()
}

fn subject() -> BoxedStrategy<QuotaSubject> {
    prop_oneof![
        number().prop_map(QuotaSubject::Dir),
        any::<u32>().prop_map(QuotaSubject::User),
        any::<u32>().prop_map(QuotaSubject::Group),
        Just(QuotaSubject::Volume),
    ]
    .boxed()
}

fn dir() -> BoxedStrategy<Option<InodeId>> {
    option::of(number().prop_map(|dir| dir.max(1))).boxed()
}

fn records() -> BoxedStrategy<Vec<QuotaRecord>> {
    let limit = || option::of(number().prop_map(|limit| limit.min(LIMIT_MAX)));
    let limits = (limit(), limit(), limit(), limit(), any::<u32>());
    let limits = limits.prop_map(|(bytes, files, soft_bytes, soft_files, grace)| QuotaLimits {
        bytes,
        files,
        soft_bytes,
        soft_files,
        grace,
    });
    let record = (subject(), limits, dir());
    vec(record.prop_map(|(of, limits, above)| QuotaRecord { of, limits, above }), 0..4).boxed()
}

fn parts() -> BoxedStrategy<Vec<(QuotaSubject, [i64; 2])>> {
    vec((subject(), any::<[i64; 2]>()), 0..4).boxed()
}

fn usage() -> BoxedStrategy<QuotaUsage> {
    any::<(i64, i64)>().prop_map(|(files, bytes)| QuotaUsage { files, bytes }).boxed()
}

fn ask() -> BoxedStrategy<QuotaAsk> {
    let needs = (any::<i64>(), 1..=i64::MAX);
    (number(), order(), subject(), 0..2u8, needs, any::<bool>())
        .prop_map(|(number, set, of, what, (used, growth), free)| QuotaAsk {
            number,
            set,
            of,
            what,
            used,
            growth,
            free,
        })
        .boxed()
}

pub(super) fn any_message() -> BoxedStrategy<QuotaMessage> {
    prop_oneof![
        (order(), order(), any::<bool>(), records()).prop_map(|(order, set, certain, records)| {
            QuotaMessage::Sync { order, set, certain, records }
        }),
        (order(), option::of((order(), records())), parts())
            .prop_map(|(order, newer, parts)| QuotaMessage::Synced { order, newer, parts }),
        (order(), number(), records(), vec((number(), dir()), 0..4)).prop_map(
            |(order, start, records, homes)| QuotaMessage::Set { order, start, records, homes }
        ),
        ask().prop_map(QuotaMessage::Ask),
        (number(), order(), any::<i64>()).prop_map(|(number, after, to)| QuotaMessage::Granted {
            number,
            after,
            to
        }),
        (number(), any::<bool>()).prop_map(|(number, soft)| QuotaMessage::Denied { number, soft }),
        (order(), vec(subject(), 0..4)).prop_map(|(order, of)| QuotaMessage::Recall { order, of }),
        (order(), parts()).prop_map(|(order, parts)| QuotaMessage::Returned { order, parts }),
    ]
    .boxed()
}

fn last() -> BoxedStrategy<Option<Key>> {
    let key = (any::<bool>(), number(), bytes(9)).prop_map(|(is_entry, id, suffix)| {
        Key::new(if is_entry { Table::Entry } else { Table::Link }, id, &suffix)
    });
    option::of(key).boxed()
}

pub(super) fn any_question() -> BoxedStrategy<PollQuestion> {
    let count = (any::<bool>(), vec(subject(), 0..3));
    let count = count.prop_map(|(files, owners)| QuotaCount { files, owners });
    prop_oneof![
        option::of(vec(subject(), 0..4)).prop_map(PollQuestion::Quotas),
        ids().prop_map(PollQuestion::Parents),
        (count, vec((any::<u32>(), last()), 0..3))
            .prop_map(|(count, places)| PollQuestion::Count(count, places)),
    ]
    .boxed()
}

pub(super) fn any_answer() -> BoxedStrategy<PollAnswer> {
    let part = (subject(), usage(), usage(), any::<(i64, i64)>());
    let part = part.prop_map(|(of, own, used, (bytes, files))| QuotaPart {
        of,
        own,
        used,
        since: OverSince { bytes, files },
    });
    let file = (number(), any::<i64>(), dir());
    let file = file.prop_map(|(ino, bytes, home)| CountedFile { ino, bytes, home });
    let page =
        (vec((subject(), usage()), 0..3), vec((number(), number()), 0..3), vec(file, 0..3), last());
    let page = page.prop_map(|(owners, names, files, last)| {
        PollAnswer::Counted(Box::new(CountedPage { owners, names, files, last }))
    });
    prop_oneof![
        vec(part, 0..4).prop_map(PollAnswer::Quotas),
        vec((number(), number()), 0..4).prop_map(PollAnswer::Parents),
        page,
    ]
    .boxed()
}
