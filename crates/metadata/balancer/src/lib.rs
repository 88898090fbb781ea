//! Decisions about placement: what the placement map of a cluster should be.
//!
//! `kestrel_types::placement` says what a table *means*, which every client and node has to know.
//! Here is what only the coordinator does, and `kestrel cluster plan` on a list of paths: find the
//! exceptions that even out the nodes ([`balance`]), decide what is done about them and when
//! ([`next`]), give slots to nodes that join and take them from nodes that leave ([`slots`]), count
//! a tree as nodes would report it ([`tree_load`]), and count what a node has for its report
//! ([`heavy_hitters`]). Everything is a pure function of its arguments and gives the same result
//! everywhere.

pub mod balance;
pub mod heavy_hitters;
pub mod load_report;
mod model;
pub mod next;
pub mod slots;
pub mod tree_load;
