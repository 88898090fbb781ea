//! Rows that are ingested, beside those that are committed.

use std::collections::BTreeMap;

use kestrel_types::key::Key;

use super::*;
use crate::RowBuffer;

/// A row of table `xattr`: nothing else writes these here.
fn key(id: u64, name: &[u8]) -> Key {
    Key::new(Table::Xattr, id, name)
}

fn push(rows: &mut RowBuffer, key: &Key, value: &[u8]) {
    assert!(rows.push(key.borrow(), |out| out.extend_from_slice(value)));
}

type Pushed = Vec<(u64, Vec<u8>, Vec<u8>)>;

/// Names that differ early, late, by zeros at their ends and not at all.
fn pushed() -> impl Strategy<Value = Pushed> {
    let letter = prop_oneof![Just(0u8), Just(b'a'), Just(255u8)];
    let name = (prop_oneof![Just(0usize), Just(14), Just(15)], vec(letter, 0..4))
        .prop_map(|(len, rest)| [vec![b'n'; len], rest].concat());
    vec((0..3u64, name, vec(any::<u8>(), 0..6)), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Runs that are ingested are read as a map is that had the same rows in the same order: the
    /// last row of a key counts. Nothing is lost when the rows are opened again.
    #[test]
    fn ingested_runs_as_in_a_map(runs in vec(pushed(), 1..6)) {
        let (store, mut expected, mut replaced) = (made(), BTreeMap::new(), 0);
        let engine = open_on(store.clone(), false).unwrap();
        let mut buffer = RowBuffer::default();
        for run in &runs {
            let mut own = BTreeMap::new();
            for (id, name, value) in run {
                push(&mut buffer, &key(*id, name), value);
                replaced += u64::from(own.insert((*id, name.clone()), value.clone()).is_some());
            }
            expected.append(&mut own);
            let counted = engine.ingest(&mut buffer).unwrap();
            prop_assert!(buffer.is_empty());
            replaced -= counted;
            prop_assert_eq!(replaced, 0);
        }
        drop(engine);
        let engine = open_on(store, false).unwrap();
        let mut found = BTreeMap::new();
        engine.scan_table(Table::Xattr, None, &mut |key, value| {
            found.insert((key.id, key.suffix.to_vec()), value.to_vec());
            std::ops::ControlFlow::Continue(())
        }).unwrap();
        prop_assert_eq!(found, expected);
    }
}

/// Runs that are ingested while others are flushed and merged are all there, also when the rows are
/// opened again.
#[test]
fn ingestion_beside_flushes_and_merges() {
    let store = made();
    let engine = open_on(store.clone(), false).unwrap();
    let mut buffer = RowBuffer::default();
    for round in 0..60u64 {
        let batch: Vec<Mutation> = (0..20u64)
            .map(|at| Mutation {
                key: key(1, &[round.to_be_bytes(), at.to_be_bytes()].concat()),
                value: Some(vec![7; 40].into()),
            })
            .collect();
        engine.commit(BatchKind::Growing, batch).unwrap();
        for at in 0..20u64 {
            push(&mut buffer, &key(2, &[round.to_be_bytes(), at.to_be_bytes()].concat()), b"v");
        }
        engine.ingest(&mut buffer).unwrap();
    }
    drop(engine);
    let engine = open_on(store, false).unwrap();
    let mut counts = [0; 3];
    engine
        .scan_table(Table::Xattr, None, &mut |key, _| {
            counts[key.id as usize] += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(counts, [0, 1200, 1200]);
}

/// A row that was found missing is found when it has been ingested, and not one that a committed
/// row would hide.
#[test]
fn ingestion_and_what_readers_know() {
    let engine = open_on(made(), false).unwrap();
    let (new, old) = (key(1, b"new"), key(1, b"old"));
    let value_of = |key: &Key| {
        let mut found = None;
        engine
            .get_many(&[key.borrow()], &mut |_, row| found = row.value.map(<[u8]>::to_vec))
            .unwrap();
        found
    };
    assert_eq!(value_of(&new), None);
    let mut buffer = RowBuffer::default();
    push(&mut buffer, &new, b"1");
    engine.ingest(&mut buffer).unwrap();
    assert_eq!(value_of(&new), Some(b"1".to_vec()));
    let committed = Mutation { key: old.clone(), value: Some(b"2".to_vec().into()) };
    engine.commit(BatchKind::Growing, vec![committed]).unwrap();
    push(&mut buffer, &old, b"3");
    assert!(engine.ingest(&mut buffer).is_err());
    assert_eq!(buffer.len(), 1, "the buffer is as it was");
    assert_eq!(value_of(&old), Some(b"2".to_vec()));
}

/// A process that has been superseded ingests nothing.
#[test]
fn ingestion_by_a_superseded_process() {
    let store = made();
    let first = open_on(store.clone(), false).unwrap();
    let second = open_on(store.clone(), true).unwrap();
    let mut buffer = RowBuffer::default();
    push(&mut buffer, &key(1, b"name"), b"1");
    let why = expect_err(first.ingest(&mut buffer));
    assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    drop((first, second));
    let engine = open_on(store, true).unwrap();
    engine
        .get_many(&[key(1, b"name").borrow()], &mut |_, row| assert!(row.value.is_none()))
        .unwrap();
}
