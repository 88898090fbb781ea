//! The process that has a shard open, the *holder*: it has a key that hangs on a lease, which it
//! keeps. The key goes when the holder ends or does not renew its lease in time, and the process
//! that then makes it first is elected. It keeps two from serving a shard in turns; what keeps rows
//! safe is the epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::EngineError;
use serde_json::json;

use crate::client::{Client, PAUSE, RequestError, encoded};
use crate::shared::EngineShared;
use crate::store::{Shard, grant, keep, put_new, revoke};

/// How long a holder that renews nothing stays one.
pub const TTL: Duration = Duration::from_secs(5);
/// How often it renews its lease.
const KEEP_EVERY: Duration = Duration::from_millis(1500);
/// Longest wait for one that is gone and still counts.
const WAIT: Duration = Duration::from_secs(7);

/// The value of the key: which process, and by which lease, so that a process that tries again
/// after a lost answer recognizes its own key.
fn words(shard: &Shard, lease: u64) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let process = std::process::id();
    format!("kestrel node {}, process {process} on {}, lease {lease:x}", shard.number, host.trim())
}

/// Makes the key if there is none; answers which process has made it.
async fn attempt(
    client: &Client,
    shard: &Shard,
    lease: u64,
    until: Instant,
) -> Result<Option<String>, EngineError> {
    let words = words(shard, lease);
    let found = put_new(client, &shard.holder(), words.as_bytes(), lease, until).await?;
    Ok(found
        .map(|found| String::from_utf8_lossy(&found).into_owned())
        .filter(|found| *found != words))
}

/// Becomes the holder; with `take_over` even if another process is. The lease by which it is.
///
/// # Errors
/// `Refused` if another process is; etcd's.
pub async fn take(
    client: &Client,
    shard: &Shard,
    take_over: bool,
    until: Instant,
) -> Result<u64, EngineError> {
    let lease = grant(client, TTL, until).await?;
    if take_over {
        let words = words(shard, lease);
        let body = json!({
            "key": encoded(shard.holder().as_bytes()), "value": encoded(words.as_bytes()),
            "lease": lease.to_string()
        });
        return client
            .request("kv/put", &body, until)
            .await
            .map(|_| lease)
            .map_err(RequestError::why);
    }
    let begun = Instant::now();
    while let Some(holder) = attempt(client, shard, lease, until).await? {
        if begun.elapsed() > WAIT {
            revoke(client, lease).await;
            return Err(EngineError::Refused(format!(
                "metadata in etcd: {holder} has node {} of {} open; unmount or stop it there, or, \
                 if it is gone for good, take it over with \
                 --take-over",
                shard.number,
                client.url.shown()
            )));
        }
        // A candidate that finds it gone by then tries again next time.
        let _ = keep(client, lease).await;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(lease)
}

/// Keeps being the holder until the engine ends; then lets go.
pub async fn stay(shared: Arc<EngineShared>, mut lease: u64) {
    let (client, shard) = (&*shared.client, &shared.shard);
    let mut pause = KEEP_EVERY;
    while tokio::time::timeout(pause, shared.over.notified()).await.is_err() {
        pause = KEEP_EVERY;
        match keep(client, lease).await {
            Ok(true) => continue,
            // Another member is tried at once: an attempt may have taken as long as it can.
            Err(RequestError::Passing(_)) => {
                pause = PAUSE;
                continue;
            }
            Ok(false) | Err(_) => {}
        }
        // This process has not renewed its lease for too long. A process that has become the holder
        // meanwhile claims the shard, and is noticed by that.
        let until = Instant::now();
        let Ok(new) = grant(client, TTL, until).await else { continue };
        match attempt(client, shard, new, until).await {
            Ok(None) => lease = new,
            Ok(Some(holder)) => {
                log::warn!("etcd: node {} is held by {holder}", shard.number);
                revoke(client, new).await;
            }
            Err(why) => log::debug!("{why}"),
        }
    }
    revoke(client, lease).await;
}
