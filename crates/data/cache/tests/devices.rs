//! Real cache disks: a small loop device that fills up, is frozen, is made read-only; and kill -9
//! of the process that fills it. A test that needs root and a loop device is skipped with a message
//! where there is none.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use kestrel_blockstore::BlockStore;
use kestrel_blockstore::store::LocalStore;
use kestrel_blockstore::store::local::LocalConfig;
use kestrel_cache::{CacheOptions, CachedStore};

const LEN: usize = 300_000;

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A file system on a loop device, gone when dropped.
struct Device {
    mount: PathBuf,
    _dir: tempfile::TempDir,
}

impl Device {
    fn new(megabytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        std::fs::create_dir(&mount).unwrap();
        std::fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
        let device = Self { mount, _dir: dir };
        let ready = run("mkfs.ext4", &["-q", "-m", "0", image.to_str().unwrap()])
            && run("mount", &["-o", "loop", image.to_str().unwrap(), device.path()]);
        if !ready {
            println!("skipped: no ext4 on a loop device here");
        }
        ready.then_some(device)
    }

    fn path(&self) -> &str {
        self.mount.to_str().unwrap()
    }

    fn free(&self) -> f64 {
        let output =
            Command::new("stat").args(["-f", "-c", "%a %b", self.path()]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        numbers[0] / numbers[1]
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run("fsfreeze", &["-u", self.path()]);
        // Threads of a store just dropped may still be at work in it.
        for _ in 0..100 {
            if run("umount", &[self.path()]) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        run("umount", &["-l", self.path()]);
    }
}

fn behind(options: CacheOptions, count: u64) -> (Arc<Counting>, CachedStore) {
    let store = Counting::new(Duration::ZERO);
    (1..=count).for_each(|object| put(store.as_ref(), object, LEN));
    let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options).unwrap();
    (store, cache)
}

fn check_all(cache: &CachedStore, count: u64) {
    (1..=count).for_each(|object| check(cache, object, &content(object, LEN), 0, LEN));
}

#[test]
fn a_disk_that_fills_up() {
    let Some(device) = Device::new(24) else { return };
    // No bound in the cache's options: the disk fails with ENOSPC.
    let (store, cache) = behind(options(&device.mount.join("cache")), 150);
    for _ in 0..2 {
        check_all(&cache, 150);
        put(&cache, 1000 + store.gets(), LEN);
        flush(&cache);
    }
    check_all(&cache, 150);
    drop(cache);
    // What is there is still of use.
    let cache =
        CachedStore::open(Arc::clone(&store) as _, VOLUME, options(&device.mount.join("cache")))
            .unwrap();
    check_all(&cache, 150);
    assert!(stats(&cache)["cache_disk_hits"] > 0);
}

/// A share of the disk stays free, also while other programs write to it.
#[test]
fn free_space_share_beside_other_writers() {
    let Some(device) = Device::new(64) else { return };
    let options = CacheOptions { free_space_ratio: 0.25, ..options(&device.mount.join("cache")) };
    let (_, cache) = behind(options, 300);
    check_all(&cache, 300);
    flush(&cache);
    eventually("a quarter is free", || device.free() >= 0.25);
    assert!(device.free() < 0.6, "{}", device.free());
    std::fs::write(device.mount.join("others"), vec![1; 10 << 20]).unwrap();
    eventually("a quarter is free again", || {
        check_all(&cache, 20);
        device.free() >= 0.25
    });
    check_all(&cache, 300);
}

#[test]
fn a_frozen_disk_wedges_nobody() {
    let Some(device) = Device::new(64) else { return };
    let options = CacheOptions {
        fill_queue_bytes: 2_000_000,
        disk_deadline: Duration::from_millis(300),
        ..options(&device.mount.join("cache"))
    };
    let (store, cache) = behind(options, 60);
    check_all(&cache, 30);
    flush(&cache);
    if !run("fsfreeze", &["-f", device.path()]) {
        return println!("skipped: no fsfreeze");
    }
    check_all(&cache, 60);
    put(&cache, 100, LEN);
    let mut fresh = vec![0; LEN];
    cache.read_fresh(1, 0, &mut [std::io::IoSliceMut::new(&mut fresh)]).unwrap();
    assert!(fresh == content(1, LEN));
    check_all(&cache, 60);
    assert!(run("fsfreeze", &["-u", device.path()]));
    eventually("the disk is used again", || {
        check_all(&cache, 60);
        let before = store.gets();
        check_all(&cache, 60);
        store.gets() == before
    });
}

/// A disk that turns read-only still serves what it has.
#[test]
fn disk_turned_read_only() {
    let Some(device) = Device::new(64) else { return };
    let (store, cache) = behind(options(&device.mount.join("cache")), 40);
    check_all(&cache, 20);
    flush(&cache);
    drop(cache);
    assert!(run("mount", &["-o", "remount,ro", device.path()]));
    let cache =
        CachedStore::open(Arc::clone(&store) as _, VOLUME, options(&device.mount.join("cache")))
            .unwrap();
    let before = store.gets();
    check_all(&cache, 20);
    assert_eq!(store.gets(), before);
    for _ in 0..2 {
        check_all(&cache, 40);
        put(&cache, 100 + store.gets(), LEN);
        flush(&cache);
    }
    assert!(run("mount", &["-o", "remount,rw", device.path()]));
    eventually("it is filled again", || {
        check_all(&cache, 40);
        let before = store.gets();
        check_all(&cache, 40);
        store.gets() == before
    });
}

#[test]
fn a_directory_nobody_may_write_to() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cache) = behind(options(dir.path()), 30);
    check_all(&cache, 10);
    flush(&cache);
    let dirs: Vec<String> = std::fs::read_dir(dir.path().join("09".repeat(16)))
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_string())
        .chain([
            dir.path().to_str().unwrap().to_string(),
            format!("{}/{}", dir.path().display(), "09".repeat(16)),
        ])
        .collect();
    let chattr = |flag| dirs.iter().all(|dir| run("chattr", &[flag, dir]));
    if !chattr("+i") {
        chattr("-i");
        return println!("skipped: no chattr here");
    }
    for _ in 0..2 {
        check_all(&cache, 30);
        flush(&cache);
    }
    let before = store.gets();
    check_all(&cache, 10);
    let hits = store.gets() == before;
    assert!(chattr("-i"));
    assert!(hits);
    check_all(&cache, 30);
}

/// This test binary runs itself again as the process that fills.
const FILLER: &str = "KESTREL_CACHE_FILLER";

fn stores(dir: &Path) -> (Arc<LocalStore>, CacheOptions) {
    let store = LocalStore::open(&dir.join("store"), LocalConfig::default()).unwrap();
    (Arc::new(store), CacheOptions { bytes: 6_000_000, ..options(&dir.join("cache")) })
}

#[test]
fn filler() {
    let Ok(dir) = std::env::var(FILLER) else { return };
    kestrel_types::crash::arm_from_environment().unwrap();
    let (store, options) = stores(Path::new(&dir));
    let cache = CachedStore::open(store, VOLUME, options).unwrap();
    let mut random = Random(u64::from(std::process::id()));
    loop {
        let object = 1 + random.below(40);
        let offset = random.below(LEN as u64 - 1) as usize;
        check(&cache, object, &content(object, LEN), offset, (LEN - offset).min(70_000));
    }
}

/// A kill -9 while the cache fills and evicts leaves no wrong bytes.
#[test]
fn kill_9_while_filling_and_evicting() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("store")).unwrap();
    let (store, options) = stores(dir.path());
    (1..=40).for_each(|object| put(store.as_ref(), object, LEN));
    let points = ["cache.fill.before-write:9", "cache.fill.written:7", "cache.evict.cut:3", ""];
    for cycle in 0..12 {
        let mut filler = Command::new(std::env::current_exe().unwrap());
        filler.args(["--exact", "filler", "--nocapture"]).env(FILLER, dir.path());
        filler.stdout(Stdio::null()).stderr(Stdio::null());
        let point = points[cycle % points.len()];
        if !point.is_empty() {
            filler.env("KESTREL_CRASH_AT", point);
        }
        let mut filler = filler.spawn().unwrap();
        if point.is_empty() {
            std::thread::sleep(Duration::from_millis(50 + 37 * cycle as u64));
            filler.kill().unwrap();
        }
        let status = filler.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{point}: {status}"
        );
        let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options.clone()).unwrap();
        check_all(&cache, 40);
        assert_eq!(stats(&cache)["cache_disk_errors"], 0);
    }
}
