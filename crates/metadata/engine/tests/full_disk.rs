//! The embedded engine on a real file system that fills up: growth is refused, freeing goes on,
//! nothing is lost, and all is well again when space returns. Needs root, for a small tmpfs; prints
//! a message and passes without.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_types::key::{Key, Table};

/// A tmpfs that goes away with the value.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: &Path, options: &str) -> Option<Self> {
        let path = CString::new(dir.as_os_str().as_bytes()).unwrap();
        let options = CString::new(options).unwrap();
        let kind = c"tmpfs".as_ptr();
        // SAFETY: all pointers are to strings that outlive the call.
        let code = unsafe { libc::mount(kind, path.as_ptr(), kind, 0, options.as_ptr().cast()) };
        (code == 0).then(|| Self(dir.to_path_buf()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        // SAFETY: the pointer is to a string that outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn open(dir: &Path) -> EmbeddedEngine {
    let options = EmbeddedOptions {
        memory_bytes: 4 << 20,
        sync_interval: None,
        segment_bytes: 1 << 20,
        log_bytes_max: 2 << 20,
        reserve_bytes: 3 << 20,
        ..EmbeddedOptions::default()
    };
    EmbeddedEngine::open(&dir.join("meta"), [5; 16], options, Arc::new(|| Ok(())), &mut |_| true)
        .unwrap()
}

/// Rows that do not compress.
fn batch(number: u64) -> Vec<Mutation> {
    let row = |part: u64| {
        let mut state = number * 10 + part + 1;
        let value: Vec<u8> = (0..300)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let key = Key::new(Table::Entry, number % 50, &(number * 10 + part).to_be_bytes());
        Mutation { key, value: Some(value.into()) }
    };
    (0..10).map(row).collect()
}

type Content = BTreeMap<Key, Box<[u8]>>;

fn apply(content: &mut Content, mutations: &[Mutation]) {
    for Mutation { key, value } in mutations {
        match value {
            Some(value) => content.insert(key.clone(), value.clone()),
            None => content.remove(key),
        };
    }
}

fn content(engine: &EmbeddedEngine) -> Content {
    let mut content = Content::new();
    engine
        .scan_table(Table::Entry, None, &mut |key, value| {
            content.insert(key.to_owned(), value.into());
            ControlFlow::Continue(())
        })
        .unwrap();
    content
}

/// Commits a batch as soon as growth is possible again.
fn grow(engine: &EmbeddedEngine, number: u64, expected: &mut Content) {
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(why) = engine.commit(BatchKind::Growing, batch(number)) {
        assert_eq!(why, EngineError::NoSpace);
        assert!(Instant::now() < until, "space returned, but growth is still refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    apply(expected, &batch(number));
}

#[test]
fn a_full_file_system_loses_nothing_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_tmpfs) = Tmpfs::mount(dir.path(), "size=24m") else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    let ballast = dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    let engine = open(dir.path());
    let mut expected = Content::new();
    let mut number = 0;
    loop {
        let mutations = batch(number);
        match engine.commit(BatchKind::Growing, mutations.clone()) {
            Ok(_) => apply(&mut expected, &mutations),
            Err(why) => {
                assert_eq!(why, EngineError::NoSpace);
                break;
            }
        }
        number += 1;
        assert!(number < 20_000, "24 MiB hold 60 MB");
    }
    assert!(number > 500, "{number}");
    assert_eq!(content(&engine), expected);
    for old in 0..100 {
        let mutations: Vec<_> =
            batch(old).into_iter().map(|m| Mutation { value: None, ..m }).collect();
        engine.commit(BatchKind::Freeing, mutations.clone()).unwrap();
        apply(&mut expected, &mutations);
    }
    engine.sync().unwrap();
    assert_eq!(content(&engine), expected);
    // Killed while full, and opened again while full.
    drop(engine);
    let engine = open(dir.path());
    assert_eq!(content(&engine), expected);
    std::fs::remove_file(&ballast).unwrap();
    for more in 0..300 {
        grow(&engine, 100_000 + more, &mut expected);
    }
    engine.flush().unwrap();
    // A merge needs room for its result beside what it merges. If there is none, it leaves nothing
    // behind.
    if let Err(why) = engine.compact() {
        assert_eq!(why, EngineError::NoSpace);
    }
    grow(&engine, 200_000, &mut expected);
    assert_eq!(content(&engine), expected);
    engine.close().unwrap();
    assert_eq!(content(&open(dir.path())), expected);
}
