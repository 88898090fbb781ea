//! The directory as a store: contract, cursors, limits, damage, a full file system.

use std::ffi::CString;

use proptest::prelude::*;

use super::*;
use crate::store::list_all;

fn slices<'a>(parts: &'a [&'a [u8]]) -> Vec<IoSlice<'a>> {
    parts.iter().map(|part| IoSlice::new(part)).collect()
}

fn read(store: &dyn BlockStore, object: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    let (head, tail) = out.split_at_mut(len / 3);
    store.read(object, offset, &mut [IoSliceMut::new(head), IoSliceMut::new(tail)])?;
    Ok(out)
}

#[test]
fn objects_are_written_once_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("objects");
    let store = LocalStore::create(&path, LocalConfig::default()).unwrap();
    store.put(7, &slices(&[b"hello ", b"", b"world"])).unwrap();
    assert!(matches!(store.put(7, &slices(&[b"x"])), Err(Error::Exists { object: 7 })));
    assert_eq!(read(&store, 7, 0, 11).unwrap(), b"hello world");
    assert_eq!(read(&store, 7, 6, 5).unwrap(), b"world");
    assert_eq!(store.size(7).unwrap(), 11);
    assert!(matches!(read(&store, 7, 6, 6), Err(Error::Corrupt { object: 7, .. })));
    assert!(matches!(read(&store, 8, 0, 1), Err(Error::NotFound { object: 8 })));
    let mut out = [0; 11];
    let nowait = store.try_read_nowait(7, 0, &mut [IoSliceMut::new(&mut out)]).unwrap();
    assert_eq!((nowait, &out), (Some(()), b"hello world"));
    assert!(matches!(
        store.try_read_nowait(8, 0, &mut [IoSliceMut::new(&mut out)]),
        Ok(None) | Err(Error::NotFound { object: 8 })
    ));
    store.sync().unwrap();
    drop(store);
    let store = LocalStore::open(&path, LocalConfig::default()).unwrap();
    assert_eq!(read(&store, 7, 0, 11).unwrap(), b"hello world");
    assert!(store.delete(7).unwrap());
    assert!(!store.delete(7).unwrap());
    assert!(matches!(read(&store, 7, 0, 1), Err(Error::NotFound { object: 7 })));
    assert!(LocalStore::create(&path, LocalConfig::default()).is_err(), "not empty");
    assert!(LocalStore::open(&dir.path().join("nothing"), LocalConfig::default()).is_err());
}

/// Appended bytes are readable at once, and stay when the object is sealed.
#[test]
fn reads_of_appended_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
    let mut pack = store.appends().unwrap().create(9).unwrap();
    assert_eq!(pack.append(&slices(&[b"abc"])).unwrap(), 0);
    assert_eq!(read(&store, 9, 0, 3).unwrap(), b"abc");
    assert_eq!(pack.append(&slices(&[b"de", b"f"])).unwrap(), 3);
    store.sync_objects(&[9]).unwrap();
    assert_eq!(pack.len(), 6);
    drop(pack);
    assert_eq!(read(&store, 9, 0, 6).unwrap(), b"abcdef");
    assert!(store.appends().unwrap().create(9).is_err());
    assert_eq!(store.usage().unwrap().written, 6);
}

#[test]
fn more_buffers_than_one_call_takes() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let parts: Vec<IoSlice<'_>> = bytes.chunks(2).map(IoSlice::new).collect();
    store.put(1, &parts).unwrap();
    let mut out = vec![0u8; 5000];
    let mut bufs: Vec<IoSliceMut<'_>> = out.chunks_mut(3).map(IoSliceMut::new).collect();
    store.read(1, 0, &mut bufs).unwrap();
    assert_eq!(out, bytes);
}

/// A listing is complete in pages of any size, and names files that are no objects.
#[test]
fn listing_in_pages_with_unknown_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
    let memory = crate::store::MemoryStore::new();
    for object in 1..=300 {
        store.put(object, &slices(&[&[1; 3]])).unwrap();
        memory.put(object, &slices(&[&[1; 3]])).unwrap();
    }
    let leftover = dir.path().join("56/0000000000000001.tmp");
    std::fs::write(&leftover, b"?").unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    for limit in [1, 2, 7, 299, 300, 301, 5000] {
        let (mut found, mut unknown, mut after) = (Vec::new(), Vec::new(), None);
        loop {
            let page = store.list(after.as_deref(), limit).unwrap();
            assert!(page.objects.len() <= limit);
            found.extend(page.objects.iter().map(|info| info.object));
            unknown.extend(page.unknown);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(unknown, ["objects/lost+found", "objects/56/0000000000000001.tmp"]);
        let expected: Vec<ObjectId> = list_all(&memory)
            .flat_map(|page| page.unwrap().objects)
            .map(|info| info.object)
            .collect();
        assert_eq!(found, expected, "limit {limit}");
    }
    assert!(store.list(Some("nonsense"), 5).is_err());
}

#[test]
fn descriptors_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        LocalStore::open(dir.path(), LocalConfig { files_open_max: 32, reserve_bytes: 0 }).unwrap();
    for object in 1..=600 {
        store.put(object, &slices(&[b"x"])).unwrap();
    }
    for object in 1..=600 {
        read(&store, object, 0, 1).unwrap();
    }
    assert!(store.cache.len() <= 32);
    store.sync().unwrap();
}

#[test]
fn concurrent_writers_and_syncers() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..20 {
                    let object = 1 + thread * 1000 + i;
                    store.put(object, &slices(&[&object.to_be_bytes()])).unwrap();
                    if i % 5 == 0 {
                        store.sync().unwrap();
                    } else {
                        store.sync_objects(&[object]).unwrap();
                    }
                    assert_eq!(read(store, object, 0, 8).unwrap(), object.to_be_bytes());
                }
            });
        }
    });
}

/// A small tmpfs: skipped where mounting is not allowed.
#[test]
fn a_full_file_system_gives_no_space_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let target = CString::new(dir.path().to_str().unwrap()).unwrap();
    // SAFETY: all pointers are C strings that outlive the call.
    let mounted = unsafe {
        libc::mount(
            c"kestrel-test".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            c"size=1m".as_ptr().cast(),
        )
    };
    if mounted != 0 {
        return;
    }
    let store = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
    let mut pack = store.appends().unwrap().create(1).unwrap();
    pack.append(&slices(&[&[1; 600_000]])).unwrap();
    let full = pack.append(&slices(&[&[2; 600_000]])).unwrap_err();
    assert_eq!(full.kind(), crate::ErrorKind::NoSpace);
    assert_eq!(store.size(1).unwrap(), 600_000);
    let full = store.put(2, &slices(&[&[3; 900_000]])).unwrap_err();
    assert_eq!(full.kind(), crate::ErrorKind::NoSpace);
    assert!(matches!(store.size(2), Err(Error::NotFound { .. })));
    assert_eq!(read(&store, 1, 0, 600_000).unwrap(), vec![1; 600_000]);
    store.put(3, &slices(&[&[3; 100_000]])).unwrap();
    store.sync().unwrap();
    drop((pack, store));
    // SAFETY: `target` is a C string that outlives the call.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn any_split_into_buffers_is_the_same_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 1..3000),
        write in 1..400usize,
        skip in 0..3000usize,
        parts in 1..400usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
        let written: Vec<IoSlice<'_>> = bytes.chunks(write).map(IoSlice::new).collect();
        store.put(1, &written).unwrap();
        let skip = skip % bytes.len();
        let mut out = vec![0; bytes.len() - skip];
        let mut bufs: Vec<IoSliceMut<'_>> = out.chunks_mut(parts).map(IoSliceMut::new).collect();
        store.read(1, skip as u64, &mut bufs).unwrap();
        drop(bufs);
        prop_assert_eq!(&out[..], &bytes[skip..]);
    }
}
