//! What the kernel holds though it is gone goes on answering until the kernel forgets it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;

use common::{file_system, open};
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{Caller, Fs, wait};
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{RenameFlags, SetAttr, SetTime};

const SOMEBODY: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn mkdir(fs: &Arc<Fs>, dir: &str) -> InodeId {
    wait(|done| fs.mkdir(Caller::ROOT, PathRef::new(ROOT, name(dir)), 0o755, done)).unwrap().ino
}

fn rmdir(fs: &Arc<Fs>, dir: &str) {
    wait(|done| fs.rmdir(Caller::ROOT, PathRef::new(ROOT, name(dir)), None, done)).unwrap();
}

fn unlink(fs: &Arc<Fs>, file: &str) {
    wait(|done| fs.unlink(Caller::ROOT, PathRef::new(ROOT, name(file)), done)).unwrap();
}

fn getattr(fs: &Arc<Fs>, ino: InodeId) -> Result<Inode, FsError> {
    wait(|done| fs.getattr(Caller::ROOT, ino, done))
}

#[test]
fn a_removed_directory_answers_until_it_is_forgotten() {
    let (fs, _) = file_system(Arc::new(MemoryStore::new()));
    let dir = mkdir(&fs, "d");
    rmdir(&fs, "d");
    let removed = getattr(&fs, dir).unwrap();
    assert_eq!((removed.ino, removed.nlink, removed.mode), (dir, 0, 0o755));

    let times = SetAttr {
        atime: Some(SetTime::At(1)),
        mtime: Some(SetTime::At(2)),
        mode: Some(0o711),
        ..SetAttr::default()
    };
    let refused = wait(|done| fs.setattr(SOMEBODY, dir, times.clone(), done)).unwrap_err();
    assert_eq!(refused.errno, libc::EPERM);
    wait(|done| fs.setattr(Caller::ROOT, dir, times, done)).unwrap();
    let changed = getattr(&fs, dir).unwrap();
    assert_eq!((changed.atime, changed.mtime, changed.mode), (1, 2, 0o711));

    let access =
        |mask| wait(|done| fs.access(SOMEBODY, dir, mask, done)).map_err(|error| error.errno);
    assert_eq!((access(1), access(4)), (Ok(()), Err(libc::EACCES)));
    let inside =
        wait(|done| fs.mkdir(Caller::ROOT, PathRef::new(dir, name("x")), 0o755, done)).unwrap_err();
    assert_eq!(inside.errno, libc::ENOENT);
    let value = wait(|done| fs.getxattr(Caller::ROOT, dir, (*b"user.a").into(), done)).unwrap_err();
    assert_eq!(value.errno, libc::ENODATA);
    assert!(wait(|done| fs.listxattr(Caller::ROOT, dir, done)).unwrap().is_empty());

    fs.forget(dir, 1);
    assert_eq!(getattr(&fs, dir).unwrap_err().errno, libc::ESTALE);
    fs.shutdown().unwrap();
}

/// An unlinked file that is closed answers with the attributes that it had at its close.
#[test]
fn attributes_of_unlinked_and_closed_file() {
    let (fs, _) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "f");
    unlink(&fs, "f");
    fs.write(&file, 0, b"bytes", false).unwrap();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    wait(|done| fs.setattr(Caller::ROOT, file.ino(), mode, done)).unwrap();
    let ino = file.ino();
    wait(|done| fs.release(file, done)).unwrap();
    let last = getattr(&fs, ino).unwrap();
    assert_eq!((last.size, last.mode, last.nlink), (5, 0o600, 0));

    // Its content is gone.
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(
        wait(|done| fs.setattr(Caller::ROOT, ino, size, done)).unwrap_err().errno,
        libc::ESTALE
    );
    let reopened = wait(|done| fs.open(Caller::ROOT, ino, common::READ_WRITE, done)).unwrap_err();
    assert_eq!(reopened.errno, libc::ESTALE);
    fs.shutdown().unwrap();
}

/// What a rename replaces counts as removed, and a file that loses one of several names does not.
#[test]
fn link_counts_after_rename_and_unlink() {
    let (fs, _) = file_system(Arc::new(MemoryStore::new()));
    let (replaced, moving) = (mkdir(&fs, "old"), mkdir(&fs, "new"));
    let rename = |flags| {
        wait(|done| {
            fs.rename(
                Caller::ROOT,
                PathRef::new(ROOT, name("new")),
                PathRef::new(ROOT, name("old")),
                flags,
                done,
            )
        })
        .unwrap();
    };
    rename(RenameFlags { exchange: true, ..RenameFlags::default() });
    assert_eq!(getattr(&fs, replaced).unwrap().nlink, 2);
    rename(RenameFlags::default());
    assert_eq!(
        (getattr(&fs, replaced).unwrap().nlink, getattr(&fs, moving).unwrap().nlink),
        (2, 0)
    );

    let target =
        wait(|done| fs.symlink(Caller::ROOT, PathRef::new(ROOT, name("s")), b"target", done))
            .unwrap()
            .ino;
    wait(|done| fs.link(Caller::ROOT, target, PathRef::new(ROOT, name("t")), done)).unwrap();
    unlink(&fs, "s");
    assert_eq!(getattr(&fs, target).unwrap().nlink, 1);
    unlink(&fs, "t");
    assert_eq!(getattr(&fs, target).unwrap().nlink, 0);
    assert_eq!(&*wait(|done| fs.readlink(Caller::ROOT, target, done)).unwrap(), b"target");
    fs.shutdown().unwrap();
}
