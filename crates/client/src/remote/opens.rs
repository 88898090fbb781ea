//! What a client has open at its servers, as their answers say: the basis of a reclaim, and of
//! where requests about an open file go.
//!
//! Counted are the answers that opened a file, less the answers to releases. So an open or a
//! release that was under way when the server restarted is not in the reclaim, or still is: it is
//! sent again afterwards, and counts then.
//!
//! **Several nodes** may count opens of one file: each counts those that it led, and a client that
//! opens a file, has it renamed and opens it again, gets to another. A release says which file, not
//! which open, so it can go to any of these nodes; and a node knows of a file whether it was opened
//! there for writing, until all opens there are given back. So:
//!
//! - the flag [`Open::write`] is never set unless it is at the node: it is set by the answer to an
//!   open for writing, and cleared when the last open that is known of is given back, be it that
//!   others are on their way;
//! - releases go to nodes without the flag, as long as there are opens; so what is left has it
//!   somewhere, if ever it had.
//!
//! **What a node has lost** is open nowhere, but somebody will close it: these opens are given back
//! first, without asking anybody, so that they do not take away those that other nodes count, or
//! the same one since. The answers to releases that were under way then concern nobody any more:
//! whatever is counted at the node since has another number ([`OpenRow::counted_as`]).
//!
//! **What a node counts that leaves the cluster** moves out ([`super::leaving`]): the file is
//! opened elsewhere as often as it is open there, and each such open makes one that is spare
//! ([`File::spare`]). Spare ones are given back, those at nodes that leave first, when nothing that
//! was asked there relies on them any more ([`Opens::begin_use`]). So there is always one left for
//! what uses a handle, here too.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Requests under way at the node that rely on the file being open there.
    using: u32,
    /// How often the file was opened elsewhere in the place of these, and is being.
    moved: u32,
    moving: u32,
    /// Number of this row: what was counted at the node before it lost the file had another.
    number: u64,
}

impl Open {
    /// Opens that stay until somebody gives them back.
    fn staying(&self) -> u32 {
        self.count.saturating_sub(self.leaving)
    }

    /// Some that stay are on their way out.
    fn give_back(&mut self) {
        self.leaving += 1;
        if self.staying() == 0 {
            self.write = false;
        }
        self.moved = self.moved.min(self.staying());
    }
}

/// What an answer may mean for the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenEffect {
    /// Nothing.
    None,
    /// A file may be opened.
    Opens {
        /// See [`Open::write`].
        write: bool,
        /// See [`Open::linkable`].
        linkable: bool,
    },
    /// This open may be released.
    Releases(OpenRow),
}

/// Opens of a file at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRow {
    /// The file.
    pub ino: InodeId,
    /// The node that counts it.
    pub node: NodeId,
    /// Number of the row in which it is counted.
    counted_as: u64,
}

/// What becomes of an open that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleasedOpen {
    /// It is on its way to a node.
    Back(OpenRow),
    /// Its node has lost it: there is nothing to do.
    Lost,
    /// It is open nowhere.
    Unknown,
}

impl OpenEffect {
    /// Of an operation's answer.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Create { flags, .. } | Op::Open(_, flags) | Op::OpenAt(_, flags) => {
                Self::Opens { write: flags.write, linkable: false }
            }
            Op::TmpFile { exclusive, .. } => Self::Opens { write: true, linkable: !exclusive },
            // That of a release is known when its node is: [`Opens::leave`].
            _ => Self::None,
        }
    }
}

/// Opens of one file.
#[derive(Debug, Default)]
struct File {
    /// By node: nearly always one.
    nodes: Vec<(NodeId, Open)>,
    /// How many are open here that their nodes have lost.
    lost: u32,
    /// How many more the nodes count than there are: the file was opened elsewhere in their place.
    spare: u32,
}

impl File {
    fn is_over(&self) -> bool {
        self.nodes.is_empty() && self.lost == 0
    }

    fn row(&mut self, row: &OpenRow) -> Option<&mut Open> {
        let (_, open) = self.nodes.iter_mut().find(|(node, _)| *node == row.node)?;
        (open.number == row.counted_as).then_some(open)
    }

    /// Opens that stay, spare ones among them.
    fn staying(&self) -> u32 {
        self.nodes.iter().map(|(_, open)| open.staying()).sum()
    }
}

/// The table.
#[derive(Debug)]
pub struct Opens {
    shards: [Mutex<FxHashMap<InodeId, File>>; SHARDS],
    /// Rows so far.
    rows: AtomicU64,
}

impl Default for Opens {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), rows: AtomicU64::new(0) }
    }
}

impl Opens {
    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, File>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Takes in an answer of a node.
    pub fn answered(&self, node: NodeId, effect: OpenEffect, reply: &Reply) {
        match (effect, reply) {
            // Opens of directories are not counted.
            (OpenEffect::Opens { write, linkable }, Ok(Answer::Opened { inode, .. }))
                if inode.kind != Kind::Dir =>
            {
                let mut shard = self.shard(inode.ino).lock();
                let nodes = &mut shard.entry(inode.ino).or_default().nodes;
                let at = nodes.iter().position(|(at, _)| *at == node).unwrap_or_else(|| {
                    let number = self.rows.fetch_add(1, Ordering::Relaxed);
                    nodes.push((node, Open { number, ..Open::default() }));
                    nodes.len() - 1
                });
                let open = &mut nodes[at].1;
                open.count += 1;
                open.write |= write;
                open.linkable |= linkable;
            }
            (OpenEffect::Releases(row), reply) => {
                let released = is_released(reply);
                self.change(node, row.ino, |open, _, _| {
                    if open.number == row.counted_as {
                        open.leaving = open.leaving.saturating_sub(1);
                        open.count -= u32::from(released);
                    }
                });
            }
            _ => {}
        }
    }

    /// A node that lost its sessions has this file no more.
    pub fn lost(&self, node: NodeId, ino: InodeId) {
        self.change(node, ino, |open, lost, spare| {
            // Others are there in their place.
            let replaced = open.staying().min(*spare);
            *spare -= replaced;
            *lost += open.staying() - replaced;
            open.count = 0;
        });
    }

    /// Changes what is open at a node; forgets it if nothing is.
    fn change(
        &self,
        node: NodeId,
        ino: InodeId,
        change: impl FnOnce(&mut Open, &mut u32, &mut u32),
    ) {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return };
        let Some(at) = file.nodes.iter().position(|(at, _)| *at == node) else { return };
        change(&mut file.nodes[at].1, &mut file.lost, &mut file.spare);
        if file.nodes[at].1.count == 0 {
            file.nodes.swap_remove(at);
            if file.is_over() {
                shard.remove(&ino);
            }
        }
    }

    /// Where to give back an open of a file, which is on its way there from now on.
    pub fn leave(&self, ino: InodeId) -> ReleasedOpen {
        let mut shard = self.shard(ino).lock();
        let Some(file) = shard.get_mut(&ino) else { return ReleasedOpen::Unknown };
        if file.lost > 0 {
            file.lost -= 1;
            if file.is_over() {
                shard.remove(&ino);
            }
            return ReleasedOpen::Lost;
        }
        match give_back(file, ino) {
            Some(row) => ReleasedOpen::Back(row),
            None => ReleasedOpen::Unknown,
        }
    }

    /// The node to ask about a file that is open: one that lets it be written, if there is one, and
    /// rather one that stays; none if it is open nowhere. It goes on counting an open until
    /// [`Opens::end_use`].
    pub fn begin_use(&self, ino: InodeId, leaving: &[NodeId]) -> Option<OpenRow> {
        let mut shard = self.shard(ino).lock();
        let open = shard.get_mut(&ino)?.nodes.iter_mut().filter(|(_, open)| open.staying() > 0);
        let (node, open) = open.max_by_key(|(node, open)| (open.write, !leaving.contains(node)))?;
        open.using += 1;
        Some(OpenRow { ino, node: *node, counted_as: open.number })
    }

    /// What was asked has been answered.
    pub fn end_use(&self, row: &OpenRow) {
        if let Some(open) =
            self.shard(row.ino).lock().get_mut(&row.ino).and_then(|file| file.row(row))
        {
            open.using = open.using.saturating_sub(1);
        }
    }

    /// Some opens at a node that leaves, which are to be had elsewhere: at most `limit`, of each
    /// file one. Each is asked for until [`Opens::moved`].
    pub fn to_move(&self, node: NodeId, limit: usize) -> Vec<(OpenRow, Open)> {
        let mut rows = Vec::new();
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter_mut() {
                let at = file.nodes.iter_mut().find(|(at, _)| *at == node);
                let Some((_, open)) =
                    at.filter(|(_, open)| open.staying() > open.moved + open.moving)
                else {
                    continue;
                };
                if rows.len() == limit {
                    return rows;
                }
                open.moving += 1;
                rows.push((OpenRow { ino: *ino, node, counted_as: open.number }, *open));
            }
        }
        rows
    }

    /// The file has been opened elsewhere in the place of an open of this row, or could not be.
    pub fn moved(&self, row: &OpenRow, opened: bool) {
        let mut shard = self.shard(row.ino).lock();
        let Some(file) = shard.get_mut(&row.ino) else { return };
        let Some(open) = file.row(row) else {
            match file.lost {
                _ if !opened => {}
                0 => file.spare += 1,
                // Not lost after all.
                _ => file.lost -= 1,
            }
            return;
        };
        open.moving = open.moving.saturating_sub(1);
        open.moved = (open.moved + u32::from(opened)).min(open.staying());
        let linkable = opened && open.linkable;
        file.spare += u32::from(opened);
        if linkable {
            // It is the file that may get a name, wherever it is open.
            file.nodes.iter_mut().for_each(|(_, open)| open.linkable = true);
        }
    }

    /// Spare opens to give back, which are on their way from now on: those at nodes that leave and
    /// that nobody relies on; others where there are none of these any more.
    pub fn spare(&self, leaving: &[NodeId]) -> Vec<OpenRow> {
        let mut rows = Vec::new();
        for shard in &self.shards {
            for (ino, file) in shard.lock().iter_mut().filter(|(_, file)| file.spare > 0) {
                while file.spare > 0 {
                    let Some(row) = give_back_spare(file, *ino, leaving) else { break };
                    file.spare -= 1;
                    rows.push(row);
                }
            }
        }
        rows
    }

    /// All files open at a node.
    pub fn all_at(&self, node: NodeId) -> Vec<(InodeId, Open)> {
        let at = |file: &File| file.nodes.iter().find(|(at, _)| *at == node).map(|(_, open)| *open);
        let of = |shard: &Mutex<FxHashMap<InodeId, File>>| {
            shard
                .lock()
                .iter()
                .filter_map(|(ino, file)| Some((*ino, at(file)?)))
                .collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Goes on with what another client had open at a node.
    pub fn take(&self, node: NodeId, opens: &[(InodeId, u32, bool, bool)]) {
        for (ino, count, write, linkable) in opens.iter().copied().filter(|open| open.1 > 0) {
            let number = self.rows.fetch_add(1, Ordering::Relaxed);
            let open = Open { count, write, linkable, number, ..Open::default() };
            self.shard(ino).lock().entry(ino).or_default().nodes.push((node, open));
        }
    }

    /// Files that are open at any node.
    pub fn len(&self) -> usize {
        let is_open = |file: &&File| !file.nodes.is_empty();
        self.shards.iter().map(|shard| shard.lock().values().filter(is_open).count()).sum()
    }
}

/// Gives an open back where that leaves one that can be written as long as there is one, and that
/// somebody relies on.
fn give_back(file: &mut File, ino: InodeId) -> Option<OpenRow> {
    let open = file.nodes.iter_mut().filter(|(_, open)| open.staying() > 0);
    let is_needed = |open: &Open| open.using > 0 && open.staying() == 1;
    let (node, open) =
        open.min_by_key(|(_, open)| (open.write, is_needed(open), open.moved == 0))?;
    open.give_back();
    Some(OpenRow { ino, node: *node, counted_as: open.number })
}

/// Gives a spare open of a file back, if one can be.
fn give_back_spare(file: &mut File, ino: InodeId, leaving: &[NodeId]) -> Option<OpenRow> {
    let (is_held, stays) = (file.staying() > file.spare, |node: &NodeId| !leaving.contains(node));
    let written =
        file.nodes.iter().any(|(node, open)| stays(node) && open.write && open.staying() > 0);
    let of_leaving = file.nodes.iter_mut().find(|(node, open)| !stays(node) && open.staying() > 0);
    let Some((node, open)) = of_leaving else { return give_back(file, ino) };
    if open.write && is_held && !written {
        // What was opened in its place has been given back by somebody: once more.
        open.moved = 0;
        return None;
    }
    if open.using > 0 {
        return None;
    }
    open.moved = open.moved.saturating_sub(1);
    open.give_back();
    Some(OpenRow { ino, node: *node, counted_as: open.number })
}

/// Whether the server does not count the open any more: it says so, or it had not.
fn is_released(reply: &Reply) -> bool {
    match reply {
        Ok(_) => true,
        Err(Outcome::Failed(error)) => matches!(error.errno, libc::EBADF | libc::ESTALE),
        // Only a node that has left the cluster says so: it counts nothing.
        Err(Outcome::Misdirected { .. }) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests;
