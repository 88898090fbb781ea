//! The mount of a volume that is followed: it reads beside the process that writes, and answers
//! what only reads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kestrel_admin::info;
use kestrel_client::Fs;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::follow::{FollowStatus, FollowedMetadata};
use kestrel_client::fs::wait;
use kestrel_client::storage::Storage;
use kestrel_engine::Engine;
use serde_json::{Value, json};

use crate::endpoints::ControlEndpoint;
use crate::jobs::{info as info_job, status, usage, warmup, whole};
use crate::metrics::{Snapshot, to_json};
use crate::mount_status::{MountStatus, remounted};
use crate::progress_stream::ProgressStream;
use crate::snapshots::answer::{SnapshotEndpoint, changes};

/// What questions are about.
pub struct FollowerMount {
    /// The file system.
    pub fs: Arc<Fs>,
    /// The way to its metadata.
    pub metadata: Arc<FollowedMetadata>,
    /// Where its data is.
    pub storage: Arc<Storage>,
    /// The volume, without parameters.
    pub url: String,
    /// What it is.
    pub descriptor: Descriptor,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// How it is mounted.
    pub facts: MountStatus,
    /// Since when.
    pub begun: Instant,
}

impl ControlEndpoint for FollowerMount {
    fn snapshot(&self) -> Snapshot {
        let rows = self.metadata.rows().stats();
        let mut snapshot = Snapshot::take(&self.fs, Some(rows), self.begun.elapsed());
        self.facts.stats(&mut |name, value| snapshot.add(name, value));
        let status = self.metadata.status();
        for (name, value) in [
            ("follow_position", status.to.position),
            ("follow_epoch", status.to.epoch),
            ("follow_age_milliseconds", u64::try_from(status.age.as_millis()).unwrap_or(u64::MAX)),
            ("follow_looks", status.looks),
            ("follow_moments", status.moments),
            ("follow_repeated_requests", status.repeated),
            ("follow_failing", u64::from(status.error.is_some())),
        ] {
            snapshot.add(name, value);
        }
        snapshot
    }

    fn answer(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        let rows = self.metadata.rows();
        match question["verb"].as_str() {
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("alive") => Ok(Value::Null),
            Some("remounted") => remounted(&self.fs, question),
            Some("status") => Ok(self.status()),
            Some("info") => {
                let inode = info_job::asked(&*rows, question)?;
                let mut out = info::describe(&*rows, &inode).map_err(|why| why.to_string())?;
                info_job::tell_places(&mut out, &self.storage);
                Ok(out)
            }
            Some("du") => usage::answer(&*rows, question),
            Some("snapshot") if !changes(question) => {
                let (fs, storage) = (&self.fs, &*self.storage);
                let engine: Option<&dyn Engine> = Some(&*rows);
                SnapshotEndpoint { fs, engine, storage }.answer_telling(question, tell)
            }
            Some("warmup") => {
                let wish = warmup::WarmupRequest::of(question)?;
                warmup::warm(&*rows, &*self.storage.store, &wish, &ProgressStream::new(tell))
            }
            Some("whole") => {
                whole::serve(&self.fs, &self.storage, question, &ProgressStream::new(tell))
            }
            _ => Err(format!(
                "{} is mounted here with --read-only and follows the process that writes it: run \
                 this where that one is, or mount the volume for writing",
                self.url
            )),
        }
    }
}

impl FollowerMount {
    fn status(&self) -> Value {
        let mut out = status::known(&self.descriptor);
        out["volume"] = self.url.as_str().into();
        let follows = self.metadata.status();
        // What has to be read for it may wait for a store that does not answer.
        if follows.error.is_none()
            && follows.silence.is_zero()
            && let Ok(usage) = wait(|done| self.fs.usage(done))
        {
            out["files"] = usage.files.into();
            // The root belongs to no directory.
            out["directories"] = (usage.dirs + 1).into();
            out["bytes"] = usage.bytes.into();
        }
        out["follows"] = describe(&follows);
        let mount = (&*self.mount_point, true, self.begun);
        self.facts.describe_mount(&self.fs, mount, &mut out);
        out
    }
}

/// How far a follower has come, as it is told.
fn describe(status: &FollowStatus) -> Value {
    let mut out = json!({
        "epoch": status.to.epoch,
        "position": status.to.position,
        "log_object": status.to.log_next,
        "manifest_revision": status.to.revision,
        "age_seconds": status.age.as_secs_f64(),
        "every_seconds": status.every.as_secs_f64(),
        "looks": status.looks,
        "moments": status.moments,
        "repeated_requests": status.repeated,
    });
    if let Some(why) = &status.error {
        out["why"] = why.as_str().into();
        out["shows_nothing"] = status.is_lost.into();
    }
    // One look takes that long where the store is far.
    if status.silence > status.every.max(std::time::Duration::from_secs(2)) {
        out["silence_seconds"] = status.silence.as_secs_f64().into();
    }
    out
}
