//! What a process that serves a volume does besides serving it: answers questions, gives figures, goes to the background.

pub mod control;
pub mod daemon;
pub mod http;
pub mod limits;
