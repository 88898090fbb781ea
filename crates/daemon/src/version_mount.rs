//! The mount of a published version: it has figures of its own, and asks no server of the volume.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kestrel_client::Fs;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::version::{VersionManifest, VersionUrl};
use serde_json::Value;

use crate::endpoints::ControlEndpoint;
use crate::jobs::status;
use crate::metrics::{Snapshot, to_json};
use crate::mount_status::{MountStatus, remounted};
use crate::snapshots::versions::describe;

/// What questions are about.
pub struct VersionMount {
    /// The file system.
    pub fs: Arc<Fs>,
    /// Which version of which volume.
    pub url: VersionUrl,
    /// What the volume is.
    pub descriptor: Descriptor,
    /// What the version is.
    pub manifest: VersionManifest,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// How it is mounted.
    pub facts: MountStatus,
    /// Since when.
    pub begun: Instant,
}

/// What a status tells of a version that is mounted or served.
pub fn version_status(descriptor: &Descriptor, url: &str, manifest: &VersionManifest) -> Value {
    let mut out = status::known(descriptor);
    out["volume"] = url.into();
    out["version"] = describe(manifest);
    out["files"] = manifest.figures.files.into();
    out["directories"] = manifest.figures.directories.into();
    out["bytes"] = manifest.figures.bytes.into();
    out
}

impl ControlEndpoint for VersionMount {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::take(&self.fs, None, self.begun.elapsed());
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
            Some("remounted") => remounted(&self.fs, question),
            Some("status") => {
                let mut out =
                    version_status(&self.descriptor, &self.url.to_string(), &self.manifest);
                let mount = (&*self.mount_point, true, self.begun);
                self.facts.describe_mount(&self.fs, mount, &mut out);
                Ok(out)
            }
            _ => Err(format!(
                "a published version, {}, is mounted here, and this is not known of one; name the \
                 volume itself",
                self.url
            )),
        }
    }
}
