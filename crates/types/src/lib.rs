//! What every part of KestrelFS speaks: ids, attributes, names, errors, rows and keys, requests and
//! replies.
//!
//! This crate does no I/O and depends on nothing of ours.

pub mod clock;
pub mod codec;
pub mod crash;
pub mod entry;
pub mod error;
pub mod extent;
pub mod ids;
pub mod inode;
pub mod key;
pub mod lock_ranges;
pub mod name;
pub mod op_counters;
pub mod op_kind;
pub mod perm;
pub mod placement;
pub mod range;
pub mod request;
pub mod security;
pub mod stat;
pub mod token;
pub mod wire;
