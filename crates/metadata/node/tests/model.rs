//! Random requests on a small, hot set of names, compared with a model: alone and in batches, with
//! one and several workers, with snapshots, clones and policies, with commits that fail, a disk
//! that fills up, and crashes. After each sequence the raw rows are checked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use proptest::prelude::*;

use common::steps::{World, raws};
use common::{Fixture, config};

fn run(
    workers: usize,
    raws: &[common::steps::Raw],
    splits: &[u8],
    faults: bool,
) -> Result<(), TestCaseError> {
    let mut world = World::new(Fixture::new(config(workers)), faults);
    world.run(raws, splits).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn one_request_at_a_time(raws in raws(150), workers in 1..4usize) {
        run(workers, &raws, &[1], false)?;
    }

    #[test]
    fn batches_of_dependent_requests(raws in raws(150), workers in 1..4usize,
        splits in prop::collection::vec(1..20u8, 1..6)) {
        run(workers, &raws, &splits, false)?;
    }

    #[test]
    fn failing_commits_full_disks_and_crashes(raws in raws(150), workers in 1..4usize,
        splits in prop::collection::vec(1..8u8, 1..6)) {
        run(workers, &raws, &splits, true)?;
    }
}

/// The sequences are worth something only if every kind of request succeeds and fails often in
/// them.
#[test]
fn sequences_reach_every_operation() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::deterministic();
    assert_eq!(runner.config().cases, Config::default().cases);
    let mut succeeded = std::collections::BTreeMap::new();
    let mut failed = succeeded.clone();
    for _ in 0..200 {
        let sequence = raws(300).new_tree(&mut runner).unwrap().current();
        let mut world = World::new(Fixture::new(config(2)), false);
        world.run(&sequence, &[1]).unwrap();
        for kind in world.fixture.as_ref().unwrap().node.stats().kinds {
            *succeeded.entry(kind.kind).or_insert(0) += kind.requests - kind.errors;
            *failed.entry(kind.kind).or_insert(0) += kind.errors;
        }
    }
    println!("succeeded {succeeded:?}\nfailed {failed:?}");
    for kind in kestrel_types::op_kind::KINDS {
        let unused = [
            "compact",
            "alloc_objects",
            "tree_usage",
            "sync",
            "sweep",
            "snapshot_changes",
            "snapshot_usage",
            "clone_step",
            "feed_read",
        ];
        let unused = unused.contains(&kind) || kind.starts_with("quota_");
        let few = kind.starts_with("snapshot_") || kind == "clone_dir";
        let least = if few { 3 } else { 30 };
        assert!(unused || succeeded[kind] >= least, "{kind}: {succeeded:?}");
    }
}
