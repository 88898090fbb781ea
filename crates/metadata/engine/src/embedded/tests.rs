//! Tests of the embedded engine as a whole, on simulated disks where they need to lose or break
//! something.
//!
//! | file | what it has |
//! | --- | --- |
//! | `tests/crash.rs` | what a power loss or a killed process leaves |
//! | `tests/faults.rs` | disks that fail, fill up or lie |
//! | `tests/fence.rs` | several claims of one store |
//! | `tests/model.rs` | generated operations against a map |
//! | `tests/salvage.rs` | damage anywhere in the files |
//! | `tests/sizes.rs` | sizes of log segments |
//! | `tests/stress.rs` | several threads, with flushes and evictions |

mod crash;
mod faults;
mod fence;
mod model;
mod salvage;
mod sizes;
mod stress;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_types::key::{KeyRef, Table};

use super::super::disk::sim::SimDisk;
use super::super::exercise::{ExpectedRows, apply, commit, content, encode, put, remove};
use super::super::runs::model::ModelRuns;
use super::super::{BatchKind, BeforeSync, Engine, EngineError, Mutation};
use super::{EmbeddedEngine, EmbeddedOptions, open};

/// The volume of these tests.
const UUID: [u8; 16] = *b"0123456789abcdef";

fn small_options() -> EmbeddedOptions {
    EmbeddedOptions {
        memory_bytes: 256 << 10,
        sync_interval: None,
        first_segment_bytes: 16 << 10,
        segment_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        reserve_bytes: 0,
        ..EmbeddedOptions::default()
    }
}

fn no_hook() -> BeforeSync {
    Arc::new(|| Ok(()))
}

fn open_sim(
    disk: &SimDisk,
    runs: &ModelRuns,
    options: EmbeddedOptions,
) -> Result<EmbeddedEngine, EngineError> {
    let (disk, runs) = (Arc::new(disk.clone()), Box::new(runs.clone()));
    open::assemble(disk, runs, UUID, options, no_hook(), &mut |_| true, None)
}

/// Waits until the next segment is made, so that its writes are not in the way.
fn wait_for_segment(engine: &EmbeddedEngine) {
    while engine.stats().log_disk_bytes < 2 * small_options().first_segment_bytes {
        std::thread::yield_now();
    }
}

fn get(engine: &dyn Engine, id: u64, suffix: &[u8]) -> Option<Vec<u8>> {
    let mut found = None;
    let key = KeyRef::new(Table::Entry, id, suffix);
    engine.get_many(&[key], &mut |_, row| found = Some(row.value.map(<[u8]>::to_vec))).unwrap();
    found.expect("every key is answered")
}
