//! The sequential file system: a root with five names, two of them for files only, and directories
//! with two names.
//!
//! Names below a directory are used through a descriptor of that directory, so calls name it by
//! inode number; after it was removed every call through it says `ENOENT`. A file has the content
//! it was published with (empty if it was only created), so its inode stands for its content. Inode
//! numbers are taken from answers: what a call created without telling its number gets it from the
//! first call that does.
//!
//! `rename` looks at its two names one after the other before it does anything; what it complains
//! of was true of one of them at one moment, and that is all that is asked of a failing one.

use super::RecordedCall;
use super::linear::Model;

/// Names in the root. Directories are made only at the first [`DIR_NAMES`] of them.
pub const ROOT_NAMES: [&str; 5] = ["d0", "d1", "d2", "f0", "f1"];

/// How many of [`ROOT_NAMES`], from the first, may be directories.
pub const DIR_NAMES: usize = 3;

/// Names in a directory.
pub const SUB_NAMES: [&str; 2] = ["x", "y"];

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// This one of [`ROOT_NAMES`].
    Root(usize),
    /// This one of [`SUB_NAMES`], in the open directory with this inode number.
    Sub(u64, usize),
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `open` with `O_CREAT | O_EXCL`, of an empty file. Says `Ino`.
    Create(At),
    /// `rename` of a new file with this number and content, from outside the tree, to here. Says
    /// `Done`.
    Publish {
        /// Its inode number.
        ino: u64,
        /// Its content, above 0.
        token: u64,
        /// Where to.
        to: At,
    },
    /// `unlink`. Says `Done`.
    Unlink(At),
    /// `mkdir` in the root. Says `Done`.
    Mkdir(usize),
    /// `rmdir` in the root. Says `Done`.
    Rmdir(usize),
    /// `rename`. Says `Done`.
    Rename {
        /// Where from.
        from: At,
        /// Where to.
        to: At,
        /// With `RENAME_NOREPLACE`.
        no_replace: bool,
        /// Another thread's call of the same was under way at the same time ([`mark_repeated`]).
        repeated: bool,
    },
    /// `stat`. Says `Found`.
    Stat(At),
    /// `open` with `O_DIRECTORY`, in the root. Says `Ino`.
    OpenDir(usize),
    /// Opens and reads a file. Says `Content`.
    Read(At),
    /// Names of the root, or of an open directory. Says `Names`.
    List(Option<u64>),
}

/// What a call said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The inode number of what was created or opened; `None` if the thread could not learn it.
    Ino(Option<u64>),
    /// What is there.
    Found {
        /// A directory.
        dir: bool,
        /// Its inode number.
        ino: u64,
    },
    /// The content; 0 for an empty file.
    Content(u64),
    /// Which names are there, a bit for each.
    Names(u8),
    /// It failed with this errno.
    Failed(i32),
}

/// A file, or what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct File {
    ino: Option<u64>,
    token: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    File(File),
    Dir { ino: Option<u64>, entries: [Option<File>; SUB_NAMES.len()] },
}

impl Node {
    fn ino(&mut self) -> &mut Option<u64> {
        match self {
            Node::File(file) => &mut file.ino,
            Node::Dir { ino, .. } => ino,
        }
    }

    fn is_dir(&self) -> bool {
        matches!(self, Node::Dir { .. })
    }

    fn is_empty_dir(&self) -> bool {
        matches!(self, Node::Dir { entries, .. } if entries.iter().all(Option::is_none))
    }
}

/// The file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tree {
    root: [Option<Node>; ROOT_NAMES.len()],
}

/// A directory that is no more.
struct Gone;

impl Tree {
    fn dir(&self, ino: u64) -> Option<&[Option<File>; SUB_NAMES.len()]> {
        self.root.iter().flatten().find_map(|node| match node {
            Node::Dir { ino: Some(known), entries } if *known == ino => Some(entries),
            _ => None,
        })
    }

    fn get(&self, at: At) -> Result<Option<Node>, Gone> {
        match at {
            At::Root(name) => Ok(self.root[name]),
            At::Sub(dir, name) => Ok(self.dir(dir).ok_or(Gone)?[name].map(Node::File)),
        }
    }

    /// Puts an entry in place; the directory must be there, and below it only files are put.
    fn set(&mut self, at: At, node: Option<Node>) {
        match (at, node) {
            (At::Root(name), node) => self.root[name] = node,
            (At::Sub(dir, name), node) => {
                let file = match node {
                    Some(Node::File(file)) => Some(file),
                    _ => None,
                };
                for place in self.root.iter_mut().flatten() {
                    if let Node::Dir { ino: Some(known), entries } = place
                        && *known == dir
                    {
                        entries[name] = file;
                    }
                }
            }
        }
    }

    /// Whether the inode at a place can be `ino`: its number, or not known yet and then from now
    /// on.
    fn bind(&mut self, at: At, ino: u64) -> bool {
        let Ok(Some(mut node)) = self.get(at) else { return false };
        match *node.ino() {
            Some(known) => known == ino,
            None if self.has(ino) => false,
            None => {
                *node.ino() = Some(ino);
                self.set(at, Some(node));
                true
            }
        }
    }

    /// Whether some inode is known by this number.
    fn has(&self, ino: u64) -> bool {
        self.root.iter().flatten().any(|node| {
            *(*node).clone().ino() == Some(ino)
                || matches!(node, Node::Dir { entries, .. }
                    if entries.iter().flatten().any(|file| file.ino == Some(ino)))
        })
    }

    fn insert_new(&mut self, at: At, node: Node) -> Result<(), i32> {
        match self.get(at) {
            Err(Gone) => Err(libc::ENOENT),
            Ok(Some(_)) => Err(libc::EEXIST),
            Ok(None) => {
                self.set(at, Some(node));
                Ok(())
            }
        }
    }

    fn unlink(&mut self, at: At) -> Result<(), i32> {
        match self.get(at) {
            Err(Gone) | Ok(None) => Err(libc::ENOENT),
            Ok(Some(Node::Dir { .. })) => Err(libc::EISDIR),
            Ok(Some(Node::File(_))) => {
                self.set(at, None);
                Ok(())
            }
        }
    }

    fn rmdir(&mut self, name: usize) -> Result<(), i32> {
        match self.root[name] {
            None => Err(libc::ENOENT),
            Some(Node::File(_)) => Err(libc::ENOTDIR),
            Some(node) if !node.is_empty_dir() => Err(libc::ENOTEMPTY),
            Some(_) => {
                self.root[name] = None;
                Ok(())
            }
        }
    }

    /// Puts a node where something else may be; `from` is emptied if that succeeds.
    fn rename(
        &mut self,
        from: Option<At>,
        node: Node,
        to: At,
        no_replace: bool,
    ) -> Result<(), i32> {
        let target = self.get(to).map_err(|Gone| libc::ENOENT)?;
        if let Some(target) = target {
            if no_replace {
                return Err(libc::EEXIST);
            }
            if from == Some(to) {
                return Ok(());
            }
            match (node.is_dir(), target.is_dir()) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !target.is_empty_dir() => return Err(libc::ENOTEMPTY),
                _ => {}
            }
        }
        if let Some(from) = from {
            self.set(from, None);
        }
        self.set(to, Some(node));
        Ok(())
    }

    /// Whether a rename may complain so when it looks, now, at the name that it complains of.
    fn may_complain(&self, from: Option<At>, to: At, no_replace: bool, errno: i32) -> bool {
        let target = self.get(to);
        let target_is = |test: fn(&Node) -> bool| matches!(&target, Ok(Some(node)) if test(node));
        match errno {
            libc::ENOENT => target.is_err() || from.is_some_and(|from| self.look(from).is_err()),
            libc::EEXIST => no_replace && target_is(|_| true),
            libc::ENOTDIR => from.is_some() && target_is(|node| !node.is_dir()),
            libc::EISDIR => target_is(Node::is_dir),
            libc::ENOTEMPTY => target_is(|node| node.is_dir() && !node.is_empty_dir()),
            _ => false,
        }
    }

    fn look(&self, at: At) -> Result<Node, i32> {
        self.get(at).ok().flatten().ok_or(libc::ENOENT)
    }
}

impl Model for Tree {
    type Call = Call;
    type Answer = Answer;

    fn step(&self, call: &Call, answer: Option<&Answer>) -> Option<Self> {
        let mut next = self.clone();
        if let (Call::Rename { .. } | Call::Publish { .. }, Some(Answer::Failed(errno))) =
            (call, answer)
        {
            let (from, to, no_replace) = match *call {
                Call::Rename { from, to, no_replace, .. } => (Some(from), to, no_replace),
                Call::Publish { to, .. } => (None, to, false),
                _ => return None,
            };
            return self.may_complain(from, to, no_replace, *errno).then_some(next);
        }
        let ino_said = match answer {
            Some(Answer::Ino(ino)) => *ino,
            _ => None,
        };
        let said = match *call {
            Call::Create(at) => {
                if ino_said.is_some_and(|ino| self.has(ino)) {
                    return None;
                }
                let file = File { ino: ino_said, token: 0 };
                next.insert_new(at, Node::File(file)).map(|()| Answer::Ino(ino_said))
            }
            Call::Publish { ino, token, to } => {
                let file = File { ino: Some(ino), token };
                next.rename(None, Node::File(file), to, false).map(|()| Answer::Done)
            }
            Call::Unlink(at) => next.unlink(at).map(|()| Answer::Done),
            Call::Mkdir(name) => {
                let dir = Node::Dir { ino: None, entries: Default::default() };
                next.insert_new(At::Root(name), dir).map(|()| Answer::Done)
            }
            Call::Rmdir(name) => next.rmdir(name).map(|()| Answer::Done),
            Call::Rename { from, to, no_replace, .. } => {
                let renamed =
                    self.look(from).and_then(|node| next.rename(Some(from), node, to, no_replace));
                renamed.map(|()| Answer::Done)
            }
            Call::Stat(at) => match (self.look(at), answer) {
                (Ok(node), Some(Answer::Found { ino, .. })) => {
                    if !next.bind(at, *ino) {
                        return None;
                    }
                    Ok(Answer::Found { dir: node.is_dir(), ino: *ino })
                }
                (Ok(_), said) => return said.is_none().then_some(next),
                (Err(errno), _) => Err(errno),
            },
            Call::OpenDir(name) => match self.look(At::Root(name)) {
                Ok(Node::Dir { .. }) => {
                    if ino_said.is_some_and(|ino| !next.bind(At::Root(name), ino)) {
                        return None;
                    }
                    Ok(Answer::Ino(ino_said))
                }
                Ok(Node::File(_)) => Err(libc::ENOTDIR),
                Err(errno) => Err(errno),
            },
            Call::Read(at) => match self.look(at) {
                Ok(Node::File(file)) => Ok(Answer::Content(file.token)),
                Ok(Node::Dir { .. }) => Err(libc::EISDIR),
                Err(errno) => Err(errno),
            },
            Call::List(None) => Ok(Answer::Names(bits(self.root.iter().map(Option::is_some)))),
            Call::List(Some(dir)) => match self.dir(dir) {
                Some(entries) => Ok(Answer::Names(bits(entries.iter().map(Option::is_some)))),
                // A removed directory that is still open has no names, or cannot be listed.
                None if answer == Some(&Answer::Names(0)) => Ok(Answer::Names(0)),
                None => Err(libc::ENOENT),
            },
        };
        let said = said.unwrap_or_else(Answer::Failed);
        answer.is_none_or(|answer| *answer == said).then_some(next)
    }

    /// Linux looks both names up, one after the other, and if they are the same inode a rename
    /// succeeds and does nothing; no file system is asked. When another client moves that inode
    /// from the one name to the other in between, both find it.
    fn may_do_nothing(&self, call: &Call, answer: Option<&Answer>) -> bool {
        match call {
            Call::Rename { to, repeated: true, .. } => {
                answer == Some(&Answer::Done) && self.look(*to).is_ok()
            }
            _ => false,
        }
    }
}

/// Finds the renames that succeeded while another thread's rename of the same name to the same name
/// did.
pub fn mark_repeated(events: &mut [RecordedCall<Call, Answer>]) {
    let renames: Vec<(usize, At, At)> = (0..)
        .zip(&*events)
        .filter(|(_, event)| event.answer == Some(Answer::Done))
        .filter_map(|(index, event)| match event.call {
            Call::Rename { from, to, .. } => Some((index, from, to)),
            _ => None,
        })
        .collect();
    for (index, from, to) in &renames {
        let (begin, end) = (events[*index].begin, events[*index].end);
        let overlaps =
            |other: &RecordedCall<Call, Answer>| other.begin <= end && begin <= other.end;
        let same = renames.iter().any(|(other, other_from, other_to)| {
            other != index && (other_from, other_to) == (from, to) && overlaps(&events[*other])
        });
        if let Call::Rename { repeated, .. } = &mut events[*index].call {
            *repeated = same;
        }
    }
}

fn bits(present: impl Iterator<Item = bool>) -> u8 {
    present.enumerate().fold(0, |bits, (at, is)| bits | u8::from(is) << at)
}

#[cfg(test)]
mod tests;
