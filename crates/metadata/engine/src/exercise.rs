//! Generated sequences of operations against a map, for every engine: this crate's, and those of
//! others by feature `exercise`.
#![allow(clippy::unwrap_used, reason = "a tool of tests, which fail by panics")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_types::key::{Key, KeyRef, Table};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{BatchKind, Engine, Mutation};

/// Encoded key to value.
pub type ExpectedRows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A row that is written.
pub fn put(id: u64, suffix: &[u8], value: &[u8]) -> Mutation {
    Mutation { key: Key::new(Table::Entry, id, suffix), value: Some(value.into()) }
}

/// A row that goes.
pub fn remove(id: u64, suffix: &[u8]) -> Mutation {
    Mutation { key: Key::new(Table::Entry, id, suffix), value: None }
}

/// Commits what must be taken.
pub fn commit(engine: &dyn Engine, mutations: Vec<Mutation>) -> u64 {
    engine.commit(BatchKind::Growing, mutations).unwrap()
}

/// The bytes by which keys are ordered.
pub fn encode(key: KeyRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode_into(&mut out);
    out
}

/// What a batch makes of the content.
pub fn apply(content: &mut ExpectedRows, mutations: &[Mutation]) {
    for Mutation { key, value } in mutations {
        match value {
            Some(value) => content.insert(encode(key.borrow()), value.to_vec()),
            None => content.remove(&encode(key.borrow())),
        };
    }
}

/// Everything in the engine.
pub fn content(engine: &dyn Engine) -> ExpectedRows {
    let mut content = ExpectedRows::new();
    for table in Table::ALL {
        engine
            .scan_table(table, None, &mut |key, value| {
                assert!(
                    content.insert(encode(key), value.to_vec()).is_none(),
                    "a row was shown twice"
                );
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    content
}

/// What is done with an engine.
#[derive(Debug, Clone)]
pub enum EngineOp {
    /// A batch: id, name, and seed of the value or none to delete.
    Commit(Vec<(u64, u8, Option<u16>)>),
    /// Rows that may be there.
    Get(Vec<(u64, u8)>),
    /// A group, above a name, so many rows.
    Scan(u64, Option<u8>, usize),
    /// A table, from a row, so many.
    ScanTable(u64, u8, usize),
    /// A group that never had rows.
    Hint(u64),
    /// All is durable.
    Sync,
    /// Rows go below memory.
    Flush,
    /// Rows leave memory.
    Evict,
    /// What is below is merged.
    Compact,
    /// A clean end, and opened again.
    Close,
    /// The process ends, and it is opened again.
    Kill,
}

/// Operations, as often as they are interesting.
pub fn op() -> impl Strategy<Value = EngineOp> {
    let id = 0..6u64;
    prop_oneof![
        6 => vec((id.clone(), any::<u8>(), proptest::option::weighted(0.7, 0..400u16)), 1..40)
            .prop_map(EngineOp::Commit),
        3 => vec((id.clone(), any::<u8>()), 1..80).prop_map(EngineOp::Get),
        3 => (id.clone(), proptest::option::of(any::<u8>()), 1..400usize)
        .prop_map(|(a, b, c)| EngineOp::Scan(a, b, c)),
        1 => (id, any::<u8>(), 1..2000usize).prop_map(|(a, b, c)| EngineOp::ScanTable(a, b, c)),
        1 => (100..110u64).prop_map(EngineOp::Hint),
        1 => Just(EngineOp::Sync),
        2 => Just(EngineOp::Flush),
        2 => Just(EngineOp::Evict),
        1 => Just(EngineOp::Compact),
        1 => Just(EngineOp::Close),
        1 => Just(EngineOp::Kill),
    ]
}

fn suffix(number: u8) -> Vec<u8> {
    // Lengths differ, so that prefixes of one another occur.
    vec![b'a' + number % 5; usize::from(number / 5) % 60 + 1]
}

fn value(seed: u16) -> Vec<u8> {
    (0..seed).map(|index| (index ^ seed) as u8).collect()
}

fn mutations(changes: &[(u64, u8, Option<u16>)]) -> Vec<Mutation> {
    changes
        .iter()
        .map(|(id, name, seed)| Mutation {
            key: Key::new(Table::Entry, *id, &suffix(*name)),
            value: seed.map(|seed| value(seed).into()),
        })
        .collect()
}

/// Operations that every engine has.
pub fn check(engine: &dyn Engine, content: &mut ExpectedRows, op: &EngineOp) {
    match op {
        EngineOp::Commit(changes) => {
            let mutations = mutations(changes);
            apply(content, &mutations);
            commit(engine, mutations);
        }
        EngineOp::Get(names) => {
            let suffixes: Vec<_> = names.iter().map(|(id, name)| (*id, suffix(*name))).collect();
            let keys: Vec<_> = suffixes
                .iter()
                .map(|(id, suffix)| KeyRef::new(Table::Entry, *id, suffix))
                .collect();
            let mut seen = vec![0; keys.len()];
            engine
                .get_many(&keys, &mut |index, row| {
                    seen[index] += 1;
                    assert_eq!(row.value, content.get(&encode(keys[index])).map(Vec::as_slice));
                })
                .unwrap();
            assert!(seen.iter().all(|times| *times == 1));
        }
        EngineOp::Scan(id, after, limit) => {
            let after = after.map(suffix);
            let mut shown = Vec::new();
            engine
                .scan(Table::Entry, *id, after.as_deref(), &mut |suffix, value, _| {
                    shown.push((encode(KeyRef::new(Table::Entry, *id, suffix)), value.to_vec()));
                    if shown.len() < *limit {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })
                .unwrap();
            let from = encode(KeyRef::new(Table::Entry, *id, after.as_deref().unwrap_or_default()));
            let to = encode(KeyRef::new(Table::Entry, *id + 1, b""));
            let expected: Vec<_> = content
                .range(from.clone()..to)
                .filter(|(key, _)| after.is_none() || **key != from)
                .take(*limit)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(shown, expected);
        }
        EngineOp::ScanTable(id, name, limit) => {
            let suffix = suffix(*name);
            let from = KeyRef::new(Table::Entry, *id, &suffix);
            let mut shown = Vec::new();
            engine
                .scan_table(Table::Entry, Some(from), &mut |key, value| {
                    shown.push((encode(key), value.to_vec()));
                    if shown.len() < *limit {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })
                .unwrap();
            let expected: Vec<_> = content
                .range(encode(from)..)
                .take(*limit)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(shown, expected);
        }
        EngineOp::Hint(id) => engine.hint_new(Table::Entry, *id),
        EngineOp::Sync => engine.sync().unwrap(),
        EngineOp::Flush
        | EngineOp::Evict
        | EngineOp::Compact
        | EngineOp::Close
        | EngineOp::Kill => {}
    }
}
