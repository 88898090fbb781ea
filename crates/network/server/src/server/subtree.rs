//! Whether node ids that a confined session names are within its subtree, by the rows of the node.
//!
//! A directory is within the subtree if the directories above it lead to its root: all on the way
//! are then verified, until a directory changes. Any other inode is if it has a place in a
//! directory that is: where the request says that it was seen, where the session was told that it
//! is, or where the node has on record that it was moved to. A file without a name is if the
//! session has it open. What is found is noted in the session ([`crate::granted`]).

use std::sync::Arc;

use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};
use parking_lot::Mutex;

use super::Server;
use crate::grant::{OUTSIDE, UnverifiedInode};
use crate::granted::{DEPTH_MAX, Place, Tree};
use crate::session::Session;

/// What of a session's doubts is not within its subtree, and why.
pub(crate) type Outside = Vec<(InodeId, FsError)>;

/// Gets the inodes that are outside when all are checked.
pub(crate) type SubtreeChecked = Box<dyn FnOnce(Outside) + Send>;

/// What is being looked for.
enum Step {
    /// The next inode.
    Next,
    /// The next place where the file may be.
    NextPlace,
    /// The way up from this directory.
    Climb(InodeId),
    /// What the directory, which is within the subtree, has under the name.
    Lookup(Place),
    /// Whether the file, which the session has open, has no name at all.
    Nameless,
}

struct Walk {
    unverified: Vec<UnverifiedInode>,
    /// The present inode.
    about: InodeId,
    step: Step,
    /// Where it may be; the likeliest place is the last one.
    places: Vec<Place>,
    /// What to look at once the climb has come to the root.
    then: Option<Place>,
    /// Directories on the way, and how many directories had changed when it began.
    passed: Vec<InodeId>,
    since: Option<u64>,
    outside: Outside,
    /// The answer that came, or that the thread that brings it goes on.
    came: Option<Reply>,
    awaited: bool,
}

/// Doubts of one session that are being settled.
struct Check {
    server: Arc<Server>,
    session: Arc<Session>,
    root: InodeId,
    walk: Mutex<Walk>,
    done: Mutex<Option<SubtreeChecked>>,
}

impl Server {
    /// Settles doubts of a session that is confined to the directory `root`. With no lock held;
    /// `done` is called on any thread.
    pub(crate) fn check_subtree(
        self: &Arc<Self>,
        session: &Arc<Session>,
        root: InodeId,
        unverified: Vec<UnverifiedInode>,
        done: SubtreeChecked,
    ) {
        let walk = Walk {
            unverified,
            about: 0,
            step: Step::Next,
            places: Vec::new(),
            then: None,
            passed: Vec::new(),
            since: None,
            outside: Vec::new(),
            came: None,
            awaited: false,
        };
        let check = Check {
            server: self.clone(),
            session: session.clone(),
            root,
            walk: Mutex::new(walk),
            done: Mutex::new(Some(done)),
        };
        Arc::new(check).go_on();
    }
}

impl Check {
    /// Sends requests to the node until all inodes are checked. Answers that come meanwhile are
    /// taken here, so that a long way up is no deep recursion; later ones are taken by the thread
    /// that brings them.
    fn go_on(self: Arc<Self>) {
        loop {
            let Some(op) = self.next() else {
                let done = self.done.lock().take();
                let outside = std::mem::take(&mut self.walk.lock().outside);
                if let Some(done) = done {
                    done(outside);
                }
                return;
            };
            let check = self.clone();
            let answered = move |reply: Reply| {
                let mut walk = check.walk.lock();
                walk.came = Some(reply);
                if std::mem::take(&mut walk.awaited) {
                    drop(walk);
                    check.take();
                    check.go_on();
                }
            };
            let request = Request { creds: Creds::root(), op };
            self.server.backend.submit_own(vec![(request, Box::new(answered))]);
            let mut walk = self.walk.lock();
            if walk.came.is_none() {
                walk.awaited = true;
                return;
            }
            drop(walk);
            self.take();
        }
    }

    /// The next request to the node; none when all inodes are checked.
    fn next(&self) -> Option<Op> {
        let mut walk = self.walk.lock();
        let tree = &self.server.backend;
        loop {
            match &walk.step {
                Step::Next => match walk.unverified.pop()? {
                    UnverifiedInode::Dir(dir) => {
                        walk.about = dir;
                        walk.step = Step::Climb(dir);
                    }
                    UnverifiedInode::Ref(InodeRef { ino, seen }) => {
                        let told = self.session.state.lock().given.place_of(ino);
                        walk.about = ino;
                        walk.places =
                            [tree.moved_to(ino), told, seen].into_iter().flatten().collect();
                        walk.places.dedup();
                        walk.step = Step::NextPlace;
                    }
                },
                Step::NextPlace => {
                    walk.passed.clear();
                    walk.then = walk.places.pop();
                    // In none of these: it may be a directory, which knows where it is.
                    let about = walk.about;
                    walk.step = Step::Climb(walk.then.as_ref().map_or(about, |(dir, _)| *dir));
                }
                Step::Climb(dir) => {
                    let dir = *dir;
                    if walk.passed.is_empty() {
                        walk.since = tree.changes();
                    }
                    let mut state = self.session.state.lock();
                    if state.given.has_dir(dir, self.root, tree) {
                        state.given.add_dirs(std::mem::take(&mut walk.passed), walk.since, tree);
                        drop(state);
                        walk.step = walk.then.take().map_or(Step::Next, Step::Lookup);
                    } else if dir == ROOT || walk.passed.len() >= DEPTH_MAX {
                        let opened = state.opens.get(walk.about).count > 0;
                        drop(state);
                        walk.leads_nowhere(opened);
                    } else {
                        return Some(Op::Parent(dir));
                    }
                }
                Step::Lookup((dir, name)) => {
                    return Some(Op::Lookup(PathRef::new(*dir, name.clone())));
                }
                Step::Nameless => return Some(Op::GetAttr(InodeRef::by_id(walk.about))),
            }
        }
    }

    /// Takes what the node has answered.
    fn take(&self) {
        let mut walk = self.walk.lock();
        let Some(reply) = walk.came.take() else { return };
        match (reply, &walk.step) {
            (Ok(Answer::Inode(above)), Step::Climb(dir)) if above.ino != *dir => {
                let dir = *dir;
                walk.passed.push(dir);
                walk.step = Step::Climb(above.ino);
            }
            (Ok(Answer::Entry { inode, .. }), Step::Lookup((dir, name)))
                if inode.ino == walk.about =>
            {
                let mut state = self.session.state.lock();
                match inode.kind {
                    Kind::Dir => {
                        state.given.add_dirs([inode.ino], walk.since, &self.server.backend);
                    }
                    _ => state.given.add_file(inode.ino, *dir, name.clone()),
                }
                drop(state);
                walk.step = Step::Next;
            }
            (Ok(Answer::Inode(inode)), Step::Nameless) if inode.nlink == 0 => {
                walk.step = Step::Next;
            }
            (Err(Outcome::Failed(why)), _)
                if !matches!(why.errno, libc::ENOENT | libc::ENOTDIR | libc::ESTALE) =>
            {
                walk.fail(why);
            }
            (_, Step::Nameless) => walk.fail(OUTSIDE),
            // It is not there any more, or not even the directory is.
            _ => {
                let opened = self.session.state.lock().opens.get(walk.about).count > 0;
                walk.leads_nowhere(opened);
            }
        }
    }
}

impl Walk {
    /// The present place is none, or the present way up does not lead to the root. `opened`: the
    /// session has the file open.
    fn leads_nowhere(&mut self, opened: bool) {
        let at_a_place = self.then.is_some() || matches!(self.step, Step::Lookup(_));
        if at_a_place {
            self.step = Step::NextPlace;
        } else if opened {
            self.step = Step::Nameless;
        } else {
            self.fail(OUTSIDE);
        }
    }

    fn fail(&mut self, why: FsError) {
        self.outside.push((self.about, why));
        self.passed.clear();
        self.then = None;
        self.step = Step::Next;
    }
}
