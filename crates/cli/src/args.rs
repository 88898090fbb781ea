//! Options that several verbs have: how the block store is reached, how a process serves, with
//! which encryption, dumps and collections, and how a file gives them.
//!
//! | file | what it has |
//! | --- | --- |
//! | `args/store.rs` | how the block store is reached |
//! | `args/atime.rs` | how access times are kept |
//! | `args/file.rs` | options from a TOML file |

pub mod atime;
pub mod file;
pub mod store;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kestrel_client::volume::{LogDirSettings, Resources};
use kestrel_daemon::backup_schedule::{Every, KeeperOptions};
use kestrel_daemon::collector::CollectorOptions;
use kestrel_daemon::memory::Memory;
use kestrel_daemon::process::ProcessOptions;
use kestrel_daemon::role::NodeRole;
use kestrel_daemon::tls::TlsOptions;
use kestrel_daemon::units::{duration_arg, log_level_arg, size_arg};
use kestrel_rpc::tls::TlsMode;
use log::LevelFilter;

use file::bounded;
use store::{CacheArgs, StoreArgs};

/// Smallest memory for metadata, in bytes: below it rows go to disk with every few requests.
const METADATA_MEMORY_MIN: u64 = 16 << 20;

/// Times between two uploads of a log directory.
const UPLOAD_EVERY: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(3600);

/// Shortest time between two dumps that can be asked for.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Most dumps that can be kept.
const KEEP_MAX: u16 = 10_000;

/// The options of every verb that serves something.
#[derive(Debug, Clone, Args)]
pub struct ProcessArgs {
    /// Stay in the foreground and log to the terminal
    #[arg(short, long)]
    pub foreground: bool,
    /// Serve figures for Prometheus at http://ADDR/metrics, as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Log file; in the volume's directory by default, or in the mount's runtime directory if
    /// another machine serves the volume
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = log_level_arg)]
    pub log_level: LevelFilter,
    /// Memory for metadata rows; 512M by default, less where the machine or the control group has
    /// little
    #[arg(long, value_parser = bounded(size_arg, METADATA_MEMORY_MIN, u64::MAX, "at least 16M"),
        value_name = "SIZE")]
    pub metadata_memory: Option<u64>,
    /// Metadata in PostgreSQL or a bucket: take it over from the process that has it open, which
    /// can write nothing any more. A node of a cluster that is served asks that process to end
    /// first
    #[arg(long)]
    pub take_over: bool,
    /// Set for the process in the background
    #[arg(long, hide = true)]
    pub report_readiness: bool,
}

impl ProcessArgs {
    /// As the daemon takes them.
    pub fn options(&self) -> ProcessOptions {
        ProcessOptions {
            foreground: self.foreground,
            metrics: self.metrics,
            log: self.log.clone(),
            log_level: self.log_level,
            metadata_memory: self.metadata_memory,
            take_over: self.take_over,
            report_readiness: self.report_readiness,
        }
    }
}

/// A log on a local disk in front of metadata in a bucket.
#[derive(Debug, Clone, Args)]
pub struct LogDirArgs {
    /// Metadata in a bucket: changes are durable in a log in this directory on a local disk, and go
    /// to the bucket a few seconds later. Another machine does not see what is not there yet, and
    /// if this one is lost, that is lost
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// How often changes of --log-dir, or of a job, go to the store
    #[arg(long, value_name = "TIME", value_parser = upload_every_arg, default_value = "5s")]
    pub upload_every: Duration,
    /// A log that does not fit the volume any more, because another machine took it over, say, is
    /// renamed within its directory, and the volume is what the bucket has
    #[arg(long)]
    pub discard_log: bool,
}

/// A time between two uploads.
pub fn upload_every_arg(text: &str) -> Result<Duration, String> {
    let every = duration_arg(text)?;
    if !UPLOAD_EVERY.contains(&every) {
        return Err("10ms to 1h".into());
    }
    Ok(every)
}

impl LogDirArgs {
    /// As the volume takes them.
    pub fn settings(&self) -> LogDirSettings {
        let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        LogDirSettings {
            dir: self.log_dir.as_ref().map(whole),
            upload_every: self.upload_every,
            discard: self.discard_log,
        }
    }

    /// Whether none is given.
    pub fn is_none(&self) -> bool {
        self.log_dir.is_none() && !self.discard_log
    }
}

/// What `kestrel serve` is told of encryption.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsArgs {
    /// Which connections are encrypted: auto, those with other machines; on, all; off, none
    #[arg(long, value_name = "auto|on|off", default_value_t)]
    pub tls: TlsMode,
    /// A certificate of your own for clients that go by its authority (?ca=FILE), with those that
    /// lead there; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, in a file that others cannot read
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve only clients that show a certificate of an authority in this file, or of the volume's
    /// own
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// As the daemon takes them.
    pub fn options(&self) -> TlsOptions {
        TlsOptions {
            tls: self.tls,
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_ca: self.tls_ca.clone(),
        }
    }
}

/// How often, and how many are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Dumps into the block store")]
pub struct BackupScheduleArgs {
    /// Dump the metadata into the block store this often while the volume is in use here; off:
    /// never [default: 1d]
    #[arg(long, value_name = "TIME|off", value_parser = every_arg)]
    pub dump_every: Option<Every>,
    /// How many of these dumps are kept: older ones are removed when one was taken [default: 7]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(KEEP_MAX)))]
    pub dump_keep: Option<u16>,
}

impl BackupScheduleArgs {
    /// As the daemon takes them.
    pub fn options(self) -> KeeperOptions {
        KeeperOptions { dump_every: self.dump_every, dump_keep: self.dump_keep }
    }
}

/// When what a killed mount left behind is collected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Collecting leftovers")]
pub struct CollectorArgs {
    /// Delete objects that nothing refers to this often while the volume is in use here; off: never
    /// [default: 1d]
    #[arg(long, value_name = "TIME|off", value_parser = every_arg)]
    pub collect_every: Option<Every>,
    /// Leave objects alone that were written to less than this ago [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration_arg)]
    pub collect_grace: Option<Duration>,
}

impl CollectorArgs {
    /// As the daemon takes them.
    pub fn options(self) -> CollectorOptions {
        CollectorOptions { collect_every: self.collect_every, collect_grace: self.collect_grace }
    }
}

/// A time of at least a second, or `off`.
pub fn every_arg(text: &str) -> Result<Every, String> {
    match text {
        "off" => Ok(Every(None)),
        time => match duration_arg(time)? {
            time if time >= EVERY_MIN => Ok(Every(Some(time))),
            _ => Err("at least 1s, or off".into()),
        },
    }
}

/// What a node of a cluster is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// It owns a part of the volume and serves clients; it may coordinate besides.
    Metadata,
    /// It coordinates, or waits to, and serves no clients.
    Coordinator,
}

impl RoleArg {
    /// As the daemon takes it.
    pub fn role(self) -> NodeRole {
        match self {
            Self::Metadata => NodeRole::Metadata,
            Self::Coordinator => NodeRole::Coordinator,
        }
    }
}

/// What a process that uses a volume as a client gets, by its options.
pub fn client_resources(
    process: &ProcessArgs,
    log_dir: &LogDirArgs,
    (store, cache): (&StoreArgs, &CacheArgs),
    (data_cache, memory): (Option<u64>, &Memory),
) -> Resources {
    let mut store = store.options();
    cache.add_to(&mut store);
    store.memory = memory.plan;
    Resources {
        take_over: process.take_over,
        log_dir: log_dir.settings(),
        data_cache_bytes: data_cache.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        store,
        ..Resources::within(memory.plan)
    }
}
