//! Quotas: an operator makes, changes and removes them; no limit is exceeded, and in the end what
//! counts is what there is, and all of a limit can be used.

use std::collections::BTreeMap;

use kestrel_engine::Engine;
use kestrel_meta::owners::Owners;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::quota::{QuotaLimits, QuotaRecord, QuotaSubject};
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};

use super::ClusterRun;
use crate::event_queue::Scene;
use crate::feed::{FeedScene, patiently};

/// Limits that were kept at some moment: by quota, how many files.
#[derive(Default)]
pub(super) struct KeptLimits(BTreeMap<QuotaSubject, u64>);

/// Whether a reply is that of a call that a quota kept from doing anything.
pub(super) fn is_refusal(reply: &Reply) -> bool {
    let refusals = [libc::EDQUOT, libc::ENOSPC, libc::EXDEV];
    matches!(reply, Err(Outcome::Failed(why)) if refusals.contains(&why.errno))
}

/// Whether it is the operator's.
pub(super) fn is_about_quotas(op: &Op) -> bool {
    matches!(op, Op::QuotaSet(..) | Op::QuotaRemove(_) | Op::QuotaList(_) | Op::QuotaCheck { .. })
}

impl ClusterRun {
    /// Whether the volume has quotas now and then: in every second run, of those with snapshots
    /// and clones as of the others.
    pub(super) fn has_quotas(&self) -> bool {
        matches!(self.plan.seed % 8, 1 | 2 | 4 | 7)
    }

    /// The first client may want something of the quotas.
    pub(super) fn quota_action(&mut self, client_index: usize) -> Option<Request> {
        if client_index != 0 || !self.has_quotas() || !self.prng.chance(20) {
            return None;
        }
        let dirs: Vec<u64> =
            self.clients[0].client.seen_inodes.iter().map(|seen| seen.inode.ino).collect();
        let of = match self.prng.below(6) {
            0..=2 => QuotaSubject::Dir(ROOT),
            3 if !dirs.is_empty() => QuotaSubject::Dir(*self.prng.pick(&dirs).expect("not empty")),
            4 => QuotaSubject::User(0),
            _ => QuotaSubject::Volume,
        };
        let limit = self.prng.chance(80).then(|| self.prng.below(24));
        let soft_files = self.prng.chance(20).then(|| self.prng.below(20));
        let bytes = self.prng.chance(20).then(|| self.prng.below(1 << 20));
        let limits = QuotaLimits { files: limit, soft_files, bytes, grace: 3, soft_bytes: None };
        let op = match self.prng.below(10) {
            0..=5 => Op::QuotaSet(of, Box::new(limits)),
            6 => Op::QuotaRemove(of),
            7 => Op::QuotaCheck { repair: false },
            8 => Op::QuotaList(Some(kestrel_types::name::InodeRef::by_id(ROOT))),
            _ => Op::QuotaList(None),
        };
        Some(Request { creds: Creds::root(), op })
    }

    /// What a check finds is what was counted, whenever it is made.
    pub(super) fn look_at_check(&mut self, op: &Op, reply: &Reply) {
        let (Op::QuotaCheck { repair: false }, Ok(Answer::Quotas(infos))) = (op, reply) else {
            return;
        };
        if let Some(wrong) = infos.iter().find(|info| info.counted != Some(info.used)) {
            self.fail(format!("a quota does not count what there is: {wrong:?}"));
        }
    }

    /// At a moment when all nodes run and agree on the quotas: no limit that was kept before is
    /// exceeded.
    pub(super) fn check_limits(&mut self) {
        if !self.has_quotas() || self.queue.failure.is_some() {
            return;
        }
        // Limits may change and change back while a node is away.
        let before = std::mem::take(&mut self.limits.0);
        let mut known: Option<(u64, Vec<QuotaRecord>)> = None;
        let mut sums: BTreeMap<QuotaSubject, i64> = BTreeMap::new();
        let (mut durable, mut newest) = (true, 0);
        for host in self.hosts.values().filter(|host| !host.lost) {
            let Some(member) = host.member().filter(|_| host.zombie.is_none()) else { return };
            let node = member.node();
            let records = node.core().quotas.table().records();
            let Some(table) = node.cluster().map(Owners::table) else { return };
            newest = newest.max(table.placement.version);
            if table.has_left() || table.is_idle() {
                continue;
            }
            // Shares of a node that leaves are between two nodes.
            let agreed = (table.placement.version, records);
            if known.as_ref().is_some_and(|known| *known != agreed) {
                return;
            }
            known = Some(agreed);
            durable &= host.engine().appended() == host.engine().durable();
            for part in node.quota_parts(None) {
                *sums.entry(part.of).or_default() += part.used.files;
            }
        }
        if known.as_ref().is_none_or(|(version, _)| *version != newest) {
            return;
        }
        let mut kept = BTreeMap::new();
        for record in known.map(|(_, records)| records).unwrap_or_default() {
            let (Some(limit), sum) =
                (record.limits.files, sums.get(&record.of).copied().unwrap_or_default())
            else {
                continue;
            };
            let was_kept = before.get(&record.of) == Some(&limit);
            let fits = i128::from(sum) <= i128::from(limit);
            // The superuser gives files away beyond what a user may have.
            let counts = matches!(record.of, QuotaSubject::Dir(_) | QuotaSubject::Volume);
            if counts && was_kept && !fits {
                let why = format!("{:?} has {sum} files of {limit}", record.of);
                return self.fail(why);
            }
            if was_kept || fits && durable {
                kept.insert(record.of, limit);
            }
        }
        self.limits.0 = kept;
    }

    /// In the end: what counts is what there is.
    pub(super) fn check_quotas(&mut self) {
        if !self.has_quotas() || self.queue.failure.is_some() {
            return;
        }
        let check = Op::QuotaCheck { repair: false };
        match patiently(|| self.ask(check.clone())) {
            Some(reply @ Ok(_)) => self.look_at_check(&check, &reply),
            other => self.fail(format!("quotas cannot be checked at the end: {other:?}")),
        }
    }

    /// In the end: of a new limit exactly what is left can be used, wherever that is.
    pub(super) fn use_up_a_limit(&mut self) {
        if !self.has_quotas() || self.queue.failure.is_some() {
            return;
        }
        let of = QuotaSubject::Dir(ROOT);
        let others = match patiently(|| self.ask(Op::QuotaList(None))) {
            Some(Ok(Answer::Quotas(infos))) => infos,
            other => return self.fail(format!("quotas cannot be listed at the end: {other:?}")),
        };
        for info in others.into_iter().filter(|info| info.of != of) {
            // It may have been removed by a call of which the answer was late.
            let removed = patiently(|| self.ask(Op::QuotaRemove(info.of)));
            let is_gone = matches!(&removed, Some(Err(Outcome::Failed(why)))
                if why.errno == libc::ENOENT);
            if !is_gone && !matches!(removed, Some(Ok(_))) {
                return self.fail(format!("a quota cannot be removed at the end: {removed:?}"));
            }
        }
        let free =
            |files| Op::QuotaSet(of, Box::new(QuotaLimits { files, ..QuotaLimits::default() }));
        let used = match patiently(|| self.ask(free(None))) {
            Some(Ok(Answer::Quotas(infos))) if infos.len() == 1 => infos[0].used.files,
            other => return self.fail(format!("no quota can be made at the end: {other:?}")),
        };
        let left = self.prng.below(8);
        let limit = used.cast_unsigned() + left;
        if !matches!(patiently(|| self.ask(free(Some(limit)))), Some(Ok(_))) {
            return self.fail("a limit cannot be set at the end");
        }
        let mut made = Vec::new();
        for number in 0..=left {
            let name = Name::new(format!("limit-{number}").as_bytes()).expect("a name");
            let place = PathRef::new(ROOT, name);
            let make = Op::MkNod { place: place.clone(), kind: Kind::File, mode: 0o600, rdev: 0 };
            let reply = patiently(|| self.ask(make.clone()));
            let fits = matches!(reply, Some(Ok(_)));
            let is_full = reply.as_ref().is_some_and(is_refusal);
            if fits != (number < left) || !fits && !is_full {
                let why = format!("file {number} of {left} that fit: {reply:?}");
                return self.fail(why);
            }
            if fits {
                made.push(place);
            }
        }
        for place in made {
            let gone = patiently(|| self.ask(Op::Unlink(place.clone())));
            if !matches!(gone, Some(Ok(_))) {
                return self.fail(format!("a file cannot be removed at the end: {gone:?}"));
            }
        }
        if !matches!(patiently(|| self.ask(free(None))), Some(Ok(_))) {
            return self.fail("a limit cannot be removed at the end");
        }
        self.check_quotas();
    }
}
