//! Serving the metadata of a published version: a *curator*. It reads the version from the store
//! into memory, takes no lock of the volume, and writes nothing to the store. Any number of them
//! serve one version, beside each other and beside the volume's own servers; a client that loses
//! one goes on with the next address of its URL.
//!
//! | file | what it has |
//! | --- | --- |
//! | `curator/endpoint.rs` | answers to questions, over the control socket and of clients |

mod endpoint;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use kestrel_client::descriptor::Descriptor;
use kestrel_client::memory::{Wanted, Work};
use kestrel_client::remote::{PORT_DEFAULT, RemoteUrl};
use kestrel_client::storage::StoreOptions;
use kestrel_client::version::{CuratedVersion, VersionUrl};
use kestrel_client::volume::{Resources, VolumeLock};
use kestrel_rpc::server::ListenerConfig;
use kestrel_rpc::tls::TlsMode;
use kestrel_server::config::{Access, SessionServerConfig};
use kestrel_server::listen::ClockedServer;
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use kestrel_types::security::is_loopback;
use kestrel_types::wire::VOLUME_BYTES_MAX;

use crate::ask::{locate, locate_anew};
use crate::clients::Clients;
use crate::endpoints::Endpoints;
use crate::failure::{ExitStatus, Failure};
use crate::memory::Memory;
use crate::mount_status::MountStatus;
use crate::runtime;
use crate::serve::{ServeConfig, audit_at, name_arg, stop_at};
use crate::tls::ServeTls;
use crate::token_file::TokenFile;
use crate::units::bytes;
use endpoint::{Curator, CuratorQuestions};

/// Name of the log file within the runtime directory.
pub const LOG_NAME: &str = "serve.log";

/// Name of the audit log there.
const AUDIT_NAME: &str = "audit.log";

/// Time between two looks at the file of tokens.
const LOOK: Duration = Duration::from_secs(1);

/// How long clients get, at the end, for the answers to what they have asked.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Which version is served, and where.
pub struct CuratorPlan {
    /// The version.
    pub url: VersionUrl,
    /// The address.
    pub listen: SocketAddr,
}

impl CuratorPlan {
    /// Where the process has its control socket, lock and log: one directory for each address.
    ///
    /// # Errors
    /// In words.
    pub fn runtime_dir(&self) -> Result<PathBuf, Failure> {
        runtime::make(&self.place()).map_err(fail)
    }

    /// What stands for a mount point in the name of that directory.
    fn place(&self) -> PathBuf {
        format!("/serve/{}", self.listen).into()
    }
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("serve", why)
}

fn usage(why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("serve: {why}"))
}

/// The version that the configuration names; none if it names a volume.
///
/// # Errors
/// If the text names a version that cannot be one.
pub fn version_of(config: &ServeConfig) -> Result<Option<VersionUrl>, Failure> {
    config.volume.as_deref().map_or(Ok(None), VersionUrl::parse).map_err(usage)
}

/// What can be judged without opening the version.
///
/// # Errors
/// What is wrong with the configuration, and what to do.
pub fn check(config: &ServeConfig, mut url: VersionUrl) -> Result<CuratorPlan, Failure> {
    if !config.read_only && !config.stop {
        return Err(usage(format!(
            "{url}: a published version never changes, so it is served with --read-only"
        )));
    }
    let meaningless = [
        (config.advertise.is_some(), "--advertise"),
        (config.role.is_some(), "--role"),
        (config.replace, "--replace"),
        (config.process.take_over, "--take-over"),
        (config.grace.is_some(), "--grace"),
        (config.log_dir.dir.is_some() || config.log_dir.discard, "--log-dir, --discard-log"),
        (config.dumps != Default::default(), "--dump-every, --dump-keep"),
        (config.leftovers != Default::default(), "--collect-every, --collect-grace"),
    ];
    if let Some((_, option)) = meaningless.iter().find(|(given, _)| *given) {
        return Err(usage(format!(
            "{option}: for servers of a volume; a published version has nothing of the kind"
        )));
    }
    if let Some(name) = &config.name {
        name_arg(name).map_err(|why| usage(format!("--name: {why}")))?;
    }
    let listen = listen(config)?;
    if config.tls.tls == TlsMode::Off && config.access != Access::Open && !is_loopback(listen.ip())
    {
        return Err(usage(
            "--tls off: tokens are not shown in clear, so nobody on another machine could be let \
             in: say --access open besides, or leave --tls off out",
        ));
    }
    if config.tokens.is_none() && config.access == Access::Tokens {
        return Err(usage(
            "--access tokens: there is no token that would let a client in: give those of the \
             volume by --tokens FILE, which `kestrel token export VOLUME` prints",
        ));
    }
    config.tls.check(listen.ip()).map_err(usage)?;
    if !RemoteUrl::is_one(&url.volume) {
        // A path that holds in any directory: the process in the background works in another one.
        let find = if config.process.report_readiness { locate } else { locate_anew };
        let dir = find("serve", &url.volume, config.store.credentials.as_deref())?;
        Descriptor::read(&dir).map_err(fail)?;
        url.volume = dir.to_string_lossy().into_owned();
    }
    Ok(CuratorPlan { url, listen })
}

fn listen(config: &ServeConfig) -> Result<SocketAddr, Failure> {
    let wanted = config.listen.clone().unwrap_or_else(|| format!("127.0.0.1:{PORT_DEFAULT}"));
    let why =
        |why: &dyn std::fmt::Display| usage(format!("--listen {wanted}: {why}; give ADDRESS:PORT"));
    let found = wanted.to_socket_addrs().map_err(|error| why(&error))?.next();
    let found = found.ok_or_else(|| why(&"no address"))?;
    match found.port() {
        // Other commands find the process by its address.
        0 => Err(why(&"port 0")),
        _ => Ok(found),
    }
}

/// Serves until a signal comes.
///
/// # Errors
/// Why it does not serve, or no longer.
pub fn serve(config: &ServeConfig, plan: &CuratorPlan) -> Result<ExitStatus, Failure> {
    crate::limits::raise_descriptor_limit();
    let begun = Instant::now();
    let wanted = Wanted { metadata_bytes: config.process.metadata_memory, ..Wanted::default() };
    let memory = Memory::divide("serve", Work::Serve, wanted)?;
    let listener = TcpListener::bind(plan.listen)
        .map_err(|why| fail(format!("--listen {}: {why}; choose another address", plan.listen)))?;
    let dir = plan.runtime_dir()?;
    let _lock = VolumeLock::take(&dir, &format!("kestrel serve {}", plan.url)).map_err(fail)?;
    let resources = Resources {
        store: StoreOptions { memory: memory.plan, ..config.store.clone() },
        ..Resources::within(memory.plan)
    };
    let served = plan.url.serve(&resources).map_err(fail)?;
    load(&served);
    let fs = served.version.fs.clone();
    let result = attend(config, plan, &memory, served, listener, begun);
    let closed = fs.shutdown().map_err(fail);
    log::info!("{} closed", plan.url);
    result.and_then(|status| closed.map(|()| status))
}

/// Reads the tables into memory. What cannot be read now is read when a client asks for it.
fn load(served: &CuratedVersion) {
    let (begun, manifest) = (Instant::now(), &served.version.manifest);
    match served.engine.load() {
        Ok(loaded) if loaded.kept == loaded.blocks => log::info!(
            "version {}: all {} of tables are in memory, where they take {}, after {:.1?}",
            manifest.name,
            bytes(manifest.table_bytes()),
            bytes(loaded.bytes),
            begun.elapsed()
        ),
        Ok(loaded) => log::info!(
            "version {}: {} of {} blocks of tables are in memory, where they take {}, after \
             {:.1?}; the rest is read when it is asked for (--metadata-memory)",
            manifest.name,
            loaded.kept,
            loaded.blocks,
            bytes(loaded.bytes),
            begun.elapsed()
        ),
        Err(why) => log::warn!("{why}; the tables are read when they are asked for"),
    }
}

/// Opens all doors, waits for a signal, closes them.
fn attend(
    config: &ServeConfig,
    plan: &CuratorPlan,
    memory: &Memory,
    served: CuratedVersion,
    listener: TcpListener,
    begun: Instant,
) -> Result<ExitStatus, Failure> {
    let CuratedVersion { version, engine, offer } = served;
    let dir = plan.runtime_dir()?;
    let volume = config.name.as_ref().unwrap_or(&version.descriptor.settings.name);
    let name = format!("{volume}//{}", version.manifest.name);
    if name.len() > VOLUME_BYTES_MAX {
        return Err(usage(format!(
            "{name}: more than {VOLUME_BYTES_MAX} bytes; give the volume a shorter name with --name"
        )));
    }
    let tls = ServeTls::of_version(&config.tls, &version.descriptor, plan.listen).map_err(fail)?;
    let questions = Arc::new(CuratorQuestions::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let settings = SessionServerConfig {
        volume: name.clone(),
        descriptor: offer.to_json().into(),
        epoch: clock.now().unsigned_abs(),
        lease: Nanos::try_from(config.lease.as_nanos()).unwrap_or(Nanos::MAX),
        access: config.access,
        audit: audit_at(config, &dir.join(AUDIT_NAME))?,
        immutable: true,
        ..SessionServerConfig::default()
    };
    let node = version.fs.node().ok_or_else(|| fail("the version was opened without a node"))?;
    let limits = LockLimits::default();
    let server = Server::new(node.clone(), clock, settings, limits, questions.clone(), 0);
    let server = server.map_err(fail)?;
    let mut tokens = config.tokens.clone().map(TokenFile::new);
    if let Some(tokens) = &mut tokens {
        tokens.read(server.tokens()).map_err(fail)?;
    }
    let door = ClockedServer::new(server.clone(), begun);
    let curator = Arc::new(Curator {
        version,
        engine,
        url: plan.url.to_string(),
        shown_at: OnceLock::new(),
        clients: OnceLock::new(),
        facts: MountStatus::new(memory),
        begun,
    });
    questions.belong_to(&curator);
    let doors = Endpoints::open(&dir, config.process.metrics, &curator).map_err(fail)?;
    let (signalled, signal) = mpsc::channel();
    crate::signals::on_signal(move |_| {
        // A process that does not wait any more is ending already.
        let _ = signalled.send(());
    });
    let limits =
        memory.fit_server(ListenerConfig { tls: tls.server.clone(), ..ListenerConfig::default() });
    let sockets = kestrel_rpc::server::serve(listener, Arc::new(door.clone()), limits)
        .map_err(|why| fail(format!("--listen {}: {why}", plan.listen)))?;
    let address = sockets.address();
    let sockets = parking_lot::Mutex::new(Some(sockets));
    let clients = Clients { name: name.clone(), address, door, sockets };
    let clients = curator.clients.get_or_init(|| clients);
    let url = curator.shown_at.get_or_init(|| tls.url(address, &name));
    log::info!("{} serves at {url} after {:.1?}", plan.url, begun.elapsed());
    config.process.ready(&format!("{} at {url}", plan.url));
    while let Err(mpsc::RecvTimeoutError::Timeout) = signal.recv_timeout(LOOK) {
        if let Some(tokens) = &mut tokens {
            tokens.read_again(server.tokens());
        }
    }
    config.process.stopping();
    log::info!("{} ends; its clients look for another curator, or wait for it", plan.url);
    if let Some(sockets) = clients.sockets.lock().take() {
        sockets.stop(LAST_ANSWERS);
    }
    server.close();
    drop(doors);
    Ok(ExitStatus::Good)
}

/// Ends the process that serves at the address, and waits until it has.
///
/// # Errors
/// If no process serves there.
pub fn stop(plan: &CuratorPlan) -> Result<ExitStatus, Failure> {
    stop_at(&runtime::dir_of(&plan.place()), &format!("{} at {}", plan.url, plan.listen))
}
