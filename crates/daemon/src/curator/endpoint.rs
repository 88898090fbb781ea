//! Answers of a curator: what it serves, its clients, and its metrics.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use kestrel_client::version::{MountedVersion, VersionEngine};
use kestrel_engine::Engine;
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_types::error::FsError;
use parking_lot::Mutex;
use serde_json::Value;

use crate::clients::Clients;
use crate::endpoints::ControlEndpoint;
use crate::metrics::{Snapshot, to_json};
use crate::mount_status::MountStatus;
use crate::version_mount::version_status;

/// What questions are about.
pub struct Curator {
    /// The version.
    pub version: MountedVersion,
    /// Its rows.
    pub engine: Arc<VersionEngine>,
    /// Which version of which volume.
    pub url: String,
    /// Where clients find it.
    pub shown_at: OnceLock<String>,
    /// Clients, once they are served.
    pub clients: OnceLock<Clients>,
    /// The memory of the process.
    pub facts: MountStatus,
    /// Since when.
    pub begun: Instant,
}

impl ControlEndpoint for Curator {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot =
            Snapshot::take(&self.version.fs, Some(self.engine.stats()), self.begun.elapsed());
        if let Some(clients) = self.clients.get() {
            clients.stats(&mut |name, value| snapshot.add(name, value));
        }
        self.facts.stats(&mut |name, value| snapshot.add(name, value));
        snapshot
    }

    fn answer(
        &self,
        question: &Value,
        _tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        match question["verb"].as_str() {
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("alive") => Ok(Value::Null),
            Some("status") => Ok(self.status()),
            _ => Err(format!(
                "a published version, {}, is served here, and this is not known of one; name the \
                 volume itself",
                self.url
            )),
        }
    }
}

impl Curator {
    fn status(&self) -> Value {
        let MountedVersion { fs, descriptor, manifest, .. } = &self.version;
        let mut out = version_status(descriptor, &self.url, manifest);
        out["mounted"] = false.into();
        out["pid"] = std::process::id().into();
        out["address"] = self.clients.get().map(|clients| clients.address.to_string()).into();
        out["served"] = self.clients.get().map(Clients::status).into();
        out["url"] = self.shown_at.get().map(String::as_str).into();
        out["read_only"] = true.into();
        out["uptime_seconds"] = self.begun.elapsed().as_secs().into();
        self.facts.describe(fs, &mut out);
        out
    }
}

/// Answers questions of clients, at once: none of them waits for the store.
#[derive(Default)]
pub struct CuratorQuestions(Mutex<Weak<Curator>>);

impl CuratorQuestions {
    /// What answers the questions.
    pub fn belong_to(&self, curator: &Arc<Curator>) {
        *self.0.lock() = Arc::downgrade(curator);
    }

    fn answer(&self, question: &[u8], asker: &AdminRequester) -> Result<Box<[u8]>, FsError> {
        let Some(curator) = self.0.lock().upgrade() else {
            return Err(FsError::new(libc::EAGAIN, "the server is starting or ending; ask again"));
        };
        let failed = |why: String| FsError::because(libc::EIO, why);
        let question: Value = serde_json::from_slice(question)
            .map_err(|error| failed(format!("the question is not valid JSON: {error}")))?;
        if let Some(why) = asker.ended() {
            return Err(why);
        }
        if let Some(token) =
            asker.token().filter(|token| !token.admin && question["verb"] != "alive")
        {
            return Err(failed(format!(
                "token {} ({}) may not administer the volume",
                token.id, token.name
            )));
        }
        let answer = curator.answer(&question, &mut |_| true).map_err(failed)?;
        Ok(answer.to_string().into_bytes().into())
    }
}

impl Admin for CuratorQuestions {
    fn submit(&self, question: Box<[u8]>, asker: AdminRequester) {
        let answer = self.answer(&question, &asker);
        asker.answer(answer);
    }
}
