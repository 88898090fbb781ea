//! The data plane: file bytes in a block store, checksummed, packed, read back and verified.
//!
//! - [`store`]: where objects live (a local directory; an object store later), one trait;
//! - [`object`]: the byte-exact format of objects (`docs/format/objects.md`); [`frame`]:
//!   checksummed stored ranges;
//! - [`packer`]: group commit of small files into packs; [`reader`]: verified reads, frame cache,
//!   read-ahead;
//! - [`pool`]: threads for what may block; [`budget`]: the bound on dirty bytes; [`scan`]: checking
//!   whole objects.
//!
//! Blocking calls and callbacks only; this crate starts no runtime. Metadata is unknown here:
//! callers get stored ranges ([`kestrel_types::range::Range`]) and decide what refers to them.

pub mod budget;
pub mod buffer;
pub mod error;
pub mod frame;
pub mod object;
pub mod packer;
pub mod payload;
pub mod pool;
pub mod reader;
pub mod scan;
pub mod store;

pub use budget::{Budget, Grant};
pub use buffer::{Buffer, Buffers};
pub use error::{Error, ErrorKind, Result};
pub use frame::FramePiece;
pub use packer::{ObjectIds, Packer, PackerConfig, Pin, StoredRange};
pub use payload::Payload;
pub use pool::{Pool, Turn};
pub use reader::{ReadAhead, ReadAheadConfig, Reader, ReaderConfig, Window};
pub use store::{BlockStore, LocalStore};
