//! `kestrel snapshot diff`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Args;
use kestrel_daemon::ask::path_value;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::snapshots::diff::{Change, Difference, Place as Name};
use kestrel_daemon::snapshots::trees::AskedTrees;
use kestrel_types::inode::Kind;
use kestrel_types::snapshot::SnapshotId;
use serde_json::{Value, json};

use super::super::print_json;
use super::place::Place;
use super::{KeyArgs, VERB, dot_snap, find};

/// List what differs between two snapshots of a directory, or between one and now.
#[derive(Debug, Args)]
#[command(override_usage = "kestrel snapshot diff [OPTIONS] DIR FROM [TO]
       kestrel snapshot diff [OPTIONS] DIR/.snap/FROM [DIR/.snap/TO]")]
#[command(after_help = "Examples:
  kestrel snapshot diff /mnt/data/train monday tuesday
  kestrel snapshot diff /mnt/data/train/.snap/monday /mnt/data/train/.snap/tuesday
  kestrel snapshot diff /mnt/data/train monday --data --json
  kestrel snapshot diff /data/vol:/train monday -0 | xargs -0 -n1 echo

Without TO, the directory as it is now is compared. Each line is + (created), - (removed), M
(changed) or R (renamed: the same inode has another name), a tab and the path from DIR, sorted by
path; of R the former path, a tab and the path. With -0 each of them ends in NUL: M and path, R,
former path and path. Time and memory are in proportion to what has changed in the volume since
FROM, and to the number of names in directories where names came or went. What changes meanwhile in
the present tree may be told or not.")]
pub struct DiffArgs {
    /// The directory and names of one or two snapshots; or paths of one or two snapshots
    #[arg(required = true, num_args = 1..=3, value_name = "DIR")]
    places: Vec<OsString>,
    /// Tell which ranges of bytes differ in changed files, as the places of stored bytes show
    #[arg(long)]
    data: bool,
    /// End each field in NUL, in place of tabs and ends of lines
    #[arg(short = '0', long = "null", conflicts_with = "json")]
    null: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// A directory and the names of one or two snapshots of it.
#[derive(Debug, PartialEq, Eq)]
struct Compared {
    dir: OsString,
    from: OsString,
    to: Option<OsString>,
}

/// The directory and the name in `DIR/.snap/NAME`.
fn snapshot_path(path: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = path.as_bytes();
    let bytes =
        &bytes[..bytes.len() - bytes.iter().rev().take_while(|byte| **byte == b'/').count()];
    let (dir, name) = bytes.split_at(bytes.iter().rposition(|byte| *byte == b'/')?);
    let dir = dir.strip_suffix(dot_snap::NAME.as_bytes())?;
    let dir = match dir {
        [] => b".",
        [b'/'] => dir,
        [.., b':', b'/'] => dir,
        [above @ .., b'/'] => above,
        _ => return None,
    };
    Some((OsStr::from_bytes(dir).into(), OsString::from_vec(name[1..].to_vec())))
}

fn compared(places: &[OsString]) -> Result<Compared, Failure> {
    let usage = |why: &str| Err(Failure::usage(format!("{VERB} diff: {why}")));
    match (places, places.first().and_then(|first| snapshot_path(first))) {
        ([_], Some((dir, from))) => Ok(Compared { dir, from, to: None }),
        ([_, second], Some((dir, from))) => match snapshot_path(second) {
            Some((other, to)) if other == dir => Ok(Compared { dir, from, to: Some(to) }),
            Some(_) => usage("the two snapshots are of different directories"),
            None => usage("the second one is not the path of a snapshot, DIR/.snap/NAME"),
        },
        ([dir, from], None) => Ok(Compared { dir: dir.clone(), from: from.clone(), to: None }),
        ([dir, from, to], None) => {
            Ok(Compared { dir: dir.clone(), from: from.clone(), to: Some(to.clone()) })
        }
        _ => usage("give DIR FROM [TO], or DIR/.snap/FROM [DIR/.snap/TO]"),
    }
}

/// Compares.
pub fn run(args: &DiffArgs) -> Result<ExitStatus, Failure> {
    let Compared { dir, from, to } = compared(&args.places)?;
    let mut place = Place::of(&dir, &args.store.store())?;
    let before = Some(moment(&mut place, &from)?);
    let after = to.as_ref().map(|name| moment(&mut place, name)).transpose()?;
    let root = place.dir_ino()?;
    let damaged = |why: &str| Failure::new(VERB, why);
    let mut ask = |question: &Value| place.ask(question.clone());
    let mut trees = AskedTrees::new(&mut ask, &damaged, (before, after));
    let found = trees.diff(root)?;
    let mut ranges = Vec::with_capacity(found.len());
    for one in &found {
        ranges.push(match args.data {
            true => changed_ranges(&mut trees, one, &found)?,
            false => None,
        });
    }
    let told = found.iter().zip(&ranges);
    let printed = if args.json {
        let all: Vec<Value> = told.map(|(one, ranges)| json_of(one, ranges.as_ref())).collect();
        print_json(&json!({ "differences": all }));
        Ok(())
    } else {
        print(told, args.null)
    };
    printed.map_err(|why| Failure::new(VERB, format!("standard output: {why}")))?;
    place.close()
}

/// The moment of a snapshot.
fn moment(place: &mut Place, name: &OsString) -> Result<SnapshotId, Failure> {
    let found = find(place, name)?;
    found["id"].as_u64().ok_or_else(|| place.fail("its number is not told"))
}

/// The ranges of a changed file that differ.
fn changed_ranges(
    trees: &mut AskedTrees<'_, Failure>,
    one: &Difference,
    found: &[Difference],
) -> Result<Option<Value>, Failure> {
    if one.kind != Kind::File || !matches!(one.change, Change::Changed { content: true, .. }) {
        return Ok(None);
    }
    // A file that was renamed, too, is found under its former name.
    let first = found.partition_point(|other| other.place.path < one.place.path);
    let same = found[first..].iter().take_while(|other| other.place.path == one.place.path);
    let former = same.filter(|other| other.ino == one.ino).find_map(|other| match &other.change {
        Change::Renamed(former) => Some(former),
        _ => None,
    });
    let file = |at: Option<SnapshotId>, name: &Name| {
        let (dir, name) = (name.dir, path_value(&name.name));
        json!({ "at": at, "ino": one.ino, "dir": dir, "name": name })
    };
    let (before, after) = trees.moments();
    let question = json!({
        "act": "ranges",
        "before": file(before, former.unwrap_or(&one.place)),
        "after": file(after, &one.place),
    });
    trees.ask(&question).map(Some)
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Char => "character device",
        Kind::Block => "block device",
        other => other.word(),
    }
}

fn json_of(one: &Difference, ranges: Option<&Value>) -> Value {
    let what = match one.change {
        Change::Created => "created",
        Change::Removed => "removed",
        Change::Changed { .. } => "changed",
        Change::Renamed(_) => "renamed",
    };
    let path = path_value(&one.place.path);
    let mut out = json!({ "what": what, "path": path, "type": word(one.kind), "inode": one.ino });
    match &one.change {
        Change::Renamed(former) => out["from"] = path_value(&former.path),
        Change::Changed { content, attributes } => {
            out["content"] = (*content).into();
            out["attributes"] = (*attributes).into();
        }
        Change::Created | Change::Removed => {}
    }
    if let Some(ranges) = ranges {
        out["ranges"] = ranges.clone();
    }
    out
}

fn print<'a>(
    found: impl Iterator<Item = (&'a Difference, &'a Option<Value>)>,
    null: bool,
) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (one, ranges) in found {
        out.write_all(&line(one, ranges.as_ref(), null))?;
    }
    out.flush()
}

/// One difference as text.
fn line(one: &Difference, ranges: Option<&Value>, null: bool) -> Vec<u8> {
    let path = |path: &[u8]| match (path, one.kind) {
        (b"", _) => b"./".to_vec(),
        (path, Kind::Dir) => [path, b"/"].concat(),
        (path, _) => path.to_vec(),
    };
    let sign = match one.change {
        Change::Created => "+",
        Change::Removed => "-",
        Change::Changed { .. } => "M",
        Change::Renamed(_) => "R",
    };
    let mut fields = vec![sign.as_bytes().to_vec()];
    if let Change::Renamed(former) = &one.change {
        fields.push(path(&former.path));
    }
    fields.push(path(&one.place.path));
    if let Some(ranges) = ranges {
        let range = |range: &Value| {
            let number = |at: usize| range[at].as_u64().unwrap_or(0);
            format!("{}+{}", number(0), number(1))
        };
        let ranges: Vec<String> = ranges.as_array().into_iter().flatten().map(range).collect();
        fields.push(ranges.join(" ").into_bytes());
    }
    match null {
        true => fields.into_iter().flat_map(|field| [field, vec![0]].concat()).collect(),
        false => [fields.join(&b'\t'), b"\n".to_vec()].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Compared, Failure> {
        compared(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    /// What is compared can be said in two ways.
    #[test]
    fn two_ways_to_name_snapshots() {
        let all = |dir: &str, from: &str, to: Option<&str>| {
            Ok(Compared { dir: dir.into(), from: from.into(), to: to.map(OsString::from) })
        };
        assert_eq!(of(&["/m/d", "a", "b"]), all("/m/d", "a", Some("b")));
        assert_eq!(of(&["/m/d", "a"]), all("/m/d", "a", None));
        assert_eq!(of(&["/m/d/.snap/a", "/m/d/.snap/b/"]), all("/m/d", "a", Some("b")));
        assert_eq!(of(&["/m/d/.snap/a"]), all("/m/d", "a", None));
        assert_eq!(of(&[".snap/a"]), all(".", "a", None));
        assert_eq!(of(&["/.snap/a"]), all("/", "a", None));
        assert_eq!(of(&["/data/vol:/.snap/a"]), all("/data/vol:/", "a", None));
        for wrong in [
            &["/m/d"][..],
            &["/m/d/.snap/a", "b"],
            &["/m/d/.snap/a", "/m/e/.snap/b"],
            &["/m/d/.snap/a", "/m/d/.snap/b", "c"],
            &["/m/d.snap/a"],
        ] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    /// A line has the sign and paths; directories end in a slash; with NUL every field ends in it.
    #[test]
    fn lines_of_differences() {
        let name = |path: &str| Name { path: path.as_bytes().into(), dir: 1, name: [].into() };
        let one = |path: &str, change, kind| Difference { place: name(path), change, kind, ino: 7 };
        let changed = Change::Changed { content: true, attributes: false };
        let ranges = json!([[0, 4096], [8192, 1]]);
        for (difference, ranges, text) in [
            (one("d", Change::Created, Kind::Dir), None, "+\td/\n"),
            (one("a b", Change::Removed, Kind::File), None, "-\ta b\n"),
            (one("f", Change::Renamed(name("e")), Kind::File), None, "R\te\tf\n"),
            (one("f", changed, Kind::File), Some(&ranges), "M\tf\t0+4096 8192+1\n"),
            (one("", Change::Created, Kind::Dir), None, "+\t./\n"),
        ] {
            assert_eq!(String::from_utf8(line(&difference, ranges, false)).unwrap(), text);
            let null = text.replace(['\t', '\n'], "\0");
            assert_eq!(String::from_utf8(line(&difference, ranges, true)).unwrap(), null);
        }
    }
}
