//! Mounts of a served volume.

use std::process::Stdio;
use std::time::Instant;

use crate::common::{Run, kestrel, run, tree};
use crate::server::{PATIENCE, Server, until};

/// Two mount points, unmounted when it is dropped. Their runtime directories are the test's own.
struct Mounts<'a> {
    server: &'a Server,
}

impl<'a> Mounts<'a> {
    fn new(server: &'a Server) -> Self {
        let mounts = Self { server };
        for name in ["one", "two", "run"] {
            std::fs::create_dir(server.place.path(name)).unwrap();
        }
        mounts.mount("one", &[]).expect(0, "is mounted on");
        mounts.mount("two", &[]).expect(0, "is mounted on");
        mounts
    }

    fn run(&self, args: &[&str]) -> Run {
        let output = kestrel(args)
            .env("KESTREL_RUNTIME_DIR", self.server.place.path("run"))
            .output()
            .unwrap();
        Run {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn mount(&self, name: &str, options: &[&str]) -> Run {
        self.run(&[&["mount", &self.server.url(), &self.server.place.name(name)], options].concat())
    }
}

impl Drop for Mounts<'_> {
    fn drop(&mut self) {
        for name in ["one", "two"] {
            let _ = kestrel(&["umount", "--force", &self.server.place.name(name)])
                .env("KESTREL_RUNTIME_DIR", self.server.place.path("run"))
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// A tree that was written through one mount is read through another one, also after the server
/// died and came back.
#[test]
fn tree_shared_by_mounts_over_server_death() {
    let server = Server::start("5s");
    let mounts = Mounts::new(&server);
    let (one, two) = (server.place.path("one"), server.place.path("two"));
    // A process of its own: the server would inherit a file that this one has open for writing, and
    // close it as it starts, which waits for the server.
    let script = "set -e; for ((n = 0; n < 300; n++)); do dir=$0/dir$((n % 7)); mkdir -p \"$dir\"; \
                  printf \"%$((n * 50))s\" \"$n\" | head -c $((n * 50)) >\"$dir/file$n\"; done";
    let mut writer =
        std::process::Command::new("bash").args(["-c", script]).arg(&one).spawn().unwrap();
    server.restart();
    assert!(writer.wait().unwrap().success());
    let (written, read) = (tree(&one), tree(&two));
    assert_eq!(written.len(), 307);
    assert!(written == read);
    let status = mounts.run(&["status", &server.url(), "--json"]).expect(0, "").json();
    let who: Vec<String> = status["served"]["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["who"].as_str().unwrap().to_string())
        .collect();
    assert!(who.iter().any(|who| who.contains(&*one.to_string_lossy())), "{who:?}");
    mounts.run(&["status", &server.place.name("one")]).expect(0, "served       as vol at");
    let stats =
        mounts.run(&["stats", &server.place.name("one"), "--once", "--json"]).expect(0, "").json();
    assert!(stats["metadata_requests_total"].as_u64().unwrap() > 300, "{stats}");
    assert_eq!(stats["metadata_reconnects_total"], 1);
    let file = server.place.name("two/dir0/file294");
    mounts.run(&["info", &file]).expect(0, "14,700");
    let seven = "300 files and 7 directories";
    mounts.run(&["du", &server.place.name("two")]).expect(0, seven);
    mounts.run(&["du", "--volume", &server.url(), "/"]).expect(0, seven);
    mounts.run(&["compact", &server.place.name("two")]).expect(0, "references moved");
    mounts.run(&["gc", &server.url()]).expect(0, "0 leaked");
    server.check();
    mounts.run(&["umount", &server.place.name("one")]).expect(0, "");
    mounts.run(&["umount", &server.place.name("two")]).expect(0, "");
    until("both are gone", || server.status()["served"]["sessions_total"] == 0);
    server.stop();
    run(&["fsck", "--data", &server.place.volume()]).expect(0, "clean");
    server.serve();
}

/// A process that waits for a dead server can be killed, and gets an error at the deadline.
#[test]
fn callers_of_a_dead_server() {
    let server = Server::start("5s");
    let mounts = Mounts::new(&server);
    mounts.run(&["umount", &server.place.name("two")]).expect(0, "");
    mounts.mount("two", &["--deadline", "3s"]).expect(0, "is mounted on");
    std::fs::write(server.place.path("one/file"), b"content").unwrap();
    server.kill();
    // With a deadline of a minute, only the signal ends it.
    let mut waiting = std::process::Command::new("stat")
        .arg(server.place.path("one/file"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let failed = std::fs::metadata(server.place.path("two/file")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    assert!(waiting.try_wait().unwrap().is_none(), "the other still waits");
    let begun = Instant::now();
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(begun.elapsed() < PATIENCE / 2);
    server.serve();
    assert_eq!(std::fs::read(server.place.path("one/file")).unwrap(), b"content");
    until("the other is back", || std::fs::read(server.place.path("two/file")).is_ok());
}

/// A mount point is used once, and a mount ends also while its server is dead.
#[test]
fn mount_point_reuse_and_unmount_without_server() {
    let server = Server::start("5s");
    let mounts = Mounts::new(&server);
    mounts.mount("one", &[]).expect(1, "is mounted there already; unmount it");
    mounts.mount("one", &["--stack"]).expect(1, "in use by");
    mounts.run(&["umount", &server.place.name("two")]).expect(0, "");
    mounts.mount("two", &["--deadline", "2s"]).expect(0, "is mounted on");
    server.kill();
    // With a deadline of a minute, and with one of two seconds.
    for name in ["one", "two"] {
        let begun = Instant::now();
        mounts
            .run(&["umount", &server.place.name(name)])
            .expect(1, "bring the server back or use --force");
        assert!(begun.elapsed() < PATIENCE / 2);
    }
    let begun = Instant::now();
    mounts.run(&["umount", "--force", &server.place.name("two")]).expect(0, "");
    assert!(begun.elapsed() < PATIENCE / 2);
    server.serve();
}
