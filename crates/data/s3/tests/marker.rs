//! The marker behind a proxy that damages it on its way.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use kestrel_s3::{OpenError, S3Store};
use support::{Fault, Gateway, Proxy, VOLUME, options};

/// A bad body of the marker is read again before it is believed.
#[test]
fn second_read_of_a_bad_marker() {
    let Some(gateway) = Gateway::start() else { return };
    S3Store::create(options(&gateway, &gateway.endpoint(), "p"), VOLUME).unwrap();
    let other = VOLUME.map(|byte| format!("{byte:02x}")).concat();
    // Leaked: a script of the proxy has no lifetime.
    let (other, flipped): (&'static str, &'static str) =
        (String::leak(other.clone()), String::leak(other.replacen('7', "8", 1)));
    for bad in [
        Fault::Edited("kestrelfs", "kestrelft"),
        Fault::Edited("{", "["),
        Fault::Edited("}", "}}}"),
        Fault::Edited("\"layout_version\": 1", "\"layout_version\": 9"),
        Fault::Edited(other, flipped),
        Fault::Answer("200 OK", Vec::new(), String::new()),
    ] {
        for (bad_times, good) in [(2, true), (usize::MAX, false)] {
            let (shown, bad) = (format!("{bad:?} {bad_times}"), bad.clone());
            let proxy = Proxy::start(gateway.port(), move |request| {
                if request.repeats < bad_times { bad.clone() } else { Fault::None }
            });
            let store = S3Store::open(options(&gateway, &proxy.endpoint(), "p"), VOLUME);
            assert_eq!(store.is_ok(), good, "{shown}: {store:?}");
            assert_eq!(proxy.requests().len(), 3, "{shown}");
            let is_refused = match store {
                Ok(_) => true,
                Err(
                    OpenError::Damaged { .. }
                    | OpenError::Newer { .. }
                    | OpenError::OtherVolume { .. },
                ) => true,
                Err(_) => false,
            };
            assert!(is_refused, "{shown}");
        }
    }
}
