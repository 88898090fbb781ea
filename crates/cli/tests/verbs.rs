//! Verbs on volumes that are not mounted: exit codes, messages, JSON.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use common::*;
use kestrel_admin::rows::put;
use kestrel_client::volume::{Resources, Volume};
use kestrel_engine::BatchKind;
use kestrel_types::key::Table;

/// Opens the volume's raw parts, as a verb does.
fn raw(place: &Place) -> Volume {
    Volume::open(&place.volume(), "a test", &Resources::default()).unwrap()
}

#[test]
fn help_and_usage() {
    run(&["--help"]).expect(0, "Exit codes");
    for version in ["--version", "version"] {
        run(&[version]).expect(0, env!("CARGO_PKG_VERSION"));
    }
    run(&["help"]).expect(0, "Exit codes").expect(0, "Data set:");
    run(&["help", "mount"]).expect(0, "--cache-dir").expect(0, "--help-all");
    run(&["help", "cluster", "init"]).expect(0, "--coordinator");
    run(&["help", "frobnicate"]).expect(2, "unrecognized");
    run(&["mount", "--help-all"]).expect(0, "--shortcut-names");
    for verb in [
        "format", "mount", "umount", "status", "info", "stats", "fsck", "gc", "dump", "load",
        "bench", "null-fs",
    ] {
        run(&[verb, "--help"]).expect(0, "Example");
        run(&[verb]).expect(2, "Usage");
        run(&[verb, "x", "y", "z", "--no-such-option"]).expect(2, "");
    }
    run(&[]).expect(2, "Usage");
    run(&["frobnicate"]).expect(2, "unrecognized");
    run(&["crash-points"]).expect(0, "engine.sync.before");
}

#[test]
fn format_makes_a_volume_and_refuses_what_it_should() {
    let place = Place::new();
    let made =
        run(&["format", &place.volume(), "--name", "photos", "--block-size", "1M", "--json"])
            .expect(0, "")
            .json();
    assert_eq!(made["name"], "photos");
    let status =
        run(&["status", &format!("file://{}", place.volume()), "--json"]).expect(0, "").json();
    assert_eq!((&status["name"], &status["uuid"]), (&made["name"], &made["uuid"]));
    assert_eq!(status["block_size"], 1 << 20);
    assert_eq!(
        (&status["files"], &status["directories"], &status["mounted"]),
        (&0.into(), &1.into(), &false.into())
    );
    run(&["format", &place.volume()]).expect(1, "not empty").expect(1, "--force");
    run(&["format", &place.volume(), "--force"]).expect(0, "created");
    assert_ne!(run(&["status", &place.volume(), "--json"]).json()["uuid"], made["uuid"]);
    // What never was a volume is not removed.
    let strangers = place.name("strangers/meta");
    fs::create_dir_all(&strangers).unwrap();
    fs::write(format!("{strangers}/notes"), "precious").unwrap();
    run(&["format", &place.name("strangers"), "--force"]).expect(1, "strangers");
    assert_eq!(fs::read_to_string(format!("{strangers}/notes")).unwrap(), "precious");

    let other = place.name("other");
    for (option, value, why) in [
        ("--block-size", "4X", "not a size"),
        ("--block-size", "100", "64K"),
        ("--block-size", "1T", "too large"),
        ("--block-size", "99999999999999999999", "too large"),
        ("--inline-max", "1M", "16K"),
        ("--name", "a/b", "name"),
        ("--storage", "ftp://x/y", "file:///"),
        ("--durability", "maybe", "possible values"),
        ("--grace", "forever", "not a duration"),
    ] {
        run(&["format", &other, option, value]).expect(2, why);
        assert!(!fs::exists(&other).unwrap(), "{option} {value} left something behind");
    }
    run(&["format", "ftp://bucket/x"]).expect(2, "needs the volume's directory");
    fs::write(place.path("file"), "x").unwrap();
    run(&["format", &place.name("file")]).expect(1, "");
    fs::create_dir(place.path("full")).unwrap();
    fs::write(place.path("full/precious"), "x").unwrap();
    run(&["format", &place.name("full")]).expect(1, "not empty");
    assert_eq!(fs::read(place.path("full/precious")).unwrap(), b"x");
}

#[test]
fn what_is_no_volume_is_said_so() {
    let place = Place::new();
    for verb in ["status", "fsck", "gc"] {
        run(&[verb, &place.volume()])
            .expect(1, "no KestrelFS volume here")
            .expect(1, "kestrel format");
    }
    run(&["mount", &place.volume(), &place.mnt()]).expect(1, "no KestrelFS volume here");
    run(&["dump", &place.volume(), &place.name("d")]).expect(1, "no KestrelFS volume here");
    run(&["info", &place.mnt()]).expect(1, "not in a KestrelFS mount");
    run(&["stats", &place.mnt()]).expect(1, "not in a KestrelFS mount");
    run(&["umount", &place.mnt()]).expect(1, "nothing is mounted");
}

#[test]
fn damaged_and_newer_descriptors_are_refused() {
    let place = Place::formatted();
    let path = place.path("vol/kestrel.json");
    let good = fs::read_to_string(&path).unwrap();
    // Both copies: one that is damaged alone is mended.
    let write = |text: String| {
        for name in ["vol/kestrel.json", "vol/kestrel.json.copy"] {
            fs::write(place.path(name), &text).unwrap();
        }
    };
    write(good.replace("\"format_version\": 1", "\"format_version\": 7"));
    run(&["status", &place.volume()]).expect(1, "newer").expect(1, "kestrel.json");
    write(good.replace("fsync", "commit"));
    run(&["fsck", &place.volume()]).expect(1, "checksum").expect(1, "kestrel.json");
}

#[test]
fn fsck_finds_repairs_and_is_then_content() {
    let place = Place::formatted();
    run(&["fsck", &place.volume()]).expect(0, "clean");
    let damage = vec![
        put(Table::Xattr, 999, b"user.x", Box::new([1, 2])),
        put(Table::DirId, 998, &[], Box::new([1, 0, 0, 0, 0, 0, 0, 0, 1, b'x'])),
    ];
    raw(&place).engine.commit(BatchKind::Growing, damage).unwrap();
    run(&["fsck", &place.volume()]).expect(1, "xattr-dangling").expect(1, "--repair");
    let found = run(&["fsck", &place.volume(), "--json"]).expect(1, "").json();
    assert_eq!((&found["clean"], &found["errors"]), (&false.into(), &2.into()));
    assert_eq!(found["counts"]["dirid-dangling"], 1);
    assert_eq!(found["findings"][0]["repairable"], true);
    let limited = run(&["fsck", &place.volume(), "--json", "--limit", "1"]).json();
    assert_eq!((limited["findings"].as_array().unwrap().len(), &limited["errors"]), (1, &2.into()));
    let repaired = run(&["fsck", &place.volume(), "--repair", "--json"]).expect(0, "").json();
    assert_eq!(
        (&repaired["repaired"], repaired["repairs"].as_array().unwrap().len()),
        (&2.into(), 2)
    );
    run(&["fsck", &place.volume(), "--repair"]).expect(0, "clean");
}

#[test]
fn gc_deletes_only_when_told_and_only_what_is_old() {
    let place = Place::formatted();
    raw(&place).store.put(70_000, &[std::io::IoSlice::new(b"leaked")]).unwrap();
    run(&["gc", &place.volume()]).expect(0, "0 leaked").expect(0, "1 too young");
    std::thread::sleep(Duration::from_millis(1100));
    let found = run(&["gc", &place.volume(), "--grace", "1s", "--json"]).expect(0, "").json();
    assert_eq!(
        (&found["leaked_objects"], &found["deleted_objects"], &found["dry_run"]),
        (&1.into(), &0.into(), &true.into())
    );
    assert_eq!(found["leaked"][0]["object"], 70_000);
    run(&["gc", &place.volume(), "--grace", "1s"]).expect(0, "--delete");
    run(&["gc", &place.volume(), "--grace", "1s", "--delete"]).expect(0, "1 deleted");
    run(&["gc", &place.volume(), "--grace", "0", "--delete"]).expect(0, "0 leaked");
    run(&["gc", &place.volume(), "--grace", "soon"]).expect(2, "not a duration");
}

#[test]
fn dumps_load_and_bad_ones_are_refused() {
    let place = Place::formatted();
    let (dump, copy) = (place.name("vol.dump"), place.name("copy"));
    let made = run(&["dump", &place.volume(), &dump, "--json"]).expect(0, "").json();
    assert!(made["rows"].as_u64().unwrap() > 1);
    run(&["dump", &place.volume(), &dump]).expect(1, "exists").expect(1, "--force");
    run(&["dump", &place.volume(), &dump, "--force"]).expect(0, "rows");
    run(&["dump", &place.volume(), &place.name("no/such/dir/d")]).expect(1, "No such file");
    run(&["load", &dump, &copy, "--name", "copy"]).expect(0, "verified");
    let status = run(&["status", &copy, "--json"]).json();
    assert_eq!(status["name"], "copy");
    assert_ne!(status["uuid"], run(&["status", &place.volume(), "--json"]).json()["uuid"]);
    run(&["fsck", &copy]).expect(0, "clean");
    run(&["load", &dump, &copy]).expect(0, "verified");
    run(&["load", &dump, &copy, "--name", "x"]).expect(2, "exists");

    let bytes = fs::read(&dump).unwrap();
    let third = place.name("third");
    for (what, content) in [
        ("cut off", &bytes[..bytes.len() - 1]),
        ("cut off", &bytes[..bytes.len() / 2]),
        ("line", &[&bytes[..100], b"x", &bytes[101..]].concat()),
        ("first line", b"hello\n"),
    ] {
        fs::write(place.path("bad"), content).unwrap();
        let refused = run(&["load", &place.name("bad"), &third]);
        assert!(refused.code == 1 && refused.err.contains("line"), "{what}: {}", refused.err);
        assert!(!fs::exists(&third).unwrap(), "a refused load leaves nothing");
    }
    run(&["load", &place.name("missing"), &third]).expect(1, "No such file");
}

#[test]
fn bench_measures_and_cleans_up() {
    let place = Place::new();
    let dir = place.mnt();
    let small =
        ["--files", "20", "--threads", "2", "--large-size", "1M", "--sizes", "4K", "--warm"];
    let report = run(&[&["bench", &dir, "--json"], &small[..]].concat()).expect(0, "").json();
    let results = report["results"].as_array().unwrap();
    let find = |phase: &str, op: &str| {
        results
            .iter()
            .find(|line| line["phase"] == phase && line["op"] == op)
            .unwrap_or_else(|| panic!("{phase} {op}"))
    };
    for op in ["mkdir", "create", "stat", "open+close", "rename", "unlink"] {
        for phase in ["metadata", "shared"] {
            assert!(find(phase, op)["per_second"].as_f64().unwrap() > 0.0);
            assert!(find(phase, op)["latency_us"]["p99"].as_f64().unwrap() > 0.0);
        }
    }
    assert_eq!(find("metadata", "create")["count"], 40);
    assert_eq!(find("small 4K", "write+close")["bytes"], 40 * 4096);
    assert_eq!(find("large 1M", "read")["bytes"], 2 << 20);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let args = ["bench", &dir, "--phase", "metadata", "--processes", "2", "--json"];
    let report = run(&[&args[..], &small[..]].concat()).expect(0, "").json();
    assert_eq!(report["results"][2]["count"], 80);
    run(&["bench", &dir, "--phase", "metadata", "--files", "5"]).expect(0, "machine");
    for (option, value) in [
        ("--threads", "0"),
        ("--threads", "100000"),
        ("--sizes", "x"),
        ("--phase", "y"),
        ("--block", "1"),
    ] {
        run(&["bench", &dir, option, value]).expect(2, "");
    }
    run(&["bench", &dir, "--large-size", "1000T", "--phase", "large"]).expect(1, "free");
    run(&["bench", &place.name("missing")]).expect(1, "existing directory");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn an_interrupted_bench_cleans_up() {
    for processes in ["1", "3"] {
        let place = Place::new();
        let args = [
            "bench",
            &place.mnt(),
            "--files",
            "10000000",
            "--processes",
            processes,
            "--phase",
            "metadata",
        ];
        let mut child =
            kestrel(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while fs::read_dir(place.mount_point()).unwrap().count() == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: the child is ours and has not been waited for.
        unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(1), None));
        assert_eq!(fs::read_dir(place.mount_point()).unwrap().count(), 0);
    }
}
