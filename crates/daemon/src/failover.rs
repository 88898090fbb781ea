//! Taking over other nodes: a thread watches them (`detector`), and starts a process of this
//! program that serves one in the place of its own process, from a directory within that of this
//! machine's node ([`stand_in`]). To all others that is a restart of the node, at another address.
//!
//! | file | what it has |
//! | --- | --- |
//! | `failover/detector.rs` | when a node is taken over, and by which node |
//!
//! The process lives on if this one ends: it is a node like any other. While both run this one says
//! how it ended.

mod detector;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::{has_left, holder_of, stand_in};
use kestrel_cluster::host::NodeHost;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::background;
use super::worker::{Rest, Worker};
use detector::{FailoverAction, FailureDetector, HELD, Observation, RowsOwner};

/// Time between two looks at the others.
const LOOK: Duration = Duration::from_millis(100);

/// A store that has not answered for so long is broken.
const SILENCE: Duration = Duration::from_secs(1);

/// How long another node may take to say which nodes it hears.
const ANSWER: Duration = Duration::from_secs(2);

/// Name of the log of a process that stands in, in its directory.
const LOG_NAME: &str = "serve.log";

/// Whether nodes are taken over, and at which ports they are served then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failover {
    /// At any port.
    Any,
    /// At one of these, both included.
    Ports(u16, u16),
    /// Not at all.
    Off,
}

impl Failover {
    /// Ports to try.
    pub fn ports(self) -> std::ops::RangeInclusive<u16> {
        match self {
            Self::Ports(first, last) => first..=last,
            Self::Any | Self::Off => 0..=0,
        }
    }
}

/// Parses `any`, `off` and `9450-9460`.
///
/// # Errors
/// What may be written.
pub fn failover_arg(text: &str) -> Result<Failover, String> {
    match text {
        "any" => return Ok(Failover::Any),
        "off" => return Ok(Failover::Off),
        _ => {}
    }
    let ports = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match ports {
        Some((first, last)) if 0 < first && first <= last => Ok(Failover::Ports(first, last)),
        _ => Err("any, off, or PORT-PORT".into()),
    }
}

/// The process that a node is taken from.
enum TakeoverFrom {
    /// Nobody serves it.
    Nobody,
    /// The process that serves it, which is asked to end first.
    Asked,
    /// This one, of which no node hears; not from a process that may have taken it over meanwhile.
    Hanging(String),
}

/// How this program is started in another node's place: as this process was, but for what is of
/// this one start or of this node.
pub struct StartCommand {
    /// The directory of the node that is at home on this machine.
    pub home: PathBuf,
    args: Vec<OsString>,
    /// Where relative paths begin.
    dir: PathBuf,
}

/// Options of one start, and whether a value follows them.
const OF_ONE_START: [(&str, bool); 8] = [
    ("--foreground", false),
    ("-f", false),
    (background::REPORT_OPTION, false),
    ("--take-over", false),
    ("--take-over-from", true),
    ("--replace", false),
    ("--in-place-of", true),
    ("--role", true),
];

impl StartCommand {
    /// That of this process, from the directory in which it was started.
    pub fn of_process(home: &Path) -> Self {
        let dir = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Self { home: home.into(), args: without_own(std::env::args_os().skip(1)), dir }
    }

    /// Starts it, and returns when it serves.
    fn launch(&self, node: NodeId, from: &TakeoverFrom, log: &Path) -> Result<Child, String> {
        let mut args = self.args.clone();
        args.extend(["--in-place-of".into(), node.to_string().into()]);
        match from {
            TakeoverFrom::Nobody => {}
            TakeoverFrom::Asked => args.push("--take-over".into()),
            TakeoverFrom::Hanging(who) => args.extend(["--take-over-from".into(), who.into()]),
        }
        background::launch(&args, &self.dir, log)
    }
}

/// The words of a command line without those of one start.
fn without_own(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut kept, mut value_follows) = (Vec::new(), false);
    for word in args {
        let own = OF_ONE_START.iter().find(|(name, _)| {
            let bytes = word.as_encoded_bytes();
            let rest = bytes.strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
        });
        match own {
            _ if std::mem::take(&mut value_follows) => {}
            Some((name, true)) => value_follows = word.as_encoded_bytes().len() == name.len(),
            Some(_) => {}
            None => kept.push(word),
        }
    }
    kept
}

/// A process that serves a node in place of its own.
struct TakeoverProcess {
    pid: u32,
    since: Instant,
}

/// The takeovers of this process, and what came of them.
pub struct FailoverService {
    host: Weak<NodeHost>,
    descriptor: Descriptor,
    name: String,
    line: StartCommand,
    store: StoreOptions,
    standing: Mutex<BTreeMap<NodeId, TakeoverProcess>>,
    taken: AtomicU64,
    failed: AtomicU64,
}

impl FailoverService {
    /// Of the node of this process, by its descriptor.
    /// `store`: how a bucket is reached that has the metadata.
    pub fn new(
        host: &Arc<NodeHost>,
        descriptor: &Descriptor,
        line: StartCommand,
        store: StoreOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            host: Arc::downgrade(host),
            descriptor: descriptor.clone(),
            name: descriptor.settings.name.clone(),
            line,
            store,
            standing: Mutex::default(),
            taken: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    /// Starts a process that serves `node` and returns when it does; taken from that one. `ended`
    /// hears, on another thread, that it has ended.
    ///
    /// # Errors
    /// In words.
    fn stand_in(
        self: &Arc<Self>,
        node: NodeId,
        from: &TakeoverFrom,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<(u32, PathBuf), String> {
        let begun = Instant::now();
        let started = self.placement().and_then(|placement| {
            let place =
                stand_in(&self.line.home, node, Some(&placement)).map_err(|why| why.to_string())?;
            let log = place.join(LOG_NAME);
            self.line.launch(node, from, &log).map(|child| (child, log))
        });
        let (child, log) = match started {
            Ok(started) => started,
            Err(why) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                log::error!("node {node} cannot be served here: {why}");
                return Err(why);
            }
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        let pid = child.id();
        log::warn!(
            "node {node} is served by process {pid} on this machine, which came up in {:.1?}; its \
             log is {}",
            begun.elapsed(),
            log.display()
        );
        self.standing.lock().insert(node, TakeoverProcess { pid, since: Instant::now() });
        let this = self.clone();
        let wait = move || {
            this.await_end(node, child);
            ended();
        };
        // Without the thread nobody hears of its end; it serves all the same.
        if let Err(why) = std::thread::Builder::new().name("stand-in".into()).spawn(wait) {
            log::warn!("no thread to wait for process {pid} with: {why}");
        }
        Ok((pid, log))
    }

    fn await_end(&self, node: NodeId, mut child: Child) {
        let pid = child.id();
        let how = child.wait().map_or_else(|why| why.to_string(), |status| status.to_string());
        log::warn!("process {pid}, which served node {node} here, has ended: {how}");
        self.standing.lock().retain(|_, standing| standing.pid != pid);
    }

    fn placement(&self) -> Result<PlacementMap, String> {
        self.host.upgrade().map(|host| host.placement()).ok_or("the node is shutting down".into())
    }

    /// Looks which process has a node's rows.
    fn find(&self, node: NodeId) -> RowsOwner {
        let idle = match self.placement() {
            Ok(placement) => placement.is_idle(node),
            Err(why) => return RowsOwner::Unknown(why),
        };
        match holder_of(&self.descriptor, (node, idle), self.store.credentials.as_deref()) {
            Ok(Some(who)) => RowsOwner::Held(who),
            Ok(None) => match has_left(&self.descriptor, (node, idle), &self.store) {
                Ok(left) => RowsOwner::Free { left },
                Err(why) => RowsOwner::Unknown(why),
            },
            Err(why) => RowsOwner::Unknown(why),
        }
    }

    /// Whether none of the nodes that this one hears of hears of `node`: then it has no lease, and
    /// answers nobody.
    fn is_heard_of_nowhere(&self, node: NodeId, live: &[NodeId]) -> bool {
        let Some(section) = self.descriptor.cluster.as_ref() else { return false };
        let Ok(mut url) = section.url(&self.name).and_then(|url| RemoteUrl::parse(&url)) else {
            return false;
        };
        if live.is_empty() {
            return false;
        }
        // At the addresses of silent nodes packets may just be lost: that takes seconds.
        if let Ok(table) = section.placement() {
            let is_near = |member: &&Member| member.id == section.node || live.contains(&member.id);
            let near: Vec<&str> =
                table.map.members().iter().filter(is_near).map(|member| &*member.address).collect();
            url.addresses.retain(|address| near.contains(&&**address));
        }
        let who = super::who("a node that watches others");
        let wanted = |_: &PlacementMap, other| live.contains(&other);
        let Ok(Some(panel)) = NodeFanOut::connect_to(&url.to_string(), &who, wanted) else {
            return false;
        };
        live.iter().all(|other| {
            let answer =
                panel.ask(*other, &json!({ "verb": "unheard" }), ANSWER).unwrap_or_default();
            let told = answer["unheard"].as_array().into_iter().flatten();
            told.into_iter()
                .any(|pair| pair[0] == node && pair[1].as_u64() >= Some(HELD.as_millis() as u64))
        })
    }

    /// What a status tells of it.
    pub fn describe(&self) -> Value {
        let standing = self.standing.lock();
        let told = standing.iter().map(|(node, TakeoverProcess { pid, since })| {
            json!({ "node": node, "process": pid, "seconds": since.elapsed().as_secs() })
        });
        told.collect()
    }

    /// Nodes taken over since the process began, and those that could not be.
    pub fn stats(&self) -> [u64; 2] {
        [&self.taken, &self.failed].map(|figure| figure.load(Ordering::Relaxed))
    }
}

/// Answers what another process asks about taking nodes over.
///
/// # Errors
/// In words.
pub fn answer(
    host: Option<&Arc<NodeHost>>,
    service: Option<&Arc<FailoverService>>,
    question: &Value,
) -> Result<Value, String> {
    let host = host.ok_or("this is no node of a cluster")?;
    if question["verb"] == "unheard" {
        let unheard = host.unheard().ok_or("this node has no lease")?;
        let told = unheard.into_iter().map(|(node, time)| json!([node, time.as_millis() as u64]));
        return Ok(json!({ "unheard": told.collect::<Vec<_>>() }));
    }
    let node = question["node"].as_u64().and_then(|node| NodeId::try_from(node).ok());
    let node = node.ok_or("the question names no node")?;
    let succession = service.ok_or("this process takes no nodes over")?;
    if node == host.me() {
        return Err(format!("node {node} is served here already"));
    }
    let (pid, log) = succession.stand_in(node, &TakeoverFrom::Asked, || ())?;
    Ok(json!({ "node": node, "process": pid, "log": log.to_string_lossy() }))
}

/// The thread that watches; it ends when this is dropped.
pub struct FailoverMonitor {
    _worker: Worker,
}

impl FailoverMonitor {
    /// Starts it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(succession: &Arc<FailoverService>) -> std::io::Result<Self> {
        let now = Instant::now();
        let watcher = Watcher {
            succession: succession.clone(),
            detector: Arc::default(),
            told: BTreeMap::new(),
            begun: now,
            broken: now,
        };
        Ok(Self { _worker: Worker::start("failover", move |rest| watcher.work(&rest))? })
    }
}

struct Watcher {
    succession: Arc<FailoverService>,
    detector: Arc<Mutex<FailureDetector>>,
    /// What the log has of nodes that are silent.
    told: BTreeMap<NodeId, RowsOwner>,
    begun: Instant,
    /// When this node's store was last seen not to answer.
    broken: Instant,
}

impl Watcher {
    fn work(mut self, rest: &Rest) {
        while rest.sleep(LOOK).is_ok() {
            let Some(host) = self.succession.host.upgrade() else { return };
            self.look(&host);
        }
    }

    fn look(&mut self, host: &NodeHost) {
        if host.node().engine().silence() >= SILENCE {
            self.broken = Instant::now();
        }
        // A node that has no lease does not know whether it is the others that are silent.
        let Some(unheard) = host.unheard() else { return };
        let placement = host.placement();
        let members = placement.map.members().iter().map(|member| member.id);
        let takers: Vec<NodeId> = members.filter(|node| !placement.is_idle(*node)).collect();
        let succession = self.succession.clone();
        let is_shared =
            |node| succession.descriptor.is_shared(placement.is_idle(node)).unwrap_or(false);
        let sight = Observation {
            now: self.begun.elapsed(),
            calm: self.broken.elapsed(),
            me: host.me(),
            takers: &takers,
            unheard: &unheard,
        };
        let due = self.detector.lock().look(&sight);
        self.told.retain(|node, _| {
            sight.unheard.iter().any(|(other, time)| other == node && *time > LOOK * 10)
        });
        for node in due.into_iter().filter(|node| is_shared(*node)) {
            let found = self.succession.find(node);
            self.tell(node, &found);
            let deed = self.detector.lock().judge(&sight, node, &found);
            let live = || {
                let heard = unheard.iter().filter(|(_, time)| *time < detector::UNHEARD);
                heard.map(|(other, _)| *other).collect::<Vec<_>>()
            };
            match deed {
                FailoverAction::Wait => {}
                FailoverAction::TakeOver => self.take_over(node, &unheard, TakeoverFrom::Nobody),
                FailoverAction::Ask if self.succession.is_heard_of_nowhere(node, &live()) => {
                    self.detector.lock().agreed(node);
                    let from = if let RowsOwner::Held(who) = found {
                        TakeoverFrom::Hanging(who)
                    } else {
                        TakeoverFrom::Nobody
                    };
                    self.take_over(node, &unheard, from);
                }
                FailoverAction::Ask => {}
            }
        }
    }

    /// Says once what is the matter with a node.
    fn tell(&mut self, node: NodeId, found: &RowsOwner) {
        if self.told.get(&node) == Some(found) {
            return;
        }
        match found {
            RowsOwner::Free { left: false } => {}
            RowsOwner::Free { left: true } => {
                log::info!("node {node} was ended; it is taken over if nobody starts it again");
            }
            RowsOwner::Held(holder) => {
                log::warn!("nothing is heard of node {node}, but {holder} has its rows open")
            }
            RowsOwner::Unknown(why) => {
                log::warn!(
                    "nothing is heard of node {node}; which process has its rows is not known: \
                     {why}"
                );
            }
        }
        self.told.insert(node, found.clone());
    }

    fn take_over(&self, node: NodeId, unheard: &[(NodeId, Duration)], from: TakeoverFrom) {
        let silent = unheard
            .iter()
            .find(|(other, _)| *other == node)
            .map_or(Duration::ZERO, |(_, time)| *time);
        let origin = match &from {
            TakeoverFrom::Hanging(holder) => {
                format!(" from {holder}, of which none of the others hears")
            }
            TakeoverFrom::Nobody | TakeoverFrom::Asked => String::new(),
        };
        log::warn!(
            "node {node} has not been heard of for {silent:.1?}: this machine takes it over{origin}"
        );
        let (succession, detector, begun) =
            (self.succession.clone(), self.detector.clone(), self.begun);
        let detect_after = detector.clone();
        let start = move || {
            let ended = move || detect_after.lock().ended(node, begun.elapsed());
            if succession.stand_in(node, &from, ended).is_err() {
                detector.lock().ended(node, begun.elapsed());
            }
        };
        if let Err(why) = std::thread::Builder::new().name("stand-in".into()).spawn(start) {
            log::error!("no thread to take node {node} over with: {why}");
            self.detector.lock().ended(node, self.begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_is_started_as_this_process_was() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let line = "serve /data/v --listen 10.0.0.1:9440 --foreground --report-readiness \
                    --in-place-of 2 --lease=5s \
                    --in-place-of=3 -f --take-over --take-over-from x --replace --failover 1-2 \
                    --role metadata";
        let kept = without_own(words(line).into_iter());
        assert_eq!(kept, words("serve /data/v --listen 10.0.0.1:9440 --lease=5s --failover 1-2"));
    }

    #[test]
    fn ports_are_a_range() {
        assert_eq!(failover_arg("any"), Ok(Failover::Any));
        assert_eq!(failover_arg("9450-9460"), Ok(Failover::Ports(9450, 9460)));
        assert_eq!(failover_arg("off").unwrap().ports(), 0..=0);
        for bad in ["", "9450", "9460-9450", "0-5", "1-70000", "on"] {
            assert!(failover_arg(bad).is_err());
        }
    }
}
