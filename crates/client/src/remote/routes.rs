//! Which of several nodes is asked.
//!
//! | what the request is about | the node that is asked |
//! | --- | --- |
//! | an entry, an inode, what is found by a number | its leader by the placement map ([`PlacementMap::leader`]) |
//! | a file that is open ([`Subject::Held`]) | a node that lets this client write it; one where it is open at all; else its home |
//! | an open that is given back | a node that counts one, those first that do not let it be written ([`super::opens`]) |
//! | object numbers, figures of the volume, what is to be durable | the node that was there first, or another one if it does not answer |
//! | locks | the file's home |
//!
//! **A second try.** A file without a name is known at its home only. A node that was asked for it
//! where its last name was says `ESTALE`, and so does a node that is asked for what does not exist
//! any more. The request is asked again then, once, by number alone at the file's home. (It has
//! failed, so it has changed nothing.)
//!
//! **Order.** Over one connection requests are executed in the order in which they were asked, as
//! far as they touch the same keys. Over several they are not: what was asked of one node first may
//! be executed after what was asked of another one later. Requests about the same file may have
//! different leaders when it has several names, was renamed, or is open at a node that does not own
//! its entry. The same request, sent by one thread twice, goes to the same node, unless opens or
//! names change in between.
//!
//! Nothing in this crate relies on more. A caller that needs an earlier request to be done waits
//! for its answer: a flush for its commit before it answers or begins the next, a close for the
//! flush before it releases, a truncation for the flush, a lock's holder for the lock before it
//! looks at the content, the unlock for the flush, a rename for its answer before the file is
//! looked for elsewhere. Calls of an application come one after the other because each waits for
//! its answer, and those of two threads have no order. What is sent without a caller that waits for
//! the answer are releases, and the order of a release and anything else does not matter: the opens
//! of one client are interchangeable, and there is always one left for what uses a handle, because
//! a handle is released after everything that came through it has been answered. A background
//! compaction may lose its file under way; a node serves it all the same (it changes no content).
//!
//! [`PlacementMap::leader`]: kestrel_types::placement::PlacementMap::leader

use kestrel_types::ids::InodeId;
use kestrel_types::name::InodeRef;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Op, Request, SetAttr, Subject};

use super::nodes::NodeSet;
use super::opens::{OpenRow, Opens};

/// The same request by number, and the node to ask if the first answers `ESTALE`.
pub(super) struct SecondTry {
    /// The file.
    pub ino: InodeId,
    /// The request.
    pub request: Request,
}

impl NodeSet {
    /// The index of the node that is asked, not for opens that are given back; `held` is where what
    /// it is about is open, if that matters.
    pub fn leader(&self, op: &Op, held: Option<NodeId>) -> usize {
        let Some(placement) = &self.placement else { return self.first };
        if let Some(member) = placement.leader(op) {
            return self.index_of(member.id);
        }
        match op.subject() {
            Subject::Held(inode) => {
                held.map_or_else(|| self.home_of(inode.ino), |node| self.index_of(node))
            }
            _ => self.any(),
        }
    }

    /// Which of the nodes that have a file open is asked what relies on that. None if there is only
    /// one node.
    pub fn begin_use(&self, op: &Op, opens: &Opens) -> Option<OpenRow> {
        let placement = self.placement.as_ref()?;
        match op.subject() {
            Subject::Held(inode) => opens.begin_use(inode.ino, &placement.leaving),
            _ => None,
        }
    }

    /// The index of the node that keeps what is found by this number, the file's locks among it.
    pub fn home_of(&self, ino: InodeId) -> usize {
        self.placement
            .as_ref()
            .map_or(self.first, |placement| self.index_of(placement.home_of(ino).id))
    }

    /// What to do if the node `at` says that it knows no such file.
    pub fn second_try(&self, request: &Request, at: usize) -> Option<SecondTry> {
        self.placement.as_ref()?;
        let Subject::Inode(inode) = request.op.subject() else { return None };
        let home = self.home_of(inode.ino);
        if home == at {
            return None;
        }
        let op = by_number(&request.op)?;
        Some(SecondTry { ino: inode.ino, request: Request { creds: request.creds.clone(), op } })
    }
}

/// The same operation on an inode, without the place where it was last seen.
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
        | Op::RemoveXattr(inode, _) => *inode = InodeRef::by_id(inode.ino),
        _ => return None,
    }
    Some(op)
}
