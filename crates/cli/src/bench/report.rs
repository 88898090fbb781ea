//! The table, or the JSON, that a benchmark prints.

use std::path::Path;

use serde_json::{Value, json};

use super::BenchArgs;
use super::step::Outcome;

/// One row: a step and what came out.
#[derive(Debug)]
pub struct ReportRow {
    phase: String,
    op: String,
    count: u64,
    seconds: f64,
    bytes: u64,
    /// p50, p95, p99, p99.9, max and mean, nanoseconds.
    latency_ns: [u64; 6],
    machine_us: u64,
    process_us: u64,
    cut: bool,
}

const PERCENTILES: [f64; 4] = [0.5, 0.95, 0.99, 0.999];

impl ReportRow {
    /// A row of a step that used `machine_us` of processor time on the whole machine.
    pub fn new(phase: &str, op: &str, done: &Outcome, machine_us: u64) -> Self {
        let [a, b, c, d] = PERCENTILES.map(|part| done.latency.percentile(part));
        Self {
            phase: phase.to_string(),
            op: op.to_string(),
            count: done.items,
            seconds: done.seconds(),
            bytes: done.bytes,
            latency_ns: [a, b, c, d, done.latency.max(), done.latency.mean() as u64],
            machine_us,
            process_us: done.process_us,
            cut: done.cut,
        }
    }

    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.count as f64 / self.seconds } else { 0.0 }
    }

    fn megabytes_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / 1e6 / self.seconds } else { 0.0 }
    }

    fn each(&self, us: u64) -> f64 {
        if self.count > 0 { us as f64 / self.count as f64 } else { 0.0 }
    }

    fn json(&self) -> Value {
        let us = self.latency_ns.map(|ns| ns as f64 / 1000.0);
        json!({
            "phase": self.phase, "op": self.op, "count": self.count, "seconds": self.seconds,
            "per_second": self.rate(), "bytes": self.bytes,
            "megabytes_per_second": self.megabytes_per_second(),
            "latency_us": { "p50": us[0], "p95": us[1], "p99": us[2], "p99_9": us[3], "max": us[4],
                "mean": us[5] },
            "cpu_us_per_op_machine": self.each(self.machine_us),
            "cpu_us_per_op_process": self.each(self.process_us),
            "cut_by_time_limit": self.cut,
        })
    }

    fn text(&self) -> String {
        let data = if self.bytes > 0 {
            format!("{:.1}", self.megabytes_per_second())
        } else {
            String::new()
        };
        let [p50, p95, p99, _, max, _] = self.latency_ns.map(micros);
        format!(
            "{:<12} {:<22} {:>9} {:>10.0} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8.1} {:>8.1}{}",
            self.phase,
            self.op,
            self.count,
            self.rate(),
            data,
            p50,
            p95,
            p99,
            max,
            self.each(self.machine_us),
            self.each(self.process_us),
            if self.cut { "  cut by --seconds-max" } else { "" }
        )
    }
}

/// Microseconds with as many digits as make sense.
fn micros(ns: u64) -> String {
    let us = ns as f64 / 1000.0;
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

/// What is printed: rows as they come for people, one document at the end for programs.
#[derive(Debug)]
pub struct Report {
    setting: Value,
    lines: Vec<ReportRow>,
}

impl Report {
    /// A report on `place`.
    pub fn new(args: &BenchArgs, place: &Path) -> Self {
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let (fs_type, source) = mount_of(place);
        let setting = json!({
            "directory": place, "file_system": fs_type, "source": source, "kernel": kernel.trim(),
            "cpus": cpus,
            "processes": args.processes, "threads": args.threads, "files": args.files,
            "fsync": args.fsync,
            "depth": args.depth, "warm": args.warm, "seed": args.seed,
            "large_size": args.large_size,
            "block": args.block, "random_block": args.random_block,
        });
        if !args.json {
            println!(
                "{} ({fs_type}): {} processes x {} threads, {} files each{}, {cpus} CPUs, Linux {}",
                place.display(),
                args.processes,
                args.threads,
                args.files,
                if args.fsync { ", fsync" } else { "" },
                kernel.trim()
            );
            println!(
                "{:<12} {:<22} {:>9} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
                "", "", "", "", "", "latency", "µs", "", "", "CPU µs/", "op"
            );
            println!(
                "{:<12} {:<22} {:>9} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
                "phase",
                "operation",
                "count",
                "per s",
                "MB/s",
                "p50",
                "p95",
                "p99",
                "max",
                "machine",
                "bench"
            );
        }
        Self { setting, lines: Vec::new() }
    }

    /// Takes a row in, and prints it at once for people.
    pub fn add(&mut self, line: ReportRow, json: bool) {
        if !json {
            println!("{}", line.text());
        }
        self.lines.push(line);
    }

    /// Prints what is left to print.
    pub fn end(self, json: bool) {
        if json {
            let results: Vec<Value> = self.lines.iter().map(ReportRow::json).collect();
            println!(
                "{:#}",
                json!({ "kestrel_bench": 1, "setting": self.setting, "results": results })
            );
        }
    }
}

/// Type and source of the file system a path lies on, from `/proc/self/mountinfo`: the longest
/// mount point above it, the last one mounted there.
fn mount_of(path: &Path) -> (String, String) {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut best = (0, ("unknown".to_string(), String::new()));
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        let point = point.replace("\\040", " ");
        if path.starts_with(&point) && point.len() >= best.0 {
            let mut field = || right.next().unwrap_or_default().to_string();
            best = (point.len(), (field(), field()));
        }
    }
    best.1
}
