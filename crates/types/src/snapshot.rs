//! Snapshots: the tree of a directory as it was at one moment (`docs/design/metadata.md`,
//! "History"); their records, and the rows of table `history` that say what was different then.

use crate::clock::Nanos;
use crate::clone::{CLONES_MAX, CloneId, CloneInfo};
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::entry::Entry;
use crate::extent::{ExtentList, Released};
use crate::ids::InodeId;
pub use crate::ids::SnapshotId;
use crate::inode::{Data, Inode};
use crate::key::{Key, KeyRef, Table, record_number};
use crate::name::Name;
use crate::range::Range;

/// Newest version of a snapshot's record.
const RECORD_VERSION: u8 = 2;

/// Version of a record of a snapshot that no clone needs: programs that know no newer one go on
/// reading these.
const RECORD_WITHOUT_CLONES: u8 = 1;

/// Version of a row of table `history`.
const HISTORY_VERSION: u8 = 1;

/// Flag of a record: [`SnapshotInfo::removing`].
const REMOVING: u8 = 1;

/// Flag of a record: [`SnapshotInfo::cutting`].
const CUTTING: u8 = 2;

/// Flag of a record: [`SnapshotInfo::hidden`].
const HIDDEN: u8 = 4;

/// Name of the extended attribute of a directory that holds the schedule of its snapshots as text.
pub const SCHEDULE_XATTR: &[u8] = b"kestrel.snapshot-schedule";

/// What the name of a snapshot's record begins with; its number follows in 16 hexadecimal digits.
pub const RECORD_PREFIX: &[u8] = b"snapshot ";

/// Number of the share that counts what rows of table `history` refer to, of a volume of one node.
/// No worker has it: of several nodes those with the highest number have no worker 63. A member of
/// a cluster has another one: [`crate::placement::history_share_of`].
pub const HISTORY_SHARE: u16 = u16::MAX;

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
    /// Of a volume of several nodes: rows are kept for it, and not all nodes are known to do so. It
    /// is no snapshot yet, and is not listed. At members other than the one that leads snapshots
    /// this may still stand when it is one.
    pub cutting: bool,
    /// No user sees it: it is there for clones alone, and goes when none of them needs it; or for a
    /// comparison with the present, which holds it by a tag.
    pub hidden: bool,
    /// Tags that keep it from being removed, in order, at most [`HOLDS_MAX`].
    pub holds: Vec<Name>,
    /// Clones that are not finished and get their names from it, in the order of their numbers.
    pub clones: Vec<CloneInfo>,
}

/// Whether a snapshot may have this name: no `@` in it, which stands before names of snapshots in
/// `VOLUME@NAME`, and no `_` at its beginning, as names of snapshots of the directories above have.
pub fn is_snapshot_name(name: &Name) -> bool {
    let bytes = name.as_bytes();
    bytes.first() != Some(&b'_') && !bytes.contains(&b'@')
}

impl SnapshotInfo {
    /// Whether users see it.
    pub fn is_shown(&self) -> bool {
        !self.removing && !self.cutting && !self.hidden
    }

    /// Whether it was made for a comparison with the present: it is not listed, and is read by its
    /// number.
    pub fn is_compared(&self) -> bool {
        self.hidden && !self.holds.is_empty()
    }

    /// The same with a clone that needs it.
    #[must_use]
    pub fn with_clone(&self, clone: CloneInfo) -> Self {
        let mut with = self.clone();
        with.clones.push(clone);
        with
    }

    /// The same without clones that have ended; `None` if none of these needed it. One that was
    /// there for clones alone is in removal when none needs it any more.
    #[must_use]
    pub fn without_clones(&self, ended: &[CloneId]) -> Option<Self> {
        if !self.clones.iter().any(|clone| ended.contains(&clone.id)) {
            return None;
        }
        let mut without = self.clone();
        without.clones.retain(|known| !ended.contains(&known.id));
        without.removing |= without.hidden && without.clones.is_empty();
        Some(without)
    }

    /// Key of its record.
    pub fn key(&self) -> Key {
        Key::of_numbered_record(RECORD_PREFIX, self.id)
    }

    /// Its record's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let has_clones = !self.clones.is_empty();
        let mut out = vec![if has_clones { RECORD_VERSION } else { RECORD_WITHOUT_CLONES }];
        put_varint(&mut out, self.dir);
        put_string(&mut out, self.name.as_bytes());
        out.extend_from_slice(&self.created.to_be_bytes());
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let [removing, cutting] = [flag(self.removing, REMOVING), flag(self.cutting, CUTTING)];
        out.push(removing | cutting | flag(self.hidden, HIDDEN));
        put_varint(&mut out, self.holds.len() as u64);
        for tag in &self.holds {
            put_string(&mut out, tag.as_bytes());
        }
        if has_clones {
            put_varint(&mut out, self.clones.len() as u64);
            self.clones.iter().for_each(|clone| clone.encode_into(&mut out));
        }
        out.into()
    }

    /// Reads a record; `None` if `suffix`, a name of a record of table `system`, is not that of a
    /// snapshot's.
    ///
    /// # Errors
    /// If the record is truncated, out of bounds or of a newer version.
    pub fn decode(suffix: &[u8], row: &[u8]) -> Option<Result<Self, DecodeError>> {
        let digits = suffix.strip_prefix(RECORD_PREFIX)?;
        Some(Self::decode_row(digits, row))
    }

    fn decode_row(digits: &[u8], row: &[u8]) -> Result<Self, DecodeError> {
        let id = record_number(digits);
        let id = id.ok_or(DecodeError("the name of the record has no number"))?;
        Self::decode_record(id, row)
    }

    /// Reads what [`SnapshotInfo::encode`] wrote, of the snapshot with this number.
    ///
    /// # Errors
    /// If it is truncated, out of bounds or of a newer version.
    pub fn decode_record(id: SnapshotId, row: &[u8]) -> Result<Self, DecodeError> {
        let name = |reader: &mut Reader<'_>| {
            let bytes = reader.string(crate::name::NAME_MAX)?;
            Name::new(bytes).map_err(|_| DecodeError("not a valid name"))
        };
        let mut reader = Reader::new(row);
        let has_clones = match reader.u8()? {
            RECORD_VERSION => true,
            RECORD_WITHOUT_CLONES => false,
            _ => return Err(DecodeError("snapshot of an unknown format version")),
        };
        let (dir, of) = (reader.varint()?, name(&mut reader)?);
        let (created, flags) = (reader.i64()?, reader.u8()?);
        if flags & !(REMOVING | CUTTING | HIDDEN) != 0 {
            return Err(DecodeError("unknown flags"));
        }
        let count = reader.varint()?;
        if count > HOLDS_MAX as u64 {
            return Err(DecodeError("count above its limit"));
        }
        let holds = (0..count).map(|_| name(&mut reader)).collect::<Result<_, _>>()?;
        let count = if has_clones { reader.varint()? } else { 0 };
        if count > CLONES_MAX as u64 {
            return Err(DecodeError("count above its limit"));
        }
        let clones = (0..count).map(|_| CloneInfo::decode_from(&mut reader, id));
        let clones = clones.collect::<Result<_, _>>()?;
        reader.end()?;
        let [removing, cutting, hidden] = [REMOVING, CUTTING, HIDDEN].map(|bit| flags & bit != 0);
        Ok(Self { id, dir, name: of, created, removing, cutting, hidden, holds, clones })
    }
}

/// Whether changes of a table are kept for snapshots: those that reading a tree needs.
#[inline]
pub fn is_versioned(table: Table) -> bool {
    use Table::{
        Chunk, Clone, DirId, DirStat, Entry, Feed, History, Link, Moved, ObjStat, Quota, Reap,
        Subdir, Sweep, System, Txn, Xattr,
    };
    match table {
        Entry | DirStat | DirId | Subdir | Link | Chunk | Xattr | Sweep => true,
        System | ObjStat | Reap | Moved | Txn | History | Clone | Quota | Feed => false,
    }
}

/// Suffix of the rows of table `history` of one row, without the snapshot's number: rows of one id
/// and table lie together, in the order of their suffixes.
pub fn history_prefix(table: Table, suffix: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(suffix.len() + 10);
    out.push(table as u8);
    out.extend_from_slice(suffix);
    if has_names(table) {
        out.push(0);
    }
    out
}

/// Suffixes of the table are names, which have no NUL, of any length; of the others all have the
/// same.
fn has_names(table: Table) -> bool {
    matches!(table, Table::Entry | Table::Xattr)
}

/// Key of the row that says what another row was at a snapshot.
pub fn history_key(of: KeyRef<'_>, at: SnapshotId) -> Key {
    let mut suffix = history_prefix(of.table, of.suffix);
    suffix.extend_from_slice(&at.to_be_bytes());
    Key::new(Table::History, of.id, &suffix)
}

/// The row that a row of table `history` is about, and the snapshot; `None` if the key is none of
/// such a row.
pub fn decode_history_key(key: KeyRef<'_>) -> Option<(KeyRef<'_>, SnapshotId)> {
    let (table, rest) = key.suffix.split_first()?;
    let table = Table::from_u8(*table).filter(|table| is_versioned(*table))?;
    let (suffix, at) = rest.split_last_chunk::<8>()?;
    let suffix = match has_names(table) {
        true => suffix.strip_suffix(&[0]).filter(|name| !name.contains(&0))?,
        false => suffix,
    };
    let len = match table {
        Table::DirStat => Some(2),
        Table::Subdir | Table::Chunk | Table::Sweep => Some(8),
        Table::DirId | Table::Link => Some(0),
        _ => None,
    };
    let fits = key.table == Table::History && len.is_none_or(|len| len == suffix.len());
    fits.then(|| (KeyRef::new(table, key.id, suffix), u64::from_be_bytes(*at)))
}

/// Value of a row of table `history`: the row's then, or that there was none.
pub fn encode_history(old: Option<&[u8]>) -> Box<[u8]> {
    let mut out = vec![HISTORY_VERSION, u8::from(old.is_some())];
    out.extend_from_slice(old.unwrap_or_default());
    out.into()
}

/// Reads what [`encode_history`] wrote.
///
/// # Errors
/// If the bytes are truncated or of a newer version.
pub fn decode_history(bytes: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
    match bytes {
        [HISTORY_VERSION, 0] => Ok(None),
        [HISTORY_VERSION, 1, old @ ..] => Ok(Some(old)),
        [HISTORY_VERSION, ..] => Err(DecodeError("a history row that is neither there nor not")),
        _ => Err(DecodeError("history of an unknown format version")),
    }
}

/// Whether a row that says so was there at a snapshot, unless a row of table `history` says
/// otherwise: an inode with a later change was not, nor counts a file that was open and had no
/// name. What cannot be decoded was: a reader is to hear that it is damaged.
pub fn was_there(table: Table, row: &[u8], at: SnapshotId) -> bool {
    match table {
        Table::Entry => Inode::peek_change(row).is_none_or(|change| change <= at),
        Table::Link => match Inode::decode(&mut Reader::new(row)) {
            Ok(inode) => inode.change <= at && inode.nlink > 0,
            Err(_) => true,
        },
        _ => true,
    }
}

/// What a row of a [versioned](is_versioned) table refers to: what deleting it releases. Nothing if
/// it cannot be decoded.
pub fn references(table: Table, row: &[u8]) -> Vec<Released> {
    let mut reader = Reader::new(row);
    let inode = match table {
        Table::Chunk => {
            let list = ExtentList::decode(&mut reader);
            return list.map_or(Vec::new(), |list| list.references().collect());
        }
        Table::Link => Inode::decode(&mut reader).ok(),
        Table::Entry => match Entry::decode(row) {
            Ok(Entry::Inode(inode)) => Some(inode),
            _ => None,
        },
        _ => None,
    };
    match inode.map(|inode| inode.data) {
        Some(Data::Packed { range: range @ Range { len, .. }, .. }) => {
            vec![Released { range, bytes: len }]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Kind;
    use crate::key::PREFIX_LEN;

    fn name(text: &[u8]) -> Name {
        Name::new(text).unwrap()
    }

    /// What names of snapshots lack besides what all names lack.
    #[test]
    fn names_of_snapshots() {
        for (text, good) in [("a", true), ("a_b", true), ("_a", false), ("a@", false)] {
            assert_eq!(is_snapshot_name(&name(text.as_bytes())), good, "{text}");
        }
    }

    /// A record comes back as it was; cut or of another form it does not.
    #[test]
    fn records_of_snapshots() {
        let info = SnapshotInfo {
            id: 0x0123_4567_89ab_cdef,
            dir: 77,
            name: name(b"monday"),
            created: -5,
            removing: true,
            cutting: false,
            hidden: true,
            holds: vec![name(b"a"), name(&[b'x'; 255])],
            clones: Vec::new(),
        };
        assert_eq!(info.encode()[0], 1);
        let clone = CloneInfo {
            id: u64::MAX,
            stamp: 1 << 60,
            dir: 300,
            source: 77,
            snapshot: info.id,
            created: -9,
            uid: u32::MAX,
        };
        let cloned = SnapshotInfo { clones: vec![clone, clone], ..info.clone() };
        let row = cloned.encode();
        for len in 0..row.len() {
            assert!(SnapshotInfo::decode_record(info.id, &row[..len]).is_err());
        }
        assert_eq!(SnapshotInfo::decode_record(info.id, &row), Ok(cloned));
        let cut = SnapshotInfo { removing: false, cutting: true, ..info.clone() };
        assert_eq!(SnapshotInfo::decode(&cut.key().suffix, &cut.encode()), Some(Ok(cut)));
        let (key, row) = (info.key(), info.encode());
        assert_eq!(&*key.suffix, b"snapshot 0123456789abcdef");
        assert_eq!(SnapshotInfo::decode(&key.suffix, &row), Some(Ok(info)));
        assert_eq!(SnapshotInfo::decode(b"clock", &row), None);
        for suffix in [&b"snapshot "[..], b"snapshot 123", b"snapshot 0123456789ABCDEF"] {
            assert!(SnapshotInfo::decode(suffix, &row).is_some_and(|read| read.is_err()));
        }
        for len in 0..row.len() {
            assert!(SnapshotInfo::decode(&key.suffix, &row[..len]).is_some_and(|it| it.is_err()));
        }
    }

    /// Keys come back as they were; those of one directory are in the order of its names, and
    /// those of one row in the order of the snapshots.
    #[test]
    fn keys_of_history_rows() {
        let names: [&[u8]; 5] = [b"a", b"a\x01", b"ab", b"b", &[0xff; 255]];
        let mut keys = Vec::new();
        for name in names {
            let of = KeyRef::new(Table::Entry, 9, name);
            for at in [1, 2, u64::MAX] {
                let key = history_key(of, at);
                assert_eq!(decode_history_key(key.borrow()), Some((of, at)));
                keys.push(key);
            }
        }
        for (table, suffix) in [(Table::Chunk, &[0; 8][..]), (Table::DirId, b"")] {
            let of = KeyRef::new(table, 9, suffix);
            let key = history_key(of, 7);
            assert_eq!(decode_history_key(key.borrow()), Some((of, 7)));
            keys.push(key);
        }
        let longest = history_key(KeyRef::new(Table::Xattr, 1, &[b'x'; 255]), 1);
        assert!(longest.suffix.len() + PREFIX_LEN <= crate::key::SUFFIX_MAX);
        keys.sort();
        assert!(keys[..2].iter().all(|key| key.suffix[0] == Table::Entry as u8));
        let entries = keys.iter().filter(|key| key.suffix[0] == Table::Entry as u8);
        let order: Vec<Vec<u8>> = entries
            .map(|key| decode_history_key(key.borrow()).unwrap().0.suffix.to_vec())
            .collect();
        assert!(order.is_sorted() && order.len() == 15);
        for suffix in [&b""[..], b"\x01a\0", b"\x08aa\0\0\0\0\0\0\0\0", b"\x05x\0\0\0\0\0\0\0\0"] {
            assert_eq!(decode_history_key(KeyRef::new(Table::History, 1, suffix)), None);
        }
    }

    /// An inode says when it changed; all other rows are taken as they are.
    #[test]
    fn rows_that_were_there() {
        let mut inode = Inode::new(20, Kind::File, 5, 100);
        let entry = Entry::Inode(inode.clone()).encode();
        assert_eq!(Inode::peek_change(&entry), Some(100));
        assert!(!was_there(Table::Entry, &entry, 99) && was_there(Table::Entry, &entry, 100));
        let link = Entry::Link { ino: 20, kind: Kind::File }.encode();
        assert!(was_there(Table::Entry, &link, 1) && was_there(Table::Entry, b"damaged", 1));
        let row = |inode: &Inode| {
            let mut out = Vec::new();
            inode.encode_into(&mut out);
            out
        };
        assert!(was_there(Table::Link, &row(&inode), 100));
        inode.nlink = 0;
        assert!(!was_there(Table::Link, &row(&inode), 100));
        assert!(was_there(Table::Chunk, b"", 0));
    }

    /// Values come back as they were.
    #[test]
    fn values_of_history_rows() {
        for old in [None, Some(&b""[..]), Some(b"row")] {
            assert_eq!(decode_history(&encode_history(old)), Ok(old));
        }
        for bytes in [&b""[..], b"\x01", b"\x02\0", b"\x01\x02", b"\x01\0x"] {
            assert!(decode_history(bytes).is_err());
        }
    }
}
