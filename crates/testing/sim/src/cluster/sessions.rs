//! The sessions of clients on a member's machine: a window of one numbered call, and opens; what
//! `kestrel-server` does for a real one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Op, Outcome, Reply};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use super::host::is_no_answer;

/// The sessions of one start of a member. Gone with it.
pub type Shared = Arc<Mutex<Sessions>>;

/// Opens of a file that a client claims.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Where it saw the file.
    pub file: InodeRef,
    /// How many.
    pub count: u32,
    /// The file may be given a name.
    pub linkable: bool,
    /// It is giving one back without an answer yet.
    pub releasing: bool,
}

#[derive(Default)]
struct Session {
    /// The newest call, and its answer.
    last: u64,
    answer: Option<Reply>,
    /// It is a release of an open that is counted.
    releases: bool,
    opens: BTreeMap<InodeId, u32>,
    /// Opens that it claims and the member has not answered.
    claims: BTreeMap<InodeId, u32>,
    /// Files that it could not have back, which it may have given back before.
    lost: BTreeSet<InodeId>,
    /// It has everything else: later copies of its messages are void.
    retries_in: bool,
    gone: bool,
}

/// See the module's header.
#[derive(Default)]
pub struct Sessions {
    clients: BTreeMap<ClientId, Session>,
    /// Opens of clients that are gone.
    abandoned: Vec<InodeId>,
    /// Releases of such that the member has not answered.
    releasing: usize,
    /// The store of this process has failed: requests without an answer are not repeated.
    failed: bool,
    /// What must not have happened.
    pub wrong: Option<String>,
}

/// What becomes of a call.
pub enum CallDecision {
    /// It is executed.
    Run,
    /// It was.
    Answered(Reply),
    /// It is being executed, or no client waits for it any more.
    Running,
}

impl Sessions {
    /// A call arrives.
    pub fn decide(&mut self, client: ClientId, seq: u64, op: &Op) -> CallDecision {
        let session = self.clients.entry(client).or_default();
        if session.gone || seq < session.last {
            return CallDecision::Running;
        }
        if seq == session.last {
            return session.answer.clone().map_or(CallDecision::Running, CallDecision::Answered);
        }
        (session.last, session.answer) = (seq, None);
        if let Op::Release(ino) = op {
            session.releases = take(&mut session.opens, *ino);
        }
        CallDecision::Run
    }

    /// A call is answered. Whether a client waits for it.
    pub fn finish(&mut self, client: ClientId, seq: u64, op: &Op, reply: &Reply) -> bool {
        let is_last = self.is_final(reply);
        let session = self.clients.entry(client).or_default();
        let wanted = !session.gone && session.last == seq;
        let releases = std::mem::take(&mut session.releases);
        match (op, reply) {
            (_, Ok(Answer::Opened { inode, .. })) if inode.kind != Kind::Dir => {
                if wanted {
                    *session.opens.entry(inode.ino).or_default() += 1;
                } else {
                    self.abandoned.push(inode.ino);
                }
            }
            (Op::Release(ino), Err(_)) if releases && !is_last => {
                if wanted {
                    *session.opens.entry(*ino).or_default() += 1;
                } else {
                    self.abandoned.push(*ino);
                }
            }
            _ => {}
        }
        if wanted {
            session.answer = Some(reply.clone());
        }
        wanted
    }

    /// A client claims so many opens of a file; those that the member has not counted.
    pub fn claim(&mut self, client: ClientId, claimed: &Claimed) -> u32 {
        let (ino, count) = (claimed.file.ino, claimed.count);
        let session = self.clients.entry(client).or_default();
        let have = session.opens.get(&ino).copied().unwrap_or_default();
        if session.gone
            || session.retries_in
            || session.claims.contains_key(&ino)
            || session.lost.contains(&ino)
            || have >= count
        {
            return 0;
        }
        session.claims.insert(ino, count - have);
        count - have
    }

    /// The member has answered a claim.
    pub fn claimed(&mut self, client: ClientId, claimed: &Claimed, reply: &Reply) {
        let ino = claimed.file.ino;
        let session = self.clients.entry(client).or_default();
        let count = session.claims.remove(&ino).unwrap_or_default();
        match reply {
            Ok(_) if session.gone => self.abandoned.extend((0..count).map(|_| ino)),
            Ok(_) => *session.opens.entry(ino).or_default() += count,
            Err(why) if is_timeout(why) || session.gone || is_no_answer(reply) => {}
            Err(_) if claimed.releasing => {
                session.lost.insert(ino);
            }
            Err(why) => {
                self.wrong = Some(format!("file {ino}, which {client} has open, is lost: {why:?}"))
            }
        }
    }

    /// Whether everything that a client claimed has been answered: what it could not have back.
    pub fn had_back(&mut self, client: ClientId, opens: &[Claimed]) -> Option<BTreeSet<InodeId>> {
        let session = self.clients.entry(client).or_default();
        let has = |open: &Claimed| {
            let ino = &open.file.ino;
            session.lost.contains(ino)
                || session.opens.get(ino).is_some_and(|have| *have >= open.count)
        };
        session.retries_in |= opens.iter().all(has);
        session.retries_in.then(|| session.lost.clone())
    }

    /// A client sends nothing any more. Opens that the member has not answered yet are given back
    /// when it has.
    pub fn expire(&mut self, client: ClientId) {
        let Some(session) = self.clients.get_mut(&client).filter(|session| !session.gone) else {
            return;
        };
        session.gone = true;
        for (ino, count) in std::mem::take(&mut session.opens) {
            self.abandoned.extend((0..count).map(|_| ino));
        }
    }

    /// Opens to give back.
    pub fn take_abandoned(&mut self) -> Vec<InodeId> {
        self.releasing += self.abandoned.len();
        std::mem::take(&mut self.abandoned)
    }

    /// An open was given back, or not.
    pub fn given_back(&mut self, ino: InodeId, reply: &Reply) {
        self.releasing -= 1;
        match reply {
            Ok(_) => {}
            Err(why) if is_timeout(why) => self.abandoned.push(ino),
            Err(_) if self.is_final(reply) => {}
            // The store of another node has failed, which had a part in it: nothing has changed.
            Err(_) if is_no_answer(reply) => self.abandoned.push(ino),
            Err(why) => {
                self.wrong = Some(format!("an open of file {ino} is not given back: {why:?}"))
            }
        }
    }

    /// The store of this process fails.
    pub fn fail_store(&mut self) {
        self.failed = true;
    }

    /// Whether the process's own store gave no answer to a request. A release may then be counted
    /// in the process's memory already, which nothing takes back: a second release would give back
    /// an open that is none (`EBADF`). The process ends, and all that it counted with it.
    fn is_final(&self, reply: &Reply) -> bool {
        self.failed && is_no_answer(reply)
    }

    /// Whether nothing is open and nothing has to be given back.
    pub fn is_empty(&self) -> bool {
        let idle = |session: &Session| session.opens.is_empty() && session.claims.is_empty();
        self.abandoned.is_empty() && self.releasing == 0 && self.clients.values().all(idle)
    }
}

fn is_timeout(why: &Outcome) -> bool {
    matches!(why, Outcome::Failed(error) if error.errno == libc::ETIMEDOUT)
}

/// Takes one open away, if there is one.
fn take(opens: &mut BTreeMap<InodeId, u32>, ino: InodeId) -> bool {
    let Some(count) = opens.get_mut(&ino) else { return false };
    *count -= 1;
    if *count == 0 {
        opens.remove(&ino);
    }
    true
}

#[cfg(test)]
mod tests;
