//! Keys of a bucket in byte order, from any position on, with bounded memory.
//!
//! Directories list their names in byte order, and keys are not in the order of a walk over names:
//! `a-b` and `a.txt` come before `a/x`, as `-` and `.` are before `/`. So a directory is held back
//! until all names have passed that are before its name with a slash. Those are names that begin
//! with the directory's, so of the directories held back each begins with the one before, and there
//! are at most 255.
//!
//! A position is a key after which to go on. Of each directory in its path the walk looks up the
//! names that may be held back there (beginnings of the path's name before a byte below `/`), and
//! lists from the path's name on. Nothing before the position is read.

use std::collections::VecDeque;

use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::{NAME_MAX, Name, PathRef};
use kestrel_types::request::DirEntry;

use crate::account::Account;
use crate::object_key::is_reserved;

/// Most directories within each other that are walked: keys are shorter.
const DEPTH_MAX: usize = 1024;

/// Something in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A file, or a directory that is an object (its key ends with a slash).
    Object(Listed),
    /// A directory, of which the keys follow if it is entered ([`KeyWalk::enter`]); its key ends
    /// with a slash.
    Directory(Listed),
}

/// A key and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Vec<u8>,
    /// Directory of the entry.
    pub dir: InodeId,
    /// Number of the file or directory.
    pub ino: InodeId,
}

/// A directory on the way.
struct Frame {
    dir: InodeId,
    /// Its key with a slash; empty for the bucket.
    path: Vec<u8>,
    /// Only names that begin so.
    prefix: Vec<u8>,
    entries: VecDeque<DirEntry>,
    after: Option<Name>,
    end: bool,
    /// Directories that are held back, the next one last.
    held: Vec<(Vec<u8>, InodeId)>,
}

/// A walk.
pub struct KeyWalk<'a> {
    account: &'a Account,
    frames: Vec<Frame>,
    /// An object that is a directory, which comes before what is in it.
    marker: Option<Listed>,
    /// Names in the root that are no objects.
    hides_reserved: bool,
}

/// The largest name that is before `name` with a slash behind it, and not before `name`.
fn last_before_slash(name: &[u8]) -> FsResult<Name> {
    let mut last = name.to_vec();
    if last.len() < NAME_MAX {
        last.push(b'/' - 1);
        last.resize(NAME_MAX, 0xff);
    }
    Name::new(&last)
}

/// A name that is before `prefix` such that none is between the two; none if there is no name
/// before it.
fn just_before(prefix: &[u8]) -> FsResult<Option<Name>> {
    let Some((last, begin)) = prefix.split_last() else { return Ok(None) };
    let mut name = begin.to_vec();
    let below = match last {
        // No name has a NUL or a slash.
        0 | 1 => None,
        48 => Some(b'/' - 1),
        other => Some(other - 1),
    };
    if let Some(below) = below {
        name.push(below);
        name.resize(NAME_MAX, 0xff);
    }
    // "." and ".." are no names; nothing is listed before them that they would hide.
    if matches!(&name[..], b"" | b"." | b"..") {
        return Ok(None);
    }
    Name::new(&name).map(Some)
}

impl<'a> KeyWalk<'a> {
    /// Walks the keys of a bucket that begin with `prefix`, from the first one after `after` on. If
    /// `after` ends with a slash and `is_whole`, all that begins with it counts as passed.
    ///
    /// # Errors
    /// The metadata's.
    pub fn new(
        account: &'a Account,
        bucket: InodeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        is_whole: bool,
    ) -> FsResult<Self> {
        let hides_reserved = bucket == ROOT;
        let mut walk = Self { account, frames: Vec::new(), marker: None, hides_reserved };
        let cut = prefix.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (path, names) = prefix.split_at(cut);
        if names.len() > NAME_MAX {
            return Ok(walk);
        }
        let Some(dir) = walk.find_dir(bucket, path)? else { return Ok(walk) };
        let rest = match after {
            Some(after) => match after.strip_prefix(path) {
                Some(rest) => Some(rest),
                None if after < path => None,
                None => return Ok(walk),
            },
            None => None,
        };
        if rest.is_none() && names.is_empty() && !path.is_empty() {
            walk.mark(path, (bucket, dir))?;
        }
        if rest.is_some_and(|rest| rest.is_empty()) && is_whole && !path.is_empty() {
            return Ok(walk);
        }
        walk.open(dir, path.to_vec(), names.to_vec(), rest.unwrap_or_default(), is_whole)?;
        Ok(walk)
    }

    /// The directory at a path that ends with a slash or is empty.
    fn find_dir(&self, bucket: InodeId, path: &[u8]) -> FsResult<Option<InodeId>> {
        let Some(names) = path.strip_suffix(b"/") else { return Ok(Some(bucket)) };
        if names.split(|byte| *byte == b'/').any(|name| Name::check(name).is_err()) {
            return Ok(None);
        }
        if self.hides_reserved && names.split(|byte| *byte == b'/').next().is_some_and(is_reserved)
        {
            return Ok(None);
        }
        let found = self.account.look_up(PathRef::from_path(bucket, names)?)?;
        let found = found.filter(|found| found.inode.kind == Kind::Dir);
        Ok(found.map(|found| found.inode.ino))
    }

    /// If a directory is an object, it is the next one.
    fn mark(&mut self, path: &[u8], (dir, ino): (InodeId, InodeId)) -> FsResult<()> {
        let op = kestrel_types::request::Op::GetXattr(
            kestrel_types::name::InodeRef::by_id(ino),
            crate::attributes::OBJECT_XATTR.into(),
        );
        if crate::account::optional(self.account.ask(op))?.is_some() {
            self.marker = Some(Listed { key: path.to_vec(), dir, ino });
        }
        Ok(())
    }

    /// Begins a directory after the key `rest` within it; empty: from its first name on.
    fn open(
        &mut self,
        dir: InodeId,
        path: Vec<u8>,
        prefix: Vec<u8>,
        rest: &[u8],
        is_whole: bool,
    ) -> FsResult<()> {
        if self.frames.len() >= DEPTH_MAX {
            return Ok(());
        }
        let mut frame = Frame {
            dir,
            path,
            after: just_before(&prefix)?,
            prefix,
            entries: VecDeque::new(),
            end: false,
            held: Vec::new(),
        };
        if rest.is_empty() {
            self.frames.push(frame);
            return Ok(());
        }
        let slash = rest.iter().position(|byte| *byte == b'/');
        let first = &rest[..slash.unwrap_or(rest.len())];
        let from = match slash {
            Some(_) => last_before_slash(&first[..first.len().min(NAME_MAX)])?,
            // Of "." and "..", which are no names, the one before.
            None if matches!(first, b"." | b"..") => match just_before(first)? {
                Some(name) => name,
                None => return Ok(()),
            },
            None => Name::new(&first[..first.len().min(NAME_MAX)])?,
        };
        if frame.after.as_ref().is_none_or(|after| after.as_bytes() < from.as_bytes()) {
            frame.after = Some(from);
        }
        // What is held back at this position: directories with a name that the position's begins
        // with, and the one of the name itself if the position is not in it.
        for at in 1..first.len().min(NAME_MAX + 1) {
            if first[at] < b'/' {
                self.hold(&mut frame, &first[..at])?;
            }
        }
        match slash {
            None => self.hold(&mut frame, first)?,
            Some(at) => {
                let inner = self.directory(&frame, first)?;
                let below = &rest[at + 1..];
                let mut inner_path = frame.path.clone();
                inner_path.extend_from_slice(&rest[..=at]);
                self.frames.push(frame);
                if let Some(ino) = inner.filter(|_| !(below.is_empty() && is_whole)) {
                    self.open(ino, inner_path, Vec::new(), below, is_whole)?;
                }
                return Ok(());
            }
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Number of the directory of this name, if the walk has to do with it.
    fn directory(&self, frame: &Frame, name: &[u8]) -> FsResult<Option<InodeId>> {
        if !name.starts_with(&frame.prefix) || self.hides(frame, name) {
            return Ok(None);
        }
        let Ok(name) = Name::new(name) else { return Ok(None) };
        let found = self.account.look_up(PathRef::new(frame.dir, name))?;
        let found = found.filter(|found| found.inode.kind == Kind::Dir);
        Ok(found.map(|found| found.inode.ino))
    }

    fn hold(&self, frame: &mut Frame, name: &[u8]) -> FsResult<()> {
        if let Some(ino) = self.directory(frame, name)? {
            frame.held.push((name.to_vec(), ino));
        }
        Ok(())
    }

    fn hides(&self, frame: &Frame, name: &[u8]) -> bool {
        self.hides_reserved && frame.path.is_empty() && is_reserved(name)
    }

    /// The next step; none at the end.
    ///
    /// # Errors
    /// The metadata's.
    pub fn advance(&mut self) -> FsResult<Option<Step>> {
        if let Some(marker) = self.marker.take() {
            return Ok(Some(Step::Object(marker)));
        }
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            if frame.entries.is_empty() && !frame.end {
                let (entries, end) = self.account.names(frame.dir, frame.after.take())?;
                frame.after = entries.last().map(|entry| entry.name.clone());
                frame.end = end || entries.is_empty();
                frame.entries.extend(entries);
            }
            let next = frame.entries.front().map(|entry| entry.name.as_bytes());
            let next = next.filter(|name| name.starts_with(&frame.prefix));
            let is_held_next = frame.held.last().is_some_and(|(name, _)| match next {
                Some(next) => name.iter().chain(b"/").lt(next.iter()),
                None => true,
            });
            if is_held_next {
                let Some((name, ino)) = frame.held.pop() else { continue };
                let key = [&frame.path[..], &name, b"/"].concat();
                return Ok(Some(Step::Directory(Listed { key, dir: frame.dir, ino })));
            }
            if next.is_none() {
                self.frames.pop();
                continue;
            }
            let Some(entry) = frame.entries.pop_front() else { continue };
            let name = entry.name.as_bytes();
            if self.hides_reserved && frame.path.is_empty() && is_reserved(name) {
                continue;
            }
            match entry.kind {
                Kind::Dir => frame.held.push((name.to_vec(), entry.ino)),
                Kind::File => {
                    let key = [&frame.path[..], name].concat();
                    let (dir, ino) = (frame.dir, entry.ino);
                    return Ok(Some(Step::Object(Listed { key, dir, ino })));
                }
                // Links and devices are no objects.
                _ => {}
            }
        }
    }

    /// Goes on with the keys in a directory that [`KeyWalk::advance`] gave last.
    ///
    /// # Errors
    /// The metadata's.
    pub fn enter(&mut self, directory: &Listed) -> FsResult<()> {
        self.mark(&directory.key, (directory.dir, directory.ino))?;
        self.open(directory.ino, directory.key.clone(), Vec::new(), b"", false)
    }

    /// Whether any key begins with that of a directory.
    ///
    /// # Errors
    /// The metadata's.
    pub fn has_keys(&self, directory: &Listed) -> FsResult<bool> {
        let mut below =
            Self { account: self.account, frames: Vec::new(), marker: None, hides_reserved: false };
        below.enter(directory)?;
        while let Some(step) = below.advance()? {
            match step {
                Step::Object(_) => return Ok(true),
                Step::Directory(inner) => below.enter(&inner)?,
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is between a prefix and the name before it, or between a name and its slash.
    #[test]
    fn neighbours_of_names() {
        for name in [&b"a"[..], b"a-b", b"0", b"a0", b".", b"\x01", b"a\x01", &[0xff; 255]] {
            let before = just_before(name).unwrap();
            if let Some(before) = &before {
                assert!(before.as_bytes() < name, "{name:?}");
            }
            let last = last_before_slash(name).unwrap();
            let slash = [name, b"/"].concat();
            assert!(name <= last.as_bytes() && last.as_bytes() < &slash[..]);
        }
        assert!(just_before(b"").unwrap().is_none());
    }
}
