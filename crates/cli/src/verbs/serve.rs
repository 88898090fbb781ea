//! `kestrel serve`.

mod relief;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use clap::{Args, CommandFactory, Parser};
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::memory::{Wanted, Work};
use kestrel_client::remote::PORT_DEFAULT;
use kestrel_client::storage::{Offer, StoreOptions};
use kestrel_client::volume::{MountedVolume, Resources, VolumeLock};
use kestrel_cluster::LEFT_BEHIND;
use kestrel_cluster::audit::Audit;
use kestrel_cluster::backend::Backend;
use kestrel_cluster::config::{Access, LEASE_MAX, LEASE_MIN, ServerConfig};
use kestrel_cluster::listen::Door;
use kestrel_cluster::locks::LockLimits;
use kestrel_cluster::server::Server;
use kestrel_meta::member::host::MemberHost;
use kestrel_net::tls::Mode;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use kestrel_types::placement::NodeId;
use kestrel_types::placement::map::ADDRESS_MAX;
use kestrel_types::security::is_loopback;
use log::LevelFilter;

use relief::{Home, bind, in_place_of, open};

use super::locate;
use super::store_args::StoreArgs;
use crate::failure::{Failure, Verdict};
use crate::nodes::at_rest::CUT_SHORT;
use crate::serve::attendant::Doors;
use crate::serve::balance::{Balancer, Pace, pace_arg};
use crate::serve::clients::{Clients, Questions};
use crate::serve::collector::{Collecting, Collector, CollectorArgs};
use crate::serve::control::Serving;
use crate::serve::facts::MountFacts;
use crate::serve::holder::{END_TIME_MAX, Holder};
use crate::serve::keeper::{Keeper, KeeperArgs, Schedule};
use crate::serve::memory::Memory;
use crate::serve::node::NodeOfCluster;
use crate::serve::process::ProcessArgs;
use crate::serve::role::Role;
use crate::serve::settings::{self, bounded};
use crate::serve::successor::{self, Failover, Succession, Successor, failover_arg};
use crate::serve::tls::{ServeTls, TlsArgs, url_of};
use crate::units::duration_arg;

/// Name of the log file within the volume's directory.
const LOG_NAME: &str = "serve.log";

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

/// Serve a volume to clients over the network.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  kestrel serve /data/vol --listen 10.0.0.1:9440
  kestrel serve /data/vol --listen [::]:9440 --name photos --lease 60s
  kestrel serve /data/vol --foreground --log-level debug
  kestrel serve /data/vol --stop
  kestrel serve /data/node2
  kestrel serve --config /etc/kestrel/node2.toml
  kestrel serve --config /etc/kestrel/node2.toml --check
  kestrel serve /data/node2 --replace
  kestrel serve /data/node2 --in-place-of 3

Clients mount it with `kestrel mount kestrel://HOST:PORT/NAME DIR`. Metadata goes through this process, file data straight
between them and the block store: format the volume with --storage s3://… unless all of them run on this machine. Returns
when it serves; the process stays in the background. Clients wait while it is restarted, and go on with their open files and
locks. Connections with other machines are encrypted, and clients there show a token, which `kestrel token create` makes, and by which they know the
volume (or the fingerprint in the URL that is printed, which `kestrel cluster ca DIR` shows again). SIGTERM and SIGINT end it cleanly. Of a volume
that several nodes share each is served like this; they find each other by the addresses that were
given when the cluster was formed. If their metadata is in a database each takes the place of others that have died: a process for that one is
started beside it, in NODE_DIR/nodes/N, which `kestrel serve NODE_DIR/nodes/N --stop` ends, and which `kestrel serve DIR --take-over`
of the node's own directory relieves.")]
pub struct ServeArgs {
    /// The volume: a path or file:///path
    pub volume: Option<String>,
    /// TOML file with a key for each of these options, as lease = "60s"; what is given here wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say what would be served, and how, and end
    #[arg(long)]
    pub check: bool,
    /// Where to listen: ADDRESS:PORT; by default a node of a cluster at its address, any other at 127.0.0.1:9440
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where others reach this node of a cluster: HOST:PORT; by default its address in the cluster's table if it listens there, the host of
    /// that and its own port if it listens at all addresses, else where it listens
    #[arg(long, value_name = "ADDR", value_parser = advertise_arg)]
    pub advertise: Option<String>,
    /// Name by which clients ask for the volume; by default the one it was formatted with
    #[arg(long, value_name = "NAME", value_parser = name_arg)]
    pub name: Option<String>,
    /// What this node of a cluster is there for; it must be what the cluster has it for, which is also the default
    #[arg(long, value_enum, value_name = "ROLE")]
    pub role: Option<Role>,
    /// A client that is not heard of for this long loses its locks and what it has open
    #[arg(long, value_name = "TIME", value_parser = bounded(duration_arg, nanos(LEASE_MIN), nanos(LEASE_MAX), "from 1s to 10m"), default_value = "30s")]
    pub lease: Duration,
    /// How long clients of before a restart are waited for; as long as the lease by default
    #[arg(long, value_name = "TIME", value_parser = bounded(duration_arg, Duration::ZERO, nanos(LEASE_MAX), "at most 10m"))]
    pub grace: Option<Duration>,
    /// How often the node that leads changes looks whether nodes are to be evened out: every=TIME, or off. Of a cluster
    #[arg(long, value_name = "PACE", value_parser = pace_arg, default_value = "every=10m")]
    pub balance: Pace,
    /// Who must show a token: auto (whoever is not on this machine), tokens (everybody), open (nobody)
    #[arg(long, value_name = "WHO", value_parser = access_arg, default_value = "auto")]
    pub access: Access,
    /// Where refused and administrative operations are told, or off; audit.log in the volume's directory by default
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Whether other nodes that have died are taken over, at which ports they are served then: any, off, or PORT-PORT. Of a cluster with its
    /// metadata in a database
    #[arg(long, value_name = "PORTS", value_parser = failover_arg, default_value = "any")]
    pub failover: Failover,
    /// Serve this other node of the cluster, which is not served, from this node's directory and address
    #[arg(long, value_name = "N")]
    pub in_place_of: Option<NodeId>,
    /// Set by a process that takes a node over: whom it is taken from, by force, if that one still has it
    #[arg(long, hide = true, value_name = "WHO", requires = "in_place_of", conflicts_with = "take_over")]
    pub take_over_from: Option<String>,
    /// Have the process that serves it at present end, and go on in its place
    #[arg(long)]
    pub replace: bool,
    #[arg(skip)]
    stands_in: Option<Home>,
    /// End the process that serves the volume
    #[arg(long, conflicts_with_all = ["replace", "listen", "advertise", "name", "role", "lease", "grace", "balance", "foreground", "check", "tls", "tls_cert", "tls_ca", "access", "audit"])]
    pub stop: bool,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Most requests that a worker executes together, for measurements: 1 switches merging off
    #[arg(long, hide = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch_max: Option<u16>,
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub dumps: KeeperArgs,
    #[command(flatten)]
    pub leftovers: CollectorArgs,
}

/// The options as a command line by themselves.
#[derive(Parser)]
#[command(name = "serve")]
struct Line {
    #[command(flatten)]
    args: ServeArgs,
}

/// Serves, in the background unless told otherwise.
pub fn run(args: &ServeArgs) -> Result<Verdict, Failure> {
    let Some(config) = &args.config else { return run_with(args, &[]) };
    // What comes after the program's name and the verb.
    let line: Vec<OsString> = std::env::args_os().skip(2).collect();
    let (args, keys) = with_file(config, &line, args.stop)?;
    run_with(&args, &keys)
}

/// The options of a command line and of a file, and which keys of that count.
fn with_file(config: &Path, line: &[OsString], stop: bool) -> Result<(ServeArgs, Vec<String>), Failure> {
    let usage = |why: String| Failure::usage(format!("serve: {why}"));
    let clap = |why: clap::Error| {
        let text = why.to_string();
        usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_string())
    };
    let verb = [OsString::from("serve")];
    let given = Line::command().try_get_matches_from([&verb, line].concat()).map_err(clap)?;
    let mut file = settings::read(config, &Line::command(), &given).map_err(usage)?;
    if stop {
        // How it would be served is of no consequence.
        file.arguments.retain(|word| !word.as_encoded_bytes().starts_with(b"--"));
    }
    let whole = [&verb, line, &file.arguments].concat();
    Ok((Line::try_parse_from(whole).map_err(clap)?.args, file.keys))
}

fn run_with(args: &ServeArgs, keys: &[String]) -> Result<Verdict, Failure> {
    if let Some(node) = args.in_place_of {
        if !args.process.foreground {
            crate::logger::install(LevelFilter::Warn);
        }
        return run_with(&in_place_of(args, node)?, keys);
    }
    if args.check {
        crate::logger::install(LevelFilter::Warn);
        return tell(args, keys);
    }
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
    /// Of a cluster: which node, and what it is there for.
    node: Option<(NodeId, Role)>,
}

impl ServeArgs {
    fn volume(&self) -> Result<&str, Failure> {
        let missing =
            || Failure::usage("serve: give the volume, or a file with the key volume: --config FILE");
        self.volume.as_deref().ok_or_else(missing)
    }
}

/// A name that a URL can carry.
fn name_arg(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 255 || text.chars().any(|c| c == '/' || c == '?' || c.is_control()) {
        return Err("1 to 255 bytes, neither '/' nor '?' nor control characters".into());
    }
    Ok(text.into())
}

/// A time that is counted in nanoseconds.
fn nanos(time: Nanos) -> Duration {
    Duration::from_nanos(time.unsigned_abs())
}

/// An address that others can connect to.
fn advertise_arg(text: &str) -> Result<String, String> {
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
fn advertised(args: &ServeArgs, section: &ClusterSection, local: SocketAddr) -> Result<String, Failure> {
    if let Some(advertise) = &args.advertise {
        return Ok(advertise.clone());
    }
    if let Some(home) = &args.stands_in {
        return Ok(format!("{}:{}", home.host, local.port()));
    }
    let placement = section.placement().map_err(fail)?;
    let in_table = placement.map.member(section.node).map(|member| member.address.as_str());
    match in_table.filter(|_| args.listen.is_none()) {
        Some(address) => Ok(address.into()),
        None => reached_at(in_table, local).map_err(|why| Failure::usage(format!("serve: {why}"))),
    }
}

/// Where a node that was told to listen at `local` is reached, as far as that can be known: `in_table` is where it was when it joined.
fn reached_at(in_table: Option<&str>, local: SocketAddr) -> Result<String, String> {
    if local.ip().is_unspecified() {
        // The machine is known by the name in the table; the port is this one.
        let host = in_table.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        return host.and_then(|host| advertise_arg(&format!("{host}:{}", local.port())).ok()).ok_or_else(|| {
            format!("--listen {local}: nobody could know where this node is by that; give --advertise HOST:PORT")
        });
    }
    let is_local = |mut found: std::vec::IntoIter<SocketAddr>| found.any(|address| address == local);
    let in_table = in_table.filter(|address| address.to_socket_addrs().is_ok_and(is_local));
    Ok(in_table.map_or_else(|| local.to_string(), str::to_string))
}

/// What can be judged without opening the volume.
fn check(args: &ServeArgs) -> Result<Plan, Failure> {
    let volume = locate("serve", args.volume()?)?;
    let descriptor = Descriptor::read(&volume).map_err(fail)?;
    if descriptor.cluster.is_some() && Descriptor::is_changing(&volume) {
        // The others may have the new settings or keys already: two nodes must not write by different ones.
        return Err(fail(format!("{}: not started{CUT_SHORT}", volume.display())));
    }
    let section = descriptor.cluster.as_ref();
    if section.is_some() && args.name.as_ref().is_some_and(|name| *name != descriptor.settings.name) {
        return Err(Failure::usage(
            "serve: --name: all nodes of a cluster serve the volume under its own name",
        ));
    }
    let listen = listen(args, section)?;
    if section.is_none() && args.advertise.is_some() {
        return Err(Failure::usage(
            "serve: --advertise: one node alone serves this volume; clients know its address by their URL",
        ));
    }
    let node = section.map(role_of).transpose()?;
    if let Some(why) = args.role.and_then(|wanted| not_its_role(wanted, node)) {
        return Err(Failure::usage(format!("serve: --role {why}")));
    }
    if args.tls.tls == Mode::Off && args.access != Access::Open && !is_loopback(listen.ip()) {
        return Err(Failure::usage(
            "serve: --tls off: tokens are not shown in clear, so nobody on another machine could be let in: say --access open besides, or \
             leave --tls off out",
        ));
    }
    args.tls.check(listen.ip()).map_err(|why| Failure::usage(format!("serve: {why}")))?;
    let name = args.name.clone().unwrap_or(descriptor.settings.name);
    name_arg(&name).map_err(|why| Failure::usage(format!("serve: --name: {why}")))?;
    Ok(Plan { volume, name, listen, node })
}

/// The number of a node and what it is there for, which the table that it was formed with tells as well as any later one.
fn role_of(section: &ClusterSection) -> Result<(NodeId, Role), Failure> {
    let placement = section.placement().map_err(fail)?;
    Ok((section.node, Role::of(placement.is_idle(section.node))))
}

/// Why a volume, or a node of one, is not served in this role, if it is not.
fn not_its_role(wanted: Role, node: Option<(NodeId, Role)>) -> Option<String> {
    let word = wanted.word();
    match node {
        Some((_, role)) if role == wanted => None,
        Some((node, role)) => Some(format!(
            "{word}: the cluster has node {node} as {}, for as long as it is a node; leave --role away, or name the directory of another node",
            role.word()
        )),
        None if wanted == Role::Metadata => None,
        None => Some(format!("{word}: one node alone serves this volume, and needs none")),
    }
}

/// Says what would be done.
fn tell(args: &ServeArgs, keys: &[String]) -> Result<Verdict, Failure> {
    let plan = check(args)?;
    let what = match plan.node {
        Some((node, role)) => format!("node {node} ({}) of volume {:?}", role.word(), plan.name),
        None => format!("volume {:?}", plan.name),
    };
    println!("{}: {what} would be served at {}", plan.volume.display(), plan.listen);
    let grace = args.grace.unwrap_or(args.lease);
    println!("lease {} s, grace {} s", args.lease.as_secs_f64(), grace.as_secs_f64());
    let log = args.process.log.clone().unwrap_or_else(|| plan.volume.join(LOG_NAME));
    let place = if args.process.foreground { "the terminal".into() } else { log.display().to_string() };
    println!("log to {place}, level {}", args.process.log_level.as_str().to_lowercase());
    if let Some(metrics) = args.process.metrics {
        println!("figures at http://{metrics}/metrics");
    }
    if let Some(config) = &args.config {
        println!(
            "from {}: {}",
            config.display(),
            if keys.is_empty() { "nothing".into() } else { keys.join(", ") }
        );
    }
    if let Some(pid) = VolumeLock::holder(&plan.volume) {
        println!("process {pid} has it open at present");
    }
    Ok(Verdict::Good)
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
    let address = status["served"]["address"].as_str().and_then(|address| address.parse().ok());
    let url = url_of(&args.tls, &plan.volume, address.unwrap_or(plan.listen), &plan.name).map_err(fail)?;
    println!("{} is served at {url} (process {pid}, log {})", plan.volume.display(), log.display());
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
    let wanted = Wanted { metadata_bytes: args.process.metadata_memory, ..Wanted::default() };
    let memory = Memory::divide("serve", Work::Serve, wanted)?;
    if args.replace || args.process.take_over {
        // What can be wrong with the options must not end who serves.
        ServeTls::new(&args.tls, &plan.volume, plan.listen).map_err(fail)?;
        audit(args, plan)?;
    }
    // First of all: an address that is taken must not cost a recovery.
    let listener = bind(args, plan).map_err(|why| match VolumeLock::holder(&plan.volume) {
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
    let local = listener.local_addr().unwrap_or(plan.listen);
    let tls = ServeTls::new(&args.tls, &plan.volume, local).map_err(fail)?;
    tls.be_node(&plan.volume).map_err(fail)?;
    let resources = Resources {
        take_over: args.process.take_over,
        batch_max: args.batch_max.map(usize::from),
        store: StoreOptions { memory: memory.plan, ..args.store.options() },
        ..Resources::within(memory.plan)
    };
    let role = format!("kestrel serve {}", plan.name);
    let (volume, resources) = open(args, plan, &role, resources)?;
    let section = volume.descriptor.cluster.clone();
    let node = section.map(|section| {
        let address = advertised(args, &section, local)?;
        NodeOfCluster::new(&volume, &section, args.balance, address).map_err(fail)
    });
    let mut node = node.transpose()?;
    if let Some((node, home)) = node.as_mut().zip(args.stands_in.as_ref()) {
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
    let served = served.and_then(|()| attend(args, plan, &memory, &opened, node, (listener, &tls), begun));
    let stored = opened.fs.shutdown().map_err(fail);
    if stored.is_ok()
        && let Err(why) = opened.leave_seat()
    {
        log::warn!("that this process has ended is not on record, so the next one waits longer: {why}");
    }
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
    memory: &Memory,
    opened: &MountedVolume,
    node: Option<NodeOfCluster>,
    (listener, tls): (TcpListener, &ServeTls),
    begun: Instant,
) -> Result<Verdict, Failure> {
    let questions = Arc::new(Questions::default());
    let server = server(args, plan, opened, node.as_ref(), questions.clone())?;
    let member = node.as_ref().zip(opened.fs.member());
    if let Some((node, host)) = member {
        node.follow_tables(host, &server);
        node.share_tokens(host, &server);
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
    let (signalled, signal) = mpsc::channel();
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
        facts: MountFacts::new(memory),
        read_only: false,
        begun,
        walking: parking_lot::Mutex::default(),
        cutting: crate::serve::part::cut::Cutting::default(),
        keeper: Keeper::new(args.dumps, args.store.options(), args.tls.tls),
        collector: Collector::new(args.leftovers, args.store.options(), args.tls.tls),
        succession: OnceLock::new(),
        end: Some(signalled.clone()),
    });
    questions.belong_to(&serving);
    let doors = Doors::open(&plan.volume, args.process.metrics, &serving).map_err(fail)?;
    crate::signals::on_signal(move |_| {
        // Whoever does not wait any more is ending already.
        let _ = signalled.send(());
    });
    let config = memory
        .fit_server(kestrel_net::server::ServerConfig { tls: tls.server.clone(), ..Default::default() });
    let sockets = kestrel_net::server::serve(listener, Arc::new(door.clone()), config)
        .map_err(|why| fail(format!("--listen {}: {why}", plan.listen)))?;
    let address = sockets.address();
    let clients =
        Clients { name: plan.name.clone(), address, door, sockets: parking_lot::Mutex::new(Some(sockets)) };
    let clients = serving.clients.get_or_init(|| clients);
    log::info!(
        "{} serves at {} after {:.1?}",
        plan.volume.display(),
        tls.url(address, &plan.name),
        begun.elapsed()
    );
    let member = serving.node.as_ref().zip(opened.fs.member());
    let balancer = member.map(|(node, host)| Balancer::start(host, &serving.engine, node)).transpose();
    let balancer = balancer.map_err(|why| fail(format!("no thread to balance with: {why}")))?;
    let failure = match member.filter(|(node, host)| node.is_joining(host)) {
        Some((node, host)) => until_joined(&signal, &serving, node, host),
        None => Watch::Good,
    };
    let schedule = Schedule::begin(&serving).map_err(|why| fail(format!("no thread for dumps: {why}")))?;
    let collecting =
        Collecting::begin(&serving).map_err(|why| fail(format!("no thread to collect with: {why}")))?;
    let successor = successor(args, plan, &serving)
        .map_err(|why| fail(format!("no thread to watch others with: {why}")))?;
    let failure = match failure {
        Watch::Good => {
            args.process.ready();
            until_end(&signal, &serving, opened)
        }
        Watch::Signalled | Watch::Left => None,
        Watch::Failed(why) => Some(why),
    };
    log::info!("{} ends; its clients will wait for it", plan.volume.display());
    drop(successor);
    drop(collecting);
    drop(schedule);
    drop(balancer);
    if let Some(sockets) = clients.sockets.lock().take() {
        sockets.stop(LAST_ANSWERS);
    }
    server.close();
    drop(doors);
    failure.map_or(Ok(Verdict::Good), |why| Err(fail(why)))
}

/// Begins to watch the other nodes, if this one is to take them over.
fn successor(args: &ServeArgs, plan: &Plan, serving: &Arc<Serving>) -> std::io::Result<Option<Successor>> {
    // Of nodes whose rows lie in their directories the coordinator's may lie elsewhere.
    let reaches = |idle| serving.descriptor.is_shared(idle).unwrap_or(false);
    let takes = args.failover != Failover::Off && (reaches(false) || reaches(true));
    let Some(host) =
        serving.fs.member().filter(|_| takes && plan.node.is_some_and(|(_, role)| role == Role::Metadata))
    else {
        return Ok(None);
    };
    let home = args.stands_in.as_ref().map_or(&plan.volume, |home| &home.dir);
    let succession = Succession::new(host, &serving.descriptor, successor::Line::of_process(home));
    Successor::start(serving.succession.get_or_init(|| succession)).map(Some)
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
    let host = serving.fs.member();
    host.is_some_and(|host| host.node().cluster().is_some_and(|cluster| cluster.is_shared()))
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
        let why = match node_is_shared(serving) {
            true => format!(
                "this process cannot go on with the node: {why}; start it again if nobody serves in its place"
            ),
            false => format!("the log has failed: {why}; look at the disk, then start this node again"),
        };
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
fn until_end(signal: &mpsc::Receiver<()>, serving: &Serving, opened: &MountedVolume) -> Option<String> {
    loop {
        if serving.fs.member().is_some_and(|host| host.lease_figures().held)
            && let Err(why) = opened.settle_seat()
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
    let in_nanos = |time: Duration| Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX);
    let config = ServerConfig {
        volume: plan.name.clone(),
        descriptor: Offer::new(&volume.descriptor, &volume.storage).map_err(fail)?.to_json().into(),
        epoch: epoch(opened, &*clock),
        lease: in_nanos(args.lease),
        grace: in_nanos(args.grace.unwrap_or(args.lease)),
        node: node.map_or(0, |node| node.node),
        peers: node.map(|node| node.identity.clone()),
        access: args.access,
        audit: audit(args, plan)?,
        ..ServerConfig::default()
    };
    let backend = match (opened.fs.node(), opened.fs.member()) {
        (Some(node), _) => Backend::from(node.clone()),
        (None, Some(host)) => Backend::from(host.clone()),
        (None, None) => return Err(fail("the volume was opened without its metadata")),
    };
    Server::new(backend, clock, config, LockLimits::default(), questions, 0).map_err(fail)
}

/// What clients tell starts of this server by: grows from start to start. A member counts its starts, whichever machine they are on; that is
/// put above all wall times, which earlier releases had there. A node alone has the wall time: its starts are on one machine.
fn epoch(opened: &MountedVolume, clock: &dyn Clock) -> u64 {
    opened.fs.member().map_or_else(|| clock.now().unsigned_abs(), |host| 1 << 63 | host.epoch())
}

/// Where refused and administrative operations are told.
fn audit(args: &ServeArgs, plan: &Plan) -> Result<Arc<Audit>, Failure> {
    let file = match &args.audit {
        Some(file) if file.as_os_str() == "off" => return Ok(Arc::default()),
        Some(file) => std::path::absolute(file).unwrap_or_else(|_| file.clone()),
        None => plan.volume.join(AUDIT_NAME),
    };
    Audit::open(&file).map(Arc::new).map_err(|why| fail(format!("--audit {}: {why}", file.display())))
}

fn access_arg(text: &str) -> Result<Access, String> {
    match text {
        "auto" => Ok(Access::Auto),
        "tokens" => Ok(Access::Tokens),
        "open" => Ok(Access::Open),
        _ => Err("auto, tokens or open".into()),
    }
}

/// Ends the process that serves the volume, and waits until it has.
fn stop(args: &ServeArgs) -> Result<Verdict, Failure> {
    let dir = locate("serve", args.volume()?)?;
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
    use kestrel_client::descriptor::Durability;
    use kestrel_client::storage::StoreOptions;
    use kestrel_client::volume::{NewVolume, form};

    use super::*;

    #[test]
    fn a_node_does_not_start_in_the_middle_of_a_change_of_all() {
        let place = tempfile::tempdir().unwrap();
        let url = place.path().to_str().unwrap();
        let new = NewVolume::plain("shared", Durability::Commit);
        form(url, new, &["127.0.0.1:9441".into()], None, &StoreOptions::default()).unwrap();
        let args = Line::parse_from(["serve", url]).args;
        assert!(check(&args).is_ok());
        // As a change of all nodes leaves it that was killed before this one had the new settings.
        std::fs::copy(place.path().join("kestrel.json"), place.path().join("kestrel.json.change")).unwrap();
        let why = check(&args).err().unwrap().to_string();
        assert!(why.contains("was cut short: repeat it"), "{why}");
    }

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
            assert!(at(in_table, "0.0.0.0:9555").unwrap_err().contains("--advertise"), "{in_table:?}");
        }
    }

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    /// What comes of a file and a command line.
    fn read(text: &str, line: &[&str]) -> Result<(ServeArgs, Vec<String>), String> {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("node.toml");
        std::fs::write(&file, text).unwrap();
        let read = with_file(&file, &words(line), line.contains(&"--stop"));
        let there = format!("{}/", place.path().display());
        read.map_err(|why| why.to_string().replace(&there, ""))
    }

    /// The settings file in docs/operations/serve.md.
    fn example() -> &'static str {
        let text = include_str!("../../../../docs/operations/serve.md");
        text.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0
    }

    #[test]
    fn a_file_says_what_flags_say_and_flags_win() {
        let text = "volume = \"node4\"\nlease = \"60s\"\ngrace = 90\nname = \"photos\"\n\
                    [process]\nlog = \"serve.log\"\nforeground = false\nlog-level = \"debug\"\n[store]\nmax-uploads = 7\n";
        let (args, keys) = read(text, &["--lease", "5s", "--foreground"]).unwrap();
        assert_eq!((args.lease, args.grace), (Duration::from_secs(5), Some(Duration::from_secs(90))));
        assert!(args.process.foreground && args.process.log_level == LevelFilter::Debug);
        assert_eq!((args.store.max_uploads, args.name.as_deref()), (7, Some("photos")));
        let beside = |path: &Path| path.is_absolute() && path.parent() != Some(Path::new("/"));
        assert!(beside(Path::new(args.volume.as_deref().unwrap())) && beside(&args.process.log.unwrap()));
        assert_eq!(
            keys,
            ["volume", "grace", "name", "process.log", "process.log-level", "store.max-uploads"]
        );
        let (args, _) = read(text, &["/data/other", "--stop"]).unwrap();
        assert_eq!((args.volume.as_deref(), args.lease), (Some("/data/other"), Duration::from_secs(30)));
        let (args, _) = read("volume = \"file:///data/v\"", &["--stop"]).unwrap();
        assert_eq!(args.volume().unwrap(), "file:///data/v");
        let (args, keys) = read("", &[]).unwrap();
        assert!(args.volume().is_err() && keys.is_empty());
    }

    #[test]
    fn mistakes_in_a_file_are_told_with_their_line_and_what_is_allowed() {
        for (text, why) in [
            (
                "volume = \"v\"\nleese = 5\n",
                "node.toml, line 2: there is no key \"leese\"; keys are access, advertise, audit, balance, collect-every, collect-grace, failover, grace, lease, listen",
            ),
            ("\n\nlease = true", "line 3: lease: true or false, where a string or a number is wanted"),
            ("lease = [5]", "line 1: lease: a list, where"),
            ("lease = 0x10", "not written in decimal digits"),
            ("lease = \"11m\"", "line 1: lease: invalid value '11m' for '--lease <TIME>': from 1s to 10m"),
            ("lease = \"soon\"", "is not a duration"),
            ("name = \"a/b\"", "neither '/' nor '?' nor control characters"),
            ("role = \"king\"", "line 1: role: invalid value 'king' for '--role <ROLE>'"),
            ("[process]\nforeground = 1", "line 2: foreground: a number that"),
            ("[process]\nmetadata-memory = \"1M\"", "line 2: metadata-memory: invalid value '1M'"),
            (
                "[process]\nlog-levle = \"debug\"",
                "keys of [process] are foreground, log, log-level, metadata-memory, metrics",
            ),
            ("log-level = \"debug\"", "line 1: log-level stands in the table [process]"),
            ("[store]\nlease = \"5s\"", "line 2: lease stands before the first table, not in [store]"),
            ("[store]\nmax-uploads = 0", "from 1 to 1024"),
            ("[proces]\nlog = \"x\"", "line 1: there is no table [proces]; keys are"),
            ("[tables]", "tables [process], [store], [tls], [dump]"),
            ("[dump]\nevery = \"0s\"", "at least 1s"),
            ("take-over = true", "only the command line"),
            ("stop = true", "line 1: stop: only the command line says that"),
            ("batch-max = 1", "there is no key \"batch-max\""),
            ("lease = 5\nlease = 6", "line 2: not TOML: duplicate key"),
            ("volume = ", "line 1: not TOML:"),
        ] {
            let told = read(text, &[]).err().unwrap_or_default();
            assert!(told.contains(why), "{text:?}: {told}");
        }
        assert!(
            with_file(Path::new("/nowhere/x.toml"), &[], false)
                .err()
                .unwrap()
                .to_string()
                .contains("/nowhere/x.toml")
        );
    }

    #[test]
    fn the_example_in_the_manual_is_one() {
        let (args, keys) = read(example(), &[]).unwrap();
        assert_eq!((args.volume.as_deref(), args.role), (Some("/srv/coordinator"), Some(Role::Coordinator)));
        assert!(args.process.foreground && keys.len() >= 8, "{keys:?}");
    }

    #[test]
    fn a_node_is_served_in_the_role_that_it_has() {
        let (metadata, coordinator) = (Role::Metadata, Role::Coordinator);
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
