//! How a file's bytes are compressed when they are stored: as the policies of directories say.
//!
//! The node says it in the answer to each open for writing, and the open file keeps it. Compaction
//! stores bytes of files that need not be open here: it asks ([`Fs::compressions`]).

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use kestrel_types::compression::Compression;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::InodeRef;
use kestrel_types::request::Op;

use super::{Caller, Fs, into_inode};

impl Fs {
    /// Notes from an inode in an answer that objects of the volume may be compressed.
    #[inline]
    pub(super) fn learn_compression(&self, inode: &Inode) {
        if inode.effective.compression.is_some_and(|way| way != Compression::None) {
            self.store.expect_compressed();
        }
    }

    /// How bytes of these files are compressed where policies say so now. A file is left out where
    /// the volume's setting counts, and where the node cannot be asked. Waits for the node.
    pub(super) fn compressions(
        self: &Arc<Self>,
        files: BTreeMap<InodeId, InodeRef>,
    ) -> BTreeMap<InodeId, Compression> {
        let (send, receive) = mpsc::channel();
        let ask = |inode: InodeRef| {
            let send = send.clone();
            self.ask(Caller::ROOT, Op::GetAttr(inode), move |answer| {
                let _ = send.send(answer.and_then(into_inode).ok());
            });
        };
        ask(InodeRef::by_id(ROOT));
        let root = receive.recv().ok().flatten();
        // A volume without policies costs one request.
        if !root.is_some_and(|root| root.policy().is_ok_and(|record| record.in_use)) {
            return BTreeMap::new();
        }
        let count = files.len();
        files.into_values().for_each(ask);
        let answers = receive.iter().take(count).flatten();
        answers.filter_map(|inode| Some((inode.ino, inode.effective.compression?))).collect()
    }
}
