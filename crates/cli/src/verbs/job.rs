//! `kestrel job`: namespaces of jobs.
//!
//! | file | what it has |
//! | --- | --- |
//! | `log` | a rank that logs for itself |
//! | `plan` | what many ranks would take |
//! | `run` | a command in the namespace of a job |
//! | `server` | the process that serves a job to others |
//! | `servers` | the processes that share a job |

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kestrel_client::error::VolumeError;
use kestrel_client::job::{
    self, BegunJob, JobConflict, JobServer, Jobs, NewJob, Rank, SERVERS_MAX,
};
use kestrel_client::volume::Resources;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::logger::utc;
use kestrel_daemon::serve::advertise_arg;
use kestrel_daemon::units::bytes;
use serde_json::{Value, json};

mod log;
mod plan;
mod run;
mod server;
mod servers;

use super::snapshot::KeyArgs;
use super::{print_json, volume_of};

/// The verb in messages.
const VERB: &str = "job";

/// Most conflicts of inputs that are shown one by one.
const CONFLICTS_SHOWN: usize = 10;

/// Run programs in a namespace of their own on published versions, and publish what they make.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel job run /data/vol --input raw@1 --publish clean@1 -- ./clean.sh
  kestrel job run /data/vol --input clean@1 --input labels@2 --publish train@1 -- python prep.py
  eval \"$(kestrel job start /data/vol --input raw@1 --publish clean@1)\"
  kestrel job join -- ./part.sh 1 & kestrel job join -- ./part.sh 2; wait
  kestrel job publish /data/vol clean@1
  kestrel job start /data/vol --input raw@1 --publish clean@1 --servers 4
  kestrel job list /data/vol

A job sees the trees of its inputs as one, and nobody else sees what it changes until it is
published: then it is a version like any other. docs/operations/jobs.md tells more.")]
pub struct JobArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(Box<run::RunArgs>),
    Start(StartArgs),
    Serve(ServeArgs),
    Join(run::JoinArgs),
    Log(Box<log::LogArgs>),
    Plan(plan::PlanArgs),
    Resume(ResumeArgs),
    Publish(PublishArgs),
    Abort(AbortArgs),
    Status(StatusArgs),
    List(ListArgs),
}

/// What a job is made on, and what becomes of it.
#[derive(Debug, Args)]
struct InputArgs {
    /// A version with the tree that the job begins with; may be repeated: the first one counts most
    #[arg(long = "input", value_name = "VERSION")]
    inputs: Vec<String>,
    /// The name of the version that the job becomes, which must be free: as clean@1
    #[arg(long = "publish", value_name = "NAME")]
    name: String,
}

/// Begin a job and serve it to any number of processes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  eval \"$(kestrel job start /data/vol --input raw@1 --publish clean@1)\"
  kestrel job start kestrel://meta1/photos --input a@1 --input b@1 --publish c@1 \\
      --listen 10.0.0.7:9500
  kestrel job start /data/vol --input raw@1 --publish clean@1 --servers 4
  kestrel job start s3://bucket/vol --publish clean@1 --server-at 10.0.0.7:9500 \\
      --server-at 10.0.0.8:9500

Prints KESTREL_JOB=… for `kestrel job join`, which may also be mounted: it is the address of the
job's server, a process of this machine. Processes of the job see each other's changes at once.

Several servers share the job's names, those of each directory too. With --servers all of them are
started on this machine. With --server-at the first one is started here, and each other one on its
machine with `kestrel job serve VOLUME JOB NUMBER`. How many there are does not change.")]
struct StartArgs {
    /// The volume: a path in a mount, its directory, s3://… or kestrel://…
    volume: OsString,
    #[command(flatten)]
    inputs: InputArgs,
    /// Start no server: all processes log for themselves (`kestrel job log`)
    #[arg(long, conflicts_with_all = ["listen", "servers", "server_at"])]
    log: bool,
    /// How many servers on this machine share the job's names
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=SERVERS_MAX as i64))]
    servers: u16,
    /// Where a server of the job is going to listen, HOST:PORT; once for each, the first one on
    /// this machine
    #[arg(long = "server-at", value_name = "ADDR", value_parser = advertise_arg,
        conflicts_with_all = ["servers", "listen"])]
    server_at: Vec<String>,
    #[command(flatten)]
    serve: server::ServerArgs,
    #[command(flatten)]
    store: KeyArgs,
}

/// Serve one of the servers that share a job, on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel job serve s3://bucket/vol clean@1 2
  kestrel job serve s3://bucket/vol clean@1 2 --listen 10.0.0.9:9500 --take-over

For jobs that were begun with several servers (`kestrel job start --server-at`), and to serve one
elsewhere that has ended. It listens where it did before unless --listen says another address.")]
struct ServeArgs {
    /// The volume
    volume: OsString,
    /// Number of the job, or the name that its version gets
    job: String,
    /// Number of the server, from 1 on
    server: u32,
    /// Take it over from a process that has it open, which can write nothing any more
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    serve: server::ServerArgs,
    #[command(flatten)]
    store: KeyArgs,
}

/// Go on with a job after its server has ended, also on another machine.
#[derive(Debug, Args)]
#[command(after_help = "The job has everything that was synced, and what was changed more than 5 s
before its server died. --take-over cuts off a server that may still be there. Of a job with several
servers those are started that no process has open.")]
struct ResumeArgs {
    /// The volume
    volume: OsString,
    /// Number of the job, or the name that its version gets
    job: String,
    /// Take it over from a process that has it open, which can write nothing any more
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    serve: server::ServerArgs,
    #[command(flatten)]
    store: KeyArgs,
}

/// Publish what a job has made, and end it. Its server on this machine is stopped first.
#[derive(Debug, Args)]
struct PublishArgs {
    /// The volume
    volume: OsString,
    /// Number of the job, or the name that its version gets
    job: String,
    /// Give the version another name
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// Take the job over from a process of another machine that has it open
    #[arg(long)]
    take_over: bool,
    /// Also what ranks have synced that have not finished
    #[arg(long)]
    unfinished: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// End a job and remove what it has made.
#[derive(Debug, Args)]
struct AbortArgs {
    /// The volume
    volume: OsString,
    /// Number of the job, or the name that its version gets
    job: String,
    /// Also if a process of another machine has it open
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Show a job: its inputs, what is below it, and which process has it open.
#[derive(Debug, Args)]
struct StatusArgs {
    /// The volume
    volume: OsString,
    /// Number of the job, or the name that its version gets
    job: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// List the jobs that are neither published nor aborted.
#[derive(Debug, Args)]
struct ListArgs {
    /// The volume
    volume: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new(VERB, why)
}

fn jobs_of(volume: &OsString, store: &KeyArgs) -> Result<Jobs, Failure> {
    Jobs::of(&volume_of(VERB, volume)?, &store.store().options()).map_err(fail)
}

fn resources(store: &KeyArgs, take_over: bool) -> Resources {
    Resources { store: store.store().options(), take_over, ..Resources::default() }
}

/// Begins a job, and says what its inputs say differently.
fn begin(jobs: &Jobs, inputs: &InputArgs, servers: Vec<String>) -> Result<BegunJob, Failure> {
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let new = NewJob {
        inputs: inputs.inputs.clone(),
        name: inputs.name.clone(),
        user,
        group,
        begun_by: kestrel_daemon::who("kestrel job"),
        servers,
    };
    let begun = jobs.begin(&new).map_err(fail)?;
    tell_conflicts(&begun.conflicts, begun.conflict_count);
    Ok(begun)
}

/// Stops the servers of the job on this machine, if there are some.
fn release(dir: &std::path::Path) -> Result<(), Failure> {
    let mut dirs = server::server_dirs(dir);
    dirs.push(dir.to_path_buf());
    servers::stop(&dirs)
}

/// Begins a job and serves it.
fn start(args: &StartArgs) -> Result<ExitStatus, Failure> {
    let addresses = match (usize::from(args.servers), args.server_at.len()) {
        (1, 0) => Vec::new(),
        (count, 0) => servers::addresses(args.serve.listen.as_deref(), count)?,
        (_, 1) => {
            return Err(Failure::usage(
                "job: --server-at: for two servers or more; say where one listens with --listen",
            ));
        }
        _ => args.server_at.clone(),
    };
    let here: Vec<u32> = match args.server_at.is_empty() {
        true => (1..=u32::from(args.servers)).collect(),
        false => vec![1],
    };
    let jobs = jobs_of(&args.volume, &args.store)?;
    let is_alone = addresses.is_empty();
    let begun = begin(&jobs, &args.inputs, addresses)?;
    log::print_env(&volume_of(VERB, &args.volume)?, begun.record.number());
    if args.log {
        let record = &begun.record;
        eprintln!("job {} has no server; it becomes {}", record.number(), record.name);
        return Ok(ExitStatus::Good);
    }
    match is_alone {
        true => server::start(&begun, &args.serve, &args.store, false),
        false => servers::start(&jobs, &begun, &here, (&args.serve, &args.store), false),
    }
}

/// Serves one server of a job.
fn serve(args: &ServeArgs) -> Result<ExitStatus, Failure> {
    let jobs = jobs_of(&args.volume, &args.store)?;
    let record = jobs.find(&args.job).map_err(fail)?;
    let job = jobs.resume(record).map_err(fail)?;
    let options = (&args.serve, &args.store);
    servers::start(&jobs, &job, &[args.server], options, args.take_over)
}

/// Serves what no process serves of a job.
fn resume(args: &ResumeArgs) -> Result<ExitStatus, Failure> {
    let jobs = jobs_of(&args.volume, &args.store)?;
    let record = jobs.find(&args.job).map_err(fail)?;
    let job = jobs.resume(record).map_err(fail)?;
    if jobs.servers(&job.record).map_err(fail)?.is_empty() {
        return server::start(&job, &args.serve, &args.store, args.take_over);
    }
    let here = servers::to_be_served(&jobs, &job, args.take_over)?;
    servers::start(&jobs, &job, &here, (&args.serve, &args.store), args.take_over)
}

fn publish(
    jobs: &Jobs,
    record: &kestrel_client::job::JobRecord,
    (name, unfinished): (Option<&str>, bool),
    resources: &Resources,
) -> Result<job::PublishedJob, Failure> {
    let dir = job::dir_of(record).map_err(fail)?;
    release(&dir)?;
    let done = job::publish(jobs, record, (name, unfinished), resources).map_err(fail)?;
    tell_conflicts(&done.conflicts, done.conflict_count);
    Ok(done)
}

/// Says which names several have made differently.
fn tell_conflicts(conflicts: &[JobConflict], count: u64) {
    for conflict in conflicts.iter().take(CONFLICTS_SHOWN) {
        eprintln!(
            "kestrel job: {}: of {}, not of {}",
            String::from_utf8_lossy(&conflict.path),
            conflict.kept,
            conflict.hidden
        );
    }
    let shown = conflicts.len().min(CONFLICTS_SHOWN) as u64;
    if count > shown {
        eprintln!("kestrel job: {} further names were made by several", count - shown);
    }
}

fn print_published(done: &job::PublishedJob, as_json: bool) {
    let version = &done.version;
    if as_json {
        let mut out = kestrel_daemon::snapshots::versions::describe(version);
        out["changed"] = done.changed.into();
        out["ranks"] = done.ranks.into();
        out["conflicts"] = done.conflict_count.into();
        return print_json(&out);
    }
    println!(
        "{}: {} files and {} directories, {}; {} rows changed, {} tables of {}",
        version.name,
        version.figures.files,
        version.figures.directories,
        bytes(version.figures.bytes),
        done.changed,
        version.tables(),
        bytes(version.table_bytes()),
    );
    println!("mount it with: kestrel mount VOLUME//{} DIR", version.name);
}

/// Does it.
pub fn run(args: &JobArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Run(args) => run::run(args),
        Action::Join(args) => run::join(args),
        Action::Log(args) => log::run(args),
        Action::Plan(args) => plan::run(args),
        Action::Start(args) => start(args),
        Action::Serve(args) => serve(args),
        Action::Resume(args) => resume(args),
        Action::Publish(args) => {
            let jobs = jobs_of(&args.volume, &args.store)?;
            let record = jobs.find(&args.job).map_err(fail)?;
            let resources = resources(&args.store, args.take_over);
            let as_what = (args.name.as_deref(), args.unfinished);
            let done = publish(&jobs, &record, as_what, &resources)?;
            print_published(&done, args.json);
            Ok(ExitStatus::Good)
        }
        Action::Abort(args) => {
            let jobs = jobs_of(&args.volume, &args.store)?;
            if let Ok(number) = args.job.parse()
                && jobs.forget_damaged(number).is_ok()
            {
                println!(
                    "job {number} had a damaged record and is forgotten; `kestrel version clean` \
                     removes what it has made"
                );
                return Ok(ExitStatus::Good);
            }
            let record = jobs.find(&args.job).map_err(fail)?;
            release(&job::dir_of(&record).map_err(fail)?)?;
            let removed = jobs.abort(&record, args.take_over).map_err(fail)?;
            println!("job {} aborted, {removed} objects removed", record.number());
            Ok(ExitStatus::Good)
        }
        Action::Status(args) => status(args),
        Action::List(args) => list(args),
    }
}

fn describe(jobs: &Jobs, record: &kestrel_client::job::JobRecord) -> Result<Value, Failure> {
    let dir: PathBuf = job::dir_of(record).map_err(fail)?;
    let inputs: Vec<Value> =
        record.inputs.iter().map(|input| json!({ "name": input.name, "id": input.id })).collect();
    let rank = |rank: &Rank| {
        Ok(json!({
            "rank": rank.rank,
            "mounted": rank.log.rank.as_ref().is_some_and(|of| of.mounted),
            "finished": rank.finished,
            "open_by": jobs.holder(&rank.log)?,
        }))
    };
    let ranks = jobs.ranks(record).map_err(fail)?;
    let ranks: Result<Vec<Value>, VolumeError> = ranks.iter().map(rank).collect();
    let servers = jobs.servers(record).map_err(fail)?;
    let server = |server: &JobServer| {
        let JobServer { number, address, open_by } = server;
        json!({ "number": number, "address": address, "open_by": open_by })
    };
    let servers: Vec<Value> = servers.iter().map(server).collect();
    let below: Vec<&str> = record.base.layers.iter().map(|layer| layer.name.as_str()).collect();
    Ok(json!({
        "job": record.number(),
        "id": record.id,
        "publish": record.name,
        "created": utc(record.created),
        "created_ns": record.created,
        "user": record.user,
        "begun_by": record.begun_by,
        "inputs": inputs,
        "below": below,
        "common_directories": record.base.aliases,
        "open_by": jobs.holder(record).map_err(fail)?,
        "ranks": ranks.map_err(fail)?,
        "servers": servers,
        "dir": dir.exists().then(|| dir.to_string_lossy().into_owned()),
        "address": server::address(&dir),
    }))
}

fn status(args: &StatusArgs) -> Result<ExitStatus, Failure> {
    let jobs = jobs_of(&args.volume, &args.store)?;
    let record = jobs.find(&args.job).map_err(fail)?;
    let told = describe(&jobs, &record)?;
    if args.json {
        print_json(&told);
        return Ok(ExitStatus::Good);
    }
    let text = |field: &str| told[field].as_str().unwrap_or("-").to_string();
    let inputs: Vec<&str> = record.inputs.iter().map(|input| input.name.as_str()).collect();
    println!("job         {}, becomes {}", record.number(), record.name);
    println!("begun       {} by {}", text("created"), record.begun_by);
    println!("inputs      {}", if inputs.is_empty() { "none".into() } else { inputs.join(", ") });
    println!("below       {} versions", record.base.layers.len());
    println!("open by     {}", text("open_by"));
    println!("address     {}", text("address"));
    for server in told["servers"].as_array().into_iter().flatten() {
        let open_by = server["open_by"].as_str().unwrap_or("no process");
        let address = server["address"].as_str().unwrap_or("-");
        println!("server {:<4} at {address}, open by {open_by}", server["number"]);
    }
    for rank in told["ranks"].as_array().into_iter().flatten() {
        let (number, open_by) = (&rank["rank"], rank["open_by"].as_str());
        let is_finished = rank["finished"].as_bool() == Some(true);
        let state = if is_finished { "finished" } else { open_by.unwrap_or("not finished") };
        println!("rank {number:<6} {state}");
    }
    println!("directory   {}", text("dir"));
    Ok(ExitStatus::Good)
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let jobs = jobs_of(&args.volume, &args.store)?;
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for (number, record) in jobs.list().map_err(fail)? {
        match record {
            Ok(record) => found.push(record),
            Err(why) => unreadable.push((number, why.to_string())),
        }
    }
    if args.json {
        let told: Result<Vec<Value>, Failure> =
            found.iter().map(|record| describe(&jobs, record)).collect();
        let bad: Vec<Value> =
            unreadable.iter().map(|(number, why)| json!({ "job": number, "error": why })).collect();
        print_json(&json!({ "jobs": told?, "unreadable": bad }));
    } else {
        if !found.is_empty() {
            println!("{:>6}  {:20}  {:20}  OPEN BY", "JOB", "BECOMES", "BEGUN");
        }
        for record in &found {
            let begun = utc(record.created);
            let begun = begun.split('.').next().unwrap_or_default();
            let holder = jobs.holder(record).map_err(fail)?;
            let holder = holder.as_deref().unwrap_or("-");
            println!("{:>6}  {:20}  {begun:20}  {holder}", record.number(), record.name);
        }
    }
    for (_, why) in &unreadable {
        eprintln!("kestrel {VERB}: {why}");
    }
    Ok(if unreadable.is_empty() { ExitStatus::Good } else { ExitStatus::Bad })
}
