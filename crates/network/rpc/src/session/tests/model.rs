//! A model of a node, as far as a session sees it: exactly-once execution, opens, and what restarts
//! and expiries take away.
//!
//! It panics where the link breaks the protocol.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kestrel_types::inode::{Inode, Kind};
use kestrel_types::request::{Answer, Op};
use kestrel_types::wire::{
    Answered, Body, Call, Hello, LockAnswer, LockRequest, Reclaimed, ReplyTo, SessionState,
    ToClient, ToServer, VERSION, Welcome,
};

use crate::session::WINDOW;

/// A node.
#[derive(Default)]
pub struct Model {
    /// How often each directory was made: what must be 1 at most.
    pub made: BTreeMap<Vec<u8>, u32>,
    /// Opens of the session by inode.
    pub opens: BTreeMap<u64, i64>,
    /// Durable answers by number.
    rows: BTreeMap<u64, Answered>,
    /// Answers of this start and session.
    answers: BTreeMap<u64, Answered>,
    /// What a Hello is answered; none before the first one.
    session: Option<SessionState>,
    incarnation: u64,
    /// Numbers of calls that were received.
    seen: BTreeSet<u64>,
    acked: u64,
    must_reclaim: bool,
    /// Opens in parts of a reclaim so far.
    reclaiming: BTreeMap<u64, i64>,
    /// Calls that wait for locks.
    waits: Vec<u64>,
    /// Everything was sent again that had no answer.
    retries_over: bool,
    /// There is a connection that sent Hello.
    greeted: bool,
}

impl Model {
    /// The session is lost at the node in this way.
    pub fn lose(&mut self, how: SessionState) {
        if self.session.is_none() {
            return;
        }
        self.opens.clear();
        self.answers.clear();
        self.waits.clear();
        self.reclaiming.clear();
        if how == SessionState::New {
            self.rows.clear();
        }
        // A session of which the node has no record cannot be lost in another way.
        if !(self.must_reclaim && self.session == Some(SessionState::New)) {
            self.session = Some(how);
        }
        self.must_reclaim = true;
    }

    /// Number of the newest connection.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.reclaiming.clear();
        self.greeted = false;
    }

    pub fn receive(&mut self, message: ToServer, replies: &mut VecDeque<ToClient>) {
        match message {
            ToServer::Hello(hello) => replies.push_back(self.hello(&hello)),
            ToServer::Call(call) => {
                let id = call.id;
                if let Some(answered) = self.call(call) {
                    replies.push_back(ToClient::Reply(ReplyTo { id, table: 1, answered }));
                }
            }
            ToServer::Ping { .. } => {
                assert!(!self.must_reclaim, "a ping before the reclaim");
                self.retries_over = true;
                replies.push_back(ToClient::Pong { table: 0 });
            }
            ToServer::Cancel { id } => {
                self.retries_over = true;
                if let Some(at) = self.waits.iter().position(|wait| *wait == id) {
                    self.waits.remove(at);
                    let error = kestrel_types::error::FsError::new(libc::EINTR, "cancelled");
                    let answered = Answered::Lock(Err(error));
                    replies.push_back(ToClient::Reply(ReplyTo { id, table: 1, answered }));
                }
            }
            ToServer::Bye => self.opens.clear(),
            ToServer::PeerHello(_)
            | ToServer::PeerProof(_)
            | ToServer::Peer(_)
            | ToServer::Proof(_) => {
                panic!("a client is no node")
            }
        }
    }

    fn hello(&mut self, hello: &Hello) -> ToClient {
        assert!(hello.incarnation > self.incarnation, "a connection with an old number");
        self.incarnation = hello.incarnation;
        self.retries_over = false;
        self.greeted = true;
        let session = *self.session.get_or_insert(SessionState::New);
        if !self.must_reclaim {
            self.session = Some(SessionState::Known);
        }
        // A client that was never welcomed has nothing to reclaim.
        if !hello.established {
            self.must_reclaim = false;
            self.session = Some(SessionState::Known);
        }
        ToClient::Welcome(Welcome {
            version: VERSION,
            node: 1,
            epoch: 1,
            descriptor: Box::default(),
            session: if hello.established || session == SessionState::Known {
                session
            } else {
                SessionState::New
            },
            lease_ms: 3000,
            table: 1,
            root: 1,
        })
    }

    fn call(&mut self, call: Call) -> Option<Answered> {
        self.acked = self.acked.max(call.acked);
        let acked = self.acked;
        self.answers.retain(|seq, _| *seq > acked);
        self.rows.retain(|seq, _| *seq > acked);
        if let Body::Reclaim(part) = &call.body {
            for open in &part.opens {
                self.reclaiming.insert(open.file.ino, i64::from(open.count));
            }
            if part.last {
                self.opens = std::mem::take(&mut self.reclaiming);
                self.opens.retain(|_, count| *count != 0);
                self.must_reclaim = false;
                self.session = Some(SessionState::Known);
            }
            return Some(Answered::Reclaim(Ok(Reclaimed::default())));
        }
        assert!(!self.must_reclaim, "a call before the reclaim");
        assert_eq!(call.seq != 0, call.body.is_numbered());
        if call.seq == 0 {
            return self.run(&call);
        }
        assert!(call.seq > acked, "number {} after its answer was acknowledged", call.seq);
        assert!(call.seq <= acked + WINDOW, "number {} beyond the window", call.seq);
        assert!(
            !call.retry || !self.retries_over,
            "a retry after it was said that there are no more"
        );
        if !call.retry {
            self.retries_over = true;
            assert!(
                !self.seen.contains(&call.seq),
                "number {} twice, and not marked as a retry",
                call.seq
            );
        }
        self.seen.insert(call.seq);
        if let Some(answered) = self.answers.get(&call.seq) {
            return Some(answered.clone());
        }
        if let Some(answered) = self.rows.get(&call.seq).filter(|_| call.retry) {
            let answered = answered.clone();
            if let Answered::Op(Ok(Answer::Opened { inode, .. })) = &answered {
                *self.opens.entry(inode.ino).or_default() += 1;
            }
            self.answers.insert(call.seq, answered.clone());
            return Some(answered);
        }
        let answered = self.run(&call)?;
        self.answers.insert(call.seq, answered.clone());
        Some(answered)
    }

    fn run(&mut self, call: &Call) -> Option<Answered> {
        let opened = |ino| {
            Answered::Op(Ok(Answer::Opened {
                inode: Box::new(inode(ino)),
                created: true,
                parent: None,
            }))
        };
        Some(match &call.body {
            Body::Op(request) => match &request.op {
                Op::MkDir(place, _) => {
                    *self.made.entry(place.name.as_bytes().to_vec()).or_default() += 1;
                    let answered = Answered::Op(Ok(Answer::Done));
                    self.rows.insert(call.seq, answered.clone());
                    answered
                }
                Op::Open(file, _) => {
                    *self.opens.entry(file.ino).or_default() += 1;
                    opened(file.ino)
                }
                // The place stands for the file that it begins at.
                Op::OpenAt(place, _) => {
                    *self.opens.entry(place.base).or_default() += 1;
                    opened(place.base)
                }
                Op::Create { place, .. } => {
                    // Both: something made, and something open.
                    *self.made.entry(place.name.as_bytes().to_vec()).or_default() += 1;
                    *self.opens.entry(place.base).or_default() += 1;
                    self.rows.insert(call.seq, opened(place.base));
                    opened(place.base)
                }
                Op::Release(ino) => {
                    let count = self.opens.entry(*ino).or_default();
                    *count -= 1;
                    assert!(*count >= 0, "released more often than opened");
                    Answered::Op(Ok(Answer::Done))
                }
                _ => Answered::Op(Ok(Answer::Done)),
            },
            Body::Lock(LockRequest::Set { wait: true, .. }) => {
                if !self.waits.contains(&call.id) {
                    self.waits.push(call.id);
                }
                return None;
            }
            Body::Lock(_) => Answered::Lock(Ok(LockAnswer::Done)),
            Body::Admin(_) => Answered::Admin(Ok(Box::default())),
            Body::Reclaim(_) => return None,
        })
    }

    /// Grants all waiting locks. Answers for which there is no connection are given when the client
    /// sends the calls again.
    pub fn grant(&mut self, replies: &mut VecDeque<ToClient>) {
        for id in self.waits.drain(..).filter(|_| self.greeted) {
            let answered = Answered::Lock(Ok(LockAnswer::Done));
            replies.push_back(ToClient::Reply(ReplyTo { id, table: 1, answered }));
        }
    }
}

fn inode(ino: u64) -> Inode {
    Inode::new(ino, Kind::File, 0, 1)
}
