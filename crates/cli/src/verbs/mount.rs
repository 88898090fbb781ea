//! `kestrel mount`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use kestrel_client::control::QUICK;
use kestrel_client::descriptor::{Descriptor, volume_dir};
use kestrel_client::error::VolumeError;
use kestrel_client::follow::{self, FOLLOW_EVERY, FollowedVolume};
use kestrel_client::fs::{AccessTimes, Fs};
use kestrel_client::memory::{Wanted, Work};
use kestrel_client::remote::{self, Ca, Introduction, RemoteUrl, RemoteVolume};
use kestrel_client::snapshot::SnapshotUrl;
use kestrel_client::state_dir::{is_bucket_url, without_parameters};
use kestrel_client::storage::Storage;
use kestrel_client::version::{OpenVersion, VersionUrl};
use kestrel_client::volume::{Resources, Volume, VolumeLock};
use kestrel_daemon::Serving;
use kestrel_daemon::ask::{locate, locate_anew};
use kestrel_daemon::atime;
use kestrel_daemon::backup_schedule::{BackupScheduler, Schedule};
use kestrel_daemon::collector::{Collecting, Collector};
use kestrel_daemon::endpoints::{ControlEndpoint, Endpoints};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::follower_mount::FollowerMount;
use kestrel_daemon::memory::Memory;
use kestrel_daemon::mount_status::MountStatus;
use kestrel_daemon::remote::RemoteMount;
use kestrel_daemon::runtime;
use kestrel_daemon::served_volume::ServedVolume;
use kestrel_daemon::snapshots::keeper::{KeepingSnapshots, SnapshotKeeper};
use kestrel_daemon::supervisor::{self, Settle, Supervised};
use kestrel_daemon::units::{duration_arg, size_arg};
use kestrel_daemon::version_mount::VersionMount;
use kestrel_fuse::mount::{MountEntry, find, is_dead, remount};
use kestrel_fuse::{Config, End, MountOptions, Session, TransportChoice};
use kestrel_rpc::tls::TlsMode;
use kestrel_vfs::{MountConfig, NAMES_MAX, PassthroughConfig, ShortcutConfig};

use super::{ask_with, control_dir};
use crate::args::atime::AtimeArg;
use crate::args::store::{CacheArgs, StoreArgs};
use crate::args::{BackupScheduleArgs, CollectorArgs, LogDirArgs, ProcessArgs, client_resources};

/// Most FUSE threads.
const WORKERS_MAX: usize = 256;
/// Further FUSE threads, for writers that wait for a store across a network. They cost nothing
/// until then.
const REMOTE_SPARE_WORKERS: usize = 128;
/// How long a call may wait for a metadata server.
const DEADLINES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(900);
/// How often a mount that follows another process may look for changes.
const FOLLOW_EVERY_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// The option by which a mount that is there is changed.
const REMOUNT: &str = "remount";
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
  kestrel mount kestrel://meta1:9440/photos /mnt/photos
  kestrel mount /data/vol /mnt/data -o remount,ro
  kestrel mount /data/vol /mnt/data --atime relatime
  kestrel mount 's3://bucket/photos?region=eu-1' /mnt/photos
  kestrel mount 's3://bucket/photos?region=eu-1' /mnt/photos --log-dir /nvme/photos
  kestrel mount 's3://bucket/photos?region=eu-1' /mnt/see --read-only
  kestrel mount /data/vol@monday /mnt/monday
  kestrel mount kestrel://meta1/photos:/2026@monday /mnt/monday
  kestrel mount 's3://bucket/photos//imagenet@v3?region=eu-1' /mnt/imagenet
  kestrel mount /data/vol /mnt/data --supervised=upgrade

The command returns when the mount serves. The process that serves it stays in the background and
writes to the log file that the command names. SIGTERM and SIGINT unmount cleanly; a second one cuts
off the programs that still use the mount. A mount is nosuid,nodev unless -o suid,dev says
otherwise.

All options: kestrel mount --help-all. The options of -o, /etc/fstab: docs/operations/mount.md.")]
pub struct MountArgs {
    /// The volume: a path, file:///path, s3://BUCKET/PREFIX or
    /// kestrel://host[:port][,host2…]/NAME
    ///
    /// With @SNAPSHOT or :/DIR@SNAPSHOT behind it: the volume, or a directory of it, as it was at
    /// that snapshot, read-only. With //VERSION behind it: a published version, which no server
    /// is asked for. What follows the ? of a URL stays at its end.
    pub volume: String,
    /// Where: an existing directory
    pub dir: PathBuf,
    /// Mount over a volume that is mounted there already, and hide it
    #[arg(long)]
    pub stack: bool,
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Allow no changes. A volume that a bucket has all of is read beside its writer
    #[arg(short, long)]
    pub read_only: bool,
    /// With --read-only, of a volume that a bucket has all of: how often the mount looks for what
    /// the process that writes has changed, 100ms to 1h [default: 1s]
    #[arg(long, value_parser = duration_arg, value_name = "TIME")]
    pub follow_every: Option<Duration>,
    /// Others than the mounting user may use it
    #[arg(long)]
    pub allow_other: bool,
    /// Options as for mount(8): ro, noexec, nosuid, allow_other, …; `remount` changes a mount
    #[arg(short = 'o', value_delimiter = ',', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Which reads change access times; as the volume says by default (`kestrel config`); as -o
    /// atime=…
    #[arg(long, value_enum, value_name = "MODE")]
    pub atime: Option<AtimeArg>,
    /// How long a call waits for a metadata server that does not answer, before it fails with EIO
    #[arg(long, value_parser = duration_arg, value_name = "TIME", default_value = "60s")]
    pub deadline: Duration,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Memory for verified file data; 64M by default, 256M with an s3:// store, less where there is
    /// little
    #[arg(long, value_parser = size_arg, value_name = "SIZE")]
    pub data_cache: Option<u64>,
    /// Memory for data written and not yet stored; 256M by default, less where there is little
    #[arg(long, value_parser = size_arg, value_name = "SIZE")]
    pub write_buffer: Option<u64>,
    /// Threads that answer the kernel; 0: by cores
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
    /// Over what the kernel's requests come: uring, device (/dev/fuse), or auto: uring where root
    /// has switched it on
    #[arg(long, default_value_t, value_name = "auto|uring|device")]
    pub transport: TransportChoice,
    /// How long the kernel may trust attributes [default: 0; of files that only this mount can
    /// change, 1s]
    #[arg(long, value_parser = duration_arg, value_name = "TIME")]
    pub attr_timeout: Option<Duration>,
    /// How long the kernel may trust names; with the shortcut, names of files
    #[arg(long, value_parser = duration_arg, value_name = "TIME", default_value = "0")]
    pub entry_timeout: Duration,
    /// How long attributes that came with a listing may answer the thread that lists, while it has
    /// the directory open; 0: not at all
    #[arg(long, value_parser = duration_arg, value_name = "TIME", default_value = "1s")]
    pub listing_timeout: Duration,
    /// Look up every component of a path, instead of one request an operation (docs/shortcut.md)
    #[arg(long)]
    pub no_shortcut: bool,
    /// How long the kernel may trust the name of a directory after an operation has gone through
    /// it, with the shortcut: at most 1s; 100ms by default where only this mount changes the
    /// volume, else 0
    #[arg(long, value_parser = names_arg, value_name = "TIME", conflicts_with = "no_shortcut")]
    pub shortcut_names: Option<Duration>,
    /// Whether the kernel reads files by itself of which the disk cache has whole copies
    /// (docs/cache.md)
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = PassthroughArg::Auto)]
    pub passthrough: PassthroughArg,
    /// The mount outlives its process: `kestrel upgrade` replaces that while programs go on
    /// (docs/operations/upgrade.md). Without shortcut, pass-through and io_uring
    #[arg(long, value_enum, value_name = "upgrade|crash", num_args = 0..=1, require_equals = true,
        default_missing_value = "crash")]
    pub supervised: Option<SupervisedArg>,
    #[command(flatten)]
    pub log_dir: LogDirArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub dumps: BackupScheduleArgs,
    #[command(flatten)]
    pub leftovers: CollectorArgs,
}

/// How connections to a metadata server are encrypted, as the URL says it, too.
#[derive(Debug, Args)]
pub struct TrustArgs {
    /// By what the server is known: a fingerprint or a file; `kestrel cluster ca` prints both
    #[arg(long, value_name = "FILE|sha256:HEX")]
    pub ca: Option<String>,
    /// Which connections are encrypted: auto, those with other machines; on, all; off, none; as
    /// ?tls=… in the URL
    #[arg(long, value_name = "auto|on|off")]
    pub tls: Option<TlsMode>,
    /// A file with the certificate that this client shows, and its key; as ?cert=… in the URL
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
}

impl TrustArgs {
    /// Adds it to a URL.
    pub fn add_to(&self, verb: &str, url: &mut RemoteUrl) -> Result<(), Failure> {
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        match self.ca.as_deref() {
            None => {}
            Some(fingerprint) if fingerprint.starts_with("sha256:") => {
                let read = fingerprint
                    .parse()
                    .map_err(|why| Failure::usage(format!("{verb}: --ca: {why}")));
                url.ca = Some(read?);
            }
            Some(file) => url.ca = Some(Ca::File(whole(Path::new(file)))),
        }
        url.tls = self.tls.unwrap_or(url.tls);
        if let Some(file) = &self.certificate {
            url.certificate = Some(whole(file));
        }
        Ok(())
    }

    /// Whether nothing of it is given.
    pub fn is_none(&self, verb: &str) -> Result<(), Failure> {
        match (&self.ca, &self.tls, &self.certificate) {
            (None, None, None) => Ok(()),
            _ => Err(Failure::usage(format!(
                "{verb}: --ca, --tls and --certificate are for served volumes: kestrel://…",
            ))),
        }
    }
}

/// When the kernel reads files by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PassthroughArg {
    /// Where the kernel, our rights and the cache directory permit it
    Auto,
    /// Never
    Off,
}

/// What a mount outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SupervisedArg {
    /// That its process is replaced
    Upgrade,
    /// That, and that its process is killed
    Crash,
}

/// Why no mount outlives that its process is killed.
const NO_CRASH: &str = "mount: --supervised: no mount outlives a crash of its process yet: what \
                        programs have written and it has not stored would be lost; \
                        --supervised=upgrade keeps the mount while `kestrel upgrade` replaces its \
                        process";

/// The supervisor of this process, if it has one.
static SUPERVISED: OnceLock<Option<Arc<Supervised>>> = OnceLock::new();

fn supervised() -> Option<&'static Arc<Supervised>> {
    SUPERVISED.get().and_then(Option::as_ref)
}

/// Mounts, in the background unless told otherwise.
pub fn run(args: &MountArgs) -> Result<ExitStatus, Failure> {
    let supervised = Supervised::from_environment().map_err(|why| Failure::new("mount", why))?;
    SUPERVISED.get_or_init(|| supervised);
    if args.options.iter().any(|option| option == REMOUNT) {
        return change(args);
    }
    args.process.options().run(|| background(args), || serve(args))
}

/// `-o remount`: changes the options of a mount that is there.
fn change(args: &MountArgs) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let dir = args.dir.display();
    let mounted = find(&args.dir).map_err(|why| fail(&why))?;
    let named =
        if is_bucket_url(&args.volume) { without_parameters(&args.volume) } else { &args.volume };
    let follows =
        mounted.as_ref().is_some_and(|entry| entry.source.to_str().is_some_and(is_bucket_url));
    if follows && args.options.iter().any(|option| option == "rw") {
        return Err(fail(&format!(
            "{dir}: it follows the process that writes the volume; to write, unmount it and mount \
             it without --read-only"
        )));
    }
    if let Some(entry) = mounted.filter(|entry| entry.source.as_os_str() != named) {
        let same = |path: &Path| std::fs::canonicalize(path).ok();
        let here = volume_dir(&args.volume).ok().and_then(|dir| same(&dir));
        if here.is_none() || here != same(Path::new(&entry.source)) {
            let (is, source) = (&args.volume, entry.source.to_string_lossy());
            return Err(fail(&format!("{dir}: {source} is mounted there, not {is}")));
        }
    }
    let options =
        args.options.iter().map(String::as_str).filter(|one| !one.is_empty() && *one != REMOUNT);
    let atime = args.atime.map(|mode| format!("atime={}", mode.mode().as_str()));
    let options: Vec<&str> =
        options.chain(args.read_only.then_some("ro")).chain(atime.as_deref()).collect();
    let now =
        remount(&args.dir, options.iter().copied()).map_err(|why| match why.raw_os_error() {
            Some(libc::EBUSY) => fail(&format!(
                "{dir}: files are open for writing (`fuser -vm {dir}` lists their processes)"
            )),
            Some(libc::EPERM) => {
                fail(&format!("{dir}: only root can change the options of a mount"))
            }
            _ => fail(&why),
        })?;
    // What of it the kernel leaves to the file system is for its process.
    let mut said = MountOptions::default();
    for option in &options {
        said.set(option);
    }
    let Some(entry) = find(&args.dir).map_err(|why| fail(&why))? else {
        return Ok(ExitStatus::Good);
    };
    let question = atime::question(said.atime, now.nodiratime, now.read_only);
    let told = ask_with("mount", &control_dir(&entry), &question, QUICK, &mut |_| ());
    told.map_err(|why| {
        let what = "the options have changed, but its process does not take those of access times";
        fail(&format!("{dir}: {what}: {why}"))
    })?;
    Ok(ExitStatus::Good)
}

/// Which volume is to be mounted.
enum Source {
    /// The one in this directory.
    Here(PathBuf),
    /// The one served there.
    Served(RemoteUrl),
    /// A published version of one.
    Version(VersionUrl),
    /// The one that a bucket has all of, beside the process that writes it: its state directory,
    /// and its URL without parameters.
    Followed(PathBuf, String),
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::Here(dir) => dir.to_string_lossy().into_owned(),
            Self::Served(url) => url.place(),
            Self::Version(url) => url.to_string(),
            Self::Followed(_, url) => url.clone(),
        }
    }
}

/// What to mount, and how.
struct Plan {
    source: Source,
    /// The snapshot at which it is mounted.
    at: Option<SnapshotUrl>,
    /// Mount point.
    dir: PathBuf,
    options: MountOptions,
}

impl Plan {
    /// What `df` and messages call it.
    fn name(&self) -> String {
        self.at.as_ref().map_or_else(|| self.source.name(), SnapshotUrl::to_string)
    }

    /// Nothing of it ever changes.
    fn is_immutable(&self) -> bool {
        self.at.is_some() || matches!(self.source, Source::Version(_))
    }

    /// What is mounted of the volume that `live` is open on.
    fn seen(&self, live: &Arc<Fs>) -> Result<Arc<Fs>, Failure> {
        match &self.at {
            None => Ok(live.clone()),
            Some(at) => at.open(live).map_err(|why| Failure::new("mount", why)),
        }
    }
}

/// A time of at most [`NAMES_MAX`].
fn names_arg(text: &str) -> Result<Duration, String> {
    let names = duration_arg(text)?;
    if names > NAMES_MAX {
        return Err(format!(
            "at most {} s: a change that takes search permission away waits as long",
            NAMES_MAX.as_secs()
        ));
    }
    Ok(names)
}

/// The KestrelFS mount on exactly this directory, if its process answers. What a killed process
/// left there is in nobody's way: mounting takes it away.
fn live_mount(dir: &Path) -> Option<MountEntry> {
    find(dir).ok().flatten().filter(|entry| entry.is_kestrel() && !is_dead(dir))
}

/// What can be judged without opening the volume, so that mistakes are told before a process goes
/// to the background.
fn check(args: &MountArgs) -> Result<Plan, Failure> {
    let version =
        VersionUrl::parse(&args.volume).map_err(|why| Failure::usage(format!("mount: {why}")))?;
    let mut at = match &version {
        // The name of a version may have an @, too.
        Some(_) => None,
        None => SnapshotUrl::parse(&args.volume)
            .map_err(|why| Failure::usage(format!("mount: {why}")))?,
    };
    let volume = at.as_ref().map_or(&args.volume, |at| &at.volume);
    let source = if let Some(mut version) = version {
        if RemoteUrl::is_one(&version.volume) {
            let mut url = RemoteUrl::parse(&version.volume)
                .map_err(|why| Failure::usage(format!("mount: {why}")))?;
            args.trust.add_to("mount", &mut url)?;
            version.volume = url.to_string();
        } else {
            args.trust.is_none("mount")?;
            // A path that holds in any directory: the process in the background works in another
            // one. Of a bucket it is that of the state directory.
            let find = if args.process.report_readiness { locate } else { locate_anew };
            let volume = find("mount", &version.volume, args.store.credentials.as_deref())?;
            version.volume = volume.to_string_lossy().into_owned();
        }
        Source::Version(version)
    } else if RemoteUrl::is_one(volume) {
        let mut url =
            RemoteUrl::parse(volume).map_err(|why| Failure::usage(format!("mount: {why}")))?;
        args.trust.add_to("mount", &mut url)?;
        // A file that cannot be used is told now.
        remote::token()
            .and_then(|token| url.client_tls(token.as_deref()))
            .map_err(|why| Failure::new("mount", why))?;
        Source::Served(url)
    } else {
        args.trust.is_none("mount")?;
        // The process in the background is told by the one that starts it.
        let find = if args.process.report_readiness { locate } else { locate_anew };
        let fail = |why: VolumeError| Failure::new("mount", why);
        let found = find("mount", volume, args.store.credentials.as_deref())?;
        Descriptor::read(&found).map_err(fail)?;
        let follows = is_read_only(args) && follow::is_followed(&found).map_err(fail)?;
        let source = match follows {
            true => Source::Followed(found, without_parameters(volume).to_string()),
            false => Source::Here(found),
        };
        if let Some(at) = &mut at {
            // By it other commands find the process.
            at.volume = source.name();
        }
        source
    };
    if !matches!(source, Source::Followed(..)) && args.follow_every.is_some() {
        return Err(Failure::usage(
            "mount: --follow-every is for a volume that a bucket has all of, with --read-only",
        ));
    }
    let dir = match supervised().and_then(|supervised| supervised.takes_over()) {
        Some(dir) => dir,
        None => mount_point(args, &source)?,
    };
    let mut plan = Plan { source, at, dir, options: MountOptions::default() };
    let mut options = MountOptions { source: plan.name(), ..MountOptions::default() };
    for option in args.options.iter().filter(|option| !option.is_empty()) {
        if !options.set(option) {
            return Err(Failure::usage(format!(
                "mount: -o {option}: unknown option; see `kestrel mount --help`"
            )));
        }
    }
    options.allow_other |= args.allow_other;
    options.read_only |= args.read_only || plan.is_immutable();
    options.atime = args.atime.map(AtimeArg::option).or(options.atime);
    if args.workers > WORKERS_MAX {
        return Err(Failure::usage(format!(
            "mount: --workers {}: at most {WORKERS_MAX}",
            args.workers
        )));
    }
    if !DEADLINES.contains(&args.deadline) {
        return Err(Failure::usage(format!("mount: --deadline {:?}: 1s to 15m", args.deadline)));
    }
    if matches!(plan.source, Source::Followed(..)) {
        check_followed(args)?;
    }
    let is_elsewhere = matches!(plan.source, Source::Served(_) | Source::Version(_));
    if is_elsewhere && args.leftovers != CollectorArgs::default() {
        return Err(Failure::usage(
            "mount: --collect-every, --collect-grace: the volume's server collects: give them to \
             `kestrel serve`",
        ));
    }
    if is_elsewhere && args.dumps != BackupScheduleArgs::default() {
        return Err(Failure::usage(
            "mount: --dump-every, --dump-keep: the volume's server takes its dumps: give them to \
             `kestrel serve`",
        ));
    }
    if is_elsewhere && !args.log_dir.is_none() {
        return Err(Failure::usage(
            "mount: --log-dir, --discard-log: for volumes with metadata in a bucket; of a served \
             one give them to `kestrel serve`",
        ));
    }
    if let Some(mode) = args.supervised {
        check_supervised(args, &plan, &options, mode)?;
    }
    plan.options = options;
    Ok(plan)
}

/// Where to mount: a directory on which nothing of ours is mounted.
fn mount_point(args: &MountArgs, source: &Source) -> Result<PathBuf, Failure> {
    let dir = &args.dir;
    let fail =
        |why: &dyn std::fmt::Display| Failure::new("mount", format!("{}: {why}", dir.display()));
    let dir = match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => std::fs::canonicalize(dir).map_err(|why| fail(&why))?,
        Ok(_) => return Err(fail(&"not a directory; give an existing directory")),
        // A dead mount answers ENOTCONN; the FUSE layer takes it away.
        Err(why) if why.raw_os_error() == Some(libc::ENOTCONN) => {
            std::path::absolute(dir).map_err(|why| fail(&why))?
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            let make = format!("mkdir -p {}", dir.display());
            return Err(fail(&format!("{why}; give an existing directory, or make it: {make}")));
        }
        Err(why) => return Err(fail(&format!("{why}; give an existing directory"))),
    };
    if !args.stack
        && let Some(mounted) = live_mount(&dir)
    {
        let mounted = mounted.source.to_string_lossy();
        // The files of such a mount's process are found by its mount point: there can be one.
        let once = (RemoteUrl::is_one(&mounted) || is_bucket_url(&mounted))
            && !matches!(source, Source::Here(_));
        let or = if once { "" } else { ", or mount over it with --stack" };
        let what = format!("unmount it with `kestrel umount {}`{or}", dir.display());
        return Err(fail(&format!("{mounted} is mounted there already; {what}")));
    }
    if matches!(&source, Source::Here(volume) if volume.starts_with(&dir)) {
        return Err(fail(&"the volume lies below it and would be hidden; mount it elsewhere"));
    }
    Ok(dir)
}

/// Refuses to supervise what cannot be handed over.
fn check_supervised(
    args: &MountArgs,
    plan: &Plan,
    options: &MountOptions,
    mode: SupervisedArg,
) -> Result<(), Failure> {
    let refuse = |why: &str| Err(Failure::usage(format!("mount: --supervised: {why}")));
    if mode == SupervisedArg::Crash {
        return Err(Failure::usage(NO_CRASH));
    }
    if !matches!(plan.source, Source::Here(_) | Source::Served(_)) || plan.at.is_some() {
        return refuse(
            "mounts of snapshots, of published versions and beside another process cannot be \
             handed over: nothing changes in them, and they can be mounted anew at any time",
        );
    }
    if options.auto_unmount {
        return refuse("-o auto_unmount ends the mount with its process; leave one of the two out");
    }
    if args.transport == TransportChoice::Uring {
        return refuse("--transport uring: rings end with their process; leave one of the two out");
    }
    Ok(())
}

/// Whether nothing may be changed through the mount.
fn is_read_only(args: &MountArgs) -> bool {
    let mut said = MountOptions::default();
    for option in &args.options {
        said.set(option);
    }
    args.read_only || said.read_only
}

/// Refuses options that a mount has no use for which follows another process.
fn check_followed(args: &MountArgs) -> Result<(), Failure> {
    if args.process.take_over {
        return Err(Failure::usage(
            "mount: --take-over with --read-only: a mount that only reads leaves the volume to the \
             process that has it open; leave one of the two out",
        ));
    }
    if args.follow_every.is_some_and(|every| !FOLLOW_EVERY_RANGE.contains(&every)) {
        return Err(Failure::usage("mount: --follow-every: 100ms to 1h"));
    }
    if args.leftovers != CollectorArgs::default() || args.dumps != BackupScheduleArgs::default() {
        return Err(Failure::usage(
            "mount: --collect-every, --collect-grace, --dump-every, --dump-keep: a mount with \
             --read-only collects and dumps nothing: give them to the mount that writes",
        ));
    }
    Ok(())
}

fn background(args: &MountArgs) -> Result<ExitStatus, Failure> {
    let plan = check(args)?;
    let log = match &plan.source {
        Source::Here(volume) => volume.join(LOG_NAME),
        Source::Served(_) | Source::Version(_) | Source::Followed(..) => {
            runtime::make(&plan.dir).map_err(|why| Failure::new("mount", why))?.join(LOG_NAME)
        }
    };
    let (pid, log) =
        args.process.options().start(&log).map_err(|why| Failure::new("mount", why))?;
    let base = is_bucket_url(&args.volume).then(|| without_parameters(&args.volume));
    println!(
        "{} is mounted on {} (process {pid}, log {})",
        base.map_or_else(|| plan.name(), String::from),
        plan.dir.display(),
        log.display()
    );
    Ok(ExitStatus::Good)
}

/// The memory of this process, as far as it is not set divided to fit its limit.
fn divide_memory(args: &MountArgs) -> Result<Memory, Failure> {
    let wanted = Wanted {
        metadata_bytes: args.process.metadata_memory,
        dirty_bytes_max: args.write_buffer,
        data_cache_bytes: args.data_cache,
    };
    Memory::divide("mount", Work::Mount, wanted)
}

fn resources(args: &MountArgs, memory: &Memory) -> Resources {
    let store = (&args.store, &args.cache);
    client_resources(&args.process, &args.log_dir, store, (args.data_cache, memory))
}

/// Serves until the mount is gone.
fn serve(args: &MountArgs) -> Result<ExitStatus, Failure> {
    let plan = check(args)?;
    if args.supervised.is_some() && supervised().is_none() {
        return supervisor::run(&supervisor::own_args());
    }
    kestrel_daemon::limits::raise_descriptor_limit();
    let memory = divide_memory(args)?;
    let name = plan.name();
    let result = match &plan.source {
        Source::Here(volume) => serve_here(args, &plan, &memory, volume),
        Source::Served(url) => serve_elsewhere(args, &plan, &memory, url),
        Source::Version(url) => serve_version(args, &plan, &memory, url),
        Source::Followed(dir, url) => serve_followed(args, &plan, &memory, (dir, url)),
    };
    log::info!("{name} closed");
    result
}

/// Serves a volume with its metadata here.
fn serve_here(
    args: &MountArgs,
    plan: &Plan,
    memory: &Memory,
    volume_dir: &Path,
) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let role = format!("kestrel mount {}", plan.dir.display());
    let resources = resources(args, memory);
    let url = plan.source.name();
    let read_only = plan.options.read_only;
    let figures = supervised()
        .and_then(|supervised| supervised.with_note(|note| note.client.figures))
        .flatten();
    let mounted = Volume::open(&url, &role, &resources)
        .and_then(|volume| match args.supervised {
            None => volume.serve(&resources, read_only),
            Some(_) => volume.serve_handed_over(&resources, read_only, figures),
        })
        .map_err(|why| fail(&why))?;
    let fs = mounted.fs.clone();
    if let (Some(node), true) = (fs.node(), begins_supervised()) {
        // Nobody has anything open.
        node.end_grace().map_err(|why| fail(&why))?;
    }
    let serving = Arc::new(Serving {
        volume: Arc::new(ServedVolume {
            fs: fs.clone(),
            engine: mounted.volume.engine.clone(),
            store: mounted.volume.store.clone(),
            storage: mounted.volume.storage.clone(),
            descriptor: mounted.volume.descriptor.clone(),
            dir: volume_dir.to_path_buf(),
            mount_point: Some(plan.dir.clone()),
            read_only,
            walking: parking_lot::Mutex::default(),
        }),
        clients: OnceLock::new(),
        node: None,
        facts: MountStatus::new(memory),
        begun,
        cutting: kestrel_daemon::cutting::Cutting::default(),
        keeper: Arc::new(BackupScheduler::new(
            args.dumps.options(),
            args.store.options(),
            TlsMode::Auto,
        )),
        collector: Arc::new(Collector::new(
            args.leftovers.options(),
            args.store.options(),
            TlsMode::Auto,
        )),
        snapshots: Arc::new(SnapshotKeeper::default()),
        succession: OnceLock::new(),
        end: None,
    });
    let schedule = Schedule::begin(&serving.keeper, &serving.volume)
        .map_err(|why| fail(&format!("no thread for dumps: {why}")))?;
    let collecting = Collecting::begin(&serving.collector, &serving.volume)
        .map_err(|why| fail(&format!("no thread to collect with: {why}")))?;
    let snapshots = KeepingSnapshots::begin(&serving.snapshots, &serving.volume)
        .map_err(|why| fail(&format!("no thread for snapshots: {why}")))?;
    let engine = mounted.volume.engine.clone();
    let settle: Settle = Box::new(move || engine.settle().map_err(|why| why.to_string()));
    let attended = |seen: Arc<Fs>| {
        let data = (&seen, &*serving.volume.storage, settle);
        attend(args, plan, memory, data, volume_dir, (&serving, &serving.facts), begun)
    };
    let result = plan.seen(&fs).and_then(attended);
    drop(snapshots);
    drop(collecting);
    drop(schedule);
    let stored = fs
        .shutdown()
        .map_err(|why| why.to_string())
        .and_then(|()| mounted.volume.engine.settle().map_err(|why| why.to_string()));
    ended(result, stored)
}

/// Serves a volume with its metadata at a server.
fn serve_elsewhere(
    args: &MountArgs,
    plan: &Plan,
    memory: &Memory,
    url: &RemoteUrl,
) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let mount_point = plan.dir.display();
    let dir = runtime::make(&plan.dir).map_err(|why| fail(&why))?;
    let _lock = VolumeLock::take(&dir, &format!("kestrel mount {mount_point}"))
        .map_err(|why| fail(&why))?;
    let introduction = Introduction {
        who: kestrel_daemon::who(&format!("kestrel mount {mount_point}")),
        deadline: args.deadline,
        read_only: plan.options.read_only,
    };
    let sessions = supervised()
        .and_then(|supervised| supervised.with_note(|note| note.client.sessions.clone()))
        .unwrap_or_default();
    let (url, resources) = (url.to_string(), resources(args, memory));
    let volume = RemoteVolume::resume(&url, &introduction, &resources, &sessions)
        .map_err(|why| fail(&why))?;
    attend_remote(args, plan, memory, &dir, volume, begun)
}

/// Serves what servers or curators serve.
fn attend_remote(
    args: &MountArgs,
    plan: &Plan,
    memory: &Memory,
    dir: &Path,
    volume: RemoteVolume,
    begun: Instant,
) -> Result<ExitStatus, Failure> {
    let fs = volume.fs.clone();
    let serving = Arc::new(RemoteMount {
        fs: fs.clone(),
        metadata: volume.metadata.clone(),
        storage: volume.storage.clone(),
        url: volume.url.clone(),
        descriptor: volume.descriptor.clone(),
        mount_point: plan.dir.clone(),
        facts: MountStatus::new(memory),
        read_only: plan.options.read_only,
        begun,
    });
    let attended = |seen: Arc<Fs>| {
        let data = (&seen, &*serving.storage, nothing_to_settle());
        attend(args, plan, memory, data, dir, (&serving, &serving.facts), begun)
    };
    let result = plan.seen(&fs).and_then(attended);
    ended(result, fs.shutdown().map_err(|why| why.to_string()))
}

/// Serves a published version: from the store alone, or by way of curators.
fn serve_version(
    args: &MountArgs,
    plan: &Plan,
    memory: &Memory,
    url: &VersionUrl,
) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let dir = runtime::make(&plan.dir).map_err(|why| fail(&why))?;
    let role = format!("kestrel mount {}", plan.dir.display());
    let _lock = VolumeLock::take(&dir, &role).map_err(|why| fail(&why))?;
    let who = kestrel_daemon::who(&role);
    let introduction = Introduction { who, deadline: args.deadline, read_only: true };
    let opened = url.open(&introduction, &resources(args, memory)).map_err(|why| fail(&why))?;
    let opened = match opened {
        OpenVersion::Curated(volume) => {
            return attend_remote(args, plan, memory, &dir, *volume, begun);
        }
        OpenVersion::Stored(version) => *version,
    };
    let fs = opened.fs.clone();
    let serving = Arc::new(VersionMount {
        fs: fs.clone(),
        url: url.clone(),
        descriptor: opened.descriptor,
        manifest: opened.manifest,
        mount_point: plan.dir.clone(),
        facts: MountStatus::new(memory),
        begun,
    });
    let data = (&fs, &*opened.storage, nothing_to_settle());
    let result = attend(args, plan, memory, data, &dir, (&serving, &serving.facts), begun);
    ended(result, fs.shutdown().map_err(|why| why.to_string()))
}

/// Serves a volume in a bucket beside the process that writes it.
fn serve_followed(
    args: &MountArgs,
    plan: &Plan,
    memory: &Memory,
    (volume_dir, url): (&Path, &str),
) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let dir = runtime::make(&plan.dir).map_err(|why| fail(&why))?;
    let _lock = VolumeLock::take(&dir, &format!("kestrel mount {}", plan.dir.display()))
        .map_err(|why| fail(&why))?;
    let every = args.follow_every.unwrap_or(FOLLOW_EVERY);
    let opened = FollowedVolume::open(volume_dir, every, &resources(args, memory))
        .map_err(|why| fail(&why))?;
    let fs = opened.fs.clone();
    let serving = Arc::new(FollowerMount {
        fs: fs.clone(),
        metadata: opened.metadata,
        storage: opened.storage,
        url: url.to_string(),
        descriptor: opened.descriptor,
        mount_point: plan.dir.clone(),
        facts: MountStatus::new(memory),
        begun,
    });
    let attended = |seen: Arc<Fs>| {
        let data = (&seen, &*serving.storage, nothing_to_settle());
        attend(args, plan, memory, data, &dir, (&serving, &serving.facts), begun)
    };
    let result = plan.seen(&fs).and_then(attended);
    ended(result, fs.shutdown().map_err(|why| why.to_string()))
}

/// Whether a mount begins that can be handed over.
fn begins_supervised() -> bool {
    supervised().is_some_and(|supervised| supervised.takes_over().is_none())
}

/// Of a volume that this process has not open.
fn nothing_to_settle() -> Settle {
    Box::new(|| Ok(()))
}

/// What became of a mount, and of what was written last.
fn ended(
    result: Result<ExitStatus, Failure>,
    stored: Result<(), String>,
) -> Result<ExitStatus, Failure> {
    if let Err(why) = &stored {
        log::error!("the last changes could not be stored: {why}");
    }
    result.and_then(|verdict| stored.map(|()| verdict).map_err(|why| Failure::new("mount", why)))
}

/// Opens all doors, waits for the end, closes them.
fn attend(
    args: &MountArgs,
    plan: &Plan,
    memory: &Memory,
    (fs, storage, settle): (&Arc<Fs>, &Storage, Settle),
    control_dir: &Path,
    (attendant, facts): (&Arc<impl ControlEndpoint>, &MountStatus),
    begun: Instant,
) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("mount", why);
    let dir = &plan.dir;
    let doors =
        Endpoints::open(control_dir, args.process.metrics, attendant).map_err(|why| fail(&why))?;
    // Writers that are faster than a store across a network wait for it on threads of their own.
    let spare_workers = match fs.store().is_remote() {
        true => REMOTE_SPARE_WORKERS,
        false => Config::default().spare_workers,
    };
    let is_supervised = args.supervised.is_some();
    let atime = plan.options.atime.unwrap_or_else(|| atime::shown(fs.atime_default()));
    let MountOptions { nodiratime: no_directories, read_only, .. } = plan.options;
    let config = MountConfig {
        options: MountOptions { atime: Some(atime), ..plan.options.clone() },
        access_times: AccessTimes { mode: atime::meant(atime), no_directories, read_only },
        session: memory.fit(Config {
            workers: args.workers,
            spare_workers,
            transport: args.transport,
            ..Config::default()
        }),
        attr_ttl: args.attr_timeout,
        entry_ttl: args.entry_timeout,
        // What came with a listing would be of a moment that other answers have left behind.
        listing_ttl: Some(match plan.source {
            Source::Followed(..) => Duration::ZERO,
            _ => args.listing_timeout,
        }),
        nodes_max: memory.nodes_max(),
        shortcut: match args.no_shortcut || is_supervised {
            true => ShortcutConfig::Off,
            false => ShortcutConfig::Auto { names: args.shortcut_names },
        },
        passthrough: match (args.passthrough, &storage.whole) {
            (PassthroughArg::Off, _) => {
                PassthroughConfig::Off("not wanted (--passthrough off)".into())
            }
            _ if is_supervised => PassthroughConfig::Off("the mount is supervised".into()),
            (PassthroughArg::Auto, Err(why)) => PassthroughConfig::Off((*why).into()),
            (PassthroughArg::Auto, Ok(copies)) => PassthroughConfig::Auto(copies.clone()),
        },
        immutable: plan.is_immutable(),
        hands_over: is_supervised,
    };
    let mount = match supervised().and_then(|supervised| supervised.take_predecessor()) {
        None => kestrel_vfs::mount(fs.clone(), dir, &config).map_err(|why| fail(&why))?,
        Some(predecessor) => match kestrel_vfs::take_over(fs.clone(), &config, predecessor) {
            Ok(mount) => mount,
            Err(why) => {
                // Nothing is closed: the next process takes it over.
                log::error!("{}: {why}", dir.display());
                std::process::exit(1);
            }
        },
    };
    facts.learn(&mount);
    if let Some(supervised) = supervised() {
        facts.supervised_by(supervised);
        supervised.serves(&mount, settle).map_err(|why| fail(&why))?;
    }
    unmount_on_signal(&mount.session, dir);
    log::info!("transport {}: {}", mount.session.transport(), mount.session.transport_why());
    log::info!("shortcut {}: {}", if mount.mode.shortcut { "on" } else { "off" }, mount.mode.why);
    match mount.passthrough.why_off() {
        Some(why) => log::info!("pass-through off: {why}"),
        None => log::info!("pass-through on"),
    }
    let mode = if plan.options.read_only { " read-only" } else { "" };
    let what = format!("{} serves on {}{mode}", plan.name(), dir.display());
    log::info!("{what} after {:.1?}", begun.elapsed());
    args.process.options().ready(&what);
    let end = mount.session.join().map_err(|why| fail(&why))?;
    args.process.options().stopping();
    drop(doors);
    match end {
        End::Unmounted => Ok(ExitStatus::Good),
        End::Aborted => {
            log::warn!("{}: the connection was cut", dir.display());
            Ok(ExitStatus::Bad)
        }
    }
}

/// The first signal unmounts (busy: takes the mount out of the tree and waits for the processes
/// that use it), the next one cuts them off.
fn unmount_on_signal(session: &Session, dir: &Path) {
    let unmounter = session.unmounter();
    let dir = dir.to_path_buf();
    kestrel_daemon::signals::on_signal(move |number| {
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
