//! The calls of a client that have no answer yet.

use kestrel_types::clock::Nanos;
use kestrel_types::request::Op;
use kestrel_types::wire::{Body, Call, LockRequest};

use super::{CALLS_MAX, CallDeadline};

/// Bits of an id that are the place in the table; the rest counts how often the place was used.
const POSITION_BITS: u32 = POSITIONS_MAX.ilog2();

/// Places in the table: the link's own calls need some when askers have all of theirs. A power of
/// two.
const POSITIONS_MAX: usize = 2 * CALLS_MAX;

/// A call of this client. Ids are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// The waiter for the answer.
#[derive(Debug)]
pub(super) enum CallOwner<D> {
    /// A requester.
    Requester(D),
    /// No requester any more, but the outcome matters to the session.
    GivenUp,
    /// The link: part of a reclaim.
    Reclaim,
}

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It waits for its turn.
    Never,
    /// On an earlier connection: it has to be sent again.
    Before,
    /// On the present connection.
    Now,
}

/// A call without an answer.
#[derive(Debug)]
pub(super) struct Pending<D> {
    pub call: Call,
    pub owner: CallOwner<D>,
    pub deadline: CallDeadline,
    /// Counts calls in the order they were submitted, which is the order of sending.
    pub order: u64,
    pub sent: Sent,
    pub cancelled: bool,
}

impl<D> Pending<D> {
    /// When it ends at the latest, without a session since `silent_since`.
    pub fn limit(&self, silent_since: Option<Nanos>) -> Nanos {
        match (&self.owner, self.deadline) {
            (
                CallOwner::Requester(_),
                CallDeadline::Until(time) | CallDeadline::Connection(time),
            ) => time,
            (CallOwner::Requester(_), CallDeadline::Outage(longest)) => {
                silent_since.map_or(Nanos::MAX, |since| since.saturating_add(longest))
            }
            _ => Nanos::MAX,
        }
    }

    /// It may wait at the node for other clients, without a limit.
    pub fn waits(&self) -> bool {
        matches!(self.call.body, Body::Lock(LockRequest::Set { wait: true, .. }))
    }

    /// Its outcome matters to the session even if no requester waits for it any more: it adds an
    /// open or a lock, which then has to be taken back, or takes away a lock.
    pub fn is_pursued(&self) -> bool {
        match &self.call.body {
            Body::Op(request) => {
                matches!(
                    request.op,
                    Op::Create { .. } | Op::Open(..) | Op::OpenAt(..) | Op::TmpFile { .. }
                )
            }
            Body::Lock(request) => !matches!(request, LockRequest::Get(_)),
            Body::Reclaim(_) | Body::Admin(_) => false,
        }
    }
}

/// Calls by id.
#[derive(Debug)]
pub(super) struct Calls<D> {
    positions: Vec<CallPosition<D>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct CallPosition<D> {
    uses: u64,
    pending: Option<Pending<D>>,
}

impl<D> Calls<D> {
    pub fn new() -> Self {
        Self { positions: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.positions.len() - self.free.len()
    }

    /// Keeps what `make` makes of the new id. The caller sees to it that there are at most
    /// [`POSITIONS_MAX`].
    pub fn insert(&mut self, make: impl FnOnce(u64) -> Pending<D>) -> CallId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.positions.push(CallPosition { uses: 0, pending: None });
            (self.positions.len() - 1) as u32
        });
        let position = &mut self.positions[index as usize];
        position.uses += 1;
        let id = position.uses << POSITION_BITS | u64::from(index);
        position.pending = Some(make(id));
        CallId(id)
    }

    pub fn get_mut(&mut self, id: CallId) -> Option<&mut Pending<D>> {
        let position = self.positions.get_mut(id.0 as usize & (POSITIONS_MAX - 1))?;
        position.pending.as_mut().filter(|pending| pending.call.id == id.0)
    }

    pub fn remove(&mut self, id: CallId) -> Option<Pending<D>> {
        let index = id.0 as usize & (POSITIONS_MAX - 1);
        let position = self.positions.get_mut(index)?;
        let pending = position.pending.take_if(|pending| pending.call.id == id.0)?;
        self.free.push(index as u32);
        Some(pending)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pending<D>> {
        self.positions.iter().filter_map(|position| position.pending.as_ref())
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending<D>> {
        self.positions.iter_mut().filter_map(|position| position.pending.as_mut())
    }

    /// Ids of the calls that `wanted` picks, in the order they were submitted.
    pub fn ids(&self, mut wanted: impl FnMut(&Pending<D>) -> bool) -> Vec<CallId> {
        let mut found: Vec<_> = self
            .iter()
            .filter(|pending| wanted(pending))
            .map(|pending| (pending.order, pending.call.id))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| CallId(id)).collect()
    }
}
