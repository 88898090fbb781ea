//! Mounts served by a process of their own, for tests in which the server dies or lacks privileges:
//! this test program started again, with the one ignored test below and its orders in the
//! environment.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use kestrel_fuse::null::{NullFs, NullOptions};
use kestrel_fuse::{Mount, MountOptions, Session};

use crate::kit::TempDir;

/// Environment variables of the helper.
const DIR: &str = "KESTREL_FUSE_TEST_DIR";
const OPTIONS: &str = "KESTREL_FUSE_TEST_OPTIONS";

/// A running helper; killed when dropped.
pub struct Helper {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// What it executes.
    _programs: TempDir,
}

impl Helper {
    /// Starts a server of the null file system on `dir` as user `uid`, with options as of
    /// `mount -o`. Returns when it serves, or with what it complains about.
    pub fn serve(dir: &Path, options: &str, uid: u32) -> Result<Helper, String> {
        // Another user need not be able to reach the directory that this was built in. A copy that
        // this process writes itself may be open in a child of another test when it is executed.
        let programs = TempDir::new();
        let program = programs.path().join("helper");
        let copy = ["-m", "755"].map(Into::into).into_iter();
        let copy = copy.chain([std::env::current_exe().unwrap(), program.clone()]);
        assert!(Command::new("install").args(copy).status().unwrap().success());
        let mut command = Command::new(program);
        command
            .args(["--exact", "helper::serve", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(DIR, dir)
            .env(OPTIONS, options)
            .current_dir("/")
            .uid(uid)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut helper = Helper { child, lines, _programs: programs };
        loop {
            let line = helper.line();
            if line == "serving" {
                return Ok(helper);
            }
            if let Some(error) = line.strip_prefix("failed: ") {
                return Err(error.to_owned());
            }
        }
    }

    /// The next line of its output; empty at the end.
    pub fn line(&mut self) -> String {
        // The test harness begins its own line without an end.
        let line =
            self.lines.next().map(Result::unwrap).unwrap_or("failed: the helper ended".into());
        line.rsplit_once("... ").map_or(line.clone(), |(_, text)| text.to_owned())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The helper itself; does nothing unless it is given a directory.
#[test]
#[ignore = "started by other tests"]
fn serve() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let mut options = MountOptions::default();
    let mut config = crate::kit::config();
    for option in
        std::env::var(OPTIONS).unwrap_or_default().split(',').filter(|option| !option.is_empty())
    {
        match option {
            "use_helper" => options.use_helper = true,
            "one_worker" => config.workers = 1,
            _ => assert!(options.set(option), "{option}"),
        }
    }
    let session = Mount::new(dir.as_ref(), &options)
        .and_then(|mount| Session::start(mount, NullFs::new(NullOptions::default()), &config));
    match session {
        Ok(session) => {
            println!("\nserving");
            let end = session.join();
            println!("\nended {end:?}");
        }
        Err(error) => println!("\nfailed: {error}"),
    }
}
