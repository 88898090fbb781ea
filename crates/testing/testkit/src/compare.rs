//! `kestrel-compare`: the same random system calls on two directories, every result compared.

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
