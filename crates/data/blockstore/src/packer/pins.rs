//! Which objects must not be deleted although nothing refers to them yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Pins by object.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pinned: FxHashMap<ObjectId, usize>,
    /// By turn: threads that are about to pin an object that was taken in this turn or later.
    beginning: BTreeMap<u64, usize>,
}

impl Pins {
    /// A new pin of `object`.
    pub fn pin(self: &Arc<Self>, object: ObjectId) -> Pin {
        *self.0.lock().pinned.entry(object).or_default() += 1;
        Pin(Arc::new(Held { object, pins: Arc::clone(self) }))
    }

    pub fn is_pinned(&self, object: ObjectId) -> bool {
        self.0.lock().pinned.contains_key(&object)
    }

    /// Announces that an object taken in turn `floor` or later will be pinned, until what is
    /// returned is dropped.
    pub fn begin(&self, floor: u64) -> Beginning<'_> {
        *self.0.lock().beginning.entry(floor).or_default() += 1;
        Beginning { floor, pins: self }
    }

    /// No object of a turn before this is pinned or about to be; `None` if none is at all.
    pub fn oldest(&self, turn: impl Fn(ObjectId) -> u64) -> Option<u64> {
        let state = self.0.lock();
        let pinned = state.pinned.keys().map(|object| turn(*object)).min();
        let beginning = state.beginning.keys().next().copied();
        pinned.into_iter().chain(beginning).min()
    }
}

/// A caller is about to pin an object.
pub(super) struct Beginning<'a> {
    floor: u64,
    pins: &'a Pins,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let mut state = self.pins.0.lock();
        if let Some(count) = state.beginning.get_mut(&self.floor) {
            *count -= 1;
            if *count == 0 {
                state.beginning.remove(&self.floor);
            }
        }
    }
}

#[derive(Debug)]
struct Held {
    object: ObjectId,
    pins: Arc<Pins>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.pins.0.lock();
        if let Some(count) = state.pinned.get_mut(&self.object) {
            *count -= 1;
            if *count == 0 {
                state.pinned.remove(&self.object);
            }
        }
    }
}

/// Keeps an object from being taken for garbage until it and its clones are dropped.
#[derive(Debug, Clone)]
pub struct Pin(Arc<Held>);

impl Pin {
    /// The object.
    pub fn object(&self) -> ObjectId {
        self.0.object
    }
}
