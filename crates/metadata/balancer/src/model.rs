//! The coordinator's picture of a cluster: how many entries each node holds, and how many it would
//! hold if a name were placed otherwise. Counts are integers and their sum never changes, so every
//! step is exact and repeatable.

use std::collections::BTreeSet;

use kestrel_types::name::Name;
use kestrel_types::placement::{
    Exceptions, NodeId, PlacementMap, Rule, SLOTS, Slot, hash_name, slot_of_hash,
};
use rustc_hash::FxHashMap;

use crate::load_report::{LoadReport, sharing};

/// Where the entries of a name are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lies {
    /// All on one node, by its index.
    On(usize),
    /// Spread: entries on each node.
    Spread(Vec<u64>),
}

/// A name that was reported.
#[derive(Debug, Clone)]
pub struct ReportedName {
    pub name: Name,
    /// Its entries in the cluster.
    pub entries: u64,
    pub rule: Option<Rule>,
    pub lies: Lies,
}

/// See the module's header. Nodes are numbered 0, 1, 2… in the order of their ids.
#[derive(Debug, Clone)]
pub struct Model {
    /// Entries of each node.
    pub loads: Vec<u64>,
    /// Names, by index.
    pub names: Vec<ReportedName>,
    /// For each node its names that lie on it alone, by count and index.
    on_node: Vec<BTreeSet<(u64, usize)>>,
    /// Slots of each node.
    slots: Vec<Vec<Slot>>,
    /// Node of each slot.
    owners: Vec<usize>,
    ids: Vec<NodeId>,
    exceptions: usize,
}

impl Model {
    /// The picture that reports give; the id of a node that should have reported and has not,
    /// otherwise.
    pub fn new(placement: &PlacementMap, reports: &[LoadReport]) -> Result<Self, NodeId> {
        let members = sharing(placement);
        let mut slots = vec![Vec::new(); members.len()];
        let owners = (0..SLOTS as Slot)
            .map(|slot| {
                let member = placement.map.index_of_owner(slot);
                // The owner of a slot is among the nodes that share.
                let node = members.binary_search(&member).unwrap_or_default();
                slots[node].push(slot);
                node
            })
            .collect();
        let ids: Vec<NodeId> =
            members.iter().map(|member| placement.map.members()[*member].id).collect();
        let mut model = Self {
            loads: vec![0; ids.len()],
            names: Vec::new(),
            on_node: vec![BTreeSet::new(); ids.len()],
            slots,
            owners,
            exceptions: placement.exceptions.len(),
            ids,
        };
        let mut by_name: FxHashMap<&Name, Vec<(usize, u64)>> = FxHashMap::default();
        for (node, id) in model.ids.iter().enumerate() {
            let report = reports.iter().find(|report| report.node == *id).ok_or(*id)?;
            model.loads[node] = report.entries;
            for count in &report.names {
                by_name.entry(&count.name).or_default().push((node, count.entries));
            }
        }
        // Exceptions without any entries left are in the model too: they can go.
        for (name, _) in placement.exceptions.iter() {
            by_name.entry(name).or_default();
        }
        for (name, counts) in by_name {
            model.add(name, placement.exceptions.rule(name.as_bytes()), &counts);
        }
        model.names.sort_by(|one, other| {
            other.entries.cmp(&one.entries).then_with(|| one.name.cmp(&other.name))
        });
        for (index, reported) in model.names.iter().enumerate() {
            if let Lies::On(node) = reported.lies {
                model.on_node[node].insert((reported.entries, index));
            }
        }
        Ok(model)
    }

    fn add(&mut self, name: &Name, rule: Option<Rule>, counts: &[(usize, u64)]) {
        let lies = match rule {
            Some(Rule::PathWalk) => {
                let mut spread = vec![0; self.ids.len()];
                counts.iter().for_each(|(node, entries)| spread[*node] += entries);
                Lies::Spread(spread)
            }
            Some(Rule::Override(slot)) => Lies::On(self.owners[usize::from(slot)]),
            None => Lies::On(self.home(name)),
        };
        // Entries of it on other nodes are on their way; they are not counted twice, nor moved
        // again.
        let entries = match &lies {
            Lies::On(home) => {
                counts.iter().filter(|(node, _)| node == home).map(|(_, entries)| entries).sum()
            }
            Lies::Spread(spread) => spread.iter().sum(),
        };
        self.names.push(ReportedName { name: name.clone(), entries, rule, lies });
    }

    /// The node where the hash puts a name.
    fn home(&self, name: &Name) -> usize {
        self.owners[usize::from(slot_of_hash(hash_name(name.as_bytes())))]
    }

    /// Number of nodes that share the entries.
    pub fn nodes(&self) -> usize {
        self.ids.len()
    }

    /// Id of a node.
    pub fn id(&self, node: usize) -> NodeId {
        self.ids[node]
    }

    /// Entries in the cluster.
    pub fn total(&self) -> u64 {
        self.loads.iter().sum()
    }

    /// Exceptions in force.
    pub fn exceptions(&self) -> usize {
        self.exceptions
    }

    /// The node with the most entries, the first of several.
    pub fn fullest(&self) -> usize {
        (0..self.loads.len()).rev().max_by_key(|node| self.loads[*node]).unwrap_or_default()
    }

    /// The node with the fewest entries, the first of several.
    pub fn emptiest(&self) -> usize {
        (0..self.loads.len()).min_by_key(|node| self.loads[*node]).unwrap_or_default()
    }

    /// Most entries of a node.
    pub fn most(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or_default()
    }

    /// Names of a node that lie on it alone, most frequent first.
    pub fn names_on(&self, node: usize) -> impl Iterator<Item = usize> {
        self.on_node[node].iter().rev().map(|(_, index)| *index)
    }

    /// How many of `entries` spread ones each node would get: by its part of the slots, rounded so
    /// that the sum is right.
    pub fn spread(&self, entries: u64) -> Vec<u64> {
        let mut slots = 0;
        let mut given = 0;
        self.slots
            .iter()
            .map(|of_node| {
                slots += of_node.len();
                let upto = (u128::from(entries) * slots as u128 / SLOTS as u128) as u64;
                std::mem::replace(&mut given, upto).abs_diff(upto)
            })
            .collect()
    }

    /// The rule that puts a name on a node: none if its hash does.
    pub fn rule_for(&self, name: usize, node: usize) -> Option<Rule> {
        let name = &self.names[name].name;
        let slots = &self.slots[node];
        // Names moved to one node are spread over its slots, so that they part again if the slots
        // do.
        let slot = slots[(hash_name(name.as_bytes()) % slots.len() as u64) as usize];
        (self.home(name) != node).then_some(Rule::Override(slot))
    }

    /// Where a name would lie under a rule.
    pub fn lies_under(&self, name: usize, rule: Option<Rule>) -> Lies {
        match rule {
            None => Lies::On(self.home(&self.names[name].name)),
            Some(Rule::Override(slot)) => Lies::On(self.owners[usize::from(slot)]),
            Some(Rule::PathWalk) => Lies::Spread(self.spread(self.names[name].entries)),
        }
    }

    /// Loads if a name lay there.
    pub fn loads_with(&self, name: usize, lies: &Lies) -> Vec<u64> {
        let reported = &self.names[name];
        let mut loads = self.loads.clone();
        match &reported.lies {
            Lies::On(node) => loads[*node] -= reported.entries,
            Lies::Spread(counts) => {
                loads.iter_mut().zip(counts).for_each(|(load, count)| *load -= count)
            }
        }
        match lies {
            Lies::On(node) => loads[*node] += reported.entries,
            Lies::Spread(counts) => {
                loads.iter_mut().zip(counts).for_each(|(load, count)| *load += count)
            }
        }
        loads
    }

    /// Gives a name another rule.
    pub fn set(&mut self, name: usize, rule: Option<Rule>) {
        let lies = self.lies_under(name, rule);
        self.loads = self.loads_with(name, &lies);
        let reported = &mut self.names[name];
        if let Lies::On(node) = reported.lies {
            self.on_node[node].remove(&(reported.entries, name));
        }
        if let Lies::On(node) = lies {
            self.on_node[node].insert((reported.entries, name));
        }
        self.exceptions -= usize::from(reported.rule.is_some());
        self.exceptions += usize::from(rule.is_some());
        reported.lies = lies;
        reported.rule = rule;
    }

    /// The exceptions in force.
    pub fn exceptions_in_force(&self) -> Exceptions {
        let mut exceptions = Exceptions::default();
        for reported in self.names.iter().filter(|reported| reported.rule.is_some()) {
            // It cannot be full: the balancing stops below the limit.
            let _ = exceptions.set(reported.name.clone(), reported.rule);
        }
        exceptions
    }
}
