//! Nodes that leave the cluster: what this client holds there it gets elsewhere, and then it ends
//! its session there.
//!
//! The table says which nodes leave. Such a node owns nothing, so nothing new is asked of it,
//! object numbers among that. What is left is what was begun before, and the session ends when
//! nothing of it is left:
//!
//! - *opens*: each file is opened again, by number and as root, where that is led; then the open at
//!   the node is given back ([`super::opens`]). A file without a name is opened at its home, which
//!   finds it as long as anybody counts an open of it;
//! - *objects* that bear numbers of the node, until something refers to them or they are given up:
//!   open packs are sealed, and what was written is committed for its age;
//! - *requests* under way, and those that are just being sent by an older table.
//!
//! The node waits for the end of all sessions before it goes. If it goes all the same, because this
//! client was away for longer than its lease, what is held there is lost, as after any lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, Request};
use parking_lot::Mutex;

use super::calls::RemoteShared;
use super::nodes::{NodeLink, NodeSet};
use super::opens::{Open, OpenEffect, OpenRow};
use super::pending::{PendingCall, RequestRoute};

/// Files that are opened elsewhere at a time.
const MOVES_MAX: usize = 256;

/// Time between two looks at what is left.
const LOOK: Duration = Duration::from_millis(50);

/// The same after something could not be opened elsewhere; and between two times that packs are
/// sealed.
const LOOK_LATER: Duration = Duration::from_secs(1);

/// How it goes.
#[derive(Default)]
pub(super) struct Moves {
    under_way: AtomicUsize,
    /// Something could not be opened elsewhere since the last look.
    failed: AtomicBool,
    sealed: Mutex<Option<Instant>>,
}

impl Moves {
    /// Does what can be done to move out of nodes that leave. When to look again, if anything is
    /// left to do.
    pub fn move_out(self: &Arc<Self>, shared: &Arc<RemoteShared>) -> Option<Duration> {
        let nodes = shared.nodes.known();
        let leaving = nodes.placement.as_ref().map_or(&[][..], |placement| &placement.leaving);
        let links =
            nodes.links.iter().filter(|link| leaving.contains(&link.node) && !link.has_left());
        let links: Vec<&Arc<NodeLink>> = links.collect();
        // In this order: what has been answered by now may have left a spare open.
        let all_answered = self.under_way.load(Ordering::Acquire) == 0;
        for link in &links {
            self.move_opens(shared, link.node);
        }
        for row in shared.reclaimable.opens.spare(leaving) {
            release(shared, &nodes, row);
        }
        let left = links
            .into_iter()
            .filter(|link| !(all_answered && self.leave_if_done(shared, link)))
            .count();
        let failed = self.failed.swap(false, Ordering::Relaxed);
        (left > 0 || !all_answered).then_some(if failed { LOOK_LATER } else { LOOK })
    }

    fn move_opens(self: &Arc<Self>, shared: &Arc<RemoteShared>, node: NodeId) {
        let room = MOVES_MAX.saturating_sub(self.under_way.load(Ordering::Relaxed));
        for (row, open) in shared.reclaimable.opens.to_move(node, room) {
            self.under_way.fetch_add(1, Ordering::Relaxed);
            self.open_elsewhere(shared, row, open);
        }
    }

    fn open_elsewhere(self: &Arc<Self>, shared: &Arc<RemoteShared>, row: OpenRow, open: Open) {
        let flags = OpenFlags { read: true, write: open.write, ..OpenFlags::default() };
        let op = Op::Open(shared.reclaimable.last_seen(row.ino), flags);
        let (moves, reclaimable) = (self.clone(), shared.reclaimable.clone());
        let done = Box::new(move |reply| {
            let opened = matches!(reply, Ok(Answer::Opened { .. }));
            if !opened {
                log::debug!(
                    "inode {} cannot be opened elsewhere than at node {}: {reply:?}",
                    row.ino,
                    row.node
                );
                moves.failed.store(true, Ordering::Relaxed);
            }
            reclaimable.opens.moved(&row, opened);
            moves.under_way.fetch_sub(1, Ordering::Release);
        });
        let asked = PendingCall::new(&op, done);
        shared.send(Request { creds: Creds::root(), op }, asked);
    }

    /// Ends the session with a node if nothing is held there any more. Waits for the farewell, not
    /// for long.
    fn leave_if_done(&self, shared: &RemoteShared, link: &NodeLink) -> bool {
        let stats = link.remote.stats();
        let is_quiet = stats.in_flight == 0
            && stats.waiting == 0
            && !shared.nodes.is_routed_by_an_older_table();
        let is_done = shared.reclaimable.opens.all_at(link.node).is_empty()
            && is_quiet
            && !self.has_objects_of(shared, link.node);
        if is_done {
            log::info!(
                "node {} at {}: it leaves, and nothing is held there any more",
                link.node,
                link.address()
            );
            link.leave();
        }
        is_done
    }

    /// Whether there are objects that bear numbers of this node and that nothing refers to yet.
    fn has_objects_of(&self, shared: &RemoteShared, node: NodeId) -> bool {
        let Some(fs) = shared.reclaimable.fs() else { return false };
        shared.reclaimable.numbers.done_below(node, fs.packer());
        if shared.reclaimable.numbers.held_of(node).is_empty() {
            return false;
        }
        let mut sealed = self.sealed.lock();
        if sealed.is_none_or(|sealed| sealed.elapsed() > LOOK_LATER) {
            fs.packer().seal_all();
            *sealed = Some(Instant::now());
        }
        true
    }
}

/// Gives a spare open back. If that fails it is counted as before, and spare no more: what its
/// node keeps of it goes with the session.
fn release(shared: &Arc<RemoteShared>, nodes: &NodeSet, row: OpenRow) {
    let op = Op::Release(row.ino);
    let asked = PendingCall::new(&op, Box::new(|_| ()));
    let request = Request { creds: Creds::root(), op };
    shared.send_to(
        nodes,
        nodes.index_of(row.node),
        request,
        RequestRoute::of(OpenEffect::Releases(row)),
        asked,
    );
}

/// A node is not in the table any more: nothing is asked there again, and what is still held
/// there is lost.
pub(super) fn let_go(shared: &RemoteShared, link: &NodeLink) {
    if link.has_left() {
        return;
    }
    let opens = shared.reclaimable.opens.all_at(link.node);
    opens.iter().for_each(|(ino, _)| shared.reclaimable.opens.lost(link.node, *ino));
    shared.reclaimable.lose_objects(link.node);
    log::warn!(
        "node {} at {} has left the cluster while this client was away: {} files that were open there are gone (ESTALE)",
        link.node,
        link.address(),
        opens.len()
    );
    link.leave();
}
