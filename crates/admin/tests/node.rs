//! The check agrees with the metadata core: after all operations of a node, the rows it leaves have
//! no findings, at any moment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Cursor;
use std::sync::Arc;

use common::NOW;
use common::driver::{Driver, findings};
use kestrel_admin::dump::load::load;
use kestrel_admin::dump::{About, dump};
use kestrel_admin::info::tree_sums;
use kestrel_admin::rows::Rows;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Node, NodeConfig};
use kestrel_types::clock::ManualClock;
use kestrel_types::ids::ROOT;
use kestrel_types::key::Table;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Request};

#[test]
fn no_findings_in_what_a_node_leaves() {
    let mut seen = std::collections::HashSet::new();
    for seed in 1..=16 {
        let mut driver = if seed > 12 { Driver::with_quotas(seed) } else { Driver::new(seed) };
        let (engine, clock) = (driver.engine.clone(), driver.clock.clone());
        assert_eq!(findings(&*engine).0, [], "a fresh volume");
        if seed % 4 == 0 {
            driver.record_changes();
        }
        for round in 0..20 {
            for _ in 0..60 {
                driver.step();
            }
            let (found, files) = findings(&*engine);
            assert_eq!(found, [], "seed {seed}, round {round}");
            seen.extend(
                Table::ALL
                    .iter()
                    .copied()
                    .filter(|table| Rows::new(&*engine, *table).next().is_some()),
            );
            let sums = tree_sums(&*engine, ROOT).unwrap();
            // The sums have names, too, that clones have yet to get.
            if Rows::new(&*engine, Table::Clone).next().is_none() {
                assert_eq!(sums.files, files, "seed {seed}, round {round}");
            }
        }
        driver.node.close().unwrap();
        assert_eq!(findings(&*engine).0, [], "seed {seed}, closed");
        reopened(&engine, &clock, seed);
    }
    // Table `sweep` takes files far larger than these (tests/check.rs).
    let used = Table::ALL
        .iter()
        .filter(|table| !matches!(table, Table::Moved | Table::Txn | Table::Sweep));
    assert_eq!(seen, used.copied().collect(), "every table in use was checked with rows in it");
}

/// A dump of it makes a volume that a node serves, and the check agrees again.
fn reopened(engine: &MemoryEngine, clock: &Arc<ManualClock>, seed: u64) {
    let about = About { volume: serde_json::Value::Null, program: "test".into(), now: NOW };
    let mut file = Vec::new();
    dump(engine, &about, &mut file, tempfile::tempfile().unwrap(), &mut |_| {}).unwrap();
    let copy = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    load(Cursor::new(file), &*copy, &mut |_| {}).unwrap();
    assert_eq!(findings(&*copy), findings(engine), "seed {seed}");
    let node = Node::open(copy.clone(), clock.clone(), NodeConfig::default()).unwrap();
    let (found, _) = findings(&*copy);
    assert_eq!(found, [], "seed {seed}: opened again");
    let op = Op::MkDir(PathRef::new(ROOT, Name::new(b"fresh").unwrap()), 0o755);
    assert!(matches!(node.call(Request { creds: Creds::root(), op }), Ok(Answer::Entry { .. })));
    node.close().unwrap();
    assert_eq!(findings(&*copy).0, [], "seed {seed}: used again");
}
