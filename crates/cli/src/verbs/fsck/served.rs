//! The check of a volume that several nodes serve: their rows are fetched and checked here.
//!
//! Nothing keeps the nodes from changing the volume meanwhile, so what is found may be something that was under way. What is
//! wrong is looked at twice: only what both looks find is told.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kestrel_admin::cut::CutError;
use kestrel_admin::gather::{Gathered, Gathering};
use kestrel_client::remote::Panel;
use kestrel_client::storage::Storage;
use serde_json::{Value, json};

use super::{FsckArgs, several};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::nodes::rows::Pages;

/// Findings kept of one look; of more, not all are told.
const FINDINGS_MAX: usize = 100_000;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(2);

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("fsck", why)
}

fn gather(panel: &Panel, feed: &Feed<'_>) -> Result<Gathered, Failure> {
    let scratch = std::env::temp_dir();
    let mut gathering = Gathering::new(&scratch, 0, &panel.placement).map_err(failed)?;
    for node in panel.nodes() {
        let rows = Pages::all(panel, node).map(|row| row.map_err(CutError::Rows));
        let mut progress = |done| feed.progress("fetching metadata", done);
        gathering.add(node, rows, &mut progress).map_err(failed)?;
    }
    gathering.finish().map_err(failed)
}

/// One look at the whole: what it came to, and what it found.
fn look(
    panel: &Panel,
    storage: &Storage,
    data: bool,
    feed: &Feed<'_>,
) -> Result<(Value, Vec<Value>), Failure> {
    let mut found = Vec::new();
    let mut keep = |event: &Value| {
        match event.get("finding") {
            Some(_) if found.len() < FINDINGS_MAX => found.push(event.clone()),
            Some(_) => {}
            None => feed.event(event),
        }
        true
    };
    let whole = gather(panel, feed)?;
    let done = several::judge(&whole, &*storage.store, data, &Feed::new(&mut keep)).map_err(failed)?;
    Ok((done, found))
}

/// What both looks found.
fn agree(first: &[Value], second: Vec<Value>) -> Vec<Value> {
    let place = |event: &Value| (event["finding"]["kind"].to_string(), event["finding"]["path"].to_string());
    let seen: HashSet<_> = first.iter().map(place).collect();
    second.into_iter().filter(|event| seen.contains(&place(event))).collect()
}

/// The summary, with the counts of what is left of the findings.
fn counted(mut done: Value, found: &[Value]) -> Value {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut errors = 0;
    for finding in found.iter().map(|event| &event["finding"]) {
        *counts.entry(finding["kind"].as_str().unwrap_or_default()).or_default() += 1;
        errors += u64::from(finding["severity"] == "error");
    }
    done["counts"] = json!(counts);
    done["errors"] = errors.into();
    done["clean"] = (errors == 0).into();
    done
}

/// Checks the volume that several nodes serve at a URL; `None` if it has only one.
pub fn check(args: &FsckArgs, feed: &Feed<'_>) -> Result<Option<Value>, Failure> {
    let who = crate::serve::who("kestrel fsck");
    let Some(panel) = Panel::connect(&args.volume, &who).map_err(failed)? else { return Ok(None) };
    let storage = panel.open_storage(&args.store.options("fsck")?).map_err(failed)?;
    let (mut done, mut found) = look(&panel, &storage, args.data, feed)?;
    if done["clean"] != true {
        std::thread::sleep(PAUSE);
        let (again, second) = look(&panel, &storage, args.data, feed)?;
        found = agree(&found, second);
        done = counted(again, &found);
    }
    found.iter().for_each(|event| feed.event(event));
    Ok(Some(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(kind: &str, path: &str, severity: &str) -> Value {
        json!({ "finding": { "kind": kind, "path": path, "severity": severity, "detail": "now" } })
    }

    #[test]
    fn only_what_both_looks_find_is_told_and_counted() {
        let first = [finding("a", "/x", "error"), finding("b", "/y", "error"), finding("c", "/z", "info")];
        let second =
            vec![finding("a", "/x", "error"), finding("b", "/other", "error"), finding("c", "/z", "info")];
        let both = agree(&first, second);
        let done = counted(json!({ "clean": false, "errors": 2, "files": 7 }), &both);
        assert_eq!((both.len(), &done["errors"], &done["files"]), (2, &json!(1), &json!(7)));
        assert_eq!((&done["counts"], &done["clean"]), (&json!({ "a": 1, "c": 1 }), &json!(false)));
        assert_eq!(counted(done, &[])["clean"], true);
    }
}
