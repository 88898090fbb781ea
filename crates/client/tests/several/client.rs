//! A client of a served volume.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kestrel_client::error::VolumeError;
use kestrel_client::fs::{Caller, Creation, FileHandle, Fs, wait};
use kestrel_client::remote::{Introduction, RemoteMetadata, RemoteVolume};
use kestrel_client::volume::Resources;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Creds, Op, OpenFlags, RenameFlags, Reply, Request};

use crate::cluster::DEADLINE;

pub const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};
pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..READ };

pub struct Client {
    pub fs: Arc<Fs>,
    volume: RemoteVolume,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn at(text: &str) -> PathRef {
    PathRef::new(ROOT, name(text))
}

impl Client {
    pub fn mount(url: &str) -> Self {
        Self::try_mount(url, DEADLINE).unwrap()
    }

    pub fn try_mount(url: &str, deadline: Duration) -> Result<Self, VolumeError> {
        let how = Introduction { who: "test".into(), deadline, read_only: false };
        let volume = RemoteVolume::open(url, &how, &Resources::default())?;
        Ok(Self { fs: volume.fs.clone(), volume })
    }

    pub fn metadata(&self) -> &RemoteMetadata {
        &self.volume.metadata
    }

    /// Asks without the file system.
    pub fn start(&self, op: Op) -> Receiver<Reply> {
        let (send, reply) = channel();
        let request = Request { creds: Creds::root(), op };
        self.fs.metadata().submit(request, Box::new(move |reply| drop(send.send(reply))));
        reply
    }

    pub fn call(&self, op: Op) -> Reply {
        self.start(op).recv().unwrap()
    }

    pub fn create(&self, file: &str) -> Arc<FileHandle> {
        let how = Creation { mode: 0o644, flags: READ_WRITE, exclusive: false };
        wait(|done| self.fs.create(Caller::ROOT, at(file), how, done)).unwrap().handle
    }

    pub fn temporary(&self) -> Arc<FileHandle> {
        let how = Creation { mode: 0o644, flags: READ_WRITE, exclusive: false };
        wait(|done| self.fs.tmpfile(Caller::ROOT, ROOT, how, done)).unwrap().handle
    }

    pub fn open(&self, ino: InodeId, flags: OpenFlags) -> Arc<FileHandle> {
        wait(|done| self.fs.open(Caller::ROOT, ino, flags, done)).unwrap().handle
    }

    pub fn rename(&self, from: &str, to: &str) {
        wait(|done| self.fs.rename(Caller::ROOT, at(from), at(to), RenameFlags::default(), done))
            .unwrap();
    }

    pub fn unlink(&self, file: &str) {
        wait(|done| self.fs.unlink(Caller::ROOT, at(file), done)).unwrap();
    }

    pub fn write(&self, file: &FileHandle, bytes: &[u8]) {
        self.fs.write(file, 0, bytes, false).unwrap();
        wait(|done| self.fs.flush(file, done)).unwrap();
    }

    pub fn read(&self, file: &FileHandle) -> Vec<u8> {
        wait(|done| self.fs.read(file, 0, 1 << 20, done)).unwrap()
    }

    pub fn close(&self, file: Arc<FileHandle>) {
        wait(|done| self.fs.release(file, done)).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Fails where a server is gone for good.
        let _ = self.fs.shutdown();
    }
}
