//! Objects cut off or damaged anywhere: what is whole is found, what is not is never taken for
//! whole.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::error::ErrorKind;
use crate::store::MemoryStore;
use crate::{Packer, PackerConfig};

const LENGTHS: [u32; 5] = [10, 1, 700, 65_536, 66_000];

/// A pack of five members, as bytes.
fn pack() -> Vec<u8> {
    let store = Arc::new(MemoryStore::new());
    let next = AtomicU64::new(7);
    let ids = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let config = PackerConfig { streams: 1, ..PackerConfig::new([3; 16]) };
    let packer = Packer::new(store.clone(), ids, config).unwrap();
    for (inode, len) in LENGTHS.into_iter().enumerate() {
        let done = Box::new(|stored: Result<crate::StoredRange>| drop(stored.unwrap()));
        packer.store(vec![inode as u8; len as usize], 100 + inode as u64, done);
    }
    packer.close();
    store.bytes(7).unwrap()
}

fn scan_bytes(bytes: &[u8]) -> Result<Contents> {
    let store = MemoryStore::new();
    store.put(7, &[IoSlice::new(bytes)]).unwrap();
    scan(&store, 7, true)
}

#[test]
fn members_of_a_whole_pack() {
    let contents = scan_bytes(&pack()).unwrap();
    assert_eq!(
        (contents.header.volume, contents.header.object, contents.tail_bytes),
        ([3; 16], 7, 0)
    );
    let found: Vec<_> =
        contents.members.iter().map(|member| (member.inode, member.range.len)).collect();
    assert_eq!(found, [(100, 10), (101, 1), (102, 700), (103, 65_536), (104, 66_000)]);
    assert!(contents.members.iter().all(|member| member.damage.is_none()));
}

#[test]
fn a_pack_cut_off_anywhere_keeps_its_whole_members() {
    let whole = pack();
    let ends: Vec<usize> = scan_bytes(&whole)
        .unwrap()
        .members
        .iter()
        .map(|member| (member.range.offset + member.range.stored_len()) as usize)
        .collect();
    for cut in (0..1000).chain((1000..whole.len()).step_by(977)) {
        match scan_bytes(&whole[..cut]) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(cut < HEADER_BYTES);
            }
            Ok(contents) => {
                assert!(cut >= HEADER_BYTES);
                let expected = ends.iter().filter(|end| **end <= cut).count();
                assert_eq!(contents.members.len(), expected, "cut at {cut}");
                assert!(contents.members.iter().all(|member| member.damage.is_none()));
            }
        }
    }
}

#[test]
fn a_pack_whose_end_became_zeros_shows_it() {
    let whole = pack();
    for from in [HEADER_BYTES, HEADER_BYTES + 20, 200, 5000, 70_000] {
        let mut bytes = whole.clone();
        bytes[from..].fill(0);
        let contents = scan_bytes(&bytes).unwrap();
        for member in contents.members {
            let end = (member.range.offset + member.range.stored_len()) as usize;
            assert_eq!(member.damage.is_some(), end > from, "from {from}");
        }
    }
}

#[test]
fn objects_under_a_wrong_number() {
    let store = MemoryStore::new();
    store.put(8, &[IoSlice::new(&pack())]).unwrap();
    assert_eq!(scan(&store, 8, false).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(scan(&store, 9, false).unwrap_err().kind(), ErrorKind::NotFound);
}
