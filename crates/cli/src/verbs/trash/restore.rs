//! `kestrel trash restore`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use kestrel_daemon::ask::path_value;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::count;
use serde_json::{Value, json};

use super::super::print_json;
use super::super::snapshot::KeyArgs;
use super::VERB;
use super::kept::{KeptEntry, Trash, is_at_or_below};
use crate::progress::Progress;

/// Entries that are restored for one question.
const RESTORED_AT_ONCE: usize = 256;

/// Most names that are tried for what keeps beside what has its name.
const NAMES_TRIED: u32 = 1000;

/// Put back what was at a path, with all that was below it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel trash restore /mnt/data/projects/report.txt
  kestrel trash restore /mnt/data/projects/old-run
  kestrel trash restore --below /mnt/data/projects
  kestrel trash restore --to /mnt/data /mnt/data/projects/report.txt

Owner, permissions, times and attributes are those of before. Of several things that were at the
same path the one that was removed last comes back; the others stay in the trash. Where a name is
taken the command asks, or, without a terminal, says so and leaves it in the trash.")]
pub struct RestoreArgs {
    /// Where it was
    path: OsString,
    /// Restore what was removed below PATH, which is there
    #[arg(long, conflicts_with = "to")]
    below: bool,
    /// Restore it into this directory of the same volume
    #[arg(long, value_name = "DIR")]
    to: Option<OsString>,
    /// Where a name is taken, replace what has it
    #[arg(long, conflicts_with = "keep_both")]
    replace: bool,
    /// Where a name is taken, restore as NAME.restored
    #[arg(long)]
    keep_both: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// What is done where a name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Replace,
    KeepBoth,
    Skip,
}

/// How one entry ended.
enum Ended {
    Restored,
    Taken,
    Left(String),
}

impl Ended {
    fn of(answer: &Value) -> Self {
        if answer["restored"] == true {
            return Self::Restored;
        }
        if answer["taken"] == true {
            return Self::Taken;
        }
        if answer["gone"] == true {
            let why = "the directory that it was in is not there; restore that first, or use --to";
            return Self::Left(why.into());
        }
        let why = answer["why"].as_str();
        Self::Left(why.unwrap_or("the serving process did not say what became of it").into())
    }
}

/// Restores it.
pub fn run(args: &RestoreArgs) -> Result<ExitStatus, Failure> {
    let mut trash = Trash::open(&args.path, &args.store)?;
    let to = args.to.as_ref().map(|dir| trash.directory(dir)).transpose()?;
    let entries = trash.entries()?;
    let chosen = chosen(&entries, trash.below(), args.below);
    let fail = |why: &str| Failure::new(VERB, format!("{}: {why}", args.path.to_string_lossy()));
    if chosen.is_empty() {
        let is_below = entries.iter().any(|entry| trash.is_below(entry));
        return Err(match (args.below, is_below) {
            (false, true) => fail(
                "what was there is not in the trash, but what was below it is: \
                                   --below restores that",
            ),
            _ => fail("nothing that was there is in the trash; kestrel trash list shows what is"),
        });
    }
    let (mut restored, mut left) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    for some in in_order(&chosen) {
        let item = |(path, entry): &(&[u8], &KeptEntry)| {
            // What was below a directory that goes elsewhere goes there with it.
            let to = to.filter(|_| *path == trash.below());
            json!({ "item": path_value(&entry.item), "to": to })
        };
        let items: Vec<Value> = some.iter().map(item).collect();
        let answers = trash.ask(json!({ "act": "trash-restore", "items": items }))?;
        for (number, (_, entry)) in some.iter().enumerate() {
            let ended = match Ended::of(&answers[number]) {
                Ended::Taken => restore_taken(&mut trash, args, entry, &items[number])?,
                ended => ended,
            };
            match ended {
                Ended::Restored => restored.push(*entry),
                Ended::Left(why) => left.push((*entry, why)),
                Ended::Taken => left.push((*entry, "all names like it are taken, too".into())),
            }
        }
        progress.tick("restored", restored.len() as u64);
    }
    if args.json {
        let shown = |entry: &KeptEntry| path_value(trash.shown(entry).as_bytes());
        let restored: Vec<Value> = restored.iter().map(|entry| shown(entry)).collect();
        let left = left.iter().map(|(entry, why)| json!({ "path": shown(entry), "why": why }));
        print_json(&json!({ "restored": restored, "left": left.collect::<Vec<_>>() }));
    } else {
        for (entry, why) in &left {
            eprintln!("kestrel {VERB}: {}: {why}", trash.shown(entry));
        }
        let names = restored.len() as u64;
        println!("{}: {} names restored", args.path.to_string_lossy(), count(names));
    }
    let status = if left.is_empty() { ExitStatus::Good } else { ExitStatus::Bad };
    trash.close().map(|_| status)
}

/// What is restored, by path: a directory before what was below it. Of one path the newest.
fn chosen<'a>(
    entries: &'a [KeptEntry],
    path: &[u8],
    is_below: bool,
) -> BTreeMap<&'a [u8], &'a KeptEntry> {
    let mut all: BTreeMap<&[u8], &KeptEntry> = BTreeMap::new();
    for entry in entries {
        if let Some(at) = entry.path.as_deref().filter(|at| is_at_or_below(at, path)) {
            // Entries come by the time of their removal.
            all.insert(at, entry);
        }
    }
    match (is_below, all.get(path)) {
        (true, _) => {
            all.remove(path);
        }
        (false, Some(entry)) if entry.is_dir => {}
        (false, found) => {
            let found = found.copied();
            all.retain(|_, entry| found.is_some_and(|found| found.item == entry.item));
        }
    }
    all
}

/// Entries that are restored at once, a directory before what was below it.
fn in_order<'a>(chosen: &BTreeMap<&'a [u8], &'a KeptEntry>) -> Vec<Vec<(&'a [u8], &'a KeptEntry)>> {
    let mut by_depth: BTreeMap<usize, Vec<(&[u8], &KeptEntry)>> = BTreeMap::new();
    for (path, entry) in chosen {
        let depth = path.iter().filter(|byte| **byte == b'/').count();
        by_depth.entry(depth).or_default().push((path, entry));
    }
    let same_depth = by_depth.values();
    same_depth.flat_map(|all| all.chunks(RESTORED_AT_ONCE)).map(<[_]>::to_vec).collect()
}

/// Restores what has its name taken, as the arguments or the user say.
fn restore_taken(
    trash: &mut Trash,
    args: &RestoreArgs,
    entry: &KeptEntry,
    item: &Value,
) -> Result<Ended, Failure> {
    let shown = trash.shown(entry);
    let mut ask = |item: &Value, is_replacing: bool| {
        let question = json!({ "act": "trash-restore", "items": [item], "replace": is_replacing });
        trash.ask(question).map(|answers| Ended::of(&answers[0]))
    };
    match taken(args, &shown)? {
        Taken::Skip => Ok(Ended::Left(
            "something else has the name now; --replace and --keep-both restore it all the same"
                .into(),
        )),
        Taken::Replace => ask(item, true),
        Taken::KeepBoth => {
            let mut item = item.clone();
            for number in 1..NAMES_TRIED {
                item["name"] = path_value(&beside(&entry.name, number));
                match ask(&item, false)? {
                    Ended::Taken => {}
                    ended => return Ok(ended),
                }
            }
            Ok(Ended::Taken)
        }
    }
}

/// A name for something beside what has its own.
fn beside(name: &[u8], number: u32) -> Vec<u8> {
    let suffix = match number {
        1 => ".restored".to_owned(),
        number => format!(".restored{number}"),
    };
    let room = kestrel_types::name::NAME_MAX - suffix.len();
    [&name[..name.len().min(room)], suffix.as_bytes()].concat()
}

/// What is done where the name of `shown` is taken.
fn taken(args: &RestoreArgs, shown: &str) -> Result<Taken, Failure> {
    if args.replace {
        return Ok(Taken::Replace);
    }
    if args.keep_both {
        return Ok(Taken::KeepBoth);
    }
    if args.json || !io::stdin().is_terminal() {
        return Ok(Taken::Skip);
    }
    let fail = |why: io::Error| Failure::new(VERB, why);
    loop {
        eprint!("{shown}: the name is taken; (r)eplace, (k)eep both, (s)kip? ");
        io::stderr().flush().map_err(fail)?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line).map_err(fail)? == 0 {
            return Ok(Taken::Skip);
        }
        match line.trim() {
            "r" | "replace" => return Ok(Taken::Replace),
            "k" | "keep" => return Ok(Taken::KeepBoth),
            "s" | "skip" | "" => return Ok(Taken::Skip),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(item: &str, path: &str, is_dir: bool) -> KeptEntry {
        KeptEntry {
            item: item.into(),
            name: Vec::new(),
            parent: 1,
            ino: 7,
            kind: String::new(),
            is_dir,
            uid: 0,
            bytes: 0,
            removed_ns: 0,
            removed: String::new(),
            expires: String::new(),
            path: Some(path.into()),
        }
    }

    /// Of one path the entry that was removed last is chosen, with what was below it if it is a
    /// directory.
    #[test]
    fn newest_of_each_path() {
        let entries = [
            entry("1", "/a", false),
            entry("2", "/a/b", false),
            entry("3", "/a/b", true),
            entry("4", "/a/b/c", false),
            entry("5", "/a/b/c", false),
            entry("6", "/ab", false),
        ];
        let items = |path: &str, is_below| {
            let chosen = chosen(&entries, path.as_bytes(), is_below);
            let items = chosen.values().map(|entry| String::from_utf8_lossy(&entry.item));
            items.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(items("/a", false), "1");
        assert_eq!(items("/a", true), "3 5");
        assert_eq!(items("/a/b", false), "3 5");
        assert_eq!(items("/a/b/c", false), "5");
        assert_eq!(items("/x", false), "");
        assert_eq!(items("", false), "");
    }

    /// A name beside another one is never too long.
    #[test]
    fn names_beside() {
        assert_eq!(beside(b"a", 1), b"a.restored");
        assert_eq!(beside(b"a", 12), b"a.restored12");
        assert_eq!(beside(&[b'a'; 255], 1).len(), 255);
    }
}
