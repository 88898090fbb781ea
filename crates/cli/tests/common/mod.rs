//! Runs the program, with a deadline.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// No call may take longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// The program with these arguments.
pub fn kestrel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kestrel"));
    command.args(args).stdin(Stdio::null());
    command
}

/// What a run gave.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|why| panic!("{why}: {}{}", self.out, self.err))
    }

    /// Expects an exit code and a text in what was printed.
    pub fn expect(self, code: i32, text: &str) -> Self {
        let all = format!("{}{}", self.out, self.err);
        assert!(
            self.code == code && all.contains(text),
            "expected {code} and {text:?}, got {}:\n{all}",
            self.code
        );
        self
    }
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Run {
    let begun = Instant::now();
    let Output { status, stdout, stderr } = kestrel(args).output().expect("it runs");
    assert!(begun.elapsed() < DEADLINE, "{args:?} took {:?}", begun.elapsed());
    Run {
        code: status.code().unwrap_or(-1),
        out: String::from_utf8(stdout).expect("UTF-8"),
        err: String::from_utf8(stderr).expect("UTF-8"),
    }
}

/// A place for a volume and a mount.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().expect("temporary directory") };
        std::fs::create_dir(place.mount_point()).expect("mkdir");
        place
    }

    /// With a formatted volume.
    pub fn formatted() -> Self {
        let place = Self::new();
        run(&["format", &place.volume()]).expect(0, "created");
        place
    }

    /// With a volume that is mounted.
    pub fn mounted() -> Self {
        let place = Self::formatted();
        place.mount(&[]).expect(0, "");
        place
    }

    /// Expects a check of the volume, stored bytes included, to find nothing.
    pub fn check_data(&self) {
        run(&["fsck", "--data", &self.volume()]).expect(0, "clean");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_string()
    }

    pub fn volume(&self) -> String {
        self.name("vol")
    }

    pub fn mount_point(&self) -> PathBuf {
        self.path("mnt")
    }

    pub fn mnt(&self) -> String {
        self.name("mnt")
    }

    pub fn mount(&self, options: &[&str]) -> Run {
        run(&[&["mount", &self.volume(), &self.mnt()], options].concat())
    }

    pub fn umount(&self) {
        run(&["umount", &self.mnt()]).expect(0, "");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whatever a failing test left mounted.
        let _ = kestrel(&["umount", "--force", &self.mnt()]).stderr(Stdio::null()).status();
    }
}

/// All files below a directory with their content.
pub fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(next) = todo.pop() {
        for entry in std::fs::read_dir(&next).expect("readdir") {
            let path = entry.expect("entry").path();
            let relative = path.strip_prefix(dir).expect("below").to_path_buf();
            if path.is_symlink() {
                let target = std::fs::read_link(&path).expect("readlink");
                found.push((relative, target.to_string_lossy().into_owned().into_bytes()));
            } else if path.is_dir() {
                found.push((relative, Vec::new()));
                todo.push(path);
            } else {
                found.push((relative, std::fs::read(&path).expect("read")));
            }
        }
    }
    found.sort();
    found
}
