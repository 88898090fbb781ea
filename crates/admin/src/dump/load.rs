//! Reading a dump back.

use std::collections::HashMap;
use std::io::BufRead;

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::ids::{ObjectId, ROOT};
use kestrel_types::key::{Key, Table};
use serde_json::Value;

use super::record::LineReader;
use super::{Counts, DumpError, FORMAT, VERSION, is_left_out, value};
use crate::check::CheckError;
use crate::rows::{OBJECTS, Rows, decode_ceiling, delete, encode_ceiling, get, put};

/// Mutations committed together.
const BATCH: usize = 4096;

/// The contents of the first line.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Descriptor of the volume that was dumped.
    pub volume: Value,
    /// Program that wrote the dump.
    pub program: String,
}

/// Reads a whole dump and checks everything about it; changes nothing. Do this before anything is
/// created for a load.
///
/// # Errors
/// If it is not a dump, newer, damaged or truncated.
pub fn verify(
    input: impl BufRead,
    progress: &mut dyn FnMut(u64),
) -> Result<(Header, Counts), DumpError> {
    walk(input, &mut |_, _| Ok(()), progress)
}

/// Loads a dump into a volume without files, and verifies the number of rows.
///
/// # Errors
/// As [`verify`]; if the volume is not empty; if the engine fails. What was loaded is then
/// incomplete and to be thrown away.
pub fn load(
    input: impl BufRead,
    engine: &dyn Engine,
    progress: &mut dyn FnMut(u64),
) -> Result<(Header, Counts), DumpError> {
    refuse_files(engine)?;
    clear(engine)?;
    let mut batch = Vec::with_capacity(BATCH);
    let mut expected = [0i64; Table::ALL.len()];
    // Of the changes in `batch`: whether the row exists after the last one.
    let mut pending: HashMap<Key, bool> = HashMap::new();
    let mut changing = false;
    let done = walk(
        input,
        &mut |mutation, is_change| {
            let table = mutation.key.table as usize;
            if is_left_out(&mutation.key) {
                return Ok(());
            }
            if is_change && !changing {
                changing = true;
                flush(engine, &mut batch)?;
            }
            let exists = mutation.value.is_some();
            // Rows come once each; a change may replace a row of an earlier batch or of this one.
            let existed = if is_change {
                match pending.insert(mutation.key.clone(), exists) {
                    Some(existed) => existed,
                    None => get(engine, mutation.key.clone())?.is_some(),
                }
            } else {
                false
            };
            expected[table] += i64::from(exists) - i64::from(existed);
            batch.push(mutation);
            if batch.len() >= BATCH {
                pending.clear();
                flush(engine, &mut batch)?;
            }
            Ok(())
        },
        progress,
    )?;
    flush(engine, &mut batch)?;
    engine.sync()?;
    for table in Table::ALL {
        let mut found = 0;
        for row in Rows::new(engine, table) {
            row?;
            found += 1;
        }
        if found != expected[table as usize] {
            let expected = expected[table as usize];
            return Err(DumpError::Mismatch(format!(
                "table {table:?} has {found} rows, the dump {expected}"
            )));
        }
    }
    Ok(done)
}

/// Makes sure that no object number is handed out that the store already uses: a volume restored
/// from a dump may find objects that were written after it.
///
/// # Errors
/// If the store cannot be listed or the engine fails.
pub fn keep_clear_of(engine: &dyn Engine, store: &dyn BlockStore) -> Result<(), CheckError> {
    let mut highest = 0;
    for page in list_all(store) {
        highest = page?.objects.iter().map(|info| info.object).fold(highest, ObjectId::max);
    }
    let key = Key::new(Table::System, 0, OBJECTS);
    let ceiling = get(engine, key)?.and_then(|bytes| decode_ceiling(&bytes).ok()).unwrap_or(0);
    if ceiling <= highest {
        let raised = put(Table::System, 0, OBJECTS, encode_ceiling(highest.saturating_add(1)));
        engine.commit(BatchKind::Growing, vec![raised])?;
        engine.sync()?;
    }
    Ok(())
}

/// Reads all lines, giving rows and then changes (`true`) to `visit`.
fn walk(
    input: impl BufRead,
    visit: &mut dyn FnMut(Mutation, bool) -> Result<(), DumpError>,
    progress: &mut dyn FnMut(u64),
) -> Result<(Header, Counts), DumpError> {
    let mut lines = LineReader::new(input);
    let header = match lines.next()? {
        Some((kind, payload)) if kind == "header" => {
            parse_header(&payload).map_err(|error| match error {
                Some(error) => error,
                None => lines.corrupt("the first line does not describe a dump"),
            })?
        }
        _ => return Err(lines.corrupt("the first line is not that of a dump")),
    };
    let mut counts = Counts::default();
    loop {
        let Some((kind, payload)) = lines.next()? else {
            return Err(lines.corrupt("the file is cut off: its last line is missing"));
        };
        let is_change = match kind.as_str() {
            "row" if counts.changes == 0 => false,
            "change" => true,
            "end" => {
                lines.check_end(&payload, &counts)?;
                break;
            }
            other => {
                return Err(lines.corrupt(format!("a line of kind {other:?} is not expected here")));
            }
        };
        if is_change {
            counts.changes += 1
        } else {
            counts.rows += 1
        }
        let (key, value) =
            value::parse(&payload).ok_or_else(|| lines.corrupt("the row cannot be understood"))?;
        visit(Mutation { key, value }, is_change)?;
        if (counts.rows + counts.changes).is_multiple_of(4096) {
            progress(counts.rows + counts.changes);
        }
    }
    counts.bytes = lines.bytes();
    if lines.next()?.is_some() {
        return Err(lines.corrupt("there is something after the last line"));
    }
    Ok((header, counts))
}

fn parse_header(payload: &Value) -> Result<Header, Option<DumpError>> {
    if payload.get("format").and_then(Value::as_str) != Some(FORMAT) {
        return Err(None);
    }
    match payload.get("version").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(version) if version > VERSION => return Err(Some(DumpError::Newer(version))),
        _ => return Err(None),
    }
    let volume = payload.get("volume").cloned().ok_or(None)?;
    let program = payload.get("program").and_then(Value::as_str).unwrap_or_default().to_string();
    Ok(Header { volume, program })
}

/// A volume to load into may have a root directory, and nothing in it.
fn refuse_files(engine: &dyn Engine) -> Result<(), DumpError> {
    for row in Rows::new(engine, Table::Entry) {
        let (key, _) = row?;
        if key.id >= ROOT {
            return Err(DumpError::NotEmpty);
        }
    }
    match Rows::new(engine, Table::Link).next().transpose()? {
        Some(_) => Err(DumpError::NotEmpty),
        None => Ok(()),
    }
}

/// Removes what formatting wrote.
fn clear(engine: &dyn Engine) -> Result<(), DumpError> {
    for table in Table::ALL {
        let mut keys: Vec<Key> = Vec::new();
        for row in Rows::new(engine, table) {
            keys.push(row?.0);
        }
        for some in keys.chunks(BATCH) {
            engine.commit(BatchKind::Freeing, some.iter().map(delete).collect())?;
        }
    }
    Ok(())
}

fn flush(engine: &dyn Engine, batch: &mut Vec<Mutation>) -> Result<(), DumpError> {
    if !batch.is_empty() {
        engine.commit(BatchKind::Growing, std::mem::replace(batch, Vec::with_capacity(BATCH)))?;
    }
    Ok(())
}
