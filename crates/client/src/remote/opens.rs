//! What a client has open at its servers, as their answers say: the basis of a reclaim, and of where requests about an open
//! file go.
//!
//! Counted are the answers that opened a file, less the answers to releases. So an open or a release that was under way when
//! the server restarted is not in the reclaim, or still is: it is sent again afterwards, and counts then.
//!
//! **Several nodes** may count opens of one file: each counts those that it led, and whoever opens a file, has it renamed and
//! opens it again, gets to another. A release says which file, not which open, so it can go to any of these nodes; and a node
//! knows of a file whether it was opened there for writing, until all opens there are given back. So:
//!
//! - the flag [`Open::write`] is never set unless it is at the node: it is set by the answer to an open for writing, and cleared
//!   when the last open that is known of is given back, be it that others are on their way;
//! - releases go to nodes without the flag, as long as there are opens; so what is left has it somewhere, if ever it had.

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Outcome, Reply};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 16;

/// Opens of one file at one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// How many.
    pub count: u32,
    /// Of these, how many are being given back.
    pub leaving: u32,
    /// The node lets this client write.
    pub write: bool,
    /// Made without a name, and may still get one.
    pub linkable: bool,
}

impl Open {
    /// Opens that stay until somebody gives them back.
    fn staying(&self) -> u32 {
        self.count.saturating_sub(self.leaving)
    }
}

/// What an answer may mean for the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A file may be opened.
    Opens {
        /// See [`Open::write`].
        write: bool,
        /// See [`Open::linkable`].
        linkable: bool,
    },
    /// This file may be released.
    Releases(InodeId),
}

impl Effect {
    /// Of an operation's answer.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Create { flags, .. } | Op::Open(_, flags) | Op::OpenAt(_, flags) => {
                Self::Opens { write: flags.write, linkable: false }
            }
            Op::TmpFile { exclusive, .. } => Self::Opens { write: true, linkable: !exclusive },
            Op::Release(ino) => Self::Releases(*ino),
            _ => Self::None,
        }
    }
}

/// Opens of one file, by node: nearly always one.
type AtNodes = Vec<(NodeId, Open)>;

/// The table.
#[derive(Debug)]
pub struct Opens {
    shards: [Mutex<FxHashMap<InodeId, AtNodes>>; SHARDS],
}

impl Default for Opens {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Opens {
    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, AtNodes>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Takes in an answer of a node.
    pub fn answered(&self, node: NodeId, effect: Effect, reply: &Reply) {
        match (effect, reply) {
            // Opens of directories are not counted.
            (Effect::Opens { write, linkable }, Ok(Answer::Opened { inode, .. }))
                if inode.kind != Kind::Dir =>
            {
                let mut shard = self.shard(inode.ino).lock();
                let nodes = shard.entry(inode.ino).or_default();
                let at = nodes.iter().position(|(at, _)| *at == node).unwrap_or_else(|| {
                    nodes.push((node, Open::default()));
                    nodes.len() - 1
                });
                let open = &mut nodes[at].1;
                open.count += 1;
                open.write |= write;
                open.linkable |= linkable;
            }
            (Effect::Releases(ino), reply) => {
                let released = is_released(reply);
                self.change(node, ino, |open| {
                    open.leaving = open.leaving.saturating_sub(1);
                    open.count -= u32::from(released);
                });
            }
            _ => {}
        }
    }

    /// A node that lost its sessions has this file no more.
    pub fn lost(&self, node: NodeId, ino: InodeId) {
        self.change(node, ino, |open| open.count = 0);
    }

    /// Changes what is open at a node; forgets it if nothing is.
    fn change(&self, node: NodeId, ino: InodeId, change: impl FnOnce(&mut Open)) {
        let mut shard = self.shard(ino).lock();
        let Some(nodes) = shard.get_mut(&ino) else { return };
        let Some(at) = nodes.iter().position(|(at, _)| *at == node) else { return };
        change(&mut nodes[at].1);
        if nodes[at].1.count == 0 {
            nodes.swap_remove(at);
            if nodes.is_empty() {
                shard.remove(&ino);
            }
        }
    }

    /// Where to give back an open of a file, which is on its way there from now on; none if it is open nowhere.
    pub fn leave(&self, ino: InodeId) -> Option<NodeId> {
        let mut shard = self.shard(ino).lock();
        let open = shard.get_mut(&ino)?.iter_mut().filter(|(_, open)| open.staying() > 0);
        let (node, open) = open.min_by_key(|(_, open)| open.write)?;
        open.leaving += 1;
        if open.staying() == 0 {
            open.write = false;
        }
        Some(*node)
    }

    /// The node to ask about a file that is open: one that lets it be written, if there is one; none if it is open nowhere.
    pub fn held_at(&self, ino: InodeId) -> Option<NodeId> {
        let shard = self.shard(ino).lock();
        let open = shard.get(&ino)?.iter().filter(|(_, open)| open.staying() > 0);
        open.max_by_key(|(_, open)| open.write).map(|(node, _)| *node)
    }

    /// All files open at a node.
    pub fn all_at(&self, node: NodeId) -> Vec<(InodeId, Open)> {
        let at = |nodes: &AtNodes| nodes.iter().find(|(at, _)| *at == node).map(|(_, open)| *open);
        let of = |shard: &Mutex<FxHashMap<InodeId, AtNodes>>| {
            shard.lock().iter().filter_map(|(ino, nodes)| Some((*ino, at(nodes)?))).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Files in it.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// Whether the server does not count the open any more: it says so, or it had not.
fn is_released(reply: &Reply) -> bool {
    match reply {
        Ok(_) => true,
        Err(Outcome::Failed(error)) => matches!(error.errno, libc::EBADF | libc::ESTALE),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::error::FsError;
    use kestrel_types::ids::ROOT;
    use kestrel_types::inode::{Data, Inode};

    use super::*;

    fn opened(ino: InodeId) -> Reply {
        let inode = Inode {
            ino,
            kind: Kind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
            change: 1,
            data_change: 1,
            xattrs: false,
            data: Data::None,
        };
        Ok(Answer::Opened { inode: Box::new(inode), created: false, parent: None })
    }

    const READ: Effect = Effect::Opens { write: false, linkable: false };
    const WRITE: Effect = Effect::Opens { write: true, linkable: false };

    fn released(opens: &Opens, node: NodeId, ino: InodeId) {
        opens.answered(node, Effect::Releases(ino), &Ok(Answer::Done));
    }

    #[test]
    fn opens_are_counted_by_answers() {
        let opens = Opens::default();
        let failed = |errno| Err(FsError::new(errno, "test").into());
        let temporary = Effect::of(&Op::TmpFile { dir: ROOT, mode: 0, exclusive: false });
        opens.answered(0, READ, &opened(20));
        opens.answered(0, READ, &opened(20));
        opens.answered(0, temporary, &opened(21));
        opens.answered(0, READ, &failed(libc::EACCES));
        opens.answered(0, Effect::None, &opened(22));
        let mut all = opens.all_at(0);
        all.sort_by_key(|(ino, _)| *ino);
        let (twice, once) = (
            Open { count: 2, ..Open::default() },
            Open { count: 1, write: true, linkable: true, ..Open::default() },
        );
        assert_eq!(all, [(20, twice), (21, once)]);
        released(&opens, 0, 20);
        opens.answered(0, Effect::Releases(20), &failed(libc::EIO));
        assert_eq!(opens.len(), 2, "a release that failed has released nothing");
        opens.answered(0, Effect::Releases(20), &failed(libc::EBADF));
        opens.lost(0, 21);
        opens.answered(0, Effect::Releases(21), &failed(libc::EBADF));
        assert_eq!(opens.len(), 0);
    }

    #[test]
    fn each_node_counts_its_own_and_loses_its_own() {
        let opens = Opens::default();
        opens.answered(1, READ, &opened(20));
        opens.answered(2, READ, &opened(20));
        opens.answered(2, READ, &opened(20));
        opens.answered(2, READ, &opened(21));
        assert_eq!((opens.all_at(1).len(), opens.all_at(2).len(), opens.all_at(3).len()), (1, 2, 0));
        opens.lost(2, 20);
        assert_eq!((opens.held_at(20), opens.len()), (Some(1), 2));
        assert_eq!((opens.leave(20), opens.leave(20), opens.held_at(20)), (Some(1), None, None));
        assert_eq!(opens.all_at(1)[0].1.count, 1, "it is claimed again as long as its release has no answer");
        released(&opens, 1, 20);
        assert_eq!(opens.len(), 1);
    }

    #[test]
    fn what_was_opened_for_writing_is_given_back_last() {
        let opens = Opens::default();
        for (node, how) in [(1, READ), (2, WRITE), (2, READ), (3, READ)] {
            opens.answered(node, how, &opened(20));
        }
        assert_eq!(opens.held_at(20), Some(2));
        let mut left: Vec<_> = (0..2).map(|_| opens.leave(20).unwrap()).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3]);
        assert_eq!((opens.leave(20), opens.held_at(20)), (Some(2), Some(2)), "a writable one is left");
        assert_eq!((opens.leave(20), opens.held_at(20), opens.leave(20)), (Some(2), None, None));
        for node in [1, 2, 2, 3] {
            released(&opens, node, 20);
        }
        assert_eq!(opens.len(), 0);
    }

    #[test]
    fn a_node_is_not_taken_for_writable_because_it_was_before_all_was_given_back() {
        let opens = Opens::default();
        opens.answered(1, WRITE, &opened(20));
        assert_eq!(opens.leave(20), Some(1));
        // An open for reading was on its way; the node had no more opens when it came there.
        opens.answered(1, READ, &opened(20));
        released(&opens, 1, 20);
        opens.answered(2, WRITE, &opened(20));
        assert_eq!(opens.held_at(20), Some(2));
        assert_eq!((opens.leave(20), opens.held_at(20)), (Some(1), Some(2)));
    }
}
