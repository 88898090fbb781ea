//! What a node has, counted by name: when somebody asks for it over the control protocol, and on a
//! thread of its own when the coordinator does, which balances.
//!
//! The thread reads all entries, so it takes its time: it rests four times as long as it works.
//! What it found is told again while it is about as new as it would be if it were counted anew, or
//! nothing was written since.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kestrel_balancer::heavy_hitters::{HeavyHitters, NAMES_MAX};
use kestrel_balancer::load_report::{LoadReport, names_wanted};
use kestrel_cluster::host::NodeHost;
use kestrel_engine::Engine;
use kestrel_meta::owners::MapView;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use parking_lot::{Condvar, Mutex};

/// Rows looked at in one go: between two of them others get the engine.
const ROWS: usize = 4096;

/// Rough size of the names in a report, bytes.
const NAMES_BYTES_MAX: usize = 512 << 10;

/// Rest, in times of the work before it.
const REST: u32 = 4;

/// What was found is new for so long at least.
const FRESH: Duration = Duration::from_secs(5);

/// Counts the entries that a node owns by this table, and its most frequent names. `go_on` hears
/// how many there are so far, and says whether to.
///
/// # Errors
/// The engine's, in words. `Ok(None)`: it was not to go on.
pub fn count(
    (me, table): (NodeId, &MapView),
    engine: &dyn Engine,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<LoadReport>, String> {
    let placement = &table.placement;
    let mut frequent = HeavyHitters::new(&placement.exceptions, NAMES_MAX);
    let mut from: Option<Key> = None;
    loop {
        let (mut rows, mut next) = (0, None);
        let visited =
            engine.scan_table(Table::Entry, from.as_ref().map(Key::borrow), &mut |key, _| {
                if rows == ROWS {
                    next = Some(key.to_owned());
                    return ControlFlow::Break(());
                }
                rows += 1;
                // It may have copies of what another node owns.
                if table.owns(key.table, key.id, key.suffix) {
                    frequent.count(key.suffix);
                }
                ControlFlow::Continue(())
            });
        visited.map_err(|why| why.to_string())?;
        from = next;
        if from.is_none() {
            break;
        }
        if !go_on(frequent.entries()) {
            return Ok(None);
        }
    }
    let mut report = frequent.report(me, names_wanted(placement.map.members().len()));
    let mut bytes = 0;
    let told = report.names.iter().take_while(|count| {
        bytes += 2 * count.name.as_bytes().len() + 16;
        bytes <= NAMES_BYTES_MAX
    });
    let told = told.count();
    report.names.truncate(told);
    Ok(Some(report))
}

/// What was counted.
struct LoadCount {
    report: LoadReport,
    table: u64,
    /// Rows that the engine had changed when it was begun.
    mutations: u64,
    took: Duration,
    ended: Instant,
}

impl LoadCount {
    fn is_fresh(&self) -> bool {
        self.ended.elapsed() < FRESH.max(self.took * REST)
    }
}

#[derive(Default)]
struct State {
    wanted: bool,
    ends: bool,
    found: Option<LoadCount>,
}

#[derive(Default)]
struct CountShared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread that counts for the coordinator; it ends when this is dropped.
pub struct LoadCounter {
    desk: Arc<CountShared>,
    thread: Option<JoinHandle<()>>,
}

impl LoadCounter {
    /// Starts it, and has the member ask it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(host: &Arc<NodeHost>, engine: &Arc<dyn Engine>) -> std::io::Result<Self> {
        let desk = Arc::<CountShared>::default();
        let (counting, host_of_thread, engine) = (desk.clone(), host.clone(), engine.clone());
        let work = move || counting.work(&host_of_thread, &*engine);
        let thread = std::thread::Builder::new().name("kestrel-load".into()).spawn(work)?;
        let asked = desk.clone();
        host.set_census(Box::new(move |table| asked.tell(table.placement.version)));
        Ok(Self { desk, thread: Some(thread) })
    }
}

impl Drop for LoadCounter {
    fn drop(&mut self) {
        self.desk.state.lock().ends = true;
        self.desk.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

impl CountShared {
    /// What was counted by this table, if that is new; if not, it is counted.
    fn tell(&self, table: u64) -> Option<LoadReport> {
        let mut state = self.state.lock();
        let found = state.found.as_ref().filter(|found| found.table == table && found.is_fresh());
        let report = found.map(|found| found.report.clone());
        if report.is_none() {
            state.wanted = true;
            self.changed.notify_one();
        }
        report
    }

    /// Rests for so long, unless it is to end. Whether it goes on.
    fn rest(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.ends && !self.changed.wait_until(&mut state, until).timed_out() {}
        !state.ends
    }

    fn work(&self, host: &NodeHost, engine: &dyn Engine) {
        loop {
            {
                let mut state = self.state.lock();
                while !state.wanted && !state.ends {
                    self.changed.wait(&mut state);
                }
                if state.ends {
                    return;
                }
            }
            match self.find(host, engine) {
                Ok(Some(found)) => {
                    let mut state = self.state.lock();
                    (state.found, state.wanted) = (Some(found), false);
                }
                Ok(None) => return,
                Err(why) => {
                    log::error!(
                        "the entries of this node cannot be counted, so nobody balances: {why}"
                    );
                    self.state.lock().wanted = false;
                }
            }
        }
    }

    fn find(&self, host: &NodeHost, engine: &dyn Engine) -> Result<Option<LoadCount>, String> {
        let (table, mutations, begun) = (host.table(), engine.stats().mutations, Instant::now());
        let version = table.placement.version;
        let before = self.state.lock().found.take();
        if let Some(before) =
            before.filter(|found| (found.table, found.mutations) == (version, mutations))
        {
            return Ok(Some(LoadCount { ended: begun, ..before }));
        }
        let mut worked = Instant::now();
        let report = count((host.me(), &table), engine, &mut |_| {
            let goes_on = self.rest(worked.elapsed() * REST);
            worked = Instant::now();
            goes_on
        })?;
        let (took, ended) = (begun.elapsed(), Instant::now());
        Ok(report.map(|report| LoadCount { report, table: version, mutations, took, ended }))
    }
}
