//! Questions to a process that serves a volume, over its control socket
//! (`kestrel_client::control`): `{"verb": …}`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use kestrel_admin::info;
use kestrel_blockstore::store::BlockStore;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::fs::Fs;
use kestrel_client::storage::Storage;
use kestrel_engine::Engine;
use kestrel_server::admin::AdminRequester;
use kestrel_server::audit;
use kestrel_types::token::TokenId;
use parking_lot::Mutex;
use serde_json::Value;

use super::backup_schedule::BackupScheduler;
use super::clients::Clients;
use super::collector::{Collector, GIVE_UP_MAX};
use super::endpoints::ControlEndpoint;
use super::failover::FailoverService;
use super::mount_status::{MountStatus, is_read_only, remounted};
use super::node::NodeOfCluster;
use super::node_view::cut::Cutting;
use crate::jobs::{compact, dump, fsck, gc, info as info_job, settings, status, warmup, whole};
use crate::metrics::{Snapshot, to_json};
use crate::process::process_word;
use crate::progress_stream::ProgressStream;

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
    /// Its number among the nodes that share the volume, if several do.
    pub node: Option<NodeOfCluster>,
    /// How it is mounted, if it is.
    pub facts: MountStatus,
    /// It was begun so that nothing can be changed.
    pub read_only: bool,
    /// Since when.
    pub begun: Instant,
    /// Held by a check or a collection: they walk all metadata, so one at a time.
    pub walking: Mutex<()>,
    /// What is recorded of this node for a cut of all.
    pub cutting: Cutting,
    /// Dumps of it in its block store.
    pub keeper: BackupScheduler,
    /// What deletes objects that nothing refers to.
    pub collector: Collector,
    /// How other nodes are taken over, if they are.
    pub succession: OnceLock<Arc<FailoverService>>,
    /// The callback for the end of the process, if it serves others.
    pub end: Option<mpsc::Sender<()>>,
}

impl ControlEndpoint for Serving {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot =
            Snapshot::take(&self.fs, Some(self.engine.stats()), self.begun.elapsed());
        if let Some(clients) = self.clients.get() {
            clients.stats(&mut |name, value| snapshot.add(name, value));
        }
        self.facts.stats(&mut |name, value| snapshot.add(name, value));
        self.keeper.stats(&mut |name, value| snapshot.add(name, value));
        self.collector.stats(&mut |name, value| snapshot.add(name, value));
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
    /// Puts an administrative operation into the audit log: the client (as it says), where from,
    /// with which token.
    pub fn audit(
        &self,
        question: &Value,
        answer: &Result<Value, String>,
        (who, from, token): (&str, &str, Option<TokenId>),
    ) {
        let Some(what) = administers(question) else { return };
        let result = answer.as_ref().map_or_else(String::as_str, |_| "done");
        self.note(audit::AuditEntry {
            event: audit::AuditEvent::Admin,
            who,
            from,
            token,
            what: &what,
            result,
        });
    }

    /// Puts a question of a client that may not ask it among the refusals.
    pub fn audit_refused(&self, verb: &str, result: &str, asker: &AdminRequester) {
        let (event, who) = (audit::AuditEvent::Operation, asker.who());
        let (from, token) = (asker.from(), asker.token().map(|token| token.id));
        self.note(audit::AuditEntry { event, who: &who, from, token, what: verb, result });
    }

    fn note(&self, entry: audit::AuditEntry<'_>) {
        if let Some(clients) = self.clients.get() {
            let server = clients.door.server();
            server.audit().tell(server.wall(), entry);
        }
    }

    fn answer_unheard(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        match question["verb"].as_str() {
            Some("token") => return super::tokens::answer(self, question),
            // A user that unmounts wants to know that what was written last can be stored.
            Some("alive") => return Ok(Value::Null),
            Some("yield") => return self.give_way(question),
            Some("remounted") if self.mount_point.is_some() => {
                return remounted(&self.fs, question);
            }
            _ => {}
        }
        if let Some(section) = &self.descriptor.cluster {
            return super::node_view::answer(self, section, question, tell);
        }
        let feed = ProgressStream::new(tell);
        match question["verb"].as_str() {
            Some("status") => self.status(),
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("info") => self.info(question),
            Some("dump") => self.dump(question),
            Some("backup") => self.keeper.answer(self, question, &feed),
            Some("fsck") => self.fsck(question, &feed),
            Some("gc") => self.gc(question, &feed),
            Some("compact") => self.compact(question, &feed),
            Some("warmup") => self.warmup(question, &feed),
            Some("whole") => whole::serve(&self.fs, &self.storage, question, &feed),
            Some("rows") => super::node_view::rows::page(&*self.engine, question),
            Some("cut") => super::node_view::cut::answer(self, question),
            Some("settings") => settings::answer(&self.dir, &self.descriptor, question),
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
                "status" | "stats" | "info" | "fsck" | "gc" | "compact" | "rows" | "sums" | "cut"
                | "reap" | "coding" | "table" | "whereabouts" | "entries" | "change" | "forget"
                | "token" | "alive" | "backup" | "yield" | "stand-in" | "unheard" | "settings",
            ) => self.answer_unheard(question, tell),
            verb => {
                let verb = verb.unwrap_or("this");
                Err(format!(
                    "{verb} is not done over the network; run it on the server, on {}",
                    self.dir.display()
                ))
            }
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
        let mut out = status::describe(&self.dir, &self.descriptor, &*self.engine)
            .map_err(|why| why.to_string())?;
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
        out["read_only"] = self.is_read_only().into();
        self.facts.describe(&self.fs, out);
        out["dumps"] = self.keeper.status();
        out["leftovers"] = self.collector.status();
        out["uptime_seconds"] = self.begun.elapsed().as_secs().into();
    }

    fn info(&self, question: &Value) -> Result<Value, String> {
        let inode = info_job::asked(&*self.engine, question)?;
        let mut out = info::describe(&*self.engine, &inode).map_err(|why| why.to_string())?;
        info_job::tell_places(&mut out, &self.storage);
        Ok(out)
    }

    fn dump(&self, question: &Value) -> Result<Value, String> {
        let file = question["file"].as_str().ok_or("the question names no file")?;
        let force = question["force"] == true;
        dump::write(&*self.engine, &self.descriptor, Path::new(file), force, &mut |_| {})
            .map_err(|why| why.to_string())
    }

    fn is_read_only(&self) -> bool {
        is_read_only(self.mount_point.as_deref(), self.read_only)
    }

    pub(super) fn may_change(&self) -> Result<(), String> {
        if self.is_read_only() {
            return Err("the volume is mounted read-only; mount it for writing first".into());
        }
        Ok(())
    }

    fn alone(&self) -> Result<parking_lot::MutexGuard<'_, ()>, String> {
        // A person comes first: the collection in the background gives up, and begins anew later.
        let patience = if self.collector.give_up() { GIVE_UP_MAX } else { Duration::ZERO };
        self.walking
            .try_lock_for(patience)
            .ok_or("a check or a collection of this volume runs already; wait for it".into())
    }

    fn fsck(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let _alone = self.alone()?;
        let is_open = |object| self.fs.is_open_object(object);
        let volume = fsck::InUse {
            dir: &self.dir,
            engine: &*self.engine,
            store: &*self.store,
            is_open: &is_open,
        };
        let limit = question["limit"].as_u64().unwrap_or(0);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        fsck::check_in_use(&volume, question["data"] == true, limit, feed)
    }

    fn gc(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let delete = question["delete"] == true;
        if delete {
            self.may_change()?;
        }
        let _alone = self.alone()?;
        let grace_seconds = question["grace_seconds"].as_u64().unwrap_or(gc::GRACE_SECONDS_DEFAULT);
        let reaped = if delete { self.reap(feed)? } else { 0 };
        let is_open = |object| self.fs.is_open_object(object);
        let options = gc::options(grace_seconds, delete, &is_open);
        let mut done = gc::collect(&*self.engine, &*self.store, &options, feed)
            .map_err(|why| why.to_string())?;
        done["reaped_objects"] = reaped.into();
        Ok(done)
    }

    /// Deletes what the schedule holds once its time has come, which the mount would do by itself
    /// within seconds.
    fn reap(&self, feed: &ProgressStream<'_>) -> Result<usize, String> {
        let mut reaped = 0;
        loop {
            let more =
                self.fs.reap().map_err(|why| format!("deleting scheduled objects: {why}"))?;
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
            self.may_change()?;
        }
        compact::compact(&self.fs, &wish, feed)
    }

    fn warmup(&self, question: &Value, feed: &ProgressStream<'_>) -> Result<Value, String> {
        let wish = warmup::WarmupRequest::of(question)?;
        warmup::warm(&*self.engine, &*self.store, &wish, feed)
    }
}

/// What a question would do to the volume or to permissions to use it, in words; none if it only
/// asks.
fn administers(question: &Value) -> Option<String> {
    let verb = question["verb"].as_str()?;
    let only_asks = match verb {
        "dump" | "fsck" | "reap" | "change" | "forget" | "expect" | "warmup" | "yield"
        | "stand-in" => false,
        "gc" => question["delete"] != true,
        "compact" => question["dry_run"] == true,
        "settings" => question.get("after").is_none(),
        "token" => matches!(question["action"].as_str(), Some("list" | "show")),
        "backup" => question["act"] == "list",
        _ => true,
    };
    let more =
        ["action", "act", "name", "token", "node", "file", "keep"].iter().filter_map(|name| {
            match &question[*name] {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            }
        });
    (!only_asks)
        .then(|| std::iter::once(verb.to_string()).chain(more).collect::<Vec<_>>().join(" "))
}
