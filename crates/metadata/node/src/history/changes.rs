//! What may differ between two moments of a volume, by the rows of history.
//!
//! Let A be the older moment and B the newer one. A row that differs has a history row from A on,
//! below B, unless it was not there at A: what was made after A leaves no history. So:
//!
//! - *Names that A has* and that have changed or gone are those of the history rows of table
//!   `entry` from A on, below B.
//! - *Names that only B has* are as many as the directory has entries more at B than at A, and as
//!   have gone. Only where that is not zero, the directory is read, for inodes that changed after
//!   A: among its rows of now, and among its names with history from B on. Its figures leave
//!   history whenever a name comes or goes; so does a name that goes.
//! - *Directories* that were moved leave history in table `dirid`, and those with other times in
//!   table `dirstat`.
//! - *Files with several names* leave history in table `link`, under their numbers. No row leads
//!   from there to their names, so these are looked for among all names, if any such file changed.
//!
//! A page reads some history rows; what it found is then judged by the rows at both moments, which
//! for snapshots never change. History rows may move to an earlier snapshot meanwhile, when one is
//! removed, but never below a live one: so none is missed.

use std::ops::ControlFlow;

use kestrel_engine::{Engine, EngineError};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::request::DirEntry;
use kestrel_types::snapshot::{SnapshotId, decode_history_key, history_prefix};
use kestrel_types::snapshot_changes::{ChangedName, HistoryCursor};

use super::damaged;
use super::known::KnownSnapshots;

/// Most names that a page finds by history, and most that it finds to be new.
const PAGE_NAMES: usize = 1024;

/// A page reads so many history rows for each name that it may find, or more if they are all of one
/// row.
const NAME_ROWS: usize = 8;

/// For each name that a page may find new it reads so many entries of a directory.
const GROWN_ROWS: usize = 16;

/// Times that names without their files are read before they are taken for damaged.
const READS_MAX: usize = 8;

// First byte of a cursor.
const HISTORY: u8 = 1;
const GROWN: u8 = 2;
const FILES: u8 = 3;

/// Where a listing of changes goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cursor {
    /// With these history rows.
    History {
        /// Number of the row that they are about.
        id: InodeId,
        /// What was found before of the same number.
        found: Found,
        /// The first history row has this suffix, or begins with it, or is a later one.
        suffix: Box<[u8]>,
    },
    /// With the names that are new in a directory, behind this name.
    Grown(InodeId, Name),
    /// With names of files, behind this name of a directory.
    Files(InodeId, Name),
}

/// What history rows said of a directory so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// It was moved, or its names or times have changed.
    pub is_dir: bool,
    /// A name has gone.
    pub has_gone: bool,
}

/// What history rows of one number say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// The number.
    pub id: InodeId,
    /// Names in the directory of this number, in order.
    pub names: Vec<Name>,
    /// What was found.
    pub found: Found,
    /// There is history of the file of this number with several names.
    pub is_link: bool,
    /// No history row of this number follows.
    pub is_complete: bool,
}

impl Cursor {
    /// The beginning.
    pub fn start() -> Self {
        Self::History { id: 0, found: Found::default(), suffix: Box::default() }
    }

    /// Behind all history rows of a number.
    pub fn behind(id: InodeId) -> Option<Self> {
        let (found, suffix) = Default::default();
        Some(Self::History { id: id.checked_add(1)?, found, suffix })
    }

    /// Its bytes.
    pub fn encode(&self) -> HistoryCursor {
        let (tag, id, flags, rest) = match self {
            Self::History { id, found, suffix } => {
                let flags = u8::from(found.is_dir) | u8::from(found.has_gone) << 1;
                (HISTORY, id, flags, &**suffix)
            }
            Self::Grown(dir, name) => (GROWN, dir, 0, name.as_bytes()),
            Self::Files(dir, name) => (FILES, dir, 0, name.as_bytes()),
        };
        [&[tag][..], &id.to_be_bytes(), &[flags], rest].concat().into()
    }

    /// Reads what [`Cursor::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (id, rest) = rest.split_first_chunk::<8>()?;
        let (flags, rest) = rest.split_first()?;
        let (id, name) = (u64::from_be_bytes(*id), || Name::new(rest).ok());
        match (*tag, *flags) {
            (HISTORY, flags) if flags & !3 == 0 => {
                let found = Found { is_dir: flags & 1 != 0, has_gone: flags & 2 != 0 };
                Some(Self::History { id, found, suffix: rest.into() })
            }
            (GROWN, 0) => Some(Self::Grown(id, name()?)),
            (FILES, 0) => Some(Self::Files(id, name()?)),
            _ => None,
        }
    }
}

/// The two moments: the older snapshot, and the newer one; `None`: now.
pub type Moments = (SnapshotId, Option<SnapshotId>);

/// What history rows say, by number, and where the next page goes on, if there are more.
pub type GroupsPage = (Vec<Group>, Option<Cursor>);

/// Names, and the one behind which the next page goes on, if there are more.
pub type NamesPage = (Vec<Name>, Option<Name>);

/// Files, each with its directory, and the directory and name that were read last, if there are
/// more.
pub type LocatedPage = (Vec<(InodeId, DirEntry)>, Option<(InodeId, Name)>);

/// Tells what may have changed between two moments.
pub trait ChangeSource {
    /// As [`groups`], from a place on.
    ///
    /// # Errors
    /// The engine's.
    fn groups(&self, from: (InodeId, Found, &[u8]), limit: usize) -> FsResult<GroupsPage>;

    /// As [`grown`].
    ///
    /// # Errors
    /// The engine's.
    fn grown(&self, dir: InodeId, after: Option<&Name>, limit: usize) -> FsResult<NamesPage>;

    /// Which of these files are among the next names of the newer moment, as the operation Locate
    /// says.
    ///
    /// # Errors
    /// The engine's.
    fn located(&self, files: &[InodeId], after: Option<&(InodeId, Name)>) -> FsResult<LocatedPage>;
}

/// What history rows from `older` on, below `newer`, say, by number; and where the next page goes
/// on, if there are more.
///
/// # Errors
/// The engine's.
pub fn groups(
    engine: &dyn Engine,
    snapshots: &KnownSnapshots,
    (older, newer): Moments,
    (id, found, suffix): (InodeId, Found, &[u8]),
    limit: usize,
) -> Result<GroupsPage, EngineError> {
    let within = |at: SnapshotId| at >= older && newer.is_none_or(|newer| at < newer);
    let (mut groups, mut next): (Vec<Group>, _) = (Vec::new(), None);
    let (mut seen, mut names, names_max) = (0, 0, limit.clamp(1, PAGE_NAMES));
    // The row of the last history row.
    let mut last: (InodeId, Box<[u8]>) = Default::default();
    if found != Found::default() || !suffix.is_empty() {
        groups.push(Group { id, found, ..Group::default() });
    }
    let _gate = snapshots.gate.read();
    let from = KeyRef::new(Table::History, id, suffix);
    engine.scan_table(Table::History, Some(from), &mut |key, _| {
        // A key that no row has is for `kestrel fsck`.
        let Some((of, at)) = decode_history_key(key) else { return ControlFlow::Continue(()) };
        let is_new = last.0 != key.id || !key.suffix.starts_with(&last.1);
        if is_new && (seen >= names_max * NAME_ROWS || names >= names_max) {
            next = Some((key.id, history_prefix(of.table, of.suffix)));
            return ControlFlow::Break(());
        }
        seen += 1;
        if is_new {
            last = (key.id, history_prefix(of.table, of.suffix).into());
        }
        if !within(at)
            || !matches!(of.table, Table::Entry | Table::DirStat | Table::DirId | Table::Link)
        {
            return ControlFlow::Continue(());
        }
        if groups.last().is_none_or(|group| group.id != key.id) {
            groups.push(Group { id: key.id, ..Group::default() });
        }
        let Some(group) = groups.last_mut() else { return ControlFlow::Continue(()) };
        match of.table {
            Table::Entry => {
                // The root lies under no name.
                if let Ok(name) = Name::new(of.suffix)
                    && group.names.last() != Some(&name)
                {
                    group.names.push(name);
                    names += 1;
                }
            }
            Table::Link => group.is_link = true,
            _ => group.found.is_dir = true,
        }
        ControlFlow::Continue(())
    })?;
    for group in &mut groups {
        group.is_complete = next.as_ref().is_none_or(|(id, _)| *id != group.id);
    }
    let cursor = next.map(|(id, suffix)| {
        // What the page found of that number goes along.
        let same = groups.last().filter(|group| group.id == id);
        let found = same.map(|group| group.found).unwrap_or_default();
        Cursor::History { id, found, suffix: suffix.into() }
    });
    Ok((groups, cursor))
}

/// Names of a directory at `newer`, or now, that it may not have had at `older`; and the name
/// behind which to go on, if there are more.
///
/// # Errors
/// The engine's.
pub fn grown(
    engine: &dyn Engine,
    snapshots: &KnownSnapshots,
    (dir, after): (InodeId, Option<&Name>),
    (older, newer): Moments,
    limit: usize,
) -> Result<NamesPage, EngineError> {
    let (mut names, mut seen, mut last) = (Vec::new(), 0, None);
    let names_max = limit.clamp(1, PAGE_NAMES);
    let is_new = |change: u64| change > older && newer.is_none_or(|newer| change <= newer);
    // Before history: a row that changes in between has left some by then.
    engine.scan(Table::Entry, dir, after.map(Name::as_bytes), &mut |name, row, _| {
        let Ok(name) = Name::new(name) else { return ControlFlow::Continue(()) };
        seen += 1;
        let is_full = seen >= names_max * GROWN_ROWS;
        let is_new = Inode::peek_change(row).is_some_and(is_new);
        if is_new {
            names.push(name.clone());
        }
        if !is_full && names.len() < names_max {
            return ControlFlow::Continue(());
        }
        last = Some(name);
        ControlFlow::Break(())
    })?;
    if let Some(newer) = newer {
        let (known, cut) = changed_after(engine, snapshots, (dir, after), newer, names_max)?;
        names.extend(known);
        last = [last, cut].into_iter().flatten().min();
        names.retain(|name| last.as_ref().is_none_or(|last| name <= last));
        names.sort_unstable();
        names.dedup();
    }
    Ok((names, last))
}

/// Names of a directory of which a row has changed after a snapshot; and the last one, if there are
/// more.
fn changed_after(
    engine: &dyn Engine,
    snapshots: &KnownSnapshots,
    (dir, after): (InodeId, Option<&Name>),
    at: SnapshotId,
    names_max: usize,
) -> Result<NamesPage, EngineError> {
    let from = match after {
        None => vec![Table::Entry as u8],
        Some(after) => [&history_prefix(Table::Entry, after.as_bytes())[..], &[0xff; 8]].concat(),
    };
    let (mut names, mut seen, mut last): (Vec<Name>, usize, Option<Name>) = Default::default();
    let mut is_cut = false;
    let _gate = snapshots.gate.read();
    engine.scan(Table::History, dir, Some(&from), &mut |suffix, _, _| {
        let Some((of, version)) = decode_history_key(KeyRef::new(Table::History, dir, suffix))
        else {
            return ControlFlow::Continue(());
        };
        if of.table != Table::Entry {
            return ControlFlow::Break(());
        }
        let Ok(name) = Name::new(of.suffix) else { return ControlFlow::Continue(()) };
        seen += 1;
        let is_other = last.as_ref() != Some(&name);
        if is_other && (seen > names_max * NAME_ROWS || names.len() >= names_max) {
            is_cut = true;
            return ControlFlow::Break(());
        }
        if version >= at && names.last() != Some(&name) {
            names.push(name.clone());
        }
        last = Some(name);
        ControlFlow::Continue(())
    })?;
    Ok((names, last.filter(|_| is_cut)))
}

/// What names of a directory stand for at a moment, without content; of a directory without its
/// figures.
///
/// # Errors
/// The engine's; `Corrupt` for damaged rows.
pub fn inodes(
    engine: &dyn Engine,
    dir: InodeId,
    names: &[Name],
) -> Result<Vec<Option<Box<Inode>>>, EngineError> {
    // At present a name may have got another row between the two reads.
    for _ in 0..READS_MAX {
        if let Some(found) = read_inodes(engine, dir, names)? {
            return Ok(found);
        }
    }
    Err(EngineError::Corrupt(format!(
        "metadata: a name in directory {dir} leads to no file; run kestrel fsck"
    )))
}

/// The same, or nothing if a name led to a file that was not there.
fn read_inodes(
    engine: &dyn Engine,
    dir: InodeId,
    names: &[Name],
) -> Result<Option<Vec<Option<Box<Inode>>>>, EngineError> {
    let keys: Vec<KeyRef<'_>> =
        names.iter().map(|name| KeyRef::new(Table::Entry, dir, name.as_bytes())).collect();
    let (mut found, mut links, mut damage) = (vec![None; names.len()], Vec::new(), None);
    engine.get_many(&keys, &mut |index, row| match row.value.map(Entry::decode) {
        None => {}
        Some(Ok(Entry::Inode(inode))) => found[index] = Some(without_content(inode)),
        Some(Ok(Entry::Link { ino, .. })) => links.push((index, ino)),
        Some(Err(why)) => damage = Some(damaged("entry", &why)),
    })?;
    let keys: Vec<KeyRef<'_>> =
        links.iter().map(|(_, ino)| KeyRef::new(Table::Link, *ino, b"")).collect();
    let mut is_whole = true;
    engine.get_many(&keys, &mut |link, row| match row
        .value
        .map(|row| Inode::decode(&mut Reader::new(row)))
    {
        None => is_whole = false,
        Some(Ok(inode)) => found[links[link].0] = Some(without_content(inode)),
        Some(Err(why)) => damage = Some(damaged("link", &why)),
    })?;
    match damage {
        Some(why) => Err(why),
        None => Ok(is_whole.then_some(found)),
    }
}

/// A file with several names at a moment, if it was there.
///
/// # Errors
/// As [`inodes`].
pub fn link(engine: &dyn Engine, ino: InodeId) -> Result<Option<Inode>, EngineError> {
    let mut found = Ok(None);
    engine.get_many(&[KeyRef::new(Table::Link, ino, b"")], &mut |_, row| {
        let row = row.value.map(|row| Inode::decode(&mut Reader::new(row)));
        found = row.transpose().map_err(|why| damaged("link", &why));
    })?;
    found
}

/// Pairs of what names stand for at both moments, as far as they stand for anything.
pub fn pairs(
    names: Vec<Name>,
    older: Vec<Option<Box<Inode>>>,
    newer: Vec<Option<Box<Inode>>>,
) -> Vec<ChangedName> {
    let all = names.into_iter().zip(older).zip(newer);
    all.map(|((name, older), newer)| ChangedName { name, older, newer })
        .filter(|pair| pair.older.is_some() || pair.newer.is_some())
        .collect()
}

/// Whether a file with several names may have changed between two moments: its access time alone is
/// no change.
pub fn has_changed(older: &Inode, newer: &Inode) -> bool {
    let plain = |inode: &Inode| Inode { atime: 0, change: 0, ..inode.clone() };
    plain(older) != plain(newer)
}

fn without_content(mut inode: Inode) -> Box<Inode> {
    inode.data = match inode.data {
        Data::None => Data::None,
        // That of a directory is its policy.
        _ if inode.kind == Kind::Dir => Data::None,
        _ => Data::Chunked,
    };
    Box::new(inode)
}

/// A row of table `entry` or `link` without the content of its file, another one as it is.
///
/// # Errors
/// For a damaged row.
pub fn row_without_content(table: Table, row: &[u8]) -> Result<Box<[u8]>, DecodeError> {
    let strip = |inode: Inode| match inode.kind {
        Kind::File => *without_content(inode),
        _ => inode,
    };
    match table {
        Table::Entry => match Entry::decode(row)? {
            Entry::Inode(inode) => Ok(Entry::Inode(strip(inode)).encode()),
            link => Ok(link.encode()),
        },
        Table::Link => {
            let mut out = Vec::new();
            strip(Inode::decode(&mut Reader::new(row))?).encode_into(&mut out);
            Ok(out.into())
        }
        _ => Ok(row.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cursors come back as they were; other bytes are none.
    #[test]
    fn cursors_of_changes() {
        let name = Name::new(&[b'x'; 255]).unwrap();
        let suffix = history_prefix(Table::Xattr, name.as_bytes()).into();
        let found = Found { is_dir: true, has_gone: true };
        for cursor in [
            Cursor::start(),
            Cursor::History { id: 7, found, suffix },
            Cursor::Grown(u64::MAX, name.clone()),
            Cursor::Files(9, name),
        ] {
            let bytes = cursor.encode();
            assert!(bytes.len() <= kestrel_types::snapshot_changes::CURSOR_BYTES_MAX);
            assert_eq!(Cursor::decode(&bytes), Some(cursor));
        }
        for bytes in [&b""[..], &[1; 9], &[4; 20], &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 11]] {
            let read = Cursor::decode(bytes);
            assert!(read.is_none() || bytes[0] == HISTORY && bytes[9] & !3 == 0, "{bytes:?}");
        }
        assert_eq!(Cursor::behind(u64::MAX), None);
    }
}
