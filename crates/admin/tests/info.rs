//! What `info` answers about files and directories.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use kestrel_admin::info::{InfoError, TreeSums, describe, find_dir, find_path, tree_sums};
use kestrel_admin::rows::put;
use kestrel_types::ids::ROOT;
use kestrel_types::key::Table;

#[test]
fn files_by_layout() {
    let volume = Volume::new();
    let about = |path: &str| {
        describe(&volume.engine, &find_path(&volume.engine, path.as_bytes()).unwrap()).unwrap()
    };
    assert_eq!(about("/a/inline")["layout"], "inline");
    assert_eq!(about("a/inline")["inline_bytes"], 5);
    let packed = about("/a/packed");
    assert_eq!((&packed["layout"], &packed["stored_bytes"]), (&"packed".into(), &80.into()));
    assert_eq!(packed["extents"][0]["object"], 1);
    let big = about("//a/./b/big");
    assert_eq!(
        (&big["layout"], &big["chunks"], &big["objects"]),
        (&"chunked".into(), &1.into(), &2.into())
    );
    assert_eq!((&big["extents_total"], &big["stored_bytes"]), (&2.into(), &100_040.into()));
    assert_eq!(big["extents"][1]["file_offset"], 150_000);
    assert_eq!(about("/h2")["ino"], LINKED);
    assert_eq!(about("/a/b/c/empty")["layout"], "none");
}

#[test]
fn directories_without_walking_files() {
    let volume = Volume::new();
    let sums = tree_sums(&volume.engine, ROOT).unwrap();
    assert_eq!(sums, TreeSums { files: 7, dirs: 3, bytes: 200_098, children: 3 });
    assert_eq!(find_dir(&volume.engine, C).unwrap().ino, C);
    let tree = describe(&volume.engine, &find_dir(&volume.engine, B).unwrap()).unwrap();
    assert_eq!((&tree["tree"]["files"], &tree["tree"]["directories"]), (&2.into(), &1.into()));
}

#[test]
fn what_is_not_there_or_damaged_is_an_error() {
    let volume = Volume::new();
    assert_eq!(find_path(&volume.engine, b"/a/nothing").unwrap_err(), InfoError::NotFound);
    assert_eq!(find_dir(&volume.engine, 99).unwrap_err(), InfoError::NotFound);
    volume.apply(vec![put(Table::DirStat, A, &[0, 0], Box::new([7]))]);
    assert!(matches!(tree_sums(&volume.engine, ROOT), Err(InfoError::Damaged(_))));
}
