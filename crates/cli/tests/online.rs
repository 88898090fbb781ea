//! Administration of a mounted volume while others use it. Needs FUSE and the right to mount.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use kestrel_testkit::stop::StopOnDrop;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use serde_json::Value;

/// Threads that write.
const WRITERS: u64 = 4;

/// Files of one writer.
const FILES: u64 = 40;

/// Rounds of administration beside them, at least.
const ROUNDS: u64 = 3;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// A volume without grace: what a collection may take it takes at once.
fn volume_without_grace() -> Place {
    let place = Place::new();
    run(&["format", &place.volume(), "--grace", "0"]).expect(0, "created");
    place
}

fn content(seed: u64, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (seed.wrapping_mul(131).wrapping_add(i / 3 + i * i / 1009) as u8) | 1)
        .collect()
}

/// One writer's directory, and what should be in it.
struct Writer {
    dir: PathBuf,
    random: Random,
    model: BTreeMap<String, Vec<u8>>,
}

impl Writer {
    fn new(mount: &Path, id: u64) -> Self {
        let dir = mount.join(format!("writer{id}"));
        fs::create_dir(&dir).unwrap();
        Self { dir, random: Random(0x9e37_79b9_7f4a_7c15 ^ (id + 1)), model: BTreeMap::new() }
    }

    fn step(&mut self, step: u64) {
        let name = format!("f{}", self.random.below(FILES));
        let other = format!("f{}", self.random.below(FILES));
        let path = self.dir.join(&name);
        match self.random.below(10) {
            0..=4 => {
                let len = match self.random.below(8) {
                    0 => self.random.below(3000),
                    1 => self.random.below(6 << 20),
                    _ => self.random.below(120_000),
                };
                let bytes = content(step, len);
                fs::write(&path, &bytes).unwrap();
                self.model.insert(name, bytes);
            }
            5 => {
                let Some(model) = self.model.get_mut(&name) else { return };
                let bytes = content(step, 5000);
                let at = self.random.below(model.len() as u64 + 10_000) as usize;
                let mut file = OpenOptions::new().write(true).open(&path).unwrap();
                file.seek(SeekFrom::Start(at as u64)).unwrap();
                file.write_all(&bytes).unwrap();
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            6 if self.model.remove(&name).is_some() => fs::remove_file(&path).unwrap(),
            7 if name != other && self.model.contains_key(&name) => {
                fs::rename(&path, self.dir.join(&other)).unwrap();
                let bytes = self.model.remove(&name).unwrap();
                self.model.insert(other, bytes);
            }
            8 if name != other && self.model.contains_key(&name) => {
                fs::copy(&path, self.dir.join(&other)).unwrap();
                let bytes = self.model[&name].clone();
                self.model.insert(other, bytes);
            }
            _ => {
                if let Some(expected) = self.model.get(&name) {
                    assert!(
                        fs::read(&path).unwrap() == *expected,
                        "{} is not what was written",
                        path.display()
                    );
                }
            }
        }
    }

    fn verify(&self) {
        let mut there: Vec<String> = fs::read_dir(&self.dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        assert!(there.iter().eq(self.model.keys()), "{}: {there:?}", self.dir.display());
        for (name, expected) in &self.model {
            let found = fs::read(self.dir.join(name)).unwrap();
            assert!(found == *expected, "{}/{name} is not what was written", self.dir.display());
        }
    }
}

fn json(args: &[&str]) -> Value {
    let done = run(&[args, &["--json"]].concat());
    assert_eq!(done.code, 0, "{args:?}: {}{}", done.out, done.err);
    done.json()
}

/// Checks and collections beside several writers lose nothing.
#[test]
fn fsck_and_gc_beside_writers() {
    let place = volume_without_grace();
    place.mount(&[]).expect(0, "");
    let mount = place.mount_point();
    let stop = AtomicBool::new(false);
    let writers: Vec<Writer> = std::thread::scope(|scope| {
        let (mount, stop) = (&mount, &stop);
        let stopper = StopOnDrop::new(stop);
        let threads: Vec<_> = (0..WRITERS)
            .map(|id| {
                scope.spawn(move || {
                    let mut writer = Writer::new(mount, id);
                    let mut step = 0;
                    while !stop.load(Ordering::SeqCst) || step < 100 {
                        writer.step(step * WRITERS + id);
                        step += 1;
                    }
                    writer
                })
            })
            .collect();
        for round in 0..ROUNDS {
            let checked = json(&["fsck", &place.volume(), "--data"]);
            assert_eq!(checked["errors"], 0, "round {round}: {checked}");
            let collected = json(&["gc", &place.volume(), "--delete", "--grace", "0"]);
            assert_eq!(
                (&collected["failed_objects"], &collected["disputed_objects"]),
                (&0.into(), &0.into()),
                "round {round}: {collected}"
            );
            let compacted = json(&["compact", &place.volume()]);
            assert_eq!(compacted["failed"], 0, "round {round}: {compacted}");
        }
        drop(stopper);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    writers.iter().for_each(Writer::verify);
    json(&["compact", &place.volume()]);
    writers.iter().for_each(Writer::verify);
    place.umount();
    let checked = json(&["fsck", &place.volume(), "--data"]);
    assert_eq!(checked["errors"], 0, "{checked}");
    place.mount(&["--read-only"]).expect(0, "");
    writers.iter().for_each(Writer::verify);
    run(&["gc", &place.volume(), "--delete"]).expect(1, "read-only");
    run(&["compact", &place.volume()]).expect(1, "read-only");
    place.umount();
}

/// A check of a mounted volume finds damage and prints each finding at once.
#[test]
fn damage_found_in_mounted_volume() {
    let place = Place::formatted();
    place.mount(&[]).expect(0, "");
    for i in 0..20 {
        fs::write(place.mount_point().join(format!("f{i}")), content(i, 2_000_000)).unwrap();
    }
    File::open(place.mount_point()).unwrap().sync_all().unwrap();
    let objects: Vec<PathBuf> = walk(&place.path("vol/objects"));
    let largest = objects.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let bytes = fs::read(largest).unwrap();
    let mut bad = bytes.clone();
    bad[bytes.len() / 2] ^= 1;
    fs::write(largest, &bad).unwrap();
    run(&["fsck", &place.volume(), "--data"]).expect(1, "data-corrupt: /f");
    run(&["fsck", &place.volume()]).expect(0, "clean");
    fs::remove_file(largest).unwrap();
    let found = run(&["fsck", &place.volume(), "--json", "--limit", "1"])
        .expect(1, "object-missing")
        .json();
    assert_eq!(found["findings"].as_array().unwrap().len(), 1);
    fs::write(largest, &bytes).unwrap();
    run(&["fsck", &place.volume(), "--data"]).expect(0, "clean");
    let left = fs::read_dir(place.path("vol")).unwrap();
    let scratch = left
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("cut."));
    assert_eq!(scratch.count(), 0);
    place.umount();
}

/// Files below a directory that objects may be.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

/// A volume is compacted while it is mounted and while it is not, as a whole and below a path.
#[test]
fn compaction_mounted_unmounted_and_by_path() {
    let place = volume_without_grace();
    place.mount(&[]).expect(0, "");
    let fill = |dir: &str| {
        let dir = place.mount_point().join(dir);
        fs::create_dir(&dir).unwrap();
        for i in 0..200 {
            fs::write(dir.join(format!("f{i}")), content(i, 50_000)).unwrap();
        }
        (0..200)
            .filter(|i| i % 10 != 0)
            .for_each(|i| fs::remove_file(dir.join(format!("f{i}"))).unwrap());
    };
    let verify = |dir: &str| {
        for i in (0..200).step_by(10) {
            let path = place.mount_point().join(dir).join(format!("f{i}"));
            assert!(fs::read(&path).unwrap() == content(i, 50_000), "{}", path.display());
        }
    };
    fill("a");
    // Packs are sealed when the volume stops.
    place.umount();
    place.mount(&[]).expect(0, "");
    let before: u64 =
        walk(&place.path("vol/objects")).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let look = json(&["compact", &place.volume(), "--dry-run"]);
    assert!(look["sparse_objects"].as_u64().unwrap() > 0, "{look}");
    let done = json(&["compact", &format!("{}/a", place.mnt())]);
    assert_eq!(
        (&done["sparse_objects"], &done["moved_references"]),
        (&look["sparse_objects"], &20.into())
    );
    verify("a");
    assert_eq!(json(&["compact", &place.volume()])["moved_references"], 0);
    run(&["compact", &format!("{}/nothing", place.mnt())]).expect(1, "neither a volume nor a path");
    fill("b");
    place.umount();
    let done = json(&["compact", &place.volume()]);
    // What was moved before may lie in the same pack.
    assert!(done["moved_references"].as_u64().unwrap() >= 20, "{done}");
    run(&["fsck", &place.volume(), "--data"]).expect(0, "clean");
    place.mount(&[]).expect(0, "");
    verify("a");
    verify("b");
    // The old objects go by themselves.
    let begun = std::time::Instant::now();
    let size = || -> u64 {
        walk(&place.path("vol/objects"))
            .iter()
            .map(|path| fs::metadata(path).map_or(0, |meta| meta.len()))
            .sum()
    };
    while size() > before {
        assert!(begun.elapsed().as_secs() < 60, "{} bytes are left of {before}", size());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    verify("b");
    place.umount();
}

/// When the process is killed at any step of rewriting and collecting, nothing is lost, and the
/// next run finishes.
#[test]
fn kill_at_each_step_of_compaction_and_gc() {
    let place = volume_without_grace();
    place.mount(&[]).expect(0, "");
    let file = |i: u64| place.mount_point().join(format!("f{i}"));
    (0..100).for_each(|i| fs::write(file(i), content(i, 50_000)).unwrap());
    (0..100).filter(|i| i % 10 != 0).for_each(|i| fs::remove_file(file(i)).unwrap());
    place.umount();
    let verify = || {
        (0..100)
            .step_by(10)
            .for_each(|i| assert!(fs::read(file(i)).unwrap() == content(i, 50_000), "f{i}"));
    };
    // The first leaves objects that nothing refers to, for the next two to collect.
    for (point, verb) in [
        ("client.repack.stored", "compact"),
        ("gc.before-delete", "gc"),
        ("gc.deleted", "gc"),
        ("client.repack.committed", "compact"),
    ] {
        let mut mount = kestrel(&["mount", &place.volume(), &place.mnt()]);
        let mounted = mount.env("KESTREL_CRASH_AT", point).stdout(Stdio::null()).status().unwrap();
        assert!(mounted.success(), "{point}");
        let args: &[&str] =
            if verb == "gc" { &["gc", "--delete", "--grace", "0"] } else { &["compact"] };
        run(&[args, &[&place.volume()]].concat()).expect(1, "ended before it had answered");
        run(&["umount", "--force", &place.mnt()]).expect(0, "");
        run(&["fsck", &place.volume(), "--data"]).expect(0, "clean");
        place.mount(&[]).expect(0, "");
        verify();
        place.umount();
    }
    json(&["compact", &place.volume()]);
    json(&["gc", &place.volume(), "--delete", "--grace", "0"]);
    assert_eq!(json(&["gc", &place.volume()])["leaked_objects"], 0);
    assert_eq!(json(&["compact", &place.volume(), "--dry-run"])["sparse_objects"], 0);
    place.mount(&[]).expect(0, "");
    verify();
    place.umount();
}

#[test]
fn files_are_warmed_up_checked_and_evicted() {
    let place = Place::formatted();
    let cache = place.name("cache");
    fs::create_dir(&cache).unwrap();
    place.mount(&["--cache-dir", &cache]).expect(0, "");
    let dir = place.mount_point().join("dir");
    fs::create_dir(&dir).unwrap();
    (0..30).for_each(|i| fs::write(dir.join(format!("small{i}")), content(i, 20_000)).unwrap());
    fs::write(dir.join("large"), content(99, 9_000_000)).unwrap();
    let path = dir.to_str().unwrap();
    let dropped = json(&["warmup", path, "--evict"]);
    assert_eq!(dropped["files"], 31);
    let cached =
        |done: &Value| (done["cached_bytes"].as_u64().unwrap(), done["bytes"].as_u64().unwrap());
    assert_eq!(cached(&json(&["warmup", path, "--check"])).0, 0);
    // Part of it, by a list; then the rest: what is there is not brought again.
    let list = place.path("list");
    fs::write(&list, (0..5).map(|i| format!("{path}/small{i}\n")).collect::<String>()).unwrap();
    let done = json(&["warmup", "--from-file", list.to_str().unwrap(), "--threads", "4"]);
    assert_eq!((&done["files"], &done["failed"]), (&5.into(), &0.into()));
    let (some, all) = cached(&json(&["warmup", path, "--check"]));
    assert!(some >= 100_000 && some < all, "{some} of {all}");
    run(&["warmup", path]).expect(0, "31 files");
    let (some, all) = cached(&json(&["warmup", path, "--check"]));
    assert_eq!(some, all);
    run(&["warmup", path, "--check"]).expect(0, "(100 %)");
    fs::write(&list, format!("{path}/small1\n{path}/nothing\n")).unwrap();
    run(&["warmup", "--from-file", list.to_str().unwrap()]).expect(1, "nothing: no such file");
    assert!(fs::read(dir.join("large")).unwrap() == content(99, 9_000_000));
    place.umount();
}

#[test]
fn warming_up_needs_a_cache_and_says_so() {
    let place = Place::formatted();
    place.mount(&[]).expect(0, "");
    fs::create_dir(place.mount_point().join("dir")).unwrap();
    fs::write(place.mount_point().join("dir/file"), content(1, 100_000)).unwrap();
    run(&["warmup", &place.mnt()]).expect(1, "--cache-dir");
    run(&["warmup", "--metadata", &place.mnt()]).expect(0, "1 files");
    let done = json(&["warmup", "--metadata", &format!("{}/d*/f?le", place.mnt())]);
    assert_eq!((&done["files"], &done["missing_paths"]), (&1.into(), &0.into()));
    run(&["warmup", "--metadata", &format!("{}/x*", place.mnt())]).expect(1, "no such file");
    run(&["warmup"]).expect(2, "PATHS");
    place.umount();
}
