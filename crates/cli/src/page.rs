//! Lines for people: a label and what it is, aligned, in colour on a terminal.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::IsTerminal;

/// Columns of a label, with the space after it.
const LABEL_COLUMNS: usize = 13;

const BOLD: &str = "\x1b[1m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

#[derive(Debug, PartialEq, Eq)]
struct Line {
    label: &'static str,
    text: String,
    /// Somebody may have to act.
    warns: bool,
}

/// Lines in the order in which they are shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LabelledLines(Vec<Line>);

impl LabelledLines {
    /// Adds a line. One without a label goes on with what the line before it is about.
    pub fn line(&mut self, label: &'static str, text: impl Into<String>) {
        self.0.push(Line { label, text: text.into(), warns: false });
    }

    /// Adds a line about what a person may have to do something about.
    pub fn warning(&mut self, label: &'static str, text: impl Into<String>) {
        self.0.push(Line { label, text: text.into(), warns: true });
    }

    /// The text, with labels in bold and warnings in yellow if `in_colour`.
    pub fn render(&self, in_colour: bool) -> String {
        let mut out = String::new();
        for Line { label, text, warns } in &self.0 {
            let space = LABEL_COLUMNS.saturating_sub(label.chars().count()).max(1);
            let (head, tail) = match in_colour {
                true => (BOLD, PLAIN),
                false => ("", ""),
            };
            let (begin, end) = if in_colour && *warns { (YELLOW, PLAIN) } else { ("", "") };
            let _ = match label.is_empty() {
                true => write!(out, "{:space$}", ""),
                false => write!(out, "{head}{label}{tail}{:space$}", ""),
            };
            let _ = writeln!(out, "{begin}{text}{end}");
        }
        out
    }

    /// Prints it.
    pub fn print(&self) {
        print!("{}", self.render(in_colour()));
    }
}

/// Whether standard output takes colours, and the user has not said otherwise.
fn in_colour() -> bool {
    let [no_color, term] = ["NO_COLOR", "TERM"].map(std::env::var_os);
    wants_colour(std::io::stdout().is_terminal(), no_color, term.as_deref())
}

/// <https://no-color.org>: a variable `NO_COLOR` that is not empty switches colours off.
fn wants_colour(terminal: bool, no_color: Option<OsString>, term: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(|value| value.is_empty()) && term != Some(OsStr::new("dumb"))
}

/// `35 s`, `12 min`, `3 h`, `5 d`: a time for people, cut off.
pub fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts begin in one column, and colours change nothing but colours.
    #[test]
    fn aligned_lines() {
        let mut page = LabelledLines::default();
        page.line("volume", "photos");
        page.line("pass-through", "off");
        page.warning("server", "does not answer");
        page.line("", "more");
        let plain = "volume       photos\npass-through off\nserver       does not \
                     answer\n             more\n";
        assert_eq!(page.render(false), plain);
        let coloured = page.render(true);
        assert!(coloured.contains("\x1b[1mserver\x1b[0m       \x1b[33mdoes not answer\x1b[0m\n"));
        let codes = [BOLD, YELLOW, PLAIN];
        let uncoloured = codes.iter().fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(uncoloured, plain);
    }

    /// Colours are for terminals, and NO_COLOR and TERM=dumb switch them off.
    #[test]
    fn colour_on_terminals_only() {
        let term = Some(OsStr::new("xterm"));
        assert!(wants_colour(true, None, term));
        assert!(wants_colour(true, Some(OsString::new()), term));
        assert!(!wants_colour(true, Some("1".into()), term));
        assert!(!wants_colour(true, None, Some(OsStr::new("dumb"))));
        assert!(!wants_colour(false, None, term));
    }

    /// Times are cut off to the largest unit that has two or more.
    #[test]
    fn times_for_people() {
        let times = [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200_000, "2 d")];
        for (seconds, text) in times {
            assert_eq!(time(seconds), text);
        }
    }
}
