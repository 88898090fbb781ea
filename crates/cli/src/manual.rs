//! `docs/cli.md`, made from the help texts; a test keeps the two equal.

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use clap::Command;

    use crate::front::{self, GROUPS};

    /// The page before its index.
    const PREAMBLE: &str = "\
# The command line

This page lists every command of `kestrel` by group. Each section has what `kestrel COMMAND --help`
prints, and of `kestrel mount` what `--help-all` prints. The page is made from the program, and a
test keeps the two equal (`KESTREL_BLESS=1 cargo test -p kestrel manual` writes it anew).

- **VOLUME** is a path, `file:///path` or `s3://BUCKET/PREFIX`; for commands that say so also
  `kestrel://host[:port]/NAME`, a volume that is served.
- **Sizes** are whole numbers of bytes, or end in K, M, G, T (powers of 1024). **Times** are
  seconds, or end in ms, s, m, h, d.
- **Commands that cannot be undone** change nothing unless they are told to (`--repair`, `--delete`,
  `--force`).
- **Errors** read \"what failed: why; what to do\" and go to standard error.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | it could not be done, or what was found is not as it should be (`fsck`) |
| 2 | wrong usage |
| 130 | interrupted twice |

## Index
";

    /// Columns of the page.
    const COLUMNS: usize = 120;

    /// The text, broken between words where it is wider than the page: its first line is indented
    /// by `first`, the others by `rest`.
    fn broken(text: &str, first: usize, rest: usize) -> String {
        let mut out = " ".repeat(first);
        let mut column = first;
        for (number, word) in text.split(' ').enumerate() {
            let width = word.chars().count();
            if number > 0 && column + 1 + width > COLUMNS {
                let _ = write!(out, "\n{:rest$}", "");
                column = rest;
            } else if number > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += width;
        }
        out
    }

    /// What `--help` prints. Prose is filled to the page's width, examples and tables stay as
    /// they are.
    fn help(command: &mut Command) -> String {
        let (mut out, mut prose) = (String::new(), String::new());
        for line in command.render_long_help().to_string().trim_end().lines().chain([""]) {
            let line = line.trim_end();
            let text = line.trim_start();
            let indent = line.len() - text.len();
            if indent == 0 && !text.is_empty() {
                let space = if prose.is_empty() { "" } else { " " };
                let _ = write!(prose, "{space}{text}");
                continue;
            }
            if !prose.is_empty() {
                let _ = writeln!(out, "{}", broken(&prose, 0, 0));
                prose.clear();
            }
            if indent >= 10 {
                let _ = writeln!(out, "{}", broken(text, indent, indent));
            } else {
                let _ = writeln!(out, "{line}");
            }
        }
        out.trim_end().to_string()
    }

    /// Index and sections of the page.
    #[derive(Default)]
    struct Page {
        index: String,
        sections: String,
    }

    /// Adds a command and those below it; `words` are its name after `kestrel`.
    fn add(page: &mut Page, command: &mut Command, words: &str, depth: usize) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let entry = format!("- [`{words}`](#kestrel-{}): {about}", words.replace(' ', "-"));
        let indent = 2 * depth;
        let _ = writeln!(page.index, "{}", broken(&entry, indent, indent + 2));
        let level = "#".repeat(3 + depth);
        let _ = write!(page.sections, "\n{level} kestrel {words}\n\n```\n{}\n```\n", help(command));
        for nested in command.get_subcommands_mut() {
            let words = format!("{words} {}", nested.get_name());
            add(page, nested, &words, depth + 1);
        }
    }

    fn manual() -> String {
        let mut kestrel = front::command().term_width(100);
        kestrel.build();
        let mut page = Page::default();
        for (group, purpose, verbs) in GROUPS {
            let anchor = group.to_lowercase().replace(' ', "-");
            let _ = writeln!(page.index, "\n[{group}](#{anchor}). {purpose}\n");
            let _ = writeln!(page.sections, "\n## {group}\n\n{purpose}");
            for verb in *verbs {
                let command = kestrel.find_subcommand_mut(verb).expect("a group names verbs");
                add(&mut page, command, verb, 0);
            }
        }
        let Page { index, sections } = page;
        format!("{PREAMBLE}{index}{sections}")
    }

    #[test]
    fn the_manual_is_what_help_prints() {
        kestrel_testkit::docs::assert_document("docs/cli.md", &manual());
    }

    #[test]
    fn each_verb_is_in_one_group() {
        let grouped = GROUPS.iter().flat_map(|(_, _, verbs)| verbs.iter().copied());
        let mut grouped: Vec<&str> = grouped.collect();
        grouped.sort_unstable();
        let kestrel = front::command();
        let visible = kestrel.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut verbs: Vec<&str> = visible.map(Command::get_name).collect();
        verbs.sort_unstable();
        assert_eq!(grouped, verbs);
    }

    /// Each verb has an example in the manual, and clap accepts the definition.
    #[test]
    fn examples_and_soundness_of_every_verb() {
        front::command().debug_assert();
        for verb in front::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                after.contains(&format!("kestrel {} ", verb.get_name())),
                "{}: no example",
                verb.get_name()
            );
        }
    }
}
