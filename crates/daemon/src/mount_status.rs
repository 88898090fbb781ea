//! What a mount tells of itself, once it serves: how walks are answered, over what requests come.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kestrel_client::fs::Fs;
use kestrel_fuse::mount::{MountEntry, find};
use kestrel_vfs::{Mount, PassthroughState, Shortcut, ShortcutMode};
use serde_json::{Value, json};

use crate::atime;
use crate::memory::Memory;
use crate::supervisor::Supervised;

/// What is known when the mount serves.
struct Facts {
    mode: ShortcutMode,
    shortcut: Shortcut,
    passthrough: PassthroughState,
    transport: &'static str,
    transport_why: String,
}

/// The facts of a mount, nothing but its memory before it serves; clones are cheap. Those of a
/// server are never more.
#[derive(Clone)]
pub struct MountStatus {
    mount: Arc<OnceLock<Facts>>,
    memory: Memory,
    supervised: Arc<OnceLock<Arc<Supervised>>>,
}

/// Whether a mount is read-only now: it may have been remounted. `begun`: how it was begun, in case
/// that cannot be found out.
pub fn is_read_only(mount_point: Option<&Path>, begun: bool) -> bool {
    let entry = mount_point.and_then(|dir| find(dir).ok().flatten());
    entry.filter(MountEntry::is_kestrel).map_or(begun, |entry| entry.is_read_only())
}

/// Takes in what a remount has made of a mount.
///
/// # Errors
/// If the question is none.
pub fn remounted(fs: &Arc<Fs>, question: &Value) -> Result<Value, String> {
    fs.set_access_times(atime::asked(question, fs.access_times())?);
    Ok(Value::Null)
}

impl MountStatus {
    /// Those of a process with this memory.
    pub fn new(memory: &Memory) -> Self {
        Self { mount: Arc::default(), memory: memory.clone(), supervised: Arc::default() }
    }

    /// The mount serves.
    pub fn learn(&self, mount: &Mount) {
        let facts = Facts {
            mode: mount.mode.clone(),
            shortcut: mount.shortcut.clone(),
            passthrough: mount.passthrough.clone(),
            transport: mount.session.transport(),
            transport_why: mount.session.transport_why().into(),
        };
        // A process mounts once.
        let _ = self.mount.set(facts);
    }

    /// The mount has a supervisor.
    pub fn supervised_by(&self, supervised: &Arc<Supervised>) {
        // Once, as the mount.
        let _ = self.supervised.set(supervised.clone());
    }

    /// Answers `kestrel upgrade`: what is known of supervision, null without a supervisor.
    pub fn supervision(&self) -> Value {
        let Some(supervised) = self.supervised.get() else { return Value::Null };
        let mut out = supervised.describe();
        out["pid"] = std::process::id().into();
        out["serves"] = self.mount.get().is_some().into();
        out["version"] = env!("CARGO_PKG_VERSION").into();
        out
    }

    /// Answers `kestrel upgrade`: see [`Supervised::hand_over`].
    ///
    /// # Errors
    /// Why the mount is not handed over.
    pub fn hand_over(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        match self.supervised.get() {
            Some(supervised) => supervised.hand_over(question, tell),
            None => Err("the mount has no supervisor: mount it with --supervised=upgrade".into()),
        }
    }

    /// The figures, by the names of the metrics without `_total`.
    pub fn stats(&self, take: &mut dyn FnMut(&'static str, u64)) {
        take("memory_limit_bytes", self.memory.limit.bytes);
        take("memory_bound_bytes", self.memory.plan.bound);
        let Some(facts) = self.mount.get() else { return };
        if let Some(stats) = facts.passthrough.stats() {
            for (name, value) in [
                ("passthrough_live", stats.live as u64),
                ("passthrough_opens", stats.opens),
                ("passthrough_opens_beside", stats.beside),
                ("passthrough_refreshes", stats.refreshed),
                ("passthrough_copies", stats.made),
                ("passthrough_copied_bytes", stats.made_bytes),
            ] {
                take(name, value);
            }
        }
        let Some(stats) = facts.shortcut.stats() else { return };
        for (name, value) in [
            ("shortcut_lookups_faked", stats.faked),
            ("shortcut_lookups_left_to_create", stats.left_to_create),
            ("shortcut_lookups_hinted", stats.hinted),
            ("shortcut_lookups_unhinted", stats.unhinted),
            ("shortcut_opens", stats.opens),
            ("shortcut_walks_repeated", stats.stale),
            ("shortcut_directory_looks", stats.looks),
            ("shortcut_path_nodes", stats.path_nodes),
        ] {
            take(name, value);
        }
    }

    /// For `kestrel status`, of a process that mounts and has no volume open.
    pub fn describe_mount(
        &self,
        fs: &Fs,
        (mount_point, read_only, begun): (&Path, bool, Instant),
        out: &mut Value,
    ) {
        out["mounted"] = true.into();
        out["mount_point"] = mount_point.to_string_lossy().into();
        out["pid"] = std::process::id().into();
        out["read_only"] = read_only.into();
        out["uptime_seconds"] = begun.elapsed().as_secs().into();
        self.describe(fs, out);
    }

    /// For `kestrel status`.
    pub fn describe(&self, fs: &Fs, out: &mut Value) {
        out["memory"] = json!({
            "limit_bytes": self.memory.limit.bytes,
            "limit": self.memory.limit.to_string(),
            "bound_bytes": self.memory.plan.bound,
        });
        let Some(facts) = self.mount.get() else { return };
        let times = fs.access_times();
        out["access_times"] = json!({ "mode": times.mode, "directories": !times.no_directories });
        out["shortcut"] = facts.mode.shortcut.into();
        out["shortcut_why"] = facts.mode.why.as_str().into();
        out["passthrough"] = match (facts.passthrough.why_off(), facts.passthrough.stats()) {
            (Some(why), _) => json!({ "on": false, "why": why }),
            (None, stats) => json!({ "on": true, "live": stats.map(|stats| stats.live) }),
        };
        if let Some(supervised) = self.supervised.get() {
            out["supervised"] = supervised.describe();
        }
        out["transport"] = facts.transport.into();
        out["transport_why"] = facts.transport_why.as_str().into();
    }
}
