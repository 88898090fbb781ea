//! Tests of the layer that codes objects.
//!
//! | file | |
//! | --- | --- |
//! | `format` | the format, pinned: bytes that another implementation made |
//! | `round_trip` | what is written comes back, whatever the settings were meanwhile |
//! | `damage` | a damaged chunk is never returned, and the error says what is wrong |
//! | `requests` | the requests to a remote store below, and the cache below |
//! | `stack` | with packer and reader above, and failing stores below |

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use zeroize::Zeroizing;

use super::{CHUNK_BYTES, CodedStore, Coding, Compression, DataKey, FIRST_CHUNK_BYTES, Keys};
use crate::error::{Error, Result};
use crate::store::{BlockStore, MemoryStore};

mod damage;
mod format;
mod requests;
mod round_trip;
mod stack;

const VOLUME: [u8; 16] = [0xab; 16];
const FIRST: usize = FIRST_CHUNK_BYTES as usize;
const CHUNK: usize = CHUNK_BYTES as usize;

/// Data keys 1 and 2, of which `write` encrypts.
fn keys(write: Option<u32>) -> Keys {
    let key = |number: u8| (u32::from(number), DataKey::new(Zeroizing::new([number; 32])));
    Keys::new(vec![key(1), key(2)], write, true).unwrap()
}

fn coding(compression: Compression, write: Option<u32>) -> Coding {
    Coding { compression, cipher: Some(keys(write)) }
}

/// Every way to code.
fn codings() -> Vec<Coding> {
    let methods = [Compression::None, Compression::Lz4, Compression::Zstd(3)];
    methods.into_iter().flat_map(|method| [coding(method, None), coding(method, Some(1))]).collect()
}

fn coded(inner: &Arc<MemoryStore>, coding: Coding) -> CodedStore {
    CodedStore::new(inner.clone(), VOLUME, coding)
}

/// Bytes of which some parts can be compressed and some cannot.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|at| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (at >> 15) % 3 == 0 { (x >> 56) as u8 } else { (at / 9 % 40) as u8 }
        })
        .collect()
}

fn put(store: &dyn BlockStore, object: ObjectId, bytes: &[u8]) {
    store.put(object, &[IoSlice::new(bytes)]).unwrap();
}

fn read(store: &dyn BlockStore, object: ObjectId, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    store.read(object, offset as u64, &mut [IoSliceMut::new(&mut out)])?;
    Ok(out)
}

/// The whole of an object that the store has not read yet.
fn read_anew(
    inner: &Arc<MemoryStore>,
    coding: &Coding,
    object: ObjectId,
    len: usize,
) -> Result<Vec<u8>> {
    read(&coded(inner, coding.clone()), object, 0, len)
}

fn why<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Coding { why, .. }) => why.to_string(),
        Err(other) => panic!("expected Coding, got {other:?}"),
        Ok(_) => panic!("expected Coding, got success"),
    }
}
