//! The corpus of the fuzz targets: one payload of each message, which pins the protocol's bytes, and payloads that are none.
//! Also a plain fuzzer for everybody: the checks of the fuzz targets over mutations of the corpus, the same ones in each run.
//!
//! A new message goes into `samples.rs`; `cargo test -p kestrel-types --test wire_corpus -- --ignored` then writes its file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../fuzz/checks.rs"]
mod checks;
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kestrel_types::wire::{Frame, decode_to_client, decode_to_server};
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
        let bytes = files.remove(name).unwrap_or_else(|| panic!("no file {name}: see the head of this file"));
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
    for (target, check) in [("messages", checks::message as fn(&[u8])), ("stream", checks::stream)] {
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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn mutate(&mut self, file: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = file.to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 => bytes.insert(at, self.next() as u8),
                4 => {
                    let end = bytes.len().min(at + self.below(9));
                    bytes.drain(at..end);
                }
                _ => {
                    let other = &others[self.below(others.len())];
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
            }
        }
        bytes
    }
}
