//! Work on a volume, or on paths in a mount, by a process that has the volume's metadata: the one
//! that serves it, this one where none does, or this one as a client of the nodes that share it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kestrel_client::descriptor::{Descriptor, volume_dir};
use kestrel_client::fs::Fs;
use kestrel_client::remote::{Introduction, NodeFanOut, RemoteUrl, RemoteVolume};
use kestrel_client::state_dir::is_bucket_url;
use kestrel_daemon::failure::Failure;
use kestrel_daemon::memory::of_verb;
use kestrel_daemon::progress_stream::ProgressStream;
use serde_json::Value;

use super::{Target, ask_with, control_dir, mount_above, open, path_value};
use crate::args::store::StoreArgs;
use crate::progress::{Progress, shown};

/// How long a node may be away.
const DEADLINE: Duration = Duration::from_secs(60);

/// The work by a file system that is open in this process.
type Here<'a> = dyn Fn(&Arc<Fs>, &ProgressStream<'_>) -> Result<Value, String> + 'a;

/// The same on a volume that several nodes share.
type OfNodes<'a> = dyn Fn(&Arc<Fs>, &NodeFanOut, &ProgressStream<'_>) -> Result<Value, String> + 'a;

/// See the module's header.
pub struct VolumeJob<'a> {
    /// The verb in messages and in the question.
    pub verb: &'static str,
    /// What a serving process is asked; paths are added.
    pub question: Value,
    /// It changes nothing.
    pub read_only: bool,
    /// How the store is reached.
    pub store: &'a StoreArgs,
    /// Does it where no process serves the volume.
    pub here: &'a Here<'a>,
    /// Does it as a client of several nodes.
    pub of_nodes: &'a OfNodes<'a>,
}

impl VolumeJob<'_> {
    /// Does the work on the volume or the path that `target` names; the answer.
    pub fn run(&self, target: &str) -> Result<Value, Failure> {
        let is_volume = RemoteUrl::is_one(target)
            || is_bucket_url(target)
            || volume_dir(target).is_ok_and(|dir| Descriptor::read(&dir).is_ok());
        if is_volume { self.volume(target) } else { self.path(target) }
    }

    /// As a client of the nodes that share a volume; nothing if one process serves it alone.
    fn nodes(&self, url: &str) -> Result<Option<Value>, Failure> {
        let fail = |why: &dyn std::fmt::Display| Failure::new(self.verb, format!("{url}: {why}"));
        let who = kestrel_daemon::who(&format!("kestrel {}", self.verb));
        let Some(panel) = NodeFanOut::connect(url, &who).map_err(|why| fail(&why))? else {
            return Ok(None);
        };
        let resources = of_verb(self.store.options());
        let introduction = Introduction { who, deadline: DEADLINE, read_only: self.read_only };
        let volume =
            RemoteVolume::open(url, &introduction, &resources).map_err(|why| fail(&why))?;
        let mut progress = Progress::new();
        let mut tell = |event: &Value| {
            shown(&mut progress, event, &mut |_| {});
            true
        };
        let done = (self.of_nodes)(&volume.fs, &panel, &ProgressStream::new(&mut tell));
        let stored = volume.fs.shutdown().map_err(|why| fail(&why));
        let done = done.map_err(|why| fail(&why))?;
        stored.map(|()| Some(done))
    }

    fn volume(&self, named: &str) -> Result<Value, Failure> {
        let target = Target::of(self.verb, named, self.store.credentials.as_deref())?;
        if let Target::Served(url) = &target
            && let Some(done) = self.nodes(url)?
        {
            return Ok(done);
        }
        let mut progress = Progress::new();
        let asked = target.ask(self.verb, &self.question, None, &mut |event| {
            shown(&mut progress, &event, &mut |_| {})
        })?;
        if let Some(done) = asked {
            return Ok(done);
        }
        let fail =
            |why: &dyn std::fmt::Display| Failure::new(self.verb, format!("{target}: {why}"));
        let resources = of_verb(self.store.options());
        let volume = open(self.verb, named, self.store)?;
        let served = volume.serve(&resources, false).map_err(|why| fail(&why))?;
        let mut tell = |event: &Value| {
            shown(&mut progress, event, &mut |_| {});
            true
        };
        let done = (self.here)(&served.fs, &ProgressStream::new(&mut tell));
        let stored = served.fs.shutdown().map_err(|why| fail(&why));
        let settled = served.volume.engine.settle().map_err(|why| fail(&why));
        let done = done.map_err(|why| fail(&why))?;
        stored.and(settled).map(|()| done)
    }

    fn path(&self, named: &str) -> Result<Value, Failure> {
        let fail = |why: &dyn std::fmt::Display| Failure::new(self.verb, format!("{named}: {why}"));
        let missing = "neither a volume nor a path in a mounted one";
        let path = std::fs::canonicalize(Path::new(named))
            .map_err(|why| fail(&format!("{missing}: {why}")))?;
        let entry = mount_above(self.verb, &path)?;
        let below = path.strip_prefix(&entry.mount_point).map_err(|why| fail(&why))?;
        let mut question = self.question.clone();
        question["paths"] = vec![path_value(below.as_os_str().as_bytes())].into();
        let dir = control_dir(&entry);
        let mut progress = Progress::new();
        ask_with(self.verb, &dir, &question, None, &mut |event| {
            shown(&mut progress, &event, &mut |_| {})
        })?
        .ok_or_else(|| fail(&format!("nobody serves the volume {}; mount it again", dir.display())))
    }
}
