//! What hints say about paths.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kestrel_fuse::transport::TransportChoice;
use kestrel_walkhint::{Hint, Intent};

use crate::rig::{Rig, ways};

fn lstat(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends in NUL, `stat` takes what is written.
    unsafe { libc::lstat(path.as_ptr(), stat.as_mut_ptr()) };
}

/// The parts of a hint that most cases are about.
fn brief((name, hint): &(String, Hint)) -> (&str, bool, &str) {
    (name, hint.follows, std::str::from_utf8(&hint.rest).unwrap())
}

#[test]
fn each_component_knows_the_rest() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b/c");
        fs::metadata(rig.path("a/b/c")).unwrap();
        let hints = rig.hinted();
        let expected = [("a", true, "b/c"), ("b", true, "c"), ("c", false, "")];
        assert_eq!(hints.iter().map(brief).collect::<Vec<_>>(), expected);
        for (_, hint) in &hints {
            // Of the last component alone.
            assert_eq!(hint.intent, Intent { follow: !hint.follows, ..Intent::default() });
            assert!(hint.complete && !hint.dotdot && !hint.trailing_slash && !hint.revalidate);
            assert_eq!(hint.open_flags, None);
        }
        assert!(hints[0].1.may_fake() && !hints[2].1.may_fake());
    }
}

/// The transport over io_uring numbers its requests at the same place.
#[test]
fn over_io_uring() {
    let enabled =
        fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    if enabled.trim() != "Y" {
        println!(
            "skipped: FUSE over io_uring is not enabled (/sys/module/fuse/parameters/enable_uring)"
        );
        return;
    }
    for way in ways() {
        let rig = Rig::over(way, TransportChoice::Uring);
        rig.dirs("a/b/c");
        fs::metadata(rig.path("a/b/c")).unwrap();
        let hints = rig.hinted();
        let expected = [("a", true, "b/c"), ("b", true, "c"), ("c", false, "")];
        assert_eq!(hints.iter().map(brief).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn slashes_and_dots() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b/c");
        lstat(&rig.path("a///b/../b/./c//"));
        let hints = rig.hinted();
        let expected = [
            ("a", true, "b/../b/./c//"),
            ("b", true, "../b/./c//"),
            ("b", true, "./c//"),
            ("c", false, ""),
        ];
        assert_eq!(hints.iter().map(brief).collect::<Vec<_>>(), expected);
        assert!(hints[0].1.dotdot && hints[1].1.dotdot && !hints[2].1.dotdot);
        assert!(!hints[0].1.may_fake() && hints[2].1.may_fake());
        assert!(hints[3].1.trailing_slash && hints[3].1.intent.directory);
        // `..` as part of a name is a name.
        lstat(&rig.path("a/..b"));
        assert!(!rig.hinted()[0].1.dotdot);
    }
}

#[test]
fn links_in_the_middle() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/real/sub/x");
        fs::metadata(rig.path("a/lnk.real+sub/x")).unwrap();
        let hints = rig.hinted();
        let expected = [
            ("a", true, "lnk.real+sub/x"),
            ("lnk.real+sub", true, "x"),
            ("real", true, "sub"),
            ("sub", true, ""),
            ("x", false, ""),
        ];
        assert_eq!(hints.iter().map(brief).collect::<Vec<_>>(), expected);
        let complete: Vec<bool> = hints.iter().map(|(_, hint)| hint.complete).collect();
        assert_eq!(complete, [true, true, false, false, true]);
        assert!(!hints[2].1.may_fake() && !hints[3].1.may_fake());

        // Links in links, and one at the end.
        fs::metadata(rig.path("a/lnk.lnk.real+/sub/lnk..+x")).unwrap();
        let hints = rig.hinted();
        let faked: Vec<_> =
            hints.iter().filter(|(_, hint)| hint.may_fake()).map(|(name, _)| &name[..]).collect();
        assert_eq!(faked, ["a", "lnk.lnk.real+", "sub"]);
        let last: Vec<_> =
            hints.iter().filter(|(_, hint)| !hint.follows).map(|(name, _)| &name[..]).collect();
        assert_eq!(last, ["lnk..+x", "x"]);
        assert!(!hints.last().unwrap().1.complete || hints.last().unwrap().1.rest.is_empty());
    }
}

#[test]
fn second_walk() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a");
        lstat(&rig.path("a/stale.x/y"));
        let again: Vec<_> = rig
            .hinted()
            .into_iter()
            .map(|(name, hint)| (name, hint.revalidate, hint.may_fake()))
            .collect();
        let expected = [
            ("a", false, true),
            ("stale.x", false, true),
            ("a", true, false),
            ("stale.x", true, false),
        ];
        let expected = expected.map(|(name, reval, fake)| (name.to_owned(), reval, fake));
        assert_eq!(again, expected);
    }
}

/// A path of PATH_MAX bytes, with a last component that would be missing if the slot were too
/// short.
#[test]
fn the_longest_path() {
    for way in ways() {
        let rig = Rig::new(way);
        let deep = "d/".repeat((4095 - rig.dir().as_os_str().len() - 1 - "../zz".len()) / 2);
        rig.dirs("d");
        let mut path = rig.path(format!("{deep}../zz"));
        if path.as_os_str().len() < 4095 {
            path = rig.path(format!("{deep}/../zz"));
        }
        assert_eq!(path.as_os_str().len(), 4095);
        lstat(&path);
        let (name, hint) = &rig.hinted()[0];
        assert_eq!(name, "d");
        assert_eq!(hint.rest.len(), path.as_os_str().len() - rig.dir().as_os_str().len() - 3);
        assert!(hint.rest.ends_with(b"../zz") && hint.dotdot);
    }
}

#[test]
fn names_of_every_length() {
    for way in ways() {
        let rig = Rig::new(way);
        for bytes in [1, 7, 8, 9, 39, 40, 41, 254, 255] {
            let name = "n".repeat(bytes);
            lstat(&rig.path(format!("{name}/{name}")));
            assert_eq!(rig.hinted()[0].1.rest[..], *name.as_bytes());
        }
    }
}

/// Calls that look a name up after their walk has ended: they are not hinted, no matter what came
/// before.
#[test]
fn last_components_without_a_walk() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b");
        let last_is_unknown = |what: &str, last: &[&str]| {
            let lookups = rig.lookups();
            let unknown: Vec<_> = lookups
                .iter()
                .filter(|(_, hint)| hint.is_none())
                .map(|(name, _)| &name[..])
                .collect();
            assert_eq!(unknown, last, "{what}");
            assert!(
                lookups.iter().filter_map(|(_, hint)| hint.as_ref()).all(|hint| hint.follows),
                "{what}"
            );
        };
        fs::create_dir(rig.path("a/b/new")).unwrap();
        last_is_unknown("mkdir", &["new"]);
        fs::rename(rig.path("a/b/new"), rig.path("a/b/newer")).unwrap();
        last_is_unknown("rename", &["new", "newer"]);
        fs::remove_dir(rig.path("a/b/newer")).unwrap();
        last_is_unknown("rmdir", &["newer"]);
        rig.file("a/f");
        fs::hard_link(rig.path("a/f"), rig.path("a/b/g")).unwrap_or_else(|e| panic!("{e}"));
        // The old name is walked to its end, the new one is not.
        let lookups = rig.lookups();
        assert!(
            lookups
                .iter()
                .any(|(name, hint)| name == "f" && hint.as_ref().is_some_and(|hint| !hint.follows))
        );
        assert!(lookups.iter().any(|(name, hint)| name == "g" && hint.is_none()));
        fs::remove_file(rig.path("a/b/g")).unwrap();
        last_is_unknown("unlink", &["g"]);
    }
}
