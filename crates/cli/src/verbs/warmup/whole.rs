//! `kestrel warmup --whole`: copies of whole files in the cache, which the kernel reads by itself
//! (docs/cache.md).
//!
//! The asking process walks the paths and names inodes; it holds each file while the serving
//! process works on it, so that this one knows where the inode is.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kestrel_client::fs::WHOLE_BYTES_MIN;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::whole::SUMS;
use kestrel_daemon::units::{bytes, count};
use serde_json::{Value, json};

use super::paths::WarmupPaths;
use super::{WarmupArgs, act};
use crate::progress::{Progress, shown};
use crate::verbs::{ask_with, control_dir, mount_above, print_json};

/// Files in one request, each of which is held open meanwhile.
const FILES_MAX: usize = 256;

/// A file to be dealt with, held open.
struct Held {
    ino: u64,
    _file: Option<File>,
}

/// Files below the paths, gathered into requests by volume.
struct Work {
    volume: Option<PathBuf>,
    held: Vec<Held>,
    done: Value,
    progress: Progress,
    act: &'static str,
}

impl Work {
    fn add(&mut self, volume: PathBuf, path: &Path) -> Result<(), Failure> {
        if self.held.len() >= FILES_MAX || self.volume.as_ref().is_some_and(|of| *of != volume) {
            self.ask()?;
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
            .open(path);
        let found = match &file {
            Ok(file) => file.metadata(),
            Err(_) => path.symlink_metadata(),
        };
        let Ok(found) = found else { return Ok(()) };
        if found.is_file() && found.len() >= WHOLE_BYTES_MIN {
            self.volume = Some(volume);
            self.held.push(Held { ino: found.ino(), _file: file.ok() });
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<(), Failure> {
        let Some(dir) = self.volume.take() else { return Ok(()) };
        let files: Vec<u64> = self.held.iter().map(|held| held.ino).collect();
        let question = json!({ "verb": "whole", "act": self.act, "files": files });
        let base = self.done["bytes"].as_u64().unwrap_or(0);
        let answer = ask_with("warmup", &dir, &question, None, &mut |mut event| {
            if let Some(so_far) = event["progress"]["count"].as_u64() {
                event["progress"]["count"] = (base + so_far).into();
            }
            shown(&mut self.progress, &event, &mut |event| {
                eprintln!("kestrel warmup: {}", event["failure"].as_str().unwrap_or("?"));
            });
        })?;
        let answer = answer.ok_or_else(|| {
            Failure::new(
                "warmup",
                format!("nobody serves the volume {}; mount it again", dir.display()),
            )
        })?;
        for name in SUMS {
            self.done[name] =
                (self.done[name].as_u64().unwrap_or(0) + answer[name].as_u64().unwrap_or(0)).into();
        }
        self.held.clear();
        Ok(())
    }
}

/// Makes, checks or drops whole copies.
pub fn run(args: &WarmupArgs) -> Result<ExitStatus, Failure> {
    let mut work = Work {
        volume: None,
        held: Vec::new(),
        done: json!({}),
        progress: Progress::new(),
        act: act(args),
    };
    SUMS.iter().for_each(|name| work.done[*name] = 0.into());
    let mut wishes = WarmupPaths::new(args)?;
    while let Some(path) = wishes.next_path()? {
        let fail = |why: &dyn std::fmt::Display| {
            Failure::new("warmup", format!("{}: {why}", path.display()))
        };
        let path = std::fs::canonicalize(&path).map_err(|why| fail(&why))?;
        let volume = control_dir(&mount_above("warmup", &path)?);
        let mut left = vec![path];
        while let Some(path) = left.pop() {
            match std::fs::read_dir(&path) {
                Ok(entries) => left.extend(entries.flatten().map(|entry| entry.path())),
                Err(_) => work.add(volume.clone(), &path)?,
            }
        }
    }
    work.ask()?;
    let Work { mut done, progress, .. } = work;
    drop(progress);
    done["missing_paths"] = wishes.missing().into();
    if args.json {
        print_json(&done);
    } else {
        let number = |name: &str| done[name].as_u64().unwrap_or(0);
        let files = count(number("files"));
        if work.act == "evict" {
            println!("{files} files: {} of whole copies dropped", bytes(number("dropped_bytes")));
        } else {
            println!(
                "{files} files of {} and more with {}: {} with {} have whole copies",
                bytes(WHOLE_BYTES_MIN),
                bytes(number("bytes")),
                count(number("whole_files")),
                bytes(number("whole_bytes"))
            );
        }
        if number("failed") > 0 {
            println!("{} files could not be copied", count(number("failed")));
        }
    }
    let good = done["failed"] == 0 && done["missing_paths"] == 0;
    Ok(if good { ExitStatus::Good } else { ExitStatus::Bad })
}
