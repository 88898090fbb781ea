//! The rows that etcd has, in memory: a shard is small, and read as a whole when it is opened.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::{Bytes, Cursor, RowStore, Sorted};
use parking_lot::Mutex;

use crate::store::RowChanges;

/// Rows copied out at a time, so that a visitor of the rows holds no lock.
const PAGE: usize = 256;

/// See the module's header.
pub struct Mirror(Mutex<Content>);

struct Content {
    rows: BTreeMap<Vec<u8>, Box<[u8]>>,
    /// Of keys and values.
    bytes: usize,
}

impl Mirror {
    /// Of these rows.
    pub fn new(rows: BTreeMap<Vec<u8>, Box<[u8]>>) -> Self {
        let bytes = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
        Self(Mutex::new(Content { rows, bytes }))
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// These are in etcd now.
    pub fn apply(&self, rows: &RowChanges) {
        let mut content = self.0.lock();
        for (key, value) in rows {
            let old = match value {
                Some(value) => {
                    content.bytes += key.len() + value.len();
                    content.rows.insert(key.clone(), value.clone())
                }
                None => content.rows.remove(key),
            };
            content.bytes -= old.map_or(0, |old| key.len() + old.len());
        }
    }
}

impl RowStore for Mirror {
    fn get_many(
        &self,
        keys: &[Vec<u8>],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        for (at, key) in keys.iter().enumerate() {
            let found = self.0.lock().rows.get(key).cloned();
            if let Some(value) = found {
                visit(at, &value);
            }
        }
        Ok(())
    }
}

impl Sorted for Mirror {
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_> {
        let next = Some(Bound::Included(from.to_vec()));
        Box::new(Pages { mirror: self, next, to: to.to_vec(), rows: VecDeque::new() })
    }
}

/// Rows of a range, page by page.
struct Pages<'a> {
    mirror: &'a Mirror,
    /// Where the next page begins, if there may be one.
    next: Option<Bound<Vec<u8>>>,
    to: Vec<u8>,
    rows: VecDeque<(Bytes, Bytes)>,
}

impl Cursor for Pages<'_> {
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        if self.rows.is_empty()
            && let Some(from) = self.next.take()
        {
            let content = self.mirror.0.lock();
            let above = content.rows.range((from, Bound::Unbounded));
            let page = above.take_while(|(key, _)| **key < self.to).take(PAGE);
            self.rows =
                page.map(|(key, value)| (Bytes::from(&**key), Bytes::from(&**value))).collect();
            if self.rows.len() == PAGE {
                self.next = self.rows.back().map(|(key, _)| Bound::Excluded(key.to_vec()));
            }
        }
        Ok(self.rows.pop_front())
    }
}
