//! The process that has a volume open: a server (`kestrel serve`), and what a mount shares with it.
//!
//! [`serve::serve`] is the life of a server from its start to its end, by a [`serve::ServeConfig`].
//! [`control::Serving`] and [`remote::RemoteMount`] answer questions over the control socket. The
//! command line (`crates/cli`) reads arguments, asks and prints; this crate does the work.
//!
//! | modules | what they do |
//! | --- | --- |
//! | [`serve`], [`process`], [`background`], [`limits`], [`memory`], [`signals`], [`logger`] | start and end of the process, its memory and its log |
//! | [`control`], [`remote`], [`node_view`], [`endpoints`], [`ask`], [`progress_stream`], [`clients`], [`tokens`] | questions and answers; `ask` is the asking side |
//! | [`metrics`], [`http`], [`mount_status`] | metrics, and Prometheus' way to them |
//! | [`failover`], [`holder`], [`role`], [`node`], [`map`] | a node of a cluster: failover, changes of the placement |
//! | [`balance`], [`load`] | balancing of the nodes |
//! | [`backup_schedule`], [`collector`], [`worker`] | backups and collections in the background |
//! | [`jobs`], [`nodes`] | work of verbs, on one volume or over the nodes that share it |
//! | [`tls`], [`runtime`], [`atime`], [`units`], [`failure`] | what the others need |

pub mod ask;
pub mod atime;
pub mod background;
pub mod backup_schedule;
pub mod balance;
pub mod clients;
pub mod collector;
pub mod control;
pub mod endpoints;
pub mod failover;
pub mod failure;
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
pub mod remote;
pub mod role;
pub mod runtime;
pub mod serve;
pub mod signals;
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
