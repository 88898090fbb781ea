//! Streams of frames: the first byte of the input says how they are cut.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kestrel_fuzz::stream(input));
