//! The tests of `main.rs`, over io_uring: where the kernel has it and the tests may switch it on.

#![allow(clippy::unwrap_used)] // What a test helper cannot do is a failed test.

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
const TRANSPORT: kestrel_fuse::TransportChoice = kestrel_fuse::TransportChoice::Uring;
