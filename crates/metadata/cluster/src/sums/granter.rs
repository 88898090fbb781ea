//! The granter: tells sums under leases, and revokes them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_engine::EngineError;
use kestrel_meta::locks::TxnId;
use kestrel_meta::sums::DIRS_MAX;
use kestrel_types::clock::Nanos;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::stat::DirStat;

use super::{COOL_MAX, COOL_MIN, Cooling, Revoking, Subject};
use crate::lease::PROMISE;
use crate::message::Message;
use crate::message::sums::{Also, Names, SumMessage};
use crate::{ClusterNode, Deferred, RESEND};

/// Most questions for rows that wait for leases to be revoked; more are dropped.
const BORROWS_MAX: usize = 4096;

impl ClusterNode {
    /// This member starts: what earlier starts have told is revoked before any share changes.
    pub(crate) fn revoke_of_earlier_starts(&mut self) {
        // The first start has none before it.
        if self.epoch <= 1 || self.table.is_alone() {
            return;
        }
        let nodes = self.table.nodes().filter(|node| *node != self.me);
        let waiting: BTreeMap<NodeId, u64> = nodes.map(|node| (node, 0)).collect();
        self.change_sums(|member| member.cluster().leased.end_all(true));
        let number = self.number();
        let (since, sent) = (self.now, self.now - RESEND);
        self.sums.revoking.insert(number, Revoking { dirs: Vec::new(), waiting, since, sent });
    }

    /// A member grants another one a lease. Whether that keeps its leases on sums as well.
    pub(crate) fn promise_sums(&mut self, to: NodeId, now: Nanos) -> bool {
        let may = self.sums.may_promise(to, now);
        if may {
            self.sums.promises.insert(to, now + PROMISE);
        }
        may
    }

    /// Tells the sum of this member's shares of a directory under a lease, or says that there is
    /// none.
    pub(super) fn tell_sum(
        &mut self,
        from: NodeId,
        number: u64,
        (table, epoch): (u64, u64),
        (dir, also): Subject,
    ) {
        let now = self.time();
        let cooling = self.sums.cooling.get(&dir).map_or(0, |cooling| (cooling.until - now).max(0));
        let full = self.cluster().leased.count() >= DIRS_MAX;
        if full {
            self.revoke_all();
        }
        let barred = full
            || cooling > 0
            || self.table.leaving.is_some()
            || self.sums.is_revoking(dir)
            || self.cluster().locks.bars_range((Table::DirStat, dir))
            || matches!(also, Also::Names { .. })
                && self.cluster().locks.bars_range((Table::Entry, dir))
            || !self.agrees(from, table);
        if barred {
            let revoking = if self.sums.is_revoking(dir) { COOL_MIN } else { 0 };
            let pause = cooling.max(revoking).unsigned_abs();
            return self.send(from, Message::Sum(SumMessage::Refused { number, dir, pause }));
        }
        self.change_sums(|member| member.cluster().leased.grant(dir, from, epoch));
        match self.read_told(dir, &also) {
            // Another one may have begun to serve these rows while they were read.
            Ok(_) if !self.cluster().may_answer() => {}
            Ok((sum, names, wait)) => {
                let told = SumMessage::Sum { number, epoch: self.epoch, dir, sum, names };
                self.when_durable(wait, Deferred::Send(from, Message::Sum(told)));
            }
            Err(why) => {
                log::error!("what the shares of directory {dir} come to, for another node: {why}");
                self.send(from, Message::Sum(SumMessage::Refused { number, dir, pause: 0 }));
            }
        }
    }

    /// What it tells, and what must be durable before anybody may see it. No share changes
    /// meanwhile: the lease is given.
    fn read_told(
        &self,
        dir: InodeId,
        also: &Also,
    ) -> Result<(DirStat, Option<Names>, Position), EngineError> {
        let (sum, wait) = self.own_sum(dir)?;
        let Also::Names { after, most } = also else { return Ok((sum, None, wait)) };
        let (names, seen) = self.own_names(dir, after.as_deref(), *most)?;
        Ok((sum, Some(names), wait.max(seen)))
    }

    /// The sum of this member's shares of a directory, and what must be durable before anybody may
    /// see it.
    fn own_sum(&self, dir: InodeId) -> Result<(DirStat, Position), EngineError> {
        let (mut sum, mut wait, mut damage) = (DirStat::default(), 0, None);
        let table = &self.table;
        let deleted_at =
            self.node.engine().scan(Table::DirStat, dir, None, &mut |share, row, changed_at| {
                if table.owns(Table::DirStat, dir, share) {
                    match DirStat::decode(row) {
                        Ok(part) => sum.merge(&part),
                        Err(why) => damage = Some(why),
                    }
                    wait = wait.max(changed_at);
                }
                ControlFlow::Continue(())
            })?;
        match damage {
            Some(why) => Err(EngineError::Corrupt(format!("damaged dirstat row: {why}"))),
            None => Ok((sum, wait.max(deleted_at))),
        }
    }

    /// Has the leases on a directory revoked. Whether that has to be waited for.
    pub(crate) fn revoke(&mut self, dir: InodeId) -> bool {
        let holders = self.cluster().leased.holders(dir);
        if self.sums.is_revoking(dir) {
            return true;
        }
        if holders.is_empty() {
            return false;
        }
        self.begin_revoking(vec![dir], holders);
        true
    }

    /// The same for all directories.
    pub(crate) fn revoke_all(&mut self) -> bool {
        if self.sums.revoking.values().any(|revoking| revoking.dirs.is_empty()) {
            return true;
        }
        let holders = self.cluster().leased.all_holders();
        if holders.is_empty() {
            return false;
        }
        self.begin_revoking(Vec::new(), holders);
        true
    }

    pub(crate) fn begin_revoking(&mut self, dirs: Vec<InodeId>, holders: Vec<(NodeId, u64)>) {
        let number = self.number();
        let (now, waiting) = (self.now, holders.into_iter().collect());
        self.sums.revoking.insert(number, Revoking { dirs, waiting, since: now, sent: now });
        self.send_revoke(number);
    }

    pub(crate) fn send_revoke(&mut self, number: u64) {
        let (now, epoch) = (self.now, self.epoch);
        let Some(revoking) = self.sums.revoking.get_mut(&number) else { return };
        revoking.sent = now;
        let told =
            |holder: u64| SumMessage::Revoke { number, epoch, holder, dirs: revoking.dirs.clone() };
        let messages: Vec<(NodeId, SumMessage)> =
            revoking.waiting.iter().map(|(node, holder)| (*node, told(*holder))).collect();
        for (node, message) in messages {
            self.send(node, Message::Sum(message));
        }
    }

    pub(crate) fn revoked(&mut self, from: NodeId, number: u64) {
        let Some(revoking) = self.sums.revoking.get_mut(&number) else { return };
        revoking.waiting.remove(&from);
        if revoking.waiting.is_empty() {
            self.end_revoking(number);
        }
    }

    /// Nobody relies on these leases any more: requests that wait to change shares go on.
    pub(crate) fn end_revoking(&mut self, number: u64) {
        let Some(Revoking { dirs, .. }) = self.sums.revoking.remove(&number) else { return };
        self.change_sums(|member| {
            let leased = &member.cluster().leased;
            match &dirs[..] {
                [] => leased.end_all(false),
                dirs => dirs.iter().for_each(|dir| leased.end(*dir)),
            }
        });
        let now = self.time();
        for dir in dirs {
            let before = self.sums.cooling.get(&dir);
            let soon = before.is_some_and(|cooling| now < cooling.until + 2 * cooling.span);
            let span = before
                .filter(|_| soon)
                .map_or(COOL_MIN, |cooling| (2 * cooling.span).min(COOL_MAX));
            self.sums.cooling.insert(dir, Cooling { until: now + span, span });
        }
        self.unlocked = true;
        self.unlocks += 1;
        for (from, borrow) in std::mem::take(&mut self.sums.borrows) {
            self.handle(from, borrow);
        }
    }

    /// Of the rows that a transaction wants to change some are shares that other members were told
    /// of. They are not any more in a moment.
    pub(crate) fn revoke_for(&mut self, keys: &[Key]) -> bool {
        let barred = |key: &&Key| key.table == Table::DirStat && self.cluster().leased.bars(key.id);
        let mut dirs: Vec<InodeId> = keys.iter().filter(barred).map(|key| key.id).collect();
        dirs.dedup();
        for dir in &dirs {
            self.revoke(*dir);
        }
        !dirs.is_empty()
    }

    /// A member wants to borrow rows: it is heard again when leases have been revoked.
    pub(crate) fn borrow_later(&mut self, from: NodeId, borrow: Message) {
        // Its leader asks again when nothing comes.
        let borrows = &mut self.sums.borrows;
        if !borrows.iter().any(|(_, other)| *other == borrow) && borrows.len() < BORROWS_MAX {
            borrows.push((from, borrow));
        }
    }

    /// A transaction has ended.
    pub(crate) fn forget_borrows(&mut self, txn: TxnId) {
        let of_it = |message: &Message| {
            matches!(message,
                Message::Borrow { txn: other, .. } if *other == txn)
        };
        self.sums.borrows.retain(|(_, borrow)| !of_it(borrow));
    }
}
