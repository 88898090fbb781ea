//! `kestrel policy`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `policy/attributes.rs` | extended attributes of directories |

mod attributes;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::policy::{Policy, PolicyField};
use serde_json::{Map, Value, json};

use super::{mount_above, print_json};

/// Set, remove and show what directories hand down to everything below them.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel policy set /mnt/data/imagenet consistency=immutable
  kestrel policy set /mnt/data/logs compression=zstd
  kestrel policy set /mnt/data/projects trash=7d
  kestrel policy get /mnt/data/imagenet/train
  kestrel policy list /mnt/data
  kestrel policy unset /mnt/data/imagenet consistency

Fields:
  consistency  strict         every look sees every change (default)
               close-to-open  names and attributes may be 1 s old; opens show present content
               immutable      every change below is refused (EPERM); mounts keep names and
                              attributes without asking, for up to an hour
  compression  none, lz4, zstd or zstd:LEVEL (1 to 19): how data of files is stored that are
               opened for writing from then on; default as-volume: what `kestrel config` says
  trash        none (default), or how long the trash keeps what is removed or replaced below: 12h,
               7d, at most 2730d; `kestrel trash` lists and restores it
  feed         none (default), or how long a record of all changes below is kept: 12h, 7d, at most
               2730d; `kestrel watch` reads it. Directories above record on; none below one that
               records leaves its tree out
  tier         standard (default), standard-ia, onezone-ia, intelligent-tiering, glacier-ir, archive
               or deep-archive: the storage class of data of files that are opened for writing from
               then on; `kestrel tier` moves what is there

Of each field the nearest directory's word counts. The owner of a directory and root may set and
remove fields. They are also extended attributes: getfattr -n kestrel.consistency DIR. See
docs/semantics.md.")]
pub struct PolicyArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Get(GetArgs),
    Set(SetArgs),
    Unset(UnsetArgs),
    List(ListArgs),
}

/// Show what counts for a path, and which directory says it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel policy get /mnt/data/imagenet/train
  kestrel policy get /mnt/data/imagenet/train consistency --json")]
struct GetArgs {
    /// A directory in a mounted volume, or a file: then what counts is that of its directory
    path: PathBuf,
    /// Only these fields
    #[arg(value_name = "FIELD", value_parser = field_arg)]
    fields: Vec<PolicyField>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Set fields of a directory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel policy set /mnt/data/imagenet consistency=immutable
  kestrel policy set /mnt/data/logs compression=zstd:9")]
struct SetArgs {
    /// A directory in a mounted volume
    dir: PathBuf,
    /// What it says from now on
    #[arg(required = true, value_name = "FIELD=VALUE", value_parser = setting_arg)]
    settings: Vec<Setting>,
}

/// Remove fields of a directory: what counts is then what the directories above it say.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel policy unset /mnt/data/imagenet consistency")]
struct UnsetArgs {
    /// A directory in a mounted volume
    dir: PathBuf,
    /// What it does not say any more
    #[arg(required = true, value_name = "FIELD", value_parser = field_arg)]
    fields: Vec<PolicyField>,
}

/// List the directories at and below a path that have fields of their own.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel policy list /mnt/data

Looks at every directory there.")]
struct ListArgs {
    /// A directory in a mounted volume
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A field and its value as an argument.
#[derive(Debug, Clone)]
struct Setting {
    field: PolicyField,
    value: String,
}

fn field_arg(text: &str) -> Result<PolicyField, String> {
    PolicyField::from_name(text.as_bytes()).ok_or_else(|| {
        let names: Vec<_> = PolicyField::ALL.iter().map(|field| field.name()).collect();
        format!("there is no policy field of this name; fields: {}", names.join(", "))
    })
}

fn setting_arg(text: &str) -> Result<Setting, String> {
    let (field, value) = text.split_once('=').ok_or("a field is set as FIELD=VALUE")?;
    let field = field_arg(field)?;
    let mut policy = Policy::default();
    if !policy.set(field, value.as_bytes()) {
        return Err(format!("{} takes {}", field.name(), field.values()));
    }
    let value = policy.value(field).unwrap_or_default();
    Ok(Setting { field, value })
}

fn attribute(field: PolicyField) -> String {
    format!("kestrel.{}", field.name())
}

/// Does it.
pub fn run(args: &PolicyArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Get(args) => get(args),
        Action::Set(args) => set(args),
        Action::Unset(args) => unset(args),
        Action::List(args) => list(args),
    }
}

/// The path without links, in a mounted volume.
fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    let resolved = fs::canonicalize(path)
        .map_err(|why| Failure::new("policy", format!("{}: {why}", path.display())))?;
    mount_above("policy", &resolved)?;
    Ok(resolved)
}

/// Why the kernel or the node refused something.
fn refused(path: &Path, why: &io::Error) -> Failure {
    let path = path.display();
    let told = match why.raw_os_error() {
        Some(libc::EPERM) => {
            "only the owner of a directory and root change its policy, and nobody does below an \
             immutable directory; `kestrel policy get` says which directory that is"
                .into()
        }
        Some(libc::EEXIST) => {
            "the volume has a /.trash that is not root's alone; rename it, and set the policy again"
                .into()
        }
        Some(libc::EOPNOTSUPP) => {
            "only directories of KestrelFS have policies; a volume that several nodes share has no \
             policy feed, and a tier is one that the volume's store has"
                .into()
        }
        Some(libc::EROFS) => "the volume is mounted read-only".into(),
        _ => why.to_string(),
    };
    Failure::new("policy", format!("{path}: {told}"))
}

/// A field that counts, with the directory that says it; none: what counts by default.
struct EffectiveField {
    field: PolicyField,
    value: String,
    from: Option<PathBuf>,
}

fn get(args: &GetArgs) -> Result<ExitStatus, Failure> {
    let path = resolve(&args.path)?;
    let dir = if path.is_dir() { &path } else { path.parent().unwrap_or(&path) };
    let text = attributes::get(dir, "kestrel.policy").map_err(|why| refused(dir, &why))?;
    let mut found = effective(dir, &text.unwrap_or_default())?;
    if !args.fields.is_empty() {
        found.retain(|effective| args.fields.contains(&effective.field));
    }
    if args.json {
        let fields = found.iter().map(|EffectiveField { field, value, from }| {
            let from = from.as_ref().map(|from| from.display().to_string());
            (field.name().to_string(), json!({ "value": value, "from": from }))
        });
        print_json(&Value::Object(fields.collect::<Map<_, _>>()));
        return Ok(ExitStatus::Good);
    }
    for EffectiveField { field, value, from } in found {
        let from = from.map_or("default".into(), |from| from.display().to_string());
        println!("{:<12} {value:<14} {from}", field.name());
    }
    Ok(ExitStatus::Good)
}

/// Reads what the attribute `kestrel.policy` of `dir` says.
fn effective(dir: &Path, text: &str) -> Result<Vec<EffectiveField>, Failure> {
    let unknown =
        |line: &str| Failure::new("policy", format!("{}: not understood: {line}", dir.display()));
    let mut said = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let setting = words.next().and_then(|setting| setting.split_once('='));
        let above = words.next().and_then(|word| word.strip_prefix("above="));
        let above = above.and_then(|above| above.parse::<usize>().ok());
        let (Some((field, value)), Some(above)) = (setting, above) else {
            return Err(unknown(line));
        };
        let Some(field) = PolicyField::from_name(field.as_bytes()) else {
            return Err(unknown(line));
        };
        // A mount may show a part of a volume.
        let outside = || PathBuf::from(format!("a directory {above} above, outside the mount"));
        let mount = mount_above("policy", dir)?.mount_point;
        let from = dir.ancestors().nth(above).filter(|from| from.starts_with(&mount));
        let from = Some(from.map_or_else(outside, Path::to_path_buf));
        said.push(EffectiveField { field, value: value.into(), from });
    }
    for field in PolicyField::ALL {
        if !said.iter().any(|effective| effective.field == field) {
            said.push(EffectiveField { field, value: field.default_value().into(), from: None });
        }
    }
    Ok(said)
}

fn set(args: &SetArgs) -> Result<ExitStatus, Failure> {
    let dir = resolve(&args.dir)?;
    for Setting { field, value } in &args.settings {
        attributes::set(&dir, &attribute(*field), value).map_err(|why| refused(&dir, &why))?;
    }
    Ok(ExitStatus::Good)
}

fn unset(args: &UnsetArgs) -> Result<ExitStatus, Failure> {
    let dir = resolve(&args.dir)?;
    for field in &args.fields {
        let was =
            attributes::remove(&dir, &attribute(*field)).map_err(|why| refused(&dir, &why))?;
        if !was {
            let (dir, field) = (dir.display(), field.name());
            let why = format!(
                "{dir}: it does not say {field} itself; `kestrel policy get` shows which does"
            );
            return Err(Failure::new("policy", why));
        }
    }
    Ok(ExitStatus::Good)
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let top = resolve(&args.path)?;
    if !top.is_dir() {
        return Err(refused(&top, &io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
    }
    let (mut dirs, mut found, mut status) = (VecDeque::from([top]), Vec::new(), ExitStatus::Good);
    while let Some(dir) = dirs.pop_front() {
        let mut own = Map::new();
        for field in PolicyField::ALL {
            match attributes::get(&dir, &attribute(field)) {
                Ok(Some(value)) => {
                    own.insert(field.name().into(), value.into());
                }
                Ok(None) => {}
                Err(why) => return Err(refused(&dir, &why)),
            }
        }
        if !own.is_empty() {
            found.push((dir.clone(), own));
        }
        match subdirectories(&dir) {
            Ok(below) => dirs.extend(below),
            // Removed meanwhile.
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => {
                log::warn!("{}: {why}", dir.display());
                status = ExitStatus::Bad;
            }
        }
    }
    print_list(&found, args.json);
    Ok(status)
}

fn print_list(found: &[(PathBuf, Map<String, Value>)], json: bool) {
    if json {
        let rows = found
            .iter()
            .map(|(dir, own)| json!({ "directory": dir.display().to_string(), "policy": own }));
        return print_json(&rows.collect());
    }
    for (dir, own) in found {
        for (field, value) in own {
            let value = value.as_str().unwrap_or_default();
            println!("{:<28} {}", format!("{field}={value}"), dir.display());
        }
    }
}

fn subdirectories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            below.push(entry.path());
        }
    }
    below.sort_unstable();
    Ok(below)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// Arguments that are no field, no value or no setting say what is.
    #[test]
    fn settings_as_arguments() {
        assert_eq!(setting_arg("consistency=immutable").unwrap().value, "immutable");
        assert_eq!(setting_arg("compression=zstd").unwrap().value, "zstd:3");
        for (text, told) in [
            ("consistency", "FIELD=VALUE"),
            ("none=1", "fields: consistency"),
            ("consistency=", "strict, close-to-open or immutable"),
            ("consistency=Strict", "strict, close-to-open or immutable"),
            ("compression=zstd:20", "zstd:LEVEL with a level from 1 to 19"),
        ] {
            let why = setting_arg(text).unwrap_err();
            assert!(why.contains(told), "{text}: {why}");
        }
    }
}
