//! The requests to a remote store below, and to the cache below.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::store::{LocalCache, Page, PutOptions, Usage};

/// Claims to be remote and to have a cache; counts the requests that it gets.
struct Remote {
    inner: MemoryStore,
    requests: AtomicU64,
    bytes: AtomicU64,
    cached: Mutex<Vec<(u64, u64)>>,
    /// How long an answer takes.
    pause: Mutex<Duration>,
}

impl Remote {
    fn new() -> Self {
        let (requests, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            inner: MemoryStore::put_only(),
            requests,
            bytes,
            cached: Mutex::default(),
            pause: Mutex::default(),
        }
    }

    fn count(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let pause = *self.pause.lock();
        std::thread::sleep(pause);
    }

    /// Requests since the last call, and the bytes that they were for.
    fn take_counts(&self) -> (u64, u64) {
        (self.requests.swap(0, Ordering::Relaxed), self.bytes.swap(0, Ordering::Relaxed))
    }
}

impl BlockStore for Remote {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        self.inner.put(object, parts)
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.count(crate::store::total_len(parts));
        self.inner.read(object, offset, parts)
    }

    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.count(out.len());
        self.inner.read_up_to(object, offset, out)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn near(&self) -> Option<&dyn LocalCache> {
        Some(self)
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.count(0);
        self.inner.size(object)
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        self.inner.delete(object)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.inner.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.inner.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }
}

/// One object's cached spans.
impl LocalCache for Remote {
    fn fill(&self, _: ObjectId, offset: u64, len: u64) -> Result<()> {
        self.cached.lock().push((offset, offset + len));
        Ok(())
    }

    fn holds(&self, _: ObjectId, offset: u64, len: u64) -> u64 {
        let spans = self.cached.lock();
        let held = |byte: &u64| spans.iter().any(|(from, until)| (from..until).contains(&byte));
        (offset..offset + len).filter(held).count() as u64
    }

    fn evict(&self, _: ObjectId) -> u64 {
        self.cached.lock().drain(..).map(|(from, until)| until - from).sum()
    }
}

fn store(remote: &Arc<Remote>, compression: Compression) -> CodedStore {
    CodedStore::new(remote.clone(), VOLUME, coding(compression, Some(1)))
}

/// The first read at the beginning of an object takes one request, and each read of an object with
/// its head in memory one.
#[test]
fn requests_for_first_and_later_reads() {
    for compression in [Compression::None, Compression::Zstd(1)] {
        let remote = Arc::new(Remote::new());
        let written = bytes(FIRST + 63 * CHUNK, 1);
        put(&store(&remote, compression), 1, &written);
        let store = store(&remote, compression);
        assert_eq!(read(&store, 1, 80, 4096).unwrap(), written[80..80 + 4096]);
        let (requests, bytes) = remote.take_counts();
        assert!(requests == 1 && bytes < 80_000, "{requests} requests for {bytes} bytes");
        assert_eq!(read(&store, 1, 3 * CHUNK, 2 * CHUNK).unwrap(), written[3 * CHUNK..5 * CHUNK]);
        assert_eq!(remote.take_counts().0, 1);
        // A frame of a block object is one chunk.
        assert_eq!(read(&store, 1, FIRST + 10 * CHUNK, CHUNK).unwrap().len(), CHUNK);
        assert!(remote.take_counts().1 <= CHUNK as u64 + 16);
        assert_eq!(read(&store, 1, 0, written.len()).unwrap(), written);
        assert_eq!(remote.take_counts().0, 1);
        assert_eq!((store.size(1).unwrap(), remote.take_counts().0), (written.len() as u64, 0));
    }
}

/// A first read in the middle of an object takes two requests, and the first read of a small object
/// one.
#[test]
fn requests_for_a_first_read_elsewhere() {
    let remote = Arc::new(Remote::new());
    let written = bytes(FIRST + 20 * CHUNK, 1);
    put(&store(&remote, Compression::Lz4), 1, &written);
    put(&store(&remote, Compression::Lz4), 2, &written[..300]);
    put(&*remote, 3, b"KSTLOBJ\n and what follows");
    let store = store(&remote, Compression::Lz4);
    assert_eq!(read(&store, 1, 15 * CHUNK, 10).unwrap(), written[15 * CHUNK..15 * CHUNK + 10]);
    assert_eq!(remote.take_counts().0, 2);
    assert_eq!(read(&store, 2, 200, 100).unwrap(), written[200..300]);
    assert_eq!(remote.take_counts().0, 1);
    // Objects that are not coded too.
    assert_eq!(read(&store, 3, 8, 4).unwrap(), b" and");
    assert_eq!(remote.take_counts().0, 1);
    assert_eq!(read(&store, 3, 0, 4).unwrap(), b"KSTL");
    assert_eq!(remote.take_counts().0, 1);
    assert!(!store.prefetch(1, 0, 100), "it is decoded ahead into memory");
}

#[test]
fn threads_that_want_the_same_head_share_its_request() {
    let remote = Arc::new(Remote::new());
    let written = bytes(FIRST + 20 * CHUNK, 1);
    put(&store(&remote, Compression::Lz4), 1, &written);
    let store = store(&remote, Compression::Lz4);
    let pause = Duration::from_millis(200);
    *remote.pause.lock() = pause;
    let threads = 8;
    let barrier = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, written, barrier) = (&store, &written, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let at = (12 + thread) * CHUNK;
                assert_eq!(read(store, 1, at, 10).unwrap(), written[at..at + 10]);
            });
        }
    });
    // Threads that the system ran late, after the head was there, read no head either.
    assert_eq!(remote.take_counts().0, 1 + threads as u64);
    // What fails, fails for all and is tried again by the next.
    let missing = || read(&store, 9, 0, 1).unwrap_err();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| assert!(matches!(missing(), Error::NotFound { object: 9 })));
        }
    });
    *remote.pause.lock() = Duration::ZERO;
    put(&store, 9, b"now it is there");
    assert_eq!(read(&store, 9, 0, 3).unwrap(), b"now");
}

#[test]
fn objects_with_long_heads_are_read() {
    let remote = Arc::new(Remote::new());
    let written = bytes(FIRST + 600 * CHUNK, 1);
    put(&store(&remote, Compression::Lz4), 1, &written);
    let store = store(&remote, Compression::Lz4);
    assert_eq!(read(&store, 1, written.len() - 9, 9).unwrap(), written[written.len() - 9..]);
    assert_eq!(remote.take_counts().0, 3, "the head in two, then the chunk");
}

/// The local cache below is filled, and looked into, in offsets of the bytes before coding.
#[test]
fn local_cache_in_offsets_of_plain_bytes() {
    let remote = Arc::new(Remote::new());
    let written = bytes(FIRST + 9 * CHUNK, 4);
    put(&store(&remote, Compression::Zstd(3)), 1, &written);
    let store = store(&remote, Compression::Zstd(3));
    let cached = store.near().unwrap();
    assert_eq!(
        (cached.holds(1, 0, u64::MAX / 2), remote.take_counts().0),
        (0, 0),
        "no request to find out"
    );
    let wanted = (FIRST + CHUNK) as u64;
    cached.fill(1, wanted + 5, CHUNK as u64).unwrap();
    assert_eq!(cached.holds(1, wanted, 2 * CHUNK as u64), 2 * CHUNK as u64);
    assert_eq!(cached.holds(1, 0, written.len() as u64), 2 * CHUNK as u64);
    assert_eq!(cached.holds(1, wanted + 7, 10), 10);
    assert_eq!(cached.holds(1, 0, 10), 0);
    cached.fill(1, 0, written.len() as u64).unwrap();
    assert_eq!(cached.holds(1, 0, u64::MAX), written.len() as u64);
    assert!(cached.evict(1) > 0);
    assert_eq!(cached.holds(1, 0, 10), 0);
    cached.fill(1, written.len() as u64, 10).unwrap();
}

/// A volume with settings that code nothing is read as if there were no layer, until something in
/// it is compressed.
#[test]
fn plain_volume_until_a_compressed_object() {
    let remote = Arc::new(Remote::new());
    let store = CodedStore::of_plain(remote.clone(), VOLUME);
    let content = bytes(300_000, 5);
    for object in 1..=4 {
        put(&store, object, &content);
    }
    let is = |object, offset: usize, len: usize| {
        assert_eq!(read(&store, object, offset, len).unwrap(), content[offset..offset + len]);
    };
    is(1, 200_000, 1000);
    is(1, 0, 1000);
    assert_eq!(remote.take_counts(), (2, 2000));
    assert!(store.near().unwrap().is_plain());
    // Another client compresses one; bytes that make no sense are read again, which finds out.
    let other = CodedStore::of_plain(remote.clone(), VOLUME);
    let parts = [bytes::Bytes::from(content.clone())];
    let zstd = PutOptions { compression: Some(Compression::Zstd(3)), tier: None };
    other.put_with(5, &parts, zstd).unwrap();
    assert_ne!(read(&store, 5, 0, 1000).ok().as_deref(), Some(&content[..1000]));
    remote.take_counts();
    let mut out = vec![0; 1000];
    store.read_fresh(5, 100_000, &mut [IoSliceMut::new(&mut out)]).unwrap();
    assert_eq!(out, content[100_000..101_000]);
    is(5, 250_000, 1000);
    assert!(!store.near().unwrap().is_plain());
    is(2, 200_000, 1000);
    // Those that put one, or are told of one, know it without that.
    let told = CodedStore::of_plain(remote.clone(), VOLUME);
    told.expect_compressed();
    for store in [&other, &told] {
        assert_eq!(read(store, 5, 0, 1000).unwrap(), content[..1000]);
        assert_eq!(read(store, 3, 7, 1000).unwrap(), content[7..1007]);
    }
    let sized = CodedStore::of_plain(remote, VOLUME);
    assert_eq!(sized.size(5).unwrap(), content.len() as u64);
    assert_eq!(read(&sized, 5, 0, 1000).unwrap(), content[..1000]);
}
