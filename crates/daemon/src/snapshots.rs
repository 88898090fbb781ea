//! Snapshots, as processes that serve a volume and `kestrel snapshot` deal with them.
//!
//! | file | what it has |
//! | --- | --- |
//! | `snapshots/answer.rs` | answers to questions about snapshots |
//! | `snapshots/listing.rs` | pages of names, for `kestrel ls` and `kestrel snapshot diff` |
//! | `snapshots/named.rs` | the directories, names and snapshots that questions name |
//! | `snapshots/paths.rs` | paths of directories that are known by number |
//! | `snapshots/calls.rs` | requests about snapshots, each waited for |
//! | `snapshots/quotas.rs` | answers to questions about quotas |
//! | `snapshots/schedule.rs` | schedules: what is due, from the time and the names that are there |
//! | `snapshots/removals.rs` | answers to questions of `kestrel rm -r` |
//! | `snapshots/feed.rs` | answers to questions of `kestrel watch` |
//! | `snapshots/trash.rs` | answers to questions of `kestrel trash` |
//! | `snapshots/versions.rs` | answers to questions of `kestrel publish` and `kestrel version` |
//! | `snapshots/record.rs` | the record of a schedule |
//! | `snapshots/keeper.rs` | the thread that keeps schedules |
//! | `snapshots/changes.rs` | what nodes tell of changes and of the space that a snapshot holds |
//! | `snapshots/diff.rs`, `trees.rs` | what differs between two moments of a tree |
//! | `snapshots/content.rs` | which bytes of a file differ |

pub mod answer;
pub mod calls;
pub mod changes;
pub mod content;
pub mod diff;
mod feed;
pub mod keeper;
pub mod listing;
pub mod named;
mod paths;
pub mod quotas;
pub mod record;
pub mod removals;
pub mod schedule;
mod trash;
pub mod trees;
pub mod versions;
