//! `docs/cli.md`, made from the help texts; a test keeps the two equal.

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::Cli;

    fn manual() -> String {
        let mut out = String::from(
            "# The command line\n\nOne binary, verbs first. This is what `kestrel VERB --help` prints, made from the program; \
             a test keeps the two equal\n(`KESTREL_BLESS=1 cargo test -p kestrel manual` writes it anew).\n\nVOLUME is a path or \
             `file:///path`, for verbs that say so also `kestrel://host[:port]/NAME`, a volume that is served. Sizes are whole numbers of bytes or end in K, M, G, T (powers of 1024); times are\nseconds or \
             end in s, m, h, d. Verbs that change what cannot be undone do nothing of it unless told to (`--repair`,\n\
             `--delete`, `--force`). Errors read \"what failed: why; what to do\" and go to standard error.\n\n| exit code | meaning \
             |\n| --- | --- |\n| 0 | done |\n| 1 | it could not be done, or what was found is not as it should be (`fsck`) |\n| 2 \
             | wrong usage |\n| 130 | interrupted twice |\n",
        );
        let mut kestrel = Cli::command().term_width(100);
        kestrel.build();
        for verb in kestrel.get_subcommands_mut().filter(|verb| !verb.is_hide_set()) {
            let help = verb.render_long_help().to_string();
            let help: Vec<&str> = help.lines().map(str::trim_end).collect();
            out.push_str(&format!(
                "\n## kestrel {}\n\n```\n{}\n```\n",
                verb.get_name(),
                help.join("\n").trim_end()
            ));
            let name = verb.get_name().to_string();
            for nested in verb.get_subcommands_mut() {
                let help = nested.render_long_help().to_string();
                let help: Vec<&str> = help.lines().map(str::trim_end).collect();
                out.push_str(&format!(
                    "\n### kestrel {name} {}\n\n```\n{}\n```\n",
                    nested.get_name(),
                    help.join("\n").trim_end()
                ));
            }
        }
        out
    }

    #[test]
    fn the_manual_is_what_help_prints() {
        kestrel_testkit::docs::assert_document("docs/cli.md", &manual());
    }

    #[test]
    fn every_verb_has_an_example_and_the_definition_is_sound() {
        Cli::command().debug_assert();
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                after.contains(&format!("kestrel {} ", verb.get_name())),
                "{}: no example",
                verb.get_name()
            );
        }
    }
}
