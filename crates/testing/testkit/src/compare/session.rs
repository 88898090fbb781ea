//! One run: fresh trees on both sides, every actor's processes, the steps one by one, the trees at
//! the end.

use std::path::{Path, PathBuf};

use crate::compare::actor::{ACTORS, Helper, HelperCommand, Silence};
use crate::compare::caps::Allowances;
use crate::compare::elsewhere;
use crate::compare::op::{Op, Step};
use crate::compare::outcome::{Difference, Outcome, difference};
use crate::sys;

/// Where and how to compare.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A directory of the file system under test.
    pub a: PathBuf,
    /// A directory of the reference.
    pub b: PathBuf,
    /// `a` through another mount, on which [`elsewhere::ACTOR`] works.
    pub elsewhere: Option<PathBuf>,
    /// Differences that are allowed.
    pub allow: Allowances,
    /// Compare the whole trees after this many steps, and at the end.
    pub walk_every: usize,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Index of the step, or the number of steps when the trees differ at the end.
    pub at: usize,
    /// Whether it showed in a comparison of the whole trees.
    pub in_walk: bool,
    /// What differs.
    pub difference: Difference,
}

/// Numbers of a run.
#[derive(Clone, Debug, Default)]
pub struct RunStats {
    /// Steps that ran.
    pub steps: usize,
    /// Those of them that failed on the reference.
    pub failed: Vec<usize>,
}

/// A fresh directory that is removed with everything in it.
pub struct Scratch {
    /// Where it is.
    pub path: PathBuf,
}

impl Scratch {
    /// Makes one below `parent`, for everybody to write in.
    pub fn new(parent: &Path) -> Result<Self, String> {
        use std::os::unix::fs::PermissionsExt;
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("kestrel-judge-{}-{n}", std::process::id()));
        let failed = |e| format!("{}: {e}", path.display());
        std::fs::create_dir(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o1777)).map_err(failed)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        use std::os::unix::ffi::OsStrExt;
        let path = sys::cstring(self.path.as_os_str().as_bytes());
        remove_tree(libc::AT_FDCWD, &path);
    }
}

/// Removes a tree of any depth. Errors are left: the directory then stays for a person to look at.
fn remove_tree(dir: i32, name: &std::ffi::CStr) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    if let Ok(fd) = sys::openat(dir, name, flags, 0) {
        let fd = fd as i32;
        for entry in crate::compare::dirs::rest(fd, 32768).unwrap_or_default() {
            let child = sys::cstring(&entry.name);
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            if sys::unlinkat(fd, &child, 0).is_err() {
                remove_tree(fd, &child);
            }
        }
        let _ = sys::close(fd);
    }
    let _ = sys::unlinkat(dir, name, libc::AT_REMOVEDIR);
}

struct Sides {
    // Helpers before trees: they are dropped (killed) first.
    helpers: [Vec<Helper>; 2],
    /// Whether an actor works on another mount.
    apart: bool,
    _trees: [Scratch; 2],
}

impl Sides {
    fn start(setup: &Setup, steps: &[Step]) -> Result<Self, String> {
        let run_start = sys::wall_clock().0 - 2;
        let trees = [Scratch::new(&setup.a)?, Scratch::new(&setup.b)?];
        let mut helpers = [Vec::new(), Vec::new()];
        // On the second mount the tree of A has the same name.
        let apart =
            setup.elsewhere.as_ref().and_then(|dir| Some(dir.join(trees[0].path.file_name()?)));
        for (side, (tree, helpers)) in trees.iter().zip(&mut helpers).enumerate() {
            for (number, actor) in ACTORS.iter().enumerate() {
                let path = match &apart {
                    Some(apart) if side == 0 && number == usize::from(elsewhere::ACTOR) => apart,
                    _ => &tree.path,
                };
                helpers.push(Helper::start(path, actor, steps, run_start)?);
            }
        }
        Ok(Self { helpers, apart: apart.is_some(), _trees: trees })
    }

    fn send(&self, actor: u8, send: HelperCommand) {
        self.helpers.iter().for_each(|side| side[actor as usize].send(send));
    }

    /// The answers of both sides.
    fn answers(&self, actor: u8) -> Result<[Outcome; 2], Difference> {
        Ok([self.answer(0, actor)?, self.answer(1, actor)?])
    }

    /// The answer of one side, with a process id turned into an actor's name.
    fn answer(&self, number: usize, actor: u8) -> Result<Outcome, Difference> {
        let helpers = &self.helpers[number];
        match helpers[actor as usize].answer() {
            Ok(mut out) => {
                if out.pid != 0 {
                    let holder = helpers.iter().position(|h| i64::from(h.pid) == out.pid);
                    let name =
                        holder.map_or_else(|| out.pid.to_string(), |h| ACTORS[h].name.to_string());
                    out.field("holder", name);
                    out.pid = 0;
                }
                Ok(out)
            }
            Err(silence) => {
                let side = ["A", "B"][number];
                let (key, text) = match silence {
                    Silence::Hang => ("hang", format!("{side} does not return")),
                    Silence::Died(how) => {
                        ("death", format!("the process making the call on {side} died: {how}"))
                    }
                };
                Err(Difference { key: format!("{key} on {side}"), text })
            }
        }
    }

    fn run(&self, index: usize, step: &Step) -> Result<[Outcome; 2], Difference> {
        self.send(step.actor, HelperCommand::Step(index as u32));
        if let Op::LockWait { other, .. } = step.op {
            // Let both calls block first; if one is late the result is the same.
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.send(other, HelperCommand::Unlock(index as u32));
            let unlocks = self.answers(other)?;
            let mut both = self.answers(step.actor)?;
            for (out, unlock) in both.iter_mut().zip(unlocks) {
                out.field("unlock", unlock.show_ret());
            }
            return Ok(both);
        }
        let [mut a, b] = self.answers(step.actor)?;
        if self.apart && elsewhere::is_repeated(step, &a) {
            self.helpers[0][step.actor as usize].send(HelperCommand::Again(index as u32));
            a = self.answer(0, step.actor)?;
        }
        if self.apart && step.actor == elsewhere::ACTOR {
            std::thread::sleep(elsewhere::TICKS);
        }
        Ok([a, b])
    }

    fn walk(&self) -> Option<Difference> {
        self.send(0, HelperCommand::Walk);
        match self.answers(0) {
            Ok([a, b]) => difference("tree", &a, &b),
            Err(difference) => Some(difference),
        }
    }
}

/// Runs the steps; stops at the first difference.
pub fn run(setup: &Setup, steps: &[Step]) -> Result<(Option<Finding>, RunStats), String> {
    let sides = Sides::start(setup, steps)?;
    let mut tally = RunStats::default();
    let finding = |at, in_walk, difference| Some(Finding { at, in_walk, difference });
    for (i, step) in steps.iter().enumerate() {
        let [mut a, mut b] = match sides.run(i, step) {
            Ok(both) => both,
            Err(silence) => return Ok((finding(i, false, silence), tally)),
        };
        tally.steps += 1;
        if b.ret < 0 {
            tally.failed.push(i);
        }
        if setup.elsewhere.is_some() {
            elsewhere::blur(step, &mut a);
            elsewhere::blur(step, &mut b);
        }
        let kind = step.op.kind();
        if setup.allow.times_free(kind) {
            a.times.clear();
            b.times.clear();
        }
        if let Some(found) = difference(kind, &a, &b)
            && !setup.allow.allows(kind, &a, &b)
        {
            return Ok((finding(i, false, found), tally));
        }
        if (i + 1) % setup.walk_every == 0
            && let Some(found) = sides.walk()
        {
            return Ok((finding(i + 1, true, found), tally));
        }
    }
    Ok((sides.walk().and_then(|found| finding(steps.len(), true, found)), tally))
}
