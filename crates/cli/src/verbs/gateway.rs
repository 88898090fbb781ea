//! `kestrel gateway`.
//!
//! | file | |
//! | --- | --- |
//! | `gateway/open.rs` | the volume that is served, by any kind of URL |

mod open;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::memory::{Wanted, Work};
use kestrel_client::volume::{Resources, VolumeLock};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::http::MetricsPort;
use kestrel_daemon::memory::Memory;
use kestrel_daemon::runtime;
use kestrel_daemon::units::{duration_arg, size_arg};
use kestrel_gateway::access_keys::make_key_file;
use kestrel_gateway::access_log::AccessLog;
use kestrel_gateway::account::Buckets;
use kestrel_gateway::buckets::is_bucket_name;
use kestrel_gateway::server::ServerConfig;
use kestrel_gateway::service::REGION_DEFAULT;
use kestrel_gateway::{Account, Gateway, Keyring};
use kestrel_rpc::tls::{OwnFiles, TlsMode, https_config};

use self::open::{OpenVolume, Source};
use super::mount::TrustArgs;
use crate::args::store::{CacheArgs, StoreArgs};
use crate::args::{LogDirArgs, ProcessArgs, client_resources};

/// Where the gateway listens unless told otherwise.
const LISTEN_DEFAULT: &str = "127.0.0.1:9460";

/// Names of the files in the volume's directory, or in the runtime directory of a gateway to a
/// volume that is elsewhere.
const LOG_NAME: &str = "gateway.log";
const ACCESS_LOG_NAME: &str = "gateway-access.log";
const KEYS_NAME: &str = "gateway.keys";

/// How often what other gateways left behind is looked for.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(3600);

/// Serve a volume to clients of S3: buckets are directories, keys are paths.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel gateway /data/vol
  kestrel gateway /data/vol --listen 10.0.0.1:9460 --tls-cert s3.pem --tls-key s3.key
  kestrel gateway kestrel://meta1/photos --tokens /etc/kestrel/s3-tokens
  kestrel gateway 's3://bucket/photos?region=eu-1' --bucket photos
  kestrel gateway /data/vol@monday --access-keys /etc/kestrel/s3-keys
  kestrel token s3 --token-file trainer.token

The first start makes a file with an access key and prints the key. Of a served volume access keys
are tokens, and the server judges what each of them may do. SIGTERM and SIGINT end the gateway when
the requests under way are answered. docs/operations/gateway.md tells what S3 can and cannot do
here.")]
pub struct GatewayArgs {
    /// The volume: a path, file:///path, s3://BUCKET/PREFIX or kestrel://host[:port][,host2…]/NAME
    ///
    /// With @SNAPSHOT or :/DIR@SNAPSHOT behind it, read-only, at that snapshot; with //VERSION
    /// behind it a published version.
    volume: String,
    /// Where clients of S3 connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN_DEFAULT)]
    listen: String,
    /// File with access keys, one a line: ACCESS-KEY SECRET [read-only]; made with one key if it is
    /// not there [default: gateway.keys in the volume's directory]
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    access_keys: Option<PathBuf>,
    /// Of a served volume: file with tokens, one a line, each of which is an access key (`kestrel
    /// token s3`); read again when it changes
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// The whole volume is one bucket of this name, instead of a bucket for each directory in its
    /// root
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,
    /// User and group that files are read and written as [default: those of this process]
    #[arg(long, value_name = "UID:GID", value_parser = owner_arg)]
    owner: Option<(u32, u32)>,
    /// Allow no changes
    #[arg(short, long)]
    read_only: bool,
    /// Buckets are also names before this one: BUCKET.DOMAIN
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Region that buckets say they are in
    #[arg(long, value_name = "REGION", default_value = REGION_DEFAULT)]
    region: String,
    /// Which listeners are encrypted: auto, those that other machines reach; on, all; off, none
    #[arg(long = "listen-tls", value_name = "auto|on|off", default_value_t)]
    listen_tls: TlsMode,
    /// Certificate for clients of S3, with those that lead to its authority; read again when it
    /// changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, in a file that others cannot read
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Most connections; one above that is answered with SlowDown
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_connections: u32,
    /// Access log, or off [default: gateway-access.log beside the log]
    #[arg(long, value_name = "FILE|off")]
    access_log: Option<PathBuf>,
    /// How long requests under way get at the end
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "30s")]
    stop_within: Duration,
    /// How long a call waits for a metadata server that does not answer
    #[arg(long, value_parser = duration_arg, value_name = "TIME", default_value = "10s")]
    deadline: Duration,
    /// Memory for verified file data; 64M by default, 256M with an s3:// store, less where there is
    /// little
    #[arg(long, value_parser = size_arg, value_name = "SIZE")]
    data_cache: Option<u64>,
    /// Memory for data written and not yet stored; 256M by default, less where there is little
    #[arg(long, value_parser = size_arg, value_name = "SIZE")]
    write_buffer: Option<u64>,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    log_dir: LogDirArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    store: StoreArgs,
}

fn owner_arg(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').ok_or("a user and a group, as 1000:1000")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    Ok((number(uid)?, number(gid)?))
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("gateway", why)
}

fn usage(why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("gateway: {why}"))
}

/// What is served, and where.
struct Plan {
    source: Source,
    listen: SocketAddr,
    tls: bool,
    /// Directory of the log, unless another one is given.
    dir: PathBuf,
    /// The file with access keys, or with tokens.
    keys: PathBuf,
}

impl Plan {
    fn url(&self) -> String {
        format!("http{}://{}", if self.tls { "s" } else { "" }, self.listen)
    }
}

/// What can be judged without opening the volume.
fn check(args: &GatewayArgs) -> Result<Plan, Failure> {
    let why = |why: &dyn std::fmt::Display| {
        usage(format!("--listen {}: {why}; give ADDRESS:PORT", args.listen))
    };
    let listen = args.listen.to_socket_addrs().map_err(|error| why(&error))?.next();
    let listen = listen.ok_or_else(|| why(&"no address"))?;
    if listen.port() == 0 {
        return Err(why(&"port 0"));
    }
    let tls = args.listen_tls.wants(listen.ip());
    if tls && args.tls_cert.is_none() {
        return Err(usage(format!(
            "connections to {listen} are encrypted, and there is no certificate: give one that \
             clients of S3 trust by --tls-cert and --tls-key, or listen on 127.0.0.1, or say \
             --listen-tls off behind something that encrypts"
        )));
    }
    if !tls && args.tls_cert.is_some() {
        return Err(usage("--tls-cert: connections are not encrypted: say --listen-tls on"));
    }
    if let Some(bucket) = args.bucket.as_ref().filter(|name| !is_bucket_name(name)) {
        return Err(usage(format!(
            "--bucket {bucket}: no name of a bucket: 3 to 63 small letters, digits, dots, hyphens"
        )));
    }
    let source = Source::of(args)?;
    if args.tokens.is_some() && !source.is_served() {
        return Err(usage(
            "--tokens: tokens are judged by the volume's server; of a volume that this process \
             opens itself give --access-keys, or serve it with `kestrel serve` and name it by \
             kestrel://…",
        ));
    }
    let dir = match source.dir() {
        Some(dir) => dir.to_path_buf(),
        None => runtime::make(&place(listen)).map_err(fail)?,
    };
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let keys = match (&args.tokens, &args.access_keys, source.dir()) {
        (Some(file), ..) | (None, Some(file), _) => whole(file),
        (None, None, Some(dir)) => dir.join(KEYS_NAME),
        (None, None, None) => {
            return Err(usage(
                "access keys are needed: of a served volume give a file with tokens by --tokens \
                 (`kestrel token create`), else a file for keys by --access-keys",
            ));
        }
    };
    Ok(Plan { source, listen, tls, dir, keys })
}

/// What stands for a mount point in the name of the runtime directory.
fn place(listen: SocketAddr) -> PathBuf {
    format!("/gateway/{listen}").into()
}

/// Serves, in the background unless told otherwise.
pub fn run(args: &GatewayArgs) -> Result<ExitStatus, Failure> {
    args.process.options().run(|| background(args), || serve(args))
}

/// Makes the file of access keys if there is none, and tells the key.
fn make_keys(args: &GatewayArgs, plan: &Plan) -> Result<(), Failure> {
    if args.tokens.is_some() {
        return Ok(());
    }
    if let Some((id, secret)) = make_key_file(&plan.keys).map_err(fail)? {
        println!("access key {id}");
        println!("secret     {secret}");
        println!("(in {}, for its owner alone)", plan.keys.display());
    }
    Ok(())
}

fn background(args: &GatewayArgs) -> Result<ExitStatus, Failure> {
    let plan = check(args)?;
    make_keys(args, &plan)?;
    let log = plan.dir.join(LOG_NAME);
    let (pid, log) = args.process.options().start(&log).map_err(fail)?;
    println!("{} is served at {} (process {pid}, log {})", plan.source, plan.url(), log.display());
    Ok(ExitStatus::Good)
}

fn resources(args: &GatewayArgs, memory: &Memory) -> Resources {
    let store = (&args.store, &args.cache);
    client_resources(&args.process, &args.log_dir, store, (args.data_cache, memory))
}

/// Serves until a signal.
fn serve(args: &GatewayArgs) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    let plan = check(args)?;
    make_keys(args, &plan)?;
    kestrel_daemon::limits::raise_descriptor_limit();
    let wanted = Wanted {
        metadata_bytes: args.process.metadata_memory,
        dirty_bytes_max: args.write_buffer,
        data_cache_bytes: args.data_cache,
    };
    let memory = Memory::divide("gateway", Work::Mount, wanted)?;
    // Of a volume that is elsewhere: one gateway at an address, with its files.
    let _lock = match plan.source.dir() {
        Some(_) => None,
        None => Some(
            VolumeLock::take(&plan.dir, &format!("kestrel gateway {}", plan.listen))
                .map_err(fail)?,
        ),
    };
    let resources = resources(args, &memory);
    let volume = OpenVolume::open(args, &plan, &memory, resources, begun)?;
    let result = attend(args, &plan, &volume, begun);
    log::info!("{} ends", plan.source);
    let stored = volume.close();
    if let Err(why) = &stored {
        log::error!("the last changes could not be stored: {why}");
    }
    result.and_then(|()| stored.map(|()| ExitStatus::Good).map_err(fail))
}

fn access_log(args: &GatewayArgs, plan: &Plan) -> Result<Option<AccessLog>, Failure> {
    let path = match args.access_log.as_deref() {
        Some(off) if off == Path::new("off") => return Ok(None),
        Some(path) => path.to_path_buf(),
        None => plan.dir.join(ACCESS_LOG_NAME),
    };
    let open = AccessLog::open(&path);
    open.map(Some).map_err(|why| fail(format!("--access-log {}: {why}", path.display())))
}

/// The access keys.
fn keyring(args: &GatewayArgs, plan: &Plan, volume: &OpenVolume) -> Result<Keyring, Failure> {
    // SAFETY: the two calls take nothing and cannot fail.
    let owner = args.owner.unwrap_or_else(|| unsafe { (libc::geteuid(), libc::getegid()) });
    let buckets = match &args.bucket {
        Some(bucket) => Buckets::Whole(bucket.clone()),
        None => Buckets::Directories,
    };
    let read_only = args.read_only || plan.source.is_immutable();
    match volume.sessions() {
        Some(sessions) => {
            let open = move |token: &_| {
                let fs = sessions.open(token)?;
                Ok(Arc::new(Account::new(fs, owner, buckets.clone(), read_only)))
            };
            Keyring::from_tokens(&plan.keys, Box::new(open)).map_err(fail)
        }
        None => {
            let account = Account::new(volume.fs()?, owner, buckets, read_only);
            Keyring::from_file(&plan.keys, account).map_err(fail)
        }
    }
}

/// Opens the doors, waits for the end, closes them.
fn attend(
    args: &GatewayArgs,
    plan: &Plan,
    volume: &OpenVolume,
    begun: Instant,
) -> Result<(), Failure> {
    let keyring = Arc::new(keyring(args, plan, volume)?);
    // Nobody else has a volume open that this process opened itself, so all is left over there.
    let age = if volume.is_alone() { Duration::ZERO } else { Account::LEFTOVER_AGE };
    keyring.remove_leftovers(age);
    let files = args.tls_cert.as_ref().zip(args.tls_key.as_ref());
    let tls = files
        .map(|(certificate, key)| OwnFiles::open(certificate, key).and_then(https_config))
        .transpose()
        .map_err(|why| fail(format!("--tls-cert, --tls-key: {why}")))?;
    let config = ServerConfig {
        listen: plan.listen,
        connections_max: args.max_connections as usize,
        domain: args.domain.clone(),
        region: args.region.clone(),
        tls,
        access_log: access_log(args, plan)?,
        stop_within: args.stop_within,
    };
    let gateway = Gateway::start(config, keyring.clone()).map_err(fail)?;
    let (counted, pages) = (gateway.metrics(), volume.metrics());
    let page = move || pages() + &counted.page();
    let metrics = args.process.metrics.map(|address| MetricsPort::serve(address, Arc::new(page)));
    let metrics = metrics.transpose().map_err(fail)?;
    if let Some(metrics) = &metrics {
        log::info!("figures at http://{}/metrics", metrics.address());
    }
    let (signal, signalled) = channel();
    kestrel_daemon::signals::on_signal(move |_| {
        // A second signal finds the first one being obeyed.
        let _ = signal.send(());
    });
    log::info!("{} serves at {} after {:.1?}", plan.source, plan.url(), begun.elapsed());
    args.process.options().ready();
    while let Err(RecvTimeoutError::Timeout) = signalled.recv_timeout(LEFTOVERS_EVERY) {
        keyring.remove_leftovers(Account::LEFTOVER_AGE);
    }
    gateway.stop();
    drop(metrics);
    Ok(())
}
