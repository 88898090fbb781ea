//! What a process that serves clients must leave alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{BLOCK, file_system, open};
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{Caller, wait};
use kestrel_types::clock::SECOND;
use kestrel_types::ids::ROOT;
use kestrel_types::name::{Name, PathRef};

/// An object that a client of the server may still refer to is not deleted.
#[test]
fn objects_in_use_by_clients() {
    let (fs, clock) = file_system(Arc::new(MemoryStore::new()));
    let busy = Arc::new(AtomicBool::new(true));
    let ours = busy.clone();
    fs.also_in_use(Arc::new(move |_| ours.load(Ordering::SeqCst)));
    let file = open(&fs, "file");
    fs.write(&file, 0, &vec![1; BLOCK as usize], false).unwrap();
    wait(|done| fs.flush(&file, done)).unwrap();
    wait(|done| fs.release(file, done)).unwrap();
    fs.packer().seal_all();
    wait(|done| fs.unlink(Caller::ROOT, PathRef::new(ROOT, Name::new(b"file").unwrap()), done))
        .unwrap();
    clock.advance(3600 * SECOND);
    assert!(fs.is_open_object(1));
    assert_eq!(fs.reap().unwrap(), 0, "somebody may still come to refer to it");
    busy.store(false, Ordering::SeqCst);
    assert_eq!(fs.reap().unwrap(), 1);
    fs.shutdown().unwrap();
}
