//! All nodes have the same tokens, whichever node was given a change, and a node that was away gets
//! it before it lets a client in.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use std::sync::{Arc, Mutex};

use cluster::{Cluster, Site, at, eventually, mknod};
use kestrel_cluster::host::{Carrier, Undeliverable};
use kestrel_cluster::{Envelope, Message, TokensMessage};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_model::code as errno;
use kestrel_rpc::token::Token;
use kestrel_server::grant::Grant;
use kestrel_server::tokens::Tokens;
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Outcome, RenameFlags, Reply};
use kestrel_types::token::{Subtree, TokenId, TokenRecord};

fn issue(site: &Site, name: &str) -> TokenRecord {
    let token = Token::new(None).unwrap();
    let record = TokenRecord::new(token.id, name, token.verifier(), 0);
    site.running().server.tokens().learn(vec![record.clone()], 1).unwrap();
    record
}

fn revoke(site: &Site, record: &TokenRecord) {
    let revoked = TokenRecord { revoked: Some(7), ..record.clone() };
    site.running().server.tokens().learn(vec![revoked], 7).unwrap();
}

fn grant(site: &Site, id: TokenId) -> FsResult<Arc<Grant>> {
    site.running().server.tokens().grant(id, 8)
}

fn has_token(site: &Site, id: TokenId) -> bool {
    site.running().server.tokens().record(id).is_some()
}

#[test]
fn tokens_at_all_nodes() {
    let mut cluster = Cluster::start();
    let [one, two] = [issue(&cluster.sites[0], "one"), issue(&cluster.sites[1], "two")];
    for site in &cluster.sites {
        eventually("all nodes have both", || has_token(site, one.id) && has_token(site, two.id));
        eventually("and let their clients in", || grant(site, one.id).is_ok());
    }
    let confirmed = |site: &Site| site.running().server.tokens().confirmed();
    eventually("all are known to know", || confirmed(&cluster.sites[0]) == (vec![1, 2, 3], vec![]));
    // A session that goes on when its token is revoked at another node.
    let held = grant(&cluster.sites[2], one.id).unwrap();
    revoke(&cluster.sites[0], &one);
    eventually("it has ended everywhere", || held.ended().is_some());

    // A node that is away.
    cluster.sites[2].kill();
    revoke(&cluster.sites[0], &two);
    eventually("the others know", || {
        let (confirming, missing) = confirmed(&cluster.sites[0]);
        confirming.contains(&2) && (missing.is_empty() || missing == [3])
    });
    let three = issue(&cluster.sites[1], "three");
    // While one may still take it for good, what is revoked is not forgotten: that one would bring
    // it back.
    let early =
        cluster.sites[0].running().server.tokens().prune(9).expect_err("node 3 does not know");
    assert_eq!(early.errno, libc::EAGAIN);
    assert!(early.reason.contains("nodes [") && early.reason.contains('3'), "{early}");
    assert!(has_token(&cluster.sites[0], two.id));
    cluster.sites[2].run();
    // It still has the record that allows it, and does not go by that.
    eventually("it is back and knows", || {
        let back = grant(&cluster.sites[2], two.id);
        let why = back.expect_err("a revoked token is never let in");
        why.errno == libc::EACCES
    });
    eventually("it has what is new", || grant(&cluster.sites[2], three.id).is_ok());

    // What is of no use is forgotten everywhere.
    eventually("all are known to know what there is", || confirmed(&cluster.sites[1]).1.is_empty());
    assert_eq!(cluster.sites[1].running().server.tokens().prune(9).unwrap(), 2);
    for site in &cluster.sites {
        eventually("it is forgotten", || !has_token(site, one.id) && !has_token(site, two.id));
        assert!(has_token(site, three.id));
    }
}

/// What a node has sent.
#[derive(Default)]
struct Sent(Mutex<Vec<(NodeId, TokensMessage)>>);

impl Carrier for Sent {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Undeliverable>> {
        let Message::Tokens(message) = envelope.message else { panic!("{envelope:?}") };
        self.0.lock().unwrap().push((to, message));
        Ok(())
    }
}

/// A node that has forgotten a revoked token does not take it back from a node that handles the
/// message about it late, and tells that node again.
#[test]
fn forgotten_token_of_a_late_node() {
    let engine = Arc::new(MemoryEngine::shared(SyncWhen::Asked));
    let tokens = Tokens::read(engine).unwrap();
    let sent = Arc::new(Sent::default());
    tokens.are_shared(1, sent.clone(), Box::new(|| vec![1, 2, 3]));
    let record = |name: &str, revoked: Option<i64>| {
        let token = Token::new(None).unwrap();
        TokenRecord { revoked, ..TokenRecord::new(token.id, name, token.verifier(), 0) }
    };
    let [over, good, new] = [record("over", Some(7)), record("good", None), record("new", None)];
    tokens.learn(vec![over.clone(), good.clone()], 7).unwrap();
    let (_, TokensMessage::Digest(digest)) = sent.0.lock().unwrap()[0].clone() else { panic!() };
    for node in [2, 3] {
        tokens.receive(node, TokensMessage::Digest(digest), 8);
    }
    sent.0.lock().unwrap().clear();
    assert_eq!(tokens.prune(9).unwrap(), 1);
    let pruned = TokensMessage::Prune(vec![over.id]);
    assert_eq!(
        std::mem::take(&mut *sent.0.lock().unwrap()),
        [(2, pruned.clone()), (3, pruned.clone())]
    );

    tokens.receive(3, TokensMessage::Records(vec![over.clone(), good.clone(), new.clone()]), 9);
    assert_eq!(sent.0.lock().unwrap()[0], (3, pruned));
    assert_eq!(tokens.record(over.id), None);
    assert!([good.id, new.id].iter().all(|id| tokens.record(*id).is_some()));
}

fn made(answer: Answer) -> InodeId {
    match answer {
        Answer::Entry { inode, .. } => inode.ino,
        other => panic!("{other:?}"),
    }
}

fn is_outside(reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if why.errno == libc::ESTALE)
}

/// A rename that takes a directory out of a subtree ends its use at every node when it is answered,
/// wherever the names in it are led and even if the session was found to be allowed there just
/// before.
#[test]
fn a_rename_ends_the_use_of_a_subtree_at_all_nodes() {
    let cluster = Cluster::start();
    let owner = cluster.client();
    let [tree, inner, _] =
        ["tree", "tree/in", "out"].map(|dir| made(owner.done(Op::MkDir(at(dir), 0o777))));
    let token = Token::new(None).unwrap();
    let subtree = Some(Subtree { dir: tree, path: "/tree".into() });
    let record =
        TokenRecord { subtree, ..TokenRecord::new(token.id, "tenant", token.verifier(), 0) };
    cluster.sites[0].running().server.tokens().learn(vec![record], 1).unwrap();
    for site in &cluster.sites {
        eventually("all nodes let it in", || grant(site, token.id).is_ok());
    }
    let tenant = cluster.client_with(Some(Arc::new(token)));
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for name in names {
        owner.done(mknod(&format!("tree/in/{name}")));
    }
    let below = |name: &str| PathRef::from_path(inner, name.as_bytes()).unwrap();
    let list = || Op::ReadDir { dir: inner, after: None, limit: 20, check: false };
    let move_to = |from: &str, to: &str| {
        owner.done(Op::Rename(at(from), at(to), RenameFlags::default()));
    };
    for round in 0..10 {
        tenant.done(list());
        for name in names {
            tenant.done(Op::Lookup(below(name)));
        }
        move_to("tree/in", "out/in");
        let makes = Op::MkDir(below(&format!("late {round}")), 0o755);
        for op in names.map(|name| Op::Lookup(below(name))).into_iter().chain([list(), makes]) {
            let reply = tenant.execute(op.clone());
            assert!(is_outside(&reply), "round {round}: {op:?}: {reply:?}");
        }
        assert_eq!(errno(&tenant.execute(Op::Parent(tree))), 0);
        move_to("out/in", "tree/in");
    }
}

/// A rename that takes files out of a subtree ends their use at every node when it is answered,
/// whichever nodes their old and new names are led by.
#[test]
fn renamed_files_are_out_of_reach_at_all_nodes() {
    let cluster = Cluster::start();
    let owner = cluster.client();
    let [tree, inner, _] =
        ["tree", "tree/in", "out"].map(|dir| made(owner.done(Op::MkDir(at(dir), 0o777))));
    let token = Token::new(None).unwrap();
    let subtree = Some(Subtree { dir: tree, path: "/tree".into() });
    let record =
        TokenRecord { subtree, ..TokenRecord::new(token.id, "tenant", token.verifier(), 0) };
    cluster.sites[0].running().server.tokens().learn(vec![record], 1).unwrap();
    for site in &cluster.sites {
        eventually("all nodes let it in", || grant(site, token.id).is_ok());
    }
    let tenant = cluster.client_with(Some(Arc::new(token)));
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let files = names.map(|name| made(owner.done(mknod(&format!("tree/in/{name}")))));
    let seen = |index: usize| InodeRef {
        ino: files[index],
        seen: Some((inner, Name::new(names[index].as_bytes()).unwrap())),
    };
    let list = || Op::ReadDir { dir: inner, after: None, limit: 20, check: false };
    for round in 0..4 {
        tenant.done(list());
        for (index, name) in names.iter().enumerate() {
            tenant.done(Op::Lookup(PathRef::from_path(inner, name.as_bytes()).unwrap()));
            tenant.done(Op::GetAttr(seen(index)));
        }
        for name in names {
            let to = format!("out/{name}{round}");
            let from = format!("tree/in/{name}");
            owner.done(Op::Rename(at(&from), at(&to), RenameFlags::default()));
            let index = names.iter().position(|other| *other == name).unwrap();
            // A client asks the home of the file by number when another node does not know it.
            let asked = [
                Op::GetAttr(seen(index)),
                Op::GetAttr(InodeRef::by_id(files[index])),
                Op::Access(seen(index), libc::R_OK as u32),
                Op::Chunks { ino: files[index], first: 0, last: 1 },
            ];
            for op in asked {
                let reply = tenant.execute(op.clone());
                assert!(is_outside(&reply), "round {round}: {op:?}: {reply:?}");
            }
        }
        for name in names {
            let from = format!("out/{name}{round}");
            owner.done(Op::Rename(at(&from), at(&format!("tree/in/{name}")), Default::default()));
        }
    }
}
