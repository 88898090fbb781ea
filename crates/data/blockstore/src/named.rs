//! Objects with names of their own, by which processes agree: what the metadata of a volume in a
//! bucket is made of.
//!
//! Objects of a [`crate::BlockStore`] are written once, by the process that was given their number.
//! Here several processes may want the same name, and the store decides which of them is first, by
//! two conditional puts: [`NamedStore::create`] makes an object only if there is none of its name,
//! and [`NamedStore::replace`] changes one only if it is still as it was read.
//!
//! **Lost answers.** A put is tried again if its answer was lost, and may be refused then because
//! the first attempt came through. The store reads the object and compares; so callers write
//! contents that no other process writes under that name.

mod below;
mod encrypted;
mod local;
mod memory;

use bytes::Bytes;
use kestrel_types::clock::Nanos;

use crate::error::Result;
pub use below::BelowNamed;
pub use encrypted::{EncryptedNamed, encrypted_volume};
pub use local::LocalNamed;
pub use memory::{MemoryNamed, NamedFault};

/// The state of an object, by which [`NamedStore::replace`] knows it again: its ETag.
pub type ETag = String;

/// An object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedObject {
    /// What is in it.
    pub bytes: Bytes,
    /// Its state.
    pub tag: ETag,
    /// How long ago it was written, by the store's clock, which may count seconds.
    pub age: Nanos,
}

/// See the module's header. Names are of the letters `a-z`, digits, `-` and `/`. What was
/// acknowledged is durable, and read by every later call of any process.
pub trait NamedStore: Send + Sync {
    /// Makes an object. `false`: another one of that name is there, with other content.
    ///
    /// # Errors
    /// The store's, after all attempts.
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool>;

    /// Replaces the object that was read with this tag. Its new tag; `None` if the object is
    /// another one by now, or gone.
    ///
    /// # Errors
    /// The store's, after all attempts.
    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>>;

    /// An object, if it is there.
    ///
    /// # Errors
    /// The store's, after all attempts.
    fn read(&self, name: &str) -> Result<Option<NamedObject>>;

    /// `len` bytes of an object from `offset` on; fewer where the object ends before that.
    ///
    /// # Errors
    /// The store's, after all attempts; also if there is no such object.
    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes>;

    /// Like [`NamedStore::read_range`], past every cache between; their copies of these bytes are
    /// replaced or dropped. For bytes that did not match their checksum.
    ///
    /// # Errors
    /// As for [`NamedStore::read_range`].
    fn read_range_fresh(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.read_range(name, offset, len)
    }

    /// Names and sizes of all objects below a name, which ends in a slash.
    ///
    /// # Errors
    /// The store's, after all attempts.
    fn list(&self, below: &str) -> Result<Vec<(String, u64)>>;

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// The store's, after all attempts.
    fn remove(&self, name: &str) -> Result<()>;

    /// Where the objects are, for people: a URL without secrets.
    fn shown(&self) -> &str;
}
