//! What survives a power cut is a prefix of what was acknowledged: a change must not survive if its
//! file data did not reach the disk (`docs/design/metadata.md`, section 7, item 3).
//!
//! Only missing and damaged data say that. A store that fails otherwise says nothing, so the volume
//! does not open then: its log must not be cut because a disk or a key was not there. In a store
//! across a network data is durable as soon as it is acknowledged, and nothing has to be looked at.

use std::path::Path;
use std::sync::Arc;

use kestrel_blockstore::reader::{Reader, ReaderConfig};
use kestrel_blockstore::store::BlockStore;
use kestrel_blockstore::{Error, ErrorKind};
use kestrel_engine::Mutation;
use kestrel_types::codec::Reader as Bytes;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{ExtentList, Source};
use kestrel_types::inode::{Data, Inode};
use kestrel_types::key::Table;
use kestrel_types::range::Range;

use crate::error::VolumeError;

/// Judges batches of the log after a crash.
pub struct Recovery {
    /// None: whatever the log names is there.
    reader: Option<Reader>,
    bytes: Vec<u8>,
    failed: Option<Error>,
}

impl Recovery {
    /// Judges by what is in `store`.
    pub fn new(store: Arc<dyn BlockStore>) -> Self {
        let reader = (!store.is_remote()).then(|| {
            Reader::new(store, ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() })
        });
        Self { reader, bytes: Vec::new(), failed: None }
    }

    /// Whether every stored range that the batch's rows name is there and passes its checksums.
    /// Undecodable rows are not intact either.
    pub fn is_intact(&mut self, mutations: &[Mutation]) -> bool {
        if self.reader.is_none() || self.failed.is_some() {
            return true;
        }
        mutations.iter().all(|mutation| {
            let Some(value) = &mutation.value else { return true };
            let Some(ranges) = ranges_of(mutation.key.table, value) else { return false };
            ranges.into_iter().all(|range| self.is_there(range))
        })
    }

    fn is_there(&mut self, range: Range) -> bool {
        let Some(reader) = &self.reader else { return true };
        self.bytes.resize(range.len as usize, 0);
        match reader.read(range, 0, &mut self.bytes) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => false,
            Err(error) => {
                self.failed.get_or_insert(error);
                true
            }
        }
    }

    /// Whether everything could be judged.
    ///
    /// # Errors
    /// Why the store could not be read: the volume must not be used now. Nothing was cut.
    pub fn finish(self, dir: &Path) -> Result<(), VolumeError> {
        self.failed.map_or(Ok(()), |error| {
            let dir = dir.display();
            Err(VolumeError::Io(format!(
                "{dir}: what was written last cannot be checked: {error}; try again"
            )))
        })
    }
}

fn ranges_of(table: Table, value: &[u8]) -> Option<Vec<Range>> {
    let of_inode = |inode: &Inode| match inode.data {
        Data::Packed { range, .. } => vec![range],
        _ => Vec::new(),
    };
    Some(match table {
        Table::Entry => match Entry::decode(value).ok()? {
            Entry::Inode(inode) => of_inode(&inode),
            Entry::Link { .. } => Vec::new(),
        },
        Table::Link => of_inode(&Inode::decode(&mut Bytes::new(value)).ok()?),
        Table::Chunk => {
            let list = ExtentList::decode(&mut Bytes::new(value)).ok()?;
            let mut ranges: Vec<Range> = list
                .extents()
                .iter()
                .filter_map(|extent| match extent.source {
                    Source::Stored { range, .. } => Some(range),
                    Source::Hole => None,
                })
                .collect();
            ranges.sort_unstable_by_key(|range| (range.object, range.offset));
            ranges.dedup();
            ranges
        }
        _ => Vec::new(),
    })
}
