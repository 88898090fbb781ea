//! `kestrel share-files`: manual pages and completions, made from the definition of the command
//! line, as an installation has them below `share`. `make install` runs it.
//!
//! | file | what it has |
//! | --- | --- |
//! | `share_files/man.rs` | manual pages |
//!
//! The same program writes the same bytes: no date, no name of a machine.

mod man;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use kestrel_daemon::failure::{ExitStatus, Failure};

/// Completions by shell, and where below `share` each shell looks for those of packages.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/kestrel"),
    (Shell::Zsh, "zsh/site-functions/_kestrel"),
    (Shell::Fish, "fish/vendor_completions.d/kestrel.fish"),
];

/// Write manual pages and completions below a directory, as they lie in /usr/share.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kestrel share-files /usr/local/share")]
pub struct ShareFilesArgs {
    /// Where; made if it is not there
    pub dir: PathBuf,
}

/// Writes them.
pub fn run(args: &ShareFilesArgs) -> Result<ExitStatus, Failure> {
    for (name, text) in files() {
        let path = args.dir.join(name);
        let written =
            path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        written.map_err(|why| Failure::new("share-files", format!("{}: {why}", path.display())))?;
    }
    Ok(ExitStatus::Good)
}

/// The command line without hidden commands and with all options in each help.
fn command() -> Command {
    let whole = crate::front::command();
    let visible = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
    let shown = |verb: &Command| verb.clone().mut_args(|arg| arg.hide_short_help(false));
    Command::new("kestrel")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(whole.get_after_help().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .args(whole.get_arguments().cloned())
        .subcommands(visible.map(shown))
}

/// The files, by their names below `share`.
fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, Vec<u8>> = man::pages()
        .into_iter()
        .map(|(name, text)| {
            let section = name.rsplit('.').next().unwrap_or_default();
            (format!("man/man{section}/{name}"), text.into_bytes())
        })
        .collect();
    for (shell, name) in COMPLETIONS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command(), "kestrel", &mut text);
        files.insert(name.into(), text);
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command that is not hidden has a manual page and is completed by each shell; the same
    /// program makes the same files.
    #[test]
    fn a_page_and_completions_of_every_command() {
        let files = files();
        assert_eq!(files, super::files());
        let mut kestrel = crate::front::command();
        kestrel.build();
        for verb in kestrel.get_subcommands() {
            let page = format!("man/man1/kestrel-{}.1", verb.get_name());
            assert_eq!(files.contains_key(&page), !verb.is_hide_set(), "{page}");
            for (_, shell) in COMPLETIONS {
                let text = String::from_utf8_lossy(&files[shell]);
                assert_eq!(text.contains(verb.get_name()), !verb.is_hide_set(), "{shell}: {page}");
            }
        }
        assert!(files.contains_key("man/man1/kestrel-token-create.1"));
        assert!(files.contains_key("man/man8/mount.kestrel.8"));
    }

    /// What the pages say is in the words of the help texts.
    #[test]
    fn words_of_the_pages() {
        let files = files();
        let page = |name: &str| String::from_utf8_lossy(&files[name]).replace("\\-", "-");
        let mount = page("man/man1/kestrel-mount.1");
        for part in ["kestrel-mount - Mount a volume", "--cache-dir", ".SH EXAMPLES", ".SH NOTES"] {
            assert!(mount.contains(part), "{part}: {mount}");
        }
        assert!(!mount.contains("report-readiness"));
        let helper = page("man/man8/mount.kestrel.8");
        for part in ["cache-dir", "token-file", "_netdev", "wait"] {
            assert!(helper.contains(part), "{part}: {helper}");
        }
        assert!(!helper.contains("foreground"), "{helper}");
    }
}
