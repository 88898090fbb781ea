//! The C library `libkestrel.so`: what a C program calls, translated to
//! [`kestrel_client::native`], [`kestrel_client::job`] and nothing else. What each call does, and
//! what a program must keep to, is said in `include/kestrel.h`.
//!
//! | file | |
//! | --- | --- |
//! | `boundary` | what each call passes: fork, panics, errno and text |
//! | `handles` | numbers for what is open |
//! | `arguments` | pointers of a program as paths and bytes |
//! | `structs` | what a program sees in memory |
//! | `volume` | opening and closing volumes |
//! | `names` | operations by path |
//! | `files` | open files |
//! | `dirs` | names in directories |
//! | `many` | many files with one burst of requests |
//! | `queue` | operations that are submitted, and their completions |
//! | `submit` | what can be submitted |
//! | `log` | logs of ranks of jobs |
//!
//! # Invariants
//!
//! - Each exported function is all in one call of [`boundary::guarded`]: no panic leaves it, and in
//!   a process that `fork` made it touches nothing.
//! - A handle is a number. One that is not open any more, or is open as something else, is `EBADF`,
//!   whatever other threads do: numbers are not used twice.
//! - What is taken from a volume's [`volume::Use`] is given back before the volume is closed.
//! - Signatures and structs are those of `kestrel.h`, and exported symbols those of `kestrel.map`:
//!   the tests of `header` compare them.

mod arguments;
mod boundary;
mod dirs;
mod files;
mod handles;
#[cfg(test)]
mod header;
mod log;
mod many;
mod names;
mod queue;
mod structs;
mod submit;
mod volume;
