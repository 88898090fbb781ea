//! The verifier on trees with planted losses.

use super::*;
use crate::crash::plan::Planner;

/// The tree that a state is.
fn tree_of(state: &State) -> Tree {
    let mut tree = Tree::new();
    for (path, node) in &state.nodes {
        let found = match node {
            Node::Dir => Found::Dir,
            Node::Symlink(to) => Found::Symlink(to.as_bytes().to_vec()),
            Node::File(ino) => {
                let inode = &state.inodes[ino];
                let value = |&(key, len): &(u64, u64)| bytes_of(&[Piece { key, skip: 0, len }]);
                Found::File(FoundFile {
                    ino: *ino,
                    nlink: state.names_of(*ino).len() as u64,
                    bytes: bytes_of(&inode.content),
                    xattrs: inode.xattrs.iter().map(|(n, s)| (n.clone(), value(s))).collect(),
                })
            }
        };
        tree.insert(path.clone(), found);
    }
    tree.insert("shared".into(), Found::Dir);
    tree
}

/// A log of `count` operations, the last `in_flight` of them not acknowledged (0 or 1), and every
/// state on the way.
fn history(seed: u64, count: usize, in_flight: usize) -> (Log, Vec<State>) {
    let (mut planner, mut states) = (Planner::new(seed, 0), vec![State::default()]);
    let mut ops = Vec::new();
    for i in 0..count {
        let op = planner.next(states.last().unwrap());
        let mut next = states.last().unwrap().clone();
        next.apply(&op);
        states.push(next);
        let acked = (i + in_flight < count).then_some((2 * i + 1, i as u64));
        ops.push(Logged { op, intent_at: 2 * i, acked });
    }
    let log = Log { threads: [(0, ops)].into(), last_ms: count as u64 };
    (log, states)
}

fn broken(log: &Log, tree: &Tree, durability: Durability) -> Vec<String> {
    verify(log, tree, durability).broken
}

const SYNCED: Durability = Durability::Synced { within_ms: None };

#[test]
fn the_true_tree_is_accepted() {
    for seed in 0..20 {
        let (log, states) = history(seed, 200, 0);
        let tree = tree_of(states.last().unwrap());
        assert_eq!(
            broken(&log, &tree, Durability::Acknowledged),
            Vec::<String>::new(),
            "seed {seed}"
        );
        assert_eq!(broken(&log, &tree, SYNCED), Vec::<String>::new(), "seed {seed}");
    }
}

/// An operation in flight may have happened or not.
#[test]
fn operation_in_flight_at_a_crash() {
    for seed in 0..30 {
        let (log, states) = history(seed, 120, 1);
        for state in &states[119..] {
            let complaints = broken(&log, &tree_of(state), Durability::Acknowledged);
            assert!(complaints.is_empty(), "seed {seed}: {complaints:?}");
        }
    }
}

#[test]
fn an_acknowledged_operation_that_is_gone_is_found() {
    let mut differing = 0;
    for seed in 0..30 {
        let (log, states) = history(seed, 120, 0);
        let (before, after) = (tree_of(&states[119]), tree_of(&states[120]));
        if before != after {
            differing += 1;
            assert!(!broken(&log, &before, Durability::Acknowledged).is_empty(), "seed {seed}");
        }
    }
    assert!(differing > 15);
}

/// After a power loss everything since the last sync may be lost, and nothing before it.
#[test]
fn losses_after_a_power_loss() {
    for seed in 0..6 {
        let (log, states) = history(seed, 100, 0);
        let last_sync = log.threads[&0].iter().rposition(|l| l.op.is_sync()).map_or(0, |i| i + 1);
        for (k, state) in states.iter().enumerate() {
            let tree = tree_of(state);
            let fine = broken(&log, &tree, SYNCED).is_empty();
            let same_as_later = states[last_sync..].iter().any(|s| tree_of(s) == tree);
            if k >= last_sync {
                assert!(fine, "seed {seed} k {k}: {:?}", broken(&log, &tree, SYNCED));
            } else if !same_as_later && fine {
                // The only other excuse: the operation after the sync was half done.
                assert!(k + 1 >= last_sync, "seed {seed} k {k} of {last_sync}");
            }
        }
    }
}

#[test]
fn the_time_bound_counts_too() {
    let (log, states) = history(3, 100, 0);
    let tree = tree_of(&states[40]);
    assert!(!broken(&log, &tree, Durability::Synced { within_ms: Some(20) }).is_empty());
}

/// Changes one thing; returns false if the tree has nothing of that kind.
type Damage = (&'static str, fn(&mut Tree) -> bool);

fn first_file(tree: &mut Tree, fits: impl Fn(&FoundFile) -> bool) -> Option<&mut FoundFile> {
    tree.values_mut().find_map(|found| match found {
        Found::File(file) if fits(file) => Some(file),
        _ => None,
    })
}

const DAMAGES: &[Damage] = &[
    ("a byte turned", |tree| {
        first_file(tree, |f| f.bytes.len() > 10).map(|f| f.bytes[7] ^= 1).is_some()
    }),
    ("a block of zeros", |tree| {
        first_file(tree, |f| f.bytes.len() > 5000).map(|f| f.bytes[4000..4500].fill(0)).is_some()
    }),
    ("cut short", |tree| {
        first_file(tree, |f| f.bytes.len() > 10).map(|f| f.bytes.truncate(5)).is_some()
    }),
    ("too long", |tree| first_file(tree, |_| true).map(|f| f.bytes.push(0)).is_some()),
    ("link count", |tree| first_file(tree, |_| true).map(|f| f.nlink += 1).is_some()),
    ("an xattr gone", |tree| {
        first_file(tree, |f| !f.xattrs.is_empty()).map(|f| f.xattrs.clear()).is_some()
    }),
    ("an xattr from nowhere", |tree| {
        first_file(tree, |_| true).map(|f| f.xattrs.insert("user.z".into(), vec![1])).is_some()
    }),
    ("a file gone", |tree| {
        let name = tree.iter().find(|(_, f)| matches!(f, Found::File(_))).map(|(p, _)| p.clone());
        name.is_some_and(|name| tree.remove(&name).is_some())
    }),
    ("a file come back", |tree| {
        tree.insert("t0/ghost".into(), Found::File(FoundFile { nlink: 1, ..FoundFile::default() }))
            .is_none()
    }),
    ("a stranger", |tree| tree.insert("stranger".into(), Found::Dir).is_none()),
    ("another thread's", |tree| tree.insert("t77".into(), Found::Dir).is_none()),
    ("two links parted", |tree| {
        first_file(tree, |f| f.nlink > 1).map(|f| f.ino += 1_000_000).is_some()
    }),
    ("a link astray", |tree| {
        let link = tree.values_mut().find(|f| matches!(f, Found::Symlink(_)));
        link.map(|f| *f = Found::Symlink(b"elsewhere".to_vec())).is_some()
    }),
];

#[test]
fn every_planted_damage_is_found() {
    for (what, damage) in DAMAGES {
        let mut planted = 0;
        for seed in 100..115 {
            // Ends in a sync, so that no earlier state may stand in for the damage.
            let (mut log, states) = history(seed, 150, 0);
            let ops = log.threads.get_mut(&0).unwrap();
            ops.push(Logged { op: Op::Sync, intent_at: 1000, acked: Some((1001, 1001)) });
            let mut state = states.last().unwrap().clone();
            state.apply(&Op::HoldClose);
            ops.push(Logged { op: Op::HoldClose, intent_at: 1002, acked: Some((1003, 1003)) });
            ops.push(Logged { op: Op::Sync, intent_at: 1004, acked: Some((1005, 1005)) });
            let mut tree = tree_of(&state);
            if damage(&mut tree) {
                planted += 1;
                assert!(
                    !broken(&log, &tree, Durability::Acknowledged).is_empty(),
                    "{what}, seed {seed}"
                );
                assert!(
                    !broken(&log, &tree, SYNCED).is_empty(),
                    "{what} after power loss, seed {seed}"
                );
            }
        }
        assert!(planted > 3, "{what}: planted {planted} times only");
    }
}

/// A write in flight leaves old bytes or a prefix of new ones, and never zeros.
#[test]
fn write_in_flight_at_a_crash() {
    let write = |key, len| Op::Write { path: "t0/f".into(), ino: 1, key, len, sync: false };
    let logged = |op, at: usize, acked: bool| Logged {
        op,
        intent_at: at,
        acked: acked.then_some((at + 1, 0)),
    };
    let ops = vec![
        logged(Op::Mkdir { path: "t0".into() }, 0, true),
        logged(write(5, 3000), 2, true),
        logged(write(6, 9000), 4, false),
    ];
    let log = Log { threads: [(0, ops)].into(), last_ms: 0 };
    let crash_report = |bytes: Vec<u8>| {
        let mut tree = Tree::new();
        tree.insert("t0".into(), Found::Dir);
        tree.insert(
            "t0/f".into(),
            Found::File(FoundFile { ino: 1, nlink: 1, bytes, ..FoundFile::default() }),
        );
        broken(&log, &tree, Durability::Acknowledged).is_empty()
    };
    let content = |key, len| bytes_of(&[Piece { key, skip: 0, len }]);
    assert!(crash_report(content(5, 3000)), "old");
    assert!(crash_report(content(6, 9000)), "new");
    assert!(crash_report(Vec::new()), "emptied by O_TRUNC");
    assert!(crash_report(content(6, 4096)), "prefix of new");
    assert!(!crash_report(vec![0; 9000]), "zeros");
    assert!(!crash_report(content(5, 2000)), "torn old");
    assert!(!crash_report([content(6, 4096), vec![0; 100]].concat()), "zeros after a prefix");
}

/// An overwrite in flight leaves the old bytes, the new ones, or the new ones up to some byte.
#[test]
fn overwrite_in_flight_at_a_crash() {
    let (old, mut new) = (vec![1u8; 1000], vec![1u8; 1000]);
    new[300..600].fill(2);
    let mixed = |to: usize| [&new[..to], &old[to..]].concat();
    assert!([300, 301, 450, 600].iter().all(|&to| is_mix(&mixed(to), &old, &new, 300)));
    let mut wild = old.clone();
    wild[500] = 2;
    assert!(!is_mix(&wild, &old, &new, 300));
    assert!(!is_mix(&old[..900], &old, &new, 300));
    // Appending: longer than old, all of it new.
    let longer = [&old[..], &[3; 50]].concat();
    assert!(
        is_mix(&longer[..1020], &old, &longer, 1000)
            && !is_mix(&[&old[..], &[0; 9]].concat(), &old, &longer, 1000)
    );
}

#[test]
fn survivors_must_be_a_prefix_over_all_threads() {
    let logged = |op, at: usize| Logged { op, intent_at: at, acked: Some((at + 1, 0)) };
    let mkdir = |path: &str| Op::Mkdir { path: path.into() };
    let log = Log {
        threads: [(0, vec![logged(mkdir("t0"), 0)]), (1, vec![logged(mkdir("t1"), 2)])].into(),
        last_ms: 0,
    };
    let tree = |names: &[&str]| names.iter().map(|n| (n.to_string(), Found::Dir)).collect::<Tree>();
    assert!(broken(&log, &tree(&["t0", "t1"]), SYNCED).is_empty());
    assert!(broken(&log, &tree(&["t0"]), SYNCED).is_empty());
    assert!(broken(&log, &tree(&[]), SYNCED).is_empty());
    assert_eq!(
        broken(&log, &tree(&["t1"]), SYNCED).len(),
        1,
        "the later one survived, the earlier did not"
    );
}
