//! Chooses the next operation of a thread: always one that must succeed in the state the thread is
//! in.

use crate::crash::model::{Node, Op, State, len_of};
use crate::rng::{Rng, mix};

/// Names a thread has at most; beyond, it deletes.
const NAMES_MAX: usize = 150;
/// Depth of directories at most.
const DEPTH_MAX: usize = 5;

/// The random choices of one thread.
pub struct Planner {
    rng: Rng,
    thread: u64,
    /// For file numbers, names and content keys, none of which is used twice.
    count: u64,
    key_base: u64,
}

impl Planner {
    /// The planner of `thread` in the run with this seed.
    pub fn new(seed: u64, thread: u64) -> Self {
        let key_base = mix(seed ^ mix(thread));
        Self { rng: Rng::new(key_base), thread, count: 0, key_base }
    }

    fn fresh(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn key(&mut self) -> u64 {
        let count = self.fresh();
        mix(self.key_base.wrapping_add(count)) | 1
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(1000) {
            0..50 => 0,
            50..600 => self.rng.range(1, 4096),
            600..900 => self.rng.range(4097, 65_536),
            900..990 => self.rng.range(65_537, 400_000),
            _ => self.rng.range(4_000_000, 5_000_000),
        }
    }

    fn home(&self) -> String {
        format!("t{}", self.thread)
    }

    /// A name that does not exist, in the thread's tree or (a third) in the shared directory.
    fn new_path(&mut self, state: &State) -> String {
        let count = self.fresh();
        if self.rng.percent(30) {
            return format!("shared/t{}-{count}", self.thread);
        }
        let dirs: Vec<_> = state
            .nodes
            .iter()
            .filter(|(p, n)| **n == Node::Dir && p.matches('/').count() < DEPTH_MAX)
            .map(|(p, _)| p)
            .collect();
        let dir = if dirs.is_empty() { self.home() } else { (*self.rng.pick(&dirs)).clone() };
        format!("{dir}/{count}")
    }

    /// A file's name; not of the file that is held open.
    fn file(&mut self, state: &State) -> Option<String> {
        let fits = |node: &Node| matches!(node, Node::File(ino) if Some(*ino) != state.held);
        self.one(state, fits)
    }

    fn one(&mut self, state: &State, fits: impl Fn(&Node) -> bool) -> Option<String> {
        let home = self.home();
        let all: Vec<_> =
            state.nodes.iter().filter(|(p, n)| fits(n) && **p != home).map(|(p, _)| p).collect();
        if all.is_empty() { None } else { Some((*self.rng.pick(&all)).clone()) }
    }

    /// Whether the held file lies at or below a path: then the path stays where it is.
    fn holds(state: &State, path: &str) -> bool {
        state.held.is_some_and(|ino| {
            state
                .names_of(ino)
                .iter()
                .any(|name| name == path || name.starts_with(&format!("{path}/")))
        })
    }

    /// The next operation.
    pub fn next(&mut self, state: &State) -> Op {
        if state.nodes.is_empty() {
            return Op::Mkdir { path: self.home() };
        }
        loop {
            let tried = if state.nodes.len() > NAMES_MAX && self.rng.percent(60) {
                self.removal(state)
            } else {
                self.any(state)
            };
            if let Some(op) = tried {
                return op;
            }
        }
    }

    fn removal(&mut self, state: &State) -> Option<Op> {
        if self.rng.percent(80) {
            return self.unlink(state);
        }
        let path = self.one(state, |n| *n == Node::Dir)?;
        (state.subtree(&path).len() == 1).then_some(Op::Rmdir { path })
    }

    fn unlink(&mut self, state: &State) -> Option<Op> {
        let path = self.one(state, |n| *n != Node::Dir)?;
        (!Self::holds(state, &path)).then_some(Op::Unlink { path })
    }

    fn any(&mut self, state: &State) -> Option<Op> {
        Some(match self.rng.below(100) {
            0..12 => Op::Create { path: self.new_path(state), ino: self.fresh() },
            12..26 => self.write(state),
            26..34 => {
                let (path, key, len) = (self.file(state)?, self.key(), self.len().max(1));
                Op::Append { path, key, len, sync: self.rng.percent(25) }
            }
            34..38 => {
                let path = self.file(state)?;
                let size = len_of(&state.inode(&path)?.1.content);
                let off = self.rng.below(size + 1);
                Op::Overwrite { path, off, key: self.key(), len: self.rng.range(1, 20_000) }
            }
            38..42 => {
                let path = self.file(state)?;
                let size = len_of(&state.inode(&path)?.1.content);
                Op::Truncate { path, len: self.rng.below(size * 2 + 10) }
            }
            42..56 => return self.rename(state),
            56..60 => Op::Link { from: self.file(state)?, to: self.new_path(state) },
            60..72 => return self.unlink(state),
            72..75 => {
                Op::Symlink { target: format!("x{}", self.fresh()), path: self.new_path(state) }
            }
            75..82 => {
                let path = self.new_path(state);
                // Directories only in the own tree: the shared directory stays flat.
                return path.starts_with('t').then_some(Op::Mkdir { path });
            }
            82..85 => {
                let path = self.one(state, |n| *n == Node::Dir)?;
                return (state.subtree(&path).len() == 1).then_some(Op::Rmdir { path });
            }
            85..89 => self.xattr(state)?,
            89..97 => self.hold(state)?,
            97 | 98 => Op::SyncDir {
                path: self.one(state, |n| *n == Node::Dir).unwrap_or_else(|| self.home()),
            },
            _ => Op::Sync,
        })
    }

    fn write(&mut self, state: &State) -> Op {
        let path = if self.rng.percent(30) { self.file(state) } else { None };
        let path = path.unwrap_or_else(|| self.new_path(state));
        Op::Write {
            path,
            ino: self.fresh(),
            key: self.key(),
            len: self.len(),
            sync: self.rng.percent(30),
        }
    }

    fn rename(&mut self, state: &State) -> Option<Op> {
        let exchange = self.rng.percent(15);
        let from = if self.rng.percent(25) {
            self.one(state, |n| *n == Node::Dir)?
        } else {
            self.one(state, |n| *n != Node::Dir)?
        };
        let is_dir = state.nodes.get(&from) == Some(&Node::Dir);
        let to = if exchange || self.rng.percent(50) {
            self.one(state, |n| *n != Node::Dir)?
        } else {
            self.new_path(state)
        };
        let inside = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}/"));
        let shared = |p: &str| p.starts_with("shared/");
        let same_file = state.nodes.get(&from) == state.nodes.get(&to) && !is_dir;
        if inside(&to, &from)
            || inside(&from, &to)
            || same_file
            || Self::holds(state, &from)
            || Self::holds(state, &to)
        {
            return None;
        }
        let replaces = state.nodes.contains_key(&to);
        match (is_dir, replaces, exchange) {
            // A directory replaces no file, and none goes to the shared directory.
            (true, true, false) => None,
            (true, _, _) if shared(&to) => None,
            (_, _, true) => Some(Op::Exchange { from, to }),
            _ => Some(Op::Rename { from, to }),
        }
    }

    fn xattr(&mut self, state: &State) -> Option<Op> {
        let path = self.file(state)?;
        let present: Vec<_> = state.inode(&path)?.1.xattrs.keys().cloned().collect();
        if !present.is_empty() && self.rng.percent(40) {
            let name = self.rng.pick(&present).clone();
            return Some(Op::RemoveXattr { path, name });
        }
        let name = format!("user.{}", self.rng.pick(&["a", "b", "c"]));
        Some(Op::SetXattr { path, name, key: self.key(), len: self.rng.range(1, 200) })
    }

    fn hold(&mut self, state: &State) -> Option<Op> {
        if state.held.is_none() {
            return Some(Op::Hold { path: self.file(state)? });
        }
        Some(match self.rng.below(10) {
            0..6 => Op::HoldAppend { key: self.key(), len: self.rng.range(1, 50_000) },
            6 | 7 => Op::HoldSync,
            _ => Op::HoldClose,
        })
    }
}
