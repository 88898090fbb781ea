//! Policies as extended attributes `kestrel.FIELD` of directories, and what answers say of them.
//!
//! - `kestrel.FIELD` is what the directory itself says; `ENODATA` if it says nothing, and of
//!   anything but a directory.
//! - `kestrel.policy` is the effective policy, one line for each field that a directory of the path
//!   says: `FIELD=VALUE above=N inode=NUMBER`, where the directory with that number says it, N
//!   directories above (0: the directory itself). It is not listed, and cannot be set.
//! - Errors of setting and removing: `EOPNOTSUPP` for an unknown field, and for what is no
//!   directory; `EPERM` for `kestrel.policy`, for a user that neither owns the directory nor is the
//!   superuser, below an immutable directory, and for `chattr +i`; `EINVAL` for an unknown value.
//! - A directory that is immutable does not list that field, as lsattr's flags are not listed: what
//!   `cp -a`, tar and rsync make of it can be written to.
//!
//! A directory's dentry is in the replica of every node: exclusive. The first policy of a volume
//! is also noted in the root's record ([`kestrel_types::policy::PolicyRecord::in_use`]).

use std::fmt::Write;

use kestrel_engine::Mutation;
use kestrel_types::entry::Entry;
use kestrel_types::feed::{FeedRow, encode_feed_mark};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Policy, PolicyField, PolicyRecord, XATTR_EFFECTIVE, XATTR_PREFIX};
use kestrel_types::request::{Answer, Creds, Op, XattrFlags};

use crate::perm::{self, Dentry, EXEC};
use crate::rows::{CellId, Value};
use crate::stop::{Run, Stop, fail};
use crate::view::{InodeUse, LocatedInode, View};

const MISSING: Stop = fail(libc::ENODATA, "the directory itself does not say this");

/// Runs GetXattr of `kestrel.` and `field`.
pub fn get(view: &mut View<'_>, inode: &InodeRef, field: &[u8]) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Read)?;
    if !found.is_dir() {
        return Err(fail(libc::ENODATA, "only directories have policies"));
    }
    if field == XATTR_EFFECTIVE {
        return Ok(Answer::Bytes(effective_text(view, found.inode.ino)?.into_bytes().into()));
    }
    let Some(field) = PolicyField::from_name(field) else {
        return Err(fail(libc::ENODATA, "there is no policy field of this name"));
    };
    match view.own_policy(&found.inode)?.own.value(field) {
        Some(value) => Ok(Answer::Bytes(value.into_bytes().into())),
        None => Err(MISSING),
    }
}

fn effective_text(view: &mut View<'_>, dir: InodeId) -> Run<String> {
    let (mut text, mut left) = (String::new(), PolicyField::ALL.to_vec());
    if !view.has_policies()? {
        return Ok(text);
    }
    let (mut at, mut above) = (view.dir(dir)?, 0);
    loop {
        left.retain(|field| {
            let Some(value) = at.policy.own.value(*field) else { return true };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}={value} above={above} inode={}", field.name(), at.ino);
            false
        });
        if at.ino == ROOT || left.is_empty() {
            return Ok(text);
        }
        (at, above) = (view.dir(at.parent)?, above + 1);
    }
}

/// Appends the names that ListXattr gives of a directory, each with its NUL.
pub fn list(view: &View<'_>, inode: &Inode, names: &mut Vec<u8>) -> Run<()> {
    let own = view.own_policy(inode)?.own;
    for field in PolicyField::ALL {
        let listed = match field {
            PolicyField::Consistency => own.consistency.is_some() && !own.is_immutable(),
            PolicyField::Compression => own.compression.is_some(),
            PolicyField::Trash => own.trash.is_some(),
            PolicyField::Feed => own.feed.is_some(),
            PolicyField::Tier => own.tier.is_some(),
        };
        if listed {
            names.extend_from_slice(XATTR_PREFIX);
            names.extend_from_slice(field.name().as_bytes());
            names.push(0);
        }
    }
    Ok(())
}

/// Runs SetXattr of `kestrel.` and `field`.
pub fn set(
    view: &mut View<'_>,
    creds: &Creds,
    inode: &InodeRef,
    (field, value): (&[u8], &[u8]),
    flags: XattrFlags,
) -> Run<Answer> {
    let field = field_to_set(field)?;
    let mut record = PolicyRecord::default();
    if !record.own.set(field, value) {
        return Err(match field {
            PolicyField::Consistency => {
                fail(libc::EINVAL, "kestrel.consistency takes strict, close-to-open or immutable")
            }
            PolicyField::Compression => {
                fail(libc::EINVAL, "kestrel.compression takes none, lz4, zstd or zstd:LEVEL")
            }
            PolicyField::Trash => {
                fail(libc::EINVAL, "kestrel.trash takes none, or hours or days: 12h, 7d")
            }
            PolicyField::Feed => {
                fail(libc::EINVAL, "kestrel.feed takes none, or hours or days: 12h, 7d")
            }
            PolicyField::Tier => {
                fail(libc::EINVAL, "kestrel.tier takes standard, archive or another tier")
            }
        });
    }
    let found = changeable(view, creds, inode)?;
    let mut record = view.own_policy(&found.inode)?;
    let is_set = record.own.value(field).is_some();
    if is_set && flags.create {
        return Err(fail(libc::EEXIST, "the directory itself says this already"));
    }
    if !is_set && flags.replace {
        return Err(MISSING);
    }
    let _known = record.own.set(field, value);
    write(view, found, record)
}

/// Runs RemoveXattr of `kestrel.` and `field`.
pub fn remove(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, field: &[u8]) -> Run<Answer> {
    let field = field_to_set(field)?;
    let found = changeable(view, creds, inode)?;
    let mut record = view.own_policy(&found.inode)?;
    if record.own.value(field).is_none() {
        return Err(MISSING);
    }
    record.own.unset(field);
    write(view, found, record)
}

fn field_to_set(field: &[u8]) -> Run<PolicyField> {
    if field == XATTR_EFFECTIVE {
        return Err(fail(libc::EPERM, "kestrel.policy shows what counts: set kestrel.FIELD"));
    }
    PolicyField::from_name(field)
        .ok_or_else(|| fail(libc::EOPNOTSUPP, "there is no policy field of this name"))
}

/// The directory, if the caller may change its policy.
fn changeable(view: &mut View<'_>, creds: &Creds, inode: &InodeRef) -> Run<LocatedInode> {
    let found = view.find(inode, InodeUse::Write)?;
    if !found.is_dir() {
        return Err(fail(libc::EOPNOTSUPP, "only directories have policies"));
    }
    if !perm::owns(creds, found.inode.uid) {
        return Err(fail(libc::EPERM, "only the owner of a directory changes its policy"));
    }
    perm::check_changeable(found.inode.flags)?;
    perm::check_policy(view.policy_above(&found, inode)?)?;
    Ok(found)
}

/// The root's record, where it does not say yet that policies are in use.
fn root_to_mark(view: &mut View<'_>) -> Run<Option<(CellId, Inode)>> {
    if view.has_policies()? {
        return Ok(None);
    }
    let cell = view.entry_cell(0, b"");
    match view.entry(cell)? {
        Some(Entry::Inode(root)) if root.ino == ROOT && root.kind == Kind::Dir => {
            let root = root.clone();
            Ok(Some((cell, root)))
        }
        _ => Err(fail(libc::EIO, "metadata: the root's record is missing; run kestrel fsck")),
    }
}

fn write(view: &mut View<'_>, found: LocatedInode, mut record: PolicyRecord) -> Run<Answer> {
    let is_root = found.inode.ino == ROOT;
    let root = if is_root { None } else { root_to_mark(view)? };
    view.begin()?;
    note_feed(view, &found.inode, &record)?;
    if let Some((cell, mut root)) = root {
        let mut mark = view.own_policy(&root)?;
        mark.in_use = true;
        root.set_policy(mark);
        root.change = view.stamp;
        view.effects.dirs_changed.insert(ROOT);
        view.put(cell, Value::Entry(Entry::Inode(root)));
    }
    record.in_use |= is_root;
    let LocatedInode { mut inode, at } = found;
    inode.set_policy(record);
    inode.ctime = view.now;
    inode.change = view.stamp;
    let size = inode.size;
    view.put_inode(&at, inode, size, None)?;
    Ok(Answer::Done)
}

/// A feed of a directory that begins has no events of before: not those of an earlier feed either.
fn note_feed(view: &mut View<'_>, dir: &Inode, new: &PolicyRecord) -> Run<()> {
    let records = |record: &PolicyRecord| record.own.feed.is_some_and(|kept| kept.hours() > 0);
    if records(new) && !records(&view.own_policy(dir)?) {
        view.core.feeds.set_in_use();
        let value = Some(encode_feed_mark(view.stamp));
        let key = FeedRow::Start.key(dir.ino);
        view.effects.feed_rows.push(Mutation { key, value });
    }
    Ok(())
}

/// Has an answer say what decides what its client does: the effective policy of the inode in it,
/// where that is not what a mount does anyway. Of an open by number [`super::open`] says it.
pub fn tell(view: &mut View<'_>, op: &Op, answer: &mut Answer) -> Run<()> {
    match answer {
        Answer::Entry { parent, inode } | Answer::Opened { parent: Some(parent), inode, .. } => {
            inode.effective = named(view, *parent, inode)?;
        }
        Answer::Opened { parent: None, inode, .. } => {
            let Op::TmpFile { dir, .. } = op else { return Ok(()) };
            inode.effective = view.handed_down_by(*dir)?.of_storage();
        }
        // One that is being changed has its row locked, and its dentry is not to be had.
        Answer::Inode(inode) if inode.kind == Kind::Dir => {
            if !matches!(op, Op::GetAttr(_) | Op::Parent(_)) {
                return Ok(());
            }
            inode.effective = view.handed_down_by(inode.ino)?.told();
        }
        Answer::Inode(inode) => {
            let (Op::GetAttr(asked) | Op::SetAttr(asked, _)) = op else { return Ok(()) };
            let Some((parent, name)) = &asked.seen else { return Ok(()) };
            let cell = view.entry_cell(*parent, name.as_bytes());
            if view.entry(cell)?.is_some_and(|entry| entry.ino() == inode.ino) {
                inode.effective = named(view, *parent, inode)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The same of what has a name in a directory. No consistency where a client would keep what others
/// can change through another name, or a name that not every user may look up: the kernel checks no
/// search permission for what it keeps.
fn named(view: &mut View<'_>, parent: InodeId, inode: &Inode) -> Run<Policy> {
    let Some(dir) = view.find_dir(parent)? else { return Ok(Policy::default()) };
    let above = view.handed_down(&dir)?;
    let is_dir = inode.kind == Kind::Dir;
    let own = if is_dir { view.own_policy(inode)?.own } else { Policy::default() };
    let mut policy = own.over(above).told();
    if !is_searched_by_all(&dir) || !is_dir && inode.nlink > 1 {
        policy.consistency = None;
    }
    Ok(policy)
}

/// Whether every user may look names up in a directory.
pub fn is_searched_by_all(dir: &Dentry) -> bool {
    dir.guard.all_may(EXEC)
}
