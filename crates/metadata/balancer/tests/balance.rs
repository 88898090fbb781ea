//! Balancing: what a plan promises, on generated trees and on shapes that are hard.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kestrel_balancer::balance::{BalanceError, Goal, balance, exceptions_allowed};
use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_balancer::tree_load::{ROUNDS_MAX, TreeLoad};
use kestrel_types::name::Name;
use kestrel_types::placement::{
    Exceptions, Member, PlacementMap, Rule, SLOTS, Slot, SlotMap, hash_name, slot_of_hash,
};
use proptest::prelude::*;

fn cluster(nodes: usize) -> PlacementMap {
    let member = |id| Member { id, address: format!("node-{id}:7000") };
    let map = SlotMap::even((1..=nodes as u32).map(member).collect()).unwrap();
    PlacementMap::new(map, Exceptions::default())
}

fn name(text: impl AsRef<[u8]>) -> Name {
    Name::new(text.as_ref()).unwrap()
}

/// Directories named `d0`, `d1`, …, each with these files.
fn tree<'a>(dirs: usize, files: impl Fn(usize) -> Vec<String> + 'a) -> TreeLoad {
    let mut load = TreeLoad::default();
    for dir in 0..dirs {
        for file in files(dir) {
            load.add(format!("d{dir}/{file}").as_bytes()).unwrap();
        }
    }
    load
}

/// The most entries of a node, as a part of all.
fn fullest(load: &TreeLoad, placement: &PlacementMap) -> f64 {
    *load.loads(placement).iter().max().unwrap() as f64 / load.entries() as f64
}

#[test]
fn a_balanced_cluster_gets_no_exceptions() {
    let load = tree(100, |dir| (0..1000).map(|i| format!("{dir}-{i}")).collect());
    let placement = cluster(16);
    let plan = balance(&placement, &load.reports(&placement), &Goal::usual(16)).unwrap();
    assert!(plan.changes.is_empty() && plan.exceptions.is_empty() && plan.before == plan.expected);
}

#[test]
fn hot_names_are_spread_and_few_names_are_moved() {
    // Makefile and Kconfig as in a kernel tree.
    let load = tree(3000, |dir| {
        let mut files: Vec<String> = (0..25).map(|i| format!("file-{dir}-{i}.c")).collect();
        files.push("Makefile".into());
        files.extend((dir % 2 == 0).then(|| "Kconfig".into()));
        files
    });
    let mut placement = cluster(16);
    assert!(fullest(&load, &placement) > 0.0725);
    load.settle(&mut placement, &Goal { epsilon: 0.01 }).unwrap();
    assert!(fullest(&load, &placement) <= 0.0725);
    assert_eq!(placement.exceptions.rule(b"Makefile"), Some(Rule::PathWalk));
    assert!(placement.exceptions.len() <= 2, "{:?}", placement.exceptions);

    // A data set: each name in every directory, fewer of them than would even out by themselves.
    let load = tree(300, |_| (0..200).map(|i| format!("{i:06}.jpg")).collect());
    let mut placement = cluster(16);
    assert!(fullest(&load, &placement) > 0.0725);
    load.settle(&mut placement, &Goal { epsilon: 0.01 }).unwrap();
    assert!(fullest(&load, &placement) <= 0.0725);
    assert!(placement.exceptions.iter().all(|(_, rule)| matches!(rule, Rule::Override(_))));
}

#[test]
fn one_name_for_everything_is_spread() {
    let load = tree(10_000, |_| vec!["data".into()]);
    let mut placement = cluster(16);
    load.settle(&mut placement, &Goal { epsilon: 0.01 }).unwrap();
    assert_eq!(placement.exceptions.len(), 1);
    assert!(fullest(&load, &placement) <= 0.0725);
}

#[test]
fn exceptions_go_when_they_are_no_longer_needed() {
    let mut placement = cluster(16);
    let goal = Goal { epsilon: 0.01 };
    let hot = tree(2000, |dir| {
        let mut files = vec!["Makefile".to_string()];
        files.extend((0..10).map(|i| format!("{dir}-{i}")));
        files
    });
    hot.settle(&mut placement, &goal).unwrap();
    placement.exceptions.set(name("gone"), Some(Rule::PathWalk)).unwrap();
    assert_eq!(placement.exceptions.rule(b"Makefile"), Some(Rule::PathWalk));
    // The tree grows by much else, and no directory has `gone`.
    let more = tree(2000, |dir| {
        let mut files = vec!["Makefile".to_string()];
        files.extend((0..500).map(|i| format!("{dir}-{i}")));
        files
    });
    more.settle(&mut placement, &goal).unwrap();
    assert!(placement.exceptions.is_empty(), "{:?}", placement.exceptions);
    assert!(fullest(&more, &placement) <= 0.0725);
}

#[test]
fn a_change_tells_what_moves() {
    let mut placement = cluster(2);
    let load = tree(1000, |_| vec!["a".into(), "b".into(), "c".into()]);
    let plan = balance(&placement, &load.reports(&placement), &Goal { epsilon: 0.01 }).unwrap();
    for change in &plan.changes {
        assert_eq!((change.from, change.entries), (None, 1000));
        let home = placement.map.owner(slot_of_hash(hash_name(change.name.as_bytes()))).id;
        assert!(
            change.moves.iter().all(|one| one.from == home && one.to != Some(home)),
            "{change:?}"
        );
        match change.to {
            Some(Rule::PathWalk) => assert_eq!(change.moves[0].entries, 500),
            Some(Rule::Override(slot)) => {
                let to = placement.map.owner(slot).id;
                assert_eq!((change.moves[0].to, change.moves[0].entries), (Some(to), 1000));
            }
            None => panic!("{change:?}"),
        }
    }
    placement.exceptions = plan.exceptions.clone();
    assert!(plan.reaches_goal() && !plan.changes.is_empty());
    assert_eq!(plan.expected.iter().sum::<u64>(), load.entries());
}

#[test]
fn reports_that_cannot_be_are_refused() {
    let placement = cluster(2);
    let report = |node, entries, of_a| LoadReport {
        node,
        entries,
        names: vec![NameCount { name: name("a"), entries: of_a }],
    };
    let goal = Goal::usual(2);
    let missing = balance(&placement, &[report(1, 5, 0)], &goal).unwrap_err();
    assert_eq!(missing, BalanceError::NoReport(2));
    assert!(missing.to_string().contains("node 2 has not reported"));
    let wrong = balance(&placement, &[report(1, 5, 6), report(2, 1, 0)], &goal).unwrap_err();
    assert_eq!(wrong, BalanceError::WrongReport(1));
}

#[test]
fn nodes_without_slots_take_no_part() {
    let member = |id| Member { id, address: format!("node-{id}:7000") };
    let mut placement = cluster(4);
    placement.map =
        SlotMap::new((1..=5).map(member).collect(), |slot| u32::from(slot % 4) + 1).unwrap();
    let load = tree(1000, |dir| vec!["hot".into(), format!("{dir}")]);
    assert_eq!(load.loads(&placement).len(), 4);
    let goal = Goal::usual(4);
    load.settle(&mut placement, &goal).unwrap();
    let limit = goal.limit(load.entries(), 4);
    assert!(load.loads(&placement).iter().all(|load| *load <= limit));
    for slot in 0..SLOTS as Slot {
        assert_ne!(placement.map.owner(slot).id, 5);
    }
}

/// Text that is no path is refused, and paths are taken as `find` prints them.
#[test]
fn paths_as_find_prints_them() {
    let mut load = TreeLoad::default();
    for path in ["./a/b", "a/b/", "/a//b", ".", "", "a/c"] {
        load.add(path.as_bytes()).unwrap();
    }
    assert_eq!((load.entries(), load.names()), (3, 3));
    for (path, why) in
        [("a/../b", "valid name"), (&"x".repeat(256), "255 bytes"), (&"x/".repeat(2100), "4095")]
    {
        let error = load.add(path.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(load.entries(), 3);
}

/// Directories and the numbers of the names in them, some of which are frequent: number n with
/// weight 1 / n^skew.
fn skewed(dirs: usize, per_dir: usize, names: usize, skew: f64, seed: u64) -> TreeLoad {
    let weights: Vec<f64> = (1..=names).map(|rank| (rank as f64).powf(-skew)).collect();
    let mut upto = Vec::with_capacity(names);
    let mut sum = 0.0;
    for weight in weights {
        sum += weight;
        upto.push(sum);
    }
    let mut state = seed | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as f64 / u64::MAX as f64
    };
    let mut load = TreeLoad::default();
    for dir in 0..dirs {
        for _ in 0..per_dir {
            let rank = upto.partition_point(|one| *one < random() * sum);
            load.add(format!("{dir}/n{rank}-{seed}").as_bytes()).unwrap();
        }
    }
    load
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn plans_keep_their_promises(
        dirs in 1usize..300, per_dir in 1usize..30, names in 1usize..3000, skew in 0.0f64..2.0,
        seed in any::<u64>(),
        nodes in 1usize..40, epsilon in prop_oneof![Just(0.01), 0.0f64..0.05],
        present in prop::collection::vec((0usize..50, prop::option::of(0..SLOTS as Slot)), 0..20),
    ) {
        let load = skewed(dirs, per_dir, names, skew, seed);
        let mut placement = cluster(nodes);
        for (rank, slot) in present {
            let rule = slot.map_or(Rule::PathWalk, Rule::Override);
            placement.exceptions.set(name(format!("n{rank}-{seed}")), Some(rule)).unwrap();
        }
        let goal = Goal { epsilon };
        let reports = load.reports(&placement);
        let plan = balance(&placement, &reports, &goal).unwrap();
        // Nothing is lost or made up.
        prop_assert_eq!(plan.before.iter().sum::<u64>(), load.entries());
        prop_assert_eq!(plan.expected.iter().sum::<u64>(), load.entries());
        prop_assert_eq!(&plan.before, &load.loads(&placement));
        // Never worse, and small.
        let (before, after) =
            (plan.before.iter().max().unwrap(), plan.expected.iter().max().unwrap());
        prop_assert!(*after <= (*before).max(plan.limit), "{} {} {}", before, after, plan.limit);
        let most = exceptions_allowed(nodes).max(placement.exceptions.len());
        prop_assert!(plan.exceptions.len() <= most);
        // The changes lead from one map to the other.
        let mut exceptions = placement.exceptions.clone();
        for change in &plan.changes {
            prop_assert_eq!(exceptions.rule(change.name.as_bytes()), change.from);
            prop_assert!(change.from != change.to);
            exceptions.set(change.name.clone(), change.to).unwrap();
        }
        prop_assert_eq!(&exceptions, &plan.exceptions);
        // The same again, whatever the order of the reports.
        let mut reversed = reports;
        reversed.reverse();
        reversed.iter_mut().for_each(|report| report.names.reverse());
        prop_assert_eq!(&balance(&placement, &reversed, &goal).unwrap(), &plan);
    }

    #[test]
    fn a_tree_settles(
        dirs in 100usize..300, per_dir in 10usize..40, names in 1usize..3000, skew in 0.0f64..2.0,
        seed in any::<u64>(),
        nodes in 2usize..20,
    ) {
        let load = skewed(dirs, per_dir, names, skew, seed);
        let mut placement = cluster(nodes);
        // A chance variation of four standard deviations of what a node holds is within ε.
        let fair = load.entries() as f64 / nodes as f64;
        let goal = Goal { epsilon: (4.0 * fair.sqrt() / load.entries() as f64).max(0.01) };
        let before = fullest(&load, &placement);
        let rounds = load.settle(&mut placement, &goal).unwrap();
        let after = fullest(&load, &placement);
        prop_assert!(rounds < ROUNDS_MAX, "{} rounds", rounds);
        prop_assert!(placement.exceptions.len() <= exceptions_allowed(nodes));
        let limit = goal.limit(load.entries(), nodes) as f64 / load.entries() as f64;
        prop_assert!(after <= limit, "{} -> {}, goal {}", before, after, limit);
    }
}
