//! Questions to a process that serves one of several nodes: it has a part of the volume, so it tells its part, and refuses what can only
//! be done to the whole.

use std::ops::ControlFlow;

use kestrel_client::descriptor::ClusterSection;
use kestrel_client::hex::{from_hex, to_hex};
use kestrel_types::key::{Key, KeyRef, Table};
use serde_json::{Value, json};

use super::control::Serving;
use super::node::NodeOfCluster;
use crate::metrics::to_json;
use crate::serve::attendant::Attendant;
use crate::verbs::status::several::describe_part;

/// Bytes of keys and values after which an answer ends. It has at most 1 MiB, and digits are twice as long.
const PAGE_BYTES: usize = 128 << 10;

/// Largest row that fits an answer beside them, bytes.
const ROW_BYTES_MAX: usize = 256 << 10;

/// Answers one question.
///
/// # Errors
/// In words.
pub fn answer(
    serving: &Serving,
    section: &ClusterSection,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    match question["verb"].as_str() {
        Some("status") => status(serving, section),
        Some("stats") => Ok(to_json(&serving.snapshot())),
        Some("rows") => rows(serving, question),
        Some("table" | "entries" | "change" | "expect") => super::table::answer(serving, question, tell),
        Some("fsck") => Err(format!(
            "node {} has only a part of the volume; run `kestrel fsck {}`",
            section.node,
            url(serving, section)
        )),
        Some(verb @ ("info" | "dump" | "gc" | "compact" | "warmup" | "whole")) => Err(format!(
            "node {} has only a part of the volume, and {verb} does not work on a volume that several nodes share yet",
            section.node
        )),
        Some(other) => {
            Err(format!("the serving process does not know {other:?}; it may be older than this program"))
        }
        None => Err("the question has no verb".into()),
    }
}

fn url(serving: &Serving, section: &ClusterSection) -> String {
    section.url(&serving.descriptor.settings.name).unwrap_or_default()
}

fn status(serving: &Serving, section: &ClusterSection) -> Result<Value, String> {
    let mut out = describe_part(&serving.dir, &serving.descriptor, section, &*serving.engine)
        .map_err(|why| why.to_string())?;
    serving.describe_process(&mut out);
    super::table::describe(serving, &mut out);
    out["peers"] = serving.node.as_ref().map(NodeOfCluster::peers).into();
    Ok(out)
}

/// A page of the rows of a table, for a check of all nodes together: `[key, value]` in hexadecimal digits, from the key `from` on.
/// `next` is the key that the next page begins with, if there is one.
fn rows(serving: &Serving, question: &Value) -> Result<Value, String> {
    let table = question["table"].as_u64().and_then(|table| u8::try_from(table).ok());
    let table = table.and_then(Table::from_u8).ok_or("the question names no table")?;
    let from = match question["from"].as_str() {
        None => None,
        Some(digits) => {
            let bytes = from_hex(digits).ok_or("the key is not hexadecimal")?;
            let key = KeyRef::decode(&bytes).filter(|key| key.table == table).map(KeyRef::to_owned);
            Some(key.ok_or("the key is none of the table")?)
        }
    };
    let (mut page, mut next, mut bytes, mut too_large) = (Vec::new(), None, 0, None);
    let visited = serving.engine.scan_table(table, from.as_ref().map(Key::borrow), &mut |key, value| {
        let mut encoded = Vec::new();
        key.encode_into(&mut encoded);
        if bytes >= PAGE_BYTES {
            next = Some(to_hex(&encoded));
            return ControlFlow::Break(());
        }
        if value.len() > ROW_BYTES_MAX {
            too_large = Some(value.len());
            return ControlFlow::Break(());
        }
        bytes += encoded.len() + value.len();
        page.push(json!([to_hex(&encoded), to_hex(value)]));
        ControlFlow::Continue(())
    });
    visited.map_err(|why| why.to_string())?;
    if let Some(bytes) = too_large {
        let dirs = "stop all nodes and give `kestrel fsck` their directories";
        return Err(format!("a row of table {table:?} has {bytes} bytes, too many for an answer: {dirs}"));
    }
    Ok(json!({ "rows": page, "next": next }))
}
