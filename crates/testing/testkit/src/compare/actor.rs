//! Actors: the users that make the calls. Each actor is one process on each side, locked into its
//! tree with chroot, so that working directory, umask, locks and credentials are its own and no
//! `..` can leave the tree.

use std::path::Path;

use crate::compare::exec::World;
use crate::compare::op::Step;
use crate::compare::outcome::Outcome;
use crate::sys;

/// A user.
pub struct Actor {
    /// Name in the script.
    pub name: &'static str,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'static [u32],
}

/// All actors; the first two are root, so that locks between two all-powerful processes are tested
/// too.
pub const ACTORS: &[Actor] = &[
    Actor { name: "root", uid: 0, gid: 0, groups: &[] },
    Actor { name: "root2", uid: 0, gid: 0, groups: &[] },
    Actor { name: "alice", uid: 20001, gid: 20001, groups: &[20100] },
    Actor { name: "bob", uid: 20002, gid: 20001, groups: &[] },
    Actor { name: "carol", uid: 20003, gid: 20003, groups: &[20001, 20100] },
];

/// Milliseconds after which a call counts as hanging.
pub const HANG_MS: i32 = 60_000;

/// What a helper is told to do; the low 30 bits carry the step's index where one is needed.
const STEP: u32 = 0;
const UNLOCK: u32 = 1 << 30;
const WALK: u32 = 2 << 30;
const AGAIN: u32 = 3 << 30;
const INDEX: u32 = (1 << 30) - 1;

/// What the driver asks of a helper.
#[derive(Clone, Copy, Debug)]
pub enum HelperCommand {
    /// Run the step with this index.
    Step(u32),
    /// Look at the names of the step with this index, then run it once more.
    Again(u32),
    /// The second half of a `LockWait` step: unlock.
    Unlock(u32),
    /// List the whole tree.
    Walk,
}

/// Why a helper gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// No answer within [`HANG_MS`].
    Hang,
    /// The process ended; the text says how.
    Died(String),
}

/// One actor's process on one side.
pub struct Helper {
    /// Its process id.
    pub pid: i32,
    to: i32,
    from: i32,
}

impl Helper {
    /// Starts the process. `tree` becomes its root directory.
    pub fn start(
        tree: &Path,
        actor: &Actor,
        steps: &[Step],
        run_start: i64,
    ) -> Result<Self, String> {
        let failed =
            |what: &'static str| move |e: i32| format!("{what}: {}", crate::errno::name(e));
        let (ask_read, ask_write) = sys::pipe().map_err(failed("pipe"))?;
        let (answer_read, answer_write) = sys::pipe().map_err(failed("pipe"))?;
        let pid = sys::fork().map_err(failed("fork"))?;
        if pid == 0 {
            let code = match become_actor(tree, actor, ask_read, answer_write) {
                Ok(()) => serve(ask_read, answer_write, steps, run_start),
                Err(what) => {
                    let mut out = Outcome::of(Err(libc::EIO));
                    out.violations.push(what);
                    send(answer_write, &out);
                    3
                }
            };
            sys::exit_now(code);
        }
        let _ = sys::close(ask_read);
        let _ = sys::close(answer_write);
        Ok(Self { pid, to: ask_write, from: answer_read })
    }

    /// Sends a request.
    pub fn send(&self, send: HelperCommand) {
        let word = match send {
            HelperCommand::Step(i) => STEP | i,
            HelperCommand::Unlock(i) => UNLOCK | i,
            HelperCommand::Again(i) => AGAIN | i,
            HelperCommand::Walk => WALK,
        };
        let _ = sys::write(self.to, &word.to_le_bytes());
    }

    /// Waits for the answer.
    pub fn answer(&self) -> Result<Outcome, Silence> {
        let mut head = [0; 8];
        self.read_exactly(&mut head)?;
        let mut body = vec![0; u64::from_le_bytes(head) as usize];
        self.read_exactly(&mut body)?;
        Outcome::decode(&body).ok_or_else(|| Silence::Died("unreadable answer".into()))
    }

    fn read_exactly(&self, mut buf: &mut [u8]) -> Result<(), Silence> {
        while !buf.is_empty() {
            if !sys::readable(self.from, HANG_MS) {
                return Err(Silence::Hang);
            }
            match sys::read(self.from, buf) {
                Ok(n) if n > 0 => buf = &mut buf[n as usize..],
                Err(libc::EINTR) => {}
                _ => return Err(Silence::Died(self.last_words())),
            }
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let mut status = 0;
        match sys::waitpid(self.pid, &mut status, 0) {
            Ok(_) if libc::WIFSIGNALED(status) => format!("signal {}", libc::WTERMSIG(status)),
            Ok(_) => format!("exit code {}", libc::WEXITSTATUS(status)),
            Err(_) => "gone".into(),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = sys::close(self.to);
        let _ = sys::close(self.from);
        let _ = sys::kill(self.pid, libc::SIGKILL);
        let mut status = 0;
        // A helper stuck in the kernel must not make the judge hang: give it a moment, then leave
        // it.
        for _ in 0..200 {
            if sys::waitpid(self.pid, &mut status, libc::WNOHANG) != Ok(0) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Makes `tree` the root and the working directory of the calling process (or thread, if it has its
/// own).
pub fn enter(tree: &Path) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt;
    let failed = |e: i32| format!("cannot chroot to {}: {}", tree.display(), crate::errno::name(e));
    sys::chroot(&sys::cstring(tree.as_os_str().as_bytes())).map_err(failed)?;
    sys::chdir(c"/").map_err(failed)?;
    // Every mode is spelled out by the steps.
    sys::umask(0).map_err(failed)?;
    Ok(())
}

fn become_actor(tree: &Path, actor: &Actor, keep: i32, keep_too: i32) -> Result<(), String> {
    let step = |what: &'static str, r: sys::Sys<i64>| {
        r.map(|_| ()).map_err(|e| format!("cannot {what}: {}", crate::errno::name(e)))
    };
    step("follow the parent", sys::die_with_parent())?;
    let (low, high) = (keep.min(keep_too) as u32, keep.max(keep_too) as u32);
    for (first, last) in
        [(3, low.saturating_sub(1)), (low + 1, high.saturating_sub(1)), (high + 1, u32::MAX)]
    {
        if first <= last {
            step("close descriptors", sys::close_range(first, last))?;
        }
    }
    enter(tree)?;
    step("set groups", sys::setgroups(actor.groups))?;
    step("set gid", sys::setgid(actor.gid))?;
    step("set uid", sys::setuid(actor.uid))
}

fn serve(commands: i32, answer: i32, steps: &[Step], run_start: i64) -> i32 {
    let mut world = match World::new(run_start) {
        Ok(world) => world,
        Err(e) => {
            let mut out = Outcome::of(Err(e));
            out.violations.push("cannot open the root of the tree".into());
            send(answer, &out);
            return 3;
        }
    };
    loop {
        let mut word = [0; 4];
        match sys::read(commands, &mut word) {
            Ok(4) => {}
            Err(libc::EINTR) => continue,
            _ => return 0,
        }
        let word = u32::from_le_bytes(word);
        let step = steps.get((word & INDEX) as usize);
        let out = match (word & !INDEX, step) {
            (WALK, _) => crate::compare::walk::walk(run_start),
            (UNLOCK, Some(step)) => world.unlock_for(&step.op),
            (AGAIN, Some(step)) => {
                world.look_up_all(&step.op);
                world.run(step)
            }
            (_, Some(step)) => world.run(step),
            (_, None) => return 3,
        };
        send(answer, &out);
    }
}

fn send(fd: i32, out: &Outcome) {
    let body = out.encode();
    let mut bytes = (body.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match sys::write(fd, rest) {
            Ok(n) => rest = &rest[n as usize..],
            Err(libc::EINTR) => {}
            Err(_) => sys::exit_now(3),
        }
    }
}
