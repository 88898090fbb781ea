//! `kestrel-crashload`: a workload that keeps a log outside the file system, and what must be left
//! after a crash.
//!
//! | file | |
//! | --- | --- |
//! | `plan` | chooses the next operation of a thread |
//! | `model` | what one thread has done so far: its names and the content of its files |
//! | `run` | the workload: does each operation, and logs it before and after |
//! | `log` | the log outside the file system under test |
//! | `observe` | the tree as found after the crash |
//! | `verify` | what must be left after a crash, and what is |
//!
//! Every thread works on names of its own (a subtree, and names with its prefix in one shared
//! directory), so its log alone says what it did, in order. All content is a function of a key in
//! the log, so every byte can be checked.

pub mod log;
pub mod model;
pub mod observe;
pub mod plan;
pub mod run;
pub mod verify;
