//! The data plane: file bytes in a block store, checksummed, packed, read back and verified.
//!
//! Callers bring bytes and get stored ranges ([`kestrel_types::range::Range`]); with a range they
//! read the bytes again. Metadata is unknown here: callers decide what refers to a range. Begin at
//! [`Packer::store`] and [`Reader::read`]; where the bytes go is a [`BlockStore`].
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::sync::{Arc, mpsc};
//!
//! use kestrel_blockstore::store::MemoryStore;
//! use kestrel_blockstore::{BlockStore, Packer, PackerConfig, Reader, ReaderConfig, Result};
//!
//! # fn main() -> Result<()> {
//! let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
//! let next = AtomicU64::new(1);
//! let ids = move || -> Result<u64> { Ok(next.fetch_add(1, Ordering::Relaxed)) };
//! let packer = Packer::new(store.clone(), Arc::new(ids), PackerConfig::new([0; 16]))?;
//!
//! let (send, receive) = mpsc::channel();
//! packer.store(b"hello".to_vec(), 7, Box::new(move |stored| send.send(stored).unwrap()));
//! let stored = receive.recv().unwrap()?; // its object stays while `stored.pin` lives
//! store.sync()?; // durable
//!
//! let reader = Reader::new(store, ReaderConfig::default());
//! let mut bytes = [0; 5];
//! reader.read(stored.range, 0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`store`] | the trait [`BlockStore`], and stores: a local directory, memory, coded, failing |
//! | [`named`] | objects with names, by which processes agree: metadata in a bucket |
//! | [`object`] | the byte-exact format of objects (`docs/format/objects.md`) |
//! | [`frame`] | checksummed stored ranges |
//! | [`packer`] | group commit of small files into packs |
//! | [`reader`] | verified reads, frame cache, read-ahead |
//! | [`payload`], [`buffer`] | bytes on their way into the store, and to a reader |
//! | [`pool`] | threads for what may block |
//! | [`budget`] | the bound on bytes in use, such as dirty buffers |
//! | [`scan`] | checking whole objects without metadata |
//! | [`error`] | what can go wrong with stored data |
//!
//! # Invariants
//!
//! - An object is written once and never changed. Its number is used once.
//! - [`Reader`] returns bytes only if they match their checksum, which covers their place as well.
//! - Nothing refers to an object before its bytes are written. A crash can leave objects that
//!   nothing refers to; garbage collection removes them by listing.
//! - Calls block or call back. This crate starts no runtime.

pub mod budget;
pub mod buffer;
pub mod error;
pub mod frame;
pub mod named;
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
pub use store::{BlockStore, LocalStore, PutOptions};
