//! Many clients at once, each sending random requests on the same few names.

use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_meta::node::Node;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{
    Answer, Creds, Op, OpenFlags, Outcome, RenameFlags, Reply, Request, SetAttr,
};

use super::{at, check};

pub const FLAGS: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// xorshift64*: enough to mix operations, and the seed says it all.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % sides
    }
}

struct Client {
    dice: Dice,
    /// Files that this client has open, where it saw them, and how often.
    open: Vec<(InodeRef, u64)>,
}

impl Client {
    fn place(&mut self) -> PathRef {
        let names = ["a", "b", "c", "d", "e"];
        let mut path = String::new();
        for _ in 0..self.dice.roll(3) {
            path += names[self.dice.roll(3) as usize];
            path += "/";
        }
        path += names[self.dice.roll(5) as usize];
        at(1, &path)
    }

    fn op(&mut self) -> Op {
        match self.dice.roll(20) {
            0..=4 => {
                Op::Create { place: self.place(), mode: 0o666, flags: FLAGS, exclusive: false }
            }
            5..=6 => Op::MkDir(self.place(), 0o777),
            7..=9 => Op::Unlink(self.place()),
            10 => Op::RmDir(self.place(), None),
            11..=13 => {
                let flags =
                    RenameFlags { exchange: self.dice.roll(4) == 0, ..RenameFlags::default() };
                Op::Rename(self.place(), self.place(), flags)
            }
            14 => match self.open.last() {
                Some((inode, _)) => Op::Link(inode.clone(), self.place()),
                None => Op::Lookup(self.place()),
            },
            15..=16 => match self.open.pop() {
                Some((inode, _)) => Op::Release(inode.ino),
                None => Op::Lookup(self.place()),
            },
            17 => match self.open.last() {
                Some((inode, size)) => Op::SetAttr(
                    inode.clone(),
                    SetAttr { size: Some(size + 1), ..SetAttr::default() },
                ),
                None => Op::Usage,
            },
            18 => Op::ReadDir { dir: 1, after: None, limit: 100, check: true },
            _ => Op::Lookup(self.place()),
        }
    }

    fn took(&mut self, place: Option<PathRef>, reply: &Reply) {
        if let (Some(place), Ok(Answer::Opened { inode, .. })) = (place, reply) {
            let seen = if place.dirs.is_empty() { Some((place.base, place.name)) } else { None };
            self.open.push((InodeRef { ino: inode.ino, seen }, inode.size));
        }
    }
}

/// Runs `steps` requests on each of several threads, closes what they opened, and checks the
/// volume.
pub fn run(node: &Node, threads: u64, steps: usize) {
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let failures = &failures;
            scope.spawn(move || {
                let mut client = Client { dice: Dice(0x5eed + thread), open: Vec::new() };
                for _ in 0..steps {
                    let op = client.op();
                    let place = match &op {
                        Op::Create { place, .. } => Some(place.clone()),
                        _ => None,
                    };
                    let reply = node.call(Request { creds: Creds::root(), op: op.clone() });
                    if let Err(Outcome::Failed(error)) = &reply {
                        assert_ne!(error.errno, libc::EIO, "{op:?}: {error}");
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                    client.took(place, &reply);
                }
                for (inode, _) in client.open {
                    let release = Request { creds: Creds::root(), op: Op::Release(inode.ino) };
                    assert_eq!(node.call(release), Ok(Answer::Done));
                }
            });
        }
    });
    assert_eq!(node.stats().open_files, 0);
    assert!(failures.into_inner() < threads as usize * steps);
    check_volume(node);
}

/// Checks the rows, and that the figures agree with them.
pub fn check_volume(node: &Node) -> check::Found {
    let found = check::check(&**node.engine(), &|_| false);
    let usage = node.call(Request { creds: Creds::root(), op: Op::Usage });
    let Ok(Answer::Usage(usage)) = usage else { panic!("{usage:?}") };
    let rows = (found.files as u64, found.dirs as u64, found.bytes as u64);
    assert_eq!((usage.files, usage.dirs, usage.bytes), rows);
    found
}
