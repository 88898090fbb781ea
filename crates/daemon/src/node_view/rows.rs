//! Rows of a node for a process that puts those of all nodes together.

use std::ops::ControlFlow;

use kestrel_admin::info::dir_sums;
use kestrel_admin::usage::then::read_parts_then;
use kestrel_admin::usage::{DirPart, read_parts};
use kestrel_engine::Engine;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::SnapshotId;
use serde_json::{Value, json};

/// Bytes of keys and values after which an answer ends. It has at most 1 MiB, and digits are twice
/// as long.
const PAGE_BYTES: usize = 128 << 10;

/// Bytes of a value in one answer beside them; the rest of a longer one is asked for.
const PIECE_BYTES: usize = 256 << 10;

/// Directories in one question.
const DIRS_MAX: usize = 4096;

/// A page of the rows of a table: `[key, value]` in hexadecimal digits, from the key `from` on, of
/// one `id` only if there is one. `next` is the key that the next page begins with, if there is
/// one. Of a value that does not fit an answer the page's last row has the beginning, and `left`
/// says how many bytes follow; a caller that wants them asks with `skip`.
pub fn page(engine: &dyn Engine, question: &Value) -> Result<Value, String> {
    let table = question["table"].as_u64().and_then(|table| u8::try_from(table).ok());
    let table = table.and_then(Table::from_u8).ok_or("the question names no table")?;
    let id = question["id"].as_u64();
    let from = match question["from"].as_str() {
        None => id.map(|id| Key::new(table, id, &[])),
        Some(digits) => {
            let bytes = from_hex(digits).ok_or("the key is not hexadecimal")?;
            let key = KeyRef::decode(&bytes).filter(|key| key.table == table).map(KeyRef::to_owned);
            Some(key.ok_or("the key is none of the table")?)
        }
    };
    let skip = question["skip"].as_u64().and_then(|skip| usize::try_from(skip).ok()).unwrap_or(0);
    let max = question["max"].as_u64().unwrap_or(u64::MAX);
    let (mut page, mut next, mut bytes, mut left) = (Vec::new(), None, 0, 0);
    let visited = engine.scan_table(table, from.as_ref().map(Key::borrow), &mut |key, value| {
        if id.is_some_and(|id| key.id != id) || page.len() as u64 >= max {
            return ControlFlow::Break(());
        }
        let mut encoded = Vec::new();
        key.encode_into(&mut encoded);
        if left > 0 || bytes >= PAGE_BYTES {
            next = Some(to_hex(&encoded));
            return ControlFlow::Break(());
        }
        let value = if page.is_empty() { value.get(skip..).unwrap_or_default() } else { value };
        let piece = &value[..value.len().min(PIECE_BYTES)];
        left = value.len() - piece.len();
        bytes += encoded.len() + piece.len();
        page.push(json!([to_hex(&encoded), to_hex(piece)]));
        ControlFlow::Continue(())
    });
    visited.map_err(|why| why.to_string())?;
    Ok(json!({ "rows": page, "next": next, "left": left }))
}

/// This node's part of the sums over some directories, and which directories in them it knows of;
/// of `each` directory by itself if the question says so, then also as they were `at` a snapshot.
pub fn sums(engine: &dyn Engine, question: &Value) -> Result<Value, String> {
    let dirs = question["dirs"].as_array().filter(|dirs| dirs.len() <= DIRS_MAX);
    let dirs = dirs.ok_or("the question does not name directories, or too many")?;
    if question["each"] == true {
        return each(engine, dirs, question["at"].as_u64());
    }
    let (mut sums, mut below) = ([0; 3], Vec::new());
    for dir in dirs.iter().filter_map(Value::as_u64) {
        let part =
            dir_sums(engine, dir, &mut |child| below.push(child)).map_err(|why| why.to_string())?;
        for (sum, part) in sums.iter_mut().zip([part.children, part.subdirs, part.bytes]) {
            *sum = i64::wrapping_add(*sum, part);
        }
    }
    Ok(json!({ "children": sums[0], "subdirs": sums[1], "bytes": sums[2], "below": below }))
}

fn each(engine: &dyn Engine, dirs: &[Value], at: Option<SnapshotId>) -> Result<Value, String> {
    let dirs: Vec<InodeId> = dirs.iter().filter_map(Value::as_u64).collect();
    let parts = match at {
        None => read_parts(engine, &dirs),
        Some(at) => read_parts_then(engine, &dirs, at),
    };
    let parts = parts.map_err(|why| why.to_string())?;
    let each = parts.iter().map(|DirPart { stat, below }| {
        json!({
            "children": stat.children, "subdirs": stat.subdirs, "bytes": stat.bytes,
            "mtime": stat.mtime, "below": below,
        })
    });
    Ok(json!({ "each": each.collect::<Vec<Value>>(), "at": at }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_admin::rows::put;
    use kestrel_engine::BatchKind;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};

    #[test]
    fn rows_come_in_pages_and_long_ones_in_pieces() {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        let long: Vec<u8> = (0..600 << 10).map(|at: u32| at as u8).collect();
        let rows = vec![
            put(Table::Chunk, 1, b"a", [7].into()),
            put(Table::Chunk, 1, b"b", long.clone().into()),
            put(Table::Chunk, 2, b"c", [8].into()),
        ];
        engine.commit(BatchKind::Growing, rows).unwrap();
        let mut question = json!({ "verb": "rows", "table": Table::Chunk as u8 });
        let (mut value, mut keys, mut next) = (Vec::new(), 0, Value::Null);
        loop {
            let answer = page(&engine, &question).unwrap();
            if answer["next"].is_string() {
                next = answer["next"].clone();
            }
            keys += answer["rows"].as_array().unwrap().len();
            let last = answer["rows"].as_array().unwrap().last().unwrap();
            let piece = from_hex(last[1].as_str().unwrap()).unwrap();
            if answer["left"] == 0 && value.is_empty() {
                assert_eq!((answer["next"].is_null(), piece), (true, vec![8]));
                break;
            }
            value.extend(piece);
            if answer["left"] == 0 {
                assert_eq!(value, long);
                value.clear();
                question = json!({ "table": Table::Chunk as u8, "from": next });
            } else {
                question = json!({ "table": Table::Chunk as u8, "from": last[0], "skip": value.len(),
                        "max": 1 });
                keys -= 1;
            }
        }
        assert_eq!(keys, 3);
        let one = page(&engine, &json!({ "table": Table::Chunk as u8, "id": 2 })).unwrap();
        assert_eq!(one["rows"].as_array().unwrap().len(), 1);
    }
}
