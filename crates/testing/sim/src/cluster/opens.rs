//! What clients have open at which member, and how they claim it when the member was started again.
//!
//! A call that counts opens, or relies on one, goes to the member that leads it, in a session of
//! one start of it: what was sent to an earlier start is lost with the connection. Before anything
//! else a client claims at a new start what it had open there; when all clients have, and have
//! repeated their calls without an answer, the time of claims is over.

use kestrel_types::clock::SECOND;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Outcome, Reply, Request, SetAttr, Subject};
use kestrel_types::wire::ClientId;

use super::call::Waiting;
use super::sessions::Claimed;
use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::feed::FeedScene;
use crate::network::MS;

/// How a client has a file open at a member.
#[derive(Debug, Clone)]
pub struct Held {
    count: u32,
    file: InodeRef,
    linkable: bool,
}

impl Held {
    /// The file, as it was opened.
    pub fn file(&self) -> InodeRef {
        self.file.clone()
    }
}

impl ClusterRun {
    /// The member that gets a client's call (the reasons are in `kestrel-client`'s
    /// `remote/routes.rs`).
    pub(super) fn member_for(&mut self, client_index: usize, op: &Op) -> NodeId {
        let caller = &self.clients[client_index];
        if let Some(leader) = caller.placement.leader(op) {
            return leader.id;
        }
        let ino = match op.subject() {
            Subject::Open(ino) => ino,
            Subject::Held(inode) => inode.ino,
            _ if matches!(op, Op::AllocObjects(_)) => {
                self.choose_giver(client_index);
                return self.clients[client_index].gives;
            }
            _ => {
                let members: Vec<NodeId> =
                    caller.placement.serving().map(|member| member.id).collect();
                return *self.prng.pick(&members).expect("there are members");
            }
        };
        // A member that is leaving gets its release only once another one has the file open too.
        let leaves = |node: &NodeId| caller.placement.is_leaving(*node);
        let holders = caller.opens.keys().filter(|(_, open)| *open == ino);
        let holds = holders.max_by_key(|(node, _)| leaves(node) == matches!(op, Op::Release(_)));
        holds.map_or_else(|| caller.placement.home_of(ino).id, |(node, _)| *node)
    }

    /// The file that an operation names by number, if the client has it open.
    pub(super) fn held(&self, client_index: usize, op: &Op) -> Option<InodeId> {
        let inode = kestrel_model::target(op)?;
        let caller = &self.clients[client_index];
        // A file without a name is opened at its home only, to which a client sends a call by
        // number when the answer before was that there is none; one that is where it was made is
        // not found by number alone.
        if matches!(op, Op::Open(..)) && !caller.goes_home {
            return None;
        }
        let open = caller.opens.keys().any(|(_, open)| *open == inode.ino);
        open.then_some(inode.ino)
    }

    /// What a reply means for what a client has open.
    pub(super) fn note_opens(&mut self, client_index: usize, waiting: &Waiting, reply: &Reply) {
        let node = waiting.at;
        let caller = &mut self.clients[client_index];
        let op = &waiting.request.op;
        match (op, reply) {
            (Op::At(..), _) => {}
            (_, Ok(Answer::Opened { inode, parent, .. })) if inode.kind != Kind::Dir => {
                let file = match op {
                    Op::Open(file, _) => file.clone(),
                    Op::Create { place, .. } | Op::OpenAt(place, _) => InodeRef {
                        ino: inode.ino,
                        seen: parent.map(|parent| (parent, place.name.clone())),
                    },
                    _ => InodeRef::by_id(inode.ino),
                };
                let linkable = matches!(op, Op::TmpFile { exclusive: false, .. });
                let new = Held { count: 0, file: file.clone(), linkable };
                let held = caller.opens.entry((node, inode.ino)).or_insert(new);
                held.count += 1;
                held.file = file;
            }
            (Op::Release(ino), Ok(_)) => self.forget_open(client_index, node, *ino, 1),
            (Op::Release(ino), Err(Outcome::Failed(why))) if why.errno != libc::ETIMEDOUT => {
                let had = caller.opens.contains_key(&(node, *ino));
                if had {
                    self.fail(format!(
                        "client {client_index}: release of file {ino} at {node}: {why}"
                    ));
                }
            }
            (_, Err(Outcome::Failed(why))) if why.errno == libc::ESTALE => {
                let creds = waiting.request.creds.clone();
                caller.next = by_number(op).map(|op| Request { creds, op });
            }
            _ => {}
        }
    }

    fn forget_open(&mut self, client_index: usize, node: NodeId, ino: InodeId, count: u32) {
        let caller = &mut self.clients[client_index];
        if let Some(held) = caller.opens.get_mut(&(node, ino)) {
            held.count -= count.min(held.count);
            if held.count == 0 {
                caller.opens.remove(&(node, ino));
            }
        }
        if let Some(handle) = caller.client.handles.get_mut(&ino) {
            handle.count -= count.min(handle.count);
            handle.free = handle.free.min(handle.count);
            handle.writes = handle.writes.min(handle.free);
            if handle.count == 0 {
                caller.client.handles.remove(&ino);
            }
        }
    }

    /// Whether a client may send calls to the present start of a member: it has claimed what it had
    /// there.
    pub(super) fn is_welcome(&mut self, client_index: usize, node: NodeId) -> bool {
        let start = self.hosts[&node].started();
        *self.clients[client_index].sessions.entry(node).or_insert(start) == start
    }

    /// A member has started: its clients will claim what they had open.
    pub(super) fn await_claims(&mut self, node: NodeId) {
        let start = self.hosts[&node].started();
        let mut awaited = Vec::new();
        for client_index in 0..self.clients.len() {
            let caller = &self.clients[client_index];
            if caller.sessions.contains_key(&node) {
                awaited.push(caller.client.id);
                let client = caller.client.id;
                // A client that reaches the earlier process looks for no other.
                let lingers = self.hosts[&node].zombie.is_some() && self.prng.chance(70);
                let after = self.prng.between(MS, if lingers { 8 * SECOND } else { 200 * MS });
                self.plan_in(after, Event::Claim(client_index, client, node, start));
            }
        }
        self.awaited.insert(node, awaited);
        self.check_grace(node);
    }

    /// A client claims what it had open at a member, again until the answer has come.
    pub(super) fn claim(
        &mut self,
        client_index: usize,
        client: ClientId,
        node: NodeId,
        start: u64,
    ) {
        let caller = &self.clients[client_index];
        let over = caller.client.id != client || self.hosts[&node].started() != start;
        if over || caller.sessions.get(&node) == Some(&start) {
            return;
        }
        self.clients[client_index].connected.insert(node, start);
        let caller = &self.clients[client_index];
        let releasing = caller.waiting.as_ref().and_then(|waiting| match waiting.request.op {
            Op::Release(ino) if waiting.at == node && !waiting.misdirected => Some(ino),
            _ => None,
        });
        let claims = caller.opens.iter().filter(|((at, _), _)| *at == node);
        let claims: Vec<Claimed> = claims
            .map(|((_, ino), held)| Claimed {
                file: held.file.clone(),
                count: held.count,
                linkable: held.linkable,
                releasing: releasing == Some(*ino),
            })
            .collect();
        self.say(|| format!("client {client_index} → {node}: had open {claims:?}"));
        self.carry(0, node, |world, after| {
            world.plan_in(after, Event::Claims(node, start, client_index, client, claims.clone()));
        });
        self.plan_in(300 * MS, Event::Claim(client_index, client, node, start));
    }

    /// Claims reach a member.
    pub(super) fn claims(
        &mut self,
        node: NodeId,
        start: u64,
        client_index: usize,
        client: ClientId,
        claims: &[Claimed],
    ) {
        if !self.hosts[&node].is_up(start) || self.dead.contains(&client) {
            return;
        }
        let now = self.queue.now;
        self.host(node).claim(client, claims, now);
        let had = self.hosts[&node].sessions().had_back(client, claims);
        if let Some(lost) = had {
            self.carry(node, 0, |world, after| {
                let lost = lost.iter().copied().collect();
                world.plan_in(after, Event::Claimed(client_index, client, node, start, lost));
            });
        }
        self.after(node);
    }

    /// The answer tells a client that it has everything back, but for these files.
    pub(super) fn claimed(
        &mut self,
        client_index: usize,
        client: ClientId,
        node: NodeId,
        start: u64,
        lost: &[InodeId],
    ) {
        if self.clients[client_index].client.id != client || self.hosts[&node].started() != start {
            return;
        }
        if self.clients[client_index].sessions.insert(node, start) == Some(start) {
            return;
        }
        self.say(|| format!("client {client_index}: welcome at {node}, without {lost:?}"));
        for ino in lost {
            self.forget_open(client_index, node, *ino, u32::MAX);
        }
    }

    /// Ends a member's time of claims when all clients of the start before are back for good, or
    /// gone.
    pub(super) fn check_grace(&mut self, node: NodeId) {
        let host = &self.hosts[&node];
        let (start, Some(member)) = (host.started(), host.member()) else { return };
        if !member.node().in_grace() {
            return;
        }
        let is_awaited = |client: &ClientId| {
            self.clients.iter().filter(|caller| caller.client.id == *client).any(|caller| {
                let repeats = |waiting: &Waiting| {
                    waiting.at == node && waiting.first_sent != start && !waiting.misdirected
                };
                caller.sessions.get(&node) != Some(&start)
                    || caller.waiting.as_ref().is_some_and(repeats)
            })
        };
        if !self.awaited.get(&node).is_some_and(|awaited| awaited.iter().any(is_awaited)) {
            member.node().end_grace().expect("no fault was injected");
            self.say(|| format!("node {node}: its time of claims is over"));
        }
    }

    /// What the machines of members do about clients now and then.
    pub(super) fn tick_sessions(&mut self, node: NodeId) {
        self.check_grace(node);
        let now = self.queue.now;
        let dead = std::mem::take(&mut self.dead);
        let mut sessions = self.hosts[&node].sessions();
        dead.iter().for_each(|client| sessions.expire(*client));
        let wrong = sessions.wrong.take();
        drop(sessions);
        self.dead = dead;
        self.host(node).release_abandoned(now);
        if let Some(why) = wrong {
            self.fail(format!("node {node}: {why}"));
        }
    }

    /// The client is gone, without a word.
    pub(super) fn bury(&mut self, client_index: usize) {
        self.stats.expired += 1;
        let client = self.clients[client_index].client.id;
        self.dead.push(client);
    }

    /// Whatever clients have open they can look at, by number.
    pub(super) fn check_open_files(&mut self) {
        let mut open: Vec<InodeRef> = Vec::new();
        for caller in &self.clients {
            open.extend(caller.opens.values().map(|held| held.file.clone()));
        }
        for file in open {
            let reply = self.observe(Op::GetAttr(file.clone()));
            if self.queue.failure.is_none() && !matches!(reply, Some(Ok(_))) {
                self.fail(format!("file {file:?}, which is open, is not to be had: {reply:?}"));
            }
        }
    }

    /// All clients leave, without a word. Nothing of what they had open may be left.
    pub(super) fn say_farewell(&mut self) {
        for client_index in 0..self.clients.len() {
            self.bury(client_index);
        }
        let until = self.queue.now + super::finish::REST_MAX;
        self.run_until(until, Self::has_nothing_open);
        if self.queue.failure.is_none() && !self.has_nothing_open() {
            let left = |(node, host): (&NodeId, &super::host::Host)| {
                let member = host.member()?;
                let (open, orphans) = (member.node().stats().open_files, member.node().orphans());
                Some(format!("node {node}: {open} open files, {orphans} without names"))
            };
            let left: Vec<String> = self.hosts.iter().filter_map(left).collect();
            self.fail(format!("left when all clients were gone: {left:?}"));
        }
    }

    fn has_nothing_open(&self) -> bool {
        self.hosts.values().filter(|host| !host.lost).all(|host| {
            host.sessions().is_empty()
                && host.member().is_some_and(|member| {
                    let node = member.node();
                    node.stats().open_files == 0 && node.orphans() == 0 && !node.in_grace()
                })
        })
    }
}

/// The same operation on an inode by number alone, if it named a place where that was seen.
fn by_number(op: &Op) -> Option<Op> {
    let mut op = op.clone();
    match &mut op {
        Op::GetAttr(inode)
        | Op::SetAttr(inode, SetAttr { through_handle: false, .. })
        | Op::SetFlags(inode, _)
        | Op::Accessed(inode, _)
        | Op::Access(inode, _)
        | Op::ReadLink(inode)
        | Op::Open(inode, _)
        | Op::GetXattr(inode, _)
        | Op::SetXattr(inode, ..)
        | Op::ListXattr(inode)
        | Op::RemoveXattr(inode, _) => inode.seen.take()?,
        _ => return None,
    };
    Some(op)
}
