//! Measures the data plane and prints one JSON object.
//!
//! `data_bench DIR [SECONDS]`: against raw files in the same directory, in one run.
//! `data_bench --remote MILLISECONDS [FILES]`: over a store in memory in which every request takes
//! so long.

mod local;
mod remote;

use std::sync::mpsc;

use kestrel_blockstore::{Packer, Result, StoredRange};
use kestrel_types::range::Range;

/// CPU time of this process, user and system, microseconds.
fn cpu_us() -> f64 {
    // SAFETY: plain integers, for which all zeros is a valid value; the pointer outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

fn data(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect()
}

fn store_one(packer: &Packer, bytes: &[u8]) -> Range {
    let (sender, receiver) = mpsc::sync_channel(1);
    let done = move |result: Result<StoredRange>| {
        let _ = sender.send(result.map(|placed| placed.range));
    };
    packer.store(bytes.to_vec(), 1, Box::new(done));
    receiver.recv().expect("answer").expect("stored")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: f64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    match arguments.first().map(String::as_str) {
        Some("--remote") => remote::run(number(1, 20.0) as u64, number(2, 10_000.0) as usize),
        Some(dir) if !dir.starts_with('-') => local::run(dir.into(), number(1, 2.0)),
        _ => {
            eprintln!("usage: data_bench DIR [SECONDS]: DIR is made, filled and removed");
            eprintln!("       data_bench --remote MILLISECONDS [FILES]");
            std::process::exit(2);
        }
    }
}
