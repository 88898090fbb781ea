//! `kestrel-history` on a local file system, which is linearizable, seen through one path, two, and
//! two bind mounts; and on one that is not one tree at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HISTORY: &str = env!("CARGO_BIN_EXE_kestrel-history");

/// A directory of the test's own, removed at its end.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("kestrel-history-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn history(dirs: &[&Path], seed: u64) -> Output {
    let mut command = Command::new(HISTORY);
    command.args(["run", "--threads", "6", "--ops", "600", "--seed", &seed.to_string()]);
    for dir in dirs {
        command.arg("--dir").arg(dir);
    }
    command.output().unwrap()
}

fn passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(text.contains(": linearizable"), "{said}");
}

#[test]
fn a_local_file_system_is_linearizable() {
    let temp = Temp::new("local");
    let real = temp.dir("real");
    let other = temp.0.join("other");
    std::os::unix::fs::symlink(&real, &other).unwrap();
    for seed in 1..=3 {
        passed(&history(&[&real, &other], seed));
    }
    assert_eq!(std::fs::read_dir(&real).unwrap().count(), 0, "it cleans up");
}

/// Needs a mount namespace of its own: as root, or where users may have one.
#[test]
fn two_bind_mounts_are_linearizable() {
    let temp = Temp::new("bind");
    let (real, a, b) = (temp.dir("real"), temp.dir("a"), temp.dir("b"));
    let script = format!(
        "mount --bind {real} {a} && mount --bind {real} {b} || exit 77; \
         exec {HISTORY} run --dir {a} --dir {b} --threads 6 --ops 600 --seed 4",
        real = real.display(),
        a = a.display(),
        b = b.display()
    );
    let unshare =
        Command::new("unshare").args(["--mount", "--map-root-user", "sh", "-c", &script]).output();
    match unshare {
        Ok(output) if output.status.code() != Some(77) && !output.stdout.is_empty() => {
            passed(&output)
        }
        other => eprintln!("skipped: no mount namespace: {other:?}"),
    }
}

#[test]
fn two_trees_are_not_one() {
    let temp = Temp::new("two");
    let (a, b) = (temp.dir("a"), temp.dir("b"));
    let output = history(&[&a, &b], 5);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("is not the same directory"),
        "{output:?}"
    );
    assert_eq!(std::fs::read_dir(&a).unwrap().count(), 0, "it cleans up");
}
