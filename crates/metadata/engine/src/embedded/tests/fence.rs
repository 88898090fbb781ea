//! The process that claimed last commits; others change nothing, in this process or another.

use super::super::super::disk::Disk;
use super::*;
use crate::Epoch;

fn fenced(result: Result<u64, EngineError>) -> (Epoch, Epoch) {
    match result {
        Err(EngineError::Fenced { held, current }) => (held, current),
        other => panic!("{other:?}"),
    }
}

/// Only the newest claim commits, and each opening is a newer claim.
#[test]
fn commits_of_the_newest_claim() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let opened = Arc::new(open_sim(&disk, &runs, small_options()).unwrap());
    commit(&*opened, vec![put(1, b"a", b"0")]);
    let first = opened.clone().claim().unwrap();
    commit(&*first, vec![put(1, b"a", b"1")]);
    let second = first.clone().claim().unwrap();
    assert!(opened.epoch() < first.epoch() && first.epoch() < second.epoch());
    for stale in [&*first, &*opened as &dyn Engine] {
        let refused = stale.commit(BatchKind::Freeing, vec![put(1, b"a", b"stale")]);
        assert_eq!(fenced(refused), (stale.epoch(), second.epoch()));
    }
    commit(&*second, vec![put(1, b"b", b"2")]);
    second.sync().unwrap();
    assert_eq!(
        (get(&*first, 1, b"a"), get(&*first, 1, b"b")),
        (Some(b"1".to_vec()), Some(b"2".to_vec()))
    );
    let newest = second.epoch();
    drop((first, second, opened));
    // A crash does not bring an old epoch back.
    let image = disk.after_kill();
    let again = open_sim(&image, &runs.snapshot(), small_options()).unwrap();
    assert!(again.epoch() > newest);
    assert_eq!(get(&again, 1, b"b"), Some(b"2".to_vec()));
}

/// A process that lost its files to another one acknowledges nothing and leaves nothing behind.
#[test]
fn stale_process_after_a_takeover() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let stale = open_sim(&disk, &runs, small_options()).unwrap();
    commit(&stale, vec![put(1, b"a", b"1")]);
    stale.sync().unwrap();
    wait_for_segment(&stale);
    // No lock on a simulated disk: both have the files open.
    let second = open_sim(&disk, &runs, small_options()).unwrap();
    assert_eq!(get(&second, 1, b"a"), Some(b"1".to_vec()));
    // In the log's page cache these are, and no caller is told that they are durable.
    let lost = commit(&stale, vec![put(1, b"a", b"stale"), put(1, b"c", b"stale")]);
    let why = stale.sync().unwrap_err();
    assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    assert!(why.to_string().contains("end this process"), "{why}");
    assert!(stale.durable() < lost);
    fenced(stale.commit(BatchKind::Freeing, vec![put(1, b"d", b"stale")]));
    assert!(matches!(stale.flush(), Err(EngineError::Fenced { .. })));
    assert!(matches!(Arc::new(stale).claim(), Err(EngineError::Fenced { .. })));
    for value in 0..20u8 {
        commit(&second, vec![put(1, b"a", &[value; 2000])]);
    }
    second.sync().unwrap();
    let expected = content(&second);
    drop(second);
    let again = open_sim(&disk.after_kill(), &runs.snapshot(), small_options()).unwrap();
    assert_eq!(content(&again), expected);
}

#[test]
fn logs_of_format_1_are_opened() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let engine = open_sim(&disk, &runs, small_options()).unwrap();
    for value in 0..40u8 {
        commit(&engine, vec![put(1, &[value], &[value; 1000])]);
    }
    engine.sync().unwrap();
    let expected = content(&engine);
    drop(engine);
    let image = disk.after_kill();
    // As it was: no file for the epoch, and headers without one.
    for name in ["epoch", "epoch.copy", "checkpoint.copy"] {
        image.remove(name).unwrap();
    }
    for name in image.list().unwrap().iter().filter(|name| name.ends_with(".log")) {
        image.damage(name, |bytes| {
            bytes[8..12].copy_from_slice(&1u32.to_be_bytes());
            bytes[40..4096].fill(0);
            bytes[12..16].fill(0);
            let crc = crc32c::crc32c(&bytes[..64]);
            bytes[12..16].copy_from_slice(&crc.to_be_bytes());
        });
    }
    let again = open_sim(&image, &runs.snapshot(), small_options()).unwrap();
    assert_eq!(content(&again), expected);
    assert_eq!(again.epoch(), Epoch(1));
}
