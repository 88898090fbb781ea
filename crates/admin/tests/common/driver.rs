//! A node that does all kinds of things at random.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use kestrel_admin::check::{Options, check};
use kestrel_admin::finding::{Finding, Severity};
use kestrel_engine::Engine;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::ManualClock;
use kestrel_types::extent::Extent;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::quota::{QuotaLimits, QuotaSubject};
use kestrel_types::range::Range;
use kestrel_types::request::{
    Answer, Commit, Creds, NewData, Op, OpenFlags, RenameFlags, Reply, Request, SetAttr, XattrFlags,
};

use super::{NOW, Random};

/// The node, and what the driver has made on it.
pub struct Driver {
    pub engine: Arc<MemoryEngine>,
    pub clock: Arc<ManualClock>,
    pub node: Arc<Node>,
    random: Random,
    dirs: Vec<InodeId>,
    open: Vec<InodeId>,
    next_object: u64,
    next_snapshot: u64,
    /// Of directories, users, groups and the volume, too.
    sets_quotas: bool,
}

impl Driver {
    pub fn new(seed: u64) -> Self {
        let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
        Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, NOW).unwrap();
        let clock = Arc::new(ManualClock::new(NOW));
        let node = Node::open(engine.clone(), clock.clone(), NodeConfig::default()).unwrap();
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
        let driver = Self {
            engine,
            clock,
            node,
            random,
            dirs: vec![ROOT],
            open: Vec::new(),
            next_object: 1,
            next_snapshot: 0,
            sets_quotas: false,
        };
        assert!(matches!(driver.ask(Op::AllocObjects(1 << 20)), Ok(Answer::Objects { .. })));
        driver
    }

    /// The same, with quotas.
    pub fn with_quotas(seed: u64) -> Self {
        Self { sets_quotas: true, ..Self::new(seed) }
    }

    /// Records all changes from now on, in a change feed of the root.
    pub fn record_changes(&self) {
        let (name, value) = (b"kestrel.feed"[..].into(), b"1d"[..].into());
        let op = Op::SetXattr(InodeRef::by_id(ROOT), name, value, XattrFlags::default());
        assert!(self.ask(op).is_ok());
    }

    fn ask(&self, op: Op) -> Reply {
        self.node.call(Request { creds: Creds::root(), op })
    }

    fn dir(&mut self) -> InodeId {
        self.dirs[self.random.below(self.dirs.len() as u64) as usize]
    }

    fn place(&mut self) -> PathRef {
        let name = format!("n{}", self.random.below(12));
        PathRef::new(self.dir(), Name::new(name.as_bytes()).unwrap())
    }

    /// An entry that exists, and where.
    fn existing(&mut self) -> Option<(InodeRef, Kind, u64, u64)> {
        let place = self.place();
        let seen = Some((place.base, place.name.clone()));
        match self.ask(Op::Lookup(place)) {
            Ok(Answer::Entry { inode, .. }) => {
                Some((InodeRef { ino: inode.ino, seen }, inode.kind, inode.data_change, inode.size))
            }
            _ => None,
        }
    }

    fn range(&mut self) -> Range {
        if self.random.below(3) == 0 {
            self.next_object += 1;
        }
        Range { object: self.next_object, offset: 0, len: 1 + self.random.below(100_000) as u32 }
    }

    fn content(&mut self) {
        let Some((inode, Kind::File, base, size)) = self.existing() else { return };
        let (data, size) = match self.random.below(4) {
            0 => (NewData::Inline(vec![3; 50].into()), 50),
            1 => {
                let range = self.range();
                (NewData::Packed(range), u64::from(range.len))
            }
            _ => {
                let range = self.range();
                let pos =
                    if self.random.below(4) == 0 { 0 } else { self.random.below(60 << 20) as u32 };
                let chunk = self.random.below(3);
                let end = chunk * (64 << 20) + u64::from(pos) + u64::from(range.len);
                (NewData::Patches(vec![(chunk, Extent::of_range(pos, range))]), size.max(end))
            }
        };
        let commit = Commit { inode, base, data, size: Some(size), mtime: NOW, kill_suid: false };
        let _ = self.ask(Op::Commit(commit));
    }

    /// Makes a snapshot, or removes one.
    fn snapshot(&mut self) {
        if self.random.below(2) == 0 {
            self.next_snapshot += 1;
            let name = Name::new(format!("s{}", self.next_snapshot).as_bytes()).unwrap();
            let op = Op::SnapshotCreate { dir: self.dir(), name };
            let _ = self.ask(op);
        } else if let Ok(Answer::Snapshots(list)) =
            self.ask(Op::SnapshotList { dir: None, ancestors: false })
            && let Some(some) = list.get(self.random.below(4) as usize)
        {
            let op = Op::SnapshotRemove { dir: some.dir, name: some.name.clone() };
            let _ = self.ask(op);
        }
    }

    /// Clones a directory, of now or of a snapshot.
    fn clone_dir(&mut self) {
        let listed = self.ask(Op::SnapshotList { dir: None, ancestors: false });
        let at = match listed {
            Ok(Answer::Snapshots(list)) if self.random.below(2) == 0 => {
                list.get(self.random.below(4) as usize).map(|info| info.id)
            }
            _ => None,
        };
        let op = Op::CloneDir { source: self.dir(), at, place: self.place() };
        if let Ok(Answer::Entry { inode, .. }) = self.ask(op) {
            self.dirs.push(inode.ino);
        }
    }

    /// Sets a quota that nothing exceeds, or removes one.
    fn quota(&mut self) {
        let of = match self.random.below(8) {
            0 => QuotaSubject::User(0),
            1 => QuotaSubject::Group(0),
            2 => QuotaSubject::Volume,
            _ => QuotaSubject::Dir(self.dir()),
        };
        let limits = QuotaLimits { files: Some(100_000), ..QuotaLimits::default() };
        let removes = self.random.below(3) == 0;
        let _ = self.ask(if removes {
            Op::QuotaRemove(of)
        } else {
            Op::QuotaSet(of, Box::new(limits))
        });
    }

    pub fn step(&mut self) {
        if self.sets_quotas && self.random.below(8) == 0 {
            return self.quota();
        }
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        match self.random.below(21) {
            0 | 1 => {
                let place = self.place();
                if let Ok(Answer::Entry { inode, .. }) = self.ask(Op::MkDir(place, 0o755)) {
                    self.dirs.push(inode.ino);
                }
            }
            2..=4 => {
                let create =
                    Op::Create { place: self.place(), mode: 0o644, flags, exclusive: false };
                if let Ok(Answer::Opened { inode, .. }) = self.ask(create) {
                    self.open.push(inode.ino);
                }
            }
            5 => {
                let dir = self.dir();
                if let Ok(Answer::Opened { inode, .. }) =
                    self.ask(Op::TmpFile { dir, mode: 0o600, exclusive: false })
                {
                    self.open.push(inode.ino);
                }
            }
            6 => {
                let op = Op::Symlink(self.place(), Box::from(&b"somewhere/else"[..]));
                let _ = self.ask(op);
            }
            7 => {
                let op = Op::Unlink(self.place());
                let _ = self.ask(op);
            }
            8 => {
                let op = Op::RmDir(self.place(), None);
                let _ = self.ask(op);
            }
            9 | 10 => {
                let exchange = self.random.below(4) == 0;
                let op = Op::Rename(
                    self.place(),
                    self.place(),
                    RenameFlags { exchange, ..RenameFlags::default() },
                );
                let _ = self.ask(op);
            }
            11 => {
                let to = self.place();
                let inode = match self.existing() {
                    Some((inode, ..)) => inode,
                    None if self.open.is_empty() => return,
                    None => InodeRef::by_id(self.open[0]),
                };
                let _ = self.ask(Op::Link(inode, to));
            }
            12 | 13 => self.content(),
            14 => {
                let Some((inode, kind, ..)) = self.existing() else { return };
                if self.random.below(2) == 0 {
                    let (name, value) = (Box::from(&b"user.x"[..]), Box::from(&b"value"[..]));
                    let _ = self.ask(Op::SetXattr(inode, name, value, XattrFlags::default()));
                } else if kind == Kind::File {
                    let size = Some(self.random.below(150 << 20));
                    let _ = self.ask(Op::SetAttr(inode, SetAttr { size, ..SetAttr::default() }));
                }
            }
            15 => self.snapshot(),
            16 => {
                self.node.tidy_history().unwrap();
            }
            17 => self.clone_dir(),
            18 => {
                self.node.tidy_clones().unwrap();
            }
            _ => {
                if !self.open.is_empty() {
                    let which = self.random.below(self.open.len() as u64) as usize;
                    let ino = self.open.swap_remove(which);
                    let _ = self.ask(Op::Release(ino));
                }
            }
        }
    }
}

/// Errors that a check finds, and the files it counts.
pub fn findings(engine: &dyn Engine) -> (Vec<Finding>, u64) {
    let mut found = Vec::new();
    let totals =
        check(engine, &mut Options::default(), &mut |finding| found.push(finding), &mut |_, _| {})
            .unwrap();
    found.retain(|finding| finding.kind.severity() == Severity::Error);
    (found, totals.files)
}
