//! Snapshots: the tree of a directory as it was at one moment (`docs/design/metadata.md`,
//! "History").

use crate::clock::Nanos;
use crate::ids::InodeId;
use crate::name::Name;

/// Number of a snapshot: the commit stamp at which it was made. Every change before it has a lower
/// one, every later change a higher one. Never reused within a volume.
pub type SnapshotId = u64;

/// Most snapshots of a volume, those being removed included.
pub const SNAPSHOTS_MAX: usize = 65_536;

/// Most tags that hold one snapshot.
pub const HOLDS_MAX: usize = 64;

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its number.
    pub id: SnapshotId,
    /// The directory that it is of.
    pub dir: InodeId,
    /// Its name among those of the directory.
    pub name: Name,
    /// When it was made.
    pub created: Nanos,
    /// It has been removed; what only it needs is being given back.
    pub removing: bool,
    /// Tags that keep it from being removed, in order, at most [`HOLDS_MAX`].
    pub holds: Vec<Name>,
}

/// Whether a snapshot may have this name: no `@` in it, which stands before names of snapshots in
/// `VOLUME@NAME`, and no `_` at its beginning, as names of snapshots of the directories above have.
pub fn is_snapshot_name(name: &Name) -> bool {
    let bytes = name.as_bytes();
    bytes.first() != Some(&b'_') && !bytes.contains(&b'@')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What names of snapshots lack besides what all names lack.
    #[test]
    fn names_of_snapshots() {
        for (name, good) in [("a", true), ("a_b", true), ("_a", false), ("a@", false)] {
            assert_eq!(is_snapshot_name(&Name::new(name.as_bytes()).unwrap()), good, "{name}");
        }
    }
}
