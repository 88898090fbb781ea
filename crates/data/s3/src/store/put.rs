//! Writing an object with one request.
//!
//! The put is conditional, so that the store itself decides which put is first. If an answer was
//! lost and the next attempt is answered that the object exists, it may be this put's: then its
//! content is read back and compared, and only another's is an error. In stores without conditional
//! puts the object is looked for before the first attempt; later attempts overwrite this put's own
//! object.
//!
//! **In an archive** nothing can be read back. An object that goes there carries a mark of its put,
//! which the answer to a HEAD shows.

use std::cell::Cell;

use bytes::Bytes;
use futures_util::StreamExt;
use kestrel_blockstore::store::key;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload,
};

use super::S3Store;
use crate::client::Attempt;
use crate::fault::{Cause, Failure, Fault};
use crate::rate_limiter::Direction;
use crate::wire::Trace;

/// Name, among the object's metadata, of the mark of its put.
const MARK: &str = "kestrel-put";

/// The same as a header.
pub(super) const MARK_HEADER: &str = "x-amz-meta-kestrel-put";

/// A word that no other call of this program gives.
pub(crate) fn unique(what: &str) -> String {
    format!("{what}-{:x}-{:x}", SystemClock.now(), std::process::id())
}

/// Where an object that is put is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    /// Its storage class; none: the store's own choice.
    tier: Option<Tier>,
    /// The mark of its put, in an archive.
    mark: Option<String>,
}

impl Kept {
    /// In a tier, or where objects go by themselves.
    pub(crate) fn in_tier(tier: Option<Tier>) -> Self {
        let mark = tier.filter(|tier| tier.is_archive()).map(|_| unique("put"));
        Self { tier, mark }
    }

    /// What the store is told.
    pub(super) fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::new();
        if let Some(tier) = self.tier {
            attributes.insert(Attribute::StorageClass, tier.s3_class().into());
        }
        if let Some(mark) = &self.mark {
            attributes.insert(Attribute::Metadata(MARK.into()), mark.clone().into());
        }
        attributes
    }
}

impl S3Store {
    /// Puts an object with one request.
    pub(super) async fn put_whole(
        &self,
        object: ObjectId,
        parts: &[Bytes],
        kept: &Kept,
    ) -> Result<(), Failure> {
        let path = self.client.path(&key::key(object));
        self.refuse_present(object).await?;
        let turn = self.client.turn(Direction::Up).await?;
        let done = self.put_bytes(&path, parts.iter().cloned().collect(), kept).await;
        drop(turn);
        match done {
            Err(failure) if failure.fault.cause == Cause::Present && failure.maybe_done() => {
                self.accept_if_ours(&path, parts, kept, failure).await
            }
            other => other,
        }
    }

    /// Attempts to put these bytes; the caller has the turn.
    pub(crate) async fn put_bytes(
        &self,
        path: &Path,
        payload: PutPayload,
        kept: &Kept,
    ) -> Result<(), Failure> {
        let mode = if self.conditional_put { PutMode::Create } else { PutMode::Overwrite };
        let len = payload.content_length() as u64;
        let unheard = Cell::new(false);
        let once = async || -> Attempt<()> {
            // A server that refuses a put before it has read the body may end the connection so
            // that its answer is lost, time after time. So after an attempt without an answer the
            // question is put without a body.
            if self.conditional_put && unheard.get() && self.is_there(path).await? {
                return Err(Fault::found(Cause::Present, "the object is there already").into());
            }
            unheard.set(true);
            let attributes = kept.attributes();
            let options = PutOptions { mode: mode.clone(), attributes, ..PutOptions::default() };
            let done = self.client.s3.put_opts(path, payload.clone(), options).await;
            unheard.set(Trace::current().is_broken());
            Ok(done.map(drop)?)
        };
        self.client.attempts(Direction::Up, len, false, once).await
    }

    async fn is_there(&self, path: &Path) -> object_store::Result<bool> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.client.s3.get_opts(path, options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks whether the object is there, if the store does not support a condition: requests its
    /// first byte, since the answer to a HEAD does not explain what is missing.
    pub(super) async fn refuse_present(&self, object: ObjectId) -> Result<(), Failure> {
        if self.conditional_put {
            return Ok(());
        }
        let path = self.client.path(&key::key(object));
        let once = async || -> Attempt<()> {
            let options =
                GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            Ok(self.client.s3.get_opts(&path, options).await.map(drop)?)
        };
        match self.client.request(Direction::Down, 0, once).await {
            Err(failure) if failure.fault.cause == Cause::Missing => Ok(()),
            // It is there: empty, or in an archive.
            Err(failure) if !matches!(failure.fault.cause, Cause::Short | Cause::Archived) => {
                Err(failure)
            }
            Ok(()) | Err(_) => Err(Failure::found(Cause::Present, "the object is there already")),
        }
    }

    /// Succeeds if the object consists of these bytes; else fails with `otherwise`, or with the
    /// comparison's.
    pub(super) async fn accept_if_ours(
        &self,
        path: &Path,
        parts: &[Bytes],
        kept: &Kept,
        otherwise: Failure,
    ) -> Result<(), Failure> {
        if let Some(mark) = &kept.mark {
            let seen = self.head_of(path).await?;
            return if seen.mark.as_ref() == Some(mark) { Ok(()) } else { Err(otherwise) };
        }
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let once = async || -> Attempt<bool> {
            let answer = self.client.s3.get_opts(path, GetOptions::default()).await?;
            if answer.meta.size != len {
                return Ok(false);
            }
            let mut expected = Comparison { parts, part: 0, at: 0 };
            let mut body = answer.into_stream();
            while let Some(piece) = body.next().await {
                if !expected.continues_with(&piece?) {
                    return Ok(false);
                }
            }
            if !expected.is_over() {
                return Err(Fault::unbelievable("the answer's body ends early").into());
            }
            Ok(true)
        };
        if self.client.request(Direction::Down, len, once).await? { Ok(()) } else { Err(otherwise) }
    }
}

/// Up to `len` bytes of `parts` from byte `offset` on, as parts.
pub(super) fn cut(parts: &[Bytes], mut offset: usize, len: usize) -> Vec<Bytes> {
    let mut left = len;
    let mut out = Vec::new();
    for part in parts {
        let skipped = offset.min(part.len());
        offset -= skipped;
        let taken = (part.len() - skipped).min(left);
        if taken > 0 {
            out.push(part.slice(skipped..skipped + taken));
        }
        left -= taken;
    }
    out
}

/// How far a body has been compared with buffers.
struct Comparison<'a> {
    parts: &'a [Bytes],
    part: usize,
    at: usize,
}

impl Comparison<'_> {
    fn continues_with(&mut self, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            let Some(part) = self.parts.get(self.part) else { return false };
            let count = piece.len().min(part.len() - self.at);
            if piece[..count] != part[self.at..self.at + count] {
                return false;
            }
            piece = &piece[count..];
            self.at += count;
            if self.at == part.len() {
                self.part += 1;
                self.at = 0;
            }
        }
        true
    }

    fn is_over(&self) -> bool {
        self.parts[self.part.min(self.parts.len())..].iter().all(|part| part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_cut_and_compared_across_their_bounds() {
        let all: Vec<u8> = (0..100).collect();
        let parts = [&all[..3], &[], &all[3..50], &all[50..]].map(Bytes::copy_from_slice);
        for offset in [0usize, 2, 3, 49, 99, 100, 200] {
            for len in [0, 1, 5, 60, usize::MAX] {
                let end = offset.min(100).saturating_add(len).min(100);
                assert_eq!(cut(&parts, offset, len).concat(), all[offset.min(100)..end]);
            }
        }
        for step in [1, 7, 50, 100] {
            let mut comparison = Comparison { parts: &parts, part: 0, at: 0 };
            for piece in all.chunks(step) {
                assert!(!comparison.is_over());
                assert!(comparison.continues_with(piece));
            }
            assert!(comparison.is_over());
            assert!(!comparison.continues_with(&[0]));
        }
        let mut comparison = Comparison { parts: &parts, part: 0, at: 0 };
        assert!(!comparison.continues_with(&[0, 1, 2, 9]));
    }
}
