//! Envelopes of metadata nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kestrel_fuzz::envelope(input));
