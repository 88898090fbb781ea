//! This node's part in a cut of all nodes (`kestrel_admin::recording`), or the cut of the only one:
//! the process that makes it asks all nodes to begin, reads their rows, asks all to hold, sees to
//! it that there was a moment in all holds, ends them, and reads what was recorded.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use kestrel_admin::recording::Recording;
use kestrel_client::descriptor::random;
use kestrel_client::volume::scratch_room;
use kestrel_types::hex::to_hex;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::served_volume::ServedVolume;

/// Bytes of what was recorded in one answer.
const PAGE_BYTES: usize = 384 << 10;

/// The recording of a node, one at a time, and its number: a random one, so that nobody takes that
/// of another, or of another start of the node, for his.
#[derive(Default)]
pub struct Cutting(Mutex<(u64, Option<Arc<Recording>>)>);

impl Cutting {
    /// Answers one step.
    ///
    /// # Errors
    /// In words.
    pub fn answer(&self, volume: &ServedVolume, question: &Value) -> Result<Value, String> {
        let number =
            |name: &str| question[name].as_u64().ok_or(format!("the question has no {name}"));
        let time = |name: &str| number(name).map(Duration::from_millis);
        let act = question["act"].as_str().unwrap_or_default();
        if act == "begin" {
            return self.begin(volume);
        }
        let recording = self.find(number("cut")?)?;
        match act {
            "keep" => recording.keep().map(|()| Value::Null),
            "hold" => recording.hold(time("after_ms")?, time("for_ms")?).map(|()| Value::Null),
            "end" if volume.fs.member().is_none() => {
                recording.end_alone().map(|bytes| json!({ "bytes": bytes }))
            }
            "end" => recording.end().map(|bytes| json!({ "bytes": bytes })),
            "read" => Ok(json!({ "bytes": to_hex(&recording.read(number("from")?, PAGE_BYTES)?) })),
            "drop" => {
                self.0.lock().1 = None;
                Ok(Value::Null)
            }
            _ => Err("the question names no step of a cut".into()),
        }
    }

    fn find(&self, number: u64) -> Result<Arc<Recording>, String> {
        let cutting = self.0.lock();
        let found = cutting.1.as_ref().filter(|_| cutting.0 == number).cloned();
        found.ok_or("the recording of changes has ended; begin anew".into())
    }

    fn begin(&self, volume: &ServedVolume) -> Result<Value, String> {
        let mut cutting = self.0.lock();
        if cutting.1.as_ref().is_some_and(|recording| !recording.is_given_up()) {
            return Err(
                "the volume is being dumped, checked or searched already; wait for that".into()
            );
        }
        let path = volume.dir.join(".recording");
        let fail = |why: std::io::Error| format!("{}: {why}", path.display());
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(fail)?;
        // It has no name from now on, so nothing is left of it however this ends.
        std::fs::remove_file(&path).map_err(fail)?;
        let recording = Recording::begin(volume.engine.clone(), file, scratch_room(&volume.dir))
            .map_err(fail)?;
        cutting.0 = u64::from_be_bytes(random().map_err(|why| why.to_string())?);
        cutting.1 = Some(Arc::new(recording));
        let table = volume.fs.member().map(|host| host.placement().version);
        Ok(json!({ "cut": cutting.0, "table": table }))
    }
}
