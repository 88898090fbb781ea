//! A few seeds of each kind of run, so that `cargo test` notices what breaks them. `tests/run.sh`
//! runs very many.

use kestrel_sim::several::Several;
use kestrel_sim::world::{Plan, World};

fn plan(seed: u64) -> Plan {
    Plan { seed, calls: 200, trace: false }
}

#[test]
fn a_server_and_its_clients() {
    for seed in 1..=10 {
        assert_eq!(World::new(plan(seed)).run().err(), None, "seed {seed}");
    }
}

#[test]
fn several_nodes() {
    for nodes in [1, 2, 3, 5] {
        for seed in 1..=10 {
            assert_eq!(Several::new(plan(seed), nodes).run().err(), None, "{nodes} nodes, seed {seed}");
        }
    }
}
