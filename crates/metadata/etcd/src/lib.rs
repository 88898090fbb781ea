//! The metadata engine in etcd, for what is small: the rows of a coordinator. Any process of the
//! cluster can claim them when the process that had them is gone, so nothing that the coordinator
//! decided depends on one machine.
//!
//! An [`EtcdUrl`] names the etcd, [`EtcdEngine::create`] makes the *shard* of a node, its rows, and
//! [`EtcdEngine::open`] opens it. [`holder`] and [`peek`] look at a shard without opening it.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use kestrel_engine::Engine;
//! use kestrel_etcd::{EtcdEngine, EtcdOptions, EtcdUrl};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = EtcdUrl::parse("etcd://etcd1:2379,etcd2:2379,etcd3:2379/kestrel/photos")?;
//! let (uuid, node) = ([7; 16], 1); // of the volume; of the coordinator
//! EtcdEngine::create(&url, uuid, node)?;
//! let engine = EtcdEngine::open(url, uuid, node, EtcdOptions::default(), Arc::new(|| Ok(())))?;
//! println!("epoch {}, durable up to {}", engine.epoch(), engine.durable());
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **Commit**: the batch is applied to the rows in memory and queued; it is *not* yet safe from
//!   the death of the process. A caller that must know waits for its position
//!   ([`Engine::on_durable`]).
//! - **Durable** is what a transaction has brought to the majority of etcd's members (`sender`).
//! - **Read**: all rows are in memory (`mirror`), read when the shard is opened and bounded
//!   (`shared::SHARD_BYTES_MAX`). Once another process is found to have the shard, nothing is read
//!   any more.
//! - **Claim**: every transaction compares epoch and position (`store`). The process that has a
//!   shard open holds a key with a lease besides: the election (`election`).
//!
//! Threads: a small runtime drives the connections; callers of the engine block.
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | `url` | [`EtcdUrl`]: where the rows are |
//! | `client` | etcd's API v3 by its JSON gateway |
//! | `store` | the keys in etcd, and the transactions on them |
//! | `sender` | committed batches become transactions, in order |
//! | `mirror` | the rows in memory |
//! | `shared` | what callers and the sender share |
//! | `election` | the process that has a shard open |

mod client;
mod election;
mod mirror;
mod sender;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod url;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
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

use client::Client;
use mirror::Mirror;
use shared::EngineShared;
use store::Shard;
pub use store::Uuid;
pub use url::{EtcdUrl, SCHEMES};

/// Threads of the runtime. One may run a callback while the other keeps the lease.
const THREADS: usize = 2;
/// Longest wait for etcd when a shard is opened: a person waits for that, or a supervisor that
/// tries again.
const OPEN_WAIT: Duration = Duration::from_secs(15);
/// The time limit of a caller that only wants the process that has a shard, and tries again soon.
const QUERY_WAIT: Duration = Duration::from_secs(5);

/// Settings of an engine in etcd.
#[derive(Debug, Clone, Copy, Default)]
pub struct EtcdOptions {
    /// Takes the place of another process that has the shard open, instead of being refused.
    pub take_over: bool,
}

/// The engine, on the rows of one node.
pub struct EtcdEngine {
    shared: Arc<EngineShared>,
    /// That of the opening.
    epoch: Epoch,
    /// One claim at a time.
    claim: Mutex<()>,
    runtime: Option<Runtime>,
    /// Are notified when the sender, and then the holder, has ended.
    ended: Mutex<[mpsc::Receiver<()>; 2]>,
}

fn runtime() -> Result<Runtime, EngineError> {
    let built = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("kestrel-etcd")
        .enable_io()
        .enable_time()
        .build();
    built.map_err(|why| {
        EngineError::Io(format!("metadata engine: starting its threads failed: {why}"))
    })
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

/// Runs a task to its end, and notifies the receiver.
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> mpsc::Receiver<()> {
    let (done, ended) = mpsc::sync_channel(1);
    tokio::spawn(async move {
        task.await;
        // Only a caller that closes the engine waits for this: there may be no receiver.
        let _ = done.send(());
    });
    ended
}

/// The process that has the shard of a node open, in words, if there is one.
///
/// # Errors
/// Why etcd does not say, in words.
pub fn holder(url: &EtcdUrl, shard: u32) -> Result<Option<String>, String> {
    let found = briefly(url, shard, async |client, shard, until| {
        store::read(client, &shard.holder(), until).await
    })?;
    Ok(found.map(|holder_name| String::from_utf8_lossy(&holder_name).into_owned()))
}

/// A row of a node as it stands in etcd, without opening the shard.
///
/// # Errors
/// Why etcd does not say, in words.
pub fn peek(url: &EtcdUrl, shard: u32, key: KeyRef<'_>) -> Result<Option<Box<[u8]>>, String> {
    let mut bytes = Vec::new();
    key.encode_into(&mut bytes);
    let found = briefly(url, shard, async |client, shard, until| {
        store::row(client, shard, &bytes, until).await
    })?;
    Ok(found.map(Vec::into_boxed_slice))
}

/// Sends etcd a question on this thread.
fn briefly<T>(
    url: &EtcdUrl,
    shard: u32,
    question: impl AsyncFnOnce(&Client, &Shard, Instant) -> Result<T, EngineError>,
) -> Result<T, String> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|why| format!("metadata in etcd: asking it failed: {why}"))?;
    runtime.block_on(async move {
        let client = Client::new(url.clone()).map_err(|why| why.to_string())?;
        let shard = Shard::new(url, shard);
        let answer = question(&client, &shard, Instant::now() + QUERY_WAIT);
        match tokio::time::timeout(QUERY_WAIT, answer).await {
            Ok(answer) => answer.map_err(|why| why.to_string()),
            Err(_) => Err(format!("metadata in etcd: {} does not answer", url.shown())),
        }
    })
}

impl EtcdEngine {
    /// Makes the keys of a volume, if they are not there, and those of a node's shard, if they are
    /// not.
    ///
    /// # Errors
    /// `Refused` if below the prefix is anything that is not this volume's, or its format is newer;
    /// etcd's.
    pub fn create(url: &EtcdUrl, uuid: Uuid, node: u32) -> Result<(), EngineError> {
        let (runtime, url) = (runtime()?, url.clone());
        wait(runtime.handle(), async move {
            let (shard, client) = (Shard::new(&url, node), Client::new(url)?);
            store::create(&client, &shard, &uuid, Instant::now() + OPEN_WAIT).await
        })
    }

    /// Makes the shard of a node that joins a volume, if it is not there.
    ///
    /// # Errors
    /// `Refused` if the volume's keys are not there; etcd's.
    pub fn add_node(url: &EtcdUrl, uuid: Uuid, node: u32) -> Result<(), EngineError> {
        let (runtime, url) = (runtime()?, url.clone());
        wait(runtime.handle(), async move {
            let (shard, client) = (Shard::new(&url, node), Client::new(url)?);
            store::add_shard(&client, &shard, &uuid, Instant::now() + OPEN_WAIT).await
        })
    }

    /// Removes all keys of a volume. Nothing happens if those below the prefix are not this
    /// volume's.
    ///
    /// # Errors
    /// etcd's, `Refused` if a process has a shard open.
    pub fn remove(url: &EtcdUrl, uuid: Uuid) -> Result<(), EngineError> {
        let (runtime, url) = (runtime()?, url.clone());
        wait(runtime.handle(), async move {
            let (client, until) = (Client::new(url)?, Instant::now() + OPEN_WAIT);
            match store::check(&client, &uuid, until).await {
                Ok(()) => {}
                Err(EngineError::Refused(_)) => return Ok(()),
                Err(why) => return Err(why),
            }
            if let Some(holder) = store::any_holder(&client, until).await? {
                return Err(EngineError::Refused(format!(
                    "metadata in etcd: {holder} has the volume open"
                )));
            }
            store::remove(&client, until).await
        })
    }

    /// Opens the shard of a node and claims it. `before_sync` runs before each transaction, to make
    /// durable what its rows refer to.
    ///
    /// # Errors
    /// `Refused` for another volume's keys, a newer format, a shard that is not there or that
    /// another process has open; etcd's.
    pub fn open(
        url: EtcdUrl,
        uuid: Uuid,
        node: u32,
        options: EtcdOptions,
        before_sync: BeforeSync,
    ) -> Result<Self, EngineError> {
        let runtime = runtime()?;
        let opening = async move {
            let until = Instant::now() + OPEN_WAIT.min(url.deadline);
            let (shard, client) = (Shard::new(&url, node), Client::new(url)?);
            store::check(&client, &uuid, until).await?;
            // Before anything is held: a shard that is not there has no holder.
            store::fence(&client, &shard, until).await?;
            let lease = election::take(&client, &shard, options.take_over, until).await?;
            let fence = store::claim(&client, &shard, lease, until).await?;
            // No other process writes any more.
            let (rows, left) = store::load(&client, &shard, fence, until).await?;
            let mirror = Mirror::new(rows);
            mirror.apply(&left);
            let shared = Arc::new(EngineShared::new(client, shard, fence, mirror, before_sync));
            let sender = spawn(sender::run(shared.clone(), fence, left));
            let holder = spawn(election::stay(shared.clone(), lease));
            Ok((shared, fence.epoch, [sender, holder]))
        };
        let (shared, epoch, ended) = wait(runtime.handle(), opening)?;
        Ok(Self {
            shared,
            epoch,
            claim: Mutex::new(()),
            runtime: Some(runtime),
            ended: Mutex::new(ended),
        })
    }

    /// Lets go of all rows in memory that etcd has, so that they are read from their copy.
    #[cfg(test)]
    fn forget(&self) {
        self.shared.row_cache.forget();
    }
}

impl Drop for EtcdEngine {
    fn drop(&mut self) {
        self.shared.stop();
        // They end when what was committed is in etcd, or cannot be brought there within the
        // deadline, and the shard is let go.
        for ended in self.ended.get_mut() {
            let _ = ended.recv();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fence for EtcdEngine {
    fn begin_epoch(&self) -> Result<Epoch, EngineError> {
        let _guard = self.claim.lock();
        let (sender, receiver) = mpsc::sync_channel(1);
        self.shared.begin_claim(sender)?;
        receiver.recv().unwrap_or_else(|_| Err(EngineError::Io("metadata engine: closed".into())))
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

impl Engine for EtcdEngine {
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
        self.shared.client.silence()
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.shared.readable()?;
        self.shared.row_cache.get_many(&self.shared.mirror, keys, visit)?;
        self.shared.counters.reads.fetch_add(keys.len() as u64, Ordering::Relaxed);
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
        self.shared.row_cache.scan(&self.shared.mirror, (table, id), after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.shared.readable()?;
        self.shared.row_cache.scan_table(&self.shared.mirror, table, from, visit)
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
