//! Random steps from a seed. A rough model of the tree, which learns from a rehearsal on the
//! reference, makes most of them meaningful; it need not be right, since the reference is the
//! judge. The finished steps are a plain list, so that any subset of them can run again.
//!
//! | file | |
//! | --- | --- |
//! | `ops` | one method for each kind of operation |

mod ops;

use std::collections::{BTreeMap, BTreeSet};

use crate::compare::actor::ACTORS;
use crate::compare::op::{Base, DIR_SLOTS, Loc, Op, SLOTS, Step, Target};
use crate::compare::{caps, elsewhere};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
    Link,
    Fifo,
}

/// The first actors are root.
const ROOTS: usize = 2;

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

/// `count` steps from `seed`, without what a side cannot do. `apart`: one actor works on another
/// mount ([`elsewhere`]). `rehearse` runs a step on a reference and returns its result.
pub fn generate(
    seed: u64,
    count: usize,
    has: &BTreeSet<&'static str>,
    apart: bool,
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
            if apart {
                generator.fit(&mut step);
            }
            if caps::needs(&step.op).is_some_and(|need| !has.contains(need)) {
                step.op = Op::Getcwd;
                generator.effects.clear();
            }
            generator.learn(step.actor as usize, rehearse(&step));
            step
        })
        .collect()
}

const PLAIN_NAMES: &[&[u8]] =
    &[b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"file.txt", b"Makefile"];
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

    /// Draws again until the step means something with an actor on another mount.
    fn fit(&mut self, step: &mut Step) {
        // More than the 300th would seldom be needed; then it stays what it is and does nothing.
        for _ in 0..300 {
            if elsewhere::fits(step) {
                return;
            }
            self.effects.clear();
            self.used.clear();
            step.op = self.op(step.actor as usize);
        }
        step.op = Op::Getcwd;
        self.effects.clear();
    }

    fn op(&mut self, actor: usize) -> Op {
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
                return make(self, actor);
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
        let fitting: Vec<_> =
            self.nodes.iter().filter(|(_, k)| kinds.contains(k)).map(|(p, _)| p).collect();
        if fitting.is_empty() { None } else { Some((*self.rng.pick(&fitting)).clone()) }
    }

    fn dir_seen(&mut self) -> Names {
        // The root often, so that the tree stays shallow enough for names to meet.
        if self.rng.percent(30) { Vec::new() } else { self.known(&[Kind::Dir]).unwrap_or_default() }
    }

    fn new_names(&mut self) -> Names {
        let mut names = self.dir_seen();
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
            80..92 => {
                self.known(&[Kind::Dir, Kind::File, Kind::Link, Kind::Fifo]).unwrap_or_default()
            }
            _ => self.random_names(),
        }
    }

    fn name_list(&mut self) -> Names {
        vec![self.name()]
    }

    /// A path that should be free, or (rarely) is not.
    fn fresh(&mut self) -> Names {
        if self.rng.percent(85) {
            self.new_names()
        } else {
            self.some(&[Kind::Dir, Kind::File, Kind::Link])
        }
    }

    /// Turns names into a path from some base, sometimes in an odd spelling.
    fn loc(&mut self, actor: usize, names: &Names) -> Loc {
        let mut loc = Loc { base: Base::Root, path: names.join(&b'/') };
        let cwd = self.cwd[actor].clone().unwrap_or_else(|| vec![b"\0".to_vec()]);
        let slot = self.rng.below(DIR_SLOTS as u64) as usize;
        if let (true, Some(dir)) = (self.rng.percent(40), self.dirs[actor][slot].clone()) {
            // Mostly a path below that directory; sometimes whatever it leads to.
            if names.starts_with(&dir) || self.rng.percent(10) {
                let rest = if names.starts_with(&dir) { &names[dir.len()..] } else { &names[..] };
                loc = Loc { base: Base::Dir(slot as u8), path: rest.join(&b'/') };
            }
        } else if names.starts_with(&cwd) && self.rng.percent(60) {
            loc = Loc { base: Base::Cwd, path: names[cwd.len()..].join(&b'/') };
        }
        if loc.path.is_empty() {
            // Whether "." may be searched is for the kernel alone to say, and on a mount that
            // checks permissions itself it does not: only for root are "." and a full path the
            // same.
            loc = if actor < ROOTS {
                Loc { base: loc.base, path: b".".to_vec() }
            } else {
                Loc { base: Base::Root, path: [&b"/"[..], &names.join(&b'/')[..]].concat() }
            };
        }
        self.used.push((loc.base, names.clone()));
        self.spell(actor, loc)
    }

    fn spell(&mut self, actor: usize, mut loc: Loc) -> Loc {
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
        let draw = self.rng.below(200);
        // "." and "..", as above; before nothing but slashes "./" is one too.
        let bare = loc.path.iter().all(|&b| b == b'/');
        if actor >= ROOTS && (matches!(draw, 1 | 2 | 6 | 7) || bare && matches!(draw, 3 | 9..=12)) {
            return loc;
        }
        match draw {
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

    fn target(&mut self, actor: usize, kinds: &[Kind]) -> Target {
        if self.rng.percent(35) {
            Target::Slot(self.slot(actor))
        } else {
            let names = self.some(kinds);
            let nofollow = self.rng.percent(25);
            Target::Path(self.loc(actor, &names), nofollow)
        }
    }

    fn slot(&mut self, actor: usize) -> u8 {
        let open: Vec<_> = (0..SLOTS).filter(|&s| self.open[actor][s]).collect();
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
    fn learn(&mut self, actor: usize, ret: i64) {
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
                Base::Cwd => self.cwd[actor] = None,
                Base::Dir(d) => self.dirs[actor][d as usize] = None,
                Base::Root => {
                    self.nodes.remove(&names);
                }
            }
        }
        if ret == -i64::from(libc::EBADF) {
            for effect in effects {
                if let Effect::Open(actor, slot, false) = effect {
                    self.open[actor][slot as usize] = false;
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
            Effect::Open(actor, slot, open) => self.open[actor][slot as usize] = open,
            Effect::Dir(actor, dir, names) => self.dirs[actor][dir as usize] = names,
            Effect::Cwd(actor, names) => self.cwd[actor] = Some(names),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry(seed: u64, count: usize) -> Vec<Step> {
        let all = caps::CAPABILITIES.iter().copied().collect();
        generate(seed, count, &all, false, |_| 0)
    }

    #[test]
    fn same_seed_same_steps() {
        assert_eq!(dry(5, 500), dry(5, 500));
        assert_ne!(dry(5, 500), dry(6, 500));
    }

    /// Each supported operation is generated, and no unsupported one.
    #[test]
    fn operations_that_are_generated() {
        let kinds: BTreeSet<_> =
            (0..10).flat_map(|seed| dry(seed, 2000)).map(|s| s.op.kind()).collect();
        assert_eq!(kinds.len(), 52, "{kinds:?}");
        let none = generate(1, 5000, &BTreeSet::new(), false, |_| 0);
        assert!(none.iter().all(|s| caps::needs(&s.op).is_none()));
    }

    #[test]
    fn with_an_actor_elsewhere_every_step_fits() {
        let all = caps::CAPABILITIES.iter().copied().collect();
        let steps = generate(3, 3000, &all, true, |_| 0);
        let doing = |s: &&Step| s.op.kind() != "getcwd";
        assert!(steps.iter().filter(doing).all(elsewhere::fits));
        let theirs: BTreeSet<_> =
            steps.iter().filter(|s| s.actor == elsewhere::ACTOR).map(|s| s.op.kind()).collect();
        assert!(
            ["mkdir", "rmdir", "rename", "chmod", "unlink"]
                .iter()
                .all(|kind| theirs.contains(kind)),
            "{theirs:?}"
        );
    }
}
