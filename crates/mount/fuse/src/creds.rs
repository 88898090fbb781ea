//! What a request does not say about its caller.

use std::fs;
use std::io;

/// Supplementary groups of the thread `pid`, a request's [`pid`](crate::Request::pid).
///
/// Requests carry the caller's user and group only; the rest stands in `/proc`. The caller waits
/// for its answer meanwhile, so what is read belongs to it. It takes some 10 to 20 µs: look only
/// when user and group do not decide. Fails with ENOENT for callers of other process name spaces
/// and for `pid` 0.
pub fn caller_groups(pid: u32) -> io::Result<Vec<u32>> {
    if pid == 0 {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    let status = fs::read(format!("/proc/{pid}/status"))?;
    groups_of(&status)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no Groups line in /proc"))
}

fn groups_of(status: &[u8]) -> Option<Vec<u32>> {
    let line =
        status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Groups:"))?;
    std::str::from_utf8(line)
        .ok()?
        .split_ascii_whitespace()
        .map(|group| group.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_groups_line() {
        // The name of a process cannot pretend to be the line: newlines in it are escaped.
        assert_eq!(
            groups_of(b"Name:\tx\\nGroups: 1\nGroups:\t4 24 1000 \nVmPeak: 1\n"),
            Some(vec![4, 24, 1000])
        );
        assert_eq!(groups_of(b"Groups:\t\n"), Some(vec![]));
        assert_eq!(groups_of(b"Groups:\tx\n"), None);
        assert_eq!(groups_of(b""), None);
    }

    #[test]
    fn reads_its_own() {
        caller_groups(std::process::id()).unwrap();
        assert!(caller_groups(0).is_err());
    }
}
