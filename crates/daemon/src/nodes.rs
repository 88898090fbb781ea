//! A volume that several nodes share, as verbs see it that are about the whole: rows from wherever
//! they lie.
//!
//! | file | what it has |
//! | --- | --- |
//! | `nodes/rows.rs` | the rows of one node, page by page |
//! | `nodes/engine.rs` | the rows of all nodes as one engine to read from |
//! | `nodes/cut.rs` | the metadata of all nodes at one moment |

pub mod cut;
pub mod engine;
pub mod rows;

use std::sync::Arc;
use std::time::Duration;

use kestrel_admin::info::{InfoError, TreeSums};
use kestrel_admin::usage::DirPart;
use kestrel_client::remote::{MOVED_OUT, NodeFanOut, NodeLink, RemoteMetadata, SingleNode};
use kestrel_engine::EngineError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::stat::DirStat;
use serde_json::{Value, json};

/// How long a node may take for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Directories in one question for sums.
const DIRS: usize = 1000;

/// The nodes of a volume, which can be asked one by one.
pub trait QueryNodes: Send + Sync {
    /// Their numbers, ascending.
    fn members(&self) -> Vec<NodeId>;

    /// Asks a node.
    ///
    /// # Errors
    /// In words, which name it.
    fn ask(&self, node: NodeId, question: &Value) -> Result<Value, String>;
}

/// The nodes of a volume that several share.
pub trait ClusterNodes: QueryNodes {
    /// The placement map.
    fn placement(&self) -> &PlacementMap;
}

impl QueryNodes for SingleNode {
    fn members(&self) -> Vec<NodeId> {
        // A node that serves a volume alone has no number among others.
        vec![0]
    }

    fn ask(&self, _node: NodeId, question: &Value) -> Result<Value, String> {
        SingleNode::ask(self, question, ANSWER_TIME).map_err(|why| why.to_string())
    }
}

fn members_of(placement: &PlacementMap) -> Vec<NodeId> {
    placement.map.members().iter().map(|member| member.id).collect()
}

impl ClusterNodes for NodeFanOut {
    fn placement(&self) -> &PlacementMap {
        &self.placement
    }
}

impl QueryNodes for NodeFanOut {
    fn members(&self) -> Vec<NodeId> {
        members_of(&self.placement)
    }

    fn ask(&self, node: NodeId, question: &Value) -> Result<Value, String> {
        NodeFanOut::ask(self, node, question, ANSWER_TIME).map_err(|why| why.to_string())
    }
}

/// The nodes that a mount is connected to.
pub struct OfMount {
    placement: PlacementMap,
    links: Vec<Arc<NodeLink>>,
}

impl OfMount {
    /// None if the volume has one node.
    pub fn new(metadata: &RemoteMetadata) -> Option<Self> {
        let placement = PlacementMap::clone(&*metadata.placement()?);
        Some(Self { placement, links: metadata.members() })
    }
}

impl ClusterNodes for OfMount {
    fn placement(&self) -> &PlacementMap {
        &self.placement
    }
}

impl QueryNodes for OfMount {
    fn members(&self) -> Vec<NodeId> {
        members_of(&self.placement)
    }

    fn ask(&self, node: NodeId, question: &Value) -> Result<Value, String> {
        let link = self.links.iter().find(|link| link.node == node);
        let link = link.ok_or(format!("node {node}: there is no such node"))?;
        if link.has_left() {
            return Err(format!("node {node}: {MOVED_OUT}"));
        }
        if let Some(outage) = link.remote.stats().outage {
            return Err(format!("node {node}: it has not answered for {} s", outage.as_secs()));
        }
        let answer = link.remote.admin(question, Some(ANSWER_TIME), &mut |_| ());
        answer.map_err(|why| format!("node {node}: {why}"))
    }
}

/// Asks all of them at the same time what `question` makes for each; the answers are in the order
/// of their numbers.
pub fn ask_each(
    nodes: &dyn QueryNodes,
    question: &(dyn Fn(NodeId) -> Value + Sync),
) -> Vec<(NodeId, Result<Value, String>)> {
    std::thread::scope(|scope| {
        let ask = |node| (node, scope.spawn(move || nodes.ask(node, &question(node))));
        let asking: Vec<_> = nodes.members().into_iter().map(ask).collect();
        let answers = asking.into_iter().map(|(node, thread)| {
            let failed = |_| Err(format!("node {node}: the thread that asks has failed"));
            (node, thread.join().unwrap_or_else(failed))
        });
        answers.collect()
    })
}

/// The same question to all.
///
/// # Errors
/// The first there is.
pub fn ask_all(nodes: &dyn QueryNodes, question: &Value) -> Result<Vec<(NodeId, Value)>, String> {
    let answers = ask_each(nodes, &|_| question.clone()).into_iter();
    answers.map(|(node, answer)| answer.map(|answer| (node, answer))).collect()
}

/// Adds a directory's tree up, asking all nodes about many directories at a time.
///
/// # Errors
/// If one does not answer.
pub fn tree_sums(nodes: &dyn ClusterNodes, top: InodeId) -> Result<TreeSums, InfoError> {
    let failed = |why| InfoError::Engine(EngineError::Io(why));
    let mut sums = TreeSums::default();
    let mut todo = vec![top];
    while !todo.is_empty() {
        // The first look is at the top alone: its own entries are told.
        let some = todo.split_off(todo.len().saturating_sub(DIRS));
        let answers = ask_all(nodes, &json!({ "verb": "sums", "dirs": some })).map_err(failed)?;
        let mut all = [0; 3];
        for (_, answer) in answers {
            for (sum, name) in all.iter_mut().zip(["children", "subdirs", "bytes"]) {
                *sum = i64::wrapping_add(*sum, answer[name].as_i64().unwrap_or(0));
            }
            todo.extend(answer["below"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        }
        if some == [top] {
            sums.children = u64::try_from(all[0]).unwrap_or(0);
        }
        sums.add(all);
    }
    Ok(sums)
}

/// The parts of some directories, put together from what all nodes have of them, or had at a
/// snapshot.
///
/// # Errors
/// If one does not answer, or not with a part for each directory.
pub fn tree_parts(
    nodes: &dyn ClusterNodes,
    dirs: &[InodeId],
    at: Option<SnapshotId>,
) -> Result<Vec<DirPart>, InfoError> {
    let failed = |why: String| InfoError::Engine(EngineError::Io(why));
    let question = json!({ "verb": "sums", "dirs": dirs, "each": true, "at": at });
    let mut parts = vec![DirPart::default(); dirs.len()];
    for (node, answer) in ask_all(nodes, &question).map_err(failed)? {
        // A node that does not know of moments tells of now.
        let is_asked = answer["at"].as_u64() == at;
        let each = answer["each"].as_array().filter(|each| is_asked && each.len() == dirs.len());
        let each = each.ok_or_else(|| {
            failed(format!("node {node} has no figures of single directories; it may be older"))
        })?;
        for (part, share) in parts.iter_mut().zip(each) {
            let number = |name: &str| share[name].as_i64().unwrap_or(0);
            part.stat.merge(&DirStat {
                children: number("children"),
                subdirs: number("subdirs"),
                bytes: number("bytes"),
                mtime: number("mtime"),
                change: 0,
            });
            let below = share["below"].as_array().into_iter().flatten();
            part.below.extend(below.filter_map(Value::as_u64));
        }
    }
    Ok(parts)
}
