//! Serving a volume, or a node of one, to clients over the network: what one process does from its
//! start to its end.
//!
//! | file | what it has |
//! | --- | --- |
//! | `serve/takeover.rs` | serving in the place of another process |

mod takeover;

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::memory::{Wanted, Work};
use kestrel_client::remote::PORT_DEFAULT;
use kestrel_client::storage::{Offer, StoreOptions};
use kestrel_client::volume::{LogDirSettings, MountedVolume, Resources, VolumeLock};
use kestrel_cluster::host::NodeHost;
use kestrel_rpc::tls::TlsMode;
use kestrel_server::LEFT_BEHIND;
use kestrel_server::audit::Audit;
use kestrel_server::backend::Backend;
use kestrel_server::config::{Access, SessionServerConfig};
use kestrel_server::listen::ClockedServer;
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use kestrel_types::placement::NodeId;
use kestrel_types::placement::slot_map::ADDRESS_MAX;
use kestrel_types::security::is_loopback;

use crate::ask::{ask, locate, locate_anew};
use crate::backup_schedule::{BackupScheduler, KeeperOptions, Schedule};
use crate::balance::{Balancer, Pace};
use crate::clients::Clients;
use crate::collector::{Collecting, Collector, CollectorOptions};
use crate::endpoints::Endpoints;
use crate::failover::{self, Failover, FailoverMonitor, FailoverService};
use crate::failure::{ExitStatus, Failure};
use crate::holder::{END_TIME_MAX, Holder};
use crate::memory::Memory;
use crate::mount_status::MountStatus;
use crate::node::NodeOfCluster;
use crate::process::ProcessOptions;
use crate::questions::Questions;
use crate::role::NodeRole;
use crate::served_volume::ServedVolume;
use crate::serving::Serving;
use crate::snapshots::keeper::{KeepingSnapshots, SnapshotKeeper};
use crate::tls::{ServeTls, TlsOptions};
use takeover::{bind, open};

pub use takeover::{HomeNode, in_place_of};

/// Name of the log file within the volume's directory.
pub const LOG_NAME: &str = "serve.log";

/// Name of the audit log there.
const AUDIT_NAME: &str = "audit.log";

/// Time between two looks whether the process has to end by itself.
const LOOK: Duration = Duration::from_secs(1);

/// The same while a node joins.
const LOOK_JOINING: Duration = Duration::from_millis(50);

/// How long a node that joins is waited for before it is said to serve all the same.
const JOIN_TIME: Duration = Duration::from_secs(60);

/// How long clients get, at the end, for the answers to what they have asked.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How a volume is served: what the command line and the file of `--config` say.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The volume: a path or file:///path.
    pub volume: Option<String>,
    /// Where to listen: ADDRESS:PORT.
    pub listen: Option<String>,
    /// Where others reach this node of a cluster: HOST:PORT.
    pub advertise: Option<String>,
    /// Name by which clients ask for the volume.
    pub name: Option<String>,
    /// What this node of a cluster is there for.
    pub role: Option<NodeRole>,
    /// A client that is not heard of for this long loses its locks and what it has open.
    pub lease: Duration,
    /// How long clients of before a restart are waited for; as long as the lease by default.
    pub grace: Option<Duration>,
    /// How often the node that leads changes looks whether nodes are to be evened out.
    pub balance: Pace,
    /// Which clients must show a token.
    pub access: Access,
    /// Where refused and administrative operations are told, or `off`.
    pub audit: Option<PathBuf>,
    /// Whether other nodes that have died are taken over, at which ports they are served then.
    pub failover: Failover,
    /// The process that a node is taken from, by force, if that one still has it.
    pub take_over_from: Option<String>,
    /// Have the process that serves it at present end, and go on in its place.
    pub replace: bool,
    /// End the process that serves the volume.
    pub stop: bool,
    /// Encryption.
    pub tls: TlsOptions,
    /// Most requests that a worker executes together.
    pub batch_max: Option<u16>,
    /// The process.
    pub process: ProcessOptions,
    /// How the block store is reached.
    pub store: StoreOptions,
    /// Metadata in a bucket: a log on a local disk in front of it.
    pub log_dir: LogDirSettings,
    /// Dumps into the block store.
    pub dumps: KeeperOptions,
    /// Collecting leftovers.
    pub leftovers: CollectorOptions,
    /// Nothing may be changed: for a published version.
    pub read_only: bool,
    /// A file with the tokens of clients of a published version.
    pub tokens: Option<PathBuf>,
    /// The node at home on this machine, if another one is served in its place.
    pub stands_in: Option<HomeNode>,
}

impl ServeConfig {
    fn volume(&self) -> Result<&str, Failure> {
        let missing = || {
            Failure::usage("serve: give the volume, or a file with the key volume: --config FILE")
        };
        self.volume.as_deref().ok_or_else(missing)
    }
}

/// What is said of a directory that has more to be done.
pub const CUT_SHORT: &str =
    "; a change of the settings or keys of all nodes was cut short: repeat it, and it is finished";

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("serve", why)
}

/// What is served, and where.
pub struct Plan {
    /// The directory.
    pub volume: PathBuf,
    /// The name that clients ask for.
    pub name: String,
    /// The address.
    pub listen: SocketAddr,
    /// Of a cluster: which node, and what it is there for.
    pub node: Option<(NodeId, NodeRole)>,
}

/// A name that a URL can carry.
pub fn name_arg(text: &str) -> Result<String, String> {
    if text.is_empty()
        || text.len() > 255
        || text.chars().any(|c| c == '/' || c == '?' || c.is_control())
    {
        return Err("1 to 255 bytes, neither '/' nor '?' nor control characters".into());
    }
    Ok(text.into())
}

/// An address that others can connect to.
pub fn advertise_arg(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if port.parse::<u16>().is_ok_and(|port| port > 0)
        && !host.is_empty()
        && text.len() <= ADDRESS_MAX
        && !text.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '/' | ','))
        && !host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
    {
        return Ok(text.into());
    }
    Err("HOST:PORT, where others can connect to, at most 255 bytes".into())
}

/// Where others reach a node that listens at `local`.
fn advertised(
    config: &ServeConfig,
    section: &ClusterSection,
    local: SocketAddr,
) -> Result<String, Failure> {
    if let Some(advertise) = &config.advertise {
        return Ok(advertise.clone());
    }
    if let Some(home) = &config.stands_in {
        return Ok(format!("{}:{}", home.host, local.port()));
    }
    let placement = section.placement().map_err(fail)?;
    let in_table = placement.map.member(section.node).map(|member| member.address.as_str());
    match in_table.filter(|_| config.listen.is_none()) {
        Some(address) => Ok(address.into()),
        None => reached_at(in_table, local).map_err(|why| Failure::usage(format!("serve: {why}"))),
    }
}

/// Where a node that was told to listen at `local` is reached, as far as that can be known:
/// `in_table` is where it was when it joined.
fn reached_at(in_table: Option<&str>, local: SocketAddr) -> Result<String, String> {
    if local.ip().is_unspecified() {
        // The machine is known by the name in the table; the port is this one.
        let host = in_table.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        return host
            .and_then(|host| advertise_arg(&format!("{host}:{}", local.port())).ok())
            .ok_or_else(|| {
                format!(
                    "--listen {local}: nobody could know where this node is by that; give \
                     --advertise HOST:PORT"
                )
            });
    }
    let is_local =
        |mut found: std::vec::IntoIter<SocketAddr>| found.any(|address| address == local);
    let in_table = in_table.filter(|address| address.to_socket_addrs().is_ok_and(is_local));
    Ok(in_table.map_or_else(|| local.to_string(), str::to_string))
}

/// What can be judged without opening the volume.
pub fn check(config: &ServeConfig) -> Result<Plan, Failure> {
    // The process in the background is told by the one that starts it.
    let find = if config.process.report_readiness { locate } else { locate_anew };
    let volume = find("serve", config.volume()?, config.store.credentials.as_deref())?;
    if config.read_only || config.tokens.is_some() {
        return Err(Failure::usage(
            "serve: --read-only, --tokens: for a published version: VOLUME//NAME; a volume is \
             served for changes, and a client mounts it with --read-only",
        ));
    }
    let descriptor = Descriptor::read(&volume).map_err(fail)?;
    if descriptor.cluster.is_some() && Descriptor::is_changing(&volume) {
        // The others may have the new settings or keys already: two nodes must not write by
        // different ones.
        return Err(fail(format!("{}: not started{CUT_SHORT}", volume.display())));
    }
    let section = descriptor.cluster.as_ref();
    if section.is_some()
        && config.name.as_ref().is_some_and(|name| *name != descriptor.settings.name)
    {
        return Err(Failure::usage(
            "serve: --name: all nodes of a cluster serve the volume under its own name",
        ));
    }
    let listen = listen(config, section)?;
    if section.is_none() && config.advertise.is_some() {
        return Err(Failure::usage(
            "serve: --advertise: one node alone serves this volume; clients know its address by \
             their URL",
        ));
    }
    let node = section.map(role_of).transpose()?;
    if let Some(why) = config.role.and_then(|wanted| not_its_role(wanted, node)) {
        return Err(Failure::usage(format!("serve: --role {why}")));
    }
    if config.tls.tls == TlsMode::Off && config.access != Access::Open && !is_loopback(listen.ip())
    {
        return Err(Failure::usage(
            "serve: --tls off: tokens are not shown in clear, so nobody on another machine could \
             be let in: say --access open besides, or \
             leave --tls off out",
        ));
    }
    config.tls.check(listen.ip()).map_err(|why| Failure::usage(format!("serve: {why}")))?;
    let name = config.name.clone().unwrap_or(descriptor.settings.name);
    name_arg(&name).map_err(|why| Failure::usage(format!("serve: --name: {why}")))?;
    Ok(Plan { volume, name, listen, node })
}

/// The number of a node and what it is there for, which the table that it was formed with tells as
/// well as any later one.
fn role_of(section: &ClusterSection) -> Result<(NodeId, NodeRole), Failure> {
    let placement = section.placement().map_err(fail)?;
    Ok((section.node, NodeRole::of(placement.is_idle(section.node))))
}

/// Why a volume, or a node of one, is not served in this role, if it is not.
fn not_its_role(wanted: NodeRole, node: Option<(NodeId, NodeRole)>) -> Option<String> {
    let word = wanted.word();
    match node {
        Some((_, role)) if role == wanted => None,
        Some((node, role)) => Some(format!(
            "{word}: the cluster has node {node} as {}, for as long as it is a node; leave --role \
             away, or name the directory of another node",
            role.word()
        )),
        None if wanted == NodeRole::Metadata => None,
        None => Some(format!("{word}: one node alone serves this volume, and needs none")),
    }
}

/// Where to listen.
fn listen(config: &ServeConfig, section: Option<&ClusterSection>) -> Result<SocketAddr, Failure> {
    let wanted = match (&config.listen, section) {
        (Some(listen), _) => listen.clone(),
        (None, None) => format!("127.0.0.1:{PORT_DEFAULT}"),
        (None, Some(section)) => {
            let placement = section.placement().map_err(fail)?;
            let member = placement.map.member(section.node);
            member
                .map(|member| member.address.clone())
                .ok_or_else(|| fail("the node is not in the table"))?
        }
    };
    let found = wanted.to_socket_addrs().map_err(|why| {
        Failure::usage(format!("serve: --listen {wanted}: {why}; give ADDRESS:PORT"))
    })?;
    found
        .into_iter()
        .next()
        .ok_or_else(|| Failure::usage(format!("serve: --listen {wanted}: no address")))
}

/// Serves until a signal comes.
pub fn serve(config: &ServeConfig) -> Result<ExitStatus, Failure> {
    let plan = check(config)?;
    crate::limits::raise_descriptor_limit();
    let served = serve_volume(config, &plan);
    // The volume is let go: a process that reads this may open it.
    log::info!("{} closed", plan.volume.display());
    served
}

/// Opens the volume, serves it, stores what is left and lets it go.
fn serve_volume(config: &ServeConfig, plan: &Plan) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    let wanted = Wanted { metadata_bytes: config.process.metadata_memory, ..Wanted::default() };
    let memory = Memory::divide("serve", Work::Serve, wanted)?;
    if config.replace || config.process.take_over {
        // What can be wrong with the options must not end the process that serves.
        ServeTls::new(&config.tls, &plan.volume, plan.listen).map_err(fail)?;
        audit(config, plan)?;
    }
    // First of all: an address that is taken must not cost a recovery.
    let listener = bind(config, plan).map_err(|why| match VolumeLock::holder(&plan.volume) {
        Some(pid) => fail(format!(
            "{}: in use by process {pid}; end that one \
                                   first",
            plan.volume.display()
        )),
        None if config.listen.is_some() => {
            fail(format!("--listen {}: {why}; choose another address", plan.listen))
        }
        None => fail(format!(
            "{}: {why}. That is where this volume, or this node of its cluster, listens unless \
             told otherwise; if it is the \
             right directory on the right machine, give --listen ADDRESS:PORT",
            plan.listen
        )),
    })?;
    let local = listener.local_addr().unwrap_or(plan.listen);
    let tls = ServeTls::new(&config.tls, &plan.volume, local).map_err(fail)?;
    tls.be_node(&plan.volume).map_err(fail)?;
    let resources = Resources {
        take_over: config.process.take_over,
        batch_max: config.batch_max.map(usize::from),
        store: StoreOptions { memory: memory.plan, ..config.store.clone() },
        log_dir: config.log_dir.clone(),
        ..Resources::within(memory.plan)
    };
    let role = format!("kestrel serve {}", plan.name);
    let (volume, resources) = open(config, plan, &role, resources)?;
    let section = volume.descriptor.cluster.clone();
    let node = section.map(|section| {
        let address = advertised(config, &section, local)?;
        NodeOfCluster::new(&volume, &section, config.balance, address).map_err(fail)
    });
    let mut node = node.transpose()?;
    if let Some((node, home)) = node.as_mut().zip(config.stands_in.as_ref()) {
        node.stands_in = Some((home.node, Instant::now()));
    }
    let opened = match &node {
        Some(node) => volume.serve_part(&resources, node.peers.clone()),
        None => volume.serve_clients(&resources),
    };
    let opened = opened.map_err(fail)?;
    let served = match (&node, opened.fs.member()) {
        (Some(node), Some(host)) if host.has_left() => Err(fail(format!(
            "{}: node {} has left the cluster {:?}: {LEFT_BEHIND}",
            plan.volume.display(),
            node.node,
            plan.name
        ))),
        (Some(node), Some(host)) => node.connect(host, &tls).map_err(fail),
        _ => Ok(()),
    };
    let served =
        served.and_then(|()| attend(config, plan, &memory, &opened, node, (listener, &tls), begun));
    let stored = opened.fs.shutdown().map_err(fail);
    if stored.is_ok()
        && let Err(why) = opened.leave_ownership()
    {
        log::warn!(
            "that this process has ended is not on record, so the next one waits longer: {why}"
        );
    }
    let settled = opened.volume.engine.settle().map_err(fail);
    if let Err(why) = stored.as_ref().and(settled.as_ref()) {
        log::error!("the last changes could not be stored: {}", why.reason());
    }
    served.and_then(|verdict| stored.and(settled).map(|()| verdict))
}

/// Opens all doors, waits for a signal, closes them.
fn attend(
    config: &ServeConfig,
    plan: &Plan,
    memory: &Memory,
    opened: &MountedVolume,
    node: Option<NodeOfCluster>,
    (listener, tls): (TcpListener, &ServeTls),
    begun: Instant,
) -> Result<ExitStatus, Failure> {
    let questions = Arc::new(Questions::default());
    let server = server(config, plan, opened, node.as_ref(), questions.clone())?;
    let member = node.as_ref().zip(opened.fs.member());
    if let Some((node, host)) = member {
        node.follow_tables(host, &server);
        node.share_tokens(host, &server);
        let offer = Offer::new(&opened.volume.descriptor, &opened.volume.storage).map_err(fail)?;
        server.describe_by(Box::new(move |placement| offer.placed_by(placement).to_json().into()));
    }
    let in_use = Arc::downgrade(&server);
    // While it is not there, nobody can be asked what he uses.
    opened.fs.also_in_use(Arc::new(move |object| {
        in_use.upgrade().is_none_or(|server| server.in_use(object))
    }));
    let door = ClockedServer::new(server.clone(), begun);
    let (signalled, signal) = mpsc::channel();
    let serving = Arc::new(Serving {
        volume: served(plan, opened),
        clients: OnceLock::new(),
        node,
        facts: MountStatus::new(memory),
        begun,
        cutting: crate::cutting::Cutting::default(),
        keeper: Arc::new(BackupScheduler::new(config.dumps, config.store.clone(), config.tls.tls)),
        collector: Arc::new(Collector::new(config.leftovers, config.store.clone(), config.tls.tls)),
        snapshots: Arc::new(SnapshotKeeper::default()),
        succession: OnceLock::new(),
        end: Some(signalled.clone()),
    });
    questions.belong_to(&serving);
    let doors = Endpoints::open(&plan.volume, config.process.metrics, &serving).map_err(fail)?;
    crate::signals::on_signal(move |_| {
        // A process that does not wait any more is ending already.
        let _ = signalled.send(());
    });
    let limits = memory.fit_server(kestrel_rpc::server::ListenerConfig {
        tls: tls.server.clone(),
        ..Default::default()
    });
    let sockets = kestrel_rpc::server::serve(listener, Arc::new(door.clone()), limits)
        .map_err(|why| fail(format!("--listen {}: {why}", plan.listen)))?;
    let address = sockets.address();
    let clients = Clients {
        name: plan.name.clone(),
        address,
        door,
        sockets: parking_lot::Mutex::new(Some(sockets)),
    };
    let clients = serving.clients.get_or_init(|| clients);
    let what = format!("{} serves at {}", plan.volume.display(), tls.url(address, &plan.name));
    log::info!("{what} after {:.1?}", begun.elapsed());
    let member = serving.node.as_ref().zip(opened.fs.member());
    let balancer = member
        .map(|(node, host)| {
            Balancer::start(host, &serving.volume.engine, &node.peers, node.pace, &node.balancing)
        })
        .transpose();
    let balancer = balancer.map_err(|why| fail(format!("no thread to balance with: {why}")))?;
    let failure = match member.filter(|(node, host)| node.is_joining(host)) {
        Some((node, host)) => until_joined(&signal, &serving, node, host),
        None => Watch::Good,
    };
    let schedule = Schedule::begin(&serving.keeper, &serving.volume)
        .map_err(|why| fail(format!("no thread for dumps: {why}")))?;
    let collecting = Collecting::begin(&serving.collector, &serving.volume)
        .map_err(|why| fail(format!("no thread to collect with: {why}")))?;
    let snapshots = KeepingSnapshots::begin(&serving.snapshots, &serving.volume)
        .map_err(|why| fail(format!("no thread for snapshots: {why}")))?;
    let successor = successor(config, plan, &serving)
        .map_err(|why| fail(format!("no thread to watch others with: {why}")))?;
    let failure = match failure {
        Watch::Good => {
            config.process.ready(&what);
            until_end(&signal, &serving, opened)
        }
        Watch::Signalled | Watch::Left => None,
        Watch::Failed(why) => Some(why),
    };
    config.process.stopping();
    log::info!("{} ends; its clients will wait for it", plan.volume.display());
    drop(successor);
    drop(snapshots);
    drop(collecting);
    drop(schedule);
    drop(balancer);
    if let Some(sockets) = clients.sockets.lock().take() {
        sockets.stop(LAST_ANSWERS);
    }
    server.close();
    drop(doors);
    failure.map_or(Ok(ExitStatus::Good), |why| Err(fail(why)))
}

/// The volume that is served, for those that use it.
fn served(plan: &Plan, opened: &MountedVolume) -> Arc<ServedVolume> {
    let volume = &opened.volume;
    Arc::new(ServedVolume {
        fs: opened.fs.clone(),
        engine: volume.engine.clone(),
        store: volume.store.clone(),
        storage: volume.storage.clone(),
        descriptor: volume.descriptor.clone(),
        dir: plan.volume.clone(),
        mount_point: None,
        read_only: false,
        walking: parking_lot::Mutex::default(),
    })
}

/// Begins to watch the other nodes, if this one is to take them over.
fn successor(
    config: &ServeConfig,
    plan: &Plan,
    serving: &Arc<Serving>,
) -> std::io::Result<Option<FailoverMonitor>> {
    // Of nodes that keep their rows in their directories the coordinator's may lie elsewhere.
    let reaches = |idle| serving.volume.descriptor.is_shared(idle).unwrap_or(false);
    let takes = config.failover != Failover::Off && (reaches(false) || reaches(true));
    let Some(host) = serving
        .volume
        .fs
        .member()
        .filter(|_| takes && plan.node.is_some_and(|(_, role)| role == NodeRole::Metadata))
    else {
        return Ok(None);
    };
    let home = config.stands_in.as_ref().map_or(&plan.volume, |home| &home.dir);
    let succession = FailoverService::new(
        host,
        &serving.volume.descriptor,
        failover::StartCommand::of_process(home),
        config.store.clone(),
    );
    FailoverMonitor::start(serving.succession.get_or_init(|| succession)).map(Some)
}

/// What there is to say of the process.
enum Watch {
    /// It goes on.
    Good,
    /// It is to end.
    Signalled,
    /// It is no node of the cluster any more, and nobody needs it.
    Left,
    /// It must end.
    Failed(String),
}

/// Whether another process may go on with the node's rows.
fn node_is_shared(serving: &Serving) -> bool {
    let host = serving.volume.fs.member();
    host.is_some_and(|host| host.node().cluster().is_some_and(|cluster| cluster.is_shared()))
}

/// Waits for a while. One of several nodes ends by itself when its log fails: only a start that
/// reads the log knows what became of what it was writing, and the others wait for that. And when
/// another node says that this is not the node that the cluster has: what it would serve is not
/// what the others know. And when it has left the cluster.
fn watch(signal: &mpsc::Receiver<()>, look: Duration, serving: &Serving) -> Watch {
    match signal.recv_timeout(look) {
        Err(mpsc::RecvTimeoutError::Timeout) => {}
        _ => return Watch::Signalled,
    }
    let (Some(node), Some(host)) = (&serving.node, serving.volume.fs.member()) else {
        return Watch::Good;
    };
    if let Some(why) = host.failure() {
        let why = match node_is_shared(serving) {
            true => format!(
                "this process cannot go on with the node: {why}; start it again if nobody serves \
                 in its place"
            ),
            false => {
                format!("the log has failed: {why}; look at the disk, then start this node again")
            }
        };
        log::error!("{why}");
        return Watch::Failed(why);
    }
    if host.has_left() {
        // A client that still has a session may ask what became of its calls.
        let sessions = serving.clients.get().map_or(0, Clients::sessions);
        if sessions == 0 {
            log::info!("node {} has left the cluster: {LEFT_BEHIND}", node.node);
            return Watch::Left;
        }
        return Watch::Good;
    }
    node.peers.forget_former(&host.placement());
    // It is in the log already.
    node.peers.expelled().map_or(Watch::Good, Watch::Failed)
}

/// Waits until the process is to end; why it must, if it must.
fn until_end(
    signal: &mpsc::Receiver<()>,
    serving: &Serving,
    opened: &MountedVolume,
) -> Option<String> {
    loop {
        if serving.volume.fs.member().is_some_and(|host| host.lease_stats().held)
            && let Err(why) = opened.settle_ownership()
        {
            log::warn!("that this process has a lease is not on record yet: {why}");
        }
        match watch(signal, LOOK, serving) {
            Watch::Good => {}
            Watch::Signalled | Watch::Left => return None,
            Watch::Failed(why) => return Some(why),
        }
    }
}

/// Waits until the other nodes have this one in their table, but not for ever: it goes on joining
/// while it serves.
fn until_joined(
    signal: &mpsc::Receiver<()>,
    serving: &Serving,
    node: &NodeOfCluster,
    host: &NodeHost,
) -> Watch {
    log::info!(
        "node {} joins the cluster: it waits until all other nodes have it in their table",
        node.node
    );
    let begun = Instant::now();
    while node.is_joining(host) {
        if begun.elapsed() > JOIN_TIME {
            log::warn!(
                "node {} has not joined after {} s: all nodes have to be up for that; see `kestrel \
                 cluster status`",
                node.node,
                JOIN_TIME.as_secs()
            );
            return Watch::Good;
        }
        match watch(signal, LOOK_JOINING, serving) {
            Watch::Good => {}
            ends => return ends,
        }
    }
    log::info!("node {} has joined the cluster after {:.1?}", node.node, begun.elapsed());
    Watch::Good
}

fn server(
    config: &ServeConfig,
    plan: &Plan,
    opened: &MountedVolume,
    node: Option<&NodeOfCluster>,
    questions: Arc<Questions>,
) -> Result<Arc<Server>, Failure> {
    let volume = &opened.volume;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let in_nanos = |time: Duration| Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX);
    let config = SessionServerConfig {
        volume: plan.name.clone(),
        descriptor: Offer::new(&volume.descriptor, &volume.storage).map_err(fail)?.to_json().into(),
        epoch: epoch(opened, &*clock),
        lease: in_nanos(config.lease),
        grace: in_nanos(config.grace.unwrap_or(config.lease)),
        node: node.map_or(0, |node| node.node),
        peers: node.map(|node| node.identity.clone()),
        access: config.access,
        audit: audit(config, plan)?,
        ..SessionServerConfig::default()
    };
    let backend = match (opened.fs.node(), opened.fs.member()) {
        (Some(node), _) => Backend::from(node.clone()),
        (None, Some(host)) => Backend::from(host.clone()),
        (None, None) => return Err(fail("the volume was opened without its metadata")),
    };
    Server::new(backend, clock, config, LockLimits::default(), questions, 0).map_err(fail)
}

/// What clients tell starts of this server by: grows from start to start. A member counts its
/// starts, whichever machine they are on; that is put above all wall times, which earlier releases
/// had there. A node alone has the wall time: its starts are on one machine.
fn epoch(opened: &MountedVolume, clock: &dyn Clock) -> u64 {
    opened.fs.member().map_or_else(|| clock.now().unsigned_abs(), |host| 1 << 63 | host.epoch())
}

/// Where refused and administrative operations are told.
fn audit(config: &ServeConfig, plan: &Plan) -> Result<Arc<Audit>, Failure> {
    audit_at(config, &plan.volume.join(AUDIT_NAME))
}

/// The same, in this file unless another one is given.
///
/// # Errors
/// If the file cannot be opened.
pub fn audit_at(config: &ServeConfig, default: &Path) -> Result<Arc<Audit>, Failure> {
    let file = match &config.audit {
        Some(file) if file.as_os_str() == "off" => return Ok(Arc::default()),
        Some(file) => std::path::absolute(file).unwrap_or_else(|_| file.clone()),
        None => default.to_path_buf(),
    };
    Audit::open(&file)
        .map(Arc::new)
        .map_err(|why| fail(format!("--audit {}: {why}", file.display())))
}

/// Ends the process that serves the volume, and waits until it has.
pub fn stop(config: &ServeConfig) -> Result<ExitStatus, Failure> {
    let dir = locate("serve", config.volume()?, config.store.credentials.as_deref())?;
    Descriptor::read(&dir).map_err(fail)?;
    stop_at(&dir, &dir.display().to_string())
}

/// Ends the process that has its control socket in `dir` and serves `what`, and waits until it has.
///
/// # Errors
/// If no process serves it, or the process does not end.
pub fn stop_at(dir: &Path, what: &str) -> Result<ExitStatus, Failure> {
    let question = serde_json::json!({ "verb": "status" });
    let status = ask("serve", dir, &question, kestrel_client::control::QUICK)?;
    let Some(status) = status.filter(|status| status["served"].is_object()) else {
        return Err(fail(format!("{what}: nobody serves it")));
    };
    let pid = status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
    let pid = pid.ok_or_else(|| fail(format!("{what}: its process does not tell its number")))?;
    let holder = Holder::of(dir);
    // SAFETY: takes no pointer; the process told its number over a socket that only the volume's
    // owner can serve.
    if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
        return Err(fail(format!("process {pid}: {}", std::io::Error::last_os_error())));
    }
    wait_until_ended(what, &holder, pid)
}

fn wait_until_ended(what: &str, holder: &Holder, pid: i32) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    while holder.is_there() {
        if begun.elapsed() > END_TIME_MAX {
            let why = format!(
                "process {pid} has not ended after {} s; see its log",
                END_TIME_MAX.as_secs()
            );
            return Err(fail(format!("{what}: {why}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ExitStatus::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_where_it_can_be_reached() {
        let at = |in_table, local: &str| reached_at(in_table, local.parse().unwrap());
        for (in_table, local, told) in [
            ("127.0.0.1:9440", "127.0.0.1:9440", "127.0.0.1:9440"),
            ("localhost:9440", "127.0.0.1:9440", "localhost:9440"),
            ("127.0.0.1:9440", "127.0.0.1:9555", "127.0.0.1:9555"),
            ("10.0.0.1:9440", "0.0.0.0:9440", "10.0.0.1:9440"),
            ("10.0.0.1:9440", "0.0.0.0:9555", "10.0.0.1:9555"),
            ("[fd00::1]:9440", "[::]:9555", "[fd00::1]:9555"),
            ("meta1:9440", "0.0.0.0:9555", "meta1:9555"),
        ] {
            assert_eq!(at(Some(in_table), local).as_deref(), Ok(told), "{local}");
        }
        for in_table in [None, Some("0.0.0.0:9440"), Some(":9440")] {
            assert!(
                at(in_table, "0.0.0.0:9555").unwrap_err().contains("--advertise"),
                "{in_table:?}"
            );
        }
    }

    #[test]
    fn a_node_is_served_in_the_role_that_it_has() {
        let (metadata, coordinator) = (NodeRole::Metadata, NodeRole::Coordinator);
        for (wanted, node, why) in [
            (metadata, None, None),
            (coordinator, None, Some("one node alone")),
            (metadata, Some((1, metadata)), None),
            (coordinator, Some((4, coordinator)), None),
            (coordinator, Some((1, metadata)), Some("the cluster has node 1 as metadata")),
            (metadata, Some((4, coordinator)), Some("the cluster has node 4 as coordinator")),
        ] {
            let told = not_its_role(wanted, node);
            assert_eq!(told.is_some(), why.is_some());
            assert!(told.unwrap_or_default().contains(why.unwrap_or_default()));
        }
    }
}
