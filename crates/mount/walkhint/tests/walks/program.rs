//! The program itself: verified, attached, distinguished from others.

use std::fs;

use kestrel_walkhint::{Attach, WalkHints};

use crate::rig::{Rig, Way, ways};

#[test]
fn the_running_kernel_accepts_it() {
    for way in ways() {
        let hints =
            way.load().unwrap_or_else(|e| panic!("{e}\n{}", e.verifier_log().unwrap_or("")));
        let expected = if way == Way::Function { Attach::Fentry } else { Attach::Tracepoint };
        assert_eq!(hints.attach(), expected);
    }
    if !ways().is_empty() {
        assert_eq!(WalkHints::load().unwrap().attach(), Attach::Tracepoint);
    }
}

#[test]
fn mounts_do_not_disturb_each_other() {
    for way in ways() {
        let (one, two) = (Rig::new(way), Rig::new(way));
        one.dirs("a/b");
        two.dirs("a/c");
        fs::metadata(one.path("a/b")).unwrap();
        fs::metadata(two.path("a/c")).unwrap();
        assert_eq!(one.hinted()[0].1.rest[..], *b"b");
        assert_eq!(two.hinted()[0].1.rest[..], *b"c");
    }
}

#[test]
fn no_hints_before_calibration() {
    for way in ways() {
        let hints = way.load().unwrap();
        let lookup = kestrel_walkhint::Lookup { unique: 2, tid: std::process::id(), nodeid: 1 };
        assert_eq!(hints.take(&lookup, b"a"), kestrel_walkhint::HintResult::Nothing);
        assert_eq!(hints.probe(&lookup, b"a"), None);
        assert!(!hints.is_probe(b".kestrel-probe-0000000000000000-0"));
    }
}

/// A directory that is not this mount's root: nothing is recorded, and calibration fails.
#[test]
fn calibration_fails_elsewhere() {
    for way in ways() {
        let hints = way.load().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let error = hints.calibrate(dir.path()).unwrap_err().to_string();
        assert!(error.contains("was not recorded"), "{error}");
        let error = hints.calibrate(&dir.path().join("absent")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
