//! Mounts on top of the mount.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::rig::{Rig, ways};

/// A mount that goes away with this.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn new<'a>(arguments: &[&str], on: &'a Path) -> Mounted<'a> {
        let status = Command::new("mount").args(arguments).arg(on).status().unwrap();
        assert!(status.success());
        Mounted(on)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A walk on an overlay is not a walk on what lies below it.
#[test]
fn an_overlay_is_not_us() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("lower/a/b");
        let beside = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = beside.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (upper, work, merged) = (dir("upper"), dir("work"), dir("merged"));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            rig.path("lower").display(),
            upper.display(),
            work.display()
        );
        let overlay = Mounted::new(&["-t", "overlay", "overlay", "-o", &options], &merged);
        rig.seen();
        fs::metadata(merged.join("a/b")).unwrap();
        let lookups = rig.lookups();
        assert!(
            !lookups.is_empty() && lookups.iter().all(|(_, hint)| hint.is_none()),
            "{lookups:?}"
        );
        // Ours are hinted as before.
        fs::metadata(rig.path("lower/a/b")).unwrap();
        assert_eq!(rig.hinted()[0].1.rest[..], *b"a/b");
        drop(overlay);
    }
}

/// A bind mount shows the same file system: the walk is ours, from where it enters it.
#[test]
fn a_bind_mount_is_us() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b/c");
        let beside = tempfile::tempdir().unwrap();
        let source = rig.path("a");
        let bound = Mounted::new(&["--bind", source.to_str().unwrap()], beside.path());
        rig.seen();
        fs::metadata(beside.path().join("b/c")).unwrap();
        let hints = rig.hinted();
        assert_eq!(
            hints.iter().map(|(name, hint)| (&name[..], &hint.rest[..])).collect::<Vec<_>>(),
            [("b", &b"c"[..]), ("c", &b""[..])]
        );
        drop(bound);
    }
}
