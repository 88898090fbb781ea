use std::hash::Hasher;

use super::nodes::NameHasher;
use super::*;

#[test]
fn nodes_are_used_again() {
    let fs = NullFs::new(NullOptions::default());
    let name = OsStr::new("f");
    let first = fs.create(ROOT_ID, name, false, false).unwrap();
    assert_eq!(fs.create(ROOT_ID, name, false, false).unwrap_err(), libc::EEXIST);
    fs.remove(ROOT_ID, name, false).unwrap();
    let second = fs.create(ROOT_ID, name, false, false).unwrap();
    assert_ne!(first.nodeid, second.nodeid, "the kernel still remembers the first");
    fs.nodes.forget(first.nodeid, 1);
    let third = fs.create(ROOT_ID, OsStr::new("g"), false, false).unwrap();
    assert_eq!(third.nodeid, first.nodeid);
    assert_ne!(third.generation, first.generation);
    // Forgotten first, unlinked then.
    fs.nodes.forget(second.nodeid, 1);
    fs.remove(ROOT_ID, name, false).unwrap();
    assert_eq!(fs.create(ROOT_ID, name, true, false).unwrap().nodeid, second.nodeid);
}

#[test]
fn names_hash_apart() {
    let hash = |name: &[u8]| {
        let mut hasher = NameHasher::default();
        hasher.write(name);
        hasher.finish()
    };
    let mut all: Vec<u64> = (0..10_000).map(|n| hash(format!("file.{n}").as_bytes())).collect();
    all.extend([&b""[..], b"\0", b"\0\0", b"12345678", b"123456780"].map(hash));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 10_005);
}

#[test]
fn unknown_ids_are_stale() {
    let fs = NullFs::new(NullOptions::default());
    for id in [u64::MAX, 1 << 40, 1 << 20] {
        assert_eq!(fs.lookup(id, OsStr::new("x")).unwrap_err(), libc::ESTALE);
        fs.nodes.forget(id, 1);
    }
}
