//! `kestrel serve`.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::remote::PORT_DEFAULT;
use kestrel_client::storage::Offer;
use kestrel_client::volume::{MountedVolume, Resources, Volume, VolumeLock};
use kestrel_cluster::LEFT_BEHIND;
use kestrel_cluster::backend::Backend;
use kestrel_cluster::config::{LEASE_MAX, LEASE_MIN, ServerConfig};
use kestrel_cluster::listen::Door;
use kestrel_cluster::locks::LockLimits;
use kestrel_cluster::server::Server;
use kestrel_meta::member::host::MemberHost;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use log::LevelFilter;

use super::locate;
use super::store_args::StoreArgs;
use crate::failure::{Failure, Verdict};
use crate::nodes::at_rest::CUT_SHORT;
use crate::serve::attendant::Doors;
use crate::serve::clients::{Clients, Questions};
use crate::serve::control::Serving;
use crate::serve::facts::MountFacts;
use crate::serve::holder::{END_TIME_MAX, Holder};
use crate::serve::node::NodeOfCluster;
use crate::serve::process::ProcessArgs;
use crate::units::duration_arg;

/// Name of the log file within the volume's directory.
const LOG_NAME: &str = "serve.log";

/// Time between two looks whether the process has to end by itself.
const LOOK: Duration = Duration::from_secs(1);

/// The same while a node joins.
const LOOK_JOINING: Duration = Duration::from_millis(50);

/// How long a node that joins is waited for before it is said to serve all the same.
const JOIN_TIME: Duration = Duration::from_secs(60);

/// How long clients get, at the end, for the answers to what they have asked.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Serve a volume to clients over the network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel serve /data/vol --listen 10.0.0.1:9440
  kestrel serve /data/vol --listen [::]:9440 --name photos --lease 60s
  kestrel serve /data/vol --foreground --log-level debug
  kestrel serve /data/vol --stop
  kestrel serve /data/node2

Clients mount it with `kestrel mount kestrel://HOST:PORT/NAME DIR`. Metadata goes through this process, file data straight
between them and the block store: format the volume with --storage s3://… unless all of them run on this machine. Returns
when it serves; the process stays in the background. Clients wait while it is restarted, and go on with their open files and
locks. There is no authentication yet: who reaches the address may do what any user of the volume may. SIGTERM and SIGINT
end it cleanly. Of a volume that several nodes share each is served like this; they find each other by the addresses that were
given when the cluster was formed.")]
pub struct ServeArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// Where to listen: ADDRESS:PORT; by default a node of a cluster at its address, any other at 127.0.0.1:9440
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Name by which clients ask for the volume; by default the one it was formatted with
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A client that is not heard of for this long loses its locks and what it has open
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "30s")]
    pub lease: Duration,
    /// How long clients of before a restart are waited for; as long as the lease by default
    #[arg(long, value_name = "TIME", value_parser = duration_arg)]
    pub grace: Option<Duration>,
    /// End the process that serves the volume
    #[arg(long, conflicts_with_all = ["listen", "name", "lease", "grace", "foreground"])]
    pub stop: bool,
    /// Most requests that a worker executes together, for measurements: 1 switches merging off
    #[arg(long, hide = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch_max: Option<u16>,
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Serves, in the background unless told otherwise.
pub fn run(args: &ServeArgs) -> Result<Verdict, Failure> {
    if args.stop {
        crate::logger::install(LevelFilter::Warn);
        return stop(args);
    }
    args.process.run(|| background(args), || serve(args))
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("serve", why)
}

/// What is served, and where.
struct Plan {
    volume: PathBuf,
    name: String,
    listen: SocketAddr,
}

/// What can be judged without opening the volume.
fn check(args: &ServeArgs) -> Result<Plan, Failure> {
    let volume = locate("serve", &args.volume)?;
    let descriptor = Descriptor::read(&volume).map_err(fail)?;
    if descriptor.cluster.is_some() && Descriptor::is_changing(&volume) {
        // The others may have the new settings or keys already: two nodes must not write by different ones.
        return Err(fail(format!("{}: not started{CUT_SHORT}", volume.display())));
    }
    let leases =
        Duration::from_nanos(LEASE_MIN.unsigned_abs())..=Duration::from_nanos(LEASE_MAX.unsigned_abs());
    if !leases.contains(&args.lease) || args.grace.is_some_and(|grace| grace > *leases.end()) {
        return Err(Failure::usage("serve: --lease must be 1s to 10m, --grace at most 10m"));
    }
    let section = descriptor.cluster.as_ref();
    if section.is_some() && args.name.as_ref().is_some_and(|name| *name != descriptor.settings.name) {
        return Err(Failure::usage(
            "serve: --name: all nodes of a cluster serve the volume under its own name",
        ));
    }
    let listen = listen(args, section)?;
    let name = args.name.clone().unwrap_or(descriptor.settings.name);
    // What a URL can carry.
    if name.is_empty() || name.len() > 255 || name.contains('/') || name.chars().any(char::is_control) {
        return Err(Failure::usage("serve: --name: 1 to 255 bytes, neither '/' nor control characters"));
    }
    args.process.check("serve")?;
    args.store.options("serve")?;
    Ok(Plan { volume, name, listen })
}

/// Where to listen.
fn listen(args: &ServeArgs, section: Option<&ClusterSection>) -> Result<SocketAddr, Failure> {
    let wanted = match (&args.listen, section) {
        (Some(listen), _) => listen.clone(),
        (None, None) => format!("127.0.0.1:{PORT_DEFAULT}"),
        (None, Some(section)) => {
            let placement = section.placement().map_err(fail)?;
            let member = placement.map.member(section.node);
            member.map(|member| member.address.clone()).ok_or_else(|| fail("the node is not in the table"))?
        }
    };
    let found = wanted
        .to_socket_addrs()
        .map_err(|why| Failure::usage(format!("serve: --listen {wanted}: {why}; give ADDRESS:PORT")))?;
    found.into_iter().next().ok_or_else(|| Failure::usage(format!("serve: --listen {wanted}: no address")))
}

fn background(args: &ServeArgs) -> Result<Verdict, Failure> {
    let plan = check(args)?;
    let (pid, log) = args.process.start(&plan.volume.join(LOG_NAME)).map_err(fail)?;
    let question = serde_json::json!({ "verb": "status" });
    let status =
        super::ask("serve", &plan.volume, &question, kestrel_client::control::QUICK)?.unwrap_or_default();
    let address = status["served"]["address"].as_str().map_or(plan.listen.to_string(), str::to_string);
    println!(
        "{} is served at kestrel://{address}/{} (process {pid}, log {})",
        plan.volume.display(),
        plan.name,
        log.display()
    );
    Ok(Verdict::Good)
}

/// Serves until a signal comes.
fn serve(args: &ServeArgs) -> Result<Verdict, Failure> {
    let plan = check(args)?;
    crate::serve::limits::raise_descriptor_limit();
    let served = serve_volume(args, &plan);
    // The volume is let go: whoever reads this may open it.
    log::info!("{} closed", plan.volume.display());
    served
}

/// Opens the volume, serves it, stores what is left and lets it go.
fn serve_volume(args: &ServeArgs, plan: &Plan) -> Result<Verdict, Failure> {
    let begun = Instant::now();
    // First of all: an address that is taken must not cost a recovery.
    let listener = TcpListener::bind(plan.listen).map_err(|why| match VolumeLock::holder(&plan.volume) {
        Some(pid) => fail(format!("{}: in use by process {pid}; end that one first", plan.volume.display())),
        None if args.listen.is_some() => {
            fail(format!("--listen {}: {why}; choose another address", plan.listen))
        }
        None => fail(format!(
            "{}: {why}. That is where this volume, or this node of its cluster, listens unless told otherwise; if it is the \
             right directory on the right machine, give --listen ADDRESS:PORT",
            plan.listen
        )),
    })?;
    let resources = Resources {
        metadata_bytes: args.process.metadata_memory,
        batch_max: args.batch_max.map(usize::from),
        store: args.store.options("serve")?,
        ..Resources::default()
    };
    let role = format!("kestrel serve {}", plan.name);
    let volume = Volume::open_part(&plan.volume, &role, &resources).map_err(fail)?;
    let section = volume.descriptor.cluster.clone();
    let node = section.map(|section| NodeOfCluster::new(&volume.descriptor, &section));
    let node = node.transpose().map_err(fail)?;
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
        (Some(node), Some(host)) => node.connect(host).map_err(fail),
        _ => Ok(()),
    };
    let served = served.and_then(|()| attend(args, plan, &opened, node, listener, begun));
    let stored = opened.fs.shutdown().map_err(fail);
    let settled = opened.volume.engine.settle().map_err(fail);
    if let Err(why) = stored.as_ref().and(settled.as_ref()) {
        log::error!("the last changes could not be stored: {}", why.reason());
    }
    served.and_then(|verdict| stored.and(settled).map(|()| verdict))
}

/// Opens all doors, waits for a signal, closes them.
fn attend(
    args: &ServeArgs,
    plan: &Plan,
    opened: &MountedVolume,
    node: Option<NodeOfCluster>,
    listener: TcpListener,
    begun: Instant,
) -> Result<Verdict, Failure> {
    let questions = Arc::new(Questions::default());
    let server = server(args, plan, opened, node.as_ref(), questions.clone())?;
    let member = node.as_ref().zip(opened.fs.member());
    if let Some((node, host)) = member {
        node.follow_tables(host, &server);
        let offer = Offer::new(&opened.volume.descriptor, &opened.volume.storage).map_err(fail)?;
        server.describe_by(Box::new(move |placement| offer.placed_by(placement).to_json().into()));
    }
    let in_use = Arc::downgrade(&server);
    // While it is not there, nobody can be asked what he uses.
    opened
        .fs
        .also_in_use(Arc::new(move |object| in_use.upgrade().is_none_or(|server| server.in_use(object))));
    let door = Door::new(server.clone(), begun);
    let volume = &opened.volume;
    let serving = Arc::new(Serving {
        fs: opened.fs.clone(),
        engine: volume.engine.clone(),
        store: volume.store.clone(),
        storage: volume.storage.clone(),
        descriptor: volume.descriptor.clone(),
        dir: plan.volume.clone(),
        mount_point: None,
        clients: OnceLock::new(),
        node,
        facts: MountFacts::default(),
        read_only: false,
        begun,
        walking: parking_lot::Mutex::default(),
        cutting: crate::serve::part::cut::Cutting::default(),
    });
    questions.belong_to(&serving);
    let doors = Doors::open(&plan.volume, args.process.metrics, &serving).map_err(fail)?;
    let (signalled, signal) = mpsc::channel();
    crate::signals::on_signal(move |_| {
        // Whoever does not wait any more is ending already.
        let _ = signalled.send(());
    });
    let sockets = kestrel_net::server::serve(listener, Arc::new(door.clone()), Default::default())
        .map_err(|why| fail(format!("--listen {}: {why}", plan.listen)))?;
    let address = sockets.address();
    let clients =
        Clients { name: plan.name.clone(), address, door, sockets: parking_lot::Mutex::new(Some(sockets)) };
    let clients = serving.clients.get_or_init(|| clients);
    log::info!(
        "{} serves at kestrel://{address}/{} after {:.1?}",
        plan.volume.display(),
        plan.name,
        begun.elapsed()
    );
    let member = serving.node.as_ref().zip(opened.fs.member());
    let failure = match member.filter(|(node, host)| node.is_joining(host)) {
        Some((node, host)) => until_joined(&signal, &serving, node, host),
        None => Watch::Good,
    };
    let failure = match failure {
        Watch::Good => {
            args.process.ready();
            until_end(&signal, &serving)
        }
        Watch::Signalled | Watch::Left => None,
        Watch::Failed(why) => Some(why),
    };
    log::info!("{} ends; its clients will wait for it", plan.volume.display());
    if let Some(sockets) = clients.sockets.lock().take() {
        sockets.stop(LAST_ANSWERS);
    }
    server.close();
    drop(doors);
    failure.map_or(Ok(Verdict::Good), |why| Err(fail(why)))
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

/// Waits for a while. One of several nodes ends by itself when its log fails: only a start that reads the log
/// knows what became of what it was writing, and the others wait for that. And when another node says that this is not the node
/// that the cluster has: what it would serve is not what the others know. And when it has left the cluster.
fn watch(signal: &mpsc::Receiver<()>, look: Duration, serving: &Serving) -> Watch {
    match signal.recv_timeout(look) {
        Err(mpsc::RecvTimeoutError::Timeout) => {}
        _ => return Watch::Signalled,
    }
    let (Some(node), Some(host)) = (&serving.node, serving.fs.member()) else { return Watch::Good };
    if let Some(why) = host.failure() {
        let why = format!("the log has failed: {why}; look at the disk, then start this node again");
        log::error!("{why}");
        return Watch::Failed(why);
    }
    if host.has_left() {
        // Who still has a session may ask what became of its calls.
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
fn until_end(signal: &mpsc::Receiver<()>, serving: &Serving) -> Option<String> {
    loop {
        match watch(signal, LOOK, serving) {
            Watch::Good => {}
            Watch::Signalled | Watch::Left => return None,
            Watch::Failed(why) => return Some(why),
        }
    }
}

/// Waits until the other nodes have this one in their table, but not for ever: it goes on joining while it serves.
fn until_joined(
    signal: &mpsc::Receiver<()>,
    serving: &Serving,
    node: &NodeOfCluster,
    host: &MemberHost,
) -> Watch {
    log::info!("node {} joins the cluster: it waits until all other nodes have it in their table", node.node);
    let begun = Instant::now();
    while node.is_joining(host) {
        if begun.elapsed() > JOIN_TIME {
            log::warn!(
                "node {} has not joined after {} s: all nodes have to be up for that; see `kestrel cluster status`",
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
    args: &ServeArgs,
    plan: &Plan,
    opened: &MountedVolume,
    node: Option<&NodeOfCluster>,
    questions: Arc<Questions>,
) -> Result<Arc<Server>, Failure> {
    let volume = &opened.volume;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let nanos = |time: Duration| Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX);
    let config = ServerConfig {
        volume: plan.name.clone(),
        descriptor: Offer::new(&volume.descriptor, &volume.storage).map_err(fail)?.to_json().into(),
        // Grows from start to start, as far as the wall clock does: what it is compared with are its own values only.
        epoch: clock.now().unsigned_abs(),
        lease: nanos(args.lease),
        grace: nanos(args.grace.unwrap_or(args.lease)),
        node: node.map_or(0, |node| node.node),
        peers: node.map(|node| node.identity.clone()),
        ..ServerConfig::default()
    };
    let backend = match (opened.fs.node(), opened.fs.member()) {
        (Some(node), _) => Backend::from(node.clone()),
        (None, Some(host)) => Backend::from(host.clone()),
        (None, None) => return Err(fail("the volume was opened without its metadata")),
    };
    Server::new(backend, clock, config, LockLimits::default(), questions, 0).map_err(fail)
}

/// Ends the process that serves the volume, and waits until it has.
fn stop(args: &ServeArgs) -> Result<Verdict, Failure> {
    let dir = locate("serve", &args.volume)?;
    Descriptor::read(&dir).map_err(fail)?;
    let question = serde_json::json!({ "verb": "status" });
    let status = super::ask("serve", &dir, &question, kestrel_client::control::QUICK)?;
    let Some(status) = status.filter(|status| status["served"].is_object()) else {
        return Err(fail(format!("{}: nobody serves it", dir.display())));
    };
    let pid = status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
    let pid = pid
        .ok_or_else(|| fail(format!("{}: who serves it does not say which process it is", dir.display())))?;
    let holder = Holder::of(&dir);
    // SAFETY: takes no pointer; the process told its number over a socket that only the volume's owner can serve.
    if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
        return Err(fail(format!("process {pid}: {}", std::io::Error::last_os_error())));
    }
    wait_until_ended(&dir, &holder, pid)
}

fn wait_until_ended(dir: &Path, holder: &Holder, pid: i32) -> Result<Verdict, Failure> {
    let begun = Instant::now();
    while holder.is_there() {
        if begun.elapsed() > END_TIME_MAX {
            let why = format!("process {pid} has not ended after {} s; see its log", END_TIME_MAX.as_secs());
            return Err(fail(format!("{}: {why}", dir.display())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Verdict::Good)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kestrel_client::descriptor::{Durability, Settings};
    use kestrel_client::storage::StoreOptions;
    use kestrel_client::volume::{NewVolume, form};
    use kestrel_data::store::coded::Compression;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn a_node_does_not_start_in_the_middle_of_a_change_of_all() {
        let place = tempfile::tempdir().unwrap();
        let url = place.path().to_str().unwrap();
        let settings = Settings {
            name: "shared".into(),
            storage: None,
            block_bytes: 4 << 20,
            inline_max: 4096,
            durability: Durability::Commit,
            grace_seconds: 60,
        };
        let new = NewVolume { settings, compression: Compression::None, encrypt_with: None, force: false };
        form(url, new, &["127.0.0.1:9441".into()], &StoreOptions::default()).unwrap();
        let args = Line::parse_from(["serve", url]).args;
        assert!(check(&args).is_ok());
        // As a change of all nodes leaves it that was killed before this one had the new settings.
        std::fs::copy(place.path().join("kestrel.json"), place.path().join("kestrel.json.change")).unwrap();
        let why = check(&args).err().unwrap().to_string();
        assert!(why.contains("was cut short: repeat it"), "{why}");
    }
}
