//! The directories of a place, in one piece of memory: a path that comes from a network is checked
//! and copied once, and is hashed and compared as a whole.

use std::borrow::Borrow;
use std::fmt;

use super::{NAME_MAX, Name, has_reserved_byte, is_no_name};
use crate::codec::{DecodeError, Reader};
use crate::error::FsResult;

/// Names of directories, outermost first; each as [`Name`] allows it.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Dirs {
    /// Each name after a byte with its length, as in a message.
    bytes: Box<[u8]>,
    count: u32,
}

impl Dirs {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The names, outermost first.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        Iter(&self.bytes)
    }

    /// Adds the innermost one. Takes time in proportion to the names there are: what has all of
    /// them collects them.
    pub fn push(&mut self, name: &Name) {
        let bytes = std::mem::take(&mut self.bytes).into_vec();
        let mut dirs = Builder { bytes, count: self.count };
        dirs.append_checked(name.as_bytes());
        *self = dirs.build();
    }

    /// All names, each after a byte with its length: equal for equal names only.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads `count` names, each after a byte with its length.
    ///
    /// # Errors
    /// If the bytes are truncated, or no [`Name`] would allow one of the names.
    #[inline]
    pub fn decode(reader: &mut Reader<'_>, count: u32) -> Result<Self, DecodeError> {
        const NO_NAME: DecodeError = DecodeError("not a valid name");
        let mut ahead = reader.clone();
        for _ in 0..count {
            let len = usize::from(ahead.u8()?);
            if is_no_name(ahead.bytes(len)?) {
                return Err(NO_NAME);
            }
        }
        let bytes = reader.bytes(reader.remaining() - ahead.remaining())?;
        // All names are searched at once. A length may look like a byte that no name has: then they
        // are looked at one by one.
        if has_reserved_byte(bytes) && Iter(bytes).any(has_reserved_byte) {
            return Err(NO_NAME);
        }
        Ok(Self { bytes: bytes.into(), count })
    }
}

/// Collects names.
pub(super) struct Builder {
    bytes: Vec<u8>,
    count: u32,
}

impl Builder {
    /// For names of so many bytes, each counted with one more.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), count: 0 }
    }

    /// Checks and adds a name; errors as [`Name::check`].
    pub fn append(&mut self, name: &[u8]) -> FsResult<()> {
        Name::check(name)?;
        self.append_checked(name);
        Ok(())
    }

    fn append_checked(&mut self, name: &[u8]) {
        const { assert!(NAME_MAX <= u8::MAX as usize) };
        self.bytes.push(name.len() as u8);
        self.bytes.extend_from_slice(name);
        self.count += 1;
    }

    pub fn build(self) -> Dirs {
        Dirs { bytes: self.bytes.into(), count: self.count }
    }
}

impl<N: Borrow<Name>> FromIterator<N> for Dirs {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let mut dirs = Builder::with_capacity(0);
        names.into_iter().for_each(|name| dirs.append_checked(name.borrow().as_bytes()));
        dirs.build()
    }
}

impl fmt::Debug for Dirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|name| name.escape_ascii().to_string())).finish()
    }
}

impl<'a> IntoIterator for &'a Dirs {
    type Item = &'a [u8];
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The names of a [`Dirs`].
#[derive(Debug, Clone)]
pub struct Iter<'a>(&'a [u8]);

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        self.0 = rest;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_come_out_as_they_went_in() {
        let long = "x".repeat(NAME_MAX);
        let names = ["a", "datasets", &long, "b"];
        let collected: Dirs = names.into_iter().map(name).collect();
        let mut pushed = Dirs::default();
        assert!(pushed.is_empty() && pushed.iter().next().is_none());
        for text in names {
            pushed.push(&name(text));
        }
        assert_eq!(pushed, collected);
        assert_eq!((pushed.len(), pushed.is_empty()), (4, false));
        assert_eq!(pushed.iter().collect::<Vec<_>>(), names.map(str::as_bytes));
        let mut reader = Reader::new(pushed.as_bytes());
        assert_eq!(Dirs::decode(&mut reader, 4).unwrap(), pushed);
        assert_eq!(reader.remaining(), 0);
        // One of two names is not the other two, though they are as long.
        assert_ne!(
            [name("ab")].into_iter().collect::<Dirs>(),
            [name("a"), name("b")].into_iter().collect()
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bytes in [&b"\x01a\x00"[..], b"\x01a\x02..", b"\x01a\x03b/c", b"\x01a\x05b", b"\x01a"] {
            assert!(Dirs::decode(&mut Reader::new(bytes), 2).is_err(), "{bytes:?}");
        }
        let slash_long = [&[b'/'][..], &[b'x'; b'/' as usize]].concat();
        assert_eq!(Dirs::decode(&mut Reader::new(&slash_long), 1).unwrap().as_bytes(), slash_long);
        let mut reader = Reader::new(b"\x01a\x01b");
        assert_eq!(Dirs::decode(&mut reader, 1).unwrap().len(), 1);
        assert_eq!(reader.remaining(), 2, "what follows is left");
    }
}
