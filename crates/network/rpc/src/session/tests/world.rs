//! A link and the model of a node, joined by a connection that does what the test says.

use std::collections::{BTreeMap, VecDeque};

use kestrel_types::clock::Nanos;
use kestrel_types::name::InodeRef;
use kestrel_types::request::Answer;
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, Frames, Reclaim, ReclaimOpen, SessionState, ToClient, ToServer,
    decode_to_server,
};

use super::config;
use super::model::Model;
use crate::session::*;

/// What a call was, as far as its outcome can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    Make(u64),
    Create(u64),
    Open(u64),
    Release(u64),
    Other,
}

/// A link, a node, and the connection between them.
pub struct World {
    pub now: Nanos,
    pub link: Link<(usize, Submitted)>,
    pub node: Model,
    pub up: VecDeque<ToServer>,
    pub down: VecDeque<ToClient>,
    pub connected: bool,
    pub submitted: Vec<(Submitted, CallDeadline)>,
    pub ids: Vec<CallId>,
    pub outcomes: BTreeMap<usize, FsResult<Answered>>,
    /// Opens that the client has, by inode.
    pub held: BTreeMap<u64, i64>,
    /// Cuts messages out of the link's output.
    frames: Frames,
    /// Reclaims that were answered.
    pub reclaimed: Vec<SessionState>,
}

impl World {
    pub fn new() -> Self {
        Self {
            now: 0,
            link: Link::new(config(), 0),
            node: Model::default(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            connected: false,
            submitted: Vec::new(),
            ids: Vec::new(),
            outcomes: BTreeMap::new(),
            held: BTreeMap::new(),
            reclaimed: Vec::new(),
            frames: Frames::default(),
        }
    }

    pub fn submit(&mut self, body: Body, submitted: Submitted, deadline: CallDeadline) {
        let index = self.submitted.len();
        self.submitted.push((submitted, deadline));
        self.ids.push(self.link.submit(body, deadline, (index, submitted)));
        self.collect();
    }

    /// Takes what the link has to say.
    pub fn collect(&mut self) {
        let mut ended = Vec::new();
        self.link.take_completions(&mut ended);
        for FinishedCall { done: (index, submitted), result, .. } in ended {
            match (submitted, &result) {
                (_, Ok(Answered::Op(Ok(Answer::Opened { inode, .. })))) => {
                    *self.held.entry(inode.ino).or_default() += 1
                }
                (Submitted::Release(ino), Ok(_)) => *self.held.entry(ino).or_default() -= 1,
                _ => {}
            }
            assert!(self.outcomes.insert(index, result).is_none(), "call {index} ended twice");
        }
        while let Some(event) = self.link.next_event() {
            match event {
                LinkEvent::Welcomed(_) => self.link.accept(),
                LinkEvent::MapVersion { version } => {
                    assert_eq!(version, self.link.map_version());
                }
                LinkEvent::ReclaimWanted { .. } => {
                    let opens =
                        self.held.iter().filter(|(_, count)| **count > 0).map(|(ino, count)| {
                            ReclaimOpen {
                                file: InodeRef::by_id(*ino),
                                count: *count as u32,
                                linkable: false,
                            }
                        });
                    let mut parts: Vec<Reclaim> = opens
                        .map(|open| Reclaim { opens: vec![open], ..Reclaim::default() })
                        .collect();
                    if self.now % 2 == 0 {
                        parts.clear();
                        parts.push(Reclaim {
                            opens: self
                                .held
                                .iter()
                                .filter(|(_, count)| **count > 0)
                                .map(|(ino, count)| ReclaimOpen {
                                    file: InodeRef::by_id(*ino),
                                    count: *count as u32,
                                    linkable: false,
                                })
                                .collect(),
                            ..Reclaim::default()
                        });
                    }
                    self.link.reclaim(parts);
                }
                LinkEvent::Reclaimed { lost, .. } => self.reclaimed.push(lost),
                LinkEvent::Serving | LinkEvent::AdminEvent { .. } => {}
                LinkEvent::Refused(refused) => panic!("{refused:?}"),
            }
        }
        let mut bytes = Vec::new();
        while self.link.has_output() {
            bytes.clear();
            self.link.take_output(&mut bytes);
            self.frames.push(&bytes);
            while let Some(frame) = self.frames.next_frame().unwrap() {
                let message = decode_to_server(frame).unwrap();
                assert!(self.connected, "{message:?} without a connection");
                self.up.push_back(message);
            }
        }
        assert_eq!(self.frames.pending(), 0, "output is whole frames");
    }

    pub fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.link.connected(self.now, Security::Plain);
            self.collect();
        }
    }

    pub fn cut(&mut self) {
        if self.connected {
            self.connected = false;
            self.up.clear();
            self.down.clear();
            self.node.disconnected();
            self.link.disconnected(self.now);
            self.collect();
        }
    }

    pub fn deliver_up(&mut self, most: usize) {
        for message in self.up.drain(..most.min(self.up.len())) {
            self.node.receive(message, &mut self.down);
        }
    }

    pub fn deliver_down(&mut self, most: usize) {
        let mut messages = self.down.drain(..most.min(self.down.len())).collect();
        self.link.received(self.now, &mut messages).unwrap();
        self.collect();
    }

    pub fn tick(&mut self) {
        let pulse = self.link.tick(self.now, u64::MAX);
        self.collect();
        if pulse == ConnectionHealth::Lost {
            self.cut();
        }
        for (index, (_, deadline)) in self.submitted.iter().enumerate() {
            if let CallDeadline::Until(limit) | CallDeadline::Connection(limit) = deadline
                && *limit <= self.now
            {
                assert!(
                    self.outcomes.contains_key(&index),
                    "call {index} is not over at its deadline"
                );
            }
        }
    }

    /// Everything gets through, until nothing moves any more.
    pub fn run_to_end(&mut self) {
        self.connect();
        self.collect();
        loop {
            self.deliver_up(usize::MAX);
            self.node.grant(&mut self.down);
            if self.down.is_empty() {
                break;
            }
            self.deliver_down(usize::MAX);
        }
    }

    /// What must hold when all is over.
    pub fn check(&self) {
        assert_eq!(self.outcomes.len(), self.submitted.len(), "every call ends");
        for (index, (submitted, _)) in self.submitted.iter().enumerate() {
            let name = match submitted {
                Submitted::Make(number) | Submitted::Create(number) => {
                    format!("d{number}").into_bytes()
                }
                _ => continue,
            };
            let made = self.node.made.get(&name).copied().unwrap_or(0);
            match &self.outcomes[&index] {
                Ok(_) => assert_eq!(made, 1, "{submitted:?} succeeded"),
                Err(error) if error.reason.contains("nothing was done") => {
                    assert_eq!(made, 0, "{submitted:?}: {error}")
                }
                Err(error) => assert!(made <= 1, "{submitted:?} {made} times: {error}"),
            }
        }
        let counts = |opens: &BTreeMap<u64, i64>| {
            opens
                .iter()
                .filter(|(_, count)| **count != 0)
                .map(|(ino, count)| (*ino, *count))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            counts(&self.node.opens),
            counts(&self.held),
            "the node counts what the client holds"
        );
    }

    /// As if pongs had come all the time.
    pub fn receive_pong(&mut self) {
        self.link.received(self.now, &mut vec![ToClient::Pong { table: 0 }]).unwrap();
    }
}
