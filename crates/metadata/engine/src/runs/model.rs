//! Sorted runs in memory, for crash tests: an ingestion is durable at once or, when a test wants it
//! to fail, does not happen.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Bytes, Changes, Cursor, EngineError, Runs, Sorted};

/// Runs in memory. Clones share their rows, as a reopened volume shares its disk.
#[derive(Clone, Default)]
pub struct ModelRuns(Arc<Mutex<Model>>);

#[derive(Default)]
struct Model {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    fault: Option<EngineError>,
}

impl ModelRuns {
    /// Ingestions fail with `fault` from now on, or work again.
    pub fn set_fault(&self, fault: Option<EngineError>) {
        self.0.lock().fault = fault;
    }

    /// A copy with a life of its own: what the disk holds now.
    pub fn snapshot(&self) -> Self {
        let rows = self.0.lock().rows.clone();
        Self(Arc::new(Mutex::new(Model { rows, fault: None })))
    }
}

struct Copy(std::vec::IntoIter<(Bytes, Bytes)>);

impl Cursor for Copy {
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        Ok(self.0.next())
    }
}

impl Sorted for ModelRuns {
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_> {
        let model = self.0.lock();
        let rows: Vec<_> = model
            .rows
            .range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>((
                Bound::Included(from),
                Bound::Excluded(to),
            ))
            .map(|(key, value)| (Bytes::from(key.as_slice()), Bytes::from(value.as_slice())))
            .collect();
        Box::new(Copy(rows.into_iter()))
    }
}

impl Runs for ModelRuns {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.0.lock().rows.get(key).map(|value| Bytes::from(value.as_slice())))
    }

    fn ingest(&self, changes: &mut Changes<'_>) -> Result<(), EngineError> {
        let mut new = Vec::new();
        changes(&mut |key, value| {
            new.push((key.to_vec(), value.map(<[u8]>::to_vec)));
            Ok(())
        })?;
        let mut model = self.0.lock();
        if let Some(fault) = &model.fault {
            return Err(fault.clone());
        }
        assert!(new.is_sorted_by(|a, b| a.0 < b.0), "keys of an ingestion ascend");
        for (key, value) in new {
            match value {
                Some(value) => model.rows.insert(key, value),
                None => model.rows.remove(&key),
            };
        }
        Ok(())
    }

    fn compact(&self) -> Result<bool, EngineError> {
        Ok(false)
    }

    fn stop(&self) {}

    fn disk_bytes(&self) -> u64 {
        0
    }
}
