//! The metadata engine in PostgreSQL: one batch, or several that queued up, is one transaction;
//! rows are cached in bounded memory.
//!
//! A [`PgUrl`] names the database, [`PgEngine::create`] makes the tables of a volume, and
//! [`PgEngine::open`] opens the *shard* of a node: its rows. [`holder`] and [`peek`] look at a
//! shard without opening it.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use kestrel_engine::Engine;
//! use kestrel_postgres::{PgEngine, PgOptions, PgUrl};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = PgUrl::parse("postgres://kestrel@db1,db2/files?schema=photos")?;
//! let (uuid, node) = ([7; 16], 0); // of the volume; 0 is the node of a volume that has one
//! PgEngine::create(&url, uuid, node)?;
//! let engine = PgEngine::open(url, uuid, node, PgOptions::default(), Arc::new(|| Ok(())))?;
//! println!("epoch {}, durable up to {}", engine.epoch(), engine.durable());
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **Commit**: the batch is applied to the rows in memory and queued; it is *not* yet safe from
//!   the death of the process. A caller that must know waits for its position
//!   ([`Engine::on_durable`]), so nodes on this engine run in mode `commit`.
//! - **Durable** is what a transaction has brought to the database and its standbys, as far as
//!   `synchronous_commit` (never off) and `synchronous_standby_names` there say (`sender`).
//! - **Read**: memory first, then the database (`reads`). A row leaves memory only after the
//!   database has it. Once another process is found to have the shard, nothing is read any more.
//! - **Claim**: a shard has an epoch in the database; a transaction of another one does nothing.
//!   The process that has a shard open holds a lock besides, so that no process takes it over by
//!   accident (`advisory_lock`).
//! - **Lost connections** are made again, to whichever host of the URL takes writes. A database
//!   that has forgotten what was acknowledged is refused for good.
//!
//! Threads: a small runtime drives the connections; callers of the engine block.
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | `url`, `tls` | [`PgUrl`]: where the rows are; encrypted connections |
//! | `schema` | the tables, and the statements on them |
//! | `session` | connections that are known to lead to the right rows |
//! | `sender` | committed batches become transactions, in order |
//! | `reads` | reads of what is not in memory |
//! | `shared` | what callers and the sender share |
//! | `advisory_lock` | the process that has a shard open |
//! | `health`, `failure` | how long the database has not answered; what its errors mean |

mod advisory_lock;
mod failure;
mod health;
mod reads;
mod schema;
mod sender;
mod session;
mod shared;
#[cfg(test)]
mod tests;
mod tls;
mod url;

use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use kestrel_engine::{
    BatchKind, BeforeSync, Claimed, Engine, EngineError, EngineStats, Epoch, Fence, Mutation,
    OnDurable, Row, Tap, TapGuard, VisitRow,
};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use reads::Database;
pub use schema::Uuid;
use session::{SessionError, SessionPurpose, connect, establish};
use shared::EngineShared;
pub use url::{PgUrl, SCHEMES};

/// Threads of the runtime. One may run a callback while the other drives connections.
const THREADS: usize = 2;
/// Longest wait for the database when a volume is opened: a person waits for that, or a supervisor
/// that tries again.
const OPEN_WAIT: Duration = Duration::from_secs(15);

/// Longest wait for the answer to which process has a shard.
const HOLDER_WAIT: Duration = Duration::from_secs(5);

/// Settings of an engine in PostgreSQL.
#[derive(Debug, Clone, Copy)]
pub struct PgOptions {
    /// Memory for rows, bytes. Batches in flight come on top, a quarter as much.
    pub memory_bytes: u64,
    /// Ends the session of another process that has the shard open, instead of being refused.
    pub take_over: bool,
}

impl Default for PgOptions {
    fn default() -> Self {
        Self { memory_bytes: 1 << 30, take_over: false }
    }
}

/// The engine, on the rows of one node.
pub struct PgEngine {
    shared: Arc<EngineShared>,
    /// That of the opening.
    epoch: Epoch,
    /// One claim at a time.
    claim: Mutex<()>,
    database: Database,
    runtime: Option<Runtime>,
    /// Is notified when the sender has ended.
    sender: Mutex<mpsc::Receiver<()>>,
}

/// Runs something on the runtime and waits for it, on any thread.
fn wait<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        // The receiver is there: it waits below.
        let _ = sender.send(work.await);
    });
    receiver.recv().unwrap_or_else(|_| Err(EngineError::Io("metadata engine: closed".into())))
}

fn runtime() -> Result<Runtime, EngineError> {
    let built = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("kestrel-pg")
        .enable_io()
        .enable_time()
        .build();
    built.map_err(|why| {
        EngineError::Io(format!("metadata engine: starting its threads failed: {why}"))
    })
}

/// Connects, trying again for a while.
async fn connect_soon(url: &PgUrl) -> Result<tokio_postgres::Client, EngineError> {
    let until = Instant::now() + OPEN_WAIT.min(url.deadline);
    loop {
        match connect(url).await {
            Ok((client, _)) => return Ok(client),
            Err(SessionError::Passing(_)) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(why) => return Err(why.why()),
        }
    }
}

/// The process that has the shard of a node open, in words; none if no process has: it was never
/// opened, or the process that had it has ended or is cut off. Read over a connection of its own.
///
/// # Errors
/// In words, if the database does not answer within 5 s.
pub fn holder(url: &PgUrl, shard: u32) -> Result<Option<String>, String> {
    let shard = shard_of(shard).map_err(|why| why.to_string())?;
    briefly(url, async |url| advisory_lock::holder(url, shard).await)
}

/// A row of a node as it stands in the database, without opening the shard. Read over a connection
/// of its own.
///
/// # Errors
/// In words, if the database does not answer within 5 s.
pub fn peek(url: &PgUrl, shard: u32, key: KeyRef<'_>) -> Result<Option<Box<[u8]>>, String> {
    let shard = shard_of(shard).map_err(|why| why.to_string())?;
    let mut bytes = Vec::new();
    key.encode_into(&mut bytes);
    briefly(url, async |url| {
        let (client, _) = connect(url).await.map_err(SessionError::why)?;
        let text = schema::Texts::new(&url.schema).get;
        let row = client.query_opt(&text, &[&shard, &[bytes].as_slice()]).await;
        let row = row.map_err(|why| failure::failed("reading a row", &why))?;
        Ok(row.map(|row| row.get::<_, Vec<u8>>(1).into()))
    })
}

/// Sends the database a question on this thread.
fn briefly<T>(
    url: &PgUrl,
    question: impl AsyncFnOnce(&PgUrl) -> Result<T, EngineError>,
) -> Result<T, String> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime =
        runtime.map_err(|why| format!("metadata in PostgreSQL: asking it failed: {why}"))?;
    runtime.block_on(async move {
        match tokio::time::timeout(HOLDER_WAIT, question(url)).await {
            Ok(answer) => answer.map_err(|why| why.to_string()),
            Err(_) => Err(format!("metadata in PostgreSQL: {} does not answer", url.shown())),
        }
    })
}

/// The number of a node's shard.
fn shard_of(node: u32) -> Result<i32, EngineError> {
    i32::try_from(node)
        .map_err(|_| EngineError::Refused(format!("node {node} cannot have rows in PostgreSQL")))
}

impl PgEngine {
    /// Makes the tables of a volume, if they are not there, and the shard of a node (0: the volume
    /// is of one node), if it is not.
    ///
    /// # Errors
    /// `Refused` if the schema has anything in it that is not this volume's, or its format is
    /// newer; the database's.
    pub fn create(url: &PgUrl, uuid: Uuid, node: u32) -> Result<(), EngineError> {
        let (runtime, url, shard) = (runtime()?, url.clone(), shard_of(node)?);
        wait(runtime.handle(), async move {
            let mut client = connect_soon(&url).await?;
            schema::create(&mut client, &url.schema, &uuid).await?;
            schema::add_shard(&client, &url.schema, shard).await
        })
    }

    /// Makes the shard of a node that joins a volume, if it is not there.
    ///
    /// # Errors
    /// `Refused` if the volume's tables are not there; the database's.
    pub fn add_node(url: &PgUrl, uuid: Uuid, node: u32) -> Result<(), EngineError> {
        let (runtime, url, shard) = (runtime()?, url.clone(), shard_of(node)?);
        wait(runtime.handle(), async move {
            let client = connect_soon(&url).await?;
            schema::check(&client, &url.schema, &uuid).await?;
            schema::add_shard(&client, &url.schema, shard).await
        })
    }

    /// Removes the tables of a volume, with the rows of all its nodes, and their schema if nothing
    /// else is in it. Nothing happens if the schema is not this volume's.
    ///
    /// # Errors
    /// The database's, `Refused` if a process has a shard open.
    pub fn remove(url: &PgUrl, uuid: Uuid) -> Result<(), EngineError> {
        let (runtime, url) = (runtime()?, url.clone());
        wait(runtime.handle(), async move {
            let mut client = connect_soon(&url).await?;
            match schema::check(&client, &url.schema, &uuid).await {
                Ok(()) => {}
                Err(EngineError::Refused(_)) => return Ok(()),
                Err(why) => return Err(why),
            }
            for shard in schema::shards(&client, &url.schema).await? {
                advisory_lock::take(&client, &url.schema, shard, false).await?;
            }
            schema::remove(&mut client, &url.schema).await
        })
    }

    /// Opens the shard of a node and claims it. `before_sync` runs before each transaction, to make
    /// durable what its rows refer to.
    ///
    /// # Errors
    /// `Refused` for another volume's tables, a newer format, a shard that is not there or that
    /// another process has open; the database's.
    pub fn open(
        url: PgUrl,
        uuid: Uuid,
        node: u32,
        options: PgOptions,
        before_sync: BeforeSync,
    ) -> Result<Self, EngineError> {
        let (runtime, shard) = (runtime()?, shard_of(node)?);
        let until = Instant::now() + OPEN_WAIT;
        let memory = usize::try_from(options.memory_bytes.max(1 << 16)).unwrap_or(usize::MAX);
        let url = url.of_node(node);
        let opening = async move {
            let client = connect_soon(&url).await?;
            schema::check(&client, &url.schema, &uuid).await?;
            advisory_lock::take(&client, &url.schema, shard, options.take_over).await?;
            let fence = schema::claim(&client, &url.schema, shard, None).await?;
            let shared =
                Arc::new(EngineShared::new((url, shard), fence, (memory, memory / 4), before_sync));
            let (session, fence) = establish(&shared, SessionPurpose::Settle, until).await?;
            // The lock goes over to the session that stays; in between another process may take it,
            // and claim.
            drop(client);
            advisory_lock::take(&session.client, &shared.url.schema, shard, false).await?;
            let (done, sender) = mpsc::sync_channel(1);
            tokio::spawn(sender::probe(shared.clone()));
            let sending = sender::run(shared.clone(), session, fence.position);
            tokio::spawn(async move {
                sending.await;
                // Only a caller that closes the engine waits for this: there may be no receiver.
                let _ = done.send(());
            });
            Ok((shared, fence, sender))
        };
        let (shared, fence, sender) = wait(runtime.handle(), opening)?;
        let database = Database::new(shared.clone(), runtime.handle().clone());
        let claim = Mutex::new(());
        Ok(Self {
            shared,
            epoch: fence.epoch,
            claim,
            database,
            runtime: Some(runtime),
            sender: Mutex::new(sender),
        })
    }

    /// Lets go of all rows in memory that the database has, so that they are read from there.
    pub fn forget(&self) {
        self.shared.row_cache.forget();
    }

    /// The database, for people.
    pub fn shown(&self) -> &str {
        self.shared.url.shown()
    }

    fn handle(&self) -> Result<&Handle, EngineError> {
        let runtime = self
            .runtime
            .as_ref()
            .ok_or_else(|| EngineError::Io("metadata engine: closed".into()))?;
        Ok(runtime.handle())
    }
}

impl Drop for PgEngine {
    fn drop(&mut self) {
        self.shared.stop();
        // It ends when what was committed is in the database, or cannot be brought there within the
        // deadline.
        let _ = self.sender.get_mut().recv();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fence for PgEngine {
    fn begin_epoch(&self) -> Result<Epoch, EngineError> {
        let _guard = self.claim.lock();
        let held = self.shared.epoch();
        self.shared.begin_claim();
        // What holders before have committed goes in their epoch.
        let claimed = self.sync().and_then(|()| {
            let (url, shard) = (self.shared.url.clone(), self.shared.shard);
            wait(self.handle()?, async move {
                let client = connect_soon(&url).await?;
                schema::claim(&client, &url.schema, shard, Some(held)).await
            })
        });
        let epoch = claimed.as_ref().ok().map(|fence| fence.epoch);
        self.shared.claimed(epoch);
        claimed.map(|fence| fence.epoch)
    }

    fn commit_in(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        self.shared.commit(epoch, kind, mutations)
    }
}

impl Engine for PgEngine {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Claimed::begin(self)
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn silence(&self) -> Duration {
        self.shared.health.silence()
    }

    fn confirmations(&self) -> u64 {
        self.shared.confirmations()
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.shared.readable()?;
        let below = self.shared.row_cache.get_many(&self.database, keys, visit)?;
        self.shared.counters.count_reads(keys.len() - below, below);
        Ok(())
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.shared.readable()?;
        self.shared.row_cache.scan(&self.database, (table, id), after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.shared.readable()?;
        self.shared.row_cache.scan_table(&self.database, table, from, visit)
    }

    fn hint_new(&self, table: Table, id: u64) {
        self.shared.row_cache.hint_new(table, id);
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.commit_in(self.epoch, kind, mutations)
    }

    fn durable(&self) -> Position {
        self.shared.row_cache.durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        // Everything committed is on its way.
        self.shared.row_cache.on_durable(position, done);
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.row_cache.wait(self.shared.appended())
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        self.shared.tap(tap)
    }

    fn stats(&self) -> EngineStats {
        self.shared.stats()
    }
}
