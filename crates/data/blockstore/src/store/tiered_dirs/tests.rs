//! Two directories as one store: where objects are, what crashes leave, and disks that are gone.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::store::list_all;

fn store() -> (TieredDirs, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(key::ARCHIVE)).unwrap();
    (open(dir.path()).unwrap(), dir)
}

fn open(dir: &Path) -> Result<TieredDirs> {
    TieredDirs::open(dir, LocalConfig::default())
}

fn move_to(store: &TieredDirs, object: ObjectId, tier: Tier) -> Result<()> {
    store.move_to(object, &store.tier_of(object)?, tier)
}

fn bytes_of(object: ObjectId) -> Vec<u8> {
    vec![object as u8; 100 + object as usize % 300]
}

fn put(store: &TieredDirs, object: ObjectId, tier: Option<Tier>) -> Result<()> {
    let options = PutOptions { compression: None, tier };
    store.put_with(object, &[Bytes::from(bytes_of(object))], options)
}

fn read(store: &TieredDirs, object: ObjectId) -> Vec<u8> {
    let mut out = vec![0; store.size(object).unwrap() as usize];
    store.read(object, 0, &mut [IoSliceMut::new(&mut out)]).unwrap();
    out
}

fn listed(store: &TieredDirs, limit: usize) -> Vec<ObjectId> {
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let page = store.list(after.as_deref(), limit).unwrap();
        assert!(page.objects.len() <= limit && page.unknown.is_empty(), "{page:?}");
        all.extend(page.objects.iter().map(|info| info.object));
        match page.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}

/// Objects go to the tier that is asked for, move there and back, and are read from where they are.
#[test]
fn moves_between_directories() {
    let (store, dir) = store();
    put(&store, 1, None).unwrap();
    put(&store, 2, Some(Tier::Archive)).unwrap();
    let tier = |object| store.tier_of(object).unwrap().tier;
    assert_eq!((tier(1), tier(2)), (Some(Tier::Standard), Some(Tier::Archive)));
    assert!(matches!(put(&store, 1, Some(Tier::Archive)), Err(Error::Exists { .. })));
    // A reader that has the file open goes on, and so does a new one.
    assert_eq!(read(&store, 1), bytes_of(1));
    move_to(&store, 1, Tier::Archive).unwrap();
    move_to(&store, 2, Tier::Standard).unwrap();
    assert_eq!((tier(1), tier(2)), (Some(Tier::Archive), Some(Tier::Standard)));
    for object in [1, 2] {
        assert_eq!(read(&store, object), bytes_of(object));
        assert!(store.tier_of(object).unwrap().is_readable());
    }
    assert!(matches!(move_to(&store, 1, Tier::DeepArchive), Err(Error::NoTier { .. })));
    assert!(matches!(store.tier_of(3), Err(Error::NotFound { .. })));
    assert!(matches!(store.restore(2, 1, RestoreSpeed::Bulk), Err(Error::Invalid { .. })));
    store.sync().unwrap();
    drop(store);
    let store = open(dir.path()).unwrap();
    assert_eq!((read(&store, 1), read(&store, 2)), (bytes_of(1), bytes_of(2)));
    assert!(store.delete(1).unwrap() && !store.delete(1).unwrap());
    assert!(matches!(store.size(1), Err(Error::NotFound { .. })));
}

/// An object that is still appended to stays where it is, whichever process appends: what comes
/// after the move would be lost.
#[test]
fn growing_object_stays() {
    let (store, dir) = store();
    let mut appender = store.appends().unwrap().create(9).unwrap();
    appender.append(&[IoSlice::new(b"one")]).unwrap();
    let other = open(dir.path()).unwrap();
    for mover in [&store, &other] {
        assert!(matches!(move_to(mover, 9, Tier::Archive), Err(Error::InUse { .. })));
    }
    appender.append(&[IoSlice::new(b"two")]).unwrap();
    drop(appender);
    move_to(&other, 9, Tier::Archive).unwrap();
    assert_eq!(store.tier_of(9).unwrap().tier, Some(Tier::Archive));
    assert_eq!((read(&store, 9), read(&other, 9)), (b"onetwo".to_vec(), b"onetwo".to_vec()));
}

/// A number that an object has in either directory is refused in the other, and where two differ
/// all the same none of them goes.
#[test]
fn one_object_of_a_number() {
    let (store, _dir) = store();
    put(&store, 5, Some(Tier::Archive)).unwrap();
    let exists = |done: Result<()>| matches!(done, Err(Error::Exists { object: 5 }));
    assert!(exists(put(&store, 5, None)) && exists(put(&store, 5, Some(Tier::Archive))));
    assert!(exists(store.put(5, &[IoSlice::new(b"other")])));
    assert!(exists(store.appends().unwrap().create(5).map(drop)));
    store.standard.put(5, &[IoSlice::new(b"other")]).unwrap();
    for tier in [Tier::Archive, Tier::Standard] {
        assert!(matches!(move_to(&store, 5, tier), Err(Error::Corrupt { .. })));
    }
    assert_eq!((read(&store, 5), store.archive.size(5).unwrap()), (b"other".to_vec(), 105));
}

/// An object in both directories, as a crash in a move leaves it, is one object: listed once, read,
/// moved either way, deleted.
#[test]
fn interrupted_move() {
    for tier in [Tier::Standard, Tier::Archive] {
        let (store, _dir) = store();
        put(&store, 7, None).unwrap();
        store.archive.take_copy(7, &store.standard).unwrap();
        assert_eq!(listed(&store, 10), [7]);
        assert_eq!(read(&store, 7), bytes_of(7));
        move_to(&store, 7, tier).unwrap();
        assert_eq!(store.tier_of(7).unwrap().tier, Some(tier));
        let counts = (store.standard.size(7).is_ok(), store.archive.size(7).is_ok());
        assert_eq!(counts, (tier == Tier::Standard, tier == Tier::Archive));
        assert_eq!(read(&store, 7), bytes_of(7));
        store.archive.take_copy(7, &store.standard).ok();
        assert!(store.delete(7).unwrap());
        assert!(listed(&store, 10).is_empty());
    }
}

/// A second directory that is not mounted keeps the store from opening: its objects are not lost.
#[test]
fn unmounted_archive() {
    let (store, dir) = store();
    put(&store, 2, Some(Tier::Archive)).unwrap();
    drop(store);
    let (second, elsewhere) = (dir.path().join(key::ARCHIVE), dir.path().join("00.gone"));
    fs::rename(&second, &elsewhere).unwrap();
    assert!(TieredDirs::is_one(dir.path()).unwrap());
    assert!(open(dir.path()).err().unwrap().to_string().contains("mount it"));
    fs::create_dir(&second).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("mount its disk"));
    fs::remove_dir(&second).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &second).unwrap();
    assert_eq!(read(&open(dir.path()).unwrap(), 2), bytes_of(2));
    assert!(!TieredDirs::is_one(tempfile::tempdir().unwrap().path()).unwrap());
}

proptest! {
    /// Pages of any size have every object once, wherever it is.
    #[test]
    fn listings_of_both(
        objects in prop::collection::btree_map(1u64..5000, any::<bool>(), 0..60),
        limit in 1usize..20,
    ) {
        let (store, _dir) = store();
        for (object, archived) in &objects {
            put(&store, *object, archived.then_some(Tier::Archive)).unwrap();
        }
        let pages = listed(&store, limit);
        let all: BTreeSet<_> = pages.iter().copied().collect();
        prop_assert_eq!(pages.len(), all.len());
        prop_assert_eq!(all, objects.keys().copied().collect());
        let whole: usize = list_all(&store).map(|page| page.unwrap().objects.len()).sum();
        prop_assert_eq!(whole, objects.len());
    }
}
