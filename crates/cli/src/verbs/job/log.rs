//! A rank of a job, which logs what it makes for itself.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use kestrel_client::job::{ChangeLog, JobRecord, Jobs, LogAttrs, LogDir, LogOptions};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::bytes;
use kestrel_types::clock::{Nanos, SECOND};

use super::run::{MountArgs, Mounted, run_command, told};
use super::server::upload_option;
use super::{fail, jobs_of, resources};
use crate::args::upload_every_arg;

/// The variables by which ranks find the volume and the job.
const VOLUME_ENV: &str = "KESTREL_JOB_VOLUME";
const NUMBER_ENV: &str = "KESTREL_JOB_NUMBER";

/// Log what one process of a job makes, without a server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  eval \"$(kestrel job start /data/vol --publish made@1 --log)\"
  srun sh -c 'kestrel job log --rank $SLURM_PROCID -- ./make.sh'
  kestrel job log --rank 900 --tree /scratch/set --to /set
  kestrel job publish /data/vol made@1

Each process has a rank, a number of its own, and sees what the job was begun with and what it makes
itself. --tree and --list log at the speed of memory; a command runs in a mount of the rank's log.
When the job is published all logs become one tree: of two that have made one name that of the lower
rank counts, and the command says so. What the job's server has done counts before all.

A rank that was killed goes on with the same command: everything that was synced is there.")]
pub struct LogArgs {
    /// The volume; by default the one that KESTREL_JOB_VOLUME names
    #[arg(requires = "job")]
    volume: Option<OsString>,
    /// Number of the job, or its version's name; by default the one that KESTREL_JOB_NUMBER names
    job: Option<String>,
    /// Number of this process, which no other one has
    #[arg(long, value_name = "N")]
    rank: u32,
    /// Log the files and directories that are in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    tree: Option<PathBuf>,
    /// Log an empty file for each path of this list, one on a line; -: standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "tree"])]
    list: Option<PathBuf>,
    /// With --tree and --list: where in the job; what is missing of a path is made
    #[arg(long, value_name = "PATH", default_value = "/")]
    to: OsString,
    /// The rank goes on later: do not finish it
    #[arg(long)]
    keep: bool,
    /// Take the log over from another process that has it open, which can write nothing any more
    #[arg(long)]
    take_over: bool,
    /// How long what was made may wait for its upload if nothing syncs it, 10ms to 1h
    #[arg(long, value_name = "TIME", value_parser = upload_every_arg, default_value = "5s")]
    upload_every: Duration,
    #[command(flatten)]
    mount: MountArgs,
    /// A command that runs in a mount of the log, with its arguments
    #[arg(last = true, required_unless_present_any = ["tree", "list"])]
    command: Vec<OsString>,
}

/// Prints the variables by which ranks find a job.
pub fn print_env(volume: &str, job: u32) {
    // A rank may run elsewhere.
    let volume = match Path::new(volume).exists() {
        true => fs::canonicalize(volume).map_or(volume.into(), |path| path.display().to_string()),
        false => volume.to_string(),
    };
    println!("{VOLUME_ENV}='{volume}'; export {VOLUME_ENV}");
    println!("{NUMBER_ENV}={job}; export {NUMBER_ENV}");
}

/// The volume and the job, as they are given or named by the environment.
fn job_of(args: &LogArgs) -> Result<(OsString, String), Failure> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let (volume, job) = match (&args.volume, &args.job) {
        (Some(volume), Some(job)) => (Some(volume.clone()), Some(job.clone())),
        _ => (
            named(VOLUME_ENV),
            named(NUMBER_ENV).map(|number| number.to_string_lossy().into_owned()),
        ),
    };
    volume.zip(job).ok_or_else(|| {
        Failure::usage(format!(
            "job log: which job? Give the volume and the job, or set {VOLUME_ENV} and {NUMBER_ENV} \
             as `kestrel job start` says"
        ))
    })
}

/// See [`LogArgs`].
pub fn run(args: &LogArgs) -> Result<ExitStatus, Failure> {
    let (volume, job) = job_of(args)?;
    let jobs = jobs_of(&volume, &args.mount.store)?;
    let record = jobs.find(&job).map_err(fail)?;
    let is_mounted = args.tree.is_none() && args.list.is_none();
    let log = jobs.join(&record, args.rank, is_mounted).map_err(fail)?;
    let told = match is_mounted {
        true => run_mounted(&jobs, &log, args)?,
        false => log_directly(&jobs, &log, args)?,
    };
    if args.keep {
        println!("rank {}: {told}", args.rank);
        return Ok(ExitStatus::Good);
    }
    let rows = jobs.finish(&log, &resources(&args.mount.store, args.take_over)).map_err(fail)?;
    println!("rank {}: {told}; finished with {rows} rows", args.rank);
    Ok(ExitStatus::Good)
}

/// Runs the command in a mount of the log.
fn run_mounted(jobs: &Jobs, log: &JobRecord, args: &LogArgs) -> Result<String, Failure> {
    let dir = jobs.resume(log.clone()).map_err(fail)?.dir;
    let mut options = upload_option(args.upload_every).to_vec();
    if args.take_over {
        options.push("--take-over".into());
    }
    let mounted = Mounted::at(&dir.to_string_lossy(), &args.mount, &options)?;
    let status = run_command(&args.command, &mounted.dir, None);
    mounted.end()?;
    match status? {
        status if status.success() => Ok("the command has ended".into()),
        status => Err(fail(format!(
            "{}; the rank has not finished, and goes on with the same command",
            told(status)
        ))),
    }
}

/// What was logged of a tree.
#[derive(Default)]
struct Logged {
    files: u64,
    dirs: u64,
    bytes: u64,
    /// Neither files nor directories nor symbolic links.
    skipped: u64,
}

/// Logs a tree or a list.
fn log_directly(jobs: &Jobs, record: &JobRecord, args: &LogArgs) -> Result<String, Failure> {
    let options = LogOptions {
        sync_every: args.upload_every,
        take_over: args.take_over,
        ..LogOptions::default()
    };
    let mut log = ChangeLog::open(jobs, record, options).map_err(fail)?;
    let logged = match (&args.tree, &args.list) {
        (Some(tree), _) => log_tree(&mut log, tree, args.to.as_bytes()),
        (None, Some(list)) => log_list(&mut log, list, args.to.as_bytes()),
        (None, None) => Ok(Logged::default()),
    };
    let replaced = log.replaced();
    let closed = log.close().map_err(fail);
    let logged = logged?;
    closed?;
    let Logged { files, dirs, bytes: content, skipped } = logged;
    if skipped > 0 {
        eprintln!("kestrel job: {skipped} devices, pipes and sockets were left out");
    }
    if replaced > 0 {
        eprintln!("kestrel job: {replaced} files took the place of others that the rank had made");
    }
    Ok(format!("{files} files and {dirs} directories, {}", bytes(content)))
}

/// Logs an empty file for each line.
fn log_list(log: &mut ChangeLog, list: &Path, to: &[u8]) -> Result<Logged, Failure> {
    let failed = |why: std::io::Error| told_io(list, &why);
    let mut lines: Box<dyn BufRead> = match list.as_os_str().as_bytes() {
        b"-" => Box::new(std::io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(list).map_err(failed)?)),
    };
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let attrs = LogAttrs { mode: 0o644, uid, gid, mtime: None };
    let (mut logged, mut line, mut path) = (Logged::default(), Vec::new(), Vec::new());
    while lines.read_until(b'\n', &mut line).map_err(failed)? > 0 {
        line.pop_if(|last| *last == b'\n');
        let cut = line.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        path.clear();
        path.extend_from_slice(to);
        path.push(b'/');
        path.extend_from_slice(&line[..cut]);
        let dir = log.make_dirs(&path, LogAttrs { mode: 0o755, ..attrs }).map_err(fail)?;
        log.create(dir, &line[cut..], attrs, b"").map_err(fail)?;
        logged.files += 1;
        line.clear();
    }
    Ok(logged)
}

fn log_tree(log: &mut ChangeLog, tree: &Path, to: &[u8]) -> Result<Logged, Failure> {
    let attrs = attrs_of(&metadata_of(tree)?);
    let mut logged = Logged::default();
    let top = log.make_dirs(to, attrs).map_err(fail)?;
    let mut left: Vec<(PathBuf, LogDir)> = vec![(tree.to_path_buf(), top)];
    while let Some((path, dir)) = left.pop() {
        let failed = |why: std::io::Error| fail(format!("{}: {why}", path.display()));
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (name, path) = (entry.file_name(), entry.path());
            let metadata = metadata_of(&path)?;
            let (name, attrs, kind) = (name.as_bytes(), attrs_of(&metadata), metadata.file_type());
            let told = |why| fail(format!("{}: {why}", path.display()));
            if kind.is_dir() {
                let made = log.make_dir(dir, name, attrs);
                // An earlier process of the rank, or an input of the job, has it.
                let made = made.or_else(|_| log.dir_in(dir, name)).map_err(told)?;
                left.push((path, made));
                logged.dirs += 1;
            } else if kind.is_file() {
                let mut file = File::open(&path).map_err(|why| told_io(&path, &why))?;
                log.create_from(dir, name, attrs, &mut file).map_err(told)?;
                (logged.files, logged.bytes) = (logged.files + 1, logged.bytes + metadata.len());
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(|why| told_io(&path, &why))?;
                let target = target.into_os_string().into_vec();
                log.symlink(dir, name, attrs, &target).map_err(told)?;
                logged.files += 1;
            } else {
                logged.skipped += 1;
            }
        }
    }
    Ok(logged)
}

fn told_io(path: &Path, why: &std::io::Error) -> Failure {
    fail(format!("{}: {why}", path.display()))
}

fn metadata_of(path: &Path) -> Result<Metadata, Failure> {
    fs::symlink_metadata(path).map_err(|why| told_io(path, &why))
}

fn attrs_of(metadata: &Metadata) -> LogAttrs {
    let mtime = metadata.mtime().saturating_mul(SECOND).saturating_add(metadata.mtime_nsec());
    LogAttrs {
        mode: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: Some(mtime as Nanos),
    }
}
