//! `kestrel-compare`: the same random system calls on two directories, every result compared.
//!
//! | file | |
//! | --- | --- |
//! | `session` | one run: fresh trees, the actors' processes, the steps, the trees at the end |
//! | `actor` | actors: one process on each side, with its own user, directory and umask |
//! | `elsewhere` | the second mount, for one actor (`--elsewhere`) |
//! | `op` | the operations, and their form as a readable script |
//! | `generate` | random steps from a seed |
//! | `rehearsal` | runs steps on the reference alone, while they are generated |
//! | `exec` | runs one step in one tree and records its result |
//! | `io` | reading, writing, seeking and mapping |
//! | `dirs` | reading directories, and very deep ones |
//! | `scan` | a directory scan while the directory changes |
//! | `locks` | byte-range locks |
//! | `walk` | the complete tree as text |
//! | `outcome` | the result of an operation, and how two results are compared |
//! | `caps` | capabilities of a file system, and the list of allowed differences |
//! | `shrink` | makes a failing sequence short (delta debugging) |

pub mod actor;
pub mod caps;
pub mod dirs;
pub mod elsewhere;
pub mod exec;
pub mod generate;
pub mod io;
pub mod locks;
pub mod op;
pub mod outcome;
pub mod rehearsal;
pub mod scan;
pub mod session;
pub mod shrink;
pub mod walk;
