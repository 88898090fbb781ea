//! Whole copies: made, found, damaged, without room, evicted.

#![allow(clippy::unwrap_used)] // What a test cannot do is a failed test.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_blockstore::store::local::{LocalConfig, LocalStore};
use kestrel_cache::{CacheOptions, CachedStore, DiskFaults, DiskOp, WholeCopies, WholeId};
use parking_lot::Mutex;

const VOLUME: [u8; 16] = [3; 16];
const MIB: u64 = 1 << 20;

/// Fails one kind of operation while the test wants it.
#[derive(Default)]
struct Faults(Mutex<Option<(DiskOp, i32)>>);

impl DiskFaults for Faults {
    fn before(&self, op: DiskOp, _: &Path) -> std::io::Result<()> {
        match *self.0.lock() {
            Some((failing, errno)) if failing == op => {
                Err(std::io::Error::from_raw_os_error(errno))
            }
            _ => Ok(()),
        }
    }
}

struct Kit {
    dir: tempfile::TempDir,
    faults: Arc<Faults>,
}

impl Kit {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("objects")).unwrap();
        LocalStore::create(&dir.path().join("objects"), LocalConfig::default()).unwrap();
        Self { dir, faults: Arc::default() }
    }

    /// As another process would open it, of another volume if need be.
    fn open(&self, volume: [u8; 16], bytes: u64) -> CachedStore {
        let store =
            LocalStore::open(&self.dir.path().join("objects"), LocalConfig::default()).unwrap();
        let mut options = CacheOptions::new(vec![self.dir.path().join("cache")]);
        options.bytes = bytes;
        options.free_space_ratio = 0.0;
        options.faults = Some(self.faults.clone());
        CachedStore::open(Arc::new(store), volume, options).unwrap()
    }

    fn names(&self) -> Vec<PathBuf> {
        let volume: String = VOLUME.iter().map(|byte| format!("{byte:02x}")).collect();
        let entries = fs::read_dir(self.dir.path().join("cache").join(volume).join("whole"));
        entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

const ROOM: u64 = 1 << 30;

fn id(ino: u64, change: u64, bytes: &[u8]) -> WholeId {
    WholeId { ino, change, size: bytes.len() as u64 }
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

fn try_make(copies: &WholeCopies, id: WholeId, bytes: &[u8]) -> std::io::Result<()> {
    let mut writer = copies.create(id)?;
    bytes.chunks(700_001).try_for_each(|part| writer.append(part))?;
    writer.finish()
}

/// Makes a copy. A count of the directory that goes on meanwhile may count what is written twice,
/// so the cache may refuse room that it has: then this begins again, as readers do.
fn make(copies: &WholeCopies, id: WholeId, bytes: &[u8]) {
    for _ in 0..1000 {
        match try_make(copies, id, bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            made => return made.unwrap(),
        }
    }
    panic!("the cache never had room for {id:?}");
}

fn check(copies: &WholeCopies, id: &WholeId) -> bool {
    copies.check(id, &|| true).unwrap()
}

/// A whole copy is found once it was checked, and only by its own identity.
#[test]
fn lookup_of_checked_whole_copies() {
    let kit = Kit::new();
    let bytes = content(1, 3 * MIB as usize + 5);
    let this = id(7, 100, &bytes);
    let store = kit.open(VOLUME, ROOM);
    let copies = store.whole_copies();
    copies.probe().unwrap();
    assert!(!check(&copies, &this));
    make(&copies, this, &bytes);
    assert!(copies.is_there(&this) && copies.find(&this).is_none(), "nobody has checked it");
    assert!(check(&copies, &this));
    let copy = copies.find(&this).unwrap();
    let mut found = vec![0; bytes.len()];
    copy.file().read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
    for other in [id(8, 100, &bytes), id(7, 101, &bytes), id(7, 100, &bytes[1..])] {
        assert!(!check(&copies, &other) && copies.find(&other).is_none(), "{other:?}");
    }
    // Another process finds it too, checks it, and gets it when this one does not use it.
    let second = kit.open(VOLUME, ROOM);
    let theirs = second.whole_copies();
    assert!(theirs.find(&this).is_none());
    drop(copy);
    assert!(check(&theirs, &this) && theirs.find(&this).is_some());
}

/// A whole copy has one user at a time, and that user may unlink it.
#[test]
fn whole_copy_with_one_user() {
    let kit = Kit::new();
    let bytes = content(2, MIB as usize);
    let this = id(9, 1, &bytes);
    let (first, second) = (kit.open(VOLUME, ROOM), kit.open(VOLUME, ROOM));
    let (ours, theirs) = (first.whole_copies(), second.whole_copies());
    make(&ours, this, &bytes);
    assert!(check(&ours, &this) && check(&theirs, &this));
    let copy = ours.find(&this).unwrap();
    assert!(ours.find(&this).is_none() && theirs.find(&this).is_none());
    assert!(!copy.is_in_use().unwrap());
    let reader = fs::File::open(&kit.names()[0]).unwrap();
    assert!(copy.is_in_use().unwrap(), "open elsewhere");
    drop(reader);
    copy.take_away().unwrap();
    copy.take_away().unwrap();
    copy.write(5, b"other").unwrap();
    copy.zero(0..4).unwrap();
    assert!(kit.names().is_empty());
    // A new one of the same content is not taken away with it.
    make(&theirs, this, &bytes);
    copy.take_away().unwrap();
    assert_eq!(kit.names().len(), 1);
    assert!(check(&theirs, &this));
    drop(copy);
    assert!(ours.find(&this).is_none(), "not the file that was checked here");
    assert!(check(&ours, &this) && ours.find(&this).is_some());
}

/// Copies that are damaged or of something else are removed before their first use.
#[test]
fn removal_of_damaged_and_foreign_copies() {
    let kit = Kit::new();
    let bytes = content(3, 2 * MIB as usize + 77);
    let this = id(5, 50, &bytes);
    type Harm<'a> = (&'a str, &'a dyn Fn(&Path));
    let harms: [Harm<'_>; 6] = [
        ("a bit", &|path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&[bytes[4097] ^ 1], 4097).unwrap();
        }),
        ("cut off", &|path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap()
        }),
        ("longer", &|path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(this.size + 1).unwrap();
        }),
        ("without its label", &|path| {
            let copy = fs::read(path).unwrap();
            fs::remove_file(path).unwrap();
            fs::write(path, copy).unwrap();
        }),
        ("renamed from another file's", &|path| {
            let store = kit.open(VOLUME, ROOM);
            let other = content(4, bytes.len());
            make(&store.whole_copies(), id(6, 50, &other), &other);
            let from = path.with_file_name(format!("{:016x}-{:016x}", 6, 50));
            fs::rename(from, path).unwrap();
        }),
        ("of another volume", &|path| {
            let store = kit.open([4; 16], ROOM);
            make(&store.whole_copies(), this, &bytes);
            let volume: String = [4u8; 16].iter().map(|byte| format!("{byte:02x}")).collect();
            let from = kit
                .dir
                .path()
                .join("cache")
                .join(volume)
                .join("whole")
                .join(path.file_name().unwrap());
            fs::rename(from, path).unwrap();
        }),
    ];
    for (what, harm) in harms {
        make(&kit.open(VOLUME, ROOM).whole_copies(), this, &bytes);
        harm(&kit.names()[0]);
        let store = kit.open(VOLUME, ROOM);
        let copies = store.whole_copies();
        assert!(!check(&copies, &this), "{what}");
        assert!(copies.find(&this).is_none() && kit.names().is_empty(), "{what}");
    }
}

#[test]
fn what_is_not_finished_leaves_nothing() {
    let kit = Kit::new();
    let bytes = content(5, MIB as usize * 2);
    let store = kit.open(VOLUME, ROOM);
    let copies = store.whole_copies();
    let mut writer = copies.create(id(1, 1, &bytes)).unwrap();
    writer.append(&bytes[..100]).unwrap();
    assert!(kit.names().is_empty());
    assert!(writer.finish().is_err(), "bytes are missing");
    let mut writer = copies.create(id(1, 1, &bytes)).unwrap();
    writer.append(&bytes).unwrap();
    assert!(writer.append(b"x").is_err(), "more than the file has");
    for op in [DiskOp::Write, DiskOp::Written] {
        let mut writer = copies.create(id(1, 1, &bytes)).unwrap();
        writer.append(&bytes[..100]).unwrap();
        *kit.faults.0.lock() = Some((op, libc::EIO));
        assert!(writer.append(&bytes[100..]).and_then(|()| writer.finish()).is_err(), "{op:?}");
        *kit.faults.0.lock() = None;
    }
    assert!(kit.names().is_empty());
    // A newer content takes the place of the older.
    make(&copies, id(1, 1, &bytes), &bytes);
    make(&copies, id(1, 2, &bytes), &bytes);
    assert_eq!(kit.names().len(), 1);
    assert!(!copies.is_there(&id(1, 1, &bytes)) && copies.evict(1) >= bytes.len() as u64);
    assert!(kit.names().is_empty());
}

/// Without room there is no copy, and an eviction leaves readers their bytes.
#[test]
fn whole_copies_without_room() {
    let kit = Kit::new();
    let bytes = content(6, 4 * MIB as usize);
    let store = kit.open(VOLUME, 16 * MIB);
    let copies = store.whole_copies();
    assert_eq!(copies.bytes_max(), 4 * MIB);
    let large = WholeId { ino: 99, change: 1, size: 32 * MIB };
    // More than there ever is: it is not waited for.
    let full = copies.create(large).err().unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    make(&copies, id(1, 1, &bytes), &bytes);
    assert!(check(&copies, &id(1, 1, &bytes)));
    let used = copies.find(&id(1, 1, &bytes)).unwrap();
    // More than there is room for: the oldest go, also the one in use; its bytes stay with the
    // process that has it open.
    let held = || -> u64 { kit.names().iter().map(|path| fs::metadata(path).unwrap().len()).sum() };
    for ino in 2..30 {
        make(&copies, id(ino, 1, &bytes), &bytes);
        // A count of what is there that goes on meanwhile misses the latest, until the next one.
        if ino >= 11 && held() <= 17 * MIB {
            break;
        }
    }
    assert!(held() <= 17 * MIB, "{}", held());
    assert!(!copies.is_there(&id(1, 1, &bytes)), "the oldest is gone");
    let mut found = vec![0; bytes.len()];
    used.file().read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
}
