//! The reclaim: the node has lost the session, and learns from the client what it holds.

use kestrel_types::error::FsError;
use kestrel_types::wire::{Answered, Body, Reclaim, SessionState};

use super::calls::CallOwner;
use super::{Broken, CallDeadline, CallId, Link, LinkEvent, Parts, Stage};

impl<D> Link<D> {
    /// The node's counts for this client are gone, and the reclaim sets them anew: there is nothing
    /// to undo any more. A node without a record of this client has none of its numbered calls
    /// either.
    pub(super) fn forget(&mut self, lost: SessionState) {
        for id in self.calls.ids(|pending| matches!(pending.owner, CallOwner::GivenUp)) {
            self.end(id, Err(FsError::new(libc::EIO, "given up")));
        }
        if lost == SessionState::New {
            self.fail_all(
                |pending| pending.call.seq != 0,
                libc::EIO,
                "the metadata server has forgotten this client; whether the call was carried \
                 out is unknown: look, and try again",
            );
        }
    }

    /// What the driver holds of the session: answer to [`LinkEvent::ReclaimWanted`]. Ignored at
    /// other times.
    pub fn reclaim(&mut self, mut held: Vec<Reclaim>) {
        if !matches!(self.stage, Stage::Reclaiming { parts: None }) {
            return;
        }
        mark_last(&mut held);
        let mut parts =
            Parts { ids: Vec::with_capacity(held.len()), replies: Vec::with_capacity(held.len()) };
        for part in held {
            let id = self.enqueue(Body::Reclaim(part), CallDeadline::Always, CallOwner::Reclaim);
            self.queue.pop_back();
            if let Some(pending) = self.calls.get_mut(id) {
                pending.call.retry = true;
            }
            self.send(id);
            parts.ids.push(id);
            let unsent = self.calls.get_mut(id).is_none();
            parts.replies.push(unsent.then(|| {
                Err(FsError::new(
                    libc::EMSGSIZE,
                    "what this client holds does not fit one message: its parts are too large",
                ))
            }));
        }
        self.stage = Stage::Reclaiming { parts: Some(parts) };
        self.finish_reclaim();
    }

    /// Goes on if all parts are answered.
    fn finish_reclaim(&mut self) {
        let Stage::Reclaiming { parts: Some(parts) } = &mut self.stage else { return };
        if parts.replies.iter().all(Option::is_some) {
            let replies = parts.replies.drain(..).flatten().collect();
            let lost = self.lost.take().unwrap_or(SessionState::Restarted);
            self.events.push_back(LinkEvent::Reclaimed { lost, replies });
            self.serve(true);
        }
    }

    /// Takes the answer to a part.
    pub(super) fn reclaimed(&mut self, id: CallId, answered: Answered) -> Result<(), Broken> {
        self.calls.remove(id);
        let (Stage::Reclaiming { parts: Some(parts) }, Answered::Reclaim(reply)) =
            (&mut self.stage, answered)
        else {
            return Err(Broken("the metadata server answered a reclaim twice".into()));
        };
        if let Some(index) = parts.ids.iter().position(|part| *part == id) {
            parts.replies[index] = Some(reply);
        }
        self.finish_reclaim();
        Ok(())
    }
}

/// Checks what a driver holds before it is sent: the last part, and no other, is marked as the
/// last.
fn mark_last(parts: &mut Vec<Reclaim>) {
    if parts.is_empty() {
        parts.push(Reclaim { oldest_open_object: u64::MAX, ..Reclaim::default() });
    }
    let last = parts.len() - 1;
    for (index, part) in parts.iter_mut().enumerate() {
        part.last = index == last;
    }
}
