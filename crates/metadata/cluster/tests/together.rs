//! What members do at one moment for many, and what all of them are asked at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_cluster::{DEADLINE, Message};
use kestrel_types::clock::SECOND;
use kestrel_types::error::FsResult;
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Creds, Op, Request};
use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, at};

/// Removals of one moment share a message to each cluster member.
#[test]
fn removals_in_one_message() {
    let mut cluster = Cluster::new(3);
    // In directories of their own: those of one directory would wait for each other.
    let paths = [("a1", "a1/d1"), ("b1", "b1/e1"), ("c1", "c1/f1")];
    for (above, dir) in paths {
        cluster.inode(1, Op::MkDir(at(above), 0o755));
        cluster.inode(1, Op::MkDir(at(dir), 0o755));
        // All know the directory.
        for node in 1..=3 {
            let name = format!("{dir}/{}{node}", &above[..1]);
            assert_eq!(errno(&cluster.ask(node, Op::Lookup(at(&name)))), libc::ENOENT);
        }
    }
    let remove = |dir| Request { creds: Creds::root(), op: Op::RmDir(at(dir), None) };
    let slots = paths.map(|(_, dir)| cluster.submit(1, remove(dir), None));
    let mut shared: BTreeMap<(&str, NodeId), Vec<usize>> = BTreeMap::new();
    while slots.iter().any(|slot| slot.lock().is_none()) {
        // What is under way to all arrives, as for a thread that was busy, before anybody says
        // anything.
        cluster.collect();
        for (to, envelope) in std::mem::take(&mut cluster.under_way) {
            match &envelope.message {
                Message::Invalidate(changes) => {
                    shared.entry(("forget", to)).or_default().push(changes.len())
                }
                Message::Invalidated(txns) => {
                    shared.entry(("forgot", envelope.from)).or_default().push(txns.len());
                }
                _ => {}
            }
            cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
        }
    }
    for slot in slots {
        assert_eq!(errno(&slot.lock().take().unwrap()), 0);
    }
    let of = |what| [2, 3].map(|node| shared[&(what, node)].clone());
    assert_eq!((of("forget"), of("forgot")), ([vec![3], vec![3]], [vec![3], vec![3]]));
    for (above, dir) in paths {
        let name = format!("{dir}/{}2", &above[..1]);
        assert_eq!(errno(&cluster.ask(2, Op::Lookup(at(&name)))), libc::ENOENT);
        assert_eq!(errno(&cluster.ask(3, Op::RmDir(at(above), None))), 0);
    }
}

type Heard = Arc<Mutex<Option<FsResult<Vec<LoadReport>>>>>;

fn ask(cluster: &mut Cluster, at: NodeId) -> Heard {
    let heard = Heard::default();
    let told = heard.clone();
    let done = Box::new(move |reports| *told.lock() = Some(reports));
    cluster.members.get_mut(&at).unwrap().count_entries(done, cluster.now);
    heard
}

#[test]
fn all_tell_what_they_have_or_nobody_is_told() {
    let mut cluster = Cluster::new(3);
    let report = |node: NodeId| {
        let name = Name::new(format!("name-{node}").as_bytes()).unwrap();
        let names = vec![NameCount { name, entries: 5 }];
        LoadReport { node, entries: u64::from(node) * 10, names }
    };
    // The third counts when it is asked the first time, and has counted when it is asked again.
    for node in 1..=3 {
        let asked = Mutex::new(node < 3);
        let census = move |_: &_| std::mem::replace(&mut *asked.lock(), true).then(|| report(node));
        cluster.members.get_mut(&node).unwrap().set_census(Box::new(census));
    }
    let heard = ask(&mut cluster, 1);
    cluster.carry(|_, _| false);
    assert!(heard.lock().is_none(), "the third still counts");
    let twice = ask(&mut cluster, 1);
    assert_eq!(twice.lock().take().unwrap().unwrap_err().errno, libc::EBUSY);
    cluster.tick(SECOND);
    cluster.carry(|_, _| false);
    assert_eq!(heard.lock().take().unwrap().unwrap(), [1, 2, 3].map(report));
    // One is away.
    cluster.members.remove(&2);
    let heard = ask(&mut cluster, 1);
    for _ in 0..=DEADLINE / SECOND {
        cluster.carry(|_, _| false);
        cluster.tick(SECOND);
    }
    assert_eq!(heard.lock().take().unwrap().unwrap_err().errno, libc::ETIMEDOUT);
}
