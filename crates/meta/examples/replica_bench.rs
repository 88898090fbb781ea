//! Memory of the namespace replica: `cargo run --release -p kestrel-meta --example replica_bench -- [DIRECTORIES] [NAME-BYTES]` caches so many
//! directories (a million, with names of 12 bytes), of which each has ten below it, and prints what the process has grown by, and what finding
//! one by its place costs.

use std::time::Instant;

use kestrel_meta::perm::{Dentry, Guard};
use kestrel_meta::replica::Replica;

/// Directories in one.
const FAN_OUT: u64 = 10;

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let dirs: u64 = words.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let width: usize = words.next().map_or(Ok(12), |text| text.parse())?;
    let replica = Replica::new(usize::MAX / 2);
    let (before, begun) = (resident_bytes(), Instant::now());
    // Numbers of directories as several nodes hand them out: nothing in them is dense.
    let ino = |number: u64| if number == 0 { 1 } else { (number << 22) | (number % 3) << 14 };
    let name = |number: u64| format!("{number:0width$}");
    for number in 1..=dirs {
        let guard = Guard { mode: 0o755, uid: 1000, gid: 1000, dir: true };
        let dir = Dentry { ino: ino(number), parent: ino(number / FAN_OUT), guard };
        replica.insert(dir, name(number).as_bytes(), 0);
    }
    let (made, grown) = (begun.elapsed(), resident_bytes() - before);
    let begun = Instant::now();
    for asked in 1..=dirs {
        let number = asked.wrapping_mul(7919) % dirs + 1;
        if replica.find(ino(number / FAN_OUT), name(number).as_bytes()) != Some(ino(number)) {
            return Err(format!("directory {number} was not found").into());
        }
    }
    println!(
        "{dirs} directories with names of {width} bytes: {:.1} bytes each; {} ns to take one in, {} ns to find one",
        grown as f64 / dirs as f64,
        made.as_nanos() as u64 / dirs,
        begun.elapsed().as_nanos() as u64 / dirs,
    );
    Ok(())
}
