//! Generated operations against a model, through a proxy that fails one request in four in ways
//! that the seed decides: every operation must succeed and answer what the model answers. A failing
//! seed is in the message and fails again (`KESTREL_STORM_SEED=n` runs that one alone).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_blockstore::error::Error;
use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_s3::{S3Limits, S3Store};
use support::{Fault, Gateway, Proxy, Request, VOLUME, content, figure, get, hasty, options, put};

const OPERATIONS: u64 = 120;
const OBJECTS: u64 = 12;
const SEEDS: std::ops::Range<u64> = 1..5;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

fn fault(request: &Request, dice: u64) -> Fault {
    let internal = "<Error><Code>InternalError</Code><Message>x</Message></Error>";
    match dice {
        0 => Fault::Answer("500 Internal Server Error", Vec::new(), internal.to_string()),
        1 => Fault::Answer(
            "503 Service Unavailable",
            Vec::new(),
            "<Error><Code>SlowDown</Code></Error>".to_string(),
        ),
        2 => Fault::Reset,
        3 => Fault::LostAnswer,
        4 => Fault::Replaced("500 Internal Server Error", internal.to_string()),
        5 if request.method == "GET" => Fault::Truncated(request.target.len() * 7),
        6 if request.is_list() => Fault::Edited("<KeyCount>", "<KeyCount>1"),
        // Not also where the request is repeated: a store that answers twice that there is nothing
        // cannot be found out.
        7 if request.is_list()
            && !request.target.split(['?', '&']).any(|pair| pair == "max-keys=1") =>
        {
            Fault::Answer(
                "200 OK",
                Vec::new(),
                "<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>".to_string(),
            )
        }
        _ => Fault::None,
    }
}

fn storm(gateway: &Gateway, seed: u64) {
    let prefix = format!("storm-{seed}");
    S3Store::create(options(gateway, &gateway.endpoint(), &prefix), VOLUME).unwrap();
    let requests = AtomicU64::new(0);
    let proxy = Proxy::start(gateway.port(), move |request| {
        let number = requests.fetch_add(1, Ordering::Relaxed);
        fault(request, Random(seed ^ (number << 20)).below(24))
    });
    // Parts from 5 MiB on; one object in eight is that large.
    let limits = S3Limits { multipart_bytes: 5 << 20, ..hasty() };
    let store =
        S3Store::open(options(gateway, &proxy.endpoint(), &prefix).limits(limits), VOLUME).unwrap();
    let mut random = Random(seed);
    let mut model: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for step in 0..OPERATIONS {
        let object = 1 + random.below(OBJECTS);
        let position = format!("seed {seed}, step {step}, object {object}");
        let there = model.get(&object).copied();
        match random.below(10) {
            0..4 => {
                let bound = if random.below(8) == 0 { 6 << 20 } else { 200_000 };
                let len = 1 + random.below(bound) as usize;
                let content_seed = seed * 1000 + step;
                match (put(&store, object, &content(content_seed, len)), there) {
                    (Ok(()), None) => {
                        model.insert(object, (content_seed, len));
                    }
                    (Err(Error::Exists { .. }), Some(_)) => {}
                    (result, _) => {
                        panic!("{position}: put gave {result:?}, the model has {there:?}")
                    }
                }
            }
            4..7 => {
                let at = there.map_or(0, |(_, len)| random.below(len as u64) as usize);
                let len = there.map_or(1, |(_, len)| 1 + random.below((len - at) as u64) as usize);
                match (get(&store, object, at as u64, len), there) {
                    (Ok(bytes), Some((content_seed, full))) => {
                        assert!(
                            bytes == content(content_seed, full)[at..at + len],
                            "{position}: other bytes"
                        );
                    }
                    (Err(Error::NotFound { .. }), None) => {}
                    (result, _) => {
                        panic!("{position}: get gave {result:?}, the model has {there:?}")
                    }
                }
            }
            7 => match (store.size(object), there) {
                (Ok(size), Some((_, len))) => assert_eq!(size, len as u64, "{position}"),
                (Err(Error::NotFound { .. }), None) => {}
                (result, _) => panic!("{position}: size gave {result:?}, the model has {there:?}"),
            },
            8 => {
                assert_eq!(store.delete(object).unwrap(), there.is_some(), "{position}");
                model.remove(&object);
            }
            _ => {
                let mut found = BTreeMap::new();
                for page in list_all(&store) {
                    for info in page.unwrap_or_else(|error| panic!("{position}: {error}")).objects {
                        assert!(
                            found.insert(info.object, info.size as usize).is_none(),
                            "{position}"
                        );
                    }
                }
                let expected: BTreeMap<u64, usize> =
                    model.iter().map(|(&object, &(_, len))| (object, len)).collect();
                assert_eq!(found, expected, "{position}");
            }
        }
    }
    assert!(figure(&store, "store_retries") > OPERATIONS / 10);
    assert_eq!(figure(&store, "store_errors"), 0);
}

#[test]
fn no_operation_fails_or_lies_in_a_storm() {
    let Some(gateway) = Gateway::start() else { return };
    let one = std::env::var("KESTREL_STORM_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    match one {
        Some(seed) => storm(&gateway, seed),
        None => std::thread::scope(|scope| {
            for seed in SEEDS {
                let gateway = &gateway;
                scope.spawn(move || storm(gateway, seed));
            }
        }),
    }
}
