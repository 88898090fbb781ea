//! Published versions by native clients: from the store, by way of the volume's server, and through
//! curators.

use std::net::TcpListener;
use std::sync::Arc;

use kestrel_client::fs::{Caller, Creation, FileHandle, Fs, wait};
use kestrel_client::remote::Introduction;
use kestrel_client::version::{OpenVersion, VersionUrl};
use kestrel_client::volume::Resources;
use kestrel_types::ids::ROOT;
use kestrel_types::name::PathRef;
use kestrel_types::request::OpenFlags;

use crate::common::run;
use crate::server::{PATIENCE, Server, name, until};

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// A version of a volume with two files, and the server of the volume.
fn published() -> Server {
    let server = Server::start("10s");
    let client = server.client("writer");
    client.put("small", b"small");
    client.put("large", &vec![7; 300_000]);
    run(&["publish", &format!("{}:/", server.url()), "all@1"]).expect(0, "2 files");
    // What comes later is not in it.
    client.put("small", b"later");
    drop(client);
    server
}

/// A process that serves the version, and is told to end when this is dropped.
struct Curator {
    version: String,
    address: String,
}

impl Curator {
    fn start(server: &Server) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let version = format!("{}//all@1", server.place.volume());
        let curator = Self { version, address: format!("127.0.0.1:{port}") };
        curator.serve();
        curator
    }

    fn serve(&self) {
        run(&["serve", &self.version, "--read-only", "--listen", &self.address])
            .expect(0, "/vol//all@1");
    }

    fn url(&self) -> String {
        format!("kestrel://{}/vol//all@1", self.address)
    }

    fn kill(&self) {
        let status = run(&["status", &self.url(), "--json"]).expect(0, "").json();
        let pid = status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
        // SAFETY: takes no pointer; the process is the one that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        until("the address is free", || TcpListener::bind(&self.address).is_ok());
    }
}

impl Drop for Curator {
    fn drop(&mut self) {
        let _ = run(&["serve", &self.version, "--stop", "--listen", &self.address]);
    }
}

fn open(text: &str) -> OpenVersion {
    let url = VersionUrl::parse(text).unwrap().unwrap();
    let how = Introduction { who: "reader".into(), deadline: PATIENCE, read_only: true };
    url.open(&how, &Resources::default()).unwrap()
}

/// Opens a file of the root.
fn opened(fs: &Arc<Fs>, file: &str) -> Arc<FileHandle> {
    let place = PathRef::new(ROOT, name(file));
    let inode = wait(|done| fs.lookup(Caller::ROOT, place, done)).unwrap();
    wait(|done| fs.open(Caller::ROOT, inode.ino, READ, done)).unwrap().handle
}

/// The bytes of a file of the root.
fn content(fs: &Arc<Fs>, file: &str, len: usize) -> Vec<u8> {
    let handle = opened(fs, file);
    let read = wait(|done| fs.read(&handle, 0, len, done)).unwrap();
    wait(|done| fs.release(handle, done)).unwrap();
    read
}

/// Whichever text names the version, a client reads it as it was, and every change is EROFS.
#[test]
fn version_by_each_of_its_urls() {
    let server = published();
    let curator = Curator::start(&server);
    let path = server.place.volume();
    for (text, curated) in [
        (format!("{path}//all@1"), false),
        (format!("file://{path}//all@1"), false),
        (format!("{}//all@1", server.url()), false),
        (curator.url(), true),
    ] {
        let version = open(&text);
        assert_eq!(matches!(version, OpenVersion::Curated(_)), curated, "{text}");
        let fs = version.fs();
        assert_eq!(content(fs, "small", 100), b"small", "{text}");
        assert_eq!(content(fs, "large", 1 << 20), vec![7; 300_000], "{text}");
        let write = OpenFlags { write: true, ..READ };
        let how = Creation { mode: 0o644, flags: write, exclusive: true };
        let made = wait(|done| fs.create(Caller::ROOT, PathRef::new(ROOT, name("new")), how, done));
        assert_eq!(made.err().unwrap().errno, libc::EROFS, "{text}");
        let gone = wait(|done| fs.unlink(Caller::ROOT, PathRef::new(ROOT, name("small")), done));
        assert_eq!(gone.err().unwrap().errno, libc::EROFS, "{text}");
        fs.shutdown().unwrap();
    }
}

/// A client goes on with the next curator of its URL when one is killed, with its open files, and
/// back.
#[test]
fn next_curator_of_the_url() {
    let server = published();
    let curators = [Curator::start(&server), Curator::start(&server)];
    server.stop();
    let addresses = curators.each_ref().map(|curator| curator.address.clone()).join(",");
    let version = open(&format!("kestrel://{addresses}/vol//all@1"));
    let fs = version.fs();
    let held = opened(fs, "large");
    for turn in 0..4 {
        curators[turn % 2].kill();
        assert_eq!(content(fs, "small", 100), b"small");
        let read = wait(|done| fs.read(&held, 1000, 10, done)).unwrap();
        assert_eq!(read, [7; 10]);
        curators[turn % 2].serve();
    }
    wait(|done| fs.release(held, done)).unwrap();
    fs.shutdown().unwrap();
    let status = run(&["status", &curators[0].url(), "--json"]).expect(0, "").json();
    assert_eq!(status["served"]["opens"], 0);
}
