//! A volume at a snapshot: a file system of its own, over the metadata of that moment
//! (`snapshot_metadata`).
//!
//! | file | |
//! | --- | --- |
//! | `open` | opening a volume at a snapshot |
//! | `url` | `VOLUME@NAME`, `VOLUME:/DIR@NAME`: a volume at a snapshot |

mod open;
mod url;

pub use self::url::{SnapshotUrl, listed_name};
