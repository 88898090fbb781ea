//! Going to the background: this program starts itself again, detached from the terminal, and waits
//! until the copy says that it serves. The copy says so on its standard output, one line of JSON;
//! standard error is the log file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// Option, unknown to users, that tells the copy to report.
pub const REPORT_OPTION: &str = "--report-readiness";

/// Starts this program again with the same arguments and `--foreground`, and returns what it
/// reports: its process number.
///
/// # Errors
/// What the copy says went wrong, or that it ended without a word.
pub fn start(log: &Path) -> Result<u32, String> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    launch(&args, Path::new("."), log).map(|child| child.id())
}

/// The same with other arguments, from the directory `dir`, and for a caller that stays: the
/// process.
///
/// # Errors
/// As for [`start`].
pub fn launch(args: &[OsString], dir: &Path, log: &Path) -> Result<Child, String> {
    let describe = |why: std::io::Error| {
        format!("cannot open the log {}: {why}; name another with --log", log.display())
    };
    let log_file =
        OpenOptions::new().create(true).append(true).mode(0o600).open(log).map_err(describe)?;
    // The program that runs, also when a newer one has been put in the place of its file.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("kestrel")
        .args(args)
        .current_dir(dir)
        // A unit of systemd has one main process, which is this one.
        .env_remove(crate::service_manager::SOCKET_ENV)
        .args(["--foreground", REPORT_OPTION])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file);
    // SAFETY: setsid is async-signal-safe and takes nothing.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child =
        command.spawn().map_err(|why| format!("cannot start in the background: {why}"))?;
    let mut report = Value::Null;
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        report = line.ok().and_then(|line| serde_json::from_str(&line).ok()).unwrap_or_default();
        match report["waiting"].as_str() {
            Some(what) => eprintln!("kestrel: {what}"),
            None => break,
        }
    }
    if report["ready"] == true {
        return Ok(child);
    }
    let _ = child.wait();
    Err(match report["error"].as_str() {
        Some(why) => why.to_string(),
        None => format!("the process ended before it served; its log is {}", log.display()),
    })
}

/// Tells the waiting parent that this process serves, and lets go of its output.
pub fn report_ready() {
    report(&json!({ "ready": true }));
    let_go();
}

/// Lets go of this process's output, at the other end of which somebody may wait for its end.
pub fn let_go() {
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        // SAFETY: both descriptors are open; 1 is ours to replace.
        unsafe { libc::dup2(nothing.as_raw_fd(), 1) };
    }
}

/// Tells a person what is waited for: by way of the parent, if this process is one in the
/// background.
pub fn tell_waiting(what: &str) {
    if std::env::args_os().any(|arg| arg == REPORT_OPTION) {
        log::info!("{what}");
        report(&json!({ "waiting": what }));
    } else {
        eprintln!("kestrel: {what}");
    }
}

/// Tells the waiting parent what went wrong.
pub fn report_error(why: &str) {
    report(&json!({ "error": why }));
}

fn report(value: &Value) {
    let mut out = std::io::stdout();
    // Nobody may be listening any more; then nobody needs to know.
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}
