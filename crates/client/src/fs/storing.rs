//! How a file's bytes are stored, as the policies of directories say: compressed how, and in which
//! tier.
//!
//! The node says it in the answer to each open for writing, and the open file keeps it. Compaction
//! stores bytes of files that need not be open here: it asks ([`Fs::put_options`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};

use kestrel_blockstore::{Error, PutOptions, Turn};
use kestrel_types::compression::Compression;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Policy, XATTR_EFFECTIVE, XATTR_PREFIX};
use kestrel_types::request::{Answer, Op};
use kestrel_types::tier::Tier;

use super::{Caller, Done, Fs, too_late};
use crate::file::data_error;

/// Why nothing is done with tiers.
pub(super) const NO_TIERS: FsError =
    FsError::new(libc::EOPNOTSUPP, "the volume's store has no tiers");

/// What a policy says of how data of files is stored.
pub(super) fn options_of(policy: Policy) -> PutOptions {
    PutOptions { compression: policy.compression, tier: policy.tier }
}

impl Fs {
    /// Notes from an inode in an answer that objects of the volume may be compressed.
    #[inline]
    pub(super) fn learn_compression(&self, inode: &Inode) {
        if inode.effective.compression.is_some_and(|way| way != Compression::None) {
            self.store.expect_compressed();
        }
    }

    /// How data of files in these directories is stored by the policies of now. A directory is left
    /// out where the node cannot say. Waits for the node.
    pub fn put_options(self: &Arc<Self>, dirs: BTreeSet<InodeId>) -> BTreeMap<InodeId, PutOptions> {
        let (send, receive) = mpsc::channel();
        let count = dirs.len();
        let name = [XATTR_PREFIX, XATTR_EFFECTIVE].concat();
        for dir in dirs {
            let send = send.clone();
            let op = Op::GetXattr(InodeRef::by_id(dir), name.as_slice().into());
            self.ask(Caller::ROOT, op, move |answer| {
                let options = match answer {
                    Ok(Answer::Bytes(text)) => Some(options_of(Policy::from_effective(&text))),
                    _ => None,
                };
                let _ = send.send(options.map(|options| (dir, options)));
            });
        }
        receive.iter().take(count).flatten().collect()
    }

    /// Checks that the store has the tier that a policy is to name. A text that is no tier is left
    /// to the node.
    pub(super) fn with_tier(self: &Arc<Self>, value: &[u8], then: Done<()>) {
        let tier = std::str::from_utf8(value).ok().and_then(|text| text.parse::<Tier>().ok());
        let Some(tier) = tier.filter(|tier| *tier != Tier::Standard) else { return then(Ok(())) };
        let store = self.store.clone();
        self.on_pool(move |turn| {
            if turn == Turn::Late {
                return then(Err(too_late()));
            }
            then(has_tier(&*store, tier));
        });
    }
}

/// Whether a store has a tier.
///
/// # Errors
/// `EOPNOTSUPP` if it has not; what keeps it from being tried.
fn has_tier(store: &dyn kestrel_blockstore::BlockStore, tier: Tier) -> FsResult<()> {
    let Some(tiers) = store.tiers() else {
        return Err(NO_TIERS);
    };
    tiers.check_tier(tier).map_err(|error| match error {
        Error::NoTier { .. } => FsError::because(libc::EOPNOTSUPP, error.to_string()),
        _ => data_error(&error),
    })
}
