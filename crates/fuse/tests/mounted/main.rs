//! Tests on real mounts: they need root and `/dev/fuse`, and say so when they are skipped.

#![allow(clippy::unwrap_used)] // What a test helper cannot do is a failed test.

mod helper;
mod kit;
mod lifecycle;
mod notify;
mod null;
mod operations;
mod replies;
