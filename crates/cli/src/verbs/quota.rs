//! `kestrel quota`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `quota/values.rs` | limits, users and groups as arguments |

mod values;

use std::ffi::OsString;

use clap::{Args, Subcommand};
use kestrel_daemon::ask::path_bytes;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, count, duration_arg};
use serde_json::{Value, json};
use std::time::Duration;

use super::owner_names::{group_name, user_name};
use super::print_json;
use super::snapshot::KeyArgs;
use super::snapshot::place::Place;
use values::{Limit, Owner, files_arg, group_arg, size_limit_arg, user_arg};

/// The verb in messages.
const VERB: &str = "quota";

/// Limit the bytes and files of directories, users, groups and the volume.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel quota set /mnt/data/team-a --size 1T --files 10M
  kestrel quota set /mnt/data --user alice --size 100G --soft-size 90G --grace 14d
  kestrel quota get /mnt/data/team-a
  kestrel quota list /mnt/data
  kestrel quota remove /mnt/data/team-a
  kestrel quota check /mnt/data

A directory is a path in a mount, or VOLUME:/dir, where VOLUME is a path or
kestrel://host[:port]/NAME. Limits hold for root, too, and at once: what would exceed one fails with
\"Disk quota exceeded\" (of the volume: \"No space left on device\"). Quotas of directories add up
along the path; df shows them. Only root handles quotas. docs/quotas.md tells more.")]
pub struct QuotaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Set(SetArgs),
    Get(GetArgs),
    List(ListArgs),
    Remove(RemoveArgs),
    Check(CheckArgs),
}

/// What a quota limits.
#[derive(Debug, Args)]
struct SubjectArgs {
    /// The directory: a path in a mount, or VOLUME:/dir; with --user, --group or --volume it only
    /// names the volume
    dir: OsString,
    /// Of this user, by name or number
    #[arg(long, value_parser = user_arg, conflicts_with_all = ["group", "volume"])]
    user: Option<Owner>,
    /// Of this group, by name or number
    #[arg(long, value_parser = group_arg, conflicts_with = "volume")]
    group: Option<Owner>,
    /// Of the whole volume
    #[arg(long)]
    volume: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Give a directory, a user, a group or the volume limits; those that are not named stay.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel quota set /mnt/data/team-a --size 1T --files 10M
  kestrel quota set /mnt/data/team-a --files none
  kestrel quota set /mnt/data --group staff --soft-size 5T --grace 3d
  kestrel quota set /data/vol:/team-a --size 1T

The first time what is there is counted, while nothing else runs on the volume: by the sums of the
directories, or by all names of the volume if it has files with several names, and for users, groups
and the volume. A limit may be below what is used: then nothing grows. Above a soft limit there is a
warning in the log, and after the grace period (7d by default) nothing grows.")]
struct SetArgs {
    #[command(flatten)]
    of: SubjectArgs,
    /// Bytes, the sum of file sizes, or none
    #[arg(long, value_name = "SIZE", value_parser = size_limit_arg)]
    size: Option<Limit>,
    /// Files of all types, directories too (10k, 10M: thousands, millions), or none
    #[arg(long, value_name = "N", value_parser = files_arg)]
    files: Option<Limit>,
    /// Bytes above which there is a warning, and no growth after the grace period, or none
    #[arg(long, value_name = "SIZE", value_parser = size_limit_arg)]
    soft_size: Option<Limit>,
    /// The same of files
    #[arg(long, value_name = "N", value_parser = files_arg)]
    soft_files: Option<Limit>,
    /// How long usage may be above a soft limit
    #[arg(long, value_name = "TIME", value_parser = duration_arg)]
    grace: Option<Duration>,
}

/// Show a quota and what counts towards it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel quota get /mnt/data/team-a
  kestrel quota get /mnt/data --user alice --json")]
struct GetArgs {
    #[command(flatten)]
    of: SubjectArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List all quotas of a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel quota list /mnt/data
  kestrel quota list /data/vol --json")]
struct ListArgs {
    /// The volume: a path in a mount, or VOLUME
    volume: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Remove a quota. What the directory holds stays.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel quota remove /mnt/data/team-a
  kestrel quota remove /mnt/data --user alice")]
struct RemoveArgs {
    #[command(flatten)]
    of: SubjectArgs,
}

/// Count anew what counts towards each quota, and compare.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel quota check /mnt/data
  kestrel quota check /data/vol --repair

Reads all names of the volume, while nothing else runs on it. Exit status 1 if something was wrong
and --repair was not given.")]
struct CheckArgs {
    /// The volume: a path in a mount, or VOLUME
    volume: OsString,
    /// Correct what is wrong
    #[arg(long)]
    repair: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

impl SubjectArgs {
    /// Asks about it, with the fields of `question`.
    fn ask(&self, mut question: Value) -> Result<Value, Failure> {
        if let Some(Owner(uid)) = self.user {
            question["user"] = uid.into();
        }
        if let Some(Owner(gid)) = self.group {
            question["group"] = gid.into();
        }
        if self.volume {
            question["volume"] = true.into();
        }
        ask(&self.dir, &self.store, question)
    }
}

fn ask(dir: &OsString, store: &KeyArgs, question: Value) -> Result<Value, Failure> {
    let mut place = Place::of(dir, &store.store()).map_err(|why| why.of(VERB))?;
    let answer = place.ask(question).map_err(|why| why.of(VERB))?;
    place.close().map_err(|why| why.of(VERB))?;
    Ok(answer)
}

/// Does it.
pub fn run(args: &QuotaArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Set(args) => set(args),
        Action::Get(args) => {
            let found = args.of.ask(json!({ "act": "quota-get" }))?;
            show(&found, args.json);
            Ok(ExitStatus::Good)
        }
        Action::List(args) => {
            let found = ask(&args.volume, &args.store, json!({ "act": "quota-list" }))?;
            show(&found, args.json);
            Ok(ExitStatus::Good)
        }
        Action::Remove(args) => {
            args.of.ask(json!({ "act": "quota-remove" }))?;
            Ok(ExitStatus::Good)
        }
        Action::Check(args) => check(args),
    }
}

fn set(args: &SetArgs) -> Result<ExitStatus, Failure> {
    let mut question = json!({ "act": "quota-set" });
    let limits = [
        ("bytes", &args.size),
        ("files", &args.files),
        ("soft_bytes", &args.soft_size),
        ("soft_files", &args.soft_files),
    ];
    let mut is_any = false;
    for (name, limit) in limits {
        if let Some(Limit(limit)) = limit {
            (question[name], is_any) = (json!(limit), true);
        }
    }
    if let Some(grace) = args.grace {
        (question["grace"], is_any) = (grace.as_secs().into(), true);
    }
    if !is_any {
        let why = "name a limit: --size, --files, --soft-size, --soft-files or --grace";
        return Err(Failure::usage(format!("{VERB}: {why}")));
    }
    args.of.ask(question)?;
    Ok(ExitStatus::Good)
}

/// A quota that was counted differs from what it says.
fn is_wrong(quota: &Value) -> bool {
    quota["counted"] != quota["used"]
}

fn check(args: &CheckArgs) -> Result<ExitStatus, Failure> {
    let question = json!({ "act": "quota-check", "repair": args.repair });
    let found = ask(&args.volume, &args.store, question)?;
    let quotas = found["quotas"].as_array().map_or(&[][..], Vec::as_slice);
    let wrong: Vec<&Value> = quotas.iter().filter(|quota| is_wrong(quota)).collect();
    if args.json {
        print_json(&found);
    } else {
        for quota in &wrong {
            let (says, is) = (used(&quota["used"]), used(&quota["counted"]));
            let done = if args.repair { "; corrected" } else { "" };
            println!("{}: says {says}, is {is}{done}", subject(quota));
        }
        println!("{} of {} quotas wrong", wrong.len(), quotas.len());
    }
    Ok(if wrong.is_empty() || args.repair { ExitStatus::Good } else { ExitStatus::Bad })
}

fn used(usage: &Value) -> String {
    let number = |name: &str| usage[name].as_u64().unwrap_or(0);
    format!("{} files, {} bytes", count(number("files")), count(number("bytes")))
}

/// What a quota limits, for people.
fn subject(quota: &Value) -> String {
    let id = quota["id"].as_u64();
    match (quota["kind"].as_str(), id) {
        (Some("user"), Some(uid)) => format!("user {}", user_name(uid)),
        (Some("group"), Some(gid)) => format!("group {}", group_name(gid)),
        (Some("directory"), Some(ino)) => match path_bytes(&quota["path"]) {
            Some(path) => String::from_utf8_lossy(&path).into_owned(),
            None => format!("directory {ino}"),
        },
        _ => "volume".into(),
    }
}

/// One line a quota: what it limits, then bytes and files as used, soft and hard limit.
fn show(found: &Value, as_json: bool) {
    if as_json {
        return print_json(found);
    }
    let quotas = found["quotas"].as_array().map_or(&[][..], Vec::as_slice);
    let titles = ["", "BYTES", "SOFT", "HARD", "FILES", "SOFT", "HARD"];
    let mut lines: Vec<[String; 7]> = vec![titles.map(String::from)];
    for quota in quotas {
        let number = |value: &Value| value.as_u64();
        let size = |value: &Value| number(value).map_or("-".into(), bytes);
        let files = |value: &Value| number(value).map_or("-".into(), count);
        let (used, limits) = (&quota["used"], &quota["limits"]);
        let above = |what: &str| match quota["above_soft_since"][what].is_null() {
            true => "",
            false => "+",
        };
        lines.push([
            subject(quota),
            format!("{}{}", size(&used["bytes"]), above("bytes")),
            size(&limits["soft_bytes"]),
            size(&limits["bytes"]),
            format!("{}{}", files(&used["files"]), above("files")),
            files(&limits["soft_files"]),
            files(&limits["files"]),
        ]);
    }
    let widths: Vec<usize> = (0..titles.len())
        .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0))
        .collect();
    for line in &lines {
        let mut text = format!("{:<1$}", line[0], widths[0]);
        for at in 1..titles.len() {
            text.push_str(&format!("  {:>1$}", line[at], widths[at]));
        }
        println!("{}", text.trim_end());
    }
}
