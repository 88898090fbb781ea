//! Pages of a directory of 300,000 names: how many rows a page reads, wherever it begins, counted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_engine::{BatchKind, Engine, EngineError, Layer, MemoryEngine, Mutation, VisitRow};
use kestrel_meta::ops::readdir;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::inode::Kind;
use kestrel_types::key::{Key, Table};
use kestrel_types::name::Name;
use kestrel_types::request::Answer;

const DIR: InodeId = 20;
const NAMES: u64 = 300_000;
const LIMIT: usize = 1000;

/// Counts the rows that scans show.
struct Counting<'a> {
    below: &'a dyn Engine,
    shown: AtomicUsize,
}

impl Layer for Counting<'_> {
    fn below(&self) -> &dyn Engine {
        self.below
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.below.scan(table, id, after, &mut |suffix, row, position| {
            self.shown.fetch_add(1, Ordering::Relaxed);
            visit(suffix, row, position)
        })
    }
}

fn name(number: u64) -> Name {
    Name::new(format!("file-{number:07}").as_bytes()).unwrap()
}

fn fill(engine: &dyn Engine) {
    let value = Entry::Link { ino: 21, kind: Kind::File }.encode();
    let mut numbers = 0..NAMES;
    loop {
        let rows = numbers.by_ref().take(4096).map(|number| Mutation {
            key: Key::new(Table::Entry, DIR, name(number).as_bytes()),
            value: Some(value.clone()),
        });
        let rows: Vec<Mutation> = rows.collect();
        if rows.is_empty() {
            return;
        }
        engine.commit(BatchKind::Growing, rows).unwrap();
    }
}

/// Pages from the first, a middle and the last names on.
fn pages_are_bounded(engine: &dyn Engine) {
    for first in [0, 1, NAMES / 3, NAMES / 2, NAMES - 500, NAMES] {
        let counting = Counting { below: engine, shown: AtomicUsize::new(0) };
        let after = first.checked_sub(1).map(name);
        let page = readdir::run(&counting, DIR, 1, after.as_ref(), LIMIT).unwrap().0;
        let Answer::Entries { entries, end, .. } = page else { panic!("no page") };
        let last = NAMES.min(first + LIMIT as u64);
        assert!(entries.iter().map(|entry| entry.name.clone()).eq((first..last).map(name)));
        assert_eq!(end, last == NAMES);
        let shown = counting.shown.load(Ordering::Relaxed);
        assert!(shown <= LIMIT + 1, "{shown} rows for a page behind {after:?}");
    }
}

/// A page reads the rows that it shows and one more, wherever it begins; in memory, and where the
/// rows lie in sorted runs.
#[test]
fn rows_read_for_a_page() {
    let memory = MemoryEngine::default();
    fill(&memory);
    pages_are_bounded(&memory);
    let dir = tempfile::tempdir().unwrap();
    // Much less memory than the rows need: the least there can be.
    let options =
        EmbeddedOptions { memory_bytes: 0, log_bytes_max: 4 << 20, ..EmbeddedOptions::default() };
    let (before_sync, verify) = (Arc::new(|| Ok(())), &mut |_: &[Mutation]| true);
    let engine = EmbeddedEngine::open(dir.path(), [3; 16], options, before_sync, verify).unwrap();
    fill(&engine);
    engine.settle().unwrap();
    pages_are_bounded(&engine);
}
