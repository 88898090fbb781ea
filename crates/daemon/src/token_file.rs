//! The tokens of a curator's clients: the volume's, as `kestrel token export` prints them. The file
//! is read again when it changes, so a token that was revoked is of no use here from then on.
//!
//! Records only ever allow less (`kestrel_types::token`): what the file does not have any more
//! stays as it was last.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use kestrel_server::tokens::Tokens;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::token::{TOKENS_MAX, TokenRecord};
use serde_json::{Value, json};

/// Longest file, bytes: the largest record has some kilobytes, and most have far less.
const FILE_BYTES_MAX: u64 = TOKENS_MAX as u64 * 4096;

/// What tells one content of the file from the next.
type Stamp = (Option<SystemTime>, u64);

/// See the module's header.
pub struct TokenFile {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// An error was told in the log.
    told: bool,
}

impl TokenFile {
    /// Reads nothing yet.
    pub fn new(path: PathBuf) -> Self {
        // The process may go elsewhere.
        let path = std::path::absolute(&path).unwrap_or(path);
        Self { path, stamp: None, told: false }
    }

    /// Puts the tokens of the file on record.
    ///
    /// # Errors
    /// In words.
    pub fn read(&mut self, tokens: &Arc<Tokens>) -> Result<(), String> {
        let failed = |why: String| format!("--tokens {}: {why}", self.path.display());
        let meta = fs::metadata(&self.path).map_err(|why| failed(why.to_string()))?;
        let stamp = (meta.modified().ok(), meta.len());
        if self.stamp == Some(stamp) {
            return Ok(());
        }
        if meta.len() > FILE_BYTES_MAX {
            return Err(failed("it is too large to be a list of tokens".into()));
        }
        let text = fs::read(&self.path).map_err(|why| failed(why.to_string()))?;
        let (records, confined) = parse(&text).map_err(failed)?;
        if confined > 0 {
            log::info!(
                "{}: {confined} tokens for a subtree are left out: a version may have what lies \
                 outside",
                self.path.display()
            );
        }
        let count = records.len();
        let learned = tokens.learn(records, SystemClock.now());
        learned.map_err(|why| failed(why.reason.to_string()))?;
        log::info!("{}: {count} tokens", self.path.display());
        (self.stamp, self.told) = (Some(stamp), false);
        Ok(())
    }

    /// The same if it has changed. What is wrong with the file is told in the log, once.
    pub fn read_again(&mut self, tokens: &Arc<Tokens>) {
        if let Err(why) = self.read(tokens)
            && !std::mem::replace(&mut self.told, true)
        {
            log::error!("{why}; the tokens that were read before count");
        }
    }
}

/// Records as they are exported.
pub fn export(records: &[TokenRecord]) -> Value {
    let one = |record: &TokenRecord| {
        json!({
            "id": record.id.to_string(),
            "name": record.name,
            "record": to_hex(&record.encode()),
        })
    };
    json!({ "tokens": records.iter().map(one).collect::<Vec<Value>>() })
}

/// Reads what [`export`] made: the records that are for the whole volume, and how many are not.
fn parse(text: &[u8]) -> Result<(Vec<TokenRecord>, usize), String> {
    let read: Value = serde_json::from_slice(text)
        .map_err(|why| format!("not what `kestrel token export` prints: {why}"))?;
    let listed = read["tokens"].as_array().ok_or("not what `kestrel token export` prints")?;
    let mut records = Vec::with_capacity(listed.len());
    for (at, one) in listed.iter().enumerate() {
        let bytes = one["record"].as_str().and_then(from_hex);
        let bytes = bytes.ok_or_else(|| format!("token {at}: it has no record"))?;
        let record = TokenRecord::decode(&bytes).map_err(|why| format!("token {at}: {why}"))?;
        records.push(record);
    }
    let all = records.len();
    records.retain(|record| record.subtree.is_none());
    let confined = all - records.len();
    Ok((records, confined))
}

#[cfg(test)]
mod tests {
    use kestrel_types::token::{Subtree, TokenId};

    use super::*;

    fn record(number: u8) -> TokenRecord {
        TokenRecord::new(TokenId([number; 8]), "one", [number; 32], 5)
    }

    /// What was exported is read back, but for tokens that are confined to a subtree.
    #[test]
    fn exported_tokens_are_read() {
        let subtree = Some(Subtree { dir: 7, path: "/a".into() });
        let confined = TokenRecord { subtree, ..record(2) };
        let text = export(&[record(1), confined]).to_string();
        assert_eq!(parse(text.as_bytes()), Ok((vec![record(1)], 1)));
    }

    /// A file that is none is refused, and says what it is to be.
    #[test]
    fn other_files_as_tokens() {
        for text in ["", "[]", "{}", "{\"tokens\":[{}]}", "{\"tokens\":[{\"record\":\"00\"}]}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(parse(b"{\"tokens\":[]}"), Ok((vec![], 0)));
    }
}
