//! Volumes by URL and files by path: links, bursts, and ends of calls.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use kestrel_client::NativeVolume;
use kestrel_client::descriptor::Durability;
use kestrel_client::native::{NativeOptions, OpenHow, SeekFrom};
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::{NewVolume, format};
use kestrel_types::inode::Kind;

fn volume() -> (tempfile::TempDir, NativeVolume) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v").to_string_lossy().into_owned();
    format(&path, NewVolume::plain("v", Durability::Fsync), &StoreOptions::default()).unwrap();
    let volume = NativeVolume::open(&path, &NativeOptions::default()).unwrap();
    (dir, volume)
}

fn write(volume: &NativeVolume, path: &[u8], data: &[u8]) {
    let calls = volume.calls(&|| false);
    let file = calls.open(path, OpenHow::create(0o644)).unwrap();
    calls.write(&file, data).unwrap();
    calls.close(file).unwrap();
}

/// A burst reads small, packed, large, linked and open files, and tells errors in their places.
#[test]
fn burst_of_all_kinds_of_files() {
    let (_dir, volume) = volume();
    let calls = volume.calls(&|| false);
    calls.make_dirs(b"/a/b", 0o755, false).unwrap();
    let large: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
    write(&volume, b"/a/small", b"small");
    write(&volume, b"/a/packed", &large[..70_000]);
    write(&volume, b"/a/large", &large);
    calls.symlink(b"../packed", b"/a/b/link").unwrap();
    let open = calls.open(b"/a/open", OpenHow::create(0o644)).unwrap();
    calls.write(&open, b"not committed").unwrap();
    let paths: [&[u8]; 7] =
        [b"/a/large", b"/a/b/link", b"a/open", b"/a/small", b"/a/no", b"/a/b", b"/a/b/../packed"];
    let read = calls.read_many(&paths);
    assert_eq!(&read[0].as_ref().unwrap()[..], &large[..]);
    assert_eq!(&read[1].as_ref().unwrap()[..], &large[..70_000]);
    assert_eq!(&read[2].as_ref().unwrap()[..], b"not committed");
    assert_eq!(&read[3].as_ref().unwrap()[..], b"small");
    assert_eq!(read[4].as_ref().unwrap_err().errno, libc::ENOENT);
    assert_eq!(read[5].as_ref().unwrap_err().errno, libc::EISDIR);
    assert_eq!(&read[6].as_ref().unwrap()[..], &large[..70_000]);
    let stats = calls.stat_many(&paths[..3], true);
    assert_eq!(stats[2].as_ref().unwrap().size, 13);
    let lists = calls.list_many(&[b"/a".as_slice(), b"/a/b", b"/a/small"]);
    assert_eq!(lists[0].as_ref().unwrap().len(), 5);
    assert_eq!(lists[1].as_ref().unwrap()[0].kind, Kind::Symlink);
    assert_eq!(lists[2].as_ref().unwrap_err().errno, libc::ENOTDIR);
    calls.close(open).unwrap();
    volume.close().unwrap();
}

/// Links that lead in circles are `ELOOP`, wherever they stand; above the root is the root.
#[test]
fn links_that_lead_in_circles() {
    let (_dir, volume) = volume();
    let calls = volume.calls(&|| false);
    calls.symlink(b"b", b"/a").unwrap();
    calls.symlink(b"a", b"/b").unwrap();
    for path in [b"/a".as_slice(), b"/a/x", b"/a/../b"] {
        assert_eq!(calls.stat(path, true).unwrap_err().errno, libc::ELOOP);
    }
    assert_eq!(calls.open(b"/a", OpenHow::create(0o600)).unwrap_err().errno, libc::ELOOP);
    assert_eq!(calls.stat(b"/a", false).unwrap().kind, Kind::Symlink);
    assert_eq!(calls.stat(b"/../..", true).unwrap().kind, Kind::Dir);
}

/// The position of a file moves with reads and writes, and is never before the start.
#[test]
fn position_of_a_file() {
    let (_dir, volume) = volume();
    let calls = volume.calls(&|| false);
    let how = OpenHow::from_flags(libc::O_RDWR | libc::O_CREAT, 0o600).unwrap();
    let file = calls.open(b"/file", how).unwrap();
    calls.write(&file, b"0123456789").unwrap();
    assert_eq!(calls.seek(&file, SeekFrom::End(-3)), Ok(7));
    let mut room = [0; 8];
    assert_eq!(calls.read(&file, &mut room), Ok(3));
    assert_eq!(&room[..3], b"789");
    assert_eq!(calls.seek(&file, SeekFrom::Current(-11)).unwrap_err().errno, libc::EINVAL);
    assert_eq!(calls.seek(&file, SeekFrom::Current(0)), Ok(10));
    calls.file_truncate(&file, 4).unwrap();
    assert_eq!(calls.file_stat(&file).unwrap().size, 4);
    calls.close(file).unwrap();
}

/// Users of one URL share a volume, which the last of them closes.
#[test]
fn volume_with_several_users() {
    let (dir, first) = volume();
    let path = dir.path().join("v").to_string_lossy().into_owned();
    first.close().unwrap();
    assert_eq!(first.calls(&|| false).list(b"/").unwrap_err().errno, libc::EBADF);
    drop(first);
    let options = NativeOptions::default();
    let open = || NativeVolume::open_shared(&path, &options, &|| false).unwrap().unwrap();
    let (one, other) = (open(), open());
    assert!(std::sync::Arc::ptr_eq(&one, &other));
    one.give_back().unwrap();
    write(&other, b"/file", b"1");
    other.give_back().unwrap();
    let again = open();
    assert_eq!(again.calls(&|| false).list(b"/").unwrap().len(), 1);
    again.give_back().unwrap();
}
