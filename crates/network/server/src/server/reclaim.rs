//! Clients say what they held of a session that the node has lost.
//!
//! What a client claims is what it holds from then on: counts are set, not added, so that it may
//! claim everything again when the answer was lost. Messages are worked on one at a time. A lock
//! can be had back only by a session that was interrupted by a restart, within the grace period:
//! otherwise another client may have held it in between.
//!
//! Nothing new is had once the reclaim is over. A claim is no permission: with a token for some
//! users a file is had back as one of them could open it.

use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Reply};
use kestrel_types::wire::{
    Answered, RECLAIM_ITEMS_MAX, Reclaim, ReclaimOpen, Reclaimed, ReplyTo, ToClient,
};
use rustc_hash::FxHashSet;

use super::{Outside, Server, ServerShared};
use crate::grant::UnverifiedInode;
use crate::granted::Tree;
use crate::session::{ClaimMessage, Phase, Session, State};

/// A claim for the node: the file, and how many opens are missing.
struct Missing {
    open: ReclaimOpen,
    holder: u64,
}

impl Server {
    /// Works on the messages of a client's reclaim, as far as earlier ones have been answered. With
    /// no lock held.
    pub(crate) fn go_on_reclaiming(self: &Arc<Self>, session: &Arc<Session>) {
        loop {
            // What is left is looked at when time passes.
            if !self.backend.may_answer() {
                return;
            }
            let mut state = session.state.lock();
            if !state.is_alive() || state.claims.message.is_some() || state.claims.vetting.is_some()
            {
                return;
            }
            let Some((call, reclaim)) = state.claims.parked.pop_front() else { return };
            let root = state.grant.as_ref().and_then(|grant| grant.root());
            if let Some(root) = root.filter(|_| state.claims.outside.is_none()) {
                state.vettings += 1;
                let vetting = state.vettings;
                state.claims.vetting = Some(vetting);
                state.claims.parked.push_front((call, reclaim));
                let unverified = unverified(&mut state, &self.backend);
                drop(state);
                return self.vet(session, root, unverified, vetting);
            }
            let missing = self.begin_message(&mut state, call, reclaim);
            let answer = self.shared.end_message(&mut state);
            drop(state);
            self.shared.answer_reclaim(session, answer);
            for Missing { open, holder } in missing {
                let (shared, waiting) = (self.shared.clone(), session.clone());
                let (ino, count) = (open.file.ino, open.count);
                let done =
                    Box::new(move |reply| shared.claimed(&waiting, holder, (ino, count), reply));
                self.backend.reclaim_open(open, done);
            }
        }
    }

    /// Goes on when the inodes of the next message are verified.
    fn vet(
        self: &Arc<Self>,
        session: &Arc<Session>,
        root: InodeId,
        unverified: Vec<UnverifiedInode>,
        vetting: u64,
    ) {
        let (server, waiting) = (self.clone(), session.clone());
        let checked = move |outside: Outside| {
            let mut state = waiting.state.lock();
            // Otherwise the client has begun again.
            if state.claims.vetting == Some(vetting) {
                state.claims.vetting = None;
                state.claims.outside = Some(outside.into_iter().map(|(ino, _)| ino).collect());
                drop(state);
                server.go_on_reclaiming(&waiting);
            }
        };
        self.check_subtree(session, root, unverified, Box::new(checked));
    }

    /// Takes up a message; answers what the node has to open.
    fn begin_message(&self, state: &mut State, call: u64, reclaim: Reclaim) -> Vec<Missing> {
        let mut lost = Reclaimed::default();
        let mut missing = Vec::new();
        let outside = state.claims.outside.take().unwrap_or_default();
        // A reclaim is made again if its answer was lost, and finds what it claimed.
        let is_over = state.phase == Phase::Live && state.retries_in;
        let room = self.shared.config.opens_max;
        let mut total = state.opens.total();
        for open in reclaim.opens {
            let ino = open.file.ino;
            let more = open.count.saturating_sub(state.opens.get(ino).count);
            // Of a file that is claimed twice the first counts: no client that keeps the protocol
            // does so.
            if state.claims.opens.contains_key(&ino) {
                continue;
            }
            state.claims.opens.insert(ino, open.count);
            if more == 0 {
                continue;
            }
            if is_over || outside.contains(&ino) {
                lost.lost_opens.push(ino);
                continue;
            }
            total = total.saturating_add(more as usize);
            if total > room {
                lost.lost_opens.push(ino);
            } else {
                missing.push(Missing {
                    open: ReclaimOpen { count: more, ..open },
                    holder: state.holder,
                });
            }
        }
        {
            let mut lock_service = self.shared.lock_service.lock();
            for (index, lock) in (0..).zip(reclaim.locks) {
                let had = match state.claims.locks.get(&lock) {
                    Some(had) => *had,
                    None if outside.contains(&lock.ino) => false,
                    None => state.may_claim_locks && lock_service.reclaim(state.holder, &lock),
                };
                if state.claims.locks.insert(lock, had).is_none() {
                    let count = if had {
                        &self.shared.counts.locks_reclaimed
                    } else {
                        &self.shared.counts.locks_lost
                    };
                    count.add(1);
                }
                if !had {
                    lost.lost_locks.push(index);
                }
            }
        }
        {
            let mut objects = self.shared.objects.lock();
            for (first, count) in reclaim.objects {
                objects.give(state.holder, first, count);
            }
            objects.raise(state.holder, reclaim.oldest_open_object);
        }
        state.claims.message = Some(ClaimMessage {
            call,
            pending: missing.len(),
            lost,
            last: reclaim.last,
            superseded: false,
        });
        missing
    }
}

/// The inodes that the next message names and that are not verified to be within the session's
/// subtree.
fn unverified(state: &mut State, tree: &dyn Tree) -> Vec<UnverifiedInode> {
    let State { grant: Some(grant), claims, given, opens, .. } = state else { return Vec::new() };
    let Some((_, reclaim)) = claims.parked.front() else { return Vec::new() };
    let files = reclaim.opens.iter().map(|open| &open.file);
    let claimed: FxHashSet<InodeId> = files.clone().map(|file| file.ino).collect();
    let locks = reclaim.locks.iter().map(|lock| lock.ino).filter(|ino| !claimed.contains(ino));
    let locked: Vec<InodeRef> = locks.map(InodeRef::by_id).collect();
    files.chain(&locked).filter_map(|file| grant.unverified(file, given, opens, tree)).collect()
}

impl ServerShared {
    /// The node has answered a claim of an open.
    fn claimed(&self, session: &Session, holder: u64, (ino, count): (InodeId, u32), reply: Reply) {
        let mut state = session.state.lock();
        let current = state.is_alive() && state.holder == holder;
        match reply {
            Ok(Answer::Opened { inode, .. }) if current => {
                match state.grant.as_ref().map_or(Some(true), |grant| grant.claimed(&inode)) {
                    Some(write) => {
                        state.opens.add(ino, count, write);
                        self.counts.opens_reclaimed.add(1);
                    }
                    None => {
                        self.releases.lock().push((ino, count));
                        self.lost_open(
                            session,
                            &mut state,
                            ino,
                            "no user of its token may open it",
                        );
                    }
                }
            }
            Ok(_) => self.releases.lock().push((ino, count)),
            Err(why) if current => self.lost_open(session, &mut state, ino, &format!("{why:?}")),
            Err(_) => self.counts.opens_lost.add(1),
        }
        if !current {
            return;
        }
        if let Some(message) = &mut state.claims.message {
            message.pending -= 1;
        }
        let answer = self.end_message(&mut state);
        drop(state);
        self.answer_reclaim(session, answer);
    }

    fn lost_open(&self, session: &Session, state: &mut State, ino: InodeId, why: &str) {
        self.counts.opens_lost.add(1);
        log::info!("client {}: inode {ino} cannot be had back: {why}", session.client);
        if let Some(message) = &mut state.claims.message
            && message.lost.lost_opens.len() < RECLAIM_ITEMS_MAX
        {
            message.lost.lost_opens.push(ino);
        }
    }

    /// If nothing of the present message is left to do: its answer.
    fn end_message(&self, state: &mut State) -> Option<ReplyTo> {
        let message = state.claims.message.take_if(|message| message.pending == 0)?;
        if message.last {
            // What the client does not have open any more, or not so often.
            for (ino, held) in state.opens.all() {
                let want = state.claims.opens.get(&ino).copied().unwrap_or_default();
                let (taken, _) = state.opens.take(ino, held.count.saturating_sub(want));
                if taken > 0 {
                    self.releases.lock().push((ino, taken));
                }
            }
            state.claims.opens.clear();
            if state.phase == Phase::Reclaiming {
                state.phase = Phase::Live;
                self.counts.sessions_reclaimed.add(1);
            }
        }
        // The client claims everything again, over another connection.
        let current = !message.superseded;
        current.then_some(ReplyTo {
            id: message.call,
            table: self.current_map.version(),
            answered: Answered::Reclaim(Ok(message.lost)),
        })
    }

    fn answer_reclaim(&self, session: &Session, answer: Option<ReplyTo>) {
        let Some(answer) = answer else { return };
        let state = session.state.lock();
        let Some(conn) = &state.conn else { return };
        let (outbox, checksum) = (conn.outbox.clone(), conn.checksum);
        drop(state);
        self.send(&*outbox, checksum, &ToClient::Reply(answer));
    }
}
