//! The trash: under which name what is removed is kept there.
//!
//! Below a directory with the policy `trash` ([`crate::policy::Policy::trash`]) a name that is
//! removed moves to the directory `/.trash/kept` of the volume, with the inode that it stands for.
//! Both directories are ordinary ones of the superuser's. A name there is a [`KeptName`]: it says
//! when the entry expires, and where it was. Names sort by the time, so that what has expired is
//! found at the beginning of a listing.

use std::str;

use crate::ids::InodeId;
use crate::name::{NAME_MAX, Name};

/// The directory of the volume's root for what is removed, below which only the superuser looks.
pub const TRASH: &[u8] = b".trash";

/// The directory in it with what is kept for a time.
pub const KEPT: &[u8] = b"kept";

/// What the name of something in the trash says:
/// `EXPIRY-PARENT-INODE-NAME`, the expiry with ten digits; `~` before a name that was cut.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptName {
    /// When it expires, seconds since 1970.
    pub expiry: u64,
    /// The directory that it was in.
    pub parent: InodeId,
    /// Its inode.
    pub ino: InodeId,
    /// The name that it had there, or the beginning of it.
    pub name: Vec<u8>,
    /// The name was too long.
    pub is_cut: bool,
}

impl KeptName {
    /// The name in the trash of what had `name` in `parent`.
    pub fn new(expiry: u64, parent: InodeId, ino: InodeId, name: &[u8]) -> Self {
        let room = NAME_MAX - prefix(expiry, parent, ino).len() - 1;
        let is_cut = name.len() > room;
        Self { expiry, parent, ino, name: name[..name.len().min(room)].to_vec(), is_cut }
    }

    /// Its bytes: a name of at most [`NAME_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = prefix(self.expiry, self.parent, self.ino).into_bytes();
        out.push(if self.is_cut { b'~' } else { b'-' });
        out.extend_from_slice(&self.name);
        out
    }

    /// Reads what [`KeptName::encode`] wrote; `None` of any other name.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (expiry, rest) = number(bytes)?;
        let (parent, rest) = number(rest.strip_prefix(b"-")?)?;
        let (ino, rest) = number(rest.strip_prefix(b"-")?)?;
        let (is_cut, name) = match rest.split_first()? {
            (b'-', name) => (false, name),
            (b'~', name) => (true, name),
            _ => return None,
        };
        Name::new(name).ok()?;
        let decoded = Self { expiry, parent, ino, name: name.to_vec(), is_cut };
        (decoded.encode() == bytes).then_some(decoded)
    }
}

fn prefix(expiry: u64, parent: InodeId, ino: InodeId) -> String {
    format!("{expiry:010}-{parent}-{ino}")
}

/// The decimal number that `bytes` begin with, and the rest.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at(end);
    Some((str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A name in the trash is a name, and says what it was made of; a long one its beginning.
        #[test]
        fn kept_name_round_trips(
            expiry in any::<u32>(), parent in 1u64.., ino in any::<u64>(),
            name in prop::collection::vec(1u8..=255, 1..=NAME_MAX),
        ) {
            prop_assume!(Name::new(&name).is_ok());
            let kept = KeptName::new(expiry.into(), parent, ino, &name);
            prop_assert!(name.starts_with(&kept.name));
            prop_assert_eq!(kept.is_cut, kept.name.len() < name.len());
            let bytes = kept.encode();
            prop_assert!(Name::new(&bytes).is_ok());
            prop_assert_eq!(KeptName::decode(&bytes), Some(kept));
        }

        #[test]
        fn garbage_is_no_kept_name(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(KeptName::decode(&bytes), None);
        }
    }

    /// Names that differ in digits alone are not the same entry.
    #[test]
    fn one_spelling_of_a_kept_name() {
        for name in ["1764888000-77-1042-a", "0000000060-77-1042~a", "99999999999-1-2-a"] {
            assert!(KeptName::decode(name.as_bytes()).is_some(), "{name}");
        }
        for name in ["60-77-1042-a", "1764888000-077-1042-a", "1764888000-77-1042-", "17-1-2-.."] {
            assert_eq!(KeptName::decode(name.as_bytes()), None, "{name}");
        }
    }
}
