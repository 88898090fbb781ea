//! The reference model: a small file system in memory that says what a metadata node should answer (unpublished; for tests
//! and simulation). Written from the manual pages, not from the node.
//!
//! - [`Model::judge`] does what a request asks and says whether the reply fits. Numbers that the node chooses (of inodes and of
//!   states of content) are taken from the reply.
//! - [`Model::assume`] does what a request asks whose reply nobody heard. Numbers it would have told are unknown until a later
//!   reply shows them.
//! - A model is cheap to clone and can be compared and hashed, so a search may branch on it: whether a history has an order in
//!   which every reply fits. After an error a model may be half-way; search on clones.

#![allow(clippy::unwrap_used, reason = "what the model holds together must hold; it is for tests only")]

mod model;

pub use model::{Byte, CONFLICT, Layout, Model, NEED_GROUPS, Node, SYMLINK, code};
