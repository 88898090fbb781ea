//! [`S3Store`]: objects as keys of a bucket.
//!
//! | file | |
//! | --- | --- |
//! | `put` | writing an object with one request |
//! | `multipart` | writing a large object in parts, several at a time |
//! | `get` | reading: one GET of a range, straight into the caller's buffers |
//! | `list` | listing: pages that can be relied on |
//! | `tier` | storage classes: looking, copying to another, restoring from an archive |
//!
//! Object `n` is the key `PREFIX/objects/<pp>/<nnnnnnnnnnnnnnnn>`
//! ([`kestrel_blockstore::store::key`]). What the store acknowledged is durable, so there is
//! nothing to sync.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use kestrel_blockstore::error::{Error, Result};
use kestrel_blockstore::store::{BlockStore, Page, PutOptions, TieredStore, Usage, key};
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};

use crate::client::Client;
use crate::fault::{Cause, Failure};
use crate::rate_limiter::Direction;
use put::Kept;

mod get;
mod list;
mod multipart;
pub(crate) mod put;
mod tier;

/// A prefix of a bucket as block store. Made by [`S3Store::create`] and [`S3Store::open`].
pub struct S3Store {
    pub(crate) client: Client,
    /// Whether the store refuses to overwrite under a condition.
    pub(crate) conditional_put: bool,
    written: AtomicI64,
    /// It was said that the store lacks a storage class.
    class_missed: AtomicBool,
}

impl S3Store {
    pub(crate) fn new(client: Client, conditional_put: bool) -> Self {
        let (written, class_missed) = (AtomicI64::new(0), AtomicBool::new(false));
        Self { client, conditional_put, written, class_missed }
    }

    /// Where an object lies, for people: `s3://BUCKET/KEY`.
    pub fn place(&self, object: ObjectId) -> String {
        let options = &self.client.options;
        format!("{}{}/{}", crate::S3_SCHEME, options.bucket, options.key(&key::key(object)))
    }

    /// Whether the store itself refuses to overwrite; if not, every put first checks whether the
    /// object is there.
    pub fn puts_conditionally(&self) -> bool {
        self.conditional_put
    }

    /// Bytes of an object. An answer that it is not there explains nothing and may mean something
    /// else, so a GET decides: its answer does explain.
    async fn head(&self, object: ObjectId) -> std::result::Result<u64, Failure> {
        let path = self.client.path(&key::key(object));
        let once = async || {
            let options = GetOptions { head: true, ..GetOptions::default() };
            Ok(self.client.s3.get_opts(&path, options).await?.meta.size)
        };
        match self.client.request(Direction::Down, 0, once).await {
            Err(failure) if failure.fault.cause == Cause::Missing => self.size_by_get(&path).await,
            other => other,
        }
    }

    async fn put_kept(
        &self,
        object: ObjectId,
        parts: &[Bytes],
        kept: &Kept,
    ) -> std::result::Result<(), Failure> {
        let len = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if len > self.client.limits().multipart_bytes {
            self.put_in_parts(object, parts, kept).await?;
        } else {
            self.put_whole(object, parts, kept).await?;
        }
        self.written.fetch_add(len as i64, Ordering::Relaxed);
        Ok(())
    }

    /// Says once that the store lacks a storage class.
    fn note_missing_class(&self, tier: Option<Tier>, failure: &Failure) {
        if !self.class_missed.swap(true, Ordering::Relaxed) {
            let (tier, why) = (tier.unwrap_or(Tier::Standard), failure.text());
            log::warn!("the store has no tier {tier}, so data stays in standard: {why}");
        }
    }

    async fn size_by_get(&self, path: &Path) -> std::result::Result<u64, Failure> {
        let once =
            async || Ok(self.client.s3.get_opts(path, GetOptions::default()).await?.meta.size);
        self.client.request(Direction::Down, 0, once).await
    }

    async fn remove(&self, object: ObjectId) -> std::result::Result<(), Failure> {
        let path = self.client.path(&key::key(object));
        let request = async || Ok(self.client.s3.delete(&path).await?);
        self.client.request(Direction::Up, 0, request).await
    }
}

impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Store").field("url", &self.client.options.url).finish_non_exhaustive()
    }
}

impl BlockStore for S3Store {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        let slices: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        self.put_shared(object, &[Bytes::from(slices.concat())])
    }

    fn put_shared(&self, object: ObjectId, parts: &[Bytes]) -> Result<()> {
        self.put_with(object, parts, PutOptions::default())
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        let tier = options.tier.filter(|tier| *tier != Tier::Standard);
        let put = async {
            match self.put_kept(object, parts, &Kept::in_tier(tier)).await {
                // Bytes that are kept in a dearer place than was wanted are better than none.
                Err(failure) if failure.fault.cause == Cause::NoClass => {
                    self.note_missing_class(tier, &failure);
                    self.put_kept(object, parts, &Kept::default()).await
                }
                done => done,
            }
        };
        self.client.block(put).map_err(|failure| failure.into_error("writing", Some(object)))
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        Some(self)
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        let wanted = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if wanted == 0 {
            return self.size(object).map(drop);
        }
        match self.client.block(self.get(object, offset, parts)) {
            Ok(got) if got == wanted => Ok(()),
            Ok(_) => Err(Error::Corrupt {
                object,
                offset,
                what: "the object is shorter than what was stored",
            }),
            Err(failure) => Err(failure.into_error("reading", Some(object))),
        }
    }

    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return self.size(object).map(|_| 0);
        }
        let got = self.client.block(self.get(object, offset, &mut [IoSliceMut::new(out)]));
        // No more than `out` has.
        got.map(|got| got as usize).map_err(|failure| failure.into_error("reading", Some(object)))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.client.stats.report(report);
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.client
            .block(self.head(object))
            .map_err(|failure| failure.into_error("sizing", Some(object)))
    }

    /// Two requests: S3's answer does not show whether there was something to delete, so the object
    /// is looked for before.
    fn delete(&self, object: ObjectId) -> Result<bool> {
        let size = match self.size(object) {
            Ok(size) => size,
            Err(Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        match self
            .client
            .block(self.remove(object))
            .map_err(|failure| failure.into_error("deleting", Some(object)))
        {
            // Some stores do answer that it is gone meanwhile.
            Ok(()) | Err(Error::NotFound { .. }) => {
                self.written.fetch_sub(size as i64, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// One request for each, as many at a time as there are turns.
    fn delete_each(&self, objects: &[ObjectId]) -> Vec<Result<()>> {
        let deletions = objects.iter().map(async |&object| match self.remove(object).await {
            Err(failure) if failure.fault.cause == Cause::Missing => Ok(()),
            done => done.map_err(|failure| failure.into_error("deleting", Some(object))),
        });
        self.client.block(join_all(deletions))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn sync_objects(&self, _objects: &[ObjectId]) -> Result<()> {
        Ok(())
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let page = self.client.block(self.page(after, limit));
        page.map_err(|failure| failure.into_error("listing the block store", None))
    }

    fn usage(&self) -> Result<Usage> {
        Ok(Usage { capacity: None, free: None, written: self.written.load(Ordering::Relaxed) })
    }
}
