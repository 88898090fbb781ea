//! Random steps, turned into requests on what exists at that moment, so that a failing sequence can
//! be shrunk.
#![allow(clippy::manual_is_multiple_of, reason = "dice read better with a remainder")]

mod finish;
mod served;
mod versions;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_model::{Layout, Model, NEED_GROUPS};
use kestrel_types::acl::{Acl, Named, XATTR_ACCESS, XATTR_DEFAULT};
use kestrel_types::extent::{Extent, Source};
use kestrel_types::inode::{CHUNK_BYTES, InodeFlags, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::perm::with_umask;
use kestrel_types::range::Range;
use kestrel_types::request::{
    Accessed, Answer, Commit, Creds, NewData, Op, OpenFlags, RenameFlags, Reply, Request, SetAttr,
    SetTime, Subject, XattrFlags,
};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::{Fixture, errno, name};

/// A step's dice.
#[derive(Debug, Clone, Copy)]
pub struct Raw {
    pub op: u8,
    pub who: u8,
    pub a: u8,
    pub b: u8,
    pub c: u8,
    pub d: u8,
}

pub fn raws(len: usize) -> impl Strategy<Value = Vec<Raw>> {
    let raw = any::<[u8; 6]>().prop_map(|[op, who, a, b, c, d]| Raw { op, who, a, b, c, d });
    proptest::collection::vec(raw, 1..len)
}

/// A file that was seen, and where.
#[derive(Debug, Clone)]
struct Known {
    ino: u64,
    kind: Kind,
    places: Vec<(u64, Name)>,
}

/// A node, the model of what it should do, and what a client has seen of both.
pub struct World {
    pub fixture: Option<Fixture>,
    pub model: Model,
    known: Vec<Known>,
    next_object: u64,
    /// What a loss of power leaves.
    synced: Model,
    faults: bool,
    /// What happened, for the message of a failure.
    trace: Vec<String>,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl World {
    pub fn new(fixture: Fixture, faults: bool) -> Self {
        let mut model = Model::new(kestrel_types::clock::SECOND * 1_000);
        model.node_mut(1).data_change = 1;
        let synced = model.clone();
        Self {
            fixture: Some(fixture),
            model,
            known: vec![Known { ino: 1, kind: Kind::Dir, places: Vec::new() }],
            next_object: 1000,
            synced,
            faults,
            trace: Vec::new(),
        }
    }

    fn fixture(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }

    fn dir(&self, dice: u8) -> u64 {
        let dirs: Vec<u64> =
            self.known.iter().filter(|k| k.kind == Kind::Dir).map(|k| k.ino).collect();
        dirs[usize::from(dice) % dirs.len()]
    }

    fn place(&self, a: u8, b: u8) -> PathRef {
        let mut place = PathRef::new(self.dir(a / 2), name(NAMES[usize::from(b) % 4]));
        if a % 2 == 1 {
            place.dirs.push(&name(NAMES[usize::from(b / 4) % 4]));
            if b > 200 {
                place.dirs.push(&name(NAMES[usize::from(b / 16) % 4]));
            }
        }
        place
    }

    /// A place where something is, mostly.
    fn taken(&self, a: u8, b: u8) -> PathRef {
        let entries: Vec<(u64, &Vec<u8>)> = self
            .model
            .nodes
            .iter()
            .flat_map(|(dir, node)| node.children.keys().map(|name| (*dir, name)))
            .filter(|(dir, _)| self.known.iter().any(|known| known.ino == *dir))
            .collect();
        match entries.get(usize::from(a) % entries.len().max(1)) {
            Some((dir, name)) if b % 4 != 0 => PathRef::new(*dir, Name::new(name).unwrap()),
            _ => self.place(a, b),
        }
    }

    /// One of the inodes that are as wanted, if there are any.
    fn such(&self, a: u8, c: u8, wanted: impl Fn(&kestrel_model::ModelInode) -> bool) -> InodeRef {
        let known = self
            .known
            .iter()
            .filter(|known| self.model.nodes.get(&known.ino).is_some_and(|node| wanted(node)));
        let known: Vec<&Known> = known.collect();
        match known.get(usize::from(a) % known.len().max(1)) {
            Some(known) if a % 8 != 0 => Self::reference(known, c),
            _ => self.inode(a, c),
        }
    }

    fn inode(&self, a: u8, c: u8) -> InodeRef {
        // Files are more interesting than the root.
        Self::reference(&self.known[(usize::from(a) + 1) % self.known.len()], c)
    }

    fn reference(known: &Known, c: u8) -> InodeRef {
        let seen = match known.places.len() {
            0 => None,
            len => Some(known.places[usize::from(c) % len].clone()),
        };
        InodeRef { ino: known.ino, seen: if known.kind == Kind::Dir { None } else { seen } }
    }

    fn creds(dice: u8) -> Creds {
        let (uid, gid, groups): (u32, u32, &[u32]) = match dice % 8 {
            0..=3 => (0, 0, &[]),
            4 => (1000, 1000, &[2000]),
            5 => (1001, 1000, &[]),
            6 => (1002, 1002, &[1000, 2000]),
            _ => (1000, 2000, &[1000]),
        };
        Creds { uid, gid, groups: Some(groups.into()) }
    }

    fn range(&mut self, len: u32) -> Range {
        self.next_object += 1;
        // A few objects are shared, as packs are.
        let object =
            if self.next_object % 3 == 0 { self.next_object } else { 500 + self.next_object % 2 };
        Range { object, offset: 64 * (self.next_object as u32 % 1000), len }
    }

    fn extent(&mut self, c: u8, d: u8) -> (u64, Extent) {
        let (pos, len) = (u32::from(c % 16) * 7, 1 + u32::from(d % 40));
        let source = match d % 5 {
            0 => Source::Hole,
            _ => Source::Stored { range: self.range(len + 9), skip: u32::from(c % 9) },
        };
        (u64::from(d % 3 == 2), Extent { pos, len, source })
    }

    fn commit(&mut self, raw: Raw) -> Op {
        let inode = self.such(raw.a, raw.c, |node| node.kind == Kind::File);
        let node = self.model.nodes.get(&inode.ino);
        let base = node.map_or(1, |node| if raw.who > 240 { 7 } else { node.data_change });
        let old_size = node.map_or(0, |node| node.size);
        let (data, size) = match raw.b % 8 {
            0 => (NewData::Unchanged, Some(u64::from(raw.d))),
            1 => (NewData::Unchanged, None),
            2 | 3 => {
                let bytes: Vec<u8> = (0..raw.d % 60).collect();
                (NewData::Inline(bytes.into()), Some(u64::from(raw.d % 70)))
            }
            4 => {
                let range = self.range(1 + u32::from(raw.d % 90));
                (NewData::Packed(range), Some(u64::from(range.len) + u64::from(raw.c % 3)))
            }
            _ => {
                let mut patches = vec![self.extent(raw.c, raw.d), self.extent(raw.d, raw.c)];
                if raw.b % 8 == 7 {
                    let range = self.range(80);
                    patches.insert(0, (0, Extent::of_range(0, range)));
                }
                let end = patches
                    .iter()
                    .map(|(chunk, extent)| chunk * CHUNK_BYTES + u64::from(extent.end()))
                    .max();
                let size = match raw.who % 4 {
                    0 => end.unwrap_or(0),
                    1 => u64::from(raw.d),
                    _ => end.unwrap_or(0).max(old_size),
                };
                (NewData::Patches(patches), Some(size))
            }
        };
        let kill_suid = raw.c % 2 == 0;
        Op::Commit(Commit { inode, base, data, size, mtime: i64::from(raw.c) << 33, kill_suid })
    }

    fn setattr(&self, raw: Raw) -> Op {
        let (b, d) = (raw.b, raw.d);
        let on = |bit: u8| b >> bit & 1 == 1;
        let time = |dice: u8| {
            if dice % 2 == 0 { SetTime::Now } else { SetTime::At(i64::from(dice) << 40) }
        };
        let set = SetAttr {
            mode: (on(0) && on(1)).then_some(u16::from(d) * 37 % 0o10000),
            uid: (on(2) && on(3)).then_some([0, 1000, 1001][usize::from(d % 3)]),
            gid: (on(2) && on(4)).then_some([0, 1000, 2000][usize::from(d / 3 % 3)]),
            size: (on(5) && on(0)).then_some(u64::from(d)),
            atime: (on(6) && on(1)).then_some(time(d)),
            mtime: (on(6) && on(2)).then_some(time(d / 2)),
            through_handle: on(7),
            kill_suid: on(7) && on(3),
        };
        Op::SetAttr(self.inode(raw.a, raw.c), set)
    }

    /// Sets, looks at or removes an ACL of something.
    fn acl(&self, raw: Raw) -> Op {
        let name: Box<[u8]> = match raw.b % 8 {
            0..4 => XATTR_ACCESS,
            _ => XATTR_DEFAULT,
        }
        .into();
        let has = |node: &kestrel_model::ModelInode| node.xattrs.contains_key(&*name);
        let wants = |node: &kestrel_model::ModelInode| node.kind == Kind::Dir || raw.b % 8 < 4;
        match raw.d % 8 {
            0..=3 => {
                let perm = |dice: u8| dice % 8;
                let flags = XattrFlags { create: raw.who > 250, replace: raw.who > 240 };
                let flags = XattrFlags { replace: flags.replace && !flags.create, ..flags };
                let named = [raw.a, raw.c, raw.who].into_iter().take(usize::from(raw.b / 8 % 4));
                let mut named: Vec<Named> = named
                    .map(|dice| Named {
                        group: dice % 2 == 0,
                        id: [1000, 1001, 1002, 2000][usize::from(dice / 2 % 4)],
                        perm: perm(dice / 8),
                    })
                    .collect();
                named.sort_by_key(|one| one.group);
                let acl = Acl {
                    user_obj: perm(raw.a),
                    group_obj: perm(raw.c),
                    mask: (!named.is_empty() || raw.c % 2 == 0).then_some(perm(raw.a / 8) | 1),
                    other: perm(raw.who),
                    named: named.into(),
                };
                let mut value = acl.to_xattr();
                match raw.c {
                    0..=3 => value = value[..usize::from(raw.c) * 4].into(),
                    4..=9 => value[usize::from(raw.d) % 28] ^= 1 << (raw.who % 8),
                    _ => {}
                }
                Op::SetXattr(self.such(raw.a, raw.c, wants), name, value, flags)
            }
            4 | 5 => Op::RemoveXattr(self.such(raw.a, raw.c, has), name),
            6 => Op::GetXattr(self.such(raw.a, raw.c, has), name),
            _ => Op::ListXattr(self.such(raw.a, raw.c, has)),
        }
    }

    fn xattr(&self, raw: Raw) -> Op {
        if raw.who % 2 == 0 {
            return self.acl(raw);
        }
        let fresh = raw.d % 8 < 3;
        let inode = self.such(raw.a, raw.c, |node| fresh || !node.xattrs.is_empty());
        let name: Box<[u8]> = (*[&b"user.x"[..], b"user.x", b"trusted.t", b"security.capability"]
            [usize::from(raw.b % 4)])
        .into();
        match raw.d % 8 {
            0..=2 => {
                let flags = XattrFlags { create: raw.c % 8 == 0, replace: raw.c % 8 == 1 };
                Op::SetXattr(inode, name, vec![raw.c; usize::from(raw.d)].into(), flags)
            }
            3 | 4 => Op::GetXattr(inode, name),
            5 | 6 => Op::RemoveXattr(inode, name),
            _ => Op::ListXattr(inode),
        }
    }

    /// What a caller may expect to remove or replace: often nothing in particular.
    fn expected(&self, dice: u8) -> Option<u64> {
        (dice % 8 == 0).then(|| self.dir(dice / 8))
    }

    /// The request that a step stands for.
    fn op(&mut self, raw: Raw) -> Op {
        let flags = OpenFlags {
            read: raw.d & 1 != 0,
            write: raw.d & 2 != 0,
            exec: raw.d & 0x1c == 4,
            truncate: raw.d & 0x60 == 0x20,
            kill_suid: raw.d & 0x80 != 0,
            append: raw.b & 1 != 0,
        };
        let modes = [0o644, 0o755, 0o600, 0o777, 0o2775, 0o4755, 0o1777, 0o070, 0o2666, 0o6767];
        let mode = modes[usize::from(raw.c) % modes.len()];
        let mode = with_umask(mode, [0, 0, 0o022, 0o077][usize::from(raw.d / 64)]);
        match raw.op {
            0..=9 => Op::Lookup(self.taken(raw.a, raw.b)),
            20..=49 => Op::Create {
                place: self.place(raw.a, raw.b),
                mode,
                flags,
                exclusive: raw.d % 3 == 0,
            },
            50..=69 => Op::MkDir(self.place(raw.a, raw.b), mode),
            70..=84 => Op::Unlink(self.taken(raw.a, raw.b)),
            85..=99 => Op::RmDir(self.taken(raw.a, raw.b), self.expected(raw.c)),
            100..=129 => {
                let flags = RenameFlags {
                    no_replace: raw.who / 8 % 5 == 0,
                    exchange: raw.who / 8 % 5 == 1,
                    replaced: self.expected(raw.b),
                };
                let to = if raw.op % 3 == 0 {
                    self.taken(raw.c, raw.d)
                } else {
                    self.place(raw.c, raw.d)
                };
                Op::Rename(self.taken(raw.a, raw.b), to, flags)
            }
            130..=144 => Op::Link(
                self.such(raw.a, raw.c, |node| node.kind != Kind::Dir),
                self.place(raw.b, raw.d),
            ),
            145..=150 => Op::Open(self.inode(raw.a, raw.c), flags),
            151..=154 => Op::OpenAt(self.taken(raw.a, raw.b), flags),
            155..=169 => {
                let open: Vec<u64> = self
                    .model
                    .nodes
                    .iter()
                    .filter(|(_, n)| n.opens > 0)
                    .map(|(ino, _)| *ino)
                    .collect();
                Op::Release(open.get(usize::from(raw.a) % open.len().max(1)).copied().unwrap_or(99))
            }
            170..=184 => self.setattr(raw),
            185..=209 => self.commit(raw),
            210..=214 => {
                let kinds = [Kind::Fifo, Kind::Char, Kind::File, Kind::Socket];
                let kind = kinds[usize::from(raw.d % 4)];
                Op::MkNod { place: self.place(raw.a, raw.b), kind, mode, rdev: 5 }
            }
            215..=219 => {
                Op::Symlink(self.place(raw.a, raw.b), vec![b'x'; 1 + usize::from(raw.c)].into())
            }
            220..=223 => Op::TmpFile { dir: self.dir(raw.a), mode, exclusive: raw.d % 3 == 0 },
            224..=229 => {
                let stored = |n: &kestrel_model::ModelInode| {
                    n.kind == Kind::File && n.layout != Layout::Inline && n.size > 0
                };
                let from = self.such(raw.a, raw.c, stored);
                let size = self.model.nodes.get(&from.ino).map_or(0, |node| node.size);
                let (from_offset, len) = match raw.who % 3 {
                    // The model goes byte by byte: of large files only a part across the border of
                    // two chunks.
                    _ if size > 1000 => (CHUNK_BYTES - 20, 60),
                    0 => (0, size),
                    1 => (size / 3, size / 3),
                    _ => (u64::from(raw.c % 50), u64::from(raw.d)),
                };
                let to = self.such(raw.b, raw.d, |node| {
                    node.kind == Kind::File && node.layout != Layout::Inline
                });
                Op::Clone { from, from_offset, to, to_offset: u64::from(raw.d % 3) * 25, len }
            }
            10..=13 => self.past_op(raw),
            14..=16 => self.snapshot_op(raw),
            17 => self.policy_op(raw),
            18 | 19 => self.clone_op(raw),
            230..=243 => self.xattr(raw),
            244 => Op::Access(self.inode(raw.a, raw.c), u32::from(raw.d % 8)),
            245..=246 => Op::ReadLink(self.such(raw.a, raw.c, |node| node.kind == Kind::Symlink)),
            247 => Op::Parent(self.dir(raw.a)),
            248 => {
                // Mostly none, or soon nothing could change.
                let flags = if raw.d < 96 { InodeFlags::from_bits(raw.d % 16) } else { None };
                Op::SetFlags(self.inode(raw.a, raw.c), flags.unwrap_or_default())
            }
            249 if raw.d % 2 == 0 => Op::Locate {
                files: vec![self.inode(raw.a, raw.c).ino, u64::from(raw.b)],
                after: None,
            },
            251 => {
                let at = self.model.now - i64::from(raw.b) + 20;
                Op::Accessed(self.inode(raw.a, raw.d), Accessed { at, relative: raw.who % 2 == 0 })
            }
            249 => Op::ReadDirPlus { dir: self.dir(raw.a), after: None, limit: 4096 },
            250 if raw.d % 2 == 0 => {
                Op::RemovalCheck { dir: self.dir(raw.a), after: None, limit: 4096 }
            }
            250 => Op::ReadDir { dir: self.dir(raw.a), after: None, limit: 4096, check: true },
            _ => Op::GetAttr(self.inode(raw.a, raw.c)),
        }
    }

    fn learn(&mut self, op: &Op, reply: &Reply) {
        let (Ok(answer), false) = (reply, matches!(op, Op::At(..))) else { return };
        let (inode, parent) = match answer {
            Answer::Entry { parent, inode } => (inode, Some(*parent)),
            Answer::Opened { parent, inode, .. } => (inode, *parent),
            Answer::Renamed { moved, to: parent, .. } => {
                if let Op::Rename(_, to, _) = op {
                    self.seen(*moved, None, (*parent, to.name.clone()));
                }
                return;
            }
            _ => return,
        };
        match (op.subject(), parent) {
            (Subject::Path(place), Some(parent)) => {
                self.seen(inode.ino, Some(inode.kind), (parent, place.name.clone()));
            }
            _ if matches!(op, Op::TmpFile { .. }) => {
                self.known.push(Known { ino: inode.ino, kind: Kind::File, places: Vec::new() });
            }
            _ => {}
        }
    }

    fn seen(&mut self, ino: u64, kind: Option<Kind>, here: (u64, Name)) {
        match (self.known.iter_mut().find(|known| known.ino == ino), kind) {
            (Some(known), _) => known.places.push(here),
            (None, Some(kind)) => self.known.push(Known { ino, kind, places: vec![here] }),
            (None, None) => {}
        }
    }

    /// Runs one request by itself, as a client that does not know its groups at first.
    fn single(&mut self, creds: &Creds, op: Op) -> Result<(), String> {
        self.fixture().clock.advance(1_000_000);
        self.model.now += 1_000_000;
        self.tidy();
        let unknown = Creds { groups: None, ..creds.clone() };
        let mut reply = self.fixture().call_to_the_end(&unknown, op.clone());
        if errno(&reply) == NEED_GROUPS {
            reply = self.fixture().call_to_the_end(creds, op.clone());
        }
        self.judge(creds, &op, &reply)
    }

    fn judge(&mut self, creds: &Creds, op: &Op, reply: &Reply) -> Result<(), String> {
        self.trace.push(format!("{op:?} as {}: {}", creds.uid, errno(reply)));
        if self.faults && [libc::EIO, libc::ENOSPC].contains(&errno(reply)) {
            return Ok(());
        }
        let trace = &self.trace;
        let explain = |why| format!("{op:?} as {creds:?}: {why}; before:\n{}", trace.join("\n"));
        self.model.judge(creds, op, reply).map_err(explain)?;
        if matches!(op, Op::SnapshotCreate { .. }) {
            // Its answer waits until all that it depends on is durable; a failure, too, if it
            // depends on anything.
            self.fixture().node.engine().sync().unwrap();
            self.synced = self.model.clone();
        }
        self.learn(op, reply);
        Ok(())
    }

    /// Runs requests as one batch a worker. The model follows in the order of the replies.
    fn batch(&mut self, requests: Vec<(Creds, Op)>) -> Result<(), String> {
        self.fixture().clock.advance(1_000_000);
        self.model.now += 1_000_000;
        let order: Arc<Mutex<Vec<(usize, Reply)>>> = Arc::default();
        let jobs = requests.iter().enumerate().map(|(number, (creds, op))| {
            let order = order.clone();
            let done: kestrel_types::request::Done =
                Box::new(move |reply| order.lock().push((number, reply)));
            (Request { creds: creds.clone(), op: op.clone() }, done)
        });
        self.fixture().node.submit_many(jobs.collect());
        let order = std::mem::take(&mut *order.lock());
        if order.len() != requests.len() {
            return Err(format!("{} of {} requests were answered", order.len(), requests.len()));
        }
        for (number, reply) in &order {
            let (creds, op) = &requests[*number];
            self.judge(creds, op, reply)?;
        }
        Ok(())
    }

    fn crash(&mut self, power_loss: bool) {
        self.trace.push(format!("crash, power loss {power_loss}"));
        let fixture = self.fixture.take().unwrap();
        self.fixture = Some(fixture.crash(power_loss));
        if power_loss {
            let now = self.model.now;
            self.model = self.synced.clone();
            self.model.now = now;
        }
        self.close_all();
        // Opening the volume made what it did on the way permanent only if it synced.
        self.fixture().node.engine().sync().unwrap();
        self.synced = self.model.clone();
    }

    /// Nothing is open any more, and files without names are gone.
    fn close_all(&mut self) {
        for node in self.model.nodes.values_mut() {
            Arc::make_mut(node).opens = 0;
        }
        self.model.nodes.retain(|_, node| node.nlink > 0);
        self.look_up_again();
    }

    /// Where files went is forgotten.
    fn look_up_again(&mut self) {
        let mut places: BTreeMap<u64, Vec<(u64, Name)>> = BTreeMap::new();
        for (dir, node) in &self.model.nodes {
            for (name, child) in &node.children {
                places.entry(*child).or_default().push((*dir, Name::new(name).unwrap()));
            }
        }
        let nodes = &self.model.nodes;
        self.known.retain(|known| nodes.contains_key(&known.ino));
        for known in &mut self.known {
            known.places = places.remove(&known.ino).unwrap_or_default();
        }
    }

    /// Runs a sequence. `splits` says how many steps make a batch each time.
    pub fn run(&mut self, raws: &[Raw], splits: &[u8]) -> Result<(), String> {
        let mut splits = splits.iter().cycle();
        let mut raws = raws.iter().copied();
        loop {
            let size = splits.next().map_or(1, |size| usize::from(*size)).max(1);
            let part: Vec<Raw> = raws.by_ref().take(size).collect();
            if part.is_empty() {
                return self.finish();
            }
            if self.faults {
                self.inject(part[0]);
            }
            let mut requests: Vec<_> =
                part.iter().map(|raw| (Self::creds(raw.who), self.op(*raw))).collect();
            if part.len() > 1 {
                // Listings are no part of batches, so the order of replies does not tell when they
                // were made; nor does it for what comes after a snapshot.
                requests.retain(|(_, op)| {
                    let lists = matches!(
                        op,
                        Op::ReadDir { .. } | Op::ReadDirPlus { .. } | Op::RemovalCheck { .. }
                    );
                    !lists && !versions::is_of_snapshots(op)
                });
            }
            if let [(creds, op)] = &requests[..] {
                self.single(&creds.clone(), op.clone())?;
            } else {
                self.batch(requests)?;
            }
        }
    }

    fn inject(&mut self, raw: Raw) {
        match raw.d {
            0..=9 => self.fixture().engine.fail_commit(EngineError::Io("injected".into())),
            10..=19 => self.fixture().engine.fail_commit(EngineError::NoSpace),
            20..=25 => {
                self.fixture().node.engine().sync().unwrap();
                self.synced = self.model.clone();
            }
            26..=30 => self.crash(false),
            31..=35 => self.crash(true),
            36..=45 => self.fixture().engine.set_full(raw.a % 3 == 0),
            _ => {}
        }
    }
}
