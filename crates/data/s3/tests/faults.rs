//! The store behind a proxy that injects faults: what is tried again, what is not, what is
//! believed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use kestrel_blockstore::error::{Error, ErrorKind};
use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_s3::{OpenError, S3Limits, S3Options, S3Store};
use support::{Fault, Gateway, Proxy, Request, VOLUME, content, figure, get, hasty, options, put};

const SLOW_DOWN: &str =
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
const INTERNAL: &str =
    "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>";
const DENIED: &str = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
const THERE: &str = "<Error><Code>PreconditionFailed</Code><Message>x</Message></Error>";

fn answer(status: &'static str, body: &str) -> Fault {
    Fault::Answer(status, Vec::new(), body.to_string())
}

/// A store behind a proxy.
fn behind(
    gateway: &Gateway,
    script: impl Fn(&Request) -> Fault + Send + Sync + 'static,
) -> (Proxy, S3Store) {
    behind_within(gateway, hasty(), script)
}

/// For faults that do not go away.
fn impatient() -> S3Limits {
    S3Limits { deadline: Duration::from_millis(700), ..hasty() }
}

fn behind_within(
    gateway: &Gateway,
    limits: S3Limits,
    script: impl Fn(&Request) -> Fault + Send + Sync + 'static,
) -> (Proxy, S3Store) {
    S3Store::create(options(gateway, &gateway.endpoint(), "p"), VOLUME).unwrap();
    let proxy = Proxy::start(gateway.port(), script);
    let store =
        S3Store::open(options(gateway, &proxy.endpoint(), "p").limits(limits), VOLUME).unwrap();
    (proxy, store)
}

/// The first two requests for each object or listing meet the fault.
fn twice(fault: Fault) -> impl Fn(&Request) -> Fault + Send + Sync {
    move |request| {
        let hit = (request.is_object() || request.is_list()) && request.repeats < 2;
        if hit { fault.clone() } else { Fault::None }
    }
}

#[test]
fn what_may_pass_is_tried_again() {
    let Some(gateway) = Gateway::start() else { return };
    for (number, fault) in [
        answer("500 Internal Server Error", INTERNAL),
        answer("503 Service Unavailable", SLOW_DOWN),
        answer("503 Service Unavailable", "<html>no such backend</html>"),
        answer("502 Bad Gateway", ""),
        answer("429 Too Many Requests", ""),
        answer("409 Conflict", "<Error><Code>ConditionalRequestConflict</Code></Error>"),
        answer("400 Bad Request", "<Error><Code>RequestTimeout</Code></Error>"),
        answer("404 Not Found", "<html>a proxy's page</html>"),
        Fault::Reset,
        Fault::Late(Duration::from_millis(1500)),
    ]
    .into_iter()
    .enumerate()
    {
        let late = matches!(fault, Fault::Late(_));
        let attempt = if late { Duration::from_millis(700) } else { hasty().attempt };
        let limits = S3Limits { attempt, ..hasty() };
        let (proxy, store) = behind_within(&gateway, limits, twice(fault.clone()));
        let object = number as u64 + 1;
        let bytes = content(object, 5000);
        put(&store, object, &bytes).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(get(&store, object, 100, 900).unwrap() == bytes[100..1000], "{fault:?}");
        assert_eq!(store.list(None, 1000).unwrap().objects.len(), number + 1, "{fault:?}");
        assert!(figure(&store, "store_retries") >= 6, "{fault:?}");
        assert_eq!(figure(&store, "store_errors"), 0, "{fault:?}");
        let counts = (proxy.count("PUT"), proxy.count("GET"));
        // The store did the first put, and the next attempt finds the object and compares it: one
        // GET more.
        let expected = if late { counts.0 >= 1 && counts.1 >= 4 } else { counts == (3, 3) };
        assert!(expected, "{fault:?}: {counts:?}");
    }
}

#[test]
fn what_cannot_pass_is_not_tried_again() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, store) = behind(&gateway, |request| {
        if request.is_object() || request.is_list() {
            answer("403 Forbidden", DENIED)
        } else {
            Fault::None
        }
    });
    for error in [
        put(&store, 1, b"x").unwrap_err(),
        get(&store, 1, 0, 1).unwrap_err(),
        store.size(1).unwrap_err(),
        store.delete(1).unwrap_err(),
        store.list(None, 10).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Remote { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(
            error.to_string().contains("credentials") && error.to_string().contains("403"),
            "{error}"
        );
    }
    // And the marker's, read when the store was opened.
    assert_eq!(proxy.requests().len(), 1 + 5);
    assert_eq!(figure(&store, "store_retries"), 0);
    assert_eq!(figure(&store, "store_errors"), 5);
}

/// A store that only fails leads to an error within the deadline.
#[test]
fn error_of_a_store_that_only_fails() {
    let Some(gateway) = Gateway::start() else { return };
    let limits = S3Limits { deadline: Duration::from_secs(3), ..hasty() };
    let (_proxy, store) = behind_within(&gateway, limits, |request| {
        if request.is_object() { answer("503 Service Unavailable", SLOW_DOWN) } else { Fault::None }
    });
    let begin = std::time::Instant::now();
    let error = put(&store, 1, b"x").unwrap_err();
    assert!(matches!(error, Error::Remote { object: Some(1), .. }), "{error}");
    assert!(
        error.to_string().contains("SlowDown") && error.to_string().contains("tried"),
        "{error}"
    );
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert!(figure(&store, "store_throttled") >= 2);
    assert_eq!(figure(&store, "store_errors"), 1);
    assert_eq!(store.list(None, 10).unwrap().objects.len(), 0);
}

#[test]
fn a_dead_store_is_a_deadline_and_others_go_on() {
    let Some(gateway) = Gateway::start() else { return };
    let limits =
        S3Limits { deadline: Duration::from_secs(8), attempt: Duration::from_secs(3), ..hasty() };
    let (_proxy, store) = behind_within(&gateway, limits, |request| {
        if request.target.contains("0000000000000bad") {
            Fault::Late(Duration::from_secs(60))
        } else {
            Fault::None
        }
    });
    std::thread::scope(|scope| {
        let dead = scope.spawn(|| get(&store, 0xbad, 0, 1).unwrap_err());
        for object in 1..20 {
            put(&store, object, &content(object, 3000)).unwrap();
        }
        let error = dead.join().unwrap();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Deadline);
    });
}

#[test]
fn a_put_whose_answer_was_lost_is_recognized() {
    let Some(gateway) = Gateway::start() else { return };
    for (fault, puts) in [
        (Fault::LostAnswer, 1),
        (Fault::Replaced("500 Internal Server Error", INTERNAL.to_string()), 2),
    ] {
        let prefix = gateway.files().join("p");
        let _ = std::fs::remove_dir_all(prefix);
        let (proxy, store) = behind(&gateway, move |request| {
            let hit = request.is_object() && request.method != "GET" && request.repeats == 0;
            if hit { fault.clone() } else { Fault::None }
        });
        let small = content(1, 10_000);
        put(&store, 1, &small).unwrap();
        assert_eq!((proxy.count("PUT"), proxy.count("GET")), (puts, 1));
        assert_eq!(get(&store, 1, 0, small.len()).unwrap(), small);
        // In parts: the answers to beginning, to a part and to completing are lost.
        let large = content(2, 12 << 20);
        let parts: Vec<IoSlice<'_>> = large.chunks(1 << 20).map(IoSlice::new).collect();
        store.put(2, &parts).unwrap();
        assert!(get(&store, 2, 0, large.len()).unwrap() == large);
        assert_eq!(figure(&store, "store_errors"), 0);
    }
}

#[test]
fn another_writers_object_is_not_taken_for_ours() {
    let Some(gateway) = Gateway::start() else { return };
    let (_proxy, store) = behind(&gateway, twice(Fault::Reset));
    let rival = S3Store::open(options(&gateway, &gateway.endpoint(), "p"), VOLUME).unwrap();
    put(&rival, 1, b"theirs").unwrap();
    put(&rival, 2, b"longer than ours").unwrap();
    put(&rival, 3, &content(3, 6 << 20)).unwrap();
    assert!(matches!(put(&store, 1, b"ours!!"), Err(Error::Exists { object: 1 })));
    assert!(matches!(put(&store, 2, b"ours!!"), Err(Error::Exists { object: 2 })));
    assert!(matches!(put(&store, 3, &content(4, 6 << 20)), Err(Error::Exists { object: 3 })));
    assert_eq!(get(&store, 1, 0, 6).unwrap(), b"theirs");
}

/// A put that the store refuses while the connection breaks still ends with the refusal.
#[test]
fn refusal_on_a_broken_connection() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, store) = behind(&gateway, |request| match request.method.as_str() {
        "PUT" if request.is_object() => Fault::Reset,
        _ => Fault::None,
    });
    let rival = S3Store::open(options(&gateway, &gateway.endpoint(), "p"), VOLUME).unwrap();
    put(&rival, 1, &content(1, 50_000)).unwrap();
    assert!(matches!(put(&store, 1, &content(2, 50_000)), Err(Error::Exists { object: 1 })));
    assert_eq!((proxy.count("PUT"), proxy.count("HEAD")), (1, 1));
}

#[test]
fn first_answer_exists() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, store) = behind(&gateway, |request| {
        if request.method == "PUT" { answer("412 Precondition Failed", THERE) } else { Fault::None }
    });
    assert!(matches!(put(&store, 1, b"x"), Err(Error::Exists { object: 1 })));
    assert_eq!((proxy.count("PUT"), proxy.count("GET")), (1, 0));
}

/// A body that ends early is requested again, and never filled up.
#[test]
fn bodies_that_end_early() {
    let Some(gateway) = Gateway::start() else { return };
    let bytes = content(1, 300_000);
    for (object, always, cut) in [(1, false, 0), (2, false, 1), (3, false, 99_999), (4, true, 1000)]
    {
        let limits = if always { impatient() } else { hasty() };
        let (_proxy, store) = behind_within(&gateway, limits, move |request| {
            let hit =
                request.method == "GET" && request.is_object() && (always || request.repeats < 2);
            if hit { Fault::Truncated(cut) } else { Fault::None }
        });
        put(&store, object, &bytes).unwrap();
        let read = get(&store, object, 50, 100_000);
        if always {
            assert!(matches!(read, Err(Error::Remote { object: Some(4), .. })), "{read:?}");
        } else {
            assert!(read.unwrap() == bytes[50..100_050], "{cut}");
            assert_eq!(figure(&store, "store_retries"), 2);
        }
    }
}

#[test]
fn bodies_of_other_ranges_are_refused() {
    let Some(gateway) = Gateway::start() else { return };
    let answers = [
        // Shorter and longer than requested, another range, no range at all.
        (
            "206 Partial Content",
            vec!["Content-Range: bytes 10-14/1000".to_string()],
            "01234".to_string(),
        ),
        (
            "206 Partial Content",
            vec!["Content-Range: bytes 10-19/1000".to_string()],
            "0123456789abc".to_string(),
        ),
        (
            "206 Partial Content",
            vec!["Content-Range: bytes 11-20/1000".to_string()],
            "0123456789".to_string(),
        ),
        ("206 Partial Content", vec![], "0123456789".to_string()),
        ("200 OK", vec![], "0123456789".to_string()),
    ];
    for (status, headers, body) in answers {
        let answer = Fault::Answer(status, headers.clone(), body.clone());
        let (_proxy, store) = behind_within(&gateway, impatient(), move |request| {
            if request.method == "GET" && request.is_object() {
                answer.clone()
            } else {
                Fault::None
            }
        });
        let read = get(&store, 1, 10, 10);
        assert!(
            matches!(read, Err(Error::Remote { object: Some(1), .. })),
            "{status} {headers:?}: {read:?}"
        );
    }
}

/// A read reports an object that another program has shortened or lengthened.
#[test]
fn objects_with_changed_lengths() {
    let Some(gateway) = Gateway::start() else { return };
    let (_proxy, store) = behind(&gateway, |_| Fault::None);
    let bytes = content(1, 1000);
    put(&store, 1, &bytes).unwrap();
    let file = gateway.files().join("p").join(kestrel_blockstore::store::key::key(1));
    std::fs::write(&file, &bytes[..400]).unwrap();
    let read = get(&store, 1, 0, 1000);
    assert!(matches!(read, Err(Error::Corrupt { object: 1, .. })), "{read:?}");
    assert_eq!(store.size(1).unwrap(), 400);
    std::fs::write(&file, [bytes.clone(), vec![7; 50]].concat()).unwrap();
    assert_eq!(get(&store, 1, 0, 1000).unwrap(), bytes);
    assert_eq!(store.size(1).unwrap(), 1050);
}

#[test]
fn listings_that_cannot_be_right_are_not_used() {
    let Some(gateway) = Gateway::start() else { return };
    let faults = [
        // Cut off inside and at the end, short of a key, backwards, foreign keys, more without
        // saying where.
        Fault::Truncated(700),
        Fault::Answer("200 OK", Vec::new(), "<ListBucketResult><KeyCount>0</KeyCount>".to_string()),
        Fault::Edited("<KeyCount>3", "<KeyCount>4"),
        Fault::Edited("p/objects/56/0000000000000001", "p/objects/ff/0000000000000001"),
        Fault::Edited("<Key>p/objects/", "<Key>q/objects/"),
        Fault::Edited("<IsTruncated>false", "<IsTruncated>true"),
        answer("200 OK", INTERNAL),
    ];
    for fault in faults {
        for always in [false, true] {
            let fault = fault.clone();
            let shown = format!("{fault:?} {always}");
            let limits = if always { impatient() } else { hasty() };
            let contradicts = matches!(fault, Fault::Edited(..));
            let (proxy, store) = behind_within(&gateway, limits, move |request| {
                let hit = request.is_list() && (always || request.repeats == 0);
                if hit { fault.clone() } else { Fault::None }
            });
            for object in [1, 2, 3] {
                let _ = put(&store, object, b"x");
            }
            let pages: Result<Vec<_>, _> = list_all(&store).collect();
            match pages {
                Ok(pages) => {
                    assert!(!always, "{shown}");
                    assert_eq!(
                        pages.iter().map(|page| page.objects.len()).sum::<usize>(),
                        3,
                        "{shown}"
                    );
                }
                Err(error) => {
                    assert!(always, "{shown}: {error}");
                    assert!(
                        matches!(error, Error::Remote { object: None, .. }),
                        "{shown}: {error}"
                    );
                    // A page that came whole is not requested again and again until the deadline.
                    let requests =
                        proxy.requests().iter().filter(|request| request.is_list()).count();
                    assert!(!contradicts || requests == 3, "{shown}: asked {requests} times");
                }
            }
        }
    }
}

#[test]
fn a_listing_that_ends_too_early_is_found_out() {
    let Some(gateway) = Gateway::start() else { return };
    let end = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    // The second page is missing: the store claims that the first is all there is, and that there
    // is nothing.
    for first in [
        Fault::Edited("<IsTruncated>true</IsTruncated>", "<IsTruncated>false</IsTruncated>"),
        answer("200 OK", end),
    ] {
        let (_proxy, store) = behind(&gateway, move |request| {
            let is_repeat = request.target.split(['?', '&']).any(|pair| pair == "max-keys=1");
            if request.is_list() && request.repeats == 0 && !is_repeat {
                first.clone()
            } else {
                Fault::None
            }
        });
        for object in 1..=9 {
            let _ = put(&store, object, b"x");
        }
        let (mut found, mut after) = (0, None);
        loop {
            let page = store.list(after.as_deref(), 4).unwrap();
            found += page.objects.len();
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, 9);
    }
}

#[test]
fn difference_of_clocks() {
    let Some(gateway) = Gateway::start() else { return };
    let body = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too \
                large.</Message></Error>";
    let date = vec!["Date: Sun, 06 Nov 1994 08:49:37 GMT".to_string()];
    let proxy = Proxy::start(gateway.port(), move |_| {
        Fault::Answer("403 Forbidden", date.clone(), body.to_string())
    });
    let refusal = S3Store::open(options(&gateway, &proxy.endpoint(), "p"), VOLUME).unwrap_err();
    assert!(
        matches!(refusal, OpenError::ClockSkew { ahead_seconds: Some(900_000_000..), .. }),
        "{refusal}"
    );
    assert!(
        refusal.to_string().contains("ahead") && refusal.to_string().contains("chronyc"),
        "{refusal}"
    );
    assert_eq!(proxy.requests().len(), 1);
}

/// Formatting finds out stores that ignore or refuse conditions.
#[test]
fn stores_without_conditional_puts() {
    let Some(gateway) = Gateway::start() else { return };
    let refuses = "<Error><Code>NotImplemented</Code><Message>x</Message></Error>";
    for (number, refusal) in
        [answer("501 Not Implemented", refuses), answer("200 OK", "")].into_iter().enumerate()
    {
        let refusal = match refusal {
            // A put that is accepted must carry an ETag.
            Fault::Answer("200 OK", ..) => {
                Fault::Answer("200 OK", vec!["ETag: \"x\"".to_string()], String::new())
            }
            other => other,
        };
        let proxy = Proxy::start(gateway.port(), move |request| {
            if request.target.contains("kestrel-probe") { refusal.clone() } else { Fault::None }
        });
        let at = || options(&gateway, &proxy.endpoint(), &format!("c{number}"));
        let store = S3Store::create(at(), VOLUME).unwrap();
        assert!(!store.puts_conditionally());
        put(&store, 1, b"x").unwrap();
        assert!(matches!(put(&store, 1, b"y"), Err(Error::Exists { .. })));
        // Remembered in the marker.
        assert!(!S3Store::open(at(), VOLUME).unwrap().puts_conditionally());
        let names = std::fs::read_dir(gateway.files().join(format!("c{number}"))).unwrap();
        let leftovers = names
            .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().contains("probe"));
        assert_eq!(leftovers.count(), 0);
    }
}

/// Credentials come from the instance if no other source has them.
#[test]
fn credentials_of_the_instance() {
    let Some(gateway) = Gateway::start() else { return };
    let (access, secret) = gateway.keys();
    let role = format!(
        "{{\"Code\":\"Success\",\"AccessKeyId\":\"{access}\",\"SecretAccessKey\":\"{secret}\",\
         \"Token\":\"\",\"Expiration\":\"2099-01-01T00:00:00Z\"}}"
    );
    let metadata = Proxy::start(gateway.port(), move |request| match request.target.as_str() {
        "/latest/api/token" => answer("200 OK", "token"),
        "/latest/meta-data/iam/security-credentials/" => answer("200 OK", "the-role"),
        "/latest/meta-data/iam/security-credentials/the-role" => answer("200 OK", &role),
        _ => answer("404 Not Found", ""),
    });
    let url = format!("s3://{}/imds?endpoint={}", Gateway::BUCKET, gateway.endpoint());
    let nothing = Proxy::start(gateway.port(), |_| answer("404 Not Found", ""));
    for (endpoint, good) in [(metadata.endpoint(), true), (nothing.endpoint(), false)] {
        let (done, output) = opens_with(&url, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &endpoint)]);
        assert_eq!(done, good, "{output}");
        assert!(good || output.contains("metadata service gave none"), "{output}");
    }
}

#[test]
fn certificates_are_checked() {
    let Some(gateway) = Gateway::start_tls() else { return };
    let url = format!("s3://{}/tls?endpoint=https://127.0.0.1:{}", Gateway::BUCKET, gateway.port());
    let (access, secret) = gateway.keys();
    let keys = [("AWS_ACCESS_KEY_ID", access), ("AWS_SECRET_ACCESS_KEY", secret)];
    let tls = Gateway::tls_files();
    let authority = |name: &str| tls.join(name).to_string_lossy().into_owned();
    let (right, none) = (authority("ca.pem"), authority("server.key"));
    let (done, output) = opens_with(&url, &[keys[0], keys[1], ("SSL_CERT_FILE", &right)]);
    assert!(done, "{output}");
    let (done, output) = opens_with(&url, &[keys[0], keys[1], ("SSL_CERT_FILE", &none)]);
    assert!(!done && output.contains("no root certificates"), "{output}");
    // The system's authorities do not know this one, if there are any.
    let (done, output) = opens_with(&url, &keys);
    assert!(!done && output.contains("SSL_CERT_FILE"), "{output}");
}

/// Opens a store in another process, since the environment belongs to the whole process; whether it
/// did and what it printed.
fn opens_with(url: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "opens_by_the_environment", "--ignored", "--nocapture"])
        .env_clear()
        .env("KESTREL_TEST_URL", url)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    (
        done.status.success(),
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(),
    )
}

#[test]
#[ignore = "run by other tests in a process of its own"]
fn opens_by_the_environment() {
    let Ok(url) = std::env::var("KESTREL_TEST_URL") else { return };
    let store = S3Store::create(S3Options::parse(&url).unwrap().limits(hasty()), VOLUME);
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    put(&store, 1, b"x").unwrap();
    store.read(1, 0, &mut [IoSliceMut::new(&mut [0])]).unwrap();
}

/// A request that waits for its turn at a dead store fails at the deadline too.
#[test]
fn queued_requests_at_a_dead_store() {
    let Some(gateway) = Gateway::start() else { return };
    S3Store::create(options(&gateway, &gateway.endpoint(), "p"), VOLUME).unwrap();
    let proxy = Proxy::start(gateway.port(), |request| {
        if request.is_object() { Fault::Late(Duration::from_secs(60)) } else { Fault::None }
    });
    let limits = S3Limits { max_downloads: 1, deadline: Duration::from_secs(3), ..hasty() };
    let store =
        S3Store::open(options(&gateway, &proxy.endpoint(), "p").limits(limits), VOLUME).unwrap();
    std::thread::scope(|scope| {
        for object in 1..=4 {
            let store = &store;
            scope.spawn(move || {
                let error = get(store, object, 0, 1).unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
            });
        }
    });
}
