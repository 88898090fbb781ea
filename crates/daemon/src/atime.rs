//! How access times are kept, as the kernel and questions to a mount say it.

use kestrel_client::fs::{AccessTimes, AtimeMode};
use kestrel_fuse::mount::Atime;
use serde_json::{Value, json};

/// As the kernel shows it.
pub fn shown(mode: AtimeMode) -> Atime {
    match mode {
        AtimeMode::None => Atime::None,
        AtimeMode::Relatime => Atime::Relatime,
        AtimeMode::Strict => Atime::Strict,
    }
}

/// What an option of a mount means.
pub fn meant(atime: Atime) -> AtimeMode {
    match atime {
        Atime::None => AtimeMode::None,
        Atime::Relatime => AtimeMode::Relatime,
        Atime::Strict => AtimeMode::Strict,
    }
}

/// For a question to a mount: what a remount has made of it. `mode`: if that was said.
pub fn question(mode: Option<Atime>, no_directories: bool, read_only: bool) -> Value {
    let mode = mode.map(|atime| meant(atime).as_str());
    json!({ "verb": "remounted", "atime": mode, "nodiratime": no_directories,
        "read_only": read_only })
}

/// How a mount that was like `now` keeps access times after such a question.
///
/// # Errors
/// If the question is none.
pub fn asked(question: &Value, now: AccessTimes) -> Result<AccessTimes, String> {
    let flag = |name: &str| question[name].as_bool().ok_or(format!("{name} is missing"));
    let mode = match question["atime"].as_str() {
        None => now.mode,
        Some(mode) => meant(mode.parse().map_err(|why| format!("atime {mode}: {why}"))?),
    };
    Ok(AccessTimes { mode, no_directories: flag("nodiratime")?, read_only: flag("read_only")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A remount changes what it names, and the rest stays.
    #[test]
    fn remounts_as_the_mount_hears_of_them() {
        let begun = AccessTimes { mode: AtimeMode::Strict, ..AccessTimes::default() };
        let after = asked(&question(None, true, true), begun).expect("a question");
        assert_eq!(
            after,
            AccessTimes { mode: AtimeMode::Strict, no_directories: true, read_only: true }
        );
        for mode in [Atime::None, Atime::Relatime, Atime::Strict] {
            let after = asked(&question(Some(mode), false, false), after).expect("a question");
            assert_eq!(after, AccessTimes { mode: meant(mode), ..AccessTimes::default() });
            assert_eq!(shown(meant(mode)), mode);
        }
        assert!(
            asked(&json!({ "atime": "always", "nodiratime": false, "read_only": false }), begun)
                .is_err()
        );
        assert!(asked(&json!({ "atime": "none" }), begun).is_err());
    }
}
