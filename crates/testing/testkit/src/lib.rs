//! Conformance tools: they decide whether a file system does what it should.
//!
//! The tools know nothing of KestrelFS and work on any directory, so they are themselves tested
//! against local file systems. Their programs are in `src/bin/`: `kestrel-compare`,
//! `kestrel-crashload`, `kestrel-history`, `kestrel-s3proxy`, `kestrel-relay`, `kestrel-traverse`,
//! `kestrel-smallfiles`. Entry types for tests: [`history::linear::check`], [`s3proxy::server`],
//! [`stop::StopOnDrop`].
//!
//! ```
//! use kestrel_testkit::history::RecordedCall;
//! use kestrel_testkit::history::linear::{Model, Linearity, check};
//!
//! /// A register: `Some` writes a number, `None` reads one.
//! #[derive(Clone, PartialEq, Eq, Hash, Debug)]
//! struct Register(u32);
//!
//! impl Model for Register {
//!     type Call = Option<u32>;
//!     type Answer = u32;
//!
//!     fn step(&self, call: &Option<u32>, answer: Option<&u32>) -> Option<Self> {
//!         match call {
//!             Some(written) => Some(Register(*written)),
//!             None => answer.is_none_or(|read| *read == self.0).then(|| self.clone()),
//!         }
//!     }
//! }
//!
//! let call = |thread, call, answer, begin, end| RecordedCall { thread, call, answer, begin, end };
//! let write = call(0, Some(7), Some(7), 10, 20);
//! let read_after = call(1, None, Some(0), 30, 40); // an old value after the write has returned
//! let verdict = check(Register(0), &[write, read_after]);
//! assert!(matches!(verdict, Linearity::Violation { event: 1, .. }));
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`compare`] | random system calls on two file systems, compared call by call |
//! | [`crash`] | a workload with an outside log, and what must be left of it after a crash |
//! | [`history`] | calls of several clients at once, and whether they are linearizable |
//! | [`s3proxy`] | a proxy in front of an S3 store that fails on purpose and counts requests |
//! | [`relay`] | latency between two programs of one machine |
//! | [`traverse`] | random walks in a tree of a known shape |
//! | [`docs`] | documents that are made from the code |
//! | [`stop`] | ends the threads of a test, also when it fails |
//! | [`rng`] | a small seeded generator |
//! | [`args`], [`json`], [`errno`] | command lines, JSON, names of errno values |
//! | [`sys`] | system calls with their raw results |
//!
//! # Invariants
//!
//! - Randomness comes from a seed that a failure prints: the same seed gives the same operations.
//! - All unsafe code is in [`sys`].

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
