//! Object numbers at hand, so that storing never waits for a metadata request.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;

use kestrel_data::packer::ObjectIds;
use kestrel_meta::node::Node;
use kestrel_types::ids::ObjectId;
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};

/// Numbers asked for at once.
const BLOCK: u32 = 1024;

/// Fewer left than this: ask for more.
const LOW: u64 = BLOCK as u64 / 2;

#[derive(Debug, Default)]
struct State {
    next: ObjectId,
    end: ObjectId,
    /// The block that follows.
    reserve: Option<(ObjectId, ObjectId)>,
    asking: bool,
}

impl State {
    fn take(&mut self) -> Option<ObjectId> {
        if self.next == self.end {
            (self.next, self.end) = self.reserve.take()?;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

/// Numbers that the node has handed to this client.
pub struct ObjectIdPool {
    node: Arc<Node>,
    state: Arc<Mutex<State>>,
}

impl ObjectIdPool {
    /// An empty pool; the first number is waited for.
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, state: Arc::default() }
    }

    fn request() -> Request {
        Request { creds: Creds::root(), op: Op::AllocObjects(BLOCK) }
    }
}

fn block(reply: Reply) -> Result<(ObjectId, ObjectId), String> {
    match reply {
        Ok(Answer::Objects { first, count }) => Ok((first, first + u64::from(count))),
        other => Err(format!("the metadata node gave no object numbers: {other:?}")),
    }
}

impl ObjectIds for ObjectIdPool {
    fn next(&self) -> kestrel_data::Result<ObjectId> {
        let mut state = self.state.lock();
        if state.reserve.is_none() && !state.asking && state.end - state.next < LOW {
            state.asking = true;
            let shared = self.state.clone();
            let id = state.take();
            drop(state);
            let (send, receive) = mpsc::sync_channel(1);
            self.node.submit(
                Self::request(),
                Box::new(move |reply| {
                    let mut state = shared.lock();
                    state.asking = false;
                    let answer = block(reply);
                    if let Ok(block) = &answer {
                        state.reserve = Some(*block);
                    }
                    drop(state);
                    let _ = send.send(answer);
                }),
            );
            if let Some(id) = id {
                return Ok(id);
            }
            let answer = receive.recv().unwrap_or_else(|_| Err("the request was dropped".into()));
            answer.map_err(|why| {
                log::error!("{why}");
                kestrel_data::Error::Closed { during: "getting object numbers" }
            })?;
            state = self.state.lock();
        }
        state.take().ok_or(kestrel_data::Error::Closed { during: "getting object numbers" })
    }
}
