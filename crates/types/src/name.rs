//! Names and places in the tree.
//!
//! | file | what it has |
//! | --- | --- |
//! | `name/dirs.rs` | the directories of a path, in one piece of memory |

mod dirs;

use crate::error::{FsError, FsResult};
use crate::ids::InodeId;

use dirs::Builder;
pub use dirs::{Dirs, Iter};

/// Longest name of an entry, bytes.
pub const NAME_MAX: usize = 255;

/// Longest path a request may carry and longest target of a symbolic link, bytes (Linux `PATH_MAX`
/// less the NUL).
pub const PATH_MAX: usize = 4095;

/// Longest name that is kept without an allocation, bytes: with its length and the tag it takes
/// what a box would, and one word.
const INLINE_MAX: usize = 22;

/// One component of a path: 1 to [`NAME_MAX`] bytes, any byte but NUL and `/`, neither `.` nor
/// `..`.
#[derive(Clone)]
pub struct Name(Bytes);

/// Nearly all names are short.
#[derive(Clone)]
enum Bytes {
    Short(u8, [u8; INLINE_MAX]),
    Long(Box<[u8]>),
}

impl Name {
    /// Checks and keeps a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` above [`NAME_MAX`]; `EINVAL` for an empty name, NUL, `/`, `.` and `..`.
    pub fn new(bytes: &[u8]) -> FsResult<Self> {
        Self::check(bytes)?;
        if bytes.len() > INLINE_MAX {
            return Ok(Self(Bytes::Long(bytes.into())));
        }
        let mut short = [0; INLINE_MAX];
        short[..bytes.len()].copy_from_slice(bytes);
        Ok(Self(Bytes::Short(bytes.len() as u8, short)))
    }

    /// Checks a name without keeping it; errors as [`Name::new`].
    pub fn check(bytes: &[u8]) -> FsResult<()> {
        if bytes.len() > NAME_MAX {
            return Err(FsError::new(libc::ENAMETOOLONG, "a name has at most 255 bytes"));
        }
        if is_no_name(bytes) || has_reserved_byte(bytes) {
            return Err(FsError::new(libc::EINVAL, "not a valid name"));
        }
        Ok(())
    }

    /// The name's bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short(len, bytes) => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Name({})", self.as_bytes().escape_ascii())
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for Name {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// Whether these bytes are no name, whatever may be in longer ones.
#[inline]
fn is_no_name(bytes: &[u8]) -> bool {
    matches!(bytes, [] | [b'.'] | [b'.', b'.'])
}

/// Whether there is a NUL or `/`, eight bytes at a time: every name that comes from a network
/// passes here.
fn has_reserved_byte(bytes: &[u8]) -> bool {
    const LOW: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    const SLASHES: u64 = u64::from_le_bytes([b'/'; 8]);
    // Not zero exactly if a byte of the word is zero (H. Warren, "Hacker's Delight", 6-1).
    let zero_byte = |word: u64| word.wrapping_sub(LOW) & !word & HIGH;
    let reserved = |word: [u8; 8]| {
        let word = u64::from_le_bytes(word);
        zero_byte(word) | zero_byte(word ^ SLASHES)
    };
    let (words, tail) = bytes.as_chunks::<8>();
    let mut last = [b'x'; 8];
    last[..tail.len()].copy_from_slice(tail);
    words.iter().fold(reserved(last), |found, word| found | reserved(*word)) != 0
}

// Hash and order of a name are those of its bytes, as Borrow demands.
impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Where an entry is or shall be: a name below a directory that the client knows by id, reached
/// through `dirs`.
///
/// A mount that looks up one component at a time leaves `dirs` empty; a client that knows the whole
/// path sends it whole, so that an operation is one request (`docs/design/metadata.md`, section 6).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathRef {
    /// Directory where resolution starts.
    pub base: InodeId,
    /// Directories between `base` and the entry, outermost first.
    pub dirs: Dirs,
    /// The entry's own name.
    pub name: Name,
}

impl PathRef {
    /// A name directly below a directory.
    pub fn new(base: InodeId, name: Name) -> Self {
        Self { base, dirs: Dirs::default(), name }
    }

    /// The place a relative path leads to from `base`: components separated by `/`, empty and `.`
    /// components skipped.
    ///
    /// # Errors
    /// As [`Name::new`]; `EINVAL` if nothing is left; `ENAMETOOLONG` above [`PATH_MAX`].
    pub fn from_path(base: InodeId, path: &[u8]) -> FsResult<Self> {
        if path.len() > PATH_MAX {
            return Err(FsError::new(libc::ENAMETOOLONG, "a path has at most 4095 bytes"));
        }
        let mut parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
        let mut name = parts.next().ok_or(FsError::new(libc::EINVAL, "the path names no entry"))?;
        let mut dirs = Builder::with_capacity(path.len());
        for below in parts {
            dirs.append(std::mem::replace(&mut name, below))?;
        }
        let name = Name::new(name)?;
        Ok(Self { base, dirs: dirs.build(), name })
    }
}

/// An inode the client knows by number, with the place where it last saw it.
///
/// A file's record lies under its directory and name, so the place is what finds it; if the file
/// has been renamed since, or has several names, or none any more, the node finds it by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InodeRef {
    /// The inode.
    pub ino: InodeId,
    /// Directory and name where the client last saw it; `None` for the root and for files without a
    /// name.
    pub seen: Option<(InodeId, Name)>,
}

impl InodeRef {
    /// An inode that is found by number alone: a directory, or a file in table `link`.
    pub fn by_id(ino: InodeId) -> Self {
        Self { ino, seen: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_found_wherever_they_are() {
        for len in 1..40 {
            assert!(Name::new(&vec![b'n'; len]).is_ok());
            for at in 0..len {
                for (byte, valid) in [
                    (0, false),
                    (b'/', false),
                    (1, true),
                    (0x2e, len > 2),
                    (0x30, true),
                    (0x80, true),
                    (0xaf, true),
                    (0xff, true),
                ] {
                    let mut name = vec![b'n'; len];
                    name[at] = byte;
                    assert_eq!(
                        Name::new(&name).is_ok(),
                        valid || (byte == b'.' && len > 1),
                        "{byte:#x} at {at} of {len}"
                    );
                }
            }
        }
    }

    /// Hostile names are refused with the errno that POSIX wants.
    #[test]
    fn errno_of_hostile_names() {
        for (bytes, errno) in [
            (&b""[..], libc::EINVAL),
            (b".", libc::EINVAL),
            (b"..", libc::EINVAL),
            (b"a/b", libc::EINVAL),
            (b"a\0b", libc::EINVAL),
            (&[b'x'; 256], libc::ENAMETOOLONG),
        ] {
            assert_eq!(Name::new(bytes).unwrap_err().errno, errno, "{bytes:?}");
        }
        assert!(Name::new(&[0xff; 255]).is_ok());
    }

    #[test]
    fn short_and_long_names_are_alike() {
        assert_eq!(size_of::<Name>(), 24);
        let mut names: Vec<Name> =
            (1..=NAME_MAX).rev().map(|len| Name::new(&vec![b'x'; len]).unwrap()).collect();
        names.sort();
        for (index, name) in names.iter().enumerate() {
            assert_eq!(name.as_bytes(), vec![b'x'; index + 1]);
            assert_eq!(name, &name.clone());
        }
        let set: std::collections::HashSet<_> = names.iter().cloned().collect();
        assert!(names.iter().all(|name| set.contains(name.as_bytes())));
    }

    #[test]
    fn paths_become_places() {
        let place = PathRef::from_path(1, b"/a//./b/c").unwrap();
        assert_eq!(place.dirs.iter().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(place.name.as_bytes(), b"c");
        assert!(PathRef::from_path(1, b"/").is_err());
        assert!(PathRef::from_path(1, b"a/../b").is_err());
    }
}
