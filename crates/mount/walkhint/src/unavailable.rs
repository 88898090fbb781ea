//! Why there are no hints.

use std::fmt;
use std::io;

/// There can be no walk hints here; the mount does without them. [`Display`](fmt::Display) writes
/// what failed, why, and what would help, in one line for a log or a status.
#[derive(Debug)]
pub struct Unavailable {
    what: String,
    cause: Option<io::Error>,
    remedy: Option<&'static str>,
    log: Option<String>,
}

impl Unavailable {
    pub(crate) fn new(what: impl Into<String>) -> Unavailable {
        Unavailable { what: what.into(), cause: None, remedy: None, log: None }
    }

    /// A system call failed; a remedy is added where the error number has one.
    pub(crate) fn call(what: impl Into<String>, cause: io::Error) -> Unavailable {
        let remedy = match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Some(
                "run with CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN), on a kernel that is not \
                 locked down to confidentiality",
            ),
            Some(libc::ENOSYS | libc::EINVAL) => {
                Some("a kernel of 5.15 or later with CONFIG_BPF_SYSCALL")
            }
            _ => None,
        };
        Unavailable { what: what.into(), cause: Some(cause), remedy, log: None }
    }

    pub(crate) fn helped_by(mut self, remedy: &'static str) -> Unavailable {
        self.remedy = Some(remedy);
        self
    }

    pub(crate) fn with_log(mut self, log: String) -> Unavailable {
        self.log = Some(log).filter(|log| !log.is_empty());
        self
    }

    /// This way failed, and then another one did.
    pub(crate) fn or(self, other: &Unavailable) -> Unavailable {
        Unavailable::new(format!("{}; otherwise: {other}", self.reason()))
    }

    /// What failed and why.
    fn reason(&self) -> String {
        let mut text = self.what.clone();
        if let Some(cause) = &self.cause {
            text = format!("{text}: {cause}");
        }
        if let Some(last) = self.log.as_deref().and_then(last_words) {
            text = format!("{text} ({last})");
        }
        text
    }

    /// The error number of the system call that failed, if one did.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause.as_ref().and_then(io::Error::raw_os_error)
    }

    /// The kernel verifier's log about the program, if it refused it: for bug reports.
    pub fn verifier_log(&self) -> Option<&str> {
        self.log.as_deref()
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())?;
        if let Some(remedy) = self.remedy {
            write!(f, "; what would help: {remedy}")?;
        }
        Ok(())
    }
}

/// The line of a verifier log that has the error: the last but its statistics.
fn last_words(log: &str) -> Option<&str> {
    log.lines().map(str::trim).rfind(|line| !line.is_empty() && !line.starts_with("processed "))
}

impl std::error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_each_reason() {
        let error =
            Unavailable::call("cannot load the program", io::Error::from_raw_os_error(libc::EPERM))
                .with_log("0: (79) r6 = *(u64 *)(r1 +0)\nR1 is wrong\nprocessed 3 insns\n".into());
        let text = error.to_string();
        assert!(text.starts_with("cannot load the program: Operation not permitted"), "{text}");
        assert!(text.contains("(R1 is wrong); what would help: run with CAP_BPF"), "{text}");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(Unavailable::new("no such thing").to_string(), "no such thing");
        let helped = Unavailable::new("x").helped_by("y");
        assert_eq!(helped.to_string(), "x; what would help: y");
        assert_eq!(
            Unavailable::new("a").or(&helped).to_string(),
            "a; otherwise: x; what would help: y"
        );
    }
}
