//! The server is killed, or cannot be reached: what is open goes on, as far as that is possible.

use std::time::Duration;

use crate::relay::Relay;
use crate::server::{Client, Server, until};

#[test]
fn open_files_survive_the_death_of_the_server() {
    let server = Server::start("5s");
    let (one, two) = (server.client("one"), server.client("two"));
    let stored = vec![7; 100_000];
    let (kept, renamed, unlinked) = (one.open("kept"), one.open("renamed"), one.open("unlinked"));
    let temporary = one.temporary();
    for file in [&kept, &renamed, &unlinked, &temporary] {
        one.write(file, 0, &stored);
        one.fs.write(file, 0, b"not yet stored", false).unwrap();
    }
    two.rename("renamed", "elsewhere");
    two.unlink("unlinked");
    server.restart();
    for file in [&kept, &renamed, &unlinked, &temporary] {
        one.flush(file).unwrap();
        let content = one.read(file).unwrap();
        assert!(content.starts_with(b"not yet stored") && content[14..] == stored[14..]);
    }
    one.link(temporary.ino(), "named");
    assert!(two.content("kept").starts_with(b"not yet stored"));
    assert!(two.content("elsewhere").starts_with(b"not yet stored"));
    assert!(two.content("named").starts_with(b"not yet stored"));
    assert_eq!(one.stat(unlinked.ino()).unwrap().nlink, 0);
    // Once more, with files that have been reclaimed before.
    server.restart();
    let ino = unlinked.ino();
    for file in [kept, renamed, unlinked, temporary] {
        assert!(one.read(&file).unwrap().starts_with(b"not yet stored"));
        one.close(file).unwrap();
    }
    let gone = server.client("three").stat(ino).unwrap_err();
    assert_eq!(gone.errno, libc::ESTALE, "nobody has it open any more");
    assert_eq!(server.status()["served"]["opens"], 0);
    assert_eq!(one.reconnects(), 2);
    server.check();
}

/// Each call is executed once although the server dies again and again.
#[test]
fn exactly_once_calls_over_server_deaths() {
    let server = Server::start("5s");
    let client = server.client("one");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..2000 {
                // Fails with EEXIST or ENOENT if either is executed twice.
                let how = kestrel_client::fs::NewNode {
                    kind: kestrel_types::inode::Kind::File,
                    mode: 0o600,
                    rdev: 0,
                };
                let name = crate::server::name(&format!("n{number}"));
                let made = name.clone();
                let caller = kestrel_client::fs::Caller::ROOT;
                let root = kestrel_types::ids::ROOT;
                kestrel_client::fs::wait(|done| {
                    client.fs.mknod(
                        caller,
                        kestrel_types::name::PathRef::new(root, made),
                        how,
                        done,
                    )
                })
                .unwrap();
                if number % 2 == 0 {
                    kestrel_client::fs::wait(|done| {
                        client.fs.unlink(
                            caller,
                            kestrel_types::name::PathRef::new(root, name),
                            done,
                        )
                    })
                    .unwrap();
                }
            }
        });
        for _ in 0..3 {
            server.restart();
        }
        writer.join().unwrap();
    });
    assert_eq!(server.status()["files"], 1000);
    server.check();
}

/// A client that was away for longer than its lease keeps the open files that still exist.
#[test]
fn client_away_longer_than_its_lease() {
    let server = Server::start("1s");
    let relay = Relay::to(server.address());
    let url = format!("kestrel://{}/vol", relay.address());
    let one = Client::connect(&url, "one", Duration::from_secs(60)).unwrap();
    let two = server.client("two");
    let (kept, unlinked) = (one.open("kept"), one.open("unlinked"));
    one.write(&kept, 0, b"kept");
    one.write(&unlinked, 0, b"unlinked");
    relay.cut();
    two.unlink("unlinked");
    until("the session has expired", || {
        let status = server.status();
        let sessions = status["served"]["sessions"].as_array().unwrap().clone();
        sessions.iter().any(|session| session["who"] == "one" && session["state"] == "expired")
    });
    relay.mend();
    one.fs.write(&kept, 4, b" and written", false).unwrap();
    one.flush(&kept).unwrap();
    assert_eq!(two.content("kept"), b"kept and written");
    one.fs.write(&unlinked, 0, b"lost", false).unwrap();
    let lost = one.flush(&unlinked).unwrap_err();
    assert!(matches!(lost.errno, libc::ESTALE | libc::EBADF), "{lost}");
    one.close(kept).unwrap();
    assert_eq!(server.status()["served"]["opens"], 0);
    server.check();
}

/// A call without a server waits until its deadline, and the next call works when the server is
/// back.
#[test]
fn call_deadline_and_server_return() {
    let server = Server::start("5s");
    let client = Client::connect(&server.url(), "one", Duration::from_secs(2)).unwrap();
    client.put("file", b"content");
    server.kill();
    let failed = client.stat(kestrel_types::ids::ROOT).unwrap_err();
    assert_eq!(failed.errno, libc::EIO);
    assert!(failed.to_string().contains(&server.address()), "{failed}");
    server.serve();
    until("the client is back", || client.stat(kestrel_types::ids::ROOT).is_ok());
    assert_eq!(client.content("file"), b"content");
    server.check();
}

#[test]
fn a_server_that_ends_cleanly_is_waited_for_too() {
    let server = Server::start("5s");
    let client = server.client("one");
    let held = client.open("file");
    client.write(&held, 0, b"before");
    server.stop();
    server.serve();
    client.write(&held, 6, b" after");
    assert_eq!(client.content("file"), b"before after");
    client.close(held).unwrap();
    server.check();
}
