//! Frames that no honest peer sends, byte by byte, and messages above their limits.

use super::super::*;
use super::{client_bytes, one_frame, read_client, read_server, server_bytes};
use crate::codec::Reader;
use crate::name::{Name, PathRef};
use crate::request::{Answer, Creds, Op, Outcome, Request};

fn header(len: u32, kind: u8, flags: u8) -> Vec<u8> {
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[kind, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(payload.len() as u32, kind, 0);
    bytes.extend_from_slice(payload);
    bytes
}

fn lookup() -> Call {
    let place = PathRef::new(1, Name::new(b"file").unwrap());
    let body = Body::Op(Request { creds: Creds::root(), op: Op::Lookup(place) });
    Call { id: 300, seq: 0, acked: 2, retry: true, body }
}

fn hello() -> Hello {
    Hello {
        versions: Versions::OURS,
        volume: "data".into(),
        client: ClientId([7; 16]),
        incarnation: 3,
        who: "host:12:/mnt".into(),
        established: true,
        token: None,
    }
}

/// The bytes that `docs/protocol.md` shows; they never change within a version.
#[test]
fn bytes_are_pinned() {
    let call = server_bytes(&ToServer::Call(lookup()), Checksum::Off);
    #[rustfmt::skip]
    let expected = [
        0, 0, 0, 17,  2, 0,  0, 0,  0, 0, 0, 0,  0, 0, 0, 0, // header: 17 bytes, Call
        1, 1,                                                // an operation, retry
        0xac, 2,  0,  2,                                     // id 300, not numbered, acked up to 2
        0, 0, 1,                                             // uid 0, gid 0, no further groups
        1, 1, 0, 4, b'f', b'i', b'l', b'e',                  // Lookup below inode 1, no directories between, name
    ];
    assert_eq!(call[16..], expected[16..]);
    assert_eq!(call[..16], expected[..16]);
    let summed = server_bytes(&ToServer::Call(lookup()), Checksum::Crc32c);
    assert_eq!(summed[4..8], [2, 1, 0, 0]);
    let mut covered = summed[..8].to_vec();
    covered.extend_from_slice(&summed[16..]);
    assert_eq!(summed[8..12], crc32c::crc32c(&covered).to_be_bytes());

    let hello = server_bytes(&ToServer::Hello(hello()), Checksum::Off);
    let mut expected =
        framed(1,
            b"KSTL\0\x0e\0\x0e\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\0\0\0\0\0\0\0\x03\x01\x04data\x0chost:12:/mnt\0");
    assert_eq!(hello, expected);
    assert_eq!(server_bytes(&ToServer::Proof([5; 32]), Checksum::Off), framed(9, &[5; 32]));
    assert_eq!(client_bytes(&ToClient::Challenge([6; 32]), Checksum::Off), framed(0x87, &[6; 32]));

    let (volume, nonce) = ([8; 16], [9; 16]);
    let peer = PeerHello {
        versions: Versions::OURS,
        volume,
        from: 2,
        to: 1,
        table: 5,
        nonce,
        node_uuid: 0x0102,
        epoch: 3,
        start: 0x0406,
        address: "b:94".into(),
    };
    let transcript = peer.transcript(Prover::Reached, &[5; 16]);
    assert_eq!(transcript[..23], *b"kestrelfs peer proof 1\x02");
    assert_eq!(
        (&transcript[23..39], &transcript[39..43]),
        ([5; 16].as_slice(), b"KSTL".as_slice())
    );
    let tail =
        [[0, 0, 0, 0, 0, 0, 1, 2], [0, 0, 0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, 0, 4, 6]].concat();
    let head = [
        b"KSTL\0\x0e\0\x0e".as_slice(),
        &[8; 16],
        &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5],
    ];
    expected = framed(6, &[&head.concat()[..], &[9; 16], &tail, b"\x04b:94"].concat());
    assert_eq!(server_bytes(&ToServer::PeerHello(peer), Checksum::Off), expected);
    assert_eq!(server_bytes(&ToServer::PeerProof([3; 32]), Checksum::Off), framed(8, &[3; 32]));
    let challenge = PeerChallenge { nonce: [4; 16], proof: [5; 32] };
    expected = framed(0x86, &[[4; 16].as_slice(), &[5; 32]].concat());
    assert_eq!(client_bytes(&ToClient::PeerChallenge(challenge), Checksum::Off), expected);
    assert_eq!(
        server_bytes(&ToServer::Peer(b"envelope"[..].into()), Checksum::Off),
        framed(7, b"envelope")
    );

    let reply = ReplyTo {
        id: 300,
        table: 0,
        answered: Answered::Op(Err(Outcome::Failed(FsError::new(2, "no")))),
    };
    expected = framed(0x83, &[1, 0xac, 2, 0, 0x80, 2, 2, b'n', b'o']);
    assert_eq!(client_bytes(&ToClient::Reply(reply), Checksum::Off), expected);
    assert_eq!(server_bytes(&ToServer::Bye, Checksum::Off), header(0, 5, 0));
    assert_eq!(
        client_bytes(&ToClient::Pong { table: 300 }, Checksum::Off),
        framed(0x85, &[0xac, 2])
    );
}

#[test]
fn a_frame_above_the_limit_is_refused_by_its_header() {
    let mut frames = one_frame(&header(FRAME_BYTES_MAX as u32 + 1, 2, 0));
    let error = WireError::Oversized { len: FRAME_BYTES_MAX + 1, max: FRAME_BYTES_MAX };
    assert_eq!(frames.next_frame(), Err(error));
    assert_eq!(one_frame(&header(FRAME_BYTES_MAX as u32, 2, 0)).next_frame(), Ok(None));
    let mut stranger = Frames::new(HELLO_BYTES_MAX);
    stranger.push(&header(HELLO_BYTES_MAX as u32 + 1, 1, 0));
    assert!(matches!(
        stranger.next_frame(),
        Err(WireError::Oversized { max: HELLO_BYTES_MAX, .. })
    ));
}

/// An announced payload takes no memory before it comes.
#[test]
fn memory_of_announced_payloads() {
    let mut frames = one_frame(&header(FRAME_BYTES_MAX as u32, 2, 0));
    for _ in 0..10 {
        assert_eq!(frames.next_frame(), Ok(None));
        assert!(frames.space().len() <= 128 * 1024);
        frames.filled(1);
    }
}

#[test]
fn unknown_kinds_flags_and_reserved_bytes_are_refused() {
    for kind in [0, 10, 0x7f, 0x81, 0x83, 0xff] {
        assert_eq!(read_server(&framed(kind, &[])), Err(WireError::UnknownKind(kind)));
    }
    for kind in [0, 1, 2, 5, 0x80, 0x88, 0xff] {
        assert_eq!(read_client(&framed(kind, &[])), Err(WireError::UnknownKind(kind)));
    }
    for flags in [2, 4, 0x80, 0xff] {
        assert_eq!(read_server(&header(0, 5, flags)), Err(WireError::UnknownFlags));
    }
    for at in [6, 7, 12, 13, 14, 15] {
        let mut bytes = header(0, 5, 0);
        bytes[at] = 1;
        assert_eq!(read_server(&bytes), Err(WireError::UnknownFlags));
    }
}

#[test]
fn wrong_and_needless_checksums_are_refused() {
    let good = server_bytes(&ToServer::Call(lookup()), Checksum::Crc32c);
    for at in 8..12 {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        assert_eq!(read_server(&bytes), Err(WireError::Checksum));
    }
    let mut bytes = good;
    bytes[5] = 0;
    assert_eq!(read_server(&bytes), Err(WireError::Checksum), "a sum without the flag");
}

#[test]
fn bytes_left_over_are_refused() {
    for message in [
        ToServer::Bye,
        ToServer::Hello(hello()),
        ToServer::Call(lookup()),
        ToServer::Cancel { id: 1 },
    ] {
        let mut bytes = server_bytes(&message, Checksum::Off);
        bytes.push(0);
        bytes[3] += 1;
        assert!(matches!(read_server(&bytes), Err(WireError::Malformed(_))), "{message:?}");
    }
}

#[test]
fn other_protocols_and_versions_are_told_apart() {
    let good = server_bytes(&ToServer::Hello(hello()), Checksum::Off);
    let mut bytes = good.clone();
    bytes[HEADER_BYTES] = b'k';
    assert_eq!(read_server(&bytes), Err(WireError::NotHello));
    // What follows the versions may have any form.
    let future = framed(1, b"KSTL\0\x0f\0\x10what comes then");
    assert_eq!(read_server(&future), Err(WireError::Version(Versions { min: 15, max: 16 })));
    let none = framed(1, b"KSTL\0\x0f\0\x02what comes then");
    assert_eq!(read_server(&none), Err(WireError::Version(Versions { min: 15, max: 2 })));
    assert_eq!(Versions { min: 0, max: 14 }.common(Versions::OURS), Some(VERSION));
    assert_eq!(Versions { min: 15, max: 16 }.common(Versions::OURS), None);
    assert_eq!(Versions { min: 1, max: 1 }.common(Versions::OURS), None);
    // HTTP and TLS end as oversized frames.
    for stranger in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaa",
    ] {
        assert!(matches!(read_server(stranger), Err(WireError::Oversized { .. })));
    }
}

#[test]
fn counts_above_what_the_frame_holds_take_no_memory() {
    // Creds with 2^62 groups; a place with 2^40 directories; a listing of 2^50 entries.
    let groups =
        [&[1, 0, 1, 0, 0, 0, 0][..], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40, 31]]
            .concat();
    assert!(matches!(read_server(&framed(2, &groups)), Err(WireError::Malformed(_))));
    let dirs = [1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 1, b'x'];
    assert!(matches!(read_server(&framed(2, &dirs)), Err(WireError::Malformed(_))));
    let entries = [1, 1, 0, 7, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 1, 1, 1, b'x'];
    assert!(matches!(read_client(&framed(0x83, &entries)), Err(WireError::Malformed(_))));
}

#[test]
fn bad_names_are_refused() {
    let lookup =
        |name: &[u8]| [&[1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, name.len() as u8], name].concat();
    assert!(read_server(&framed(2, &lookup(b"good"))).is_ok());
    for name in [b"".as_slice(), b".", b"..", b"a/b", b"a\0"] {
        assert!(
            matches!(read_server(&framed(2, &lookup(name))), Err(WireError::Malformed(_))),
            "{name:?}"
        );
    }
}

#[test]
fn ranges_of_locks_are_checked() {
    let unlock = |kind, start, end| {
        let body = Body::Lock(LockRequest::Unlock { ino: 1, owner: 1, kind, start, end });
        read_server(&server_bytes(&ToServer::Call(Call { body, ..lookup() }), Checksum::Off))
    };
    assert!(unlock(LockKind::Posix, 5, 5).is_ok());
    assert!(unlock(LockKind::Flock, 0, LOCK_END).is_ok());
    for (kind, start, end) in
        [(LockKind::Posix, 6, 5), (LockKind::Posix, 0, u64::MAX), (LockKind::Flock, 0, 5)]
    {
        assert!(
            matches!(unlock(kind, start, end), Err(WireError::Malformed(_))),
            "{kind:?} {start} {end}"
        );
    }
}

#[test]
fn what_exceeds_a_limit_is_not_sent() {
    let mut out = vec![1, 2, 3];
    let mut refused = |message: ToServer| {
        assert!(encode_to_server(&message, Checksum::Crc32c, &mut out).is_err());
        assert_eq!(out, [1, 2, 3]);
    };
    refused(ToServer::Hello(Hello { volume: "v".repeat(VOLUME_BYTES_MAX + 1), ..hello() }));
    refused(ToServer::Hello(Hello { who: "w".repeat(WHO_BYTES_MAX + 1), ..hello() }));
    refused(ToServer::Call(Call {
        body: Body::Admin(vec![b' '; JSON_BYTES_MAX + 1].into()),
        ..lookup()
    }));
    let op = |op| {
        ToServer::Call(Call { body: Body::Op(Request { creds: Creds::root(), op }), ..lookup() })
    };
    let name = Name::new(b"n").unwrap();
    refused(op(Op::Lookup(PathRef {
        base: 1,
        dirs: std::iter::repeat_n(name.clone(), 3000).collect(),
        name: name.clone(),
    })));
    refused(op(Op::Symlink(PathRef::new(1, name), vec![0; FRAME_BYTES_MAX].into())));
    let objects = vec![(1, 1); RECLAIM_ITEMS_MAX + 1];
    refused(ToServer::Call(Call {
        body: Body::Reclaim(Reclaim { objects, ..Reclaim::default() }),
        ..lookup()
    }));
    let event = ToClient::Event { id: 1, json: vec![b' '; JSON_BYTES_MAX + 1].into() };
    assert!(encode_to_client(&event, Checksum::Off, &mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn a_reply_that_is_too_large_becomes_an_error() {
    let answered = Answered::Op(Ok(Answer::Bytes(vec![0; FRAME_BYTES_MAX].into())));
    let reply = ToClient::Reply(ReplyTo { id: 9, table: 4, answered });
    let Some(ToClient::Reply(ReplyTo { id: 9, table: 4, answered })) =
        read_client(&client_bytes(&reply, Checksum::Crc32c)).unwrap()
    else {
        panic!("not the reply")
    };
    assert!(matches!(
        answered,
        Answered::Op(Err(Outcome::Failed(FsError { errno: libc::EMSGSIZE, .. })))
    ));
}

#[test]
fn strange_errors_are_made_proper_ones() {
    let reason = "ä".repeat(REASON_BYTES_MAX);
    let refused = |errno| ToClient::Refused(Refused { errno, reason: reason.clone().into() });
    for (errno, read) in
        [(-1, libc::EIO), (0, libc::EIO), (4096, libc::EIO), (libc::EPERM, libc::EPERM)]
    {
        let Some(ToClient::Refused(told)) =
            read_client(&client_bytes(&refused(errno), Checksum::Off)).unwrap()
        else {
            panic!("not refused")
        };
        assert_eq!((told.errno, &*told.reason), (read, &reason[..REASON_BYTES_MAX]));
    }
}

/// A large frame is received, and its memory is returned.
#[test]
fn large_frame_and_its_memory() {
    let json: Box<[u8]> = vec![b'x'; JSON_BYTES_MAX].into();
    let event = ToClient::Event { id: 1, json };
    let mut frames = one_frame(&client_bytes(&event, Checksum::Crc32c));
    assert_eq!(decode_to_client(frames.next_frame().unwrap().unwrap()).unwrap(), event);
    assert!(frames.space().len() <= 64 * 1024);
    assert_eq!(frames.next_frame(), Ok(None));
}

/// What reads at a snapshot does not do so within another one, however deep.
#[test]
fn snapshots_within_snapshots() {
    let at = |op| Op::At(7, Box::new(op));
    let request = |op| Request { creds: Creds::root(), op };
    let mut bytes = Vec::new();
    let nested = encode_request(&request(at(at(Op::Usage))), &mut bytes);
    assert!(nested.is_err() && bytes.is_empty());
    encode_request(&request(at(Op::Usage)), &mut bytes).unwrap();
    let (head, tail) = bytes.split_at(bytes.len() - 3);
    let deep = [head, &tail[..2].repeat(100_000), &tail[2..]].concat();
    assert!(decode_request(&mut Reader::new(&bytes)).is_ok());
    assert!(decode_request(&mut Reader::new(&deep)).is_err());
}
