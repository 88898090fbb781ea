//! Which objects must not be deleted although nothing refers to them yet.

use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Pins by object.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<FxHashMap<ObjectId, usize>>);

impl Pins {
    /// A new pin of `object`.
    pub fn pin(self: &Arc<Self>, object: ObjectId) -> Pin {
        *self.0.lock().entry(object).or_default() += 1;
        Pin(Arc::new(Held { object, pins: Arc::clone(self) }))
    }

    pub fn is_pinned(&self, object: ObjectId) -> bool {
        self.0.lock().contains_key(&object)
    }
}

#[derive(Debug)]
struct Held {
    object: ObjectId,
    pins: Arc<Pins>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut pins = self.pins.0.lock();
        if let Some(count) = pins.get_mut(&self.object) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.object);
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
