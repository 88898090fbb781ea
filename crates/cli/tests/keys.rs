//! Keys and settings of volumes: `kestrel key`, `kestrel config`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use common::*;

/// Makes a key file; its path and the key's fingerprint.
fn key(place: &Place, name: &str) -> (String, String) {
    let path = place.name(name);
    let made = run(&["key", "create", &path, "--json"]).expect(0, "").json();
    (path, made["fingerprint"].as_str().unwrap().to_string())
}

/// A key file is readable by its owner only, is never overwritten, and its content is never
/// printed.
#[test]
fn key_file_mode_and_secrecy() {
    let place = Place::new();
    let (path, fingerprint) = key(&place, "key");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let secret = fs::read_to_string(&path).unwrap().trim().to_string();
    assert_eq!((secret.len(), fingerprint.len()), (64, 32));
    run(&["key", "create", &path]).expect(1, "never overwritten");
    run(&["key", "create", &place.name("no/such/key")]).expect(1, "No such file");
    assert_ne!(key(&place, "other").1, fingerprint);
    run(&["format", &place.volume()]).expect(0, "created");
    run(&["key", "show", &place.volume()]).expect(1, "not encrypted");
    run(&["key", "rotate", &place.volume(), "--key-file", &path]).expect(1, "not encrypted");
    run(&["config", &place.volume(), "--encrypt", "--key-file", &path]).expect(0, &fingerprint);
    for args in
        [&["key", "show"][..], &["key", "show", "--json"], &["config"], &["config", "--json"]]
    {
        let volume = place.volume();
        let args = [args, &[&volume]].concat();
        let shown = run(&args).expect(0, &fingerprint);
        assert!(!shown.out.contains(&secret) && !shown.err.contains(&secret));
    }
    assert!(!fs::read_to_string(place.path("vol/kestrel.json")).unwrap().contains(&secret));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    run(&["key", "show", &place.volume(), "--key-file", &path]).expect(1, "chmod 600");
}

#[test]
fn wrong_usage_is_said_so() {
    let place = Place::formatted();
    let volume = place.volume();
    run(&["key"]).expect(2, "Usage");
    run(&["key", "destroy"]).expect(2, "unrecognized");
    run(&["config", &volume, "--compress", "gzip"]).expect(2, "zstd");
    run(&["config", &volume, "--compress", "zstd:20"]).expect(2, "1 to 19");
    run(&["config", &volume, "--encrypt", "--no-encrypt"]).expect(2, "cannot be used with");
    run(&["config", &volume, "--encrypt"]).expect(1, "kestrel key create");
    run(&["config", &place.name("nothing")]).expect(1, "no KestrelFS volume here");
    run(&["key", "show", &place.name("nothing")]).expect(1, "no KestrelFS volume here");
}

#[test]
fn settings_are_shown_and_changed() {
    let place = Place::formatted();
    let config = |args: &[&str]| {
        run(&[&["config", &place.volume(), "--json"], args].concat()).expect(0, "").json()
    };
    let before = fs::read(place.path("vol/kestrel.json")).unwrap();
    let shown = config(&[]);
    assert_eq!((&shown["compression"], &shown["encrypted"]), (&"none".into(), &false.into()));
    assert_eq!(fs::read(place.path("vol/kestrel.json")).unwrap(), before);
    assert_eq!(config(&["--compress", "zstd"])["compression"], "zstd:3");
    assert_eq!(config(&[])["compression"], "zstd:3");
    run(&["fsck", &place.volume()]).expect(0, "clean");
    let (path, fingerprint) = key(&place, "key");
    let shown = config(&["--encrypt", "--key-file", &path]);
    assert_eq!((&shown["encrypted"], &shown["volume_key"]), (&true.into(), &fingerprint.into()));
    assert_eq!(
        (&shown["compression"], &shown["encryption_required"]),
        (&"zstd:3".into(), &false.into())
    );
    assert_eq!(config(&["--no-encrypt", "--compress", "none"])["encrypted"], false);
}

#[test]
fn an_encrypted_volume_opens_with_its_key_only() {
    let place = Place::formatted();
    let ((path, fingerprint), (other, other_fingerprint)) =
        (key(&place, "key"), key(&place, "other"));
    run(&["config", &place.volume(), "--encrypt", "--key-file", &path]).expect(0, "");
    let before = fs::read(place.path("vol/kestrel.json")).unwrap();
    run(&["fsck", &place.volume()]).expect(1, "--key-file").expect(1, &fingerprint);
    run(&["fsck", &place.volume(), "--key-file", &other])
        .expect(1, &other_fingerprint)
        .expect(1, &fingerprint);
    run(&["fsck", &place.volume(), "--key-file", &place.name("lost")]).expect(1, "No such file");
    run(&["fsck", &place.volume(), "--key-file", &path]).expect(0, "clean");
    let named =
        kestrel(&["fsck", &place.volume()]).env("KESTREL_KEY_FILE", &path).output().unwrap();
    assert_eq!(named.status.code(), Some(0));
    assert_eq!(fs::read(place.path("vol/kestrel.json")).unwrap(), before);
}

#[test]
fn rotation_is_whole_or_not_at_all() {
    for (point, is_done) in
        [("descriptor.replace.written", false), ("descriptor.replace.renamed", true)]
    {
        let place = Place::formatted();
        let ((old, _), (new, _)) = (key(&place, "old"), key(&place, "new"));
        run(&["config", &place.volume(), "--encrypt", "--key-file", &old]).expect(0, "");
        let volume = place.volume();
        let args = ["key", "rotate", &volume, "--key-file", &old, "--new-key-file", &new];
        let killed = kestrel(&args).env("KESTREL_CRASH_AT", format!("{point}:1")).output().unwrap();
        assert_eq!(killed.status.signal(), Some(libc::SIGKILL), "{point}");
        let (opens, does_not) = if is_done { (&new, &old) } else { (&old, &new) };
        run(&["key", "show", &place.volume(), "--key-file", opens]).expect(0, "opens it");
        run(&["key", "show", &place.volume(), "--key-file", does_not])
            .expect(1, "not the key of volume");
        run(&["fsck", &place.volume(), "--key-file", opens]).expect(0, "clean");
        let again =
            ["key", "rotate", &volume, "--key-file", opens, "--new-key-file", &new, "--json"];
        let rotated = run(&again).expect(0, "").json();
        assert_eq!(rotated["data_keys"].as_array().unwrap().len(), if is_done { 3 } else { 2 });
        run(&["key", "show", &place.volume(), "--key-file", &new]).expect(0, "opens it");
    }
}

/// Three nodes that do not run, with the key in this file if there is one: their directories.
fn three_nodes(place: &Place, key: Option<&str>) -> [String; 3] {
    let dirs = ["one", "two", "three"].map(|name| place.name(name));
    let nodes = ["--node", "127.0.0.1:1", "--node", "127.0.0.1:2", "--node", "127.0.0.1:3"];
    let key = key.map_or(vec![], |key| vec!["--encrypt", "--key-file", key]);
    run(&[&["cluster", "init", &dirs[0], "--name", "photos"][..], &nodes, &key].concat())
        .expect(0, "");
    let token = run(&["cluster", "token", &dirs[0]]).expect(0, "").out;
    for (dir, node) in dirs[1..].iter().zip(["2", "3"]) {
        run(&["cluster", "join", token.trim(), dir, "--node", node]).expect(0, "");
    }
    dirs
}

/// What the nodes have in common, as each has it.
fn common_part(dirs: &[String; 3]) -> Vec<serde_json::Value> {
    let read = |dir: &String| -> serde_json::Value {
        serde_json::from_slice(&fs::read(format!("{dir}/kestrel.json")).unwrap()).unwrap()
    };
    dirs.iter().map(|dir| serde_json::json!([read(dir)["settings"], read(dir)["coding"]])).collect()
}

/// A change of the settings of all nodes that was cut short is finished by the next one.
#[test]
fn resumed_change_of_all_nodes() {
    let place = Place::new();
    let (old, _) = key(&place, "old");
    let dirs = three_nodes(&place, Some(&old));
    let points = ["change.written", "change.renamed", "replace.written", "replace.renamed"];
    let points = points
        .iter()
        .flat_map(|point| (1..=3).map(move |count| format!("descriptor.{point}:{count}")));
    let mut now = old;
    for (round, point) in points.enumerate() {
        let args = |verb: &[&str], more: &[&str]| -> Vec<String> {
            let nodes =
                [&dirs[0], "--node", &dirs[1], "--node", &dirs[2], "--key-file", &now, "--json"];
            [verb, &nodes, more].concat().into_iter().map(str::to_string).collect()
        };
        let die = |args: &[String]| {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let killed = kestrel(&args).env("KESTREL_CRASH_AT", &point).output().unwrap();
            assert_eq!(killed.status.signal(), Some(libc::SIGKILL), "{point}");
        };
        let run = |args: &[String]| run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let all_agree = || {
            let common = common_part(&dirs);
            assert!(common[0] == common[1] && common[0] == common[2], "{point}");
            assert!(
                dirs.iter()
                    .all(|dir| !std::path::Path::new(dir).join("kestrel.json.change").exists())
            );
            common[0][1]["encryption"]["keys"].as_array().unwrap().len()
        };
        // Another change comes on top of the one that was cut short, or of none.
        die(&args(&["config"], &["--compress", ["zstd:4", "zstd:5"][round % 2]]));
        let told = run(&args(&["config"], &["--compress", "lz4"])).expect(0, "").json();
        assert_eq!(told["compression"], "lz4", "{point}");
        let keys = all_agree();

        // A rotation that is repeated happens once, also where it was done everywhere.
        let (next, fingerprint) = key(&place, &format!("key-{round}"));
        let rotate = args(&["key", "rotate"], &["--new-key-file", &next]);
        die(&rotate);
        if point == "descriptor.replace.renamed:3" {
            run(&[&rotate[..2], &dirs[..1], &["--key-file".to_string(), next.clone()]].concat())
                .expect(1, "missing are");
        } else if point.starts_with("descriptor.replace.renamed") {
            // What opens some of them only says how to go on.
            run(&args(&["config"], &["--compress", "none"]))
                .expect(1, "repeat it, and it is finished");
        }
        run(&rotate).expect(0, &fingerprint);
        assert_eq!(all_agree(), keys + 1, "{point}");
        for dir in &dirs {
            run(&["key", "show", dir, "--key-file", &next].map(str::to_string))
                .expect(0, "this key opens it");
        }
        now = next;
    }
}

/// The command refuses nodes with settings that differ although no change is under way.
#[test]
fn unexplained_differences_between_nodes() {
    let place = Place::new();
    let dirs = three_nodes(&place, None);
    let config = |level| {
        run(&["config", &dirs[0], "--node", &dirs[1], "--node", &dirs[2], "--compress", level])
    };
    let before = fs::read(format!("{}/kestrel.json", dirs[1])).unwrap();
    config("lz4").expect(0, "lz4");
    fs::write(format!("{}/kestrel.json", dirs[1]), before).unwrap();
    config("zstd").expect(1, "restore kestrel.json");
    // A descriptor to be of which nobody has heard, at one node alone: nothing was decided.
    fs::copy(format!("{}/kestrel.json", dirs[0]), format!("{}/kestrel.json", dirs[1])).unwrap();
    run(&["config", &dirs[0], "--node", &dirs[1], "--node", &dirs[2], "--compress", "none"])
        .expect(1, "node 1, as");
}
