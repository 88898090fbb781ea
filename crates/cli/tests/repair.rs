//! Damage in the directories of three nodes, found and repaired by the program; what is in the
//! files stays.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use common::*;
use kestrel_admin::rows::{Rows, delete, put};
use kestrel_client::volume::{Resources, Volume, VolumeLock};
use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::owners::MapView;
use kestrel_types::entry::Entry;
use kestrel_types::key::{Key, Table};

/// A tree with files of all kinds, and a dump of it.
fn source(place: &Place) -> String {
    place.mount(&[]).expect(0, "");
    let mnt = place.mount_point();
    for dir in ["a", "a/b", "c"] {
        fs::create_dir(mnt.join(dir)).unwrap();
        for (name, size) in
            [("inline", 5), ("small", 5_000), ("packed", 90_000), ("large", 9_000_000)]
        {
            let bytes: Vec<u8> =
                (0..size).map(|at: u32| (at * 7 + dir.len() as u32) as u8).collect();
            fs::write(mnt.join(dir).join(name), bytes).unwrap();
        }
    }
    fs::hard_link(mnt.join("a/small"), mnt.join("c/linked")).unwrap();
    fs::rename(mnt.join("a/b/packed"), mnt.join("c/renamed")).unwrap();
    symlink("a/b", mnt.join("link")).unwrap();
    place.umount();
    let file = place.name("dump");
    run(&["dump", &place.volume(), &file]).expect(0, "");
    file
}

/// Changes rows in the directories of the nodes: gets all rows, makes changes of them, each for one
/// node.
fn tamper(
    dirs: &[String],
    change: impl Fn(&MapView, &[(u32, Key, Box<[u8]>)]) -> Vec<(u32, Mutation)>,
) {
    let open =
        |dir: &String| Volume::open_part(Path::new(dir), "test", &Resources::default()).unwrap();
    let parts: Vec<Volume> = dirs.iter().map(open).collect();
    let mut rows = Vec::new();
    for (part, node) in parts.iter().zip(1..) {
        for table in Table::ALL {
            for row in Rows::new(&*part.engine, table) {
                let (key, value) = row.unwrap();
                rows.push((node, key, value));
            }
        }
    }
    let section = parts[0].descriptor.cluster.clone().unwrap();
    let table = MapView::new(1, section.placement().unwrap()).unwrap();
    for (node, row) in change(&table, &rows) {
        let engine = &parts[node as usize - 1].engine;
        engine.commit(BatchKind::Growing, vec![row]).unwrap();
        engine.sync().unwrap();
    }
}

#[test]
fn nodes_at_rest_are_repaired_and_files_stay() {
    let place = Place::formatted();
    let dump = source(&place);
    let dirs = ["one", "two", "three"].map(|name| place.name(name));
    let nodes = ["--node", "127.0.0.1:1", "--node", "127.0.0.1:2", "--node", "127.0.0.1:3"];
    run(&[&["cluster", "init", &dirs[0], "--name", "photos"][..], &nodes].concat()).expect(0, "");
    let token = run(&["cluster", "token", &dirs[0]]).expect(0, "").out;
    for (dir, node) in dirs[1..].iter().zip(["2", "3"]) {
        run(&["cluster", "join", token.trim(), dir, "--node", node]).expect(0, "");
    }
    let objects = format!("{}/objects", place.volume());
    let all: Vec<&str> = dirs.iter().map(String::as_str).collect();
    run(&[&["load", &dump], &all[..], &["--objects", &objects]].concat())
        .expect(0, "loaded and verified");
    let fsck = |options: &[&str]| run(&[&["fsck"], &all[..], options].concat());
    let sound = fsck(&["--data", "--json"]).expect(0, "").json();
    fsck(&["--repair"]).expect(0, "clean");

    tamper(&dirs, |table, rows| {
        let mut changes = Vec::new();
        let owner = |key: &Key| table.owner(key.table, key.id, &key.suffix);
        for (at, (node, key, value)) in rows.iter().enumerate() {
            let elsewhere = node % 3 + 1;
            let mut change = |node: u32, row| changes.push((node, row));
            match key.table {
                // Entries that went astray; sums that are wrong, and gone; places and lists that
                // are lost.
                Table::Entry if key.id != 0 && at % 3 == 0 => {
                    change(elsewhere, put(key.table, key.id, &key.suffix, value.clone()));
                    change(*node, delete(key));
                }
                Table::Entry if at % 3 == 1 => {
                    change(elsewhere, put(key.table, key.id, &key.suffix, value.clone()))
                }
                Table::DirStat | Table::ObjStat if at % 2 == 0 => change(*node, delete(key)),
                Table::DirId | Table::Subdir if at % 2 == 0 => change(*node, delete(key)),
                _ => {}
            }
        }
        // A name of nothing, and counters that stand too low.
        let gone = Key::new(Table::Entry, 1, b"gone");
        let link = Entry::Link { ino: 1 << 40, kind: kestrel_types::inode::Kind::File };
        changes.push((owner(&gone), put(Table::Entry, 1, &gone.suffix, link.encode())));
        changes.push((2, delete(&Key::new(Table::System, 0, b"objects"))));
        changes.push((3, delete(&Key::new(Table::System, 0, b"clock"))));
        changes
    });
    fsck(&[]).expect(1, "row-misplaced").expect(1, "link-dangling").expect(1, "repairable");
    {
        let _in_use = VolumeLock::take(Path::new(&dirs[1]), "test").unwrap();
        fsck(&["--repair"]).expect(1, "in use by process");
    }
    run(&["fsck", all[0], all[1], "--repair"]).expect(1, "missing are 3");
    // Killed after a sync of one of the nodes, and run again, on copies.
    let mut killed = 0;
    for sync in [1, 2, 4, 7, 11, 16, 22, 29] {
        let copies = dirs.each_ref().map(|dir| format!("{dir}-{sync}"));
        for (dir, copy) in dirs.iter().zip(&copies) {
            assert!(Command::new("cp").args(["-a", dir, copy]).status().unwrap().success());
        }
        let copies = copies.each_ref().map(String::as_str);
        let args = [&["fsck", "--repair"], &copies[..]].concat();
        let end = kestrel(&args)
            .env("KESTREL_CRASH_AT", format!("engine.sync.after:{sync}"))
            .output()
            .unwrap();
        killed += u32::from(end.status.signal() == Some(libc::SIGKILL));
        run(&args).expect(0, "clean");
        let again =
            run(&[&["fsck", "--data", "--json"], &copies[..]].concat()).expect(0, "").json();
        assert_eq!(
            (&again["files"], &again["bytes"]),
            (&sound["files"], &sound["bytes"]),
            "{sync}"
        );
    }
    assert!(killed > 4, "{killed} were killed");
    let repaired = fsck(&["--repair", "--data", "--json"]).expect(0, "").json();
    assert!(repaired["repaired"].as_u64().unwrap() > 10 && repaired["errors"] == 0, "{repaired}");
    assert_eq!(fsck(&["--repair", "--json"]).expect(0, "").json()["repaired"], 0);
    fsck(&["--data"]).expect(0, "clean");

    // All of it, byte for byte.
    let back = place.name("back");
    let file = place.name("back.dump");
    run(&["dump", all[0], &file, "--node", all[1], "--node", all[2]]).expect(0, "rows");
    run(&["load", &file, &back, "--objects", &objects]).expect(0, "loaded and verified");
    place.mount(&[]).expect(0, "");
    let before = tree(&place.mount_point());
    place.umount();
    run(&["mount", &back, &place.mnt()]).expect(0, "");
    let after = tree(&place.mount_point());
    place.umount();
    assert!(before.len() >= 13 && before == after);
}
