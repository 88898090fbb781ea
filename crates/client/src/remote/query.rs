//! Questions to servers about a volume, as the control socket is asked (`crate::control`). Nothing
//! of the volume is opened here.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use kestrel_rpc::client::Remote;
use kestrel_types::ids::ROOT;
use kestrel_types::placement::NodeId;
use serde_json::Value;

use super::nodes::FirstConnection;
use super::reclaimable::{NodeReclaimable, Reclaimable};
use super::{DEADLINE_DEFAULT, Introduction, RemoteUrl};
use crate::descriptor::Descriptor;
use crate::error::VolumeError;
use crate::storage::{Storage, StoreOptions};

/// What one of a volume's nodes answered.
#[derive(Debug)]
pub struct NodeAnswer {
    /// Its number; 0 in a volume of one node.
    pub node: NodeId,
    /// Where it is.
    pub address: String,
    /// Its answer, or why there is none.
    pub answer: Result<Value, VolumeError>,
}

/// Asks a server something about a volume it serves; of several nodes whichever answers first.
/// `on_event` gets what it tells meanwhile. `limit` bounds the time between two answers.
///
/// # Errors
/// What the server said, or that none answers.
pub fn ask(
    url: &str,
    who: &str,
    question: &Value,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(Value),
) -> Result<Value, VolumeError> {
    let url = RemoteUrl::parse(url)?;
    let first = connect(&url, who, limit)?;
    let answer = first.remote().admin(question, limit, on_event);
    first.close();
    answer.map_err(|why| VolumeError::Io(format!("{url}: {why}")))
}

/// Asks all nodes of a volume the same, at the same time; the answers are in the order of the
/// nodes' numbers. One that does not answer has an error in its place. `on_event` gets what they
/// tell meanwhile, with the node's number, on this thread.
///
/// # Errors
/// If no node answers, so that it is not known which there are.
pub fn ask_each(
    url: &str,
    who: &str,
    question: &Value,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(NodeId, Value),
) -> Result<Vec<NodeAnswer>, VolumeError> {
    let url = RemoteUrl::parse(url)?;
    let (_, connected, _) = connect(&url, who, limit)?.others();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let asking: Vec<_> = connected
            .into_iter()
            .map(|(member, remote)| {
                let (tell, node) = (tell.clone(), member.id);
                let ask = move |(remote, _): (Arc<Remote>, Arc<NodeReclaimable>)| {
                    let answer =
                        remote.admin(question, limit, &mut |event| drop(tell.send((node, event))));
                    remote.close();
                    answer
                };
                (member, remote.map(|remote| scope.spawn(move || ask(remote))))
            })
            .collect();
        drop(tell);
        told.into_iter().for_each(|(node, event)| on_event(node, event));
        let answers = asking.into_iter().map(|(member, asked)| {
            let name = format!("{url}: node {} at {}", member.id, member.address);
            let failed = |why: String| VolumeError::Io(format!("{name}: {why}"));
            let answer = asked.and_then(|thread| match thread.join() {
                Ok(answer) => answer.map_err(|why| failed(why.to_string())),
                Err(_) => Err(failed("the thread that asks has failed".into())),
            });
            NodeAnswer { node: member.id, address: member.address, answer }
        });
        Ok(answers.collect())
    })
}

/// What the volume that `url` names is, and its block store opened from here. The server is asked
/// once; no connection stays.
///
/// # Errors
/// If no server answers, the store cannot be used from here, and if this client's token confines it
/// to a directory.
pub(crate) fn volume_at(
    url: &str,
    who: &str,
    options: &StoreOptions,
) -> Result<(Descriptor, Storage), VolumeError> {
    let url = RemoteUrl::parse(url)?;
    let server = url.to_string();
    let how = Introduction { who: who.into(), deadline: DEADLINE_DEFAULT, read_only: true };
    let reclaimable = Arc::new(Reclaimable::new(server.clone()));
    let first = FirstConnection::connect(&url, &how, &reclaimable, &[])?;
    let opened = match reclaimable.root() {
        ROOT => first.offer.descriptor(&server).and_then(|descriptor| {
            Ok((descriptor, Storage::open_offered(&first.offer, &server, options)?))
        }),
        _ => Err(VolumeError::Invalid(format!(
            "{server}: the token confines this client to a directory, and a version may have what \
             is outside of it; use a token for the whole volume"
        ))),
    };
    first.close();
    opened
}

pub(super) fn connect(
    url: &RemoteUrl,
    who: &str,
    limit: Option<Duration>,
) -> Result<FirstConnection, VolumeError> {
    let deadline = limit.unwrap_or(DEADLINE_DEFAULT);
    let how = Introduction { who: who.to_string(), deadline, read_only: true };
    let reclaimable = Arc::new(Reclaimable::new(url.to_string()));
    let first = FirstConnection::connect(url, &how, &reclaimable, &[])?;
    Ok(first.asked_only())
}
