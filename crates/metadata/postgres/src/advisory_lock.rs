//! The process that has a shard open, by an advisory lock of the session that writes: it ends with
//! the process, or when the server notices that its machine is gone. It keeps people from opening a
//! volume twice by accident; what keeps rows safe is the epoch.

use std::time::Duration;

use kestrel_engine::EngineError;
use tokio_postgres::Client;

use crate::failure::failed;
use crate::session::{SessionError, connect, end_if_idle};
use crate::shared::EngineShared;
use crate::url::PgUrl;

/// Longest wait for a process that has let go of the shard and is still ending.
const WAIT: Duration = Duration::from_secs(5);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The sessions that have the lock of the name `$1` in this database.
const HOLDERS: &str = "FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE l.locktype \
                       = 'advisory' AND l.granted \
                       AND l.database = a.datid AND a.datname = current_database() \
                       AND l.classid::bigint << 32 | l.objid::bigint = hashtextextended($1, 0)";

fn name(schema: &str, shard: i32) -> String {
    format!("kestrelfs {schema} {shard}")
}

async fn attempt(client: &Client, name: &str) -> Result<bool, EngineError> {
    let row =
        client.query_one("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", &[&name]).await;
    row.map(|row| row.get(0)).map_err(|why| failed("looking for the holder of the shard", &why))
}

/// The process that has the lock of this name, in words; none if no process has it.
async fn holder_in(client: &Client, name: &str) -> Result<Option<String>, EngineError> {
    let text = format!(
        "SELECT coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'this host') \
         {HOLDERS} LIMIT 1"
    );
    let row = client.query_opt(&text, &[&name]).await;
    let row = row.map_err(|why| failed("looking for the holder of the shard", &why))?;
    Ok(row.map(|row| format!("{:?} on {}", row.get::<_, String>(0), row.get::<_, String>(1))))
}

/// The process that has a shard open, in words; none if no process has.
///
/// # Errors
/// The database's.
pub async fn holder(url: &PgUrl, shard: i32) -> Result<Option<String>, EngineError> {
    let (client, _) = connect(url).await.map_err(SessionError::why)?;
    holder_in(&client, &name(&url.schema, shard)).await
}

/// Takes the lock; with `take_over` the session that has it is ended.
///
/// # Errors
/// `Refused` if another process has it; the database's.
pub async fn take(
    client: &Client,
    schema: &str,
    shard: i32,
    take_over: bool,
) -> Result<(), EngineError> {
    let name = name(schema, shard);
    let mut waited = Duration::ZERO;
    while !attempt(client, &name).await? {
        if take_over {
            let end = format!("SELECT pg_terminate_backend(a.pid) {HOLDERS}");
            client
                .query(&end, &[&name])
                .await
                .map_err(|why| failed("ending the other session", &why))?;
        }
        if waited >= WAIT {
            let holder = holder_in(client, &name).await.ok().flatten();
            let holder = holder.unwrap_or_else(|| "another process".into());
            return Err(EngineError::Refused(format!(
                "metadata in PostgreSQL: {holder} has node {shard} of schema {schema} open; \
                 unmount or stop it there, or, if it is gone for good, \
                 take the volume over with --take-over"
            )));
        }
        tokio::time::sleep(PAUSE).await;
        waited += PAUSE;
    }
    end_if_idle(client).await;
    Ok(())
}

/// Takes it again after the connection was lost, unless another process has it meanwhile: that
/// process will claim the shard, and be noticed by that. Whether the lock is ours.
pub async fn again(client: &Client, shared: &EngineShared) -> bool {
    let name = name(&shared.url.schema, shared.shard);
    let ours = tokio::time::timeout(WAIT, attempt(client, &name)).await;
    let ours = matches!(ours, Ok(Ok(true)));
    if ours {
        end_if_idle(client).await;
    } else {
        log::warn!("PostgreSQL: the lock of node {} is not ours again yet", shared.shard);
    }
    ours
}
