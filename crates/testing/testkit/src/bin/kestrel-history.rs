//! What several clients do at once, judged for linearizability. See `--help`.

use std::fmt::Debug;
use std::path::PathBuf;
use std::process::ExitCode;

use kestrel_testkit::args::Args;
use kestrel_testkit::history::counter::Counter;
use kestrel_testkit::history::linear::{Linearity, check};
use kestrel_testkit::history::run::{Load, Recorded, run};
use kestrel_testkit::history::tree::{Tree, mark_repeated};
use kestrel_testkit::history::{RecordedCall, appends, registers};

const HELP: &str = "\
kestrel-history: threads on one or more mounts of a volume make calls on a few names at once; is \
what they saw linearizable?

usage: kestrel-history run --dir DIR [--dir DIR]... [--threads N] [--ops N] [--seed S] \
    [--overwriting N] [--sharing N]
                           [--pause-us N] [--save FILE] [--strict] [--json]

--dir DIR       the same directory through each mount; thread N works in number N modulo their count
--threads N     threads (default 4)
--ops N         calls of each thread (default 2000)
--seed S        seed of what is called (default 1); what happens at once differs from run to run
--overwriting N calls of 100 that overwrite a file in place or read one that is (default 10)
--sharing N     calls of 100 others that append to a log, read it, or count under a lock (default \
    10)
--pause-us N    longest pause before a call (default 0): spreads the run over faults from outside
--strict        with several --dir, judges also reads of the log that are not the last one
--save FILE     writes the history, one call a line, in the order of beginnings

Judges creat, publish (write and rename), unlink, mkdir, rmdir, rename, stat, open, read and \
    readdir for linearizability, and
overwriting in place for close-to-open. Records that threads append to one log (O_APPEND, no lock) \
    are all in it, once, in the order
of appends that did not overlap, for every later open; additions under flock or F_OFD_SETLKW to \
    numbers in files that stay open are
judged for linearizability. A call that ends with EIO, ETIMEDOUT or ENOTCONN may have happened or \
    not.

exit: 0 all is explained, 1 something is not, 2 it could not be told

examples:
  kestrel-history run --dir /mnt/a/work --dir /mnt/b/work --threads 8 --ops 5000 --seed 7
";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let verb = if words.is_empty() { String::new() } else { words.remove(0) };
    let done = match verb.as_str() {
        "" | "help" | "--help" => {
            print!("{HELP}");
            Ok(0)
        }
        "run" => do_run(words),
        other => Err(format!("unknown command: {other} (see --help)")),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(what) => {
            eprintln!("kestrel-history: {what}");
            ExitCode::from(2)
        }
    }
}

/// Takes `--dir DIR`, which may be there several times, out of the words.
fn take_dirs(words: &mut Vec<String>) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    while let Some(at) = words.iter().position(|word| word == "--dir") {
        words.remove(at);
        if at < words.len() {
            dirs.push(PathBuf::from(words.remove(at)));
        }
    }
    dirs
}

fn do_run(mut words: Vec<String>) -> Result<u8, String> {
    let dirs = take_dirs(&mut words);
    let args = Args::parse(
        words,
        &["threads", "ops", "seed", "overwriting", "sharing", "pause-us", "save"],
        &["json", "strict"],
    )?;
    if dirs.is_empty() {
        return Err("--dir is missing".into());
    }
    let load = Load {
        dirs,
        threads: args.number("threads", 4)?.clamp(1, 32) as usize,
        ops: args.number("ops", 2000)?,
        seed: args.number("seed", 1)?,
        overwriting: args.number("overwriting", 10)?.min(100),
        sharing: args.number("sharing", 10)?.min(100),
        pause_us: args.number("pause-us", 0)?,
    };
    let mut recorded = run(&load)?;
    recorded.tree.sort_by_key(|event| event.begin);
    mark_repeated(&mut recorded.tree);
    if let Some(file) = args.value("save") {
        save(&recorded, file).map_err(|error| format!("cannot write {file}: {error}"))?;
    }
    let unknown = recorded.tree.iter().filter(|event| event.answer.is_none()).count()
        + recorded.log.iter().filter(|event| event.answer.is_none()).count()
        + recorded.counters.iter().flatten().filter(|event| event.answer.is_none()).count();
    let mut wrong = Vec::new();
    let configurations = match check(Tree::default(), &recorded.tree) {
        Linearity::Linearizable { configurations } => configurations,
        Linearity::Violation { event, pending, before } => {
            let mut lines = vec![format!("nothing explains {}", line(&recorded.tree[event]))];
            lines.extend(
                pending
                    .iter()
                    .map(|at| format!("  at the same time: {}", line(&recorded.tree[*at]))),
            );
            let end = recorded.tree[event].end;
            let earlier = recorded.tree[..event].iter().rev().filter(|other| other.end < end);
            lines.extend(earlier.take(12).map(|other| format!("  before: {}", line(other))));
            lines.extend(
                before.iter().map(|state| format!("  state that there may have been: {state:?}")),
            );
            wrong.push(lines.join("\n"));
            0
        }
        Linearity::Unknown => {
            return Err(format!("too many calls without an answer to judge ({unknown})"));
        }
    };
    for (at, events) in recorded.registers.iter().enumerate() {
        for (event, why) in registers::violations(events) {
            let mut lines = vec![format!("r{at}: {why}: {}", line(&events[event]))];
            let mut around: Vec<_> = events.iter().collect();
            around.sort_by_key(|event| event.begin);
            let here = around.partition_point(|other| other.begin <= events[event].begin);
            let around = &around[here.saturating_sub(14)..around.len().min(here + 6)];
            lines.extend(around.iter().map(|other| format!("  around it: {}", line(other))));
            wrong.push(lines.join("\n"));
        }
    }
    wrong.extend(wrong_shared(&recorded, load.dirs.len(), args.flag("strict"))?);
    let shared = recorded.log.len() + recorded.counters.iter().map(Vec::len).sum::<usize>();
    let (calls, overwritten) =
        (recorded.tree.len(), recorded.registers.iter().map(Vec::len).sum::<usize>());
    wrong.iter().for_each(|what| eprintln!("FAIL seed {}: {what}", load.seed));
    if args.flag("json") {
        println!(
            "{{\"calls\":{calls},\"overwriting\":{overwritten},\"sharing\":{shared},\
             \"unknown\":{unknown},\"stale\":{},\"configurations\":{configurations},\"wrong\":{}}}",
            recorded.stale,
            wrong.len()
        );
    } else {
        println!(
            "{calls} calls on names, {overwritten} on overwritten files, {shared} on shared ones; \
             {unknown} without an answer, {} repeated for ESTALE; \
             at most {configurations} explanations at a time: {}",
            recorded.stale,
            if wrong.is_empty() { "linearizable" } else { "NOT LINEARIZABLE" }
        );
    }
    Ok(u8::from(!wrong.is_empty()))
}

/// What is wrong with the log and the counters.
fn wrong_shared(recorded: &Recorded, mounts: usize, strict: bool) -> Result<Vec<String>, String> {
    let log = appends::violations(&recorded.log, mounts, strict);
    let mut wrong: Vec<_> = log
        .iter()
        .map(|(event, why)| format!("log: {why}: {}", line(&recorded.log[*event])))
        .collect();
    for (at, events) in recorded.counters.iter().enumerate() {
        match check(Counter::default(), events) {
            Linearity::Linearizable { .. } => {}
            Linearity::Violation { event, before, .. } => {
                wrong.push(format!(
                    "c{at}: nothing explains {}, after {before:?}",
                    line(&events[event])
                ));
            }
            Linearity::Unknown => {
                return Err("too many additions without an answer to judge".into());
            }
        }
    }
    Ok(wrong)
}

fn line<C: Debug, A: Debug>(event: &RecordedCall<C, A>) -> String {
    let RecordedCall { thread, call, answer, begin, end } = event;
    let answer = answer.as_ref().map_or("no answer".into(), |answer| format!("{answer:?}"));
    format!("{begin:>12} {end:>12} thread {thread}: {call:?} -> {answer}")
}

fn save(recorded: &Recorded, file: &str) -> std::io::Result<()> {
    let mut text = String::new();
    recorded.tree.iter().for_each(|event| text += &(line(event) + "\n"));
    for (at, events) in recorded.registers.iter().enumerate() {
        events.iter().for_each(|event| text += &format!("r{at} {}\n", line(event)));
    }
    recorded.log.iter().for_each(|event| text += &format!("log {}\n", line(event)));
    for (at, events) in recorded.counters.iter().enumerate() {
        events.iter().for_each(|event| text += &format!("c{at} {}\n", line(event)));
    }
    std::fs::write(file, text)
}
