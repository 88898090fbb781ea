//! `kestrel mount`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::control::ControlSocket;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::volume::{Resources, Volume};
use kestrel_fuse::{Config, End, MountOptions, Session};
use kestrel_mount::MountConfig;
use log::LevelFilter;

use super::locate;
use super::store_args::{CacheArgs, StoreArgs};
use crate::failure::{Failure, Verdict};
use crate::serve::control::Serving;
use crate::serve::daemon;
use crate::serve::http::MetricsPort;
use crate::units::{duration_arg, size_arg};

/// Smallest memory for metadata.
const METADATA_MEMORY_MIN: u64 = 16 << 20;
/// Most FUSE threads.
const WORKERS_MAX: usize = 256;
/// Further FUSE threads, for writers that wait for a store across a network. They cost nothing until then.
const REMOTE_SPARE_WORKERS: usize = 128;
/// Name of the log file within the volume's directory.
const LOG_NAME: &str = "mount.log";

/// Mount a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel mount /data/vol /mnt/data
  kestrel mount /data/vol /mnt/data --read-only --allow-other
  kestrel mount /data/vol /mnt/data --foreground --log-level debug
  kestrel mount /data/vol /mnt/data --metrics 127.0.0.1:9464
  kestrel mount /data/vol /mnt/data --cache-dir /ssd/cache --cache-size 500G

Returns when the mount serves; the serving process stays in the background and writes to the log file that is named.
SIGTERM and SIGINT unmount cleanly; a second one cuts off those who still use the mount.")]
pub struct MountArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// Where: an existing directory
    pub dir: PathBuf,
    /// Stay in the foreground and log to the terminal
    #[arg(short, long)]
    pub foreground: bool,
    /// Allow no changes
    #[arg(short, long)]
    pub read_only: bool,
    /// Others than the mounting user may use it
    #[arg(long)]
    pub allow_other: bool,
    /// Options as for mount(8): ro, noexec, nosuid, allow_other, …
    #[arg(short = 'o', value_delimiter = ',', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Serve figures for Prometheus at http://ADDR/metrics, as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Log file; mount.log in the volume's directory by default
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = log_level_arg)]
    pub log_level: LevelFilter,
    /// Memory for metadata rows
    #[arg(long, value_parser = size_arg, value_name = "SIZE", default_value = "512M")]
    pub metadata_memory: u64,
    /// Memory for verified file data; 64M by default, 256M with an s3:// store
    #[arg(long, value_parser = size_arg, value_name = "SIZE")]
    pub data_cache: Option<u64>,
    /// Memory for data written and not yet stored
    #[arg(long, value_parser = size_arg, value_name = "SIZE", default_value = "256M")]
    pub write_buffer: u64,
    /// Threads that answer the kernel; 0: by cores
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
    /// How long the kernel may trust attributes; 0 as for several clients
    #[arg(long, value_parser = duration_arg, value_name = "TIME", default_value = "0")]
    pub attr_timeout: Duration,
    /// How long the kernel may trust names
    #[arg(long, value_parser = duration_arg, value_name = "TIME", default_value = "0")]
    pub entry_timeout: Duration,
    /// Set for the process in the background
    #[arg(long, hide = true)]
    pub report_readiness: bool,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub store: StoreArgs,
}

fn log_level_arg(text: &str) -> Result<LevelFilter, String> {
    text.parse().map_err(|_| format!("{text:?} is none of error, warn, info, debug, trace, off"))
}

/// Mounts, in the background unless told otherwise.
pub fn run(args: &MountArgs) -> Result<Verdict, Failure> {
    if !args.foreground {
        return background(args);
    }
    crate::logger::install(args.log_level);
    let served = serve(args);
    if let (Err(failure), true) = (&served, args.report_readiness) {
        daemon::report_error(&failure.reason());
    }
    served
}

/// What can be judged without opening the volume, so that mistakes are told before a process goes to the background.
fn check(args: &MountArgs) -> Result<(PathBuf, PathBuf, MountOptions), Failure> {
    let volume = locate("mount", &args.volume)?;
    Descriptor::read(&volume).map_err(|why| Failure::new("mount", why))?;
    let dir = &args.dir;
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", format!("{}: {why}", dir.display()));
    let dir = match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => std::fs::canonicalize(dir).map_err(|why| fail(&why))?,
        Ok(_) => return Err(fail(&"not a directory; give an existing directory")),
        // A dead mount answers ENOTCONN; the FUSE layer takes it away.
        Err(why) if why.raw_os_error() == Some(libc::ENOTCONN) => {
            std::path::absolute(dir).map_err(|why| fail(&why))?
        }
        Err(why) => return Err(fail(&format!("{why}; give an existing directory"))),
    };
    if volume.starts_with(&dir) {
        return Err(fail(&"the volume lies below it and would be hidden; mount it elsewhere"));
    }
    let mut options =
        MountOptions { source: volume.to_string_lossy().into_owned(), ..MountOptions::default() };
    for option in args.options.iter().filter(|option| !option.is_empty()) {
        if !options.set(option) {
            return Err(Failure::usage(format!(
                "mount: -o {option}: unknown option; see `kestrel mount --help`"
            )));
        }
    }
    options.allow_other |= args.allow_other;
    options.read_only |= args.read_only;
    if args.metadata_memory < METADATA_MEMORY_MIN {
        return Err(Failure::usage(format!(
            "mount: --metadata-memory {}: at least 16M",
            args.metadata_memory
        )));
    }
    if args.workers > WORKERS_MAX {
        return Err(Failure::usage(format!("mount: --workers {}: at most {WORKERS_MAX}", args.workers)));
    }
    args.store.options("mount")?;
    Ok((volume, dir, options))
}

fn background(args: &MountArgs) -> Result<Verdict, Failure> {
    let (volume, dir, _) = check(args)?;
    let log = args.log.clone().unwrap_or_else(|| volume.join(LOG_NAME));
    let log = std::path::absolute(&log).unwrap_or(log);
    let pid = daemon::start(&log).map_err(|why| Failure::new("mount", why))?;
    println!("{} is mounted on {} (process {pid}, log {})", volume.display(), dir.display(), log.display());
    Ok(Verdict::Good)
}

fn resources(args: &MountArgs) -> Result<Resources, Failure> {
    let mut store = args.store.options("mount")?;
    args.cache.add_to(&mut store);
    Ok(Resources {
        metadata_bytes: args.metadata_memory,
        data_cache_bytes: args.data_cache.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        dirty_bytes_max: args.write_buffer,
        store,
        ..Resources::default()
    })
}

/// Serves until the mount is gone.
fn serve(args: &MountArgs) -> Result<Verdict, Failure> {
    let (volume_dir, dir, options) = check(args)?;
    crate::serve::limits::raise_descriptor_limit();
    let begun = Instant::now();
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let role = format!("kestrel mount {}", dir.display());
    let resources = resources(args)?;
    let url = volume_dir.to_string_lossy().into_owned();
    let read_only = options.read_only;
    let mounted = Volume::open(&url, &role, &resources)
        .and_then(|volume| volume.serve(&resources, read_only))
        .map_err(|why| fail(&why))?;
    let fs = mounted.fs.clone();
    let serving = Arc::new(Serving {
        fs: fs.clone(),
        engine: mounted.volume.engine.clone(),
        store: mounted.volume.store.clone(),
        storage: mounted.volume.storage.clone(),
        descriptor: mounted.volume.descriptor.clone(),
        dir: volume_dir.clone(),
        mount_point: dir.clone(),
        read_only,
        begun,
        walking: parking_lot::Mutex::default(),
    });
    let result = attend(args, &dir, options, &serving);
    let stored = fs
        .shutdown()
        .map_err(|why| why.to_string())
        .and_then(|()| mounted.volume.engine.settle().map_err(|why| why.to_string()));
    if let Err(why) = &stored {
        log::error!("the last changes could not be stored: {why}");
    }
    let result = result.and_then(|verdict| stored.map(|()| verdict).map_err(|why| fail(&why)));
    drop((serving, fs, mounted));
    log::info!("{} closed", volume_dir.display());
    result
}

/// Opens all doors, waits for the end, closes them.
fn attend(
    args: &MountArgs,
    dir: &Path,
    options: MountOptions,
    serving: &Arc<Serving>,
) -> Result<Verdict, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let answering = serving.clone();
    let control = ControlSocket::serve(
        &serving.dir,
        Arc::new(move |question, teller| answering.answer(question, teller)),
    )
    .map_err(|why| fail(&why))?;
    let figures = serving.clone();
    let page = move || crate::metrics::prometheus(&figures.snapshot());
    let metrics = args.metrics.map(|address| MetricsPort::serve(address, Arc::new(page))).transpose();
    let metrics = metrics.map_err(|why| fail(&why))?;
    // Writers that are faster than a store across a network wait for it on threads of their own.
    let spare_workers = match serving.store.is_remote() {
        true => REMOTE_SPARE_WORKERS,
        false => Config::default().spare_workers,
    };
    let config = MountConfig {
        options,
        session: Config { workers: args.workers, spare_workers, ..Config::default() },
        attr_ttl: args.attr_timeout,
        entry_ttl: args.entry_timeout,
    };
    let session = kestrel_mount::mount(serving.fs.clone(), dir, &config).map_err(|why| fail(&why))?;
    unmount_on_signal(&session, dir);
    let (mode, took) = (if serving.read_only { " read-only" } else { "" }, serving.begun.elapsed());
    log::info!("{} serves on {}{mode} after {took:.1?}", serving.dir.display(), dir.display());
    if let Some(metrics) = &metrics {
        log::info!("figures at http://{}/metrics", metrics.address());
    }
    if args.report_readiness {
        daemon::report_ready();
        // Keeps no directory busy.
        let _ = std::env::set_current_dir("/");
    }
    let end = session.join().map_err(|why| fail(&why))?;
    drop((metrics, control));
    match end {
        End::Unmounted => Ok(Verdict::Good),
        End::Aborted => {
            log::warn!("{}: the connection was cut", dir.display());
            Ok(Verdict::Bad)
        }
    }
}

/// The first signal unmounts (busy: takes the mount out of the tree and waits for those who use it), the next one cuts them
/// off.
fn unmount_on_signal(session: &Session, dir: &Path) {
    let unmounter = session.unmounter();
    let dir = dir.to_path_buf();
    crate::signals::on_signal(move |number| {
        let done = if number == 1 {
            unmounter.unmount().or_else(|why| {
                log::warn!(
                    "{}: {why}: detached; it ends when nobody uses it, or at a second signal",
                    dir.display()
                );
                unmounter.detach()
            })
        } else {
            unmounter.force()
        };
        if let Err(why) = done {
            log::error!("{}: {why}", dir.display());
        }
    });
}
