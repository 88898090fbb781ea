//! What encoding and decoding cost: `cargo run --release -p kestrel-types --example wire`.
//!
//! Prints nanoseconds per message, the best of several rounds, for the messages that metadata
//! traffic consists of. Decoding includes cutting the frame out of the stream and dropping the
//! message, as a server does.

use std::hint::black_box;
use std::time::Instant;

use kestrel_types::error::FsError;
use kestrel_types::inode::{Data, Inode, InodeFlags, Kind};
use kestrel_types::name::{Dirs, InodeRef, Name, PathRef};
use kestrel_types::policy::Policy;
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, Outcome, Request};
use kestrel_types::wire::{
    Answered, Body, Call, Checksum, Frames, ReplyTo, ToClient, ToServer, decode_to_client,
    decode_to_server, encode_reply_to, encode_to_server,
};

/// Messages in one buffer, as many calls travel in one write.
const BATCH: usize = 256;
const ROUNDS: usize = 2000;

fn inode() -> Box<Inode> {
    let (now, change) = (1_700_000_000_000_000_000, 99_000_000_000);
    Box::new(Inode {
        ino: 10_000_000,
        kind: Kind::File,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        nlink: 1,
        rdev: 0,
        size: 100_000,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        change,
        data_change: change,
        xattrs: false,
        flags: InodeFlags::default(),
        acls: None,
        data: Data::None,
        effective: Policy::default(),
    })
}

fn call(op: Op, seq: u64) -> ToServer {
    let creds = Creds { uid: 1000, gid: 1000, groups: None };
    ToServer::Call(Call {
        id: 1_000_000,
        seq,
        acked: seq.saturating_sub(200),
        retry: false,
        body: Body::Op(Request { creds, op }),
    })
}

fn main() {
    #[allow(clippy::unwrap_used, reason = "constants")]
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    let file = || name("IMG_20240101_000017.jpg");
    let dirs: Dirs = ["datasets", "imagenet", "train", "n01440764"].into_iter().map(name).collect();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let create = |place| Op::Create { place, mode: 0o644, flags, exclusive: true };
    let calls = [
        (
            "stat, by inode",
            call(Op::GetAttr(InodeRef { ino: 10_000_000, seen: Some((77_000, file())) }), 0),
        ),
        ("lookup, one name", call(Op::Lookup(PathRef::new(77_000, file())), 0)),
        (
            "lookup, path of 5",
            call(Op::Lookup(PathRef { base: 1, dirs: dirs.clone(), name: file() }), 0),
        ),
        ("create, one name", call(create(PathRef::new(77_000, file())), 900_000)),
        ("create, path of 5", call(create(PathRef { base: 1, dirs, name: file() }), 900_000)),
    ];
    let reply = |reply| ReplyTo { id: 1_000_000, table: 1, answered: Answered::Op(reply) };
    let replies = [
        ("stat: entry", reply(Ok(Answer::Entry { parent: 77_000, inode: inode() }))),
        (
            "create: opened",
            reply(Ok(Answer::Opened { inode: inode(), created: true, parent: Some(77_000) })),
        ),
        ("done", reply(Ok(Answer::Done))),
        ("no such file", reply(Err(Outcome::Failed(FsError::new(2, "no such file or directory"))))),
    ];
    println!(
        "{:<20} {:>6} {:>18} {:>18} {:>18}",
        "ns per message", "bytes", "encode", "decode", "both, CRC-32C"
    );
    for (label, message) in &calls {
        let encode = |checksum, out: &mut Vec<u8>| {
            let _ = encode_to_server(message, checksum, out);
        };
        report(label, encode, |frames| {
            while let Ok(Some(frame)) = frames.next_frame() {
                let _ = black_box(decode_to_server(frame));
            }
        });
    }
    for (label, message) in &replies {
        report(
            label,
            |checksum, out| encode_reply_to(message, checksum, out),
            |frames| {
                while let Ok(Some(frame)) = frames.next_frame() {
                    let _: Result<ToClient, _> = black_box(decode_to_client(frame));
                }
            },
        );
    }
}

fn report(label: &str, encode: impl Fn(Checksum, &mut Vec<u8>), drain: impl Fn(&mut Frames)) {
    let mut best = [f64::INFINITY; 4];
    let mut bytes = 0;
    for round in 0..ROUNDS {
        let (checksum, at) =
            if round % 2 == 0 { (Checksum::Off, 0) } else { (Checksum::Crc32c, 2) };
        let mut out = Vec::with_capacity(64 * 1024);
        let start = Instant::now();
        (0..BATCH).for_each(|_| encode(black_box(checksum), &mut out));
        best[at] = best[at].min(start.elapsed().as_nanos() as f64 / BATCH as f64);
        bytes = out.len() / BATCH;
        let mut frames = Frames::default();
        frames.push(&out);
        let start = Instant::now();
        drain(&mut frames);
        best[at + 1] = best[at + 1].min(start.elapsed().as_nanos() as f64 / BATCH as f64);
        assert_eq!(frames.pending(), 0);
    }
    let [encode, decode, summed_encode, summed_decode] = best;
    println!(
        "{label:<20} {bytes:>6} {encode:>18.0} {decode:>18.0} {:>18.0}",
        summed_encode + summed_decode
    );
}
