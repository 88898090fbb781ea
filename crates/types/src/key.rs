//! Keys of the ordered tables (`docs/format.md`, "Keys of rows").
//!
//! Every key is a table number, a 64-bit id and a suffix; in bytes
//! `table ‖ id (big-endian) ‖ suffix`, ordered as bytes. All rows of one directory, inode or object
//! share `(table, id)`, so one prefix scan finds them.

/// The tables of a volume. Numbers are on disk: never change or reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Volume-wide records: id 0, suffix = name of the record.
    System = 0,
    /// `(parent, name)` → [`crate::entry::Entry`].
    Entry = 1,
    /// `(directory, worker u16)` → [`crate::stat::DirStat`]: one worker's share of a directory.
    DirStat = 2,
    /// `directory` → parent and name: finds a directory by id.
    DirId = 3,
    /// `(parent, child directory u64)` → nothing: the subdirectories of a directory.
    Subdir = 4,
    /// `inode` → [`crate::inode::Inode`] of a file with several names, or of one that is open and
    /// has none.
    Link = 5,
    /// `(inode, chunk u64)` → [`crate::extent::ExtentList`], the extents of one chunk.
    Chunk = 6,
    /// `(inode, name)` → value of an extended attribute.
    Xattr = 7,
    /// `(object, worker u16)` → referenced bytes added and freed by one worker.
    ObjStat = 8,
    /// `(due time in seconds, object u64)` → nothing: objects to look at for deletion.
    Reap = 9,
    /// Where a renamed file went. Reserved for the cluster.
    Moved = 10,
    /// Prepared and decided transactions. Reserved for the cluster.
    Txn = 11,
    /// `(inode, chunk u64)` → nothing: rows of table `chunk` from this one on were cut off and are
    /// being deleted.
    Sweep = 12,
    /// `(id of a row, table u8 ‖ suffix ‖ snapshot u64)` → what that row was at the snapshot, if it
    /// has changed since ([`crate::snapshot`]).
    History = 13,
    /// `(clone, kind u8 ‖ inode u64)` → what a clone that is not finished still needs
    /// ([`crate::clone`]).
    Clone = 14,
    /// `(inode, user, group or 0, kind u8 ‖ …)` → quotas and what counts towards them
    /// ([`crate::quota`]).
    Quota = 15,
    /// `(directory, nothing, 0, or timestamp u64 ‖ worker u16 ‖ number u32)` → the change feed of a
    /// directory ([`crate::feed`]).
    Feed = 16,
}

impl Table {
    /// All tables, in key order.
    pub const ALL: [Table; 17] = [
        Table::System,
        Table::Entry,
        Table::DirStat,
        Table::DirId,
        Table::Subdir,
        Table::Link,
        Table::Chunk,
        Table::Xattr,
        Table::ObjStat,
        Table::Reap,
        Table::Moved,
        Table::Txn,
        Table::Sweep,
        Table::History,
        Table::Clone,
        Table::Quota,
        Table::Feed,
    ];

    /// The table with this number, if there is one.
    pub fn from_u8(number: u8) -> Option<Table> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Longest suffix of a key, bytes. Names (255) and extended attribute names (255) fit with room to
/// spare.
pub const SUFFIX_MAX: usize = 512;

/// Bytes of a key before its suffix.
pub const PREFIX_LEN: usize = 9;

/// A key with a borrowed suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRef<'a> {
    /// Table of the row.
    pub table: Table,
    /// Directory, inode, object or time, by table.
    pub id: u64,
    /// Rest of the key, at most [`SUFFIX_MAX`] bytes.
    pub suffix: &'a [u8],
}

impl<'a> KeyRef<'a> {
    /// Assembles a key.
    pub fn new(table: Table, id: u64, suffix: &'a [u8]) -> Self {
        Self { table, id, suffix }
    }

    /// Appends the key's bytes to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(self.table as u8);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(self.suffix);
    }

    /// Takes a key apart; `None` if it is too short, too long or of an unknown table.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, suffix) = bytes.split_at_checked(PREFIX_LEN)?;
        if suffix.len() > SUFFIX_MAX {
            return None;
        }
        let table = Table::from_u8(head[0])?;
        let id = u64::from_be_bytes(head[1..].try_into().ok()?);
        Some(Self { table, id, suffix })
    }

    /// A copy that owns its suffix.
    pub fn to_owned(self) -> Key {
        Key { table: self.table, id: self.id, suffix: self.suffix.into() }
    }
}

/// A key that owns its suffix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Table of the row.
    pub table: Table,
    /// Directory, inode, object or time, by table.
    pub id: u64,
    /// Rest of the key, at most [`SUFFIX_MAX`] bytes.
    pub suffix: Box<[u8]>,
}

impl Key {
    /// Key of a volume-wide record with the name `prefix` and a number in 16 hexadecimal digits.
    pub fn of_numbered_record(prefix: &[u8], number: u64) -> Self {
        let name = [prefix, format!("{number:016x}").as_bytes()].concat();
        Self::new(Table::System, 0, &name)
    }

    /// Assembles a key.
    pub fn new(table: Table, id: u64, suffix: &[u8]) -> Self {
        Self { table, id, suffix: suffix.into() }
    }

    /// The same key, borrowed.
    pub fn borrow(&self) -> KeyRef<'_> {
        KeyRef { table: self.table, id: self.id, suffix: &self.suffix }
    }
}

/// The number in the name of a volume-wide record, of what follows the prefix: `None` unless these
/// are the digits that [`Key::of_numbered_record`] writes.
pub fn record_number(digits: &[u8]) -> Option<u64> {
    let lower = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let digits = std::str::from_utf8(digits).ok()?;
    let is_number = digits.len() == 16 && digits.bytes().all(|digit| lower(&digit));
    u64::from_str_radix(digits, 16).ok().filter(|_| is_number)
}

/// A suffix read as a number, for tables with a number as suffix; 0 for one of another length.
#[inline]
pub fn number_of(suffix: &[u8]) -> u64 {
    suffix.try_into().map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_bytes_and_survive_a_round_trip() {
        let keys = [
            KeyRef::new(Table::System, 0, b"volume"),
            KeyRef::new(Table::Entry, 1, b"a"),
            KeyRef::new(Table::Entry, 1, b"a\xff"),
            KeyRef::new(Table::Entry, 1, b"b"),
            KeyRef::new(Table::Entry, 256, b""),
            KeyRef::new(Table::Txn, u64::MAX, b"x"),
        ];
        let bytes: Vec<Vec<u8>> = keys
            .iter()
            .map(|key| {
                let mut out = Vec::new();
                key.encode_into(&mut out);
                out
            })
            .collect();
        assert!(keys.is_sorted() && bytes.is_sorted());
        for (key, bytes) in keys.iter().zip(&bytes) {
            assert_eq!(KeyRef::decode(bytes), Some(*key));
        }
    }

    #[test]
    fn hostile_keys_are_refused() {
        assert_eq!(KeyRef::decode(b"\x01\0\0\0\0\0\0\0"), None);
        assert_eq!(KeyRef::decode(b"\xee\0\0\0\0\0\0\0\x01a"), None);
        assert_eq!(KeyRef::decode(&[1; PREFIX_LEN + SUFFIX_MAX + 1]), None);
    }
}
