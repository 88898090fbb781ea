//! Limits, users and groups as arguments.

use std::ffi::CString;

use kestrel_daemon::units::size_arg;
use kestrel_types::quota::LIMIT_MAX;

/// A limit, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

/// The number of a user or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(pub u32);

/// A size, or `none`.
pub fn size_limit_arg(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    bounded(size_arg(text)?)
}

fn bounded(limit: u64) -> Result<Limit, String> {
    if limit > LIMIT_MAX {
        return Err("a limit is at most 8 EiB - 1".into());
    }
    Ok(Limit(Some(limit)))
}

/// A number of files, also in thousands and millions, or `none`.
pub fn files_arg(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(format!("{text:?} is not a number of files; write as 500, 10k or 10M")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a number of files; write as 500, 10k or 10M"))?;
    bounded(number.checked_mul(factor).ok_or_else(|| format!("{text:?} is too large"))?)
}

/// A user, by name or number.
pub fn user_arg(text: &str) -> Result<Owner, String> {
    number_or(text, "user", |name| {
        // SAFETY: a string that ends in NUL. Arguments are parsed before there are other threads,
        // and what it returns is read before the next call.
        let found = unsafe { libc::getpwnam(name.as_ptr()) };
        // SAFETY: not null, so it is a record of the C library.
        (!found.is_null()).then(|| unsafe { (*found).pw_uid })
    })
}

/// A group, by name or number.
pub fn group_arg(text: &str) -> Result<Owner, String> {
    number_or(text, "group", |name| {
        // SAFETY: as in `user_arg`.
        let found = unsafe { libc::getgrnam(name.as_ptr()) };
        // SAFETY: not null, so it is a record of the C library.
        (!found.is_null()).then(|| unsafe { (*found).gr_gid })
    })
}

fn number_or(
    text: &str,
    kind: &str,
    look: impl FnOnce(&CString) -> Option<u32>,
) -> Result<Owner, String> {
    if let Ok(number) = text.parse() {
        return Ok(Owner(number));
    }
    let name = CString::new(text).map_err(|_| format!("{text:?} is not the name of a {kind}"))?;
    look(&name).map(Owner).ok_or_else(|| format!("there is no {kind} {text:?} on this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits as people write them, and what is none.
    #[test]
    fn limits_as_arguments() {
        for (text, limit) in
            [("none", None), ("0", Some(0)), ("10k", Some(10_000)), ("3M", Some(3_000_000))]
        {
            assert_eq!(files_arg(text), Ok(Limit(limit)), "{text}");
        }
        for text in ["", "k", "-1", "1x", "1.5M", "99999999999G", "18446744073709551615"] {
            assert!(files_arg(text).is_err(), "{text}");
        }
        assert_eq!(size_limit_arg("1T"), Ok(Limit(Some(1 << 40))));
        assert_eq!(size_limit_arg("none"), Ok(Limit(None)));
        for text in ["-1", "8192P", "99999999999999999999", "x"] {
            assert!(size_limit_arg(text).is_err(), "{text}");
        }
    }

    /// Users and groups by number and name, and unknown ones.
    #[test]
    fn owners_as_arguments() {
        assert_eq!(user_arg("4711"), Ok(Owner(4711)));
        assert_eq!((user_arg("root"), group_arg("root")), (Ok(Owner(0)), Ok(Owner(0))));
        assert!(user_arg("no-such-user").is_err() && group_arg("no-such-group").is_err());
        assert!(user_arg("4294967296").is_err() && user_arg("-1").is_err());
    }
}
