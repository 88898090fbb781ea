//! A file that leaves a token's subtree by itself: what a confined session may do with it ends with
//! the rename, except what an open descriptor needs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use common::{Client, Fixture, at, create, errno, hello, opened};
use kestrel_rpc::token::Token;
use kestrel_types::ids::InodeId;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Op, OpenFlags, Outcome, RenameFlags, Reply, SetAttr};
use kestrel_types::security::Security;
use kestrel_types::token::{Subtree, TokenRecord};
use kestrel_types::wire::{
    Answered, Body, Hello, LOCK_END, LockKind, LockMode, LockRequest, LockSpan, ToClient, ToServer,
};

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// `tree/in/f` and `out`, and a client that is confined to `tree`.
struct Scene {
    fixture: Fixture,
    owner: Client,
    client: Client,
    tree: InodeId,
    inner: InodeId,
    file: InodeId,
}

impl Scene {
    fn new() -> Self {
        let fixture = Fixture::new();
        let mut owner = Client::connected(7, &fixture);
        let [tree, inner, _] = ["tree", "tree/in", "out"]
            .map(|dir| entry(&owner.execute(&fixture, Op::MkDir(at(dir), 0o777))));
        let file = opened(&owner.execute(&fixture, create("tree/in/f"))).0.ino;
        assert_eq!(errno(&owner.execute(&fixture, Op::Release(file))), 0);
        let token = Arc::new(Token::new(None).unwrap());
        let subtree = Some(Subtree { dir: tree, path: "/tree".into() });
        let record =
            TokenRecord { subtree, ..TokenRecord::new(token.id, "test", token.verifier(), 0) };
        fixture.server.tokens().learn(vec![record], 0).unwrap();
        let mut client = Client::new(1);
        client.incarnation = 1;
        let said = Hello { token: Some(token.id), ..hello(1, 1, false) };
        client.send_hello(&fixture, said.clone());
        let received = client.received();
        let [ToClient::Challenge(nonce)] = received.as_slice() else { panic!("{received:?}") };
        let proof = token.prove(nonce, &said, &Security::Loopback);
        client.send(&fixture, vec![ToServer::Proof(proof)]);
        fixture.sync();
        assert!(matches!(client.received().pop(), Some(ToClient::Welcome(_))));
        Self { fixture, owner, client, tree, inner, file }
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.rename_with(from, to, RenameFlags::default());
    }

    fn rename_with(&mut self, from: &str, to: &str, flags: RenameFlags) {
        let reply = self.owner.execute(&self.fixture, Op::Rename(at(from), at(to), flags));
        assert_eq!(errno(&reply), 0, "{from} to {to}");
    }

    fn seen(&self) -> InodeRef {
        seen(self.file, self.inner, "f")
    }

    /// What asks for the file by number.
    fn uses(&self) -> Vec<Op> {
        let by_id = || InodeRef::by_id(self.file);
        let mode = || SetAttr { mode: Some(0o600), ..SetAttr::default() };
        vec![
            Op::GetAttr(self.seen()),
            Op::GetAttr(by_id()),
            Op::Chunks { ino: self.file, first: 0, last: 9 },
            Op::Access(self.seen(), libc::R_OK as u32),
            Op::Open(self.seen(), READ),
            Op::Open(by_id(), READ),
            Op::SetAttr(self.seen(), mode()),
            Op::SetAttr(by_id(), mode()),
            Op::ListXattr(self.seen()),
            Op::Link(self.seen(), below(self.tree, "stolen")),
            Op::Link(by_id(), below(self.tree, "stolen")),
        ]
    }

    fn may(&mut self, op: Op) {
        let reply = self.client.execute(&self.fixture, op.clone());
        assert_eq!(errno(&reply), 0, "{op:?}: {reply:?}");
        if let (Op::Open(..), Ok(Answer::Opened { inode, .. })) = (&op, &reply) {
            assert_eq!(errno(&self.client.execute(&self.fixture, Op::Release(inode.ino))), 0);
        }
    }

    fn may_not(&mut self, op: Op) {
        let reply = self.client.execute(&self.fixture, op.clone());
        assert!(is_outside(&reply), "{op:?}: {reply:?}");
    }

    fn may_use_it(&mut self) {
        self.may(Op::Lookup(below(self.inner, "f")));
        // By its number alone the node does not find a file that never moved.
        for op in self.uses().into_iter().filter(|op| !is_by_number(op)) {
            let links = matches!(op, Op::Link(..));
            self.may(op);
            if links {
                self.may(Op::Unlink(below(self.tree, "stolen")));
            }
        }
        // A number alone stands for the name that was told last.
        self.may(Op::Lookup(below(self.inner, "f")));
        assert_eq!(self.lock(), 0);
    }

    /// Twice: what the session hears by trying gives it nothing.
    fn may_not_use_it(&mut self) {
        for _ in 0..2 {
            self.uses().into_iter().for_each(|op| self.may_not(op));
            assert_eq!(self.lock(), libc::ESTALE);
        }
    }

    fn lock(&mut self) -> i32 {
        let lock = LockSpan {
            ino: self.file,
            owner: 5,
            pid: 1,
            kind: LockKind::Flock,
            mode: LockMode::Read,
            start: 0,
            end: LOCK_END,
        };
        let call = self.client.call(Body::Lock(LockRequest::Set { lock, wait: false }));
        self.client.send(&self.fixture, vec![ToServer::Call(call)]);
        let received = self.client.received();
        let [ToClient::Reply(reply)] = received.as_slice() else { panic!("{received:?}") };
        let Answered::Lock(reply) = &reply.answered else { panic!("{reply:?}") };
        reply.as_ref().map_or_else(|why| why.errno, |_| 0)
    }
}

fn below(dir: InodeId, path: &str) -> PathRef {
    PathRef::from_path(dir, path.as_bytes()).unwrap()
}

fn seen(ino: InodeId, dir: InodeId, name: &str) -> InodeRef {
    InodeRef { ino, seen: Some((dir, Name::new(name.as_bytes()).unwrap())) }
}

fn entry(reply: &Reply) -> InodeId {
    match reply {
        Ok(Answer::Entry { inode, .. }) => inode.ino,
        other => panic!("{other:?}"),
    }
}

fn is_by_number(op: &Op) -> bool {
    match op {
        Op::GetAttr(inode) | Op::Open(inode, _) | Op::SetAttr(inode, _) | Op::Link(inode, _) => {
            inode.seen.is_none()
        }
        _ => false,
    }
}

fn is_outside(reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if why.errno == libc::ESTALE)
}

/// The rename that takes a file out of the subtree ends its use, however the session came to know
/// it; the one that brings it back begins it.
#[test]
fn renamed_file_is_out_of_reach() {
    let mut scene = Scene::new();
    for _ in 0..2 {
        scene.may_use_it();
        scene.rename("tree/in/f", "out/f");
        scene.may_not_use_it();
        scene.rename("out/f", "tree/in/f");
    }
    let list = |dir| Op::ReadDir { dir, after: None, limit: 10, check: true };
    scene.may(list(scene.inner));
    scene.may(Op::GetAttr(scene.seen()));
    // Another file takes the name, and then its own.
    scene.rename_with("tree/in/f", "out", RenameFlags { exchange: true, ..Default::default() });
    scene.may_not_use_it();
    scene.rename_with("tree/in/f", "out", RenameFlags { exchange: true, ..Default::default() });
    scene.may_use_it();
}

/// A rename within the subtree by another client ends nothing.
#[test]
fn file_renamed_within_stays_reachable() {
    let mut scene = Scene::new();
    scene.may(Op::Lookup(below(scene.inner, "f")));
    scene.rename("tree/in/f", "tree/g");
    for op in scene.uses() {
        if !matches!(op, Op::Link(..)) {
            scene.may(op);
        }
    }
    scene.rename("tree/g", "out/g");
    scene.may_not_use_it();
    scene.may_not(Op::GetAttr(seen(scene.file, scene.tree, "g")));
}

/// A file that keeps a name outside is out of reach without its name inside.
#[test]
fn name_outside_gives_nothing() {
    let mut scene = Scene::new();
    scene.may_use_it();
    let other = Op::Link(scene.seen(), at("out/other"));
    assert_eq!(errno(&scene.owner.execute(&scene.fixture, other)), 0);
    scene.may_use_it();
    assert_eq!(errno(&scene.owner.execute(&scene.fixture, Op::Unlink(at("tree/in/f")))), 0);
    scene.may_not_use_it();
}

/// An open file that has left the subtree can be read through its descriptors, and not opened,
/// changed by name or linked, until it is closed.
#[test]
fn open_file_that_left_is_not_opened_again() {
    let mut scene = Scene::new();
    opened(&scene.client.execute(&scene.fixture, Op::OpenAt(below(scene.inner, "f"), READ)));
    scene.rename("tree/in/f", "out/f");
    let of_descriptor = |op: &Op| matches!(op, Op::GetAttr(_) | Op::Chunks { .. });
    for op in scene.uses() {
        if of_descriptor(&op) { scene.may(op) } else { scene.may_not(op) }
    }
    assert_eq!(scene.lock(), 0);
    scene.may(Op::Release(scene.file));
    scene.may_not_use_it();
}

/// An open file without a name is the session's as before: nothing has left the subtree.
#[test]
fn removed_open_file_stays_usable() {
    let mut scene = Scene::new();
    opened(&scene.client.execute(&scene.fixture, Op::OpenAt(below(scene.inner, "f"), READ)));
    scene.may(Op::Unlink(below(scene.inner, "f")));
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let by_id = InodeRef::by_id(scene.file);
    scene.may(Op::Open(by_id.clone(), READ));
    scene.may(Op::SetAttr(by_id.clone(), mode));
    scene.may(Op::ListXattr(by_id));
    scene.may(Op::Release(scene.file));
    scene.may_not_use_it();
}
