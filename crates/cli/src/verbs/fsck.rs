//! `kestrel fsck`.

use clap::Args;
use kestrel_admin::check::{Options, Totals, check};
use kestrel_admin::finding::{Finding, Fix, Severity};
use kestrel_admin::repair::repair;
use kestrel_data::reader::{Reader, ReaderConfig};
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::range::Range;
use serde_json::{Value, json};

use super::{locate, open, print_json};
use crate::failure::{Failure, Verdict};
use crate::progress::Progress;
use crate::units::{bytes, count};

/// Check a volume that is not mounted, and repair it if asked.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel fsck /data/vol
  kestrel fsck /data/vol --data --json
  kestrel fsck /data/vol --repair

Changes nothing without --repair. What cannot be put back where it belongs goes to /lost+found. Exit code 0: nothing is
damaged (any more); 1: something is, or the check failed; 2: wrong usage.")]
pub struct FsckArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// Read all file data and verify its checksums
    #[arg(long)]
    pub data: bool,
    /// Repair what can be repaired without guessing
    #[arg(long)]
    pub repair: bool,
    /// Findings printed at most; all are counted
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub limit: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Findings and repairs as they are printed.
struct Printer {
    limit: usize,
    json: bool,
    findings: Vec<Value>,
    repairs: Vec<Value>,
}

impl Printer {
    fn finding(&mut self, finding: &Finding) {
        if self.findings.len() >= self.limit {
            return;
        }
        let repairable = finding.fix.is_some();
        let severity = if finding.kind.severity() == Severity::Error { "error" } else { "info" };
        if !self.json {
            let repair = if repairable { "; repairable" } else { "" };
            println!("{severity}: {}: {}: {}{repair}", finding.kind.name(), finding.path, finding.detail);
        }
        self.findings.push(json!({
            "kind": finding.kind.name(), "severity": severity, "path": finding.path, "detail": finding.detail,
            "repairable": repairable,
        }));
    }

    fn repaired(&mut self, finding: &Finding, fix: &Fix) {
        if self.repairs.len() >= self.limit {
            return;
        }
        if !self.json {
            println!("repaired: {}: {}: {}: {}", finding.kind.name(), finding.path, finding.detail, fix.says);
        }
        self.repairs.push(json!({
            "kind": finding.kind.name(), "path": finding.path, "detail": finding.detail, "action": fix.says,
        }));
    }
}

/// Checks, and repairs.
pub fn run(args: &FsckArgs) -> Result<Verdict, Failure> {
    let dir = locate("fsck", &args.volume)?;
    let volume = open("fsck", &args.volume)?;
    let reader =
        Reader::new(volume.store.clone(), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
    let mut buffer = Vec::new();
    let mut verify = |range: Range| {
        buffer.resize(range.len as usize, 0);
        reader.read(range, 0, &mut buffer)
    };
    let mut options = Options { store: Some(&*volume.store), ..Options::default() };
    if args.data {
        options.verify = Some(&mut verify);
    }
    let mut printer =
        Printer { limit: args.limit, json: args.json, findings: Vec::new(), repairs: Vec::new() };
    let mut progress = Progress::new();
    let mut tick = |what: &'static str, done: u64| progress.tick(what, done);
    let fail = |why: &dyn std::fmt::Display| Failure::new("fsck", format!("{}: {why}", dir.display()));
    let (totals, repaired) = if args.repair {
        let mut repairs = Vec::new();
        let mut note = |finding: &Finding, fix: &Fix| {
            if repairs.len() < args.limit {
                repairs.push((finding.clone(), fix.clone()));
            }
        };
        let now = SystemClock.now();
        let mut left = Vec::new();
        let done = repair(
            &*volume.engine,
            &mut options,
            now,
            &mut note,
            &mut |finding| left.push(finding),
            &mut tick,
        );
        repairs.iter().for_each(|(finding, fix)| printer.repaired(finding, fix));
        left.iter().for_each(|finding| printer.finding(finding));
        done.map_err(|why| fail(&why))?
    } else {
        let done = check(&*volume.engine, &mut options, &mut |finding| printer.finding(&finding), &mut tick);
        (done.map_err(|why| fail(&why))?, 0)
    };
    drop(progress);
    if args.json {
        print_json(&summary(&totals, repaired, &printer));
    } else {
        print_summary(args, &totals, repaired);
    }
    Ok(if totals.errors() == 0 { Verdict::Good } else { Verdict::Bad })
}

fn summary(totals: &Totals, repaired: u64, printer: &Printer) -> Value {
    let counts: serde_json::Map<String, Value> =
        totals.findings.iter().map(|(kind, count)| (kind.name().to_string(), (*count).into())).collect();
    json!({
        "clean": totals.errors() == 0,
        "errors": totals.errors(),
        "repaired": repaired,
        "files": totals.files,
        "directories": totals.dirs,
        "bytes": totals.bytes,
        "rows": totals.rows,
        "objects": totals.objects,
        "referenced_bytes": totals.referenced_bytes,
        "stored_objects": totals.stored_objects,
        "stored_bytes": totals.stored_bytes,
        "scheduled_objects": totals.scheduled_objects,
        "leaked_objects": totals.leaked_objects,
        "leaked_bytes": totals.leaked_bytes,
        "verified_bytes": totals.verified_bytes,
        "counts": counts,
        "findings": printer.findings,
        "repairs": printer.repairs,
    })
}

fn print_summary(args: &FsckArgs, totals: &Totals, repaired: u64) {
    println!(
        "{} files, {} directories, {} in {} objects of {}",
        count(totals.files),
        count(totals.dirs),
        bytes(totals.bytes),
        count(totals.stored_objects),
        bytes(totals.stored_bytes)
    );
    if args.data {
        println!("{} of stored data verified", bytes(totals.verified_bytes));
    }
    let mut kinds: Vec<_> = totals.findings.iter().collect();
    kinds.sort_unstable();
    for (kind, number) in kinds {
        println!("{:>12} {}", count(*number), kind.name());
    }
    if repaired > 0 {
        println!("{} repairs", count(repaired));
    }
    match totals.errors() {
        0 => println!("clean"),
        errors if args.repair => {
            println!("{} errors are left; restore what they concern from a backup", count(errors))
        }
        errors => println!("{} errors; --repair repairs what can be repaired", count(errors)),
    }
}
