//! Named objects in memory, for tests: calls can be made to fail before or after they have taken
//! effect.

use std::collections::BTreeMap;

use bytes::Bytes;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use parking_lot::Mutex;

use super::{ETag, NamedObject, NamedStore};
use crate::error::{Error, Result};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedFault {
    /// It is carried out.
    None,
    /// It fails and has no effect.
    Before,
    /// It has its effect, and its answer is lost.
    After,
}

/// Decides about a call that changes something, by its verb and the object's name.
type Decide = Box<dyn FnMut(&str, &str) -> NamedFault + Send>;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Bytes, u64, Nanos)>,
    /// Counts writes.
    written: u64,
    decide: Option<Decide>,
    /// Calls of each verb.
    calls: BTreeMap<&'static str, u64>,
}

/// See the module's header.
#[derive(Default)]
pub struct MemoryNamed(Mutex<State>);

impl State {
    fn call(&mut self, verb: &'static str, name: &str) -> NamedFault {
        *self.calls.entry(verb).or_default() += 1;
        self.decide.as_mut().map_or(NamedFault::None, |decide| decide(verb, name))
    }

    fn put(&mut self, name: &str, bytes: Bytes) -> ETag {
        self.written += 1;
        self.objects.insert(name.into(), (bytes, self.written, SystemClock.now()));
        self.written.to_string()
    }
}

fn lost(what: &'static str) -> Error {
    Error::Remote { during: what, object: None, why: "a fault of a test".into() }
}

fn outcome<T>(fault: NamedFault, done: impl FnOnce() -> T) -> Result<T> {
    match fault {
        NamedFault::None => Ok(done()),
        NamedFault::Before => Err(lost("a call that had no effect")),
        NamedFault::After => {
            done();
            Err(lost("a call with a lost answer"))
        }
    }
}

impl MemoryNamed {
    /// From now on `decide` says what becomes of each call, by its verb (`create`, `replace`,
    /// `remove`) and the object's name.
    pub fn decide(&self, decide: impl FnMut(&str, &str) -> NamedFault + Send + 'static) {
        self.0.lock().decide = Some(Box::new(decide));
    }

    /// How often a verb was called.
    pub fn calls(&self, verb: &str) -> u64 {
        self.0.lock().calls.get(verb).copied().unwrap_or(0)
    }

    /// Changes an object behind its owner's back.
    pub fn damage(&self, name: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        let mut state = self.0.lock();
        if let Some((bytes, ..)) = state.objects.get_mut(name) {
            *bytes = change(bytes.to_vec()).into();
        }
    }
}

impl NamedStore for MemoryNamed {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let mut state = self.0.lock();
        let fault = state.call("create", name);
        outcome(fault, || match state.objects.get(name) {
            Some((there, ..)) => *there == bytes,
            None => {
                state.put(name, bytes);
                true
            }
        })
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        let mut state = self.0.lock();
        let fault = state.call("replace", name);
        outcome(fault, || match state.objects.get(name) {
            Some((_, number, _)) if number.to_string() == tag => Some(state.put(name, bytes)),
            Some((there, number, _)) if *there == bytes => Some(number.to_string()),
            _ => None,
        })
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        let mut state = self.0.lock();
        let fault = state.call("read", name);
        let found = state.objects.get(name).map(|(bytes, number, at)| NamedObject {
            bytes: bytes.clone(),
            tag: number.to_string(),
            age: SystemClock.now() - at,
        });
        outcome(fault, || found)
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        let mut state = self.0.lock();
        let fault = state.call("read", name);
        let Some((bytes, ..)) = state.objects.get(name) else {
            return Err(lost("reading what is not there"));
        };
        let end = offset.saturating_add(len).min(bytes.len() as u64) as usize;
        let begin = (offset as usize).min(end);
        let range = bytes.slice(begin..end);
        outcome(fault, || range)
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        let state = self.0.lock();
        let names = state.objects.iter().filter(|(name, _)| name.starts_with(below));
        Ok(names.map(|(name, (bytes, ..))| (name.clone(), bytes.len() as u64)).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.0.lock();
        let fault = state.call("remove", name);
        outcome(fault, || drop(state.objects.remove(name)))
    }

    fn shown(&self) -> &str {
        "memory"
    }
}
