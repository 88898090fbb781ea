//! The end of a clone: all its directories have their names.
//!
//! A file with several names shows as many as it had at the snapshot until then. Those outside of
//! the cloned tree have not come into being, and are taken off. Then the record goes, and with it
//! the snapshot, if nobody else needs that.

use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_types::clone::{CloneInfo, CloneRow, ClonedLink, links_begin};
use kestrel_types::codec::Reader;
use kestrel_types::crash;
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};

use super::super::Node;
use super::{damaged, get};
use crate::session::OpenState;
use crate::stop::engine_error;

/// Most files with several names that one batch deals with.
const LINKS_MAX: usize = 512;

/// A file's record without so many of its names.
pub(super) fn without(ino: InodeId, row: &[u8], outside: u32, stamp: u64) -> FsResult<Inode> {
    let mut inode = Inode::decode(&mut Reader::new(row))
        .map_err(|why| damaged(format!("file {ino}: {why}")))?;
    inode.nlink = inode.nlink.saturating_sub(outside);
    inode.change = stamp;
    Ok(inode)
}

impl Node {
    /// Does a part of what ends a clone; `None` if it has ended. Files that have no name then, and
    /// that nobody has open, are added to `orphans`. With every worker's state held.
    pub(super) fn end_clone(
        &self,
        clone: &CloneInfo,
        orphans: &mut Vec<InodeId>,
    ) -> FsResult<Option<u64>> {
        let mut links = Vec::new();
        let after = links_begin();
        let visited =
            self.engine.scan(Table::Clone, clone.id, Some(&after), &mut |suffix, row, _| {
                if let Some(CloneRow::Link(old)) = CloneRow::of(suffix) {
                    links.push((old, ClonedLink::decode(row)));
                }
                match links.len() < LINKS_MAX {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
        visited.map_err(engine_error)?;
        if links.is_empty() {
            return self.forget_clone(clone).map(|()| None);
        }
        let stamp = self.stamps.tick(&*self.engine, self.clock.now()).map_err(engine_error)?;
        let (mut rows, mut nameless) = (Vec::new(), Vec::new());
        for (old, link) in links {
            let link = link.map_err(|why| damaged(format!("file {old}: {why}")))?;
            rows.push(Mutation { key: ClonedLink::key(clone.id, old), value: None });
            let outside = link.total.saturating_sub(link.names);
            if outside > 0
                && let Some(inode) = self.without_names(link.ino, outside, stamp)?
            {
                if inode.nlink == 0 {
                    nameless.push(inode.ino);
                }
                let mut row = Vec::with_capacity(80);
                inode.encode_into(&mut row);
                let key = Key::new(Table::Link, inode.ino, b"");
                rows.push(Mutation { key, value: Some(row.into()) });
            }
        }
        crash::point("clone.links.before");
        let position = self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
        crash::point("clone.links.committed");
        self.committed_at(position);
        for ino in nameless {
            let open = self.core.opens.get(ino);
            if self.core.reclaiming.lasts() {
                self.core.reclaiming.keep(ino);
            } else if open.count > 0 {
                self.core.opens.set(ino, OpenState { orphan: true, linkable: false, ..open });
            } else {
                orphans.push(ino);
            }
        }
        Ok(Some(0))
    }

    /// A file of a clone without so many of its names; `None` if it is gone.
    fn without_names(&self, ino: InodeId, outside: u32, stamp: u64) -> FsResult<Option<Inode>> {
        let row = get(&*self.engine, KeyRef::new(Table::Link, ino, b""))?;
        row.map(|row| without(ino, &row, outside, stamp)).transpose()
    }

    /// A clone needs nothing any more.
    fn forget_clone(&self, clone: &CloneInfo) -> FsResult<()> {
        let known = self.core.snapshots.get(clone.snapshot);
        let Some(info) = known.and_then(|known| known.info.without_clones(&[clone.id])) else {
            return Ok(());
        };
        let rows = vec![Mutation { key: info.key(), value: Some(info.encode()) }];
        crash::point("clone.end.before");
        let position = self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
        crash::point("clone.end.committed");
        self.committed_at(position);
        self.core.snapshots.put(info, position);
        Ok(())
    }
}
