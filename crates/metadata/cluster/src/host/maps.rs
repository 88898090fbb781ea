//! Tables that change, as a process with threads sees them.

use std::sync::Arc;

use kestrel_meta::owners::MapView;
use kestrel_types::placement::{NodeId, PlacementMap};

use super::NodeHost;
use crate::change::{Changed, DepartureGuard, Expected, LockGuard, MapListener};
use crate::lease::LeaseStats;
use crate::message::changes::{Announced, ChangeStats};
use crate::{LoadListener, LoadSource};

impl NodeHost {
    /// As [`ClusterNode::set_lock_guard`](crate::ClusterNode::set_lock_guard).
    pub fn set_lock_guard(&self, guard: Box<LockGuard>) {
        self.shared.turn(move |member, _| member.set_lock_guard(guard));
    }

    /// As [`ClusterNode::set_departure_guard`](crate::ClusterNode::set_departure_guard).
    pub fn set_departure_guard(&self, guard: Box<DepartureGuard>) {
        self.shared.turn(move |member, _| member.set_departure_guard(guard));
    }

    /// As [`ClusterNode::set_census`](crate::ClusterNode::set_census).
    pub fn set_census(&self, census: Box<LoadSource>) {
        self.shared.turn(move |member, _| member.set_census(census));
    }

    /// As [`ClusterNode::count_entries`](crate::ClusterNode::count_entries); `done` as below.
    pub fn count_entries(&self, done: LoadListener) {
        let done = self.shared.later(done);
        self.shared.turn(move |member, now| member.count_entries(done, now));
    }

    /// As [`ClusterNode::leads_changes`](crate::ClusterNode::leads_changes).
    pub fn leads_changes(&self) -> bool {
        let leads = self.shared.member.lock().leads_changes().is_ok();
        self.shared.wakeup.wake();
        leads
    }

    /// As [`ClusterNode::has_left`](crate::ClusterNode::has_left).
    pub fn has_left(&self) -> bool {
        self.table().has_left()
    }

    /// As [`ClusterNode::forget`](crate::ClusterNode::forget); `done` as above.
    pub fn forget(&self, node: NodeId, done: Changed) {
        let done = self.shared.later(done);
        self.shared.turn(move |member, now| member.forget(node, done, now));
    }

    /// As [`ClusterNode::set_table_listener`](crate::ClusterNode::set_table_listener).
    pub fn set_table_listener(&self, told: Box<MapListener>) {
        self.shared.turn(move |member, _| member.set_table_listener(told));
    }

    /// As [`ClusterNode::change`](crate::ClusterNode::change); `done` hears it on any thread, with
    /// no lock held, and must not block.
    pub fn change(&self, next: PlacementMap, done: Changed) {
        let done = self.shared.later(done);
        self.shared.turn(move |member, now| member.change(next, done, now));
    }

    /// As [`ClusterNode::expect`](crate::ClusterNode::expect); `done` as above.
    pub fn expect(&self, node: Announced, done: Expected) {
        let done = self.shared.later(done);
        self.shared.turn(move |member, now| member.expect(node, done, now));
    }

    /// As [`ClusterNode::expected`](crate::ClusterNode::expected).
    pub fn expected(&self) -> Vec<(NodeId, Announced)> {
        let expected = self.shared.member.lock().expected();
        self.shared.wakeup.wake();
        expected
    }

    /// The present table.
    pub fn placement(&self) -> PlacementMap {
        self.table().placement.clone()
    }

    /// The present table as its node has it.
    pub fn table(&self) -> Arc<MapView> {
        self.shared.cluster().table()
    }

    /// As [`ClusterNode::lease_stats`](crate::ClusterNode::lease_stats).
    pub fn lease_stats(&self) -> LeaseStats {
        let stats = self.shared.member.lock().lease_stats();
        self.shared.wakeup.wake();
        stats
    }

    /// As [`ClusterNode::change_stats`](crate::ClusterNode::change_stats).
    pub fn change_stats(&self) -> ChangeStats {
        let stats = self.shared.member.lock().change_stats();
        self.shared.wakeup.wake();
        stats
    }
}
