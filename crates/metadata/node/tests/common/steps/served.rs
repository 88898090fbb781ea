//! The same steps as a client across a network sends them: numbered, to a node that dies now and
//! then after it has executed a request and before anybody has heard the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_engine::Engine;
use kestrel_meta::node::Origin;
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::policy::Policy;
use kestrel_types::request::{Answer, Creds, Done, Op, Reply, Request};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use super::super::errno;
use super::{Raw, World};

/// Where a client last saw a file: directory and name.
type Seen = Option<(u64, Name)>;

/// A client, and the world it works on.
pub struct Client {
    world: World,
    id: ClientId,
    seq: u64,
    /// Files it has open, as it saw them when it opened them last.
    opened: BTreeMap<u64, Seen>,
}

/// How the node dies after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// The process goes, before the log is synced.
    Process,
    /// The machine goes: what was not synced is lost.
    Power,
    /// The process goes after the sync, the answer on its way.
    Answered,
}

impl World {
    /// Runs a sequence as a client of a node that serves a network.
    pub fn serve(self, raws: &[Raw]) -> Result<(), String> {
        self.fixture().node.end_grace().unwrap();
        let mut client =
            Client { world: self, id: ClientId([7; 16]), seq: 0, opened: BTreeMap::new() };
        for raw in raws {
            client.step(*raw)?;
        }
        client.world.fixture().engine.sync().unwrap();
        client.world.finish()
    }
}

impl Client {
    fn step(&mut self, raw: Raw) -> Result<(), String> {
        let world = &mut self.world;
        world.fixture().clock.advance(1_000_000);
        world.model.now += 1_000_000;
        let (creds, op) = (World::creds(raw.who), world.op(raw));
        self.seq += 1;
        let heard = self.send(&creds, &op, false);
        let death = match raw.who / 8 {
            0..=2 => Death::Process,
            3..=5 => Death::Power,
            6..=7 => Death::Answered,
            _ => {
                world_sync(&self.world);
                return self.heard(&creds, &op, take(&heard)?);
            }
        };
        if death == Death::Answered {
            world_sync(&self.world);
        }
        let first = heard.lock().take();
        self.world.trace.push(format!("{op:?} as {}: {death:?}", creds.uid));
        let fixture = self.world.fixture.take().unwrap();
        self.world.fixture = Some(fixture.crash(death == Death::Power));
        if raw.b % 8 == 0 && death != Death::Process {
            if let Some(first) = first {
                self.heard(&creds, &op, first)?;
            }
            self.die();
            return Ok(());
        }
        self.claim(&op)?;
        self.world.look_up_again();
        for known in &mut self.world.known {
            // Of what is open the client goes on with what it saw when it opened it.
            if let Some(seen) =
                self.opened.get(&known.ino).filter(|_| self.world.model.nodes[&known.ino].opens > 0)
            {
                known.places = seen.iter().cloned().collect();
            }
        }
        let heard = self.send(&creds, &op, true);
        world_sync(&self.world);
        let reply = take(&heard)?;
        let lost_sight = errno(&reply) == libc::ESTALE && self.strays(&op);
        if let Some(first) = first.filter(|_| !lost_sight)
            && without_policies(&first) != without_policies(&reply)
        {
            return Err(format!("{op:?} was answered {first:?} first, then {reply:?}"));
        }
        self.heard(&creds, &op, reply)?;
        self.world.fixture().node.end_grace().map_err(|why| why.to_string())?;
        Ok(())
    }

    /// Whether a request names a file by a place where it is not any more, and not by the one where
    /// it was opened: a restart of the node may make the client look the file up again.
    fn strays(&self, op: &Op) -> bool {
        let asked = match op {
            Op::Clone { from, to, .. } => vec![from, to],
            op => kestrel_model::target(op).into_iter().collect(),
        };
        asked.into_iter().any(|inode| {
            let model = &self.world.model.nodes;
            let there = inode
                .seen
                .as_ref()
                .and_then(|(dir, name)| model.get(dir)?.children.get(name.as_bytes()));
            let open = model
                .get(&inode.ino)
                .map(|node| node.opens > 0 && self.opened[&inode.ino] == inode.seen);
            there != Some(&inode.ino) && open == Some(false)
        })
    }

    fn send(&self, creds: &Creds, op: &Op, retry: bool) -> Arc<Mutex<Option<Reply>>> {
        let heard: Arc<Mutex<Option<Reply>>> = Arc::default();
        let sink = heard.clone();
        let done: Done = Box::new(move |reply| *sink.lock() = Some(reply));
        let origin = Origin { client: self.id, seq: self.seq, retry };
        self.world.fixture().node.submit_from(
            Request { creds: creds.clone(), op: op.clone() },
            origin,
            done,
        );
        heard
    }

    fn heard(&mut self, creds: &Creds, op: &Op, reply: Reply) -> Result<(), String> {
        if errno(&reply) == libc::ESTALE && self.strays(op) {
            return Ok(());
        }
        self.world.judge(creds, op, &reply)?;
        if let Ok(Answer::Opened { inode, .. }) = &reply
            && inode.kind != Kind::Dir
        {
            let seen = match op {
                Op::Open(asked, _) => asked.seen.clone(),
                _ => self.world.model.nodes.iter().find_map(|(dir, node)| {
                    let name = node.children.iter().find(|(_, child)| **child == inode.ino)?.0;
                    Some((*dir, Name::new(name).unwrap()))
                }),
            };
            self.opened.insert(inode.ino, seen);
        }
        Ok(())
    }

    /// Claims everything the model has open. The request that nobody heard of may have closed a
    /// file for good.
    fn claim(&mut self, unheard: &Op) -> Result<(), String> {
        let world = &self.world;
        for (ino, model) in world.model.nodes.iter().filter(|(_, node)| node.opens > 0) {
            let seen = self.opened.get(ino).cloned().ok_or(format!("{ino} was never opened"))?;
            let heard: Arc<Mutex<Option<Reply>>> = Arc::default();
            let sink = heard.clone();
            let done: Done = Box::new(move |reply| *sink.lock() = Some(reply));
            world.fixture().node.reclaim_open(
                InodeRef { ino: *ino, seen },
                model.opens,
                model.linkable,
                done,
            );
            world_sync(world);
            let reply = take(&heard)?;
            let closed =
                matches!(unheard, Op::Release(released) if released == ino) && model.opens == 1;
            if errno(&reply) != 0 && !(closed && errno(&reply) == libc::ESTALE) {
                return Err(format!(
                    "claim of {ino}: {reply:?}; before:\n{}",
                    world.trace.join("\n")
                ));
            }
        }
        Ok(())
    }

    /// The client has died as well: it claims nothing and asks nothing again. The next one goes on
    /// with its number.
    fn die(&mut self) {
        self.world.trace.push("nothing claimed".into());
        self.world.fixture().node.end_grace().unwrap();
        self.world.close_all();
        self.opened.clear();
    }
}

/// A reply without what it says of policies, which a node that has just started may leave out.
fn without_policies(reply: &Reply) -> Reply {
    let mut reply = reply.clone();
    match &mut reply {
        Ok(Answer::Inode(inode) | Answer::Entry { inode, .. } | Answer::Opened { inode, .. }) => {
            inode.effective = Policy::default();
        }
        Ok(Answer::EntriesPlus { entries, .. }) => {
            entries.iter_mut().for_each(|(_, inode)| inode.effective = Policy::default());
        }
        _ => {}
    }
    reply
}

fn world_sync(world: &World) {
    world.fixture().engine.sync().unwrap();
}

fn take(heard: &Mutex<Option<Reply>>) -> Result<Reply, String> {
    heard.lock().take().ok_or_else(|| "no reply after the sync".into())
}
