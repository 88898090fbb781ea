//! A small file system in memory that says what a node should answer. Written from the manual pages, not from the node.

mod data;
mod names;

use std::collections::BTreeMap;

use kestrel_types::clock::Nanos;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::Place;
use kestrel_types::range::Range;
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, Reply, SetAttr, SetTime};

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
            (Shown::Removed(ino), Answer::Removed(real)) if real.ino == ino => Ok(()),
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
