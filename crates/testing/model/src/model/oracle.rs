//! What the model makes of requests and replies.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use kestrel_types::extent::Extent;
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Creds, DirEntry, Op, Reply, Usage};

use super::policies::without_numbers;
use super::{
    Byte, EXEC, Layout, MISFIT, MaybeReply, Model, NEED_GROUPS, READ, Run, UNSEEN, WRITE, code,
};

impl Model {
    /// Executes the request, and decides whether the reply fits.
    ///
    /// # Errors
    /// What was expected instead; the model may be half-way then.
    pub fn judge(&mut self, creds: &Creds, op: &Op, reply: &Reply) -> Result<(), String> {
        let got = code(reply);
        if got == NEED_GROUPS && creds.groups.is_none() {
            return Ok(());
        }
        if let Op::At(snapshot, op) = op {
            return self.judge_at(creds, (*snapshot, op), reply);
        }
        if let Op::SnapshotChanges { dir, older, newer, .. } = op {
            return self.judge_changes((creds.uid == 0, *dir), (*older, *newer), reply);
        }
        if let Some(ino) = self.has_ended(op, reply) {
            self.nodes.remove(&ino);
            return Ok(());
        }
        match (self.apply(creds, op, Some(reply)), reply) {
            (Ok(shown), Ok(answer)) => self.compare(shown, answer),
            (Ok(_) | Err(MISFIT), _) => Err(format!("expected success, got {got} {reply:?}")),
            (Err(expected), _) if expected == got => Ok(()),
            (Err(expected), _) => Err(format!("expected error {expected}, got {got} {reply:?}")),
        }
    }

    /// Executes the request, with any reply.
    pub fn assume(&mut self, creds: &Creds, op: &Op) {
        // A failure changes nothing: every check comes before the first change.
        let _ = self.apply(creds, op, None);
    }

    fn compare(&mut self, shown: Shown, answer: &Answer) -> Result<(), String> {
        match (shown, answer) {
            (
                Shown::Entry(dir, ino),
                Answer::Entry { parent, inode }
                | Answer::Opened { parent: Some(parent), inode, .. },
            ) => {
                let dir = self.show(dir, *parent);
                if dir != *parent {
                    return Err(format!("expected it in directory {dir}, got {parent}"));
                }
                let ino = self.show(ino, inode.ino);
                self.may_tell(Some(dir), ino, inode)?;
                self.same(ino, inode)
            }
            (Shown::Moved(a, b), Answer::Renamed { from, to, .. }) => {
                // One after the other: the second may be the first.
                let first = self.show(a, *from);
                let b = if b == a { first } else { b };
                if (first, self.show(b, *to)) == (*from, *to) {
                    return Ok(());
                }
                Err(format!("expected directories {a} and {b}, got {answer:?}"))
            }
            (
                Shown::Inode(ino),
                Answer::Inode(inode) | Answer::Opened { inode, parent: None, .. },
            ) => {
                let ino = self.show(ino, inode.ino);
                self.may_tell(None, ino, inode)?;
                self.same(ino, inode)
            }
            (Shown::Bytes(bytes), Answer::Bytes(real)) if **real == bytes => Ok(()),
            (Shown::PolicyText(text), Answer::Bytes(real)) if **real == text => Ok(()),
            (Shown::PolicyText(text), Answer::Bytes(real))
                if self.has_unseen() && without_numbers(&text) == without_numbers(real) =>
            {
                Ok(())
            }
            (Shown::Snapshots(shown), Answer::Snapshots(real)) => self.same_snapshots(&shown, real),
            (Shown::Usage(usage, true), Answer::Usage(real)) if usage == *real => Ok(()),
            (Shown::Usage(usage, false), Answer::Usage(real))
                if (usage.files, usage.dirs) == (real.files, real.dirs) =>
            {
                Ok(())
            }
            (Shown::Removed(ino), Answer::Removed(real))
                if self.show(ino, real.ino) == real.ino =>
            {
                Ok(())
            }
            (Shown::Chunks(ino, first, last), Answer::Chunks { chunks, end }) => {
                let shown =
                    if *end { last } else { chunks.last().ok_or("no chunk, and not the end")?.0 };
                self.same_chunks(ino, first..=shown, chunks)
            }
            (Shown::Nothing, _) => Ok(()),
            (Shown::Names(names), Answer::Entries { entries, end: true, .. }) => {
                self.listed(&names, entries)
            }
            (Shown::Plus(names), Answer::EntriesPlus { entries, end: true }) => {
                self.listed_plus(&names, entries)
            }
            (shown, answer) => Err(format!("expected {shown:?}, got {answer:?}")),
        }
    }

    /// The number that the model has for what a reply calls `seen`, now that it has been shown.
    pub(super) fn show(&mut self, ino: u64, seen: u64) -> u64 {
        if ino < UNSEEN || self.has_number(seen) {
            return ino;
        }
        self.bind(ino, seen);
        seen
    }

    /// Whether there are directories with a number that no reply has shown.
    fn has_unseen(&self) -> bool {
        self.nodes.range(UNSEEN..).any(|(_, node)| node.kind == Kind::Dir)
    }

    fn listed(
        &mut self,
        names: &[(Vec<u8>, u64, Kind)],
        entries: &[DirEntry],
    ) -> Result<(), String> {
        // A file may have two names there, and be shown by the first.
        let mut numbers = BTreeMap::new();
        let fits = names.len() == entries.len()
            && names.iter().zip(entries).all(|((name, ino, kind), entry)| {
                let shown = numbers.entry(*ino).or_insert_with(|| self.show(*ino, entry.ino));
                (&**name, *kind, *shown) == (entry.name.as_bytes(), entry.kind, entry.ino)
            });
        if fits { Ok(()) } else { Err(format!("expected {names:?}, got {entries:?}")) }
    }

    /// Whether files were found under all their names, and nothing else was.
    fn is_located(&self, files: &[u64], found: &[(u64, DirEntry)]) -> bool {
        let names = |dir: &u64| {
            let children = self.nodes[dir].children.iter();
            children.filter(|(_, ino)| files.contains(ino)).count()
        };
        let right = |(dir, entry): &(u64, DirEntry)| {
            let node = self.nodes.get(dir);
            node.is_some_and(|dir| dir.children.get(entry.name.as_bytes()) == Some(&entry.ino))
                && files.contains(&entry.ino)
        };
        found.iter().all(right) && found.len() == self.nodes.keys().map(names).sum::<usize>()
    }

    /// Compares attributes that came with a listing: of files with one name all, of those that had
    /// more than one perhaps.
    fn listed_plus(
        &mut self,
        names: &[(Vec<u8>, u64, Kind)],
        entries: &[(Name, Box<Inode>)],
    ) -> Result<(), String> {
        let (mut left, mut numbers) = (entries.iter().peekable(), BTreeMap::new());
        for (name, ino, kind) in names {
            let Some((_, real)) = left.next_if(|(listed, _)| listed.as_bytes() == &**name) else {
                let linked = self.nodes.get(ino).is_some_and(|node| node.linked);
                if *kind == Kind::Dir || linked {
                    continue;
                }
                return Err(format!("no attributes of {name:?} in {entries:?}"));
            };
            let ino = *numbers.entry(*ino).or_insert_with(|| self.show(*ino, real.ino));
            self.same_attributes(ino, real)?;
            let node = self.nodes.get(&ino).ok_or(format!("inode {ino} should not exist"))?;
            if *kind == Kind::File && (node.layout == Layout::None) != (real.data == Data::None) {
                return Err(format!("expected {:?}, got {real:?}", node.layout));
            }
        }
        left.next().map_or(Ok(()), |(name, _)| Err(format!("{name:?} is not there")))
    }

    /// Compares an inode that was shown.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn same(&mut self, ino: u64, real: &Inode) -> Result<(), String> {
        self.same_attributes(ino, real)?;
        let node = self.nodes.get(&ino).ok_or(format!("inode {ino} should not exist"))?;
        let layout = match &real.data {
            Data::None => Layout::None,
            Data::Inline(_) => Layout::Inline,
            Data::Packed { range, .. } => Layout::Packed(*range),
            Data::Chunked => Layout::Chunked,
        };
        if node.kind != Kind::File {
            return Ok(());
        }
        let is_same_content = match &real.data {
            Data::Inline(bytes) => {
                let bytes = bytes.iter().map(|byte| Byte::Inline(*byte));
                node.bytes.iter().map(|(at, byte)| (*at, *byte)).eq((0..).zip(bytes))
            }
            Data::Packed { visible, .. } => node.bytes.len() == *visible as usize,
            Data::None | Data::Chunked => true,
        };
        if !is_same_content {
            return Err(format!("expected content {:?}, got {real:?}", node.bytes));
        }
        if layout != node.layout || ![0, real.data_change].contains(&node.data_change) {
            return Err(format!("expected {:?} {}, got {real:?}", node.layout, node.data_change));
        }
        if node.data_change == 0 {
            self.node_mut(ino).data_change = real.data_change;
        }
        Ok(())
    }

    fn same_attributes(&self, ino: u64, real: &Inode) -> Result<(), String> {
        let node = self.nodes.get(&ino).ok_or(format!("inode {ino} should not exist"))?;
        let nlink = if node.may_have_names(real.nlink) { real.nlink } else { node.nlink };
        let ours = (ino, node.kind, node.mode, node.uid, node.gid, nlink, node.rdev, node.size);
        let theirs =
            (real.ino, real.kind, real.mode, real.uid, real.gid, real.nlink, real.rdev, real.size);
        if node.flags != real.flags {
            return Err(format!("expected flags {:?}, got {:?}", node.flags, real.flags));
        }
        let times = (node.atime, node.mtime, node.ctime);
        let real_times = (real.atime, real.mtime, real.ctime);
        if ours != theirs || self.times && times != real_times {
            return Err(format!("expected {ours:?} {times:?}, got {theirs:?} {real_times:?}"));
        }
        Ok(())
    }

    /// Compares chunks that were shown. Only a file with content in chunks has any within its size;
    /// beyond it there may be some that are on their way out.
    fn same_chunks(
        &self,
        ino: u64,
        which: RangeInclusive<u64>,
        real: &[(u64, Vec<Extent>)],
    ) -> Result<(), String> {
        let node = self.nodes.get(&ino).ok_or(format!("inode {ino} should not exist"))?;
        let (from, to) = (which.start() * CHUNK_BYTES, (which.end() + 1) * CHUNK_BYTES);
        let mut ours = BTreeMap::new();
        if node.layout == Layout::Chunked {
            ours.extend(node.bytes.range(from..to).map(|(at, byte)| (*at, *byte)));
        }
        let size = if node.layout == Layout::Chunked { node.size } else { 0 };
        let extents =
            real.iter().flat_map(|(chunk, list)| list.iter().map(move |extent| (*chunk, extent)));
        let bytes = extents.flat_map(|(chunk, extent)| Self::expand(chunk * CHUNK_BYTES, extent));
        let theirs: BTreeMap<u64, Byte> =
            bytes.filter(|(at, _)| *at < size).filter_map(|(at, byte)| Some((at, byte?))).collect();
        if ours == theirs {
            Ok(())
        } else {
            Err(format!("expected bytes {ours:?}, got {theirs:?}"))
        }
    }

    /// The answer about an entry that was just made.
    fn entry(&self, creds: &Creds, path: &PathRef, ino: u64) -> Run<Shown> {
        Ok(Shown::Entry(self.walk(creds, path)?.0, ino))
    }

    fn apply(&mut self, creds: &Creds, op: &Op, reply: MaybeReply<'_>) -> Run<Shown> {
        Ok(match op {
            Op::Lookup(path) => {
                let (dir, there) = self.walk(creds, path)?;
                Shown::Entry(dir, there.ok_or(libc::ENOENT)?)
            }
            Op::Parent(dir) => Shown::Inode(self.node(*dir)?.parent),
            Op::GetAttr(inode) => {
                self.node(inode.ino)?;
                Shown::Inode(inode.ino)
            }
            Op::SetAttr(inode, set) => {
                self.setattr(creds, inode, set, reply)?;
                Shown::Inode(inode.ino)
            }
            Op::SetFlags(inode, flags) => {
                self.set_flags(creds, inode, *flags, reply)?;
                Shown::Inode(inode.ino)
            }
            Op::Accessed(inode, accessed) => {
                self.node(inode.ino)?;
                if self.inode_changes(inode, reply).is_ok() {
                    self.accessed(inode.ino, *accessed)?;
                }
                Shown::Nothing
            }
            Op::Access(inode, mask) => {
                if *mask as u16 & WRITE != 0 {
                    self.inode_changes(inode, reply)?;
                }
                self.allowed(creds, inode.ino, (*mask & 7) as u16)?;
                Shown::Nothing
            }
            Op::ReadLink(inode) => {
                let node = self.node(inode.ino)?;
                if node.kind != Kind::Symlink {
                    return Err(libc::EINVAL);
                }
                Shown::Bytes(node.xattrs[&b"->"[..]].clone())
            }
            Op::Create { place: path, mode, flags, exclusive } => {
                let (dir, there) = self.walk(creds, path)?;
                if let Some(ino) = there {
                    if *exclusive {
                        return Err(libc::EEXIST);
                    }
                    match self.node(ino)?.kind {
                        Kind::Dir => return Err(libc::EISDIR),
                        Kind::Symlink => return Err(libc::ELOOP),
                        _ => {}
                    }
                    self.may_open(ino, flags, |model| model.names_change(dir))?;
                    return Ok(Shown::Entry(dir, self.open(creds, ino, flags, reply)?));
                }
                let ino = self.add(creds, path, Kind::File, *mode, reply)?;
                self.node_mut(ino).opens = 1;
                Shown::Entry(dir, ino)
            }
            Op::Open(inode, flags) => {
                self.may_open(inode.ino, flags, |model| model.inode_changes(inode, reply))?;
                Shown::Inode(self.open(creds, inode.ino, flags, reply)?)
            }
            Op::OpenAt(path, flags) => {
                let (dir, there) = self.walk(creds, path)?;
                let ino = there.ok_or(libc::ENOENT)?;
                self.may_open(ino, flags, |model| model.names_change(dir))?;
                Shown::Entry(dir, self.open(creds, ino, flags, reply)?)
            }
            Op::TmpFile { dir, mode, exclusive } => {
                self.node(*dir).map_err(|_| libc::ENOENT)?;
                self.names_change(*dir)?;
                self.allowed(creds, *dir, WRITE | EXEC)?;
                let ino = self.make(creds, *dir, Kind::File, *mode, reply)?;
                let node = self.node_mut(ino);
                (node.nlink, node.opens, node.linkable) = (0, 1, !exclusive);
                Shown::Inode(ino)
            }
            Op::Release(ino) => {
                if self.nodes.get(ino).is_none_or(|node| node.opens == 0) {
                    return Err(libc::EBADF);
                }
                self.node_mut(*ino).opens -= 1;
                self.drop_if_gone(*ino);
                Shown::Nothing
            }
            Op::MkNod { place: path, kind, mode, rdev } => {
                let ino = self.add(creds, path, *kind, *mode, reply)?;
                self.node_mut(ino).rdev =
                    if matches!(kind, Kind::Char | Kind::Block) { *rdev } else { 0 };
                self.entry(creds, path, ino)?
            }
            Op::MkDir(path, mode) => {
                let ino = self.add(creds, path, Kind::Dir, *mode, reply)?;
                self.entry(creds, path, ino)?
            }
            Op::Symlink(path, target) => {
                let ino = self.add(creds, path, Kind::Symlink, 0o777, reply)?;
                let node = self.node_mut(ino);
                node.size = target.len() as u64;
                node.xattrs.insert(b"->".to_vec(), target.to_vec());
                self.entry(creds, path, ino)?
            }
            Op::Unlink(path) => Shown::Removed(self.unlink(creds, path)?),
            Op::RmDir(path, expected) => Shown::Removed(self.rmdir(creds, path, *expected)?),
            Op::Rename(from, to, flags) => {
                let (from, to) = self.rename(creds, from, to, *flags)?;
                Shown::Moved(from, to)
            }
            Op::Link(inode, path) => {
                self.link(creds, inode, path, reply)?;
                self.entry(creds, path, inode.ino)?
            }
            Op::ReadDir { dir, check, .. } => {
                self.node(*dir).map_err(|_| libc::ENOENT)?;
                if *check {
                    self.allowed(creds, *dir, READ)?;
                }
                let children = &self.node(*dir)?.children;
                Shown::Names(
                    children.iter().map(|(n, i)| (n.clone(), *i, self.nodes[i].kind)).collect(),
                )
            }
            Op::Locate { .. } if creds.uid != 0 => return Err(libc::EPERM),
            Op::Locate { files, after: None } => match reply {
                Some(Ok(Answer::Located { found, next: None }))
                    if !self.is_located(files, found) =>
                {
                    return Err(MISFIT);
                }
                _ => Shown::Nothing,
            },
            Op::ReadDirPlus { dir, .. } => {
                self.node(*dir).map_err(|_| libc::ENOENT)?;
                self.allowed(creds, *dir, READ | EXEC)?;
                let children = &self.node(*dir)?.children;
                Shown::Plus(
                    children.iter().map(|(n, i)| (n.clone(), *i, self.nodes[i].kind)).collect(),
                )
            }
            Op::RemovalCheck { dir, .. } => {
                self.node(*dir).map_err(|_| libc::ENOENT)?;
                self.allowed(creds, *dir, READ | WRITE | EXEC)?;
                match reply {
                    Some(Ok(Answer::RemovalPage(page)))
                        if !self.fits_removal(creds, *dir, page) =>
                    {
                        return Err(MISFIT);
                    }
                    _ => Shown::Nothing,
                }
            }
            Op::Commit(commit) => {
                self.commit(creds, commit, reply)?;
                Shown::Inode(commit.inode.ino)
            }
            // A file that does not exist has none, but they go some time after it.
            Op::Chunks { ino, first, last } if self.nodes.contains_key(ino) => {
                Shown::Chunks(*ino, *first, *last)
            }
            Op::Clone { .. } => Shown::Inode(self.clone_range(creds, op, reply)?),
            Op::GetXattr(inode, name) if &**name == b"kestrel.policy" => {
                Shown::PolicyText(self.get_policy(inode.ino, b"policy")?)
            }
            Op::GetXattr(..) | Op::SetXattr(..) | Op::RemoveXattr(..) | Op::ListXattr(_) => {
                match self.xattr(creds, op, reply)? {
                    Some(bytes) => Shown::Bytes(bytes),
                    None => Shown::Nothing,
                }
            }
            Op::SnapshotCreate { dir, name } => self.make_snapshot(creds, *dir, name, reply)?,
            Op::SnapshotRename { dir, from, to } => {
                self.rename_snapshot(creds, (*dir, from), to)?;
                Shown::Nothing
            }
            Op::SnapshotRemove { dir, name } => {
                self.remove_snapshot(creds, *dir, name)?;
                Shown::Nothing
            }
            Op::SnapshotHold { dir, name, tag, hold } => {
                self.hold_snapshot(creds, (*dir, name), tag, *hold)?;
                Shown::Nothing
            }
            Op::CloneDir { source, at, place } => {
                let ino = self.clone_dir(creds, (*source, *at), place, reply)?;
                self.entry(creds, place, ino)?
            }
            Op::SnapshotList { dir, ancestors } => self.list_snapshots(creds, *dir, *ancestors)?,
            // Of the present tree it is not one moment's.
            Op::TreeUsage(dir) if self.in_past => {
                let (usage, is_known) = self.usage_of(*dir)?;
                Shown::Usage(usage, is_known)
            }
            _ => Shown::Nothing,
        })
    }
}

/// What a request shows.
#[derive(Debug)]
pub(super) enum Shown {
    Nothing,
    Inode(u64),
    /// The directory, and what lies there.
    Entry(u64, u64),
    /// The directories of a rename.
    Moved(u64, u64),
    Removed(u64),
    Bytes(Vec<u8>),
    /// The effective policy of a directory.
    PolicyText(Vec<u8>),
    /// Snapshots, by their place among all.
    Snapshots(Vec<usize>),
    /// Figures of a tree, and whether the bytes are known.
    Usage(Usage, bool),
    Names(Vec<(Vec<u8>, u64, Kind)>),
    /// The same, with attributes.
    Plus(Vec<(Vec<u8>, u64, Kind)>),
    /// Chunks of a file, from one to another.
    Chunks(u64, u64, u64),
}
