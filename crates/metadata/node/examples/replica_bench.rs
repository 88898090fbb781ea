//! Memory of the namespace replica: `cargo run --release -p kestrel-meta --example replica_bench --
//! [DIRECTORIES] [NAME-BYTES]` caches so many directories (a million, with names of 12 bytes), of
//! which each has ten below it, and prints what the process has grown by, and what finding one by
//! its place costs. With a FILE instead, the directories that it lists the paths of, one a line,
//! each after those above it.

use std::collections::HashMap;
use std::time::Instant;

use kestrel_meta::perm::{Dentry, Guard};
use kestrel_meta::replica::Replica;
use kestrel_types::policy::PolicyRecord;

/// Directories in one.
const FAN_OUT: u64 = 10;

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    let listed = first
        .as_ref()
        .filter(|word| word.parse::<u64>().is_err())
        .map(std::fs::read)
        .transpose()?;
    let width: usize = words.next().map_or(Ok(12), |text| text.parse())?;
    // Of each directory the one above it, 0 for the root, and its name. All is made before anything
    // is measured.
    let tree: Vec<(u64, Vec<u8>)> = match &listed {
        Some(paths) => listed_tree(paths)?,
        None => {
            let dirs: u64 = first.map_or(Ok(1_000_000), |text| text.parse())?;
            (1..=dirs)
                .map(|number| (number / FAN_OUT, format!("{number:0width$}").into_bytes()))
                .collect()
        }
    };
    let dirs = tree.len() as u64;
    let replica = Replica::new(usize::MAX / 2);
    let (before, begun) = (resident_bytes(), Instant::now());
    // Numbers of directories as several nodes hand them out: nothing in them is dense.
    let ino = |number: u64| if number == 0 { 1 } else { (number << 22) | (number % 3) << 14 };
    for (number, (above, name)) in (1..).zip(&tree) {
        let guard = Guard { mode: 0o755, uid: 1000, gid: 1000, dir: true, acls: None };
        let policy = PolicyRecord::default();
        replica.insert(Dentry { ino: ino(number), parent: ino(*above), guard, policy }, name, 0);
    }
    let (made, grown) = (begun.elapsed(), resident_bytes() - before);
    let begun = Instant::now();
    for asked in 1..=dirs {
        let number = asked.wrapping_mul(7919) % dirs + 1;
        let (above, name) = &tree[number as usize - 1];
        if replica.find(ino(*above), name) != Some(ino(number)) {
            return Err(format!("directory {number} was not found").into());
        }
    }
    let bytes: usize = tree.iter().map(|(_, name)| name.len()).sum();
    println!(
        "{dirs} directories with names of {:.1} bytes: {:.1} bytes each; {} ns to take one in, {} \
         ns to find one",
        bytes as f64 / dirs as f64,
        grown as f64 / dirs as f64,
        made.as_nanos() as u64 / dirs,
        begun.elapsed().as_nanos() as u64 / dirs,
    );
    Ok(())
}

/// Of each listed path the number of the one above it and the last name.
fn listed_tree(paths: &[u8]) -> Result<Vec<(u64, Vec<u8>)>, String> {
    let mut numbers: HashMap<&[u8], u64> = HashMap::new();
    let mut tree = Vec::new();
    for path in paths.split(|byte| *byte == b'\n').filter(|path| !path.is_empty()) {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            None => (0, path),
            Some(at) => {
                let above = numbers.get(&path[..at]);
                let unknown =
                    || format!("{}: what is above it is not listed before", path.escape_ascii());
                (*above.ok_or_else(unknown)?, &path[at + 1..])
            }
        };
        tree.push((above, name.to_vec()));
        numbers.insert(path, tree.len() as u64);
    }
    Ok(tree)
}
