//! The coordinator balances by itself: from time to time it asks all nodes what they have and does
//! what [`kestrel_balancer::next`] decides. Every node of a cluster has this thread, since any may
//! come to lead changes; those that do not lead only look whether they do.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use kestrel_balancer::balance::RuleChange;
use kestrel_balancer::load_report::LoadReport;
use kestrel_balancer::next::{Decision, ROUNDS_MAX, Reason, Sight, decide};
use kestrel_cluster::change::Phase;
use kestrel_cluster::host::NodeHost;
use kestrel_engine::Engine;
use kestrel_server::peers::Peers;
use kestrel_types::error::FsResult;
use kestrel_types::placement::{NodeId, PlacementMap, Rule};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::load::LoadCounter;
use super::worker::{Ends, Rest, Worker};
use crate::units::{count, duration_arg};

/// How long nodes may count what they have, in one look.
const COUNT_MAX: Duration = Duration::from_secs(600);

/// How long rows of the table before are waited for to be deleted, between two changes of one look.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// Time between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(200);

/// Shortest time between two looks at the cluster.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// How often the coordinator balances by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// With this time in between.
    Every(Duration),
    /// Never.
    Off,
}

/// Parses `every=10m` and `off`.
///
/// # Errors
/// What may be written.
pub fn pace_arg(text: &str) -> Result<Pace, String> {
    if text == "off" {
        return Ok(Pace::Off);
    }
    let every =
        text.strip_prefix("every=").ok_or_else(|| format!("{text:?}: write every=10m, or off"))?;
    match duration_arg(every).map_err(|why| format!("{text}: {why}"))? {
        every if every >= EVERY_MIN => Ok(Pace::Every(every)),
        _ => Err(format!("{text}: a second is the shortest")),
    }
}

/// What was found and done.
#[derive(Default)]
struct BalanceStatus {
    looks: u64,
    changes: u64,
    looked: Option<Instant>,
    /// What came of the last look.
    found: String,
    /// The last change, and when it was made.
    did: Option<(Instant, String)>,
}

/// What a status tells of it.
#[derive(Default)]
pub struct Balancing {
    told: Mutex<BalanceStatus>,
}

impl Balancing {
    /// As JSON.
    pub fn describe(&self, pace: Pace, leads: bool) -> Value {
        let told = self.told.lock();
        let every = match pace {
            Pace::Every(every) => Some(every.as_secs()),
            Pace::Off => None,
        };
        let ago = |then: Instant| then.elapsed().as_secs();
        json!({
            "every_seconds": every,
            "leads": leads,
            "looked_seconds_ago": told.looked.map(ago),
            "found": told.found,
            "did": told.did.as_ref().map(|(_, what)| what),
            "did_seconds_ago": told.did.as_ref().map(|(when, _)| ago(*when)),
        })
    }

    /// Looks and changes so far.
    pub fn stats(&self) -> [u64; 2] {
        let told = self.told.lock();
        [told.looks, told.changes]
    }

    /// What a look came to. The log has it if it is no usual thing, and not that of the look
    /// before.
    fn found(&self, what: &str, is_usual: bool) {
        let mut told = self.told.lock();
        told.looks += 1;
        told.looked = Some(Instant::now());
        if told.found != what {
            let level = if is_usual { log::Level::Debug } else { log::Level::Info };
            log::log!(level, "balancing: {what}");
            told.found = what.into();
        }
    }

    fn did(&self, what: String) {
        log::info!("balancing: {what}");
        let mut told = self.told.lock();
        told.changes += 1;
        told.did = Some((Instant::now(), what));
    }
}

/// The threads that count and that balance; they end when this is dropped.
pub struct Balancer {
    _worker: Option<Worker>,
    _census: LoadCounter,
}

impl Balancer {
    /// Starts them; `peers` are the connections of this node to the others.
    ///
    /// # Errors
    /// If they do not start.
    pub fn start(
        host: &Arc<NodeHost>,
        engine: &Arc<dyn Engine>,
        peers: &Arc<Peers>,
        pace: Pace,
        balancing: &Arc<Balancing>,
    ) -> std::io::Result<Self> {
        let census = LoadCounter::start(host, engine)?;
        let Pace::Every(every) = pace else {
            return Ok(Self { _worker: None, _census: census });
        };
        let (host, me, peers) = (host.clone(), host.me(), peers.clone());
        let balancing = balancing.clone();
        let looker = move |rest| Looker { host, me, peers, balancing, rest };
        let worker = Worker::start("kestrel-balance", move |rest| looker(rest).work(every))?;
        Ok(Self { _worker: Some(worker), _census: census })
    }
}

struct Looker {
    host: Arc<NodeHost>,
    me: NodeId,
    peers: Arc<Peers>,
    balancing: Arc<Balancing>,
    rest: Rest,
}

impl Looker {
    fn work(&self, every: Duration) {
        while self.rest.sleep(every).is_ok() {
            if self.host.leads_changes() && self.look().is_err() {
                return;
            }
        }
    }

    /// Looks once, and changes what is to be changed.
    fn look(&self) -> Result<(), Ends> {
        for _ in 0..ROUNDS_MAX {
            let (present, away) = (self.host.placement(), self.away());
            let sight = Sight {
                present: &present,
                changing: self.is_changing(),
                away: &away,
                reports: None,
            };
            let mut decision = decide(&sight);
            if decision == Decision::Ask {
                let reports = match self.reports()? {
                    Ok(reports) => reports,
                    Err(why) => {
                        self.balancing.found(&why, false);
                        return Ok(());
                    }
                };
                let (now, away) = (self.host.placement(), self.away());
                // What was counted counts by the table that it was counted by.
                let changing = self.is_changing() || now != present;
                let sight =
                    Sight { present: &present, changing, away: &away, reports: Some(&reports) };
                decision = decide(&sight);
            }
            let (next, what) = match decision {
                Decision::Wait(reason) => {
                    let is_usual =
                        matches!(reason, Reason::Alone | Reason::Even(..) | Reason::Few(..));
                    self.balancing.found(&reason.to_string(), is_usual);
                    return Ok(());
                }
                // It was answered.
                Decision::Ask => return Ok(()),
                Decision::Slots(next, moves) => (next, format!("{moves} slots moved")),
                Decision::Names(next, plan) => {
                    let names: Vec<String> =
                        plan.changes.iter().map(|change| tell(change, &next)).collect();
                    (next, shortened(&names))
                }
            };
            match self.change(next)? {
                Ok(()) => {
                    self.balancing.did(what);
                    self.balancing.found("nodes were evened out", true);
                }
                Err(why) => {
                    self.balancing
                        .found(&format!("the table did not change: {}", why.reason), false);
                    return Ok(());
                }
            }
            let since = Instant::now();
            while self.is_changing() && since.elapsed() < SETTLE_MAX {
                self.rest.sleep(LOOK)?;
            }
        }
        Ok(())
    }

    fn is_changing(&self) -> bool {
        let stats = self.host.change_stats();
        stats.phase != Phase::None || stats.leads || stats.purging
    }

    /// Members that this one does not reach.
    fn away(&self) -> Vec<NodeId> {
        let stats = self.peers.stats();
        let is_up = |node| stats.iter().any(|(other, stats)| *other == node && stats.up);
        let placement = self.host.placement();
        let members = placement.map.members().iter().map(|member| member.id);
        members.filter(|node| *node != self.me && !is_up(*node)).collect()
    }

    /// What all nodes have, or why nobody knows.
    fn reports(&self) -> Result<Result<Vec<LoadReport>, String>, Ends> {
        let begun = Instant::now();
        loop {
            let (tell, told) = mpsc::channel();
            self.host.count_entries(Box::new(move |reports| {
                // A caller that does not listen any more does not need it.
                let _ = tell.send(reports);
            }));
            let why = match self.wait(&told)? {
                Ok(reports) => return Ok(Ok(reports)),
                Err(why) => why,
            };
            if let Some(node) = self.away().first() {
                return Ok(Err(Reason::Away(*node).to_string()));
            }
            if why.errno != libc::ETIMEDOUT || begun.elapsed() > COUNT_MAX {
                return Ok(Err(format!("the nodes do not tell what they have: {}", why.reason)));
            }
        }
    }

    fn change(&self, next: PlacementMap) -> Result<FsResult<()>, Ends> {
        let (tell, told) = mpsc::channel();
        self.host.change(
            next,
            Box::new(move |ended| {
                let _ = tell.send(ended);
            }),
        );
        self.wait(&told)
    }

    /// What is told, unless the process ends before.
    fn wait<T>(&self, told: &mpsc::Receiver<T>) -> Result<T, Ends> {
        loop {
            match told.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => self.rest.sleep(Duration::ZERO)?,
                Err(RecvTimeoutError::Disconnected) => return Err(Ends),
            }
        }
    }
}

/// The first of what was done to names.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let first = names[..names.len().min(SHOWN)].join("; ");
    match names.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first}; and {more} more"),
    }
}

/// What becomes of a name.
pub fn rule(change: &RuleChange, next: &PlacementMap) -> String {
    match change.to {
        None => "placed by its hash again".into(),
        Some(Rule::PathWalk) => "spread by directory".into(),
        Some(Rule::Override(slot)) => format!("moved to node {}", next.map.owner(slot).id),
    }
}

/// The same with the name, for people.
pub fn tell(change: &RuleChange, next: &PlacementMap) -> String {
    let name = String::from_utf8_lossy(change.name.as_bytes()).into_owned();
    format!("{name:?} with {} entries: {}", count(change.entries), rule(change, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces() {
        assert_eq!(pace_arg("off"), Ok(Pace::Off));
        assert_eq!(pace_arg("every=90"), Ok(Pace::Every(Duration::from_secs(90))));
        assert_eq!(pace_arg("every=10m"), Ok(Pace::Every(Duration::from_secs(600))));
        for text in ["", "on", "10m", "every=", "every=0", "every=10ms", "every=2w"] {
            let why = pace_arg(text).unwrap_err();
            assert!(why.contains(text), "{why}");
        }
    }
}
