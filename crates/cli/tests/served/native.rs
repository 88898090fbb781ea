//! What several clients see of each other.

use kestrel_client::fs::{FileHandle, WriteAt};
use kestrel_types::range::RANGE_BYTES_MAX;

use crate::server::{Client, READ_MAX, Server};

/// Larger than what is kept in the record.
const STORED: usize = 100_000;

#[test]
fn what_one_closed_the_other_reads_when_it_opens() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    for (round, len) in [3, STORED, 5_000_000, 10].into_iter().enumerate() {
        let content = vec![round as u8 + 1; len];
        let name = format!("file{round}");
        one.put(&name, &content);
        assert!(two.content(&name) == content, "{name} read by the other");
        // An open file of the other: it sees what was committed when it asks for the attributes.
        let held = two.open(&name);
        one.put(&name, &[9; 10]);
        assert_eq!(two.stat(held.ino()).unwrap().size, len.max(10) as u64);
        two.close(held).unwrap();
        assert!(two.content(&name).starts_with(&[9; 10]));
    }
    drop((one, two));
    assert_eq!(server.status()["served"]["sessions_total"], 0, "both said farewell");
    server.check();
}

#[test]
fn a_file_lives_while_any_client_has_it_open() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    two.put("gone", &vec![1; STORED]);
    let held = one.open("gone");
    two.unlink("gone");
    assert_eq!(one.read(&held).unwrap(), vec![1; STORED]);
    one.write(&held, 0, &vec![2; STORED]);
    assert_eq!(one.read(&held).unwrap(), vec![2; STORED]);
    assert_eq!(one.stat(held.ino()).unwrap().nlink, 0);
    let ino = held.ino();
    one.close(held).unwrap();
    // Clients that knew it still show what it was.
    assert_eq!(server.client("three").stat(ino).unwrap_err().errno, libc::ESTALE);
    server.check();
}

#[test]
fn what_is_renamed_elsewhere_goes_on_being_written() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    let held = one.open("old");
    one.write(&held, 0, b"before ");
    two.rename("old", "new");
    one.write(&held, 7, b"after");
    one.close(held).unwrap();
    assert_eq!(two.content("new"), b"before after");
    server.check();
}

#[test]
fn writers_of_one_file_keep_each_others_bytes() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    for (name, len) in [("small", 1000), ("packed", STORED), ("chunked", RANGE_BYTES_MAX as usize)]
    {
        one.put(name, &vec![0; len]);
        let (a, b) = (one.open(name), two.open(name));
        // Neither knows of the other's bytes when it writes its own.
        one.fs.write(&a, 0, &[1; 100], false).unwrap();
        two.fs.write(&b, 200, &[2; 100], false).unwrap();
        two.fs.write(&b, 50, &[3; 10], false).unwrap();
        one.flush(&a).unwrap();
        two.flush(&b).unwrap();
        one.close(a).unwrap();
        two.close(b).unwrap();
        let mut wanted = vec![0; len];
        wanted[..100].fill(1);
        wanted[200..300].fill(2);
        wanted[50..60].fill(3);
        assert!(one.content(name) == wanted[..len.min(READ_MAX)], "{name}");
    }
    server.check();
}

fn append(client: &Client, file: &FileHandle, bytes: &[u8]) {
    client
        .fs
        .write_unless(file, WriteAt::End { unfinished: false }, bytes, None, &|| false)
        .unwrap();
}

/// Where the end is, is decided when bytes are committed: a later writer comes behind.
#[test]
fn appended_bytes_of_several_clients() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    for (name, len) in
        [("empty", 0), ("small", 1000), ("packed", STORED), ("chunked", RANGE_BYTES_MAX as usize)]
    {
        one.put(name, &vec![0; len]);
        let (a, b) = (one.open(name), two.open(name));
        append(&one, &a, &[1; 100]);
        append(&two, &b, &[2; 50]);
        // A write before the end, and one into what was appended here, which goes along.
        let before = len.min(5);
        two.fs.write(&b, 0, &vec![3; before], false).unwrap();
        two.fs.write(&b, len as u64 + 45, &[4; 5], false).unwrap();
        one.flush(&a).unwrap();
        append(&one, &a, &[5; 10]);
        two.flush(&b).unwrap();
        append(&two, &b, &[6; 20]);
        one.flush(&a).unwrap();
        two.flush(&b).unwrap();
        one.close(a).unwrap();
        two.close(b).unwrap();
        let mut wanted = vec![0; len];
        let parts: [(u8, usize); 5] = [(1, 100), (2, 45), (4, 5), (5, 10), (6, 20)];
        wanted.extend(parts.iter().flat_map(|(byte, count)| vec![*byte; *count]));
        wanted[..before].fill(3);
        let end = wanted.len();
        let content = one.content(name);
        assert_eq!(one.size(name), end as u64, "{name}");
        assert!(content == wanted[..end.min(READ_MAX)], "{name}");
    }
    server.check();
}

/// What is written to an offset behind appended bytes stays there, though these move behind those
/// of another client.
#[test]
fn writes_behind_appended_bytes() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    for (name, len) in [("small", 1000), ("packed", STORED), ("chunked", RANGE_BYTES_MAX as usize)]
    {
        one.put(name, &vec![1; len]);
        let (a, b) = (one.open(name), two.open(name));
        append(&one, &a, &[2; 50]);
        append(&two, &b, &[3; 70]);
        two.flush(&b).unwrap();
        one.fs.write(&a, len as u64 + 5000, &[4; 5], false).unwrap();
        append(&one, &a, &[5; 10]);
        one.flush(&a).unwrap();
        one.close(a).unwrap();
        two.close(b).unwrap();
        let mut wanted = vec![1; len];
        let parts: [(u8, usize); 5] = [(3, 70), (2, 50), (0, 4880), (4, 5), (5, 10)];
        wanted.extend(parts.iter().flat_map(|(byte, count)| vec![*byte; *count]));
        assert_eq!(one.size(name), wanted.len() as u64, "{name}");
        assert!(one.content(name) == wanted[..wanted.len().min(READ_MAX)], "{name}");
    }
    server.check();
}

/// A writer that does not know of bytes behind its own leaves them alone.
#[test]
fn writes_before_a_new_end() {
    let server = Server::start("10s");
    let (one, two) = (server.client("one"), server.client("two"));
    for (name, len) in [("small", 1000), ("packed", STORED), ("chunked", 5_000_000)] {
        let (a, b) = (one.open(name), two.open(name));
        one.fs.write(&a, 0, &[1; 10], false).unwrap();
        two.fs.write(&b, 5, &vec![2; len], false).unwrap();
        two.flush(&b).unwrap();
        one.flush(&a).unwrap();
        one.close(a).unwrap();
        two.close(b).unwrap();
        let content = one.content(name);
        assert_eq!(content.len(), (len + 5).min(READ_MAX), "{name}");
        assert!(content[..10] == [1; 10] && content[10..].iter().all(|byte| *byte == 2), "{name}");
    }
    server.check();
}
