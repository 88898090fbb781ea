//! Dumps come back as they were, also of a volume in use; damaged ones are refused before anything
//! is changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use kestrel_testkit::stop::StopOnDrop;
use std::fs::File;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use kestrel_admin::dump::load::{keep_clear_of, load, verify};
use kestrel_admin::dump::{About, Counts, DumpError, dump};
use kestrel_admin::rows::{USAGE, decode_ceiling, put};
use kestrel_blockstore::store::BlockStore;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine};
use kestrel_types::entry::Entry;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::Table;
use serde_json::json;

fn spool() -> File {
    tempfile::tempfile().unwrap()
}

fn about() -> About {
    About { volume: json!({"name": "v"}), program: "test".into(), now: NOW }
}

fn dump_of(engine: &dyn Engine) -> (Vec<u8>, Counts) {
    let mut out = Vec::new();
    let counts = dump(engine, &about(), &mut out, spool(), &mut |_| {}).unwrap();
    assert_eq!(counts.bytes, out.len() as u64);
    (out, counts)
}

/// The fixture plus rows that need care: every kind of file, names and values that are no text,
/// damaged rows.
fn rich() -> Volume {
    let volume = Volume::new();
    let kinds = [Kind::Fifo, Kind::Char, Kind::Block, Kind::Socket];
    for (ino, kind) in (60..).zip(kinds) {
        let special =
            Inode { rdev: 0x501, mode: 0o7777, atime: -5, ..inode(ino, kind, 0, Data::None) };
        volume.apply(vec![entry(C, &format!("special {ino}"), special)]);
    }
    let binary = inode(70, Kind::File, 3, Data::Inline((*b"\xff\0\n").into()));
    volume.apply(vec![
        put(Table::Entry, C, b"\xff\xfe\n\"\\", Entry::Inode(binary).encode()),
        put(Table::Entry, C, b"", Box::new([])),
        put(Table::Entry, C, b"damaged", Box::new([200, 1, 2])),
        put(Table::DirStat, C, b"odd suffix", Box::new([1])),
        put(Table::Chunk, 71, b"short", encode_list(&big_extents())),
        put(Table::Xattr, 72, b"user.\xff", Box::new([1, 0xff])),
        put(Table::Reap, 1_700_000_000, &9u64.to_be_bytes(), Box::new([])),
        put(Table::Reap, 1_700_000_000, &10u64.to_be_bytes(), Box::new([5])),
        put(Table::Sweep, 73, &9u64.to_be_bytes(), Box::new([])),
        put(Table::System, 0, b"shares", Box::new([1, 0, 9])),
    ]);
    volume
}

fn fresh() -> Volume {
    Volume {
        engine: MemoryEngine::new(SyncWhen::Asked),
        store: kestrel_blockstore::store::MemoryStore::new(),
    }
}

#[test]
fn every_row_comes_back() {
    let volume = rich();
    let (file, counts) = dump_of(&volume.engine);
    assert_eq!(counts.rows, volume.all().len() as u64);
    for line in String::from_utf8(file.clone()).expect("UTF-8").lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("every line is JSON");
    }
    let loaded = fresh();
    loaded.apply(vec![entry(0, "", dir(ROOT)), put(Table::System, 0, b"inodes", Box::new([1]))]);
    let (header, read) = load(Cursor::new(&file), &loaded.engine, &mut |_| {}).unwrap();
    assert_eq!((header.volume, read), (json!({"name": "v"}), counts));
    assert!(loaded.all() == volume.all());
    assert_eq!(verify(Cursor::new(&file), &mut |_| {}).unwrap().1, counts);
}

#[test]
fn what_is_about_one_run_is_left_out() {
    let volume = Volume::new();
    let before = volume.all();
    volume.apply(vec![
        put(Table::System, 0, USAGE, Box::new([1])),
        put(Table::Moved, 5, b"", Box::new([1, 2, 3])),
        put(Table::Txn, 0, &[7; 16], Box::new([1])),
        put(Table::Txn, u64::MAX, &[7; 10], Box::new([1])),
    ]);
    let loaded = fresh();
    load(Cursor::new(dump_of(&volume.engine).0), &loaded.engine, &mut |_| {}).unwrap();
    assert_eq!(loaded.all(), before);
}

#[test]
fn a_line_is_as_documented() {
    let (file, _) = dump_of(&Volume::new().engine);
    let text = String::from_utf8(file).unwrap();
    let line = text.lines().find(|line| line.contains("\"inline\":\"hello\"")).unwrap();
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let row = &value["row"];
    assert_eq!(
        (&row["table"], &row["parent"], &row["name"]),
        (&json!("entry"), &json!(A), &json!("inline"))
    );
    assert_eq!((&row["inode"]["mode"], &row["inode"]["size"]), (&json!("0644"), &json!(5)));
    let covered = &line[18..line.len() - 1];
    assert_eq!(value["crc"], format!("{:08x}", crc32c::crc32c(covered.as_bytes())));
    let end: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let before = text.rfind("{\"crc\"").unwrap();
    assert_eq!(end["end"]["bytes"], before);
    assert_eq!(end["end"]["crc"], format!("{:08x}", crc32c::crc32c(&text.as_bytes()[..before])));
}

#[test]
fn damage_and_truncation_are_refused_everywhere() {
    let (file, _) = dump_of(&Volume::new().engine);
    let good = |bytes: &[u8]| verify(Cursor::new(bytes), &mut |_| {}).is_ok();
    assert!(good(&file));
    for at in 0..file.len() {
        let mut bad = file.clone();
        bad[at] ^= 1;
        assert!(!good(&bad), "a flipped bit at {at} went unnoticed");
    }
    for len in 0..file.len() {
        assert!(!good(&file[..len]), "a cut at {len} went unnoticed");
    }
    let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    for skip in 0..lines.len() {
        let kept =
            lines.iter().enumerate().filter(|(index, _)| *index != skip).map(|(_, line)| *line);
        assert!(!good(&kept.collect::<Vec<_>>().concat()), "missing line {skip} went unnoticed");
        assert!(!good(&[&file[..], lines[skip]].concat()), "line {skip} at the end went unnoticed");
    }
}

/// Loading refuses a dump of a newer version, a file that is no dump, and a volume that is not
/// empty.
#[test]
fn refusal_of_bad_dumps_and_full_volumes() {
    let (file, _) = dump_of(&Volume::new().engine);
    let target = fresh();
    let text = String::from_utf8(file.clone()).unwrap();
    let first = text.lines().next().unwrap();
    let newer = first.replace("\"version\":1", "\"version\":2");
    let crc = format!("{:08x}", crc32c::crc32c(&newer.as_bytes()[18..newer.len() - 1]));
    let newer = format!("{}{crc}{}\n", &newer[..8], &newer[16..]);
    assert!(matches!(
        load(Cursor::new(newer), &target.engine, &mut |_| {}),
        Err(DumpError::Newer(2))
    ));
    for other in ["", "hello\n", "{}\n", "{\"crc\":\"00000000\",\"header\":{}}\n"] {
        assert!(matches!(
            load(Cursor::new(other), &target.engine, &mut |_| {}),
            Err(DumpError::Corrupt(1, _))
        ));
    }
    assert!(target.all().is_empty());
    let full = Volume::new();
    let before = full.all();
    assert!(matches!(
        load(Cursor::new(&file), &full.engine, &mut |_| {}),
        Err(DumpError::NotEmpty)
    ));
    assert_eq!(full.all(), before);
}

/// After a load, numbers of objects that are in the store are not handed out again.
#[test]
fn loaded_counters_above_objects_in_store() {
    let volume = Volume::new();
    keep_clear_of(&volume.engine, &volume.store).unwrap();
    let before = volume.value(Table::System, 0, b"objects").unwrap();
    assert_eq!(decode_ceiling(&before), Ok(50), "all are below the counter");
    volume.store.put(77, &[std::io::IoSlice::new(b"written after the dump")]).unwrap();
    keep_clear_of(&volume.engine, &volume.store).unwrap();
    assert_eq!(decode_ceiling(&volume.value(Table::System, 0, b"objects").unwrap()), Ok(78));
}

/// A writer keeps two rows at opposite ends of the key space equal, in one batch each time, deletes
/// and creates others, and the rows of many pages lie between: what is loaded must be a state that
/// existed.
#[test]
fn a_dump_of_a_volume_in_use_is_a_state_that_existed() {
    let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    let filler =
        (0..20_000u64).map(|i| put(Table::Xattr, i, b"user.f", Box::new([1, 7]))).collect();
    engine.commit(BatchKind::Growing, filler).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = StopOnDrop::new(&stop);
    let writer = std::thread::spawn({
        let (engine, stop) = (engine.clone(), stop.clone());
        move || {
            let mut last = 0u64;
            while !stop.load(Ordering::SeqCst) {
                last += 1;
                let value: Box<[u8]> = last.to_be_bytes().into();
                let batch = vec![
                    put(Table::Sweep, u64::MAX, b"z", value.clone()),
                    put(Table::System, 0, b"a", value),
                    kestrel_engine::Mutation {
                        key: kestrel_types::key::Key::new(Table::Sweep, last - 1, b"one"),
                        value: None,
                    },
                    put(Table::Sweep, last, b"one", Box::new([])),
                ];
                engine.commit(BatchKind::Growing, batch).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
            last
        }
    });
    for _ in 0..5 {
        let (file, counts) = dump_of(&*engine);
        let loaded = fresh();
        load(Cursor::new(file), &loaded.engine, &mut |_| {}).unwrap();
        let left = loaded.value(Table::System, 0, b"a");
        assert_eq!(left, loaded.value(Table::Sweep, u64::MAX, b"z"), "{counts:?}");
        let ones = loaded
            .all()
            .keys()
            .filter(|key| key.table == Table::Sweep && *key.suffix == *b"one")
            .count();
        assert!(ones <= 1, "{ones} of a row that exists once at a time");
    }
    drop(stopper);
    assert!(writer.join().unwrap() > 0);
}
