//! What must hold for any bytes in the place of what one metadata node says to another. The fuzz
//! target calls this with what libFuzzer thinks of, `crates/metadata/cluster/tests/envelope_corpus`
//! with the corpus and simple mutations of it.

use kestrel_cluster::Envelope;

/// Reading the bytes is an error, or gives an envelope that is written and read again as the same
/// one. (Not as the same bytes: a number may have been written longer than it needs to be.)
pub fn envelope(input: &[u8]) {
    let Ok(envelope) = Envelope::decode(input) else { return };
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes).expect("what was read is within the limits");
    assert_eq!(Envelope::decode(&bytes), Ok(envelope));
}
