//! What is in etcd (`docs/format/etcd.md`).
//!
//! The *fence* of a shard is one key: epoch, position, and the lease of the process that claimed
//! it. Each change of a shard compares the whole of it first and writes it anew in the same
//! transaction, so a transaction happens once, in order, and not after another process has claimed
//! the shard. A process that tries again after a lost answer finds the fence as it wanted it, which
//! no other process can have written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kestrel_engine::{EngineError, Epoch};
use kestrel_types::hex::to_hex;
use kestrel_types::ids::Position;
use serde_json::{Value, json};

use crate::client::{Client, PAUSE, RequestError, decoded, encoded, io, number};
use crate::url::EtcdUrl;

/// Version of what this program writes, and the newest it reads.
const VERSION: u64 = 1;
/// Most rows that a transaction writes, below the 128 operations that etcd allows.
pub const ROWS_MAX: usize = 120;
/// Most bytes of rows that a transaction writes, below the 1.5 MiB that etcd allows; and most bytes
/// of one value.
pub const BYTES_MAX: usize = 1 << 20;
/// Bytes of a part of a large batch.
pub const PART_BYTES: usize = 512 << 10;
/// Most parts: no batch has more bytes than a shard may.
const PARTS_MAX: u32 = 64;
/// Rows read at a time.
const PAGE: usize = 1024;

/// Identity of a volume.
pub type Uuid = [u8; 16];

/// Rows by encoded key; `None` goes.
pub type RowChanges = BTreeMap<Vec<u8>, Option<Box<[u8]>>>;

/// The keys of a shard.
#[derive(Clone)]
pub struct Shard {
    /// With a slash at its end.
    base: String,
    /// The node's number.
    pub number: u32,
}

/// How a shard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRecord {
    /// Of the process that claimed the shard last.
    pub epoch: Epoch,
    /// Of the last batch that is in it.
    pub position: Position,
    /// Parts of that batch which are not rows yet; zero if all are.
    pub parts: u32,
    /// The lease of the process that claimed it, which distinguishes two processes that claim the
    /// same epoch.
    pub claimant: u64,
}

impl ShardRecord {
    fn text(&self) -> String {
        format!("{} {} {} {:x}", self.epoch, self.position, self.parts, self.claimant)
    }

    fn parse(bytes: &[u8]) -> Result<Self, EngineError> {
        let damaged = || {
            EngineError::Corrupt(
                "metadata in etcd: a fence is damaged; restore the metadata from a dump".into(),
            )
        };
        let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
        let mut fields = text.split(' ');
        let mut next = |radix| {
            let field = fields.next().ok_or_else(damaged)?;
            u64::from_str_radix(field, radix).map_err(|_| damaged())
        };
        let (epoch, position, parts, claimant) =
            (Epoch(next(10)?), next(10)?, next(10)?, next(16)?);
        let parts =
            u32::try_from(parts).ok().filter(|parts| *parts <= PARTS_MAX).ok_or_else(damaged)?;
        let fence = Self { epoch, position, parts, claimant };
        // Compared as a whole, so there is one way to write it.
        if fence.text() == text { Ok(fence) } else { Err(damaged()) }
    }
}

/// What a transaction does.
pub enum TxnOp<'a> {
    Put(String, &'a [u8]),
    PutRow(&'a [u8], &'a [u8]),
    DeleteRow(&'a [u8]),
    /// All parts of a batch.
    DeleteParts,
}

impl Shard {
    /// Of a node; 0 if the volume has one.
    pub fn new(url: &EtcdUrl, number: u32) -> Self {
        Self { base: format!("{}/{number}/", url.prefix), number }
    }

    fn fence(&self) -> String {
        format!("{}fence", self.base)
    }

    /// The key with the process that has it open.
    pub fn holder(&self) -> String {
        format!("{}holder", self.base)
    }

    /// The key of a part of a large batch.
    pub fn part(&self, number: usize) -> String {
        format!("{}part/{number:04}", self.base)
    }

    fn row(&self, key: &[u8]) -> Vec<u8> {
        let mut whole = format!("{}row/", self.base).into_bytes();
        whole.extend_from_slice(key);
        whole
    }

    fn json(&self, op: &TxnOp<'_>) -> Value {
        match op {
            TxnOp::Put(key, value) => put(key.as_bytes(), value, 0),
            TxnOp::PutRow(key, value) => put(&self.row(key), value, 0),
            TxnOp::DeleteRow(key) => {
                json!({ "request_delete_range": { "key": encoded(&self.row(key)) } })
            }
            TxnOp::DeleteParts => {
                let (from, to) = range_below(&format!("{}part/", self.base));
                json!({ "request_delete_range": { "key": encoded(&from),
                    "range_end": encoded(&to) } })
            }
        }
    }
}

/// The range of all keys below one, which ends with a slash.
fn range_below(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let from = prefix.as_bytes().to_vec();
    let mut to = from.clone();
    if let Some(last) = to.last_mut() {
        *last += 1;
    }
    (from, to)
}

/// A write, with a lease unless that is zero.
pub fn put(key: &[u8], value: &[u8], lease: u64) -> Value {
    json!({ "request_put": { "key": encoded(key), "value": encoded(value),
        "lease": lease.to_string() } })
}

/// A read of one key.
pub fn get(key: &str) -> Value {
    json!({ "request_range": { "key": encoded(key.as_bytes()) } })
}

fn is_absent(key: &str) -> Value {
    json!({ "key": encoded(key.as_bytes()), "target": "CREATE", "result": "EQUAL",
        "create_revision": "0" })
}

/// A transaction: whether it compared equal, and the key that it read if it did not.
///
/// # Errors
/// etcd's.
pub fn outcome(answer: &Value) -> Result<(bool, Option<Vec<u8>>), EngineError> {
    let succeeded = answer.get("succeeded").and_then(Value::as_bool).unwrap_or(false);
    let found = answer
        .get("responses")
        .and_then(|responses| responses.get(0)?.get("response_range")?.get("kvs")?.get(0));
    Ok((succeeded, found.map(|found| decoded(found, "value")).transpose()?))
}

/// Writes a key unless it is there; what is there then.
pub async fn put_new(
    client: &Client,
    key: &str,
    value: &[u8],
    lease: u64,
    until: Instant,
) -> Result<Option<Vec<u8>>, EngineError> {
    let body = json!({
        "compare": [is_absent(key)],
        "success": [put(key.as_bytes(), value, lease)],
        "failure": [get(key)],
    });
    let answer = client.request("kv/txn", &body, until).await.map_err(RequestError::why)?;
    let (succeeded, found) = outcome(&answer)?;
    Ok(if succeeded { None } else { Some(found.unwrap_or_default()) })
}

/// The value of a key.
pub async fn read(
    client: &Client,
    key: &str,
    until: Instant,
) -> Result<Option<Vec<u8>>, EngineError> {
    read_key(client, key.as_bytes(), until).await
}

async fn read_key(
    client: &Client,
    key: &[u8],
    until: Instant,
) -> Result<Option<Vec<u8>>, EngineError> {
    let answer = client
        .request("kv/range", &json!({ "key": encoded(key) }), until)
        .await
        .map_err(RequestError::why)?;
    let found = answer.get("kvs").and_then(|kvs| kvs.get(0));
    found.map(|found| decoded(found, "value")).transpose()
}

/// All below a key, which ends with a slash: what follows it, and the value.
async fn read_all(
    client: &Client,
    prefix: &str,
    until: Instant,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>, EngineError> {
    let (mut from, to) = range_below(prefix);
    let mut found = Vec::new();
    loop {
        let body =
            json!({ "key": encoded(&from), "range_end": encoded(&to), "limit": PAGE.to_string() });
        let answer =
            client.request_large("kv/range", &body, until).await.map_err(RequestError::why)?;
        let page =
            answer.get("kvs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for pair in page {
            let key = decoded(pair, "key")?;
            let rest = key
                .get(prefix.len()..)
                .ok_or_else(|| io("a key lies outside of its range"))?
                .to_vec();
            found.push((rest, decoded(pair, "value")?));
            from = key;
        }
        from.push(0);
        if page.len() < PAGE {
            return Ok(found);
        }
    }
}

fn meta_key(url: &EtcdUrl) -> String {
    format!("{}/meta", url.prefix)
}

/// Refuses what another volume, or a newer format, has written there.
///
/// # Errors
/// `Refused`; etcd's.
pub async fn check(client: &Client, uuid: &Uuid, until: Instant) -> Result<(), EngineError> {
    let refused = |why: String| {
        Err(EngineError::Refused(format!("metadata in etcd: {}: {why}", client.url.shown())))
    };
    let Some(meta) = read(client, &meta_key(&client.url), until).await? else {
        return refused(
            "there is no volume below this prefix; see that the URL is the one it was made with"
                .into(),
        );
    };
    let meta: Value = serde_json::from_slice(&meta).unwrap_or_default();
    match meta.get("format").and_then(Value::as_u64) {
        Some(format) if format > VERSION => refused(format!(
            "it has format {format}, newer than this program knows ({VERSION}); use a newer program"
        )),
        Some(_) if meta.get("volume").and_then(Value::as_str) != Some(&to_hex(uuid)) => {
            refused("the prefix belongs to another volume; use another one".into())
        }
        Some(_) => Ok(()),
        None => {
            refused("below the prefix is something that is no volume's; use another one".into())
        }
    }
}

/// Makes the keys of a volume and of a shard, as far as they are not there, below a prefix below
/// which there are no other keys.
///
/// # Errors
/// `Refused` if there are; etcd's.
pub async fn create(
    client: &Client,
    shard: &Shard,
    uuid: &Uuid,
    until: Instant,
) -> Result<(), EngineError> {
    let url = &client.url;
    if read(client, &meta_key(url), until).await?.is_none() {
        let (from, to) = range_below(&format!("{}/", url.prefix));
        let body = json!({ "key": encoded(&from), "range_end": encoded(&to), "limit": "1",
                "keys_only": true });
        let answer = client.request("kv/range", &body, until).await.map_err(RequestError::why)?;
        if let Some(first) = answer.get("kvs").and_then(|kvs| kvs.get(0)) {
            let name = decoded(first, "key")?;
            return Err(EngineError::Refused(format!(
                "metadata in etcd: {}: below the prefix is something else ({}); give the volume a \
                 prefix of its own",
                url.shown(),
                String::from_utf8_lossy(&name)
            )));
        }
        let meta = json!({ "format": VERSION, "volume": to_hex(uuid) }).to_string();
        put_new(client, &meta_key(url), meta.as_bytes(), 0, until).await?;
    }
    add_shard(client, shard, uuid, until).await
}

/// Makes the keys of a shard of a volume that is there, if they are not.
///
/// # Errors
/// `Refused` if the volume is not there; etcd's.
pub async fn add_shard(
    client: &Client,
    shard: &Shard,
    uuid: &Uuid,
    until: Instant,
) -> Result<(), EngineError> {
    check(client, uuid, until).await?;
    let fence = ShardRecord { epoch: Epoch(0), position: 0, parts: 0, claimant: 0 };
    put_new(client, &shard.fence(), fence.text().as_bytes(), 0, until).await.map(drop)
}

/// Removes everything below the prefix.
///
/// # Errors
/// etcd's.
pub async fn remove(client: &Client, until: Instant) -> Result<(), EngineError> {
    let (from, to) = range_below(&format!("{}/", client.url.prefix));
    let body = json!({ "key": encoded(&from), "range_end": encoded(&to) });
    client.request("kv/deleterange", &body, until).await.map(drop).map_err(RequestError::why)
}

/// The process that has a shard of the volume open, in words, if there is one.
///
/// # Errors
/// etcd's.
pub async fn any_holder(client: &Client, until: Instant) -> Result<Option<String>, EngineError> {
    let prefix = format!("{}/", client.url.prefix);
    let all = read_all(client, &prefix, until).await?;
    let holder = all.into_iter().find(|(key, _)| {
        key.ends_with(b"/holder") && key.iter().filter(|byte| **byte == b'/').count() == 1
    });
    Ok(holder.map(|(_, who)| String::from_utf8_lossy(&who).into_owned()))
}

/// A row by its encoded key, as the transactions have left it: of a large batch that is not spread
/// yet, what was there before.
///
/// # Errors
/// etcd's.
pub async fn row(
    client: &Client,
    shard: &Shard,
    key: &[u8],
    until: Instant,
) -> Result<Option<Vec<u8>>, EngineError> {
    read_key(client, &shard.row(key), until).await
}

/// How a shard stands.
///
/// # Errors
/// `Refused` if there is no such shard; etcd's.
pub async fn fence(
    client: &Client,
    shard: &Shard,
    until: Instant,
) -> Result<ShardRecord, EngineError> {
    match read(client, &shard.fence(), until).await? {
        Some(text) => ShardRecord::parse(&text),
        None => Err(no_shard(client, shard)),
    }
}

fn no_shard(client: &Client, shard: &Shard) -> EngineError {
    EngineError::Refused(format!(
        "metadata in etcd: {}: there are no rows of node {}; see that the URL is the one it was \
         made with",
        client.url.shown(),
        shard.number
    ))
}

/// One attempt to bring a shard from one fence to another, with what `ops` do. What the fence is
/// afterwards: `to`, also if an earlier attempt did it and its answer was lost, or what was found
/// instead.
///
/// # Errors
/// etcd's; the transaction may have been carried out.
pub async fn swap(
    client: &Client,
    shard: &Shard,
    (from, to): (ShardRecord, ShardRecord),
    ops: &[TxnOp<'_>],
) -> Result<ShardRecord, RequestError> {
    let key = shard.fence();
    let mut success: Vec<Value> = Vec::with_capacity(ops.len() + 1);
    success.push(put(key.as_bytes(), to.text().as_bytes(), 0));
    success.extend(ops.iter().map(|op| shard.json(op)));
    let body = json!({
        "compare": [{ "key": encoded(key.as_bytes()), "target": "VALUE", "result": "EQUAL",
            "value": encoded(from.text().as_bytes()) }],
        "success": success,
        "failure": [get(&key)],
    });
    let answer = client.attempt("kv/txn", &body).await?;
    match outcome(&answer).map_err(RequestError::Final)? {
        (true, _) => Ok(to),
        (false, Some(found)) => ShardRecord::parse(&found).map_err(RequestError::Final),
        (false, None) => Err(RequestError::Final(no_shard(client, shard))),
    }
}

/// Begins the next epoch, whichever process has the one before.
///
/// # Errors
/// `Refused` if there is no such shard; etcd's.
pub async fn claim(
    client: &Client,
    shard: &Shard,
    claimant: u64,
    until: Instant,
) -> Result<ShardRecord, EngineError> {
    let mut from = fence(client, shard, until).await?;
    let mut to = ShardRecord { epoch: Epoch(from.epoch.0 + 1), claimant, ..from };
    loop {
        match swap(client, shard, (from, to), &[]).await {
            Ok(found) if found == to => return Ok(to),
            Ok(found) => {
                from = found;
                to = ShardRecord { epoch: Epoch(from.epoch.0 + 1), claimant, ..from };
            }
            Err(RequestError::Passing(why)) if Instant::now() < until => {
                log::debug!("{why}; trying again");
                tokio::time::sleep(PAUSE).await;
            }
            Err(why) => return Err(why.why()),
        }
    }
}

/// The rows of a shard, and the last batch's that are not among them yet.
///
/// # Errors
/// `Corrupt`; etcd's.
pub async fn load(
    client: &Client,
    shard: &Shard,
    fence: ShardRecord,
    until: Instant,
) -> Result<(BTreeMap<Vec<u8>, Box<[u8]>>, RowChanges), EngineError> {
    let rows = read_all(client, &format!("{}row/", shard.base), until).await?;
    let rows = rows.into_iter().map(|(key, value)| (key, value.into_boxed_slice())).collect();
    if fence.parts == 0 {
        return Ok((rows, RowChanges::new()));
    }
    let mut whole = Vec::new();
    for part in 0..fence.parts as usize {
        whole.extend(read(client, &shard.part(part), until).await?.unwrap_or_default());
    }
    let batch = unpacked(&whole).ok_or_else(|| {
        EngineError::Corrupt(
            "metadata in etcd: a part of a batch is missing or damaged; restore the metadata from \
             a dump"
                .into(),
        )
    })?;
    Ok((rows, batch))
}

/// A batch that is too large for one transaction, as bytes: the number of rows, each row's key and
/// value with their lengths, and a checksum.
pub fn packed(rows: &RowChanges) -> Vec<u8> {
    // All are below the limits of a batch.
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX - 1).to_be_bytes();
    let mut out = length(rows.len()).to_vec();
    for (key, value) in rows {
        out.extend(length(key.len()));
        out.extend(key);
        match value {
            Some(value) => {
                out.extend(length(value.len()));
                out.extend(&**value);
            }
            None => out.extend(u32::MAX.to_be_bytes()),
        }
    }
    out.extend(crc32c::crc32c(&out).to_be_bytes());
    out
}

fn unpacked(bytes: &[u8]) -> Option<RowChanges> {
    let (mut rest, checksum) = bytes.split_last_chunk::<4>()?;
    if u32::from_be_bytes(*checksum) != crc32c::crc32c(rest) {
        return None;
    }
    let mut next = |length: u32| {
        let (head, tail) = rest.split_at_checked(length as usize)?;
        rest = tail;
        Some(head)
    };
    let length = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
    let mut rows = RowChanges::new();
    for _ in 0..length(next(4)?)? {
        let key_length = length(next(4)?)?;
        let key = next(key_length)?.to_vec();
        let value = match length(next(4)?)? {
            u32::MAX => None,
            value_length => Some(next(value_length)?.into()),
        };
        rows.insert(key, value);
    }
    rest.is_empty().then_some(rows)
}

/// Takes a lease: its number.
///
/// # Errors
/// etcd's.
pub async fn grant(client: &Client, ttl: Duration, until: Instant) -> Result<u64, EngineError> {
    let body = json!({ "TTL": ttl.as_secs().to_string() });
    let answer = client.request("lease/grant", &body, until).await.map_err(RequestError::why)?;
    match number(&answer, "ID") {
        0 => Err(io("it grants a lease without a number")),
        number => Ok(number),
    }
}

/// Keeps a lease; whether it was still there.
///
/// # Errors
/// etcd's.
pub async fn keep(client: &Client, lease: u64) -> Result<bool, RequestError> {
    let answer = client.attempt("lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
    Ok(answer.get("result").is_some_and(|result| number(result, "TTL") > 0))
}

/// Gives a lease back, with the keys that hang on it.
pub async fn revoke(client: &Client, lease: u64) {
    // What is not given back expires.
    let _ = client.attempt("lease/revoke", &json!({ "ID": lease.to_string() })).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_unpacked_as_packed_and_damage_is_seen() {
        let rows = RowChanges::from([
            (b"a".to_vec(), Some(b"value".as_slice().into())),
            (b"".to_vec(), Some(b"".as_slice().into())),
            (b"gone".to_vec(), None),
        ]);
        let bytes = packed(&rows);
        assert_eq!(unpacked(&bytes), Some(rows));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(unpacked(&damaged), None);
            assert_eq!(unpacked(&bytes[..at]), None);
        }
        assert_eq!(unpacked(&packed(&RowChanges::new())), Some(RowChanges::new()));
    }

    #[test]
    fn fences_have_one_way_to_be_written() {
        let fence = ShardRecord { epoch: Epoch(3), position: 17, parts: 2, claimant: 0xab };
        assert_eq!(fence.text(), "3 17 2 ab");
        assert_eq!(ShardRecord::parse(b"3 17 2 ab"), Ok(fence));
        for bad in [
            "",
            "3 17 2",
            "3 17 2 ab ",
            "03 17 2 ab",
            "3 17 65 ab",
            "3 17 2 AB",
            "x 17 2 ab",
            "3 17 2 ab c",
        ] {
            assert!(
                matches!(ShardRecord::parse(bad.as_bytes()), Err(EngineError::Corrupt(_))),
                "{bad}"
            );
        }
    }
}
