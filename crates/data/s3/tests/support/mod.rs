//! What the tests of the S3 store stand on: a real server ([`Gateway`]) and, in front of it, a
//! proxy that follows a test's script ([`Proxy`]). Not every test file uses everything.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test file is a crate of its own and uses a part"
)]

mod gateway;
mod proxy;

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

pub use gateway::Gateway;
pub use proxy::{Fault, Proxy, Request};

use kestrel_blockstore::error::Result;
use kestrel_blockstore::store::BlockStore;
use kestrel_s3::{S3Limits, S3Options, S3Store};

/// A volume's identity.
pub const VOLUME: [u8; 16] = *b"volume-of-tests!";

/// Limits that let tests fail soon, and not because the machine is busy.
pub fn hasty() -> S3Limits {
    S3Limits {
        deadline: Duration::from_secs(40),
        attempt: Duration::from_secs(15),
        multipart_bytes: 5 << 20,
        ..S3Limits::default()
    }
}

/// Options for a prefix of the test bucket at `endpoint`.
pub fn options(gateway: &Gateway, endpoint: &str, prefix: &str) -> S3Options {
    let url = format!("s3://{}/{prefix}?endpoint={endpoint}&region=us-east-1", Gateway::BUCKET);
    S3Options::parse(&url).unwrap().credentials_file(Some(gateway.credentials())).limits(hasty())
}

/// Bytes that differ from place to place and object to object.
pub fn content(object: u64, len: usize) -> Vec<u8> {
    let mut state = object.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Puts an object.
pub fn put(store: &S3Store, object: u64, bytes: &[u8]) -> Result<()> {
    store.put(object, &[IoSlice::new(bytes)])
}

/// Reads a range.
pub fn get(store: &S3Store, object: u64, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    store.read(object, offset, &mut [IoSliceMut::new(&mut out)])?;
    Ok(out)
}

/// A counter of the store.
pub fn figure(store: &S3Store, name: &str) -> u64 {
    let mut found = None;
    store.stats(&mut |counter, value| {
        if counter == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("no figure {name}"))
}
