//! A server process, and native clients of it.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_client::error::VolumeError;
use kestrel_client::fs::{Caller, Creation, FileHandle, Fs, wait};
use kestrel_client::remote::{Introduction, RemoteVolume};
use kestrel_client::volume::Resources;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef as EntryPlace};
use kestrel_types::request::OpenFlags;
use serde_json::Value;

use crate::common::{Place, run};

/// Bytes that one read of a test returns at most.
pub const READ_MAX: usize = 8 << 20;

/// Nothing a test waits for takes longer, unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A served volume. The server is told to end when this is dropped.
pub struct Server {
    pub place: Place,
    port: u16,
    lease: &'static str,
}

impl Server {
    /// A new volume, served with a lease of `lease`.
    pub fn start(lease: &'static str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self { place: Place::formatted(), port, lease };
        server.serve();
        server
    }

    /// Starts the process.
    pub fn serve(&self) {
        let (volume, address) = (self.place.volume(), self.address());
        run(&["serve", &volume, "--listen", &address, "--lease", self.lease])
            .expect(0, &self.url());
    }

    /// Kills it without warning.
    pub fn kill(&self) {
        let pid = self.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
        // SAFETY: takes no pointer; the process is the one that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        until("the volume is free", || {
            kestrel_client::volume::VolumeLock::holder(&self.place.path("vol")).is_none()
        });
    }

    pub fn restart(&self) {
        self.kill();
        self.serve();
    }

    /// Tells it to end, and waits.
    pub fn stop(&self) {
        run(&["serve", &self.place.volume(), "--stop"]).expect(0, "");
    }

    pub fn status(&self) -> Value {
        run(&["status", &self.place.volume(), "--json"]).expect(0, "").json()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("kestrel://{}/vol", self.address())
    }

    /// Expects an online check, stored bytes included, to find nothing.
    pub fn check(&self) {
        run(&["fsck", "--data", &self.url()]).expect(0, "clean");
    }

    pub fn client(&self, who: &str) -> Client {
        Client::connect(&self.url(), who, PATIENCE).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = run(&["serve", &self.place.volume(), "--stop"]);
    }
}

/// Waits for something that will come.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A client in this process.
pub struct Client {
    pub fs: Arc<Fs>,
    _volume: RemoteVolume,
}

const READ_WRITE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Client {
    pub fn connect(url: &str, who: &str, deadline: Duration) -> Result<Self, VolumeError> {
        let how = Introduction { who: who.into(), deadline, read_only: false };
        let volume = RemoteVolume::open(url, &how, &Resources::default())?;
        Ok(Self { fs: volume.fs.clone(), _volume: volume })
    }

    /// Opens a file of the root, made if need be.
    pub fn open(&self, file: &str) -> Arc<FileHandle> {
        let how = Creation { mode: 0o644, flags: READ_WRITE, exclusive: false };
        wait(|done| self.fs.create(Caller::ROOT, EntryPlace::new(ROOT, name(file)), how, done))
            .unwrap()
            .handle
    }

    /// Opens a file without a name.
    pub fn temporary(&self) -> Arc<FileHandle> {
        let how = Creation { mode: 0o644, flags: READ_WRITE, exclusive: false };
        wait(|done| self.fs.tmpfile(Caller::ROOT, ROOT, how, done)).unwrap().handle
    }

    pub fn write(&self, file: &FileHandle, offset: u64, bytes: &[u8]) {
        self.fs.write(file, offset, bytes, false).unwrap();
        self.flush(file).unwrap();
    }

    pub fn flush(&self, file: &FileHandle) -> FsResult<()> {
        wait(|done| self.fs.flush(file, done))
    }

    pub fn read(&self, file: &FileHandle) -> FsResult<Vec<u8>> {
        wait(|done| self.fs.read(file, 0, READ_MAX, done))
    }

    pub fn close(&self, file: Arc<FileHandle>) -> FsResult<()> {
        wait(|done| self.fs.release(file, done))
    }

    /// The content of a file of the root, by opening it.
    pub fn content(&self, file: &str) -> Vec<u8> {
        let file = self.open(file);
        let content = self.read(&file).unwrap();
        self.close(file).unwrap();
        content
    }

    /// Replaces the content of a file of the root.
    pub fn put(&self, file: &str, content: &[u8]) {
        let file = self.open(file);
        self.write(&file, 0, content);
        self.close(file).unwrap();
    }

    pub fn unlink(&self, file: &str) {
        wait(|done| self.fs.unlink(Caller::ROOT, EntryPlace::new(ROOT, name(file)), done)).unwrap();
    }

    pub fn rename(&self, from: &str, to: &str) {
        let flags = kestrel_types::request::RenameFlags::default();
        wait(|done| {
            self.fs.rename(
                Caller::ROOT,
                EntryPlace::new(ROOT, name(from)),
                EntryPlace::new(ROOT, name(to)),
                flags,
                done,
            )
        })
        .unwrap();
    }

    pub fn link(&self, ino: InodeId, to: &str) {
        wait(|done| self.fs.link(Caller::ROOT, ino, EntryPlace::new(ROOT, name(to)), done))
            .unwrap();
    }

    pub fn stat(&self, ino: InodeId) -> FsResult<Inode> {
        wait(|done| self.fs.getattr(Caller::ROOT, ino, done))
    }

    /// The size of a file of the root.
    pub fn size(&self, file: &str) -> u64 {
        let file = self.open(file);
        let size = self.stat(file.ino()).unwrap().size;
        self.close(file).unwrap();
        size
    }

    /// A figure of its connection.
    pub fn reconnects(&self) -> u64 {
        self.fs.metadata().connection_stats().unwrap().reconnects
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Fails where the server is gone for good.
        let _ = self.fs.shutdown();
    }
}
