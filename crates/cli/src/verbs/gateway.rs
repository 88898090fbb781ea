//! Gateways: a volume to clients of another protocol.
//!
//! | file | |
//! | --- | --- |
//! | `gateway/s3.rs` | `kestrel gateway` |
//! | `gateway/webdav.rs` | `kestrel webdav` |
//! | `gateway/open.rs` | the volume that is served, by any kind of URL |

mod open;
pub mod s3;
pub mod webdav;

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
use kestrel_gateway::server::ServerConfig;
use kestrel_gateway::{Account, Gateway, Keyring};
use kestrel_rpc::tls::{OwnFiles, TlsMode, https_config};

use self::open::{OpenVolume, Source};
use super::mount::TrustArgs;
use crate::args::store::{CacheArgs, StoreArgs};
use crate::args::{LogDirArgs, ProcessArgs, client_resources};

/// Name of the file with access keys in the volume's directory.
const KEYS_NAME: &str = "gateway.keys";

/// How often what other gateways left behind is looked for.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(3600);

/// What every gateway is told.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// The volume: a path, file:///path, s3://BUCKET/PREFIX or kestrel://host[:port][,host2…]/NAME
    ///
    /// With @SNAPSHOT or :/DIR@SNAPSHOT behind it, read-only, at that snapshot; with //VERSION
    /// behind it a published version.
    volume: String,
    /// File with access keys, one a line: ACCESS-KEY SECRET [read-only]; made with one key if it is
    /// not there [default: gateway.keys in the volume's directory]
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    access_keys: Option<PathBuf>,
    /// Of a served volume: file with tokens, one a line, each of which is an access key (`kestrel
    /// token s3`); read again when it changes
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// User and group that files are read and written as [default: those of this process]
    #[arg(long, value_name = "UID:GID", value_parser = owner_arg)]
    owner: Option<(u32, u32)>,
    /// Allow no changes
    #[arg(short, long)]
    read_only: bool,
    /// Which listeners are encrypted: auto, those that other machines reach; on, all; off, none
    #[arg(long = "listen-tls", value_name = "auto|on|off", default_value_t)]
    listen_tls: TlsMode,
    /// Certificate for clients, with those that lead to its authority; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, in a file that others cannot read
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Most connections; one above that is answered with status 503
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_connections: u32,
    /// Access log, or off [default: beside the log]
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

/// A gateway: what is its own, and what it was told.
struct Face<'a> {
    /// Its command.
    name: &'static str,
    /// Its clients, in words.
    clients: &'static str,
    args: &'a GatewayArgs,
    listen: &'a str,
    buckets: Buckets,
}

/// What begins to serve with these access keys.
type Start<'a> = &'a dyn Fn(ServerConfig, Arc<Keyring>) -> Result<Gateway, String>;

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

impl Face<'_> {
    fn fail(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(self.name, why)
    }

    fn usage(&self, why: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("{}: {why}", self.name))
    }

    /// Serves, in the background unless told otherwise.
    fn run(&self, start: Start<'_>) -> Result<ExitStatus, Failure> {
        self.args.process.options().run(|| self.background(), || self.serve(start))
    }

    /// What can be judged without opening the volume.
    fn check(&self) -> Result<Plan, Failure> {
        let args = self.args;
        let why = |why: &dyn std::fmt::Display| {
            self.usage(format!("--listen {}: {why}; give ADDRESS:PORT", self.listen))
        };
        let listen = self.listen.to_socket_addrs().map_err(|error| why(&error))?.next();
        let listen = listen.ok_or_else(|| why(&"no address"))?;
        if listen.port() == 0 {
            return Err(why(&"port 0"));
        }
        let tls = args.listen_tls.wants(listen.ip());
        if tls && args.tls_cert.is_none() {
            return Err(self.usage(format!(
                "connections to {listen} are encrypted, and there is no certificate: give one that \
                 {} trust by --tls-cert and --tls-key, or listen on 127.0.0.1, or say \
                 --listen-tls off behind something that encrypts",
                self.clients
            )));
        }
        if !tls && args.tls_cert.is_some() {
            return Err(
                self.usage("--tls-cert: connections are not encrypted: say --listen-tls on")
            );
        }
        let source = Source::of(self)?;
        if args.tokens.is_some() && !source.is_served() {
            return Err(self.usage(
                "--tokens: tokens are judged by the volume's server; of a volume that this process \
                 opens itself give --access-keys, or serve it with `kestrel serve` and name it by \
                 kestrel://…",
            ));
        }
        let dir = match source.dir() {
            Some(dir) => dir.to_path_buf(),
            None => runtime::make(&self.place(listen)).map_err(|why| self.fail(why))?,
        };
        let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let keys = match (&args.tokens, &args.access_keys, source.dir()) {
            (Some(file), ..) | (None, Some(file), _) => whole(file),
            (None, None, Some(dir)) => dir.join(KEYS_NAME),
            (None, None, None) => {
                return Err(self.usage(
                    "access keys are needed: of a served volume give a file with tokens by \
                     --tokens (`kestrel token create`), else a file for keys by --access-keys",
                ));
            }
        };
        Ok(Plan { source, listen, tls, dir, keys })
    }

    /// What stands for a mount point in the name of the runtime directory.
    fn place(&self, listen: SocketAddr) -> PathBuf {
        format!("/{}/{listen}", self.name).into()
    }

    /// How others see this process.
    fn role(&self, plan: &Plan) -> String {
        format!("kestrel {} {}", self.name, plan.listen)
    }

    /// Makes the file of access keys if there is none, and tells the key.
    fn make_keys(&self, plan: &Plan) -> Result<(), Failure> {
        if self.args.tokens.is_some() {
            return Ok(());
        }
        if let Some((id, secret)) = make_key_file(&plan.keys).map_err(|why| self.fail(why))? {
            println!("access key {id}");
            println!("secret     {secret}");
            println!("(in {}, for its owner alone)", plan.keys.display());
        }
        Ok(())
    }

    fn background(&self) -> Result<ExitStatus, Failure> {
        let plan = self.check()?;
        self.make_keys(&plan)?;
        let log = plan.dir.join(format!("{}.log", self.name));
        let (pid, log) = self.args.process.options().start(&log).map_err(|why| self.fail(why))?;
        println!(
            "{} is served at {} (process {pid}, log {})",
            plan.source,
            plan.url(),
            log.display()
        );
        Ok(ExitStatus::Good)
    }

    fn resources(&self, memory: &Memory) -> Resources {
        let args = self.args;
        let store = (&args.store, &args.cache);
        client_resources(&args.process, &args.log_dir, store, (args.data_cache, memory))
    }

    /// Serves until a signal.
    fn serve(&self, start: Start<'_>) -> Result<ExitStatus, Failure> {
        let args = self.args;
        let begun = Instant::now();
        let plan = self.check()?;
        self.make_keys(&plan)?;
        kestrel_daemon::limits::raise_descriptor_limit();
        let wanted = Wanted {
            metadata_bytes: args.process.metadata_memory,
            dirty_bytes_max: args.write_buffer,
            data_cache_bytes: args.data_cache,
        };
        let memory = Memory::divide(self.name, Work::Mount, wanted)?;
        // Of a volume that is elsewhere: one gateway at an address, with its files.
        let _lock = match plan.source.dir() {
            Some(_) => None,
            None => {
                Some(VolumeLock::take(&plan.dir, &self.role(&plan)).map_err(|why| self.fail(why))?)
            }
        };
        let resources = self.resources(&memory);
        let volume = OpenVolume::open(self, &plan, &memory, resources, begun)?;
        let result = self.attend(&plan, &volume, (start, begun));
        log::info!("{} ends", plan.source);
        let stored = volume.close();
        if let Err(why) = &stored {
            log::error!("the last changes could not be stored: {why}");
        }
        result.and_then(|()| stored.map(|()| ExitStatus::Good).map_err(|why| self.fail(why)))
    }

    fn access_log(&self, plan: &Plan) -> Result<Option<AccessLog>, Failure> {
        let path = match self.args.access_log.as_deref() {
            Some(off) if off == Path::new("off") => return Ok(None),
            Some(path) => path.to_path_buf(),
            None => plan.dir.join(format!("{}-access.log", self.name)),
        };
        let open = AccessLog::open(&path);
        open.map(Some).map_err(|why| self.fail(format!("--access-log {}: {why}", path.display())))
    }

    /// The access keys.
    fn keyring(&self, plan: &Plan, volume: &OpenVolume) -> Result<Keyring, Failure> {
        let args = self.args;
        // SAFETY: the two calls take nothing and cannot fail.
        let owner = args.owner.unwrap_or_else(|| unsafe { (libc::geteuid(), libc::getegid()) });
        let buckets = self.buckets.clone();
        let read_only = args.read_only || plan.source.is_immutable();
        match volume.sessions() {
            Some(sessions) => {
                let open = move |token: &_| {
                    let fs = sessions.open(token)?;
                    Ok(Arc::new(Account::new(fs, owner, buckets.clone(), read_only)))
                };
                Keyring::from_tokens(&plan.keys, Box::new(open)).map_err(|why| self.fail(why))
            }
            None => {
                let account = Account::new(volume.fs()?, owner, buckets, read_only);
                Keyring::from_file(&plan.keys, account).map_err(|why| self.fail(why))
            }
        }
    }

    /// Opens the doors, waits for the end, closes them.
    fn attend(
        &self,
        plan: &Plan,
        volume: &OpenVolume,
        (start, begun): (Start<'_>, Instant),
    ) -> Result<(), Failure> {
        let args = self.args;
        let keyring = Arc::new(self.keyring(plan, volume)?);
        // Nobody else has a volume open that this process opened itself, so all is left over there.
        let age = if volume.is_alone() { Duration::ZERO } else { Account::LEFTOVER_AGE };
        keyring.remove_leftovers(age);
        let files = args.tls_cert.as_ref().zip(args.tls_key.as_ref());
        let tls = files
            .map(|(certificate, key)| OwnFiles::open(certificate, key).and_then(https_config))
            .transpose()
            .map_err(|why| self.fail(format!("--tls-cert, --tls-key: {why}")))?;
        let config = ServerConfig {
            listen: plan.listen,
            connections_max: args.max_connections as usize,
            tls,
            access_log: self.access_log(plan)?,
            stop_within: args.stop_within,
        };
        let gateway = start(config, keyring.clone()).map_err(|why| self.fail(why))?;
        let (counted, pages) = (gateway.metrics(), volume.metrics());
        let page = move || pages() + &counted.page();
        let metrics =
            args.process.metrics.map(|address| MetricsPort::serve(address, Arc::new(page)));
        let metrics = metrics.transpose().map_err(|why| self.fail(why))?;
        if let Some(metrics) = &metrics {
            log::info!("figures at http://{}/metrics", metrics.address());
        }
        let (signal, signalled) = channel();
        kestrel_daemon::signals::on_signal(move |_| {
            // A second signal finds the first one being obeyed.
            let _ = signal.send(());
        });
        let what = format!("{} serves at {}", plan.source, plan.url());
        log::info!("{what} after {:.1?}", begun.elapsed());
        args.process.options().ready(&what);
        while let Err(RecvTimeoutError::Timeout) = signalled.recv_timeout(LEFTOVERS_EVERY) {
            keyring.remove_leftovers(Account::LEFTOVER_AGE);
        }
        args.process.options().stopping();
        gateway.stop();
        drop(metrics);
        Ok(())
    }
}
