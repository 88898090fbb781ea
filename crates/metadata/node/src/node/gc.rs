//! Garbage collection of a node: of objects and of chunks that nothing refers to.
//!
//! | file | what it has |
//! | --- | --- |
//! | `gc/objects.rs` | deletes objects that nothing refers to any more |
//! | `gc/chunks.rs` | deletes chunks that were cut off files, a batch at a time |

pub(super) mod chunks;
pub(super) mod objects;
