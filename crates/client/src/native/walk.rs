//! Where a path leads. A node resolves a whole path with one request; at a symbolic link, and at
//! `..`, which follows what was resolved before it, the walk goes on from here. The target of a
//! link that begins with `/` is a path from the volume's root.

use std::borrow::Cow;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::{Name, PATH_MAX, PathRef};
use kestrel_types::request::{Answer, Op, Outcome, Reply, Request};

use super::NativeCalls;
use super::waiting::wait;
use crate::fs::{into_inode, plain, unexpected};

/// Most symbolic links in one path, as of Linux.
const LINKS_MAX: u32 = 40;

/// How often a path is resolved anew because a link in it was replaced meanwhile.
const ATTEMPTS: u32 = 4;

/// What a path leads to.
#[derive(Debug, Clone)]
pub struct FoundPath {
    /// Its inode.
    pub inode: Inode,
    /// Directory and name; none of the root, and of what `..` led to.
    pub place: Option<(InodeId, Name)>,
}

/// A path that is being resolved.
struct Walk<'p> {
    base: InodeId,
    path: Cow<'p, [u8]>,
    links: u32,
}

impl Walk<'_> {
    /// Goes on with the target of a link in `dir`, and what follows it.
    fn through_link(&mut self, dir: InodeId, target: &[u8], rest: &[u8]) -> FsResult<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(FsError::new(libc::ELOOP, "too many symbolic links"));
        }
        self.base = if target.first() == Some(&b'/') { ROOT } else { dir };
        self.path = Cow::Owned(match rest {
            [] => target.to_vec(),
            rest => [target, b"/", rest].concat(),
        });
        Ok(())
    }
}

/// The components of a path that mean something.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(part, [] | [b'.']))
}

fn has_parent(path: &[u8]) -> bool {
    components(path).any(|part| part == b"..")
}

/// Whether a path can only be that of a directory.
fn is_directory_path(path: &[u8]) -> bool {
    matches!(path.rsplit(|byte| *byte == b'/').next(), Some([] | [b'.'] | [b'.', b'.']))
}

/// Refuses what is no path.
pub(super) fn check(path: &[u8]) -> FsResult<()> {
    match path {
        [] => Err(FsError::new(libc::ENOENT, "a path is not empty")),
        path if path.contains(&0) => Err(FsError::new(libc::EINVAL, "a path has no NUL")),
        path if path.len() > PATH_MAX => {
            Err(FsError::new(libc::ENAMETOOLONG, "a path has at most 4095 bytes"))
        }
        _ => Ok(()),
    }
}

/// The directory of a path, and the name in it.
///
/// # Errors
/// Those of [`Name::new`]; `EBUSY` of the root, `EINVAL` of `.` and `..`.
pub(super) fn split(path: &[u8]) -> FsResult<(&[u8], Name)> {
    check(path)?;
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let trimmed = &path[..end];
    if trimmed.is_empty() {
        return Err(FsError::new(libc::EBUSY, "it is the root of the volume"));
    }
    let start = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    Ok((&trimmed[..start], Name::new(&trimmed[start..])?))
}

fn not_a_directory() -> FsError {
    FsError::new(libc::ENOTDIR, "a component of the path is no directory")
}

impl NativeCalls<'_> {
    /// Sends one request and waits for its reply.
    pub(super) fn reply(&self, op: Op) -> FsResult<Reply> {
        let metadata = self.volume.fs()?.metadata().clone();
        let request = Request { creds: self.volume.creds().clone(), op };
        wait(self.gone, |done| metadata.submit(request, Box::new(move |reply| done(Ok(reply)))))
    }

    /// Where a path leads; with `follow` not to a symbolic link.
    pub(super) fn walk(&self, path: &[u8], follow: bool) -> FsResult<FoundPath> {
        check(path)?;
        self.walk_from(&mut Walk { base: ROOT, path: Cow::Borrowed(path), links: 0 }, follow)
    }

    fn walk_from(&self, walk: &mut Walk<'_>, follow: bool) -> FsResult<FoundPath> {
        loop {
            self.pass_parents(walk)?;
            if components(&walk.path).next().is_none() {
                let op = Op::GetAttr(kestrel_types::name::InodeRef::by_id(walk.base));
                let inode = into_inode(plain(self.reply(op)?)?)?;
                return Ok(FoundPath { inode, place: None });
            }
            let place = PathRef::from_path(walk.base, &walk.path)?;
            let name = place.name.clone();
            let must_be_dir = is_directory_path(&walk.path);
            match self.reply(Op::Lookup(place))? {
                Ok(Answer::Entry { parent, inode }) => {
                    if inode.kind == Kind::Symlink && (follow || must_be_dir) {
                        let rest: &[u8] = if must_be_dir { b"." } else { b"" };
                        walk.through_link(parent, target_of(&inode)?, rest)?;
                        continue;
                    }
                    if must_be_dir && inode.kind != Kind::Dir {
                        return Err(not_a_directory());
                    }
                    return Ok(FoundPath { inode: *inode, place: Some((parent, name)) });
                }
                Ok(other) => return Err(unexpected(&other)),
                Err(Outcome::Symlink { resolved, dir, target }) => {
                    let mut rest: Vec<u8> =
                        components(&walk.path).skip(resolved + 1).collect::<Vec<_>>().join(&b'/');
                    if must_be_dir {
                        rest.push(b'/');
                    }
                    walk.through_link(dir, &target, &rest)?;
                }
                Err(outcome) => return Err(failed(outcome)),
            }
        }
    }

    /// Resolves what stands before the last `..` of a path, if there is one.
    fn pass_parents(&self, walk: &mut Walk<'_>) -> FsResult<()> {
        if !has_parent(&walk.path) {
            return Ok(());
        }
        let path = std::mem::take(&mut walk.path).into_owned();
        let mut before: Vec<&[u8]> = Vec::new();
        for part in components(&path) {
            if part != b".." {
                before.push(part);
                continue;
            }
            if !before.is_empty() {
                walk.path = Cow::Owned([&before.join(&b'/')[..], b"/"].concat());
                before.clear();
                walk.base = self.walk_from(walk, true)?.inode.ino;
            }
            let above = plain(self.reply(Op::Parent(walk.base))?)?;
            walk.base = into_inode(above)?.ino;
        }
        let mut rest = before.join(&b'/');
        if rest.is_empty() || is_directory_path(&path) {
            rest.push(b'/');
        }
        walk.path = Cow::Owned(rest);
        Ok(())
    }

    /// The directory that a path leads to; the empty path is the root.
    pub(super) fn walk_dir(&self, path: &[u8]) -> FsResult<InodeId> {
        if components(path).next().is_none() {
            return Ok(ROOT);
        }
        let found = self.walk(path, true)?;
        match found.inode.kind {
            Kind::Dir => Ok(found.inode.ino),
            _ => Err(not_a_directory()),
        }
    }

    /// Does something at a path's place: with the whole path at first; where a link is in it, at
    /// the name in the directory that the path leads to.
    pub(super) fn at_place<T>(
        &self,
        path: &[u8],
        act: impl Fn(PathRef) -> FsResult<T>,
    ) -> FsResult<T> {
        let (dir, name) = split(path)?;
        if !has_parent(dir) {
            match act(PathRef::from_path(ROOT, path)?) {
                Err(error) if error.errno == libc::ESTALE => {}
                result => return result,
            }
        }
        let mut attempt = 1;
        loop {
            let result = act(PathRef::new(self.walk_dir(dir)?, name.clone()));
            match result {
                Err(error) if error.errno == libc::ESTALE && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// The path without symbolic links that a path with a link at its end stands for, from the
    /// volume's root or from the directory of the link; none if there is no link there.
    pub(super) fn link_target(&self, place: &PathRef) -> FsResult<Option<(InodeId, Vec<u8>)>> {
        match plain(self.reply(Op::Lookup(place.clone()))?)? {
            Answer::Entry { parent, inode } if inode.kind == Kind::Symlink => {
                let target = target_of(&inode)?.to_vec();
                let base = if target.first() == Some(&b'/') { ROOT } else { parent };
                Ok(Some((base, target)))
            }
            Answer::Entry { .. } => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// The place to which a path leads from a directory, through links, whether or not something is
    /// there: what open(2) with `O_CREAT` makes.
    pub(super) fn final_place(&self, path: &[u8]) -> FsResult<PathRef> {
        let (dir, name) = split(path)?;
        let mut place = PathRef::new(self.walk_dir(dir)?, name);
        for _ in 0..LINKS_MAX {
            let target = match self.link_target(&place) {
                Ok(target) => target,
                Err(error) if error.errno == libc::ENOENT => None,
                Err(error) => return Err(error),
            };
            let Some((base, target)) = target else { return Ok(place) };
            let (dir, name) = split(&target)?;
            let mut walk = Walk { base, path: Cow::Borrowed(dir), links: 0 };
            let dir = match components(dir).next() {
                Some(_) => self.walk_from(&mut walk, true)?.inode.ino,
                None => base,
            };
            place = PathRef::new(dir, name);
        }
        Err(FsError::new(libc::ELOOP, "too many symbolic links"))
    }
}

/// The target of a symbolic link.
pub(super) fn target_of(inode: &Inode) -> FsResult<&[u8]> {
    match &inode.data {
        Data::Inline(target) => Ok(target),
        _ => Err(FsError::new(libc::EIO, "the symbolic link has no target")),
    }
}

/// The error that an outcome other than an answer is.
fn failed(outcome: Outcome) -> FsError {
    match plain(Err(outcome)) {
        Err(error) => error,
        Ok(answer) => unexpected(&answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directory and name of paths; what has no name of its own.
    #[test]
    fn directory_and_name_of_paths() {
        let parts = |path: &str| {
            let (dir, name) = split(path.as_bytes()).map_err(|why| why.errno)?;
            let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
            Ok((String::from_utf8_lossy(dir).into_owned(), name))
        };
        let is = |dir: &str, name: &str| Ok((dir.to_string(), name.to_string()));
        assert_eq!(parts("a"), is("", "a"));
        assert_eq!(parts("/a/b//"), is("/a/", "b"));
        assert_eq!(parts("//"), Err(libc::EBUSY));
        assert_eq!(parts(""), Err(libc::ENOENT));
        assert_eq!(parts("a/.."), Err(libc::EINVAL));
        assert_eq!(parts("a\0b"), Err(libc::EINVAL));
        assert_eq!(parts(&"x/".repeat(2048)), Err(libc::ENAMETOOLONG));
        assert!(is_directory_path(b"a/") && is_directory_path(b"a/..") && !is_directory_path(b"a"));
    }
}
