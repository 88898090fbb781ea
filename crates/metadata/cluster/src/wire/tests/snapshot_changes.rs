//! Any question about two snapshots, and any answer.

use kestrel_meta::history::changes::{Found, Group};
use kestrel_meta::node::told::{
    ChangesPart, ChangesQuestion, ChangesWanted, MomentRows, RowsWanted,
};

use super::*;

fn names() -> BoxedStrategy<Vec<Name>> {
    vec(any_name(), 0..4).boxed()
}

fn wanted() -> BoxedStrategy<RowsWanted> {
    let (keys, dirs) = (vec(any_key(), 0..4), ids());
    (keys, dirs)
        .prop_map(|(keys, dirs)| RowsWanted {
            keys: keys.into_iter().collect(),
            dirs: dirs.into_iter().collect(),
        })
        .boxed()
}

fn told() -> BoxedStrategy<MomentRows> {
    let share = (number(), any::<[i64; 2]>()).prop_map(|(dir, [children, bytes])| {
        (dir, DirStat { children, bytes, ..DirStat::default() })
    });
    (vec(any_row(), 0..4), vec(share, 0..4))
        .prop_map(|(rows, shares)| MomentRows { rows, shares })
        .boxed()
}

fn group() -> BoxedStrategy<Group> {
    (number(), names(), any::<[bool; 4]>())
        .prop_map(|(id, names, [is_dir, has_gone, is_link, is_complete])| {
            let found = Found { is_dir, has_gone };
            Group { id, names, found, is_link, is_complete }
        })
        .boxed()
}

pub(super) fn any_question() -> BoxedStrategy<PollQuestion> {
    let cursor = vec(any::<u8>(), 1..20).prop_map(HistoryCursor::from);
    let wanted = prop_oneof![
        (cursor, 0usize..100_000).prop_map(|(from, limit)| ChangesWanted::Groups(from, limit)),
        (vec((number(), option::of(any_name())), 0..4), 0usize..100_000)
            .prop_map(|(places, limit)| ChangesWanted::Grown(places, limit)),
        (wanted(), wanted()).prop_map(|(older, newer)| ChangesWanted::Rows(older, newer)),
    ];
    ((number(), number()), wanted)
        .prop_map(|(moments, wanted)| {
            PollQuestion::Changes(Box::new(ChangesQuestion { moments, wanted }))
        })
        .boxed()
}

pub(super) fn any_answer() -> BoxedStrategy<PollAnswer> {
    let part = prop_oneof![
        (vec(group(), 0..4), any_cursor())
            .prop_map(|(groups, next)| ChangesPart::Groups(groups, next)),
        vec((names(), option::of(any_name())), 0..4).prop_map(ChangesPart::Grown),
        (told(), told()).prop_map(|(older, newer)| ChangesPart::Rows(older, newer)),
    ];
    part.prop_map(|part| PollAnswer::Changes(Box::new(part))).boxed()
}
