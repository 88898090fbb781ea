//! The process that serves a job: `kestrel serve` on the job's directory.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use kestrel_client::control::QUICK;
use kestrel_client::job::BegunJob;
use kestrel_client::remote::TOKEN_FILE_ENV;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::json;

use super::super::ask;
use super::super::snapshot::KeyArgs;
use super::fail;
use crate::args::upload_every_arg;

/// The variable by which processes find their job.
pub const JOB_ENV: &str = "KESTREL_JOB";

/// Where a server listens that is told nothing.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:0";

/// The file in a job's directory with the token of its processes.
const TOKEN_FILE: &str = "token";

/// How a job is served.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Where the job's server listens: ADDRESS:PORT; port 0: any that is free. Several servers have
    /// the ports from this one on [default: 127.0.0.1:0, or where a server was before]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// How long changes may wait for their upload if nothing syncs them, 10ms to 1h
    #[arg(long, value_name = "TIME", value_parser = upload_every_arg, default_value = "5s")]
    pub upload_every: Duration,
}

/// The option for a process that has the job open.
pub fn upload_option(every: Duration) -> [String; 2] {
    ["--upload-every".into(), format!("{}ms", every.as_millis())]
}

/// This program.
pub fn program() -> Result<Command, Failure> {
    let path = std::env::current_exe().map_err(|why| fail(format!("this program: {why}")))?;
    Ok(Command::new(path))
}

/// The options by which the store is reached, for another process.
pub fn store_options(store: &KeyArgs) -> Vec<OsString> {
    let mut out = Vec::new();
    for (name, file) in [("--credentials", &store.credentials), ("--key-file", &store.key_file)] {
        if let Some(file) = file {
            out.extend([OsString::from(name), file.clone().into_os_string()]);
        }
    }
    out
}

/// Runs this program and shows its errors; what it printed.
pub fn output_of(command: &mut Command) -> Result<String, Failure> {
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let done = done.map_err(|why| fail(format!("this program: {why}")))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        // It has said why.
        false => Err(fail("the job is kept")),
    }
}

/// Where the process serves, and what, that serves this directory, if one does.
fn served(dir: &Path) -> Option<(String, String)> {
    let told = ask("job", dir, &json!({ "verb": "status" }), QUICK).ok()??;
    Some((told["address"].as_str()?.into(), told["name"].as_str()?.into()))
}

/// Whether a process serves this directory.
pub fn is_served(dir: &Path) -> bool {
    served(dir).is_some()
}

/// Where a job is served on this machine, if it is, by one server or several.
pub fn address(dir: &Path) -> Option<String> {
    let found: Vec<_> = [dir.to_path_buf()]
        .into_iter()
        .chain(server_dirs(dir))
        .filter_map(|dir| served(&dir))
        .collect();
    let (_, name) = found.first()?;
    let addresses: Vec<&str> = found.iter().map(|(address, _)| address.as_str()).collect();
    Some(format!("kestrel://{}/{name}", addresses.join(",")))
}

/// The directories of a job's servers in that of the job.
pub fn server_dirs(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_server = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"server-");
    let mut dirs: Vec<PathBuf> =
        listed.filter(|entry| is_server(&entry.file_name())).map(|entry| entry.path()).collect();
    dirs.sort();
    dirs
}

/// Serves a job, and prints how processes find it.
pub fn start(
    job: &BegunJob,
    args: &ServerArgs,
    store: &KeyArgs,
    take_over: bool,
) -> Result<ExitStatus, Failure> {
    let mut serve = program()?;
    let listen = args.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
    serve.arg("serve").arg(&job.dir).args(["--listen", listen]);
    serve.args(upload_option(args.upload_every)).args(store_options(store));
    if take_over {
        serve.arg("--take-over");
    }
    output_of(&mut serve)?;
    let address = address(&job.dir)
        .ok_or_else(|| fail("the job's server does not answer; see its log in its directory"))?;
    print_address(job, &job.dir, &address)
}

/// Prints how processes find a job that is served at `address`, from `served` among others.
pub fn print_address(job: &BegunJob, served: &Path, address: &str) -> Result<ExitStatus, Failure> {
    let token = make_token(job, served)?;
    println!("{JOB_ENV}='{address}'; export {JOB_ENV}");
    println!("{TOKEN_FILE_ENV}='{}'; export {TOKEN_FILE_ENV}", token.display());
    eprintln!("job {} is served at {address}; it becomes {}", job.record.number(), job.record.name);
    Ok(ExitStatus::Good)
}

/// A token for processes on other machines, in a file that only this user reads; `served` is a
/// directory of the job that is served.
fn make_token(job: &BegunJob, served: &Path) -> Result<PathBuf, Failure> {
    let path = job.dir.join(TOKEN_FILE);
    if path.exists() {
        return Ok(path);
    }
    // A machine that served it before has made one, too.
    let name = format!("job-{}-{}", job.record.number(), SystemClock.now());
    let token =
        output_of(program()?.args(["token", "create"]).arg(served).args(["--name", &name]))?;
    let failed = |why: std::io::Error| fail(format!("{}: {why}", path.display()));
    let partial = job.dir.join(format!("{TOKEN_FILE}.new"));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)
        .map_err(failed)?;
    file.write_all(token.as_bytes()).map_err(failed)?;
    fs::rename(&partial, &path).map_err(failed)?;
    Ok(path)
}
