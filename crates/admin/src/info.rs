//! What is behind a path: a file's layout, a directory's sums. Reads a handful of rows, also on a
//! volume in use.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use kestrel_engine::{Engine, EngineError};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::extent::{CHUNK_BYTES, Extent, ExtentList, Source};
use kestrel_types::ids::{InodeId, ObjectId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::range::Range;
use kestrel_types::stat::{DirStat, ObjStat};
use serde_json::{Value, json};

use crate::rows::{DirId, Rows, get};

/// Extents listed; files may have more, which are counted.
pub const EXTENTS_LISTED_MAX: usize = 4096;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InfoError {
    /// The engine failed.
    Engine(EngineError),
    /// A row is damaged.
    Damaged(DecodeError),
    /// There is nothing of this name.
    NotFound,
    /// A tree has more directories than are counted.
    TooLarge,
}

impl std::fmt::Display for InfoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InfoError::Engine(error) => write!(f, "metadata engine: {error}"),
            InfoError::Damaged(error) => {
                write!(f, "its record is damaged: {error}; run `kestrel fsck`")
            }
            InfoError::NotFound => f.write_str("no such entry"),
            InfoError::TooLarge => f.write_str(
                "the tree has more than 50 million directories: name a smaller one, or run \
                 `kestrel fsck` if it cannot be so large",
            ),
        }
    }
}

impl std::error::Error for InfoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Damaged(error) => Some(error),
            Self::NotFound | Self::TooLarge => None,
        }
    }
}

impl From<EngineError> for InfoError {
    fn from(error: EngineError) -> Self {
        InfoError::Engine(error)
    }
}

impl From<DecodeError> for InfoError {
    fn from(error: DecodeError) -> Self {
        InfoError::Damaged(error)
    }
}

/// The inode behind a name.
///
/// # Errors
/// If there is none or it cannot be read.
pub fn find(engine: &dyn Engine, parent: InodeId, name: &[u8]) -> Result<Inode, InfoError> {
    let bytes = get(engine, Key::new(Table::Entry, parent, name))?.ok_or(InfoError::NotFound)?;
    match Entry::decode(&bytes)? {
        Entry::Inode(inode) => Ok(inode),
        Entry::Link { ino, .. } => {
            let bytes = get(engine, Key::new(Table::Link, ino, &[]))?.ok_or(InfoError::NotFound)?;
            Ok(Inode::decode(&mut Reader::new(&bytes))?)
        }
    }
}

/// The inode of a directory.
///
/// # Errors
/// If there is none or it cannot be read.
pub fn find_dir(engine: &dyn Engine, dir: InodeId) -> Result<Inode, InfoError> {
    if dir == ROOT {
        return find(engine, 0, b"");
    }
    let bytes = get(engine, Key::new(Table::DirId, dir, &[]))?.ok_or(InfoError::NotFound)?;
    let dir_id = DirId::decode(&bytes)?;
    find(engine, dir_id.parent, &dir_id.name)
}

/// The inode at a path below the root, `/` between names; symbolic links are not followed.
///
/// # Errors
/// If there is none or it cannot be read.
pub fn find_path(engine: &dyn Engine, path: &[u8]) -> Result<Inode, InfoError> {
    let mut inode = find_dir(engine, ROOT)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        inode = find(engine, inode.ino, name)?;
    }
    Ok(inode)
}

/// Bytes of an object that files refer to by its account: the sum over its shares. A share that
/// cannot be decoded counts as one byte, so that the object is not taken for unused.
///
/// # Errors
/// Those of the engine.
pub fn referenced_bytes(engine: &dyn Engine, object: ObjectId) -> Result<i64, EngineError> {
    let mut sum = 0i64;
    engine.scan(Table::ObjStat, object, None, &mut |_, row, _| {
        sum = sum.saturating_add(ObjStat::decode(row).map_or(1, |share| share.referenced));
        ControlFlow::Continue(())
    })?;
    Ok(sum)
}

/// Sums of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeSums {
    /// Entries that are not directories, in the whole tree.
    pub files: u64,
    /// Directories below, the top left out.
    pub dirs: u64,
    /// Sizes of the files that have one name.
    pub bytes: u64,
    /// Entries of the top itself.
    pub children: u64,
}

/// The shares of a directory that lie here, added up; `visit_child` is called for the directories
/// in it that are here.
///
/// # Errors
/// Those of the engine; damaged shares.
pub fn dir_sums(
    engine: &dyn Engine,
    dir: InodeId,
    visit_child: &mut dyn FnMut(InodeId),
) -> Result<DirStat, InfoError> {
    let mut total = DirStat::default();
    let mut damaged = None;
    engine.scan(Table::DirStat, dir, None, &mut |_, value, _| match DirStat::decode(value) {
        Ok(share) => {
            total.merge(&share);
            ControlFlow::Continue(())
        }
        Err(error) => {
            damaged = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = damaged {
        return Err(error.into());
    }
    engine.scan(Table::Subdir, dir, None, &mut |suffix, _, _| {
        if let Ok(child) = <[u8; 8]>::try_from(suffix) {
            visit_child(u64::from_be_bytes(child));
        }
        ControlFlow::Continue(())
    })?;
    Ok(total)
}

impl TreeSums {
    /// Adds what the shares of a directory, or of several, come to.
    pub fn add(&mut self, [children, subdirs, bytes]: [i64; 3]) {
        let positive = |value: i64| u64::try_from(value).unwrap_or(0);
        self.files += positive(children - subdirs);
        self.dirs += positive(subdirs);
        self.bytes = self.bytes.wrapping_add(positive(bytes));
    }
}

/// Adds a directory's tree up from the shares of its directories: reads a few rows a directory and
/// none of a file.
///
/// # Errors
/// Those of the engine; damaged shares.
pub fn tree_sums(engine: &dyn Engine, top: InodeId) -> Result<TreeSums, InfoError> {
    let mut sums = TreeSums::default();
    let mut todo = vec![top];
    while let Some(dir) = todo.pop() {
        let total = dir_sums(engine, dir, &mut |child| todo.push(child))?;
        sums.add([total.children, total.subdirs, total.bytes]);
        if dir == top {
            sums.children = u64::try_from(total.children).unwrap_or(0);
        }
    }
    Ok(sums)
}

/// One node's part of the figures of a volume that several share. Parts may be below nought, their
/// sum is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSums {
    /// Entries that are not directories.
    pub files: i64,
    /// Directories without the root.
    pub dirs: i64,
    /// Sizes of the files that have one name.
    pub bytes: i64,
    /// Bytes of objects that are referred to.
    pub referenced_bytes: i64,
}

/// Adds up the shares that lie here.
///
/// # Errors
/// Those of the engine; damaged shares.
pub fn part_sums(engine: &dyn Engine) -> Result<PartSums, InfoError> {
    let mut sums = PartSums::default();
    for row in Rows::new(engine, Table::DirStat) {
        let stat = DirStat::decode(&row?.1)?;
        sums.files += stat.children - stat.subdirs;
        sums.dirs += stat.subdirs;
        sums.bytes = sums.bytes.wrapping_add(stat.bytes);
    }
    for row in Rows::new(engine, Table::ObjStat) {
        sums.referenced_bytes += ObjStat::decode(&row?.1)?.referenced;
    }
    Ok(sums)
}

/// What metadata refers to in the block store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectSums {
    /// Objects referred to.
    pub objects: u64,
    /// Bytes of them that are referred to; what several files share counts for each.
    pub referenced_bytes: u64,
}

/// Adds the accounts of all objects up.
///
/// # Errors
/// Those of the engine; damaged accounts.
pub fn object_sums(engine: &dyn Engine) -> Result<ObjectSums, InfoError> {
    let mut sums = ObjectSums::default();
    let mut rows = Rows::new(engine, Table::ObjStat);
    while let Some(object) = rows.peek()?.map(|(key, _)| key.id) {
        let mut referenced = 0;
        while rows.peek()?.is_some_and(|(key, _)| key.id == object) {
            let Some(row) = rows.next() else { break };
            referenced += ObjStat::decode(&row?.1)?.referenced;
        }
        sums.objects += u64::from(referenced > 0);
        sums.referenced_bytes += u64::try_from(referenced).unwrap_or(0);
    }
    Ok(sums)
}

/// Everything about an inode, as JSON.
///
/// # Errors
/// Those of the engine; damaged rows.
pub fn describe(engine: &dyn Engine, inode: &Inode) -> Result<Value, InfoError> {
    describe_by(engine, inode, &mut |dir| tree_sums(engine, dir))
}

/// The same, where `tree` adds the tree of a directory up.
///
/// # Errors
/// As for [`describe`], and those of `tree`.
pub fn describe_by(
    engine: &dyn Engine,
    inode: &Inode,
    tree: &mut dyn FnMut(InodeId) -> Result<TreeSums, InfoError>,
) -> Result<Value, InfoError> {
    let mut out = describe_alone(inode);
    if inode.kind == Kind::Dir {
        let sums = tree(inode.ino)?;
        out["tree"] = json!({
            "files": sums.files, "directories": sums.dirs, "bytes": sums.bytes,
            "entries_here": sums.children,
        });
    } else if inode.data == Data::Chunked {
        let mut layout = LayoutSums::default();
        scan_chunks(engine, inode.ino, &mut layout)?;
        layout.add_to(&mut out);
    }
    Ok(out)
}

/// The inode itself as JSON: without the tree of a directory, and without extents that lie in
/// chunks ([`LayoutSums`]).
pub fn describe_alone(inode: &Inode) -> Value {
    let mut out = json!({
        "ino": inode.ino,
        "kind": format!("{:?}", inode.kind).to_lowercase(),
        "size": inode.size,
        "change": inode.change,
        "data_change": inode.data_change,
    });
    match &inode.data {
        _ if inode.kind == Kind::Dir => {}
        Data::None => out["layout"] = "none".into(),
        Data::Inline(bytes) => {
            out["layout"] = "inline".into();
            out["inline_bytes"] = bytes.len().into();
        }
        Data::Packed { range, visible } => {
            out["layout"] = "packed".into();
            out["extents"] = json!([extent(0, *visible, range, 0)]);
            out["extents_total"] = 1.into();
            out["objects"] = 1.into();
            out["stored_bytes"] = (*visible).into();
        }
        Data::Chunked => out["layout"] = "chunked".into(),
    }
    out
}

/// The extents of a file in chunks, added up chunk by chunk.
#[derive(Debug, Default)]
pub struct LayoutSums {
    extents: Vec<Value>,
    total: u64,
    stored: u64,
    chunks: u64,
    objects: BTreeSet<ObjectId>,
}

impl LayoutSums {
    /// Adds a chunk.
    pub fn add(&mut self, number: u64, extents: &[Extent]) {
        self.chunks += 1;
        for found in extents {
            self.total += 1;
            self.stored += u64::from(found.len);
            let Source::Stored { range, skip } = found.source else { continue };
            self.objects.insert(range.object);
            if self.extents.len() < EXTENTS_LISTED_MAX {
                let at = number
                    .saturating_mul(u64::from(CHUNK_BYTES))
                    .saturating_add(u64::from(found.pos));
                self.extents.push(extent(at, found.len, &range, skip));
            }
        }
    }

    /// Adds them to the JSON of the inode.
    pub fn add_to(self, out: &mut Value) {
        out["chunks"] = self.chunks.into();
        out["extents"] = self.extents.into();
        out["extents_total"] = self.total.into();
        out["objects"] = self.objects.len().into();
        out["stored_bytes"] = self.stored.into();
    }
}

fn scan_chunks(
    engine: &dyn Engine,
    ino: InodeId,
    layout: &mut LayoutSums,
) -> Result<(), InfoError> {
    let mut damaged = None;
    engine.scan(Table::Chunk, ino, None, &mut |suffix, value, _| {
        let number = <[u8; 8]>::try_from(suffix).map_or(0, u64::from_be_bytes);
        match ExtentList::decode(&mut Reader::new(value)) {
            Ok(list) => layout.add(number, list.extents()),
            Err(error) => {
                damaged = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    damaged.map_or(Ok(()), |error| Err(error.into()))
}

fn extent(at: u64, len: u32, range: &Range, skip: u32) -> Value {
    json!({
        "file_offset": at, "len": len, "object": range.object, "object_offset": range.offset,
        "range_len": range.len,
        "skip": skip,
    })
}
