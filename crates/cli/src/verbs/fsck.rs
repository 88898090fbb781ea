//! `kestrel fsck`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `fsck/cluster.rs` | the check over the directories of all nodes |
//! | `fsck/served.rs` | the check of a volume that several nodes serve |
//! | `fsck/salvage.rs` | `kestrel fsck --salvage` |

mod cluster;
mod salvage;
mod served;

use clap::Args;
use kestrel_admin::check::{self, Options, ReadData, Totals, check};
use kestrel_admin::finding::{Finding, Fix};
use kestrel_admin::repair::{RepairError, repair};
use kestrel_blockstore::store::BlockStore;
use kestrel_client::remote::RemoteUrl;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::fsck::{finding_event, readers, summary};
use kestrel_daemon::progress_stream::ProgressStream;
use kestrel_daemon::units::{bytes, count};
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use serde_json::{Value, json};

use super::{Target, open, print_json};
use crate::args::store::StoreArgs;
use crate::at_rest;
use crate::progress::{Progress, shown};

/// Check a volume, mounted or not, and repair it if asked.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel fsck /data/vol
  kestrel fsck /data/vol --data --json
  kestrel fsck /data/vol --repair
  kestrel fsck kestrel://meta1/photos
  kestrel fsck /data/node1 /data/node2 /data/node3
  kestrel fsck /data/node1 /data/node2 /data/node3 --repair
  kestrel fsck /data/vol --salvage /data/recovered

Changes nothing without --repair. A mounted volume is checked while it is used, on a consistent copy
of its metadata that needs as much room in the volume's directory as they do; --repair needs the
volume unmounted. What cannot be put back where it belongs goes to /lost+found. Of a volume that
several nodes share, the nodes are checked together, and repaired when none of them runs; a repair
that was cut short is finished by the next.

--salvage is for a volume that cannot be opened because its metadata is damaged: it makes a new
volume, in a directory that is missing or empty, from every record that is intact, repairs it, and
lists by path what could not be recovered. Nothing of the old volume is changed. Objects in its
directory get a second name in the new one; objects elsewhere are shared, so use only one of the two
from then on. Exit code 0: nothing is damaged (any more); 1: something is, or the check failed; 2:
wrong usage.")]
pub struct FsckArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME
    pub volume: String,
    /// Of a cluster with no node running: the directories of all other nodes
    #[arg(value_name = "NODE")]
    pub others: Vec<String>,
    /// Read all file data and verify its checksums
    #[arg(long)]
    pub data: bool,
    /// Repair what can be repaired without guessing
    #[arg(long)]
    pub repair: bool,
    /// Recover what is intact of a damaged volume into a new one, in this directory
    #[arg(long, value_name = "NEW", conflicts_with = "repair")]
    pub salvage: Option<String>,
    /// Findings printed at most; all are counted
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub limit: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Findings and repairs as they are printed.
struct Printer {
    limit: usize,
    json: bool,
    findings: Vec<Value>,
    repairs: Vec<Value>,
    lost: Vec<Value>,
}

impl Printer {
    fn event(&mut self, event: &Value) {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or("?").to_string();
        if let Some(finding) = event.get("finding").filter(|_| self.findings.len() < self.limit) {
            if !self.json {
                let repair = if finding["repairable"] == true { "; repairable" } else { "" };
                let [severity, kind, path, detail] =
                    ["severity", "kind", "path", "detail"].map(|name| text(finding, name));
                println!("{severity}: {kind}: {path}: {detail}{repair}");
            }
            self.findings.push(finding.clone());
        }
        if let Some(lost) = event.get("lost") {
            if !self.json {
                let [path, detail, place] =
                    ["path", "detail", "place"].map(|name| text(lost, name));
                println!("lost: {path}: {detail} ({place})");
            }
            self.lost.push(lost.clone());
        }
        if let Some(repair) = event.get("repaired").filter(|_| self.repairs.len() < self.limit) {
            if !self.json {
                let [kind, path, detail, action] =
                    ["kind", "path", "detail", "action"].map(|name| text(repair, name));
                println!("repaired: {kind}: {path}: {detail}: {action}");
            }
            self.repairs.push(repair.clone());
        }
    }
}

fn repair_event(finding: &Finding, fix: &Fix) -> Value {
    json!({ "repaired": {
        "kind": finding.kind.name(), "path": finding.path, "detail": finding.detail,
        "action": fix.says,
    } })
}

/// Checks, and repairs.
pub fn run(args: &FsckArgs) -> Result<ExitStatus, Failure> {
    let target = Target::of("fsck", &args.volume, args.store.credentials.as_deref())?;
    if args.repair && matches!(target, Target::Served(_)) {
        return Err(Failure::usage(
            "fsck: --repair needs the volume itself: stop the server and run it there, on the \
             volume's directory, or on those of all its \
             nodes",
        ));
    }
    if !args.others.is_empty() && matches!(target, Target::Served(_)) {
        return Err(Failure::usage(
            "fsck: a URL stands alone: all nodes of a volume that is served are asked; directories \
             are for one at rest",
        ));
    }
    let mut printer = Printer {
        limit: args.limit,
        json: args.json,
        findings: Vec::new(),
        repairs: Vec::new(),
        lost: Vec::new(),
    };
    let mut progress = Progress::new();
    let fail = |why: &dyn std::fmt::Display| Failure::new("fsck", format!("{target}: {why}"));
    let mut tell = |event: &Value| {
        shown(&mut progress, event, &mut |event| printer.event(event));
        true
    };
    if args.salvage.is_some() && (matches!(target, Target::Served(_)) || !args.others.is_empty()) {
        return Err(Failure::usage(
            "fsck: --salvage works on the directory of one volume or one node, on the machine that \
             has it and at rest",
        ));
    }
    if let Some(new) = &args.salvage {
        let mut done = salvage::run(args, new, &ProgressStream::new(&mut tell))?;
        drop(progress);
        if args.json {
            done["losses"] = printer.lost.into();
            done["findings"] = printer.findings.into();
            done["repairs"] = printer.repairs.into();
            print_json(&done);
        } else {
            salvage::print(&done);
            if done["is_node"] != true {
                print_summary(args, &done, &printer.findings);
            }
        }
        return Ok(if done["clean"] == true { ExitStatus::Good } else { ExitStatus::Bad });
    }
    let of_nodes = match &target {
        Target::Served(_) => served::check(args, &ProgressStream::new(&mut tell))?,
        Target::Here(_) if at_rest::is_meant("fsck", &args.volume, &args.others) => {
            Some(cluster::at_rest(args, &ProgressStream::new(&mut tell))?)
        }
        Target::Here(_) => None,
    };
    // A repair does not ask: opening the volume says which process has it mounted.
    let asked = if args.repair || of_nodes.is_some() {
        of_nodes
    } else {
        let question = json!({ "verb": "fsck", "data": args.data, "limit": args.limit });
        target.ask("fsck", &question, None, &mut |event| {
            tell(&event);
        })?
    };
    let mut done = match asked {
        Some(done) => done,
        None => whole_at_rest(args, &ProgressStream::new(&mut tell), &fail)?,
    };
    drop(progress);
    if args.json {
        done["findings"] = printer.findings.into();
        done["repairs"] = printer.repairs.into();
        print_json(&done);
    } else {
        print_summary(args, &done, &printer.findings);
    }
    Ok(if done["clean"] == true { ExitStatus::Good } else { ExitStatus::Bad })
}

/// Checks and repairs a volume that nobody serves.
fn whole_at_rest(
    args: &FsckArgs,
    feed: &ProgressStream<'_>,
    fail: &dyn Fn(&dyn std::fmt::Display) -> Failure,
) -> Result<Value, Failure> {
    let volume = open("fsck", &args.volume, &args.store)?;
    if args.repair {
        let done = mend(args, &*volume.store, feed, &mut |options, now, did, left, progress| {
            repair(&*volume.engine, options, now, did, left, progress)
        });
        return done.map_err(|why| fail(&why));
    }
    let mut options = Options { store: Some(&*volume.store), ..Options::default() };
    if args.data {
        options.data = Some(ReadData { threads: readers(&*volume.store), go_on: &|| true });
    }
    let mut report = |finding: Finding| feed.event(&finding_event(&finding));
    let mut tick = |what: &'static str, done: u64| feed.progress(what, done);
    let done = check(&*volume.engine, &mut options, &mut report, &mut tick);
    done.map(|totals| summary(&totals, 0)).map_err(|why| fail(&why))
}

/// A repair of a volume: gets how to check, the time, and callbacks for what was repaired, what is
/// left, and how far it is.
type Mend<'a> = dyn FnMut(
        &mut Options<'_>,
        Nanos,
        &mut dyn FnMut(&Finding, &Fix),
        &mut dyn FnMut(Finding),
        check::Progress<'_>,
    ) -> Result<(Totals, u64), RepairError>
    + 'a;

/// Repairs, and tells what was repaired before what is left.
fn mend(
    args: &FsckArgs,
    store: &dyn BlockStore,
    feed: &ProgressStream<'_>,
    mend: &mut Mend<'_>,
) -> Result<Value, RepairError> {
    let mut options = Options { store: Some(store), ..Options::default() };
    if args.data {
        options.data = Some(ReadData { threads: readers(store), go_on: &|| true });
    }
    let mut repairs = Vec::new();
    let mut note = |finding: &Finding, fix: &Fix| {
        if repairs.len() < args.limit {
            repairs.push(repair_event(finding, fix));
        }
    };
    let mut left = Vec::new();
    let mut keep = |finding| left.push(finding);
    let mut tick = |what: &'static str, done: u64| feed.progress(what, done);
    let done = mend(&mut options, SystemClock.now(), &mut note, &mut keep, &mut tick);
    repairs.iter().for_each(|repair| feed.event(repair));
    left.iter().for_each(|finding| feed.event(&finding_event(finding)));
    done.map(|(totals, repaired)| summary(&totals, repaired))
}

fn print_summary(args: &FsckArgs, done: &Value, findings: &[Value]) {
    let number = |name: &str| done[name].as_u64().unwrap_or(0);
    println!(
        "{} files, {} directories, {} in {} objects of {}",
        count(number("files")),
        count(number("directories")),
        bytes(number("bytes")),
        count(number("stored_objects")),
        bytes(number("stored_bytes"))
    );
    // At rest each of them is a finding.
    if number("orphans") > 0 && done["counts"]["open-unlinked"].is_null() {
        let (orphans, size) = (count(number("orphans")), bytes(number("orphan_bytes")));
        println!("removed, but still open: {orphans} files of {size}");
    }
    if args.data {
        println!("{} of stored data verified", bytes(number("verified_bytes")));
        if number("archived_bytes") > 0 {
            let archived = bytes(number("archived_bytes"));
            println!(
                "{archived} in archives not verified; `kestrel tier restore` makes them readable"
            );
        }
    }
    for (kind, found) in done["counts"].as_object().into_iter().flatten() {
        println!("{:>12} {kind}", count(found.as_u64().unwrap_or(0)));
    }
    if number("repaired") > 0 {
        println!("{} repairs", count(number("repaired")));
    }
    println!("{}", outcome(args, number("errors"), findings));
}

/// What came of it, and what to do next. `findings` are those that were listed.
fn outcome(args: &FsckArgs, errors: u64, findings: &[Value]) -> String {
    let number = match errors {
        0 => return "clean".into(),
        1 => "1 error".into(),
        errors => format!("{} errors", count(errors)),
    };
    let all_listed = findings.len() as u64 >= errors;
    if args.repair {
        format!("{number} left; restore what is concerned from a backup")
    } else if all_listed && findings.iter().all(|finding| finding["repairable"] != true) {
        format!("{number}, which --repair cannot repair; restore what is concerned from a backup")
    } else if RemoteUrl::is_one(&args.volume) {
        format!(
            "{number}; stop the servers, then run `kestrel fsck --repair DIR` where the volume is"
        )
    } else {
        let volumes = std::iter::once(&*args.volume).chain(args.others.iter().map(|node| &**node));
        let volumes = volumes.collect::<Vec<_>>().join(" ");
        format!(
            "{number}; `kestrel fsck --repair {volumes}` repairs what it can, with nothing mounted"
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn args(words: &[&str]) -> FsckArgs {
        let command = FsckArgs::augment_args(Command::new("fsck"));
        let matches = command.get_matches_from([&["fsck"], words].concat());
        FsckArgs::from_arg_matches(&matches).unwrap()
    }

    /// The last line names the command that helps, and none that cannot.
    #[test]
    fn next_command() {
        let [good, bad] = [true, false].map(|repairable| json!({ "repairable": repairable }));
        let of =
            |words: &[&str], errors, findings: &[Value]| outcome(&args(words), errors, findings);
        assert_eq!(of(&["v"], 0, &[]), "clean");
        assert!(
            of(&["v", "--data"], 1, std::slice::from_ref(&bad)).contains("cannot repair; restore")
        );
        assert!(
            of(&["v", "w"], 2, &[bad.clone(), good])
                .starts_with("2 errors; `kestrel fsck --repair v w` ")
        );
        assert!(of(&["v"], 5, &[bad]).contains("`kestrel fsck --repair v`"));
        assert!(of(&["kestrel://a/v"], 5, &[]).contains("stop the servers"));
        assert!(of(&["v", "--repair"], 1, &[]).starts_with("1 error left; "));
    }
}
