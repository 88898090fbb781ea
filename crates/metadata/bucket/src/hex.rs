//! Bytes as hexadecimal digits in JSON ([`kestrel_types::hex`]).

use kestrel_types::hex::{from_hex, to_hex};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&to_hex(bytes))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    from_hex(&text).ok_or_else(|| D::Error::custom("no hexadecimal digits"))
}
