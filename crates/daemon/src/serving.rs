//! What a process that serves or mounts a volume consists of: what questions to it are about.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;

use kestrel_server::admin::AdminRequester;
use kestrel_server::audit;
use kestrel_types::token::TokenId;
use serde_json::Value;

use super::backup_schedule::BackupScheduler;
use super::clients::Clients;
use super::collector::Collector;
use super::cutting::Cutting;
use super::failover::FailoverService;
use super::mount_status::MountStatus;
use super::node::NodeOfCluster;
use super::served_volume::ServedVolume;
use super::snapshots::answer::changes;
use super::snapshots::keeper::SnapshotKeeper;

/// See the module's header.
pub struct Serving {
    /// The volume.
    pub volume: Arc<ServedVolume>,
    /// Clients across a network, if it serves any.
    pub clients: OnceLock<Clients>,
    /// Its number among the nodes that share the volume, if several do.
    pub node: Option<NodeOfCluster>,
    /// How it is mounted, if it is.
    pub facts: MountStatus,
    /// Since when.
    pub begun: Instant,
    /// What is recorded of this node for a cut of all.
    pub cutting: Cutting,
    /// Dumps of it in its block store.
    pub keeper: Arc<BackupScheduler>,
    /// What deletes objects that nothing refers to.
    pub collector: Arc<Collector>,
    /// Keeps schedules of snapshots.
    pub snapshots: Arc<SnapshotKeeper>,
    /// How other nodes are taken over, if they are.
    pub succession: OnceLock<Arc<FailoverService>>,
    /// The callback for the end of the process, if it serves others.
    pub end: Option<mpsc::Sender<()>>,
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

    /// What a status tells of this process.
    pub fn describe_process(&self, out: &mut Value) {
        out["mounted"] = self.volume.mount_point.is_some().into();
        out["pid"] = std::process::id().into();
        out["mount_point"] =
            self.volume.mount_point.as_ref().map(|dir| dir.to_string_lossy()).into();
        out["address"] = self.clients.get().map(|clients| clients.address.to_string()).into();
        out["served"] = self.clients.get().map(Clients::status).into();
        out["read_only"] = self.volume.is_read_only().into();
        self.facts.describe(&self.volume.fs, out);
        out["dumps"] = self.keeper.status();
        out["leftovers"] = self.collector.status();
        out["snapshot_schedules"] = self.snapshots.status();
        out["uptime_seconds"] = self.begun.elapsed().as_secs().into();
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
        "tier" => question["act"] == "status" || question["dry_run"] == true,
        "settings" => question.get("after").is_none(),
        "token" => matches!(question["action"].as_str(), Some("list" | "show")),
        "backup" => question["act"] == "list",
        "snapshot" => !changes(question),
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
