//! What is in the database (`docs/format/postgres.md`).

use kestrel_engine::{EngineError, Epoch};
use kestrel_types::hex::to_hex;
use kestrel_types::ids::Position;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient};

use crate::failure::failed;

/// Version of the tables that this program writes, and the newest it reads.
const VERSION: i32 = 1;
/// The tables; that one first by which a volume is recognized.
const TABLES: [&str; 3] = ["meta", "fence", "row"];
/// Why a schema stays: others have something in it, or it is theirs.
const NOT_OURS: [SqlState; 2] =
    [SqlState::DEPENDENT_OBJECTS_STILL_EXIST, SqlState::INSUFFICIENT_PRIVILEGE];

/// Identity of a volume.
pub type Uuid = [u8; 16];

/// How a session plans statements. The compiler would start where a table without an index is read,
/// for want of another way.
pub const PLANNING: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";

/// Text of the statements, for one PostgreSQL schema. Plans must not hang on what the server has
/// counted: a new volume's tables were empty when the statements were planned, and a shard's share
/// of the rows cannot be estimated. So each row is looked for by itself, by its whole key
/// (`LATERAL` with `OFFSET 0` is not turned into a join), and a plan is made once, without arrays,
/// of index scans ([`PLANNING`]).
pub struct Texts {
    /// `$1` end position, `$2` shard, `$3` epoch, `$4` position before, `$5` and `$6` keys and
    /// values to write, `$7` keys to delete. Returns how many shards it found: one, or none if the
    /// shard is not as expected, and then nothing is done.
    pub write: String,
    /// `$1` shard, `$2` keys.
    pub get: String,
    /// `$1` shard, `$2` from, `$3` to, `$4` rows.
    pub page: String,
    /// `$1` shard: epoch and position.
    pub fence: String,
    /// `$1` shard, `$2` epoch: a write that changes nothing; returns the shard's record.
    pub confirm: String,
}

impl Texts {
    /// For this schema; its name needs no quotes.
    pub fn new(schema: &str) -> Self {
        Self {
            write: format!(
                "WITH held AS (UPDATE {schema}.fence SET position = $1 WHERE shard = $2 AND epoch \
                 = $3 AND position = $4 \
                 RETURNING shard), \
                 put AS (INSERT INTO {schema}.row (shard, key, value) \
                 SELECT held.shard, new.key, new.value FROM held, unnest($5::bytea[], $6::bytea[]) \
                 AS new (key, value) \
                 ON CONFLICT (shard, key) DO UPDATE SET value = excluded.value), \
                 gone AS (DELETE FROM {schema}.row WHERE ctid = ANY (ARRAY(SELECT old.place \
                 FROM held, unnest($7::bytea[]) AS gone (key), LATERAL (SELECT ctid AS place FROM \
                 {schema}.row \
                 WHERE shard = held.shard AND key = gone.key OFFSET 0) AS old))) \
                 SELECT count(*) FROM held"
            ),
            get: format!(
                "SELECT found.key, found.value FROM unnest($2::bytea[]) AS wanted (key), LATERAL \
                 (SELECT key, value \
                 FROM {schema}.row WHERE shard = $1 AND key = wanted.key OFFSET 0) AS found"
            ),
            page: format!(
                "SELECT key, value FROM {schema}.row WHERE shard = $1 AND key >= $2 AND key < $3 \
                 ORDER BY key LIMIT $4"
            ),
            fence: format!("SELECT epoch, position FROM {schema}.fence WHERE shard = $1"),
            confirm: format!(
                "UPDATE {schema}.fence SET position = position WHERE shard = $1 AND epoch = $2 \
                 RETURNING epoch, position"
            ),
        }
    }
}

/// How a shard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRecord {
    /// Of the process that claimed the shard last.
    pub epoch: Epoch,
    /// Of the last batch that is in it.
    pub position: Position,
}

/// What is in a schema beside the tables of a volume, one of it in words: everything that would
/// keep an empty schema from being dropped.
async fn foreign<C: GenericClient>(
    client: &C,
    schema: &str,
) -> Result<Option<String>, EngineError> {
    let rows = client
        .query_opt(
            "SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend AS d \
             LEFT JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND \
             c.relkind = 'r' \
             WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = \
             to_regnamespace($1::text) AND d.deptype <> 'a' \
             AND (c.relname = ANY ($2)) IS NOT TRUE LIMIT 1",
            &[&schema, &&TABLES[..]],
        )
        .await
        .map_err(|why| failed("looking what else is in the schema", &why))?;
    Ok(rows.map(|row| row.get(0)))
}

async fn is_there<C: GenericClient>(
    client: &C,
    schema: &str,
    table: &str,
) -> Result<bool, EngineError> {
    let there = client
        .query_one("SELECT to_regclass($1::text) IS NOT NULL", &[&format!("{schema}.{table}")])
        .await
        .map_err(|why| failed("looking for tables", &why))?;
    Ok(there.get(0))
}

/// Makes the tables if they are not there, in a schema that has nothing else.
///
/// # Errors
/// `Refused` if another volume's are, or anything that is no volume's; the database's.
pub async fn create(client: &mut Client, schema: &str, uuid: &Uuid) -> Result<(), EngineError> {
    let making = |why: tokio_postgres::Error| failed("making tables", &why);
    // Two that make the same schema at once: the second fails with a message about that.
    let transaction = client.transaction().await.map_err(making)?;
    let text = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
    transaction.batch_execute(&text).await.map_err(making)?;
    let mut others = foreign(&transaction, schema).await?;
    let volume = is_there(&transaction, schema, "meta").await?;
    // All three are made in one transaction: without the first, the others are not KestrelFS's.
    for table in &TABLES[1..] {
        if !volume && others.is_none() && is_there(&transaction, schema, table).await? {
            others = Some(format!("table {schema}.{table}"));
        }
    }
    if let Some(others) = others {
        return Err(EngineError::Refused(format!(
            "metadata in PostgreSQL: schema {schema} has something else in it ({others}); give the \
             volume a schema of its own (?schema=NAME)"
        )));
    }
    if !volume {
        let make = format!(
            "CREATE TABLE {schema}.meta (version integer NOT NULL, volume text NOT NULL); \
             CREATE TABLE {schema}.fence (shard integer PRIMARY KEY, epoch bigint NOT NULL, \
             position bigint NOT NULL) \
             WITH (fillfactor = 10); \
             CREATE TABLE {schema}.row (shard integer NOT NULL, key bytea NOT NULL, value bytea \
             NOT NULL, \
             PRIMARY KEY (shard, key)); \
             ALTER TABLE {schema}.row ALTER COLUMN value SET STORAGE EXTERNAL; \
             INSERT INTO {schema}.meta VALUES ({VERSION}, '{uuid}')",
            uuid = to_hex(uuid),
        );
        transaction.batch_execute(&make).await.map_err(making)?;
    }
    check(&transaction, schema, uuid).await?;
    transaction.commit().await.map_err(making)
}

/// Refuses tables of another volume or a newer format.
///
/// # Errors
/// `Refused`; the database's.
pub async fn check<C: GenericClient>(
    client: &C,
    schema: &str,
    uuid: &Uuid,
) -> Result<(), EngineError> {
    if !is_there(client, schema, "meta").await? {
        return Err(EngineError::Refused(format!(
            "metadata in PostgreSQL: schema {schema} has no volume in this database; see that the \
             URL is the one it was formatted with"
        )));
    }
    let row = client
        .query_opt(&format!("SELECT version, volume FROM {schema}.meta"), &[])
        .await
        .map_err(|why| match why.code() {
            Some(code) if *code == SqlState::UNDEFINED_COLUMN => EngineError::Refused(format!(
                "metadata in PostgreSQL: {schema}.meta is not the table of a volume; give the \
                 volume a schema of its own (?schema=NAME)"
            )),
            _ => failed("reading the format", &why),
        })?;
    let Some(row) = row else {
        return Err(EngineError::Corrupt(format!(
            "metadata in PostgreSQL: {schema}.meta is empty; restore the metadata from a dump"
        )));
    };
    let (version, volume): (i32, String) = (row.get(0), row.get(1));
    if version > VERSION {
        return Err(EngineError::Refused(format!(
            "metadata in PostgreSQL: schema {schema} has format {version}, newer than this program \
             knows ({VERSION}); use a newer program"
        )));
    }
    if volume != to_hex(uuid) {
        return Err(EngineError::Refused(format!(
            "metadata in PostgreSQL: schema {schema} belongs to another volume; use another one \
             (?schema=NAME)"
        )));
    }
    Ok(())
}

/// Makes a shard if it is not there.
///
/// # Errors
/// The database's.
pub async fn add_shard(client: &Client, schema: &str, shard: i32) -> Result<(), EngineError> {
    client
        .execute(
            &format!("INSERT INTO {schema}.fence VALUES ($1, 0, 0) ON CONFLICT (shard) DO NOTHING"),
            &[&shard],
        )
        .await
        .map(drop)
        .map_err(|why| failed("making a shard", &why))
}

/// The shards there are.
///
/// # Errors
/// The database's.
pub async fn shards(client: &Client, schema: &str) -> Result<Vec<i32>, EngineError> {
    let rows = client.query(&format!("SELECT shard FROM {schema}.fence"), &[]).await;
    let rows = rows.map_err(|why| failed("listing shards", &why))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Removes the tables, and the schema if it then has nothing in it; what is not ours stays.
///
/// # Errors
/// The database's, also if an object of another program depends on a table: then nothing is
/// removed.
pub async fn remove(client: &mut Client, schema: &str) -> Result<(), EngineError> {
    let removing = |why: tokio_postgres::Error| failed("removing tables", &why);
    let mut transaction = client.transaction().await.map_err(removing)?;
    let tables = TABLES.map(|table| format!("{schema}.{table}")).join(", ");
    transaction.batch_execute(&format!("DROP TABLE {tables} RESTRICT")).await.map_err(removing)?;
    // Every database has that one from the start.
    if schema != "public" {
        let attempt = transaction.savepoint("schema").await.map_err(removing)?;
        match attempt.batch_execute(&format!("DROP SCHEMA {schema} RESTRICT")).await {
            Ok(()) => attempt.commit().await,
            Err(why) if why.code().is_some_and(|code| NOT_OURS.contains(code)) => {
                attempt.rollback().await
            }
            Err(why) => return Err(removing(why)),
        }
        .map_err(removing)?;
    }
    transaction.commit().await.map_err(removing)
}

/// Begins an epoch after `held`, or after whichever there is.
///
/// # Errors
/// `Fenced` if `held` is not the newest; `Refused` if there is no such shard; the database's.
pub async fn claim(
    client: &Client,
    schema: &str,
    shard: i32,
    held: Option<Epoch>,
) -> Result<ShardRecord, EngineError> {
    let text = format!(
        "UPDATE {schema}.fence SET epoch = epoch + 1 WHERE shard = $1 AND epoch = coalesce($2, \
         epoch) RETURNING epoch, position"
    );
    let held_number = held.map(|epoch| epoch.0.cast_signed());
    let row = client
        .query_opt(&text, &[&shard, &held_number])
        .await
        .map_err(|why| failed("claiming the shard", &why))?;
    match (row, held) {
        (Some(row), _) => Ok(fence_of(&row)),
        (None, Some(held)) => {
            let current = fence(client, &Texts::new(schema).fence, shard).await?.epoch;
            Err(EngineError::Fenced { held, current })
        }
        (None, None) => Err(no_shard(shard)),
    }
}

/// A shard's record, by the text or statement that reads it.
///
/// # Errors
/// `Refused` if there is no such shard; the database's.
pub async fn fence(client: &Client, text: &str, shard: i32) -> Result<ShardRecord, EngineError> {
    let row =
        client.query_opt(text, &[&shard]).await.map_err(|why| failed("reading the fence", &why))?;
    row.map(|row| fence_of(&row)).ok_or_else(|| no_shard(shard))
}

/// As [`fence`], by a write: when that is durable, so is all that it found, which lies before it in
/// the database's log.
///
/// # Errors
/// The database's, also if the epoch is another one.
pub async fn confirm(
    client: &Client,
    text: &str,
    shard: i32,
    epoch: Epoch,
) -> Result<ShardRecord, EngineError> {
    let row = client.query_opt(text, &[&shard, &epoch.0.cast_signed()]).await;
    let row = row.map_err(|why| failed("confirming what is written", &why))?;
    row.map(|row| fence_of(&row)).ok_or_else(|| {
        EngineError::Io(
            "metadata in PostgreSQL: the shard was claimed while it was looked at".into(),
        )
    })
}

fn fence_of(row: &tokio_postgres::Row) -> ShardRecord {
    let (epoch, position): (i64, i64) = (row.get(0), row.get(1));
    ShardRecord { epoch: Epoch(epoch.cast_unsigned()), position: position.cast_unsigned() }
}

fn no_shard(shard: i32) -> EngineError {
    EngineError::Refused(format!(
        "metadata in PostgreSQL: there are no rows of node {shard}; see that the URL is the one it \
         was formatted with"
    ))
}
