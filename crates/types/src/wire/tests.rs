//! Messages round trip; whatever comes in their place is an error or another message, never a
//! panic, never much memory.
//!
//! | file | what it has |
//! | --- | --- |
//! | `tests/any.rs` | every possible message, as strategies |
//! | `tests/hostile.rs` | frames that no honest peer sends |

mod any;
mod hostile;

use proptest::prelude::*;

use super::*;
use crate::codec::Reader;

fn one_frame(bytes: &[u8]) -> Frames {
    let mut frames = Frames::default();
    frames.push(bytes);
    frames
}

fn server_bytes(message: &ToServer, checksum: Checksum) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_to_server(message, checksum, &mut bytes).unwrap();
    bytes
}

fn client_bytes(message: &ToClient, checksum: Checksum) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_to_client(message, checksum, &mut bytes).unwrap();
    bytes
}

fn read_server(bytes: &[u8]) -> Result<Option<ToServer>, WireError> {
    one_frame(bytes).next_frame()?.map(decode_to_server).transpose()
}

fn read_client(bytes: &[u8]) -> Result<Option<ToClient>, WireError> {
    one_frame(bytes).next_frame()?.map(decode_to_client).transpose()
}

fn checksum() -> impl Strategy<Value = Checksum> {
    prop_oneof![Just(Checksum::Off), Just(Checksum::Crc32c)]
}

proptest! {
    #[test]
    fn messages_to_servers_round_trip(message in any::to_server(), checksum in checksum()) {
        let bytes = server_bytes(&message, checksum);
        prop_assert_eq!(read_server(&bytes).unwrap(), Some(message));
    }

    #[test]
    fn messages_to_clients_round_trip(message in any::to_client(), checksum in checksum()) {
        let bytes = client_bytes(&message, checksum);
        prop_assert_eq!(read_client(&bytes).unwrap(), Some(message));
    }

    #[test]
    fn replies_round_trip_by_themselves(
        reply in any::reply(),
        behind in prop::collection::vec(any::<u8>(), 0..4)
    ) {
        let mut bytes = Vec::new();
        encode_reply(&reply, &mut bytes);
        bytes.extend_from_slice(&behind);
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(decode_reply(&mut reader).unwrap(), reply);
        prop_assert_eq!(reader.rest(), behind.as_slice());
    }

    #[test]
    fn frames_come_out_however_the_stream_is_cut(
        messages in prop::collection::vec(any::to_server(), 1..6),
        cuts in prop::collection::vec(1usize..400, 1..40),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            encode_to_server(message, Checksum::Crc32c, &mut stream).unwrap();
        }
        let (mut frames, mut read, mut rest) = (Frames::default(), Vec::new(), stream.as_slice());
        for cut in cuts.iter().cycle() {
            let (piece, later) = rest.split_at(rest.len().min(*cut));
            frames.push(piece);
            while let Some(frame) = frames.next_frame().unwrap() {
                read.push(decode_to_server(frame).unwrap());
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(frames.pending(), 0);
        prop_assert_eq!(read, messages);
    }

    /// Frames are taken only when they are whole; a message cut short is an error.
    #[test]
    fn what_is_truncated_is_not_taken(
        to_server in any::to_server(), to_client in any::to_client(),
        at in any::<prop::sample::Index>(),
    ) {
        let bytes = server_bytes(&to_server, Checksum::Crc32c);
        prop_assert_eq!(read_server(&bytes[..at.index(bytes.len())]), Ok(None));
        let (kind, payload) = (bytes[4], &bytes[HEADER_BYTES..]);
        // An envelope ends with its frame; its content is its member's matter.
        let cut = if matches!(to_server, ToServer::Peer(_)) { 0..0 } else { 0..payload.len() };
        for len in cut {
            prop_assert!(decode_to_server(Frame { kind, payload: &payload[..len] }).is_err(),
                "{len}");
        }
        let bytes = client_bytes(&to_client, Checksum::Off);
        let (kind, payload) = (bytes[4], &bytes[HEADER_BYTES..]);
        for len in 0..payload.len() {
            prop_assert!(decode_to_client(Frame { kind, payload: &payload[..len] }).is_err(),
                "{len}");
        }
    }

    /// With a checksum no changed byte goes unnoticed.
    #[test]
    fn a_changed_byte_is_noticed(
        message in any::to_server(), change in 1u8.., at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = server_bytes(&message, Checksum::Crc32c);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(!matches!(read_server(&bytes), Ok(Some(_))), "byte {at}");
    }

    /// Without one the result is an error, or a message like others: it can be written and read
    /// again.
    #[test]
    fn a_changed_byte_does_no_harm(
        to_server in any::to_server(), to_client in any::to_client(), change in 1u8..,
    ) {
        let bytes = server_bytes(&to_server, Checksum::Off);
        for changed in changed(&bytes[HEADER_BYTES..], change) {
            if let Ok(message) = decode_to_server(Frame { kind: bytes[4], payload: &changed }) {
                let again = server_bytes(&message, Checksum::Off);
                let frame = Frame { kind: again[4], payload: &again[HEADER_BYTES..] };
                prop_assert_eq!(decode_to_server(frame), Ok(message));
            }
        }
        let bytes = client_bytes(&to_client, Checksum::Off);
        for changed in changed(&bytes[HEADER_BYTES..], change) {
            if let Ok(message) = decode_to_client(Frame { kind: bytes[4], payload: &changed }) {
                let again = client_bytes(&message, Checksum::Off);
                let frame = Frame { kind: again[4], payload: &again[HEADER_BYTES..] };
                prop_assert_eq!(decode_to_client(frame), Ok(message));
            }
        }
    }

    #[test]
    fn garbage_is_no_message(
        kind in any::<u8>(),
        payload in prop::collection::vec(any::<u8>(), 0..300)
    ) {
        let _ = decode_to_server(Frame { kind, payload: &payload });
        let _ = decode_to_client(Frame { kind, payload: &payload });
        let _ = decode_reply(&mut Reader::new(&payload));
    }
}

/// The payload with each of its bytes changed in turn.
fn changed(payload: &[u8], change: u8) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..payload.len()).map(move |at| {
        let mut changed = payload.to_vec();
        changed[at] ^= change;
        changed
    })
}
