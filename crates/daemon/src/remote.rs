//! The mount of a volume that is served elsewhere: figures of its own, questions about the volume
//! passed on to the server.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use kestrel_admin::info::{LayoutSums, describe_alone};
use kestrel_client::descriptor::Descriptor;
use kestrel_client::fs::{Caller, Done, Fs};
use kestrel_client::remote::{NodeLink, RemoteMetadata, RemoteUrl};
use kestrel_client::storage::Storage;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::CHUNK_BYTES;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Kind};
use serde_json::{Value, json};

use super::endpoints::ControlEndpoint;
use super::mount_status::{MountStatus, is_read_only, remounted};
use crate::jobs::{compact, info, status, tiers, usage, warmup, whole};
use crate::metrics::{Snapshot, to_json};
use crate::nodes::OfMount;
use crate::nodes::engine::NodesEngine;
use crate::progress_stream::ProgressStream;
use crate::snapshots::answer::{SnapshotEndpoint, changes};

/// What an error says of a server that answers, but not to this mount.
pub const NOT_LET_IN: &str = "the server does not let this mount in";

/// Why nothing is changed through a mount.
const READ_ONLY: &str = "the volume is mounted read-only; mount it for writing first";

/// How long a quick question to the server may take.
const QUICK: Duration = Duration::from_secs(15);

/// What questions are about.
pub struct RemoteMount {
    /// The file system.
    pub fs: Arc<Fs>,
    /// The way to its metadata.
    pub metadata: Arc<RemoteMetadata>,
    /// Where its data is.
    pub storage: Arc<Storage>,
    /// Where it is served.
    pub url: RemoteUrl,
    /// What it is.
    pub descriptor: Descriptor,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// How it is mounted.
    pub facts: MountStatus,
    /// It was begun so that nothing can be changed.
    pub read_only: bool,
    /// Since when.
    pub begun: Instant,
}

impl ControlEndpoint for RemoteMount {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::take(&self.fs, None, self.begun.elapsed());
        self.facts.stats(&mut |name, value| snapshot.add(name, value));
        snapshot
    }

    fn answer(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        match question["verb"].as_str() {
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("alive") => self.alive(question),
            Some("remounted") => remounted(&self.fs, question),
            Some("supervision") => Ok(self.facts.supervision()),
            Some("upgrade") => self.facts.hand_over(question, tell),
            Some("status") => {
                let mut out = self.status(question);
                let mount = (&*self.mount_point, self.is_read_only(), self.begun);
                self.facts.describe_mount(&self.fs, mount, &mut out);
                out["connections"] = self.connections();
                out["volume"] = self.url.to_string().into();
                Ok(out)
            }
            Some("info") => {
                let asked = match self.nodes() {
                    Some(nodes) => info::answer_of_nodes(&nodes, question),
                    None => self.ask(question, Some(QUICK), tell),
                };
                // A client that may not administer sees of a file what its token lets it see.
                let mut out = asked
                    .or_else(|why| self.own_info(question).map_err(|own| own.unwrap_or(why)))?;
                // Which mount's disk cache holds what is a matter of this mount, not of the server.
                info::tell_places(&mut out, &self.storage);
                Ok(out)
            }
            Some("du") => match self.nodes() {
                Some(nodes) => usage::answer_of_nodes(&nodes, question),
                None => self.ask(question, None, tell),
            },
            Some("compact") => match self.nodes() {
                Some(nodes) => {
                    let wish = compact::CompactRequest::of(question)?;
                    if self.is_read_only() && !wish.dry_run {
                        return Err(READ_ONLY.into());
                    }
                    compact::compact_nodes(&self.fs, &nodes, &wish, &ProgressStream::new(tell))
                }
                None => self.ask(question, None, tell),
            },
            Some("tier") => match self.nodes() {
                Some(nodes) => {
                    let wish = tiers::TierRequest::of(question)?;
                    if self.is_read_only() && wish.changes() {
                        return Err(READ_ONLY.into());
                    }
                    tiers::serve_nodes(&self.fs, &nodes, &wish, &ProgressStream::new(tell))
                }
                None => self.ask(question, None, tell),
            },
            Some("fsck" | "gc") => self.ask(question, None, tell),
            Some("snapshot") => {
                if changes(question) && self.is_read_only() {
                    return Err(READ_ONLY.into());
                }
                let (fs, storage) = (&self.fs, &*self.storage);
                SnapshotEndpoint { fs, engine: None, storage }.answer_telling(question, tell)
            }
            Some("whole") => {
                whole::serve(&self.fs, &self.storage, question, &ProgressStream::new(tell))
            }
            Some("warmup") => match self.nodes() {
                Some(nodes) => {
                    let engine = NodesEngine::new(&nodes)?;
                    let wish = warmup::WarmupRequest::of(question)?;
                    warmup::warm(&engine, &*self.storage.store, &wish, &ProgressStream::new(tell))
                }
                None => Err(format!(
                    "{} is served by another process: read the files to fill the disk cache of \
                     this mount",
                    self.url
                )),
            },
            Some(other) => Err(format!(
                "the mounting process does not know {other:?}; it may be older than this program"
            )),
            None => Err("the question has no verb".into()),
        }
    }
}

impl RemoteMount {
    fn is_read_only(&self) -> bool {
        is_read_only(Some(&self.mount_point), self.read_only)
    }

    /// The volume's nodes, if there are several.
    fn nodes(&self) -> Option<OfMount> {
        OfMount::new(&self.metadata)
    }

    /// How it stands with each of the volume's metadata nodes.
    fn connections(&self) -> Value {
        let nodes = self.metadata.nodes();
        let of = |link: &Arc<NodeLink>| {
            let stats = link.remote.stats();
            json!({
                "node": link.node,
                "address": link.address(),
                "up": link.remote.is_up(),
                "outage_seconds": stats.outage.map_or(0, |outage| outage.as_secs()),
                "calls": stats.calls,
                "in_flight": stats.in_flight,
                "waiting": stats.waiting,
                "retries": stats.retries,
                "unanswered": stats.failed,
                "reconnects": stats.reconnects,
                "reclaims": stats.reclaims,
            })
        };
        nodes.iter().map(of).collect()
    }

    /// Whether anybody answers: of several nodes one will do, as what was written last is stored
    /// where it belongs or said to be lost.
    fn alive(&self, question: &Value) -> Result<Value, String> {
        if self.url.is_version() {
            // Nothing was written.
            return Ok(Value::Null);
        }
        let refusal = self.metadata.nodes().iter().find_map(|link| link.remote.refusal());
        let mut silent = refusal.map(|why| format!("{NOT_LET_IN}: {why}"));
        for node in self.metadata.ask_each(question, QUICK) {
            match node.answer {
                Ok(_) => return Ok(Value::Null),
                Err(why) => silent = silent.or(Some(why.to_string())),
            }
        }
        silent.map_or(Ok(Value::Null), Err)
    }

    /// What the server tells of the volume, or, where it tells this mount nothing, what the mount
    /// knows and its token may see.
    fn status(&self, question: &Value) -> Value {
        let answers = self.metadata.ask_each(question, QUICK);
        status::add_up(answers).unwrap_or_else(|why| {
            let mut out = status::known(&self.descriptor);
            out["server"] = why.to_string().into();
            if let Some(Ok(usage)) = self.wait(|fs, done| fs.tree_usage(ROOT, done)) {
                out["files"] = usage.files.into();
                // The root belongs to no directory.
                out["directories"] = (usage.dirs + 1).into();
                out["bytes"] = usage.bytes.into();
            }
            out
        })
    }

    /// What is asked of a file or a directory, by calls that the mount may make. No reason: those
    /// are not answered either.
    fn own_info(&self, question: &Value) -> Result<Value, Option<String>> {
        let failed = |why: FsError| Some(why.reason.to_string());
        // A mount knows what it has shown by number, and may ask for that whatever its token is
        // for.
        let ino = question["dir"].as_u64().or(question["ino"].as_u64()).ok_or(None)?;
        let inode = self
            .wait(|fs, done| fs.getattr(Caller::ROOT, ino, done))
            .ok_or(None)?
            .map_err(failed)?;
        let mut out = describe_alone(&inode);
        if inode.kind == Kind::Dir {
            let usage = self
                .wait(|fs, done| fs.tree_usage(inode.ino, done))
                .ok_or(None)?
                .map_err(failed)?;
            out["tree"] =
                json!({ "files": usage.files, "directories": usage.dirs, "bytes": usage.bytes });
        } else if inode.data == Data::Chunked {
            let mut layout = LayoutSums::default();
            let last = inode.size.saturating_sub(1) / u64::from(CHUNK_BYTES);
            let mut next = Some(0);
            while let Some(first) = next.filter(|first| *first <= last) {
                let page = self
                    .wait(|fs, done| fs.chunk_page(inode.ino, first, last, done))
                    .ok_or(None)?;
                let page = page.map_err(failed)?;
                page.lists.iter().for_each(|(number, list)| layout.add(*number, list.extents()));
                next = page.until.checked_add(1);
            }
            layout.add_to(&mut out);
        }
        Ok(out)
    }

    /// Makes a call and waits for what comes of it; none while a server does not answer.
    fn wait<T: Send + 'static>(&self, call: impl FnOnce(&Arc<Fs>, Done<T>)) -> Option<FsResult<T>> {
        let nodes = self.metadata.nodes();
        if nodes.iter().any(|link| link.remote.stats().outage.is_some()) {
            return None;
        }
        let (tell, told) = mpsc::channel();
        call(
            &self.fs,
            Box::new(move |result| {
                let _ = tell.send(result);
            }),
        );
        told.recv_timeout(QUICK).ok()
    }

    fn ask(
        &self,
        question: &Value,
        limit: Option<Duration>,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        let mut on_event = |event| {
            tell(&event);
        };
        self.metadata
            .remote()
            .admin(question, limit, &mut on_event)
            .map_err(|why| format!("{}: {why}", self.url))
    }
}
