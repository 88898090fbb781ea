//! Rows of the log that no table has, as a follower keeps them: layers that never change once a
//! moment shows them.

use std::sync::Arc;

use crate::log::RowChanges;
use crate::tree::MemTable;

/// Layers of more bytes together than this are not merged: a layer is dropped when all of it is in
/// tables, so small ones leave sooner.
const LAYER_BYTES_MAX: usize = 4 << 20;

/// The older of two neighbours that are merged has at most so many times the bytes of the newer
/// one, so that a row is copied a few times only.
const MERGE_RATIO: usize = 2;

struct Layer {
    /// The number of its last log object.
    last: u64,
    rows: Arc<MemTable>,
}

/// See the module's header.
#[derive(Default)]
pub struct LiveLog {
    /// The newest first.
    layers: Vec<Layer>,
}

impl LiveLog {
    /// Adds the rows of log objects, the last of which has this number.
    pub fn add(&mut self, last: u64, rows: RowChanges) {
        let new = MemTable::default();
        new.apply(rows);
        self.layers.insert(0, Layer { last, rows: Arc::new(new) });
        while let [newer, older, ..] = &self.layers[..] {
            let (small, large) = (newer.rows.bytes(), older.rows.bytes());
            if small + large > LAYER_BYTES_MAX || large > MERGE_RATIO * small {
                return;
            }
            let rows = Arc::new(MemTable::merged(&newer.rows, &older.rows));
            let merged = Layer { last: newer.last, rows };
            self.layers.splice(..2, [merged]);
        }
    }

    /// Tables have all log objects before this one.
    pub fn drop_before(&mut self, log_first: u64) {
        self.layers.retain(|layer| layer.last >= log_first);
    }

    /// What a moment shows, the newest first.
    pub fn layers(&self) -> Vec<Arc<MemTable>> {
        self.layers.iter().map(|layer| layer.rows.clone()).collect()
    }
}
