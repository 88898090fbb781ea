//! Encryption of objects with names, above any store of them (`docs/format/objects.md`, "Encrypted
//! objects with names").
//!
//! **Contract.** Above it objects have the bytes that were written; below it each is a header and
//! chunks that are encrypted one by one, so that a read of a range decrypts the chunks that it
//! touches. [`NamedStore::list`] tells stored sizes. Names are not encrypted.
//!
//! What the store returns is verified: a chunk that is not what was written, in its place in the
//! object of this name of this volume, is `CorruptNamed` after it was read again. An attacker that
//! can write to the store can put back an object as it was before, no more.
//!
//! Each object has a key of its own, as objects with numbers have
//! ([`coded`](crate::store::coded)), made from a data key, random bytes in each chunk, the volume
//! and the name. The last chunk is shorter than all others, so a reader of a whole object finds out
//! that it was cut off.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{ETag, NamedObject, NamedStore};
use crate::error::{Error, Result};
use crate::object::VolumeId;
use crate::store::coded::{Keys, NoncePart, ObjectKey, SALT_BYTES, TAG_BYTES, random_salt};

/// What every encrypted object with a name begins with.
const MAGIC: &[u8; 8] = b"KSTENCN\n";

/// Version of the format.
const VERSION: u32 = 1;

/// Header: magic, version, bytes of a chunk, identity of the volume.
const HEADER_BYTES: usize = 32;

/// Bytes of a chunk before encryption. The last one has fewer, perhaps none.
const CHUNK_BYTES: usize = 16 << 10;

/// Before the bytes of a chunk: number of the data key, random bytes.
const CHUNK_HEAD_BYTES: usize = 4 + SALT_BYTES;

/// Bytes of a chunk as it is stored.
const STORED_BYTES: usize = CHUNK_HEAD_BYTES + CHUNK_BYTES + TAG_BYTES;

/// How often a range or object that does not decrypt is read: it may have been damaged on its way.
const READS_MAX: u32 = 3;

/// Most objects of which it is kept in memory whether they are encrypted.
const KNOWN_MAX: usize = 4096;

/// A store that encrypts its objects in the store below it.
pub struct EncryptedNamed {
    inner: Arc<dyn NamedStore>,
    volume: VolumeId,
    keys: Keys,
    /// Whether an object of this name stays as it is.
    is_clear: fn(&str) -> bool,
    /// Objects that were looked at, and whether they are encrypted. It is used only where objects
    /// that are not may be read.
    known: Mutex<HashMap<String, bool>>,
}

/// What an object is by its first bytes.
enum Found {
    Encrypted,
    Plain,
}

/// An object's key as it was made last: chunks of one object have the same.
struct LastKey {
    head: [u8; CHUNK_HEAD_BYTES],
    key: ObjectKey,
}

fn header(volume: &VolumeId) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_be_bytes());
    header[12..16].copy_from_slice(&(CHUNK_BYTES as u32).to_be_bytes());
    header[16..].copy_from_slice(volume);
    header
}

/// The volume that an encrypted object says that it is of, which takes no key to read; none: it is
/// not encrypted.
pub fn encrypted_volume(object: &[u8]) -> Option<VolumeId> {
    let header = object.get(..HEADER_BYTES).filter(|header| header.starts_with(MAGIC))?;
    header[16..].try_into().ok()
}

/// Where a chunk begins in the stored object.
fn stored_at(chunk: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(chunk) * STORED_BYTES as u64
}

fn corrupt(name: &str, what: &'static str) -> Error {
    Error::CorruptNamed { name: name.into(), what }
}

fn coding(name: &str, why: impl Into<Arc<str>>) -> Error {
    Error::CodingNamed { name: name.into(), why: why.into() }
}

/// Whether reading once more may help.
fn is_damage(result: &Result<impl Sized>) -> bool {
    matches!(result, Err(Error::CorruptNamed { .. } | Error::CodingNamed { .. }))
}

impl EncryptedNamed {
    /// Encrypts the objects of `volume` in `inner`, if `keys` has a [`Keys::write_key`]. Reads
    /// those that are not encrypted if [`Keys::is_plain_allowed`].
    pub fn new(inner: Arc<dyn NamedStore>, volume: VolumeId, keys: Keys) -> Self {
        Self { inner, volume, keys, is_clear: |_| false, known: Mutex::default() }
    }

    /// The same, and objects with these names are neither encrypted nor decrypted.
    #[must_use]
    pub fn leaving(self, is_clear: fn(&str) -> bool) -> Self {
        Self { is_clear, ..self }
    }

    /// An object as it is stored.
    fn encrypt(&self, name: &str, plain: Bytes) -> Result<Bytes> {
        let Some(number) = self.keys.write_key().filter(|_| !(self.is_clear)(name)) else {
            return Ok(plain);
        };
        self.encrypt_with(name, &plain, number, &random_salt(None)?)
    }

    /// The same with the random bytes given, which must not repeat for this name.
    fn encrypt_with(
        &self,
        name: &str,
        plain: &[u8],
        number: u32,
        salt: &[u8; SALT_BYTES],
    ) -> Result<Bytes> {
        let key = self.key(name, number, salt)?;
        let chunks = plain.len() / CHUNK_BYTES + 1;
        let overhead = CHUNK_HEAD_BYTES + TAG_BYTES;
        let mut out = Vec::with_capacity(HEADER_BYTES + plain.len() + chunks * overhead);
        let header = header(&self.volume);
        out.extend_from_slice(&header);
        let mut rest = plain;
        for chunk in 0u32.. {
            let (piece, left) = rest.split_at(rest.len().min(CHUNK_BYTES));
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(salt);
            let begin = out.len();
            out.extend_from_slice(piece);
            let tag = key.seal(NoncePart::Chunk(chunk), &header, &mut out[begin..])?;
            out.extend_from_slice(&tag);
            if piece.len() < CHUNK_BYTES {
                break;
            }
            rest = left;
        }
        Ok(out.into())
    }

    fn key(&self, name: &str, number: u32, salt: &[u8; SALT_BYTES]) -> Result<ObjectKey> {
        self.keys.named_key(number, salt, &self.volume, name).ok_or_else(|| {
            coding(
                name,
                format!(
                    "it is encrypted with data key {number}, which this volume's descriptor does \
                     not have, or it was damaged; restore the newest copy of kestrel.json, then \
                     mount again"
                ),
            )
        })
    }

    /// Decrypts stored chunks from number `first` on, the last of which may be cut off: it is the
    /// object's last then.
    fn decrypt(&self, name: &str, first: u32, stored: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(stored.len());
        let mut last: Option<LastKey> = None;
        let header = header(&self.volume);
        for (chunk, stored) in (first..).zip(stored.chunks(STORED_BYTES)) {
            let Some((head, body)) = stored.split_first_chunk::<CHUNK_HEAD_BYTES>() else {
                return Err(corrupt(name, "a chunk of it is cut off"));
            };
            let known = match last.take() {
                Some(known) if known.head == *head => known,
                Some(_) => return Err(corrupt(name, "its chunks are of several objects")),
                None => {
                    let (number, salt) = head.split_at(4);
                    let number = number.try_into().map_or(0, u32::from_be_bytes);
                    let salt = salt.try_into().unwrap_or(&[0; SALT_BYTES]);
                    LastKey { head: *head, key: self.key(name, number, salt)? }
                }
            };
            let begin = out.len();
            out.extend_from_slice(body);
            let plain = known.key.open(NoncePart::Chunk(chunk), &header, &mut out[begin..]);
            let len = plain.map(|plain| plain.len()).ok_or_else(|| {
                corrupt(name, "a chunk of it does not decrypt: it was damaged, or is another one")
            })?;
            out.truncate(begin + len);
            last = Some(known);
        }
        Ok(out)
    }

    /// Decrypts a whole object.
    fn decrypt_all(&self, name: &str, stored: &[u8]) -> Result<Vec<u8>> {
        match self.look(name, stored)? {
            Found::Plain => Ok(stored.to_vec()),
            Found::Encrypted => {
                let chunks = &stored[HEADER_BYTES..];
                // The last chunk is shorter than all others.
                if chunks.len().is_multiple_of(STORED_BYTES) {
                    return Err(corrupt(name, "it is cut off"));
                }
                self.decrypt(name, 0, chunks)
            }
        }
    }

    /// What an object is that begins so.
    fn look(&self, name: &str, start: &[u8]) -> Result<Found> {
        let Some(found) = start.get(..HEADER_BYTES).filter(|start| start.starts_with(MAGIC)) else {
            if self.keys.is_plain_allowed() || (self.is_clear)(name) {
                return Ok(Found::Plain);
            }
            return Err(coding(
                name,
                "it is not encrypted, but every object of this volume is: somebody else put it \
                 there; bring the right one back from a copy of the store",
            ));
        };
        if found == header(&self.volume) {
            return Ok(Found::Encrypted);
        }
        let version = found[8..12].try_into().map_or(0, u32::from_be_bytes);
        if version > VERSION {
            let why = format!("it has format {version}, which is not known; use a newer kestrel");
            return Err(coding(name, why));
        }
        Err(corrupt(name, "its header is damaged, or another volume's"))
    }

    /// Whether an object is encrypted that is read in parts.
    fn is_encrypted(&self, name: &str) -> Result<bool> {
        if (self.is_clear)(name) {
            return Ok(false);
        }
        if !self.keys.is_plain_allowed() {
            return Ok(true);
        }
        if let Some(known) = self.known.lock().get(name) {
            return Ok(*known);
        }
        let start = self.inner.read_range(name, 0, HEADER_BYTES as u64)?;
        let found = matches!(self.look(name, &start)?, Found::Encrypted);
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name.into(), found);
        Ok(found)
    }

    /// Bytes of an encrypted object; `fresh`: past every cache.
    fn read_chunks(&self, name: &str, (offset, len): (u64, u64), fresh: bool) -> Result<Bytes> {
        let chunk_of = |at: u64| {
            u32::try_from(at / CHUNK_BYTES as u64)
                .map_err(|_| Error::Invalid { what: "a range beyond the largest object" })
        };
        let Some(end) = len.checked_sub(1).map(|more| offset.saturating_add(more)) else {
            return Ok(Bytes::new());
        };
        let (first, last) = (chunk_of(offset)?, chunk_of(end)?);
        let wanted = (u64::from(last - first) + 1) * STORED_BYTES as u64;
        let stored = match fresh {
            false => self.inner.read_range(name, stored_at(first), wanted)?,
            true => self.inner.read_range_fresh(name, stored_at(first), wanted)?,
        };
        let plain = self.decrypt(name, first, &stored)?;
        let is_short = (stored.len() as u64) < wanted && !stored.is_empty();
        if is_short && stored.len().is_multiple_of(STORED_BYTES) {
            return Err(corrupt(name, "it is cut off"));
        }
        let begin = (offset - u64::from(first) * CHUNK_BYTES as u64) as usize;
        let begin = begin.min(plain.len());
        let end = begin + usize::try_from(len).unwrap_or(usize::MAX).min(plain.len() - begin);
        Ok(Bytes::from(plain).slice(begin..end))
    }

    /// Why bytes of an object do not decrypt, if its header tells.
    fn explain(&self, name: &str, why: Error) -> Error {
        match self.inner.read_range(name, 0, HEADER_BYTES as u64) {
            Ok(start) => self.look(name, &start).err().unwrap_or(why),
            Err(_) => why,
        }
    }
}

impl NamedStore for EncryptedNamed {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        if self.inner.create(name, self.encrypt(name, bytes.clone())?)? {
            return Ok(true);
        }
        // An earlier call with the same bytes may have made it, with other random bytes.
        Ok(self.read(name)?.is_some_and(|found| found.bytes == bytes))
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        let stored = self.encrypt(name, bytes.clone())?;
        if let Some(tag) = self.inner.replace(name, stored, tag)? {
            self.known.lock().remove(name);
            return Ok(Some(tag));
        }
        let found = self.read(name)?.filter(|found| found.bytes == bytes);
        Ok(found.map(|found| found.tag))
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        let mut reads = 0;
        loop {
            let Some(found) = self.inner.read(name)? else { return Ok(None) };
            reads += 1;
            let plain = self.decrypt_all(name, &found.bytes);
            if is_damage(&plain) && reads < READS_MAX {
                continue;
            }
            return Ok(Some(NamedObject { bytes: plain?.into(), ..found }));
        }
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        if !self.is_encrypted(name)? {
            return self.inner.read_range(name, offset, len);
        }
        let plain = self.read_chunks(name, (offset, len), false);
        if is_damage(&plain) {
            return self.read_range_fresh(name, offset, len);
        }
        plain.map_err(|why| self.explain(name, why))
    }

    fn read_range_fresh(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        if !self.is_encrypted(name)? {
            return self.inner.read_range_fresh(name, offset, len);
        }
        let mut reads = 0;
        loop {
            reads += 1;
            let plain = self.read_chunks(name, (offset, len), true);
            if is_damage(&plain) && reads < READS_MAX {
                continue;
            }
            return plain.map_err(|why| self.explain(name, why));
        }
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        self.inner.list(below)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.known.lock().remove(name);
        self.inner.remove(name)
    }

    fn shown(&self) -> &str {
        self.inner.shown()
    }
}

#[cfg(test)]
mod tests;
