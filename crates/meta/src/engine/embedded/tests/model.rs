//! Generated sequences of operations against a map.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::memory::{MemoryEngine, SyncWhen};
use super::*;

#[derive(Debug, Clone)]
enum Op {
    Commit(Vec<(u64, u8, Option<u16>)>),
    Get(Vec<(u64, u8)>),
    Scan(u64, Option<u8>, usize),
    ScanTable(u64, u8, usize),
    /// A group that never had rows.
    Hint(u64),
    Sync,
    Flush,
    Evict,
    Compact,
    Close,
    Kill,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..6u64;
    prop_oneof![
        6 => vec((id.clone(), any::<u8>(), proptest::option::weighted(0.7, 0..400u16)), 1..40).prop_map(Op::Commit),
        3 => vec((id.clone(), any::<u8>()), 1..80).prop_map(Op::Get),
        3 => (id.clone(), proptest::option::of(any::<u8>()), 1..400usize).prop_map(|(a, b, c)| Op::Scan(a, b, c)),
        1 => (id, any::<u8>(), 1..2000usize).prop_map(|(a, b, c)| Op::ScanTable(a, b, c)),
        1 => (100..110u64).prop_map(Op::Hint),
        1 => Just(Op::Sync),
        2 => Just(Op::Flush),
        2 => Just(Op::Evict),
        1 => Just(Op::Compact),
        1 => Just(Op::Close),
        1 => Just(Op::Kill),
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
fn check(engine: &dyn Engine, content: &mut Content, op: &Op) {
    match op {
        Op::Commit(changes) => {
            let mutations = mutations(changes);
            apply(content, &mutations);
            commit(engine, mutations);
        }
        Op::Get(names) => {
            let suffixes: Vec<_> = names.iter().map(|(id, name)| (*id, suffix(*name))).collect();
            let keys: Vec<_> =
                suffixes.iter().map(|(id, suffix)| KeyRef::new(Table::Entry, *id, suffix)).collect();
            let mut seen = vec![0; keys.len()];
            engine
                .get_many(&keys, &mut |index, row| {
                    seen[index] += 1;
                    assert_eq!(row.value, content.get(&encode(keys[index])).map(Vec::as_slice));
                })
                .unwrap();
            assert!(seen.iter().all(|times| *times == 1));
        }
        Op::Scan(id, after, limit) => {
            let after = after.map(suffix);
            let mut shown = Vec::new();
            engine
                .scan(Table::Entry, *id, after.as_deref(), &mut |suffix, value, _| {
                    shown.push((encode(KeyRef::new(Table::Entry, *id, suffix)), value.to_vec()));
                    if shown.len() < *limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
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
        Op::ScanTable(id, name, limit) => {
            let suffix = suffix(*name);
            let from = KeyRef::new(Table::Entry, *id, &suffix);
            let mut shown = Vec::new();
            engine
                .scan_table(Table::Entry, Some(from), &mut |key, value| {
                    shown.push((encode(key), value.to_vec()));
                    if shown.len() < *limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })
                .unwrap();
            let expected: Vec<_> = content
                .range(encode(from)..)
                .take(*limit)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(shown, expected);
        }
        Op::Hint(id) => engine.hint_new(Table::Entry, *id),
        Op::Sync => engine.sync().unwrap(),
        Op::Flush | Op::Evict | Op::Compact | Op::Close | Op::Kill => {}
    }
}

fn run(ops: &[Op], reopen: &mut dyn FnMut(Option<EmbeddedEngine>, bool) -> EmbeddedEngine) {
    let mut expected = Content::new();
    let mut engine = reopen(None, false);
    for op in ops {
        check(&engine, &mut expected, op);
        match op {
            Op::Flush => engine.flush().unwrap(),
            Op::Evict => engine.shared.rows.evict(0, 2, &mut 0),
            Op::Compact => engine.compact().unwrap(),
            Op::Close => engine = reopen(Some(engine), true),
            Op::Kill => engine = reopen(Some(engine), false),
            _ => {}
        }
    }
    assert_eq!(content(&engine), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn memory_engine_agrees_with_a_map(ops in vec(op(), 1..60)) {
        let engine = MemoryEngine::new(SyncWhen::Told);
        let mut expected = Content::new();
        for op in &ops {
            check(&engine, &mut expected, op);
        }
        prop_assert_eq!(content(&engine), expected);
    }

    #[test]
    fn embedded_engine_agrees_with_a_map_on_a_simulated_disk(ops in vec(op(), 1..120)) {
        let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
        run(&ops, &mut |engine, clean| {
            if let Some(engine) = engine {
                if clean { engine.close().unwrap() } else { drop(engine) }
            }
            open_sim(&disk, &runs, small_options()).unwrap()
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn embedded_engine_agrees_with_a_map_on_a_real_disk(ops in vec(op(), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        run(&ops, &mut |engine, clean| {
            if let Some(engine) = engine {
                if clean { engine.close().unwrap() } else { drop(engine) }
            }
            EmbeddedEngine::open(dir.path(), UUID, small_options(), no_hook(), &mut |_| true).unwrap()
        });
    }
}
