//! Questions to a process that serves a volume, over its control socket (`kestrel_client::control`): `{"verb": …}`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use kestrel_admin::{gc, info};
use kestrel_client::descriptor::Descriptor;
use kestrel_client::fs::Fs;
use kestrel_data::store::BlockStore;
use kestrel_meta::engine::Engine;
use serde_json::Value;

use crate::metrics::{Snapshot, to_json};
use crate::verbs::{dump, gc as gc_verb, status};

/// What questions are about.
pub struct Serving {
    /// The file system.
    pub fs: Arc<Fs>,
    /// Its metadata.
    pub engine: Arc<dyn Engine>,
    /// Its data.
    pub store: Arc<dyn BlockStore>,
    /// What it is.
    pub descriptor: Descriptor,
    /// Directory of the volume.
    pub dir: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Since when.
    pub begun: Instant,
}

impl Serving {
    /// The figures now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.fs, self.engine.stats(), self.begun.elapsed())
    }

    /// Answers one question.
    ///
    /// # Errors
    /// In words, for the person who asked.
    pub fn answer(&self, question: &Value) -> Result<Value, String> {
        match question["verb"].as_str() {
            Some("status") => self.status(),
            Some("stats") => Ok(to_json(&self.snapshot())),
            Some("info") => self.info(question),
            Some("dump") => self.dump(question),
            Some("gc") => self.gc(question),
            Some(other) => {
                Err(format!("the serving process does not know {other:?}; it may be older than this program"))
            }
            None => Err("the question has no verb".into()),
        }
    }

    fn status(&self) -> Result<Value, String> {
        let mut out =
            status::describe(&self.dir, &self.descriptor, &*self.engine).map_err(|why| why.to_string())?;
        out["mounted"] = true.into();
        out["pid"] = std::process::id().into();
        out["mount_point"] = self.mount_point.to_string_lossy().into();
        out["read_only"] = self.read_only.into();
        out["uptime_seconds"] = self.begun.elapsed().as_secs().into();
        Ok(out)
    }

    fn info(&self, question: &Value) -> Result<Value, String> {
        let number = |name: &str| question[name].as_u64();
        let inode = match (number("dir"), number("parent"), question["name"].as_array()) {
            (Some(dir), _, _) => info::find_dir(&*self.engine, dir),
            (None, Some(parent), Some(name)) => {
                let name: Option<Vec<u8>> =
                    name.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect();
                info::find(&*self.engine, parent, &name.ok_or("the name is not a list of bytes")?)
            }
            _ => return Err("the question names neither a directory nor an entry".into()),
        };
        inode.and_then(|inode| info::describe(&*self.engine, &inode)).map_err(|why| why.to_string())
    }

    fn dump(&self, question: &Value) -> Result<Value, String> {
        let file = question["file"].as_str().ok_or("the question names no file")?;
        let force = question["force"] == true;
        dump::write(&*self.engine, &self.descriptor, Path::new(file), force, &mut |_| {})
            .map_err(|why| why.to_string())
    }

    fn gc(&self, question: &Value) -> Result<Value, String> {
        let delete = question["delete"] == true;
        if delete && self.read_only {
            return Err("the volume is mounted read-only; mount it for writing first".into());
        }
        let grace_seconds = question["grace_seconds"].as_u64().unwrap_or(gc_verb::GRACE_SECONDS_DEFAULT);
        let is_open = |object| self.fs.is_open_object(object);
        let options = gc_verb::options(grace_seconds, delete, &is_open);
        gc_verb::collect(&*self.engine, &*self.store, &options, &mut |_, _| {})
            .map_err(|why: gc::GcError| why.to_string())
    }
}
