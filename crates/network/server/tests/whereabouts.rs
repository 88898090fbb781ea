//! Nodes that are started again at other addresses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use cluster::{Cluster, eventually, mknod};
use kestrel_cluster::peer_identity::PeerIdentity;

/// All reach each other.
fn met(cluster: &Cluster, what: &str) {
    eventually(what, || {
        let up = |site: &cluster::Site| {
            site.running().peers.stats().values().filter(|link| link.up).count()
        };
        cluster.sites.iter().all(|site| up(site) == 2)
    });
}

/// Waits until each node has the address of each.
fn addresses_agree(cluster: &Cluster, what: &str) {
    eventually(what, || {
        let all = cluster.sites.iter().map(|site| (site.id, site.address.to_string())).collect();
        cluster.sites.iter().all(|site| site.running().host.addresses() == all)
    });
}

/// A node that restarts at another address is met there, and so are two at once, and all of them
/// after a restart.
#[test]
fn nodes_that_restart_elsewhere() {
    let mut cluster = Cluster::start();
    met(&cluster, "all meet");
    cluster.sites[1].kill();
    cluster.sites[1].run_elsewhere();
    addresses_agree(&cluster, "all know where the second is");
    met(&cluster, "it is met there");
    cluster.client().done(mknod("one"));

    // Each of two that move can learn the other's address only from the one that stays.
    cluster.sites[1].kill();
    cluster.sites[2].kill();
    cluster.sites[1].run_elsewhere();
    cluster.sites[2].run_elsewhere();
    addresses_agree(&cluster, "all know where both are");
    met(&cluster, "they are met there");
    cluster.client().done(mknod("two"));

    // What is on record is where they were last, not where the table has them.
    for site in &mut cluster.sites {
        site.kill();
    }
    for site in &mut cluster.sites {
        site.run();
    }
    met(&cluster, "all meet where they were last");
    cluster.client().done(mknod("three"));
    let engine = cluster.sites[0].running().host.node().engine().clone();
    let address = PeerIdentity::read(&*engine, 3).unwrap().unwrap().address;
    assert_eq!(address, Some(cluster.sites[2].address.to_string()));
}
