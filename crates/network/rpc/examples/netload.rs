//! Load on a real server, or the metadata nodes of a cluster, by a native client: what one
//! connection to each with whole paths gets out of them. Requests go to the node that leads them.
//!
//! Each way keeps a number of calls in flight, each submitted by the completion of the one before.
//! Requests that went over the wire are counted, so that "one request an operation, however deep
//! the path" is a measured figure. Directories lie five levels deep; each has as many files as were
//! created in it. Calls for existing files take them in turn, so all of them are touched.
//!
//! `cargo run --release -p kestrel-rpc --example netload -- HOST:PORT VOLUME [SECONDS]
//! [DIRECTORIES] [IN-FLIGHT,…] [WHAT] [BURST]` prints one JSON object a line: operation, calls in
//! flight, operations per second, requests per operation, messages between nodes per operation and
//! the writes they left with, failures, CPU microseconds of the client per operation, latency. With
//! one directory all creates go into the same; the default is 64. WHAT: `files` (default), what
//! concerns one node; `changes`, what may concern several: directories stat'ed, changed, renamed
//! and removed, files renamed and linked; or `threads`, files created and stat'ed by as many
//! blocking threads. BURST calls one after the other are for the same directory (1 by default;
//! stats are in the order of the creates if it is given). A VOLUME that ends in `?ca=sha256:…` is
//! reached over TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_rpc::client::{ReclaimSource, Remote, RemoteConfig};
use kestrel_rpc::tls::{ClientTls, TlsMode, Trust};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::placement::{Member, PlacementMap};
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, RenameFlags, Reply, Request, SetAttr};
use kestrel_types::wire::{Reclaim, ReclaimReply, SessionState, Welcome};
use parking_lot::Mutex;

type Failure = Box<dyn std::error::Error>;

/// Most files kept open at once.
const OPENS_MAX: u64 = 50_000;

/// Every so many calls the latency is noted.
const SAMPLE: u64 = 16;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, volume, rest @ ..] = words.as_slice() else {
        return Err("usage: netload HOST:PORT VOLUME [SECONDS] [DIRECTORIES] [IN-FLIGHT,…] \
             [files|changes|threads] [BURST]"
            .into());
    };
    let seconds = rest.first().map_or(Ok(2.0), |text| text.parse::<f64>())?;
    let dirs = rest.get(1).map_or(Ok(64), |text| text.parse::<u64>())?.max(1);
    let depths = rest.get(2).map_or("1,16,256,1024", String::as_str);
    let measure = match rest.get(3).map_or("files", String::as_str) {
        "files" => files,
        "changes" => changes,
        "threads" => threads,
        other => return Err(format!("{other}: files, changes or threads").into()),
    };
    let burst = rest.get(4).map(|text| text.parse::<u64>()).transpose()?;
    let (volume, tls) = match volume.split_once("?ca=") {
        Some((volume, ca)) => {
            (volume, ClientTls::new(TlsMode::On, Some(&Trust::Authority(ca.parse()?)), None)?)
        }
        None => (&**volume, ClientTls::default()),
    };
    let config = RemoteConfig {
        tls,
        addresses: vec![address.clone()],
        volume: volume.into(),
        who: format!("netload, process {}", std::process::id()),
        deadline: Duration::from_secs(30),
        token: None,
        session: None,
    };
    let nodes = Arc::new(Nodes::connect(config)?);
    for depth in depths.split(',') {
        let tree = Arc::new(Tree::make(&nodes, dirs, burst)?);
        measure(
            &nodes,
            &tree,
            depth.trim().parse::<u64>()?.max(1),
            Duration::from_secs_f64(seconds),
        );
    }
    nodes.remotes.iter().for_each(|remote| remote.close());
    Ok(())
}

/// Connections to all metadata nodes of a volume.
struct Nodes {
    /// Where requests go, if there are several.
    placement: Option<PlacementMap>,
    /// In the order of the table's members.
    remotes: Vec<Arc<Remote>>,
}

impl Nodes {
    fn connect(config: RemoteConfig) -> Result<Self, Failure> {
        let (first, welcome) = Remote::connect(config.clone(), Arc::new(Nothing))?;
        let offer: serde_json::Value = serde_json::from_slice(&welcome.descriptor)?;
        let Some(table) = offer["placement"].as_str() else {
            return Ok(Self { placement: None, remotes: vec![first] });
        };
        first.close();
        let bytes =
            (0..table.len() / 2).map(|at| u8::from_str_radix(&table[2 * at..2 * at + 2], 16));
        let placement = PlacementMap::decode(&bytes.collect::<Result<Vec<_>, _>>()?)?;
        let connect = |member: &Member| {
            let config = RemoteConfig { addresses: vec![member.address.clone()], ..config.clone() };
            Remote::connect(config, Arc::new(Nothing)).map(|(remote, _)| remote)
        };
        let remotes = placement.map.members().iter().map(connect).collect::<Result<_, _>>()?;
        Ok(Self { placement: Some(placement), remotes })
    }

    /// The connection for a request: to the node that leads it, or, for what is open, where it was
    /// opened.
    fn of(&self, op: &Op, opened_at: usize) -> usize {
        let leader =
            self.placement.as_ref().and_then(|placement| Some((placement, placement.leader(op)?)));
        leader.map_or(opened_at, |(placement, leader)| {
            let members = placement.map.members();
            members.binary_search_by_key(&leader.id, |member| member.id).unwrap_or(0)
        })
    }

    fn sent(&self) -> u64 {
        self.remotes.iter().map(|remote| remote.stats().sent).sum()
    }

    /// Messages between nodes so far. (The question itself makes the nodes send a few.)
    fn node_traffic(&self) -> NodeTraffic {
        let mut node_traffic = NodeTraffic::default();
        for remote in &self.remotes {
            let question = serde_json::json!({ "verb": "status" });
            let status = remote
                .admin(&question, Some(Duration::from_secs(30)), &mut |_| ())
                .unwrap_or_default();
            for peer in status["peers"].as_array().map_or(&[][..], Vec::as_slice) {
                node_traffic.messages += peer["envelopes"].as_u64().unwrap_or(0);
                node_traffic.writes += peer["writes"].as_u64().unwrap_or(0);
            }
        }
        node_traffic
    }
}

/// Messages between nodes.
#[derive(Default)]
struct NodeTraffic {
    messages: u64,
    /// Those of one moment to one node leave with one.
    writes: u64,
}

/// What concerns one node, with so many calls in flight.
fn files(nodes: &Arc<Nodes>, tree: &Arc<Tree>, depth: u64, time: Duration) {
    let made = |what: Way, limit| run(nodes, tree, what, depth, time, limit);
    made(Way::MkDir, u64::MAX);
    let files = made(Way::Create, u64::MAX).max(1);
    made(Way::Stat { files }, u64::MAX);
    let open = made(Way::Open { files }, files.min(OPENS_MAX));
    made(Way::Close { opens: std::mem::take(&mut *tree.opened.lock()) }, open);
    made(Way::Unlink, files);
}

/// Files again, by threads that wait for each answer.
fn threads(nodes: &Arc<Nodes>, tree: &Arc<Tree>, depth: u64, time: Duration) {
    let made = |what: Way| run_by(nodes, tree, what, depth, time, u64::MAX, Callers::Threads);
    let files = made(Way::Create).max(1);
    made(Way::Stat { files });
}

/// What may concern several.
fn changes(nodes: &Arc<Nodes>, tree: &Arc<Tree>, depth: u64, time: Duration) {
    let made = |what: Way, limit| run(nodes, tree, what, depth, time, limit);
    let dirs = made(Way::MkDir, u64::MAX).max(1);
    made(Way::StatDir { dirs }, u64::MAX);
    made(Way::ChmodDir { dirs: std::mem::take(&mut *tree.made.lock()) }, u64::MAX);
    let dirs = made(Way::RenameDir, dirs);
    made(Way::RmDir, dirs);
    let files = made(Way::Create, u64::MAX);
    let files = made(Way::Rename, files);
    tree.made.lock().retain(|(number, _)| *number < files);
    made(Way::Link { files: std::mem::take(&mut *tree.made.lock()) }, u64::MAX);
}

/// Directories of this run, five levels below the root.
struct Tree {
    top: String,
    dirs: u64,
    /// So many calls one after the other are for the same directory, if that is given.
    burst: Option<u64>,
    /// The number of each directory.
    inos: Vec<u64>,
    /// What was made, by the number of the call: its number.
    made: Mutex<Vec<(u64, u64)>>,
    /// Files, and which connection they were opened over.
    opened: Mutex<Vec<(u64, usize)>>,
}

impl Tree {
    fn make(nodes: &Nodes, dirs: u64, burst: Option<u64>) -> Result<Self, Failure> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let mut top = format!("netload-{}-{number}", std::process::id());
        for level in 0..4 {
            if level > 0 {
                top += &format!("/level{level}");
            }
            make_dir(nodes, &top)?;
        }
        let inos = (0..dirs)
            .map(|dir| make_dir(nodes, &format!("{top}/dir{dir}")))
            .collect::<Result<_, _>>()?;
        Ok(Self { top, dirs, burst, inos, made: Mutex::default(), opened: Mutex::default() })
    }

    /// Which directory the call of this number is for.
    fn dir(&self, number: u64) -> u64 {
        number / self.burst.unwrap_or(1).max(1) % self.dirs
    }

    fn place(&self, kind: char, number: u64) -> PathRef {
        let path = format!("{}/dir{}/{kind}{number:08}.jpg", self.top, self.dir(number));
        // Names like these are valid.
        PathRef::from_path(ROOT, path.as_bytes()).unwrap_or_else(|why| panic!("{path}: {why}"))
    }
}

fn make_dir(nodes: &Nodes, path: &str) -> Result<u64, Failure> {
    let op = Op::MkDir(PathRef::from_path(ROOT, path.as_bytes())?, 0o755);
    match nodes.remotes[nodes.of(&op, 0)].call(Request { creds: Creds::root(), op }) {
        Ok(Answer::Entry { inode, .. }) => Ok(inode.ino),
        other => Err(format!("mkdir {path}: {other:?}").into()),
    }
}

/// The requests that are made.
enum Way {
    MkDir,
    Create,
    Stat { files: u64 },
    Open { files: u64 },
    Close { opens: Vec<(u64, usize)> },
    Unlink,
    StatDir { dirs: u64 },
    ChmodDir { dirs: Vec<(u64, u64)> },
    RenameDir,
    RmDir,
    Rename,
    Link { files: Vec<(u64, u64)> },
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Way::MkDir => "mkdir",
            Way::Create => "create",
            Way::Stat { .. } => "stat",
            Way::Open { .. } => "open",
            Way::Close { .. } => "close",
            Way::Unlink => "unlink",
            Way::StatDir { .. } => "stat dir",
            Way::ChmodDir { .. } => "chmod dir",
            Way::RenameDir => "rename dir",
            Way::RmDir => "rmdir",
            Way::Rename => "rename",
            Way::Link { .. } => "link",
        }
    }

    fn op(&self, tree: &Tree, number: u64) -> Op {
        match self {
            Way::MkDir => Op::MkDir(tree.place('d', number), 0o755),
            Way::Create => {
                Op::MkNod { place: tree.place('f', number), kind: Kind::File, mode: 0o644, rdev: 0 }
            }
            // Neighbours in time are not neighbours in the tree, unless that is wanted.
            Way::Stat { files } => {
                let step = if tree.burst.is_some() { 1 } else { 7919 };
                Op::Lookup(tree.place('f', number.wrapping_mul(step) % files))
            }
            Way::Open { files } => {
                let flags = OpenFlags { read: true, ..OpenFlags::default() };
                Op::OpenAt(tree.place('f', number % files), flags)
            }
            Way::Close { opens } => {
                Op::Release(opens.get(number as usize).map_or(0, |(ino, _)| *ino))
            }
            Way::Unlink => Op::Unlink(tree.place('f', number)),
            Way::StatDir { dirs } => Op::Lookup(tree.place('d', number.wrapping_mul(7919) % dirs)),
            Way::ChmodDir { dirs } => {
                let (_, ino) = dirs[number as usize % dirs.len()];
                // Another mode each time round.
                let mode = 0o700 + (number / dirs.len() as u64 % 8) as u16;
                Op::SetAttr(
                    InodeRef::by_id(ino),
                    SetAttr { mode: Some(mode), ..SetAttr::default() },
                )
            }
            Way::RenameDir => {
                Op::Rename(tree.place('d', number), tree.place('e', number), RenameFlags::default())
            }
            Way::RmDir => Op::RmDir(tree.place('e', number), None),
            Way::Rename => {
                Op::Rename(tree.place('f', number), tree.place('g', number), RenameFlags::default())
            }
            // A second name of a file, a third one, and so on.
            Way::Link { files } => {
                let (made, ino) = files[number as usize % files.len()];
                let place = tree.place('g', made);
                let seen = Some((tree.inos[tree.dir(made) as usize], place.name.clone()));
                Op::Link(InodeRef { ino, seen }, tree.place('l', number))
            }
        }
    }
}

/// What the callbacks of one measurement share.
struct Run {
    nodes: Arc<Nodes>,
    tree: Arc<Tree>,
    what: Way,
    limit: u64,
    started: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    running: AtomicU64,
    over: AtomicBool,
    latencies: Mutex<Vec<u32>>,
}

/// The caller.
#[derive(PartialEq)]
enum Callers {
    /// The completion of the call before.
    Completions,
    /// Threads that wait.
    Threads,
}

fn run(
    nodes: &Arc<Nodes>,
    tree: &Arc<Tree>,
    what: Way,
    depth: u64,
    time: Duration,
    limit: u64,
) -> u64 {
    run_by(nodes, tree, what, depth, time, limit, Callers::Completions)
}

/// Runs one way of making requests; answers how many calls succeeded.
fn run_by(
    nodes: &Arc<Nodes>,
    tree: &Arc<Tree>,
    what: Way,
    depth: u64,
    time: Duration,
    limit: u64,
    callers: Callers,
) -> u64 {
    let name = what.name();
    // The cost of the requests themselves is not counted.
    let node_traffic = nodes.node_traffic();
    let before = nodes.sent();
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let run = Arc::new(Run {
        nodes: nodes.clone(),
        tree: tree.clone(),
        what,
        limit,
        started: AtomicU64::new(0),
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        running: AtomicU64::new(depth),
        over: AtomicBool::new(false),
        latencies: Mutex::default(),
    });
    let threads: Vec<_> = match callers {
        Callers::Completions => {
            (0..depth).for_each(|_| next(&run));
            Vec::new()
        }
        Callers::Threads => (0..depth)
            .map(|_| {
                let run = run.clone();
                std::thread::spawn(move || one_after_the_other(&run))
            })
            .collect(),
    };
    // What is to be gone in the end is not cut short.
    let whole = matches!(run.what, Way::Close { .. } | Way::Unlink | Way::RmDir | Way::Open { .. });
    while run.running.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
        if begun.elapsed() >= time && !whole {
            run.over.store(true, Ordering::SeqCst);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let (done, failed) = (run.done.load(Ordering::SeqCst), run.failed.load(Ordering::SeqCst));
    let mut latencies = std::mem::take(&mut *run.latencies.lock());
    latencies.sort_unstable();
    let at =
        |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or(0);
    let (sent, traffic_after) = (nodes.sent() - before, nodes.node_traffic());
    let each =
        |count: u64| (count as f64 / (done + failed).max(1) as f64 * 1000.0).round() / 1000.0;
    let line = serde_json::json!({
        "operation": name,
        "in_flight": depth,
        "blocking": callers == Callers::Threads,
        "nodes": nodes.remotes.len(),
        "directories": tree.dirs,
        "operations": done + failed,
        "per_s": (done as f64 / seconds).round(),
        "requests_per_operation": each(sent),
        "messages_per_operation": each(traffic_after.messages - node_traffic.messages),
        "writes_per_operation": each(traffic_after.writes - node_traffic.writes),
        "failed": failed,
        "client_cpu_us": ((cpu_seconds() - cpu) * 1e6 / done.max(1) as f64 * 100.0).round() / 100.0,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
    });
    println!("{line}");
    done
}

/// The next request, if there is one: its number, where, when it is noted.
struct StartedCall {
    number: u64,
    at: usize,
    begun: Option<Instant>,
}

impl StartedCall {
    fn next(run: &Run) -> Option<(Self, Request)> {
        let number = run.started.fetch_add(1, Ordering::Relaxed);
        if run.over.load(Ordering::Relaxed) || number >= run.limit {
            run.running.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let begun = number.is_multiple_of(SAMPLE).then(Instant::now);
        let request = Request { creds: Creds::root(), op: run.what.op(&run.tree, number) };
        let opened_at = match &run.what {
            Way::Close { opens } => opens.get(number as usize).map_or(0, |(_, at)| *at),
            _ => 0,
        };
        let at = run.nodes.of(&request.op, opened_at);
        Some((Self { number, at, begun }, request))
    }

    fn answered(self, run: &Run, reply: Reply) {
        match reply {
            Ok(answer) => {
                run.done.fetch_add(1, Ordering::Relaxed);
                match answer {
                    Answer::Opened { inode, .. } => {
                        run.tree.opened.lock().push((inode.ino, self.at))
                    }
                    Answer::Entry { inode, .. } if matches!(run.what, Way::MkDir | Way::Create) => {
                        run.tree.made.lock().push((self.number, inode.ino));
                    }
                    _ => {}
                }
            }
            Err(_) => {
                run.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(begun) = self.begun {
            run.latencies
                .lock()
                .push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
    }
}

/// One call; its completion begins the next.
fn next(run: &Arc<Run>) {
    let Some((started, request)) = StartedCall::next(run) else { return };
    let then = run.clone();
    run.nodes.remotes[started.at].submit(
        request,
        Box::new(move |reply: Reply| {
            started.answered(&then, reply);
            next(&then);
        }),
    );
}

/// A thread's calls.
fn one_after_the_other(run: &Run) {
    while let Some((started, request)) = StartedCall::next(run) {
        let reply = run.nodes.remotes[started.at].call(request);
        started.answered(run, reply);
    }
}

/// User and system time of this process, seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = |index: usize| {
        stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(index)?.parse::<f64>().ok())
    };
    (ticks(12).unwrap_or(0.0) + ticks(13).unwrap_or(0.0)) / 100.0
}

/// Nothing is held that a server could lose.
struct Nothing;

impl ReclaimSource for Nothing {
    fn welcomed(&self, _welcome: &Welcome) -> Result<(), String> {
        Ok(())
    }

    fn reclaim(&self, _lost: SessionState) -> Vec<Reclaim> {
        vec![Reclaim { oldest_open_object: u64::MAX, last: true, ..Reclaim::default() }]
    }

    fn reclaimed(&self, _replies: Vec<ReclaimReply>, _lost: SessionState) {}

    fn oldest_open_object(&self) -> u64 {
        u64::MAX
    }

    fn outage(&self, why: &str) {
        eprintln!("outage: {why}");
    }

    fn restored(&self, _after: Duration) {}
}
