//! The corpus of the fuzz targets: one payload of each message, which pins the protocol's bytes,
//! and payloads that are none. Also a plain fuzzer for everybody: the checks of the fuzz targets
//! over mutations of the corpus, the same ones in each run.
//!
//! A new message goes into `samples.rs`;
//! `cargo test -p kestrel-types --test wire_corpus -- --ignored` then writes its file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../fuzz/checks.rs"]
mod checks;
#[path = "../../../../fuzz/mutations.rs"]
mod mutations;
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kestrel_types::wire::{Frame, decode_to_client, decode_to_server};
use mutations::Random;
use samples::{Sample, samples};

/// Mutations of each file of the corpus.
const MUTATIONS: usize = 200;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn files(target: &str) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
    };
    fs::read_dir(corpus(target)).unwrap().map(read).collect()
}

#[test]
fn each_message_has_the_bytes_it_always_had() {
    let mut files = files("messages");
    for (name, sample) in samples() {
        let bytes = files
            .remove(name)
            .unwrap_or_else(|| panic!("no file {name}: see the head of this file"));
        assert_eq!(bytes, sample.bytes(), "{name}");
        let frame = Frame { kind: bytes[0], payload: &bytes[1..] };
        match sample {
            Sample::ToServer(message) => assert_eq!(decode_to_server(frame), Ok(message), "{name}"),
            Sample::ToClient(message) => assert_eq!(decode_to_client(frame), Ok(message), "{name}"),
        }
    }
    for (name, bytes) in files {
        assert!(name.starts_with("bad-"), "{name} is no sample");
        let frame = Frame { kind: bytes[0], payload: &bytes[1..] };
        assert!(decode_to_server(frame).is_err() && decode_to_client(frame).is_err(), "{name}");
    }
}

#[test]
fn mutations_of_the_corpus_do_no_harm() {
    let mut random = Random(0x6b65_7374_7265_6c01);
    for (target, check) in [("messages", checks::message as fn(&[u8])), ("stream", checks::stream)]
    {
        let files: Vec<Vec<u8>> = files(target).into_values().collect();
        for file in &files {
            check(file);
            for _ in 0..MUTATIONS {
                check(&random.mutate(file, &files));
            }
        }
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_corpus() {
    let mut stream = vec![40];
    for (name, sample) in samples() {
        fs::write(corpus("messages").join(name), sample.bytes()).unwrap();
        stream.extend_from_slice(&sample.frame());
    }
    fs::write(corpus("stream").join("all-messages"), stream).unwrap();
    for (name, bytes) in samples::bad() {
        fs::write(corpus("messages").join(name), bytes).unwrap();
    }
    for (name, bytes) in samples::streams() {
        fs::write(corpus("stream").join(name), bytes).unwrap();
    }
}
