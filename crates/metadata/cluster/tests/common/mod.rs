//! What the tests of a cluster share: what those of a node do, and members.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod feeds;
pub mod members;
#[path = "../../../node/tests/common/mod.rs"]
mod node;
pub mod quotas;
pub mod snapshots;

pub use node::*;
