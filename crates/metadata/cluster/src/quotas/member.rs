//! What every member does about quotas ([`crate::quotas`]).

use std::collections::BTreeMap;

use kestrel_engine::Mutation;
use kestrel_meta::quotas::QuotaPair;
use kestrel_meta::stop::QuotaWant;
use kestrel_types::clock::Nanos;
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::quota::{QuotaRecord, QuotaSubject};

use super::QuotaSet;
use crate::message::quotas::{QuotaAsk, QuotaMessage};
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};
use crate::work::Stage;
use crate::{ClusterNode, Deferred, Message, RESEND};

/// What is asked for: of which quota, files or bytes, and whether the limit counts.
type Asked = (QuotaSubject, u8, bool);

/// A question for a larger part.
struct Ask {
    number: u64,
    sent: Nanos,
    growth: i64,
    /// The requests that it is for.
    tickets: Vec<u64>,
    /// Requests that came later.
    later: Vec<u64>,
}

/// All of them: one for each quota at a time.
#[derive(Default)]
pub(super) struct Asks(BTreeMap<Asked, Ask>);

impl Asks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, number: u64) -> Option<(Asked, Ask)> {
        let found = self.0.iter().find(|(_, ask)| ask.number == number);
        let asked = *found?.0;
        self.0.remove_entry(&asked)
    }
}

impl ClusterNode {
    /// A request needs a larger part of a quota than this member has.
    pub(crate) fn await_part(&mut self, ticket: u64, want: QuotaWant) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::AwaitingQuota;
        let (asked, number, now) = ((want.of, want.what, want.free), self.number(), self.now);
        if let Some(ask) = self.quotas.asks.0.get_mut(&asked) {
            return ask.later.push(ticket);
        }
        let (growth, tickets) = (want.more, vec![ticket]);
        let ask = Ask { number, sent: now, growth, tickets, later: Vec::new() };
        self.quotas.asks.0.insert(asked, ask);
        self.send_part_ask(asked);
    }

    fn send_part_ask(&mut self, asked: Asked) {
        let (now, set) = (self.now, self.quotas.set.order);
        let table = self.node.core().quotas.table();
        let Some(leader) = self.snapshot_leader() else { return };
        let Some(ask) = self.quotas.asks.0.get_mut(&asked) else { return };
        ask.sent = now;
        let (of, what, free) = asked;
        let Some(quota) = table.all.get(&of) else { return };
        let used = quota.used()[usize::from(what)];
        let Ask { number, growth, .. } = *ask;
        let ask = QuotaAsk { number, set, of, what, used, growth, free };
        self.say_of_quotas(leader, QuotaMessage::Ask(ask));
    }

    pub(super) fn tick_asks(&mut self) {
        let now = self.now;
        let due = self.quotas.asks.0.iter().filter(|(_, ask)| ask.sent + RESEND <= now);
        for asked in due.map(|(asked, _)| *asked).collect::<Vec<Asked>>() {
            self.send_part_ask(asked);
        }
    }

    /// Requests that wait for parts look again.
    pub(super) fn ask_for_parts_again(&mut self) {
        for ask in std::mem::take(&mut self.quotas.asks.0).into_values() {
            self.run_again(&ask.tickets);
            self.run_again(&ask.later);
        }
    }

    fn run_again(&mut self, tickets: &[u64]) {
        for ticket in tickets {
            // It may have run out of time meanwhile.
            let stage = self.works.get(ticket).map(|work| &work.stage);
            if matches!(stage, Some(Stage::AwaitingQuota)) {
                self.run_alone(*ticket);
            }
        }
    }

    pub(super) fn part_granted(&mut self, number: u64, after: SnapshotOrder, to: i64) {
        if after < self.quotas.returned {
            // The leader knows that this member has given it back.
            return;
        }
        let Some(((of, what, _), ask)) = self.quotas.asks.take(number) else { return };
        if let Some(quota) = self.node.core().quotas.table().all.get(&of) {
            quota.enlarge_part(usize::from(what), to);
        }
        self.run_again(&ask.tickets);
        self.run_again(&ask.later);
    }

    pub(super) fn part_denied(&mut self, number: u64, soft: bool) {
        let Some(((of, what, _), ask)) = self.quotas.asks.take(number) else { return };
        let quotas = &self.node.core().quotas;
        let used_up =
            quotas.table().all.get(&of).map(|quota| quota.used_up(usize::from(what), soft));
        let Some(why) = used_up else {
            self.run_again(&ask.tickets);
            return self.run_again(&ask.later);
        };
        for ticket in ask.tickets {
            let stage = self.works.get(&ticket).map(|work| &work.stage);
            if matches!(stage, Some(Stage::AwaitingQuota)) {
                self.node.core().quotas.count_refusal();
                self.answer(ticket, Err(why.clone().into()));
            }
        }
        self.run_again(&ask.later);
    }

    /// Gives back what is not used of the parts of these quotas; of all, if none are named.
    fn give_back_parts(&self, of: Option<&[QuotaSubject]>) -> Vec<(QuotaSubject, QuotaPair)> {
        let node = self.node.clone();
        let quiet = node.quiesce();
        let table = node.core().quotas.table();
        let part =
            |of: &QuotaSubject| table.all.get(of).map(|quota| (*of, quota.give_back_parts()));
        let parts = match of {
            Some(of) => of.iter().filter_map(part).collect(),
            None => table.all.keys().filter_map(part).collect(),
        };
        drop(quiet);
        parts
    }

    fn say_to_quota_leader(&mut self, message: QuotaMessage) {
        if let Some(leader) = self.snapshot_leader() {
            // What was freed must not come back by a crash.
            let position = self.node.last_commit();
            self.when_durable(position, Deferred::Send(leader, Message::Quota(message)));
        }
    }

    pub(super) fn return_parts(&mut self, order: SnapshotOrder, of: &[QuotaSubject]) {
        if order < self.quotas.returned {
            return;
        }
        self.quotas.returned = order;
        let parts = self.give_back_parts(Some(of));
        crash::point("quota-part.returned");
        self.say_to_quota_leader(QuotaMessage::Returned { order, parts });
    }

    /// The leader begins, or the placement map is another one.
    pub(super) fn sync_quotas(
        &mut self,
        order: SnapshotOrder,
        (set, certain): (SnapshotOrder, bool),
        records: &[QuotaRecord],
    ) {
        // While it is stopped its set may be about to change: it is said again.
        if order < self.quotas.returned || self.snapshots.is_stopped() {
            return;
        }
        let own = self.quotas.set;
        let newer =
            (own.order > set).then(|| (own.order, self.node.core().quotas.table().records()));
        let clears = own.lacking && certain && newer.is_none();
        if own.order < set || clears {
            let next = QuotaSet { order: set, unspread: false, lacking: own.lacking && !clears };
            if let Err(why) = self.take_set(next, (records, &[]), Vec::new()) {
                return log::error!("quotas that this node was told of: {why}; it is told again");
            }
        }
        self.quotas.returned = order;
        let parts = self.give_back_parts(None);
        self.say_to_quota_leader(QuotaMessage::Synced { order, newer, parts });
    }

    /// Has these quotas from now on.
    pub(super) fn take_set(
        &mut self,
        next: QuotaSet,
        (records, homes): (&[QuotaRecord], &[(InodeId, Option<InodeId>)]),
        mut beside: Vec<Mutation>,
    ) -> Result<u64, FsError> {
        beside.push(next.row());
        let node = self.node.clone();
        let quiet = node.quiesce();
        let position = node.set_quotas(records, homes, beside)?;
        self.cluster().set_lacks_quotas(next.lacking);
        drop(quiet);
        self.snapshots.note_quotas();
        let was_lacking = std::mem::replace(&mut self.quotas.set, next).lacking;
        self.ask_for_parts_again();
        if was_lacking && !next.lacking {
            self.end_waits();
        }
        Ok(position)
    }

    /// The volume has these quotas from now on, and nothing has changed since this member was
    /// stopped.
    pub(super) fn set_quotas(
        &mut self,
        order: SnapshotOrder,
        start: u64,
        (records, homes): (&[QuotaRecord], &[(InodeId, Option<InodeId>)]),
    ) {
        let made = Message::Snapshot(SnapshotMessage::Made(order));
        if self.quotas.set.order == order {
            return self.tell_leader_when_durable(self.node.last_commit(), made);
        }
        if start != self.epoch || !self.is_stopped_for(order) {
            let why = "metadata: a node has not waited for quotas: it was busy or has restarted";
            return self.decline_cut(order, FsError::new(libc::EAGAIN, why));
        }
        crash::point("quota-set.before-record");
        let next = QuotaSet { order, ..QuotaSet::default() };
        match self.take_set(next, (records, homes), Vec::new()) {
            Ok(position) => {
                crash::point("quota-set.recorded");
                // It stays stopped until all have the set: a file of a member that has not may
                // count towards another quota by then.
                self.tell_leader_when_durable(position, made);
            }
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => self.decline_cut(order, why),
        }
    }
}
