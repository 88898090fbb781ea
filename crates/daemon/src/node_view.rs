//! Questions to a process that serves one of several nodes: it has a part of the volume, so it
//! tells its part, and refuses what can only be done to the whole.
//!
//! | file | what it has |
//! | --- | --- |
//! | `node_view/rows.rs` | rows of a node for a process that merges those of all nodes |

pub mod rows;

use kestrel_client::descriptor::ClusterSection;
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::Value;

use super::serving::Serving;
use crate::endpoints::ControlEndpoint;
use crate::jobs::settings;
use crate::jobs::status::describe_part;
use crate::metrics::to_json;
use crate::progress_stream::ProgressStream;

/// Answers one question. What tells of rows, or changes them, is not done while another process may
/// serve this node (`NodeHost::may_answer`), and not answered if that has come to be so
/// meanwhile: a process that puts rows of all nodes together would have those of two moments.
///
/// # Errors
/// In words.
pub fn answer(
    serving: &Serving,
    section: &ClusterSection,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    if !is_of_rows(question["verb"].as_str().unwrap_or_default()) {
        return answer_now(serving, section, question, tell);
    }
    in_touch(serving, section)?;
    let answer = answer_now(serving, section, question, tell)?;
    in_touch(serving, section).map(|()| answer)
}

/// Whether a question is about rows; the others are also for finding out why a node answers nobody.
fn is_of_rows(verb: &str) -> bool {
    matches!(verb, "rows" | "sums" | "cut" | "entries" | "reap" | "coding")
}

fn in_touch(serving: &Serving, section: &ClusterSection) -> Result<(), String> {
    match serving.volume.fs.member().is_none_or(|host| host.may_answer()) {
        true => Ok(()),
        false => Err(format!(
            "node {} is not in touch with most of the others, or with its metadata, so another \
             process may serve in its place: ask again",
            section.node
        )),
    }
}

fn answer_now(
    serving: &Serving,
    section: &ClusterSection,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    match question["verb"].as_str() {
        Some("status") => status(serving, section),
        Some("stats") => Ok(to_json(&serving.snapshot())),
        Some("rows") => rows::page(&*serving.volume.engine, question),
        Some("table" | "whereabouts" | "entries" | "change" | "expect" | "forget") => {
            super::map::answer(serving, question, tell)
        }
        Some("unheard" | "stand-in") => {
            super::failover::answer(serving.volume.fs.member(), serving.succession.get(), question)
        }
        Some("sums") => rows::sums(&*serving.volume.engine, question),
        Some("cut") => serving.cutting.answer(&serving.volume, question),
        Some("reap") => schedule(serving, question),
        Some("backup") => {
            serving.keeper.answer(&serving.volume, question, &ProgressStream::new(tell))
        }
        Some("coding") => Ok(settings::describe(&serving.volume.descriptor)),
        Some(verb @ ("fsck" | "info" | "du" | "dump" | "gc" | "compact" | "tier")) => Err(format!(
            "node {} has only a part of the volume; use `kestrel {verb}` with {}",
            section.node,
            url(serving, section)
        )),
        Some(verb @ ("warmup" | "whole")) => Err(format!(
            "node {} has only a part of the volume, and {verb} does not work on a volume that \
             several nodes share yet",
            section.node
        )),
        Some(other) => Err(format!(
            "the serving process does not know {other:?}; it may be older than this program"
        )),
        None => Err("the question has no verb".into()),
    }
}

fn url(serving: &Serving, section: &ClusterSection) -> String {
    section.url(&serving.volume.descriptor.settings.name).unwrap_or_default()
}

fn status(serving: &Serving, section: &ClusterSection) -> Result<Value, String> {
    let mut out = describe_part(
        &serving.volume.dir,
        &serving.volume.descriptor,
        section,
        &*serving.volume.engine,
    )
    .map_err(|why| why.to_string())?;
    serving.describe_process(&mut out);
    super::map::describe(serving, &mut out);
    let placement = serving.volume.fs.member().map(|host| host.placement());
    out["peers"] =
        serving.node.as_ref().zip(placement).map(|(node, placement)| node.peers(&placement)).into();
    Ok(out)
}

/// Schedules objects that somebody found in no row of any node. All nodes are asked again before
/// one is deleted.
fn schedule(serving: &Serving, question: &Value) -> Result<Value, String> {
    let objects = question["objects"].as_array().ok_or("the question names no objects")?;
    let objects: Vec<u64> = objects.iter().filter_map(Value::as_u64).collect();
    let member = serving.volume.fs.member().ok_or("the process is no node of a cluster")?;
    member.node().schedule(&objects, SystemClock.now()).map_err(|why| why.to_string())?;
    Ok(Value::Null)
}
