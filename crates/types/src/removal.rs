//! What is asked of a directory before a tree is removed with all that is in it: where the tree
//! cannot go, nothing of it does.

use crate::ids::InodeId;
use crate::name::Name;

/// A page of a directory that is to be removed with all that is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovalPage {
    /// Files with one name, of any type but directories.
    pub files: u64,
    /// What is in those of them that are regular files.
    pub bytes: u64,
    /// Directories. What is in them is asked for by itself.
    pub dirs: Vec<(Name, InodeId)>,
    /// Names of files that have or had several. Their attributes are in other rows.
    pub links: Vec<Name>,
    /// The first file that must stay, and why. The page ends with it.
    pub kept: Option<(Name, KeptBecause)>,
    /// The last name that was looked at; none: the directory has no more.
    pub last: Option<Name>,
    /// Nothing follows.
    pub end: bool,
}

/// Why a caller with permission to write a directory cannot take a file out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum KeptBecause {
    /// It is immutable or append only.
    Flags = 1,
    /// The directory is sticky, and neither it nor the file is the caller's.
    Sticky = 2,
}

impl KeptBecause {
    /// By its number.
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Flags),
            2 => Some(Self::Sticky),
            _ => None,
        }
    }
}
