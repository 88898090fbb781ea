//! The store against a real server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_blockstore::error::Error;
use kestrel_blockstore::store::{BlockStore, key, list_all};
use kestrel_s3::{OpenError, S3Limits, S3Options, S3Store};
use support::{Gateway, VOLUME, content, figure, get, hasty, options, put};

fn fresh(gateway: &Gateway, prefix: &str) -> S3Store {
    S3Store::create(options(gateway, &gateway.endpoint(), prefix), VOLUME).unwrap()
}

#[test]
fn objects_come_back_as_written() {
    let Some(gateway) = Gateway::start() else { return };
    for prefix in ["", "a/b-c_d.e"] {
        let store = fresh(&gateway, prefix);
        assert!(store.is_remote() && store.puts_conditionally() && store.appends().is_none());
        for (object, len) in [(1, 1), (2, 100_000), (u64::MAX, 3 << 20)] {
            let bytes = content(object, len);
            let (a, b) = bytes.split_at(len / 3);
            store.put(object, &[IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)]).unwrap();
            assert_eq!(store.size(object).unwrap(), len as u64);
            assert_eq!(get(&store, object, 0, len).unwrap(), bytes);
            assert_eq!(
                get(&store, object, len as u64 / 2, len - len / 2).unwrap(),
                bytes[len / 2..]
            );
            let (mut head, mut tail) = (vec![0; len / 2], vec![0; len - len / 2]);
            store
                .read(object, 0, &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)])
                .unwrap();
            assert_eq!([head, tail].concat(), bytes);
        }
        assert_eq!(figure(&store, "store_put_bytes") >> 20, 3);
        assert!(store.place(1).ends_with("/objects/56/0000000000000001"), "{}", store.place(1));
        store.sync().unwrap();
    }
}

#[test]
fn missing_and_short_objects() {
    let Some(gateway) = Gateway::start() else { return };
    let store = fresh(&gateway, "p");
    assert!(matches!(store.size(9), Err(Error::NotFound { object: 9 })));
    assert!(matches!(get(&store, 9, 0, 1), Err(Error::NotFound { object: 9 })));
    assert!(matches!(get(&store, 9, 0, 0), Err(Error::NotFound { object: 9 })));
    assert!(!store.delete(9).unwrap());
    put(&store, 9, b"0123456789").unwrap();
    assert!(matches!(get(&store, 9, 5, 6), Err(Error::Corrupt { object: 9, offset: 5, .. })));
    assert!(matches!(get(&store, 9, 10, 1), Err(Error::Corrupt { object: 9, offset: 10, .. })));
    assert!(matches!(get(&store, 9, 1 << 40, 1), Err(Error::Corrupt { .. })));
    let mut out = [0; 20];
    assert_eq!(store.read_up_to(9, 4, &mut out).unwrap(), 6);
    assert_eq!(&out[..6], b"456789");
    assert_eq!(store.read_up_to(9, 10, &mut out).unwrap(), 0);
    assert!(matches!(store.read_up_to(8, 0, &mut out), Err(Error::NotFound { .. })));
    assert_eq!(figure(&store, "store_errors"), 0);
    assert!(store.delete(9).unwrap());
    assert!(!store.delete(9).unwrap());
    assert!(matches!(get(&store, 9, 0, 1), Err(Error::NotFound { .. })));
    assert_eq!(store.usage().unwrap().written, 0);
}

#[test]
fn an_object_is_never_overwritten() {
    let Some(gateway) = Gateway::start() else { return };
    let unconditional = S3Options::parse(&format!(
        "s3://{}/asks?endpoint={}&conditional-put=false",
        Gateway::BUCKET,
        gateway.endpoint()
    ))
    .unwrap()
    .credentials_file(Some(gateway.credentials()))
    .limits(hasty());
    for store in [fresh(&gateway, "refuses"), S3Store::create(unconditional, VOLUME).unwrap()] {
        put(&store, 5, b"first").unwrap();
        assert!(matches!(put(&store, 5, b"other"), Err(Error::Exists { object: 5 })));
        assert_eq!(get(&store, 5, 0, 5).unwrap(), b"first");
        let large = content(6, 6 << 20);
        put(&store, 6, &large).unwrap();
        assert!(matches!(put(&store, 6, &content(7, 6 << 20)), Err(Error::Exists { object: 6 })));
        assert!(get(&store, 6, 0, large.len()).unwrap() == large);
    }
}

#[test]
fn of_many_puts_of_one_object_one_wins() {
    let Some(gateway) = Gateway::start() else { return };
    let store = fresh(&gateway, "race");
    for (object, len) in [(1u64, 2000), (2, 6 << 20)] {
        let won = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let (store, won) = (&store, &won);
                scope.spawn(move || match put(store, object, &content(100 + writer, len)) {
                    Ok(()) => won.store(100 + writer as usize, Ordering::Relaxed),
                    Err(Error::Exists { .. }) => {}
                    Err(error) => panic!("{error}"),
                });
            }
        });
        let winner = won.load(Ordering::Relaxed) as u64;
        assert!(winner >= 100);
        assert!(get(&store, object, 0, len).unwrap() == content(winner, len));
    }
}

#[test]
fn large_objects_go_up_in_parts_and_leave_none_behind() {
    let Some(gateway) = Gateway::start() else { return };
    let store = fresh(&gateway, "parts");
    let bytes = content(1, (16 << 20) + 77);
    let parts: Vec<IoSlice<'_>> = bytes.chunks(3_000_001).map(IoSlice::new).collect();
    let before = figure(&store, "store_put_requests");
    store.put(1, &parts).unwrap();
    // Begin, four parts of 5 MiB at most, end.
    assert_eq!(figure(&store, "store_put_requests") - before, 6);
    assert!(get(&store, 1, 0, bytes.len()).unwrap() == bytes);
}

#[test]
fn listings_are_complete_and_in_order() {
    let Some(gateway) = Gateway::start() else { return };
    let store = fresh(&gateway, "list");
    assert_eq!(store.list(None, 10).unwrap(), Default::default());
    let objects: Vec<u64> = (1..=130).map(|n| n * 7).collect();
    std::thread::scope(|scope| {
        for part in objects.chunks(20) {
            let store = &store;
            scope.spawn(move || {
                part.iter().for_each(|&object| put(store, object, &content(object, 10)).unwrap())
            });
        }
    });
    // Names that are no objects: reported, and not in the way.
    std::fs::write(gateway.files().join("list/objects/stranger"), b"x").unwrap();
    std::fs::write(gateway.files().join(format!("list/{}.txt", key::key(7))), b"x").unwrap();
    for limit in [1, 7, 50, 130, 132, 10_000] {
        let (mut found, mut unknown, mut after, mut pages) = (Vec::new(), Vec::new(), None, 0);
        loop {
            let page = store.list(after.as_deref(), limit).unwrap();
            assert!(page.objects.len() + page.unknown.len() <= limit);
            pages += 1;
            found.extend(page.objects);
            unknown.extend(page.unknown);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(pages, 132usize.div_ceil(limit.min(1000)), "{limit}");
        assert_eq!(unknown, [format!("{}.txt", key::key(7)), "objects/stranger".to_string()]);
        let keys: Vec<String> = found.iter().map(|info| key::key(info.object)).collect();
        assert!(keys.is_sorted());
        let mut numbers: Vec<u64> = found.iter().map(|info| info.object).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, objects);
        assert!(
            found.iter().all(|info| info.size == 10 && info.modified > 1_600_000_000_000_000_000)
        );
        if limit == 1 {
            // Creating and the empty listing make two requests each, as does the last page.
            assert_eq!(figure(&store, "store_list_requests"), 2 + 2 + 132 + 1);
        }
    }
    assert!(store.delete_each(&[&objects[..], &[99_999]].concat()).iter().all(Result::is_ok));
    assert_eq!(list_all(&store).map(|page| page.unwrap().objects.len()).sum::<usize>(), 0);
}

#[test]
fn few_turns_and_slow_lines_are_kept_to() {
    let Some(gateway) = Gateway::start() else { return };
    let limits = S3Limits {
        max_uploads: 2,
        max_downloads: 2,
        upload_bytes_per_second: std::num::NonZeroU64::new(8 << 20),
        ..hasty()
    };
    let store =
        S3Store::create(options(&gateway, &gateway.endpoint(), "slow").limits(limits), VOLUME)
            .unwrap();
    let begin = std::time::Instant::now();
    std::thread::scope(|scope| {
        for object in 1..=8 {
            let store = &store;
            scope.spawn(move || put(store, object, &content(object, 1 << 20)).unwrap());
        }
    });
    // The eighth MiB waits for seven others; that is a lower bound, however slow the machine is.
    assert!(begin.elapsed().as_millis() >= 700, "{:?}", begin.elapsed());
    for object in 1..=8 {
        assert!(get(&store, object, 0, 1 << 20).unwrap() == content(object, 1 << 20));
    }
}

#[test]
fn a_volume_finds_its_store_again_and_no_other() {
    let Some(gateway) = Gateway::start() else { return };
    let of_volume = || options(&gateway, &gateway.endpoint(), "v");
    assert!(matches!(S3Store::open(of_volume(), VOLUME), Err(OpenError::NoMarker { .. })));
    let store = S3Store::create(of_volume(), VOLUME).unwrap();
    put(&store, 1, b"x").unwrap();
    drop(store);
    // A format that was cut off after its marker.
    S3Store::create(of_volume(), VOLUME).unwrap();
    let store = S3Store::open(of_volume(), VOLUME).unwrap();
    assert!(store.puts_conditionally());
    assert_eq!(figure(&store, "store_get_requests"), 1);
    assert_eq!(get(&store, 1, 0, 1).unwrap(), b"x");
    let other = *b"another volume!!";
    for result in
        [S3Store::open(of_volume(), other).map(drop), S3Store::create(of_volume(), other).map(drop)]
    {
        let refusal = result.unwrap_err();
        assert!(matches!(&refusal, OpenError::OtherVolume { .. }), "{refusal}");
        assert!(refusal.to_string().contains("766f6c756d652d6f662d746573747321"), "{refusal}");
    }
    assert!(matches!(S3Store::erase(of_volume(), other), Err(OpenError::OtherVolume { .. })));
    assert_eq!(get(&store, 1, 0, 1).unwrap(), b"x");
    assert_eq!(S3Store::erase(of_volume(), VOLUME).unwrap(), 1);
    assert!(matches!(S3Store::open(of_volume(), VOLUME), Err(OpenError::NoMarker { .. })));
    S3Store::create(of_volume(), other).unwrap();
}

#[test]
fn objects_without_an_owner_are_nobodys() {
    let Some(gateway) = Gateway::start() else { return };
    let of_volume = || options(&gateway, &gateway.endpoint(), "w");
    let store = S3Store::create(of_volume(), VOLUME).unwrap();
    put(&store, 1, b"x").unwrap();
    std::fs::remove_file(gateway.files().join("w/kestrel-volume")).unwrap();
    assert!(matches!(S3Store::create(of_volume(), VOLUME), Err(OpenError::NotEmpty { .. })));
    assert!(matches!(S3Store::open(of_volume(), VOLUME), Err(OpenError::NoMarker { .. })));
    for (text, newer) in [
        ("{}", false),
        ("", false),
        ("not json", false),
        (
            r#"{"magic":"x","layout_version":1,"volume":"","created":0,"conditional_put":true}"#,
            false,
        ),
        (
            "{\"magic\":\"kestrelfs\",\"layout_version\":2,\"volume\":\"\",\"created\":0,\
             \"conditional_put\":true}",
            true,
        ),
    ] {
        std::fs::write(gateway.files().join("w/kestrel-volume"), text).unwrap();
        let refusal = S3Store::open(of_volume(), VOLUME).unwrap_err();
        assert_eq!(
            matches!(refusal, OpenError::Newer { version: 2, .. }),
            newer,
            "{text}: {refusal}"
        );
        assert!(newer || matches!(refusal, OpenError::Damaged { .. }), "{text}: {refusal}");
    }
}

#[test]
fn each_reason_not_to_open_is_its_own() {
    let Some(gateway) = Gateway::start() else { return };
    let at = |url: &str| {
        S3Options::parse(url).unwrap().credentials_file(Some(gateway.credentials())).limits(hasty())
    };
    let endpoint = gateway.endpoint();
    let refusal = S3Store::open(at(&format!("s3://no-such-bucket/p?endpoint={endpoint}")), VOLUME)
        .unwrap_err();
    assert!(
        matches!(&refusal, OpenError::NoBucket { bucket, .. } if bucket == "no-such-bucket"),
        "{refusal}"
    );
    let of_volume = || options(&gateway, &endpoint, "p");
    for wrong in [gateway.wrong_secret(), gateway.other_credentials("AKIAUNKNOWN", "x")] {
        let refusal =
            S3Store::open(of_volume().credentials_file(Some(wrong.clone())), VOLUME).unwrap_err();
        assert!(matches!(&refusal, OpenError::Denied { .. }), "{wrong:?}: {refusal}");
        assert!(refusal.to_string().contains("credentials-"), "names the file: {refusal}");
    }
    S3Store::create(of_volume(), VOLUME).unwrap();
    let refusal =
        S3Store::open(of_volume().credentials_file(Some("/nowhere".into())), VOLUME).unwrap_err();
    assert!(matches!(&refusal, OpenError::Credentials(_)), "{refusal}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refusal =
        S3Store::open(options(&gateway, &format!("http://{closed}"), "p"), VOLUME).unwrap_err();
    assert!(matches!(&refusal, OpenError::Unreachable { .. }), "{refusal}");
    assert!(refusal.to_string().contains("refused"), "{refusal}");
    let refusal = S3Store::open(
        at(&format!("s3://{}/p?endpoint={endpoint}&region=eu-west-1", Gateway::BUCKET)),
        VOLUME,
    );
    assert!(refusal.is_err());
}
