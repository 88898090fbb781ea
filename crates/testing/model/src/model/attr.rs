//! The model's permissions and attributes.

use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Accessed, Creds, OpenFlags, SetAttr, SetTime};

use super::{EXEC, MaybeReply, Model, READ, Run, WRITE};

impl Model {
    pub(super) fn member(creds: &Creds, gid: u32) -> bool {
        creds.gid == gid || creds.groups.as_ref().is_some_and(|groups| groups.contains(&gid))
    }

    pub(super) fn allowed(&self, creds: &Creds, ino: u64, want: u16) -> Run<()> {
        let node = self.node(ino)?;
        if want & WRITE != 0 && node.flags.has(InodeFlags::IMMUTABLE) {
            return Err(libc::EPERM);
        }
        if ![0, node.uid].contains(&creds.uid)
            && let Some(granted) = node.acl_grants(creds, want)
        {
            return if granted { Ok(()) } else { Err(libc::EACCES) };
        }
        let bits = if creds.uid == 0 {
            let x = if node.kind == Kind::Dir || node.mode & 0o111 != 0 { EXEC } else { 0 };
            READ | WRITE | x
        } else if creds.uid == node.uid {
            node.mode >> 6 & 7
        } else if Self::member(creds, node.gid) {
            node.mode >> 3 & 7
        } else {
            node.mode & 7
        };
        if bits & want == want { Ok(()) } else { Err(libc::EACCES) }
    }

    /// Fails as `changes` does, if an open is for a change. Directories and symbolic links cannot
    /// be opened for one anyway.
    pub(super) fn may_open(
        &self,
        ino: u64,
        flags: &OpenFlags,
        changes: impl FnOnce(&Self) -> Run<()>,
    ) -> Run<()> {
        let opens = !matches!(self.node(ino)?.kind, Kind::Dir | Kind::Symlink);
        if opens && (flags.write || flags.truncate) { changes(self) } else { Ok(()) }
    }

    pub(super) fn open(
        &mut self,
        creds: &Creds,
        ino: u64,
        flags: &OpenFlags,
        reply: MaybeReply<'_>,
    ) -> Run<u64> {
        let node = self.node(ino)?;
        match node.kind {
            Kind::Symlink => return Err(libc::ELOOP),
            Kind::Dir if flags.write || flags.truncate => return Err(libc::EISDIR),
            _ => {}
        }
        let want = [(flags.read, READ), (flags.write || flags.truncate, WRITE), (flags.exec, EXEC)];
        let want = want.iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit);
        self.allowed(creds, ino, want)?;
        let overwrites = flags.truncate || flags.write && !flags.append;
        if overwrites && self.node(ino)?.flags.has(InodeFlags::APPEND) {
            return Err(libc::EPERM);
        }
        if flags.truncate && self.node(ino)?.kind == Kind::File {
            self.truncate(ino, 0, reply)?;
            if flags.kill_suid {
                self.kill_suid(creds, ino);
            }
        }
        if self.node(ino)?.kind != Kind::Dir && !self.in_past {
            self.node_mut(ino).opens += 1;
        }
        Ok(ino)
    }

    /// Whether attributes and names of it may change.
    pub(super) fn changeable(&self, ino: u64) -> Run<()> {
        let flags = self.node(ino)?.flags;
        let stays = flags.has(InodeFlags::IMMUTABLE.with(InodeFlags::APPEND));
        if stays { Err(libc::EPERM) } else { Ok(()) }
    }

    pub(super) fn set_flags(
        &mut self,
        creds: &Creds,
        file: &InodeRef,
        flags: InodeFlags,
        reply: MaybeReply<'_>,
    ) -> Run<()> {
        let ino = file.ino;
        let node = self.node(ino)?;
        let changed = node.flags.difference(flags);
        if ![0, node.uid].contains(&creds.uid) {
            return Err(libc::EPERM);
        }
        if creds.uid != 0 && changed.has(InodeFlags::IMMUTABLE.with(InodeFlags::APPEND)) {
            return Err(libc::EPERM);
        }
        if !matches!(node.kind, Kind::File | Kind::Dir) {
            return Err(libc::EOPNOTSUPP);
        }
        if node.flags.only(flags).has(InodeFlags::IMMUTABLE) && changed != InodeFlags::default() {
            return Err(libc::EPERM);
        }
        self.inode_changes(file, reply)?;
        let now = self.now;
        let node = self.node_mut(ino);
        (node.flags, node.ctime) = (flags, now);
        Ok(())
    }

    /// A read moves the access time forward, if that is older than the last change or than a day,
    /// or if it always counts.
    pub(super) fn accessed(&mut self, ino: u64, accessed: Accessed) -> Run<()> {
        const DAY: i64 = 86_400;
        let (now, at) = (self.now, accessed.at.min(self.now));
        let node = self.node(ino)?;
        let second = |time: i64| time.div_euclid(1_000_000_000);
        let due = node.atime <= node.mtime
            || node.atime <= node.ctime
            || second(now).saturating_sub(second(node.atime)) >= DAY;
        let kept = !node.flags.has(InodeFlags::IMMUTABLE.with(InodeFlags::NO_ATIME));
        if kept && at > node.atime && (due || !accessed.relative) {
            self.node_mut(ino).atime = at;
        }
        Ok(())
    }

    pub(super) fn kill_suid(&mut self, creds: &Creds, ino: u64) {
        let node = self.node_mut(ino);
        node.mode &= !0o4000;
        let keeps = creds.uid == 0 || Self::member(creds, node.gid);
        if node.mode & 0o010 != 0 || !keeps {
            node.mode &= !0o2000;
        }
    }

    pub(super) fn setattr(
        &mut self,
        creds: &Creds,
        file: &InodeRef,
        set: &SetAttr,
        reply: MaybeReply<'_>,
    ) -> Run<()> {
        let ino = file.ino;
        let node = self.node(ino)?.clone();
        let past = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let ids = set.uid.is_some() || set.gid.is_some();
        let changes =
            set.mode.is_some() || ids || set.size.is_some() || past(set.atime) || past(set.mtime);
        if node.flags.has(InodeFlags::IMMUTABLE) || changes && node.flags.has(InodeFlags::APPEND) {
            return Err(libc::EPERM);
        }
        let owner = creds.uid == 0 || creds.uid == node.uid;
        if set.size.is_some() {
            match node.kind {
                Kind::File => {}
                Kind::Dir => return Err(libc::EISDIR),
                _ => return Err(libc::EINVAL),
            }
            if !set.through_handle {
                self.allowed(creds, ino, WRITE)?;
            }
        }
        if creds.uid != 0 {
            if set.uid.is_some_and(|uid| uid != node.uid || creds.uid != node.uid) {
                return Err(libc::EPERM);
            }
            if let Some(gid) = set.gid
                && (creds.uid != node.uid || (gid != node.gid && !Self::member(creds, gid)))
            {
                return Err(libc::EPERM);
            }
        }
        if set.mode.is_some() && !owner {
            return Err(libc::EPERM);
        }
        let times = (set.atime, set.mtime);
        if !owner && times != (None, None) {
            let now_only = |t: Option<SetTime>| !matches!(t, Some(SetTime::At(_)));
            match times {
                _ if !now_only(times.0) || !now_only(times.1) => return Err(libc::EPERM),
                _ if set.size.is_some() => {}
                (Some(_), Some(_)) => self.allowed(creds, ino, WRITE)?,
                _ => return Err(libc::EPERM),
            }
        }
        self.inode_changes(file, reply)?;
        if let Some(size) = set.size {
            self.truncate(ino, size, reply)?;
        }
        if node.kind != Kind::Dir && (set.uid.is_some() || set.gid.is_some() || set.kill_suid) {
            self.kill_suid(creds, ino);
        }
        let now = self.now;
        let node = self.node_mut(ino);
        if set.uid.is_some() || set.gid.is_some() {
            node.drop_capabilities();
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mode) = set.mode {
            node.mode = mode;
            if creds.uid != 0 && !Self::member(creds, node.gid) {
                node.mode &= !0o2000;
            }
            node.mode_to_acl();
        }
        let time = |set: SetTime| if let SetTime::At(at) = set { at } else { now };
        node.atime = set.atime.map_or(node.atime, time);
        node.mtime = set.mtime.map_or(node.mtime, time);
        node.ctime = now;
        Ok(())
    }
}
