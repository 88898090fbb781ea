//! Which processes keep a mount busy: those with a working directory, a root, an open file, a
//! program or mapped memory in it.
//!
//! Only /proc is read, never the mount: its server may not answer.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most processes that are named.
const NAMED_MAX: usize = 5;

/// A process and one of the things by which it keeps a mount busy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    name: String,
    by: String,
}

/// The processes that keep a mount busy, by their numbers. Those of others are seen by root only.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<u32, User>);

impl Users {
    /// Those of what is mounted at a directory, as far as they can be seen.
    pub fn of(mount_point: &Path) -> Self {
        let Ok(processes) = fs::read_dir("/proc") else { return Self::default() };
        let numbers =
            processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(numbers.filter_map(|pid| Some((pid, user(pid, mount_point)?))).collect())
    }
}

impl fmt::Display for Users {
    /// `bash (process 12, working directory), tail (process 15, /mnt/log) and 3 more`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (pid, user)) in self.0.iter().take(NAMED_MAX).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} (process {pid}, {})", user.name, user.by)?;
        }
        match self.0.len() {
            0 => f.write_str("a process that is not seen from here, or another mount below it"),
            all if all > NAMED_MAX => write!(f, " and {} more", all - NAMED_MAX),
            _ => Ok(()),
        }
    }
}

fn user(pid: u32, mount_point: &Path) -> Option<User> {
    let place = PathBuf::from(format!("/proc/{pid}"));
    let by = link(&place, "cwd", mount_point, "working directory")
        .or_else(|| link(&place, "root", mount_point, "root directory"))
        .or_else(|| link(&place, "exe", mount_point, "program"))
        .or_else(|| open_file(&place, mount_point))
        .or_else(|| mapped(&place, mount_point))?;
    let name = fs::read_to_string(place.join("comm")).unwrap_or_default();
    Some(User { name: name.trim_end().into(), by })
}

fn link(place: &Path, name: &str, mount_point: &Path, what: &str) -> Option<String> {
    let target = fs::read_link(place.join(name)).ok()?;
    target.starts_with(mount_point).then(|| what.into())
}

fn open_file(place: &Path, mount_point: &Path) -> Option<String> {
    let files = fs::read_dir(place.join("fd")).ok()?;
    let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets
        .find(|target| target.starts_with(mount_point))
        .map(|target| target.display().to_string())
}

fn mapped(place: &Path, mount_point: &Path) -> Option<String> {
    let maps = fs::read(place.join("maps")).ok()?;
    // The path begins at the first slash: nothing before it has one.
    let mut paths = maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'/')?;
        Some(Path::new(std::ffi::OsStr::from_bytes(&line[at..])))
    });
    paths.find(|path| path.starts_with(mount_point)).map(|path| format!("maps {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use std::process::{Child, Command};

    use super::*;

    /// Ends a process, however the test ends.
    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Processes with a working directory or an open file in a directory are named, and no others.
    #[test]
    fn users_of_a_directory_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(Users::of(&place.join("none")), Users::default());
        let sleeper = Ends(Command::new("sleep").arg("600").current_dir(&place).spawn().unwrap());
        let file = fs::File::create(place.join("file")).unwrap();
        let reader = Ends(Command::new("sleep").arg("600").stdin(file).spawn().unwrap());
        let users = Users::of(&place);
        let of = |child: &Ends| users.0.get(&child.0.id()).cloned().unwrap();
        assert_eq!(
            (of(&sleeper).name.as_str(), of(&sleeper).by.as_str()),
            ("sleep", "working directory")
        );
        assert_eq!(of(&reader).by, place.join("file").display().to_string());
        let text = users.to_string();
        assert!(
            text.contains(&format!("sleep (process {}, working directory)", sleeper.0.id())),
            "{text}"
        );
    }

    /// Only a few are named.
    #[test]
    fn many_users_are_counted() {
        let user = |pid| (pid, User { name: "cat".into(), by: "/m/f".into() });
        let text = Users((1..=7).map(user).collect()).to_string();
        assert!(
            text.starts_with("cat (process 1, /m/f), cat (process 2")
                && text.ends_with(" and 2 more"),
            "{text}"
        );
    }
}
