//! Open and OpenAt: open what a number or a place leads to, check permissions, truncate if asked
//! to; Release gives it back.
//!
//! Errors: a symbolic link `ELOOP`; a directory for writing `EISDIR`; missing permission `EACCES`;
//! immutable, or in an immutable tree, for writing, or append only to be written otherwise than
//! with `O_APPEND`, `EPERM`. `O_TRUNC` needs write permission and works on regular files only
//! (elsewhere it is ignored, as Linux does); it sets times even on an empty file.
//!
//! Opens are counted in the node's memory, so that the data of a file that loses its last name
//! stays until the last release. After a crash of an embedded volume nothing is open: files without
//! names are deleted when it is opened. Clients across a network live on: they claim what they had
//! open ([`claim`]), and answers that tell of opens are given again ([`again`]).

use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, InodeFlags, Kind};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::policy::Policy;
use kestrel_types::request::{Answer, Creds, Op, OpenFlags};

use crate::content::{self, Content, Removal};
use crate::ops::xattr;
use crate::perm::{self, EXEC, READ, WRITE};
use crate::rows::Value;
use crate::session::{Claim, OpenState};
use crate::stop::{Run, Stop, fail};
use crate::txn::RecordedReply;
use crate::view::{At, InodeUse, LocatedInode, View, guard_of};

/// What is needed of the inode.
pub fn use_for(flags: &OpenFlags) -> InodeUse {
    if flags.truncate { InodeUse::Write } else { InodeUse::Open }
}

/// Runs Open.
pub fn run(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, flags: &OpenFlags) -> Run<Answer> {
    let found = view.find(inode, use_for(flags))?;
    let policy = match is_change(&found, flags) {
        true => view.check_inode_changes(&found, inode)?,
        false => Policy::default(),
    };
    let (ino, strayed) = (found.inode.ino, view.strayed(inode, &found));
    if strayed.is_some() {
        view.need_exclusive()?;
    }
    let mut answer = existing(view, creds, found, flags, None)?;
    if let Answer::Opened { inode, .. } = &mut answer {
        inode.effective = policy.of_storage();
    }
    if let Some((parent, name)) = strayed {
        view.move_to(ino, parent, &name);
    }
    Ok(answer)
}

/// Runs OpenAt. Like Create it runs where the entry belongs, so that nobody removes the file
/// between finding and counting it.
pub fn at(view: &mut View<'_>, creds: &Creds, place: &PathRef, flags: &OpenFlags) -> Run<Answer> {
    let spot = view.spot(creds, place, false)?;
    view.need_home(&spot)?;
    view.want_shown(&spot, place.name.as_bytes());
    let only_reads = !flags.write && !flags.truncate;
    if only_reads && let Some(file) = view.file_in(spot.entry)? {
        check(creds, &file, flags)?;
        return opened(view, file, Some(spot.dir.ino));
    }
    let found =
        view.at_spot(&spot, use_for(flags))?.ok_or_else(|| fail(libc::ENOENT, "no such entry"))?;
    if is_change(&found, flags) {
        view.check_names_change(&spot.dir)?;
    }
    existing(view, creds, found, flags, Some(spot.dir.ino))
}

/// Whether an open is refused where nothing changes. Directories and symbolic links cannot be
/// opened so anyway, with errors of their own.
pub fn is_change(found: &LocatedInode, flags: &OpenFlags) -> bool {
    (flags.write || flags.truncate) && !matches!(found.inode.kind, Kind::Dir | Kind::Symlink)
}

/// Opens a file that exists; `parent` is the directory of the place that led to it.
pub fn existing(
    view: &mut View<'_>,
    creds: &Creds,
    found: LocatedInode,
    flags: &OpenFlags,
    parent: Option<InodeId>,
) -> Run<Answer> {
    // To cut it off as well is to open it: found to be changed, it may be another node's.
    if !found.is_dir()
        && found.inode.nlink == 0
        && !view.shows_orphans(found.inode.ino, InodeUse::Open)
    {
        return Err(fail(libc::ESTALE, "the file does not exist any more"));
    }
    check(creds, &found.inode, flags)?;
    let is_file = found.inode.kind == Kind::File;
    if flags.truncate && is_file {
        let inode = Box::new(truncated(view, creds, found, flags)?);
        return Ok(Answer::Opened { inode, created: false, parent });
    }
    if found.is_dir() {
        let inode = Box::new(view.shown(found)?);
        return Ok(Answer::Opened { inode, created: false, parent });
    }
    opened(view, Box::new(found.inode), parent)
}

/// Counts the open of what is neither cut off nor a directory.
fn opened(view: &mut View<'_>, inode: Box<Inode>, parent: Option<InodeId>) -> Run<Answer> {
    view.begin()?;
    view.count_open(inode.ino);
    Ok(Answer::Opened { inode, created: false, parent })
}

fn check(creds: &Creds, inode: &Inode, flags: &OpenFlags) -> Run<()> {
    match inode.kind {
        Kind::Symlink => return Err(fail(libc::ELOOP, "a symbolic link cannot be opened")),
        Kind::Dir if flags.write || flags.truncate => {
            return Err(fail(libc::EISDIR, "a directory cannot be opened for writing"));
        }
        _ => {}
    }
    let mut want = 0;
    if flags.exec {
        want |= EXEC;
    }
    if flags.read {
        want |= READ;
    }
    if flags.write || flags.truncate {
        want |= WRITE;
    }
    perm::check(creds, &guard_of(inode), want)?;
    let overwrites = flags.truncate || flags.write && !flags.append;
    if overwrites && inode.flags.has(InodeFlags::APPEND) {
        return Err(fail(libc::EPERM, "it is append only (chattr -a): open it with O_APPEND"));
    }
    Ok(())
}

fn truncated(
    view: &mut View<'_>,
    creds: &Creds,
    found: LocatedInode,
    flags: &OpenFlags,
) -> Run<Inode> {
    let mode = match flags.kill_suid {
        true => perm::without_set_ids(creds, found.inode.mode, found.inode.gid)?,
        false => found.inode.mode,
    };
    let capabilities = xattr::capabilities(view, &found.inode)?;
    let home = found.at.home();
    let changes = found.inode.size != 0;
    let mut content =
        if changes { content::truncate(view, &found.inode, 0)? } else { Content::default() };
    content.want(view, home)?;
    let share = if changes { view.bytes_share(&found.at) } else { None };
    view.begin()?;

    xattr::drop_capabilities(view, capabilities);
    let LocatedInode { mut inode, at } = found;
    let old_size = inode.size;
    content.apply(view, &mut inode, home)?;
    if changes {
        inode.size = 0;
        inode.data_change = view.stamp;
    }
    inode.mode = mode;
    inode.mtime = view.now;
    inode.ctime = view.now;
    inode.change = view.stamp;
    view.put_inode(&at, inode.clone(), old_size, share)?;
    view.count_open(inode.ino);
    Ok(inode)
}

/// Runs Release. The last one of a file without names deletes it and releases its data; of several
/// nodes only if none but this one has it open.
pub fn release(view: &mut View<'_>, ino: InodeId) -> Run<Answer> {
    let state = view.open_state(ino);
    if state.count == 0 {
        return Err(fail(libc::EBADF, "the file is not open"));
    }
    let reclaiming = view.core.reclaiming.lasts();
    if state.count > 1 || !state.orphan || reclaiming {
        view.begin()?;
        let last = view.count_release(ino);
        if last && view.core.cluster.is_some() {
            view.core.orphans.closed(ino);
        } else if last && reclaiming && state.orphan {
            view.core.reclaiming.keep(ino);
        } else if last && !reclaiming {
            view.settle(ino);
        }
        return Ok(Answer::Done);
    }
    let cell = view.link_cell(ino);
    let inode = view.link(cell)?.filter(|inode| inode.nlink == 0).cloned();
    let removal = match &inode {
        Some(inode) => Some(Removal::prepare(view, inode, view.home_of_inode(ino))?),
        None => None,
    };
    view.want_moved(ino)?;
    view.begin()?;
    if let (Some(removal), Some(inode)) = (removal, inode) {
        removal.apply(view)?;
        view.put(cell, Value::Absent);
        view.forget_linkable(ino);
        view.effects.count_bytes(-inode.size.cast_signed());
    }
    view.count_release(ino);
    Ok(Answer::Done)
}

/// Counts opens that a client claims, of the file that `op`, an Open, names; no permission is
/// needed, it was checked then. `ESTALE` if the file does not exist any more. Exclusive, since it
/// may concern a file without names.
pub fn claim(view: &mut View<'_>, op: &Op, claim: Claim) -> Run<Answer> {
    let Op::Open(asked, _) = op else { return Err(fail(libc::EINVAL, "only opens are claimed")) };
    if claim.count == 0 {
        return Err(fail(libc::EINVAL, "no opens are claimed"));
    }
    view.need_exclusive()?;
    let found = view.find(asked, InodeUse::Claim)?;
    let (ino, state) = (found.inode.ino, view.open_state(found.inode.ino));
    if found.is_dir() {
        return Err(fail(libc::EISDIR, "opens of directories are not counted"));
    }
    let orphans = matches!(found.at, At::Link { .. }) && found.inode.nlink == 0;
    if orphans && state.count == 0 && !view.core.reclaiming.lasts() {
        return Err(fail(libc::ESTALE, "the file does not exist any more"));
    }
    let strayed = view.strayed(asked, &found);
    let alone = view.core.cluster.is_none();
    let noted = alone && orphans && view.is_noted_linkable(ino)?;
    view.begin()?;
    if !alone {
        for _ in 0..claim.count {
            view.count_open(ino);
        }
        return Ok(Answer::Opened { inode: Box::new(found.inode), created: false, parent: None });
    }
    let linkable = claim.linkable || noted || (state.count > 0 && state.linkable);
    let count = state.count.saturating_add(claim.count);
    view.set_open(ino, OpenState { count, orphan: orphans, linkable: orphans && linkable });
    if let Some((parent, name)) = strayed {
        view.move_to(ino, parent, &name);
    }
    Ok(Answer::Opened { inode: Box::new(found.inode), created: false, parent: None })
}

/// Gives the answer that `op` was given the first time. If it tells of an open, that counts again:
/// whatever counted it then was lost with the node or has gone with the session. A release too: the
/// client, which heard no answer, has claimed what it wanted to give back. Exclusive, since it may
/// concern a file without names.
pub fn again(view: &mut View<'_>, op: &Op, told: &RecordedReply) -> Run<Answer> {
    view.need_exclusive()?;
    view.wait = view.wait.max(told.changed_at);
    let answer = told.answer.clone().map_err(|outcome| Stop::Out(Box::new(outcome)))?;
    let ino = match &answer {
        Answer::Opened { inode, .. } if inode.kind != Kind::Dir => inode.ino,
        _ => {
            return match op {
                Op::Release(ino) if view.open_state(*ino).count > 0 => release(view, *ino),
                _ => Ok(answer),
            };
        }
    };
    if view.core.cluster.is_some() {
        // If it has lost its name since, its home asks.
        view.begin()?;
        view.count_open(ino);
        return Ok(answer);
    }
    let cell = view.link_cell(ino);
    let orphans = view.link(cell)?.is_some_and(|inode| inode.nlink == 0);
    let noted = orphans && view.is_noted_linkable(ino)?;
    view.begin()?;
    let state = view.open_state(ino);
    let linkable = match state.count {
        // A file that an earlier version made has no row.
        0 => noted || matches!(op, Op::TmpFile { exclusive: false, .. }),
        _ => state.linkable,
    };
    view.set_open(
        ino,
        OpenState {
            count: state.count.saturating_add(1),
            orphan: orphans,
            linkable: orphans && linkable,
        },
    );
    Ok(answer)
}
