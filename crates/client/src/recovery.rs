//! What survives a power cut is a prefix of what was acknowledged: a change whose file data did not reach the disk must
//! not survive its data (`metadata.md` §7.3).

use kestrel_data::reader::Reader;
use kestrel_meta::engine::Mutation;
use kestrel_types::codec::Reader as Bytes;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{ExtentList, Source};
use kestrel_types::inode::{Data, Inode};
use kestrel_types::key::Table;
use kestrel_types::range::Range;

/// Whether every stored range that the batch's rows name is there and passes its checksums. Undecodable rows are not
/// intact either.
pub fn refers_to_intact_data(reader: &Reader, mutations: &[Mutation]) -> bool {
    let mut bytes = Vec::new();
    mutations.iter().all(|mutation| {
        let Some(value) = &mutation.value else { return true };
        let Some(ranges) = ranges_of(mutation.key.table, value) else { return false };
        ranges.into_iter().all(|range| {
            bytes.resize(range.len as usize, 0);
            reader.read(range, 0, &mut bytes).is_ok()
        })
    })
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
