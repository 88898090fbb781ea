//! What a metadata node gets out of PostgreSQL, beside what the same server does with bare batched
//! upserts in the same run, and stats of what is in memory beside the embedded engine; then how
//! long it takes another process to take the rows over, the engine and a node on it. `pg_bench DIR
//! URL [CREATES]`; DIR is for the embedded engine; URL's schema must not exist. Prints one JSON
//! object (bench/pg.py).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_engine::Engine;
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_postgres::{PgEngine, PgOptions, PgUrl};
use kestrel_types::clock::SystemClock;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef as Path;
use kestrel_types::request::{Creds, Op, Request};
use tokio_postgres::NoTls;

type Failure = Box<dyn std::error::Error>;

const UUID: [u8; 16] = [7; 16];
/// Directories, so that no one is hot.
const DIRS: usize = 64;
/// Requests under way.
const IN_FLIGHT: usize = 2048;
/// Requests submitted together.
const BATCH: usize = 256;
/// Rows of a bare upsert: about what the engine's transactions have.
const UPSERT_ROWS: usize = 1024;
/// Bytes of a row's value: a file's record.
const VALUE_BYTES: usize = 64;
/// Turns in which lookups are measured: the machine does other things too.
const TURNS: usize = 20;
/// Lookups measured.
const LOOKUPS: usize = 2_000_000;

fn path(number: usize) -> Result<Path, Failure> {
    let name = format!("d{:02}/file{number:08}", number % DIRS);
    Ok(Path::from_path(ROOT, name.as_bytes()).map_err(|why| format!("{name}: {why}"))?)
}

/// Sends `count` requests, so many at a time; how long until all were answered.
fn drive(
    node: &Node,
    count: usize,
    op: &dyn Fn(usize) -> Result<Op, Failure>,
) -> Result<Duration, Failure> {
    let (answered, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let wait = |most: usize, sent: usize| {
        while sent - answered.load(Ordering::Acquire) > most {
            std::thread::sleep(Duration::from_micros(50));
        }
    };
    let begun = Instant::now();
    for first in (0..count).step_by(BATCH) {
        let mut requests = Vec::with_capacity(BATCH);
        for number in first..(first + BATCH).min(count) {
            let (answered, failed) = (answered.clone(), failed.clone());
            let done: kestrel_types::request::Done = Box::new(move |reply| {
                failed.fetch_add(usize::from(reply.is_err()), Ordering::Relaxed);
                answered.fetch_add(1, Ordering::Release);
            });
            requests.push((Request { creds: Creds::root(), op: op(number)? }, done));
        }
        let sent = first + requests.len();
        node.submit_many(requests);
        wait(IN_FLIGHT, sent);
    }
    wait(0, count);
    let took = begun.elapsed();
    match failed.load(Ordering::Relaxed) {
        0 => Ok(took),
        failed => Err(format!("{failed} of {count} requests failed").into()),
    }
}

/// A node on this engine, and the creates a second that it made.
fn made(engine: Arc<dyn Engine>, creates: usize) -> Result<(Arc<Node>, f64), Failure> {
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, 0)?;
    let config = NodeConfig { workers: 2, durability: Durability::Commit, ..NodeConfig::default() };
    let node = Node::open(engine, Arc::new(SystemClock), config)?;
    drive(&node, DIRS, &|number| {
        let name = format!("d{number:02}");
        Ok(Op::MkDir(Path::from_path(ROOT, name.as_bytes()).map_err(|why| why.to_string())?, 0o755))
    })?;
    let make =
        |number| Ok(Op::MkNod { place: path(number)?, kind: Kind::File, mode: 0o644, rdev: 0 });
    let took = drive(&node, creates, &make)?;
    Ok((node, creates as f64 / took.as_secs_f64()))
}

/// Processor time of this process.
fn processor_time() -> Duration {
    // SAFETY: all zeroes is a valid value, and the call writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Stats a second of what is in memory, and processor time of each in microseconds, of these nodes
/// in turns.
fn lookups(nodes: [&Node; 2], creates: usize) -> Result<[(f64, f64); 2], Failure> {
    // Fewer than fit in memory.
    let few = creates.min(20_000);
    let mut sums = [(Duration::ZERO, Duration::ZERO); 2];
    let count = LOOKUPS / TURNS;
    for _ in 0..TURNS {
        for (node, (took, busy)) in nodes.iter().zip(&mut sums) {
            let before = processor_time();
            *took += drive(node, count, &|number| {
                Ok(Op::Lookup(path(number.wrapping_mul(7919) % few)?))
            })?;
            *busy += processor_time().saturating_sub(before);
        }
    }
    let done = (count * TURNS) as f64;
    Ok(sums.map(|(took, busy)| (done / took.as_secs_f64(), busy.as_secs_f64() * 1e6 / done)))
}

/// Rows a second of bare upserts, two statements under way on one connection.
fn bare(url: &str, rows: usize) -> Result<f64, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(
                "CREATE TEMPORARY TABLE t (x int); DROP TABLE IF EXISTS bare; \
                 CREATE TABLE bare (shard int NOT NULL, key bytea NOT NULL, value bytea NOT NULL, \
                 PRIMARY KEY (shard, key))",
            )
            .await?;
        let statement = client
            .prepare(
                "INSERT INTO bare SELECT 0, k, v FROM unnest($1::bytea[], $2::bytea[]) AS new (k, \
                 v) \
                 ON CONFLICT (shard, key) DO UPDATE SET value = excluded.value",
            )
            .await?;
        let upsert = |first: usize| {
            let keys: Vec<Vec<u8>> = (first..first + UPSERT_ROWS)
                .map(|number| {
                    [
                        &[1, 0, 0, 0, 0, 0, 0, 0, (number % DIRS) as u8][..],
                        format!("file{number:08}").as_bytes(),
                    ]
                    .concat()
                })
                .collect();
            let values = vec![vec![9u8; VALUE_BYTES]; UPSERT_ROWS];
            let (client, statement) = (&client, &statement);
            async move { client.execute(statement, &[&keys, &values]).await }
        };
        let begun = Instant::now();
        for first in (0..rows).step_by(2 * UPSERT_ROWS) {
            let (one, two) =
                futures_util::future::join(upsert(first), upsert(first + UPSERT_ROWS)).await;
            one?;
            two?;
        }
        let done = rows.next_multiple_of(2 * UPSERT_ROWS);
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        client.batch_execute("DROP TABLE bare").await?;
        Ok(rate)
    })
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: pg_bench DIR URL [CREATES]";
    let dir = std::path::PathBuf::from(args.next().ok_or(usage)?);
    let url = args.next().ok_or(usage)?;
    let creates: usize = args.next().map_or(Ok(200_000), |creates| creates.parse())?;
    let database = url.split('?').next().unwrap_or_default();
    let before = bare(database, creates)?;
    let url = PgUrl::parse(&url)?;
    PgEngine::create(&url, UUID, 0)?;
    let engine =
        Arc::new(PgEngine::open(url.clone(), UUID, 0, PgOptions::default(), Arc::new(|| Ok(())))?);
    let (node, pg_creates) = made(engine.clone(), creates)?;
    let stats = engine.stats();
    let (transactions, mutations) = (stats.syncs, stats.mutations);
    let after = bare(database, creates)?;
    let options = EmbeddedOptions::default();
    let embedded = EmbeddedEngine::open(&dir, UUID, options, Arc::new(|| Ok(())), &mut |_| true)?;
    let (other, embedded_creates) = made(Arc::new(embedded), creates)?;
    let [(pg_stats, pg_busy), (embedded_stats, embedded_busy)] = lookups([&node, &other], creates)?;
    other.close()?;
    let begun = Instant::now();
    let takes = PgOptions { take_over: true, ..PgOptions::default() };
    let next = Arc::new(PgEngine::open(url.clone(), UUID, 0, takes, Arc::new(|| Ok(())))?);
    let opened = begun.elapsed();
    let config = NodeConfig { workers: 2, durability: Durability::Commit, ..NodeConfig::default() };
    let next_node = Node::open(next.clone(), Arc::new(SystemClock), config)?;
    let ready = begun.elapsed();
    // It was taken over.
    let _ = node.close();
    next_node.close()?;
    drop((node, engine, other, next_node, next));
    PgEngine::remove(&url, UUID)?;
    std::fs::remove_dir_all(&dir)?;
    println!(
        "{{\"creates\":{creates},\"bare_rows_per_s\":[{before:.0},{after:.0}],\
         \"creates_per_s\":{pg_creates:.0},\"transactions\":{transactions},\
         \"mutations\":{mutations},\
         \"creates_of_bare\":{:.3},\"stats_per_s\":{pg_stats:.0},\
         \"embedded_creates_per_s\":{embedded_creates:.0},\
         \"embedded_stats_per_s\":{embedded_stats:.0},\"stats_of_embedded\":{:.3},\
         \"stat_us\":{pg_busy:.3},\"embedded_stat_us\":{embedded_busy:.3},\
         \"stat_time_of_embedded\":{:.3},\"taken_over_ms\":[{:.0},{:.0}]}}",
        pg_creates * 2.0 / (before + after),
        pg_stats / embedded_stats,
        pg_busy / embedded_busy,
        opened.as_secs_f64() * 1e3,
        ready.as_secs_f64() * 1e3
    );
    Ok(())
}
