//! Hints on real mounts, with the program in the running kernel: they need root, `/dev/fuse` and
//! BPF, and say so when they are skipped.

#![allow(clippy::unwrap_used)] // What a test helper cannot do is a failed test.

mod callers;
mod layers;
mod opens;
mod paths;
mod program;
mod rig;
mod ring;
