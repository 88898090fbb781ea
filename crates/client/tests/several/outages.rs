//! One node goes away, or comes back without knowing anybody.

use kestrel_testkit::stop::StopOnDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kestrel_client::fs::wait;
use kestrel_types::extent::{Extent, Source};
use kestrel_types::ids::InodeId;
use kestrel_types::request::{NewData, Op};
use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};

use crate::client::{Client, READ, READ_WRITE, at};
use crate::cluster::{Cluster, DEADLINE, until};

fn exclusive(ino: InodeId) -> LockSpan {
    LockSpan {
        ino,
        owner: 9,
        pid: 1,
        kind: LockKind::Posix,
        mode: LockMode::Write,
        start: 0,
        end: LOCK_END,
    }
}

/// A client reclaims from a restarted node what it holds there, and nothing else.
#[test]
fn reclaims_at_a_restarted_node() {
    let mut cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    // Files open at each node, of several homes; one of them at two nodes. All of them are locked.
    let mut files: Vec<_> = (0..9).map(|n| client.create(&cluster.name_at(n % 3, n / 3))).collect();
    client.rename(&cluster.name_at(1, 0), &cluster.name_at(2, 5));
    files.push(client.open(files[1].ino(), READ_WRITE));
    for file in &files[..9] {
        wait(|done| client.fs.set_lock(file, exclusive(file.ino()), None, done)).unwrap();
        client.write(file, &[1; 2000]);
    }
    for restarted in 0..3 {
        cluster.forget();
        cluster.restart(restarted);
        until("it is told", || !cluster.notes(restarted).reclaims.lock().is_empty());
        until("it serves", || client.metadata().nodes()[restarted].remote.is_up());
        for at in 0..3 {
            let reclaims = cluster.notes(at).reclaims.lock();
            assert_eq!(
                reclaims.len(),
                usize::from(at == restarted),
                "only who has forgotten is told"
            );
        }
        let told = cluster.notes(restarted).reclaims.lock()[0].clone();
        let mut opens: Vec<_> = told.opens.iter().map(|open| (open.file.ino, open.count)).collect();
        let opened_there = files[..9].iter().enumerate().filter(|(n, _)| n % 3 == restarted);
        let mut expected: Vec<_> = opened_there.map(|(_, file)| (file.ino(), 1)).collect();
        if restarted == 2 {
            expected.push((files[1].ino(), 1));
        }
        opens.sort_unstable();
        expected.sort_unstable();
        assert_eq!(opens, expected);
        let mut locks: Vec<_> = told.locks.iter().map(|lock| lock.ino).collect();
        let at_home =
            files[..9].iter().map(|file| file.ino()).filter(|ino| cluster.home(*ino) == restarted);
        let mut expected: Vec<_> = at_home.collect();
        locks.sort_unstable();
        expected.sort_unstable();
        assert!(!locks.is_empty());
        assert_eq!(locks, expected);
        assert_eq!(
            (told.objects.is_empty(), told.oldest_open_object == 0),
            (restarted != 0, restarted != 0)
        );
        // The session goes on as if nothing had been: files are open and locked.
        for file in &files[..9] {
            client.write(file, &[restarted as u8 + 2; 2000]);
            assert!(
                wait(|done| client.fs.test_lock(file, exclusive(file.ino()), done))
                    .unwrap()
                    .is_none()
            );
        }
    }
    let other = Client::mount(&cluster.url(1));
    let locked = other.create(&cluster.name_at(0, 0));
    until("the grace period is over", || {
        let held =
            wait(|done| other.fs.test_lock(&locked, exclusive(files[0].ino()), done)).unwrap();
        held.is_some()
    });
    other.close(locked);
    files.into_iter().for_each(|file| client.close(file));
    assert_eq!(client.fs.metadata().stats().open_files, 0);
    cluster.check();
}

/// A client tells its oldest open object only to a node that has handed out numbers.
#[test]
fn oldest_object_in_pings_by_node() {
    let cluster = Cluster::start();
    let client = Client::mount(&cluster.url(1));
    let file = client.create("file");
    client.write(&file, &[1; 100_000]);
    for at in 0..3 {
        until("it pings", || cluster.notes(at).oldest.lock().is_some());
    }
    let all = || (0..3).map(|at| cluster.notes(at).oldest.lock().unwrap() == 0).collect::<Vec<_>>();
    until("an object is open", || all() == [true, false, true]);
    client.close(file);
}

/// While a node is away, only requests that it leads wait.
#[test]
fn one_node_away() {
    let mut cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let open: Vec<_> = (0..3).map(|at| client.create(&cluster.name_at(at, 0))).collect();
    // The one that was there first, which hands out numbers, too.
    for away in [2, 0] {
        cluster.kill(away);
        until("that is noticed", || !client.metadata().nodes()[away].remote.is_up());
        let waiting = client.start(Op::Lookup(at(&cluster.name_at(away, 0))));
        for other in (0..3).filter(|other| *other != away) {
            client.call(Op::Lookup(at(&cluster.name_at(other, 0)))).unwrap();
            client.write(&open[other], &vec![away as u8; 3000]);
            wait(|done| client.fs.fsync(&open[other], done)).unwrap();
            client.call(Op::Usage).unwrap();
        }
        assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err());
        let stats = client.fs.metadata().connection_stats().unwrap();
        assert!(stats.outage.is_some() && stats.in_flight + stats.waiting >= 1, "{stats:?}");
        let answers = client.metadata().ask_each(&serde_json::json!({"verb": "status"}), DEADLINE);
        let silent = answers.iter().map(|answer| answer.answer.is_err());
        assert!(silent.eq((0..3).map(|at| at == away)), "it is not waited for: {answers:?}");
        cluster.serve(away);
        waiting.recv().unwrap().unwrap();
        client.write(&open[away], &vec![away as u8; 3000]);
        assert_eq!(client.fs.metadata().connection_stats().unwrap().outage, None);
    }
    assert_eq!(client.fs.metadata().connection_stats().unwrap().reconnects, 2);
    open.into_iter().for_each(|file| client.close(file));
    assert_eq!(client.fs.metadata().stats().open_files, 0);
    cluster.check();
}

/// A client loses the locks and the object numbers of a node that is away for the lease. Files open
/// elsewhere can be written all the while: others may have the locks that the node kept, and nobody
/// keeps from being deleted what was stored under its numbers. Other numbers come from another
/// node.
#[test]
fn node_away_for_the_lease() {
    let mut cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let files: Vec<_> = (0..6).map(|n| client.create(&cluster.name_at(1, n))).collect();
    let of_home = |home| files.iter().find(|file| cluster.home(file.ino()) == home).unwrap();
    let (locked, other) = (of_home(0), of_home(1));
    for (file, size) in [(locked, 2000), (other, 500)] {
        wait(|done| client.fs.set_lock(file, exclusive(file.ino()), None, done)).unwrap();
        client.write(file, &vec![1; size]);
    }
    let stored = of_home(2);
    let members = || client.fs.packer().stats().members.load(Ordering::Relaxed);
    cluster.kill(0);
    client.write(locked, &[2; 2000]);
    assert!(!client.fs.metadata().is_lost(1));
    // Again and again, so that some is stored, and not committed for its age, when it is overdue.
    let before = members();
    until("it is overdue", || {
        client.fs.write(stored, 0, &[7; 200_000], false).unwrap();
        client.fs.metadata().is_lost(1)
    });
    assert!(members() > before);
    until("its locks are lost", || wait(|done| client.fs.flush(locked, done)).is_err());
    assert_eq!(wait(|done| client.fs.fsync(locked, done)).unwrap_err().errno, libc::EIO);
    assert!(client.fs.write(locked, 0, &[3; 2000], false).is_err());
    client.write(other, &[3; 900]);
    cluster.forget();
    // It is stored again, under numbers that another node gives.
    wait(|done| client.fs.flush(stored, done)).unwrap();
    assert_eq!(client.read(stored), [7; 200_000]);
    assert!(
        cluster.notes(1).oldest.lock().is_some()
            && client.metadata().nodes()[0].remote.stats().outage.is_some()
    );
    cluster.serve(0);
    let commits = cluster.notes(1).take();
    assert!(commits.iter().any(|op| matches!(op, Op::Commit(_))));
    assert!(!commits.iter().any(|op| names_stored_below(op, &client)));
    until("it is told", || !cluster.notes(0).reclaims.lock().is_empty());
    assert!(cluster.notes(0).reclaims.lock().iter().all(|told| told.locks.is_empty()));
    let anew = client.open(locked.ino(), READ_WRITE);
    client.write(&anew, &[4; 2000]);
    client.close(anew);
    files.into_iter().for_each(|file| {
        let _ = wait(|done| client.fs.release(file, done));
    });
    assert_eq!(client.fs.metadata().stats().open_files, 0);
    cluster.check();
}

/// Whether a commit names bytes in an object that may be deleted.
fn names_stored_below(op: &Op, client: &Client) -> bool {
    let Op::Commit(commit) = op else { return false };
    let objects: Vec<_> = match &commit.data {
        NewData::Packed(range) => vec![range.object],
        NewData::Patches(patches) => {
            let range = |extent: &Extent| match extent.source {
                Source::Stored { range, .. } => Some(range.object),
                Source::Hole => None,
            };
            patches.iter().filter_map(|(_, extent)| range(extent)).collect()
        }
        NewData::Unchanged | NewData::Inline(_) => Vec::new(),
    };
    objects.into_iter().any(|object| client.fs.metadata().is_lost(object))
}

#[test]
fn a_node_that_comes_back_as_another_is_not_served() {
    let mut cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    cluster.kill(1);
    cluster.serve_as(1, 3);
    let waiting = client.start(Op::Lookup(at(&cluster.name_at(1, 0))));
    let hellos = *cluster.notes(1).hellos.lock();
    until("it was tried again and again", || *cluster.notes(1).hellos.lock() > hellos + 1);
    assert!(waiting.try_recv().is_err());
    cluster.restart(1);
    assert!(waiting.recv().unwrap().is_err(), "there is no such file");
    cluster.check();
}

/// Files are opened, renamed, opened again, written through either handle and closed in either
/// order, by several threads, while one node after the other dies and comes back.
#[test]
fn files_go_on_through_restarts_of_every_node() {
    const THREADS: usize = 4;
    const RESTARTS: usize = 6;
    let mut cluster = Cluster::start();
    let client = Client::mount(&cluster.url(0));
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stopper = StopOnDrop::new(&over);
        for thread in 0..THREADS {
            let (client, over, done) = (&client, &over, &done);
            scope.spawn(move || {
                for round in (0..).take_while(|_| !over.load(Ordering::SeqCst)) {
                    let names = ["old", "new"].map(|which| format!("{which}-{thread}-{round}"));
                    let size = [10, 3000, 100_000][round % 3];
                    let one = client.create(&names[0]);
                    client.write(&one, &vec![1; size]);
                    client.rename(&names[0], &names[1]);
                    let two =
                        client.open(one.ino(), if round % 2 == 0 { READ_WRITE } else { READ });
                    client.write(if round % 2 == 0 { &two } else { &one }, &vec![2; size]);
                    let [last, first] = if round % 4 < 2 { [one, two] } else { [two, one] };
                    client.close(first);
                    if last.writable() {
                        client.write(&last, &vec![3; size]);
                    }
                    assert_eq!(client.read(&last), vec![if last.writable() { 3 } else { 2 }; size]);
                    client.unlink(&names[1]);
                    assert_eq!(client.read(&last).len(), size, "it is open");
                    client.close(last);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for number in 0..RESTARTS {
            let before = done.load(Ordering::SeqCst);
            cluster.restart(number % 3);
            until("work goes on", || done.load(Ordering::SeqCst) > before + THREADS);
        }
    });
    assert_eq!(client.fs.metadata().stats().open_files, 0);
    cluster.check();
}
