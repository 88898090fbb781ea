//! What the coordinator does by itself: cases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_balancer::next::{
    Decision, ENTRIES_MIN, Reason, Sight, decide, even_names, even_slots,
};
use kestrel_balancer::tree_load::TreeLoad;
use kestrel_types::name::Name;
use kestrel_types::placement::{
    Exceptions, Member, PlacementMap, Rule, SlotMap, hash_name, slot_of_hash,
};

fn member(id: u32) -> Member {
    Member { id, address: format!("node-{id}:7000") }
}

fn cluster(nodes: u32) -> PlacementMap {
    let map = SlotMap::even((1..=nodes).map(member).collect()).unwrap();
    PlacementMap::new(map, Exceptions::default())
}

/// So many directories, each with a file of its own and one that has the same name everywhere, if
/// it is `hot`.
fn tree(dirs: u32, hot: bool) -> TreeLoad {
    let mut load = TreeLoad::default();
    for dir in 0..dirs {
        load.add(format!("d{dir}/own-{dir}").as_bytes()).unwrap();
        if hot {
            load.add(format!("d{dir}/Makefile").as_bytes()).unwrap();
        }
    }
    load
}

fn with_rule(mut placement: PlacementMap, name: &str) -> PlacementMap {
    placement.exceptions.set(Name::new(name.as_bytes()).unwrap(), Some(Rule::PathWalk)).unwrap();
    placement
}

/// What is decided of a cluster with this tree, once it has reported.
fn decided(present: &PlacementMap, load: &TreeLoad) -> Decision {
    let reports = load.reports(present);
    decide(&Sight { present, changing: false, away: &[], reports: Some(&reports) })
}

fn rule_of(next: &PlacementMap, name: &str) -> Option<Rule> {
    next.exceptions.rule(name.as_bytes())
}

#[test]
fn it_waits_while_anything_is_amiss() {
    let (three, hot) = (cluster(3), tree(3000, true));
    let reports = hot.reports(&three);
    let drained = even_slots(&three, &[3]).unwrap().unwrap().0;
    let leaving = drained.with_leaving(3).unwrap();
    let alone = cluster(1);
    let cases: [(&PlacementMap, bool, &[u32], Option<Reason>); 6] = [
        (&alone, false, &[], Some(Reason::Alone)),
        (&three, true, &[], Some(Reason::Changing)),
        (&three, false, &[2, 3], Some(Reason::Away(2))),
        (&three, true, &[2], Some(Reason::Changing)),
        (&leaving, false, &[], Some(Reason::Leaving(3))),
        (&three, false, &[], None),
    ];
    for (present, changing, away, reason) in cases {
        for reports in [None, Some(&reports[..])] {
            let decision = decide(&Sight { present, changing, away, reports });
            match &reason {
                Some(reason) => assert_eq!(decision, Decision::Wait(reason.clone())),
                None if reports.is_none() => assert_eq!(decision, Decision::Ask),
                None => assert!(matches!(decision, Decision::Names(..)), "{decision:?}"),
            }
        }
    }
}

/// By their counts names become exceptions, and stop being exceptions.
#[test]
fn exceptions_by_counts_of_names() {
    let three = cluster(3);
    let enough = u32::try_from(ENTRIES_MIN).unwrap();
    // Directories, whether each has the name, whether it is an exception already, whether it is one
    // after that.
    let cases = [
        (enough, true, false, true),
        (enough, true, true, true),
        (enough, false, false, false),
        // None is left of it.
        (enough, false, true, false),
        // Too few to say: three entries for each directory, three nodes.
        (enough - 10, true, false, false),
        (enough / 2 + 10, true, true, true),
        // So few that nothing needs it.
        (enough / 2 - 10, true, true, false),
        (0, false, true, false),
    ];
    for (dirs, hot, is, will_be) in cases {
        let present = if is { with_rule(three.clone(), "Makefile") } else { three.clone() };
        match decided(&present, &tree(dirs, hot)) {
            Decision::Names(next, plan) => {
                assert_ne!(is, will_be, "{dirs} {hot}: {:?}", plan.changes);
                assert_eq!(rule_of(&next, "Makefile").is_some(), will_be, "{dirs} {hot}");
                assert_eq!(next.version, present.version + 1);
            }
            Decision::Wait(Reason::Even(..) | Reason::Few(..)) => {
                assert_eq!(is, will_be, "{dirs} {hot}")
            }
            other => panic!("{dirs} {hot}: {other:?}"),
        }
    }
}

#[test]
fn what_it_has_done_it_leaves() {
    let (mut present, hot) = (cluster(3), tree(4000, true));
    let Decision::Names(next, _) = decided(&present, &hot) else { panic!("a hot name") };
    present = next;
    for _ in 0..4 {
        match decided(&present, &hot) {
            Decision::Names(next, _) => present = next,
            Decision::Wait(Reason::Even(..)) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("it does not come to rest");
}

/// A node without slots gets none, and the slots of the others are made equal.
#[test]
fn nodes_without_slots_and_unequal_nodes() {
    let three = cluster(3);
    let drained = even_slots(&three, &[2]).unwrap().unwrap().0;
    assert!(matches!(decided(&drained, &tree(5000, false)), Decision::Wait(Reason::Even(..))));
    // As by hand: the second node has all slots but those of the third.
    let map = SlotMap::new((1..=3).map(member).collect(), |slot| if slot % 3 == 0 { 3 } else { 2 });
    let uneven = PlacementMap { map: map.unwrap(), ..three };
    match decide(&Sight { present: &uneven, changing: false, away: &[], reports: None }) {
        Decision::Slots(next, moves) => {
            let slots = next.map.slots_of_members();
            assert!(slots[0] == 0 && slots[1].abs_diff(slots[2]) <= 1 && moves > 2000, "{slots:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gain_below_what_is_allowed_is_not_worth_it() {
    let present = cluster(2);
    // A node that is much too full of different names, of which none is reported as frequent but
    // one with few entries.
    let one = |node, entries, name: &str, of_it| {
        let names = vec![NameCount { name: Name::new(name.as_bytes()).unwrap(), entries: of_it }];
        LoadReport { node, entries, names }
    };
    let on_first = (0..).map(|number| format!("name-{number}"));
    let is_on_first =
        |name: &String| present.map.owner(slot_of_hash(hash_name(name.as_bytes()))).id == 1;
    let name = on_first.into_iter().find(is_on_first).unwrap();
    for (of_it, is_worth_it) in [(100, false), (90_000, true)] {
        let reports = [one(1, 200_000, &name, of_it), one(2, 10_000, "x", 0)];
        let decision = decide(&Sight {
            present: &present,
            changing: false,
            away: &[],
            reports: Some(&reports),
        });
        assert_eq!(matches!(decision, Decision::Names(..)), is_worth_it, "{decision:?}");
        assert!(
            is_worth_it || matches!(decision, Decision::Wait(Reason::TooLittle(200_000, ..))),
            "{decision:?}"
        );
    }
    let wrong = [one(1, 10, &name, 20), one(2, 10_000, "x", 0)];
    assert!(even_names(&present, &wrong, None).is_err());
    let decision = decide(&Sight {
        present: &present,
        changing: false,
        away: &[],
        reports: Some(&wrong[..1]),
    });
    assert!(matches!(decision, Decision::Wait(Reason::NoPlan(_))), "{decision:?}");
}
