//! Tests on real mounts: they need root and `/dev/fuse`, and say so when they are skipped. Here
//! over the device, in `uring.rs` the same over io_uring.

#![allow(clippy::unwrap_used)] // What a test helper cannot do is a failed test.

mod handover;
mod helper;
mod kit;
mod late;
mod lifecycle;
mod notify;
mod null;
mod operations;
mod passthrough;
mod replies;
mod switch;

/// Over what these mounts are served.
const TRANSPORT: kestrel_fuse::TransportChoice = kestrel_fuse::TransportChoice::Device;
