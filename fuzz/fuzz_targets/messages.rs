//! Payloads of frames: the first byte of the input is the kind.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kestrel_fuzz::message(input));
