//! Listings from names that other members tell under leases.
//!
//! A page of a listing is what the member's own rows say and what the others have told, as far as
//! each of them told: all of it is true while the leases hold, so a page is one moment of the
//! directory. For a page that begins anywhere a member is asked for as many names as the page may
//! have; for one that follows the page before, or begins a listing, for many pages at once
//! ([`NAMES_MAX`]). Where there is no lease a page is a transaction, which borrows the rows.

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

/// A reader that asks for so many names from the first one on will want the others.
const LISTING_MIN: usize = 512;

/// A part of a page's names that is enough, so that a page is not cut short by the member that has
/// told least.
const ENOUGH_SHARE: usize = 8;

/// Most directories of which a member keeps the names. A listing that finds no room for what it was
/// told asks again, so this is far above the listings that are under way at once.
const LISTS_MAX: usize = 4096;

/// Most bytes of names that a member keeps, of each other one.
const LISTS_BYTES_MAX: usize = 16 * NAMES_BYTES_MAX;

/// A list that was not looked at for so long is forgotten.
const IDLE_MAX: Nanos = 10 * SECOND;

/// What other members have told of a directory's names.
#[derive(Default)]
pub(super) struct List {
    parts: BTreeMap<NodeId, Part>,
    /// The last name of the page that was given last.
    given: Option<Box<[u8]>>,
    used: Nanos,
    /// Of the names and values.
    bytes: usize,
}

/// What one of them has told.
struct Part {
    after: Option<Box<[u8]>>,
    names: Names,
}

impl Part {
    /// Whether it says what the member has right after a name: all, or enough for a good part of a
    /// page of so many names.
    fn covers(&self, after: Option<&[u8]>, limit: usize) -> bool {
        let enough = || self.after(after, limit).len() > limit / ENOUGH_SHARE;
        self.after.as_deref() <= after && (self.names.end || enough())
    }

    /// The name up to which it says what there is; none: it says all.
    fn horizon(&self) -> Option<&[u8]> {
        self.names.rows.last().filter(|_| !self.names.end).map(|(name, _)| &**name)
    }

    /// Bytes of its names and values.
    fn bytes(&self) -> usize {
        self.names.rows.iter().map(|(name, value)| name.len() + value.len()).sum()
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
            list.parts.get(node).is_some_and(|part| part.covers(asked, limit))
        };
        let list = self.sums.lists.get(&dir);
        let others = self.sums.others.iter().copied();
        let missing: Vec<NodeId> =
            others.filter(|node| !list.is_some_and(|list| covered(list, node))).collect();
        if missing.is_empty() {
            return self.list_page(ticket, dir, after.as_ref(), limit);
        }
        let follows = match asked {
            None => limit >= LISTING_MIN,
            Some(_) => list.is_some_and(|list| list.given.as_deref() == asked),
        };
        let most = if follows { NAMES_MAX } else { limit + 1 };
        let also = Also::Names { after: asked.map(Into::into), most: most as u64 };
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
        list.given = rows.keys().nth(limit - 1).cloned();
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
            Ok(Ran::Names(dir)) => self.await_names(ticket, dir),
            Ok(
                Ran::Lacks(_)
                | Ran::Later
                | Ran::Stopped
                | Ran::Cut
                | Ran::CloneSource(..)
                | Ran::Feed(_)
                | Ran::Quotas(_),
            )
            | Err(_) => self.lead(ticket),
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
        let bytes_max = LISTS_BYTES_MAX * self.sums.others.len().max(1);
        let lists = &mut self.sums.lists;
        let list = lists.entry(dir).or_default();
        list.used = self.now;
        list.parts.insert(node, Part { after, names });
        list.bytes = list.parts.values().map(Part::bytes).sum();
        let mut bytes: usize = lists.values().map(|list| list.bytes).sum();
        while lists.len() > LISTS_MAX || bytes > bytes_max {
            let others = lists.iter().filter(|(other, _)| **other != dir);
            let Some(oldest) = others.min_by_key(|(_, list)| list.used).map(|(dir, _)| *dir) else {
                return;
            };
            bytes -= lists.remove(&oldest).map_or(0, |list| list.bytes);
        }
    }

    /// What a member has told of directories does not count any more; no directories: of any.
    pub(super) fn forget_names(&mut self, node: NodeId, dirs: &[InodeId]) {
        for (dir, list) in &mut self.sums.lists {
            if dirs.is_empty() || dirs.contains(dir) {
                let forgotten = list.parts.remove(&node);
                list.bytes -= forgotten.map_or(0, |part| part.bytes());
            }
        }
    }

    pub(super) fn tick_lists(&mut self) {
        let now = self.now;
        self.sums.lists.retain(|_, list| now < list.used + IDLE_MAX);
    }

    /// Entries that this member owns, at most so many, and what must be durable before anybody may
    /// see them.
    pub(super) fn own_names(
        &self,
        dir: InodeId,
        after: Option<&[u8]>,
        most: u64,
    ) -> Result<(Names, Position), EngineError> {
        let most = usize::try_from(most).unwrap_or(NAMES_MAX).clamp(1, NAMES_MAX);
        let (mut names, mut wait, mut bytes) = (Names { rows: Vec::new(), end: true }, 0, 0);
        let (table, mut damage) = (&self.table, None);
        let mut visit = |name: &[u8], row: &[u8], changed_at: Position| {
            if table.strangers && !table.owns(Table::Entry, dir, name) {
                return ControlFlow::Continue(());
            }
            if names.rows.len() >= most || bytes >= NAMES_BYTES_MAX {
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
