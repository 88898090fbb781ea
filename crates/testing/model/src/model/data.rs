//! The model's file contents and extended attributes.

use kestrel_types::extent::{Extent, Source};
use kestrel_types::inode::{CHUNK_BYTES, InodeFlags, Kind};
use kestrel_types::policy::XATTR_PREFIX;
use kestrel_types::request::{Commit, Creds, NewData, Op, XattrFlags};

use super::acl;
use super::{Byte, CONFLICT, Layout, MaybeReply, Model, READ, Run, WRITE, code};

impl Model {
    pub(super) fn cut(&mut self, ino: u64, size: u64) {
        let node = self.node_mut(ino);
        node.bytes.retain(|at, _| *at < size);
        node.size = size;
        if size == 0 {
            node.layout = Layout::None;
        }
    }

    pub(super) fn truncate(&mut self, ino: u64, size: u64, reply: MaybeReply<'_>) -> Run<()> {
        let now = self.now;
        if size != self.node(ino)?.size {
            self.cut(ino, size);
            self.node_mut(ino).data_change = self.numbers(reply)?.1;
        }
        let node = self.node_mut(ino);
        node.drop_capabilities();
        (node.mtime, node.ctime) = (now, now);
        Ok(())
    }

    pub(super) fn expand(at: u64, extent: &Extent) -> Vec<(u64, Option<Byte>)> {
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

    pub(super) fn lay(&mut self, ino: u64, bytes: Vec<(u64, Option<Byte>)>) {
        let node = self.node_mut(ino);
        for (at, byte) in bytes {
            match byte {
                Some(byte) => node.bytes.insert(at, byte),
                None => node.bytes.remove(&at),
            };
        }
    }

    pub(super) fn commit(
        &mut self,
        creds: &Creds,
        commit: &Commit,
        reply: MaybeReply<'_>,
    ) -> Run<()> {
        let ino = commit.inode.ino;
        let node = self.node(ino)?.clone();
        if node.kind != Kind::File {
            return Err(libc::EINVAL);
        }
        if node.flags.has(InodeFlags::IMMUTABLE) {
            return Err(libc::EPERM);
        }
        self.inode_changes(&commit.inode, reply)?;
        // A client may know from a snapshot which state of content it is, and the model not.
        let conflicts = match reply.filter(|_| node.data_change == 0) {
            Some(reply) => code(reply) == CONFLICT,
            None => node.data_change != commit.base,
        };
        if conflicts {
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
                self.lay(
                    ino,
                    (0..).zip(bytes.iter().map(|byte| Some(Byte::Inline(*byte)))).collect(),
                );
                self.node_mut(ino).layout =
                    if bytes.is_empty() { Layout::None } else { Layout::Inline };
            }
            NewData::Packed(range) => {
                if u64::from(range.len) > size {
                    return Err(libc::EINVAL);
                }
                self.cut(ino, 0);
                self.lay(ino, Self::expand(0, &Extent::of_range(0, *range)));
                self.node_mut(ino).layout = Layout::Packed(*range);
            }
            NewData::Patches(patches) => {
                if node.layout == Layout::Inline {
                    let inline = node.bytes.keys().last().map_or(0, |last| last + 1).min(size);
                    let covers = |at: u64| {
                        patches.iter().any(|(chunk, extent)| {
                            *chunk == 0
                                && (u64::from(extent.pos)..u64::from(extent.end())).contains(&at)
                        })
                    };
                    if !(0..inline).all(covers) {
                        return Err(libc::EINVAL);
                    }
                }
                if patches
                    .iter()
                    .any(|(chunk, extent)| chunk * CHUNK_BYTES + u64::from(extent.end()) > size)
                {
                    return Err(libc::EINVAL);
                }
                if size < node.size {
                    self.cut(ino, size);
                }
                for (chunk, extent) in patches {
                    self.lay(ino, Self::expand(chunk * CHUNK_BYTES, extent));
                }
                self.node_mut(ino).layout = Layout::Chunked;
            }
        }
        let now = self.now;
        if commit.kill_suid {
            self.kill_suid(creds, ino);
        }
        if commit.data != NewData::Unchanged || size != node.size {
            self.node_mut(ino).data_change = self.numbers(reply)?.1;
        }
        let node = self.node_mut(ino);
        node.drop_capabilities();
        node.size = size;
        node.mtime = commit.mtime;
        node.ctime = node.ctime.max(commit.mtime.min(now));
        Ok(())
    }

    pub(super) fn clone_range(
        &mut self,
        creds: &Creds,
        op: &Op,
        reply: MaybeReply<'_>,
    ) -> Run<u64> {
        let Op::Clone { from, from_offset, to, to_offset, len } = op else { unreachable!() };
        let (source, target) = (self.node(from.ino)?.clone(), self.node(to.ino)?.clone());
        if target.flags.has(InodeFlags::IMMUTABLE) {
            return Err(libc::EPERM);
        }
        self.inode_changes(to, reply)?;
        if source.kind != Kind::File || target.kind != Kind::File {
            return Err(libc::EINVAL);
        }
        if source.layout == Layout::Inline || target.layout == Layout::Inline {
            return Err(libc::EOPNOTSUPP);
        }
        if from_offset.checked_add(*len).is_none_or(|end| end > source.size) {
            return Err(libc::EINVAL);
        }
        if from.ino == to.ino && *from_offset < to_offset + len && *to_offset < from_offset + len {
            return Err(libc::EINVAL);
        }
        let bytes: Vec<_> = (0..*len)
            .map(|i| (to_offset + i, source.bytes.get(&(from_offset + i)).copied()))
            .collect();
        self.lay(to.ino, bytes);
        let now = self.now;
        let whole =
            *from_offset == 0 && *to_offset == 0 && *len == source.size && target.size <= *len;
        let data_change = self.numbers(reply)?.1;
        let node = self.node_mut(to.ino);
        node.drop_capabilities();
        node.layout = if whole { source.layout } else { Layout::Chunked };
        node.size = node.size.max(to_offset + len);
        (node.mtime, node.ctime, node.data_change) = (now, now, data_change);
        if creds.uid != 0 {
            self.kill_suid(creds, to.ino);
        }
        Ok(to.ino)
    }

    pub(super) fn xattr_check(&self, creds: &Creds, ino: u64, name: &[u8], write: bool) -> Run<()> {
        let refused = if write { libc::EPERM } else { libc::ENODATA };
        if write {
            self.changeable(ino)?;
        }
        let node = self.node(ino)?;
        if name.starts_with(b"trusted.") {
            return if creds.uid == 0 { Ok(()) } else { Err(refused) };
        }
        if name.starts_with(b"security.") {
            return if creds.uid == 0 || !write { Ok(()) } else { Err(refused) };
        }
        match node.kind {
            Kind::Dir
                if write && node.mode & 0o1000 != 0 && ![0, node.uid].contains(&creds.uid) =>
            {
                Err(refused)
            }
            Kind::File | Kind::Dir => self.allowed(creds, ino, if write { WRITE } else { READ }),
            _ => Err(refused),
        }
    }

    /// The attributes by which policies are seen and set; `None`: it is about another one.
    fn policy_xattr(&mut self, creds: &Creds, op: &Op) -> Option<Run<Option<Vec<u8>>>> {
        let (Op::GetXattr(inode, name)
        | Op::SetXattr(inode, name, ..)
        | Op::RemoveXattr(inode, name)) = op
        else {
            return None;
        };
        let (ino, field) = (inode.ino, name.strip_prefix(XATTR_PREFIX)?);
        Some(match op {
            Op::SetXattr(_, _, value, flags) => {
                self.set_policy(creds, ino, (field, Some(value)), *flags).map(|()| None)
            }
            Op::RemoveXattr(..) => {
                self.set_policy(creds, ino, (field, None), XattrFlags::default()).map(|()| None)
            }
            _ => self.get_policy(ino, field).map(Some),
        })
    }

    pub(super) fn xattr(
        &mut self,
        creds: &Creds,
        op: &Op,
        reply: MaybeReply<'_>,
    ) -> Run<Option<Vec<u8>>> {
        if let Some(done) = self.policy_xattr(creds, op) {
            return done;
        }
        let now = self.now;
        match op {
            Op::GetXattr(inode, name) => {
                self.node(inode.ino)?;
                if acl::is_acl(name) {
                    return self.get_acl(inode.ino, name).map(Some);
                }
                if name.starts_with(b"system.") {
                    return Err(libc::EOPNOTSUPP);
                }
                self.xattr_check(creds, inode.ino, name, false)?;
                self.node(inode.ino)?.xattrs.get(&**name).cloned().map(Some).ok_or(libc::ENODATA)
            }
            Op::SetXattr(inode, name, value, flags) => {
                if acl::is_acl(name) {
                    self.set_acl(creds, inode, (name, value), *flags, reply)?;
                    return Ok(None);
                }
                self.node(inode.ino)?;
                self.xattr_check(creds, inode.ino, name, true)?;
                self.inode_changes(inode, reply)?;
                let node = self.node_mut(inode.ino);
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
                if acl::is_acl(name) {
                    self.remove_acl(creds, inode, name, reply)?;
                    return Ok(None);
                }
                self.xattr_check(creds, inode.ino, name, true)?;
                self.inode_changes(inode, reply)?;
                let node = self.node_mut(inode.ino);
                node.xattrs.remove(&**name).ok_or(libc::ENODATA)?;
                node.ctime = now;
                Ok(None)
            }
            Op::ListXattr(inode) => {
                let node = self.node(inode.ino)?;
                let mut names = Vec::new();
                let mut list = |name: &Vec<u8>| {
                    names.extend_from_slice(name);
                    names.push(0);
                };
                let (acls, others): (Vec<_>, Vec<_>) =
                    node.xattrs.keys().partition(|name| acl::is_acl(name));
                acls.into_iter().for_each(&mut list);
                self.policy_names(inode.ino).iter().for_each(&mut list);
                let is_listed = |name: &&Vec<u8>| {
                    **name != b"->" && (creds.uid == 0 || !name.starts_with(b"trusted."))
                };
                others.into_iter().filter(is_listed).for_each(list);
                Ok(Some(names))
            }
            _ => unreachable!(),
        }
    }
}
