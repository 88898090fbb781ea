//! Disks that fail, fill up or lie.

use super::*;

fn expect_err<T>(result: Result<T, EngineError>) -> EngineError {
    match result {
        Ok(_) => panic!("succeeded"),
        Err(why) => why,
    }
}

#[test]
fn a_failed_append_loses_only_itself() {
    for short in [false, true] {
        let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
        let engine = open_sim(&disk, &runs, small_options()).unwrap();
        commit(&engine, vec![put(1, b"a", &[1; 3000])]);
        wait_for_segment(&engine);
        disk.fail_writes(1, short);
        let why = expect_err(engine.commit(BatchKind::Growing, vec![put(1, b"b", &[2; 3000])]));
        assert!(matches!(why, EngineError::Io(_)), "{why}");
        // No process reads it, and none writes after it.
        assert_eq!(get(&engine, 1, b"b"), None);
        expect_err(engine.commit(BatchKind::Freeing, vec![remove(1, b"a")]));
        assert_eq!(get(&engine, 1, b"a"), Some(vec![1; 3000]));
        let image = disk.after_kill();
        drop(engine);
        let engine = open_sim(&image, &runs, small_options()).unwrap();
        assert_eq!(get(&engine, 1, b"b"), None);
        commit(&engine, vec![put(1, b"c", b"3")]);
        drop(engine);
        let engine = open_sim(&image, &runs, small_options()).unwrap();
        assert_eq!(get(&engine, 1, b"a"), Some(vec![1; 3000]));
        assert_eq!(get(&engine, 1, b"c"), Some(vec![3 + b'0']));
    }
}

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let engine = open_sim(&disk, &runs, small_options()).unwrap();
    let position = commit(&engine, vec![put(1, b"a", b"1")]);
    wait_for_segment(&engine);
    disk.fail_syncs(1);
    let why = expect_err(engine.sync());
    assert!(matches!(why, EngineError::Io(_)));
    assert!(engine.durable() < position);
    assert_eq!(expect_err(engine.sync()), why);
    assert_eq!(expect_err(engine.commit(BatchKind::Growing, vec![put(1, b"b", b"1")])), why);
    let (sender, receiver) = std::sync::mpsc::channel();
    engine.on_durable(position, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(receiver.recv().unwrap(), Err(why));
    assert_eq!(get(&engine, 1, b"a"), Some(b"1".to_vec()));
}

#[test]
fn a_failed_hook_fails_the_sync() {
    let hook: BeforeSync = Arc::new(|| Err(EngineError::Io("data: broken".into())));
    let engine = open::assemble(
        Arc::new(SimDisk::new(None)),
        Box::new(ModelRuns::default()),
        UUID,
        small_options(),
        hook,
        &mut |_| true,
        None,
    )
    .unwrap();
    commit(&engine, vec![put(1, b"a", b"1")]);
    assert_eq!(expect_err(engine.sync()), EngineError::Io("data: broken".into()));
}

/// A full disk makes the engine refuse growth; space can be freed, and then the engine grows again.
#[test]
fn full_disk() {
    let disk = SimDisk::new(Some(10 * (16 << 10)));
    let runs = ModelRuns::default();
    let full = Some(EngineError::NoSpace);
    runs.set_fault(full);
    let options = EmbeddedOptions { reserve_bytes: 32 << 10, ..small_options() };
    let engine = open_sim(&disk, &runs, options.clone()).unwrap();
    let mut expected = ExpectedRows::new();
    let mut refused = false;
    for number in 0..4000u32 {
        let batch = vec![put(1, &number.to_be_bytes(), &[7; 500])];
        match engine.commit(BatchKind::Growing, batch.clone()) {
            Ok(_) => apply(&mut expected, &batch),
            Err(why) => {
                assert_eq!(why, EngineError::NoSpace);
                refused = true;
                break;
            }
        }
    }
    assert!(refused);
    assert_eq!(content(&engine), expected);
    for number in 0..20u32 {
        let batch = vec![remove(1, &number.to_be_bytes())];
        engine.commit(BatchKind::Freeing, batch.clone()).unwrap();
        apply(&mut expected, &batch);
    }
    engine.sync().unwrap();
    assert_eq!(expect_err(engine.flush()), EngineError::NoSpace);
    assert_eq!(content(&engine), expected);
    // Space returns: the flush works, the log is recycled, growth goes on without opening the
    // volume again.
    runs.set_fault(None);
    engine.flush().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let batch = vec![put(2, b"new", b"1")];
    while let Err(why) = engine.commit(BatchKind::Growing, batch.clone()) {
        assert_eq!(why, EngineError::NoSpace);
        assert!(std::time::Instant::now() < deadline, "still full");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    apply(&mut expected, &batch);
    assert_eq!(content(&engine), expected);
    engine.close().unwrap();
    assert_eq!(content(&open_sim(&disk, &runs, options).unwrap()), expected);
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_own() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let options = EmbeddedOptions { memory_bytes: 64 << 20, ..small_options() };
    let engine = open_sim(&disk, &runs, options.clone()).unwrap();
    let mut expected = ExpectedRows::new();
    for round in 0..4u32 {
        let large: Vec<_> =
            (0..200u32).map(|n| put(1, &(round * 1000 + n).to_be_bytes(), &[3; 900])).collect();
        for batch in [vec![put(2, &round.to_be_bytes(), b"small")], large] {
            apply(&mut expected, &batch);
            commit(&engine, batch);
        }
    }
    let image = disk.after_kill();
    drop(engine);
    let engine = open_sim(&image, &runs, options).unwrap();
    assert_eq!(content(&engine), expected);
    engine.flush().unwrap();
    assert_eq!(content(&engine), expected);
}

/// A volume with some log that is durable, and the content it must have.
fn synced_volume() -> (SimDisk, ModelRuns, ExpectedRows) {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let engine = open_sim(&disk, &runs, small_options()).unwrap();
    let mut expected = ExpectedRows::new();
    for number in 0..40u32 {
        let batch = vec![put(1, &number.to_be_bytes(), &[number as u8; 900])];
        apply(&mut expected, &batch);
        commit(&engine, batch);
        engine.sync().unwrap();
    }
    let image = disk.after_kill();
    drop(engine);
    (image, runs, expected)
}

/// Damage in durable bytes is reported with the name of the file, and changes nothing.
#[test]
fn damage_in_durable_bytes() {
    let (disk, runs, expected) = synced_volume();
    let names = super::super::super::disk::Disk::list(&disk).unwrap();
    let mut random = super::crash::Random(77);
    let mut refused = 0;
    for name in &names {
        for _ in 0..60 {
            let image = disk.after_kill();
            let mut at = 0;
            image.damage(name, |bytes| {
                at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            });
            match open_sim(&image, &runs.snapshot(), small_options()) {
                // A byte that means nothing, or the very last record, which no later one vouches
                // for.
                Ok(engine) => {
                    let found = content(&engine);
                    assert!(
                        found.len() + 1 >= expected.len(),
                        "{name} at {at}: lost more than the end"
                    );
                    assert!(
                        found.iter().all(|(key, value)| expected.get(key) == Some(value)),
                        "{name} at {at}"
                    );
                }
                Err(EngineError::Corrupt(why) | EngineError::Refused(why)) => {
                    refused += 1;
                    assert!(why.contains(name.as_str()), "{why}");
                    let (before, after) = (image.after_kill(), image);
                    assert!(open_sim(&after, &runs.snapshot(), small_options()).is_err());
                    assert_eq!(
                        super::super::super::disk::Disk::list(&before).unwrap(),
                        super::super::super::disk::Disk::list(&after).unwrap()
                    );
                }
                Err(why) => panic!("{why}"),
            }
        }
        // A file that is gone or short.
        let image = disk.after_kill();
        image.damage(name, |bytes| bytes.truncate(40));
        let outcome = open_sim(&image, &runs.snapshot(), small_options());
        match outcome {
            // Of these there are two copies.
            Ok(engine) if name.starts_with("checkpoint") || name.starts_with("epoch") => {
                assert_eq!(content(&engine), expected, "{name}: truncated");
            }
            outcome => assert!(
                outcome.is_err() || name.starts_with("free") || name.ends_with("tmp"),
                "{name}: truncated and not noticed"
            ),
        }
    }
    assert!(refused > 60, "{refused}");
}

#[test]
fn newer_formats_and_other_volumes_are_refused() {
    let (disk, runs, _) = synced_volume();
    for name in super::super::super::disk::Disk::list(&disk).unwrap() {
        // Files that are not read: segments to be used again, a checkpoint that was being written
        // when the image was taken.
        if name.starts_with("free") || name.ends_with("tmp") || name.ends_with("copy") {
            continue;
        }
        let image = disk.after_kill();
        image.damage(&name, |bytes| {
            bytes[11] = 9;
            bytes[12..16].fill(0);
            let crc = crc32c::crc32c(&bytes[..64]);
            bytes[12..16].copy_from_slice(&crc.to_be_bytes());
        });
        let why = expect_err(open_sim(&image, &runs.snapshot(), small_options()));
        assert!(matches!(&why, EngineError::Refused(text) if text.contains(&name)), "{why}");
    }
    let other = open::assemble(
        Arc::new(disk),
        Box::new(runs),
        [9; 16],
        small_options(),
        no_hook(),
        &mut |_| true,
        None,
    );
    assert!(matches!(expect_err(other), EngineError::Refused(_)));
}

fn copy_tree(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (file, target) = (entry.path(), to.join(entry.file_name()));
        if file.is_dir() {
            copy_tree(&file, &target);
        } else {
            std::fs::copy(&file, &target).unwrap();
        }
    }
}

#[test]
fn damaged_runs_give_errors_and_never_wrong_rows() {
    let dir = tempfile::tempdir().unwrap();
    let open = |dir: &std::path::Path| {
        EmbeddedEngine::open(dir, UUID, small_options(), no_hook(), &mut |_| true)
    };
    let engine = open(dir.path()).unwrap();
    let mut expected = ExpectedRows::new();
    for round in 0..6u32 {
        for number in 0..60u32 {
            let batch = vec![put(1, &(number * 7 + round).to_be_bytes(), &[round as u8; 300])];
            apply(&mut expected, &batch);
            commit(&engine, batch);
        }
        engine.flush().unwrap();
    }
    engine.compact().unwrap();
    engine.close().unwrap();
    let mut files: Vec<_> = ["runs", "runs/tables"]
        .iter()
        .flat_map(|sub| std::fs::read_dir(dir.path().join(sub)).unwrap())
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    // A directory's order is another one each time; the damage shall be the same.
    files.sort();
    let mut random = super::crash::Random(4242);
    let (mut noticed, mut tried) = (0, 0);
    for path in &files {
        // Of the manifest there are two copies: no damage to one of them costs anything.
        let is_manifest = !path.parent().unwrap().ends_with("tables");
        let good = std::fs::read(path).unwrap();
        for _ in 0..25 {
            let mut bad = good.clone();
            if tried % 10 == 9 {
                bad.truncate(random.below(good.len() as u64) as usize);
            } else {
                bad[random.below(good.len() as u64) as usize] ^= 1 << random.below(8);
            }
            tried += 1;
            // Opening may merge runs and remove files, so each try has a copy of its own.
            let copy = tempfile::tempdir().unwrap();
            copy_tree(dir.path(), copy.path());
            std::fs::write(copy.path().join(path.strip_prefix(dir.path()).unwrap()), &bad).unwrap();
            let outcome = open(copy.path()).and_then(|engine| {
                let mut found = ExpectedRows::new();
                engine.scan_table(Table::Entry, None, &mut |key, value| {
                    found.insert(encode(key), value.to_vec());
                    ControlFlow::Continue(())
                })?;
                for key in expected.keys() {
                    engine.get_many(&[KeyRef::decode(key).unwrap()], &mut |_, row| {
                        assert_eq!(row.value, expected.get(key).map(Vec::as_slice));
                    })?;
                }
                Ok(found)
            });
            match outcome {
                Ok(found) => assert_eq!(found, expected, "{}", path.display()),
                Err(EngineError::Corrupt(_) | EngineError::Refused(_)) if !is_manifest => {
                    noticed += 1
                }
                Err(why) => panic!("{}: {why}", path.display()),
            }
        }
    }
    let of_tables = tried
        * files.iter().filter(|path| path.parent().unwrap().ends_with("tables")).count()
        / files.len();
    assert!(noticed * 5 > of_tables * 2, "{noticed} of {of_tables}");
    assert_eq!(content(&open(dir.path()).unwrap()), expected);
}

/// Any flipped bit of the checkpoint, the epoch or a segment's header, and either file of a pair
/// missing: the volume opens with all it had, and the damage is mended.
#[test]
fn flipped_bits_of_small_records() {
    let (disk, runs, expected) = synced_volume();
    let names = super::super::super::disk::Disk::list(&disk).unwrap();
    let is_pair = |name: &str| name.starts_with("checkpoint") || name.starts_with("epoch");
    let mut flipped = 0;
    for name in names.iter().filter(|name| is_pair(name) || name.ends_with(".log")) {
        for bit in (0..64 * 8).step_by(3) {
            let image = disk.after_kill();
            image.damage(name, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let runs = runs.snapshot();
            let engine = open_sim(&image, &runs, small_options())
                .unwrap_or_else(|why| panic!("{name}, bit {bit}: {why}"));
            assert_eq!(content(&engine), expected, "{name}, bit {bit}");
            drop(engine);
            // The other copy may be damaged next.
            if is_pair(name) {
                image.damage(name, |bytes| bytes[40] ^= 1);
                assert_eq!(content(&open_sim(&image, &runs, small_options()).unwrap()), expected);
            }
            flipped += 1;
        }
    }
    assert!(flipped > 1000, "{flipped}");
    for name in names.iter().filter(|name| is_pair(name)) {
        let image = disk.after_kill();
        super::super::super::disk::Disk::remove(&image, name).unwrap();
        assert_eq!(
            content(&open_sim(&image, &runs.snapshot(), small_options()).unwrap()),
            expected
        );
    }
}
