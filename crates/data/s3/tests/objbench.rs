//! The benchmark of stores on a real one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use kestrel_s3::S3Store;
use kestrel_s3::objbench::{self, BenchPlan, CheckOutcome, Stop};
use support::{Fault, Gateway, Proxy, options};

fn plan(store: &S3Store) -> BenchPlan {
    BenchPlan {
        sizes: vec![10_000, 300_000],
        threads: 4,
        time: Duration::from_millis(300),
        bytes_max: 3 << 20,
        puts_conditionally: store.puts_conditionally(),
        large_bytes: 11 << 20,
        seed: 1,
    }
}

#[test]
fn a_real_store_passes_and_keeps_nothing() {
    let Some(gateway) = Gateway::start() else { return };
    let store = S3Store::scratch(options(&gateway, &gateway.endpoint(), "bench")).unwrap();
    let plan = plan(&store);
    objbench::check(&store, &plan, &Stop::new(), &mut |check| {
        assert_eq!(check.verdict, CheckOutcome::Good, "{}", check.name);
    })
    .unwrap();
    let mut steps = 0;
    objbench::measure(&store, &plan, &Stop::new(), &mut |_| steps += 1).unwrap();
    assert_eq!(steps, 4 + 5);
    store.discard().unwrap();
    let mut left = Vec::new();
    let mut dirs = vec![gateway.files()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path())
            } else {
                left.push(entry.path())
            }
        }
    }
    // What the server keeps for itself begins with `.sgwtmp`.
    left.retain(|path| !path.to_string_lossy().contains("sgwtmp"));
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_store_that_leaves_out_pages_of_listings_fails() {
    let Some(gateway) = Gateway::start() else { return };
    let end = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    // A request behind the first page gets nothing.
    let proxy = Proxy::start(gateway.port(), move |request| {
        if request.is_list() && request.target.contains("start-after") {
            Fault::Answer("200 OK", Vec::new(), end.to_string())
        } else {
            Fault::None
        }
    });
    let store = S3Store::scratch(options(&gateway, &proxy.endpoint(), "bench")).unwrap();
    let mut found = Vec::new();
    objbench::check(&store, &plan(&store), &Stop::new(), &mut |check| found.push(check.clone()))
        .unwrap();
    let bad: Vec<_> =
        found.iter().filter(|check| matches!(check.verdict, CheckOutcome::Bad(_))).collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0].name.contains("listings"));
}
