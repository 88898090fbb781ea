//! Judges of KestrelFS: tools that decide whether a file system does what it should. They know
//! nothing of KestrelFS and work on any directory, so they are themselves tested against local file
//! systems.
//!
//! - [`compare`]: random system calls on two file systems, compared call by call.
//! - [`crash`]: a workload with an outside log, and what must be left of it after a crash.
//! - [`history`]: what several clients did at once, and whether it is linearizable.
//! - [`s3proxy`]: a proxy in front of an S3 store that fails on purpose and counts requests.
//! - [`docs`]: documents that are made from the code.
//! - [`relay`]: latency between two programs of one machine.
//! - [`traverse`]: random walks in a tree of a known shape.
//! - [`stop`]: ends the threads of a test, also when it fails.

pub mod args;
pub mod compare;
pub mod crash;
pub mod docs;
pub mod errno;
pub mod history;
pub mod json;
pub mod relay;
pub mod rng;
pub mod s3proxy;
pub mod stop;
pub mod sys;
pub mod traverse;
