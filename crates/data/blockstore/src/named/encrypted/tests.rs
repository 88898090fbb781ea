use zeroize::Zeroizing;

use super::*;
use crate::named::{MemoryNamed, NamedFault};
use crate::store::coded::DataKey;

const VOLUME: VolumeId = [7; 16];

fn keys(numbers: &[u32], write: Option<u32>, is_plain_allowed: bool) -> Keys {
    let key = |number: &u32| (*number, DataKey::new(Zeroizing::new([*number as u8; 32])));
    Keys::new(numbers.iter().map(key).collect(), write, is_plain_allowed).unwrap()
}

fn store(inner: &Arc<MemoryNamed>, keys: Keys) -> EncryptedNamed {
    EncryptedNamed::new(inner.clone(), VOLUME, keys)
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|at| (at * 31 / 7) as u8).collect::<Vec<u8>>().into()
}

/// Objects of sizes around those of chunks are read back, whole and in ranges, and have none of
/// their bytes below.
#[test]
fn objects_and_ranges() {
    let inner = Arc::<MemoryNamed>::default();
    let store = store(&inner, keys(&[1, 2], Some(2), false));
    for len in [0, 1, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES, 90_000] {
        let (name, plain) = (format!("data/{len}"), bytes(len));
        assert!(store.create(&name, plain.clone()).unwrap());
        assert_eq!(store.read(&name).unwrap().unwrap().bytes, plain);
        let stored = inner.read(&name).unwrap().unwrap().bytes;
        let piece = &plain[..len.min(64)];
        assert!(len < 64 || !stored.windows(64).any(|window| window == piece), "{len}");
        for offset in [0, 1, len / 2, CHUNK_BYTES - 1, CHUNK_BYTES, len.saturating_sub(1), len] {
            for wanted in [0, 1, 17, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, len] {
                let read = store.read_range(&name, offset as u64, wanted as u64).unwrap();
                let begin = offset.min(len);
                let right = &plain[begin..(begin + wanted).min(len)];
                assert_eq!(read, right, "{len}: {wanted} from {offset} on");
            }
        }
    }
}

/// A flipped bit, a cut, a chunk or object of another name, place, volume or write: nothing of it
/// is taken for what was written.
#[test]
fn changed_objects() {
    let inner = Arc::<MemoryNamed>::default();
    let keys = keys(&[1], Some(1), false);
    let store = store(&inner, keys.clone());
    let plain = bytes(2 * CHUNK_BYTES + 10);
    let put = |bytes: &[u8]| {
        inner.remove("a").unwrap();
        assert!(inner.create("a", Bytes::copy_from_slice(bytes)).unwrap());
    };
    assert!(store.create("a", plain.clone()).unwrap());
    let good = inner.read("a").unwrap().unwrap().bytes.to_vec();
    let is_refused = |what: &str| {
        assert!(store.read("a").is_err(), "{what}");
        let range = store.read_range("a", 0, plain.len() as u64);
        assert!(range.is_err() || range.unwrap().len() < plain.len(), "{what}: in a range");
    };
    for at in (0..good.len()).step_by(97).chain(0..80).chain(good.len() - 80..good.len()) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        put(&bad);
        assert!(store.read("a").is_err(), "byte {at}");
        // Ranges do not need the header.
        if at >= HEADER_BYTES {
            assert!(store.read_range("a", 0, plain.len() as u64).is_err(), "byte {at}");
        }
    }
    for len in [0, 5, HEADER_BYTES, HEADER_BYTES + 9, HEADER_BYTES + STORED_BYTES, good.len() - 1] {
        put(&good[..len]);
        is_refused(&format!("{len} bytes"));
    }
    assert!(store.create("b", plain.clone()).unwrap());
    let other = inner.read("b").unwrap().unwrap().bytes.to_vec();
    put(&other);
    is_refused("another name");
    let two = HEADER_BYTES + STORED_BYTES;
    let first = [&good[..HEADER_BYTES], &good[two..], &good[HEADER_BYTES..two]].concat();
    put(&first);
    is_refused("chunks in another order");
    inner.remove("a").unwrap();
    assert!(store.create("a", plain.clone()).unwrap());
    let again = inner.read("a").unwrap().unwrap().bytes.to_vec();
    assert_ne!(again, good);
    put(&[&again[..two], &good[two..]].concat());
    is_refused("chunks of two writes");
    put(&good);
    assert_eq!(store.read("a").unwrap().unwrap().bytes, plain);
    let elsewhere = EncryptedNamed::new(inner, [8; 16], keys);
    assert!(elsewhere.read("a").is_err());
    assert_eq!((encrypted_volume(&good), encrypted_volume(&plain)), (Some(VOLUME), None));
}

/// Objects with names that are left out are as they were written, also where all others must be
/// encrypted.
#[test]
fn names_left_in_the_clear() {
    let inner = Arc::<MemoryNamed>::default();
    let store = store(&inner, keys(&[1], Some(1), false)).leaving(|name| name.ends_with("/holder"));
    assert!(store.create("meta/0/holder", bytes(100)).unwrap());
    assert_eq!(inner.read("meta/0/holder").unwrap().unwrap().bytes, bytes(100));
    assert_eq!(store.read("meta/0/holder").unwrap().unwrap().bytes, bytes(100));
    assert_eq!(store.read_range("meta/0/holder", 5, 10).unwrap(), bytes(100).slice(5..15));
}

/// Bytes that were damaged on their way are read again.
#[test]
fn damage_on_the_way() {
    struct Damaging(Arc<MemoryNamed>, Mutex<u32>);
    impl Damaging {
        fn bytes(&self, bytes: Bytes) -> Bytes {
            let mut reads = self.1.lock();
            *reads += 1;
            let mut bytes = bytes.to_vec();
            if *reads % 2 == 1 {
                bytes[HEADER_BYTES + 1] ^= 1;
            }
            bytes.into()
        }
    }
    impl NamedStore for Damaging {
        fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
            self.0.create(name, bytes)
        }
        fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
            self.0.replace(name, bytes, tag)
        }
        fn read(&self, name: &str) -> Result<Option<NamedObject>> {
            let found = self.0.read(name)?;
            Ok(found.map(|found| NamedObject { bytes: self.bytes(found.bytes), ..found }))
        }
        fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
            Ok(self.bytes(self.0.read_range(name, offset, len)?))
        }
        fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
            self.0.list(below)
        }
        fn remove(&self, name: &str) -> Result<()> {
            self.0.remove(name)
        }
        fn shown(&self) -> &str {
            self.0.shown()
        }
    }
    let inner = Arc::new(Damaging(Arc::default(), Mutex::new(0)));
    let store = EncryptedNamed::new(inner, VOLUME, keys(&[1], Some(1), false));
    assert!(store.create("a", bytes(500)).unwrap());
    assert_eq!(store.read("a").unwrap().unwrap().bytes, bytes(500));
    assert_eq!(store.read_range("a", 3, 90).unwrap(), bytes(500).slice(3..93));
}

/// A call that is made again after its answer was lost finds its own object, which has other random
/// bytes; that of another writer is told apart.
#[test]
fn repeated_calls() {
    let inner = Arc::<MemoryNamed>::default();
    let store = store(&inner, keys(&[1], Some(1), false));
    let mut calls = 0;
    inner.decide(move |verb, _| {
        calls += u32::from(verb != "read");
        if verb != "read" && calls % 2 == 1 { NamedFault::After } else { NamedFault::None }
    });
    assert!(store.create("a", bytes(10)).is_err());
    assert!(store.create("a", bytes(10)).unwrap());
    let found = store.read("a").unwrap().unwrap();
    assert!(store.replace("a", bytes(11), &found.tag).is_err());
    let tag = store.replace("a", bytes(11), &found.tag).unwrap().unwrap();
    assert_eq!(store.read("a").unwrap().unwrap().tag, tag);
    assert!(store.replace("a", bytes(12), &found.tag).is_err());
    assert!(store.replace("a", bytes(12), &found.tag).unwrap().is_none());
    assert!(store.create("a", bytes(13)).is_err());
    assert!(!store.create("a", bytes(13)).unwrap());
}

/// A store of a volume that was encrypted later has both; one that always was refuses what is not,
/// and keys are missed by their number.
#[test]
fn objects_in_the_clear() {
    let inner = Arc::<MemoryNamed>::default();
    let plain = store(&inner, keys(&[1], None, true));
    assert!(plain.create("old", bytes(40_000)).unwrap());
    assert_eq!(inner.read("old").unwrap().unwrap().bytes, bytes(40_000));
    let mixed = store(&inner, keys(&[1, 2], Some(2), true));
    assert!(mixed.create("new", bytes(40_001)).unwrap());
    for store in [&plain, &mixed] {
        assert_eq!(store.read("old").unwrap().unwrap().bytes, bytes(40_000));
        assert_eq!(store.read_range("old", 5, 20_000).unwrap(), bytes(40_000).slice(5..20_005));
    }
    assert_eq!(mixed.read_range("new", 5, 20_000).unwrap(), bytes(40_001).slice(5..20_005));
    let why = plain.read("new").unwrap_err().to_string();
    assert!(why.contains("data key 2"), "{why}");
    let strict = store(&inner, keys(&[1, 2], Some(2), false));
    for why in [strict.read("old").unwrap_err(), strict.read_range("old", 0, 9).unwrap_err()] {
        assert!(why.to_string().contains("it is not encrypted"), "{why}");
    }
}

/// An object of a newer format is refused by that, also in a range.
#[test]
fn newer_object() {
    let inner = Arc::<MemoryNamed>::default();
    let store = store(&inner, keys(&[1], Some(1), true));
    let mut newer = header(&VOLUME).to_vec();
    newer[11] = 2;
    newer.extend_from_slice(&[0; 100]);
    assert!(inner.create("a", newer.into()).unwrap());
    for why in [store.read("a").unwrap_err(), store.read_range("a", 0, 10).unwrap_err()] {
        assert!(why.to_string().contains("format 2"), "{why}");
    }
}

/// The format, byte by byte: what another program must read.
#[test]
fn pinned_object() {
    let inner = Arc::<MemoryNamed>::default();
    let store = store(&inner, keys(&[1], Some(1), false));
    let object = store.encrypt_with("meta/0/manifest", b"hello", 1, &[9; SALT_BYTES]).unwrap();
    let hex: String = object.iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!("4b5354454e434e0a0000000100004000{}", "07".repeat(16));
    let chunk = ["00000001", &"09".repeat(32), "ba7981a48dd3849c69c204259014745cbfe4d1b6d2"];
    assert_eq!(hex, format!("{head}{}", chunk.concat()));
    assert!(inner.create("meta/0/manifest", object).unwrap());
    assert_eq!(&store.read("meta/0/manifest").unwrap().unwrap().bytes[..], b"hello");
}
