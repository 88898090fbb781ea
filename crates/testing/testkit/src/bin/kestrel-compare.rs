//! Compares two file systems call by call. See `--help`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use kestrel_testkit::args::Args;
use kestrel_testkit::compare::caps::{self, Allowances, CAPABILITIES};
use kestrel_testkit::compare::generate::generate;
use kestrel_testkit::compare::op::Step;
use kestrel_testkit::compare::rehearsal::with_rehearsal;
use kestrel_testkit::compare::session::{self, Finding, RunStats, Scratch, Setup};
use kestrel_testkit::compare::shrink::shrink;
use kestrel_testkit::{json, sys};

const HELP: &str = "\
kestrel-compare: the same random system calls on two directories, every result compared

usage: kestrel-compare --a DIR --b DIR [options]

  --a DIR            a directory of the file system under test
  --b DIR            a directory of the reference (tmpfs, ext4, XFS)
  --elsewhere DIR    the directory of --a through another mount of the same volume: one actor \
      makes, renames, replaces and
                     removes names and changes owners and modes there, call by call between those \
                         of the others
  --seed S           first seed (default 1); the same seed means the same calls
  --ops N            calls of one run (default 10000)
  --workers N        runs side by side, each in a subtree of its own, seeds S, S+1, … (default 1)
  --allow FILE       differences that are allowed, each with a reason
  --walk-every N     compare the whole trees after every N calls (default 1000) and at the end
  --only I,J,K       run these calls of the sequence only (as a shrunk report says)
  --shrink-seconds N time for shrinking a failing sequence (default 120, 0 = do not)
  --list             print the sequence and stop
  --json             report as JSON

Both directories must be empty enough to make new directories in; root is needed (the calls are made
by several users, each locked into its tree with chroot).

exit: 0 no difference, 1 a difference, 2 the comparison could not be made

examples:
  kestrel-compare --a /mnt/kestrel --b /dev/shm --seed 7 --ops 20000
  kestrel-compare --a /mnt/kestrel --b /dev/shm --seed 7 --ops 20000 --only 12,871,872
  kestrel-compare --a /mnt/one --elsewhere /mnt/two --b /dev/shm --seed 7
";

const VALUES: &[&str] = &[
    "a",
    "b",
    "seed",
    "ops",
    "workers",
    "allow",
    "walk-every",
    "only",
    "shrink-seconds",
    "elsewhere",
];
const FLAGS: &[&str] = &["json", "list", "help"];

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1), VALUES, FLAGS).and_then(|args| run(&args)) {
        Ok(code) => ExitCode::from(code),
        Err(what) => {
            eprintln!("kestrel-compare: {what}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<u8, String> {
    if args.flag("help") {
        print!("{HELP}");
        return Ok(0);
    }
    let workers = args.number("workers", 1)?;
    if workers > 1 && !args.flag("list") {
        return run_workers(args, workers);
    }
    if sys::geteuid() != Ok(0) {
        return Err("must run as root".into());
    }
    let seed = args.number("seed", 1)?;
    let ops = args.number("ops", 10_000)? as usize;
    let allow = match args.value("allow") {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
            Allowances::parse(&text).map_err(|e| format!("{file}: {e}"))?
        }
        None => Allowances::default(),
    };
    let setup = Setup {
        a: PathBuf::from(args.need("a")?),
        b: PathBuf::from(args.need("b")?),
        elsewhere: args.value("elsewhere").map(PathBuf::from),
        allow,
        walk_every: args.number("walk-every", 1000)?.max(1) as usize,
    };
    let has = capabilities(&setup)?;
    let (has, lacking) = match has {
        Ok(found) => found,
        Err(missing) => {
            let lines: Vec<_> =
                missing.iter().map(|c| format!("A does not support {c}, B does")).collect();
            report_missing(args, seed, &lines);
            return Ok(1);
        }
    };
    let mut steps: Vec<(usize, Step)> = {
        let scratch = Scratch::new(&setup.b)?;
        let steps = with_rehearsal(&scratch.path, |rehearse| {
            generate(seed, ops, &has, setup.elsewhere.is_some(), rehearse)
        })?;
        steps.into_iter().enumerate().collect()
    };
    if let Some(only) = args.value("only") {
        let wanted: Result<BTreeSet<usize>, _> =
            only.split(',').map(|n| n.trim().parse()).collect();
        let wanted = wanted.map_err(|_| format!("--only: not a list of numbers: {only}"))?;
        steps.retain(|(i, _)| wanted.contains(i));
    }
    if args.flag("list") {
        steps.iter().for_each(|(i, step)| println!("{i:6}  {step}"));
        return Ok(0);
    }
    let plain: Vec<Step> = steps.iter().map(|(_, s)| s.clone()).collect();
    let started = sys::monotonic_ms();
    let (found, tally) = session::run(&setup, &plain)?;
    let seconds = (sys::monotonic_ms() - started) as f64 / 1000.0;
    let Some(found) = found else {
        report_same(args, seed, &tally, seconds, &lacking);
        return Ok(0);
    };
    let budget_ms = args.number("shrink-seconds", 120)? * 1000;
    let (short, found) = shorten(&setup, &plain, found, &tally.failed, budget_ms);
    let short: Vec<_> = short.iter().map(|&i| &steps[i]).collect();
    report_different(args, seed, ops, &found, &short, plain.len());
    Ok(1)
}

type Capabilities = (BTreeSet<&'static str>, Vec<String>);

/// What both can do and what is left out; or what A lacks although it may not.
fn capabilities(setup: &Setup) -> Result<Result<Capabilities, Vec<&'static str>>, String> {
    let scratch = [Scratch::new(&setup.a)?, Scratch::new(&setup.b)?];
    let [a, b] = [caps::probe(&scratch[0].path)?, caps::probe(&scratch[1].path)?];
    let missing: Vec<_> = b.difference(&a).copied().filter(|c| !setup.allow.may_lack(c)).collect();
    if !missing.is_empty() {
        return Ok(Err(missing));
    }
    let mut lacking = Vec::new();
    for capability in CAPABILITIES {
        let sides = match (a.contains(capability), b.contains(capability)) {
            (true, true) => continue,
            (true, false) => "B lacks",
            (false, true) => "A lacks (allowed)",
            (false, false) => "both lack",
        };
        lacking.push(format!("{sides} {capability}"));
    }
    Ok(Ok((a.intersection(&b).copied().collect(), lacking)))
}

/// The indices of a short sequence that still shows the same difference, and where it shows then.
fn shorten(
    setup: &Setup,
    steps: &[Step],
    found: Finding,
    failed: &[usize],
    budget_ms: u64,
) -> (Vec<usize>, Finding) {
    let len = found.at.min(steps.len() - 1) + 1;
    if budget_ms == 0 {
        return ((0..len).collect(), found);
    }
    let deadline = sys::monotonic_ms() + budget_ms;
    let setup = Setup { walk_every: usize::MAX, ..setup.clone() };
    let mut last = found.clone();
    // The last step is often a failure: it is the one that shows the difference.
    let doubtful: Vec<_> = failed.iter().copied().filter(|&i| i + 1 < len).collect();
    let kept = shrink(len, &doubtful, |kept| {
        if sys::monotonic_ms() > deadline {
            return false;
        }
        let some: Vec<_> = kept.iter().map(|&i| steps[i].clone()).collect();
        match session::run(&setup, &some) {
            // The same kind of difference, or shrinking would slide from one bug to another.
            Ok((Some(again), _)) if again.difference.key == found.difference.key => {
                last = again;
                true
            }
            _ => false,
        }
    });
    (kept, last)
}

fn report_missing(args: &Args, seed: u64, lines: &[String]) {
    if args.flag("json") {
        println!(
            "{{\"result\":\"unsupported\",\"seed\":{seed},\"differences\":{}}}",
            json::texts(lines)
        );
    } else {
        lines.iter().for_each(|line| {
            println!("FAIL {line} (put it on the list of allowances, with a reason)")
        });
    }
}

fn report_same(args: &Args, seed: u64, tally: &RunStats, seconds: f64, lacking: &[String]) {
    if args.flag("json") {
        println!(
            "{{\"result\":\"same\",\"seed\":{seed},\"steps\":{},\"succeeded\":{},\
             \"seconds\":{seconds:.1},\"left_out\":{}}}",
            tally.steps,
            tally.steps - tally.failed.len(),
            json::texts(lacking)
        );
    } else {
        println!(
            "ok seed {seed}: {} calls ({} succeeded), trees equal, {seconds:.1} s{}",
            tally.steps,
            tally.steps - tally.failed.len(),
            if lacking.is_empty() {
                String::new()
            } else {
                format!(" (left out: {})", lacking.join(", "))
            }
        );
    }
}

fn report_different(
    args: &Args,
    seed: u64,
    ops: usize,
    found: &Finding,
    short: &[&(usize, Step)],
    all: usize,
) {
    const SHOWN: usize = 60;
    let shown = &short[short.len().saturating_sub(SHOWN)..];
    let script: Vec<_> = shown.iter().map(|(i, step)| format!("{i:6}  {step}")).collect();
    let mut replay = format!(
        "kestrel-compare --a {} --b {} --seed {seed} --ops {ops}",
        args.value("a").unwrap_or("A"),
        args.value("b").unwrap_or("B")
    );
    if let Some(elsewhere) = args.value("elsewhere") {
        replay.push_str(&format!(" --elsewhere {elsewhere}"));
    }
    if short.len() <= SHOWN {
        let only: Vec<_> = short.iter().map(|(i, _)| i.to_string()).collect();
        replay.push_str(&format!(" --only {}", only.join(",")));
    }
    if args.flag("json") {
        println!(
            "{{\"result\":\"different\",\"seed\":{seed},\"kind\":{},\"difference\":{},\
             \"at_the_end\":{},\"script\":{},\"replay\":{}}}",
            json::text(&found.difference.key),
            json::text(&found.difference.text),
            found.in_walk,
            json::texts(&script),
            json::text(&replay)
        );
        return;
    }
    println!("FAIL seed {seed}: {}", found.difference.key);
    println!("  {}", found.difference.text);
    println!("  {} of {all} calls are enough:", short.len());
    if shown.len() < short.len() {
        println!("     ...  (the last {SHOWN} are shown; more --shrink-seconds may help)");
    }
    script.iter().for_each(|line| println!("  {line}"));
    if found.in_walk {
        println!("          then the trees differ");
    }
    println!("  replay: {replay}");
}

/// Each worker is this program again, with its own seed.
fn run_workers(args: &Args, workers: u64) -> Result<u8, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let seed = args.number("seed", 1)?;
    let mut children = Vec::new();
    for i in 0..workers {
        let mut command = Command::new(&program);
        for name in VALUES.iter().filter(|n| !["seed", "workers"].contains(n)) {
            if let Some(value) = args.value(name) {
                command.arg(format!("--{name}={value}"));
            }
        }
        if args.flag("json") {
            command.arg("--json");
        }
        command.arg(format!("--seed={}", seed + i));
        children.push(command.spawn().map_err(|e| format!("{}: {e}", program.display()))?);
    }
    let mut worst = 0;
    for mut child in children {
        let status = child.wait().map_err(|e| e.to_string())?;
        worst = worst.max(status.code().map_or(2, |c| c as u8));
    }
    Ok(worst)
}
