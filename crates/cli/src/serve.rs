//! What a process that serves a volume does besides serving it: answers questions, gives figures, goes to the background.

pub mod attendant;
pub mod balance;
pub mod census;
pub mod clients;
pub mod collector;
pub mod control;
pub mod daemon;
pub mod facts;
pub mod holder;
pub mod http;
pub mod keeper;
pub mod limits;
pub mod memory;
pub mod node;
pub mod part;
pub mod process;
pub mod remote;
pub mod role;
pub mod runtime;
pub mod settings;
pub mod successor;
pub mod table;
pub mod tls;
pub mod tokens;
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
