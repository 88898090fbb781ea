//! How a verb ends: exit code and message.

use std::fmt;

/// A verb that did what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Exit code 0.
    Good,
    /// It worked, and what it found is not as it should be (fsck with findings). Exit code 1.
    Bad,
}

/// A verb that could not do it: "what failed: why; what to do".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The message, without the program's name.
    message: String,
    /// The command line was wrong: exit code 2 instead of 1.
    usage: bool,
}

impl Failure {
    /// `verb` failed because of `why`, which should end with what to do.
    pub fn new(verb: &str, why: impl fmt::Display) -> Self {
        Self { message: format!("{verb}: {why}"), usage: false }
    }

    /// The command line cannot be meant.
    pub fn usage(why: impl fmt::Display) -> Self {
        Self { message: why.to_string(), usage: true }
    }

    /// The message without the verb.
    pub fn reason(&self) -> String {
        self.message.split_once(": ").map_or(self.message.clone(), |(_, why)| why.to_string())
    }

    /// The same, told of another verb.
    pub fn of(&self, verb: &str) -> Self {
        Self::new(verb, self.reason())
    }

    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        if self.usage { 2 } else { 1 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
