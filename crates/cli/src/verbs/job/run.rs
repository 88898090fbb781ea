//! A command in the namespace of a job: the job is mounted for it, and unmounted behind it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus as ChildStatus};
use std::time::Duration;

use clap::Args;
use kestrel_client::job::BegunJob;
use kestrel_daemon::failure::{ExitStatus, Failure};

use super::super::snapshot::KeyArgs;
use super::server::{JOB_ENV, address, output_of, program, store_options, upload_option};
use super::{InputArgs, begin, fail, jobs_of, print_published, publish, resources};
use crate::args::upload_every_arg;

/// The variable with the directory that the job is mounted at.
const DIR_ENV: &str = "KESTREL_JOB_DIR";

/// Run a command in a new job, and publish what it has made if it succeeds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel job run /data/vol --input raw@1 --publish clean@1 -- ./clean.sh
  kestrel job run /data/vol --publish made@1 -- sh -c 'tar xf /tmp/set.tar'
  kestrel job run /data/vol --resume 7 -- ./clean.sh

The command runs in the root of the job's namespace, which KESTREL_JOB_DIR names as well. If it
fails nothing is published, and the job is kept: --resume runs another command in it, `kestrel job
publish` publishes it all the same, `kestrel job abort` removes it.")]
pub struct RunArgs {
    /// The volume: a path in a mount, its directory, s3://… or kestrel://…
    volume: OsString,
    /// A version with the tree that the job begins with; may be repeated: the first one counts most
    #[arg(long = "input", value_name = "VERSION", conflicts_with = "resume")]
    inputs: Vec<String>,
    /// The name of the version that the job becomes, which must be free: as clean@1
    #[arg(long = "publish", value_name = "NAME", required_unless_present = "resume")]
    name: Option<String>,
    /// Go on with a job that was begun: its number, or the name that its version gets
    #[arg(long, value_name = "JOB")]
    resume: Option<String>,
    /// With --resume: take the job over from a process of another machine
    #[arg(long, requires = "resume")]
    take_over: bool,
    /// How long changes may wait for their upload if nothing syncs them, 10ms to 1h
    #[arg(long, value_name = "TIME", value_parser = upload_every_arg, default_value = "5s")]
    upload_every: Duration,
    /// Do not publish, whatever comes of the command
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    run: CommandArgs,
}

/// Run a command in a job that is served (`kestrel job start`).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel job join -- ./part.sh 1
  kestrel job join kestrel://10.0.0.7:9500/clean@1 -- ./part.sh 2")]
pub struct JoinArgs {
    /// The address of the job; by default the one that KESTREL_JOB names
    job: Option<String>,
    #[command(flatten)]
    run: CommandArgs,
}

/// A command, and how the job is mounted for it.
#[derive(Debug, Args)]
struct CommandArgs {
    #[command(flatten)]
    mount: MountArgs,
    /// The command, with its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// How a job is mounted.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// Where: an existing directory; by default one is made, and removed again
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Directory on a local disk that keeps what was read and written
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    pub store: KeyArgs,
}

/// A job that is mounted.
pub struct Mounted {
    pub dir: PathBuf,
    /// It was made for this.
    is_made: bool,
}

impl Mounted {
    /// Mounts what `source` names.
    pub fn at(source: &str, args: &MountArgs, options: &[String]) -> Result<Self, Failure> {
        let dir = match &args.mount {
            Some(dir) => {
                std::path::absolute(dir).map_err(|why| fail(format!("{}: {why}", dir.display())))?
            }
            None => {
                let made = tempfile::Builder::new().prefix("kestrel-job-").tempdir();
                made.map_err(|why| fail(format!("a directory to mount at: {why}")))?.keep()
            }
        };
        let mounted = Self { dir, is_made: args.mount.is_none() };
        let mut mount = program()?;
        mount.args(["mount", source]).arg(&mounted.dir).args(store_options(&args.store));
        if let Some(cache) = &args.cache_dir {
            mount.arg("--cache-dir").arg(cache);
        }
        mount.args(options);
        let done = output_of(&mut mount);
        if done.is_err() {
            mounted.remove_dir();
        }
        done.map(|_| mounted)
    }

    fn remove_dir(&self) {
        if self.is_made {
            // Not empty: it is still mounted.
            let _ = std::fs::remove_dir(&self.dir);
        }
    }

    /// Unmounts it: everything is stored then.
    pub fn end(self) -> Result<(), Failure> {
        output_of(program()?.arg("umount").arg(&self.dir))?;
        self.remove_dir();
        Ok(())
    }
}

/// Runs a command, which gets the signals of the terminal itself.
pub fn run_command(
    command: &[OsString],
    dir: &Path,
    address: Option<&str>,
) -> Result<ChildStatus, Failure> {
    let [name, arguments @ ..] = command else { return Err(Failure::usage("job: no command")) };
    // This process waits for the command, whatever signal reaches both.
    kestrel_daemon::signals::on_signal(|_| ());
    let mut child = Command::new(name);
    child.args(arguments).current_dir(dir).env(DIR_ENV, dir);
    if let Some(address) = address {
        child.env(JOB_ENV, address);
    }
    let failed = |why: std::io::Error| fail(format!("{}: {why}", name.to_string_lossy()));
    child.status().map_err(failed)
}

/// What became of a command, for people.
pub fn told(status: ChildStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command ended with status {code}"),
        (None, Some(signal)) => format!("the command was ended by signal {signal}"),
        (None, None) => "the command did not end as it should".into(),
    }
}

/// See [`RunArgs`].
pub fn run(args: &RunArgs) -> Result<ExitStatus, Failure> {
    let jobs = jobs_of(&args.volume, &args.run.mount.store)?;
    let job: BegunJob = match (&args.resume, &args.name) {
        (Some(job), _) => {
            let record = jobs.find(job).map_err(fail)?;
            if !jobs.servers(&record).map_err(fail)?.is_empty() {
                return Err(fail(format!(
                    "not supported: job {} has several servers; serve it with `kestrel job \
                     resume`, and run the command with `kestrel job join`",
                    record.number()
                )));
            }
            jobs.resume(record).map_err(fail)?
        }
        (None, name) => {
            let name = name.clone().unwrap_or_default();
            begin(&jobs, &InputArgs { inputs: args.inputs.clone(), name }, Vec::new())?
        }
    };
    let number = job.record.number();
    let keep = |why: String| {
        fail(format!(
            "{why}; job {number} is kept: go on with `kestrel job run VOLUME --resume {number}`, \
             or end it with `kestrel job publish` or `kestrel job abort`"
        ))
    };
    let source = job.dir.to_string_lossy().into_owned();
    let mut options = upload_option(args.upload_every).to_vec();
    if args.take_over {
        options.push("--take-over".into());
    }
    let mounted = Mounted::at(&source, &args.run.mount, &options)?;
    let status = run_command(&args.run.command, &mounted.dir, None);
    mounted.end()?;
    let status = status?;
    if !status.success() {
        return Err(keep(told(status)));
    }
    if args.keep {
        eprintln!("job {number} is kept");
        return Ok(ExitStatus::Good);
    }
    let name = args.name.as_deref();
    let done =
        publish(&jobs, &job.record, (name, false), &resources(&args.run.mount.store, false))?;
    print_published(&done, false);
    Ok(ExitStatus::Good)
}

/// See [`JoinArgs`].
pub fn join(args: &JoinArgs) -> Result<ExitStatus, Failure> {
    let named = std::env::var(JOB_ENV).ok().filter(|address| !address.is_empty());
    let Some(job) = args.job.clone().or(named) else {
        return Err(Failure::usage(format!(
            "job join: which job? Give its address, or set {JOB_ENV} as `kestrel job start` says"
        )));
    };
    let source = match Path::new(&job).is_dir() {
        true => address(Path::new(&job)).unwrap_or(job),
        false => job,
    };
    let mounted = Mounted::at(&source, &args.run.mount, &[])?;
    let status = run_command(&args.run.command, &mounted.dir, Some(&source));
    mounted.end()?;
    match status? {
        status if status.success() => Ok(ExitStatus::Good),
        status => Err(fail(told(status))),
    }
}
