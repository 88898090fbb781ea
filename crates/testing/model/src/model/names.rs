//! The model's names: what finds, adds, moves and removes them.

use std::sync::Arc;

use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::perm::split_umask;
use kestrel_types::removal::RemovalPage;
use kestrel_types::request::{Creds, RenameFlags};

use super::{EXEC, MISFIT, MaybeReply, Model, READ, Run, SYMLINK, WRITE};

impl Model {
    /// The directory a path leads to, and what has the name there.
    pub(super) fn walk(&self, creds: &Creds, path: &PathRef) -> Run<(u64, Option<u64>)> {
        let mut dir = path.base;
        let gone = |_| libc::ENOENT;
        self.node(dir).map_err(gone)?;
        self.allowed(creds, dir, EXEC)?;
        for name in &path.dirs {
            let child = *self.node(dir).unwrap().children.get(name).ok_or(libc::ENOENT)?;
            match self.node(child).unwrap().kind {
                Kind::Dir => {}
                Kind::Symlink => return Err(SYMLINK),
                _ => return Err(libc::ENOTDIR),
            }
            self.allowed(creds, child, EXEC)?;
            dir = child;
        }
        Ok((dir, self.node(dir).unwrap().children.get(path.name.as_bytes()).copied()))
    }

    /// Whether a page tells what would keep a directory from being removed with all that is in it.
    pub(super) fn fits_removal(&self, creds: &Creds, dir: u64, page: &RemovalPage) -> bool {
        let children = &self.nodes[&dir].children;
        let stays =
            |ino: &u64| self.changeable(*ino).and_then(|()| self.sticky(creds, dir, *ino)).is_err();
        if let Some((name, _)) = &page.kept {
            return children.get(name.as_bytes()).is_some_and(stays);
        }
        let is_link = |name: &[u8]| page.links.iter().any(|link| link.as_bytes() == name);
        let told: Vec<&[u8]> = page.dirs.iter().map(|(name, _)| name.as_bytes()).collect();
        let (mut dirs, mut files, mut is_free) = (Vec::new(), 0, true);
        for (name, ino) in children {
            let node = &self.nodes[ino];
            if node.kind == Kind::Dir {
                dirs.push(&name[..]);
                continue;
            }
            files += 1;
            is_free &= if is_link(name) { node.linked } else { !stays(ino) };
        }
        page.end && is_free && dirs == told && files == page.files + page.links.len() as u64
    }

    pub(super) fn sticky(&self, creds: &Creds, dir: u64, victim: u64) -> Run<()> {
        let (d, v) = (self.node(dir)?, self.node(victim)?);
        let fine = d.mode & 0o1000 == 0 || [0, d.uid, v.uid].contains(&creds.uid);
        if fine { Ok(()) } else { Err(libc::EPERM) }
    }

    pub(super) fn may_remove(&self, creds: &Creds, dir: u64, victim: u64) -> Run<()> {
        self.allowed(creds, dir, WRITE | EXEC)?;
        self.changeable(dir)?;
        self.sticky(creds, dir, victim)?;
        self.changeable(victim)
    }

    pub(super) fn touch_dir(&mut self, dir: u64) {
        let now = self.now;
        let node = self.node_mut(dir);
        (node.mtime, node.ctime) = (now, now);
    }

    pub(super) fn drop_if_gone(&mut self, ino: u64) {
        let node = &self.nodes[&ino];
        if node.kind != Kind::Dir && (node.nlink, node.opens, node.outside) == (0, 0, 0) {
            self.nodes.remove(&ino);
        }
    }

    pub(super) fn unname(&mut self, ino: u64) {
        let now = self.now;
        let node = self.node_mut(ino);
        node.nlink -= 1;
        node.ctime = now;
        self.drop_if_gone(ino);
    }

    pub(super) fn unlink(&mut self, creds: &Creds, path: &PathRef) -> Run<u64> {
        let (dir, there) = self.walk(creds, path)?;
        let ino = there.ok_or(libc::ENOENT)?;
        self.may_remove(creds, dir, ino)?;
        self.names_change(dir)?;
        if self.node(ino)?.kind == Kind::Dir {
            return Err(libc::EISDIR);
        }
        self.node_mut(dir).children.remove(path.name.as_bytes());
        self.touch_dir(dir);
        self.unname(ino);
        Ok(ino)
    }

    pub(super) fn rmdir(
        &mut self,
        creds: &Creds,
        path: &PathRef,
        expected: Option<u64>,
    ) -> Run<u64> {
        let (dir, there) = self.walk(creds, path)?;
        let ino = there.ok_or(libc::ENOENT)?;
        self.may_remove(creds, dir, ino)?;
        self.names_change(dir)?;
        let node = self.node(ino)?;
        if node.kind != Kind::Dir {
            return Err(libc::ENOTDIR);
        }
        if expected.is_some_and(|expected| expected != ino) {
            return Err(libc::ESTALE);
        }
        if !node.children.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.node_mut(dir).children.remove(path.name.as_bytes());
        self.node_mut(dir).nlink -= 1;
        self.touch_dir(dir);
        self.nodes.remove(&ino);
        Ok(ino)
    }

    pub(super) fn above(&self, above: u64, mut dir: u64) -> bool {
        while dir != above && dir != 1 {
            dir = self.nodes[&dir].parent;
        }
        dir == above
    }

    /// Renames; the two directories.
    pub(super) fn rename(
        &mut self,
        creds: &Creds,
        from: &PathRef,
        to: &PathRef,
        RenameFlags { no_replace, exchange, replaced }: RenameFlags,
    ) -> Run<(u64, u64)> {
        if no_replace && exchange {
            return Err(libc::EINVAL);
        }
        let ((a, source), (b, target)) = (self.walk(creds, from)?, self.walk(creds, to)?);
        let source = source.ok_or(libc::ENOENT)?;
        if target.is_some() && no_replace {
            return Err(libc::EEXIST);
        }
        if target.is_none() && exchange {
            return Err(libc::ENOENT);
        }
        let is_dir = |ino: u64| self.nodes[&ino].kind == Kind::Dir;
        let moves_dir = is_dir(source);
        if a != b {
            if moves_dir && self.above(source, b) {
                return Err(libc::EINVAL);
            }
            if target.is_some_and(|target| is_dir(target) && self.above(target, a)) {
                return Err(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
            }
        }
        if target == Some(source) {
            return Ok((a, b));
        }
        self.may_remove(creds, a, source)?;
        match target {
            None => self.allowed(creds, b, WRITE | EXEC)?,
            Some(target) => {
                self.may_remove(creds, b, target)?;
                if !exchange && moves_dir && !is_dir(target) {
                    return Err(libc::ENOTDIR);
                }
                if !exchange && !moves_dir && is_dir(target) {
                    return Err(libc::EISDIR);
                }
            }
        }
        if a != b {
            if moves_dir {
                self.allowed(creds, source, WRITE)?;
            }
            if exchange && is_dir(target.unwrap()) {
                self.allowed(creds, target.unwrap(), WRITE)?;
            }
        }
        self.names_change(a)?;
        self.names_change(b)?;
        if let Some(target) = target.filter(|target| !exchange && is_dir(*target))
            && replaced.is_some_and(|replaced| replaced != target)
        {
            return Err(libc::ESTALE);
        }
        if let Some(target) = target.filter(|_| !exchange)
            && !self.nodes[&target].children.is_empty()
        {
            return Err(libc::ENOTEMPTY);
        }
        let target_is_dir = target.map(is_dir);
        self.node_mut(a).children.remove(from.name.as_bytes());
        self.node_mut(b).children.insert(to.name.as_bytes().to_vec(), source);
        if moves_dir {
            self.node_mut(a).nlink -= 1;
            self.node_mut(b).nlink += 1;
            self.node_mut(source).parent = b;
        }
        let now = self.now;
        self.node_mut(source).ctime = now;
        match (target, exchange) {
            (Some(target), true) => {
                self.node_mut(a).children.insert(from.name.as_bytes().to_vec(), target);
                if target_is_dir == Some(true) {
                    self.node_mut(b).nlink -= 1;
                    self.node_mut(a).nlink += 1;
                    self.node_mut(target).parent = a;
                }
                self.node_mut(target).ctime = now;
            }
            (Some(target), false) if target_is_dir == Some(true) => {
                self.node_mut(b).nlink -= 1;
                self.nodes.remove(&target);
            }
            (Some(target), false) => self.unname(target),
            (None, _) => {}
        }
        self.touch_dir(a);
        self.touch_dir(b);
        Ok((a, b))
    }

    pub(super) fn link(
        &mut self,
        creds: &Creds,
        file: &InodeRef,
        path: &PathRef,
        reply: MaybeReply<'_>,
    ) -> Run<()> {
        let ino = file.ino;
        self.node(ino)?;
        let (dir, there) = self.walk(creds, path)?;
        if there.is_some() {
            return Err(libc::EEXIST);
        }
        let node = self.node(ino)?;
        if ![0, node.uid].contains(&creds.uid) {
            let set_ids = node.mode & 0o4000 != 0 || node.mode & 0o2010 == 0o2010;
            let safe = node.kind == Kind::File
                && !set_ids
                && self.allowed(creds, ino, READ | WRITE).is_ok();
            if !safe {
                return Err(libc::EPERM);
            }
        }
        self.names_change(dir)?;
        self.allowed(creds, dir, WRITE | EXEC)?;
        self.changeable(ino)?;
        self.inode_changes(file, reply)?;
        let node = self.node(ino)?;
        if node.kind == Kind::Dir {
            return Err(libc::EPERM);
        }
        if node.nlink == 0 && !node.linkable && node.outside == 0 {
            return Err(libc::ENOENT);
        }
        let now = self.now;
        let node = self.node_mut(ino);
        node.nlink += 1;
        node.linked = true;
        node.ctime = now;
        node.linkable = false;
        self.node_mut(dir).children.insert(path.name.as_bytes().to_vec(), ino);
        self.touch_dir(dir);
        Ok(())
    }

    pub(super) fn make(
        &mut self,
        creds: &Creds,
        dir: u64,
        kind: Kind,
        mode: u32,
        reply: MaybeReply<'_>,
    ) -> Run<u64> {
        let d = self.node(dir).unwrap();
        let (mode, umask) = split_umask(mode);
        let (gid, mut mode) = if d.mode & 0o2000 != 0 { (d.gid, mode) } else { (creds.gid, mode) };
        if d.mode & 0o2000 != 0 {
            if kind == Kind::Dir {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && creds.uid != 0 && !Self::member(creds, gid) {
                mode &= !0o2000;
            }
        }
        let (mode, acls) = d.inherit_acl((mode, umask), kind);
        let (ino, data_change) = self.numbers(reply)?;
        if self.nodes.contains_key(&ino) {
            return Err(MISFIT);
        }
        let inherited = self.node(dir)?.flags.only(InodeFlags::NO_DUMP.with(InodeFlags::NO_ATIME));
        let mut node = self.fresh(kind, mode, creds.uid, gid, dir);
        if matches!(kind, Kind::File | Kind::Dir) {
            node.flags = inherited;
        }
        node.data_change = data_change;
        node.xattrs.extend(acls);
        self.nodes.insert(ino, Arc::new(node));
        Ok(ino)
    }

    pub(super) fn add(
        &mut self,
        creds: &Creds,
        path: &PathRef,
        kind: Kind,
        mode: u32,
        reply: MaybeReply<'_>,
    ) -> Run<u64> {
        let (dir, there) = self.walk(creds, path)?;
        if there.is_some() {
            return Err(libc::EEXIST);
        }
        self.names_change(dir)?;
        self.allowed(creds, dir, WRITE | EXEC)?;
        if matches!(kind, Kind::Char | Kind::Block) && creds.uid != 0 {
            return Err(libc::EPERM);
        }
        let ino = self.make(creds, dir, kind, mode, reply)?;
        self.node_mut(dir).children.insert(path.name.as_bytes().to_vec(), ino);
        if kind == Kind::Dir {
            self.node_mut(dir).nlink += 1;
        }
        self.touch_dir(dir);
        Ok(ino)
    }
}
