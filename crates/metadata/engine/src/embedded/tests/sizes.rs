//! Segments that grow with the load, and are small where there is none.

use super::*;
use crate::disk::Disk;

/// Sizes of the log's files.
fn sizes(disk: &SimDisk) -> Vec<u64> {
    let names = disk.list().unwrap();
    let logs = names.iter().filter(|name| name.ends_with(".log") || name.starts_with("free-"));
    logs.map(|name| disk.open(name).unwrap().len().unwrap()).collect()
}

/// Commits `count` batches of 3 kB each, and answers what the content is then.
fn fill(engine: &EmbeddedEngine, expected: &mut ExpectedRows, from: u32, count: u32) {
    for number in from..from + count {
        let batch = vec![put(1, &number.to_be_bytes(), &[number as u8; 3000])];
        apply(expected, &batch);
        commit(engine, batch);
    }
}

/// A new log has two segments of the first size; with each that fills up they grow to the largest,
/// and not beyond.
#[test]
fn segments_that_grow() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let options =
        EmbeddedOptions { log_bytes_max: 8 << 20, memory_bytes: 64 << 20, ..small_options() };
    let engine = open_sim(&disk, &runs, options.clone()).unwrap();
    wait_for_segment(&engine);
    assert_eq!(sizes(&disk), [16 << 10; 2]);
    let mut expected = ExpectedRows::new();
    fill(&engine, &mut expected, 0, 100);
    let grown = sizes(&disk);
    assert!(grown.iter().all(|bytes| [16 << 10, 64 << 10].contains(bytes)), "{grown:?}");
    assert!(grown.iter().filter(|bytes| **bytes == 64 << 10).count() >= 4, "{grown:?}");
    // What a kill leaves is recovered at any size, and the next opening begins anew.
    let image = disk.after_kill();
    drop(engine);
    let engine = open_sim(&image, &runs, options).unwrap();
    assert_eq!(content(&engine), expected);
}

/// Logs with segments of one size, as earlier programs made them, and logs with segments of many
/// are read by programs that make the other kind.
#[test]
fn segments_of_earlier_programs() {
    let growing = EmbeddedOptions { log_bytes_max: 1 << 20, ..small_options() };
    let fixed = EmbeddedOptions { first_segment_bytes: 64 << 10, ..growing.clone() };
    let (mut disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let mut expected = ExpectedRows::new();
    for round in 0..6 {
        let options = if round % 2 == 0 { &fixed } else { &growing };
        let engine = open_sim(&disk, &runs, options.clone()).unwrap();
        assert_eq!(content(&engine), expected, "round {round}");
        fill(&engine, &mut expected, round * 100, 60);
        if round % 3 == 0 {
            engine.flush().unwrap();
        }
        disk = disk.after_kill();
    }
    assert_eq!(content(&open_sim(&disk, &runs, growing).unwrap()), expected);
}

/// A volume with a few files takes less than 2 MiB on a real disk, after it was opened several
/// times too.
#[test]
fn the_size_of_a_new_volume() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let options = EmbeddedOptions { memory_bytes: 16 << 20, ..EmbeddedOptions::default() };
        EmbeddedEngine::open(&dir.path().join("meta"), UUID, options, no_hook(), &mut |_| true)
            .unwrap()
    };
    for round in 0..4_u8 {
        let engine = open();
        commit(&engine, vec![put(1, &[round], &[round; 200])]);
        engine.sync().unwrap();
        assert!(engine.stats().log_disk_bytes < 2 << 20, "{}", engine.stats().log_disk_bytes);
        engine.close().unwrap();
    }
    let engine = open();
    for round in 0..4_u8 {
        assert_eq!(get(&engine, 1, &[round]), Some(vec![round; 200]));
    }
}
