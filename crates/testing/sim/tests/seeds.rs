//! A few seeds of each kind of run, so that `cargo test` notices what breaks them. `tests/run.sh`
//! runs very many.

use kestrel_sim::cluster::ClusterRun;
use kestrel_sim::{RunPlan, World};

fn plan(seed: u64) -> RunPlan {
    RunPlan { seed, calls: 200, trace: false }
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
            assert_eq!(
                ClusterRun::new(plan(seed), nodes).run().err(),
                None,
                "{nodes} nodes, seed {seed}"
            );
        }
    }
}
