//! The metadata nodes of a volume: a connection to each, made when the volume is mounted, or when a
//! newer table names it, and kept. A volume can be mounted without a node that nobody reaches, if
//! most of the nodes answer: the connection is then one that is being made, and calls to that node
//! wait for it as in any outage.
//!
//! Whichever node answers first tells the placement map, which names the others. Each must be the
//! node that the table says, of the same volume; now, and whenever it is connected to again
//! (`NodeReclaimable::welcomed`). To each the client is another client, with a number of its own:
//! nodes write down what became of a client's numbered calls, and no two may take each other's for
//! theirs.
//!
//! A newer table is put in the place of the one before ([`NodeConnections::adopt`]) while requests
//! are under way: each goes by one, and a node that was asked by an old one and does not lead the
//! request says so ([`super::redirects`]). A node that leaves the table is first one that is
//! leaving, for as long as clients move out of it ([`super::leaving`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kestrel_rpc::client::{ConnectError, Remote, RemoteConfig, RemoteStats};
use kestrel_rpc::session::SessionId;
use kestrel_rpc::tls::ClientTls;
use kestrel_rpc::token::Token;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use kestrel_types::wire::{SessionState, Welcome};
use parking_lot::{Mutex, RwLock};

use super::contact::{Waiting, contact, tell_absence};
use super::node_query::{NodeAddress, ask_addresses};
use super::reclaimable::{NodeReclaimable, Reclaimable};
use super::{Introduction, RemoteUrl, access};
use crate::error::VolumeError;
use crate::handover::SessionNote;
use crate::storage::Offer;
use crate::url::is_anywhere;

/// The connection to one node.
pub struct NodeLink {
    /// Its number; 0 in a volume of one node.
    pub node: NodeId,
    /// Which of its starts was heard of last, 0 for the one of the table, and where that is
    /// reached.
    at: Mutex<(u64, String)>,
    /// The connection.
    pub remote: Arc<Remote>,
    node_reclaimable: Arc<NodeReclaimable>,
    /// The session has been ended: the node leaves, or has left.
    left: AtomicBool,
}

impl NodeLink {
    fn new(
        member: &Member,
        (remote, node_reclaimable): (Arc<Remote>, Arc<NodeReclaimable>),
    ) -> Self {
        let at =
            Mutex::new((0, node_reclaimable.address().unwrap_or_else(|| member.address.clone())));
        Self { node: member.id, at, remote, node_reclaimable, left: AtomicBool::new(false) }
    }

    /// Where it is reached, for people.
    pub fn address(&self) -> String {
        match self.node {
            // The URL may name several places.
            0 => self.remote.address(),
            _ => self.at.lock().1.clone(),
        }
    }

    /// Somebody has said that this start of the node is there. If that is news, the connection is
    /// made there from now on, at once.
    pub(super) fn is_at(&self, epoch: u64, address: &str) {
        {
            let mut at = self.at.lock();
            if at.0 >= epoch {
                return;
            }
            if at.1 != address {
                log::info!(
                    "{}: it is at {address} now, as other nodes say",
                    self.node_reclaimable.name()
                );
            }
            *at = (epoch, address.to_string());
        }
        self.node_reclaimable.is_at(address);
        self.remote.redirect(address);
    }

    /// Whether the session there has been ended, for good.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Ends the session there, for good. Waits for the farewell.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Release);
        self.remote.close();
    }
}

/// The first connection, and what came over it.
pub(super) struct FirstConnection {
    url: RemoteUrl,
    how: Introduction,
    shows: Shows,
    reclaimable: Arc<Reclaimable>,
    node_reclaimable: Arc<NodeReclaimable>,
    pub(super) remote: Arc<Remote>,
    /// What the node told of the volume.
    pub offer: Offer,
    /// The placement map, if there are several nodes.
    pub placement: Option<PlacementMap>,
    /// The other nodes are only to be asked something: one that is not there is told of, and not
    /// waited for.
    are_asked: bool,
    /// Sessions of another process, with which this one goes on.
    sessions: Vec<SessionNote>,
    /// Nodes that nobody reached, and why: their connections are being made.
    absent: Mutex<Vec<(NodeId, String)>>,
}

/// A node of the table, and the connection to it or why there is none.
pub(super) type Connected = (Member, Result<(Arc<Remote>, Arc<NodeReclaimable>), VolumeError>);

/// All nodes of a volume.
pub(super) struct NodeConnections {
    known: RwLock<Arc<NodeSet>>,
    /// Earlier tables that somebody may still go by.
    past: Mutex<Vec<Weak<NodeSet>>>,
    url: RemoteUrl,
    how: Introduction,
    shows: Shows,
    reclaimable: Arc<Reclaimable>,
}

/// The nodes, by one table.
#[derive(Clone)]
pub(super) struct NodeSet {
    /// The placement map; none in a volume of one node.
    pub placement: Option<Arc<PlacementMap>>,
    /// Connections. Never none; in the order of the table's members.
    pub links: Vec<Arc<NodeLink>>,
    /// Which of them was there first; another one if that leaves.
    pub first: usize,
}

impl FirstConnection {
    /// Connects to whichever address of `url` answers.
    ///
    /// # Errors
    /// If none does, none serves this volume, or what it tells cannot be understood.
    pub fn connect(
        url: &RemoteUrl,
        how: &Introduction,
        reclaimable: &Arc<Reclaimable>,
        sessions: &[SessionNote],
    ) -> Result<Self, VolumeError> {
        let server = url.to_string();
        let node_reclaimable = Arc::new(NodeReclaimable::first(reclaimable.clone()));
        let token = access::token()?;
        let shows = Shows { tls: url.client_tls(token.as_deref())?, token };
        // Of several nodes it is not known yet which one answers.
        let session = sessions.iter().find(|note| note.node == 0).map(session_of).transpose()?;
        let config = RemoteConfig { session, ..config(url, how, &shows, url.addresses.clone()) };
        let mut waiting = Waiting::begin(contact());
        let mut meanwhile = |remote: &Remote| waiting.goes_on(&server, remote);
        let (remote, welcome) =
            Remote::connect_asking(config, node_reclaimable.clone(), contact(), &mut meanwhile)
                .map_err(|why| match why.is_unknown {
                    true => VolumeError::NotServed(format!("{server}: {why}")),
                    false => VolumeError::Io(format!("{server}: {why}")),
                })?;
        goes_on(session.as_ref(), &welcome, &server).inspect_err(|_| remote.close())?;
        let offer = Offer::from_json(&welcome.descriptor, &server);
        let read = offer.and_then(|offer| Ok((offer.placement(&server)?, offer)));
        let (placement, offer) = read.inspect_err(|_| remote.close())?;
        Ok(Self {
            url: url.clone(),
            how: how.clone(),
            shows,
            reclaimable: reclaimable.clone(),
            node_reclaimable,
            remote,
            offer,
            placement,
            are_asked: false,
            sessions: sessions.to_vec(),
            absent: Mutex::default(),
        })
    }

    /// The same for a question: other nodes are not waited for.
    pub fn asked_only(self) -> Self {
        Self { are_asked: true, ..self }
    }

    /// Connects to all the other nodes at the same time. Answers the table, the nodes in its order,
    /// and which of them is this one.
    pub fn others(&self) -> (Option<PlacementMap>, Vec<Connected>, usize) {
        self.those(&|_, _| true)
    }

    /// As [`FirstConnection::others`], of nodes that are wanted only; the connection to this one is
    /// given up if it is not.
    pub fn those(
        &self,
        wanted: &dyn Fn(&PlacementMap, NodeId) -> bool,
    ) -> (Option<PlacementMap>, Vec<Connected>, usize) {
        let Some(placement) = self.placement.clone() else {
            let member = Member { id: 0, address: self.remote.address() };
            return (
                None,
                vec![(member, Ok((self.remote.clone(), self.node_reclaimable.clone())))],
                0,
            );
        };
        self.reclaimable.is_placed_by(Arc::new(placement.clone()));
        let members: Vec<Member> = placement
            .map
            .members()
            .iter()
            .filter(|member| wanted(&placement, member.id))
            .cloned()
            .collect();
        let first = members.iter().position(|member| member.id == self.node_reclaimable.node());
        // Another process has a session there already.
        let is_passing = !self.sessions.is_empty();
        match first.filter(|_| !is_passing).map(|first| &members[first].address) {
            Some(address) if !is_anywhere(address) => self.remote.settle(address),
            Some(_) => {}
            // Nothing is wanted of it, it has left the cluster and only knows the members, or there
            // is another session.
            None => self.remote.close(),
        }
        let connected = std::thread::scope(|scope| {
            let connecting: Vec<_> = members
                .iter()
                .enumerate()
                .map(|(at, member)| {
                    let is_new = is_passing || first != Some(at);
                    is_new.then(|| scope.spawn(|| self.connect_to(member)))
                })
                .collect();
            connecting
                .into_iter()
                .map(|thread| match thread {
                    None => Ok((self.remote.clone(), self.node_reclaimable.clone())),
                    Some(thread) => thread.join().unwrap_or_else(|_| {
                        Err(VolumeError::Io(format!(
                            "{}: the thread that connects has failed",
                            self.url
                        )))
                    }),
                })
                .collect::<Vec<_>>()
        });
        (Some(placement.clone()), members.into_iter().zip(connected).collect(), first.unwrap_or(0))
    }

    fn connect_to(
        &self,
        member: &Member,
    ) -> Result<(Arc<Remote>, Arc<NodeReclaimable>), VolumeError> {
        let Member { id, address } = member;
        let failed =
            |why: String| VolumeError::Io(format!("{}: node {id} at {address}: {why}", self.url));
        if is_anywhere(address) {
            return Err(failed(format!(
                "one can listen there, but not connect to it; {FORM_ANEW}"
            )));
        }
        let node_reclaimable = Arc::new(NodeReclaimable::of(self.reclaimable.clone(), member));
        let session = self.sessions.iter().find(|note| note.node == *id);
        let session = session.map(session_of).transpose()?;
        let config = RemoteConfig {
            session,
            ..config(&self.url, &self.how, &self.shows, vec![address.clone()])
        };
        let (mut waiting, named) =
            (Waiting::begin(contact()), format!("node {id} of {}", self.url));
        let mut newest = 0;
        let mut ask = |remote: &Remote| {
            if !self.are_asked {
                waiting.goes_on(&named, remote);
            }
            let told = ask_addresses(&self.remote, &[*id]).unwrap_or_default();
            let told = told.into_iter().find(|told| told.node == *id && told.epoch > newest);
            if let Some(NodeAddress { epoch, address, .. }) = told {
                newest = epoch;
                node_reclaimable.is_at(&address);
                remote.redirect(&address);
            }
        };
        let (holder, wait) = (node_reclaimable.clone(), contact());
        match Remote::connect_asking(config.clone(), holder.clone(), wait, &mut ask) {
            Ok((remote, welcome)) => match goes_on(session.as_ref(), &welcome, &named) {
                Ok(()) => Ok((remote, node_reclaimable)),
                Err(why) => {
                    remote.leave(Duration::ZERO);
                    Err(why)
                }
            },
            Err(why) if self.are_asked => Err(VolumeError::Io(format!("node {id}: {}", why.why))),
            Err(why) if why.is_absent => {
                let address = holder.address().unwrap_or_else(|| address.clone());
                let begun =
                    Remote::begin(RemoteConfig { addresses: vec![address], ..config }, holder);
                self.absent.lock().push((*id, why.why));
                begun
                    .map(|remote| (remote, node_reclaimable))
                    .map_err(|why| failed(why.to_string()))
            }
            Err(why) => Err(failed(format!("{why}; {FORM_ANEW}"))),
        }
    }

    /// The connection.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Lets go of it. A session of another process stays, for it or the next one.
    pub fn close(&self) {
        match self.sessions.is_empty() {
            true => self.remote.close(),
            false => drop(self.remote.leave(Duration::ZERO)),
        }
    }
}

/// What a mount without a node means.
const WITHOUT: &str = "calls that need this node wait for it";

/// How many nodes a mount needs.
const MOST: &str =
    "more than half of the nodes are needed: start it, or wait for it with --wait TIME";

/// What to do about an address in the table.
const FORM_ANEW: &str = "`kestrel cluster init` takes with --node the addresses under which clients and other nodes reach the nodes";

impl NodeConnections {
    /// Connects to all nodes. Those that nobody reaches by then are told of and come later.
    ///
    /// # Errors
    /// If one of them is not what the table says, or serves no clients, or if nobody reaches half
    /// of them or more; all that is wrong is told.
    pub fn connect(first: FirstConnection) -> Result<Self, VolumeError> {
        // A node that is idle has nothing to say to clients, and must not be there.
        let (placement, connected, at) = first.those(&|placement, node| !placement.is_idle(node));
        let (mut links, mut wrong) = (Vec::with_capacity(connected.len()), Vec::new());
        for (member, connection) in connected {
            match connection {
                Ok(connection) => {
                    links.push(Arc::new(NodeLink::new(&member, connection)));
                }
                Err(why) => wrong.push(why.to_string()),
            }
        }
        let mut absent = std::mem::take(&mut *first.absent.lock());
        absent.sort_unstable();
        if wrong.is_empty() && 2 * absent.len() < links.len() {
            for (node, why) in absent {
                tell_absence(&format!(
                    "{}: going on without node {node}: {why}; {WITHOUT}",
                    first.url
                ));
            }
            let known = Arc::new(NodeSet::new(placement.map(Arc::new), links, at));
            let FirstConnection { url, how, shows, reclaimable, .. } = first;
            return Ok(Self {
                known: RwLock::new(known),
                past: Mutex::default(),
                url,
                how,
                shows,
                reclaimable,
            });
        }
        let resumes = !first.sessions.is_empty();
        links.iter().for_each(|link| match resumes {
            true => drop(link.remote.leave(Duration::ZERO)),
            false => link.remote.close(),
        });
        let missing =
            |(node, why)| format!("{}: node {node}: {why}; {MOST}; {FORM_ANEW}", first.url);
        wrong.extend(absent.into_iter().map(missing));
        Err(VolumeError::Io(wrong.join("\n")))
    }

    /// The nodes at present. A request is routed by one answer throughout.
    pub fn known(&self) -> Arc<NodeSet> {
        self.known.read().clone()
    }

    /// How long a call waits.
    pub fn deadline(&self) -> Duration {
        self.how.deadline
    }

    /// Goes by this table from now on, if it is newer than the present one. Nodes that it names and
    /// that are new are connected to; calls to them wait until they answer. Answers the connections
    /// to nodes that it does not name any more.
    ///
    /// Called by one thread.
    ///
    /// # Errors
    /// If a thread does not start: the table stays as it was.
    pub fn adopt(&self, placement: PlacementMap) -> Result<Vec<Arc<NodeLink>>, ConnectError> {
        let known = self.known();
        if known.version() >= placement.version {
            return Ok(Vec::new());
        }
        let placement = Arc::new(placement);
        let mut links = Vec::with_capacity(placement.map.members().len());
        for member in placement.serving() {
            let there = known.links.iter().find(|link| link.node == member.id);
            // One that was left stays after all if it is not leaving any more.
            let there = there.filter(|link| !link.has_left() || placement.is_leaving(link.node));
            links.push(match there {
                Some(link) => link.clone(),
                None => Arc::new(self.begin(member)?),
            });
        }
        let is_named = |link: &Arc<NodeLink>| placement.map.member(link.node).is_some();
        let gone = known.links.iter().filter(|link| !is_named(link)).cloned().collect();
        let before = known.links[known.first].node;
        let first = links.iter().position(|link| link.node == before).unwrap_or(0);
        log::info!("{}: table {} of the metadata nodes", self.url, placement.version);
        self.reclaimable.is_placed_by(placement.clone());
        *self.known.write() = Arc::new(NodeSet::new(Some(placement), links, first));
        let mut past = self.past.lock();
        past.push(Arc::downgrade(&known));
        past.retain(|known| known.strong_count() > 0);
        Ok(gone)
    }

    /// Whether somebody is about to send something by an earlier table than the present one.
    pub fn is_routed_by_an_older_table(&self) -> bool {
        let mut past = self.past.lock();
        past.retain(|known| known.strong_count() > 0);
        !past.is_empty()
    }

    fn begin(&self, member: &Member) -> Result<NodeLink, ConnectError> {
        let Member { id, address } = member;
        log::info!("{}: node {id} at {address} is new; connecting to it", self.url);
        let node_reclaimable = Arc::new(NodeReclaimable::of(self.reclaimable.clone(), member));
        let remote = Remote::begin(
            config(&self.url, &self.how, &self.shows, vec![address.clone()]),
            node_reclaimable.clone(),
        )?;
        Ok(NodeLink::new(member, (remote, node_reclaimable)))
    }

    /// Ends all sessions, at once.
    pub fn close(&self) {
        match &*self.known().links {
            [one] => one.remote.close(),
            several => std::thread::scope(|scope| {
                for link in several {
                    scope.spawn(|| link.remote.close());
                }
            }),
        }
    }
}

impl NodeSet {
    fn new(placement: Option<Arc<PlacementMap>>, links: Vec<Arc<NodeLink>>, first: usize) -> Self {
        let mut known = Self { placement, links, first };
        if known.is_leaving(known.links[first].node) {
            let stays = |link: &Arc<NodeLink>| !known.is_leaving(link.node);
            known.first = known.links.iter().position(stays).unwrap_or(first);
        }
        known
    }

    /// Version of the table.
    pub fn version(&self) -> u64 {
        self.placement.as_ref().map_or(0, |placement| placement.version)
    }

    /// The index of a node, which is one of the table's.
    pub fn index_of(&self, node: NodeId) -> usize {
        self.links.binary_search_by_key(&node, |link| link.node).unwrap_or(self.first)
    }

    /// The index of a node that answers and stays: the first one if it does, or if none does.
    pub fn any(&self) -> usize {
        if self.links.len() == 1 || self.links[self.first].remote.is_up() {
            return self.first;
        }
        let answers = |link: &Arc<NodeLink>| !self.is_leaving(link.node) && link.remote.is_up();
        self.links.iter().position(answers).unwrap_or(self.first)
    }

    fn is_leaving(&self, node: NodeId) -> bool {
        self.placement.as_ref().is_some_and(|placement| placement.is_leaving(node))
    }

    /// Counters of all connections together.
    pub fn stats(&self) -> RemoteStats {
        self.links.iter().filter(|link| !link.has_left()).map(|link| link.remote.stats()).sum()
    }
}

/// The session of another process, with which this one goes on.
fn session_of(note: &SessionNote) -> Result<SessionId, VolumeError> {
    let client = note.client().map_err(|why| VolumeError::Invalid(why.to_string()))?;
    Ok(SessionId { client, incarnation: note.incarnation, calls: note.calls })
}

/// Whether a session of another process is there, if there is to be one.
fn goes_on(
    session: Option<&SessionId>,
    welcome: &Welcome,
    server: &str,
) -> Result<(), VolumeError> {
    if session.is_none() || welcome.session == SessionState::Known {
        return Ok(());
    }
    Err(VolumeError::Io(format!(
        "{server}: the session of the mount that is taken over has ended there: the server has \
         restarted, or it has not heard of this mount for longer than its lease; mount it anew"
    )))
}

/// How this client and the nodes know each other.
#[derive(Clone)]
struct Shows {
    tls: ClientTls,
    token: Option<Arc<Token>>,
}

fn config(
    url: &RemoteUrl,
    how: &Introduction,
    shows: &Shows,
    addresses: Vec<String>,
) -> RemoteConfig {
    let (volume, who, Shows { tls, token }) = (url.name.clone(), how.who.clone(), shows.clone());
    let (deadline, session) = (how.deadline, None);
    RemoteConfig { addresses, volume, who, deadline, tls, token, session }
}
