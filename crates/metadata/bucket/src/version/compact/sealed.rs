//! Objects of JSON with a checksum: a line, and a line with the CRC-32C of what is before it.

use kestrel_engine::EngineError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::version::damaged;

/// Digits of a checksum, and the end of its line.
const SUM_BYTES: usize = 9;

/// The object.
///
/// # Errors
/// `Io` for what JSON cannot say.
pub fn seal(what: &impl Serialize) -> Result<Vec<u8>, EngineError> {
    let mut out = serde_json::to_vec(what).map_err(|why| EngineError::Io(why.to_string()))?;
    out.push(b'\n');
    let sum = format!("{:08x}\n", crc32c::crc32c(&out));
    out.extend_from_slice(sum.as_bytes());
    Ok(out)
}

/// What is in an object of this name.
///
/// # Errors
/// `Corrupt`.
pub fn open<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, EngineError> {
    let bad = |why: &str| damaged(name, why);
    let cut = bytes.len().checked_sub(SUM_BYTES).ok_or_else(|| bad("it is cut off"))?;
    let (line, sum) = bytes.split_at(cut);
    if sum != format!("{:08x}\n", crc32c::crc32c(line)).as_bytes() {
        return Err(bad("its checksum does not match"));
    }
    serde_json::from_slice(line).map_err(|why| bad(&why.to_string()))
}
