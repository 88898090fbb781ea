//! Reading: one GET of a range, straight into the caller's buffers.
//!
//! Before an answer is believed it must be partial content of exactly the range that was requested
//! (checked by `object_store` against the header), and its body as long as that. What its bytes are
//! worth is for the checksums above.

use std::io::IoSliceMut;

use futures_util::StreamExt;
use kestrel_blockstore::store::key;
use kestrel_types::ids::ObjectId;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::S3Store;
use crate::client::Attempt;
use crate::fault::{Cause, Failure, Fault};
use crate::rate_limiter::Direction;
use crate::scatter::Scatter;

impl S3Store {
    /// Fills `parts` from `offset` on, as far as the object goes; bytes filled.
    pub(super) async fn get(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<u64, Failure> {
        let path = self.client.path(&key::key(object));
        let wanted = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let range = offset..offset.saturating_add(wanted);
        let once = async || -> Attempt<u64> {
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                ..GetOptions::default()
            };
            let answer = self.client.s3.get_opts(&path, options).await?;
            let announced = answer.range.end - answer.range.start;
            let mut scatter = Scatter::new(parts);
            let mut body = answer.into_stream();
            while let Some(piece) = body.next().await {
                if !scatter.take(&piece?) {
                    return Err(Fault::unbelievable(
                        "the answer's body is longer than what was asked for",
                    )
                    .into());
                }
            }
            match scatter.filled() {
                filled if filled == announced => Ok(filled),
                filled => {
                    let text =
                        format!("the answer's body has {filled} bytes instead of {announced}");
                    Err(Fault::unbelievable(text).into())
                }
            }
        };
        match self.client.request(Direction::Down, wanted, once).await {
            // The object ends at or before `offset`.
            Err(failure) if failure.fault.cause == Cause::Short => Ok(0),
            other => other,
        }
    }
}
