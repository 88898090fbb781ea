//! Clients say what they held of a session that the node has lost.
//!
//! What a client says is what it holds from then on: counts are set, not added, so that it may say everything again when it
//! has not heard the answer. Messages are worked on one at a time. A lock can be had back only by a session that was
//! interrupted by a restart, within the grace period: otherwise another client may have held it in between.

use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::request::{Answer, Reply};
use kestrel_types::wire::{Answered, RECLAIM_ITEMS_MAX, Reclaim, ReclaimOpen, Reclaimed, ReplyTo, ToClient};

use super::{Server, Shared};
use crate::session::{Part, Phase, Session, State};

/// A claim for the node: the file, and how many opens are missing.
struct Missing {
    open: ReclaimOpen,
    holder: u64,
}

impl Server {
    /// Works on what a client has said, as far as earlier messages of it have been answered. With no lock held.
    pub(crate) fn go_on_reclaiming(&self, session: &Arc<Session>) {
        loop {
            let mut state = session.state.lock();
            if !state.is_alive() || state.claims.part.is_some() {
                return;
            }
            let Some((call, reclaim)) = state.claims.parked.pop_front() else { return };
            let missing = self.begin_part(&mut state, call, reclaim);
            let answer = self.shared.end_part(&mut state);
            drop(state);
            self.shared.answer_reclaim(session, answer);
            for Missing { open, holder } in missing {
                let (shared, waiting) = (self.shared.clone(), session.clone());
                let (ino, count) = (open.file.ino, open.count);
                let done = Box::new(move |reply| shared.claimed(&waiting, holder, (ino, count), reply));
                self.backend.reclaim_open(open, done);
            }
        }
    }

    /// Takes up a message; what the node has to be asked for.
    fn begin_part(&self, state: &mut State, call: u64, reclaim: Reclaim) -> Vec<Missing> {
        let mut lost = Reclaimed::default();
        let mut missing = Vec::new();
        let room = self.shared.config.opens_max;
        let mut total = state.opens.total();
        for open in reclaim.opens {
            let ino = open.file.ino;
            let more = open.count.saturating_sub(state.opens.get(ino).count);
            // Of a file that is said twice the first counts: nobody who keeps the protocol says it twice.
            if state.claims.opens.contains_key(&ino) {
                continue;
            }
            state.claims.opens.insert(ino, open.count);
            if more == 0 {
                continue;
            }
            total = total.saturating_add(more as usize);
            if total > room {
                lost.lost_opens.push(ino);
            } else {
                missing.push(Missing { open: ReclaimOpen { count: more, ..open }, holder: state.holder });
            }
        }
        {
            let mut desk = self.shared.desk.lock();
            for (index, lock) in (0..).zip(reclaim.locks) {
                let had = match state.claims.locks.get(&lock) {
                    Some(had) => *had,
                    None => state.may_claim_locks && desk.reclaim(state.holder, &lock),
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
        state.claims.part =
            Some(Part { call, pending: missing.len(), lost, last: reclaim.last, superseded: false });
        missing
    }
}

impl Shared {
    /// The node has answered a claim of an open.
    fn claimed(&self, session: &Session, holder: u64, (ino, count): (InodeId, u32), reply: Reply) {
        let mut state = session.state.lock();
        let current = state.is_alive() && state.holder == holder;
        match reply {
            Ok(Answer::Opened { .. }) if current => {
                state.opens.add(ino, count, true);
                self.counts.opens_reclaimed.add(1);
            }
            Ok(_) => self.releases.lock().push((ino, count)),
            Err(why) => {
                self.counts.opens_lost.add(1);
                log::info!("client {}: inode {ino} cannot be had back: {why:?}", session.client);
                if let Some(part) = state.claims.part.as_mut().filter(|_| current)
                    && part.lost.lost_opens.len() < RECLAIM_ITEMS_MAX
                {
                    part.lost.lost_opens.push(ino);
                }
            }
        }
        if !current {
            return;
        }
        if let Some(part) = &mut state.claims.part {
            part.pending -= 1;
        }
        let answer = self.end_part(&mut state);
        drop(state);
        self.answer_reclaim(session, answer);
    }

    /// If nothing of the present message is left to do: its answer.
    fn end_part(&self, state: &mut State) -> Option<ReplyTo> {
        let part = state.claims.part.take_if(|part| part.pending == 0)?;
        if part.last {
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
        // The client says everything again, over another connection.
        let asked = !part.superseded;
        asked.then_some(ReplyTo {
            id: part.call,
            table: self.tables.version(),
            answered: Answered::Reclaim(Ok(part.lost)),
        })
    }

    fn answer_reclaim(&self, session: &Session, answer: Option<ReplyTo>) {
        let Some(answer) = answer else { return };
        let state = session.state.lock();
        let Some(line) = &state.line else { return };
        let (outbox, checksum) = (line.outbox.clone(), line.checksum);
        drop(state);
        self.send(&*outbox, checksum, &ToClient::Reply(answer));
    }
}
