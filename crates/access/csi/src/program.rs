//! Running `kestrel`, this very program, for what is done to a volume.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `kestrel` with these arguments, and returns what it prints.
///
/// # Errors
/// What it says went wrong.
pub fn kestrel<A: AsRef<OsStr>>(args: &[A], token: Option<&Path>) -> Result<String, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(args).stdin(Stdio::null());
    if let Some(token) = token {
        command.env("KESTREL_TOKEN_FILE", token);
    }
    let output = command.output().map_err(|why| format!("cannot run kestrel: {why}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_string())
}
