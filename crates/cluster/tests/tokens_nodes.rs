//! All nodes know the same tokens, whichever was told, and whoever was away hears of it before it lets anybody in.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use std::sync::Arc;

use cluster::{Cluster, Site, eventually};
use kestrel_cluster::grant::Grant;
use kestrel_net::token::Token;
use kestrel_types::error::FsResult;
use kestrel_types::token::{TokenId, TokenRecord};

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

fn knows(site: &Site, id: TokenId) -> bool {
    site.running().server.tokens().record(id).is_some()
}

#[test]
fn every_node_learns_what_any_node_was_told() {
    let mut cluster = Cluster::start();
    let [one, two] = [issue(&cluster.sites[0], "one"), issue(&cluster.sites[1], "two")];
    for site in &cluster.sites {
        eventually("all nodes have both", || knows(site, one.id) && knows(site, two.id));
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
        let (known, missing) = confirmed(&cluster.sites[0]);
        known.contains(&2) && (missing.is_empty() || missing == [3])
    });
    let three = issue(&cluster.sites[1], "three");
    // While one may still take it for good, what is revoked is not forgotten: that one would bring it back.
    let early = cluster.sites[0].running().server.tokens().prune(9).expect_err("node 3 does not know");
    assert_eq!(early.errno, libc::EAGAIN);
    assert!(early.reason.contains("nodes [") && early.reason.contains('3'), "{early}");
    assert!(knows(&cluster.sites[0], two.id));
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
        eventually("it is forgotten", || !knows(site, one.id) && !knows(site, two.id));
        assert!(knows(site, three.id));
    }
}
