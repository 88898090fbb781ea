//! Members that fail while a snapshot is made, lost messages, and faults of the protocol, planted,
//! that the checks find.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_cluster::{Message, SnapshotMessage};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{MILLISECOND, SECOND};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Creds, Op, RenameFlags, Reply, Request};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, at, mknod};
use common::snapshots::{create, made, remove};

/// A random number (xorshift*, Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

/// A fault of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Members apply at once what was decided after the leader's cut.
    AppliesEarly,
    /// Node 2 says that it is stopped, and goes on.
    GoesOn,
}

/// A client that makes one change after the other, each when it has the reply to the one before.
struct Writer {
    number: u64,
    /// Changes that have been acknowledged.
    done: u64,
    reply: Option<Arc<Mutex<Option<Reply>>>>,
}

/// A snapshot: changes of each writer that were acknowledged before it was asked for, and changes
/// that had begun when it was acknowledged.
struct Cut {
    id: SnapshotId,
    done: Vec<u64>,
    begun: Vec<u64>,
}

struct Run {
    cluster: Cluster,
    random: Random,
    writers: Vec<Writer>,
    fault: Fault,
    /// Of 100 messages so many are lost, and so many come twice.
    lost: u64,
}

/// Seeds of each test.
const SEEDS: u64 = 6;

/// Writers of one volume.
const WRITERS: u64 = 5;

/// Names of node 2, by which one file of each writer goes round.
const ROUND: [&str; 6] = ["a2", "b2", "c2", "d2", "e2", "f2"];

/// The change number `change` of a writer: a rename at one node, a file, and two renames that move
/// that between nodes.
fn operation(writer: u64, change: u64) -> Op {
    let rename = |from: String, to: String| Op::Rename(at(&from), at(&to), RenameFlags::default());
    match change % 4 {
        0 => {
            let name = |turn: u64| format!("w{writer}/{}", ROUND[turn as usize % ROUND.len()]);
            rename(name(change / 4), name(change / 4 + 1))
        }
        1 => mknod(&format!("m{writer}-{change}")),
        2 => rename(format!("m{writer}-{}", change - 1), format!("w{writer}/r{}", change - 1)),
        _ => rename(format!("w{writer}/r{}", change - 2), format!("q{writer}-{}", change - 2)),
    }
}

/// Which of the places of a file that is renamed have it: `m`, `r`, `q`.
type Places = [bool; 3];

impl Run {
    fn new(seed: u64, fault: Fault, lost: u64) -> Self {
        let mut cluster = Cluster::new(3);
        let writers = (0..WRITERS).map(|number| Writer { number, done: 0, reply: None }).collect();
        for writer in 0..WRITERS {
            cluster.inode(1, Op::MkDir(at(&format!("w{writer}")), 0o755));
            cluster.inode(1, mknod(&format!("w{writer}/a2")));
        }
        // Clocks of members differ by what they have done.
        for number in 0..seed % 5 {
            cluster.inode(2, mknod(&format!("clock{number}")));
        }
        Self { cluster, random: Random(seed | 1), writers, fault, lost }
    }

    /// Begins the next change of each writer that waits for nothing.
    fn write(&mut self) {
        for writer in &mut self.writers {
            if let Some(reply) = &writer.reply {
                let Some(reply) = reply.lock().take() else { continue };
                assert!(reply.is_ok(), "{reply:?}");
                writer.done += 1;
            }
            let op = operation(writer.number, writer.done);
            let request = Request { creds: Creds::root(), op };
            writer.reply = Some(self.cluster.submit(1, request, None));
        }
    }

    /// Delivers some messages, in any order, and lets time pass.
    fn shuffle(&mut self) {
        self.cluster.collect();
        for _ in 0..self.random.below(6) {
            let count = self.cluster.under_way.len() as u64;
            if count == 0 {
                break;
            }
            let next = self.random.below(count) as usize;
            let Some((to, mut envelope)) = self.cluster.under_way.remove(next) else { break };
            if self.random.below(100) < self.lost {
                continue;
            }
            if let (Fault::AppliesEarly, Message::Decide(_, true, cut)) =
                (self.fault, &mut envelope.message)
            {
                *cut = 0;
            }
            if self.random.below(100) < self.lost {
                self.cluster.under_way.push_back((to, envelope.clone()));
            }
            let now = self.cluster.now;
            let member = self.cluster.members.get_mut(&to).unwrap();
            member.receive(envelope, now);
            if self.fault == Fault::GoesOn && to == 2 {
                let quiet = member.node().quiesce();
                member.node().cluster().unwrap().set_stopped(false);
                drop(quiet);
            }
        }
        let by = self.random.below(8) * MILLISECOND as u64;
        self.cluster.tick(by as i64);
        self.cluster.clock.advance(by as i64);
    }

    /// Makes a snapshot while the writers write.
    fn cut(&mut self, name: &str) -> Option<Cut> {
        let done = self.writers.iter().map(|writer| writer.done).collect();
        let slot = self.cluster.begin_snapshot(1, name);
        for _ in 0..50_000 {
            self.write();
            self.shuffle();
            if let Some(reply) = slot.lock().take() {
                if reply.is_err() {
                    eprintln!("under way {} {reply:?}", self.cluster.under_way.len());
                }
                if errno(&reply) == libc::ETIMEDOUT || errno(&reply) == libc::EAGAIN {
                    return None;
                }
                // Each writer has begun one more than is done.
                let begun = self.writers.iter().map(|writer| writer.done + 1).collect();
                return Some(Cut { id: made(reply).id, done, begun });
            }
        }
        panic!("no answer");
    }

    /// What is wrong with a snapshot.
    fn judge(&mut self, cut: &Cut) -> Result<(), String> {
        let tree = self.cluster.tree_at(cut.id);
        let top = tree.names(1);
        for writer in 0..self.writers.len() {
            let dir = self.cluster.inode(1, Op::Lookup(at(&format!("w{writer}")))).ino;
            let below = tree.names(dir);
            let places = |file: u64| -> Places {
                [
                    top.contains(&format!("m{writer}-{file}")),
                    below.contains(&format!("r{file}")),
                    top.contains(&format!("q{writer}-{file}")),
                ]
            };
            let has = |change: u64| {
                let part = change % 4;
                part != 0 && places(change - part + 1)[part as usize - 1..].contains(&true)
            };
            let bound = cut.begun[writer];
            for file in (1..bound).step_by(4) {
                if places(file).iter().filter(|is| **is).count() > 1 {
                    return Err(format!("writer {writer}: a rename of {file} is there by half"));
                }
            }
            let tells = |change: &u64| !change.is_multiple_of(4);
            let missing = (0..).filter(tells).find(|change| !has(*change)).unwrap();
            if missing < cut.done[writer] || missing > bound + 1 {
                return Err(format!("writer {writer}: {missing} is the first that is missing"));
            }
            if let Some(later) = (missing..bound + 40).find(|change| has(*change)) {
                return Err(format!("writer {writer}: {later} is there, {missing} is not"));
            }
            // The rename just before the first change that is missing may be there or not.
            let turns = missing.div_ceil(4);
            let open = missing % 4 == 1 && cut.done[writer] < missing;
            let found: Vec<u64> =
                (0..6).filter(|turn| below.contains(ROUND[*turn as usize])).collect();
            let may_be = |turns: u64| found == [turns % 6];
            if !(may_be(turns) || open && may_be(turns - 1)) {
                return Err(format!("writer {writer}: {found:?} after {turns} turns"));
            }
        }
        Ok(())
    }

    /// What is under way ends.
    fn end(&mut self) {
        self.cluster.come_to_rest();
    }
}

/// Writers write while snapshots are made; each snapshot is judged when they are done. What was
/// found.
fn run(seed: u64, fault: Fault, lost: u64) -> Result<usize, String> {
    let mut run = Run::new(seed, fault, lost);
    let mut cuts = Vec::new();
    for number in 0..4 {
        for _ in 0..run.random.below(60) {
            run.write();
            run.shuffle();
        }
        cuts.extend(run.cut(&format!("s{number}")));
    }
    run.end();
    for cut in &cuts {
        run.judge(cut)?;
    }
    Ok(cuts.len())
}

/// Each snapshot is a prefix of what happened: of each writer a prefix of its changes, with all
/// that was acknowledged before it was asked for and nothing that began after it was acknowledged;
/// renames wholly or not at all.
#[test]
fn snapshots_among_writers() {
    let mut made = 0;
    for seed in 1..=SEEDS {
        made += run(seed, Fault::None, 0).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert_eq!(made as u64, 4 * SEEDS);
}

/// The same with messages that are lost or come twice.
#[test]
fn snapshots_with_lost_messages() {
    let mut made = 0;
    for seed in 1..=SEEDS {
        made += run(seed, Fault::None, 10).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert!(made as u64 > 2 * SEEDS, "{made}");
}

/// Faults of the protocol are found.
#[test]
fn planted_faults_of_the_protocol() {
    for fault in [Fault::AppliesEarly, Fault::GoesOn] {
        assert!((1..=60).any(|seed| run(seed, fault, 0).is_err()), "{fault:?}");
    }
}

/// Kinds of messages about snapshots.
const KINDS: u8 = 8;

fn kind(message: &Message) -> Option<u8> {
    use SnapshotMessage as M;
    match message {
        Message::Snapshot(message) => Some(match message {
            M::Stop(_) => 0,
            M::Stopped { .. } => 1,
            M::Make { .. } => 2,
            M::Made(_) => 3,
            M::Declined { .. } => 4,
            M::Resume(_) => 5,
            M::Keep { .. } => 6,
            M::Kept { .. } => 7,
        }),
        _ => None,
    }
}

/// Power fails at one member when a message of each kind is on its way from or to it. The snapshot
/// is there wholly, or nothing is left of it; a client that asks again hears the same.
#[test]
fn crashes_while_a_snapshot_is_made() {
    let mut ends: BTreeMap<(u8, NodeId), bool> = BTreeMap::new();
    for when in 0..KINDS {
        for victim in 1..=3 {
            for nth in 0..2 {
                let mut cluster = Cluster::new(3);
                for node in 1..=3 {
                    cluster.inode(node, mknod(&format!("a{node}")));
                }
                let before = cluster.tree();
                let seen = Mutex::new(0);
                let origin = Origin { client: ClientId([9; 16]), seq: 1, retry: false };
                let request = Request { creds: Creds::root(), op: create(1, "s") };
                let slot = cluster.submit(1, request.clone(), Some(origin));
                let held = cluster.carry(|_, message| {
                    kind(message) == Some(when) && {
                        *seen.lock() += 1;
                        *seen.lock() == nth + 1
                    }
                });
                if held.is_some() {
                    cluster.crash(victim);
                }
                for _ in 0..3_000 {
                    cluster.pass();
                }
                let answered = slot.lock().take();
                // The session asks again when it heard nothing.
                let reply = match answered {
                    Some(reply) => reply,
                    None => cluster.ask_from(1, request.op, Some(Origin { retry: true, ..origin })),
                };
                let info = made(reply);
                for node in 1..=3 {
                    cluster.inode(node, mknod(&format!("b{node}")));
                }
                cluster.come_to_rest();
                let expected = [(info.id, false, false)];
                assert!(
                    cluster.records().values().all(|records| *records == expected),
                    "{when} {victim} {nth}: {:?}",
                    cluster.records()
                );
                assert_eq!(cluster.tree_at(info.id), before, "{when} {victim} {nth}");
                ends.insert((when, victim), held.is_some());
                assert_eq!(errno(&cluster.ask(1, remove(1, "s"))), 0);
                cluster.come_to_rest();
                assert_eq!(cluster.history_rows(), 0, "{when} {victim} {nth}");
            }
        }
    }
    assert!((0..=3).all(|when| ends[&(when, 2)]), "{ends:?}");
}

/// A member that does not answer keeps others from changing anything for some seconds at most; the
/// caller hears that no snapshot was made, and nothing is left of it.
#[test]
fn a_snapshot_with_a_silent_member() {
    let mut cluster = Cluster::new(3);
    cluster.inode(3, mknod("a3"));
    // The root is node 3's.
    cluster.members.remove(&2);
    let slot = cluster.begin_snapshot(1, "s");
    cluster.pass();
    let request = Request { creds: Creds::root(), op: mknod("b3") };
    let change = cluster.submit(3, request, None);
    let begun = cluster.now;
    while change.lock().is_none() {
        cluster.pass();
        assert!(cluster.now < begun + 20 * SECOND, "the member stays stopped");
    }
    while slot.lock().is_none() {
        cluster.pass();
        assert!(cluster.now < begun + 60 * SECOND, "no answer");
    }
    assert_eq!(errno(slot.lock().as_ref().unwrap()), libc::ETIMEDOUT);
    cluster.restart(2);
    cluster.come_to_rest();
    assert!(cluster.records().values().all(Vec::is_empty));
    assert_eq!(cluster.history_rows(), 0);
    cluster.snapshot(1, "s");
}
