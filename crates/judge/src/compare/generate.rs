//! Random steps from a seed. A rough model of the tree, which learns from a rehearsal on the reference, makes most of
//! them meaningful; it need not be right, since the reference is the judge. The finished steps are a plain list, so that
//! any subset of them can run again.

use std::collections::{BTreeMap, BTreeSet};

use crate::compare::actor::ACTORS;
use crate::compare::caps;
use crate::compare::op::{Base, DIR_SLOTS, Loc, LockKind, Op, Range, SLOTS, Step, Target, Time};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
    Link,
    Fifo,
}

/// A path from the root of the tree, as names.
type Names = Vec<Vec<u8>>;

/// Makes one kind of operation.
type Make = fn(&mut Generator, usize) -> Op;

/// What a success would change in the model.
enum Effect {
    Add(Names, Kind),
    Remove(Names),
    Move(Names, Names),
    Exchange(Names, Names),
    Open(usize, u8, bool),
    Dir(usize, u8, Option<Names>),
    Cwd(usize, Names),
}

struct Generator {
    rng: Rng,
    nodes: BTreeMap<Names, Kind>,
    open: Vec<[bool; SLOTS]>,
    dirs: Vec<[Option<Names>; DIR_SLOTS]>,
    /// `None`: lost track.
    cwd: Vec<Option<Names>>,
    deep_done: bool,
    /// Of the step that is being made.
    effects: Vec<Effect>,
    used: Vec<(Base, Names)>,
}

/// `count` steps from `seed`, without what a side cannot do. `rehearse` runs a step on a reference and returns its result.
pub fn generate(
    seed: u64,
    count: usize,
    has: &BTreeSet<&'static str>,
    mut rehearse: impl FnMut(&Step) -> i64,
) -> Vec<Step> {
    let mut generator = Generator {
        rng: Rng::new(seed),
        nodes: BTreeMap::new(),
        open: vec![[false; SLOTS]; ACTORS.len()],
        dirs: vec![Default::default(); ACTORS.len()],
        cwd: vec![Some(Vec::new()); ACTORS.len()],
        deep_done: false,
        effects: Vec::new(),
        used: Vec::new(),
    };
    (0..count)
        .map(|_| {
            let mut step = generator.step();
            if caps::needs(&step.op).is_some_and(|need| !has.contains(need)) {
                step.op = Op::Getcwd;
                generator.effects.clear();
            }
            generator.learn(step.actor as usize, rehearse(&step));
            step
        })
        .collect()
}

const PLAIN_NAMES: &[&[u8]] = &[b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"file.txt", b"Makefile"];
const ODD_NAMES: &[&[u8]] = &[
    b" ",
    b"...",
    b"-rf",
    b"new\nline",
    b"\xff\xfe\x80",
    b"tab\there",
    b"caf\xc3\xa9",
    b"A",
    b"name with spaces",
    b"*",
    b"~",
    b".hidden",
    b".fuse_hidden0001",
];
const MODES: &[u32] = &[
    0o777, 0o755, 0o700, 0o644, 0o666, 0o600, 0o444, 0o000, 0o111, 0o222, 0o1777, 0o2775, 0o4755, 0o6711,
    0o070, 0o007,
];
const XATTRS: &[&[u8]] = &[b"user.a", b"user.b", b"user.c.d", b"user.\xe2\x82\xac"];

impl Generator {
    fn step(&mut self) -> Step {
        let actor = match self.rng.below(100) {
            0..55 => 0,
            55..70 => 1,
            70..82 => 2,
            82..92 => 3,
            _ => 4,
        };
        let op = self.op(actor as usize);
        Step { actor, probe: self.rng.percent(30), op }
    }

    fn op(&mut self, who: usize) -> Op {
        // Weights; the sum is what they add up to.
        const WEIGHTS: &[(u64, Make)] = &[
            (95, Generator::open),
            (25, Generator::close),
            (6, Generator::dup),
            (22, Generator::open_dir),
            (4, Generator::close_dir),
            (45, Generator::read),
            (80, Generator::write),
            (40, Generator::truncate),
            (30, Generator::fallocate),
            (18, Generator::seek),
            (60, Generator::mkdir),
            (22, Generator::rmdir),
            (12, Generator::mknod),
            (24, Generator::symlink),
            (10, Generator::readlink),
            (40, Generator::link),
            (45, Generator::unlink),
            (70, Generator::rename),
            (30, Generator::chmod),
            (24, Generator::chown),
            (18, Generator::utimens),
            (60, Generator::stat),
            (45, Generator::read_dir),
            (3, Generator::scan),
            (48, Generator::xattr),
            (14, Generator::access),
            (24, Generator::mmap),
            (16, Generator::copy),
            (14, Generator::sync),
            (40, Generator::lock),
            (20, Generator::process),
            (1, Generator::deep),
        ];
        let mut at = self.rng.below(WEIGHTS.iter().map(|(w, _)| w).sum());
        for (weight, make) in WEIGHTS {
            if at < *weight {
                return make(self, who);
            }
            at -= weight;
        }
        Op::Getcwd
    }

    // ---- names and places ----

    fn name(&mut self) -> Vec<u8> {
        match self.rng.below(100) {
            0..88 => self.rng.pick(PLAIN_NAMES).to_vec(),
            88..95 => self.rng.pick(ODD_NAMES).to_vec(),
            95 => vec![b'L'; 256],
            96 => vec![b'M'; 254],
            _ => vec![*self.rng.pick(b"NO"); 255],
        }
    }

    fn known(&mut self, kinds: &[Kind]) -> Option<Names> {
        let fitting: Vec<_> = self.nodes.iter().filter(|(_, k)| kinds.contains(k)).map(|(p, _)| p).collect();
        if fitting.is_empty() { None } else { Some((*self.rng.pick(&fitting)).clone()) }
    }

    fn known_dir(&mut self) -> Names {
        // The root often, so that the tree stays shallow enough for names to meet.
        if self.rng.percent(30) { Vec::new() } else { self.known(&[Kind::Dir]).unwrap_or_default() }
    }

    fn new_names(&mut self) -> Names {
        let mut names = self.known_dir();
        if names.len() >= 6 {
            names.truncate(2);
        }
        names.push(self.name());
        names
    }

    fn random_names(&mut self) -> Names {
        (0..self.rng.range(0, 4)).map(|_| self.name()).collect()
    }

    /// An existing path of one of the kinds, or (rarely) any other.
    fn some(&mut self, kinds: &[Kind]) -> Names {
        match self.rng.below(100) {
            0..80 => self.known(kinds).unwrap_or_else(|| self.name_list()),
            80..92 => self.known(&[Kind::Dir, Kind::File, Kind::Link, Kind::Fifo]).unwrap_or_default(),
            _ => self.random_names(),
        }
    }

    fn name_list(&mut self) -> Names {
        vec![self.name()]
    }

    /// A path that should be free, or (rarely) is not.
    fn fresh(&mut self) -> Names {
        if self.rng.percent(85) { self.new_names() } else { self.some(&[Kind::Dir, Kind::File, Kind::Link]) }
    }

    /// Turns names into a path from some base, sometimes in an odd spelling.
    fn loc(&mut self, who: usize, names: &Names) -> Loc {
        let mut loc = Loc { base: Base::Root, path: names.join(&b'/') };
        let cwd = self.cwd[who].clone().unwrap_or_else(|| vec![b"\0".to_vec()]);
        let slot = self.rng.below(DIR_SLOTS as u64) as usize;
        if let (true, Some(dir)) = (self.rng.percent(40), self.dirs[who][slot].clone()) {
            // Mostly a path below that directory; sometimes whatever it leads to.
            if names.starts_with(&dir) || self.rng.percent(10) {
                let rest = if names.starts_with(&dir) { &names[dir.len()..] } else { &names[..] };
                loc = Loc { base: Base::Dir(slot as u8), path: rest.join(&b'/') };
            }
        } else if names.starts_with(&cwd) && self.rng.percent(60) {
            loc = Loc { base: Base::Cwd, path: names[cwd.len()..].join(&b'/') };
        }
        if loc.path.is_empty() {
            loc.path = b".".to_vec();
        }
        self.used.push((loc.base, names.clone()));
        self.spell(loc)
    }

    fn spell(&mut self, mut loc: Loc) -> Loc {
        let pad = |path: &[u8], len: usize| {
            let mut out = Vec::new();
            while out.len() + 2 + path.len() <= len {
                out.extend_from_slice(b"./");
            }
            if out.len() + path.len() < len {
                out.insert(0, b'.');
                out.insert(1, b'/');
                out.remove(2);
            }
            [&out[..], path].concat()
        };
        match self.rng.below(200) {
            0 => loc.path.extend_from_slice(b"/"),
            1 => loc.path.extend_from_slice(b"/."),
            2 => loc.path.extend_from_slice(b"/.."),
            3 => loc.path.splice(0..0, *b"./").for_each(drop),
            4 => loc.path.splice(0..0, *b"/").for_each(drop),
            5 => {
                if let Some(at) = loc.path.iter().position(|&b| b == b'/') {
                    loc.path.insert(at, b'/');
                }
            }
            6 => {
                let up = [b"../", &loc.path[..]].concat();
                loc.path = up;
            }
            7 => {
                let name = self.name();
                loc.path = [&name[..], b"/../", &loc.path[..]].concat();
            }
            8 => loc.path.clear(),
            9 => loc.path = pad(&loc.path, 4094),
            10 => loc.path = pad(&loc.path, 4095),
            11 => loc.path = pad(&loc.path, 4096),
            12 => loc.path = pad(&loc.path, 4097),
            _ => {}
        }
        loc
    }

    fn target(&mut self, who: usize, kinds: &[Kind]) -> Target {
        if self.rng.percent(35) {
            Target::Slot(self.slot(who))
        } else {
            let names = self.some(kinds);
            let nofollow = self.rng.percent(25);
            Target::Path(self.loc(who, &names), nofollow)
        }
    }

    fn slot(&mut self, who: usize) -> u8 {
        let open: Vec<_> = (0..SLOTS).filter(|&s| self.open[who][s]).collect();
        if open.is_empty() || self.rng.percent(5) {
            self.rng.below(SLOTS as u64) as u8
        } else {
            *self.rng.pick(&open) as u8
        }
    }

    // ---- the model ----

    fn will(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Takes in how the last step ended on the reference.
    fn learn(&mut self, who: usize, ret: i64) {
        let (effects, used) = (std::mem::take(&mut self.effects), std::mem::take(&mut self.used));
        if ret >= 0 {
            effects.into_iter().for_each(|effect| self.apply(effect));
            return;
        }
        if !matches!((-ret) as i32, libc::ENOENT | libc::ENOTDIR | libc::EBADF | libc::ESTALE) {
            return;
        }
        // Something that the path went through is not there: lose track of the doubtful part.
        for (base, names) in used {
            match base {
                Base::Cwd => self.cwd[who] = None,
                Base::Dir(d) => self.dirs[who][d as usize] = None,
                Base::Root => {
                    self.nodes.remove(&names);
                }
            }
        }
        if ret == -i64::from(libc::EBADF) {
            for effect in effects {
                if let Effect::Open(who, slot, false) = effect {
                    self.open[who][slot as usize] = false;
                }
            }
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Add(names, kind) => {
                if !names.is_empty() {
                    self.nodes.entry(names).or_insert(kind);
                }
            }
            Effect::Remove(names) => {
                self.take_tree(&names);
            }
            Effect::Move(from, to) => {
                if from != to {
                    let tree = self.take_tree(&from);
                    self.take_tree(&to);
                    self.put_tree(&to, tree);
                    self.moved(&from, &to);
                }
            }
            Effect::Exchange(from, to) => {
                let (a, b) = (self.take_tree(&from), self.take_tree(&to));
                self.put_tree(&from, b);
                self.put_tree(&to, a);
            }
            Effect::Open(who, slot, open) => self.open[who][slot as usize] = open,
            Effect::Dir(who, dir, names) => self.dirs[who][dir as usize] = names,
            Effect::Cwd(who, names) => self.cwd[who] = Some(names),
        }
    }

    fn add(&mut self, names: &Names, kind: Kind) {
        self.will(Effect::Add(names.clone(), kind));
    }

    fn take_tree(&mut self, names: &Names) -> Vec<(Names, Kind)> {
        let tree: Vec<_> = self
            .nodes
            .range(names.clone()..)
            .take_while(|(p, _)| p.starts_with(names))
            .map(|(p, k)| (p[names.len()..].to_vec(), *k))
            .collect();
        for (rest, _) in &tree {
            self.nodes.remove(&[&names[..], rest].concat());
        }
        tree
    }

    fn put_tree(&mut self, names: &Names, tree: Vec<(Names, Kind)>) {
        for (rest, kind) in tree {
            self.nodes.insert([&names[..], &rest].concat(), kind);
        }
    }

    fn moved(&mut self, from: &Names, to: &Names) {
        let follow = |place: &mut Names| {
            if place.starts_with(from) {
                *place = [&to[..], &place[from.len()..]].concat();
            }
        };
        self.cwd.iter_mut().flatten().for_each(follow);
        self.dirs.iter_mut().flatten().flatten().for_each(follow);
    }

    // ---- numbers ----

    fn offset(&mut self) -> i64 {
        match self.rng.below(100) {
            0..30 => self.rng.below(200) as i64,
            30..60 => self.rng.below(20_000) as i64,
            60..75 => self.rng.below(64) as i64 * 4096,
            75..90 => self.rng.below(300_000) as i64,
            90..96 => self.rng.below(9 << 20) as i64,
            96 => self.rng.below(130 << 20) as i64,
            97 => (1 << 40) + self.rng.below(100_000) as i64,
            98 => (4 << 20) - self.rng.below(5000) as i64,
            _ => -(self.rng.below(5000) as i64),
        }
    }

    fn length(&mut self) -> u32 {
        match self.rng.below(100) {
            0..4 => 0,
            4..45 => self.rng.range(1, 200) as u32,
            45..75 => self.rng.range(1, 5000) as u32,
            75..95 => self.rng.range(1, 40_000) as u32,
            95..98 => 4096 * self.rng.range(1, 20) as u32,
            _ => self.rng.range(1, 300_000) as u32,
        }
    }

    fn small_offset(&mut self) -> u32 {
        self.rng.below(*self.rng.clone().pick(&[100, 5000, 70_000, 300_000])) as u32
    }

    // ---- operations ----

    fn open(&mut self, who: usize) -> Op {
        let slot = self.rng.below(SLOTS as u64) as u8;
        let mut flags = *self.rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
        let mode = *self.rng.pick(MODES);
        if self.rng.percent(4) {
            let names = self.known_dir();
            let access = if self.rng.percent(90) { libc::O_RDWR } else { flags };
            self.will(Effect::Open(who, slot, true));
            let excl = if self.rng.percent(15) { libc::O_EXCL } else { 0 };
            return Op::Open {
                slot,
                loc: self.loc(who, &names),
                flags: libc::O_TMPFILE | access | excl,
                mode,
            };
        }
        let names = if self.rng.percent(50) {
            flags |= libc::O_CREAT;
            let names = if self.rng.percent(60) { self.fresh() } else { self.some(&[Kind::File]) };
            self.add(&names, Kind::File);
            names
        } else {
            self.some(&[Kind::File])
        };
        let odds = [
            (12, libc::O_TRUNC),
            (15, libc::O_APPEND),
            (8, libc::O_EXCL),
            (6, libc::O_NOFOLLOW),
            (3, libc::O_DIRECTORY),
            (3, libc::O_SYNC),
            (2, libc::O_NOATIME),
        ];
        for (percent, flag) in odds {
            if self.rng.percent(percent) {
                flags |= flag;
            }
        }
        // O_CREAT with O_DIRECTORY is EINVAL since Linux 6.3 and was undefined before; O_EXCL alone is undefined.
        if flags & libc::O_DIRECTORY != 0 {
            flags &= !libc::O_CREAT;
        }
        if flags & libc::O_CREAT == 0 {
            flags &= !libc::O_EXCL;
        }
        // Truncating through O_RDONLY is unspecified.
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            flags &= !libc::O_TRUNC;
        }
        if self.rng.percent(5) && flags & libc::O_APPEND == 0 {
            flags |= libc::O_DIRECT;
        }
        self.will(Effect::Open(who, slot, true));
        Op::Open { slot, loc: self.loc(who, &names), flags, mode }
    }

    fn close(&mut self, who: usize) -> Op {
        let slot = self.slot(who);
        self.will(Effect::Open(who, slot, false));
        Op::Close { slot }
    }

    fn dup(&mut self, who: usize) -> Op {
        let (from, to) = (self.slot(who), self.rng.below(SLOTS as u64) as u8);
        self.will(Effect::Open(who, to, true));
        Op::Dup { from, to }
    }

    fn open_dir(&mut self, who: usize) -> Op {
        let dir = self.rng.below(DIR_SLOTS as u64) as u8;
        let names = self.some(&[Kind::Dir]);
        let flags = match self.rng.below(10) {
            0 => libc::O_RDONLY,
            1 | 2 => libc::O_PATH | libc::O_DIRECTORY,
            _ => libc::O_RDONLY | libc::O_DIRECTORY,
        };
        let loc = self.loc(who, &names);
        self.will(Effect::Dir(who, dir, Some(names)));
        Op::OpenDir { dir, loc, flags }
    }

    fn close_dir(&mut self, who: usize) -> Op {
        let dir = self.rng.below(DIR_SLOTS as u64) as u8;
        self.will(Effect::Dir(who, dir, None));
        Op::CloseDir { dir }
    }

    fn read(&mut self, who: usize) -> Op {
        let (slot, len) = (self.slot(who), self.length());
        if self.rng.percent(50) {
            Op::Read { slot, len }
        } else {
            Op::Pread { slot, off: self.offset(), len }
        }
    }

    fn write(&mut self, who: usize) -> Op {
        let (slot, len, fill) = (self.slot(who), self.length(), self.rng.next_u64() >> 40);
        if self.rng.percent(50) {
            Op::Write { slot, len, fill }
        } else {
            Op::Pwrite { slot, off: self.offset(), len, fill }
        }
    }

    fn truncate(&mut self, who: usize) -> Op {
        let len = self.offset();
        if self.rng.percent(50) {
            return Op::Ftruncate { slot: self.slot(who), len };
        }
        let names = self.some(&[Kind::File]);
        Op::Truncate { loc: self.loc(who, &names), len }
    }

    fn fallocate(&mut self, who: usize) -> Op {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let mode = *self.rng.pick(&[
            0,
            keep,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_ZERO_RANGE,
            keep | libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
        ]);
        let (mut off, mut len) = (self.offset().min(9 << 20), i64::from(self.length()));
        if mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0 {
            // Their granularity is the block size, which is for each file system to choose.
            (off, len) = (off.abs() / 65536 * 65536, (len / 65536 + 1) * 65536);
        }
        Op::Fallocate { slot: self.slot(who), mode, off, len }
    }

    fn seek(&mut self, who: usize) -> Op {
        let slot = self.slot(who);
        match self.rng.below(10) {
            0..3 => Op::SeekMap { slot },
            n => {
                let whence = match n {
                    3 | 4 => libc::SEEK_SET,
                    5 => libc::SEEK_CUR,
                    6 | 7 => libc::SEEK_END,
                    8 => libc::SEEK_DATA,
                    _ => libc::SEEK_HOLE,
                };
                let off = self.offset();
                let off = if off < (1 << 33) && self.rng.percent(30) { -off } else { off };
                Op::Lseek { slot, off, whence }
            }
        }
    }

    fn mkdir(&mut self, who: usize) -> Op {
        let names = self.fresh();
        let mode = if self.rng.percent(60) { 0o777 } else { *self.rng.pick(MODES) };
        let loc = self.loc(who, &names);
        self.add(&names, Kind::Dir);
        Op::Mkdir { loc, mode }
    }

    fn rmdir(&mut self, who: usize) -> Op {
        let names = self.some(&[Kind::Dir]);
        let loc = self.loc(who, &names);
        self.will(Effect::Remove(names));
        Op::Rmdir { loc }
    }

    fn mknod(&mut self, who: usize) -> Op {
        let names = self.fresh();
        let kind =
            *self.rng.pick(&[libc::S_IFIFO, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFREG, libc::S_IFDIR, 0]);
        let loc = self.loc(who, &names);
        if kind != libc::S_IFDIR {
            let plain = kind == libc::S_IFREG || kind == 0;
            self.add(&names, if plain { Kind::File } else { Kind::Fifo });
        }
        Op::Mknod { loc, mode: kind | *self.rng.pick(MODES) }
    }

    fn symlink(&mut self, who: usize) -> Op {
        let names = self.fresh();
        let target = match self.rng.below(10) {
            0..4 => self.name(),
            4 | 5 => [&b"../"[..], &self.name()[..]].concat(),
            6 | 7 => {
                let names = self.some(&[Kind::Dir, Kind::File]);
                [&b"/"[..], &names.join(&b'/')[..]].concat()
            }
            8 => names.last().cloned().unwrap_or_default(),
            _ => vec![b'x'; *self.rng.pick(&[1000, 4000, 4095, 4096, 0])],
        };
        let loc = self.loc(who, &names);
        self.add(&names, Kind::Link);
        Op::Symlink { target, loc }
    }

    fn readlink(&mut self, who: usize) -> Op {
        let names = self.some(&[Kind::Link]);
        Op::Readlink { loc: self.loc(who, &names) }
    }

    fn link(&mut self, who: usize) -> Op {
        let to = self.fresh();
        if self.rng.percent(12) {
            let (slot, to_loc) = (self.slot(who), self.loc(who, &to));
            self.add(&to, Kind::File);
            return Op::LinkSlot { slot, to: to_loc };
        }
        let from = self.some(&[Kind::File, Kind::File, Kind::Link, Kind::Fifo]);
        let (from_loc, to_loc) = (self.loc(who, &from), self.loc(who, &to));
        let kind = self.nodes.get(&from).copied().unwrap_or(Kind::File);
        self.add(&to, kind);
        Op::Link { from: from_loc, to: to_loc, follow: self.rng.percent(20) }
    }

    fn unlink(&mut self, who: usize) -> Op {
        let names = self.some(&[Kind::File, Kind::Link, Kind::Fifo]);
        let loc = self.loc(who, &names);
        self.will(Effect::Remove(names));
        Op::Unlink { loc }
    }

    fn rename(&mut self, who: usize) -> Op {
        let all = [Kind::Dir, Kind::File, Kind::Link, Kind::Fifo];
        let from = self.some(&all);
        let to = if self.rng.percent(50) { self.fresh() } else { self.some(&all) };
        let flags = match self.rng.below(20) {
            0..3 => libc::RENAME_NOREPLACE,
            3..6 => libc::RENAME_EXCHANGE,
            6 => *self.rng.pick(&[libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE, 1 << 20]),
            _ => 0,
        };
        let (from_loc, to_loc) = (self.loc(who, &from), self.loc(who, &to));
        let exchange = flags == libc::RENAME_EXCHANGE;
        self.will(if exchange { Effect::Exchange(from, to) } else { Effect::Move(from, to) });
        Op::Rename { from: from_loc, to: to_loc, flags }
    }

    fn chmod(&mut self, who: usize) -> Op {
        // Directories mostly stay usable, or nothing would succeed any more.
        let target = self.target(who, &[Kind::File, Kind::File, Kind::Dir]);
        let mode = if self.rng.percent(50) { 0o777 } else { *self.rng.pick(MODES) };
        Op::Chmod { target, mode }
    }

    fn chown(&mut self, who: usize) -> Op {
        let ids = [0, u32::MAX, 20001, 20002, 20003, 20100];
        let target = self.target(who, &[Kind::File, Kind::Dir, Kind::Link]);
        Op::Chown { target, uid: *self.rng.pick(&ids), gid: *self.rng.pick(&ids) }
    }

    fn time(&mut self) -> Time {
        match self.rng.below(10) {
            0 => Time { sec: 0, nsec: libc::UTIME_OMIT },
            1 | 2 => Time { sec: 0, nsec: libc::UTIME_NOW },
            3 => Time { sec: 1, nsec: 1_000_000_000 },
            // Between 1970 and 2020: older than any run, so that it is recognised as explicit.
            _ => {
                Time { sec: self.rng.below(1_577_836_800) as i64, nsec: self.rng.below(1_000_000_000) as i64 }
            }
        }
    }

    fn utimens(&mut self, who: usize) -> Op {
        let target = self.target(who, &[Kind::File, Kind::Dir, Kind::Link]);
        Op::Utimens { target, atime: self.time(), mtime: self.time() }
    }

    fn stat(&mut self, who: usize) -> Op {
        let all = [Kind::Dir, Kind::File, Kind::Link, Kind::Fifo];
        match self.rng.below(10) {
            0 => {
                let names = self.some(&all);
                let flags = *self.rng.pick(&[
                    0,
                    libc::AT_SYMLINK_NOFOLLOW,
                    libc::AT_EMPTY_PATH,
                    libc::AT_STATX_FORCE_SYNC,
                    libc::AT_STATX_DONT_SYNC,
                ]);
                Op::Statx { loc: self.loc(who, &names), flags }
            }
            1 => {
                let names = self.some(&all);
                Op::Statfs { loc: self.loc(who, &names) }
            }
            _ => Op::Stat { target: self.target(who, &all) },
        }
    }

    fn read_dir(&mut self, who: usize) -> Op {
        if self.rng.percent(30) {
            let dir = self.rng.below(DIR_SLOTS as u64) as u8;
            return Op::ReadDirSlot { dir, buf: *self.rng.pick(&[300, 512, 4096, 65536]) };
        }
        let names = if self.rng.percent(80) { self.known_dir() } else { self.some(&[Kind::Dir]) };
        let loc = self.loc(who, &names);
        if self.rng.percent(25) { Op::SeekDir { loc } } else { Op::ReadDir { loc } }
    }

    fn scan(&mut self, who: usize) -> Op {
        let names = self.known_dir();
        let (loc, threaded) = (self.loc(who, &names), self.rng.percent(40));
        Op::ScanUnderChange { loc, seed: self.rng.next_u64() >> 32, threaded }
    }

    fn xattr(&mut self, who: usize) -> Op {
        let target = self.target(who, &[Kind::File, Kind::File, Kind::Dir, Kind::Link]);
        let name = match self.rng.below(50) {
            0 => [&b"user."[..], &[b'n'; 250]].concat(),
            1 => [&b"user."[..], &[b'n'; 251]].concat(),
            2 => b"user.".to_vec(),
            3 => b"nosuch.a".to_vec(),
            4 => Vec::new(),
            _ => self.rng.pick(XATTRS).to_vec(),
        };
        match self.rng.below(10) {
            0..4 => {
                let len = match self.rng.below(20) {
                    0 => 0,
                    1 => 65_537,
                    _ => self.rng.range(1, 300) as u32,
                };
                let flags = *self.rng.pick(&[0, 0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE, 77]);
                Op::SetXattr { target, name, len, fill: self.rng.next_u64() >> 40, flags }
            }
            4..7 => Op::GetXattr { target, name, size: *self.rng.pick(&[4096, 4096, 4096, 0, 10]) },
            7 | 8 => Op::ListXattr { target },
            _ => Op::RemoveXattr { target, name },
        }
    }

    fn access(&mut self, who: usize) -> Op {
        let names = self.some(&[Kind::Dir, Kind::File, Kind::Link]);
        let flags = *self.rng.pick(&[0, 0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW]);
        Op::Access { loc: self.loc(who, &names), mode: self.rng.below(8) as i32, flags }
    }

    fn mmap(&mut self, who: usize) -> Op {
        let (slot, off, len) = (self.slot(who), self.small_offset(), self.length());
        if self.rng.percent(45) {
            return Op::MmapRead { slot, off, len };
        }
        let fill = self.rng.next_u64() >> 40;
        Op::MmapWrite { slot, off, len, fill, shared: self.rng.percent(85), sync: self.rng.percent(30) }
    }

    fn copy(&mut self, who: usize) -> Op {
        let (from, to) = (self.slot(who), self.slot(who));
        let (from_off, to_off) = (i64::from(self.small_offset()), i64::from(self.small_offset()));
        Op::CopyRange { from, from_off, to, to_off, len: self.length() }
    }

    fn sync(&mut self, who: usize) -> Op {
        if self.rng.percent(25) {
            return Op::FsyncDir { dir: self.rng.below(DIR_SLOTS as u64) as u8 };
        }
        Op::Fsync { slot: self.slot(who), data_only: self.rng.percent(40) }
    }

    fn lock(&mut self, who: usize) -> Op {
        let slot = self.slot(who);
        let range =
            Range { start: self.rng.below(12) as i64 * 10, len: *self.rng.pick(&[1, 1, 10, 15, 40, 0]) };
        let kind = if self.rng.percent(75) { LockKind::Posix } else { LockKind::Ofd };
        let typ = *self.rng.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_WRLCK, libc::F_UNLCK]);
        match self.rng.below(100) {
            0..30 => {
                let operation = *self.rng.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]);
                Op::Flock { slot, operation: operation | libc::LOCK_NB }
            }
            30..75 => Op::Lock { slot, kind, typ, range },
            75..98 => {
                let typ = if typ == libc::F_UNLCK { libc::F_WRLCK } else { typ };
                Op::GetLock { slot, kind, typ, range }
            }
            _ => {
                let other = (who + 1) % ACTORS.len();
                Op::LockWait { slot, range, other: other as u8, other_slot: self.slot(other) }
            }
        }
    }

    fn process(&mut self, who: usize) -> Op {
        match self.rng.below(10) {
            0..4 => {
                let names = if self.rng.percent(50) { Vec::new() } else { self.some(&[Kind::Dir]) };
                let loc = self.loc(who, &names);
                self.will(Effect::Cwd(who, names));
                Op::Chdir { loc }
            }
            4 => {
                let dir = self.rng.below(DIR_SLOTS as u64) as u8;
                if let Some(names) = self.dirs[who][dir as usize].clone() {
                    self.will(Effect::Cwd(who, names));
                } else {
                    self.cwd[who] = None;
                }
                Op::Fchdir { dir }
            }
            5 | 6 => Op::Umask { mask: *self.rng.pick(&[0, 0, 0o022, 0o077, 0o027]) },
            _ => Op::Getcwd,
        }
    }

    fn deep(&mut self, who: usize) -> Op {
        // Once a run at full depth is enough; it is slow.
        let names = self.known_dir();
        let loc = self.loc(who, &names);
        let name_len = *self.rng.pick(&[255, 200, 1]);
        let depth = if self.deep_done { 20 } else { 60 };
        self.deep_done = true;
        Op::DeepPath { loc, name_len, depth }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry(seed: u64, count: usize) -> Vec<Step> {
        let all = caps::CAPABILITIES.iter().copied().collect();
        generate(seed, count, &all, |_| 0)
    }

    #[test]
    fn same_seed_same_steps() {
        assert_eq!(dry(5, 500), dry(5, 500));
        assert_ne!(dry(5, 500), dry(6, 500));
    }

    #[test]
    fn every_operation_comes_up_and_what_is_lacking_does_not() {
        let kinds: BTreeSet<_> = (0..10).flat_map(|seed| dry(seed, 2000)).map(|s| s.op.kind()).collect();
        assert_eq!(kinds.len(), 52, "{kinds:?}");
        let none = generate(1, 5000, &BTreeSet::new(), |_| 0);
        assert!(none.iter().all(|s| caps::needs(&s.op).is_none()));
    }
}
