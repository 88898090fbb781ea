//! Requests about snapshots, sent for one caller, each waited for.

use std::sync::Arc;

use kestrel_client::Fs;
use kestrel_client::fs::clones::CloneProgress;
use kestrel_client::fs::{self, Caller, into_inode, unanswered, wait};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use serde_json::{Value, json};

/// Sends requests for a caller.
pub struct SnapshotCalls<'a> {
    fs: &'a Arc<Fs>,
    creds: Creds,
}

/// The user and groups of this process, as questions carry them.
pub fn own_creds() -> Value {
    // SAFETY: they take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let mut groups: Vec<libc::gid_t> = Vec::new();
    // SAFETY: with size 0 it only counts, and takes no pointer.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    if let Ok(size) = usize::try_from(count) {
        groups.resize(size, 0);
        // SAFETY: `groups` has room for `count` numbers.
        let filled = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
        groups.truncate(usize::try_from(filled).unwrap_or(0));
    }
    json!({ "uid": uid, "gid": gid, "groups": groups })
}

/// What [`own_creds`] made. A question comes from a process that may read the volume's directory,
/// or from this one: it is believed.
///
/// # Errors
/// If there are none.
pub fn creds_of(value: &Value) -> Result<Creds, String> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let groups = value["groups"].as_array().and_then(|all| all.iter().map(number).collect());
    match (number(&value["uid"]), number(&value["gid"]), groups) {
        (Some(uid), Some(gid), Some(groups)) => {
            let groups: Vec<u32> = groups;
            Ok(Creds { uid, gid, groups: Some(groups.into()) })
        }
        _ => Err("the question does not say which user asks".into()),
    }
}

impl<'a> SnapshotCalls<'a> {
    /// Calls of `fs` for this caller.
    pub fn new(fs: &'a Arc<Fs>, creds: Creds) -> Self {
        Self { fs, creds }
    }

    /// Calls for the superuser, on behalf of nobody.
    pub fn as_root(fs: &'a Arc<Fs>) -> Self {
        Self::new(fs, Creds::root())
    }

    /// The file system that is asked.
    pub fn fs(&self) -> &Arc<Fs> {
        self.fs
    }

    /// The caller.
    pub fn creds(&self) -> &Creds {
        &self.creds
    }

    /// Whether the caller may do what the owner of an inode may.
    pub fn owns(&self, inode: &Inode) -> bool {
        self.creds.uid == 0 || self.creds.uid == inode.uid
    }

    /// One request, at a snapshot if one is given.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn ask(&self, at: Option<SnapshotId>, op: Op) -> FsResult<Answer> {
        let mut answers = self.ask_many(at, vec![op]);
        answers.pop().unwrap_or_else(|| Err(unanswered()))
    }

    /// Several requests at once; their answers in the same order.
    pub fn ask_many(&self, at: Option<SnapshotId>, ops: Vec<Op>) -> Vec<FsResult<Answer>> {
        let op_at = |op| match at {
            Some(at) => Op::At(at, Box::new(op)),
            None => op,
        };
        let ops = ops.into_iter().map(op_at).collect();
        self.fs.replies(&self.creds, ops).into_iter().map(plain).collect()
    }

    /// Stores and commits what was written through this process: see [`Fs::flush_all`].
    pub fn flush_all(&self) {
        // What cannot be stored is told by the next flush of its file.
        let _ = wait(|done| self.fs.flush_all(move || done(Ok(()))));
    }

    /// [`Fs::snapshots`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn list(&self, dir: Option<InodeId>, ancestors: bool) -> FsResult<Vec<SnapshotInfo>> {
        wait(|done| self.fs.snapshots(self.caller(), dir, ancestors, done))
    }

    /// [`Fs::create_snapshot`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn create(&self, dir: InodeId, name: Name) -> FsResult<SnapshotInfo> {
        wait(|done| self.fs.create_snapshot(self.caller(), dir, name, done))
    }

    /// [`Fs::remove_snapshot`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn remove(&self, dir: InodeId, name: Name) -> FsResult<()> {
        wait(|done| self.fs.remove_snapshot(self.caller(), dir, name, done))
    }

    /// [`Fs::rename_snapshot`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn rename(&self, dir: InodeId, from: Name, to: Name) -> FsResult<()> {
        wait(|done| self.fs.rename_snapshot(self.caller(), dir, (from, to), done))
    }

    /// [`Fs::hold_snapshot`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn hold(&self, dir: InodeId, name: Name, tag: Name, hold: bool) -> FsResult<()> {
        wait(|done| self.fs.hold_snapshot(self.caller(), (dir, name), (tag, hold), done))
    }

    /// [`Fs::clone_dir`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn clone_dir(
        &self,
        source: (InodeId, Option<SnapshotId>),
        place: PathRef,
    ) -> FsResult<Inode> {
        wait(|done| self.fs.clone_dir(self.caller(), source, place, done))
    }

    /// [`Fs::clone_step`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn clone_step(&self, dir: InodeId) -> FsResult<CloneProgress> {
        wait(|done| self.fs.clone_step(self.caller(), dir, done))
    }

    /// The caller for calls that do not depend on groups.
    fn caller(&self) -> Caller {
        Caller { uid: self.creds.uid, gid: self.creds.gid, pid: 0 }
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn getattr(&self, at: Option<SnapshotId>, inode: InodeRef) -> FsResult<Inode> {
        self.ask(at, Op::GetAttr(inode)).and_then(into_inode)
    }

    /// The directory at a path from the root.
    ///
    /// # Errors
    /// As for a look-up, and `ENOTDIR`.
    pub fn directory(&self, path: &[u8]) -> FsResult<InodeId> {
        let is_root = path.split(|byte| *byte == b'/').all(|part| matches!(part, b"" | b"."));
        if is_root {
            return Ok(ROOT);
        }
        let inode = self.ask(None, Op::Lookup(PathRef::from_path(ROOT, path)?));
        match inode.and_then(into_inode)? {
            Inode { kind: Kind::Dir, ino, .. } => Ok(ino),
            _ => {
                Err(FsError::new(libc::ENOTDIR, "not a directory; `kestrel info` tells of a file"))
            }
        }
    }
}

/// The answer, or the error, of a request about a path that the caller named: a symbolic link in it
/// is not followed.
fn plain(reply: Reply) -> FsResult<Answer> {
    match reply {
        Err(Outcome::Symlink { .. }) => Err(FsError::new(
            libc::ELOOP,
            "a symbolic link stands in the path; name the directory that it leads to",
        )),
        other => fs::plain(other),
    }
}

/// What failed, and which command helps.
pub fn told(why: &FsError) -> String {
    let hint = match why.errno {
        libc::EEXIST => "; choose another name, `kestrel snapshot list` shows those that are taken",
        libc::ENOENT => "; `kestrel snapshot list` shows the snapshots that there are",
        libc::EBUSY => {
            "; `kestrel snapshot info` shows its tags, `kestrel snapshot release` takes \
                        one away"
        }
        libc::EPERM => "; the directory's owner and root may",
        _ => "",
    };
    // The node's own word goes before ours.
    let hint = if why.reason.contains('`') || why.reason.contains(';') { "" } else { hint };
    format!("{}{hint}", why.reason)
}

/// What a clone fails with: the place of the clone is meant, not a snapshot.
pub fn clone_told(why: &FsError) -> String {
    match why.errno {
        libc::EEXIST => "the name of the clone is taken; choose another one".into(),
        libc::EACCES => format!("{}; the clone's directory must be writable", why.reason),
        _ => why.reason.to_string(),
    }
}
