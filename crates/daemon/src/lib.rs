//! The process that has a volume open: a server (`kestrel serve`), and what a mount shares with it.
//!
//! [`serve::serve`] is the life of a server from its start to its end, by a [`ServeConfig`].
//! [`Serving`] and [`RemoteMount`] answer questions over the control socket; [`ask::ask`] asks
//! them. The command line (`crates/cli`) reads arguments, asks and prints; this crate does the
//! work.
//!
//! ```console
//! $ kestrel serve /data/vol --listen 10.0.0.1:9440 --name photos    # serve::serve
//! $ kestrel status /data/vol                  # ask::ask, answered by Serving
//! $ kestrel stats kestrel://10.0.0.1/photos   # the same over the network
//! $ kestrel serve /data/vol --stop            # serve::stop
//! ```
//!
//! A serving process answers a verb's question in one JSON object:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use kestrel_daemon::ask::ask;
//! use serde_json::json;
//!
//! # fn main() -> Result<(), kestrel_daemon::failure::Failure> {
//! match ask("status", Path::new("/data/vol"), &json!({"verb": "status"}), None)? {
//!     Some(answer) => println!("{answer}"),
//!     None => println!("no process serves it"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | modules | what they do |
//! | --- | --- |
//! | [`serve`], [`curator`] | serving a volume, or a published version of one |
//! | [`process`], [`background`], [`service_manager`] | the life of a process, from start to end |
//! | [`supervisor`] | the process above those that serve a mount that outlives them |
//! | [`limits`], [`memory`], [`signals`], [`logger`] | its limits, memory, signals and log |
//! | [`serving`], [`served_volume`], [`clients`] | what a process consists of |
//! | [`control`], [`remote`], [`node_view`], [`endpoints`] | answers over the control socket |
//! | [`follower_mount`], [`version_mount`] | the same of mounts that only read |
//! | [`questions`], [`tokens`], [`map`], [`cutting`] | questions of clients, and of a kind |
//! | [`token_file`] | tokens of a volume in a file, for curators |
//! | [`progress_stream`] | events of jobs |
//! | [`ask`] | the asking side |
//! | [`metrics`], [`http`], [`mount_status`] | metrics, and Prometheus' way to them |
//! | [`failover`], [`holder`], [`role`], [`node`] | a node of a cluster: failover, identity |
//! | [`balance`], [`load`] | balancing of the nodes |
//! | [`backup_schedule`], [`collector`], [`worker`] | backups and collections in the background |
//! | [`snapshots`] | snapshots: answers about them, schedules, differences |
//! | [`jobs`], [`nodes`] | work of verbs, on one volume or over the nodes that share it |
//! | [`tls`], [`runtime`], [`atime`], [`units`], [`failure`] | what the others need |
//!
//! # Invariants
//!
//! - A volume directory is open in one process at a time; its lock says so to others ([`ask`]).
//! - A process of a cluster answers for its part only, and refuses what needs the whole volume
//!   ([`node_view`]).
//! - A job does the same whether a serving process or the verb itself runs it ([`jobs`]).

pub mod ask;
pub mod atime;
pub mod background;
pub mod backup_schedule;
pub mod balance;
pub mod clients;
pub mod collector;
pub mod control;
pub mod curator;
pub mod cutting;
pub mod endpoints;
pub mod failover;
pub mod failure;
pub mod follower_mount;
pub mod holder;
pub mod http;
pub mod jobs;
pub mod limits;
pub mod load;
pub mod logger;
pub mod map;
pub mod memory;
pub mod metrics;
pub mod mount_status;
pub mod node;
pub mod node_view;
pub mod nodes;
pub mod process;
pub mod progress_stream;
pub mod questions;
pub mod remote;
pub mod role;
pub mod runtime;
pub mod serve;
pub mod served_volume;
pub mod service_manager;
pub mod serving;
pub mod signals;
pub mod snapshots;
pub mod supervisor;
pub mod tls;
pub mod token_file;
pub mod tokens;
pub mod units;
pub mod version_mount;
pub mod worker;

pub use remote::RemoteMount;
pub use serve::ServeConfig;
pub use serving::Serving;

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
