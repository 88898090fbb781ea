//! What one thread has done so far: its names and the content of its files.

use std::collections::BTreeMap;

use crate::rng;

/// Some bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Key of the content; 0 means zeros.
    pub key: u64,
    /// Where in that content the piece starts.
    pub skip: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The content of a file from its start.
pub type Content = Vec<Piece>;

/// Length of a content.
pub fn len_of(content: &[Piece]) -> u64 {
    content.iter().map(|p| p.len).sum()
}

/// The bytes of a content.
pub fn bytes_of(content: &[Piece]) -> Vec<u8> {
    let mut out = Vec::with_capacity(len_of(content) as usize);
    for piece in content {
        let start = out.len();
        out.resize(start + piece.len as usize, 0);
        if piece.key != 0 {
            rng::fill_at(piece.key, piece.skip, &mut out[start..]);
        }
    }
    out
}

fn cut(content: &[Piece], from: u64, to: u64) -> Content {
    let (mut at, mut out) = (0, Vec::new());
    for piece in content {
        let (start, end) = (from.max(at), to.min(at + piece.len));
        if start < end {
            out.push(Piece { key: piece.key, skip: piece.skip + (start - at), len: end - start });
        }
        at += piece.len;
    }
    out
}

fn resize(content: &[Piece], len: u64) -> Content {
    let have = len_of(content);
    let mut out = cut(content, 0, len);
    if len > have {
        out.push(Piece { key: 0, skip: 0, len: len - have });
    }
    out
}

/// A file, apart from its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Bytes that a close or fsync acknowledged.
    pub content: Content,
    /// Bytes appended through a handle that is still open and not synced: any prefix of them may
    /// survive.
    pub pending: Content,
    /// Extended attributes: key and length of the value.
    pub xattrs: BTreeMap<String, (u64, u64)>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Dir,
    /// A symbolic link and its target.
    Symlink(String),
    /// A file, by its number in the log.
    File(u64),
}

/// One operation of the workload. Paths are relative to the directory of the run; a file's number
/// is given at birth.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are paths, keys and lengths as documented above")]
pub enum Op {
    Create {
        path: String,
        ino: u64,
    },
    /// Open (create, truncate), write everything, perhaps fsync, close.
    Write {
        path: String,
        ino: u64,
        key: u64,
        len: u64,
        sync: bool,
    },
    /// Open to append, write, perhaps fsync, close.
    Append {
        path: String,
        key: u64,
        len: u64,
        sync: bool,
    },
    /// Open, pwrite inside the file, close.
    Overwrite {
        path: String,
        off: u64,
        key: u64,
        len: u64,
    },
    Truncate {
        path: String,
        len: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    SetXattr {
        path: String,
        name: String,
        key: u64,
        len: u64,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    /// Open to append and keep the handle.
    Hold {
        path: String,
    },
    HoldAppend {
        key: u64,
        len: u64,
    },
    HoldSync,
    HoldClose,
    SyncDir {
        path: String,
    },
    Sync,
}

impl Op {
    /// Whether its acknowledgement promises that everything before it survives a power loss. `sync`
    /// does not: the kernel passes sync(2) and syncfs(2) on to virtiofs only, so it never reaches
    /// an ordinary FUSE file system.
    pub fn is_sync(&self) -> bool {
        matches!(
            self,
            Op::Write { sync: true, .. }
                | Op::Append { sync: true, .. }
                | Op::HoldSync
                | Op::SyncDir { .. }
        )
    }
}

/// The names and files of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Every name.
    pub nodes: BTreeMap<String, Node>,
    /// Every file.
    pub inodes: BTreeMap<u64, Inode>,
    /// The file held open.
    pub held: Option<u64>,
}

impl State {
    /// The file behind a name.
    pub fn inode(&self, path: &str) -> Option<(u64, &Inode)> {
        match self.nodes.get(path) {
            Some(Node::File(ino)) => Some((*ino, self.inodes.get(ino)?)),
            _ => None,
        }
    }

    /// Every name of a file.
    pub fn names_of(&self, ino: u64) -> Vec<String> {
        let is = |node: &Node| *node == Node::File(ino);
        self.nodes.iter().filter(|(_, n)| is(n)).map(|(p, _)| p.clone()).collect()
    }

    /// A name and everything below it.
    pub fn subtree(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let mut out: Vec<_> =
            self.nodes.contains_key(path).then(|| path.to_string()).into_iter().collect();
        out.extend(
            self.nodes
                .range(below.clone()..)
                .take_while(|(p, _)| p.starts_with(&below))
                .map(|(p, _)| p.clone()),
        );
        out
    }

    /// The names of which `op` may change the state, seen from before it.
    pub fn touched(&self, op: &Op) -> Vec<String> {
        let file = |path: &String| match self.nodes.get(path) {
            Some(Node::File(ino)) => self.names_of(*ino),
            _ => vec![path.clone()],
        };
        match op {
            Op::Create { path, .. }
            | Op::Symlink { path, .. }
            | Op::Mkdir { path }
            | Op::Rmdir { path } => {
                vec![path.clone()]
            }
            Op::Write { path, .. }
            | Op::Append { path, .. }
            | Op::Overwrite { path, .. }
            | Op::Truncate { path, .. }
            | Op::Unlink { path }
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::Hold { path } => file(path),
            Op::Link { from, to } => [file(from), vec![to.clone()]].concat(),
            Op::Rename { from, to } | Op::Exchange { from, to } => {
                let moved = |path: &str, to: &str| -> Vec<String> {
                    self.subtree(path).iter().map(|p| format!("{to}{}", &p[path.len()..])).collect()
                };
                // Other names of a moved file too: whether they fit depends on all names of it.
                let here = [self.subtree(from), self.subtree(to)].concat();
                let mut all: Vec<_> = here.iter().flat_map(file).collect();
                all.extend([moved(from, to), moved(to, from)].concat());
                all
            }
            Op::HoldAppend { .. } | Op::HoldSync | Op::HoldClose => {
                self.held.map_or_else(Vec::new, |ino| self.names_of(ino))
            }
            Op::SyncDir { .. } | Op::Sync => Vec::new(),
        }
    }

    /// Carries out an operation that succeeded.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { path, ino } => {
                self.nodes.insert(path.clone(), Node::File(*ino));
                self.inodes.insert(*ino, Inode::default());
            }
            Op::Write { path, ino, key, len, .. } => {
                let ino = self.inode(path).map_or(*ino, |(old, _)| old);
                self.nodes.insert(path.clone(), Node::File(ino));
                let content = vec![Piece { key: *key, skip: 0, len: *len }];
                self.inodes.entry(ino).or_default().content = content;
            }
            Op::Append { path, key, len, .. } => {
                let piece = Piece { key: *key, skip: 0, len: *len };
                self.change(path, |content| content.push(piece));
            }
            Op::Overwrite { path, off, key, len } => self.change(path, |content| {
                let tail = cut(content, off + len, u64::MAX);
                *content =
                    [resize(content, *off), vec![Piece { key: *key, skip: 0, len: *len }], tail]
                        .concat();
            }),
            Op::Truncate { path, len } => {
                self.change(path, |content| *content = resize(content, *len))
            }
            Op::Rename { from, to } => {
                let tree = self.take(from);
                self.forget(to);
                self.put(to, tree);
            }
            Op::Exchange { from, to } => {
                let (a, b) = (self.take(from), self.take(to));
                self.put(from, b);
                self.put(to, a);
            }
            Op::Link { from, to } => {
                if let Some(node) = self.nodes.get(from).cloned() {
                    self.nodes.insert(to.clone(), node);
                }
            }
            Op::Unlink { path } | Op::Rmdir { path } => self.forget(path),
            Op::Symlink { target, path } => {
                self.nodes.insert(path.clone(), Node::Symlink(target.clone()));
            }
            Op::Mkdir { path } => {
                self.nodes.insert(path.clone(), Node::Dir);
            }
            Op::SetXattr { path, name, key, len } => {
                if let Some((ino, _)) = self.inode(path) {
                    self.inodes.entry(ino).or_default().xattrs.insert(name.clone(), (*key, *len));
                }
            }
            Op::RemoveXattr { path, name } => {
                if let Some((ino, _)) = self.inode(path) {
                    self.inodes.entry(ino).or_default().xattrs.remove(name);
                }
            }
            Op::Hold { path } => self.held = self.inode(path).map(|(ino, _)| ino),
            Op::HoldAppend { key, len } => {
                if let Some(inode) = self.held_inode() {
                    inode.pending.push(Piece { key: *key, skip: 0, len: *len });
                }
            }
            Op::HoldSync => self.settle(),
            Op::HoldClose => {
                self.settle();
                self.held = None;
            }
            Op::SyncDir { .. } | Op::Sync => {}
        }
    }

    fn held_inode(&mut self) -> Option<&mut Inode> {
        self.inodes.get_mut(&self.held?)
    }

    fn settle(&mut self) {
        if let Some(inode) = self.held_inode() {
            let pending = std::mem::take(&mut inode.pending);
            inode.content.extend(pending);
        }
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Content)) {
        if let Some((ino, _)) = self.inode(path) {
            change(&mut self.inodes.entry(ino).or_default().content);
        }
    }

    fn take(&mut self, path: &str) -> Vec<(String, Node)> {
        let names = self.subtree(path);
        names
            .into_iter()
            .filter_map(|p| Some((p[path.len()..].to_string(), self.nodes.remove(&p)?)))
            .collect()
    }

    fn put(&mut self, path: &str, tree: Vec<(String, Node)>) {
        for (rest, node) in tree {
            self.nodes.insert(format!("{path}{rest}"), node);
        }
    }

    fn forget(&mut self, path: &str) {
        if let Some(Node::File(ino)) = self.nodes.remove(path)
            && self.names_of(ino).is_empty()
        {
            self.inodes.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_pieces() {
        let mut state = State::default();
        let path = "f".to_string();
        state.apply(&Op::Write { path: path.clone(), ino: 1, key: 9, len: 100, sync: false });
        state.apply(&Op::Overwrite { path: path.clone(), off: 40, key: 8, len: 20 });
        state.apply(&Op::Truncate { path: path.clone(), len: 90 });
        state.apply(&Op::Truncate { path: path.clone(), len: 95 });
        state.apply(&Op::Append { path: path.clone(), key: 7, len: 5, sync: false });
        let mut expected = vec![0; 100];
        rng::fill(9, &mut expected[..90]);
        rng::fill(8, &mut expected[40..60]);
        rng::fill(7, &mut expected[95..]);
        let (_, inode) = state.inode("f").unwrap();
        assert_eq!(bytes_of(&inode.content), expected);
    }

    #[test]
    fn names_follow_renames_and_links() {
        let mut state = State::default();
        let s = str::to_string;
        for op in [
            Op::Mkdir { path: s("d") },
            Op::Create { path: s("d/f"), ino: 1 },
            Op::Link { from: s("d/f"), to: s("g") },
            Op::Create { path: s("h"), ino: 2 },
            Op::Rename { from: s("d"), to: s("e") },
            Op::Exchange { from: s("e"), to: s("h") },
        ] {
            state.apply(&op);
        }
        let names: Vec<_> = state.nodes.keys().cloned().collect();
        assert_eq!(names, ["e", "g", "h", "h/f"]);
        assert_eq!(state.names_of(1), ["g", "h/f"]);
        state.apply(&Op::Rename { from: s("g"), to: s("e") });
        assert!(!state.inodes.contains_key(&2), "replaced");
        assert_eq!(state.touched(&Op::Unlink { path: s("e") }), ["e", "h/f"]);
    }
}
