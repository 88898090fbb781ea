//! A client that shows a token does what it allows, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use common::{Client, Fixture, at, create, errno, hello, opened};
use kestrel_rpc::token::{OF_NODES, Token};
use kestrel_server::config::Access;
use kestrel_types::clock::SECOND;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Data;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{
    Accessed, Answer, Commit, Creds, NewData, Op, OpenFlags, Outcome, RenameFlags, Reply, Request,
    SetAttr,
};
use kestrel_types::security::{PeerName, Security};
use kestrel_types::token::{Ids, RANGES_MAX, Subtree, TokenRecord};
use kestrel_types::wire::{
    Answered, Body, Hello, LOCK_END, LockKind, LockMode, LockRequest, LockSpan, Reclaim,
    ReclaimOpen, ToClient, ToServer,
};

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

fn record(token: &Token) -> TokenRecord {
    TokenRecord::new(token.id, "test", token.verifier(), 0)
}

/// A token that is on record, as `change` makes it.
fn issue(fixture: &Fixture, change: impl FnOnce(&mut TokenRecord)) -> Arc<Token> {
    let token = Token::new(None).unwrap();
    let mut record = record(&token);
    change(&mut record);
    fixture.server.tokens().learn(vec![record], 0).unwrap();
    Arc::new(token)
}

fn revoke(fixture: &Fixture, token: &Token) {
    let record = fixture.server.tokens().record(token.id).unwrap();
    fixture.server.tokens().learn(vec![TokenRecord { revoked: Some(5), ..record }], 5).unwrap();
}

/// Connects with a token; what the last message was.
fn present(client: &mut Client, fixture: &Fixture, hello: Hello, token: &Token) -> ToClient {
    client.send_hello(fixture, Hello { token: Some(token.id), ..hello.clone() });
    let received = client.received();
    let [ToClient::Challenge(nonce)] = received.as_slice() else { panic!("{received:?}") };
    let proof = token.prove(nonce, &Hello { token: Some(token.id), ..hello }, &Security::Loopback);
    client.send(fixture, vec![ToServer::Proof(proof)]);
    fixture.sync();
    client.received().pop().unwrap()
}

/// A client with a token, and what it takes for the root.
fn holder(id: u8, fixture: &Fixture, token: &Token) -> (Client, InodeId) {
    let mut client = Client::new(id);
    client.incarnation = 1;
    match present(&mut client, fixture, hello(id, 1, false), token) {
        ToClient::Welcome(welcome) => (client, welcome.root),
        other => panic!("{other:?}"),
    }
}

fn refusal(message: &ToClient) -> (i32, &str) {
    match message {
        ToClient::Refused(refused) => (refused.errno, &refused.reason),
        other => panic!("{other:?}"),
    }
}

fn refused_over(fixture: &Fixture, security: Security, hello: Hello) -> Vec<ToClient> {
    let mut client = Client::new(9);
    client.send_hello_over(fixture, security, hello);
    fixture.sync();
    client.received()
}

fn execute_as(client: &mut Client, fixture: &Fixture, (uid, gid): (u32, u32), op: Op) -> Reply {
    let creds = Creds { uid, gid, groups: Some([].into()) };
    let call = client.call(Body::Op(Request { creds, op }));
    client.execute_call(fixture, call)
}

fn below(dir: InodeId, path: &str) -> PathRef {
    PathRef::from_path(dir, path.as_bytes()).unwrap()
}

fn dir_of(reply: &Reply) -> InodeId {
    match reply {
        Ok(Answer::Entry { inode, .. }) => inode.ino,
        other => panic!("{other:?}"),
    }
}

#[test]
fn access_modes() {
    let fixture = Fixture::new();
    let plain = refused_over(&fixture, Security::Plain, hello(1, 1, false));
    assert!(refusal(&plain[0]).1.contains("kestrel token create"), "{plain:?}");
    let tls = refused_over(&fixture, Security::Tls { peer: None }, hello(1, 1, false));
    assert_eq!(refusal(&tls[0]).0, libc::EACCES);
    let near = refused_over(&fixture, Security::Loopback, hello(1, 1, false));
    assert!(matches!(near[0], ToClient::Welcome(_)));
    // Never where others can read it.
    let token = issue(&fixture, |_| ());
    let shown = Hello { token: Some(token.id), ..hello(2, 1, false) };
    let plain = refused_over(&fixture, Security::Plain, shown.clone());
    assert!(refusal(&plain[0]).1.contains("TLS"), "{plain:?}");
    let answers = refused_over(&fixture, Security::Tls { peer: None }, shown);
    assert!(matches!(answers[0], ToClient::Challenge(_)));
    // A certificate of the volume's authority does.
    let certified = |name: String| Security::Tls { peer: Some(PeerName::Client(name)) };
    let welcomed = refused_over(&fixture, certified(token.id.to_string()), hello(3, 1, false));
    assert!(matches!(welcomed[0], ToClient::Welcome(_)));
    revoke(&fixture, &token);
    let refused = refused_over(&fixture, certified(token.id.to_string()), hello(4, 1, false));
    assert!(refusal(&refused[0]).1.contains("revoked"), "{refused:?}");
    let refused = refused_over(&fixture, certified("node 3".into()), hello(4, 1, false));
    assert_eq!(refusal(&refused[0]).0, libc::EACCES);
    for (access, near, far) in [(Access::Tokens, false, false), (Access::Open, true, true)] {
        let fixture = Fixture::with_access(access);
        for (id, security, welcome) in [(1, Security::Loopback, near), (2, Security::Plain, far)] {
            let received = refused_over(&fixture, security, hello(id, 1, false));
            assert_eq!(
                matches!(received[0], ToClient::Welcome(_)),
                welcome,
                "{access:?}: {received:?}"
            );
        }
    }
}

#[test]
fn proof_of_a_token() {
    let fixture = Fixture::with_access(Access::Tokens);
    let (token, other) = (issue(&fixture, |_| ()), Token::new(None).unwrap());
    let mut client = Client::new(1);
    let welcome = present(&mut client, &fixture, hello(1, 1, false), &token);
    assert!(matches!(welcome, ToClient::Welcome(_)));
    // A token of another volume.
    let refused = present(&mut Client::new(2), &fixture, hello(2, 1, false), &other);
    assert!(refusal(&refused).1.contains("no token"), "{refused:?}");
    // Its number is no secret, and is not enough; nor is an answer to another question.
    let named = Hello { token: Some(token.id), ..hello(3, 1, false) };
    let near = Security::Loopback;
    for proof in
        [[0; 32], token.prove(&[0; 32], &named, &near), other.prove(&[0; 32], &named, &near)]
    {
        let mut liar = Client::new(3);
        liar.send_hello(&fixture, named.clone());
        liar.received();
        liar.send(&fixture, vec![ToServer::Proof(proof)]);
        assert_eq!(refusal(&liar.received()[0]).0, libc::EACCES);
        assert!(liar.is_closed());
    }
    // Nothing is served before.
    let mut hasty = Client::new(4);
    hasty.send_hello(&fixture, Hello { token: Some(token.id), ..hello(4, 1, false) });
    let call = hasty.op(create("x"));
    hasty.send(&fixture, vec![ToServer::Call(call)]);
    assert_eq!(refusal(&hasty.received()[1]).0, libc::EPROTO);
    // Nor is a session of another token.
    let second = issue(&fixture, |_| ());
    let thief = present(&mut Client::new(1), &fixture, hello(1, 2, true), &second);
    assert!(refusal(&thief).1.contains("another token"), "{thief:?}");
}

#[test]
fn a_token_that_ends_ends_its_sessions() {
    let mut fixture = Fixture::new();
    let revoked = issue(&fixture, |_| ());
    let expires = 1000 * SECOND + 2 * SECOND;
    let short = issue(&fixture, |record| record.expires = Some(expires));
    let (mut one, _) = holder(1, &fixture, &revoked);
    let (mut two, _) = holder(2, &fixture, &short);
    opened(&one.execute(&fixture, create("a")));
    opened(&two.execute(&fixture, create("b")));
    assert_eq!(fixture.open_files(), 2);
    let administers = |one: &mut Client| {
        let call = one.call(Body::Admin((*b"{}").into()));
        one.send(&fixture, vec![ToServer::Call(call)]);
        match one.received().pop() {
            Some(ToClient::Reply(reply)) => matches!(reply.answered, Answered::Admin(Ok(_))),
            other => panic!("{other:?}"),
        }
    };
    assert!(administers(&mut one));
    revoke(&fixture, &revoked);
    assert!(!administers(&mut one));
    // At once, before the next tick.
    assert_eq!(errno(&one.execute(&fixture, Op::Lookup(at("a")))), libc::EACCES);
    fixture.pass(SECOND);
    assert!(one.is_closed() && refusal(one.received().last().unwrap()).1.contains("revoked"));
    assert_eq!(errno(&two.execute(&fixture, Op::Lookup(at("a")))), 0);
    fixture.clock.advance(2 * SECOND);
    fixture.pass(SECOND);
    assert!(two.is_closed() && refusal(two.received().last().unwrap()).1.contains("expired"));
    fixture.sync();
    assert_eq!(fixture.open_files(), 0);
    for (id, token) in [(1, &revoked), (2, &short)] {
        let refused = present(&mut Client::new(id), &fixture, hello(id, 7, true), token);
        assert_eq!(refusal(&refused).0, libc::EACCES);
    }
    // A restart does not forget.
    let fixture = fixture.crash(&mut [&mut one, &mut two]);
    let refused = present(&mut Client::new(5), &fixture, hello(5, 1, false), &revoked);
    assert!(refusal(&refused).1.contains("revoked"));
    // What is forgotten is as unknown as what never was.
    assert_eq!(fixture.server.tokens().prune(expires).unwrap(), 2);
    assert!(fixture.server.tokens().all().is_empty());
    let refused = present(&mut Client::new(6), &fixture, hello(6, 1, false), &revoked);
    assert!(refusal(&refused).1.contains("no token"));
}

/// A clock that jumps over a token's expiry and comes back leaves the token good, with and without
/// a session that saw it: sessions that ended by it begin anew. A revoked token stays revoked.
#[test]
fn a_clock_that_comes_back_leaves_tokens_good() {
    let mut fixture = Fixture::new();
    let now = 1000 * SECOND;
    let token = issue(&fixture, |record| record.expires = Some(now + 60 * SECOND));
    let (mut idle, _) = holder(1, &fixture, &token);
    fixture.clock.advance(3600 * SECOND);
    let refused = present(&mut Client::new(2), &fixture, hello(2, 1, false), &token);
    assert!(refusal(&refused).1.contains("expired"), "{refused:?}");
    // No call and no tick came meanwhile: the session goes on.
    fixture.clock.set(now);
    assert_eq!(errno(&idle.execute(&fixture, Op::Lookup(at("none")))), libc::ENOENT);
    // The session is ended while the clock is wrong, and begins anew when it is right.
    fixture.clock.advance(3600 * SECOND);
    fixture.pass(SECOND);
    assert!(idle.is_closed());
    fixture.clock.set(now + SECOND);
    let welcome = present(&mut Client::new(1), &fixture, hello(1, 2, true), &token);
    assert!(matches!(welcome, ToClient::Welcome(_)), "{welcome:?}");
    let (mut other, _) = holder(3, &fixture, &token);
    fixture.clock.advance(3600 * SECOND);
    revoke(&fixture, &token);
    fixture.clock.set(now + SECOND);
    assert_eq!(errno(&other.execute(&fixture, Op::Lookup(at("none")))), libc::EACCES);
    let refused = present(&mut Client::new(4), &fixture, hello(4, 1, false), &token);
    assert!(refusal(&refused).1.contains("revoked"), "{refused:?}");
}

#[test]
fn users_are_those_that_the_token_covers() {
    let fixture = Fixture::new();
    let token = issue(&fixture, |record| {
        record.uids = Ids::of(vec![(1000, 1999)]).unwrap();
        record.gids = Ids::of(vec![(100, 100), (1000, 1999)]).unwrap();
        record.map = [(500, 1500)].into();
    });
    let (mut client, root) = holder(1, &fixture, &token);
    assert_eq!(root, 1);
    let own = create("own");
    for (who, refused) in
        [((0, 0), true), ((999, 1000), true), ((1000, 0), true), ((1000, 100), false)]
    {
        let reply = execute_as(&mut client, &fixture, who, create("x"));
        assert_eq!(errno(&reply) == libc::EACCES, refused, "{who:?}");
    }
    let (inode, _) = opened(&execute_as(&mut client, &fixture, (500, 100), own));
    assert_eq!((inode.uid, inode.gid), (1500, 100));
    // Requests that do not depend on the user may be made by root, as mounts do.
    let seen = || InodeRef { ino: inode.ino, seen: Some((1, Name::new(b"own").unwrap())) };
    let (data, size) = (NewData::Inline((*b"x").into()), Some(1));
    let commit =
        Commit { inode: seen(), base: inode.data_change, data, size, mtime: 5, kill_suid: false };
    for op in [Op::GetAttr(seen()), Op::Commit(commit), Op::Sync, Op::Usage, Op::Release(inode.ino)]
    {
        assert_eq!(errno(&client.execute(&fixture, op.clone())), 0, "{op:?}");
    }
    assert_eq!(
        errno(&client.execute(
            &fixture,
            Op::SetAttr(seen(), SetAttr { uid: Some(0), ..SetAttr::default() })
        )),
        libc::EACCES
    );
    assert_eq!(errno(&client.execute(&fixture, Op::Unlink(at("own")))), libc::EACCES);
    // A listing that was not begun is not gone on with.
    let mut owner = Client::connected(7, &fixture);
    assert_eq!(errno(&owner.execute(&fixture, Op::MkDir(at("secret"), 0o700))), 0);
    let secret = dir_of(&owner.execute(&fixture, Op::Lookup(at("secret"))));
    let list = |dir, check| Op::ReadDir { dir, after: None, limit: 10, check };
    assert_eq!(errno(&client.execute(&fixture, list(secret, false))), libc::EACCES);
    assert_eq!(
        errno(&execute_as(&mut client, &fixture, (1000, 1000), list(secret, false))),
        libc::EACCES
    );
    assert_eq!(errno(&client.execute(&fixture, list(1, false))), libc::EACCES);
    assert_eq!(errno(&execute_as(&mut client, &fixture, (1000, 1000), list(1, true))), 0);
    assert_eq!(errno(&client.execute(&fixture, list(1, false))), 0);
    // Groups that the token does not cover are not had.
    assert_eq!(errno(&owner.execute(&fixture, Op::MkDir(at("group"), 0o070))), 0);
    let change = SetAttr { gid: Some(7), ..SetAttr::default() };
    let group = dir_of(&owner.execute(&fixture, Op::Lookup(at("group"))));
    assert_eq!(errno(&owner.execute(&fixture, Op::SetAttr(InodeRef::by_id(group), change))), 0);
    let creds = Creds { uid: 1000, gid: 1000, groups: Some([7, 100].into()) };
    let access = Op::Access(InodeRef::by_id(group), libc::R_OK as u32);
    let call = client.call(Body::Op(Request { creds, op: access }));
    assert_eq!(errno(&client.execute_call(&fixture, call)), libc::EACCES);
}

#[test]
fn what_no_node_could_read_again_is_not_put_on_record() {
    let fixture = Fixture::new();
    let many: Box<[_]> = (0..=RANGES_MAX as u32).map(|user| (user, 1000)).collect();
    let good = record(&Token::new(None).unwrap());
    for record in
        [TokenRecord { map: many, ..good.clone() }, TokenRecord { name: "a\nb".into(), ..good }]
    {
        let why = fixture.server.tokens().learn(vec![record], 0).unwrap_err();
        assert_eq!(why.errno, libc::EINVAL, "{why}");
    }
    assert!(fixture.server.tokens().all().is_empty());
    fixture.crash(&mut []);
}

#[test]
fn the_token_of_nodes_is_not_put_on_record() {
    let fixture = Fixture::new();
    fixture.server.tokens().let_nodes_in(b"secret");
    let on_record = fixture.server.tokens().record(OF_NODES).unwrap();
    let ours = record(&Token::new(None).unwrap());
    let revoked = TokenRecord { revoked: Some(1), ..on_record };
    for record in [TokenRecord { id: OF_NODES, ..ours }, revoked] {
        assert_eq!(fixture.server.tokens().learn(vec![record], 5).unwrap_err().errno, libc::EPERM);
    }
    assert!(fixture.server.tokens().all().is_empty());
}

#[test]
fn root_is_squashed() {
    let fixture = Fixture::new();
    let token = issue(&fixture, |record| record.squash = Some((65_534, 65_533)));
    let (mut client, _) = holder(1, &fixture, &token);
    let (inode, _) = opened(&client.execute(&fixture, create("a")));
    assert_eq!((inode.uid, inode.gid), (65_534, 65_533));
    let mut owner = Client::connected(7, &fixture);
    assert_eq!(errno(&owner.execute(&fixture, Op::MkDir(at("secret"), 0o700))), 0);
    assert_eq!(errno(&client.execute(&fixture, create("secret/x"))), libc::EACCES);
}

#[test]
fn nothing_is_changed_with_a_read_only_token() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let (inode, _) = opened(&owner.execute(&fixture, create("a")));
    let token = issue(&fixture, |record| record.read_only = true);
    let (mut client, _) = holder(1, &fixture, &token);
    let file = || InodeRef { ino: inode.ino, seen: Some((1, Name::new(b"a").unwrap())) };
    let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let (write, cut) = (OpenFlags { write: true, ..READ }, OpenFlags { truncate: true, ..READ });
    for op in [
        create("b"),
        Op::SetAttr(file(), mode),
        Op::Accessed(file(), Accessed { at: 1, relative: false }),
        Op::Open(file(), write),
        Op::OpenAt(at("a"), cut),
        Op::TmpFile { dir: 1, mode: 0o600, exclusive: false },
        Op::MkDir(at("d"), 0o755),
        Op::Symlink(at("s"), b"x"[..].into()),
        Op::Unlink(at("a")),
        Op::RmDir(at("a"), None),
        Op::Rename(at("a"), at("b"), RenameFlags::default()),
        Op::Link(file(), at("b")),
        Op::SetXattr(file(), b"user.x"[..].into(), b"1"[..].into(), Default::default()),
        Op::RemoveXattr(file(), b"user.x"[..].into()),
        Op::AllocObjects(1),
    ] {
        assert_eq!(errno(&client.execute(&fixture, op.clone())), libc::EROFS, "{op:?}");
    }
    for op in [Op::Lookup(at("a")), Op::OpenAt(at("a"), READ), Op::Release(inode.ino), Op::Sync] {
        assert_eq!(errno(&client.execute(&fixture, op.clone())), 0, "{op:?}");
    }
    assert_eq!(
        lock(&mut client, &fixture, inode.ino, LockKind::Posix, LockMode::Write),
        libc::EBADF
    );
    assert_eq!(lock(&mut client, &fixture, inode.ino, LockKind::Posix, LockMode::Read), 0);
    assert_eq!(lock(&mut client, &fixture, inode.ino, LockKind::Flock, LockMode::Write), 0);
}

fn lock(
    client: &mut Client,
    fixture: &Fixture,
    ino: InodeId,
    kind: LockKind,
    mode: LockMode,
) -> i32 {
    let lock = LockSpan { ino, owner: 5, pid: 1, kind, mode, start: 0, end: LOCK_END };
    let call = client.call(Body::Lock(LockRequest::Set { lock, wait: false }));
    client.send(fixture, vec![ToServer::Call(call)]);
    match client.received().as_slice() {
        [ToClient::Reply(reply)] => match &reply.answered {
            Answered::Lock(reply) => reply.as_ref().map_or_else(|why| why.errno, |_| 0),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// `tree/in/f`, `tree/also`, `out/g`; the numbers of `tree`, `in`, `f`, `out`, `g`.
fn trees(fixture: &Fixture, owner: &mut Client) -> [InodeId; 5] {
    let made = ["tree", "tree/in", "out"]
        .map(|dir| dir_of(&owner.execute(fixture, Op::MkDir(at(dir), 0o777))));
    let files =
        ["tree/in/f", "out/g"].map(|file| opened(&owner.execute(fixture, create(file))).0.ino);
    [made[0], made[1], files[0], made[2], files[1]]
}

fn confined(fixture: &Fixture, dir: InodeId) -> Arc<Token> {
    issue(fixture, |record| record.subtree = Some(Subtree { dir, path: "/tree".into() }))
}

fn is_outside(reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if matches!(why.errno, libc::ESTALE | libc::ENOENT))
}

#[test]
fn nothing_leads_out_of_a_subtree() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let [tree, inner, f, out, g] = trees(&fixture, &mut owner);
    let (mut client, root) = holder(1, &fixture, &confined(&fixture, tree));
    assert_eq!(root, tree);
    // What is there.
    assert_eq!(dir_of(&client.execute(&fixture, Op::Lookup(below(tree, "in")))), inner);
    assert_eq!(dir_of(&client.execute(&fixture, Op::Lookup(below(inner, "f")))), f);
    assert_eq!(dir_of(&client.execute(&fixture, Op::Lookup(below(tree, "in/f")))), f);
    // `..` ends at the root of the subtree, by each way.
    for (dir, above) in [(inner, tree), (tree, tree)] {
        let Ok(Answer::Inode(inode)) = client.execute(&fixture, Op::Parent(dir)) else {
            panic!("no parent")
        };
        assert_eq!(inode.ino, above);
        let list = Op::ReadDir { dir, after: None, limit: 10, check: true };
        let Ok(Answer::Entries { parent, .. }) = client.execute(&fixture, list) else {
            panic!("no listing")
        };
        assert_eq!(parent, above);
    }
    // Numbers it was not given.
    let seen_at = |ino, dir, name: &str| InodeRef {
        ino,
        seen: Some((dir, Name::new(name.as_bytes()).unwrap())),
    };
    let flags = RenameFlags::default();
    let mode = || SetAttr { mode: Some(0), ..SetAttr::default() };
    for op in [
        Op::Lookup(at("out")),
        Op::Lookup(below(out, "g")),
        Op::GetAttr(InodeRef::by_id(1)),
        Op::GetAttr(InodeRef::by_id(g)),
        Op::GetAttr(seen_at(g, out, "g")),
        // A lie about where it was seen.
        Op::GetAttr(seen_at(g, inner, "f")),
        Op::GetAttr(seen_at(g, inner, "none")),
        Op::SetAttr(InodeRef::by_id(out), mode()),
        Op::SetAttr(seen_at(g, out, "g"), mode()),
        Op::Open(seen_at(g, out, "g"), READ),
        Op::OpenAt(below(out, "g"), READ),
        Op::ReadDir { dir: out, after: None, limit: 10, check: false },
        Op::ReadDir { dir: 1, after: None, limit: 10, check: true },
        Op::Parent(out),
        Op::TreeUsage(1),
        Op::Chunks { ino: g, first: 0, last: 0 },
        Op::Access(seen_at(g, out, "g"), 0),
        Op::GetXattr(seen_at(g, out, "g"), b"user.x"[..].into()),
        Op::ListXattr(InodeRef::by_id(out)),
        Op::TmpFile { dir: out, mode: 0o600, exclusive: false },
        Op::MkDir(at("mine"), 0o755),
        Op::Symlink(below(out, "s"), b"x"[..].into()),
        Op::Unlink(below(out, "g")),
        Op::RmDir(at("out"), None),
        Op::Link(seen_at(g, out, "g"), below(tree, "stolen")),
        Op::Link(seen_at(f, inner, "f"), below(out, "given")),
        Op::Rename(below(inner, "f"), below(out, "f"), flags),
        Op::Rename(below(out, "g"), below(tree, "g"), flags),
        Op::Rename(below(out, "g"), below(tree, "in"), RenameFlags { exchange: true, ..flags }),
    ] {
        let reply = client.execute(&fixture, op.clone());
        assert!(is_outside(&reply), "{op:?}: {reply:?}");
    }
    let (mine, _) = opened(&client.execute(
        &fixture,
        Op::Create {
            place: below(tree, "mine"),
            mode: 0o644,
            flags: OpenFlags { write: true, ..READ },
            exclusive: true,
        },
    ));
    let copy = |from, to| Op::Clone { from, from_offset: 0, to, to_offset: 0, len: 1 };
    let reply =
        client.execute(&fixture, copy(seen_at(g, out, "g"), seen_at(mine.ino, tree, "mine")));
    assert!(is_outside(&reply), "{reply:?}");
    assert_eq!(lock(&mut client, &fixture, g, LockKind::Flock, LockMode::Read), libc::ESTALE);
    assert_eq!(lock(&mut client, &fixture, mine.ino, LockKind::Flock, LockMode::Read), 0);
    // A link with an absolute target is the client's to follow, within what it has.
    let target = || b"/out/g"[..].into();
    assert_eq!(errno(&client.execute(&fixture, Op::Symlink(below(tree, "link"), target()))), 0);
    let through = client.execute(&fixture, Op::Lookup(below(tree, "link/x")));
    assert!(matches!(through, Err(Outcome::Symlink { dir, .. }) if dir == tree), "{through:?}");
    // Names within are its own, and what is outside is as it was.
    let within = Op::Rename(below(inner, "f"), below(tree, "f"), flags);
    assert_eq!(errno(&client.execute(&fixture, within)), 0);
    assert_eq!(errno(&client.execute(&fixture, Op::GetAttr(seen_at(f, tree, "f")))), 0);
    assert_eq!(dir_of(&owner.execute(&fixture, Op::Lookup(at("out/g")))), g);
}

/// The requests that a client may make about a directory that it was granted, and a file and a
/// directory in it.
fn uses(dir: InodeId, below_it: InodeId, file: InodeId) -> [Op; 9] {
    let seen = || InodeRef { ino: file, seen: Some((dir, Name::new(b"f").unwrap())) };
    let creation = |dir| Op::Create {
        place: below(dir, "late"),
        mode: 0o644,
        flags: OpenFlags { write: true, ..READ },
        exclusive: false,
    };
    [
        Op::ReadDir { dir, after: None, limit: 10, check: true },
        Op::ReadDir { dir, after: None, limit: 10, check: false },
        Op::Lookup(below(dir, "f")),
        Op::GetAttr(seen()),
        Op::Access(seen(), libc::R_OK as u32),
        Op::Open(seen(), READ),
        creation(dir),
        creation(below_it),
        Op::GetAttr(InodeRef::by_id(dir)),
    ]
}

/// The rename that takes a directory out of a subtree ends its use, no matter what the session did
/// before: it may have been idle, or have renewed what it was given at the last moment, over and
/// over, by ever deeper directories.
#[test]
fn a_rename_out_of_a_subtree_ends_its_use() {
    let mut fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let [tree, inner, f, ..] = trees(&fixture, &mut owner);
    let (mut client, _) = holder(1, &fixture, &confined(&fixture, tree));
    let deep = dir_of(&client.execute(&fixture, Op::MkDir(below(inner, "deep"), 0o777)));
    let elsewhere = dir_of(&client.execute(&fixture, Op::MkDir(below(tree, "elsewhere"), 0o777)));
    for round in 0..4 {
        for op in uses(inner, deep, f) {
            let reply = client.execute(&fixture, op.clone());
            assert_eq!(errno(&reply), 0, "{op:?}");
            // What is open would stay so.
            if let Ok(Answer::Opened { inode, .. }) = reply {
                assert_eq!(errno(&client.execute(&fixture, Op::Release(inode.ino))), 0);
            }
        }
        // Between the uses and the rename pass no time, some, and more than any lease.
        for _ in 0..round * 5 {
            fixture.pass(SECOND);
            for session in [&mut client, &mut owner] {
                session.send(&fixture, vec![ToServer::Ping { oldest_open_object: 0 }]);
                session.received();
            }
            if round == 3 {
                assert_eq!(errno(&client.execute(&fixture, Op::Lookup(below(deep, "late")))), 0);
            }
        }
        let flags = RenameFlags::default();
        assert_eq!(
            errno(&owner.execute(&fixture, Op::Rename(at("tree/in"), at("out/in"), flags))),
            0
        );
        for _ in 0..2 {
            for op in uses(inner, deep, f) {
                let reply = client.execute(&fixture, op.clone());
                assert!(is_outside(&reply), "round {round}: {op:?}: {reply:?}");
            }
        }
        assert_eq!(errno(&client.execute(&fixture, Op::GetAttr(InodeRef::by_id(elsewhere)))), 0);
        assert_eq!(
            errno(&owner.execute(&fixture, Op::Rename(at("out/in"), at("tree/in"), flags))),
            0
        );
    }
    assert_eq!(errno(&client.execute(&fixture, Op::RmDir(below(tree, "elsewhere"), None))), 0);
    let moved = Op::Rename(at("tree/in"), at("out/in"), RenameFlags::default());
    assert_eq!(errno(&owner.execute(&fixture, moved)), 0);
    // The subtree's root may go anywhere.
    assert_eq!(
        errno(
            &owner.execute(&fixture, Op::Rename(at("tree"), at("out/t"), RenameFlags::default()))
        ),
        0
    );
    assert_eq!(errno(&client.execute(&fixture, Op::MkDir(below(tree, "d"), 0o755))), 0);
    // And when it is gone there is nothing.
    for gone in ["out/t/d", "out/t"] {
        assert_eq!(errno(&owner.execute(&fixture, Op::RmDir(at(gone), None))), 0);
    }
    assert!(is_outside(&client.execute(&fixture, Op::MkDir(below(tree, "d"), 0o755))));
    assert_eq!(dir_of(&owner.execute(&fixture, Op::Lookup(at("out/in/f")))), f);
}

#[test]
fn nothing_outside_is_claimed_after_a_restart() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let [tree, inner, f, out, g] = trees(&fixture, &mut owner);
    let token = confined(&fixture, tree);
    let (mut client, _) = holder(1, &fixture, &token);
    opened(&client.execute(&fixture, Op::OpenAt(below(tree, "in/f"), READ)));
    assert_eq!(lock(&mut client, &fixture, f, LockKind::Flock, LockMode::Read), 0);
    let fixture = fixture.crash(&mut [&mut client, &mut owner]);
    let welcome = present(&mut client, &fixture, hello(1, 2, true), &token);
    assert!(matches!(welcome, ToClient::Welcome(_)), "{welcome:?}");
    let seen_at = |ino, dir, name: &str| InodeRef {
        ino,
        seen: Some((dir, Name::new(name.as_bytes()).unwrap())),
    };
    let open = |file| ReclaimOpen { file, count: 1, linkable: false };
    let span = |ino| LockSpan {
        ino,
        owner: 5,
        pid: 1,
        kind: LockKind::Flock,
        mode: LockMode::Read,
        start: 0,
        end: LOCK_END,
    };
    let opens = vec![open(seen_at(f, inner, "f")), open(seen_at(g, out, "g"))];
    let locks = vec![span(f), span(g)];
    let claim = Reclaim { last: true, oldest_open_object: 0, opens, locks, objects: Vec::new() };
    let lost = client.reclaim(&fixture, claim);
    assert_eq!((lost.lost_opens, lost.lost_locks), (vec![g], vec![1]));
    assert_eq!(errno(&client.execute(&fixture, Op::GetAttr(seen_at(f, inner, "f")))), 0);
    assert!(is_outside(&client.execute(&fixture, Op::GetAttr(seen_at(g, out, "g")))));
}

/// Makes a file with one byte of content; its number and the name under which it was seen.
fn small_file(fixture: &Fixture, owner: &mut Client, name: &str, mode: u16) -> InodeRef {
    let flags = OpenFlags { write: true, ..READ };
    let made = owner.execute(
        fixture,
        Op::Create { place: at(name), mode: mode.into(), flags, exclusive: true },
    );
    let (inode, _) = opened(&made);
    let file = InodeRef { ino: inode.ino, seen: Some((1, Name::new(name.as_bytes()).unwrap())) };
    assert_eq!(errno(&owner.execute(fixture, write_to(&file, inode.data_change))), 0);
    file
}

fn write_to(file: &InodeRef, base: u64) -> Op {
    let data = NewData::Inline((*b"x").into());
    Op::Commit(Commit {
        inode: file.clone(),
        base,
        data,
        size: Some(1),
        mtime: 5,
        kill_suid: false,
    })
}

#[test]
fn a_claim_gives_no_more_than_an_open_would() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let [secret, public, own] = [("secret", 0o600), ("public", 0o644), ("own", 0o400)]
        .map(|(name, mode)| small_file(&fixture, &mut owner, name, mode));
    let give = SetAttr { uid: Some(1000), ..SetAttr::default() };
    assert_eq!(errno(&owner.execute(&fixture, Op::SetAttr(own.clone(), give))), 0);
    let token = issue(&fixture, |record| record.uids = Ids::of(vec![(1000, 1999)]).unwrap());
    let mut client = Client::new(1);
    client.incarnation = 1;
    present(&mut client, &fixture, hello(1, 1, true), &token);
    let open = |file: &InodeRef, count| ReclaimOpen { file: file.clone(), count, linkable: false };
    let claim = |opens| Reclaim { last: true, opens, ..Reclaim::default() };
    let opens = vec![open(&secret, 1), open(&public, 1), open(&own, 1)];
    assert_eq!(client.reclaim(&fixture, claim(opens.clone())).lost_opens, [secret.ino]);
    fixture.server.tick(fixture.now);
    for (file, refused) in [(&secret, libc::EBADF), (&public, libc::EBADF), (&own, 0)] {
        let Ok(Answer::Inode(inode)) = owner.execute(&fixture, Op::GetAttr(file.clone())) else {
            panic!()
        };
        let reply = client.execute(&fixture, write_to(file, inode.data_change));
        assert_eq!(errno(&reply), refused, "{}", file.ino);
    }
    // When it is over, it is over: what it has is still its, and nothing more is had.
    let more = vec![open(&own, 1), open(&public, 2)];
    assert_eq!(client.reclaim(&fixture, claim(more)).lost_opens, [public.ino]);
    let late = owner.reclaim(&fixture, claim(vec![open(&secret, 1), open(&own, 2)]));
    assert_eq!(late.lost_opens, [own.ino]);
}

/// A retry outside the subtree gets the answer on record.
#[test]
fn retry_outside_the_subtree() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let [tree, inner, ..] = trees(&fixture, &mut owner);
    let token = confined(&fixture, tree);
    let (mut client, _) = holder(1, &fixture, &token);
    let mut made = client.op(Op::MkDir(below(inner, "d"), 0o755));
    let dir = dir_of(&client.execute_call(&fixture, made.clone()));
    let moved = Op::Rename(at("tree/in"), at("out/in"), RenameFlags::default());
    assert_eq!(errno(&owner.execute(&fixture, moved)), 0);
    let fixture = fixture.crash(&mut [&mut client, &mut owner]);
    let welcome = present(&mut client, &fixture, hello(1, 2, true), &token);
    assert!(matches!(welcome, ToClient::Welcome(_)), "{welcome:?}");
    client.incarnation = 2;
    client.reclaim(&fixture, Reclaim { last: true, ..Reclaim::default() });
    made.retry = true;
    assert_eq!(dir_of(&client.execute_call(&fixture, made)), dir);
    // A request that comes for the first time is refused.
    let more = client.execute(&fixture, Op::MkDir(below(inner, "e"), 0o755));
    assert!(is_outside(&more), "{more:?}");
}

fn shown(reply: &Reply) -> &Data {
    match reply {
        Ok(Answer::Inode(inode) | Answer::Entry { inode, .. } | Answer::Opened { inode, .. })
        | Ok(Answer::Removed(inode) | Answer::Renamed { other: Some(inode), .. }) => &inode.data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn content_only_for_readers() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let anybody = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    assert_eq!(errno(&owner.execute(&fixture, Op::SetAttr(InodeRef::by_id(1), anybody))), 0);
    let [secret, _, public] = [("secret", 0o600), ("other", 0o600), ("public", 0o644)]
        .map(|(name, mode)| small_file(&fixture, &mut owner, name, mode));
    assert_eq!(
        *shown(&owner.execute(&fixture, Op::GetAttr(secret.clone()))),
        Data::Inline((*b"x").into())
    );
    let token = issue(&fixture, |record| record.uids = Ids::of(vec![(1000, 1999)]).unwrap());
    let (mut client, _) = holder(1, &fixture, &token);
    let mut execute = |op| execute_as(&mut client, &fixture, (1000, 1000), op);
    let is_content = |reply: &Reply| *shown(reply) == Data::Inline((*b"x").into());
    for op in
        [Op::GetAttr(public.clone()), Op::Lookup(at("public")), Op::Open(public.clone(), READ)]
    {
        let reply = execute(op.clone());
        assert!(is_content(&reply), "{op:?}: {reply:?}");
    }
    // An open for nothing is one for reading.
    let nothing = OpenFlags { read: false, ..READ };
    for op in [
        Op::Open(secret.clone(), READ),
        Op::Open(secret.clone(), nothing),
        Op::OpenAt(at("secret"), nothing),
        Op::Create { place: at("secret"), mode: 0o644, flags: nothing, exclusive: false },
    ] {
        assert_eq!(errno(&execute(op.clone())), libc::EACCES, "{op:?}");
    }
    for op in [
        Op::GetAttr(secret.clone()),
        Op::Lookup(at("secret")),
        Op::Rename(at("public"), at("secret"), RenameFlags::default()),
        Op::Unlink(at("other")),
    ] {
        let reply = execute(op.clone());
        // Nor is it taken for a hole.
        assert!(matches!(shown(&reply), Data::Packed { .. }), "{op:?}: {reply:?}");
    }
}

/// A session for some users must have open what it compacts and what it copies from.
#[test]
fn opens_for_compaction_and_copy_with_token() {
    let fixture = Fixture::new();
    let mut owner = Client::connected(7, &fixture);
    let from = small_file(&fixture, &mut owner, "from", 0o644);
    let to = small_file(&fixture, &mut owner, "to", 0o666);
    let token = issue(&fixture, |record| record.uids = Ids::of(vec![(1000, 1999)]).unwrap());
    let (mut client, _) = holder(1, &fixture, &token);
    let who = (1000, 1000);
    let write = OpenFlags { write: true, ..READ };
    opened(&execute_as(&mut client, &fixture, who, Op::Open(to.clone(), write)));
    let copy =
        || Op::Clone { from: from.clone(), from_offset: 0, to: to.clone(), to_offset: 0, len: 1 };
    let reply = execute_as(&mut client, &fixture, who, copy());
    assert!(
        matches!(&reply, Err(Outcome::Failed(why)) if why.reason.contains("does not have")),
        "{reply:?}"
    );
    opened(&execute_as(&mut client, &fixture, who, Op::Open(from.clone(), READ)));
    let reply = execute_as(&mut client, &fixture, who, copy());
    assert!(
        !matches!(&reply, Err(Outcome::Failed(why)) if why.reason.contains("does not have")),
        "{reply:?}"
    );
    let compact = |inode: &InodeRef| Op::Compact {
        inode: inode.clone(),
        chunk: 0,
        old: Vec::new(),
        new: Vec::new(),
    };
    assert_eq!(errno(&client.execute(&fixture, compact(&from))), libc::EBADF);
    assert_ne!(errno(&client.execute(&fixture, compact(&to))), libc::EBADF);
}

/// Snapshots by tokens: one that is confined to a subtree has none, a read-only one reads and lists
/// them, and one for some users reads as these, with the permissions of then.
#[test]
fn tokens_and_snapshots() {
    let fixture = Fixture::new();
    let root = (0, 0);
    let all = issue(&fixture, |_| ());
    let (mut admin, top) = holder(1, &fixture, &all);
    let dir =
        dir_of(&execute_as(&mut admin, &fixture, root, Op::MkDir(below(top, "private"), 0o700)));
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let create = |dir, of: &str| Op::SnapshotCreate { dir, name: name(of) };
    let made = execute_as(&mut admin, &fixture, root, create(dir, "monday"));
    let Ok(Answer::Snapshots(made)) = made else { panic!("{made:?}") };
    let at = |op: Op| Op::At(made[0].id, Box::new(op));
    let list = |check| Op::ReadDir { dir, after: None, limit: 10, check };

    let confined = issue(&fixture, |record| {
        record.subtree = Some(Subtree { dir, path: "/private".into() });
    });
    let (mut client, _) = holder(2, &fixture, &confined);
    let listing = Op::SnapshotList { dir: Some(dir), ancestors: false };
    for op in [at(list(true)), listing.clone(), create(dir, "mine")] {
        assert_eq!(errno(&execute_as(&mut client, &fixture, root, op)), libc::EPERM);
    }

    let reader = issue(&fixture, |record| record.read_only = true);
    let (mut client, _) = holder(3, &fixture, &reader);
    for op in [at(list(true)), listing] {
        assert_eq!(errno(&execute_as(&mut client, &fixture, root, op)), 0);
    }
    let remove = Op::SnapshotRemove { dir, name: name("monday") };
    for op in [create(dir, "mine"), remove] {
        assert_eq!(errno(&execute_as(&mut client, &fixture, root, op)), libc::EROFS);
    }

    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let opened = Op::SetAttr(InodeRef::by_id(dir), open);
    assert_eq!(errno(&execute_as(&mut admin, &fixture, root, opened)), 0);
    let users = issue(&fixture, |record| record.uids = Ids::of(vec![(1000, 1000)]).unwrap());
    let (mut client, _) = holder(4, &fixture, &users);
    let user = (1000, 1000);
    assert_eq!(errno(&execute_as(&mut client, &fixture, user, list(true))), 0);
    // That it may be listed now says nothing of then.
    for check in [true, false] {
        assert_eq!(errno(&execute_as(&mut client, &fixture, user, at(list(check)))), libc::EACCES);
    }
    assert_eq!(errno(&execute_as(&mut client, &fixture, root, at(list(true)))), libc::EACCES);
}
