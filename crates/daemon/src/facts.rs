//! What a mount tells of itself, once it serves: how walks are answered, over what requests come.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kestrel_client::fs::Fs;
use kestrel_fuse::mount::{MountEntry, find};
use kestrel_vfs::{Mode, Mount, PassthroughState, Shortcut};
use serde_json::{Value, json};

use crate::atime;
use crate::memory::Memory;

/// What is known when the mount serves.
struct Facts {
    mode: Mode,
    shortcut: Shortcut,
    passthrough: PassthroughState,
    transport: &'static str,
    transport_why: String,
}

/// The facts of a mount, nothing but its memory before it serves; clones are cheap. Those of a
/// server are never more.
#[derive(Clone)]
pub struct MountFacts {
    mount: Arc<OnceLock<Facts>>,
    memory: Memory,
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

impl MountFacts {
    /// Those of a process with this memory.
    pub fn new(memory: &Memory) -> Self {
        Self { mount: Arc::default(), memory: memory.clone() }
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

    /// The figures, by the names of the metrics without `_total`.
    pub fn figures(&self, take: &mut dyn FnMut(&'static str, u64)) {
        take("memory_limit_bytes", self.memory.limit.bytes);
        take("memory_bound_bytes", self.memory.plan.bound);
        let Some(facts) = self.mount.get() else { return };
        if let Some(figures) = facts.passthrough.figures() {
            for (name, value) in [
                ("passthrough_live", figures.live as u64),
                ("passthrough_opens", figures.opens),
                ("passthrough_opens_beside", figures.beside),
                ("passthrough_refreshes", figures.refreshed),
                ("passthrough_copies", figures.made),
                ("passthrough_copied_bytes", figures.made_bytes),
            ] {
                take(name, value);
            }
        }
        let Some(figures) = facts.shortcut.figures() else { return };
        for (name, value) in [
            ("shortcut_lookups_faked", figures.faked),
            ("shortcut_lookups_left_to_create", figures.left_to_create),
            ("shortcut_lookups_hinted", figures.hinted),
            ("shortcut_lookups_unhinted", figures.unhinted),
            ("shortcut_opens", figures.opens),
            ("shortcut_walks_repeated", figures.stale),
            ("shortcut_directory_looks", figures.looks),
            ("shortcut_path_nodes", figures.path_nodes),
        ] {
            take(name, value);
        }
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
        out["passthrough"] = match (facts.passthrough.why_off(), facts.passthrough.figures()) {
            (Some(why), _) => json!({ "on": false, "why": why }),
            (None, figures) => json!({ "on": true, "live": figures.map(|figures| figures.live) }),
        };
        out["transport"] = facts.transport.into();
        out["transport_why"] = facts.transport_why.as_str().into();
    }
}
