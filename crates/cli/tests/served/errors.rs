//! What cannot be done is said.

use std::net::TcpListener;
use std::time::Duration;

use crate::common::run;
use crate::server::{Client, Server};

const SOON: Duration = Duration::from_secs(2);

fn refusal(url: &str) -> String {
    match Client::connect(url, "test", SOON) {
        Ok(_) => panic!("{url} was opened"),
        Err(why) => why.to_string(),
    }
}

#[test]
fn volumes_and_servers_that_are_not_there_are_named() {
    let server = Server::start("5s");
    let wrong = refusal(&format!("kestrel://{}/another", server.address()));
    assert!(wrong.contains("another"), "{wrong}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = refusal(&format!("kestrel://{free}/vol"));
    assert!(nobody.contains(&free.to_string()), "{nobody}");
    // The second address of several is tried too.
    let client =
        Client::connect(&format!("kestrel://{free},{}/vol", server.address()), "test", SOON)
            .unwrap();
    client.put("file", b"x");
    for (url, text) in [("kestrel://", "name is missing"), ("kestrel://a b/v", "host")] {
        run(&["status", url]).expect(2, text);
        run(&["mount", url, &server.place.mnt()]).expect(2, text);
    }
}

/// The command reports a store that it does not reach before it writes anything.
#[test]
fn unreachable_store_before_any_write() {
    let server = Server::start("5s");
    let objects = server.place.path("vol/objects");
    std::fs::rename(objects.join(".kestrel-served"), server.place.path("marker")).unwrap();
    let text = refusal(&server.url());
    assert!(text.contains("not reached from here") && text.contains("--storage s3://"), "{text}");
    std::fs::write(objects.join(".kestrel-served"), "another word\n").unwrap();
    assert!(refusal(&server.url()).contains("another directory lies there"));
}

/// A mount refuses another volume that is served in the place of its own.
#[test]
fn foreign_volume_at_the_same_address() {
    let server = Server::start("5s");
    let client = Client::connect(&server.url(), "test", SOON).unwrap();
    client.put("file", b"x");
    server.stop();
    run(&["format", &server.place.volume(), "--force"]).expect(0, "created");
    server.serve();
    let refused = client.stat(kestrel_types::ids::ROOT).unwrap_err();
    assert_eq!(refused.errno, libc::EIO);
    assert_eq!(server.status()["files"], 0);
}

#[test]
fn verbs_that_need_the_volume_itself_say_so() {
    let server = Server::start("5s");
    run(&["fsck", "--repair", &server.url()]).expect(2, "stop the server");
    run(&["dump", &server.url(), &server.place.name("dump")]).expect(0, "rows");
    for address in [server.address(), "127.0.0.1:0".into()] {
        run(&["serve", &server.place.volume(), "--listen", &address]).expect(1, "in use by");
    }
    let volume = server.place.volume();
    server.stop();
    run(&["serve", &volume, "--stop"]).expect(1, "nobody serves it");
    run(&["serve", &volume, "--lease", "10ms"]).expect(2, "lease");
    run(&["serve", &volume, "--metadata-memory", "1M"]).expect(2, "at least 16M");
    run(&["serve", &volume, "--listen", "nowhere"]).expect(2, "--listen nowhere");
    server.serve();
}
