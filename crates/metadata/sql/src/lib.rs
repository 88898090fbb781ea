//! SQL over the published versions of a volume, read from the store alone.
//!
//! [`Database`] has the tables `versions`, `entries` and `xattrs`, virtual tables of SQLite. Only
//! one statement that reads is taken at a time; what would write, attach or load is refused when it
//! is prepared, and there is no file of a database in which it could.
//!
//! ```no_run
//! use kestrel_sql::{Database, SqlError, SqlOptions, SqlValue, RowSink};
//!
//! struct Printer;
//!
//! impl RowSink for Printer {
//!     fn columns(&mut self, _names: &[&str]) -> std::io::Result<()> {
//!         Ok(())
//!     }
//!     fn row(&mut self, values: &[SqlValue<'_>]) -> std::io::Result<()> {
//!         println!("{values:?}");
//!         Ok(())
//!     }
//! }
//!
//! # fn example(registry: kestrel_bucket::version::VersionRegistry) -> Result<(), SqlError> {
//! let database = Database::open(&registry, None, SqlOptions::default())?;
//! database.query("select name, files from versions", &mut Printer)?;
//! println!("{} rows were read", database.stats().rows);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **Push-down** (`plan`): conditions on version, path, parent and name become look-ups and
//!   ranges of keys.
//! - **Memory** is bounded however large a version is: a walk keeps some rows of each directory on
//!   the way, SQLite sorts in temporary files, and its memory has a limit
//!   ([`SqlOptions::memory_bytes`]).
//! - **Damage** ends a query: there are no rows after which it would look complete.
//!
//! | module | what it has |
//! | --- | --- |
//! | `database` | [`Database`]: the connection, what it refuses, a query |
//! | `tables` | the virtual tables |
//! | `plan` | push-down: conditions, and what they select |
//! | `range` | ranges of paths, and what of a directory lies in one |
//! | `found` | the entries that a query selects |
//! | `walk` | a walk through the entries of a version |
//! | `version` | a version: look-ups by path, ranges of its rows |
//! | `catalog` | the versions of the volume |
//! | `store` | the store, which counts what is read of it |

mod catalog;
mod database;
mod found;
mod plan;
mod range;
mod store;
mod tables;
#[cfg(test)]
mod tests;
mod version;
mod walk;

pub use database::{Database, RowSink, SqlError, SqlOptions};
pub use rusqlite::types::ValueRef as SqlValue;
pub use store::ReadStats;
