//! The model's names: what removes, moves and adds them.

use kestrel_types::inode::Kind;
use kestrel_types::name::Place;
use kestrel_types::request::Creds;

use super::{Model, R, R_, W_, X_};

impl Model {
    pub(super) fn unname(&mut self, ino: u64) {
        let now = self.now;
        let node = self.get(ino);
        node.nlink -= 1;
        node.ctime = now;
        self.drop_if_gone(ino);
    }

    pub(super) fn unlink(&mut self, creds: &Creds, place: &Place) -> R<u64> {
        let (dir, there) = self.walk(creds, place)?;
        let ino = there.ok_or(libc::ENOENT)?;
        self.may_remove(creds, dir, ino)?;
        if self.node(ino)?.kind == Kind::Dir {
            return Err(libc::EISDIR);
        }
        self.get(dir).children.remove(place.name.as_bytes());
        self.touch_dir(dir);
        self.unname(ino);
        Ok(ino)
    }

    pub(super) fn rmdir(&mut self, creds: &Creds, place: &Place) -> R<u64> {
        let (dir, there) = self.walk(creds, place)?;
        let ino = there.ok_or(libc::ENOENT)?;
        self.may_remove(creds, dir, ino)?;
        let node = self.node(ino)?;
        if node.kind != Kind::Dir {
            return Err(libc::ENOTDIR);
        }
        if !node.children.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.get(dir).children.remove(place.name.as_bytes());
        self.get(dir).nlink -= 1;
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

    pub(super) fn rename(
        &mut self,
        creds: &Creds,
        from: &Place,
        to: &Place,
        no_replace: bool,
        exchange: bool,
    ) -> R<()> {
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
            return Ok(());
        }
        self.may_remove(creds, a, source)?;
        match target {
            None => self.allowed(creds, b, W_ | X_)?,
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
                self.allowed(creds, source, W_)?;
            }
            if exchange && is_dir(target.unwrap()) {
                self.allowed(creds, target.unwrap(), W_)?;
            }
        }
        if let Some(target) = target.filter(|_| !exchange)
            && !self.nodes[&target].children.is_empty()
        {
            return Err(libc::ENOTEMPTY);
        }
        let target_is_dir = target.map(is_dir);
        self.get(a).children.remove(from.name.as_bytes());
        self.get(b).children.insert(to.name.as_bytes().to_vec(), source);
        if moves_dir {
            self.get(a).nlink -= 1;
            self.get(b).nlink += 1;
            self.get(source).parent = b;
        }
        let now = self.now;
        self.get(source).ctime = now;
        match (target, exchange) {
            (Some(target), true) => {
                self.get(a).children.insert(from.name.as_bytes().to_vec(), target);
                if target_is_dir == Some(true) {
                    self.get(b).nlink -= 1;
                    self.get(a).nlink += 1;
                    self.get(target).parent = a;
                }
                self.get(target).ctime = now;
            }
            (Some(target), false) if target_is_dir == Some(true) => {
                self.get(b).nlink -= 1;
                self.nodes.remove(&target);
            }
            (Some(target), false) => self.unname(target),
            (None, _) => {}
        }
        self.touch_dir(a);
        self.touch_dir(b);
        Ok(())
    }

    pub(super) fn link(&mut self, creds: &Creds, ino: u64, place: &Place) -> R<()> {
        self.node(ino)?;
        let (dir, there) = self.walk(creds, place)?;
        if there.is_some() {
            return Err(libc::EEXIST);
        }
        let node = self.node(ino)?;
        if ![0, node.uid].contains(&creds.uid) {
            let set_ids = node.mode & 0o4000 != 0 || node.mode & 0o2010 == 0o2010;
            let safe = node.kind == Kind::File && !set_ids && self.allowed(creds, ino, R_ | W_).is_ok();
            if !safe {
                return Err(libc::EPERM);
            }
        }
        self.allowed(creds, dir, W_ | X_)?;
        let node = self.node(ino)?;
        if node.kind == Kind::Dir {
            return Err(libc::EPERM);
        }
        if node.nlink == 0 && !node.linkable {
            return Err(libc::ENOENT);
        }
        let now = self.now;
        let node = self.get(ino);
        node.nlink += 1;
        node.ctime = now;
        node.linkable = false;
        self.get(dir).children.insert(place.name.as_bytes().to_vec(), ino);
        self.touch_dir(dir);
        Ok(())
    }
}
