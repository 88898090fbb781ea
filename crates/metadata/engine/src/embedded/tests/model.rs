//! Generated sequences of operations against a map.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::exercise::{EngineOp, check, op};
use super::super::super::memory::{MemoryEngine, SyncWhen};
use super::*;

fn run(ops: &[EngineOp], reopen: &mut dyn FnMut(Option<EmbeddedEngine>, bool) -> EmbeddedEngine) {
    let mut expected = ExpectedRows::new();
    let mut engine = reopen(None, false);
    for op in ops {
        check(&engine, &mut expected, op);
        match op {
            EngineOp::Flush => engine.flush().unwrap(),
            EngineOp::Evict => engine.shared.rows.evict(0, 2, &mut 0),
            EngineOp::Compact => engine.compact().unwrap(),
            EngineOp::Close => engine = reopen(Some(engine), true),
            EngineOp::Kill => engine = reopen(Some(engine), false),
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
        let mut expected = ExpectedRows::new();
        for op in &ops {
            check(&engine, &mut expected, op);
        }
        prop_assert_eq!(content(&engine), expected);
    }

    /// On a simulated disk the embedded engine agrees with a map.
    #[test]
    fn embedded_engine_against_a_map(ops in vec(op(), 1..120)) {
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
            EmbeddedEngine::open(dir.path(), UUID, small_options(), no_hook(), &mut |_| true)
                .unwrap()
        });
    }
}
