//! The two trees of `kestrel snapshot diff`, page by page from the process that answers about
//! snapshots.

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::snapshot::SnapshotId;
use serde_json::{Value, json};

use super::diff::{DirListing, InodeSummary, ListedEntry, Side, Trees};
use crate::ask::path_bytes;

/// Asks a question about snapshots: [`super::answer`].
pub type AskPage<'a, E> = dyn FnMut(&Value) -> Result<Value, E> + 'a;

/// Trees that are asked for; each at a snapshot, or as it is now.
pub struct AskedTrees<'a, E> {
    /// How they are asked for.
    pub ask: &'a mut AskPage<'a, E>,
    /// Why an answer is of no use, as an error.
    pub damaged: &'a dyn Fn(&str) -> E,
    /// The first moment.
    pub before: Option<SnapshotId>,
    /// The second moment.
    pub after: Option<SnapshotId>,
}

impl<E> Trees for AskedTrees<'_, E> {
    type Error = E;

    fn list(&mut self, side: Side, dir: InodeId) -> Result<DirListing, E> {
        let at = if side == Side::Before { self.before } else { self.after };
        let (mut listing, mut last) = (DirListing::default(), Value::Null);
        loop {
            let question =
                json!({ "verb": "snapshot", "act": "page", "at": at, "dir": dir, "after": last });
            let page = (self.ask)(&question)?;
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
