//! How a file's bytes are compressed when they are stored: as the policies of directories say.
//!
//! The node says it in the answer to each open for writing, and the open file keeps it. Compaction
//! stores bytes of files that need not be open here: it asks ([`Fs::compressions`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};

use kestrel_types::compression::Compression;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Policy, XATTR_EFFECTIVE, XATTR_PREFIX};
use kestrel_types::request::{Answer, Op};

use super::{Caller, Fs};

impl Fs {
    /// Notes from an inode in an answer that objects of the volume may be compressed.
    #[inline]
    pub(super) fn learn_compression(&self, inode: &Inode) {
        if inode.effective.compression.is_some_and(|way| way != Compression::None) {
            self.store.expect_compressed();
        }
    }

    /// How data of files in these directories is compressed by the policies of now. A directory is
    /// left out where the volume's setting counts, and where the node cannot say. Waits for the
    /// node.
    pub(super) fn compressions(
        self: &Arc<Self>,
        dirs: BTreeSet<InodeId>,
    ) -> BTreeMap<InodeId, Compression> {
        let (send, receive) = mpsc::channel();
        let count = dirs.len();
        let name = [XATTR_PREFIX, XATTR_EFFECTIVE].concat();
        for dir in dirs {
            let send = send.clone();
            let op = Op::GetXattr(InodeRef::by_id(dir), name.as_slice().into());
            self.ask(Caller::ROOT, op, move |answer| {
                let policy = match answer {
                    Ok(Answer::Bytes(text)) => Policy::from_effective(&text),
                    _ => Policy::default(),
                };
                let _ = send.send(policy.compression.map(|compression| (dir, compression)));
            });
        }
        receive.iter().take(count).flatten().collect()
    }
}
