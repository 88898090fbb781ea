//! Mounts of volumes that are compressed and encrypted. Needs FUSE and the right to mount.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::*;

/// Said often in every file that must not be found in the store.
const SECRET: &[u8] = b"the-secret-that-nobody-may-find-";

/// Encrypted and compressed, its key in `key`.
fn encrypted(place: &Place, inline_max: &str) -> String {
    let key = place.name("key");
    run(&["key", "create", &key]).expect(0, "");
    let volume = place.volume();
    let args = [
        "format",
        &volume,
        "--encrypt",
        "--key-file",
        &key,
        "--compress",
        "zstd:1",
        "--inline-max",
        inline_max,
    ];
    run(&args).expect(0, "created");
    key
}

fn fill(place: &Place, name: &str) {
    let dir = place.mount_point().join(name);
    fs::create_dir(&dir).unwrap();
    for (file, len) in [("small", 100), ("packed", 100_000), ("large", 9_000_000)] {
        let content: Vec<u8> = SECRET.iter().copied().cycle().take(len).collect();
        fs::write(dir.join(file), content).unwrap();
    }
}

/// Every stored object, by name.
fn objects(place: &Place) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    tree(&place.path("vol/objects")).into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect()
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// The store of an encrypted volume holds no readable content, and the mount shows all of it.
#[test]
fn encrypted_content_in_store_and_mount() {
    let place = Place::new();
    let key = encrypted(&place, "0");
    place.mount(&["--key-file", &key]).expect(0, "is mounted on");
    fill(&place, "before");
    // A rotation while it is mounted: nothing stops, old and new lie side by side afterwards.
    let new = place.name("new-key");
    run(&["key", "create", &new]).expect(0, "");
    run(&["key", "rotate", &place.volume(), "--key-file", &key, "--new-key-file", &new])
        .expect(0, "mounted again");
    fill(&place, "meanwhile");
    let first = tree(&place.mount_point());
    place.umount();

    place.mount(&[]).expect(1, "--key-file");
    place.mount(&["--key-file", &key]).expect(1, "not the key of volume");
    place.mount(&["--key-file", &new]).expect(0, "is mounted on");
    assert_eq!(tree(&place.mount_point()), first);
    fill(&place, "after");
    let second = tree(&place.mount_point());
    place.umount();
    run(&["fsck", &place.volume(), "--data", "--key-file", &new]).expect(0, "clean");
    place.mount(&["--key-file", &new]).expect(0, "is mounted on");
    assert_eq!(tree(&place.mount_point()), second);
    place.umount();

    let (stored, mut by_data_key) = (objects(&place), [0; 3]);
    for (name, bytes) in &stored {
        assert!(bytes.starts_with(b"KSTCODED"), "{name:?}");
        assert!(!holds(bytes, &SECRET[..12]), "{name:?}");
        by_data_key[bytes[15] as usize] += 1;
    }
    assert!(by_data_key[0] == 0 && by_data_key[1] >= 2 && by_data_key[2] >= 1, "{by_data_key:?}");
    let bytes: usize = stored.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 27_000_000 / 10, "{bytes} bytes are stored of 27 MB that compress well");
}

/// All data stays readable when compression and encryption change between mounts.
#[test]
fn changed_coding_between_mounts() {
    let place = Place::formatted();
    let key = place.name("key");
    run(&["key", "create", &key]).expect(0, "");
    for (round, args) in [
        &[][..],
        &["--compress", "lz4"],
        &["--encrypt", "--key-file", &key],
        &["--compress", "zstd:9"],
        &["--no-encrypt"],
        &["--compress", "none"],
    ]
    .into_iter()
    .enumerate()
    {
        run(&[&["config", &place.volume()], args].concat()).expect(0, "");
        place.mount(&["--key-file", &key]).expect(0, "is mounted on");
        fill(&place, &format!("round{round}"));
        for (path, content) in tree(&place.mount_point()) {
            assert!(
                content.iter().zip(SECRET.iter().cycle()).all(|(is, must)| is == must),
                "{path:?}"
            );
        }
        place.umount();
    }
    run(&["fsck", &place.volume(), "--data", "--key-file", &key]).expect(0, "clean");
    let coded = objects(&place).iter().filter(|(_, bytes)| bytes.starts_with(b"KSTCODED")).count();
    let plain = objects(&place).iter().filter(|(_, bytes)| bytes.starts_with(b"KSTLOBJ\n")).count();
    assert!(coded >= 4 && plain >= 2, "{coded} coded, {plain} plain");
}

/// An error about damage names the object, and other files keep working.
#[test]
fn damaged_object_beside_intact_files() {
    let place = Place::new();
    let key = encrypted(&place, "4K");
    place.mount(&["--key-file", &key]).expect(0, "is mounted on");
    fs::write(place.path("mnt/one"), vec![1; 100_000]).unwrap();
    place.umount();
    let before = objects(&place);
    place.mount(&["--key-file", &key]).expect(0, "is mounted on");
    fs::write(place.path("mnt/two"), vec![2; 100_000]).unwrap();
    place.umount();
    let (victim, content) = &before[0];
    let path = place.path("vol/objects").join(victim);
    let mut damaged = content.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, &damaged).unwrap();
    place.mount(&["--key-file", &key]).expect(0, "is mounted on");
    let error = fs::read(place.path("mnt/one")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(place.path("mnt/two")).unwrap(), vec![2; 100_000]);
    place.umount();
    run(&["fsck", &place.volume(), "--data", "--key-file", &key]).expect(1, "/one");
    // An object that an attacker without a key put in its place.
    fs::write(&path, [b"KSTLOBJ\n".as_slice(), &[0; 100_100]].concat()).unwrap();
    run(&["fsck", &place.volume(), "--data", "--key-file", &key]).expect(1, "not encrypted");
    fs::write(&path, content).unwrap();
    run(&["fsck", &place.volume(), "--data", "--key-file", &key]).expect(0, "clean");
}

#[test]
fn a_dump_and_the_objects_and_the_key_are_enough() {
    let place = Place::new();
    let key = encrypted(&place, "4K");
    place.mount(&["--key-file", &key]).expect(0, "is mounted on");
    fill(&place, "files");
    let content = tree(&place.mount_point());
    place.umount();
    let dump = place.name("dump");
    run(&["dump", &place.volume(), &dump, "--key-file", &key]).expect(0, "rows");
    fs::rename(place.path("vol/objects"), place.path("objects")).unwrap();
    fs::remove_dir_all(place.path("vol")).unwrap();
    let (volume, objects) = (place.volume(), place.name("objects"));
    let load =
        |more: &[&str]| run(&[&["load", &dump, &volume, "--objects", &objects], more].concat());
    load(&[]).expect(1, "--key-file");
    load(&["--key-file", &key]).expect(0, "verified");
    run(&["fsck", &place.volume(), "--data", "--key-file", &key]).expect(0, "clean");
    place.mount(&["--key-file", &key]).expect(0, "is mounted on");
    assert_eq!(tree(&place.mount_point()), content);
    place.umount();
    assert!(self::objects(&place).iter().all(|(_, bytes)| bytes.starts_with(b"KSTCODED")));
}
