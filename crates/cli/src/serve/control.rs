//! Questions to a process that serves a volume, over its control socket (`kestrel_client::control`): `{"verb": …}`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kestrel_admin::info;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::fs::Fs;
use kestrel_client::storage::Storage;
use kestrel_data::store::BlockStore;
use kestrel_meta::engine::Engine;
use parking_lot::Mutex;
use serde_json::Value;

use super::attendant::Attendant;
use super::clients::Clients;
use super::facts::MountFacts;
use super::node::NodeOfCluster;
use super::part::cut::Cutting;
use crate::feed::Feed;
use crate::metrics::{Snapshot, to_json};
use crate::verbs::{compact, dump, fsck, gc, info as info_verb, status, warmup};

/// What questions are about.
pub struct Serving {
    /// The file system.
    pub fs: Arc<Fs>,
    /// Its metadata.
    pub engine: Arc<dyn Engine>,
    /// Its data.
    pub store: Arc<dyn BlockStore>,
    /// Where its data is.
    pub storage: Arc<Storage>,
    /// What it is.
    pub descriptor: Descriptor,
    /// Directory of the volume.
    pub dir: PathBuf,
    /// Where it is mounted, if it is.
    pub mount_point: Option<PathBuf>,
    /// Clients across a network, if it serves any.
    pub clients: OnceLock<Clients>,
    /// Who it is among the nodes that share the volume, if several do.
    pub node: Option<NodeOfCluster>,
    /// How it is mounted, if it is.
    pub facts: MountFacts,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Since when.
    pub begun: Instant,
    /// Held by a check or a collection: they walk all metadata, so one at a time.
    pub walking: Mutex<()>,
    /// What is recorded of this node for a cut of all.
    pub cutting: Cutting,
}

impl Attendant for Serving {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::take(&self.fs, Some(self.engine.stats()), self.begun.elapsed());
        if let Some(clients) = self.clients.get() {
            clients.figures(&mut |name, value| snapshot.add(name, value));
        }
        self.facts.figures(&mut |name, value| snapshot.add(name, value));
        snapshot
    }

    fn answer(&self, question: &Value, tell: &mut dyn FnMut(&Value) -> bool) -> Result<Value, String> {
        if let Some(section) = &self.descriptor.cluster {
            return super::part::answer(self, section, question, tell);
        }
        let feed = Feed::new(tell);
        match question["verb"].as_str() {
            Some("status") => self.status(),
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("info") => self.info(question),
            Some("dump") => self.dump(question),
            Some("fsck") => self.fsck(question, &feed),
            Some("gc") => self.gc(question, &feed),
            Some("compact") => self.compact(question, &feed),
            Some("warmup") => self.warmup(question, &feed),
            Some("whole") => warmup::whole::serve(&self.fs, &self.storage, question, &feed),
            Some(other) => {
                Err(format!("the serving process does not know {other:?}; it may be older than this program"))
            }
            None => Err("the question has no verb".into()),
        }
    }
}

impl Serving {
    /// Answers one question that came over the network, from somebody who may not be who he says he is: what writes files of
    /// this machine is not done for him.
    ///
    /// # Errors
    /// As for [`Attendant::answer`].
    pub fn answer_afar(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        match question["verb"].as_str() {
            Some(
                "status" | "stats" | "info" | "fsck" | "gc" | "compact" | "rows" | "sums" | "cut" | "reap"
                | "coding" | "table" | "entries" | "change" | "forget",
            ) => self.answer(question, tell),
            verb => {
                let verb = verb.unwrap_or("this");
                Err(format!(
                    "{verb} is not done over the network; run it on the server, on {}",
                    self.dir.display()
                ))
            }
        }
    }

    fn status(&self) -> Result<Value, String> {
        let mut out =
            status::describe(&self.dir, &self.descriptor, &*self.engine).map_err(|why| why.to_string())?;
        self.describe_process(&mut out);
        Ok(out)
    }

    /// What a status tells of this process.
    pub fn describe_process(&self, out: &mut Value) {
        out["mounted"] = self.mount_point.is_some().into();
        out["pid"] = std::process::id().into();
        out["mount_point"] = self.mount_point.as_ref().map(|dir| dir.to_string_lossy()).into();
        out["address"] = self.clients.get().map(|clients| clients.address.to_string()).into();
        out["served"] = self.clients.get().map(Clients::status).into();
        out["read_only"] = self.read_only.into();
        self.facts.describe(out);
        out["uptime_seconds"] = self.begun.elapsed().as_secs().into();
    }

    fn info(&self, question: &Value) -> Result<Value, String> {
        let inode = info_verb::asked(&*self.engine, question)?;
        let mut out = info::describe(&*self.engine, &inode).map_err(|why| why.to_string())?;
        info_verb::tell_places(&mut out, &self.storage);
        Ok(out)
    }

    fn dump(&self, question: &Value) -> Result<Value, String> {
        let file = question["file"].as_str().ok_or("the question names no file")?;
        let force = question["force"] == true;
        dump::write(&*self.engine, &self.descriptor, Path::new(file), force, &mut |_| {})
            .map_err(|why| why.to_string())
    }

    fn may_change(&self) -> Result<(), String> {
        if self.read_only {
            return Err("the volume is mounted read-only; mount it for writing first".into());
        }
        Ok(())
    }

    fn alone(&self) -> Result<parking_lot::MutexGuard<'_, ()>, String> {
        self.walking
            .try_lock()
            .ok_or("a check or a collection of this volume runs already; wait for it".into())
    }

    fn fsck(&self, question: &Value, feed: &Feed<'_>) -> Result<Value, String> {
        let _alone = self.alone()?;
        let is_open = |object| self.fs.is_open_object(object);
        let volume =
            fsck::InUse { dir: &self.dir, engine: &*self.engine, store: &*self.store, is_open: &is_open };
        let limit = question["limit"].as_u64().unwrap_or(0);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        fsck::check_in_use(&volume, question["data"] == true, limit, feed)
    }

    fn gc(&self, question: &Value, feed: &Feed<'_>) -> Result<Value, String> {
        let delete = question["delete"] == true;
        if delete {
            self.may_change()?;
        }
        let _alone = self.alone()?;
        let grace_seconds = question["grace_seconds"].as_u64().unwrap_or(gc::GRACE_SECONDS_DEFAULT);
        let reaped = if delete { self.reap(feed)? } else { 0 };
        let is_open = |object| self.fs.is_open_object(object);
        let options = gc::options(grace_seconds, delete, &is_open);
        let mut done =
            gc::collect(&*self.engine, &*self.store, &options, feed).map_err(|why| why.to_string())?;
        done["reaped_objects"] = reaped.into();
        Ok(done)
    }

    /// Deletes what the schedule holds and whose time has come, which the mount would do by itself within seconds.
    fn reap(&self, feed: &Feed<'_>) -> Result<usize, String> {
        let mut reaped = 0;
        loop {
            let more = self.fs.reap().map_err(|why| format!("deleting scheduled objects: {why}"))?;
            reaped += more;
            feed.progress("deleting scheduled objects", reaped as u64);
            if more == 0 || !feed.listening().is_on() {
                return Ok(reaped);
            }
        }
    }

    fn compact(&self, question: &Value, feed: &Feed<'_>) -> Result<Value, String> {
        let wish = compact::Wish::of(question)?;
        if !wish.dry_run {
            self.may_change()?;
        }
        compact::compact(&self.fs, &wish, feed)
    }

    fn warmup(&self, question: &Value, feed: &Feed<'_>) -> Result<Value, String> {
        let wish = warmup::Wish::of(question)?;
        warmup::warm(&*self.engine, &*self.store, &wish, feed)
    }
}
