//! `kestrel watch`.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_daemon::ask::path_bytes;
use kestrel_daemon::failure::{ExitStatus, Failure};
use serde_json::{Value, json};

use super::shown_name;
use super::snapshot::KeyArgs;
use super::snapshot::place::Place;

/// The verb in messages.
const VERB: &str = "watch";

/// Events that are asked for at once.
const PAGE_EVENTS: u64 = 1024;

/// Rests between questions while nothing happens: the first, and the longest.
const REST_FIRST: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_millis(40);

/// Rest before the next question when a node has not answered.
const REST_UNREACHABLE: Duration = Duration::from_secs(1);

/// How old the cursor in a file may be while nothing happens: events that are not below the
/// directory expire, and a cursor before them is too late.
const CURSOR_AGE_MAX: Duration = Duration::from_secs(30);

/// Longest content of a file with a cursor, bytes.
const CURSOR_BYTES_MAX: u64 = 1024;

/// Show what changes below a directory, by whichever client, as it happens or since a cursor.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel policy set /mnt/data/train feed=7d
  kestrel watch /mnt/data/train
  kestrel watch /mnt/data/train --since oldest --no-wait --json
  kestrel watch /mnt/data/train --cursor-file /var/lib/index/cursor --exec 'index \"$KESTREL_PATH\"'
  kestrel watch kestrel://10.0.0.1/photos:/train

Changes are recorded below a directory with the policy feed=TIME, and kept for that time. Events are
create, remove, rename, exchange, moved-in, moved-out, modify (content of a file, when it reaches
the volume: at the latest at close and fsync) and attributes; names are paths from DIR as they were.
Events of one name are in the order of the changes, and none is left out; after a restart some may
come again. A directory that moves in or out, or is removed by kestrel rm -r, is one event for its
tree. docs/datasets.md tells more.

--since goes on after a cursor, from which nothing is missed, also over restarts of the volume; a
reader that comes too late hears so, and which snapshot to compare with. --json prints one object a
line: {\"cursor\", \"time\", \"time_ns\", \"event\", \"type\", \"inode\", \"path\"}, with \"to\" and
\"replaced\" where an event has two names, and with --no-wait {\"cursor\"} at the end. --exec runs a
command by sh for each event, with KESTREL_EVENT, KESTREL_PATH, KESTREL_TO, KESTREL_TYPE,
KESTREL_INODE, KESTREL_CURSOR and KESTREL_DIR in its environment; one that fails ends the watch, and
the event comes again. Only root reads a feed: it tells of all that is below the directory.")]
pub struct WatchArgs {
    /// A directory: a path in a mount, or VOLUME:/dir
    path: OsString,
    /// Begin after this cursor; `now` and `oldest` are cursors, too
    #[arg(long, value_name = "CURSOR", default_value = "now")]
    since: String,
    /// Keep the cursor in a file, and begin after the one that is in it
    #[arg(long, value_name = "FILE")]
    cursor_file: Option<PathBuf>,
    /// Run a command for each event, in place of printing it
    #[arg(long, value_name = "COMMAND", conflicts_with = "json")]
    exec: Option<OsString>,
    /// End when no more events are there
    #[arg(long)]
    no_wait: bool,
    /// Print JSON, one event a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Shows the events.
pub fn run(args: &WatchArgs) -> Result<ExitStatus, Failure> {
    let since = match &args.cursor_file {
        Some(file) => read_cursor(file)?.unwrap_or_else(|| args.since.clone()),
        None => args.since.clone(),
    };
    let mut place = Place::of(&args.path, &args.store.store()).map_err(|why| why.of(VERB))?;
    let mut question = json!({ "act": "feed", "from": since, "limit": PAGE_EVENTS });
    let mut output = Output::new(args);
    let (mut rest, mut is_told, mut written) = (REST_FIRST, false, None::<Instant>);
    let mut is_waiting = false;
    loop {
        let from = question["from"].as_str().unwrap_or_default().to_owned();
        let goes_on = |why: Failure| match is_told && !why.reason().contains("--since") {
            true => Failure::new(VERB, format!("{}; go on with --since {from}", why.reason())),
            false => why.of(VERB),
        };
        let mut page = place.ask(question.clone()).map_err(goes_on)?;
        if let Some(why) = page["unreachable"].as_str() {
            if args.no_wait {
                return Err(goes_on(place.fail(why)));
            }
            if !std::mem::replace(&mut is_waiting, true) {
                eprintln!("kestrel watch: {why}; it goes on when they answer");
            }
            std::thread::sleep(REST_UNREACHABLE);
            continue;
        }
        is_waiting = false;
        let events = page["events"].as_array().map_or(&[][..], Vec::as_slice);
        output.page(events, &from)?;
        let cursor = page["cursor"].as_str().unwrap_or_default().to_owned();
        if let Some(file) = &args.cursor_file
            && (!events.is_empty()
                || written.is_none_or(|written| written.elapsed() >= CURSOR_AGE_MAX))
        {
            write_cursor(file, &cursor)?;
            written = Some(Instant::now());
        }
        let is_quiet = events.is_empty();
        if page["more"] == true {
            // Of several nodes one may be about to end a batch.
            if is_quiet {
                std::thread::sleep(REST_FIRST);
            }
        } else {
            if args.no_wait {
                output.end(&cursor)?;
                return place.close().map_err(|why| why.of(VERB));
            }
            if place.is_own() {
                return Err(place
                    .fail(
                        "no process serves the volume, so nothing changes: mount it, or --no-wait",
                    )
                    .of(VERB));
            }
            rest = if is_quiet { (rest * 2).min(REST_MAX) } else { REST_FIRST };
            std::thread::sleep(rest);
        }
        (question["from"], is_told) = (cursor.into(), true);
        // By number: a directory that is renamed meanwhile is watched on.
        question["dir"] = page["dir"].take();
    }
}

/// The cursor in a file; `None` if there is no such file.
fn read_cursor(file: &Path) -> Result<Option<String>, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new(VERB, format!("{}: {why}: remove it to begin anew", file.display()))
    };
    match std::fs::metadata(file) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(fail(&why)),
        Ok(meta) if meta.len() > CURSOR_BYTES_MAX || !meta.is_file() => {
            return Err(fail(&"not a file with a cursor"));
        }
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(file).map_err(|why| fail(&why))?;
    let cursor = text.trim();
    if cursor.is_empty() { Err(fail(&"no cursor in it")) } else { Ok(Some(cursor.into())) }
}

/// Puts a cursor into a file, which has the former one or this one whatever happens.
fn write_cursor(file: &Path, cursor: &str) -> Result<(), Failure> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let written = std::fs::File::create(&new)
        .and_then(|mut made| {
            writeln!(made, "{cursor}")?;
            made.sync_all()
        })
        .and_then(|()| std::fs::rename(&new, file));
    written.map_err(|why| {
        Failure::new(VERB, format!("{}: {why}; go on with --since {cursor}", file.display()))
    })
}

/// What becomes of events.
struct Output<'a> {
    args: &'a WatchArgs,
    out: BufWriter<io::StdoutLock<'static>>,
    /// Names go to a person: control characters are shown, not sent.
    escapes: bool,
}

impl<'a> Output<'a> {
    fn new(args: &'a WatchArgs) -> Self {
        let out = io::stdout().lock();
        let escapes = out.is_terminal();
        Self { args, out: BufWriter::new(out), escapes }
    }

    /// Deals with the events after a cursor.
    fn page(&mut self, events: &[Value], from: &str) -> Result<(), Failure> {
        if let Some(command) = &self.args.exec {
            let mut before = from;
            for event in events {
                self.execute(command, event, before)?;
                before = event["cursor"].as_str().unwrap_or_default();
                if let Some(file) = &self.args.cursor_file {
                    write_cursor(file, before)?;
                }
            }
            return Ok(());
        }
        let written = events.iter().try_for_each(|event| match self.args.json {
            true => writeln!(self.out, "{event}"),
            false => self.line(event),
        });
        // What has happened is shown before the next question.
        written.and_then(|()| self.out.flush()).map_err(|why| Failure::new(VERB, why))
    }

    fn line(&mut self, event: &Value) -> io::Result<()> {
        let text = |field: &str| event[field].as_str().unwrap_or("-");
        write!(self.out, "{}  {:<10}  ", text("time"), text("event"))?;
        self.name(&event["path"])?;
        if !event["to"].is_null() {
            self.out.write_all(b" -> ")?;
            self.name(&event["to"])?;
        }
        self.out.write_all(b"\n")
    }

    fn name(&mut self, name: &Value) -> io::Result<()> {
        let name = path_bytes(name).unwrap_or_default();
        match self.escapes {
            true => self.out.write_all(shown_name(&name).as_bytes()),
            false => self.out.write_all(&name),
        }
    }

    fn execute(&self, command: &OsStr, event: &Value, before: &str) -> Result<(), Failure> {
        let path = |field: &str| OsString::from_vec(path_bytes(&event[field]).unwrap_or_default());
        let text = |field: &str| event[field].as_str().unwrap_or_default();
        let status = Command::new("sh")
            .arg("-c")
            .arg(command)
            .env("KESTREL_EVENT", text("event"))
            .env("KESTREL_PATH", path("path"))
            .env("KESTREL_TO", path("to"))
            .env("KESTREL_TYPE", text("type"))
            .env("KESTREL_INODE", event["inode"].to_string())
            .env("KESTREL_CURSOR", text("cursor"))
            .env("KESTREL_DIR", &self.args.path)
            .status();
        let why = match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(why) => why.to_string(),
        };
        let (kind, name) = (text("event"), path("path"));
        Err(Failure::new(
            VERB,
            format!(
                "{}: {why}, for {kind} of {}; go on with --since {before}",
                command.to_string_lossy(),
                shown_name(name.as_bytes()),
            ),
        ))
    }

    /// Nothing more is there.
    fn end(&mut self, cursor: &str) -> Result<(), Failure> {
        if self.args.json {
            let line = json!({ "cursor": cursor });
            let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
            written.map_err(|why| Failure::new(VERB, why))?;
        } else if self.args.exec.is_none() {
            eprintln!("kestrel watch: that is all; what comes later follows --since {cursor}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// A file has the cursor that was written last; what holds none is refused.
    #[test]
    fn cursor_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cursor");
        assert_eq!(read_cursor(&file).unwrap(), None);
        for cursor in ["1-2-3-4-5", "1-2-4-4-5"] {
            write_cursor(&file, cursor).unwrap();
            assert_eq!(read_cursor(&file).unwrap().as_deref(), Some(cursor));
        }
        std::fs::write(&file, "\n").unwrap();
        assert!(read_cursor(&file).is_err());
        std::fs::write(&file, vec![b'1'; 2000]).unwrap();
        assert!(read_cursor(&file).is_err());
        assert!(read_cursor(dir.path()).is_err());
    }
}
