//! Every figure that `kestrel stats` and the Prometheus port give, declared in one place: name,
//! unit, stability, meaning. `docs/metrics.md` is made from this file.

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

    /// What the data plane tells for a metric, whose name is the figure's, counters with `_total`;
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
    let (noted, sent) = fs.access_figures();
    figures.extend([("access_times_noted", noted), ("access_times_sent", sent)]);
    fs.store().figures(&mut |name, value| {
        figures.insert(name, value);
    });
    if let Some(metadata) = fs.metadata().remote() {
        let stats = metadata.connection_stats();
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
            name: $name, shape: Shape::$shape, unit: $unit, stability: Stability::$stability, help: $help,
            read: metrics!(@read $name $($read)?),
        },)+];
    };
    (@read $name:literal) => { |s| s.figure($name) };
    (@read $name:literal $read:expr) => { $read };
}

metrics! {
    "uptime_seconds" Gauge "seconds" Stable "time since the volume was opened" |s| s.uptime.as_secs();
    "metadata_requests_total" Counter "requests" Stable
        "operations sent to a metadata node and answered, errors included; counted the same way whether the node is in the process or remote"
        |s| s.node.requests_total();
    "metadata_exclusive_batches_total" Counter "batches" Internal
        "batches that needed all workers (renames, links, changes of directories)" |s| s.node.exclusive_batches;
    "metadata_open_files" Gauge "files" Stable "files open" |s| s.node.open_files;
    "metadata_dentries" Gauge "directories" Internal "directories in the namespace replica" |s| s.node.dentries;
    "read_bytes_total" Counter "bytes" Stable "file data given to applications" |s| s.read_bytes;
    "written_bytes_total" Counter "bytes" Stable "file data taken from applications" |s| s.written_bytes;
    "dirty_bytes" Gauge "bytes" Stable "file data written and not yet stored and committed" |s| s.dirty_bytes;
    "write_waits_total" Counter "writes" Stable "writes that waited for room in memory" |s| s.write_waits;
    "read_waits_total" Counter "reads" Stable "reads that waited for room in memory" |s| s.read_waits;
    "memory_limit_bytes" Gauge "bytes" Stable "memory that the machine or the control group allows";
    "memory_bound_bytes" Gauge "bytes" Stable "memory that the process takes at most with all budgets used up";
    "cold_reads_total" Counter "reads" Stable "reads that had to wait for the block store" |s| s.cold_reads;
    "bad_reads_total" Counter "reads" Stable "stored bytes that failed their checksum or were missing: more than 0 needs attention"
        |s| s.bad_reads;
    "file_commits_total" Counter "files" Stable "contents of files committed to metadata" |s| s.commits;
    "compactions_total" Counter "windows" Stable "parts of files rewritten to join their extents" |s| s.compactions;
    "repacked_ranges_total" Counter "ranges" Stable "references moved out of objects of which little was in use"
        |s| s.repacked_ranges;
    "repacked_bytes_total" Counter "bytes" Stable "bytes stored again for them" |s| s.repacked_bytes;
    "reaped_objects_total" Counter "objects" Stable "objects deleted after their grace period" |s| s.reaped_objects;
    "access_times_noted_total" Counter "reads" Stable "reads that count for access times, by the mount's option atime";
    "access_times_sent_total" Counter "messages" Stable "messages to the metadata node about them";
    "known_inodes" Gauge "inodes" Internal "inodes that the kernel refers to" |s| s.known_inodes;
    "engine_commits_total" Counter "batches" Stable "batches committed to the metadata engine" |s| s.engine.commits;
    "engine_mutations_total" Counter "rows" Stable "rows changed" |s| s.engine.mutations;
    "engine_log_bytes_total" Counter "bytes" Stable "bytes appended to the metadata log" |s| s.engine.log_bytes;
    "engine_log_syncs_total" Counter "syncs" Stable "syncs of the metadata log" |s| s.engine.syncs;
    "engine_memory_hits_total" Counter "reads" Internal "rows read from memory" |s| s.engine.memory_hits;
    "engine_run_reads_total" Counter "reads" Internal "rows looked for in the sorted runs on disk" |s| s.engine.run_reads;
    "engine_rows_in_memory" Gauge "rows" Internal "rows in memory" |s| s.engine.rows_in_memory;
    "engine_memory_bytes" Gauge "bytes" Stable "memory of metadata rows" |s| s.engine.memory_bytes;
    "engine_dirty_bytes" Gauge "bytes" Internal "of these, not yet in sorted runs" |s| s.engine.dirty_bytes;
    "engine_log_disk_bytes" Gauge "bytes" Stable "metadata log on disk" |s| s.engine.log_disk_bytes;
    "engine_run_disk_bytes" Gauge "bytes" Stable "sorted runs on disk" |s| s.engine.run_disk_bytes;
    "engine_flushes_total" Counter "flushes" Internal "flushes from memory to sorted runs" |s| s.engine.flushes;
    "stored_reads_total" Counter "reads" Stable "verified reads of stored data, whatever cache answered";
    "stored_read_bytes_total" Counter "bytes" Stable "bytes they returned";
    "cache_memory_hits_total" Counter "reads" Stable "of these reads, those that memory answered alone";
    "cache_memory_hit_bytes_total" Counter "bytes" Stable "bytes that came from the memory cache";
    "cache_memory_bytes" Gauge "bytes" Stable "verified file data in memory";
    "damaged_frames_total" Counter "reads" Stable
        "stored bytes that did not match their checksum when first read, from whatever cache or store";
    "healed_frames_total" Counter "reads" Stable "of these, those that were right when read again past all caches";
    "readahead_bytes_total" Counter "bytes" Stable "file data asked for before its reader did";
    "readahead_refused_total" Counter "requests" Internal "read-ahead left out because too much was under way or unread";
    "readahead_wasted_bytes_total" Counter "bytes" Stable "read ahead into memory and evicted before anybody read it";
    "pack_rounds_total" Counter "writes" Stable "writes to the block store, each with everything stored at that moment";
    "pack_members_total" Counter "payloads" Stable "files and blocks in them";
    "pack_bytes_total" Counter "bytes" Stable "bytes of these";
    "pack_objects_total" Counter "objects" Stable "objects begun";
    "pack_failures_total" Counter "writes" Stable "writes to the block store that failed: more than 0 needs attention";
    "store_put_requests_total" Counter "requests" Stable "PUT requests to the object store, parts and retries included";
    "store_get_requests_total" Counter "requests" Stable "GET requests";
    "store_head_requests_total" Counter "requests" Stable "HEAD requests";
    "store_list_requests_total" Counter "requests" Stable "LIST requests";
    "store_delete_requests_total" Counter "requests" Stable "DELETE requests";
    "store_put_bytes_total" Counter "bytes" Stable "bytes sent to the object store";
    "store_get_bytes_total" Counter "bytes" Stable "bytes received from it";
    "store_retries_total" Counter "requests" Stable "requests tried again after an error or no answer";
    "store_errors_total" Counter "requests" Stable "requests that failed for good: more than 0 needs attention";
    "store_throttled_total" Counter "answers" Stable "answers of the store that asked for fewer requests";
    "store_coalesced_reads_total" Counter "reads" Stable "reads answered by the request of another read";
    "cache_disk_hits_total" Counter "reads" Stable "reads of stored data that the disk cache answered alone";
    "cache_disk_misses_total" Counter "reads" Stable "those for which the store had to be asked";
    "cache_disk_hit_bytes_total" Counter "bytes" Stable "bytes from the disk cache";
    "cache_disk_miss_bytes_total" Counter "bytes" Stable "bytes that it did not have";
    "cache_disk_fill_bytes_total" Counter "bytes" Stable "bytes written to cache disks";
    "cache_disk_bytes" Gauge "bytes" Stable "bytes in the cache directories, as of the last look";
    "cache_disk_evicted_bytes_total" Counter "bytes" Stable "bytes evicted by this process";
    "cache_disk_dropped_writes_total" Counter "writes" Stable "writes to a cache disk left out because it did not keep up";
    "cache_disk_corrupt_total" Counter "pages" Stable "cached pages whose check failed: dropped, read from the store";
    "cache_disk_errors_total" Counter "errors" Stable "errors of cache disks";
    "cache_disk_bypassed_total" Counter "reads" Stable "reads that left out a cache disk that is out of service";
    "cache_span_bytes_total" Counter "bytes" Internal "bytes fetched beyond what was asked for";
    "cache_span_used_bytes_total" Counter "bytes" Internal "of these, bytes asked for later";
    "coded_objects_written_total" Counter "objects" Stable "objects written compressed or encrypted";
    "coded_plain_bytes_written_total" Counter "bytes" Stable "bytes of these before coding";
    "coded_stored_bytes_written_total" Counter "bytes" Stable "bytes of these as stored";
    "coded_chunks_read_total" Counter "chunks" Internal "chunks read, to be decoded";
    "coded_heads_read_total" Counter "reads" Internal "heads of coded objects read from below";
    "metadata_retries_total" Counter "calls" Stable "calls sent again to a metadata server after a lost connection";
    "metadata_reconnects_total" Counter "connections" Stable "connections to a metadata server after the first";
    "metadata_reclaims_total" Counter "sessions" Stable "times that a metadata server had lost the session and was told what it held";
    "metadata_unanswered_total" Counter "calls" Stable "calls that a metadata server did not answer in time: more than 0 needs attention";
    "metadata_outage_seconds" Gauge "seconds" Stable "how long a metadata server has not answered; 0 if it does";
    "metadata_in_flight" Gauge "calls" Stable "calls that wait for a metadata server";
    "metadata_sent_bytes_total" Counter "bytes" Stable "bytes sent to a metadata server";
    "metadata_received_bytes_total" Counter "bytes" Stable "bytes received from it";
    "metadata_messages_sent_total" Counter "messages" Stable "messages that they were sent in: what nobody waits for goes with others";
    "metadata_writes_total" Counter "writes" Internal "writes they were sent with";
    "store_dumps_total" Counter "dumps" Stable "dumps of the metadata that were put into the block store";
    "store_dump_failures_total" Counter "dumps" Stable "dumps that could not be: more than 0 needs attention";
    "leftovers_collections_total" Counter "collections" Stable "collections of objects that nothing refers to, in the background";
    "leftovers_collection_failures_total" Counter "collections" Stable "collections that could not be done";
    "leftovers_deleted_objects_total" Counter "objects" Stable "objects that they deleted";
    "store_dump_time_seconds" Gauge "seconds" Stable
        "when the newest dump in the block store was begun, seconds since 1970, as far as this process knows; else 0";
    "shortcut_lookups_faked_total" Counter "lookups" Stable "directories in mid-path that the mount answered without a request";
    "shortcut_lookups_left_to_create_total" Counter "lookups" Stable
        "names to be created that the mount answered \"not there\" without a request";
    "shortcut_lookups_hinted_total" Counter "lookups" Stable "lookups with a walk hint that were sent to the metadata";
    "shortcut_lookups_unhinted_total" Counter "lookups" Stable "lookups without a walk hint, which are sent always";
    "shortcut_opens_total" Counter "opens" Stable "opens answered with what their lookup had opened";
    "shortcut_walks_repeated_total" Counter "walks" Stable "answers that made the kernel walk a path again: a link or no directory was met";
    "shortcut_directory_looks_total" Counter "lookups" Stable
        "directories whose attributes were asked for, once, to know whether names in them may be believed";
    "shortcut_path_nodes" Gauge "nodes" Stable "directories that the kernel knows by their path";
    "passthrough_live" Gauge "files" Stable "files that the kernel reads by itself from whole copies at present";
    "passthrough_opens_total" Counter "opens" Stable "opens of files that the kernel reads by itself";
    "passthrough_opens_beside_total" Counter "opens" Stable "opens of such files for writing, whose reads and writes reach the mount";
    "passthrough_refreshes_total" Counter "copies" Stable "whole copies brought up to date while in use, because the file had changed";
    "passthrough_copies_total" Counter "copies" Stable "whole copies made";
    "passthrough_copied_bytes_total" Counter "bytes" Stable "bytes of these";
    "cluster_table_version" Gauge "tables" Stable "version of the table of placement, of a node of a cluster";
    "cluster_exceptions" Gauge "names" Stable "names in it that are not placed by their hash";
    "cluster_nodes" Gauge "nodes" Stable "nodes of the cluster";
    "cluster_nodes_up" Gauge "nodes" Stable "of these, those that this node is connected to, itself included: fewer needs attention";
    "cluster_slots" Gauge "slots" Stable "slots that this node owns";
    "cluster_coordinates" Gauge "nodes" Stable "1 if this node leads changes of the table";
    "cluster_table_changing" Gauge "changes" Stable "1 while the table changes";
    "cluster_rows_sent_total" Counter "rows" Internal "rows copied to other nodes because the table changes";
    "cluster_rows_taken_total" Counter "rows" Internal "rows got from other nodes";
    "cluster_lease_held" Gauge "leases" Stable "1 if most nodes let this one resolve paths: 0 needs attention";
    "cluster_lease_lapses_total" Counter "leases" Stable "how often it has lost its lease";
    "cluster_fences_total" Counter "fences" Stable "nodes that it began to fence, for changes of directories that it leads";
    "cluster_fenced_total" Counter "fences" Stable "of these, those that came to hold: a directory changed without the node";
    "cluster_strays_total" Counter "requests" Internal "requests of clients for which other nodes were needed";
    "cluster_misdirected_total" Counter "requests" Stable "requests of clients that another node leads";
    "cluster_messages_sent_total" Counter "messages" Internal "messages to other nodes";
    "cluster_messages_received_total" Counter "messages" Internal "messages of other nodes";
    "cluster_messages_dropped_total" Counter "messages" Stable "messages dropped: too many waited, or too large";
    "cluster_balance_looks_total" Counter "looks" Stable "how often it has looked whether nodes are to be evened out";
    "cluster_balance_changes_total" Counter "changes" Stable "changes of the table that came of that";
    "cluster_takeovers_total" Counter "nodes" Stable "nodes of which this process has started one in place of their own";
    "cluster_takeovers_failed_total" Counter "nodes" Stable "nodes of which it could not";
    "cluster_stands_in" Gauge "1 or 0" Stable "1 if this process serves a node in place of that node's own";
    "server_sessions" Gauge "clients" Stable "clients of this server that have a session";
    "server_connected" Gauge "clients" Stable "of these, those connected now";
    "server_connections" Gauge "connections" Stable "connections open";
    "server_opens" Gauge "opens" Stable "files that clients have open";
    "server_lock_ranges" Gauge "locks" Stable "ranges that clients have locked";
    "server_lock_waits" Gauge "calls" Stable "calls that wait for a lock";
    "server_calls_total" Counter "calls" Stable "calls received from clients";
    "server_calls_refused_total" Counter "calls" Stable "of these, those that did not fit their session";
    "server_batches_total" Counter "batches" Internal "batches they were handed on in";
    "server_retries_total" Counter "calls" Stable "calls that were sent again";
    "server_retries_answered_total" Counter "calls" Internal "of these, those answered from memory";
    "server_accepted_total" Counter "connections" Stable "connections accepted";
    "server_refused_total" Counter "connections" Stable "connections refused with a reason";
    "server_welcomes_total" Counter "clients" Stable "clients welcomed, reconnects included";
    "server_superseded_total" Counter "connections" Internal "connections that a newer one of the same client replaced";
    "server_malformed_total" Counter "connections" Stable "connections closed because of bytes that are no messages";
    "server_cut_off_total" Counter "connections" Stable "connections closed because the client was silent, took nothing, or had not said who it is where others waited";
    "server_encrypted_total" Counter "connections" Stable "connections that were encrypted";
    "server_not_encrypted_total" Counter "connections" Stable "handshakes of TLS that failed or took too long";
    "server_unwanted_total" Counter "connections" Stable "connections refused because they were in clear, or because they were not";
    "server_sessions_begun_total" Counter "sessions" Stable "sessions begun";
    "server_sessions_ended_total" Counter "sessions" Stable "sessions whose clients said farewell";
    "server_sessions_expired_total" Counter "sessions" Stable "sessions whose clients were not heard of within the lease";
    "server_sessions_reclaimed_total" Counter "sessions" Stable "sessions taken up again after a restart or an expiry";
    "server_opens_reclaimed_total" Counter "opens" Stable "opens taken up again";
    "server_opens_lost_total" Counter "opens" Stable "opens whose files were gone";
    "server_locks_reclaimed_total" Counter "locks" Stable "locks taken up again";
    "server_locks_lost_total" Counter "locks" Stable "locks that others had meanwhile";
    "server_received_bytes_total" Counter "bytes" Stable "bytes received from clients";
    "server_sent_bytes_total" Counter "bytes" Stable "bytes sent to clients";
    "server_writes_total" Counter "writes" Internal "writes they were sent with";
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
        "of these, with an error",
    ),
    (
        "metadata_latency_seconds",
        Shape::Counter,
        "seconds",
        Stability::Stable,
        "kind, le",
        "histogram of the time from request to answer",
    ),
    (
        "metadata_batches_total",
        Shape::Counter,
        "batches",
        Stability::Stable,
        "size",
        "batches by number of requests, lower bound",
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
            "kind": kind.kind, "requests": kind.requests, "errors": kind.errors, "nanoseconds": kind.nanos,
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
            "# Metrics\n\nWhat `kestrel stats --json` prints and what `kestrel mount|serve --metrics ADDR` serves at \
             `http://ADDR/metrics`,\nthere with `kestrel_` before each name. Made from `crates/daemon/src/metrics.rs`; a test keeps \
             the two equal. Stable: name\nand meaning stay. Internal: may change with the implementation it describes. \
             Counters begin at zero with each mount.\n\n| name | shape | unit | labels | stability | meaning |\n| --- | --- | --- | --- | --- | --- |\n",
        );
        for metric in METRICS {
            let _ = writeln!(
                out,
                "| `{}` | {:?} | {} | | {:?} | {} |",
                metric.name, metric.shape, metric.unit, metric.stability, metric.help
            );
        }
        for (name, shape, unit, stability, label, help) in LABELLED {
            let _ = writeln!(out, "| `{name}` | {shape:?} | {unit} | {label} | {stability:?} | {help} |");
        }
        out.push_str(
            "\nThe JSON has the labelled figures as `metadata_requests` (by kind: requests, errors, nanoseconds, and \
             latencies in\npowers of two of a nanosecond) and `metadata_batches_log2`.\n",
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
            assert_eq!(metric.name.ends_with("_total"), metric.shape == Shape::Counter, "{}", metric.name);
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
