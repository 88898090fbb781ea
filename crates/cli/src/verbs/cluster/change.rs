//! What the verbs that change the table of a cluster have in common.

use std::time::Duration;

use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_balancer::slots::resize;
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_daemon::failure::Failure;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::name::Name;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use serde_json::{Value, json};

use super::failed;
use crate::progress::Progress;

/// How long the coordinator may take to say how it is.
const QUICK: Duration = Duration::from_secs(10);

/// A cluster with a table that is to change.
pub struct ClusterTarget {
    panel: NodeFanOut,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("cluster", why)
}

impl ClusterTarget {
    /// Connects to all nodes: all of them take part in a change.
    pub fn connect(url: &str, verb: &str) -> Result<Self, Failure> {
        RemoteUrl::parse(url).map_err(|why| Failure::usage(format!("cluster: {why}")))?;
        let panel = NodeFanOut::connect(url, &kestrel_daemon::who(verb)).map_err(failed)?;
        let panel = panel.ok_or_else(|| {
            fail(format!("{url}: one node serves it; there is no table to change"))
        })?;
        Ok(Self { panel })
    }

    /// Connects to the node that leads changes, and to no other one.
    pub fn coordinator_of(url: &str, verb: &str) -> Result<Self, Failure> {
        RemoteUrl::parse(url).map_err(|why| Failure::usage(format!("cluster: {why}")))?;
        let leads = |table: &PlacementMap, node| table.coordinator == node;
        let panel =
            NodeFanOut::connect_to(url, &kestrel_daemon::who(verb), leads).map_err(failed)?;
        let panel = panel.ok_or_else(|| {
            fail(format!("{url}: one node serves it; there is no table to change"))
        })?;
        Ok(Self { panel })
    }

    /// Whether a node was announced, and has not come.
    pub fn expects(&self, node: NodeId) -> Result<bool, Failure> {
        let status = self
            .panel
            .ask(self.coordinator(), &json!({ "verb": "status" }), QUICK)
            .map_err(failed)?;
        let expected = status["expected"].as_array().into_iter().flatten();
        Ok(expected.into_iter().any(|expected| expected["node"] == node))
    }

    /// Has such a node expected no more. The version of the table after that.
    pub fn forget(&self, node: NodeId) -> Result<u64, Failure> {
        let question = json!({ "verb": "forget", "node": node });
        let answer =
            self.panel.ask_at_length(self.coordinator(), &question, &mut |_| ()).map_err(failed)?;
        Ok(answer["table"].as_u64().unwrap_or(0))
    }

    /// The node that leads changes.
    fn coordinator(&self) -> NodeId {
        self.panel.placement.coordinator
    }

    /// The present table.
    pub fn table(&self) -> Result<PlacementMap, Failure> {
        self.panel.table_of(self.coordinator()).map_err(failed)
    }

    /// Has all nodes count what they have, at the same time.
    pub fn reports(&self, progress: &mut Progress) -> Result<Vec<LoadReport>, Failure> {
        let question = json!({ "verb": "entries" });
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let counting: Vec<_> = self
                .panel
                .nodes()
                .map(|node| {
                    let (tell, question) = (tell.clone(), &question);
                    scope.spawn(move || {
                        let on_event = &mut |event: Value| drop(tell.send((node, event)));
                        self.panel.ask_at_length(node, question, on_event)
                    })
                })
                .collect();
            drop(tell);
            let mut counted = std::collections::BTreeMap::new();
            for (node, event) in told {
                counted.insert(node, event["entries"].as_u64().unwrap_or(0));
                progress.tick("entries counted", counted.values().sum());
            }
            let reports = counting.into_iter().map(|thread| match thread.join() {
                Ok(answer) => report(&answer.map_err(failed)?),
                Err(_) => Err(fail("a thread that asks has failed")),
            });
            reports.collect()
        })
    }

    /// Makes `next` the table, with the version after the present one; returns when all nodes have
    /// it.
    pub fn change(&self, next: &PlacementMap, progress: &mut Progress) -> Result<(), Failure> {
        let question = json!({ "verb": "change", "table": to_hex(&next.encode()) });
        let mut show = |event: Value| {
            let phase = event["phase"].as_str().unwrap_or("working");
            progress.tick(&format!("{phase}, rows sent"), event["rows_sent"].as_u64().unwrap_or(0));
        };
        let coordinator = self.coordinator();
        let asked = self.panel.ask_at_length(coordinator, &question, &mut show);
        let Err(why) = asked else { return Ok(()) };
        // The answer may be lost, and the change done.
        match self.panel.table_of(coordinator) {
            Ok(table) if table == *next => Ok(()),
            Ok(_) => {
                Err(fail(match self.panel.ask(coordinator, &json!({ "verb": "status" }), QUICK) {
                    Ok(status) if status["change"]["leads"] == false => {
                        format!("the table did not change: {why}")
                    }
                    _ => format!("{why}; the change may go on: `kestrel cluster status` tells"),
                }))
            }
            Err(_) => Err(fail(format!(
                "{why}; it is not known whether the table changed: see `kestrel cluster status`"
            ))),
        }
    }
}

/// What a node tells of its entries.
fn report(answer: &Value) -> Result<LoadReport, Failure> {
    let name = |pair: &Value| {
        let name = Name::new(&from_hex(pair[0].as_str()?)?).ok()?;
        Some(NameCount { name, entries: pair[1].as_u64()? })
    };
    let read = || {
        Some(LoadReport {
            node: NodeId::try_from(answer["node"].as_u64()?).ok()?,
            entries: answer["entries"].as_u64()?,
            names: answer["names"].as_array()?.iter().map(name).collect::<Option<_>>()?,
        })
    };
    read().ok_or_else(|| {
        fail("a node's count of its entries cannot be read; use the same version of kestrel")
    })
}

/// The numbers of the members of a table that own no slots.
fn without_slots(placement: &PlacementMap) -> Vec<NodeId> {
    let slots = placement.map.slots_of_members();
    let members = placement.map.members().iter().zip(slots);
    members.filter(|(_, slots)| *slots == 0).map(|(member, _)| member.id).collect()
}

/// The table in which a member owns no slots, and how many move.
pub fn drained(present: &PlacementMap, node: NodeId) -> Result<(PlacementMap, usize), Failure> {
    // A node that owns nothing now is not to get anything by this, unless no other is there.
    let mut without = without_slots(present);
    if !without.contains(&node) {
        without.push(node);
    }
    if without.len() == present.map.members().len() {
        without = [&[node], &present.leaving[..], &present.idle].concat();
    }
    let (map, moves) = resize(&present.map, present.map.members(), &without).map_err(fail)?;
    Ok((PlacementMap { version: present.version + 1, map, ..present.clone() }, moves.len()))
}

/// Members and their slots, as JSON.
pub fn slots(placement: &PlacementMap) -> Value {
    let of = |(member, slots): (&Member, usize)| json!({ "node": member.id, "slots": slots });
    placement.map.members().iter().zip(placement.map.slots_of_members()).map(of).collect()
}
