//! Questions to a process that serves a volume, over its control socket
//! (`kestrel_client::control`): `{"verb": …}`.

use std::path::Path;
use std::time::Duration;

use kestrel_admin::info;
use serde_json::Value;

use super::collector::GIVE_UP_MAX;
use super::endpoints::ControlEndpoint;
use super::mount_status::remounted;
use super::serving::Serving;
use crate::jobs::{
    compact, dump, fsck, gc, info as info_job, settings, status, tiers, usage, warmup, whole,
};
use crate::metrics::{Snapshot, to_json};
use crate::process::process_word;
use crate::progress_stream::ProgressStream;
use crate::snapshots::answer::{SnapshotEndpoint, changes};

impl ControlEndpoint for Serving {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot =
            Snapshot::take(&self.volume.fs, Some(self.volume.engine.stats()), self.begun.elapsed());
        if let Some(clients) = self.clients.get() {
            clients.stats(&mut |name, value| snapshot.add(name, value));
        }
        self.facts.stats(&mut |name, value| snapshot.add(name, value));
        self.keeper.stats(&mut |name, value| snapshot.add(name, value));
        self.collector.stats(&mut |name, value| snapshot.add(name, value));
        self.snapshots.stats(&mut |name, value| snapshot.add(name, value));
        super::map::metrics(self, &mut |name, value| snapshot.add(name, value));
        snapshot
    }

    fn answer(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        let answer = self.answer_unheard(question, tell);
        self.audit(
            question,
            &answer,
            ("a process that may read the volume's directory", "local", None),
        );
        answer
    }
}

impl Serving {
    fn answer_unheard(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        self.is_for_jobs(question)?;
        match question["verb"].as_str() {
            Some("token") => return super::tokens::answer(self, question),
            // A user that unmounts wants to know that what was written last can be stored.
            Some("alive") => return Ok(Value::Null),
            Some("yield") => return self.give_way(question),
            Some("remounted") if self.volume.mount_point.is_some() => {
                return remounted(&self.volume.fs, question);
            }
            Some("supervision") => return Ok(self.facts.supervision()),
            Some("upgrade") => return self.facts.hand_over(question, tell),
            Some("snapshot") => return self.of_snapshots(question, tell),
            _ => {}
        }
        if let Some(section) = &self.volume.descriptor.cluster {
            return super::node_view::answer(self, section, question, tell);
        }
        let feed = ProgressStream::new(tell);
        match question["verb"].as_str() {
            Some("status") => self.status(),
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("info") => self.info(question),
            Some("du") => usage::answer(&*self.volume.engine, question),
            Some("dump") => self.dump(question),
            Some("backup") => self.keeper.answer(&self.volume, question, &feed),
            Some("fsck") => self.fsck(question, &feed),
            Some("gc") => self.gc(question, &feed),
            Some("compact") => self.compact(question, &feed),
            Some("tier") => self.tiers(question, &feed),
            Some("warmup") => self.warmup(question, &feed),
            Some("whole") => whole::serve(&self.volume.fs, &self.volume.storage, question, &feed),
            Some("rows") => super::node_view::rows::page(&*self.volume.engine, question),
            Some("cut") => self.cutting.answer(&self.volume, question),
            Some("settings") => {
                settings::answer(&self.volume.dir, &self.volume.descriptor, question)
            }
            Some(other) => Err(format!(
                "the serving process does not know {other:?}; it may be older than this program"
            )),
            None => Err("the question has no verb".into()),
        }
    }

    /// Answers one question that came over the network, from a client that may not be what it says
    /// it is: what writes files of this machine is not done for it.
    ///
    /// # Errors
    /// As for [`ControlEndpoint::answer`].
    pub fn answer_afar(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        match question["verb"].as_str() {
            Some(
                "status" | "stats" | "info" | "du" | "fsck" | "gc" | "compact" | "tier" | "rows"
                | "sums" | "cut" | "reap" | "coding" | "table" | "whereabouts" | "entries"
                | "change" | "forget" | "token" | "alive" | "backup" | "yield" | "stand-in"
                | "unheard" | "settings",
            ) => self.answer_unheard(question, tell),
            verb => {
                let verb = verb.unwrap_or("this");
                Err(format!(
                    "{verb} is not done over the network; run it on the server, on {}",
                    self.volume.dir.display()
                ))
            }
        }
    }

    /// Fails for what is about a whole volume, in a job's namespace: most of its files and objects
    /// belong to the job's inputs.
    fn is_for_jobs(&self, question: &Value) -> Result<(), String> {
        let Some(job) = self.volume.descriptor.job else { return Ok(()) };
        let verb = question["verb"].as_str().unwrap_or_default();
        match verb {
            "gc" | "fsck" | "dump" | "backup" | "tier" | "settings" => Err(format!(
                "this is the namespace of job {job}, and {verb} is about a whole volume; name the \
                 volume itself"
            )),
            _ => Ok(()),
        }
    }

    /// Ends the process, for one that is to serve in its place.
    fn give_way(&self, question: &Value) -> Result<Value, String> {
        // Its own question, which it has given up since, and which comes late.
        if question["by"] == process_word() {
            return Err("this process is the one that asked".into());
        }
        let end = self.end.as_ref().ok_or("it is a mount, which `kestrel umount` ends")?;
        log::warn!("this process gives way to another one that serves in its place");
        // A process that does not listen any more is ending already.
        let _ = end.send(());
        Ok(serde_json::json!({ "pid": std::process::id() }))
    }

    fn status(&self) -> Result<Value, String> {
        let mut out =
            status::describe(&self.volume.dir, &self.volume.descriptor, &*self.volume.engine)
                .map_err(|why| why.to_string())?;
        self.describe_process(&mut out);
        Ok(out)
    }

    fn info(&self, question: &Value) -> Result<Value, String> {
        let inode = info_job::asked(&*self.volume.engine, question)?;
        let mut out =
            info::describe(&*self.volume.engine, &inode).map_err(|why| why.to_string())?;
        info_job::tell_places(&mut out, &self.volume.storage);
        Ok(out)
    }

    fn of_snapshots(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        if changes(question) {
            self.volume.may_change()?;
        }
        // A node of several has a part of the rows.
        let engine = self.volume.descriptor.cluster.is_none().then_some(&*self.volume.engine);
        let volume = &self.volume;
        let endpoint = SnapshotEndpoint { fs: &volume.fs, engine, storage: &volume.storage };
        let mut answer = endpoint.answer_telling(question, tell)?;
        if question["act"] == "schedule"
            && question["set"].is_string()
            && let Some(dir) = answer["dir"].as_u64()
        {
            answer["failed"] = self.snapshots.changed(&self.volume, dir).err().into();
        }
        Ok(answer)
    }

    fn dump(&self, question: &Value) -> Result<Value, String> {
        let file = question["file"].as_str().ok_or("the question names no file")?;
        let force = question["force"] == true;
        dump::write(
            &*self.volume.engine,
            &self.volume.descriptor,
            Path::new(file),
            force,
            &mut |_| {},
        )
        .map_err(|why| why.to_string())
    }

    fn alone(&self) -> Result<parking_lot::MutexGuard<'_, ()>, String> {
        // A person comes first: the collection in the background gives up, and begins anew later.
        let patience = if self.collector.give_up() { GIVE_UP_MAX } else { Duration::ZERO };
        self.volume
            .walking
            .try_lock_for(patience)
            .ok_or("a check or a collection of this volume runs already; wait for it".into())
    }

    fn fsck(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let _alone = self.alone()?;
        let is_open = |object| self.volume.fs.is_open_object(object);
        let volume = fsck::InUse {
            dir: &self.volume.dir,
            engine: &*self.volume.engine,
            store: &*self.volume.store,
            is_open: &is_open,
        };
        let limit = question["limit"].as_u64().unwrap_or(0);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        fsck::check_in_use(&volume, question["data"] == true, limit, feed)
    }

    fn gc(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let delete = question["delete"] == true;
        if delete {
            self.volume.may_change()?;
        }
        let _alone = self.alone()?;
        let grace_seconds = question["grace_seconds"].as_u64().unwrap_or(gc::GRACE_SECONDS_DEFAULT);
        let reaped = if delete { self.reap(feed)? } else { 0 };
        let is_open = |object| self.volume.fs.is_open_object(object);
        let options = gc::options(grace_seconds, delete, &is_open);
        let mut done = gc::collect(&*self.volume.engine, &*self.volume.store, &options, feed)
            .map_err(|why| why.to_string())?;
        done["reaped_objects"] = reaped.into();
        Ok(done)
    }

    /// Deletes what the schedule holds once its time has come, which the mount would do by itself
    /// within seconds.
    fn reap(&self, feed: &ProgressStream<'_>) -> Result<usize, String> {
        let mut reaped = 0;
        loop {
            let more = self
                .volume
                .fs
                .reap()
                .map_err(|why| format!("deleting scheduled objects: {why}"))?;
            reaped += more;
            feed.progress("deleting scheduled objects", reaped as u64);
            if more == 0 || !feed.listening().is_on() {
                return Ok(reaped);
            }
        }
    }

    fn compact(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let wish = compact::CompactRequest::of(question)?;
        if !wish.dry_run {
            self.volume.may_change()?;
        }
        compact::compact(&self.volume.fs, &wish, feed)
    }

    fn tiers(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let wish = tiers::TierRequest::of(question)?;
        if wish.changes() {
            self.volume.may_change()?;
        }
        tiers::serve(&self.volume.fs, &wish, feed)
    }

    fn warmup(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let wish = warmup::WarmupRequest::of(question)?;
        warmup::warm(&*self.volume.engine, &*self.volume.store, &wish, feed)
    }
}
