//! The two trees of `kestrel snapshot diff`, page by page from the process that answers about
//! snapshots.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::CHANGED_FILES_MAX;
use serde_json::{Value, json};

use super::diff::{
    ChangedListing, Difference, DirListing, InodeSummary, ListedEntry, Side, Trees, diff,
};
use crate::ask::path_bytes;

/// Asks a question about snapshots: [`super::answer`].
pub type AskPage<'a, E> = dyn FnMut(&Value) -> Result<Value, E> + 'a;

/// So often a snapshot that nodes made for this comparison is asked about: they keep it for
/// [`kestrel_types::snapshot_changes::COMPARED_KEPT`] after that.
const KEEP_EVERY: Duration = Duration::from_secs(15);

/// Trees that are asked for; each at a snapshot, or as it is now.
pub struct AskedTrees<'a, E> {
    ask: &'a mut AskPage<'a, E>,
    damaged: &'a dyn Fn(&str) -> E,
    before: Option<SnapshotId>,
    after: Option<SnapshotId>,
    /// The question that has nodes keep a snapshot of now, and when it was asked last.
    kept: Option<(Value, Instant)>,
}

/// What nodes have told of directories that both trees have.
#[derive(Default)]
struct ChangesTold {
    dirs: BTreeMap<InodeId, ChangedListing>,
    /// Files with several names: the names are to be asked for.
    files: Vec<InodeId>,
}

impl<'a, E> AskedTrees<'a, E> {
    /// Trees at two moments, asked for by `ask`; `damaged` makes an error of why an answer is of no
    /// use.
    pub fn new(
        ask: &'a mut AskPage<'a, E>,
        damaged: &'a dyn Fn(&str) -> E,
        (before, after): (Option<SnapshotId>, Option<SnapshotId>),
    ) -> Self {
        Self { ask, damaged, before, after, kept: None }
    }

    /// The moments. Where nodes have made a snapshot of now for the comparison it is that.
    pub fn moments(&self) -> (Option<SnapshotId>, Option<SnapshotId>) {
        (self.before, self.after)
    }

    /// All differences of the tree below `root`, sorted by path.
    ///
    /// # Errors
    /// Those of the questions.
    pub fn diff(&mut self, root: InodeId) -> Result<Vec<Difference>, E> {
        if self.before == self.after {
            return Ok(Vec::new());
        }
        let mut told = ChangesTold::default();
        self.ask_changes(root, &[], &mut told)?;
        let files = std::mem::take(&mut told.files);
        for some in files.chunks(CHANGED_FILES_MAX) {
            self.ask_changes(root, some, &mut told)?;
        }
        let changed: Vec<ChangedListing> = told.dirs.into_values().collect();
        diff(self, &changed)
    }

    /// Asks for all pages of changes, or of names of these files.
    fn ask_changes(
        &mut self,
        root: InodeId,
        files: &[InodeId],
        told: &mut ChangesTold,
    ) -> Result<(), E> {
        let moment = |at: Option<SnapshotId>| at.unwrap_or(SnapshotId::MAX);
        let is_back = moment(self.before) > moment(self.after);
        let mut after = Value::Null;
        loop {
            let (older, newer) =
                if is_back { (self.after, self.before) } else { (self.before, self.after) };
            let question = json!({
                "verb": "snapshot", "act": "changes", "dir": root, "older": older, "newer": newer,
                "files": files, "after": after,
            });
            let page = (self.ask)(&question)?;
            if let (None, Some(made)) = (newer, page["newer"].as_u64()) {
                let present = if is_back { &mut self.before } else { &mut self.after };
                *present = Some(made);
                let mut first = question;
                first["newer"] = made.into();
                self.kept = Some((first, Instant::now()));
            }
            let damaged = || (self.damaged)("the serving process told changes wrongly");
            let dirs = page["dirs"].as_array().ok_or_else(damaged)?;
            for dir in dirs {
                add_dir(dir, is_back, &mut told.dirs).ok_or_else(damaged)?;
            }
            let found = page["files"].as_array().into_iter().flatten();
            told.files.extend(found.filter_map(Value::as_u64));
            if page["next"].is_null() {
                return Ok(());
            }
            after = page["next"].clone();
        }
    }

    /// Asks a question about one of the trees, and has nodes keep a snapshot that they made for
    /// this comparison.
    ///
    /// # Errors
    /// Those of the question.
    pub fn ask(&mut self, question: &Value) -> Result<Value, E> {
        if let Some((first, asked)) = &mut self.kept
            && asked.elapsed() >= KEEP_EVERY
        {
            (self.ask)(first)?;
            *asked = Instant::now();
        }
        (self.ask)(question)
    }
}

/// Adds a directory of a page to what was told of it before.
fn add_dir(
    value: &Value,
    is_back: bool,
    dirs: &mut BTreeMap<InodeId, ChangedListing>,
) -> Option<()> {
    let dir = value[0].as_u64()?;
    let (before, after) = if is_back { (2, 1) } else { (1, 2) };
    let (before, after) = (&value[before], &value[after]);
    let known = match dirs.entry(dir) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(free) => {
            let listing = |moment: &Value| {
                Some(DirListing { own: summary_of(&moment[2])?, entries: Vec::new() })
            };
            let (path_before, path_after) = (path_bytes(&before[0])?, path_bytes(&after[0])?);
            let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
            let is_moved = before[1] != after[1];
            free.insert(ChangedListing {
                dir,
                renamed: is_moved || name(&path_before) != name(&path_after),
                path_before: path_before.into(),
                path_after: path_after.into(),
                before: listing(before)?,
                after: listing(after)?,
            })
        }
    };
    for name in value[3].as_array()? {
        let (old, new) = if is_back { (&name[2], &name[1]) } else { (&name[1], &name[2]) };
        add_entry(&mut known.before.entries, &name[0], old)?;
        add_entry(&mut known.after.entries, &name[0], new)?;
    }
    Some(())
}

/// Adds what a name stands for, if anything, to entries in the order of their names.
fn add_entry(entries: &mut Vec<ListedEntry>, name: &Value, told: &Value) -> Option<()> {
    if told.is_null() {
        return Some(());
    }
    let entry = entry_of(&json!([name, told[0], told[1], told[2]]))?;
    let entry = match entry.kind {
        Kind::Dir => ListedEntry { inode: None, ..entry },
        _ => entry,
    };
    match entries.binary_search_by(|known| known.name.cmp(&entry.name)) {
        Ok(index) => entries[index] = entry,
        Err(index) => entries.insert(index, entry),
    }
    Some(())
}

impl<E> Trees for AskedTrees<'_, E> {
    type Error = E;

    fn list(&mut self, side: Side, dir: InodeId) -> Result<DirListing, E> {
        let at = if side == Side::Before { self.before } else { self.after };
        let (mut listing, mut last) = (DirListing::default(), Value::Null);
        loop {
            let question =
                json!({ "verb": "snapshot", "act": "page", "at": at, "dir": dir, "after": last });
            let page = self.ask(&question)?;
            let damaged = || (self.damaged)("the serving process told a directory wrongly");
            if last.is_null() {
                listing.own = summary_of(&page["own"]).ok_or_else(damaged)?;
            }
            let told = page["entries"].as_array().ok_or_else(damaged)?;
            for entry in told {
                listing.entries.push(entry_of(entry).ok_or_else(damaged)?);
            }
            if page["end"] == true {
                return Ok(listing);
            }
            last = page["last"].clone();
            if last.is_null() {
                // The first part would come again, for ever.
                return Err(damaged());
            }
        }
    }
}

fn entry_of(entry: &Value) -> Option<ListedEntry> {
    let kind = u8::try_from(entry[2].as_u64()?).ok().and_then(Kind::from_u8)?;
    let inode = match &entry[3] {
        Value::Null => None,
        summary => Some(summary_of(summary)?),
    };
    Some(ListedEntry { name: path_bytes(&entry[0])?.into(), ino: entry[1].as_u64()?, kind, inode })
}

/// What an inode is compared by: see [`summary_of`].
pub fn summary(inode: &Inode) -> Value {
    let (size, data_change) = match inode.kind {
        Kind::Dir => (0, 0),
        _ => (inode.size, inode.data_change),
    };
    json!([
        inode.mode,
        inode.uid,
        inode.gid,
        inode.rdev,
        inode.flags.bits(),
        size,
        inode.nlink,
        data_change,
        inode.mtime,
        inode.ctime,
    ])
}

/// The summary of an inode in a page: mode, owner, group, device, flags, bytes, names, stamp of the
/// content, both times.
fn summary_of(value: &Value) -> Option<InodeSummary> {
    let number = |at: usize| value[at].as_u64();
    Some(InodeSummary {
        attributes: [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?],
        size: number(5)?,
        nlink: u32::try_from(number(6)?).ok()?,
        data_change: number(7)?,
        mtime: value[8].as_i64()?,
        ctime: value[9].as_i64()?,
    })
}
