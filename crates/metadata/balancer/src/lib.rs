//! Decisions about placement: what the placement map of a cluster should be.
//!
//! `kestrel_types::placement` has what a placement map *means*, which every client and node needs.
//! This crate has what only the coordinator does, and `kestrel cluster plan` on a list of paths.
//!
//! Nodes report what they have ([`LoadReport`]). From the reports of all nodes,
//! [`balance::balance`] makes a [`BalancePlan`], the exceptions that even them out, and
//! [`next::decide`] a [`Decision`]: what a coordinator does by itself. A [`TreeLoad`] counts a tree
//! as nodes would report it:
//!
//! ```
//! use kestrel_balancer::{Goal, TreeLoad};
//! use kestrel_types::PlacementMap;
//! use kestrel_types::placement::{Exceptions, Member, SlotMap};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let members = (1..=4).map(|id| Member { id, address: format!("node-{id}:9440") }).collect();
//! let mut placement = PlacementMap::new(SlotMap::even(members)?, Exceptions::default());
//!
//! // Half of all files have one name, so one node would have them all.
//! let mut tree = TreeLoad::default();
//! for dir in 0..1000 {
//!     tree.add(format!("d{dir}/own-{dir}").as_bytes())?;
//!     tree.add(format!("d{dir}/Makefile").as_bytes())?;
//! }
//! let fullest = |placement: &PlacementMap| tree.loads(placement).into_iter().max();
//! let before = fullest(&placement);
//! tree.settle(&mut placement, &Goal::usual(4))?;
//! assert!(fullest(&placement) < before && placement.exceptions.rule(b"Makefile").is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | [`next`] | what a coordinator does next, and when it waits |
//! | [`balance`] | the exceptions that even out the nodes |
//! | [`slots`] | slots for nodes that join, and away from nodes that leave |
//! | [`load_report`] | what a node tells of its entries |
//! | [`heavy_hitters`] | the most frequent names of a node, counted in bounded memory |
//! | [`tree_load`] | a tree, counted as the nodes of a cluster would hold it |
//! | `model` | the coordinator's picture of a cluster |
//!
//! # Invariants
//!
//! - Everything is a pure function of its arguments and gives the same result everywhere.
//! - Counts are integers, and a step of a plan keeps their sum.
//! - The plan has no more exceptions than [`balance::exceptions_allowed`], unless the placement map
//!   had more.

pub mod balance;
pub mod heavy_hitters;
pub mod load_report;
mod model;
pub mod next;
pub mod slots;
pub mod tree_load;

pub use balance::{BalancePlan, Goal};
pub use heavy_hitters::HeavyHitters;
pub use load_report::LoadReport;
pub use next::{Decision, Sight};
pub use tree_load::TreeLoad;
