//! A small file system in memory that says what a node should answer. Written from the manual pages, not from the node.

use std::collections::BTreeMap;

use kestrel_types::clock::Nanos;
use kestrel_types::extent::{Extent, Source};
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, Kind};
use kestrel_types::name::Place;
use kestrel_types::range::Range;
use kestrel_types::request::{Answer, Creds, NewData, Op, OpenFlags, Reply, SetAttr, SetTime};

use super::errno;

pub const NEED_GROUPS: i32 = -1;
pub const CONFLICT: i32 = -2;
pub const SYMLINK: i32 = -3;

/// Where a byte comes from; absent: a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Byte {
    Inline(u8),
    /// Object, and its byte counted from the start of the range.
    Stored(u64, u32, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    None,
    Inline,
    Packed(Range),
    Chunked,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub size: u64,
    pub atime: Nanos,
    pub mtime: Nanos,
    pub ctime: Nanos,
    pub parent: u64,
    pub children: BTreeMap<Vec<u8>, u64>,
    pub bytes: BTreeMap<u64, Byte>,
    pub layout: Layout,
    pub data_change: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub linkable: bool,
    pub opens: u32,
}

pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    pub now: Nanos,
}

type R<T> = Result<T, i32>;

const R_: u16 = 4;
const W_: u16 = 2;
const X_: u16 = 1;

impl Model {
    pub fn new(now: Nanos) -> Self {
        let mut model = Self { nodes: BTreeMap::new(), now };
        let mut root = model.fresh(Kind::Dir, 0o777, 0, 0, 1);
        root.parent = 1;
        model.nodes.insert(1, root);
        model
    }

    fn fresh(&self, kind: Kind, mode: u16, uid: u32, gid: u32, parent: u64) -> Node {
        Node {
            kind,
            mode,
            uid,
            gid,
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            rdev: 0,
            size: if kind == Kind::Dir { 4096 } else { 0 },
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            parent,
            children: BTreeMap::new(),
            bytes: BTreeMap::new(),
            layout: Layout::None,
            data_change: 0,
            xattrs: BTreeMap::new(),
            linkable: false,
            opens: 0,
        }
    }

    fn node(&self, ino: u64) -> R<&Node> {
        self.nodes.get(&ino).ok_or(libc::ESTALE)
    }

    fn get(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn member(creds: &Creds, gid: u32) -> bool {
        creds.gid == gid || creds.groups.as_ref().unwrap().contains(&gid)
    }

    fn allowed(&self, creds: &Creds, ino: u64, want: u16) -> R<()> {
        let node = self.node(ino)?;
        let bits = if creds.uid == 0 {
            let x = if node.kind == Kind::Dir || node.mode & 0o111 != 0 { X_ } else { 0 };
            R_ | W_ | x
        } else if creds.uid == node.uid {
            node.mode >> 6 & 7
        } else if Self::member(creds, node.gid) {
            node.mode >> 3 & 7
        } else {
            node.mode & 7
        };
        if bits & want == want { Ok(()) } else { Err(libc::EACCES) }
    }

    /// The directory a place leads to, and what has the name there.
    fn walk(&self, creds: &Creds, place: &Place) -> R<(u64, Option<u64>)> {
        let mut dir = place.base;
        let gone = |_| libc::ENOENT;
        self.node(dir).map_err(gone)?;
        self.allowed(creds, dir, X_)?;
        for name in &place.dirs {
            let child = *self.node(dir).unwrap().children.get(name.as_bytes()).ok_or(libc::ENOENT)?;
            match self.node(child).unwrap().kind {
                Kind::Dir => {}
                Kind::Symlink => return Err(SYMLINK),
                _ => return Err(libc::ENOTDIR),
            }
            self.allowed(creds, child, X_)?;
            dir = child;
        }
        Ok((dir, self.node(dir).unwrap().children.get(place.name.as_bytes()).copied()))
    }

    fn sticky(&self, creds: &Creds, dir: u64, victim: u64) -> R<()> {
        let (d, v) = (self.node(dir)?, self.node(victim)?);
        let fine = d.mode & 0o1000 == 0 || [0, d.uid, v.uid].contains(&creds.uid);
        if fine { Ok(()) } else { Err(libc::EPERM) }
    }

    fn may_remove(&self, creds: &Creds, dir: u64, victim: u64) -> R<()> {
        self.allowed(creds, dir, W_ | X_)?;
        self.sticky(creds, dir, victim)
    }

    fn touch_dir(&mut self, dir: u64) {
        let now = self.now;
        let node = self.get(dir);
        (node.mtime, node.ctime) = (now, now);
    }

    fn drop_if_gone(&mut self, ino: u64) {
        let node = &self.nodes[&ino];
        if node.kind != Kind::Dir && node.nlink == 0 && node.opens == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn new_ino(real: &Reply) -> R<(u64, u64)> {
        match real {
            Ok(Answer::Inode(inode) | Answer::Opened { inode, .. }) => Ok((inode.ino, inode.data_change)),
            _ => Err(9999),
        }
    }

    fn make(&mut self, creds: &Creds, dir: u64, kind: Kind, mode: u16, real: &Reply) -> R<u64> {
        let d = self.node(dir).unwrap();
        let (gid, mut mode) = if d.mode & 0o2000 != 0 { (d.gid, mode) } else { (creds.gid, mode) };
        if d.mode & 0o2000 != 0 {
            if kind == Kind::Dir {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && creds.uid != 0 && !Self::member(creds, gid) {
                mode &= !0o2000;
            }
        }
        let (ino, data_change) = Self::new_ino(real)?;
        assert!(!self.nodes.contains_key(&ino), "inode number {ino} was given twice");
        let mut node = self.fresh(kind, mode, creds.uid, gid, dir);
        node.data_change = data_change;
        self.nodes.insert(ino, node);
        Ok(ino)
    }

    fn add(&mut self, creds: &Creds, place: &Place, kind: Kind, mode: u16, real: &Reply) -> R<u64> {
        let (dir, there) = self.walk(creds, place)?;
        if there.is_some() {
            return Err(libc::EEXIST);
        }
        self.allowed(creds, dir, W_)?;
        if matches!(kind, Kind::Char | Kind::Block) && creds.uid != 0 {
            return Err(libc::EPERM);
        }
        let ino = self.make(creds, dir, kind, mode, real)?;
        self.get(dir).children.insert(place.name.as_bytes().to_vec(), ino);
        if kind == Kind::Dir {
            self.get(dir).nlink += 1;
        }
        self.touch_dir(dir);
        Ok(ino)
    }

    fn open(&mut self, creds: &Creds, ino: u64, flags: &OpenFlags, real: &Reply) -> R<u64> {
        let node = self.node(ino)?;
        match node.kind {
            Kind::Symlink => return Err(libc::ELOOP),
            Kind::Dir if flags.write || flags.truncate => return Err(libc::EISDIR),
            _ => {}
        }
        let want = [(flags.read, R_), (flags.write || flags.truncate, W_), (flags.exec, X_)];
        let want = want.iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit);
        self.allowed(creds, ino, want)?;
        if flags.truncate && self.node(ino)?.kind == Kind::File {
            self.truncate(ino, 0, real)?;
            if flags.kill_suid {
                self.kill_suid(ino);
            }
        }
        if self.node(ino)?.kind != Kind::Dir {
            self.get(ino).opens += 1;
        }
        Ok(ino)
    }

    fn kill_suid(&mut self, ino: u64) {
        let node = self.get(ino);
        node.mode &= !0o4000;
        if node.mode & 0o010 != 0 {
            node.mode &= !0o2000;
        }
    }

    fn cut(&mut self, ino: u64, size: u64) {
        let node = self.get(ino);
        node.bytes.retain(|at, _| *at < size);
        node.size = size;
        if size == 0 {
            node.layout = Layout::None;
        }
    }

    fn truncate(&mut self, ino: u64, size: u64, real: &Reply) -> R<()> {
        let now = self.now;
        if size != self.node(ino)?.size {
            self.cut(ino, size);
            self.get(ino).data_change = Self::new_ino(real)?.1;
        }
        let node = self.get(ino);
        (node.mtime, node.ctime) = (now, now);
        Ok(())
    }

    fn setattr(&mut self, creds: &Creds, ino: u64, set: &SetAttr, real: &Reply) -> R<()> {
        let node = self.node(ino)?.clone();
        let owner = creds.uid == 0 || creds.uid == node.uid;
        if set.size.is_some() {
            match node.kind {
                Kind::File => {}
                Kind::Dir => return Err(libc::EISDIR),
                _ => return Err(libc::EINVAL),
            }
            if !set.through_handle {
                self.allowed(creds, ino, W_)?;
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
                (Some(_), Some(_)) => self.allowed(creds, ino, W_)?,
                _ => return Err(libc::EPERM),
            }
        }
        if let Some(size) = set.size {
            self.truncate(ino, size, real)?;
        }
        if node.kind != Kind::Dir && (set.uid.is_some() || set.gid.is_some() || set.kill_suid) {
            self.kill_suid(ino);
        }
        let now = self.now;
        let node = self.get(ino);
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mode) = set.mode {
            node.mode = mode;
            if creds.uid != 0 && !Self::member(creds, node.gid) {
                node.mode &= !0o2000;
            }
        }
        let time = |set: SetTime| if let SetTime::At(at) = set { at } else { now };
        node.atime = set.atime.map_or(node.atime, time);
        node.mtime = set.mtime.map_or(node.mtime, time);
        node.ctime = now;
        Ok(())
    }

    fn unname(&mut self, ino: u64) {
        let now = self.now;
        let node = self.get(ino);
        node.nlink -= 1;
        node.ctime = now;
        self.drop_if_gone(ino);
    }

    fn unlink(&mut self, creds: &Creds, place: &Place) -> R<u64> {
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

    fn rmdir(&mut self, creds: &Creds, place: &Place) -> R<u64> {
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

    fn above(&self, above: u64, mut dir: u64) -> bool {
        while dir != above && dir != 1 {
            dir = self.nodes[&dir].parent;
        }
        dir == above
    }

    fn rename(&mut self, creds: &Creds, from: &Place, to: &Place, no_replace: bool, exchange: bool) -> R<()> {
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

    fn link(&mut self, creds: &Creds, ino: u64, place: &Place) -> R<()> {
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

    fn expand(at: u64, extent: &Extent) -> Vec<(u64, Option<Byte>)> {
        (0..extent.len)
            .map(|i| {
                let byte = match extent.source {
                    Source::Hole => None,
                    Source::Stored { range, skip } => {
                        Some(Byte::Stored(range.object, range.offset, skip + i))
                    }
                };
                (at + u64::from(extent.pos + i), byte)
            })
            .collect()
    }

    fn lay(&mut self, ino: u64, bytes: Vec<(u64, Option<Byte>)>) {
        let node = self.get(ino);
        for (at, byte) in bytes {
            match byte {
                Some(byte) => node.bytes.insert(at, byte),
                None => node.bytes.remove(&at),
            };
        }
    }

    fn commit(&mut self, commit: &kestrel_types::request::Commit, real: &Reply) -> R<()> {
        let ino = commit.inode.ino;
        let node = self.node(ino)?.clone();
        if node.kind != Kind::File {
            return Err(libc::EINVAL);
        }
        if node.data_change != commit.base {
            return Err(CONFLICT);
        }
        let size = commit.size.unwrap_or(node.size);
        match &commit.data {
            NewData::Unchanged => {
                if size != node.size {
                    self.cut(ino, size);
                }
            }
            NewData::Inline(bytes) => {
                if bytes.len() as u64 > size {
                    return Err(libc::EINVAL);
                }
                self.cut(ino, 0);
                self.lay(ino, (0..).zip(bytes.iter().map(|byte| Some(Byte::Inline(*byte)))).collect());
                self.get(ino).layout = if bytes.is_empty() { Layout::None } else { Layout::Inline };
            }
            NewData::Packed(range) => {
                if u64::from(range.len) > size {
                    return Err(libc::EINVAL);
                }
                self.cut(ino, 0);
                self.lay(ino, Self::expand(0, &Extent::of_range(0, *range)));
                self.get(ino).layout = Layout::Packed(*range);
            }
            NewData::Patches(patches) => {
                if node.layout == Layout::Inline {
                    let inline = node.bytes.keys().last().map_or(0, |last| last + 1).min(size);
                    let covers = |at: u64| {
                        patches.iter().any(|(chunk, extent)| {
                            *chunk == 0 && (u64::from(extent.pos)..u64::from(extent.end())).contains(&at)
                        })
                    };
                    if !(0..inline).all(covers) {
                        return Err(libc::EINVAL);
                    }
                }
                if patches.iter().any(|(chunk, extent)| chunk * CHUNK_BYTES + u64::from(extent.end()) > size)
                {
                    return Err(libc::EINVAL);
                }
                if size < node.size {
                    self.cut(ino, size);
                }
                for (chunk, extent) in patches {
                    self.lay(ino, Self::expand(chunk * CHUNK_BYTES, extent));
                }
                self.get(ino).layout = Layout::Chunked;
            }
        }
        let now = self.now;
        if commit.kill_suid {
            self.kill_suid(ino);
        }
        if commit.data != NewData::Unchanged || size != node.size {
            self.get(ino).data_change = Self::new_ino(real)?.1;
        }
        let node = self.get(ino);
        node.size = size;
        node.mtime = commit.mtime;
        node.ctime = now;
        Ok(())
    }

    fn clone_range(&mut self, creds: &Creds, op: &Op, real: &Reply) -> R<u64> {
        let Op::Clone { from, from_offset, to, to_offset, len } = op else { unreachable!() };
        let (source, target) = (self.node(from.ino)?.clone(), self.node(to.ino)?.clone());
        if source.kind != Kind::File || target.kind != Kind::File {
            return Err(libc::EINVAL);
        }
        if source.layout == Layout::Inline || target.layout == Layout::Inline {
            return Err(libc::EOPNOTSUPP);
        }
        if from_offset + len > source.size {
            return Err(libc::EINVAL);
        }
        if from.ino == to.ino && *from_offset < to_offset + len && *to_offset < from_offset + len {
            return Err(libc::EINVAL);
        }
        let bytes: Vec<_> =
            (0..*len).map(|i| (to_offset + i, source.bytes.get(&(from_offset + i)).copied())).collect();
        self.lay(to.ino, bytes);
        let now = self.now;
        let whole = *from_offset == 0 && *to_offset == 0 && *len == source.size && target.size <= *len;
        let data_change = Self::new_ino(real)?.1;
        let node = self.get(to.ino);
        node.layout = if whole { source.layout } else { Layout::Chunked };
        node.size = node.size.max(to_offset + len);
        (node.mtime, node.ctime, node.data_change) = (now, now, data_change);
        if creds.uid != 0 {
            self.kill_suid(to.ino);
        }
        Ok(to.ino)
    }

    fn xattr_check(&self, creds: &Creds, ino: u64, name: &[u8], write: bool) -> R<()> {
        let refused = if write { libc::EPERM } else { libc::ENODATA };
        let node = self.node(ino)?;
        if name.starts_with(b"trusted.") {
            return if creds.uid == 0 { Ok(()) } else { Err(refused) };
        }
        if name.starts_with(b"security.") {
            return if creds.uid == 0 || !write { Ok(()) } else { Err(refused) };
        }
        match node.kind {
            Kind::Dir if write && node.mode & 0o1000 != 0 && ![0, node.uid].contains(&creds.uid) => {
                Err(refused)
            }
            Kind::File | Kind::Dir => self.allowed(creds, ino, if write { W_ } else { R_ }),
            _ => Err(refused),
        }
    }

    fn xattr(&mut self, creds: &Creds, op: &Op) -> R<Option<Vec<u8>>> {
        let now = self.now;
        match op {
            Op::GetXattr(inode, name) => {
                self.node(inode.ino)?;
                if name.starts_with(b"system.") {
                    return Err(libc::EOPNOTSUPP);
                }
                self.xattr_check(creds, inode.ino, name, false)?;
                self.node(inode.ino)?.xattrs.get(&**name).cloned().map(Some).ok_or(libc::ENODATA)
            }
            Op::SetXattr(inode, name, value, flags) => {
                self.node(inode.ino)?;
                self.xattr_check(creds, inode.ino, name, true)?;
                let node = self.get(inode.ino);
                match node.xattrs.contains_key(&**name) {
                    true if flags.create => return Err(libc::EEXIST),
                    false if flags.replace => return Err(libc::ENODATA),
                    _ => {}
                }
                node.xattrs.insert(name.to_vec(), value.to_vec());
                node.ctime = now;
                Ok(None)
            }
            Op::RemoveXattr(inode, name) => {
                self.node(inode.ino)?;
                self.xattr_check(creds, inode.ino, name, true)?;
                let node = self.get(inode.ino);
                node.xattrs.remove(&**name).ok_or(libc::ENODATA)?;
                node.ctime = now;
                Ok(None)
            }
            Op::ListXattr(inode) => {
                let node = self.node(inode.ino)?;
                let mut names = Vec::new();
                for name in node
                    .xattrs
                    .keys()
                    .filter(|name| **name != b"->" && (creds.uid == 0 || !name.starts_with(b"trusted.")))
                {
                    names.extend_from_slice(name);
                    names.push(0);
                }
                Ok(Some(names))
            }
            _ => unreachable!(),
        }
    }

    /// Does what the request asks, and says what it thinks of the reply.
    pub fn judge(&mut self, creds: &Creds, op: &Op, real: &Reply) -> Result<(), String> {
        let expected = self.apply(creds, op, real);
        let code = errno(real);
        match expected {
            Ok(shown) => {
                if code != 0 {
                    return Err(format!("expected success, got {code} {real:?}"));
                }
                self.compare(shown, real)
            }
            Err(9999) => Err(format!("expected success, got {code} {real:?}")),
            Err(expected) if expected == code => Ok(()),
            Err(expected) => Err(format!("expected error {expected}, got {code} {real:?}")),
        }
    }

    fn compare(&self, shown: Shown, real: &Reply) -> Result<(), String> {
        let answer = real.as_ref().unwrap();
        match (shown, answer) {
            (Shown::Inode(ino), Answer::Inode(inode) | Answer::Opened { inode, .. }) => self.same(ino, inode),
            (Shown::Bytes(bytes), Answer::Bytes(real)) if **real == bytes => Ok(()),
            (Shown::Removed(ino), Answer::Removed { ino: real, .. }) if *real == ino => Ok(()),
            (Shown::Nothing, _) => Ok(()),
            (Shown::Names(names), Answer::Entries { entries, end: true, .. }) => {
                let real: Vec<_> =
                    entries.iter().map(|e| (e.name.as_bytes().to_vec(), e.ino, e.kind)).collect();
                if real == names { Ok(()) } else { Err(format!("expected {names:?}, got {real:?}")) }
            }
            (shown, answer) => Err(format!("expected {shown:?}, got {answer:?}")),
        }
    }

    /// Compares an inode that was shown.
    pub fn same(&self, ino: u64, real: &Inode) -> Result<(), String> {
        let node = self.nodes.get(&ino).ok_or(format!("inode {ino} should not exist"))?;
        let ours = (ino, node.kind, node.mode, node.uid, node.gid, node.nlink, node.rdev, node.size);
        let theirs = (real.ino, real.kind, real.mode, real.uid, real.gid, real.nlink, real.rdev, real.size);
        let times = (node.atime, node.mtime, node.ctime);
        let real_times = (real.atime, real.mtime, real.ctime);
        if ours != theirs || times != real_times {
            return Err(format!("expected {ours:?} {times:?}, got {theirs:?} {real_times:?}"));
        }
        let layout = match &real.data {
            Data::None => Layout::None,
            Data::Inline(_) => Layout::Inline,
            Data::Packed { range, .. } => Layout::Packed(*range),
            Data::Chunked => Layout::Chunked,
        };
        if node.kind == Kind::File && (layout, real.data_change) != (node.layout, node.data_change) {
            return Err(format!("expected {:?} {}, got {real:?}", node.layout, node.data_change));
        }
        Ok(())
    }

    fn apply(&mut self, creds: &Creds, op: &Op, real: &Reply) -> R<Shown> {
        Ok(match op {
            Op::Lookup(place) => Shown::Inode(self.walk(creds, place)?.1.ok_or(libc::ENOENT)?),
            Op::Parent(dir) => Shown::Inode(self.node(*dir)?.parent),
            Op::GetAttr(inode) => {
                self.node(inode.ino)?;
                Shown::Inode(inode.ino)
            }
            Op::SetAttr(inode, set) => {
                self.setattr(creds, inode.ino, set, real)?;
                Shown::Inode(inode.ino)
            }
            Op::Access(inode, mask) => {
                self.allowed(creds, inode.ino, *mask as u16)?;
                Shown::Nothing
            }
            Op::ReadLink(inode) => {
                let node = self.node(inode.ino)?;
                if node.kind != Kind::Symlink {
                    return Err(libc::EINVAL);
                }
                Shown::Bytes(node.xattrs[&b"->"[..]].clone())
            }
            Op::Create { place, mode, flags, exclusive } => {
                let (_, there) = self.walk(creds, place)?;
                if let Some(ino) = there {
                    if *exclusive {
                        return Err(libc::EEXIST);
                    }
                    match self.node(ino)?.kind {
                        Kind::Dir => return Err(libc::EISDIR),
                        Kind::Symlink => return Err(libc::ELOOP),
                        _ => {}
                    }
                    return Ok(Shown::Inode(self.open(creds, ino, flags, real)?));
                }
                let ino = self.add(creds, place, Kind::File, *mode, real)?;
                self.get(ino).opens = 1;
                Shown::Inode(ino)
            }
            Op::Open(inode, flags) => Shown::Inode(self.open(creds, inode.ino, flags, real)?),
            Op::TmpFile { dir, mode, exclusive } => {
                self.node(*dir).map_err(|_| libc::ENOENT)?;
                self.allowed(creds, *dir, W_ | X_)?;
                let ino = self.make(creds, *dir, Kind::File, *mode, real)?;
                let node = self.get(ino);
                (node.nlink, node.opens, node.linkable) = (0, 1, !exclusive);
                Shown::Inode(ino)
            }
            Op::Release(ino) => {
                if self.nodes.get(ino).is_none_or(|node| node.opens == 0) {
                    return Err(libc::EBADF);
                }
                self.get(*ino).opens -= 1;
                self.drop_if_gone(*ino);
                Shown::Nothing
            }
            Op::MkNod { place, kind, mode, rdev } => {
                let ino = self.add(creds, place, *kind, *mode, real)?;
                self.get(ino).rdev = if matches!(kind, Kind::Char | Kind::Block) { *rdev } else { 0 };
                Shown::Inode(ino)
            }
            Op::MkDir(place, mode) => Shown::Inode(self.add(creds, place, Kind::Dir, *mode, real)?),
            Op::Symlink(place, target) => {
                let ino = self.add(creds, place, Kind::Symlink, 0o777, real)?;
                let node = self.get(ino);
                node.size = target.len() as u64;
                node.xattrs.insert(b"->".to_vec(), target.to_vec());
                Shown::Inode(ino)
            }
            Op::Unlink(place) => Shown::Removed(self.unlink(creds, place)?),
            Op::RmDir(place) => Shown::Removed(self.rmdir(creds, place)?),
            Op::Rename(from, to, flags) => {
                self.rename(creds, from, to, flags.no_replace, flags.exchange)?;
                Shown::Nothing
            }
            Op::Link(inode, place) => {
                self.link(creds, inode.ino, place)?;
                Shown::Inode(inode.ino)
            }
            Op::ReadDir { dir, check, .. } => {
                self.node(*dir).map_err(|_| libc::ENOENT)?;
                if *check {
                    self.allowed(creds, *dir, R_)?;
                }
                let children = &self.node(*dir)?.children;
                Shown::Names(children.iter().map(|(n, i)| (n.clone(), *i, self.nodes[i].kind)).collect())
            }
            Op::Commit(commit) => {
                self.commit(commit, real)?;
                Shown::Inode(commit.inode.ino)
            }
            Op::Clone { .. } => Shown::Inode(self.clone_range(creds, op, real)?),
            Op::GetXattr(..) | Op::SetXattr(..) | Op::RemoveXattr(..) | Op::ListXattr(_) => {
                match self.xattr(creds, op)? {
                    Some(bytes) => Shown::Bytes(bytes),
                    None => Shown::Nothing,
                }
            }
            _ => Shown::Nothing,
        })
    }
}

#[derive(Debug)]
enum Shown {
    Nothing,
    Inode(u64),
    Removed(u64),
    Bytes(Vec<u8>),
    Names(Vec<(Vec<u8>, u64, Kind)>),
}
