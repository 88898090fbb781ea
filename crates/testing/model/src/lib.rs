//! The reference model: a small file system in memory that computes what a metadata node should
//! answer.
//!
//! It is for tests and simulation only, and written from the manual pages, not from the node. Begin
//! with [`Model::without_times`] or [`Model::new`].
//!
//! ```
//! use kestrel_model::Model;
//! use kestrel_types::inode::{Inode, Kind};
//! use kestrel_types::name::PathRef;
//! use kestrel_types::request::{Answer, Creds, Op};
//!
//! let (mut model, root) = (Model::without_times(), Creds::root());
//! let mkdir = Op::MkDir(PathRef::from_path(1, b"a").unwrap(), 0o755);
//! let inode = Inode { mode: 0o755, nlink: 2, size: 4096, ..Inode::new(20, Kind::Dir, 0, 5) };
//! let made = Ok(Answer::Entry { parent: 1, inode: Box::new(inode) });
//! model.judge(&root, &mkdir, &made).unwrap();
//! // A second mkdir of the same name has to fail.
//! model.judge(&root, &mkdir, &made).unwrap_err();
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | `feed_mirror` | [`FeedMirror`]: what a reader of a change feed has |
//! | `model` | [`Model`], its inodes ([`ModelInode`]), and the rules, one file a subject |
//!
//! # Invariants
//!
//! - [`Model::judge`] executes a request and decides whether the reply fits. Numbers that the node
//!   chooses (of inodes and of states of content) are taken from the reply.
//! - [`Model::assume`] executes a request without a reply. Numbers that the reply would have had
//!   are unknown until a later reply shows them.
//! - A model is cheap to clone and can be compared and hashed, so a search may branch on it:
//!   whether a history has an order in which every reply fits. After an error a model may be
//!   half-way; search on clones.

#![allow(
    clippy::unwrap_used,
    reason = "what the model holds together must hold; it is for tests only"
)]

mod feed_mirror;
mod model;

use kestrel_types::name::InodeRef;
use kestrel_types::request::Op;

pub use feed_mirror::{FeedMirror, NamesBelow};
pub use model::{Byte, CONFLICT, Layout, Model, ModelInode, NEED_GROUPS, SYMLINK, code};

/// The inode that an operation names by number, not by place.
pub fn target(op: &Op) -> Option<&InodeRef> {
    match op {
        Op::GetAttr(inode)
        | Op::SetAttr(inode, _)
        | Op::SetFlags(inode, _)
        | Op::Accessed(inode, _)
        | Op::Access(inode, _)
        | Op::ReadLink(inode)
        | Op::Open(inode, _)
        | Op::Link(inode, _)
        | Op::GetXattr(inode, _)
        | Op::SetXattr(inode, ..)
        | Op::ListXattr(inode)
        | Op::RemoveXattr(inode, _) => Some(inode),
        Op::Commit(commit) => Some(&commit.inode),
        _ => None,
    }
}
