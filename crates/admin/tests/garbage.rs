//! Random damage, many times: the check never panics, the repair ends, and nothing that it can
//! repair is left.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Cursor;

use common::*;
use kestrel_admin::dump::load::load;
use kestrel_admin::dump::{About, dump};
use kestrel_admin::finding::{FindingKind as K, Severity};
use kestrel_admin::rows::{USAGE, put};
use kestrel_blockstore::store::MemoryStore;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_types::key::{Key, Table};

/// Damages one row: drops it, flips bits, cuts it, copies its value or its key elsewhere, or makes
/// one up.
fn damage(volume: &Volume, random: &mut Random) {
    let mut rows: Vec<(Key, Box<[u8]>)> = volume.all().into_iter().collect();
    rows.sort();
    let (key, value) = random.pick(&rows).clone();
    let (other, _) = random.pick(&rows).clone();
    let change = |key: &Key, value: &[u8]| {
        volume.apply(vec![put(key.table, key.id, &key.suffix, value.into())])
    };
    match random.below(7) {
        0 => volume.delete(key.table, key.id, &key.suffix),
        1 if !value.is_empty() => {
            let mut bad = value.to_vec();
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            change(&key, &bad);
        }
        2 if !value.is_empty() => change(&key, &value[..random.below(value.len() as u64) as usize]),
        3 => change(&Key { table: key.table, ..other }, &value),
        4 => change(
            &Key { id: [0, 1, 2, 17, 21, 99, u64::MAX][random.below(7) as usize], ..key },
            &value,
        ),
        5 => change(&Key { suffix: [&key.suffix[..], b"x"].concat().into(), ..key }, &value),
        _ => {
            let table = *random.pick(&Table::ALL);
            let bytes: Vec<u8> = (0..random.below(30)).map(|_| random.below(256) as u8).collect();
            let suffix: Vec<u8> = (0..random.below(9)).map(|_| random.below(256) as u8).collect();
            change(&Key::new(table, random.below(100), &suffix), &bytes);
        }
    }
}

/// A repair of random damage ends, and leaves only findings that no repair can mend without
/// guessing.
#[test]
fn random_damage_and_repair() {
    // What no repair can bring back without guessing.
    let lasting = [
        K::InodeInvalid,
        K::InodeDuplicate,
        K::LinkDamaged,
        K::ChunkDamaged,
        K::ChunkDangling,
        K::XattrDamaged,
        K::ObjectMissing,
        K::ObjectShort,
        K::ObjStatWrong,
        K::RowUnknown,
        K::SystemWrong,
    ];
    for seed in 1..=1500u64 {
        let volume = Volume::new();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..=random.below(6) {
            damage(&volume, &mut random);
        }
        let (left, _) = volume.repair();
        for finding in left.iter().filter(|finding| finding.kind.severity() == Severity::Error) {
            assert!(
                lasting.contains(&finding.kind) && finding.fix.is_none(),
                "seed {seed}: {finding:?}"
            );
        }
        let before = volume.all();
        assert_eq!(volume.repair().1, 0, "seed {seed}");
        assert!(volume.all() == before, "seed {seed}: a repair without repairs changes nothing");
    }
}

#[test]
fn a_dump_loses_nothing_however_damaged_the_rows() {
    for seed in 1..=300u64 {
        let volume = Volume::new();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..10 {
            damage(&volume, &mut random);
        }
        let about = About { volume: serde_json::Value::Null, program: "test".into(), now: NOW };
        let mut file = Vec::new();
        dump(&volume.engine, &about, &mut file, tempfile::tempfile().unwrap(), &mut |_| {})
            .unwrap();
        let loaded = MemoryEngine::new(SyncWhen::Asked);
        load(Cursor::new(file), &loaded, &mut |_| {}).unwrap();
        let loaded = Volume { engine: loaded, store: MemoryStore::new() };
        let mut expected = volume.all();
        expected.remove(&Key::new(Table::System, 0, USAGE));
        expected.retain(|key, _| !matches!(key.table, Table::Moved | Table::Txn));
        assert!(loaded.all() == expected, "seed {seed}");
    }
}
