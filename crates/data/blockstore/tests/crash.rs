//! The process dies, or the power fails: what was acknowledged is read back, at whichever instant
//! that was.
//!
//! This test binary runs itself again as the writer (`KESTREL_DATA_WRITER=directory`), which prints
//! a line for each acknowledged range. The parent kills it, or shuts the file system below it down,
//! and verifies every line.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kestrel_blockstore::scan::scan;
use kestrel_blockstore::store::list_all;
use kestrel_blockstore::store::local::LocalConfig;
use kestrel_blockstore::{BlockStore, LocalStore, Packer, PackerConfig, Reader, ReaderConfig};
use kestrel_types::range::Range;

const WRITER: &str = "KESTREL_DATA_WRITER";

fn content(inode: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len))
        .map(|i| ((i ^ inode).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as u8)
        .collect()
}

/// Whether the file system was shut down instead of the power failure that would have ended this
/// process. An fsync that XFS is shut down under may succeed: after writing the pages it looks
/// whether the log still has something of the file, and the log that has given up has nothing
/// (`xfs_file_fsync`, Linux 6.18). What is opened after that fails with `EIO`.
fn has_lost_power(dir: &Path) -> bool {
    std::fs::File::open(dir).is_err()
}

/// The child: stores from several threads until it is killed.
#[test]
fn writer() {
    let Ok(dir) = std::env::var(WRITER) else { return };
    let dir = Path::new(&dir);
    let first: u64 = std::env::var("KESTREL_DATA_FIRST").unwrap().parse().unwrap();
    let synced = std::env::var("KESTREL_DATA_LEVEL").unwrap() == "disk";
    let store: Arc<dyn BlockStore> =
        Arc::new(LocalStore::open(dir, LocalConfig::default()).unwrap());
    let next = AtomicU64::new(first);
    let ids = Arc::new(move || Ok(next.fetch_add(1, Ordering::SeqCst)));
    let packer = Packer::new(store.clone(), ids, PackerConfig::new([5; 16])).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (packer, store) = (&packer, &store);
            scope.spawn(move || {
                for i in 0.. {
                    let inode = first * 1_000_000 + thread * 100_000 + i;
                    let len = [100, 9000, 65_536, 200_000, 1_500_000][(inode % 5) as usize];
                    let (sender, receiver) = std::sync::mpsc::channel();
                    let done = move |placed: kestrel_blockstore::Result<
                        kestrel_blockstore::StoredRange,
                    >| { sender.send(placed).unwrap() };
                    packer.store(content(inode, len), inode, Box::new(done));
                    // After a shutdown of the file system everything fails: nothing more is
                    // acknowledged.
                    let Ok(placed) = receiver.recv().unwrap() else { return };
                    if synced && (store.sync().is_err() || has_lost_power(dir)) {
                        return;
                    }
                    let Range { object, offset, len } = placed.range;
                    let line = format!("\nack {inode} {object} {offset} {len}\n");
                    let mut out = std::io::stderr().lock();
                    out.write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

fn start_writer(dir: &Path, first: u64, level: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture"])
        .env(WRITER, dir)
        .env("KESTREL_DATA_FIRST", first.to_string())
        .env("KESTREL_DATA_LEVEL", level)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads acknowledgements until the writer is gone; a torn last line is none.
fn acknowledged(child: &mut Child) -> std::thread::JoinHandle<Vec<(u64, Range)>> {
    let errors = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || {
        let mut found = Vec::new();
        for line in errors.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["ack", inode, object, offset, len] = words[..]
                && let (Ok(inode), Ok(object), Ok(offset), Ok(len)) =
                    (inode.parse(), object.parse(), offset.parse(), len.parse())
            {
                found.push((inode, Range { object, offset, len }));
            }
        }
        // The last line may be cut in the middle of its last number.
        found.pop();
        found
    })
}

fn verify(dir: &Path, acknowledged: &[(u64, Range)]) {
    let store: Arc<dyn BlockStore> =
        Arc::new(LocalStore::open(dir, LocalConfig::default()).unwrap());
    let reader = Reader::new(Arc::clone(&store), ReaderConfig::default());
    for (inode, range) in acknowledged {
        let mut out = vec![0; range.len as usize];
        reader
            .read(*range, 0, &mut out)
            .unwrap_or_else(|error| panic!("{inode} {range:?}: {error}"));
        assert!(out == content(*inode, range.len), "{inode}: other bytes than were written");
    }
    for page in list_all(store.as_ref()) {
        let page = page.unwrap();
        assert!(page.unknown.is_empty(), "{:?}", page.unknown);
        for info in page.objects {
            // Objects cut off by the crash may have no valid header; they must not make scanning
            // fail otherwise.
            match scan(store.as_ref(), info.object, false) {
                Ok(_) | Err(kestrel_blockstore::Error::Corrupt { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn acknowledged_data_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for cycle in 0..12u64 {
        let mut child = start_writer(
            dir.path(),
            1 + cycle * 100_000,
            if cycle % 3 == 0 { "disk" } else { "process" },
        );
        let lines = acknowledged(&mut child);
        std::thread::sleep(Duration::from_millis(30 + cycle * 13));
        child.kill().unwrap();
        child.wait().unwrap();
        all.extend(lines.join().unwrap());
    }
    assert!(!all.is_empty());
    verify(dir.path(), &all);
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// XFS on a loop device, cut off by its own shutdown call: the log is not flushed, as if the power
/// had gone. Skipped where there is no root, no XFS or no loop device.
#[test]
fn data_acknowledged_as_durable_survives_power_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
    let (image, mount) = (image.to_str().unwrap(), mount.to_str().unwrap());
    std::fs::create_dir(mount).unwrap();
    let ready = run("truncate", &["-s", "1G", image])
        && run("mkfs.xfs", &["-q", image])
        && run("mount", &["-o", "loop", image, mount]);
    if !ready {
        println!("skipped: no XFS on a loop device here");
        return;
    }
    let mut all = Vec::new();
    for cycle in 0..4u64 {
        let mut child = start_writer(Path::new(mount), 1 + cycle * 100_000, "disk");
        let lines = acknowledged(&mut child);
        std::thread::sleep(Duration::from_millis(300 + cycle * 50));
        let is_shut = run("xfs_io", &["-x", "-c", "shutdown", mount]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(run("umount", &[mount]) && run("mount", &["-o", "loop", image, mount]));
        all.extend(lines.join().unwrap());
        if !is_shut {
            println!("skipped: no xfs_io");
            break;
        }
        verify(Path::new(mount), &all);
    }
    assert!(run("umount", &[mount]));
    println!("{} ranges survived", all.len());
}
