//! Supplementary groups of a calling process. FUSE does not carry them; `/proc` tells, and the
//! caller is blocked in its request meanwhile, so what it tells is current.

use std::sync::Arc;

/// Most groups a process can have (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65536;

/// Supplementary groups of the thread `pid`. Empty if the process is gone or lives in a foreign PID
/// namespace (`pid` 0): then only its user and effective group count, which can refuse what groups
/// would allow but never the reverse.
pub fn supplementary_groups(pid: u32) -> Arc<[u32]> {
    if pid == 0 {
        return Arc::new([]);
    }
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => parse_status(&status),
        Err(_) => Arc::new([]),
    }
}

fn parse_status(status: &str) -> Arc<[u32]> {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().take(GROUPS_MAX).filter_map(|gid| gid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_file() {
        assert_eq!(*parse_status("Name:\tx\nGroups:\t4 24 100 \nNgid:\t0\n"), [4, 24, 100]);
        assert!(parse_status("Name:\tx\nGroups:\t\n").is_empty());
        assert!(supplementary_groups(0).is_empty());
        supplementary_groups(std::process::id());
    }
}
