//! The tokens of a volume: which there are, which one a client shows, and that all nodes know the
//! same of them.
//!
//! **No coordinator.** Every node has all records ([`kestrel_types::token`]: they only ever allow
//! less). Once a second it sends each other node a hash of what it has; a node that has something
//! else answers with all of its own, and takes over what it lacks. So a token that was revoked
//! anywhere is of no use anywhere within two seconds of the nodes reaching each other.
//!
//! **A node that starts** may have missed that a token was revoked. It takes no token until it has
//! the same records as most nodes, itself included; most of them are needed to serve at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};

use kestrel_cluster::host::Carrier;
use kestrel_cluster::{Envelope, Message, TokensMessage};
use kestrel_engine::Engine;
use kestrel_meta::tokens;
use kestrel_rpc::token::{OF_NODES, Token, hash};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::NodeId;
use kestrel_types::token::{TOKENS_MAX, TokenId, TokenRecord};
use parking_lot::Mutex;

use crate::grant::Grant;

/// Time between two announcements of a node's hash.
const ANNOUNCE_EVERY: Nanos = SECOND;

/// Bytes of records in one message to another node, about.
const RECORDS_BYTES: usize = 1 << 20;

/// A hash of all records.
type Digest = [u8; 32];

#[derive(Default)]
struct State {
    records: BTreeMap<TokenId, TokenRecord>,
    digest: Digest,
    /// What sessions refer to.
    grants: BTreeMap<TokenId, Weak<Grant>>,
    /// The last hashes of the others.
    digests: BTreeMap<NodeId, Digest>,
    /// What this start of the node has forgotten, at most [`TOKENS_MAX`]. A node that handles a
    /// [`TokensMessage::Prune`] late still sends these records.
    forgotten: BTreeSet<TokenId>,
    /// This node has had the same as most nodes since it was started.
    agreed: bool,
    announced: Nanos,
}

/// The other nodes, and the way to them.
struct Others {
    me: NodeId,
    carrier: Arc<dyn Carrier>,
    /// The nodes of the present table.
    nodes: Box<dyn Fn() -> Vec<NodeId> + Send + Sync>,
}

/// See the module's header.
pub struct Tokens {
    engine: Arc<dyn Engine>,
    state: Mutex<State>,
    others: OnceLock<Others>,
    /// The nodes' own.
    of_nodes: OnceLock<TokenRecord>,
}

impl Tokens {
    /// Reads those that are on record.
    ///
    /// # Errors
    /// `EIO` if a record is damaged; the engine's.
    pub fn read(engine: Arc<dyn Engine>) -> FsResult<Self> {
        let records = tokens::read(&*engine)?;
        let mut state = State::default();
        state.records = records.into_iter().map(|record| (record.id, record)).collect();
        state.digest = digest(&state.records);
        Ok(Self {
            engine,
            state: Mutex::new(state),
            others: OnceLock::new(),
            of_nodes: OnceLock::new(),
        })
    }

    /// There are other nodes: `nodes` lists them, this one, `me`, among them. Once, before any
    /// client is served.
    pub fn are_shared(
        &self,
        me: NodeId,
        carrier: Arc<dyn Carrier>,
        nodes: Box<dyn Fn() -> Vec<NodeId> + Send + Sync>,
    ) {
        let _ = self.others.set(Others { me, carrier, nodes });
    }

    /// Nodes of the cluster with this secret are let in as clients, to administer. Once, before any
    /// client is served.
    pub fn let_nodes_in(&self, secret: &[u8]) {
        let token = Token::of_nodes(secret, None);
        let all = TokenRecord::new(token.id, "nodes of the cluster", token.verifier(), 0);
        let record = TokenRecord { admin: true, ..all };
        let _ = self.of_nodes.set(record);
    }

    /// All records, by number.
    pub fn all(&self) -> Vec<TokenRecord> {
        self.state.lock().records.values().cloned().collect()
    }

    /// What is on record of one.
    pub fn record(&self, id: TokenId) -> Option<TokenRecord> {
        if let Some(record) = self.of_nodes.get().filter(|record| record.id == id) {
            return Some(record.clone());
        }
        self.state.lock().records.get(&id).cloned()
    }

    /// Puts changes of some tokens on record and sends them to the other nodes; returns when it is
    /// durable here.
    ///
    /// # Errors
    /// `ENOSPC` if there would be too many; `EPERM` for that of nodes; `EINVAL` for what is no
    /// record; the engine's: what is on record did not change.
    pub fn learn(&self, records: Vec<TokenRecord>, now: Nanos) -> FsResult<()> {
        if self.take_over(records, now)? {
            self.announce(None);
        }
        Ok(())
    }

    /// Forgets tokens that are of no use any more, here and at the other nodes; how many that were.
    /// Only once all nodes have the same: one that missed that a token was revoked would bring it
    /// back, as good as new. A node that still sends such a record is told again to forget it; one
    /// that was started after the others forgot it brings the record back, revoked.
    ///
    /// # Errors
    /// `EAGAIN` until each node has announced the same hash as this one; the engine's.
    pub fn prune(&self, now: Nanos) -> FsResult<usize> {
        let over: Vec<TokenId> = {
            let state = self.state.lock();
            let (_, missing) = self.confirmed_in(&state);
            if !missing.is_empty() {
                let why = format!(
                    "it is not known that nodes {missing:?} have heard of all that was revoked: \
                     when they serve, or have been removed, \
                     tokens can be forgotten"
                );
                return Err(FsError::because(libc::EAGAIN, why));
            }
            let over = state.records.values().filter(|record| record.ended(now).is_some());
            over.map(|record| record.id).collect()
        };
        self.forget(&over, now)?;
        self.send_all(&TokensMessage::Prune(over.clone()));
        Ok(over.len())
    }

    fn forget(&self, ids: &[TokenId], now: Nanos) -> FsResult<()> {
        let mut state = self.state.lock();
        let is_over =
            |id: &TokenId| state.records.get(id).is_some_and(|record| record.ended(now).is_some());
        let over: Vec<TokenId> = ids.iter().copied().filter(is_over).collect();
        if over.is_empty() {
            return Ok(());
        }
        tokens::write(&*self.engine, &[], &over)?;
        over.iter().for_each(|id| drop(state.records.remove(id)));
        if state.forgotten.len() + over.len() > TOKENS_MAX {
            state.forgotten.clear();
        }
        state.forgotten.extend(over);
        state.digest = digest(&state.records);
        Ok(())
    }

    /// Takes the records that this node has forgotten out of another node's; their numbers.
    fn take_forgotten(&self, records: &mut Vec<TokenRecord>) -> Vec<TokenId> {
        let state = self.state.lock();
        let is_forgotten = |record: &mut TokenRecord| state.forgotten.contains(&record.id);
        records.extract_if(.., is_forgotten).map(|record| record.id).collect()
    }

    /// Takes over what others know. True if that was news.
    fn take_over(&self, records: Vec<TokenRecord>, now: Nanos) -> FsResult<bool> {
        let mut state = self.state.lock();
        let mut news = Vec::new();
        if records.iter().any(|record| record.id == OF_NODES) {
            // Nodes have it by their secret: a record could only be another token's.
            return Err(FsError::new(
                libc::EPERM,
                "the token of nodes is neither made nor revoked",
            ));
        }
        for record in records {
            match state.records.get(&record.id) {
                None => news.push(record),
                Some(have) => {
                    let mut have = have.clone();
                    if have.merge(&record) {
                        news.push(have);
                    }
                }
            }
        }
        if news.is_empty() {
            return Ok(false);
        }
        let more = news.iter().filter(|record| !state.records.contains_key(&record.id)).count();
        if state.records.len() + more > TOKENS_MAX {
            let why = "the volume has 4096 tokens: `kestrel token prune` forgets those that are of \
                       no use any more";
            return Err(FsError::new(libc::ENOSPC, why));
        }
        tokens::write(&*self.engine, &news, &[])?;
        for record in news {
            if let Some(grant) = state.grants.get(&record.id).and_then(Weak::upgrade) {
                grant.learn(&record, now);
            }
            state.records.insert(record.id, record);
        }
        state.digest = digest(&state.records);
        Ok(true)
    }

    /// What a token allows. The same for all of its sessions.
    ///
    /// # Errors
    /// `EACCES` if there is no such token, or it has ended; `EAGAIN` while this node may not know
    /// that.
    pub fn grant(&self, id: TokenId, now: Nanos) -> FsResult<Arc<Grant>> {
        if let Some(record) = self.of_nodes.get().filter(|record| record.id == id) {
            return Ok(Arc::new(Grant::new(record.clone())));
        }
        let mut state = self.state.lock();
        if !self.has_agreed(&mut state) {
            let why =
                "this node has not heard from the others yet which tokens there are: connect again";
            return Err(FsError::new(libc::EAGAIN, why));
        }
        let Some(record) = state.records.get(&id).cloned() else {
            let why = format!(
                "there is no token {id}: it was made for another volume, or revoked long ago"
            );
            return Err(FsError::because(libc::EACCES, why));
        };
        if let Some(grant) = state.grants.get(&id).and_then(Weak::upgrade) {
            grant.refresh(now);
            return grant.ended().map_or(Ok(grant.clone()), |ended| Err(grant.why_ended(ended)));
        }
        let grant = Arc::new(Grant::new(record.clone()));
        if let Some(ended) = record.ended(now) {
            return Err(grant.why_ended(ended));
        }
        state.grants.retain(|_, grant| grant.strong_count() > 0);
        state.grants.insert(id, Arc::downgrade(&grant));
        Ok(grant)
    }

    /// Whether this node has had the same as most nodes since it was started.
    fn has_agreed(&self, state: &mut State) -> bool {
        let Some(others) = self.others.get().filter(|_| !state.agreed) else { return true };
        let nodes = (others.nodes)();
        let same = nodes.iter().filter(|node| {
            **node == others.me
                || state.digests.get(node).is_some_and(|digests| *digests == state.digest)
        });
        state.agreed = 2 * same.count() > nodes.len();
        state.agreed
    }

    /// Time has passed, by the wall and by the server's clock: tokens end, and this node's hash is
    /// announced.
    pub fn tick(&self, wall: Nanos, now: Nanos) {
        let due = {
            let mut state = self.state.lock();
            for grant in state.grants.values().filter_map(Weak::upgrade) {
                grant.refresh(wall);
            }
            let due = self.others.get().is_some()
                && now.saturating_sub(state.announced) >= ANNOUNCE_EVERY;
            if due {
                state.announced = now;
            }
            due
        };
        if due {
            self.announce(None);
        }
    }

    /// Takes another node's message about tokens.
    pub fn receive(&self, from: NodeId, message: TokensMessage, wall: Nanos) {
        match message {
            TokensMessage::Digest(theirs) => {
                let mut state = self.state.lock();
                state.digests.insert(from, theirs);
                if theirs != state.digest {
                    let parts = parts(state.records.values().cloned());
                    drop(state);
                    parts
                        .into_iter()
                        .for_each(|part| self.send(from, TokensMessage::Records(part)));
                }
            }
            TokensMessage::Records(mut records) => {
                let forgotten = self.take_forgotten(&mut records);
                if !forgotten.is_empty() {
                    self.send(from, TokensMessage::Prune(forgotten));
                }
                match self.take_over(records, wall) {
                    // It learns at once that this node has them, too.
                    Ok(_) => self.announce(Some(from)),
                    Err(why) => log::error!("tokens of node {from}: {why}"),
                }
            }
            TokensMessage::Prune(ids) => {
                if let Err(why) = self.forget(&ids, wall) {
                    log::error!("tokens that node {from} has forgotten: {why}");
                }
                self.announce(Some(from));
            }
        }
    }

    /// Which nodes have announced the same as this one, and which have not.
    pub fn confirmed(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        self.confirmed_in(&self.state.lock())
    }

    fn confirmed_in(&self, state: &State) -> (Vec<NodeId>, Vec<NodeId>) {
        let Some(others) = self.others.get() else { return Default::default() };
        let knows =
            |node: &NodeId| *node == others.me || state.digests.get(node) == Some(&state.digest);
        (others.nodes)().into_iter().partition(knows)
    }

    /// Announces this node's hash to one other node, or to all of them.
    fn announce(&self, node: Option<NodeId>) {
        let digest = TokensMessage::Digest(self.state.lock().digest);
        match node {
            Some(node) => self.send(node, digest),
            None => self.send_all(&digest),
        }
    }

    fn send_all(&self, message: &TokensMessage) {
        let Some(others) = self.others.get() else { return };
        for node in (others.nodes)().into_iter().filter(|node| *node != others.me) {
            self.send(node, message.clone());
        }
    }

    /// Sends a message. What is lost is sent again.
    fn send(&self, to: NodeId, message: TokensMessage) {
        let Some(Others { me, carrier, .. }) = self.others.get() else { return };
        let envelope = Envelope { from: *me, stamp: 0, message: Message::Tokens(message) };
        if let Err(unsent) = carrier.carry(to, envelope) {
            log::error!("tokens for node {to}: {}", unsent.why);
        }
        carrier.flush();
    }
}

fn digest(records: &BTreeMap<TokenId, TokenRecord>) -> Digest {
    let mut bytes = Vec::new();
    for record in records.values() {
        let record = record.encode();
        bytes.extend_from_slice(&(record.len() as u64).to_be_bytes());
        bytes.extend_from_slice(&record);
    }
    hash(&bytes)
}

/// Records in parts that fit messages.
fn parts(records: impl Iterator<Item = TokenRecord>) -> Vec<Vec<TokenRecord>> {
    let (mut parts, mut bytes) = (vec![Vec::new()], 0);
    for record in records {
        bytes += record.encode().len();
        if bytes > RECORDS_BYTES {
            bytes = 0;
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(record);
        }
    }
    parts
}
