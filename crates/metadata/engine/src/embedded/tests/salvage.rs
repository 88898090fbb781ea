//! Damage anywhere in the files costs what was damaged and nothing else.

use std::path::{Path, PathBuf};

use kestrel_types::key::Key;

use super::super::salvage::{Lost, LostRows, salvage};
use super::crash::Random;
use super::*;

fn open_real(dir: &Path) -> EmbeddedEngine {
    // All segments are small, so that there are many.
    let options = EmbeddedOptions { segment_bytes: 16 << 10, ..small_options() };
    EmbeddedEngine::open(dir, UUID, options, no_hook(), &mut |_| true).unwrap()
}

/// A volume with rows in several tables of the runs, newer versions of them, deletions, and a log.
fn volume(dir: &Path) -> ExpectedRows {
    let engine = open_real(dir);
    let mut expected = ExpectedRows::new();
    for round in 0..4u32 {
        for number in 0..120u32 {
            let mut batch =
                vec![put(1, &(number * 3 + round).to_be_bytes(), &[round as u8 + 1; 200])];
            if number % 10 == round {
                batch.push(remove(1, &(number * 3).to_be_bytes()));
            }
            apply(&mut expected, &batch);
            commit(&engine, batch);
        }
        if round < 3 {
            engine.flush().unwrap();
        }
        if round == 1 {
            engine.compact().unwrap();
        }
    }
    engine.sync().unwrap();
    engine.close().unwrap();
    expected
}

fn salvaged(dir: &Path) -> (ExpectedRows, Vec<Lost>) {
    let scratch = tempfile::tempdir().unwrap();
    let (mut found, mut lost) = (ExpectedRows::new(), Vec::new());
    let mut recovered = |batch: Vec<Mutation>| {
        apply(&mut found, &batch);
        Ok(())
    };
    salvage(dir, UUID, scratch.path(), &mut recovered, &mut |loss| lost.push(loss)).unwrap();
    (found, lost)
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_in(&path)) } else { files.push(path) }
    }
    files
}

/// What is whole is recovered as it is.
#[test]
fn salvage_of_an_intact_engine() {
    let dir = tempfile::tempdir().unwrap();
    let expected = volume(dir.path());
    let (found, lost) = salvaged(dir.path());
    assert_eq!(lost, []);
    assert_eq!(found, expected);
}

/// One flipped bit anywhere costs at most the rows of one block or one batch, and those are named.
#[test]
fn salvage_after_a_flipped_bit() {
    let dir = tempfile::tempdir().unwrap();
    let expected = volume(dir.path());
    let mut random = Random(99);
    for path in files_in(dir.path()) {
        let good = std::fs::read(&path).unwrap();
        if good.is_empty() {
            continue;
        }
        for _ in 0..40 {
            let mut bad = good.clone();
            let at = random.below(good.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            std::fs::write(&path, &bad).unwrap();
            let (found, lost) = salvaged(dir.path());
            let place = format!("{} at {at}", path.display());
            if path.extension().is_some_and(|kind| kind == "log") {
                // The checksum shows which bit of a record it was.
                assert!(found == expected && lost.is_empty(), "{place}: {lost:?}");
            }
            let wrong: Vec<_> =
                expected.iter().filter(|(key, value)| found.get(*key) != Some(*value)).collect();
            assert!(wrong.len() <= 40, "{place}: {} rows lost", wrong.len());
            let named = |key: &[u8]| {
                let key = KeyRef::decode(key).unwrap().to_owned();
                lost.iter().any(|loss| match &loss.rows {
                    LostRows::Changed(keys) => keys.contains(&key),
                    LostRows::Between(after, before) => {
                        after.as_ref().is_none_or(|after: &Key| *after < key)
                            && before.as_ref().is_none_or(|before: &Key| key < *before)
                    }
                    LostRows::Unknown => true,
                })
            };
            for (key, _) in wrong {
                assert!(named(key), "{place}: {key:?} is lost and not named by {lost:?}");
            }
            for key in found.keys().filter(|key| !expected.contains_key(*key)) {
                assert!(named(key), "{place}: {key:?} is back and not named by {lost:?}");
            }
        }
        std::fs::write(&path, &good).unwrap();
    }
    let (found, lost) = salvaged(dir.path());
    assert_eq!((found, lost), (expected, vec![]));
}

/// Tables without their end or without their manifest give the rows that are left.
#[test]
fn salvage_of_cut_tables() {
    let dir = tempfile::tempdir().unwrap();
    let expected = volume(dir.path());
    for path in files_in(&dir.path().join("runs/tables")) {
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..good.len() / 2]).unwrap();
        let (found, lost) = salvaged(dir.path());
        assert!(!found.is_empty() && (!lost.is_empty() || found == expected), "{}", path.display());
        std::fs::write(&path, &good).unwrap();
    }
    for path in files_in(&dir.path().join("runs"))
        .iter()
        .filter(|path| !path.parent().unwrap().ends_with("tables"))
    {
        std::fs::remove_file(path).unwrap();
    }
    let (found, lost) = salvaged(dir.path());
    assert!(lost.iter().any(|loss| loss.place.contains("manifest")), "{lost:?}");
    assert_eq!(found.len(), expected.len());
}

/// Of a batch of which many bits are damaged the rows are named, and those around it are recovered.
#[test]
fn salvage_around_a_damaged_batch() {
    let dir = tempfile::tempdir().unwrap();
    let expected = volume(dir.path());
    let mut gaps = 0;
    for path in files_in(&dir.path().join("log"))
        .iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "log"))
    {
        let good = std::fs::read(path).unwrap();
        // Records of these tests are longer than this.
        for at in (4096..good.len().min(9000)).step_by(300) {
            let mut bad = good.clone();
            bad[at..at + 4].iter_mut().for_each(|byte| *byte ^= 0x5a);
            std::fs::write(path, &bad).unwrap();
            let (found, lost) = salvaged(dir.path());
            assert!(lost.len() <= 1, "{lost:?}");
            gaps += lost.len();
            let wrong =
                expected.iter().filter(|(key, value)| found.get(*key) != Some(*value)).count();
            assert!(
                wrong <= 2 && (wrong == 0 || lost.len() == 1),
                "{}: byte {at}: {wrong}, {lost:?}",
                path.display()
            );
        }
        std::fs::write(path, &good).unwrap();
    }
    assert!(gaps > 10, "{gaps}");
}
