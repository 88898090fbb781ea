//! What must hold for any bytes that come from a network. The fuzz targets call this with what
//! libFuzzer thinks of, `crates/types/tests/wire_corpus.rs` with the corpus and simple mutations of
//! it.

use kestrel_types::codec::Reader;
use kestrel_types::wire::{
    Checksum, Frame, Frames, HEADER_BYTES, ToClient, ToServer, decode_reply, decode_to_client,
    decode_to_server, encode_reply, encode_to_client, encode_to_server,
};

/// A payload after the byte that says of which kind: reading it is an error, or gives a message
/// that is written and read again as the same one.
pub fn message(input: &[u8]) {
    let Some((kind, payload)) = input.split_first() else { return };
    let frame = Frame { kind: *kind, payload };
    if let Ok(message) = decode_to_server(frame) {
        round_trip_to_server(message);
    }
    if let Ok(message) = decode_to_client(frame) {
        round_trip_to_client(message);
    }
    if let Ok(reply) = decode_reply(&mut Reader::new(payload)) {
        let mut bytes = Vec::new();
        encode_reply(&reply, &mut bytes);
        assert_eq!(decode_reply(&mut Reader::new(&bytes)), Ok(reply));
    }
}

/// A stream of frames, cut in pieces of the length that the first byte gives: frames come out as
/// they do in one piece.
pub fn stream(input: &[u8]) {
    let Some((piece, bytes)) = input.split_first() else { return };
    let whole = frames(bytes, bytes.len().max(1));
    assert_eq!(frames(bytes, usize::from(*piece) + 1), whole);
    for frame in whole {
        message(&frame);
    }
}

/// The frames of a stream up to the first error, each as kind and payload.
fn frames(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let (mut splitter, mut found) = (Frames::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        splitter.push(piece);
        loop {
            match splitter.next_frame() {
                Ok(Some(Frame { kind, payload })) => found.push([&[kind], payload].concat()),
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}

fn round_trip_to_server(message: ToServer) {
    let mut bytes = Vec::new();
    encode_to_server(&message, Checksum::Crc32c, &mut bytes)
        .expect("what was read is within the limits");
    let mut splitter = Frames::default();
    splitter.push(&bytes);
    let frame = splitter.next_frame().expect("a frame of ours").expect("a whole frame");
    assert_eq!(decode_to_server(frame), Ok(message));
}

fn round_trip_to_client(message: ToClient) {
    let mut bytes = Vec::new();
    encode_to_client(&message, Checksum::Off, &mut bytes)
        .expect("what was read is within the limits");
    let frame = Frame { kind: bytes[4], payload: &bytes[HEADER_BYTES..] };
    assert_eq!(decode_to_client(frame), Ok(message));
}
