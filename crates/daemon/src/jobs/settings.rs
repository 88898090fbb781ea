//! Settings of a volume: how it stores new data and keeps access times.

use std::path::Path;

use kestrel_blockstore::store::coded::Compression;
use kestrel_client::descriptor::{CodingSettings, Descriptor};
use kestrel_client::keys;
use serde_json::{Value, json};

/// How a volume stores new data and keeps access times, as it is told.
pub fn describe(descriptor: &Descriptor) -> Value {
    let coding = descriptor.coding.as_ref();
    let encryption = coding.and_then(|coding| coding.encryption.as_ref());
    json!({
        "name": descriptor.settings.name,
        "atime": descriptor.settings.atime,
        "compression": coding.map_or(Compression::None, |coding| coding.compression).to_string(),
        "encrypted": encryption.is_some_and(|encryption| encryption.active),
        "encryption_required": encryption.is_some_and(|encryption| encryption.required),
        "volume_key": encryption.map(|encryption| &encryption.volume_key),
        "data_keys": encryption.map_or(0, |encryption| encryption.keys.len()),
        "cipher": encryption.map(|encryption| encryption.cipher.as_str()),
    })
}

/// Answers for the process that serves a volume alone: how objects are coded from the next time it
/// is opened on, and now. A question may bring how they are to be.
///
/// # Errors
/// In words.
pub fn answer(dir: &Path, opened: &Descriptor, question: &Value) -> Result<Value, String> {
    let descriptor = match question.get("after") {
        None => Descriptor::read(dir),
        Some(after) => {
            let coding =
                |value: &Value| serde_json::from_value::<Option<CodingSettings>>(value.clone());
            let part =
                |value| coding(value).map_err(|why| format!("the question has no settings: {why}"));
            keys::recode(dir, part(&question["before"])?.as_ref(), part(after)?)
        }
    };
    let descriptor = descriptor.map_err(|why| why.to_string())?;
    Ok(json!({ "coding": descriptor.coding, "is_in_use": descriptor.coding == opened.coding }))
}
