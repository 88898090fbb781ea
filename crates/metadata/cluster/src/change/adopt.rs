//! The next table becomes the present one.
//!
//! One batch makes it so, with every worker's state held, and what the node keeps in memory of rows
//! that came or went follows before anybody runs. Rows that leave have been kept from everybody
//! until now, and nobody has seen those that came, so what is said of them here, before the roles
//! are taken, still holds then.

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::node::{Moved, figures_of};
use kestrel_meta::owners::{MapView, owner};
use kestrel_meta::stop::engine_error;
use kestrel_types::codec::Reader;
use kestrel_types::error::FsResult;
use kestrel_types::ids::Position;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Table, number_of};
use kestrel_types::placement::PlacementMap;

use super::records::{self, ForeignRows};
use super::{RangeDelete, gains, hands_over, inherits, loses, shares_move};
use crate::message::changes::{ChangeMessage, Charge};
use crate::quotas::QuotaSet;
use crate::work::Stage;
use crate::{ClusterNode, Deferred, Message};

impl ClusterNode {
    /// The coordinator says that this is the table. With a charge if this member is to follow him.
    pub(super) fn adopt(&mut self, next: Arc<PlacementMap>, charge: Option<Charge>) {
        let (version, present) = (next.version, self.table.placement.version);
        let adopted = Message::Change(ChangeMessage::Adopted(version));
        if version <= present && !self.changing.joining {
            let position = self.node.last_commit();
            return self.when_durable(position, Deferred::Send(self.coordinator(), adopted));
        }
        // A member that has left may hear so late.
        let left = next.heir_of(self.me).is_some();
        let follows = version == present + 1 || self.changing.joining;
        if !left && (next.map.member(self.me).is_none() || !follows) {
            return log::error!(
                "this node has table {present} of placement, and table {version} is to follow"
            );
        }
        let takes_over = next.coordinator == self.me && self.coordinator() != self.me;
        if takes_over != charge.is_some() {
            return log::error!(
                "placement map {version} came with contradictions about its coordinator"
            );
        }
        let frozen = self.changing.part.as_ref().filter(|part| part.recorded);
        if frozen.is_some_and(|part| part.next != next) && !left {
            return log::error!(
                "this node is frozen for another table {version} than is to follow"
            );
        }
        match self.adopt_now(next, charge) {
            // The members concerned hear when all have it.
            Ok(position) if takes_over => self.when_durable(position, Deferred::Decided),
            Ok(position) => {
                self.when_durable(position, Deferred::Send(self.coordinator(), adopted))
            }
            // It is said again.
            Err(why) => log::error!("table {version} of placement: {why}; tried again"),
        }
    }

    fn adopt_now(&mut self, next: Arc<PlacementMap>, charge: Option<Charge>) -> FsResult<Position> {
        let (node, before) = (self.node.clone(), self.table.clone());
        let hands_over = hands_over(self.me, &before.placement, &next);
        let gains = gains(self.me, &before.placement, &next);
        let loses = loses(self.me, &before.placement, &next);
        let inherits = inherits(self.me, &before.placement, &next);
        let moved = if gains || loses || inherits { self.moved(&next)? } else { Moved::default() };
        let left = loses || self.changing.strangers != ForeignRows::None;
        let strangers = if left { ForeignRows::Leftover } else { ForeignRows::None };

        let quiet = node.quiesce();
        let only_here = if gains { node.counter()? } else { before.only_here };
        let mut rows = vec![records::table_row(&next), records::strangers_row(strangers)];
        rows.extend(gains.then(|| records::only_here_row(only_here)));
        let recorded = self.changing.part.as_ref().is_some_and(|part| part.recorded);
        rows.extend(recorded.then(|| records::gone(records::FROZEN)));
        if hands_over {
            rows.extend(self.coordinator.rows_given_up());
        }
        // A member that has not served may lack the quotas.
        let begins = (self.changing.joining || before.is_idle()) && !next.is_idle(self.me);
        let quotas = QuotaSet { lacking: true, ..self.quotas.set };
        rows.extend(begins.then(|| quotas.row()));
        if let Some(charge) = &charge {
            rows.extend(records_of(&next, charge));
        }
        let position = self.commit_beside(BatchKind::Freeing, rows)?;
        if begins {
            self.cluster().set_lacks_quotas(true);
            self.quotas.set = quotas;
        }
        let placement = PlacementMap::clone(&next);
        self.put_table(MapView {
            me: self.me,
            placement,
            leaving: None,
            strangers: left,
            only_here,
        });
        node.take_moved(moved);
        if let Err(why) = node.reload_quotas() {
            log::error!("what counts towards quotas: {why}; run kestrel quota check");
        }
        drop(quiet);

        log::info!("metadata: table {} of placement", next.version);
        self.changing.joining = false;
        self.cluster().set_outside(self.table.has_left());
        self.changing.part = None;
        self.changing.strangers = strangers;
        self.changing.purge = left.then(RangeDelete::default);
        self.begin_again();
        self.snapshots_by_table();
        self.clones_by_table();
        self.quotas_by_table();
        self.forget_former();
        if let Some(charge) = charge {
            log::info!("metadata: node {} leads changes of the table from now on", self.me);
            self.coordinator.take_over(next.clone(), charge, self.epoch);
        }
        if hands_over {
            log::info!(
                "metadata: node {} leads changes of the table from now on",
                next.coordinator
            );
            let done = self.coordinator.give_up();
            self.when_durable(position, Deferred::Changed(done));
        }
        if self.table.has_left() {
            log::info!("metadata: node {} has left the cluster", self.me);
        }
        if let Some(told) = &self.table_listener {
            told(&next);
        }
        Ok(position)
    }

    /// What goes and comes by the next table. A damaged row is fsck's business.
    fn moved(&self, next: &PlacementMap) -> FsResult<Moved> {
        let (mut moved, me, engine) = (Moved::default(), self.me, self.node.engine());
        let row_comes = |table: Table, id: u64, suffix: &[u8]| match (
            self.table.owner(table, id, suffix) == me,
            owner(next, me, table, id, suffix) == me,
        ) {
            (false, true) => Some(true),
            (true, false) => Some(false),
            _ => None,
        };
        let comes = |table: Table, id: u64| row_comes(table, id, b"");
        let links = engine.scan_table(Table::Link, None, &mut |key, row| {
            if let (Some(comes), Ok(inode)) =
                (comes(Table::Link, key.id), Inode::decode(&mut Reader::new(row)))
            {
                moved.files.push((key.id, comes, inode.size.cast_signed(), inode.nlink == 0));
            }
            ControlFlow::Continue(())
        });
        links.map_err(engine_error)?;
        let sweeps = engine.scan_table(Table::Sweep, None, &mut |key, _| {
            if let Some(comes) = comes(Table::Sweep, key.id) {
                moved.sweeps.push((key.id, comes.then(|| number_of(key.suffix))));
            }
            ControlFlow::Continue(())
        });
        sweeps.map_err(engine_error)?;
        if shares_move(&self.table.placement, next, |before, after| (before == me) != (after == me))
        {
            let shares = engine.scan_table(Table::DirStat, None, &mut |key, row| {
                let sign = row_comes(key.table, key.id, key.suffix)
                    .map_or(0, |comes| if comes { 1 } else { -1 });
                let stats = figures_of(key.table, Some(row));
                moved.usage = std::array::from_fn(|i| moved.usage[i].wrapping_add(stats[i] * sign));
                ControlFlow::Continue(())
            });
            shares.map_err(engine_error)?;
        }
        Ok(moved)
    }

    /// What was begun by another table begins again: transactions that are not decided, questions
    /// to all members.
    fn begin_again(&mut self) {
        for ticket in self.leads.values().copied().collect::<Vec<_>>() {
            let Some(work) = self.works.get(&ticket) else { continue };
            if matches!(&work.stage, Stage::Leading(lead) if !lead.is_decided()) {
                self.give_up(ticket);
                self.rest(ticket, true);
            }
        }
        self.begin_again_at();
        self.ask_again();
        self.walks.clear();
        self.comparisons.clear();
        let polling = self.works.iter().filter(|(_, work)| matches!(work.stage, Stage::Polling));
        for ticket in polling.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.run_alone(ticket);
        }
        self.look_for_lease();
        if self.table.is_alone() {
            self.end_fetches();
        }
    }
}

/// What a member puts on record that is the coordinator by this table, which is decided.
fn records_of(next: &PlacementMap, charge: &Charge) -> Vec<Mutation> {
    let mut rows = vec![
        records::change_row(next),
        records::era_row(charge.era),
        records::last_node_row(charge.last_node),
    ];
    rows.extend(
        charge.expected.iter().map(|(node, announced)| records::expect_row(*node, Some(announced))),
    );
    rows
}
