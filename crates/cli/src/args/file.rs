//! A verb's options from a TOML file: each key is a flag of the same name, without the dashes, and
//! its value is read as the flag's is.
//!
//! So there is nothing to do for a flag to have a key. Keys of [`SECTIONS`] stand in their tables,
//! `[tls]` may also say `cert` for the flag `--tls-cert`; the others stand at the top. What is on
//! the command line is not taken from the file. Paths are relative to the file's directory.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

/// Tables of a file, and the flags that stand in them; flags that begin with the table's name do
/// without being listed.
const SECTIONS: [(&str, &[&str]); 4] = [
    ("process", &["foreground", "log", "log-level", "metrics", "metadata-memory"]),
    (
        "store",
        &[
            "credentials",
            "key-file",
            "max-uploads",
            "max-downloads",
            "upload-limit",
            "download-limit",
        ],
    ),
    ("tls", &[]),
    ("dump", &[]),
];

/// Flags that are for the command line: what a file says goes for every start.
const NOT_IN_FILES: [&str; 8] =
    ["config", "check", "stop", "take-over", "replace", "in-place-of", "help", "version"];

/// Longest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a file says, for a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FromFile {
    /// What to append to the arguments that were given.
    pub arguments: Vec<OsString>,
    /// The keys that count: those that the command line does not say.
    pub keys: Vec<String>,
}

/// Reads a file for a verb with the options of `command`; `given` is what came of the command line
/// alone.
///
/// # Errors
/// File, line, key, and what is allowed there.
pub fn read(path: &Path, command: &Command, given: &ArgMatches) -> Result<FromFile, String> {
    let failed = |why: &dyn std::fmt::Display| format!("--config {}: {why}", path.display());
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    let bytes = read.map_err(|why| failed(&why))?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(failed(&format!(
            "longer than {FILE_BYTES_MAX} bytes; that is no file of settings"
        )));
    }
    let whole = std::path::absolute(path).map_err(|why| failed(&why))?;
    let dir = whole.parent().unwrap_or(Path::new("/"));
    parse(&text, dir, command, given)
        .map_err(|(line, why)| format!("{}, line {line}: {why}", path.display()))
}

/// The same with the text of a file in `dir`. Errors come with the line.
fn parse(
    text: &str,
    dir: &Path,
    command: &Command,
    given: &ArgMatches,
) -> Result<FromFile, (usize, String)> {
    let line_of = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let whole = DeTable::parse(text).map_err(|why| {
        let line = why.span().map_or(1, |span| line_of(span.start));
        (line, format!("not TOML: {}", why.message()))
    })?;
    let file = Reading { dir, command, given };
    let mut out = FromFile::default();
    // In the order of the file, so that the first mistake is told.
    let mut entries: Vec<_> = whole.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let (name, line) = (key.get_ref().as_ref(), line_of(key.span().start));
        let DeValue::Table(table) = value.get_ref() else {
            file.take("", name, value.get_ref(), &mut out).map_err(|why| (line, why))?;
            continue;
        };
        if !SECTIONS.iter().any(|(section, _)| *section == name) {
            return Err((line, format!("there is no table [{name}]; {}", file.allowed(""))));
        }
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let line = line_of(key.span().start);
            file.take(name, key.get_ref(), value.get_ref(), &mut out).map_err(|why| (line, why))?;
        }
    }
    Ok(out)
}

/// The table in which a flag's key stands; empty for the top.
fn section_of(flag: &str) -> &'static str {
    let of = |(section, flags): &&(&str, &[&str])| {
        flags.contains(&flag) || *section == flag || flag.starts_with(&format!("{section}-"))
    };
    SECTIONS.iter().find(of).map_or("", |(section, _)| section)
}

/// How a flag is called in a file: the name of a positional argument is its own.
fn name_of(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(arg.get_id().as_str())
}

struct Reading<'a> {
    dir: &'a Path,
    command: &'a Command,
    given: &'a ArgMatches,
}

impl Reading<'_> {
    /// Flags that have keys in this table.
    fn flags(&self, section: &str) -> impl Iterator<Item = &Arg> {
        let arguments = self.command.get_arguments().filter(|arg| !arg.is_hide_set());
        arguments.filter(move |arg| {
            let name = name_of(arg);
            !NOT_IN_FILES.contains(&name) && section_of(name) == section
        })
    }

    /// What may stand in a table.
    fn allowed(&self, section: &str) -> String {
        let keys: BTreeSet<&str> = self.flags(section).map(name_of).collect();
        let keys: Vec<&str> = keys.into_iter().collect();
        if section.is_empty() {
            let full = |section: &&str| self.flags(section).next().is_some();
            let tables = SECTIONS.iter().map(|(section, _)| *section).filter(full);
            let tables: Vec<String> = tables.map(|section| format!("[{section}]")).collect();
            return format!("keys are {}, tables {}", keys.join(", "), tables.join(", "));
        }
        match keys[..] {
            [] => format!("this program knows no keys of [{section}]"),
            _ => format!("keys of [{section}] are {}", keys.join(", ")),
        }
    }

    /// Takes one key.
    fn take(
        &self,
        section: &str,
        key: &str,
        value: &DeValue<'_>,
        out: &mut FromFile,
    ) -> Result<(), String> {
        let longer = format!("{section}-{key}");
        let found = self.flags(section).find(|arg| name_of(arg) == key || name_of(arg) == longer);
        let Some(arg) = found else {
            let elsewhere = self.command.get_arguments().map(name_of).find(|name| *name == key);
            let elsewhere = elsewhere.filter(|name| section_of(name) != section);
            return Err(match elsewhere.map(section_of) {
                _ if NOT_IN_FILES.contains(&key) => {
                    format!("{key}: only the command line says that")
                }
                Some("") => format!("{key} stands before the first table, not in [{section}]"),
                Some(table) => format!("{key} stands in the table [{table}]"),
                None => format!("there is no key {key:?}; {}", self.allowed(section)),
            });
        };
        let name = name_of(arg);
        let mut arguments = Vec::new();
        for word in words(arg, value).map_err(|why| format!("{key}: {why}"))? {
            let path = self.path(arg, word.as_deref());
            let word = path.map(PathBuf::into_os_string).or(word.map(OsString::from));
            match (arg.is_positional(), word) {
                (true, Some(word)) => arguments.push(word),
                (_, None) => arguments.push(format!("--{name}").into()),
                (false, Some(word)) => {
                    let mut flag = OsString::from(format!("--{name}="));
                    flag.push(word);
                    arguments.push(flag);
                }
            }
        }
        self.check(&arguments).map_err(|why| format!("{key}: {why}"))?;
        if self.given.value_source(arg.get_id().as_str()) != Some(ValueSource::CommandLine) {
            out.keys.push(if section.is_empty() { key.into() } else { format!("{section}.{key}") });
            out.arguments.append(&mut arguments);
        }
        Ok(())
    }

    /// What a value is a path to, from the file's directory. A volume may be a URL.
    fn path(&self, arg: &Arg, word: Option<&str>) -> Option<PathBuf> {
        let word = word.filter(|word| !word.is_empty())?;
        let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let is_volume = name_of(arg) == "volume" && !word.contains("://");
        (is_path || is_volume).then(|| self.dir.join(word))
    }

    /// Whether the flag takes this, by itself.
    fn check(&self, arguments: &[OsString]) -> Result<(), String> {
        let line =
            [OsStr::new("serve")].into_iter().chain(arguments.iter().map(OsString::as_os_str));
        match self.command.clone().try_get_matches_from(line) {
            Err(why)
                if !matches!(
                    why.kind(),
                    ErrorKind::ArgumentConflict | ErrorKind::MissingRequiredArgument
                ) =>
            {
                let text = why.to_string();
                let text = text.lines().next().unwrap_or_default();
                Err(text.strip_prefix("error: ").unwrap_or(text).to_string())
            }
            _ => Ok(()),
        }
    }
}

/// A value as words of a command line, each for the flag once; without a word for a flag that
/// stands alone.
fn words(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<Option<String>>, String> {
    let several = matches!(arg.get_action(), ArgAction::Append);
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![None]),
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, other) => {
            Err(format!("{}, where true or false is wanted", kind(other)))
        }
        (_, DeValue::Array(values)) if several => {
            values.iter().map(|value| word(value.get_ref()).map(Some)).collect()
        }
        (_, value) => word(value).map(|word| vec![Some(word)]),
    }
}

fn word(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().into()),
        DeValue::Float(number) => Ok(number.as_str().into()),
        other => Err(format!("{}, where a string or a number is wanted", kind(other))),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number that is not written in decimal digits",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a time of a calendar",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A parser of values within bounds, for flags: says what is allowed.
pub fn bounded<T: Clone + Send + Sync + PartialOrd + 'static>(
    parse: fn(&str) -> Result<T, String>,
    least: T,
    most: T,
    allowed: &'static str,
) -> ValueParser {
    ValueParser::from(move |text: &str| match parse(text) {
        Ok(value) if (&least..=&most).contains(&&value) => Ok(value),
        Ok(_) => Err(allowed.to_string()),
        Err(why) => Err(why),
    })
}
