//! The leader makes, changes, removes and checks quotas ([`crate::quotas`]).

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::BatchKind;
use kestrel_meta::node::{
    LIMIT_TOO_LARGE, NO_DIR, NO_QUOTA, NOT_ROOT, QuotaPart, TOO_MANY, UNFINISHED_CLONE,
};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::quota::{
    OverSince, QUOTAS_MAX, QuotaInfo, QuotaLimits, QuotaRecord, QuotaSubject, QuotaUsage,
};
use kestrel_types::request::{Answer, Op, Reply};

use super::count::{CountOutcome, Need, QuotaCounting, totals};
use super::{QuotaSet, SPREAD_PAUSE};
use crate::message::polls::{PollAnswer, PollQuestion};
use crate::message::quotas::QuotaMessage;
use crate::message::snapshots::SnapshotOrder;
use crate::poll::{Then, out_of_reach};
use crate::work::Stage;
use crate::{ClusterNode, Deferred};

/// Counting may take so long: changes wait meanwhile.
const COUNT_MAX: Nanos = 15 * SECOND;

/// A question about what counts, and telling all members, may take so long.
const STEP_MAX: Nanos = 4 * SECOND;

const TOO_LONG: FsError = FsError::new(
    libc::EFBIG,
    "metadata: what the quota counts could not be added up in 15 s, while nothing may change",
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Set(QuotaSubject, QuotaLimits),
    Remove(QuotaSubject),
    Check {
        repair: bool,
    },
    /// Some members may have the set before, or a caller removes what is gone already.
    Spread,
}

enum QuotaStep {
    Counting,
    /// These have not said again that nothing has changed meanwhile.
    Confirming(BTreeSet<NodeId>),
    /// The leader's record is not durable.
    Recording,
    /// These have no durable record.
    Setting(BTreeSet<NodeId>),
}

/// A change of the quotas, or a check of what they count.
pub(crate) struct QuotaChange {
    wanted: Wanted,
    step: QuotaStep,
    /// When counting began.
    begun: Nanos,
    /// As they are to be.
    records: Vec<QuotaRecord>,
    counting: QuotaCounting,
    /// Requests for the same that came before nothing changed any more.
    followers: Vec<u64>,
    /// What other members are told of their files.
    homes: BTreeMap<NodeId, Vec<(InodeId, Option<InodeId>)>>,
    reply: Reply,
}

impl QuotaChange {
    fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            step: QuotaStep::Counting,
            begun: 0,
            records: Vec::new(),
            counting: QuotaCounting::new(&[], Need::Nothing, Vec::new()),
            followers: Vec::new(),
            homes: BTreeMap::new(),
            reply: Ok(Answer::Done),
        }
    }

    /// How long the present step may take, and what the caller hears if it takes longer.
    pub(crate) fn time_limit(&self) -> (Nanos, FsError) {
        let why = match &self.step {
            QuotaStep::Counting | QuotaStep::Confirming(_) => {
                "metadata: a node could not be asked what the quota counts: \
                                    nothing has changed; see kestrel cluster status"
                    .into()
            }
            QuotaStep::Recording => "metadata: the log is slow; try again".into(),
            QuotaStep::Setting(silent) => format!(
                "metadata: nodes {silent:?} could not be told of the quota: the others have it, \
                 and it counts when they are back; see kestrel cluster status"
            ),
        };
        (STEP_MAX, FsError::because(libc::ETIMEDOUT, why))
    }

    /// Requests for the same.
    pub(crate) fn followers(&self) -> &[u64] {
        &self.followers
    }

    /// Members that have not put the new set on record, if it is told to them.
    pub(crate) fn silent(&self) -> Option<&BTreeSet<NodeId>> {
        match &self.step {
            QuotaStep::Setting(silent) => Some(silent),
            _ => None,
        }
    }
}

impl ClusterNode {
    /// Begins what a request wants of the volume's quotas, if it wants something. Whether it did.
    pub(crate) fn begin_quota_request(&mut self, ticket: u64) -> bool {
        let Some(work) = self.works.get(&ticket) else { return true };
        let is_root = work.request.creds.uid == 0;
        let wanted = match &work.request.op {
            Op::QuotaSet(of, limits) => Wanted::Set(*of, **limits),
            Op::QuotaRemove(of) => Wanted::Remove(*of),
            Op::QuotaCheck { repair } => Wanted::Check { repair: *repair },
            Op::QuotaList(None) => {
                if is_root {
                    self.tell_quotas(ticket, None);
                } else {
                    self.answer(ticket, Err(NOT_ROOT.into()));
                }
                return true;
            }
            _ => return false,
        };
        let refused = match &wanted {
            _ if !is_root => Some(NOT_ROOT),
            Wanted::Set(_, limits) if !limits.is_valid() => Some(LIMIT_TOO_LARGE),
            _ => None,
        };
        match refused {
            Some(why) => self.answer(ticket, Err(why.into())),
            None if self.quotas.set.lacking => self.rest(ticket, false),
            None => self.begin_quota_cut(ticket, Box::new(QuotaChange::new(wanted))),
        }
        true
    }

    /// Asks all members what they have counted, for a request that shows these quotas, or all.
    pub(crate) fn tell_quotas(&mut self, ticket: u64, of: Option<Vec<QuotaSubject>>) {
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Polling;
        }
        self.poll(PollQuestion::Quotas(of.clone()), Then::TellQuotas(ticket, of));
    }

    /// All members have said what they have counted.
    pub(crate) fn quotas_told(
        &mut self,
        ticket: u64,
        of: Option<Vec<QuotaSubject>>,
        answers: Option<BTreeMap<NodeId, PollAnswer>>,
    ) {
        let Some(answers) = answers else {
            return self.answer(ticket, Err(out_of_reach().into()));
        };
        let table = self.node.core().quotas.table();
        let of = of.unwrap_or_else(|| table.records().iter().map(|record| record.of).collect());
        let mut infos: Vec<QuotaInfo> =
            of.iter().filter_map(|of| table.all.get(of)).map(|quota| quota.info()).collect();
        for info in &mut infos {
            (info.used, info.since) = Default::default();
            for answer in answers.values() {
                let PollAnswer::Quotas(parts) = answer else { continue };
                let Some(QuotaPart { used, since, .. }) =
                    parts.iter().find(|part| part.of == info.of)
                else {
                    continue;
                };
                info.used = info.used.plus(*used);
                if *since != OverSince::default() {
                    info.since = *since;
                }
            }
            // The leader may not have noticed.
            let is_above = |limit: Option<u64>, used: i64| {
                limit.is_some_and(|limit| i128::from(used) > i128::from(limit))
            };
            if !is_above(info.limits.soft_files, info.used.files) {
                info.since.files = 0;
            }
            if !is_above(info.limits.soft_bytes, info.used.bytes) {
                info.since.bytes = 0;
            }
        }
        self.answer(ticket, Ok(Answer::Quotas(infos)));
    }

    /// Nothing changes any more: this is what the quotas are to be.
    pub(crate) fn count_for_quotas(&mut self, order: SnapshotOrder) {
        let nodes: Vec<NodeId> = self.table.serving().collect();
        let followers = self.take_followers();
        let mut records = self.node.core().quotas.table().records();
        let (full, now) = (self.quotas.set.unspread, self.now);
        let has_clones = self.node.core().snapshots.has_clones();
        let Some(change) = self.quota_change(order) else { return };
        change.followers = followers;
        let found = |of| records.iter().position(|record| record.of == of);
        let need = match change.wanted {
            Wanted::Set(of, limits) => match (found(of), of) {
                (Some(at), _) => {
                    records[at].limits = limits;
                    Need::Nothing
                }
                (None, _) if records.len() >= QUOTAS_MAX => {
                    return self.end_quota_change(Err(TOO_MANY.into()));
                }
                (None, _) if has_clones => {
                    return self.end_quota_change(Err(UNFINISHED_CLONE.into()));
                }
                (None, of) => {
                    records.push(QuotaRecord { of, limits, above: None });
                    match of {
                        QuotaSubject::Dir(dir) => Need::New(dir),
                        _ => Need::Owner(of),
                    }
                }
            },
            Wanted::Remove(of) => match (found(of), of) {
                // An earlier attempt has removed it here.
                (None, _) if full => {
                    change.wanted = Wanted::Spread;
                    Need::All
                }
                (None, _) => return self.end_quota_change(Err(NO_QUOTA.into())),
                (Some(at), _) => {
                    records.remove(at);
                    match of {
                        QuotaSubject::Dir(dir) => Need::Gone(dir),
                        _ => Need::Nothing,
                    }
                }
            },
            Wanted::Check { .. } | Wanted::Spread => Need::All,
        };
        let need = if full { Need::All } else { need };
        change.counting = QuotaCounting::new(&records, need, nodes);
        (change.records, change.begun) = (records, now);
        self.count_on(order);
    }

    /// Requests that wait for the same as the one that nothing changes for.
    fn take_followers(&mut self) -> Vec<u64> {
        let Some((ticket, _)) = self.quota_change_now() else { return Vec::new() };
        let Some(op) = self.works.get(&ticket).map(|work| work.request.op.clone()) else {
            return Vec::new();
        };
        let works = &mut self.works;
        let mut followers = Vec::new();
        self.snapshots.retain_waiting(|ticket| {
            let Some(work) = works.get_mut(&ticket) else { return false };
            let is_same = matches!(work.stage, Stage::AwaitingCut) && work.request.op == op;
            if is_same {
                work.stage = Stage::Cutting;
                followers.push(ticket);
            }
            !is_same
        });
        followers
    }

    /// Asks what is to be known next, or goes on with what is known.
    fn count_on(&mut self, order: SnapshotOrder) {
        let silent: BTreeSet<NodeId> = self.table.serving().collect();
        let Some(change) = self.quota_change(order) else { return };
        match change.counting.question() {
            Some(question) => self.poll(question, Then::CountQuotas(order)),
            None => {
                change.step = QuotaStep::Confirming(silent);
                self.send_cut();
            }
        }
    }

    /// A member is stopped, and has been since it was asked first.
    pub(crate) fn is_stopped_still(&mut self, from: NodeId, order: SnapshotOrder) {
        let Some(change) = self.quota_change(order) else { return };
        let QuotaStep::Confirming(silent) = &mut change.step else { return };
        if silent.remove(&from) && silent.is_empty() {
            self.quotas_counted(order);
        }
    }

    /// All members have answered a question about what counts.
    pub(crate) fn heard_count(
        &mut self,
        order: SnapshotOrder,
        answers: Option<BTreeMap<NodeId, PollAnswer>>,
    ) {
        let now = self.now;
        let Some(change) = self.quota_change(order) else { return };
        let taken = match answers {
            Some(_) if change.begun + COUNT_MAX <= now => Err(TOO_LONG),
            Some(answers) => change.counting.take(answers),
            None => Err(out_of_reach()),
        };
        self.restart_cut(now);
        match taken {
            Ok(()) => self.count_on(order),
            Err(why) => self.fail_cut(why),
        }
    }

    /// All is known: the change is made, or the caller hears what was found.
    fn quotas_counted(&mut self, order: SnapshotOrder) {
        let me = self.me;
        let Some(change) = self.quota_change(order) else { return };
        let QuotaChange { wanted, counting, records, .. } = change;
        if let Wanted::Set(of @ QuotaSubject::Dir(dir), _) = *wanted
            && counting.is_missing(dir)
            && !counting.own().contains_key(&of)
        {
            return self.end_quota_change(Err(NO_DIR.into()));
        }
        let own = |of| counting.own().get(&of).copied().unwrap_or_default();
        for record in records.iter_mut() {
            if let QuotaSubject::Dir(dir) = record.of {
                record.above = counting.above(dir);
            }
        }
        if !matches!(wanted, Wanted::Check { .. }) {
            // Those of directories that have been removed, and to which nothing is charged.
            records.retain(|record| match record.of {
                QuotaSubject::Dir(dir) => {
                    !counting.is_missing(dir) || own(record.of) != QuotaUsage::default()
                }
                _ => true,
            });
        }
        let CountOutcome { changes, homes } = counting.outcome();
        let before = totals(records, own);
        let changed = |of| {
            let found = changes.iter().find(|(other, _)| *other == of);
            own(of).plus(found.map_or(QuotaUsage::default(), |(_, change)| *change))
        };
        let after = totals(records, changed);
        let info = |record: &QuotaRecord, used: &BTreeMap<QuotaSubject, QuotaUsage>| QuotaInfo {
            of: record.of,
            limits: record.limits,
            used: used.get(&record.of).copied().unwrap_or_default(),
            since: OverSince::default(),
            counted: None,
        };
        change.reply = Ok(match *wanted {
            Wanted::Set(of, _) => {
                let found = records.iter().find(|record| record.of == of);
                Answer::Quotas(found.map(|record| info(record, &after)).into_iter().collect())
            }
            Wanted::Remove(_) | Wanted::Spread => Answer::Done,
            Wanted::Check { .. } => {
                let counted = |record: &QuotaRecord| QuotaInfo {
                    counted: after.get(&record.of).copied(),
                    ..info(record, &before)
                };
                Answer::Quotas(records.iter().map(counted).collect())
            }
        });
        if *wanted == (Wanted::Check { repair: false }) {
            let reply = change.reply.clone();
            return self.end_quota_change(reply);
        }
        let mut own_homes = Vec::new();
        for (node, ino, home) in homes {
            if node == me {
                own_homes.push((ino, home));
            } else {
                change.homes.entry(node).or_default().push((ino, home));
            }
        }
        change.step = QuotaStep::Recording;
        let records = change.records.clone();
        crash::point("quota-set.counted");
        match self.record_quotas(order, &records, &own_homes, &changes) {
            Ok(position) => self.when_durable(position, Deferred::QuotasRecorded(order)),
            // The member stops.
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => self.fail_cut(why),
        }
    }

    /// The leader has the new set first: whatever happens, it knows of it, and that others may not.
    fn record_quotas(
        &mut self,
        order: SnapshotOrder,
        records: &[QuotaRecord],
        homes: &[(InodeId, Option<InodeId>)],
        changes: &[(QuotaSubject, QuotaUsage)],
    ) -> Result<u64, FsError> {
        let next = QuotaSet { order, unspread: true, lacking: false };
        let mut beside = Vec::new();
        for (of, change) in changes {
            beside.push(self.node.corrected_share(*of, *change)?);
        }
        let position = self.take_set(next, (records, homes), beside)?;
        self.begin_ledger();
        Ok(position)
    }

    /// The leader's own record is durable.
    pub(crate) fn quotas_recorded(&mut self, order: SnapshotOrder) {
        let (me, now) = (self.me, self.now);
        let silent: BTreeSet<NodeId> = self.table.serving().filter(|node| *node != me).collect();
        let Some(change) = self.quota_change(order) else { return };
        let is_alone = silent.is_empty();
        change.step = QuotaStep::Setting(silent);
        self.restart_cut(now);
        if is_alone { self.quotas_set() } else { self.tell_of_quotas(order) }
    }

    /// Tells members of the new set that have not got it.
    pub(crate) fn tell_of_quotas(&mut self, order: SnapshotOrder) {
        let Some(change) = self.quota_change(order) else { return };
        let Some(silent) = change.silent().cloned() else { return };
        let (records, homes) = (change.records.clone(), change.homes.clone());
        for node in silent {
            let homes = homes.get(&node).cloned().unwrap_or_default();
            let (start, records) = (self.start_of_stopped(node), records.clone());
            self.say_of_quotas(node, QuotaMessage::Set { order, start, records, homes });
        }
    }

    /// A member has the new set.
    pub(crate) fn has_quotas(&mut self, from: NodeId, order: SnapshotOrder) {
        let Some(change) = self.quota_change(order) else { return };
        let QuotaStep::Setting(silent) = &mut change.step else { return };
        if silent.remove(&from) && silent.is_empty() {
            self.quotas_set();
        }
    }

    /// All members have the new set.
    fn quotas_set(&mut self) {
        let Some((ticket, change)) = self.quota_change_now() else { return };
        let (reply, followers) = (change.reply.clone(), change.followers.clone());
        let set = QuotaSet { unspread: false, ..self.quotas.set };
        crash::point("quota-set.before-end");
        match self.commit(BatchKind::Freeing, vec![set.row()]) {
            Ok(position) => {
                self.quotas.set = set;
                for follower in followers {
                    self.answer_after(follower, reply.clone(), position);
                }
                self.resume_all();
                self.end_quota_work(ticket, reply, position);
            }
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => self.fail_cut(why),
        }
        self.tick_lender();
    }

    /// Ends a change of the quotas that changes nothing.
    fn end_quota_change(&mut self, reply: Reply) {
        let Some((ticket, change)) = self.quota_change_now() else { return };
        let followers = change.followers.clone();
        self.call_off();
        for follower in followers {
            self.answer(follower, reply.clone());
        }
        self.answer(ticket, reply);
        self.next_cut();
    }

    /// Has members that may lack the set have it.
    pub(super) fn tick_spread(&mut self) {
        let is_due = self.quotas.set.unspread && self.quotas.spread_due <= self.now;
        if is_due && self.leads_snapshots() && !self.snapshots.is_busy() && self.may_cut() {
            self.quotas.spread_due = self.now + SPREAD_PAUSE;
            self.begin_quota_cut(0, Box::new(QuotaChange::new(Wanted::Spread)));
        }
    }
}
