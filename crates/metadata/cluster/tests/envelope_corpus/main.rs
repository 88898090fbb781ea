//! The corpus of the fuzz target `envelopes`: one envelope of each message that nodes send to each
//! other, which pins its bytes, and bytes that are none. Also a plain fuzzer for everybody: the
//! check of the target over mutations of the corpus, the same ones in each run.
//!
//! A new message goes into `samples.rs`; `cargo test -p kestrel-cluster --test envelope_corpus --
//! --ignored` then writes its file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../../fuzz/envelopes.rs"]
mod checks;
#[path = "../../../../../fuzz/mutations.rs"]
mod mutations;
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kestrel_cluster::{Envelope, Message};

use mutations::Random;

/// Mutations of each file of the corpus.
const MUTATIONS: usize = 500;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/envelopes")
}

fn files() -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
    };
    fs::read_dir(corpus()).unwrap().map(read).collect()
}

fn envelope(message: Message) -> Envelope {
    Envelope { from: 2, stamp: 0x0123_4567_89ab_cdef, message }
}

fn bytes(message: Message) -> Vec<u8> {
    let mut out = Vec::new();
    envelope(message).encode(&mut out).unwrap();
    out
}

#[test]
fn each_message_has_the_bytes_it_always_had() {
    let mut files = files();
    for (name, message) in samples::samples() {
        let file = files
            .remove(name)
            .unwrap_or_else(|| panic!("no file {name}: see the head of this file"));
        assert_eq!(file, bytes(message.clone()), "{name}");
        assert_eq!(Envelope::decode(&file), Ok(envelope(message)), "{name}");
    }
    for (name, file) in files {
        assert!(name.starts_with("bad-"), "{name} is no sample");
        assert!(Envelope::decode(&file).is_err(), "{name}");
    }
}

#[test]
fn mutations_of_the_corpus_do_no_harm() {
    let mut random = Random(0x6b65_7374_7265_6c02);
    let files: Vec<Vec<u8>> = files().into_values().collect();
    for file in &files {
        checks::envelope(file);
        for _ in 0..MUTATIONS {
            checks::envelope(&random.mutate(file, &files));
        }
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_corpus() {
    for (name, message) in samples::samples() {
        fs::write(corpus().join(name), bytes(message)).unwrap();
    }
    for (name, bytes) in samples::bad() {
        fs::write(corpus().join(name), bytes).unwrap();
    }
}
