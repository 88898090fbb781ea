//! A member that leaves: what has to have come to an end first, and what the others forget of it.
//!
//! It owns no slots any more, so it is asked for nothing but its shares, and what clients have open
//! here. From Freeze on it leads no transaction (those of claims count opens), so what it is found
//! to have no more of it does not get again.
//!
//! **It leaves no member in doubt.** It is frozen when everything that it has decided is known to
//! all participants, and when nothing that it has agreed to is undecided. So of a transaction that
//! it led, and that a member has agreed to and not heard the end of, it was not decided; and of
//! decisions of others it has made all its changes.

use kestrel_engine::BatchKind;
use kestrel_types::error::FsError;

use super::super::txn::records::decision_key;
use super::super::without;
use super::Step;
use crate::ClusterNode;

/// Says why the node cannot leave yet, if it cannot: which clients have sessions here. It must not
/// block.
pub type DepartureGuard = dyn Fn() -> Option<String> + Send + Sync;

impl ClusterNode {
    /// Why this node cannot leave yet.
    pub(super) fn why_it_stays(&self) -> Option<FsError> {
        let core = self.node.core();
        let open = core.opens.len();
        let why = if core.reclaiming.lasts() {
            "it waits for clients of before its start to claim what they had open".into()
        } else if open > 0 {
            format!("clients have {open} files open there")
        } else {
            self.departure_guard.as_ref().and_then(|guard| guard())?
        };
        Some(self.stays(&why))
    }

    /// Why it does not leave though nobody uses it any more: objects that it has deleted are not
    /// forgotten by all.
    pub(super) fn why_it_is_not_done(&self) -> Option<FsError> {
        match self.node.has_deleted_rows() {
            Ok(false) => None,
            Ok(true) => {
                Some(self.stays("other nodes have not forgotten objects that it has deleted"))
            }
            Err(why) => Some(why),
        }
    }

    fn stays(&self, why: &str) -> FsError {
        let text = format!("metadata: node {} cannot leave yet: {why}; tried again", self.me);
        FsError::because(libc::EBUSY, text)
    }

    /// Whether an attempt is under way by which this member leaves.
    pub(crate) fn is_about_to_leave(&self) -> bool {
        self.changing.part.as_ref().is_some_and(|part| part.next.map.member(self.me).is_none())
    }

    /// Whether its shares are with its heir, or will be when it hears that it has left.
    pub(crate) fn is_frozen_to_leave(&self) -> bool {
        self.table.departs()
            && self.changing.part.as_ref().is_some_and(|part| matches!(part.step, Step::Frozen(_)))
    }

    /// Whether it waits for other members, or they for it.
    pub(super) fn is_busy_with_others(&self) -> bool {
        !(self.leads.is_empty()
            && self.decisions.is_empty()
            && self.locked_rows.is_empty()
            && self.polls.is_empty()
            && self.reaping.is_none())
    }

    /// Takes nodes that have left out of what is under way.
    pub(crate) fn forget_former(&mut self) {
        let table = self.table.clone();
        let has_left = |node| table.placement.heir_of(node).is_some();
        if table.placement.former.is_empty() {
            return;
        }
        let led = self.locked_rows.keys().filter(|txn| has_left(txn.node));
        for txn in led.copied().collect::<Vec<_>>() {
            self.decide(txn.node, txn, false, 0);
        }
        let mut known = Vec::new();
        for (txn, decision) in &mut self.decisions {
            if decision.forget(has_left) {
                known.push(*txn);
            }
        }
        let rows: Vec<_> = known.iter().map(|txn| without(decision_key(*txn))).collect();
        known.iter().for_each(|txn| drop(self.decisions.remove(txn)));
        // As in `decided`: what is lost of this is done once more after the next start.
        if !rows.is_empty()
            && let Err(why) = self.commit(BatchKind::Freeing, rows)
        {
            log::warn!("records of transactions that have ended: {why}");
        }
    }
}
