//! A client's machine: its session, and what it has seen and holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_model::target;
use kestrel_rpc::session::{FinishedCall, Link, LinkConfig};
use kestrel_rpc::token::Token;
use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Answer, Op, Outcome, Reply, Subject};
use kestrel_types::snapshot::SnapshotInfo;
use kestrel_types::wire::{
    ClientId, Frames, LockRequest, LockSpan, Reclaim, ReclaimOpen, Reclaimed, ToClient,
    decode_to_client,
};

use crate::host::VOLUME;
use crate::prng::Prng;

/// Most inodes that a client remembers.
const SEEN_MAX: usize = 12;

/// Most snapshots that a client remembers.
const SNAPSHOTS_MAX: usize = 6;

/// What a call was, for when its answer comes.
#[derive(Debug)]
pub enum PendingCall {
    /// This record of the history.
    Op(usize),
    /// A lock, requested in this life of the session.
    Lock(LockRequest),
    /// The release of an open.
    Release(InodeId),
}

/// Which owner's locks of which file a request is about.
fn owner_of(request: &LockRequest) -> (InodeId, u64) {
    match *request {
        LockRequest::Set { lock, .. } | LockRequest::Get(lock) => (lock.ino, lock.owner),
        LockRequest::Unlock { ino, owner, .. } | LockRequest::ReleaseOwner { ino, owner, .. } => {
            (ino, owner)
        }
    }
}

/// An inode the client has seen.
#[derive(Debug, Clone)]
pub struct SeenInode {
    /// As it was.
    pub inode: Inode,
    /// Where.
    pub seen: Option<(InodeId, Name)>,
}

impl SeenInode {
    /// A reference to it.
    pub fn reference(&self) -> InodeRef {
        let seen = if self.inode.kind == Kind::Dir { None } else { self.seen.clone() };
        InodeRef { ino: self.inode.ino, seen }
    }
}

/// A file the client has open.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Answers `Opened` less answers to releases: what the node counts.
    pub count: u32,
    /// Opens that are not being released.
    pub free: u32,
    /// Where it was seen.
    pub file: InodeRef,
    /// It may be given a name.
    pub linkable: bool,
    /// The session was lost since, or the file: nothing may be expected of it.
    pub lost: bool,
    /// Of the free ones, those for writing.
    pub writes: u32,
}

/// What the clients of a run do with snapshots, clones and policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Versions {
    /// They make, read and remove snapshots.
    pub snapshots: bool,
    /// They make clones, of the present or of snapshots.
    pub clones: bool,
    /// They set policies.
    pub policies: bool,
    /// The root has a change feed, which is replayed at the end.
    pub feed: bool,
}

impl Versions {
    /// What clients do in a run: every second one has snapshots and policies, and every second one
    /// of these clones, the others a change feed. Odd ones are as they were before there was any of
    /// it.
    pub fn of_seed(seed: u64) -> Self {
        let (on, clones) = (seed.is_multiple_of(2), seed.is_multiple_of(4));
        Self { snapshots: on, clones, policies: on, feed: on && !clones }
    }
}

/// See the module's header.
pub struct Client {
    /// Its number.
    pub id: ClientId,
    /// Its session.
    pub link: Link<PendingCall>,
    /// Its connection.
    pub connection: Option<u64>,
    /// Cuts frames out of what comes.
    frames: Frames,
    /// What it has seen.
    pub seen_inodes: Vec<SeenInode>,
    /// Snapshots that it has seen, as they were then.
    pub snapshots: Vec<SnapshotInfo>,
    /// What it does with snapshots and policies.
    pub versions: Versions,
    /// What it has open.
    pub handles: BTreeMap<InodeId, Handle>,
    /// Releases under way of opens that the node has lost since, by file: it may refuse them.
    pub lost_releases: BTreeMap<InodeId, u32>,
    /// Locks that it believes to hold.
    pub locks: Vec<LockSpan>,
    /// Calls about locks of an owner of a file that wait for answers.
    lock_calls: BTreeMap<(InodeId, u64), usize>,
    /// Its session was given up, and it has not reclaimed since.
    pub broken: bool,
    /// Calls begun before this one may have been answered by a session that was given up: what they
    /// opened may be gone.
    pub uncertain_before: usize,
    /// Objects it may refer to.
    pub objects: Vec<u64>,
    /// Objects below are done with.
    pub oldest_object: u64,
    /// It holds still until then.
    pub stopped_until: Nanos,
    /// Calls that wait for answers.
    pub calls: usize,
    /// Connections that failed since the last that did not.
    pub failures: u32,
    /// When its token ends by the node's wall clock, if it has one that does.
    pub expires: Option<Nanos>,
    /// Its Hello was refused because its token has ended: another process with another token takes
    /// its place.
    pub outdated: bool,
    /// Its randomness.
    pub prng: Prng,
}

impl Client {
    /// A client that has just started, with this token or none.
    pub fn new(number: u64, mut prng: Prng, now: Nanos, token: Option<Arc<Token>>) -> Self {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&prng.bits().to_be_bytes());
        id[8..].copy_from_slice(&(number + 1).to_be_bytes());
        let id = ClientId(id);
        let config = LinkConfig {
            volume: VOLUME.into(),
            client: id,
            who: format!("client {number}"),
            server: "sim".into(),
            token,
        };
        let root = Inode::new(1, Kind::Dir, 0, 0);
        Self {
            id,
            link: Link::new(config, now),
            connection: None,
            frames: Frames::default(),
            seen_inodes: vec![SeenInode { inode: root, seen: None }],
            snapshots: Vec::new(),
            versions: Versions::default(),
            handles: BTreeMap::new(),
            lost_releases: BTreeMap::new(),
            locks: Vec::new(),
            lock_calls: BTreeMap::new(),
            broken: false,
            uncertain_before: 0,
            objects: Vec::new(),
            oldest_object: u64::MAX,
            stopped_until: 0,
            calls: 0,
            failures: 0,
            expires: None,
            outdated: false,
            prng,
        }
    }

    /// A connection begins.
    pub fn connected(&mut self, connection: u64) {
        self.connection = Some(connection);
        self.frames = Frames::default();
    }

    /// Bytes came; what they say.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<ToClient> {
        self.frames.push(bytes);
        let mut messages = Vec::new();
        while let Some(frame) = self.frames.next_frame().expect("the network damages nothing") {
            messages.push(decode_to_client(frame).expect("the server keeps the protocol"));
        }
        messages
    }

    /// What has ended.
    pub fn completions(&mut self) -> Vec<FinishedCall<PendingCall>> {
        let mut ended = Vec::new();
        self.link.take_completions(&mut ended);
        ended
    }

    /// The file that an operation names by number, if the client can expect it to be there.
    pub fn expects(&self, op: &Op) -> Option<InodeId> {
        let ino = target(op)?.ino;
        self.handles.get(&ino).filter(|handle| handle.free > 0 && !handle.lost).map(|_| ino)
    }

    /// The session was lost at the node: files without names may be gone.
    pub fn lose_session(&mut self) {
        for handle in self.handles.values_mut() {
            handle.lost = true;
        }
        self.locks.clear();
    }

    /// What it holds, in parts.
    pub fn held(&self, prng: &mut Prng) -> Vec<Reclaim> {
        let opens: Vec<_> = self
            .handles
            .values()
            .map(|handle| ReclaimOpen {
                file: handle.file.clone(),
                count: handle.count,
                linkable: handle.linkable,
            })
            .collect();
        let objects = self.objects.iter().map(|object| (*object, 1)).collect();
        let whole = Reclaim {
            opens,
            locks: self.locks.clone(),
            objects,
            oldest_open_object: self.oldest_object,
            last: true,
        };
        if prng.chance(50) {
            return vec![whole];
        }
        let (first, second) = whole.opens.split_at(whole.opens.len() / 2);
        let part = Reclaim {
            opens: first.to_vec(),
            objects: Vec::new(),
            locks: Vec::new(),
            last: false,
            ..whole
        };
        vec![part, Reclaim { opens: second.to_vec(), ..whole.clone() }]
    }

    /// It begins a call about locks.
    pub fn lock_call_begins(&mut self, request: &LockRequest) {
        *self.lock_calls.entry(owner_of(request)).or_default() += 1;
    }

    /// That has ended. Whether it was the only call about these locks.
    pub fn answered_of(&mut self, request: &LockRequest) -> bool {
        let left = self.lock_calls.entry(owner_of(request)).or_default();
        *left = left.saturating_sub(1);
        *left == 0
    }

    /// What could not be had back, out of `parts`, the messages of the reclaim.
    pub fn reclaimed(&mut self, lost: &[Reclaimed]) {
        self.broken = false;
        for ino in lost.iter().flat_map(|part| &part.lost_opens) {
            let Some(handle) = self.handles.remove(ino) else { continue };
            if handle.count > handle.free {
                *self.lost_releases.entry(*ino).or_default() += handle.count - handle.free;
            }
        }
        // All locks are in the last part.
        if let Some(last) = lost.last() {
            let mut index = 0;
            self.locks.retain(|_| {
                index += 1;
                !last.lost_locks.contains(&(index - 1))
            });
        }
    }

    /// Learns from an answer about snapshots, or from one; false if it is about neither.
    fn learn_of_past(&mut self, op: &Op, reply: &Reply) -> bool {
        match (op, reply) {
            (Op::At(id, _), Err(Outcome::Failed(why))) if why.errno == libc::ESTALE => {
                // Some are kept, to be read again.
                if self.prng.chance(50) {
                    self.snapshots.retain(|seen| seen.id != *id);
                }
            }
            (Op::At(_, op), reply) => {
                // What was removed since may be read again, there.
                let seen_at = match (op.subject(), reply) {
                    (Subject::Path(path), Ok(Answer::Entry { parent, .. })) => {
                        Some((*parent, path.name.clone()))
                    }
                    _ => None,
                };
                if let Ok(Answer::Inode(inode) | Answer::Entry { inode, .. }) = reply
                    && self.seen_inodes.iter().all(|seen| seen.inode.ino != inode.ino)
                {
                    self.see(inode, seen_at);
                }
            }
            (_, Ok(Answer::Snapshots(shown))) => {
                for info in shown.iter().filter(|info| !info.removing) {
                    self.snapshots.retain(|seen| seen.id != info.id);
                    self.snapshots.push(info.clone());
                    if self.snapshots.len() > SNAPSHOTS_MAX {
                        let out = self.prng.below(SNAPSHOTS_MAX as u64) as usize;
                        self.snapshots.remove(out);
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// Learns from an answer.
    pub fn learn(&mut self, call: usize, op: &Op, reply: &Reply) {
        if self.learn_of_past(op, reply) {
            return;
        }
        let seen_at = match (op.subject(), reply) {
            (
                Subject::Path(seen_at),
                Ok(Answer::Entry { parent, .. } | Answer::Opened { parent: Some(parent), .. }),
            ) => Some((*parent, seen_at.name.clone())),
            _ => None,
        };
        let write = match op {
            Op::Create { flags, .. } | Op::Open(_, flags) | Op::OpenAt(_, flags) => flags.write,
            Op::TmpFile { .. } => true,
            _ => false,
        };
        if let (Op::Link(inode, _), Ok(_)) = (op, reply)
            && let Some(handle) = self.handles.get_mut(&inode.ino)
        {
            handle.linkable = false;
        }
        match reply {
            Ok(Answer::Inode(inode) | Answer::Entry { inode, .. }) => self.see(inode, seen_at),
            Ok(Answer::Opened { inode, .. }) => {
                self.see(inode, seen_at.clone());
                if inode.kind != Kind::Dir {
                    let file = match op {
                        Op::Open(file, _) => file.clone(),
                        _ => InodeRef { ino: inode.ino, seen: seen_at },
                    };
                    let linkable = matches!(op, Op::TmpFile { exclusive: false, .. });
                    let handle = self.handles.entry(inode.ino).or_insert(Handle {
                        count: 0,
                        free: 0,
                        file: file.clone(),
                        linkable,
                        lost: self.broken || call < self.uncertain_before,
                        writes: 0,
                    });
                    handle.count += 1;
                    handle.free += 1;
                    handle.writes += u32::from(write);
                    handle.file = file;
                }
            }
            Ok(Answer::Objects { first, count }) => {
                self.objects.extend(*first..*first + u64::from(*count));
                self.oldest_object = self.objects.first().copied().unwrap_or(u64::MAX);
            }
            _ => {}
        }
    }

    fn see(&mut self, inode: &Inode, seen_at: Option<(InodeId, Name)>) {
        if let Some(seen) = self.seen_inodes.iter_mut().find(|seen| seen.inode.ino == inode.ino) {
            // Answers come in any order; what is older teaches nothing.
            if inode.change >= seen.inode.change {
                seen.inode = inode.clone();
            }
            if seen_at.is_some() {
                seen.seen = seen_at;
            }
        } else if inode.kind == Kind::Dir || seen_at.is_some() || inode.nlink == 0 {
            if self.seen_inodes.len() >= SEEN_MAX {
                let out = 1 + self.prng.below(self.seen_inodes.len() as u64 - 1) as usize;
                self.seen_inodes.swap_remove(out);
            }
            self.seen_inodes.push(SeenInode { inode: inode.clone(), seen: seen_at });
        }
    }
}
