//! A volume served by a real process to several clients: native ones in this process, and mounts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod ending;
mod errors;
mod mounts;
mod native;
mod outages;
mod relay;
mod server;
mod versions;
