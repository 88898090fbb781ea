//! Verbs on mounted volumes. Needs FUSE and the right to mount.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::*;

fn is_mounted(place: &Place) -> bool {
    let above = fs::metadata(place.path(".")).unwrap().dev();
    fs::metadata(place.mount_point()).is_ok_and(|meta| meta.dev() != above)
}

fn kill(pid: u64, signal: i32) {
    // SAFETY: a process this test started, by number.
    assert_eq!(unsafe { libc::kill(i32::try_from(pid).unwrap(), signal) }, 0);
}

fn pid(place: &Place) -> u64 {
    run(&["status", &place.volume(), "--json"]).expect(0, "").json()["pid"].as_u64().unwrap()
}

/// Whether a thread of a process still runs. Its number is there longer: until its parent has asked
/// how it ended.
fn is_alive(pid: u64) -> bool {
    let runs = |stat: String| {
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().any(|task| fs::read_to_string(task.path().join("stat")).is_ok_and(runs))
}

/// Waits until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn fill(place: &Place) {
    let mnt = place.mount_point();
    fs::create_dir_all(mnt.join("a/b")).unwrap();
    fs::write(mnt.join("a/inline"), "hello").unwrap();
    fs::write(mnt.join("a/b/packed"), vec![7; 100_000]).unwrap();
    fs::write(mnt.join("a/b/large"), (0..9_000_000u32).map(|i| (i / 7) as u8).collect::<Vec<_>>())
        .unwrap();
    fs::hard_link(mnt.join("a/inline"), mnt.join("a/link")).unwrap();
    symlink("a/inline", mnt.join("symlink")).unwrap();
    fs::write(mnt.join("grün\n"), "x").unwrap();
}

/// A mount with something of everything, and what is there.
fn filled() -> (Place, Vec<(PathBuf, Vec<u8>)>) {
    let place = Place::mounted();
    fill(&place);
    let files = tree(&place.mount_point());
    (place, files)
}

#[test]
fn a_mount_serves_tells_about_itself_and_ends() {
    let place = Place::formatted();
    let mounted = place.mount(&[]).expect(0, "is mounted on").expect(0, "mount.log");
    assert!(mounted.err.is_empty());
    assert!(is_mounted(&place) && fs::exists(place.path("vol/mount.log")).unwrap());
    fill(&place);
    let before = tree(&place.mount_point());

    let status = run(&["status", &place.volume(), "--json"]).expect(0, "").json();
    assert_eq!((&status["mounted"], &status["mount_point"]), (&true.into(), &place.mnt().into()));
    assert_eq!((&status["files"], &status["directories"]), (&6.into(), &3.into()));
    run(&["status", &place.volume()]).expect(0, &place.mnt());

    let other = place.name("other");
    fs::create_dir(&other).unwrap();
    for args in [["fsck", "--repair", &place.volume()], ["mount", &place.volume(), &other]] {
        run(&args).expect(1, "in use").expect(1, &status["pid"].to_string());
    }
    run(&["fsck", &place.volume(), "--data"]).expect(0, "clean");

    let info = |path: &str| {
        run(&["info", &format!("{}/{path}", place.mnt()), "--json"]).expect(0, "").json()
    };
    let sums = info("");
    assert_eq!((&sums["kind"], &sums["tree"]["files"]), (&"dir".into(), &6.into()));
    assert_eq!(info("a")["tree"]["directories"], 1);
    assert_eq!(info("a/inline")["layout"], "inline");
    assert_eq!(info("a/b/packed")["layout"], "packed");
    assert_eq!(
        (&info("a/b/large")["layout"], &info("a/b/large")["stored_bytes"]),
        (&"chunked".into(), &9_000_000.into())
    );
    assert_eq!(info("symlink")["kind"], "symlink");
    assert_eq!(info("grün\n")["size"], 1);
    run(&["info", &format!("{}/a/b/large", place.mnt())]).expect(0, "chunked");
    run(&["info", &format!("{}/nothing", place.mnt())]).expect(1, "No such file");

    let du = |options: &[&str]| {
        let mnt = place.mnt();
        let args = [&["du", &mnt, "--json"], options].concat();
        run(&args).expect(0, "").json()
    };
    let found = du(&[]);
    let (total, dirs) = (&found["total"], found["dirs"].as_array().unwrap());
    assert_eq!((&total["files"], &total["directories"]), (&6.into(), &2.into()));
    assert_eq!((dirs.len(), &dirs[1]["path"], &dirs[1]["files"]), (2, &"a".into(), &4.into()));
    assert_eq!((&dirs[1]["bytes"], &dirs[1]["bytes_here"]), (&9_100_000.into(), &0.into()));
    let top = du(&["--top", "1"]);
    assert_eq!((&top["dirs"][0]["path"], &top["total"]), (&"a/b".into(), total));
    assert_eq!(du(&["--top", "1", "--by", "files"])["dirs"][0]["path"], "");
    run(&["du", &place.mnt(), "--depth", "9"]).expect(0, "8.7 MiB").expect(0, "/a/b");
    run(&["du", &format!("{}/symlink", place.mnt())]).expect(1, "not a directory");
    run(&["du", &place.mnt(), "--by", "files"]).expect(2, "--top");
    let packed = place.mount_point().join("a/b/packed");
    std::os::unix::fs::chown(&packed, Some(1234), Some(5678)).unwrap();
    for (kind, id) in [("user", 1234), ("group", 5678)] {
        let found = du(&["--owners", kind]);
        let owners = found["owners"].as_array().unwrap();
        let ids: Vec<_> = owners.iter().map(|one| one["id"].as_u64().unwrap()).collect();
        assert_eq!((ids.len(), ids[1]), (2, id), "{found}");
        assert_eq!((&owners[1]["files"], &owners[1]["bytes"]), (&1.into(), &100_000.into()));
        // One of them has two names.
        assert_eq!(owners[0]["files"], 4);
        run(&["du", &place.mnt(), "--owners", kind]).expect(0, &id.to_string());
    }
    run(&["du", &place.mnt(), "--owners", "user", "--top", "3"]).expect(2, "--top");

    let requests = || {
        run(&["stats", &place.mnt(), "--once", "--json"])
            .expect(0, "")
            .json()["metadata_requests_total"]
            .as_u64()
            .unwrap()
    };
    let first = requests();
    for _ in 0..10 {
        fs::metadata(place.mount_point().join("a/inline")).unwrap();
    }
    assert!(requests() >= first + 10);
    run(&["stats", &place.mnt(), "--once"]).expect(0, "create").expect(0, "unstored data");
    run(&["stats", &place.mnt(), "--once", "--all"]).expect(0, "lookup").expect(0, "log");

    place.umount();
    assert!(!is_mounted(&place));
    run(&["fsck", &place.volume(), "--data"]).expect(0, "clean");
    run(&["info", "--volume", &place.volume(), "/a/b/packed"]).expect(0, "packed");
    run(&["du", "--volume", &place.volume(), "/a"]).expect(0, "8.7 MiB in 4 files");
    run(&["du", "--volume", &place.volume(), "/nothing"]).expect(1, "no such entry");
    run(&["du", "--volume", &place.volume(), "/a", "--owners", "user"]).expect(0, "1234");
    place.mount(&["--read-only"]).expect(0, "");
    assert_eq!(tree(&place.mount_point()), before);
    assert_eq!(
        fs::write(place.mount_point().join("new"), "x").unwrap_err().raw_os_error(),
        Some(libc::EROFS)
    );
    place.umount();
}

#[test]
fn mistakes_are_told_before_anything_happens() {
    let place = Place::formatted();
    run(&["mount", &place.volume(), &place.name("missing")]).expect(1, "existing directory");
    fs::write(place.path("file"), "x").unwrap();
    run(&["mount", &place.volume(), &place.name("file")]).expect(1, "not a directory");
    run(&["mount", &place.volume(), &place.volume()]).expect(1, "hidden");
    run(&["mount", "kestrel:/meta1/photos", &place.mnt()]).expect(2, "kestrel://meta1/photos");
    place.mount(&["-o", "frobnicate"]).expect(2, "unknown option");
    place.mount(&["--metadata-memory", "1K"]).expect(2, "at least 16M");
    place.mount(&["--metadata-memory", "much"]).expect(2, "not a size");
    place.mount(&["--workers", "100000"]).expect(2, "at most");
    place.mount(&["--metrics", "nowhere"]).expect(2, "--metrics");
    place.mount(&["--metrics", "192.0.2.1:80"]).expect(1, "loopback");
    place.mount(&["--log-level", "loud"]).expect(2, "none of");
    place.mount(&["--log", "/no/such/dir/log"]).expect(1, "--log");
    assert!(!is_mounted(&place));
    run(&["fsck", &place.volume()]).expect(0, "clean");
}

/// A mount on a directory that has one is refused with what to do, and made with --stack.
#[test]
fn mount_over_mount() {
    let (below, above) = (Place::mounted(), Place::formatted());
    fs::write(below.mount_point().join("below"), "x").unwrap();
    let args = ["mount", &above.volume(), &below.mnt()];
    run(&args).expect(1, "--stack").expect(1, &format!("`kestrel umount {}`", below.mnt()));
    run(&[&args[..], &["--stack"]].concat()).expect(0, "is mounted on");
    assert!(!below.mount_point().join("below").exists());
    below.umount();
    assert!(below.mount_point().join("below").exists());
    below.umount();
}

#[test]
fn a_busy_mount_is_left_alone_unless_forced() {
    let place = Place::mounted();
    let mut open = fs::File::create(place.mount_point().join("open")).unwrap();
    let holder =
        format!("process {}, {}", std::process::id(), place.mount_point().join("open").display());
    run(&["umount", &place.mnt()]).expect(1, &holder).expect(1, "--force");
    open.write_all(b"still works").unwrap();
    run(&["umount", "--force", &place.mnt()]).expect(0, "");
    assert!(!is_mounted(&place));
    assert!(open.write_all(b"x").and_then(|()| open.sync_all()).is_err(), "the connection is cut");
    drop(open);
    run(&["fsck", &place.volume()]).expect(0, "clean");
}

#[test]
fn signals_unmount_cleanly() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let place = Place::mounted();
        fs::write(place.mount_point().join("file"), vec![1; 50_000]).unwrap();
        kill(pid(&place), signal);
        until("the unmount", || !is_mounted(&place));
        until("the end", || run(&["fsck", "--data", &place.volume()]).code == 0);
        place.mount(&[]).expect(0, "");
        assert_eq!(fs::read(place.mount_point().join("file")).unwrap(), vec![1; 50_000]);
        place.umount();
    }
}

/// After a mount was killed the volume can be mounted again at the same place, and nothing is lost.
#[test]
fn mount_after_killed_mount() {
    let (place, before) = filled();
    let pid = pid(&place);
    kill(pid, libc::SIGKILL);
    until("the end", || fs::metadata(place.mount_point()).is_err() && !is_alive(pid));
    place.mount(&[]).expect(0, "");
    assert_eq!(tree(&place.mount_point()), before);
    place.umount();
    place.check_data();
}

#[test]
fn figures_over_http() {
    let place = Place::formatted();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    place.mount(&["--metrics", &port.to_string()]).expect(0, "");
    fs::write(place.mount_point().join("file"), "x").unwrap();
    let mut stream = TcpStream::connect(port).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.0 200"), "{page}");
    for line in [
        "kestrel_metadata_requests_total ",
        "kestrel_metadata_requests_by_kind_total{kind=\"create\"} 1",
        "_bucket{",
    ] {
        assert!(page.contains(line), "{line} is missing in {page}");
    }
    // A port that is taken: an error, and nothing stays mounted.
    let other = Place::formatted();
    other.mount(&["--metrics", &port.to_string()]).expect(1, "choose another port");
    assert!(!is_mounted(&other));
    place.umount();
}

#[test]
fn backup_of_a_volume_in_use_and_restore() {
    let (place, before) = filled();
    let dump = place.name("vol.dump");
    run(&["dump", &place.volume(), &dump]).expect(0, "rows");
    run(&["dump", &place.volume(), &dump]).expect(1, "--force");
    fs::write(place.mount_point().join("later"), vec![9; 200_000]).unwrap();
    let restored = Place::new();
    run(&["load", &dump, &restored.volume()]).expect(1, "--objects");
    fs::remove_dir_all(restored.path("vol")).unwrap();
    run(&["load", &dump, &restored.volume(), "--objects", &place.name("vol/objects")])
        .expect(0, "verified");
    place.umount();
    restored.check_data();
    restored.mount(&[]).expect(0, "");
    assert_eq!(tree(&restored.mount_point()), before);
    fs::write(restored.mount_point().join("new"), vec![3; 300_000]).unwrap();
    restored.umount();
    restored.check_data();
}

#[test]
fn restore_into_a_volume_that_got_its_objects_back() {
    let (place, before) = filled();
    let dump = place.name("vol.dump");
    run(&["dump", &place.volume(), &dump]).expect(0, "rows");
    // Written after the dump: in the way of objects that the restored volume will write.
    fs::write(place.mount_point().join("later"), vec![9; 200_000]).unwrap();
    place.umount();
    let restored = Place::formatted();
    let copied = std::process::Command::new("cp")
        .args(["-a", &place.name("vol/objects/."), &restored.name("vol/objects")])
        .status();
    assert!(copied.unwrap().success());
    run(&["load", &dump, &restored.volume()]).expect(0, "verified");
    restored.mount(&[]).expect(0, "");
    assert_eq!(tree(&restored.mount_point()), before);
    for file in 0..20 {
        fs::write(restored.mount_point().join(format!("new{file}")), vec![3; 300_000]).unwrap();
    }
    restored.umount();
    restored.check_data();
    run(&["load", &dump, &restored.volume()]).expect(1, "holds files");
    restored.check_data();
}

#[test]
fn gc_of_a_volume_in_use_spares_what_is_written() {
    let (place, _) = filled();
    let open = fs::File::create(place.mount_point().join("open")).unwrap();
    (&open).write_all(&vec![5; 300_000]).unwrap();
    run(&["gc", &place.volume(), "--grace", "0", "--delete"]).expect(0, "0 leaked");
    drop(open);
    let before = tree(&place.mount_point());
    place.umount();
    place.mount(&[]).expect(0, "");
    assert_eq!(tree(&place.mount_point()), before);
    place.umount();
    place.check_data();
}

#[test]
fn the_null_file_system_takes_a_benchmark() {
    let place = Place::new();
    let mut child =
        kestrel(&["null-fs", &place.mnt()]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut first = [0; 7];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"serving");
    run(&["bench", &place.mnt(), "--files", "20", "--no-verify", "--large-size", "1M", "--warm"])
        .expect(0, "unlink");
    run(&["umount", &place.mnt()]).expect(0, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
