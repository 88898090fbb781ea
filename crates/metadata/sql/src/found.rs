//! The entries that a query selects, of one version after the other.

use std::borrow::Cow;
use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::Bytes;
use kestrel_meta::rows::share_suffix;
use kestrel_meta::view::View;
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::Table;
use kestrel_types::stat::DirStat;

use crate::catalog::Catalog;
use crate::plan::{Selection, TreePart};
use crate::version::{OpenVersion, StoredEntry, behind_table, encoded};
use crate::walk::{CurrentEntry, KeyScan, TreeWalk};

/// What of an entry is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Its place alone.
    Name,
    /// Number and type.
    Number,
    /// The inode, but for the number of links of a directory.
    Inode,
    /// All of it.
    Links,
}

/// The way through one version.
enum Way {
    /// To what one look-up has found.
    Single(Option<StoredEntry>),
    Walk(TreeWalk),
    Scan(KeyScan),
}

/// See the module's header.
pub struct FoundEntries {
    catalog: Arc<Catalog>,
    part: TreePart,
    detail: Detail,
    /// Paths are asked for.
    has_paths: bool,
    /// Only entries with extended attributes matter.
    wants_xattrs: bool,
    /// Versions that are left, the next one last.
    names: Vec<String>,
    at: CurrentEntry,
    version: Option<Arc<OpenVersion>>,
    way: Option<Way>,
    number: Option<(InodeId, Kind)>,
    inode: Option<Inode>,
}

impl FoundEntries {
    /// Nothing is selected yet.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self {
            catalog,
            part: TreePart::Path(Vec::new()),
            detail: Detail::Name,
            has_paths: false,
            wants_xattrs: false,
            names: Vec::new(),
            at: CurrentEntry::default(),
            version: None,
            way: None,
            number: None,
            inode: None,
        }
    }

    /// Begins with what is selected; [`FoundEntries::advance`] comes next. Without `has_paths`
    /// paths are found, but slowly.
    pub fn begin(
        &mut self,
        selection: Selection,
        detail: Detail,
        has_paths: bool,
    ) -> Result<(), EngineError> {
        self.names = self.catalog.names(selection.version.as_deref())?;
        self.names.reverse();
        self.has_paths = has_paths || !selection.is_whole_tree();
        self.part = selection.part;
        (self.detail, self.wants_xattrs) = (detail, false);
        (self.version, self.way) = (None, None);
        Ok(())
    }

    /// Leaves versions out that have no extended attributes.
    pub fn want_xattrs(&mut self) {
        self.wants_xattrs = true;
    }

    /// Goes to the next entry; `false`: there is none.
    pub fn advance(&mut self) -> Result<bool, EngineError> {
        loop {
            if self.step()? {
                self.read()?;
                return Ok(true);
            }
            let Some(name) = self.names.pop() else { return Ok(false) };
            // One that was deleted meanwhile is left out.
            if let Some(version) = self.catalog.open(&name)? {
                self.way = self.begin_version(&version)?;
                self.version = Some(version);
            }
        }
    }

    fn begin_version(&mut self, version: &Arc<OpenVersion>) -> Result<Option<Way>, EngineError> {
        if self.wants_xattrs {
            let from = encoded(Table::Xattr, 0, b"");
            if version.rows(&from, &behind_table(Table::Xattr)).next_row()?.is_none() {
                return Ok(None);
            }
        }
        self.at.path.clear();
        Ok(Some(match &self.part {
            TreePart::Path(path) => {
                self.at.path.extend_from_slice(path);
                Way::Single(version.find(path)?)
            }
            TreePart::Children(parent, name) => {
                let Some(dir) = version.dir_of(parent)? else { return Ok(None) };
                self.at.path.extend_from_slice(parent);
                match name {
                    Some(name) => {
                        if !parent.is_empty() {
                            self.at.path.push(b'/');
                        }
                        self.at.path.extend_from_slice(name);
                        let is_name = !name.is_empty() && !name.contains(&b'/');
                        let found = match is_name {
                            true => version.get(Table::Entry, dir, name)?,
                            false => None,
                        };
                        Way::Single(found.map(|value| StoredEntry { dir, value }))
                    }
                    None => Way::Walk(TreeWalk::of_children(version.clone(), dir, parent.len())),
                }
            }
            TreePart::Range(range) if self.has_paths => {
                Way::Walk(TreeWalk::of_range(version.clone(), range.clone()))
            }
            TreePart::Range(_) => Way::Scan(KeyScan::new(version)),
        }))
    }

    fn step(&mut self) -> Result<bool, EngineError> {
        match &mut self.way {
            None => Ok(false),
            Some(Way::Walk(walk)) => walk.advance(&mut self.at),
            Some(Way::Scan(scan)) => scan.advance(&mut self.at),
            Some(Way::Single(found)) => {
                let Some(StoredEntry { dir, value }) = found.take() else { return Ok(false) };
                let slash = self.at.path.iter().rposition(|byte| *byte == b'/');
                self.at.name_at = slash.map_or(0, |slash| slash + 1);
                (self.at.dir, self.at.value) = (dir, value);
                Ok(true)
            }
        }
    }

    /// Reads what is needed of the entry.
    fn read(&mut self) -> Result<(), EngineError> {
        (self.number, self.inode) = (None, None);
        let Some(version) = &self.version else { return Ok(()) };
        let (dir, value) = (self.at.dir, &self.at.value);
        match self.detail {
            Detail::Name => {}
            Detail::Number => {
                self.number = Some(Entry::peek(value).map_err(version.undecoded(dir))?);
            }
            Detail::Inode | Detail::Links => {
                let entry = Entry::decode(value).map_err(version.undecoded(dir))?;
                let inode = inode_of(version, entry, self.detail)?;
                self.number = Some((inode.ino, inode.kind));
                self.inode = Some(inode);
            }
        }
        if dir == 0 {
            self.number = self.number.map(|(_, kind)| (ROOT, kind));
        }
        Ok(())
    }

    /// Name of the version.
    pub fn version(&self) -> &str {
        self.version.as_ref().map_or("", |version| version.name())
    }

    /// The version.
    pub fn open_version(&self) -> Option<&Arc<OpenVersion>> {
        self.version.as_ref()
    }

    /// The name in its directory; empty of the root.
    pub fn name(&self) -> &[u8] {
        self.at.path.get(self.at.name_at..).unwrap_or_default()
    }

    /// The path from the root of the tree, without a slash before it.
    pub fn path(&self) -> Result<Cow<'_, [u8]>, EngineError> {
        let Some((Way::Scan(_), version)) = self.way.as_ref().zip(self.version.as_ref()) else {
            return Ok(self.at.path.as_slice().into());
        };
        if self.at.dir == 0 {
            return Ok(Cow::default());
        }
        let mut path = version.path_of(self.at.dir)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name());
        Ok(path.into())
    }

    /// Number and type, if they are needed.
    pub fn number(&self) -> Option<(InodeId, Kind)> {
        self.number
    }

    /// The inode, if it is needed.
    pub fn inode(&self) -> Option<&Inode> {
        self.inode.as_ref()
    }
}

/// The inode behind an entry, as `stat` shows it.
fn inode_of(version: &OpenVersion, entry: Entry, detail: Detail) -> Result<Inode, EngineError> {
    let what = |ino: InodeId| format!("inode {ino}");
    let inode = match entry {
        Entry::Inode(inode) => inode,
        Entry::Link { ino, .. } => {
            let row: Option<Bytes> = version.get(Table::Link, ino, b"")?;
            let row = row.ok_or_else(|| version.damaged(&what(ino), "it has no row"))?;
            return Inode::decode(&mut Reader::new(&row)).map_err(version.undecoded(ino));
        }
    };
    if inode.kind != Kind::Dir {
        return Ok(inode);
    }
    let stat = match detail {
        Detail::Links => {
            let row = version.get(Table::DirStat, inode.ino, &share_suffix(0))?;
            let row = row.ok_or_else(|| version.damaged(&what(inode.ino), "it has no figures"))?;
            DirStat::decode(&row).map_err(version.undecoded(inode.ino))?
        }
        _ => DirStat::default(),
    };
    Ok(View::with_figures(inode, &stat))
}
