//! What the files of a tree come to by user or group: a look at each file's record.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;

use crate::idset::IdSet;
use crate::info::InfoError;
use crate::tree::walk_below;

/// Which owner of a file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerKind {
    /// Its user.
    User,
    /// Its group.
    Group,
}

impl OwnerKind {
    fn of(self, inode: &Inode) -> u32 {
        match self {
            Self::User => inode.uid,
            Self::Group => inode.gid,
        }
    }
}

/// Figures of one owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerFigures {
    /// Files, one with several names once.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
}

/// Sums of the files below a directory by owner. Takes time by the number of files; memory by that
/// of owners, and of files with several names.
///
/// # Errors
/// Those of the engine.
pub fn by_owner(
    engine: &dyn Engine,
    dir: InodeId,
    kind: OwnerKind,
) -> Result<BTreeMap<u32, OwnerFigures>, InfoError> {
    let mut owners: BTreeMap<u32, OwnerFigures> = BTreeMap::new();
    let mut linked = IdSet::default();
    walk_below(engine, dir, &mut |file| {
        if file.inode.nlink < 2 || linked.insert(file.inode.ino) {
            let figures = owners.entry(kind.of(&file.inode)).or_default();
            figures.files += 1;
            figures.bytes = figures.bytes.saturating_add(file.inode.size);
        }
        ControlFlow::Continue(())
    })?;
    Ok(owners)
}
