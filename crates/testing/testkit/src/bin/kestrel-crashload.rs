//! A workload with an outside log, and the judgement after a crash. See `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use kestrel_testkit::args::Args;
use kestrel_testkit::crash::log::Log;
use kestrel_testkit::crash::observe::observe;
use kestrel_testkit::crash::run::{Load, run};
use kestrel_testkit::crash::verify::{CrashReport, Durability, verify};
use kestrel_testkit::{errno, json};

const HELP: &str = "\
kestrel-crashload: a workload that logs what was acknowledged, and what must be left of it after a \
crash

usage: kestrel-crashload run    --dir DIR --log FILE [--threads N] [--seed S] [--ops N] [--seconds \
    N] [--disk DIR]
                             [--json]
       kestrel-crashload verify --dir DIR --log FILE --mode MODE [--within-ms N] [--json]

run     DIR is an empty directory of the file system under test, FILE lies on another one. Ends \
    after
        --ops operations a thread (default: no limit) or --seconds (default 10), or when the mount \
            dies or is full.
        --disk DIR     on the disk that is shut down during the run: what is said after that is \
            not heard
        exit: 0, or 1 when a call failed or a read gave wrong bytes while the mount was alive
verify  MODE: process  every acknowledged operation is there, the one in flight wholly or not at all
              commit   the same, after power loss of a volume in mode commit
              power    what is there is a prefix of what was acknowledged, at least up to the last \
                  sync
        --within-ms N  with power: what was acknowledged more than N ms before the end must be \
            there too
        exit: 0 promise kept, 1 broken, 2 it could not be told

examples:
  kestrel-crashload run --dir /mnt/k/load --log /tmp/load.log --threads 8 --seconds 60
  kestrel-crashload verify --dir /mnt/k/load --log /tmp/load.log --mode process
";

const VALUES: &[&str] =
    &["dir", "log", "threads", "seed", "ops", "seconds", "ms", "disk", "mode", "within-ms"];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let done = match verb.as_str() {
        "" | "help" | "--help" => {
            print!("{HELP}");
            Ok(0)
        }
        "run" => Args::parse(words, VALUES, &["json"]).and_then(|args| do_run(&args)),
        "verify" => Args::parse(words, VALUES, &["json"]).and_then(|args| do_verify(&args)),
        other => Err(format!("unknown command: {other} (see --help)")),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(what) => {
            eprintln!("kestrel-crashload: {what}");
            ExitCode::from(2)
        }
    }
}

fn do_run(args: &Args) -> Result<u8, String> {
    let load = Load {
        dir: PathBuf::from(args.need("dir")?),
        log: PathBuf::from(args.need("log")?),
        threads: args.number("threads", 8)?,
        seed: args.number("seed", 1)?,
        ops: args.number("ops", u64::MAX)?,
        ms: args.number("ms", args.number("seconds", 10)?.saturating_mul(1000))?,
        disk: args.value("disk").map(PathBuf::from),
    };
    let report = run(&load)?;
    let ended = report.ended_by.map_or_else(|| "done".to_string(), errno::name);
    if args.flag("json") {
        println!(
            "{{\"acknowledged\":{},\"ended_by\":{},\"wrong\":{}}}",
            report.acked,
            json::text(&ended),
            json::texts(&report.wrong)
        );
    } else {
        report.wrong.iter().for_each(|what| println!("FAIL {what}"));
        println!("{} operations acknowledged, ended by: {ended}", report.acked);
    }
    Ok(u8::from(!report.wrong.is_empty()))
}

fn do_verify(args: &Args) -> Result<u8, String> {
    let within_ms = args.value("within-ms").map(|_| args.number("within-ms", 0)).transpose()?;
    let durability = match args.need("mode")? {
        "process" | "commit" => Durability::Acknowledged,
        "power" => Durability::Synced { within_ms },
        other => return Err(format!("--mode: process, commit or power, not {other}")),
    };
    let file = args.need("log")?;
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let log = Log::parse(&text).map_err(|e| format!("{file}: {e}"))?;
    let tree = observe(&PathBuf::from(args.need("dir")?))?;
    let crash_report = verify(&log, &tree, durability);
    report(args, &crash_report);
    Ok(u8::from(!crash_report.broken.is_empty()))
}

fn report(args: &Args, crash_report: &CrashReport) {
    if args.flag("json") {
        println!(
            "{{\"acknowledged\":{},\"lost_allowed\":{},\"in_flight_done\":{},\"broken\":{}}}",
            crash_report.acknowledged,
            crash_report.lost_allowed,
            crash_report.in_flight_done,
            json::texts(&crash_report.broken)
        );
        return;
    }
    crash_report.broken.iter().for_each(|what| println!("FAIL {what}"));
    println!(
        "{} {} acknowledged operations, {} of them lost as allowed, {} in flight happened",
        if crash_report.broken.is_empty() { "ok" } else { "FAIL" },
        crash_report.acknowledged,
        crash_report.lost_allowed,
        crash_report.in_flight_done
    );
}
