//! What a program that writes a file costs by the kernel's question for the file's capabilities.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;

use common::{READ_WRITE, client, file_system, open};
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{Caller, FileHandle, Fs, wait};
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{OpenFlags, XattrFlags};

const CAPABILITY: &[u8] = b"security.capability";

fn ask(fs: &Arc<Fs>, ino: InodeId, name: &[u8]) -> Result<Vec<u8>, i32> {
    let value = wait(|done| fs.getxattr(Caller::ROOT, ino, name.into(), done));
    value.map(|value| value.to_vec()).map_err(|error| error.errno)
}

fn set(fs: &Arc<Fs>, ino: InodeId, name: &[u8]) -> FsResult<()> {
    let flags = XattrFlags { create: false, replace: false };
    wait(|done| fs.setxattr(Caller::ROOT, ino, name.into(), (*b"value").into(), flags, done))
}

/// Questions for an attribute that the node was asked.
fn questions(fs: &Arc<Fs>) -> u64 {
    let stats = fs.metadata().stats();
    stats.kinds.iter().filter(|kind| kind.kind == "getxattr").map(|kind| kind.requests).sum()
}

fn reopen(fs: &Arc<Fs>, file: &FileHandle, flags: OpenFlags) -> Arc<FileHandle> {
    wait(|done| fs.open(Caller::ROOT, file.ino(), flags, done)).unwrap().handle
}

/// The kernel asks before the first write to a file. Of a file that had no attributes when it was
/// opened for writing the client knows the answer; of any other it asks the node.
#[test]
fn a_written_file_without_capabilities() {
    let (fs, _) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "f");
    let ino = file.ino();
    assert_eq!(ask(&fs, ino, CAPABILITY), Err(libc::ENODATA));
    assert_eq!(questions(&fs), 0);
    assert_eq!(ask(&fs, ino, b"security.other"), Err(libc::ENODATA));
    assert_eq!(questions(&fs), 1);

    set(&fs, ino, CAPABILITY).unwrap();
    assert_eq!(ask(&fs, ino, CAPABILITY), Ok(b"value".to_vec()));
    fs.write(&file, 0, b"bytes", false).unwrap();
    assert_eq!(ask(&fs, ino, CAPABILITY), Err(libc::ENODATA), "the write takes them away");

    set(&fs, ino, CAPABILITY).unwrap();
    wait(|done| fs.release(file.clone(), done)).unwrap();
    assert_eq!(ask(&fs, ino, CAPABILITY), Ok(b"value".to_vec()));
    for flags in [READ_WRITE, OpenFlags { write: false, ..READ_WRITE }] {
        let again = reopen(&fs, &file, flags);
        assert_eq!(ask(&fs, ino, CAPABILITY), Ok(b"value".to_vec()), "{flags:?}");
        wait(|done| fs.release(again, done)).unwrap();
    }
    fs.shutdown().unwrap();
}

/// Another client gives a file capabilities that is open for writing here. This client does not
/// hear of it before it has closed the file; what it writes takes them away all the same.
#[test]
fn capabilities_that_another_client_gives() {
    let store = Arc::new(MemoryStore::new());
    let (here, clock) = file_system(store.clone());
    let there = client(here.metadata().clone(), store, clock, 1 << 20);
    let file = open(&here, "f");
    let place = PathRef::new(ROOT, Name::new(b"f").unwrap());
    let ino = wait(|done| there.lookup(Caller::ROOT, place, done)).unwrap().ino;

    set(&there, ino, CAPABILITY).unwrap();
    assert_eq!(ask(&there, ino, CAPABILITY), Ok(b"value".to_vec()));
    assert_eq!(ask(&here, ino, CAPABILITY), Err(libc::ENODATA));
    here.write(&file, 0, b"bytes", false).unwrap();
    wait(|done| here.flush(&file, done)).unwrap();
    assert_eq!(ask(&there, ino, CAPABILITY), Err(libc::ENODATA));

    set(&there, ino, CAPABILITY).unwrap();
    wait(|done| here.release(file.clone(), done)).unwrap();
    assert_eq!(ask(&here, ino, CAPABILITY), Ok(b"value".to_vec()));
    let reading = reopen(&here, &file, OpenFlags { write: false, ..READ_WRITE });
    assert_eq!(ask(&here, ino, CAPABILITY), Ok(b"value".to_vec()));
    wait(|done| here.release(reading, done)).unwrap();
    there.shutdown().unwrap();
    here.shutdown().unwrap();
}
