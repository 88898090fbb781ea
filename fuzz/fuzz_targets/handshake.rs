//! What strangers say to a server.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    kestrel_fuzz::handshake(input);
});
