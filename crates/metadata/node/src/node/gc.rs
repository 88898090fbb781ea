//! Garbage collection of a node: of objects and of chunks that nothing refers to.

pub(super) mod chunks;
pub(super) mod objects;
