//! `kestrel rm`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use kestrel_client::snapshot::SnapshotUrl;
use kestrel_daemon::ask::{path_bytes, path_value};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::snapshots::removals::DIRS_AT_ONCE;
use kestrel_daemon::units::{bytes, count};
use kestrel_fuse::mount::mounts;
use kestrel_types::name::Name;
use serde_json::{Value, json};

use super::snapshot::KeyArgs;
use super::snapshot::place::{Place, split};
use super::{mount_above, print_json};
use crate::progress::Progress;

/// The verb in messages.
const VERB: &str = "rm";

/// Time between two looks at what is left.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Remove files and whole directory trees; the metadata nodes do the work.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel rm -r /mnt/data/old-run
  kestrel rm -r --dry-run /mnt/data/old-run /mnt/data/older-run
  kestrel rm -r --eager /mnt/data/old-run
  kestrel rm -r /data/vol:/old-run
  kestrel rm -r kestrel://10.0.0.1/photos:/old-run

First all of a tree is looked at: if the user may not remove something in it, or something is
immutable (chattr +i, a policy), the command says what, and removes nothing. Then the name goes at
once, and the rest in the background, at a bounded rate while other requests come, and on after a
crash. Files that programs have open stay until these close them. Symbolic links are removed, not
followed; what lies in a snapshot or a clone stays there. Below a quota, and where the volume has no
room left, the tree is removed where it is, which --eager does not change. Where the policy trash
says so, the trash keeps the tree for a time (kestrel trash). docs/datasets.md tells more.

By a path in a mount only root and the user of the mount can remove this way; others use rm -r.")]
pub struct RmArgs {
    /// What to remove: paths in a mount, or VOLUME:/path
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Remove directories with all that is below them
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Look at the tree and tell what would go; remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until all of the tree is gone
    #[arg(long)]
    eager: bool,
    /// Say nothing of paths that are not there
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Removes them, one after the other; one that stays does not keep the others.
pub fn run(args: &RmArgs) -> Result<ExitStatus, Failure> {
    let (mut all, mut status) = (Vec::new(), ExitStatus::Good);
    for path in &args.paths {
        match remove(args, path) {
            Ok(Some(removed)) if args.json => all.push(removed.value(args)),
            Ok(Some(removed)) => println!("{}", removed.text(args)),
            Ok(None) => {}
            Err(why) if args.paths.len() == 1 => return Err(why),
            Err(why) => {
                eprintln!("kestrel {why}");
                status = ExitStatus::Bad;
            }
        }
    }
    if args.json {
        print_json(&all.into());
    }
    Ok(status)
}

/// What went, or would go.
struct Removed {
    path: OsString,
    files: u64,
    dirs: u64,
    bytes: u64,
    /// The rows go in the background.
    background: bool,
    /// The trash keeps it until then.
    kept: Option<String>,
}

impl Removed {
    fn text(&self, args: &RmArgs) -> String {
        let Self { files, dirs, background, .. } = self;
        let path = self.path.to_string_lossy();
        let done = if args.dry_run { "would be removed" } else { "removed" };
        let later = match &self.kept {
            Some(until) => format!("; the trash keeps it until {until}"),
            None if *background => "; the space is given back in the background".into(),
            None => String::new(),
        };
        let (files, dirs, size) = (count(*files), count(*dirs), bytes(self.bytes));
        format!("{path}: {files} files and {dirs} directories with {size} {done}{later}")
    }

    fn value(&self, args: &RmArgs) -> Value {
        json!({
            "path": path_value(self.path.as_bytes()),
            "files": self.files,
            "directories": self.dirs,
            "bytes": self.bytes,
            "removed": !args.dry_run,
            "background": self.background,
            "kept_until": self.kept,
        })
    }
}

/// The directory that a path lies in, and its name there.
fn parts(path: &OsStr) -> Result<(OsString, Name), Failure> {
    let bad = |why: &str| Failure::usage(format!("{VERB}: {}: {why}", path.to_string_lossy()));
    let (prefix, inside) = match split(path.as_bytes()) {
        Some((volume, inside)) if inside.starts_with(b"/") => {
            ([&volume[..], b":"].concat(), inside.to_vec())
        }
        Some(_) => return Err(bad("name it by a path")),
        None => (Vec::new(), path.as_bytes().to_vec()),
    };
    let end = inside.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let inside = &inside[..end];
    let slash = inside.iter().rposition(|byte| *byte == b'/');
    let (above, name) = match slash {
        Some(slash) => (&inside[..=slash], &inside[slash + 1..]),
        None => (&b"."[..], inside),
    };
    let name = match name {
        b"" => return Err(bad("the root of a volume stays; remove what is in it")),
        b"." | b".." => return Err(bad("name it by its own name, not . or ..")),
        name => Name::new(name).map_err(|why| bad(&why.reason))?,
    };
    Ok((OsString::from_vec([&prefix[..], above].concat()), name))
}

/// Refuses what is mounted somewhere: the mount is the kernel's, and no request tells of it.
fn check_mounts(path: &OsStr, place: &Place, name: &Name) -> Result<(), Failure> {
    let Some(above) = place.mounted() else { return Ok(()) };
    let full = above.join(OsStr::from_bytes(name.as_bytes()));
    let fail = |why: &str| Failure::new(VERB, format!("{}: {why}", path.to_string_lossy()));
    let entry = mount_above(VERB, above)?;
    let source = entry.source.to_str();
    if source.is_some_and(|source| matches!(SnapshotUrl::parse(source), Ok(Some(_)))) {
        return Err(fail("a snapshot stays as it is; kestrel snapshot remove removes all of it"));
    }
    let all = mounts().map_err(|why| Failure::new(VERB, why))?;
    match all.iter().find(|one| one.mount_point.starts_with(&full)) {
        Some(one) => {
            let at = one.mount_point.display();
            Err(fail(&format!("something is mounted at {at}; unmount it first")))
        }
        None => Ok(()),
    }
}

fn remove(args: &RmArgs, path: &OsString) -> Result<Option<Removed>, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new(VERB, format!("{}: {why}", path.to_string_lossy()))
    };
    let (above, name) = parts(path)?;
    let is_in_mount = split(path.as_bytes()).is_none();
    if is_in_mount && args.force && !Path::new(&above).exists() {
        return Ok(None);
    }
    let mut place = Place::of(&above, &args.store.store()).map_err(|why| why.of(VERB))?;
    check_mounts(path, &place, &name)?;
    let name = path_value(name.as_bytes());
    let ask = |place: &mut Place, mut question: Value| {
        question["name"] = name.clone();
        place.ask(question).map_err(|why| fail(&why.reason()))
    };
    let found = ask(&mut place, json!({ "act": "rm-find" }))?;
    if found["missing"] == true {
        place.close().map_err(|why| why.of(VERB))?;
        return if args.force { Ok(None) } else { Err(fail(&"there is nothing of this name")) };
    }
    if let Some(why) = found["refused"].as_str() {
        return Err(fail(&why));
    }
    let dir = &found["dir"];
    let mut removed =
        Removed { path: path.clone(), files: 0, dirs: 0, bytes: 0, background: false, kept: None };
    if found["type"] != "directory" {
        (removed.files, removed.bytes) = (1, found["bytes"].as_u64().unwrap_or(0));
        if !args.dry_run {
            ask(&mut place, json!({ "act": "rm-file", "dir": dir }))?;
        }
    } else if !args.recursive {
        return Err(fail(&"it is a directory; -r removes it with all that is below it"));
    } else {
        check(&mut place, &found["ino"], &mut removed)?;
        if !args.dry_run {
            match remove_tree(&mut |question| ask(&mut place, question), &found, path)? {
                Gone::Background => removed.background = true,
                Gone::Kept(until) => removed.kept = Some(until),
                Gone::Removed => {}
            }
        }
    }
    // What this process has open goes on when it is opened again: it is no server.
    if removed.background && (args.eager || place.is_own()) {
        wait_for(&mut place, &found["ino"])?;
        removed.background = false;
    }
    place.close().map_err(|why| why.of(VERB))?;
    Ok(Some(removed))
}

/// How a tree went.
enum Gone {
    /// Its name; the rest goes in the background.
    Background,
    /// To the trash, until then.
    Kept(String),
    /// All of it.
    Removed,
}

/// Removes a tree that may be removed.
fn remove_tree(
    ask: &mut dyn FnMut(Value) -> Result<Value, Failure>,
    found: &Value,
    path: &OsStr,
) -> Result<Gone, Failure> {
    let question = |act: &str| json!({ "act": act, "dir": found["dir"], "tree": found["ino"] });
    let taken = ask(question("rm-take"))?;
    if taken["background"] == true {
        return Ok(Gone::Background);
    }
    if let Some(until) = taken["kept"].as_str() {
        return Ok(Gone::Kept(until.into()));
    }
    let (mut progress, mut names) = (Progress::new(), 0);
    loop {
        let done = ask(question("rm-step"))?;
        names += done["files"].as_u64().unwrap_or(0) + done["dirs"].as_u64().unwrap_or(0);
        progress.tick("removed", names);
        if let Some(why) = done["why"].as_str() {
            let stays = below(path.as_bytes(), &path_bytes(&done["failed"]).unwrap_or_default());
            let stays = String::from_utf8_lossy(&stays).into_owned();
            let rest = format!("it stays, {} names went before", count(names));
            return Err(Failure::new(VERB, format!("{stays}: {why}; {rest}")));
        }
        if done["done"] == true {
            return Ok(Gone::Removed);
        }
    }
}

/// A directory that is looked at.
struct Checked {
    ino: Value,
    path: Vec<u8>,
    after: Value,
    sticky: Value,
}

/// Looks at all of a tree, and fails if something in it would stay.
fn check(place: &mut Place, root: &Value, removed: &mut Removed) -> Result<(), Failure> {
    let root = Checked {
        ino: root.clone(),
        path: removed.path.as_bytes().to_vec(),
        after: Value::Null,
        sticky: Value::Null,
    };
    let (mut left, mut progress) = (vec![root], Progress::new());
    while !left.is_empty() {
        let some = left.split_off(left.len().saturating_sub(DIRS_AT_ONCE));
        let dirs = some
            .iter()
            .map(|one| json!({ "dir": one.ino, "after": one.after, "sticky": one.sticky }));
        let question = json!({ "act": "rm-check", "dirs": dirs.collect::<Vec<_>>() });
        let pages = place.ask(question).map_err(|why| why.of(VERB))?;
        let pages = pages.as_array().map_or(&[][..], Vec::as_slice);
        for (number, mut one) in some.into_iter().enumerate() {
            let page = pages
                .get(number)
                .ok_or_else(|| Failure::new(VERB, "the serving process told too few pages"))?;
            if let Some(why) = page["refused"].as_str() {
                let name = path_bytes(&page["name"]);
                let path = name.map_or_else(|| one.path.clone(), |name| below(&one.path, &name));
                let path = String::from_utf8_lossy(&path).into_owned();
                return Err(Failure::new(VERB, format!("{path}: {why}; nothing was removed")));
            }
            let number = |field: &str| page[field].as_u64().unwrap_or(0);
            removed.files += number("files");
            removed.bytes = removed.bytes.saturating_add(number("bytes"));
            removed.dirs += u64::from(one.after.is_null());
            let path = one.path.clone();
            if page["end"] != true {
                // Below the directories of this page: they are looked at first.
                one.after = page["last"].clone();
                left.push(one);
            }
            for subdir in page["subdirs"].as_array().into_iter().flatten() {
                let name = path_bytes(&subdir[0]).unwrap_or_default();
                left.push(Checked {
                    ino: subdir[1].clone(),
                    path: below(&path, &name),
                    after: Value::Null,
                    sticky: page["sticky"].clone(),
                });
            }
        }
        progress.tick("looked at", removed.files + removed.dirs);
    }
    Ok(())
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path.strip_suffix(b"/").unwrap_or(path), b"/", name].concat()
}

/// Waits until nothing is left of a tree after its name has gone.
fn wait_for(place: &mut Place, tree: &Value) -> Result<(), Failure> {
    let mut progress = Progress::new();
    loop {
        let question = json!({ "act": "rm-left", "tree": tree });
        let left = place.ask(question).map_err(|why| why.of(VERB))?;
        if left.is_null() {
            return Ok(());
        }
        let number = |field: &str| left[field].as_u64().unwrap_or(0);
        progress.tick("left to remove", number("files") + number("dirs"));
        std::thread::sleep(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory above and the name, of paths in mounts and in volumes.
    #[test]
    fn directory_and_name() {
        for (path, above, name) in [
            ("/mnt/a/b", "/mnt/a/", "b"),
            ("/mnt/a/b//", "/mnt/a/", "b"),
            ("b", ".", "b"),
            ("./b", "./", "b"),
            ("/data/vol:/b", "/data/vol:/", "b"),
            ("kestrel://h:9440/v:/a/b/", "kestrel://h:9440/v:/a/", "b"),
        ] {
            let found = parts(OsStr::new(path)).map_err(|why| why.to_string());
            assert_eq!(found, Ok((above.into(), Name::new(name.as_bytes()).expect("a name"))));
        }
        for path in ["/", "", "//", "/data/vol:/", "/mnt/.", "..", "a/..", "/data/vol:#17"] {
            assert!(parts(OsStr::new(path)).is_err(), "{path}");
        }
    }
}
