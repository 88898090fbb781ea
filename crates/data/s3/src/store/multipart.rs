//! Writing a large object in parts, several at a time.
//!
//! The last request makes the object appear as a whole, under the same condition as a put. An
//! upload that fails is aborted, best effort: what a killed process leaves behind is invisible and
//! costs space until the bucket's rule for incomplete uploads removes it (`docs/store.md`).

use bytes::Bytes;
use futures_util::future::try_join_all;
use kestrel_blockstore::store::key;
use kestrel_types::ids::ObjectId;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{PutMultipartOptions, PutPayload};

use super::S3Store;
use super::put::{Kept, cut};
use crate::client::Attempt;
use crate::fault::{Cause, Failure};
use crate::rate_limiter::Direction;

impl S3Store {
    /// Puts an object in parts. Each request has its own deadline.
    pub(super) async fn put_in_parts(
        &self,
        object: ObjectId,
        parts: &[Bytes],
        kept: &Kept,
    ) -> Result<(), Failure> {
        let path = self.client.path(&key::key(object));
        self.refuse_present(object).await?;
        let begin = async || -> Attempt<String> {
            let attributes = kept.attributes();
            let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
            Ok(self.client.s3.create_multipart_opts(&path, options).await?)
        };
        let upload = self.client.request(Direction::Up, 0, begin).await?;
        let done = async {
            let sent = self.send_parts(&path, &upload, parts).await?;
            self.complete(&path, &upload, sent, (parts, kept)).await
        }
        .await;
        if done.is_err() {
            let abort = async || -> Attempt<()> {
                Ok(self.client.s3.abort_multipart(&path, &upload).await?)
            };
            if let Err(failure) = self.client.request(Direction::Up, 0, abort).await
                && failure.fault.cause != Cause::Missing
            {
                log::warn!(
                    "object {object:016x}: parts may be left behind in the store: {}",
                    failure.text()
                );
            }
        }
        done
    }

    async fn send_parts(
        &self,
        path: &Path,
        upload: &String,
        parts: &[Bytes],
    ) -> Result<Vec<PartId>, Failure> {
        let total = parts.iter().map(|part| part.len()).sum::<usize>();
        let part_bytes = self.client.limits().part_bytes() as usize;
        let sent = (0..total.div_ceil(part_bytes)).map(async |number| {
            let _turn = self.client.turn(Direction::Up).await?;
            let payload = PutPayload::from_iter(cut(parts, number * part_bytes, part_bytes));
            let bytes = payload.content_length() as u64;
            let once = async || -> Attempt<PartId> {
                Ok(self.client.s3.put_part(path, upload, number, payload.clone()).await?)
            };
            self.client.attempts(Direction::Up, bytes, false, once).await
        });
        try_join_all(sent).await
    }

    async fn complete(
        &self,
        path: &Path,
        upload: &String,
        sent: Vec<PartId>,
        (parts, kept): (&[Bytes], &Kept),
    ) -> Result<(), Failure> {
        let once = async || -> Attempt<()> {
            self.client.s3.complete_multipart(path, upload, sent.clone()).await?;
            Ok(())
        };
        let _turn = self.client.turn(Direction::Up).await?;
        match self.client.attempts(Direction::Up, 0, self.conditional_put, once).await {
            // The upload is gone or the object there: did an earlier attempt complete it, and its
            // answer get lost?
            Err(failure)
                if matches!(failure.fault.cause, Cause::Missing | Cause::Present)
                    && failure.maybe_done() =>
            {
                self.accept_if_ours(path, parts, kept, failure).await
            }
            other => other,
        }
    }
}
