//! Named objects on a real server: what the conditions of puts decide, and what becomes of a call
//! with a lost answer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use bytes::Bytes;
use kestrel_blockstore::named::{LocalNamed, MemoryNamed, NamedStore};
use kestrel_s3::S3Named;
use support::{Fault, Gateway, Proxy, Request, options};

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// What every store of named objects does.
fn check_store(store: &dyn NamedStore) {
    assert_eq!(store.read("a/one").unwrap(), None);
    assert_eq!(store.list("a/").unwrap(), []);
    assert!(store.create("a/one", text("first")).unwrap());
    assert!(store.create("a/one", text("first")).unwrap(), "as if its answer had been lost");
    assert!(!store.create("a/one", text("other")).unwrap());
    let first = store.read("a/one").unwrap().unwrap();
    assert_eq!(first.bytes, text("first"));
    let tag = store.replace("a/one", text("second"), &first.tag).unwrap().unwrap();
    assert_eq!(store.replace("a/one", text("third"), &first.tag).unwrap(), None);
    let again = store.replace("a/one", text("second"), &first.tag).unwrap();
    assert_eq!(again.as_ref(), Some(&tag), "as if its answer had been lost");
    let second = store.read("a/one").unwrap().unwrap();
    assert_eq!((second.bytes, &second.tag), (text("second"), &tag));
    assert_eq!(store.read_range("a/one", 2, 3).unwrap(), text("con"));
    assert_eq!(store.read_range("a/one", 4, 30).unwrap(), text("nd"));
    assert_eq!(store.replace("a/none", text("x"), &tag).unwrap(), None);
    assert!(store.read_range("a/none", 0, 1).is_err());
    for name in ["a/b/two", "a/three", "b/four"] {
        assert!(store.create(name, text("x")).unwrap());
    }
    let names = |below: &str| -> Vec<String> {
        store.list(below).unwrap().into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names("a/"), ["a/b/two", "a/one", "a/three"]);
    assert_eq!(store.list("b/").unwrap(), [("b/four".to_string(), 1)]);
    store.remove("a/one").unwrap();
    store.remove("a/one").unwrap();
    assert_eq!(store.read("a/one").unwrap(), None);
    assert!(store.create("a/one", text("new")).unwrap());
    assert_eq!(names("a/"), ["a/b/two", "a/one", "a/three"]);
}

/// A bucket, a directory and memory decide the same.
#[test]
fn named_objects_of_all_stores() {
    check_store(&MemoryNamed::default());
    let dir = tempfile::tempdir().unwrap();
    check_store(&LocalNamed::open(dir.path()).unwrap());
    let Some(gateway) = Gateway::start() else { return };
    let options = options(&gateway, &gateway.endpoint(), "named");
    check_store(&S3Named::open(options, true).unwrap());
}

/// The store does the first put of each name, and its answer is lost: the next attempt finds what
/// it was to write.
#[test]
fn lost_answers_of_named_puts() {
    let Some(gateway) = Gateway::start() else { return };
    let proxy = Proxy::start(gateway.port(), |request: &Request| {
        let hit = request.method == "PUT" && request.repeats.is_multiple_of(2);
        if hit { Fault::LostAnswer } else { Fault::None }
    });
    check_store(&S3Named::open(options(&gateway, &proxy.endpoint(), "lost"), true).unwrap());
}

/// A call may come from a thread of a runtime, of each kind.
#[test]
fn named_objects_in_a_runtime() {
    let Some(gateway) = Gateway::start() else { return };
    let store = S3Named::open(options(&gateway, &gateway.endpoint(), "run"), true).unwrap();
    let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
    one.block_on(async { assert!(store.create("one", text("x")).unwrap()) });
    let many = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let store = std::sync::Arc::new(store);
    // The store itself goes on this thread: it has runtimes of its own.
    let reader = store.clone();
    let done = many.spawn(async move { reader.read("one").unwrap().unwrap().bytes });
    assert_eq!(many.block_on(done).unwrap(), text("x"));
}

/// A store that takes a put although its condition does not hold is refused, and says why.
#[test]
fn ignored_conditions() {
    let Some(gateway) = Gateway::start() else { return };
    for (header, what) in [("if-none-match", "If-None-Match"), ("if-match", "If-Match")] {
        let proxy = Proxy::start(gateway.port(), move |request: &Request| {
            let has = |line: &String| line.to_ascii_lowercase().starts_with(&format!("{header}:"));
            // As if the server had not looked at it.
            let taken = request.method == "PUT" && request.headers.iter().any(has);
            let etag = vec!["ETag: \"0\"".to_string()];
            if taken { Fault::Answer("200 OK", etag, String::new()) } else { Fault::None }
        });
        let found = S3Named::open(options(&gateway, &proxy.endpoint(), "ignores"), true);
        let why = found.unwrap_err().to_string();
        assert!(why.contains(&format!("ignores {what}")), "{why}");
    }
}
