//! Questions to one of several nodes about the table of placement: what it is, what the node has that decides about it, and, to the
//! coordinator, that it be another one.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use kestrel_admin::rows::{INODES, OBJECTS, decode_ceiling, get};
use kestrel_client::hex::{from_hex, to_hex};
use kestrel_meta::engine::Engine;
use kestrel_meta::member::change::ChangeFigures;
use kestrel_meta::member::host::MemberHost;
use kestrel_meta::member::lease::LeaseFigures;
use kestrel_placement::frequent::{Frequent, NAMES_MAX};
use kestrel_placement::report::names_wanted;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{NodeId, Placement};
use serde_json::{Value, json};

use super::control::Serving;

/// Bytes of a table in one answer.
const PART_BYTES: usize = 256 << 10;

/// Rows looked at in one go: between two of them others get the engine.
const ROWS: usize = 4096;

/// Rough size of the names in an answer, bytes; it has at most 1 MiB.
const NAMES_BYTES_MAX: usize = 512 << 10;

/// Time between two messages about a change that goes on.
const TELL: Duration = Duration::from_millis(200);

/// Answers one of these questions.
///
/// # Errors
/// In words.
pub fn answer(
    serving: &Serving,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let host = serving.fs.member().ok_or("this is no node of a cluster")?;
    match question["verb"].as_str() {
        Some("table") => part_of_table(host, question),
        Some("entries") => entries(host, &*serving.engine, tell),
        Some("change") => change(host, question, tell),
        Some("expect") => expect(host, &*serving.engine, question),
        Some("forget") => forget(host, question),
        _ => Err("the question is not about the table".into()),
    }
}

/// What a status tells of the table, and of a change that is under way.
pub fn describe(serving: &Serving, out: &mut Value) {
    let Some(host) = serving.fs.member() else { return };
    let placement = host.placement();
    out["table"] = placement.version.into();
    out["exceptions"] = placement.exceptions.len().into();
    let slots = placement.map.slots_of_members();
    let node = |(member, slots): (&kestrel_types::placement::Member, usize)| {
        json!({
            "node": member.id, "address": member.address, "slots": slots, "leaving": placement.is_leaving(member.id),
        })
    };
    out["nodes"] = placement.map.members().iter().zip(slots).map(node).collect();
    let expected = host.expected();
    out["expected"] =
        expected.into_iter().map(|(node, address)| json!({ "node": node, "address": address })).collect();
    out["joining"] = serving.node.as_ref().is_some_and(|node| node.is_joining(host)).into();
    out["change"] = figures(&host.change_figures());
    let LeaseFigures { held, lapses, fences, fenced } = host.lease_figures();
    out["lease"] = json!({ "held": held, "lapses": lapses, "fences": fences, "fenced": fenced });
}

fn figures(figures: &ChangeFigures) -> Value {
    json!({
        "phase": figures.phase.word(),
        "leads": figures.leads,
        "rows_sent": figures.rows_sent,
        "rows_taken": figures.rows_taken,
        "purging": figures.purging,
        "rows_purged": figures.rows_purged,
    })
}

/// The table's bytes in hexadecimal digits, from the byte `from` on.
fn part_of_table(host: &MemberHost, question: &Value) -> Result<Value, String> {
    let placement = host.placement();
    let bytes = placement.encode();
    let from = question["from"].as_u64().unwrap_or(0);
    let rest =
        usize::try_from(from).ok().and_then(|from| bytes.get(from..)).ok_or("the table ends before")?;
    let part = &rest[..rest.len().min(PART_BYTES)];
    Ok(json!({ "version": placement.version, "bytes": bytes.len(), "part": to_hex(part) }))
}

/// Counts the node's entries, and its most frequent names.
fn entries(
    host: &MemberHost,
    engine: &dyn Engine,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let table = host.node().cluster().ok_or("this is no node of a cluster")?.table();
    let placement = &table.placement;
    let mut frequent = Frequent::new(&placement.exceptions, NAMES_MAX);
    let mut from: Option<Key> = None;
    loop {
        let (mut rows, mut next) = (0, None);
        let visited = engine.scan_table(Table::Entry, from.as_ref().map(Key::borrow), &mut |key, _| {
            if rows == ROWS {
                next = Some(key.to_owned());
                return ControlFlow::Break(());
            }
            rows += 1;
            // It may have copies of what another node owns.
            if table.owns(key.table, key.id, key.suffix) {
                frequent.count(key.suffix);
            }
            ControlFlow::Continue(())
        });
        visited.map_err(|why| why.to_string())?;
        from = next;
        if from.is_none() {
            break;
        }
        if !tell(&json!({ "entries": frequent.entries() })) {
            return Err("nobody waits for the answer any more".into());
        }
    }
    let report = frequent.report(host.me(), names_wanted(placement.map.members().len()));
    let mut bytes = 0;
    let names = report.names.iter().take_while(|count| {
        bytes += 2 * count.name.as_bytes().len() + 16;
        bytes <= NAMES_BYTES_MAX
    });
    let names: Value = names.map(|count| json!([to_hex(count.name.as_bytes()), count.entries])).collect();
    Ok(json!({ "node": report.node, "table": placement.version, "entries": report.entries, "names": names }))
}

/// Makes this the cluster's table. Tells how it goes, and answers when all nodes have it.
fn change(
    host: &Arc<MemberHost>,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let bytes = question["table"].as_str().and_then(from_hex).ok_or("the question has no table")?;
    let next = Placement::decode(&bytes).map_err(|why| why.to_string())?;
    let version = next.version;
    let (ended, end) = mpsc::channel();
    host.change(
        next,
        Box::new(move |result| {
            // Whoever does not listen any more does not need it.
            let _ = ended.send(result);
        }),
    );
    loop {
        match end.recv_timeout(TELL) {
            Ok(Ok(())) => return Ok(json!({ "table": version })),
            Ok(Err(why)) => return Err(why.reason.into_owned()),
            // It goes on whether or not somebody listens.
            Err(RecvTimeoutError::Timeout) => drop(tell(&figures(&host.change_figures()))),
            Err(RecvTimeoutError::Disconnected) => return Err("the node is shutting down".into()),
        }
    }
}

/// Takes a node out that was announced and never came.
fn forget(host: &MemberHost, question: &Value) -> Result<Value, String> {
    let node = question["node"].as_u64().and_then(|node| NodeId::try_from(node).ok());
    let node = node.ok_or("the question names no node")?;
    let (ended, end) = mpsc::channel();
    host.forget(
        node,
        Box::new(move |result| {
            let _ = ended.send(result);
        }),
    );
    let done = end.recv().map_err(|_| "the node is shutting down".to_string())?;
    done.map_err(|why| why.reason.into_owned())?;
    Ok(json!({ "table": host.placement().version }))
}

/// Reserves the number of a node to come, and tells where its counters are to begin: where this node's have come to.
fn expect(host: &MemberHost, engine: &dyn Engine, question: &Value) -> Result<Value, String> {
    let address = question["address"].as_str().ok_or("the question has no address")?;
    let (reserved, number) = mpsc::channel();
    host.expect(
        address.to_string(),
        Box::new(move |result| {
            let _ = reserved.send(result);
        }),
    );
    let node = number.recv().map_err(|_| "the node is shutting down".to_string())?;
    let node = node.map_err(|why| why.reason.into_owned())?;
    let counter = |name: &[u8]| {
        let row = get(engine, Key::new(Table::System, 0, name)).map_err(|why| why.to_string())?;
        let row = row.ok_or("a counter is missing; run kestrel fsck")?;
        decode_ceiling(&row).map_err(|why| why.to_string())
    };
    let (inodes, objects) = (counter(INODES)?, counter(OBJECTS)?);
    let table = to_hex(&host.placement().encode());
    Ok(json!({ "node": node, "table": table, "inodes": inodes, "objects": objects }))
}
