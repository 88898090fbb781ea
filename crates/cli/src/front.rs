//! What a person meets first: the groups of commands in `kestrel --help`, `kestrel help COMMAND`,
//! `kestrel version`, and the short help of `kestrel mount`.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::Cli;

/// The commands by what they are for, in the order of `kestrel --help` and of `docs/cli.md`: group,
/// purpose, commands.
pub const GROUPS: &[(&str, &str, &[&str])] = &[
    (
        "Volume",
        "Create a volume, mount it, look after it, back it up.",
        &[
            "format", "mount", "umount", "upgrade", "status", "config", "fsck", "gc", "dump",
            "backup", "load",
        ],
    ),
    (
        "Data set",
        "Keep directories as they were, set what they hand down; see, remove, cache files.",
        &[
            "snapshot", "clone", "publish", "version", "job", "sql", "policy", "quota", "info",
            "ls", "du", "rm", "trash", "watch", "warmup", "tier", "compact",
        ],
    ),
    (
        "Cluster",
        "Serve a volume from one server or several nodes, to mounts, clients of S3 and containers.",
        &["serve", "cluster", "gateway", "webdav", "csi"],
    ),
    ("Security", "Keys of stored data, tokens of clients.", &["key", "token"]),
    (
        "Measuring",
        "See what a mount or server does, measure a store or file system.",
        &["stats", "bench", "objbench"],
    ),
];

/// The options that most mounts need; `kestrel mount --help` shows these. The options of every
/// command, `--token-file` and `--wait`, make them ten.
const MOUNT_OPTIONS: [&str; 8] = [
    "foreground",
    "read_only",
    "allow_other",
    "options",
    "ca",
    "cache_dir",
    "cache_size",
    "credentials",
];

/// The command line as it is parsed and shown.
pub fn command() -> Command {
    let command = Cli::command();
    let page = template(&command);
    command.help_template(page).mut_subcommand("mount", short_help)
}

/// The page of `kestrel --help`: clap knows no groups of commands.
fn template(command: &Command) -> String {
    let mut page = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (group, _, verbs) in GROUPS {
        let _ = write!(page, "\n{group}:\n");
        for name in *verbs {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "  {name:<8}  {about}");
        }
    }
    page + "\nOptions:\n{options}{after-help}"
}

/// `--help` and `-h` of a command with many options show [`MOUNT_OPTIONS`], `--help-all` shows all.
fn short_help(command: Command) -> Command {
    let shown = |arg: &Arg| arg.is_positional() || MOUNT_OPTIONS.contains(&arg.get_id().as_str());
    command
        .mut_args(|arg| if shown(&arg) { arg } else { arg.hide_short_help(true) })
        .disable_help_flag(true)
        .arg(
            Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::HelpShort)
                .help_heading(None::<&'static str>)
                .help("Print help: the options that most mounts need"),
        )
        .arg(
            Arg::new("help-all")
                .long("help-all")
                .action(ArgAction::HelpLong)
                .help_heading(None::<&'static str>)
                .help("Print all options"),
        )
}

/// `kestrel help COMMAND` as `kestrel COMMAND --help`, and `kestrel version` as
/// `kestrel --version`.
pub fn arguments(given: Vec<OsString>) -> Vec<OsString> {
    let flag = match given.get(1).and_then(|word| word.to_str()) {
        Some("help") => "--help",
        Some("version") if given.len() == 2 => "--version",
        _ => return given,
    };
    let mut given = given.into_iter();
    let program = given.next();
    let words = given.skip(1).skip_while(|word| word == "help");
    program.into_iter().chain(words).chain([flag.into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> String {
        let arguments = arguments(line.split(' ').map(OsString::from).collect());
        arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Asking for help and for the version by a word is the same as by a flag.
    #[test]
    fn help_and_version_by_word() {
        for (line, becomes) in [
            ("kestrel help", "kestrel --help"),
            ("kestrel help mount", "kestrel mount --help"),
            ("kestrel help cluster init", "kestrel cluster init --help"),
            ("kestrel help help", "kestrel --help"),
            ("kestrel help version", "kestrel version --help"),
            ("kestrel version", "kestrel --version"),
            ("kestrel version x", "kestrel version x"),
            ("kestrel info help", "kestrel info help"),
            ("kestrel", "kestrel"),
        ] {
            assert_eq!(of(line), becomes, "{line}");
        }
    }

    /// Every command stands once below its group, with what it does, on one line.
    #[test]
    fn groups_in_the_help() {
        let help = command().render_help().to_string();
        for (group, _, verbs) in GROUPS {
            assert!(help.contains(&format!("\n{group}:\n")), "{help}");
            for verb in *verbs {
                assert_eq!(help.matches(&format!("\n  {verb} ")).count(), 1, "{verb}: {help}");
            }
        }
        for line in help.lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }

    /// The short help of a mount has ten options besides those that print help, and says how to see
    /// the others.
    #[test]
    fn ten_options_of_mount() {
        let mut kestrel = command();
        kestrel.build();
        let mount = kestrel.find_subcommand_mut("mount").unwrap();
        let (short, long) = (mount.render_help().to_string(), mount.render_long_help().to_string());
        let options = |help: &str| -> Vec<String> {
            let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
            lines.filter(|line| !line.contains("--help")).map(String::from).collect()
        };
        assert_eq!(options(&short).len(), 10, "{short}");
        assert!(options(&long).len() > 30, "{long}");
        assert!(short.contains("kestrel mount --help-all"), "{short}");
        for line in short.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
    }
}
