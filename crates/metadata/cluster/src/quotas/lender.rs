//! The leader lends parts of limits ([`crate::quotas`]).

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::quotas::{Quota, QuotaPair, name};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::placement::NodeId;
use kestrel_types::quota::{OverSince, QuotaRecord, QuotaRow, QuotaSubject};

use super::{OVER_POLL, QuotaSet};
use crate::message::quotas::{QuotaAsk, QuotaMessage};
use crate::message::snapshots::SnapshotOrder;
use crate::{ClusterNode, RESEND};

/// What members may have counted at most, by quota.
type Ledger = BTreeMap<QuotaSubject, BTreeMap<NodeId, QuotaPair>>;

/// Members are to give back what they have not used.
struct Returning {
    order: SnapshotOrder,
    /// Of these quotas; `None`: of all, for a leader that begins.
    of: Option<BTreeSet<QuotaSubject>>,
    silent: BTreeSet<NodeId>,
    sent: Nanos,
}

/// What the leader knows of parts.
#[derive(Default)]
pub(super) struct Lender {
    /// By this placement map; 0: it does not lead, or has not begun.
    table: u64,
    /// All members have the set, and the ledger is true.
    ready: bool,
    ledger: Ledger,
    returning: Option<Returning>,
    /// The last time that members have given back parts.
    returned: SnapshotOrder,
    /// Questions that wait for that; whether they came before members were asked to.
    waiting: BTreeMap<(NodeId, u64), (QuotaAsk, bool)>,
    /// Quotas of which parts were lent since members were asked last to give them back.
    lent: BTreeSet<QuotaSubject>,
    /// When members are to give back parts of quotas that are above their soft limits.
    over_due: Nanos,
}

/// What becomes of a question.
enum Decision {
    /// The member's part is this now.
    Grant(i64),
    /// Members have to give back what they have not used, first.
    Recall,
    /// The quota is used up; by its soft limit?
    Deny(bool),
}

impl Lender {
    /// Whether it lends by this placement map, and waits for nothing.
    pub(super) fn rests(&self, table: u64) -> bool {
        self.table == table && self.ready && self.returning.is_none() && self.waiting.is_empty()
    }

    /// The sum of what members may have counted.
    fn sum(&self, of: QuotaSubject, what: usize) -> i128 {
        let parts = self.ledger.get(&of);
        parts.into_iter().flat_map(|parts| parts.values()).map(|part| i128::from(part[what])).sum()
    }

    /// Answers a question; `recalled`: members have given back parts since it was asked. What has
    /// to be known of soft limits is in `since`, which may change.
    fn decide(
        &self,
        quota: &Quota,
        (from, ask): (NodeId, &QuotaAsk),
        recalled: bool,
        (since, now): (&mut Nanos, Nanos),
        members: usize,
    ) -> Decision {
        let what = usize::from(ask.what);
        let mine = self.ledger.get(&ask.of).and_then(|parts| parts.get(&from));
        let mine = i128::from(mine.map_or(0, |part| part[what]));
        let others = self.sum(ask.of, what) - mine;
        // What was lent before, if the answer was lost.
        let least = (i128::from(ask.used) + i128::from(ask.growth)).max(mine);
        let (hard, soft) = quota.limits_of(what);
        let end = |limit: Option<u64>| limit.map_or(i64::MAX.into(), i128::from);
        let (hard, soft) = (end(hard), end(soft));
        if others + least > soft.min(hard) && !recalled {
            return Decision::Recall;
        }
        let mut limit = soft.min(hard);
        if others + least > soft && others + least <= hard {
            if *since == 0 {
                *since = now.max(1);
            }
            let grace = i64::from(quota.limits.grace).saturating_mul(SECOND);
            if now.saturating_sub(*since) > grace && !ask.free {
                return Decision::Deny(true);
            }
            limit = hard;
        }
        let left = limit - others;
        if left < least {
            return if ask.free { grant(least) } else { Decision::Deny(false) };
        }
        let members = i128::try_from(members).unwrap_or(1).max(1);
        grant(least + (left - least) / (2 * members))
    }
}

/// Whether a quota is above a soft limit.
fn is_over(quota: &Quota) -> bool {
    quota.counters.since() != OverSince::default()
}

fn grant(to: i128) -> Decision {
    Decision::Grant(i64::try_from(to).unwrap_or(i64::MAX))
}

impl ClusterNode {
    /// Quotas above their soft limits of which members may have parts that they do not use.
    pub(super) fn lent_above_soft_limits(&self) -> BTreeSet<QuotaSubject> {
        let lent = &self.quotas.lender.lent;
        if lent.is_empty() {
            return BTreeSet::new();
        }
        let table = self.node.core().quotas.table();
        let over = |of: &&QuotaSubject| table.all.get(of).is_some_and(|quota| is_over(quota));
        lent.iter().filter(over).copied().collect()
    }

    /// The set or the placement map has changed: nothing is lent before all members have said what
    /// they have counted.
    pub(super) fn begin_ledger(&mut self) {
        self.quotas.lender = Lender::default();
    }

    pub(super) fn asked_for_part(&mut self, from: NodeId, ask: QuotaAsk) {
        let lender = &mut self.quotas.lender;
        // Else it is asked again.
        if ask.set != self.quotas.set.order || lender.waiting.contains_key(&(from, ask.number)) {
            return;
        }
        if lender.ready {
            self.decide_ask(from, ask, false);
            self.recall();
        } else {
            lender.waiting.insert((from, ask.number), (ask, false));
        }
    }

    /// Whether members still wait for parts of quotas that have changed: then nothing is stopped
    /// again.
    pub(crate) fn quotas_settle(&self) -> bool {
        self.node.core().quotas.in_use() && !self.quotas.lender.ready && !self.quotas.set.unspread
    }

    fn decide_ask(&mut self, from: NodeId, ask: QuotaAsk, recalled: bool) {
        let table = self.node.core().quotas.table();
        let Some(quota) = table.all.get(&ask.of) else { return };
        let (members, now) = (self.table.serving().count(), self.node.wall_time());
        let what = usize::from(ask.what);
        let before = quota.counters.since();
        let mut since = [before.files, before.bytes];
        let lender = &mut self.quotas.lender;
        let said = lender.decide(quota, (from, &ask), recalled, (&mut since[what], now), members);
        let [files, bytes] = since;
        if !self.put_since(quota, OverSince { files, bytes }) {
            return;
        }
        let lender = &mut self.quotas.lender;
        let after = lender.returned;
        match said {
            Decision::Grant(to) => {
                let part = lender.ledger.entry(ask.of).or_default().entry(from).or_default();
                part[what] = part[what].max(to);
                lender.lent.insert(ask.of);
                self.say_of_quotas(from, QuotaMessage::Granted { number: ask.number, after, to });
            }
            Decision::Recall => {
                lender.waiting.insert((from, ask.number), (ask, false));
            }
            Decision::Deny(soft) => {
                self.say_of_quotas(from, QuotaMessage::Denied { number: ask.number, soft });
            }
        }
    }

    /// Puts on record since when a quota is above its soft limits. Whether that is so: if it could
    /// not be the member asks again.
    fn put_since(&self, quota: &Quota, since: OverSince) -> bool {
        let before = quota.counters.since();
        if before == since {
            return true;
        }
        let is_over = since != OverSince::default();
        let key = QuotaRow::Since(quota.of).key();
        let row = Mutation { key, value: is_over.then(|| since.encode()) };
        if let Err(why) = self.commit(BatchKind::Freeing, vec![row]) {
            log::error!("the record of a soft limit: {why}; it is tried again");
            return false;
        }
        quota.set_since(since);
        if before == OverSince::default() {
            log::warn!("the quota of {} is above its soft limit", name(quota.of));
        }
        true
    }

    /// Has members give back what they have not used, of all quotas that questions wait for.
    fn recall(&mut self) {
        let lender = &mut self.quotas.lender;
        if lender.returning.is_some() || lender.waiting.is_empty() {
            return;
        }
        let mut of = BTreeSet::new();
        for (ask, before) in lender.waiting.values_mut() {
            *before = true;
            of.insert(ask.of);
        }
        self.begin_returning(Some(of));
    }

    fn begin_returning(&mut self, of: Option<BTreeSet<QuotaSubject>>) {
        let (order, now) = (self.quota_order(), self.now);
        let silent = self.table.serving().collect();
        let lent = &mut self.quotas.lender.lent;
        match &of {
            Some(of) => lent.retain(|other| !of.contains(other)),
            None => lent.clear(),
        }
        self.quotas.lender.returning = Some(Returning { order, of, silent, sent: now });
        self.send_returning();
    }

    fn send_returning(&mut self) {
        let now = self.now;
        let QuotaSet { order: set, lacking, .. } = self.quotas.set;
        let Some(returning) = &mut self.quotas.lender.returning else { return };
        returning.sent = now;
        let (order, silent) = (returning.order, returning.silent.clone());
        let message = match &returning.of {
            Some(of) => QuotaMessage::Recall { order, of: of.iter().copied().collect() },
            None => {
                let records = self.node.core().quotas.table().records();
                QuotaMessage::Sync { order, set, certain: !lacking, records }
            }
        };
        for node in silent {
            self.say_of_quotas(node, message.clone());
        }
    }

    /// A member has given back parts.
    pub(super) fn parts_returned(
        &mut self,
        from: NodeId,
        order: SnapshotOrder,
        parts: Vec<(QuotaSubject, QuotaPair)>,
    ) {
        let lender = &mut self.quotas.lender;
        let Some(returning) = lender.returning.as_mut().filter(|it| it.order == order) else {
            return;
        };
        if !returning.silent.remove(&from) {
            return;
        }
        for (of, part) in parts {
            lender.ledger.entry(of).or_default().insert(from, part);
        }
        if !returning.silent.is_empty() {
            return;
        }
        lender.returned = order;
        lender.returning = None;
        self.look_at_soft_limits();
        let lender = &mut self.quotas.lender;
        lender.ready = true;
        // What was freed since a member answered, and before one of the later questions was asked,
        // is not known yet.
        for ((from, _), (ask, before)) in std::mem::take(&mut lender.waiting) {
            self.decide_ask(from, ask, before);
        }
        self.recall();
        self.next_cut();
    }

    /// Usage that is not above a soft limit any more has its whole grace period again.
    fn look_at_soft_limits(&self) {
        let table = self.node.core().quotas.table();
        for quota in table.all.values() {
            let before = quota.counters.since();
            if before == OverSince::default() {
                continue;
            }
            let is_above = |what: usize| {
                let soft = quota.limits_of(what).1;
                soft.is_some_and(|soft| self.quotas.lender.sum(quota.of, what) > soft.into())
            };
            let files = if is_above(0) { before.files } else { 0 };
            let bytes = if is_above(1) { before.bytes } else { 0 };
            self.put_since(quota, OverSince { files, bytes });
        }
    }

    pub(super) fn quotas_synced(
        &mut self,
        from: NodeId,
        order: SnapshotOrder,
        newer: Option<(SnapshotOrder, Vec<QuotaRecord>)>,
        parts: Vec<(QuotaSubject, QuotaPair)>,
    ) {
        let returning = self.quotas.lender.returning.as_ref();
        let Some(returning) = returning.filter(|it| it.order == order && it.of.is_none()) else {
            return;
        };
        let last = returning.silent.len() == 1 && returning.silent.contains(&from);
        if let Some((order, records)) = newer {
            // It has led quotas less long than others have served.
            let next = QuotaSet { order, ..self.quotas.set };
            if let Err(why) = self.take_set(next, (&records, &[]), Vec::new()) {
                log::error!("quotas that other nodes have: {why}; tried again");
            }
            return self.begin_ledger();
        }
        if last && self.quotas.set.lacking {
            let records = self.node.core().quotas.table().records();
            let next = QuotaSet { lacking: false, ..self.quotas.set };
            if let Err(why) = self.take_set(next, (&records, &[]), Vec::new()) {
                log::error!("that this node has all quotas: {why}; tried again");
            }
            // Others may lack it as well, and are told now that this is certain.
            return self.begin_ledger();
        }
        self.parts_returned(from, order, parts);
    }

    pub(super) fn tick_lender(&mut self) {
        let (now, version) = (self.now, self.table.placement.version);
        if !self.leads_snapshots() {
            if self.quotas.lender.table != 0 {
                self.begin_ledger();
            }
            return;
        }
        if self.quotas.set.unspread || self.snapshots.is_busy() {
            return;
        }
        if self.quotas.lender.table != version {
            let waiting = std::mem::take(&mut self.quotas.lender.waiting);
            self.quotas.lender = Lender { table: version, waiting, ..Lender::default() };
            return self.begin_returning(None);
        }
        let lender = &mut self.quotas.lender;
        if let Some(returning) = &lender.returning {
            if returning.sent + RESEND <= now {
                self.send_returning();
            }
            return;
        }
        if lender.ready && !lender.lent.is_empty() && lender.over_due <= now {
            lender.over_due = now + OVER_POLL;
            let over = self.lent_above_soft_limits();
            if !over.is_empty() {
                self.begin_returning(Some(over));
            }
        }
    }
}
