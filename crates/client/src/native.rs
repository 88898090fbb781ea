//! Volumes by URL and files by path, for programs that use a volume without a mount: what the C
//! library and the Python package translate.
//!
//! [`NativeVolume::open`] takes every URL that `kestrel mount` takes. [`NativeVolume::calls`] gives
//! the operations: each takes a path from the root of the volume, follows symbolic links, and waits
//! for its answer, as long as the caller is there.
//!
//! ```no_run
//! use kestrel_client::native::{NativeOptions, NativeVolume, OpenHow};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = NativeVolume::open("/srv/v", &NativeOptions::default())?;
//! let calls = volume.calls(&|| false);
//! let file = calls.open(b"/hello", OpenHow::create(0o666))?;
//! calls.write(&file, b"hello")?;
//! calls.close(file)?;
//! let contents = calls.read_many(&[&b"/hello"[..], b"/not there"]);
//! assert!(contents[0].is_ok() && contents[1].is_err());
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | |
//! | --- | --- |
//! | `native/open.rs` | [`NativeVolume`]: opening what a URL names |
//! | `native/shared.rs` | one open volume for all users of a URL in this process |
//! | `native/waiting.rs` | waiting for an answer as long as the caller is there |
//! | `native/walk.rs` | where a path leads: symbolic links and `..` |
//! | `native/names.rs` | operations on names and attributes |
//! | `native/files.rs` | [`NativeFile`]: open files |
//! | `native/listing.rs` | names in directories |
//! | `native/many.rs` | many files with one burst of requests |
//! | `native/submit.rs` | calls that nobody waits for |
//!
//! # Invariants
//!
//! - A process that `fork` made uses nothing of its parent's, neither volumes nor this library:
//!   threads did not come along, and the tables of `parking_lot` still name those that waited. What
//!   such a process drops is left as it is ([`NativeVolume::is_of_this_process`]). It runs another
//!   program, or loads the library once more.
//! - A call that its caller leaves gives back what it comes to: an open that is answered later is
//!   closed.

mod files;
mod listing;
mod many;
mod names;
mod open;
mod shared;
mod submit;
mod waiting;
mod walk;

pub use self::files::{NativeFile, OpenHow, SeekFrom};
pub use self::listing::{DirEntry, Listing};
pub use self::names::{FsRoom, Times, umask};
pub use self::open::{NativeOptions, NativeVolume};
pub use self::waiting::Gone;
pub use crate::fs::ReadBytes;
pub use kestrel_blockstore::Buffer;

/// The operations of a volume, for one caller; made by [`NativeVolume::calls`].
#[derive(Clone, Copy)]
pub struct NativeCalls<'a> {
    volume: &'a NativeVolume,
    gone: Gone<'a>,
}
