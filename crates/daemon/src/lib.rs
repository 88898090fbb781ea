//! The process that has a volume open and serves it: answers questions over its control socket,
//! gives figures, takes over nodes that have died, evens nodes out, takes backups, collects
//! leftovers.

pub mod ask;
pub mod atime;
pub mod attendant;
pub mod background;
pub mod balance;
pub mod census;
pub mod clients;
pub mod collector;
pub mod control;
pub mod facts;
pub mod failure;
pub mod feed;
pub mod holder;
pub mod http;
pub mod jobs;
pub mod keeper;
pub mod limits;
pub mod logger;
pub mod memory;
pub mod metrics;
pub mod node;
pub mod nodes;
pub mod part;
pub mod process;
pub mod remote;
pub mod role;
pub mod runtime;
pub mod serve;
pub mod signals;
pub mod successor;
pub mod table;
pub mod tls;
pub mod tokens;
pub mod units;
pub mod worker;

use kestrel_types::wire::WHO_BYTES_MAX;

/// How this process presents itself to a server: what it is, on which host, its number.
pub fn who(what: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut who = format!("{what} on {}, process {}", host.trim(), std::process::id());
    let mut end = who.len().min(WHO_BYTES_MAX);
    while !who.is_char_boundary(end) {
        end -= 1;
    }
    who.truncate(end);
    who
}
