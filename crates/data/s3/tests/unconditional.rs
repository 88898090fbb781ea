//! Stores without conditional puts: `conditional-put=false`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use kestrel_blockstore::error::Error;
use kestrel_s3::{S3Options, S3Store};
use support::{Fault, Gateway, Proxy, Request, VOLUME, content, get, hasty, put};

/// A store behind a proxy, with that setting in its URL.
fn behind(
    gateway: &Gateway,
    script: impl Fn(&Request) -> Fault + Send + Sync + 'static,
) -> (Proxy, S3Store) {
    let proxy = Proxy::start(gateway.port(), script);
    let url = format!(
        "s3://{}/p?endpoint={}&region=us-east-1&conditional-put=false",
        Gateway::BUCKET,
        proxy.endpoint()
    );
    let at = || {
        S3Options::parse(&url)
            .unwrap()
            .credentials_file(Some(gateway.credentials()))
            .limits(hasty())
    };
    S3Store::create(at(), VOLUME).unwrap();
    let store = S3Store::open(at(), VOLUME).unwrap();
    assert!(!store.puts_conditionally());
    (proxy, store)
}

/// In this mode no condition is sent, and each put looks for the object first, with one request.
#[test]
fn requests_of_unconditional_puts() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, store) = behind(&gateway, |_| Fault::None);
    put(&store, 1, &content(1, 10_000)).unwrap();
    assert_eq!(["HEAD", "GET", "PUT"].map(|method| proxy.count(method)), [0, 1, 1]);
    let is_condition = |line: &String| line.to_ascii_lowercase().starts_with("if-");
    for request in proxy.requests() {
        assert!(!request.headers.iter().any(is_condition), "{request:?}");
    }
    assert_eq!(get(&store, 1, 0, 10_000).unwrap(), content(1, 10_000));
}

#[test]
fn what_is_there_is_not_overwritten_whatever_its_size() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, store) = behind(&gateway, |_| Fault::None);
    let rival = support::options(&gateway, &gateway.endpoint(), "p");
    let rival = S3Store::open(rival, VOLUME).unwrap();
    for (object, there, ours) in [(1, 100, 100), (2, 0, 10), (3, 10, 0), (4, 7 << 20, 6 << 20)] {
        put(&rival, object, &content(object, there)).unwrap();
        let refused = put(&store, object, &content(object + 100, ours));
        assert!(
            matches!(refused, Err(Error::Exists { object: found }) if found == object),
            "{refused:?}"
        );
        assert_eq!(get(&rival, object, 0, there).unwrap(), content(object, there));
    }
    assert_eq!((proxy.count("PUT"), proxy.count("POST")), (0, 0), "nothing was sent");
}

#[test]
fn puts_whose_answers_are_lost_are_sent_again() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, store) = behind(&gateway, |request| {
        let hit = request.is_object() && request.method != "GET" && request.repeats == 0;
        if hit { Fault::LostAnswer } else { Fault::None }
    });
    for (object, len) in [(1, 10_000), (2, 12 << 20)] {
        let bytes = content(object, len);
        put(&store, object, &bytes).unwrap();
        assert!(get(&store, object, 0, len).unwrap() == bytes);
    }
    assert!(proxy.count("PUT") >= 2);
}

#[test]
fn a_question_that_fails_stops_the_put() {
    let Some(gateway) = Gateway::start() else { return };
    let denied = "<Error><Code>AccessDenied</Code><Message>x</Message></Error>";
    let (proxy, store) = behind(&gateway, move |request| match request.method.as_str() {
        "GET" if request.is_object() => {
            Fault::Answer("403 Forbidden", Vec::new(), denied.to_string())
        }
        _ => Fault::None,
    });
    let refused = put(&store, 1, b"x");
    assert!(matches!(refused, Err(Error::Remote { object: Some(1), .. })), "{refused:?}");
    assert_eq!(proxy.count("PUT"), 0);
}
