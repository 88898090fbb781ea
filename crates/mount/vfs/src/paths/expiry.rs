//! The thread that gives back opens for which no OPEN came, tells what must not be told yet, and
//! has the kernel drop path nodes when there are too many.
//!
//! It never tells the kernel to expire or drop a *name* (`FUSE_NOTIFY_INVAL_ENTRY`): the kernel
//! then waits for the directory's lock, which a LOOKUP that waits for us may hold, and cannot be
//! interrupted. If this process is killed at that moment it never ends, the connection stays open,
//! and callers that wait for an answer wait for ever. Names end by themselves. Dropping nodes takes
//! no such lock.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kestrel_fuse::Notifier;
use parking_lot::{Condvar, Mutex};

use super::Paths;

/// Path nodes that the kernel is asked to drop at a time, as a part of those that there may be: one
/// in so many.
const PRUNE_SHARE: usize = 16;

/// Files likewise.
const PRUNE_FILES: usize = 1 << 16;

/// Pause between two such requests, and between looks at opens that wait.
const TICK: Duration = Duration::from_millis(500);

/// Something to be told, and when.
type Later = (Instant, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct State {
    crowded: bool,
    waits: bool,
    /// In no order; there are few.
    later: Vec<Later>,
    /// The thread runs.
    started: bool,
    closed: bool,
}

impl State {
    /// Takes out what is due.
    fn due(&mut self, now: Instant) -> Vec<Later> {
        let closed = self.closed;
        self.later.extract_if(.., |(due, _)| closed || *due <= now).collect()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The way to the thread.
#[derive(Default)]
pub struct ExpiryThread(Arc<Shared>);

impl ExpiryThread {
    /// Starts it. `prunes`: the kernel can drop nodes that nothing uses.
    pub fn start(&self, paths: &Arc<Paths>, notifier: Notifier, prunes: bool) {
        let (shared, paths) = (self.0.clone(), Arc::downgrade(paths));
        let inodes_max =
            paths.upgrade().and_then(|paths| paths.nodes_max.inodes).filter(|_| prunes);
        let run = move || Run { shared, paths, notifier, prunes, inodes_max, turn: 0 }.run();
        match std::thread::Builder::new().name("kestrel-paths".into()).spawn(run) {
            Ok(_) => self.0.state.lock().started = true,
            Err(error) => {
                log::warn!("cannot start the thread that has the kernel drop names: {error}")
            }
        }
    }

    /// Ends it.
    pub fn stop(&self) {
        self.tell(|state| state.closed = true);
    }

    /// Runs `tell` at that time, or at once when the mount ends or has no such thread.
    pub fn at(&self, due: Instant, tell: Box<dyn FnOnce() + Send>) {
        let mut state = self.0.state.lock();
        if !state.started || state.closed {
            drop(state);
            return tell();
        }
        state.later.push((due, tell));
        drop(state);
        self.0.changed.notify_one();
    }

    /// There are too many path nodes.
    pub fn crowded(&self) {
        if !self.0.state.lock().crowded {
            self.tell(|state| state.crowded = true);
        }
    }

    /// Opens wait.
    pub fn waits(&self) {
        let mut state = self.0.state.lock();
        if !std::mem::replace(&mut state.waits, true) {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock());
        self.0.changed.notify_one();
    }
}

struct Run {
    shared: Arc<Shared>,
    paths: Weak<Paths>,
    notifier: Notifier,
    prunes: bool,
    /// Inodes beyond which the kernel is asked to drop some.
    inodes_max: Option<usize>,
    /// Times that the kernel was asked to drop nodes.
    turn: usize,
}

impl Run {
    fn run(mut self) {
        let mut looked = Instant::now();
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        while !state.closed {
            let now = Instant::now();
            let due = state.due(now);
            if !due.is_empty() {
                drop(state);
                due.into_iter().for_each(|(_, tell)| tell());
                state = shared.state.lock();
                continue;
            }
            let looks = state.waits || state.crowded || self.inodes_max.is_some();
            let tick = looks.then(|| looked + TICK);
            if tick.is_none_or(|tick| now < tick) {
                match state.later.iter().map(|(due, _)| *due).chain(tick).min() {
                    Some(next) => drop(shared.changed.wait_until(&mut state, next)),
                    None => shared.changed.wait(&mut state),
                }
                continue;
            }
            let crowded = std::mem::take(&mut state.crowded);
            drop(state);
            let Some(paths) = self.paths.upgrade() else { return };
            looked = now;
            let still = self.look(&paths, crowded, looked);
            drop(paths);
            state = shared.state.lock();
            state.waits &= still;
        }
        let rest = state.due(Instant::now());
        drop(state);
        rest.into_iter().for_each(|(_, tell)| tell());
    }

    /// Whether opens still wait.
    fn look(&mut self, paths: &Paths, crowded: bool, now: Instant) -> bool {
        for late in paths.waits.late(now) {
            late.give_back(&paths.fs);
        }
        let surplus = self.surplus(paths);
        if (crowded || surplus > 0) && self.prunes {
            // Files first: the kernel keeps the directories above what it keeps.
            let mut nodes = paths.fs.known_files(if crowded { PRUNE_FILES } else { surplus });
            if crowded {
                let count = paths.nodes_max.paths.div_ceil(PRUNE_SHARE);
                nodes.extend(paths.table.read().droppable(count, self.turn));
            }
            self.turn = self.turn.wrapping_add(1);
            if let Err(error) = self.notifier.prune(&nodes) {
                log::warn!("the kernel does not drop nodes that it does not use: {error}");
                (self.prunes, self.inodes_max) = (false, None);
            }
        }
        paths.waits.any()
    }

    /// How many inodes the kernel knows beyond those that it may, and some more, so that there is
    /// room for a while.
    fn surplus(&self, paths: &Paths) -> usize {
        let Some(most) = self.inodes_max else { return 0 };
        let known = paths.fs.known_inodes();
        if known > most { known - most / 4 * 3 } else { 0 }
    }
}
