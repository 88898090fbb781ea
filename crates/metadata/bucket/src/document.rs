//! Documents of JSON that have their own checksum in a field: one line, and no other line says the
//! same.

use kestrel_engine::EngineError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A document. Strings, numbers and lists: nothing that JSON could not say.
pub trait Document: Serialize + DeserializeOwned + Clone {
    /// The field of the checksum: CRC-32C, eight hexadecimal digits, of the document with this
    /// field empty.
    fn checksum(&mut self) -> &mut String;
}

/// What every document says first, whatever its format.
#[derive(Deserialize)]
pub struct DocumentHead {
    /// What kind of document it is.
    pub magic: String,
    /// Version of the format of this kind.
    pub format: u32,
}

fn text(document: &impl Document) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}

/// The bytes of a document.
pub fn encode(document: &impl Document) -> Vec<u8> {
    let mut sealed = document.clone();
    sealed.checksum().clear();
    *sealed.checksum() = format!("{:08x}", crc32c::crc32c(&text(&sealed)));
    text(&sealed)
}

/// The first fields of a document of any format. `bad` makes an error of a reason.
///
/// # Errors
/// What `bad` makes, if they are not there.
pub fn head(bytes: &[u8], bad: &dyn Fn(&str) -> EngineError) -> Result<DocumentHead, EngineError> {
    serde_json::from_slice(bytes).map_err(|why| bad(&why.to_string()))
}

/// A document of a known format. `bad` makes an error of a reason.
///
/// # Errors
/// What `bad` makes, if it is damaged, or written in another way than [`encode`] does.
pub fn decode<T: Document>(
    bytes: &[u8],
    bad: &dyn Fn(&str) -> EngineError,
) -> Result<T, EngineError> {
    let found: T = serde_json::from_slice(bytes).map_err(|why| bad(&why.to_string()))?;
    if encode(&found) != bytes {
        return Err(bad("its checksum does not match"));
    }
    Ok(found)
}
