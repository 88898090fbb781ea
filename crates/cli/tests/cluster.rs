//! `kestrel cluster plan` on real lists of paths.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use common::*;

/// A tree like a kernel's: every directory has a Makefile, every other one a Kconfig, and files of
/// its own.
fn sources() -> String {
    let mut paths = String::new();
    for dir in 0..1000 {
        writeln!(paths, "./src/dir{dir}\n./src/dir{dir}/Makefile").unwrap();
        if dir % 2 == 0 {
            writeln!(paths, "./src/dir{dir}/Kconfig").unwrap();
        }
        for file in 0..15 {
            writeln!(paths, "./src/dir{dir}/file{dir}-{file}.c").unwrap();
        }
    }
    paths
}

#[test]
fn hot_names_are_found_and_spread() {
    let place = Place::new();
    fs::write(place.path("list"), sources()).unwrap();
    let list = place.name("list");
    let args = ["cluster", "plan", "--nodes", "16", "--epsilon", "0.01", "--paths", &list];
    run(&args).expect(0, "17,501 entries").expect(0, "spread").expect(0, "Makefile");
    let found = run(&[&args[..], &["--json"]].concat()).expect(0, "").json();
    assert_eq!((&found["entries"], &found["nodes"]), (&17_501.into(), &16.into()));
    assert!(found["before"]["fullest_part"].as_f64().unwrap() > 0.0725, "{found:#}");
    assert!(found["after"]["fullest_part"].as_f64().unwrap() <= 0.0725, "{found:#}");
    assert_eq!(found["reaches_goal"], true);
    assert_eq!(found["exceptions"][0]["name"], "Makefile");
    assert_eq!(found["exceptions"][0]["rule"], "path-walk");
    assert_eq!(found["most_frequent"][1]["entries"], 500);
    for when in ["before", "after"] {
        let nodes = found[when]["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 16);
        assert_eq!(nodes.iter().map(|node| node.as_u64().unwrap()).sum::<u64>(), 17_501);
    }
    // The same list gives the same plan.
    assert_eq!(run(&[&args[..], &["--json"]].concat()).json(), found);
}

#[test]
fn paths_come_from_standard_input_too() {
    let mut child = kestrel(&["cluster", "plan", "--nodes", "4", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // Names are bytes, not necessarily text.
    input.write_all(b"a/\xff\xfe\na/b").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["entries"], &found["names"]), (&3.into(), &3.into()));
}

#[test]
fn what_is_no_list_of_paths_is_refused() {
    let place = Place::new();
    let list = place.name("list");
    let plan = |text: &str| {
        fs::write(&list, text).unwrap();
        run(&["cluster", "plan", "--nodes", "4", "--paths", &list])
    };
    plan("").expect(1, "no paths in it");
    plan("\n.\n/\n").expect(1, "no paths in it");
    plan("a\nb/../c\n").expect(1, "line 2").expect(1, "not a valid name");
    plan(&format!("a\n{}\n", "x".repeat(300))).expect(1, "255 bytes");
    plan(&"x/".repeat(100_000)).expect(1, "4095 bytes");
    run(&["cluster", "plan", "--nodes", "4", "--paths", &place.name("missing")])
        .expect(1, "No such file");
    run(&["cluster", "plan", "--nodes", "4", "--paths", &place.mnt()]).expect(1, "directory");
    for nodes in ["0", "1025", "-1", "x"] {
        run(&["cluster", "plan", "--nodes", nodes, "--paths", &list]).expect(2, "--nodes");
    }
    for epsilon in ["-0.1", "1.5", "NaN"] {
        run(&["cluster", "plan", "--nodes", "4", "--epsilon", epsilon]).expect(2, "--epsilon");
    }
}

#[test]
fn a_goal_that_cannot_be_reached_is_told() {
    let place = Place::new();
    // So many names, each once, that evening them out to the last entry takes more exceptions than
    // there may be.
    let names: String = (0..40_000).map(|i| format!("f{i}\n")).collect();
    fs::write(place.path("list"), names).unwrap();
    let list = place.name("list");
    let args = ["cluster", "plan", "--nodes", "8", "--epsilon", "0", "--paths", &list];
    run(&args).expect(1, "goal is not reached").expect(1, "larger --epsilon");
    let found = run(&[&args[..], &["--json"]].concat()).expect(1, "").json();
    assert_eq!(found["reaches_goal"], false);
    // Still never worse.
    assert!(found["after"]["fullest"].as_u64() <= found["before"]["fullest"].as_u64(), "{found:#}");
    run(&["cluster", "plan"]).expect(2, "--nodes");
    run(&["cluster"]).expect(2, "Usage");
}
