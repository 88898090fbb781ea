//! The metadata of all nodes, or of the one there is, at one moment, while they are in use
//! (`kestrel_admin::recording`).

use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use kestrel_admin::cluster_view::{ClusterView, ClusterViewBuilder};
use kestrel_admin::cut::{Copying, Cut, CutError};
use kestrel_client::volume::scratch_reserve;
use kestrel_types::hex::from_hex;
use kestrel_types::placement::NodeId;
use serde_json::{Value, json};

use super::rows::Pages;
use super::{ClusterNodes, QueryNodes, ask_each};

/// Time from a question to the hold that it asks for: the answer leaves first.
const AFTER: Duration = Duration::from_millis(20);

/// How long the holds are that are tried one after the other: as short as will do, as clients wait.
const HOLDS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1000),
    Duration::from_millis(2000),
];

/// What clocks of nodes may differ in while a hold lasts, and more.
const MARGIN: Duration = Duration::from_millis(30);

/// Time between two questions that keep recordings alive.
const KEEP: Duration = Duration::from_secs(10);

/// The recordings of all nodes. Dropped, they end.
struct Recordings<'a> {
    nodes: &'a dyn QueryNodes,
    /// Each node's number of its own.
    numbers: Vec<(NodeId, u64)>,
    kept: Instant,
}

impl<'a> Recordings<'a> {
    /// `table` is the version of the table by which their rows are told apart, if there is one.
    fn begin(nodes: &'a dyn QueryNodes, table: Option<u64>) -> Result<Self, String> {
        let mut begun = Self { nodes, numbers: Vec::new(), kept: Instant::now() };
        let answers = ask_each(nodes, &|_| json!({ "verb": "cut", "act": "begin" }));
        let mut refused = None;
        for (node, answer) in answers {
            match answer {
                Ok(answer) => {
                    begun.numbers.push((node, answer["cut"].as_u64().unwrap_or(0)));
                    if answer["table"].as_u64() != table {
                        let why = "its placement table is another one than others have: it is \
                                   being changed; repeat it then";
                        refused = Some(format!("node {node}: {why}"));
                    }
                }
                Err(why) => refused = Some(why),
            }
        }
        refused.map_or(Ok(begun), Err)
    }

    /// Asks every node something about its recording, all at the same time.
    fn ask(&self, question: &Value) -> Result<Vec<(NodeId, Value)>, String> {
        let number =
            |node| self.numbers.iter().find(|(other, _)| *other == node).map(|(_, number)| *number);
        let question = |node| {
            let mut question = question.clone();
            question["cut"] = number(node).into();
            question
        };
        let answers = ask_each(self.nodes, &question).into_iter();
        answers.map(|(node, answer)| answer.map(|answer| (node, answer))).collect()
    }

    fn keep(&mut self) -> Result<(), String> {
        if self.kept.elapsed() >= KEEP {
            self.ask(&json!({ "verb": "cut", "act": "keep" }))?;
            self.kept = Instant::now();
        }
        Ok(())
    }

    /// Ends the recording of a node that is the only one: every moment is one of the whole.
    fn end_alone(&self) -> Result<u64, String> {
        let ended = self.ask(&json!({ "verb": "cut", "act": "end" }))?;
        Ok(ended.iter().map(|(_, answer)| answer["bytes"].as_u64().unwrap_or(0)).sum())
    }

    /// Ends all recordings at one moment; how much each has recorded until then.
    fn end(&self) -> Result<Vec<(NodeId, u64)>, String> {
        for length in HOLDS {
            let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let hold = json!({ "verb": "cut", "act": "hold", "after_ms": millis(AFTER),
                    "for_ms": millis(length) });
            let asked = Instant::now();
            self.ask(&hold)?;
            // The last hold has begun, and the first has not ended.
            std::thread::sleep(AFTER + MARGIN / 2);
            if asked.elapsed() + MARGIN < AFTER + length {
                let ended = self.ask(&json!({ "verb": "cut", "act": "end" }))?;
                return Ok(ended
                    .into_iter()
                    .map(|(node, answer)| (node, answer["bytes"].as_u64().unwrap_or(0)))
                    .collect());
            }
            std::thread::sleep(AFTER + length);
        }
        Err("the nodes answer too slowly to be looked at in one moment; repeat it at a quieter \
             time"
            .into())
    }
}

impl Drop for Recordings<'_> {
    fn drop(&mut self) {
        for (node, number) in &self.numbers {
            // One that does not hear it ends by itself.
            let _ = self.nodes.ask(*node, &json!({ "verb": "cut", "act": "drop", "cut": number }));
        }
    }
}

/// What a node recorded, fetched page by page.
struct Recorded<'a> {
    recordings: &'a Recordings<'a>,
    node: NodeId,
    number: u64,
    at: u64,
    end: u64,
    page: io::Cursor<Vec<u8>>,
}

impl Read for Recorded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.page.read(buffer)?;
        if read > 0 || self.at >= self.end {
            return Ok(read);
        }
        let question = json!({ "verb": "cut", "act": "read", "cut": self.number, "from": self.at });
        let answer = self.recordings.nodes.ask(self.node, &question).map_err(io::Error::other)?;
        let bytes = answer["bytes"].as_str().and_then(from_hex).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.at += bytes.len() as u64;
        self.page = io::Cursor::new(bytes);
        self.page.read(buffer)
    }
}

/// Gathers the metadata of all nodes as they are at one moment during the call, in a scratch
/// directory below `parent`. Changes wait for a fraction of a second.
///
/// # Errors
/// If one of the nodes does not answer, or there is no room; in words.
pub fn gather(
    nodes: &dyn ClusterNodes,
    parent: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<ClusterView, String> {
    let failed = |why: CutError| why.to_string();
    let mut gathering = ClusterViewBuilder::new(parent, scratch_reserve(parent), nodes.placement())
        .map_err(failed)?;
    let mut recordings = Recordings::begin(nodes, Some(nodes.placement().version))?;
    let mut before = 0;
    for (node, _) in recordings.numbers.clone() {
        let (mut lost, mut done) = (None, 0);
        let rows = Pages::all(nodes, node).map(|row| row.map_err(CutError::Rows));
        let mut tick = |rows| {
            done = rows;
            progress(before + rows);
            lost = lost.take().or(recordings.keep().err());
        };
        gathering.add(node, rows, &mut tick).map_err(failed)?;
        if let Some(why) = lost {
            return Err(why);
        }
        before += done;
    }
    let ended = recordings.end()?;
    for ((node, end), (_, number)) in ended.into_iter().zip(recordings.numbers.clone()) {
        let page = io::Cursor::new(Vec::new());
        let recorded = Recorded { recordings: &recordings, node, number, at: 0, end, page };
        gathering.follow(node, io::BufReader::with_capacity(1 << 16, recorded)).map_err(failed)?;
        recordings.keep()?;
    }
    gathering.finish().map_err(failed)
}

/// Copies the metadata of a volume that one node serves as it is at one moment during the call, to
/// a scratch directory below `parent`. No change waits.
///
/// # Errors
/// If the node does not answer, or there is no room; in words.
pub fn copy(
    node: &dyn QueryNodes,
    parent: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Cut, String> {
    let failed = |why: CutError| why.to_string();
    let copying = Copying::new(parent, scratch_reserve(parent)).map_err(failed)?;
    let mut recordings = Recordings::begin(node, None)?;
    for (id, number) in recordings.numbers.clone() {
        let mut lost = None;
        let rows = Pages::all(node, id).map(|row| row.map_err(CutError::Rows));
        let mut tick = |rows| {
            progress(rows);
            lost = lost.take().or(recordings.keep().err());
        };
        copying.add(rows, &mut tick).map_err(failed)?;
        if let Some(why) = lost {
            return Err(why);
        }
        let end = recordings.end_alone()?;
        let page = io::Cursor::new(Vec::new());
        let recorded = Recorded { recordings: &recordings, node: id, number, at: 0, end, page };
        copying.follow(io::BufReader::with_capacity(1 << 16, recorded)).map_err(failed)?;
    }
    Ok(copying.finish())
}
