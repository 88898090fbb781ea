//! What a node of several changes while its rows are read, up to a moment at which no node changes
//! anything.
//!
//! A cut of one node's metadata needs no such moment ([`crate::cut`]). Of several nodes each would
//! be cut at another one, and the whole would be of none: a transaction half carried out, a file
//! that was made in a directory which is not there yet. So each records its batches from before its
//! rows are read on, and when all rows are read, all are **held** for a fraction of a second:
//! commits wait in the tap, before any client can learn of them. What is recorded when the hold
//! begins is what belongs to the cut. The verb that wants the cut holds all nodes at the same time
//! and makes sure that there was a moment in all the holds.
//!
//! A hold begins a little after the request, so that the answer leaves before what carries answers
//! may be held up, and ends by itself. A recording without a request for a minute ends.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::{Engine, Mutation, Tap};
use parking_lot::{Condvar, Mutex};

use crate::dump::spool;

/// How long there may be no request until a recording ends.
const LEASE: Duration = Duration::from_secs(60);

/// Longest hold: clients and other nodes wait meanwhile, and must not take the node for one that is
/// away.
pub const HOLD_MAX: Duration = Duration::from_secs(2);

/// Why there is no recording any more. Most holds of one recording: a verb must not keep a node
/// from its work for long.
const HOLDS_MAX: u32 = 8;

const GONE: &str = "the recording of changes has ended; begin anew";

#[derive(Clone, Copy)]
struct Hold {
    begins: Instant,
    ends: Instant,
}

struct State {
    /// None when the recording has ended.
    out: Option<BufWriter<File>>,
    bytes: u64,
    bytes_max: u64,
    failed: Option<String>,
    hold: Option<Hold>,
    /// How often it was held.
    holds: u32,
    /// Bytes that were recorded when the hold began.
    mark: Option<u64>,
    last_request: Instant,
    /// No batch is of interest any more.
    over: bool,
    /// What was recorded is not read any more.
    dropped: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A recording.
pub struct Recording {
    shared: Arc<Shared>,
    /// What was recorded, to read it back.
    file: File,
}

impl Recording {
    /// Whether there was no request for so long that it has ended.
    pub fn is_given_up(&self) -> bool {
        self.shared.state.lock().dropped
    }

    /// Records from now on into `file`, an empty file open for reading and writing that no other
    /// process uses, at most `bytes_max` bytes of changes. Starts a thread.
    ///
    /// # Errors
    /// If it cannot.
    pub fn begin(engine: Arc<dyn Engine>, file: File, bytes_max: u64) -> io::Result<Self> {
        let state = State {
            out: Some(BufWriter::with_capacity(1 << 16, file.try_clone()?)),
            bytes: 0,
            bytes_max,
            failed: None,
            hold: None,
            holds: 0,
            mark: None,
            last_request: Instant::now(),
            over: false,
            dropped: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (ours, (started, begun)) = (shared.clone(), std::sync::mpsc::channel());
        let held = file.try_clone()?;
        let record = move || {
            let tap = engine.tap(ours.tap());
            let _ = started.send(());
            ours.wait(|state| state.over);
            drop(tap);
            ours.wait(|state| state.dropped);
            // The owner of the recording may keep it long after the last read.
            let _ = held.set_len(0);
        };
        std::thread::Builder::new().name("kestrel-cut".into()).spawn(record)?;
        begun.recv().map_err(|_| io::Error::other("the thread that records changes has failed"))?;
        Ok(Self { shared, file })
    }

    /// The recording is still wanted.
    ///
    /// # Errors
    /// If it has ended.
    pub fn keep(&self) -> Result<(), String> {
        let mut state = self.shared.state.lock();
        if state.dropped {
            return Err(GONE.into());
        }
        state.last_request = Instant::now();
        Ok(())
    }

    /// Nothing is committed for `length`, at most [`HOLD_MAX`], from `after` now on.
    ///
    /// # Errors
    /// If the recording has ended.
    pub fn hold(&self, after: Duration, length: Duration) -> Result<(), String> {
        let mut state = self.shared.state.lock();
        if state.over {
            return Err(GONE.into());
        }
        if state.holds == HOLDS_MAX {
            return Err("the node was held too often; begin anew".into());
        }
        state.holds += 1;
        let now = Instant::now();
        state.last_request = now;
        state.mark = None;
        let begins = now + after.min(HOLD_MAX);
        state.hold = Some(Hold { begins, ends: begins + length.min(HOLD_MAX) });
        Ok(())
    }

    /// Ends the recording and the hold: the bytes that had been recorded when that began.
    ///
    /// # Errors
    /// If no hold has begun, or not all was recorded.
    pub fn end(&self) -> Result<u64, String> {
        let mut state = self.shared.state.lock();
        if state.over {
            return Err(GONE.into());
        }
        if state.hold.is_none_or(|hold| Instant::now() < hold.begins) {
            return Err("the node was not held".into());
        }
        self.finish(&mut state)
    }

    /// Ends the recording of a node that is the only one of its volume, so that its moments need
    /// not be those of others: the bytes that have been recorded.
    ///
    /// # Errors
    /// If not all was recorded.
    pub fn end_alone(&self) -> Result<u64, String> {
        let mut state = self.shared.state.lock();
        if state.over {
            return Err(GONE.into());
        }
        self.finish(&mut state)
    }

    fn finish(&self, state: &mut State) -> Result<u64, String> {
        state.last_request = Instant::now();
        let mark = state.mark.unwrap_or(state.bytes);
        state.mark = Some(mark);
        state.over = true;
        self.shared.changed.notify_all();
        if let Some(why) = state.failed.take() {
            return Err(why);
        }
        let mut out = state.out.take().ok_or(GONE)?;
        out.flush().map_err(|why| format!("recording changes: {why}"))?;
        Ok(mark)
    }

    /// Up to `len` bytes of what was recorded, from `from` on. After [`Recording::end`]; nothing at
    /// its end.
    ///
    /// # Errors
    /// If it has not ended properly, or cannot be read.
    pub fn read(&self, from: u64, len: usize) -> Result<Vec<u8>, String> {
        let mark = {
            let mut state = self.shared.state.lock();
            state.last_request = Instant::now();
            let is_whole = state.over && state.out.is_none() && !state.dropped;
            state.mark.filter(|_| is_whole).ok_or(GONE)?
        };
        let len = usize::try_from(mark.saturating_sub(from)).unwrap_or(len).min(len);
        let mut bytes = vec![0; len];
        self.file
            .read_exact_at(&mut bytes, from)
            .map_err(|why| format!("reading what was recorded: {why}"))?;
        Ok(bytes)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.shared.state.lock().end();
        self.shared.changed.notify_all();
    }
}

impl State {
    fn end(&mut self) {
        (self.over, self.dropped) = (true, true);
    }
}

impl Shared {
    /// What the engine calls with each batch.
    fn tap(self: &Arc<Self>) -> Tap {
        let shared = self.clone();
        Box::new(move |batch| shared.take(batch))
    }

    fn take(&self, batch: &[Mutation]) {
        let mut state = self.state.lock();
        while !state.over
            && let Some(hold) = state.hold.filter(|hold| Instant::now() >= hold.begins)
        {
            let bytes = state.bytes;
            state.mark.get_or_insert(bytes);
            if Instant::now() >= hold.ends {
                break;
            }
            self.changed.wait_until(&mut state, hold.ends);
        }
        if state.over || state.failed.is_some() {
            return;
        }
        let Some(out) = &mut state.out else { return };
        match spool::write(out, batch) {
            Ok(bytes) => state.bytes += bytes,
            Err(why) => state.failed = Some(format!("recording changes: {why}")),
        }
        if state.bytes > state.bytes_max {
            state.failed = Some(
                "more changes meanwhile than there is room to record; repeat it at a quieter time"
                    .into(),
            );
        }
    }

    /// Until it is so, or the recording is not wanted any more.
    fn wait(&self, is_so: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        while !is_so(&state) {
            let until = state.last_request + LEASE;
            if Instant::now() >= until {
                state.end();
                self.changed.notify_all();
            } else {
                self.changed.wait_until(&mut state, until);
            }
        }
    }
}
