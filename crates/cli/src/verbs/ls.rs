//! `kestrel ls`.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use kestrel_daemon::ask::{path_bytes, path_value};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::logger::utc;
use serde_json::{Value, json};

use super::shown_name;
use super::snapshot::KeyArgs;
use super::snapshot::place::Place;

/// The verb in messages.
const VERB: &str = "ls";

/// Most entries asked for at once: memory does not grow with the directory.
const PAGE_ENTRIES: u64 = 4096;

/// List the names of a directory by pages, from any name on.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel ls /mnt/data/train --limit 1000
  kestrel ls /mnt/data/train --limit 1000 --after img-0000999.jpg --json
  kestrel ls /mnt/data/train/.snap/monday -l
  kestrel ls kestrel://10.0.0.1/photos:/train

Names come in the order of their bytes. A page costs the same wherever it begins and however large
the directory is: --after names the last name of the page before, which need not exist any more.
Names that are there all the time appear exactly once in pages that follow each other. . and .. are
not listed.

JSON is {\"entries\": [{\"name\", \"inode\", \"type\"}, …], \"last\", \"end\"}: \"last\" is what
--after takes for the next page, \"end\" is true if nothing follows. With -l entries have \"mode\",
\"links\", \"uid\", \"gid\", \"bytes\" and \"mtime_ns\", too. A name that is not UTF-8 is a list of
bytes. Sizes are those of what was flushed. Inode numbers are those of the live tree, also in a
snapshot.

By a path in a mount only root and the user of the mount can list; others name VOLUME:/dir.")]
pub struct LsArgs {
    /// A directory: a path in a mount, or VOLUME:/dir, also below .snap
    path: OsString,
    /// Begin behind this name
    #[arg(long, value_name = "NAME")]
    after: Option<OsString>,
    /// List at most so many names
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Show type, mode, links, owner, group, size and mtime (UTC)
    #[arg(short, long)]
    long: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Lists it.
pub fn run(args: &LsArgs) -> Result<ExitStatus, Failure> {
    let (mut place, snapshot) =
        Place::to_read(&args.path, &args.store.store()).map_err(|why| why.of(VERB))?;
    let mut question = json!({ "act": "ls", "long": args.long });
    if let Some(after) = &args.after {
        question["after"] = path_value(after.as_bytes());
    }
    if let Some((name, below)) = snapshot {
        question["snapshot"] = path_value(&name);
        question["below"] = path_value(&below);
    }
    let mut out = Output::new(args);
    let mut left = args.limit.unwrap_or(u64::MAX);
    loop {
        question["limit"] = left.min(PAGE_ENTRIES).into();
        let mut page = place.ask(question.clone()).map_err(|why| why.of(VERB))?;
        let written = out.page(&page);
        left = left.saturating_sub(page["entries"].as_array().map_or(0, Vec::len) as u64);
        let is_last = page["end"] == true || left == 0 || page["last"].is_null();
        if is_last {
            written.and_then(|()| out.end(&page)).map_err(|why| Failure::new(VERB, why))?;
            return place.close().map_err(|why| why.of(VERB));
        }
        written.map_err(|why| Failure::new(VERB, why))?;
        question["after"] = page["last"].take();
        // By number: a directory that is renamed meanwhile is listed to its end.
        question["dir"] = page["dir"].take();
        question["at"] = page["at"].take();
    }
}

/// What is printed, page by page.
struct Output {
    out: BufWriter<io::StdoutLock<'static>>,
    json: bool,
    long: bool,
    /// Names go to a person: control characters are shown, not sent.
    escapes: bool,
    /// Entries so far.
    count: u64,
    /// The last name so far.
    last: Value,
}

impl Output {
    fn new(args: &LsArgs) -> Self {
        let out = io::stdout().lock();
        let escapes = out.is_terminal();
        let last = args.after.as_ref().map_or(Value::Null, |after| path_value(after.as_bytes()));
        let (json, long) = (args.json, args.long);
        Self { out: BufWriter::new(out), json, long, escapes, count: 0, last }
    }

    fn page(&mut self, page: &Value) -> io::Result<()> {
        for entry in page["entries"].as_array().into_iter().flatten() {
            if self.json {
                let before = if self.count == 0 { "{\"entries\": [" } else { "," };
                write!(self.out, "{before}\n  {entry}")?;
            } else {
                self.line(entry)?;
            }
            self.count += 1;
        }
        if !page["last"].is_null() {
            self.last = page["last"].clone();
        }
        // What has been listed is shown while the next page is on its way.
        self.out.flush()
    }

    fn line(&mut self, entry: &Value) -> io::Result<()> {
        let name = path_bytes(&entry["name"]).unwrap_or_default();
        if self.long {
            let number = |field: &str| entry[field].as_u64().unwrap_or(0);
            let changed = entry["mtime_ns"].as_i64().map_or(String::new(), utc);
            write!(
                self.out,
                "{} {:>3} {:>6} {:>6} {:>13} {} ",
                mode_text(entry["type"].as_str().unwrap_or(""), number("mode")),
                number("links"),
                number("uid"),
                number("gid"),
                number("bytes"),
                changed.get(..19).unwrap_or("-"),
            )?;
        }
        match self.escapes {
            true => writeln!(self.out, "{}", shown_name(&name)),
            false => {
                self.out.write_all(&name)?;
                self.out.write_all(b"\n")
            }
        }
    }

    fn end(&mut self, page: &Value) -> io::Result<()> {
        if self.json {
            let (before, after) =
                if self.count == 0 { ("{\"entries\": [", "") } else { ("", "\n") };
            let (last, end) = (&self.last, &page["end"]);
            writeln!(self.out, "{before}{after}], \"last\": {last}, \"end\": {end}}}")?;
        }
        self.out.flush()
    }
}

/// Type and permission bits as `ls -l` shows them.
fn mode_text(kind: &str, mode: u64) -> String {
    let first = match kind {
        "file" => '-',
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        "char" => 'c',
        "block" => 'b',
        "socket" => 's',
        _ => '?',
    };
    let mut text = String::from(first);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, true) => 'x',
            (false, false) => '-',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Modes look as those of `ls -l`, special bits with and without execution included.
    #[test]
    fn modes_as_text() {
        for (kind, mode, text) in [
            ("file", 0o644, "-rw-r--r--"),
            ("directory", 0o1777, "drwxrwxrwt"),
            ("file", 0o6755, "-rwsr-sr-x"),
            ("file", 0o7000, "---S--S--T"),
            ("symlink", 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode_text(kind, mode), text);
        }
    }
}
