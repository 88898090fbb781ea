//! Connecting: what the first node tells, and what the others must be.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use kestrel_client::remote::ask_each;
use kestrel_types::placement::{Member, PlacementMap, SlotMap};
use serde_json::json;

use crate::client::Client;
use crate::cluster::{Cluster, DEADLINE, hex, until};

/// Long enough to connect, short enough to wait for what fails.
const SOON: Duration = Duration::from_millis(800);

fn refusal(url: &str) -> String {
    Client::try_mount(url, SOON).err().unwrap().to_string()
}

fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_volume_without_a_table_has_one_connection() {
    let cluster = Cluster::of_one();
    let client = Client::mount(&cluster.url(0));
    assert!(client.metadata().placement().is_none());
    let nodes = client.metadata().nodes();
    assert_eq!(
        (nodes.len(), nodes[0].node, &nodes[0].address()),
        (1, 0, &cluster.served[0].address())
    );
    let file = client.create("file");
    client.write(&file, &[7; 100_000]);
    assert_eq!(client.read(&file), [7; 100_000]);
    client.close(file);
    assert_eq!(*cluster.notes(0).hellos.lock(), 1);
    assert_eq!(client.fs.metadata().stats().open_files, 0);
}

/// Each node tells a client about the other nodes, and the client does not connect to the first one
/// again.
#[test]
fn mount_by_the_address_of_any_node() {
    let cluster = Cluster::start();
    for first in [0, 2] {
        let url = format!("kestrel://{},{}/vol", nobody(), cluster.served[first].address());
        let client = Client::mount(&url);
        let nodes = client.metadata().nodes();
        let nodes = nodes.iter().map(|node| (node.node, node.address()));
        let table =
            cluster.table.map.members().iter().map(|member| (member.id, member.address.clone()));
        assert_eq!(nodes.collect::<Vec<_>>(), table.collect::<Vec<_>>());
        assert_eq!(client.metadata().placement().as_deref(), Some(&cluster.table));
        let file = client.create("file");
        client.write(&file, &vec![first as u8; 200_000]);
        client.close(file);
        let asks = |op: &kestrel_types::request::Op| format!("{op:?}").starts_with("AllocObjects");
        let hands_out: Vec<bool> =
            (0..3).map(|at| cluster.notes(at).take().iter().any(asks)).collect();
        assert_eq!(hands_out, [first == 0, false, first == 2]);
        let stats = client.fs.metadata().connection_stats().unwrap();
        assert_eq!((stats.reconnects, stats.failed, stats.outage), (0, 0, None));
        let each: u64 =
            client.metadata().nodes().iter().map(|node| node.remote.stats().calls).sum();
        assert_eq!(stats.calls, each);
    }
    let hellos: Vec<u64> = (0..3).map(|at| *cluster.notes(at).hellos.lock()).collect();
    assert_eq!(hellos, [2, 2, 2]);
    cluster.check();
}

#[test]
fn another_node_at_an_address_is_told() {
    let mut cluster = Cluster::of(3);
    cluster.offer.placement = Some(hex(&cluster.table));
    cluster.serve(0);
    cluster.serve_as(1, 3);
    cluster.serve(2);
    let (error, address) = (refusal(&cluster.url(0)), cluster.served[1].address());
    assert!(error.contains(&format!("at {address} answers node 3, not node 2")), "{error}");
    assert!(!error.contains("node 3 at 127"), "the others are what they should be: {error}");
}

/// Without one node of three a volume is mounted, and what the other nodes own can be used; the
/// connection to the absent node is made when it is there.
#[test]
fn mount_without_one_node() {
    let mut cluster = Cluster::start();
    cluster.kill(2);
    let client = Client::try_mount(&cluster.url(1), DEADLINE).unwrap();
    let up = |at: usize| client.metadata().nodes()[at].remote.is_up();
    assert_eq!([0, 1, 2].map(up), [true, true, false]);
    let name = cluster.name_at(1, 0);
    let file = client.create(&name);
    client.write(&file, &[7; 100_000]);
    assert_eq!(client.read(&file), [7; 100_000]);
    client.close(file);
    cluster.restart(2);
    until("the third node is connected", || up(2));
    let file = client.create(&cluster.name_at(2, 0));
    client.write(&file, &[8; 1000]);
    client.close(file);
}

/// The error of a mount that lacks most of the nodes names those that do not answer and what would
/// help.
#[test]
fn mount_error_without_most_nodes() {
    let mut cluster = Cluster::start();
    cluster.kill(2);
    cluster.kill(0);
    let error = refusal(&cluster.url(1));
    for at in [0, 2] {
        let named = format!("node {}: {}", at + 1, cluster.served[at].address());
        assert!(error.contains(&named), "{error}");
    }
    assert!(error.contains("--node") && error.contains("--wait"), "{error}");
    assert!(!error.contains("node 2:"), "{error}");
}

/// A cluster of which the second server tells something else.
fn at_odds(tell: impl FnOnce(&mut Cluster)) -> String {
    let mut cluster = Cluster::of(2);
    cluster.offer.placement = Some(hex(&cluster.table));
    cluster.serve(0);
    tell(&mut cluster);
    cluster.serve(1);
    let error = refusal(&cluster.url(0));
    assert!(error.contains("node 2 at"), "{error}");
    error
}

#[test]
fn nodes_of_another_volume_are_refused() {
    let error = at_odds(|cluster| {
        let other = Cluster::of(1);
        cluster.offer = other.offer.clone();
        cluster.offer.placement = Some(hex(&cluster.table));
    });
    assert!(error.contains("another volume"), "{error}");
}

#[test]
fn addresses_and_tables_that_are_of_no_use_are_told() {
    let mut cluster = Cluster::of(1);
    let told = |cluster: &mut Cluster, table: String, why: &str| {
        cluster.offer.placement = Some(table);
        cluster.kill(0);
        cluster.serve(0);
        let error = refusal(&cluster.url(0));
        assert!(error.contains(why), "{error}");
    };
    for address in ["0.0.0.0:9440", "[::]:9440", ":9440"] {
        let here = cluster.served[0].address();
        let members =
            vec![Member { id: 1, address: here }, Member { id: 2, address: address.into() }];
        let map = SlotMap::even(members).unwrap();
        let table = PlacementMap { map, ..cluster.table.clone() };
        told(&mut cluster, hex(&table), "--node");
    }
    told(&mut cluster, "zz".into(), "hexadecimal");
    let mut newer = cluster.table.encode();
    newer[0] = u8::MAX;
    let digits = newer.iter().map(|byte| format!("{byte:02x}")).collect();
    told(&mut cluster, digits, "use the version of kestrel");
}

/// A request for each node goes to all of them, and nodes that do not answer are reported.
#[test]
fn request_to_each_node() {
    let mut cluster = Cluster::start();
    let ask = |cluster: &Cluster, limit| {
        let mut events = Vec::new();
        let on_event = &mut |node, event| events.push((node, event));
        let answers =
            ask_each(&cluster.url(0), "test", &json!({"verb": "status"}), Some(limit), on_event)
                .unwrap();
        events.sort_by_key(|(node, _)| *node);
        (answers, events)
    };
    let (mut answers, events) = ask(&cluster, DEADLINE);
    let client = Client::mount(&cluster.url(2));
    answers.extend(client.metadata().ask_each(&json!({"verb": "status"}), DEADLINE));
    assert_eq!(answers.len(), 6);
    for (at, answer) in answers.into_iter().enumerate().map(|(at, answer)| (at % 3, answer)) {
        assert_eq!((answer.node, answer.address), (at as u32 + 1, cluster.served[at].address()));
        assert_eq!(answer.answer.unwrap(), json!(at + 1));
    }
    assert_eq!(events, [1, 2, 3].map(|node| (node, json!("working"))));
    drop(client);
    cluster.kill(1);
    let (answers, _) = ask(&cluster, SOON);
    let ends: Vec<bool> = answers.iter().map(|answer| answer.answer.is_ok()).collect();
    assert_eq!(ends, [true, false, true]);
    let why = answers[1].answer.as_ref().unwrap_err().to_string();
    assert!(why.contains(&cluster.served[1].address()), "{why}");

    let one = Cluster::of_one();
    let (answers, _) = ask(&one, DEADLINE);
    assert_eq!((answers.len(), answers[0].node), (1, 0));
    assert_eq!(answers[0].answer.as_ref().unwrap(), &json!(0));
}

#[test]
fn a_farewell_is_said_to_all_at_once() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let begun = Instant::now();
    client.fs.shutdown().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(client.metadata().nodes().iter().all(|node| !node.remote.is_up()));
}
