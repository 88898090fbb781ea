//! `kestrel upgrade`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::control::QUICK;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_fuse::mount::{MountEntry, mounts};
use serde_json::{Value, json};

use super::{ask_with, control_dir};

/// Replace the program under supervised mounts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel upgrade
  kestrel upgrade /mnt/data
  kestrel upgrade --program /opt/kestrel-2/kestrel

The process of each mount that was mounted with --supervised=upgrade stores what was written, and
the new program goes on with the mount: programs see a pause, their files stay open, their locks
held. Other mounts are told of. A program that cannot take a mount over leaves it as it was; one
that fails in doing so gives it back to the one before. The exit code is 1 if a mount that is
supervised could not be handed over.")]
pub struct UpgradeArgs {
    /// Which mounts; all by default
    pub dirs: Vec<PathBuf>,
    /// The new program; by default the one that runs this command
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
}

/// How long a mount may take until it is served again, all attempts together.
const TAKE_OVER_MAX: Duration = Duration::from_secs(120);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// What came of a mount.
enum Outcome {
    /// It is served by the new program, after that time.
    Upgraded(Duration),
    /// It has no supervisor.
    Unsupervised,
}

/// Hands mounts over.
pub fn run(args: &UpgradeArgs) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("upgrade", why);
    let program = match &args.program {
        Some(program) => std::fs::canonicalize(program)
            .map_err(|why| fail(&format!("{}: {why}", program.display())))?,
        None => std::env::current_exe().map_err(|why| fail(&why))?,
    };
    let mut entries = Vec::new();
    for entry in mounts().map_err(|why| fail(&why))?.into_iter().filter(MountEntry::is_kestrel) {
        let is_named =
            |dir: &PathBuf| std::path::absolute(dir).is_ok_and(|dir| dir == entry.mount_point);
        if args.dirs.is_empty() || args.dirs.iter().any(is_named) {
            entries.push(entry);
        }
    }
    if let Some(missing) = args.dirs.iter().find(|dir| {
        let dir = std::path::absolute(dir).unwrap_or_default();
        entries.iter().all(|entry| entry.mount_point != dir)
    }) {
        return Err(fail(&format!("{}: no volume is mounted there", missing.display())));
    }
    if entries.is_empty() {
        println!("no volume is mounted");
    }
    let mut status = ExitStatus::Good;
    for entry in &entries {
        let dir = entry.mount_point.display();
        match upgrade(entry, &program) {
            Ok(Outcome::Upgraded(after)) => {
                println!("{dir}: served by {} after {after:.2?}", program.display());
            }
            Ok(Outcome::Unsupervised) if args.dirs.is_empty() => {
                println!("{dir}: not supervised, left as it is; unmount it and mount it anew");
            }
            Ok(Outcome::Unsupervised) => {
                let how = "mount it with --supervised=upgrade";
                return Err(fail(&format!("{dir}: the mount has no supervisor; {how}")));
            }
            Err(why) => {
                status = ExitStatus::Bad;
                eprintln!("kestrel: upgrade: {dir}: {why}");
            }
        }
    }
    Ok(status)
}

fn upgrade(entry: &MountEntry, program: &Path) -> Result<Outcome, String> {
    let control = control_dir(entry);
    let ask = |question: &Value, on_event: &mut dyn FnMut(Value)| {
        let answer = ask_with("upgrade", &control, question, QUICK, on_event);
        answer.map(Option::unwrap_or_default).map_err(|why| why.reason())
    };
    let supervision = json!({ "verb": "supervision" });
    // An older process knows nothing of that.
    let before = ask(&supervision, &mut |_| ()).unwrap_or_default();
    let Some(generation) = before["generation"].as_u64() else { return Ok(Outcome::Unsupervised) };
    let mut left = None;
    let question = json!({ "verb": "upgrade", "program": program.to_string_lossy() });
    let refused = ask(&question, &mut |event| {
        if event.get("leaves").is_some() {
            left = Some(Instant::now());
        }
    });
    let Some(left) = left else {
        return Err(refused.err().unwrap_or_else(|| "the mount was not handed over".into()));
    };
    // It has ended, and another one comes.
    while left.elapsed() < TAKE_OVER_MAX {
        let now = ask(&supervision, &mut |_| ()).unwrap_or_default();
        let is_next = now["generation"].as_u64().is_some_and(|next| next > generation);
        if is_next && now["serves"] == true {
            return match now["last_failure"].as_str() {
                Some(why) if now["generation"].as_u64() != Some(generation + 1) => {
                    Err(format!("{why}; the program before goes on with the mount"))
                }
                _ => Ok(Outcome::Upgraded(left.elapsed())),
            };
        }
        std::thread::sleep(LOOK);
    }
    Err("no process has taken the mount over; see the log of the mount".into())
}
