//! Opening a volume at a snapshot: finding the snapshot by its directory and name.

use std::sync::Arc;

use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::PathRef;
use kestrel_types::snapshot::SnapshotInfo;

use super::SnapshotUrl;
use crate::error::VolumeError;
use crate::fs::{Caller, Fs, wait};

/// Names of snapshots that an error tells.
const NAMES_TOLD: usize = 5;

impl SnapshotUrl {
    /// The file system at this snapshot of the volume that `live` is open on, with the snapshot's
    /// directory for its root. It must not outlive `live`.
    ///
    /// # Errors
    /// If there is no such directory or snapshot, and the node's; the text says what to do.
    pub fn open(&self, live: &Arc<Fs>) -> Result<Arc<Fs>, VolumeError> {
        let failed = |error: FsError| VolumeError::Io(format!("{self}: {error}"));
        let dir = self.find_dir(live)?;
        let all = wait(|done| live.snapshots(Caller::ROOT, Some(dir), false, done));
        let all = all.map_err(failed)?;
        let it = all.iter().find(|info| info.name == self.name && !info.removing);
        let it = it.ok_or_else(|| VolumeError::Invalid(self.absent(&all)))?;
        let seen = live.at(it.id, dir);
        // What it was at that time is there, or the error comes now.
        wait(|done| seen.getattr(Caller::ROOT, ROOT, done)).map_err(failed)?;
        Ok(seen)
    }

    /// The directory, by its path in the live volume.
    fn find_dir(&self, live: &Arc<Fs>) -> Result<InodeId, VolumeError> {
        let Some((name, dirs)) = self.dir.split_last() else { return Ok(ROOT) };
        let place = PathRef { base: ROOT, dirs: dirs.iter().collect(), name: name.clone() };
        let found = wait(|done| live.find_directory(Caller::ROOT, place, done));
        found.map(|inode| inode.ino).map_err(|error| {
            VolumeError::Invalid(format!(
                "{self}: no directory {} in the volume: {error}; a snapshot is named by the path \
                 that its directory has now, without symbolic links",
                self.dir_text()
            ))
        })
    }

    fn absent(&self, all: &[SnapshotInfo]) -> String {
        let there = all.iter().rev().filter(|info| !info.removing);
        let names: Vec<_> = there
            .map(|info| String::from_utf8_lossy(info.name.as_bytes()).into_owned())
            .take(NAMES_TOLD)
            .collect();
        let dir = self.dir_text();
        let volume = &self.volume;
        let has = match names.is_empty() {
            true => {
                format!("it has none: make one with `kestrel snapshot create {volume}:{dir} NAME`")
            }
            false => format!(
                "the newest are {}; `kestrel snapshot list {volume}:{dir}` shows all",
                names.join(", ")
            ),
        };
        format!("{self}: {dir} has no snapshot of this name; {has}")
    }
}
