//! Three nodes of a cluster as they are in earnest: engines on disk, members with threads, servers
//! on loopback, connections between them, and clients that send each request to its leader.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use kestrel_testkit::stop::StopOnDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cluster::{Client, Cluster, at, eventually, mknod};
use kestrel_model::code as errno;
use kestrel_types::request::{Answer, Op, OpenFlags, Outcome, RenameFlags};

fn rename(from: &str, to: &str) -> Op {
    Op::Rename(at(from), at(to), RenameFlags::default())
}

/// What one thread does in directories that all share; how many of its files are left.
fn work(client: &Client, thread: usize, rounds: usize) -> usize {
    let mut left = 0;
    for round in 0..rounds {
        let (made, moved) = (format!("left/f{thread}-{round}"), format!("right/g{thread}-{round}"));
        client.done(mknod(&made));
        client.done(rename(&made, &moved));
        client.done(Op::Lookup(at(&moved)));
        if round % 8 == 3 {
            let dir = format!("left/d{thread}-{round}");
            client.done(Op::MkDir(at(&dir), 0o755));
            client.done(mknod(&format!("{dir}/inside")));
            assert_eq!(errno(&client.execute(Op::RmDir(at(&dir), None))), libc::ENOTEMPTY);
            client.done(rename(&dir, &format!("right/d{thread}-{round}")));
            client.done(Op::Unlink(at(&format!("right/d{thread}-{round}/inside"))));
            client.done(Op::RmDir(at(&format!("right/d{thread}-{round}")), None));
        }
        if round % 3 == 0 {
            client.done(Op::Unlink(at(&moved)));
        } else {
            left += 1;
        }
        if round % 5 == 0 {
            client.names("right");
            thread::sleep(Duration::from_millis((thread % 4) as u64));
        }
    }
    left
}

#[test]
fn many_clients_share_directories_over_three_nodes() {
    let cluster = Cluster::start();
    let client = cluster.client();
    client.done(Op::MkDir(at("left"), 0o777));
    client.done(Op::MkDir(at("right"), 0o777));
    let left: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..12)
            .map(|number| {
                let cluster = &cluster;
                scope.spawn(move || work(&cluster.client(), number, 24))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(client.names("right").len(), left);
    assert_eq!(client.names("left").len(), 0);
    for site in &cluster.sites {
        let running = site.running();
        eventually("nothing stays under way", || running.host.is_idle());
        assert_eq!(running.host.stats().misdirected, 0);
        assert_eq!(running.host.stats().overrun, 0);
        let peers = running.peers.stats();
        assert_eq!(peers.len(), 2);
        assert!(
            peers.values().all(|peer| peer.up && peer.envelopes > 0 && peer.connects == 1),
            "{peers:?}"
        );
    }
}

/// Clients wait for a node that is cut off or restarted.
#[test]
fn calls_over_cut_and_restarted_nodes() {
    let mut cluster = Cluster::start();
    let client = cluster.client();
    client.done(Op::MkDir(at("left"), 0o777));
    client.done(Op::MkDir(at("right"), 0o777));
    let stop = AtomicBool::new(false);
    let clients: Vec<_> = (0..4).map(|_| cluster.client()).collect();
    let left: usize = thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        let threads: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                let stop = &stop;
                scope.spawn(move || {
                    let (mut left, mut chunk) = (0, number);
                    while !stop.load(Ordering::Relaxed) {
                        left += work(client, chunk, 5);
                        chunk += 4;
                    }
                    left
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        // Every connection of node 2 breaks, of clients and of nodes.
        cluster.sites[1].cut();
        thread::sleep(Duration::from_millis(500));
        cluster.sites[1].listen();
        thread::sleep(Duration::from_millis(300));
        // It is gone, with what it had in memory, and comes back.
        cluster.sites[1].kill();
        thread::sleep(Duration::from_millis(500));
        cluster.sites[1].run();
        thread::sleep(Duration::from_millis(1000));
        drop(stopper);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(client.names("right").len(), left);
    for site in &cluster.sites {
        let running = site.running();
        eventually("nothing stays under way", || running.host.is_idle());
    }
    let peers = cluster.sites[0].running().peers.stats();
    assert!(peers[&2].connects >= 3 && peers[&3].connects == 1, "{peers:?}");
}

/// A request that needs a dead node fails in time, and the others are served.
#[test]
fn requests_with_a_dead_node() {
    let mut cluster = Cluster::start();
    let client = cluster.client();
    let mine =
        (0..).map(|number| format!("n{number}")).filter(|name| client.leader(&mknod(name)) == 1);
    for name in mine.take(3) {
        client.done(mknod(&name));
    }
    cluster.sites[1].kill();
    let served =
        (100..).map(|number| format!("n{number}")).find(|name| client.leader(&mknod(name)) == 1);
    client.done(mknod(&served.unwrap()));
    let begun = Instant::now();
    let list = Op::ReadDir { dir: 1, after: None, limit: 100, check: true };
    if client.leader(&list) != 2 {
        assert_eq!(errno(&client.execute(list)), libc::ETIMEDOUT);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

/// Files are opened, renamed and removed over nodes, and a wrong node answers that it is the wrong
/// one.
#[test]
fn open_rename_and_remove_over_nodes() {
    let cluster = Cluster::start();
    let client = cluster.client();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    for number in 0..12 {
        let (made, moved) = (format!("made{number}"), format!("moved{number}"));
        let create = Op::Create { place: at(&made), mode: 0o644, flags, exclusive: true };
        let leader = client.leader(&create);
        let wrong = leader % 3 + 1;
        assert!(matches!(
            client.execute_at(wrong, create.clone()),
            Err(Outcome::Misdirected { table: 5 })
        ));
        let Answer::Opened { inode, .. } = client.done(create) else { panic!("not opened") };
        client.done(rename(&made, &moved));
        client.done(Op::Unlink(at(&moved)));
        // It is open, so it is there.
        assert_eq!(errno(&client.stat(inode.ino)), 0);
        assert_eq!(errno(&client.execute_at(wrong, Op::Release(inode.ino))), libc::EBADF);
        assert_eq!(errno(&client.execute_at(leader, Op::Release(inode.ino))), 0);
        eventually("the file is gone", || errno(&client.stat(inode.ino)) == libc::ESTALE);
    }
    let misdirected: u64 =
        cluster.sites.iter().map(|site| site.running().host.stats().misdirected).sum();
    assert_eq!(misdirected, 12);
    let Answer::Usage(usage) = client.done(Op::Usage) else { panic!("no figures") };
    assert_eq!((usage.files, usage.bytes), (0, 0));
}
