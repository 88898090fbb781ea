//! The process that serves a job: `kestrel serve` on the job's directory.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
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

/// The file in a job's directory with the token of its processes.
const TOKEN_FILE: &str = "token";

/// How a job is served.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Where the job's server listens: ADDRESS:PORT; port 0: any that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: String,
    /// How long changes may wait for their upload if nothing syncs them, 10ms to 1h
    #[arg(long, value_name = "TIME", value_parser = upload_every_arg, default_value = "5s")]
    upload_every: Duration,
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

/// Where a job is served on this machine, if it is.
pub fn address(dir: &Path) -> Option<String> {
    let told = ask("job", dir, &json!({ "verb": "status" }), QUICK).ok()??;
    let (address, name) = (told["address"].as_str()?, told["name"].as_str()?);
    Some(format!("kestrel://{address}/{name}"))
}

/// Has the server of a job end.
pub fn stop(dir: &Path) -> Result<(), Failure> {
    output_of(program()?.arg("serve").arg(dir).arg("--stop")).map(drop)
}

/// Serves a job, and prints how processes find it.
pub fn start(
    job: &BegunJob,
    args: &ServerArgs,
    store: &KeyArgs,
    take_over: bool,
) -> Result<ExitStatus, Failure> {
    let mut serve = program()?;
    serve.arg("serve").arg(&job.dir).args(["--listen", &args.listen]);
    serve.args(upload_option(args.upload_every)).args(store_options(store));
    if take_over {
        serve.arg("--take-over");
    }
    output_of(&mut serve)?;
    let address = address(&job.dir)
        .ok_or_else(|| fail("the job's server does not answer; see its log in its directory"))?;
    let token = make_token(job)?;
    println!("{JOB_ENV}='{address}'; export {JOB_ENV}");
    println!("{TOKEN_FILE_ENV}='{}'; export {TOKEN_FILE_ENV}", token.display());
    eprintln!("job {} is served at {address}; it becomes {}", job.record.number(), job.record.name);
    Ok(ExitStatus::Good)
}

/// A token for processes on other machines, in a file that only this user reads.
fn make_token(job: &BegunJob) -> Result<std::path::PathBuf, Failure> {
    let path = job.dir.join(TOKEN_FILE);
    if path.exists() {
        return Ok(path);
    }
    // A machine that served it before has made one, too.
    let name = format!("job-{}-{}", job.record.number(), SystemClock.now());
    let token =
        output_of(program()?.args(["token", "create"]).arg(&job.dir).args(["--name", &name]))?;
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
