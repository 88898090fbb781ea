//! What an administrator does with a volume, over its raw rows and objects: consistency check and
//! repair, dump and load, garbage collection, information about files and directories.
//!
//! Everything here works on the engine trait and the block store trait, so it serves every engine
//! and every store. [`check::check`] reports each [`Finding`], [`repair::repair`] puts right what
//! needs no guessing, [`dump::dump`] writes the metadata to a file, a [`BackupRepository`] keeps
//! dumps in the block store, [`gc::collect`] finds and deletes objects that nothing refers to. A
//! [`Cut`] is a copy of the metadata of a volume in use at one moment.
//!
//! ```
//! use kestrel_admin::check::{Options, check};
//! use kestrel_admin::info::tree_sums;
//! use kestrel_engine::MemoryEngine;
//! use kestrel_meta::{Node, RootAttr};
//! use kestrel_types::ids::ROOT;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = MemoryEngine::default();
//! Node::format(&engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, 1)?;
//!
//! let mut report = |finding: kestrel_admin::Finding| println!("{finding:?}");
//! let totals = check(&engine, &mut Options::default(), &mut report, &mut |_, _| ())?;
//! assert_eq!(totals.errors(), 0);
//! assert_eq!(tree_sums(&engine, ROOT)?.files, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | [`check`], [`finding`] | the consistency check; what it finds |
//! | [`repair`] | repairs of what a check found |
//! | [`salvage`] | paths of what a salvage of damaged files could not recover |
//! | [`dump`] | dumps: write, load, keep in the block store |
//! | [`gc`] | objects in the store that no metadata refers to |
//! | [`fragmented`] | objects of which little is still referred to |
//! | [`info`], [`tree`] | what is behind a path; walks over the files below it |
//! | [`usage`] | what each directory of a tree holds |
//! | [`warmup`] | bringing the bytes and rows of files near |
//! | [`cut`], [`recording`] | a consistent cut of metadata in use, of one node or of several |
//! | [`cluster_view`], [`merge`] | the rows of several nodes, put together |
//! | [`rows`], [`references`], [`idset`] | raw rows; all references to stored bytes; sets of ids |
//!
//! # Invariants
//!
//! - A repair and a load need the volume for themselves. A check needs metadata that nothing
//!   changes: a volume at rest, or a [`Cut`]. The rest works while the volume is in use.
//! - A check changes nothing. A repair throws nothing away that may be a user's data: it goes to
//!   `/lost+found`.
//! - Rows are read page by page: no table is in memory as a whole.

pub mod check;
pub mod cluster_view;
pub mod cut;
pub mod dump;
pub mod finding;
pub mod fragmented;
pub mod gc;
pub mod idset;
pub mod info;
pub mod merge;
pub mod recording;
pub mod references;
pub mod repair;
pub mod rows;
pub mod salvage;
pub mod tree;
pub mod usage;
pub mod warmup;

pub use cut::Cut;
pub use dump::backup::BackupRepository;
pub use finding::Finding;
