//! Listings from names that other members tell under leases.
//!
//! A page of a listing is what the member's own rows say and what the others have told, as far as
//! each of them told: all of it is true while the leases hold, so a page is one moment of the
//! directory. A member is asked for many pages at once ([`NAMES_MAX`]). Where there is no lease a
//! page is a transaction, which borrows the rows.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_engine::EngineError;
use kestrel_meta::node::Ran;
use kestrel_meta::ops::readdir;
use kestrel_meta::rows::{Missing, SpanRows, TxnRows};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::Table;
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Op, READDIR_ENTRIES_MAX};

use crate::ClusterNode;
use crate::message::SpanRow;
use crate::message::sums::{Also, Names};
use crate::work::Stage;

/// Most entries that a member tells at once.
const NAMES_MAX: usize = 10_240;

/// And most bytes of their names and values, so that they fit a message.
const NAMES_BYTES_MAX: usize = 1 << 20;

/// Most directories of which a member keeps the names.
const LISTS_MAX: usize = 16;

/// A list that was not looked at for so long is forgotten.
const IDLE_MAX: Nanos = 10 * SECOND;

/// What other members have told of a directory's names.
#[derive(Default)]
pub(super) struct List {
    parts: BTreeMap<NodeId, Part>,
    used: Nanos,
}

/// What one of them has told.
struct Part {
    after: Option<Box<[u8]>>,
    names: Names,
}

impl Part {
    /// Whether it says what the member has right after a name.
    fn covers(&self, after: Option<&[u8]>) -> bool {
        let last = self.names.rows.last().map(|(name, _)| &**name);
        self.after.as_deref() <= after && (self.names.end || last > after)
    }

    /// The name up to which it says what there is; none: it says all.
    fn horizon(&self) -> Option<&[u8]> {
        self.names.rows.last().filter(|_| !self.names.end).map(|(name, _)| &**name)
    }

    /// So many rows after a name, at most.
    fn after(&self, after: Option<&[u8]>, most: usize) -> &[SpanRow] {
        let rows = &self.names.rows;
        let first = after.map_or(0, |after| rows.partition_point(|(name, _)| **name <= *after));
        &rows[first..rows.len().min(first + most)]
    }
}

impl ClusterNode {
    /// Serves a page of a directory's names.
    pub(crate) fn list(&mut self, ticket: u64) {
        let Some(work) = self.works.get(&ticket) else { return };
        let Op::ReadDir { dir, after, limit, .. } = &work.request.op else {
            return self.lead(ticket);
        };
        let (dir, after, limit) = (*dir, after.clone(), (*limit).clamp(1, READDIR_ENTRIES_MAX));
        let barred = self.table.leaving.is_some()
            || self.table.departs()
            || self.cluster().locks.bars_range((Table::Entry, dir));
        if barred || !self.may_gather(dir) {
            return self.lead(ticket);
        }
        let asked = after.as_ref().map(Name::as_bytes);
        let covered = |list: &List, node: &NodeId| {
            list.parts.get(node).is_some_and(|part| part.covers(asked))
        };
        let list = self.sums.lists.get(&dir);
        let others = self.sums.others.iter().copied();
        let missing: Vec<NodeId> =
            others.filter(|node| !list.is_some_and(|list| covered(list, node))).collect();
        if missing.is_empty() {
            return self.list_page(ticket, dir, after.as_ref(), limit);
        }
        let also = Also::Names(asked.map(Into::into));
        self.gather_from(missing, (dir, also), ticket);
    }

    /// The same, if all others have told what follows `after`.
    fn list_page(&mut self, ticket: u64, dir: InodeId, after: Option<&Name>, limit: usize) {
        let now = self.time();
        let span = readdir::span(dir, after, limit);
        let node = self.node.clone();
        let quiet = node.quiesce();
        let own = self.read(&Missing { keys: Vec::new(), spans: vec![span] });
        drop(quiet);
        let Ok(mut own) = own.inspect_err(|why| log::error!("names of directory {dir}: {why}"))
        else {
            return self.lead(ticket);
        };
        let own_rows = own.spans.pop().map(|(_, rows)| rows).unwrap_or_default();
        let Some(list) = self.sums.lists.get_mut(&dir) else { return self.lead(ticket) };
        list.used = now;
        let mut rows: SpanRows = own_rows.into_iter().collect();
        for part in list.parts.values() {
            rows.extend(part.after(after.map(Name::as_bytes), limit + 1).iter().cloned());
        }
        // Beyond that it is not known what there is.
        let horizon = list.parts.values().filter_map(Part::horizon).min();
        let mut limit = limit;
        if let Some(horizon) = horizon {
            rows.retain(|name, _| **name <= *horizon);
            limit = limit.min(rows.len().saturating_sub(1));
        }
        if limit == 0 {
            return self.lead(ticket);
        }
        let lent = TxnRows {
            spans: [(readdir::span(dir, after, limit), rows)].into(),
            ..TxnRows::default()
        };
        self.end_page(ticket, limit, &lent, own.wait);
    }

    /// Checks what the caller may see, and answers.
    fn end_page(&mut self, ticket: u64, most: usize, lent: &TxnRows, wait: Position) {
        let Some(work) = self.works.get(&ticket) else { return };
        let mut request = work.request.clone();
        if let Op::ReadDir { limit, .. } = &mut request.op {
            *limit = most;
        }
        let ran = self.node.transact((&request, None), lent, &work.no_dirs, 0);
        // Own rows were read before: all of it was true together if the leases hold now.
        if !self.cluster().sums.is_held(self.time()) || !self.cluster().may_answer() {
            return self.lead(ticket);
        }
        match ran {
            Ok(Ran::Ended(ended)) => self.answer_after(ticket, ended.reply, ended.wait.max(wait)),
            Ok(Ran::Dentry(want)) => {
                if let Some(work) = self.works.get_mut(&ticket) {
                    work.stage = Stage::Fetching;
                }
                self.fetch(want, ticket);
            }
            Ok(Ran::Unleased) => self.await_lease(ticket),
            Ok(Ran::Lacks(_) | Ran::Later | Ran::Stopped | Ran::Cut) | Err(_) => self.lead(ticket),
        }
    }

    /// A member has told names.
    pub(super) fn keep_names(
        &mut self,
        dir: InodeId,
        node: NodeId,
        after: Option<Box<[u8]>>,
        names: Names,
    ) {
        let lists = &mut self.sums.lists;
        if lists.len() >= LISTS_MAX && !lists.contains_key(&dir) {
            let oldest = lists.iter().min_by_key(|(_, list)| list.used).map(|(dir, _)| *dir);
            oldest.map(|oldest| lists.remove(&oldest));
        }
        let list = lists.entry(dir).or_default();
        list.used = self.now;
        list.parts.insert(node, Part { after, names });
    }

    /// What a member has told of directories does not count any more; no directories: of any.
    pub(super) fn forget_names(&mut self, node: NodeId, dirs: &[InodeId]) {
        for (dir, list) in &mut self.sums.lists {
            if dirs.is_empty() || dirs.contains(dir) {
                list.parts.remove(&node);
            }
        }
    }

    pub(super) fn tick_lists(&mut self) {
        let now = self.now;
        self.sums.lists.retain(|_, list| now < list.used + IDLE_MAX);
    }

    /// Entries that this member owns, and what must be durable before anybody may see them.
    pub(super) fn own_names(
        &self,
        dir: InodeId,
        after: Option<&[u8]>,
    ) -> Result<(Names, Position), EngineError> {
        let (mut names, mut wait, mut bytes) = (Names { rows: Vec::new(), end: true }, 0, 0);
        let (table, mut damage) = (&self.table, None);
        let mut visit = |name: &[u8], row: &[u8], changed_at: Position| {
            if table.strangers && !table.owns(Table::Entry, dir, name) {
                return ControlFlow::Continue(());
            }
            if names.rows.len() >= NAMES_MAX || bytes >= NAMES_BYTES_MAX {
                names.end = false;
                return ControlFlow::Break(());
            }
            match Entry::peek(row) {
                Ok((ino, kind)) => {
                    let value = Entry::Link { ino, kind }.encode();
                    bytes += name.len() + value.len();
                    names.rows.push((name.into(), value));
                    wait = wait.max(changed_at);
                    ControlFlow::Continue(())
                }
                Err(why) => {
                    damage = Some(why);
                    ControlFlow::Break(())
                }
            }
        };
        let deleted_at = self.node.engine().scan(Table::Entry, dir, after, &mut visit)?;
        match damage {
            Some(why) => Err(EngineError::Corrupt(format!("damaged entry row: {why}"))),
            None => Ok((names, wait.max(deleted_at))),
        }
    }
}
