//! Every metric that `kestrel stats` and the Prometheus port give, declared in one place: name,
//! unit, stability, meaning.
//! `docs/metrics.md` is made from this file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kestrel_client::fs::Fs;
use kestrel_engine::EngineStats;
use kestrel_types::op_counters::{KindStats, NodeStats};
use serde_json::{Map, Value, json};

/// Whether a figure only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It only grows, from zero at the start of the process.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// What users may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// Name and meaning stay.
    Stable,
    /// May change with the implementation it describes.
    Internal,
}

/// One figure.
pub struct Metric {
    /// Name in JSON; in Prometheus `kestrel_` stands before it.
    pub name: &'static str,
    /// Counter or gauge.
    pub shape: Shape,
    /// Unit.
    pub unit: &'static str,
    /// What users may rely on.
    pub stability: Stability,
    /// What it counts.
    pub help: &'static str,
    read: fn(&Snapshot) -> u64,
}

/// All figures at one moment.
pub struct Snapshot {
    uptime: Duration,
    node: NodeStats,
    engine: EngineStats,
    read_bytes: u64,
    written_bytes: u64,
    cold_reads: u64,
    bad_reads: u64,
    commits: u64,
    compactions: u64,
    repacked_ranges: u64,
    repacked_bytes: u64,
    reaped_objects: u64,
    known_inodes: u64,
    dirty_bytes: u64,
    write_waits: u64,
    read_waits: u64,
    /// What the reader, the packer and every store of the stack tell.
    figures: BTreeMap<&'static str, u64>,
}

impl Snapshot {
    /// The figures of a file system that has been served for `uptime`; of an engine only if it is
    /// in this process.
    pub fn take(fs: &Fs, engine: Option<EngineStats>, uptime: Duration) -> Self {
        let counters = fs.counters();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            uptime,
            node: fs.metadata().stats(),
            engine: engine.unwrap_or_default(),
            read_bytes: load(&counters.read_bytes),
            written_bytes: load(&counters.written_bytes),
            cold_reads: load(&counters.cold_reads),
            bad_reads: load(&counters.bad_reads),
            commits: load(&counters.commits),
            compactions: load(&counters.compactions),
            repacked_ranges: load(&counters.repacked_ranges),
            repacked_bytes: load(&counters.repacked_bytes),
            reaped_objects: load(&counters.reaped_objects),
            known_inodes: fs.known_inodes() as u64,
            dirty_bytes: fs.dirty_bytes(),
            write_waits: fs.write_waits(),
            read_waits: fs.read_waits(),
            figures: figures(fs),
        }
    }

    /// Adds a figure of whatever else the process does.
    pub fn add(&mut self, figure: &'static str, value: u64) {
        self.figures.insert(figure, value);
    }

    /// What the data plane tells for a metric, which has the figure's name, counters with `_total`;
    /// 0 if this volume has nothing that tells it.
    fn figure(&self, metric: &str) -> u64 {
        self.figures.get(metric.strip_suffix("_total").unwrap_or(metric)).copied().unwrap_or(0)
    }
}

fn figures(fs: &Fs) -> BTreeMap<&'static str, u64> {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (reads, cache, writes) = (fs.reader().stats(), fs.reader().cache(), fs.packer().stats());
    let mut figures = BTreeMap::from([
        ("stored_reads", load(&reads.reads)),
        ("stored_read_bytes", load(&reads.bytes)),
        ("cache_memory_hits", load(&reads.cached_reads)),
        ("cache_memory_hit_bytes", load(&reads.cached_bytes)),
        ("cache_memory_bytes", cache.bytes() as u64),
        ("damaged_frames", load(&reads.corrupt)),
        ("healed_frames", load(&reads.healed)),
        ("readahead_bytes", load(&reads.prefetch_bytes)),
        ("readahead_refused", load(&reads.prefetch_refused)),
        ("readahead_wasted_bytes", cache.wasted_bytes()),
        ("pack_rounds", load(&writes.rounds)),
        ("pack_members", load(&writes.members)),
        ("pack_bytes", load(&writes.bytes)),
        ("pack_objects", load(&writes.objects)),
        ("pack_failures", load(&writes.failures)),
    ]);
    let (noted, sent) = fs.access_stats();
    figures.extend([("access_times_noted", noted), ("access_times_sent", sent)]);
    fs.store().stats(&mut |name, value| {
        figures.insert(name, value);
    });
    if let Some(stats) = fs.metadata().connection_stats() {
        figures.extend([
            ("metadata_retries", stats.retries),
            ("metadata_reconnects", stats.reconnects),
            ("metadata_reclaims", stats.reclaims),
            ("metadata_unanswered", stats.failed),
            ("metadata_sent_bytes", stats.bytes_sent),
            ("metadata_received_bytes", stats.bytes_received),
            ("metadata_messages_sent", stats.messages),
            ("metadata_writes", stats.writes),
            ("metadata_in_flight", stats.in_flight as u64),
            ("metadata_outage_seconds", stats.outage.map_or(0, |outage| outage.as_secs())),
        ]);
    }
    figures
}

/// The metrics, one a line. Without an expression to read it, a metric is what the data plane tells
/// under its name.
macro_rules! metrics {
    ($($name:literal $shape:ident $unit:literal $stability:ident $help:literal $($read:expr)?;)+) => {
        /// The plain figures.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name, shape: Shape::$shape, unit: $unit, stability: Stability::$stability,
            help: $help,
            read: metrics!(@read $name $($read)?),
        },)+];
    };
    (@read $name:literal) => { |s| s.figure($name) };
    (@read $name:literal $read:expr) => { $read };
}

metrics! {
    "uptime_seconds" Gauge "seconds" Stable
        "time since the volume was opened" |s| s.uptime.as_secs();
    "metadata_requests_total" Counter "requests" Stable
        "metadata operations answered, errors included" |s| s.node.requests_total();
    "metadata_exclusive_batches_total" Counter "batches" Internal
        "batches that needed all workers" |s| s.node.exclusive_batches;
    "metadata_open_files" Gauge "files" Stable "open files" |s| s.node.open_files;
    "metadata_dentries" Gauge "directories" Internal
        "directories in the namespace replica" |s| s.node.dentries;
    "quotas" Gauge "quotas" Stable "quotas of the volume, where this process has its metadata"
        |s| s.node.quotas;
    "quotas_above_soft_limit" Gauge "quotas" Stable "quotas above a soft limit"
        |s| s.node.quotas_above_soft_limit;
    "quota_refusals_total" Counter "requests" Stable "metadata operations that a quota refused"
        |s| s.node.quota_refusals;
    "read_bytes_total" Counter "bytes" Stable "file data given to applications" |s| s.read_bytes;
    "written_bytes_total" Counter "bytes" Stable
        "file data accepted from applications" |s| s.written_bytes;
    "dirty_bytes" Gauge "bytes" Stable
        "file data written and not yet stored and committed" |s| s.dirty_bytes;
    "write_waits_total" Counter "writes" Stable
        "writes that waited for room in memory" |s| s.write_waits;
    "read_waits_total" Counter "reads" Stable
        "reads that waited for room in memory" |s| s.read_waits;
    "memory_limit_bytes" Gauge "bytes" Stable "memory that the machine or the control group allows";
    "memory_bound_bytes" Gauge "bytes" Stable "memory of the process with all budgets used up";
    "cold_reads_total" Counter "reads" Stable
        "reads that waited for the block store" |s| s.cold_reads;
    "bad_reads_total" Counter "reads" Stable
        "stored bytes damaged or missing: more than 0 needs attention" |s| s.bad_reads;
    "file_commits_total" Counter "files" Stable
        "file contents committed to the metadata" |s| s.commits;
    "compactions_total" Counter "windows" Stable
        "parts of files rewritten to join their extents" |s| s.compactions;
    "repacked_ranges_total" Counter "ranges" Stable
        "references moved out of objects that were mostly unused" |s| s.repacked_ranges;
    "repacked_bytes_total" Counter "bytes" Stable
        "bytes stored again to empty mostly unused objects" |s| s.repacked_bytes;
    "reaped_objects_total" Counter "objects" Stable
        "objects deleted after their grace period" |s| s.reaped_objects;
    "access_times_noted_total" Counter "reads" Stable
        "reads that count for access times, by the mount's mode";
    "access_times_sent_total" Counter "messages" Stable
        "messages to the metadata about access times";
    "known_inodes" Gauge "inodes" Internal "inodes that the kernel refers to" |s| s.known_inodes;
    "engine_commits_total" Counter "batches" Stable
        "batches committed to the metadata engine" |s| s.engine.commits;
    "engine_mutations_total" Counter "rows" Stable
        "rows changed in the metadata engine" |s| s.engine.mutations;
    "engine_log_bytes_total" Counter "bytes" Stable
        "bytes appended to the metadata log" |s| s.engine.log_bytes;
    "engine_log_syncs_total" Counter "syncs" Stable "syncs of the metadata log" |s| s.engine.syncs;
    "engine_memory_hits_total" Counter "reads" Internal
        "rows read from memory" |s| s.engine.memory_hits;
    "engine_run_reads_total" Counter "reads" Internal
        "rows looked up in the sorted runs on disk" |s| s.engine.run_reads;
    "engine_rows_in_memory" Gauge "rows" Internal "rows in memory" |s| s.engine.rows_in_memory;
    "engine_memory_bytes" Gauge "bytes" Stable "memory of metadata rows" |s| s.engine.memory_bytes;
    "engine_dirty_bytes" Gauge "bytes" Internal
        "memory of rows that are not yet in sorted runs" |s| s.engine.dirty_bytes;
    "engine_log_disk_bytes" Gauge "bytes" Stable "metadata log on disk" |s| s.engine.log_disk_bytes;
    "engine_run_disk_bytes" Gauge "bytes" Stable "sorted runs on disk" |s| s.engine.run_disk_bytes;
    "engine_upload_backlog_bytes" Gauge "bytes" Stable
        "metadata in a log directory that the bucket does not have yet"
        |s| s.engine.backlog_bytes;
    "engine_upload_backlog_seconds" Gauge "seconds" Stable
        "age of the oldest of it" |s| s.engine.backlog_age_ms / 1000;
    "engine_flushes_total" Counter "flushes" Internal
        "flushes from memory to sorted runs" |s| s.engine.flushes;
    "stored_reads_total" Counter "reads" Stable
        "verified reads of stored data, from any cache or the store";
    "stored_read_bytes_total" Counter "bytes" Stable
        "bytes returned by verified reads of stored data";
    "cache_memory_hits_total" Counter "reads" Stable "verified reads that memory answered alone";
    "cache_memory_hit_bytes_total" Counter "bytes" Stable "bytes that came from the memory cache";
    "cache_memory_bytes" Gauge "bytes" Stable "verified file data in memory";
    "damaged_frames_total" Counter "reads" Stable
        "reads with a wrong checksum at first, from any cache or store";
    "healed_frames_total" Counter "reads" Stable
        "damaged reads that were right when read again past all caches";
    "readahead_bytes_total" Counter "bytes" Stable "file data requested before its reader did";
    "readahead_refused_total" Counter "requests" Internal
        "read-ahead left out: too much was under way or unread";
    "readahead_wasted_bytes_total" Counter "bytes" Stable
        "file data read ahead and evicted before it was read";
    "pack_rounds_total" Counter "writes" Stable
        "writes to the block store, each with all that is ready";
    "pack_members_total" Counter "payloads" Stable "files and blocks in writes to the block store";
    "pack_bytes_total" Counter "bytes" Stable
        "bytes of files and blocks in writes to the block store";
    "pack_objects_total" Counter "objects" Stable "objects begun";
    "pack_failures_total" Counter "writes" Stable
        "failed writes to the block store: more than 0 needs attention";
    "store_put_requests_total" Counter "requests" Stable
        "PUT requests to the object store, with parts and retries";
    "store_get_requests_total" Counter "requests" Stable "GET requests to the object store";
    "store_head_requests_total" Counter "requests" Stable "HEAD requests to the object store";
    "store_list_requests_total" Counter "requests" Stable "LIST requests to the object store";
    "store_delete_requests_total" Counter "requests" Stable "DELETE requests to the object store";
    "store_put_bytes_total" Counter "bytes" Stable "bytes sent to the object store";
    "store_get_bytes_total" Counter "bytes" Stable "bytes received from the object store";
    "store_retries_total" Counter "requests" Stable
        "requests tried again after an error or no answer";
    "store_errors_total" Counter "requests" Stable
        "requests that failed for good: more than 0 needs attention";
    "store_throttled_total" Counter "answers" Stable
        "answers of the store that asked for fewer requests";
    "store_coalesced_reads_total" Counter "reads" Stable
        "reads answered by the request of another read";
    "cache_disk_hits_total" Counter "reads" Stable
        "reads of stored data that the disk cache answered alone";
    "cache_disk_misses_total" Counter "reads" Stable "reads of stored data that needed the store";
    "cache_disk_hit_bytes_total" Counter "bytes" Stable "bytes read from the disk cache";
    "cache_disk_miss_bytes_total" Counter "bytes" Stable "bytes that the disk cache did not have";
    "cache_disk_fill_bytes_total" Counter "bytes" Stable "bytes written to cache disks";
    "cache_disk_bytes" Gauge "bytes" Stable "bytes in the cache directories, when last counted";
    "cache_disk_evicted_bytes_total" Counter "bytes" Stable "bytes evicted by this process";
    "cache_disk_dropped_writes_total" Counter "writes" Stable
        "writes left out because a cache disk did not keep up";
    "cache_disk_corrupt_total" Counter "pages" Stable
        "cached pages that failed their check and were dropped";
    "cache_disk_errors_total" Counter "errors" Stable "errors of cache disks";
    "cache_disk_bypassed_total" Counter "reads" Stable
        "reads that left out a cache disk that is out of service";
    "cache_span_bytes_total" Counter "bytes" Internal "bytes fetched beyond what was asked for";
    "cache_span_used_bytes_total" Counter "bytes" Internal
        "bytes fetched beyond the request and asked for later";
    "coded_objects_written_total" Counter "objects" Stable
        "objects written compressed or encrypted";
    "coded_plain_bytes_written_total" Counter "bytes" Stable "bytes of coded objects before coding";
    "coded_stored_bytes_written_total" Counter "bytes" Stable "bytes of coded objects as stored";
    "coded_chunks_read_total" Counter "chunks" Internal "chunks of coded objects read";
    "coded_heads_read_total" Counter "reads" Internal "heads of coded objects read";
    "metadata_retries_total" Counter "calls" Stable
        "calls sent again to a server after a lost connection";
    "metadata_reconnects_total" Counter "connections" Stable
        "connections to a server after the first";
    "metadata_reclaims_total" Counter "sessions" Stable
        "times that a client reclaimed what a server had forgotten";
    "metadata_unanswered_total" Counter "calls" Stable
        "calls not answered in time: more than 0 needs attention";
    "metadata_outage_seconds" Gauge "seconds" Stable
        "time that a server has not answered; 0 if it does";
    "metadata_in_flight" Gauge "calls" Stable "calls that wait for a server";
    "metadata_sent_bytes_total" Counter "bytes" Stable "bytes sent to a server";
    "metadata_received_bytes_total" Counter "bytes" Stable "bytes received from a server";
    "metadata_messages_sent_total" Counter "messages" Stable
        "messages sent to a server, several calls in some";
    "metadata_writes_total" Counter "writes" Internal "writes to connections with a server";
    "store_dumps_total" Counter "dumps" Stable "dumps of the metadata put into the block store";
    "store_dump_failures_total" Counter "dumps" Stable
        "dumps that failed: more than 0 needs attention";
    "leftovers_collections_total" Counter "collections" Stable
        "background collections of unreferenced objects";
    "leftovers_collection_failures_total" Counter "collections" Stable
        "background collections that failed";
    "leftovers_deleted_objects_total" Counter "objects" Stable
        "objects deleted by background collections";
    "scheduled_snapshots_total" Counter "snapshots" Stable "snapshots made by schedules";
    "scheduled_snapshots_removed_total" Counter "snapshots" Stable
        "snapshots removed as schedules say";
    "scheduled_snapshot_failures_total" Counter "looks" Stable
        "times that a schedule could not be kept: more than 0 needs attention";
    "store_dump_time_seconds" Gauge "seconds" Stable
        "start of the newest dump known, seconds since 1970; else 0";
    "shortcut_lookups_faked_total" Counter "lookups" Stable
        "directories in mid-path answered without a request";
    "shortcut_lookups_left_to_create_total" Counter "lookups" Stable
        "names to create, answered without a request";
    "shortcut_lookups_hinted_total" Counter "lookups" Stable
        "lookups with a path hint sent to the metadata";
    "shortcut_lookups_unhinted_total" Counter "lookups" Stable
        "lookups without a path hint, which are always sent";
    "shortcut_opens_total" Counter "opens" Stable
        "opens answered with what their lookup had opened";
    "shortcut_walks_repeated_total" Counter "walks" Stable
        "walks that the kernel repeats: a link, or no directory";
    "shortcut_directory_looks_total" Counter "lookups" Stable
        "attributes asked for to know if names may be cached";
    "shortcut_path_nodes" Gauge "nodes" Stable "directories that the kernel knows by their path";
    "passthrough_live" Gauge "files" Stable
        "files that the kernel reads by itself from whole copies now";
    "passthrough_opens_total" Counter "opens" Stable
        "opens of files that the kernel reads by itself";
    "passthrough_opens_beside_total" Counter "opens" Stable
        "opens of such files for writing, which reach the mount";
    "passthrough_refreshes_total" Counter "copies" Stable
        "whole copies in use that were brought up to date";
    "passthrough_copies_total" Counter "copies" Stable "whole copies made";
    "passthrough_copied_bytes_total" Counter "bytes" Stable "bytes of whole copies made";
    "cluster_map_version" Gauge "tables" Stable "version of the placement map that this node has";
    "cluster_exceptions" Gauge "names" Stable "names in the placement map not placed by their hash";
    "cluster_nodes" Gauge "nodes" Stable "nodes of the cluster";
    "cluster_nodes_up" Gauge "nodes" Stable
        "nodes connected to this one, itself included: fewer needs attention";
    "cluster_slots" Gauge "slots" Stable "slots that this node owns";
    "cluster_coordinates" Gauge "nodes" Stable "1 if this node is the coordinator";
    "cluster_map_changing" Gauge "changes" Stable "1 while the placement map changes";
    "cluster_rows_sent_total" Counter "rows" Internal
        "rows copied to other nodes because the map changes";
    "cluster_rows_taken_total" Counter "rows" Internal "rows received because the map changes";
    "cluster_lease_held" Gauge "leases" Stable
        "1 if a majority grants this node its lease: 0 needs attention";
    "cluster_lease_lapses_total" Counter "leases" Stable "leases that this node lost";
    "cluster_fences_total" Counter "fences" Stable
        "nodes that this one began to fence for a directory's change";
    "cluster_fenced_total" Counter "fences" Stable
        "fences that held: a directory changed without the node";
    "cluster_handed_back_total" Counter "requests" Internal "client requests that needed other nodes";
    "cluster_misdirected_total" Counter "requests" Stable "client requests that another node leads";
    "cluster_messages_sent_total" Counter "messages" Internal "messages to other nodes";
    "cluster_messages_received_total" Counter "messages" Internal "messages from other nodes";
    "cluster_messages_dropped_total" Counter "messages" Stable
        "messages dropped: too many waited, or too large";
    "cluster_balance_looks_total" Counter "looks" Stable
        "times that this node compared the nodes' loads";
    "cluster_balance_changes_total" Counter "changes" Stable "changes of the map made for balance";
    "cluster_takeovers_total" Counter "nodes" Stable "nodes taken over from their own processes";
    "cluster_takeovers_failed_total" Counter "nodes" Stable "takeovers of nodes that failed";
    "cluster_stands_in" Gauge "1 or 0" Stable
        "1 if this process serves a node in place of its own process";
    "server_sessions" Gauge "clients" Stable "clients with a session";
    "server_connected" Gauge "clients" Stable "clients with a session that are connected now";
    "server_connections" Gauge "connections" Stable "open connections";
    "server_opens" Gauge "opens" Stable "files that clients have open";
    "server_lock_ranges" Gauge "locks" Stable "ranges that clients have locked";
    "server_lock_waits" Gauge "calls" Stable "calls that wait for a lock";
    "server_calls_total" Counter "calls" Stable "calls received from clients";
    "server_calls_refused_total" Counter "calls" Stable "calls that did not fit their session";
    "server_batches_total" Counter "batches" Internal "batches of client calls";
    "server_retries_total" Counter "calls" Stable "calls that clients sent again";
    "server_retries_answered_total" Counter "calls" Internal "repeated calls answered from memory";
    "server_accepted_total" Counter "connections" Stable "connections accepted";
    "server_refused_total" Counter "connections" Stable "connections refused with a reason";
    "server_welcomes_total" Counter "clients" Stable "clients admitted, reconnects included";
    "server_superseded_total" Counter "connections" Internal
        "connections replaced by a newer one of the client";
    "server_malformed_total" Counter "connections" Stable
        "connections closed because of malformed messages";
    "server_cut_off_total" Counter "connections" Stable
        "connections closed: silent, stuck, or unproven too long";
    "server_encrypted_total" Counter "connections" Stable "encrypted connections";
    "server_not_encrypted_total" Counter "connections" Stable
        "TLS handshakes that failed or took too long";
    "server_unwanted_total" Counter "connections" Stable
        "connections refused for being in clear, or encrypted";
    "server_sessions_begun_total" Counter "sessions" Stable "sessions begun";
    "server_sessions_ended_total" Counter "sessions" Stable "sessions that their clients ended";
    "server_sessions_expired_total" Counter "sessions" Stable
        "sessions of clients not heard of within the lease";
    "server_sessions_reclaimed_total" Counter "sessions" Stable
        "sessions reclaimed after a restart or an expiry";
    "server_opens_reclaimed_total" Counter "opens" Stable "opens reclaimed";
    "server_opens_lost_total" Counter "opens" Stable "opens not reclaimed: the file was gone";
    "server_locks_reclaimed_total" Counter "locks" Stable "locks reclaimed";
    "server_locks_lost_total" Counter "locks" Stable "locks not reclaimed: another client had them";
    "server_received_bytes_total" Counter "bytes" Stable "bytes received from clients";
    "server_sent_bytes_total" Counter "bytes" Stable "bytes sent to clients";
    "server_writes_total" Counter "writes" Internal "writes to connections with clients";
}

/// Figures with a label: name, shape, unit, stability, label, meaning.
pub const LABELLED: &[(&str, Shape, &str, Stability, &str, &str)] = &[
    (
        "metadata_requests_by_kind_total",
        Shape::Counter,
        "requests",
        Stability::Stable,
        "kind",
        "requests answered, by kind",
    ),
    (
        "metadata_errors_by_kind_total",
        Shape::Counter,
        "requests",
        Stability::Stable,
        "kind",
        "requests answered with an error, by kind",
    ),
    (
        "metadata_latency_seconds",
        Shape::Counter,
        "seconds",
        Stability::Stable,
        "kind, le",
        "histogram of the time to the answer, by kind",
    ),
    (
        "metadata_batches_total",
        Shape::Counter,
        "batches",
        Stability::Stable,
        "size",
        "batches by their number of requests, at least",
    ),
];

/// The text a Prometheus server scrapes (exposition format 0.0.4).
pub fn prometheus(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    for metric in METRICS {
        let shape = if metric.shape == Shape::Counter { "counter" } else { "gauge" };
        let (name, value) = (metric.name, (metric.read)(snapshot));
        let about = format!("{} ({}, {:?})", metric.help, metric.unit, metric.stability);
        let _ = writeln!(
            out,
            "# HELP kestrel_{name} {about}\n# TYPE kestrel_{name} {shape}\nkestrel_{name} {value}"
        );
    }
    for (name, _, _, _, _, help) in LABELLED {
        let kind = if *name == "metadata_latency_seconds" { "histogram" } else { "counter" };
        let _ = writeln!(out, "# HELP kestrel_{name} {help}\n# TYPE kestrel_{name} {kind}");
        match *name {
            "metadata_batches_total" => {
                for (bucket, count) in snapshot.node.batches.iter().enumerate() {
                    let _ = writeln!(out, "kestrel_{name}{{size=\"{}\"}} {count}", 1u64 << bucket);
                }
            }
            "metadata_latency_seconds" => {
                snapshot.node.kinds.iter().for_each(|kind| histogram(&mut out, kind))
            }
            _ => {
                for kind in &snapshot.node.kinds {
                    let value = if name.contains("errors") { kind.errors } else { kind.requests };
                    let _ = writeln!(out, "kestrel_{name}{{kind=\"{}\"}} {value}", kind.kind);
                }
            }
        }
    }
    out
}

fn histogram(out: &mut String, kind: &KindStats) {
    let (name, label) = ("kestrel_metadata_latency_seconds", kind.kind);
    let mut below = 0;
    for (bucket, count) in kind.latency.iter().enumerate() {
        below += count;
        // Below a microsecond nobody looks, and every bucket costs a line of each scrape.
        if bucket >= 9 && bucket + 1 < kind.latency.len() {
            let upper = (2u64 << bucket) as f64 / 1e9;
            let _ = writeln!(out, "{name}_bucket{{kind=\"{label}\",le=\"{upper}\"}} {below}");
        }
    }
    let _ = writeln!(out, "{name}_bucket{{kind=\"{label}\",le=\"+Inf\"}} {below}");
    let _ = writeln!(out, "{name}_sum{{kind=\"{label}\"}} {}", kind.nanos as f64 / 1e9);
    let _ = writeln!(out, "{name}_count{{kind=\"{label}\"}} {below}");
}

/// The same for `kestrel stats`: plain figures by name, and the requests by kind.
pub fn to_json(snapshot: &Snapshot) -> Value {
    let mut out = Map::new();
    for metric in METRICS {
        out.insert(metric.name.into(), (metric.read)(snapshot).into());
    }
    let kinds = snapshot.node.kinds.iter().map(|kind| {
        json!({
            "kind": kind.kind, "requests": kind.requests, "errors": kind.errors,
            "nanoseconds": kind.nanos,
            "latency_log2_ns": kind.latency,
        })
    });
    out.insert("metadata_requests".into(), kinds.collect());
    out.insert("metadata_batches_log2".into(), json!(snapshot.node.batches));
    Value::Object(out)
}

/// Percentile of a histogram over powers of two, nanoseconds: the middle of the bucket it falls
/// into.
pub fn percentile_ns(buckets: &[u64], part: f64) -> u64 {
    let total: u64 = buckets.iter().sum();
    let wanted = (total as f64 * part).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (bucket, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return (1u64 << bucket) + (1u64 << bucket) / 2;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markdown() -> String {
        let mut out = String::from(
            "\
# Metrics

This page lists what a mount or server counts. Three ways to read the metrics:

```
kestrel stats /mnt --once --json                          # of a mount
kestrel stats kestrel://meta1/photos --once --json        # of a server
kestrel mount /data/vol /mnt --metrics 127.0.0.1:9464     # for Prometheus; also of `serve`
```

Prometheus reads them at `http://ADDR/metrics`, with `kestrel_` before each name. *Stable*: name and
meaning stay. *Internal*: they may change with the implementation. Counters begin at zero when the
process starts. [Alarms](operations/monitoring.md#alarms) tells which ones to watch.

The page is made from `crates/daemon/src/metrics.rs`; a test keeps the two equal
(`KESTREL_BLESS=1 cargo test -p kestrel-daemon metrics` writes it anew).

| name | shape | unit | stability | meaning |
| --- | --- | --- | --- | --- |
",
        );
        for metric in METRICS {
            let Metric { name, shape, unit, stability, help, .. } = metric;
            let _ = writeln!(out, "| `{name}` | {shape:?} | {unit} | {stability:?} | {help} |");
        }
        out.push_str("\n## Metrics with labels\n\n");
        out.push_str("| name | shape | unit | labels | stability | meaning |\n");
        out.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for (name, shape, unit, stability, label, help) in LABELLED {
            let _ = writeln!(
                out,
                "| `{name}` | {shape:?} | {unit} | {label} | {stability:?} | {help} |"
            );
        }
        out.push_str(
            "\nThe JSON has them as `metadata_requests` (by kind: requests, errors, nanoseconds, \
             and latencies\nin powers of two of a nanosecond) and `metadata_batches_log2`.\n",
        );
        out
    }

    #[test]
    fn the_documentation_lists_every_metric() {
        kestrel_testkit::docs::assert_document("docs/metrics.md", &markdown());
    }

    #[test]
    fn names_follow_prometheus() {
        for metric in METRICS {
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.shape == Shape::Counter,
                "{}",
                metric.name
            );
            assert!(metric.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        }
    }

    #[test]
    fn percentiles_of_powers_of_two() {
        let mut buckets = [0; 32];
        (buckets[10], buckets[20]) = (98, 2);
        assert_eq!(percentile_ns(&buckets, 0.5), 1536);
        assert_eq!(percentile_ns(&buckets, 0.99), 3 << 19);
        assert_eq!(percentile_ns(&[0; 32], 0.5), 0);
    }
}
