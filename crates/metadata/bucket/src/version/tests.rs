use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::named::{MemoryNamed, NamedStore};
use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_testkit::rng::Rng;
use kestrel_types::entry::Entry;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::stat::DirStat;

use super::*;
use crate::table::{TableHead, TableIdentity};

const VOLUME: [u8; 16] = [7; 16];

fn source() -> VersionSource {
    let snapshot_name = b"s".into();
    VersionSource { dir: 1, snapshot_dir: 1, snapshot: 5, snapshot_name, owned: true }
}

struct World {
    store: Arc<dyn NamedStore>,
    registry: VersionRegistry,
}

impl World {
    fn new() -> Self {
        let store: Arc<dyn NamedStore> = Arc::new(MemoryNamed::default());
        let registry = VersionRegistry::new(VersionPlace::new(store.clone()), VOLUME);
        Self { store, registry }
    }

    /// Writes a version with `rows` and does not publish it.
    fn write(&self, name: &str, id: VersionId, rows: &BTreeMap<u64, Vec<u8>>) -> VersionManifest {
        let mut writer = VersionWriter::begin(self.registry.place(), id).unwrap();
        for (number, value) in rows.iter().rev() {
            let suffix = number.to_be_bytes();
            writer.put(KeyRef::new(Table::Entry, 1, &suffix), value).unwrap();
        }
        let mut manifest = VersionManifest::new(name, &VOLUME, &id, source());
        manifest.rows = writer.rows();
        manifest.runs = writer.finish().unwrap();
        manifest
    }

    fn publish(&self, name: &str, id: VersionId) -> VersionManifest {
        let manifest = self.write(name, id, &BTreeMap::from([(1, vec![1])]));
        assert!(self.registry.publish(&manifest).unwrap());
        manifest
    }
}

/// Changes some bytes, now and then to values at which sums overflow.
fn change(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..rng.range(1, 4) {
        let at = rng.below(bytes.len() as u64) as usize;
        let len = (rng.range(1, 9) as usize).min(bytes.len() - at);
        let any = rng.next_u64() as u8;
        let value = *rng.pick(&[0, 0xff, 0x7f, any]);
        bytes[at..at + len].fill(value);
    }
}

/// Tables that somebody made by hand, with checksums that match: reading them ends in rows or an
/// error, whatever else is in them.
#[test]
fn tables_made_by_hand() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let world = World::new();
        let rows = (0..500u64).map(|number| (number, vec![number as u8; 200])).collect();
        let manifest = world.write("a", [9; 16], &rows);
        let record = manifest.runs[0][0].clone();
        let identity = TableIdentity { uuid: [9; 16], node: NODE, id: record.id };
        let name = VersionPlace::part_of(&[9; 16], &identity.name());
        let mut table = world.store.read_range(&name, 0, record.bytes).unwrap().to_vec();
        let head = record.head as usize;
        let end = table.len();
        if seed % 2 == 0 {
            change(&mut rng, &mut table[head..end - 4]);
            let sum = identity.checksum(record.head, &[&table[head..end - 4]]);
            table[end - 4..].copy_from_slice(&sum.to_le_bytes());
        } else {
            let index = TableHead::decode(identity, record.head, &table[head..]).unwrap();
            let (offset, len) = index.place(rng.below(index.blocks() as u64) as usize).unwrap();
            let (from, to) = (offset as usize, (offset + len) as usize);
            change(&mut rng, &mut table[from..to - 4]);
            let sum = identity.checksum(offset, &[&table[from..to - 4]]);
            table[to - 4..to].copy_from_slice(&sum.to_le_bytes());
        }
        world.store.remove(&name).unwrap();
        assert!(world.store.create(&name, table.into()).unwrap());
        let engine = VersionEngine::new(world.registry.place(), &manifest, 1 << 20).unwrap();
        let _ = engine.scan(Table::Entry, 1, None, &mut |_, _, _| ControlFlow::Continue(()));
        for number in [0u64, 250, 499, u64::MAX] {
            let suffix = number.to_be_bytes();
            let _ = engine.get_many(&[KeyRef::new(Table::Entry, 1, &suffix)], &mut |_, _| ());
        }
    }
}

/// Rows that come in order, so many that they become tables as they come, and others after them:
/// all are there. One that does not come in order is refused.
#[test]
fn rows_that_come_in_order() {
    let world = World::new();
    let mut rng = Rng::new(3);
    let mut expected = Vec::new();
    let mut writer = VersionWriter::begin(world.registry.place(), [9; 16]).unwrap();
    let key = |number: u64| {
        let mut key = Vec::new();
        KeyRef::new(Table::Entry, 1, &number.to_be_bytes()).encode_into(&mut key);
        key
    };
    for number in 0..30_000u64 {
        let value: Vec<u8> = (0..128).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        writer.put_next(&key(2 * number), Some(&value)).unwrap();
        expected.push((2 * number, value));
    }
    assert!(writer.put_next(&key(6), Some(b"again")).is_err());
    for number in [7u64, 3, 5] {
        writer.put_encoded(&key(number), Some(b"odd")).unwrap();
        expected.push((number, b"odd".to_vec()));
    }
    expected.sort();
    let mut manifest = VersionManifest::new("a", &VOLUME, &[9; 16], source());
    manifest.rows = writer.rows();
    assert_eq!(manifest.rows, expected.len() as u64);
    manifest.runs = writer.finish().unwrap();
    assert_eq!(manifest.runs.len(), 2);
    assert!(world.registry.publish(&manifest).unwrap());
    let engine = VersionEngine::new(world.registry.place(), &manifest, 1 << 20).unwrap();
    assert_eq!(all_rows(&engine), expected);
}

fn all_rows(engine: &dyn Engine) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    let visited = engine.scan(Table::Entry, 1, None, &mut |suffix, value, _| {
        let number = u64::from_be_bytes(suffix.try_into().unwrap());
        found.push((number, value.to_vec()));
        ControlFlow::Continue(())
    });
    visited.unwrap();
    found
}

/// Rows that were put in any order are found one by one and by scans, in several tables.
#[test]
fn rows_of_a_version() {
    let world = World::new();
    // Values that do not compress, so that there is more than one table.
    let value = |number: u64| {
        let mut state = number + 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        (0..8000).map(|_| next()).collect::<Vec<u8>>()
    };
    let rows: BTreeMap<u64, Vec<u8>> = (0..5000).map(|number| (number, value(number))).collect();
    let manifest = world.write("a@1", [1; 16], &rows);
    assert!(manifest.tables() > 1 && manifest.rows == 5000);
    assert!(world.registry.publish(&manifest).unwrap());
    let found = world.registry.find("a@1").unwrap().unwrap();
    assert_eq!(found.encode(), manifest.encode());
    let engine = VersionEngine::new(world.registry.place(), &found, 16 << 20).unwrap();
    assert_eq!(all_rows(&engine), rows.into_iter().collect::<Vec<_>>());
    for number in [0u64, 17, 4999, 5000] {
        let suffix = number.to_be_bytes();
        let mut is_there = false;
        engine
            .get_many(&[KeyRef::new(Table::Entry, 1, &suffix)], &mut |_, row| {
                is_there = row.value == Some(&value(number)[..]);
            })
            .unwrap();
        assert_eq!(is_there, number < 5000, "{number}");
    }
}

/// A version that was loaded is read without the store; one that is larger than the memory is
/// loaded in part and read all the same.
#[test]
fn version_loaded_into_memory() {
    let world = World::new();
    let rows: BTreeMap<u64, Vec<u8>> =
        (0..20_000).map(|number: u64| (number, number.to_be_bytes().repeat(20))).collect();
    let manifest = world.write("a", [1; 16], &rows);
    let small = VersionEngine::new(world.registry.place(), &manifest, 1 << 20).unwrap();
    let loaded = small.load().unwrap();
    assert!(loaded.kept > 0 && loaded.kept < loaded.blocks, "{loaded:?}");
    assert!(loaded.bytes <= 1 << 19, "{loaded:?}");
    assert_eq!(all_rows(&small).len(), rows.len());
    let engine = VersionEngine::new(world.registry.place(), &manifest, 64 << 20).unwrap();
    let loaded = engine.load().unwrap();
    assert_eq!(loaded.kept, loaded.blocks);
    for (name, _) in world.store.list("").unwrap() {
        world.store.remove(&name).unwrap();
    }
    assert_eq!(all_rows(&engine), rows.into_iter().collect::<Vec<_>>());
    let why = VersionEngine::new(world.registry.place(), &manifest, 1 << 20);
    let why = why.unwrap().load().unwrap_err();
    assert!(why.to_string().contains("version a: a table is missing"), "{why}");
}

/// What a node commits while it serves a version is seen by it and by no other process.
#[test]
fn commits_stay_in_memory() {
    let world = World::new();
    let manifest = world.publish("a", [1; 16]);
    let engine = VersionEngine::new(world.registry.place(), &manifest, 1 << 20).unwrap();
    let key = Key::new(Table::Entry, 1, &2u64.to_be_bytes());
    let row = Mutation { key, value: Some(Box::from(*b"x")) };
    let position = engine.commit(BatchKind::Growing, vec![row]).unwrap();
    engine.sync().unwrap();
    assert!(engine.durable() >= position);
    assert_eq!(all_rows(&engine).len(), 2);
    let other = VersionEngine::new(world.registry.place(), &manifest, 1 << 20).unwrap();
    assert_eq!(all_rows(&other).len(), 1);
}

/// A name is given once; renaming and removing keep to what has a name.
#[test]
fn names_of_a_registry() {
    let world = World::new();
    let first = world.publish("a@1", [1; 16]);
    world.publish("b@1", [2; 16]);
    let second = world.write("a@1", [3; 16], &BTreeMap::from([(1, vec![2])]));
    assert!(!world.registry.publish(&second).unwrap());
    assert_eq!(world.registry.names("").unwrap(), ["a@1", "b@1"]);
    assert_eq!(world.registry.names("a").unwrap(), ["a@1"]);
    assert!(!world.registry.rename(&first, "b@1").unwrap());
    assert!(!world.registry.rename(&first, "a@1").unwrap());
    assert!(world.registry.find("a@1").unwrap().is_some());
    assert!(world.registry.rename(&first, "c@1").unwrap());
    assert_eq!(world.registry.names("").unwrap(), ["b@1", "c@1"]);
    let renamed = world.registry.find("c@1").unwrap().unwrap();
    assert!(world.registry.find("a@1").unwrap().is_none());
    assert!(world.registry.remove(&renamed).unwrap());
    assert_eq!(world.registry.names("").unwrap(), ["b@1"]);
    let left = world.store.list("data/").unwrap();
    let is_removed = |name: &str| name.contains(&"01".repeat(16));
    assert!(!left.iter().any(|(name, _)| is_removed(name)), "{left:?}");
}

/// A rename that was cut off leaves two names; removing one keeps the tables for the other.
#[test]
fn removal_after_a_rename_cut_short() {
    let world = World::new();
    let first = world.publish("a", [1; 16]);
    let mut second = first.clone();
    second.name = "b".into();
    assert!(world.registry.publish(&second).unwrap());
    assert!(!world.registry.remove(&first).unwrap());
    let engine = VersionEngine::new(world.registry.place(), &second, 1 << 20).unwrap();
    assert_eq!(all_rows(&engine).len(), 1);
    assert!(world.registry.remove(&second).unwrap());
    assert!(world.store.list("data/").unwrap().is_empty());
}

/// A version that others were made from goes with its tables.
#[test]
fn removal_of_an_input() {
    let world = World::new();
    let first = world.publish("a", [1; 16]);
    let input = VersionInput { id: first.id.clone(), name: first.name.clone() };
    let second = world.write("b", [2; 16], &BTreeMap::from([(1, vec![1])]));
    let second = second.with_inputs(vec![input]).unwrap();
    assert!(world.registry.publish(&second).unwrap());
    assert!(world.registry.remove(&first).unwrap());
    let left = world.store.list("data/").unwrap();
    assert!(left.iter().all(|(name, _)| name.contains(&"02".repeat(16))), "{left:?}");
}

/// Tables without a name are left over; a writer that was taken for gone publishes nothing.
#[test]
fn leftovers_and_late_writers() {
    let world = World::new();
    world.publish("a", [1; 16]);
    let late = world.write("b", [2; 16], &BTreeMap::from([(1, vec![1])]));
    let none: [VersionId; 0] = [];
    assert_eq!(world.registry.leftovers(Duration::from_secs(3600)).unwrap(), none);
    assert_eq!(world.registry.leftovers(Duration::ZERO).unwrap(), [[2; 16]]);
    world.registry.remove_data(&[2; 16]).unwrap();
    assert!(matches!(world.registry.publish(&late), Err(EngineError::Io(_))));
    assert_eq!(world.registry.names("").unwrap(), ["a"]);
    // A writer that goes on notices too.
    let mut writer = VersionWriter::begin(world.registry.place(), [3; 16]).unwrap();
    world.registry.remove_data(&[3; 16]).unwrap();
    writer.put(KeyRef::new(Table::Entry, 1, b"x"), b"y").unwrap();
    assert!(writer.finish().is_err());
}

/// A manifest that is damaged or newer stands in the way of no other version's removal, keeps its
/// own tables, and ends a search for leftovers, which could take them for some.
#[test]
fn unreadable_manifest_beside_others() {
    let world = World::new();
    let first = world.publish("a", [1; 16]);
    let second = world.publish("b", [2; 16]);
    let object = format!("name/{}", kestrel_types::hex::to_hex(b"b"));
    let good = world.store.read(&object).unwrap().unwrap();
    let mut bad = good.bytes.to_vec();
    bad[30] ^= 1;
    world.store.replace(&object, bad.into(), &good.tag).unwrap().unwrap();
    assert!(matches!(world.registry.find("b"), Err(EngineError::Corrupt(_))));
    // A name that a rename has left over.
    let mut renamed = second.clone();
    renamed.name = "c".into();
    assert!(world.registry.publish(&renamed).unwrap());
    assert!(!world.registry.remove(&renamed).unwrap(), "the damaged manifest has the identity");
    assert!(world.registry.remove(&first).unwrap());
    assert!(world.registry.leftovers(Duration::ZERO).is_err());
    world.registry.remove_damaged("b").unwrap();
    assert_eq!(world.registry.leftovers(Duration::ZERO).unwrap(), [[2; 16]]);
}

/// A table of another version in the place of one's own is found, by the identity in its checksums.
#[test]
fn swapped_tables() {
    let world = World::new();
    let first = world.publish("a", [1; 16]);
    world.publish("b", [2; 16]);
    let [own, other] = [[1; 16], [2; 16]]
        .map(|id: VersionId| format!("{}table/{:016x}", VersionPlace::prefix_of(&id), 0));
    let bytes = world.store.read(&other).unwrap().unwrap().bytes;
    world.store.remove(&own).unwrap();
    assert!(world.store.create(&own, bytes).unwrap());
    let engine = VersionEngine::new(world.registry.place(), &first, 1 << 20).unwrap();
    let suffix = 1u64.to_be_bytes();
    let read = engine.get_many(&[KeyRef::new(Table::Entry, 1, &suffix)], &mut |_, _| ());
    assert!(matches!(read, Err(EngineError::Corrupt(_))), "{read:?}");
}

/// Numbers, with those of the directories above, and names.
type Names = Vec<(u64, u64, String)>;

/// Puts a tree into a version: directories by number, as parent and name, and files.
fn write_tree(
    world: &World,
    name: &str,
    id: VersionId,
    (dirs, files): (&Names, &Names),
) -> VersionManifest {
    let mut writer = VersionWriter::begin(world.registry.place(), id).unwrap();
    let mut put = |table, id, suffix: &[u8], value: &[u8]| {
        writer.put(KeyRef::new(table, id, suffix), value).unwrap();
    };
    let inode = |number, kind| Entry::Inode(Inode::new(number, kind, 5, 5)).encode();
    let place =
        |parent: u64, name: &str| [&[1], &parent.to_be_bytes()[..], name.as_bytes()].concat();
    let highest = dirs.iter().chain(files).map(|(number, ..)| *number).max().unwrap_or(15);
    put(Table::System, 0, b"inodes", &[&[1], &(highest + 1).to_be_bytes()[..]].concat());
    put(Table::Entry, 0, b"", &inode(1, Kind::Dir));
    put(Table::DirId, 1, b"", &place(0, ""));
    let mut stats: BTreeMap<u64, DirStat> = BTreeMap::from([(1, DirStat::default())]);
    for (number, parent, name) in dirs {
        put(Table::Entry, *parent, name.as_bytes(), &inode(*number, Kind::Dir));
        put(Table::DirId, *number, b"", &place(*parent, name));
        put(Table::Subdir, *parent, &number.to_be_bytes(), b"");
        stats.entry(*number).or_default();
        let above = stats.entry(*parent).or_default();
        (above.children, above.subdirs) = (above.children + 1, above.subdirs + 1);
    }
    for (number, parent, name) in files {
        put(Table::Entry, *parent, name.as_bytes(), &inode(*number, Kind::File));
        put(Table::Xattr, *number, b"user.of", name.as_bytes());
        stats.entry(*parent).or_default().children += 1;
    }
    for (dir, stat) in stats {
        put(Table::DirStat, dir, &0u16.to_be_bytes(), &stat.encode());
    }
    let mut manifest = VersionManifest::new(name, &VOLUME, &id, source());
    manifest.rows = writer.rows();
    manifest.runs = writer.finish().unwrap();
    assert!(world.registry.publish(&manifest).unwrap());
    manifest
}

/// A random tree with names of few letters, so that several trees have many in common.
fn random_tree(rng: &mut Rng) -> (Names, Names) {
    let (mut dirs, mut files, mut taken) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut numbers: Vec<u64> = (16..200).collect();
    for _ in 0..rng.range(1, 40) {
        let parent = match rng.below(3) {
            0 => 1,
            _ => dirs.last().map_or(1, |(number, ..): &(u64, u64, String)| *number),
        };
        let name = char::from(b'a' + rng.below(6) as u8).to_string();
        let number = numbers.swap_remove(rng.below(numbers.len() as u64) as usize);
        if taken.insert((parent, name.clone())) {
            match rng.below(2) {
                0 => dirs.push((number, parent, name)),
                _ => files.push((number, parent, name)),
            }
        }
    }
    (dirs, files)
}

/// What each path is: a directory, or the file of which tree.
fn paths_of(tree: &(Names, Names), which: usize) -> BTreeMap<String, Option<usize>> {
    let above: BTreeMap<u64, (u64, &String)> =
        tree.0.iter().map(|(number, parent, name)| (*number, (*parent, name))).collect();
    let path = |mut parent: u64, name: &str| {
        let mut path = name.to_string();
        while let Some((next, name)) = above.get(&parent) {
            (parent, path) = (*next, format!("{name}/{path}"));
        }
        path
    };
    let dirs = tree.0.iter().map(|(_, parent, name)| (path(*parent, name), None));
    let files = tree.1.iter().map(|(_, parent, name)| (path(*parent, name), Some(which)));
    dirs.chain(files).collect()
}

/// The tree of several inputs: at each path what the first one has, directories joined, below
/// directories only.
fn joined(trees: &[(Names, Names)]) -> BTreeMap<String, Option<usize>> {
    let mut all: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for (which, tree) in trees.iter().enumerate() {
        for (path, what) in paths_of(tree, which) {
            let mut above = path.as_str();
            let mut is_hidden = false;
            while let Some((dir, _)) = above.rsplit_once('/') {
                is_hidden |= all.get(dir).is_some_and(Option::is_some);
                above = dir;
            }
            if !is_hidden {
                all.entry(path).or_insert(what);
            }
        }
    }
    all
}

/// Random trees that have names in common are one tree, by look-ups and by scans, with the figures
/// that it has; scans are in order and agree with look-ups.
#[test]
fn merged_trees() {
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let world = World::new();
        let trees: Vec<_> = (0..rng.range(2, 5)).map(|_| random_tree(&mut rng)).collect();
        let write = |(which, (dirs, files)): (usize, &(Names, Names))| {
            let name = format!("v{which}");
            write_tree(&world, &name, [which as u8 + 1; 16], (dirs, files))
        };
        let inputs: Vec<VersionManifest> = trees.iter().enumerate().map(write).collect();
        let place = world.registry.place();
        let merged = merge(place, &inputs).unwrap();
        let id = [99; 16];
        write_aliases(place, &id, &merged.aliases).unwrap();
        let mut writer = VersionWriter::begin(place, id).unwrap();
        for (key, value) in &merged.rows {
            writer.put_encoded(key, value.as_deref()).unwrap();
        }
        let made = VersionManifest::new("job", &VOLUME, &id, source());
        let changes = ChangesRecord { end: merged.base.first_number(), base: merged.base };
        let mut made = made.with_changes(changes).unwrap();
        made.runs = writer.finish().unwrap();
        let made = VersionManifest::decode("job", &made.encode()).unwrap();
        let reader = VersionReader::new(place, &made, 1 << 20).unwrap();
        let (mut rows, mut found) = (reader.rows(&[], &[u8::MAX; 2]), Vec::new());
        while let Some((key, value)) = rows.next_row().unwrap() {
            assert_eq!(reader.get(KeyRef::decode(&key).unwrap()).unwrap(), Some(value.clone()));
            found.push((key, value));
        }
        assert!(found.is_sorted_by(|one, next| one.0 < next.0), "seed {seed}");
        // Rows below a directory that begin in the middle are the same.
        let from = &found[found.len() / 2].0;
        let mut rest = reader.rows(from, &[u8::MAX; 2]);
        for expected in &found[found.len() / 2..] {
            assert_eq!(rest.next_row().unwrap().as_ref(), Some(expected), "seed {seed}");
        }
        let mut paths = BTreeMap::new();
        let mut left = vec![(1u64, String::new())];
        while let Some((dir, path)) = left.pop() {
            let mut stat = DirStat::default();
            for (key, value) in &found {
                let key = KeyRef::decode(key).unwrap();
                if key.table == Table::Entry && key.id == dir && dir != 0 {
                    let (number, kind) = Entry::peek(value).unwrap();
                    let name = String::from_utf8(key.suffix.to_vec()).unwrap();
                    let below = format!("{path}{name}");
                    stat.children += 1;
                    if kind == Kind::Dir {
                        stat.subdirs += 1;
                        let child = number.to_be_bytes();
                        assert!(
                            reader.get(KeyRef::new(Table::Subdir, dir, &child)).unwrap().is_some()
                        );
                        let place = reader.get(KeyRef::new(Table::DirId, number, b"")).unwrap();
                        assert_eq!(place.unwrap()[1..9], dir.to_be_bytes(), "seed {seed}: {below}");
                        left.push((number, format!("{below}/")));
                        paths.insert(below, None);
                    } else {
                        let of = reader.get(KeyRef::new(Table::Xattr, number, b"user.of")).unwrap();
                        assert_eq!(of.unwrap().to_vec(), name.as_bytes(), "seed {seed}: {below}");
                        let mut span = made.changes().unwrap().base.numbers.iter();
                        let span = span.position(|it| (it.first..it.end).contains(&number));
                        paths.insert(below, span);
                    }
                }
            }
            let told = reader.get(KeyRef::new(Table::DirStat, dir, &0u16.to_be_bytes())).unwrap();
            let told = DirStat::decode(&told.unwrap()).unwrap();
            assert_eq!((told.children, told.subdirs), (stat.children, stat.subdirs), "seed {seed}");
        }
        assert_eq!(paths, joined(&trees), "seed {seed}");
    }
}
