//! The second mount: with `--elsewhere` one actor changes names and permissions of the tree through
//! another mount of the same volume, call by call between the calls of the others, as if it worked
//! on another machine.
//!
//! What it may do is what close-to-open leaves unambiguous: names, owners and modes, by paths from
//! the root. What another mount has written and not closed is not its business, so of its calls
//! only the result is compared; the others see what it did. And what a kernel cannot know of
//! another machine's renames is not asked of it: where a working directory or a handle lies by now
//! (`getcwd`, `..` from there).

use std::time::Duration;

use crate::compare::op::{Base, Loc, Op, Step, Target};
use crate::compare::outcome::Outcome;

/// The actor on the other mount: `root2`.
pub const ACTOR: u8 = 1;

/// For so long a mount in shortcut mode may show attributes from before a call of [`ACTOR`] through
/// open files: two ticks of the slowest kernel's clock (docs/shortcut.md).
pub const TICKS: Duration = Duration::from_millis(20);

/// Whether the step means something when [`ACTOR`] is elsewhere.
pub fn fits(step: &Step) -> bool {
    let plain = |loc: &Loc| loc.base == Base::Root && !climbs(loc);
    if step.actor == ACTOR {
        return match &step.op {
            Op::Mkdir { loc, .. }
            | Op::Rmdir { loc }
            | Op::Mknod { loc, .. }
            | Op::Symlink { loc, .. }
            | Op::Unlink { loc }
            | Op::Chmod { target: Target::Path(loc, _), .. }
            | Op::Chown { target: Target::Path(loc, _), .. }
            | Op::Readlink { loc } => plain(loc),
            Op::Link { from, to, .. } | Op::Rename { from, to, .. } => plain(from) && plain(to),
            _ => false,
        };
    }
    if let Op::LockWait { other, .. } = step.op {
        return other != ACTOR;
    }
    step.op.places().iter().all(|loc| loc.base == Base::Root || !climbs(loc))
}

fn climbs(loc: &Loc) -> bool {
    loc.path.split(|&b| b == b'/').any(|name| name == b"..")
}

/// Whether the call is made once more on the side under test, after a look at its names. When a
/// directory has been moved on another machine, a rename that meets its new name finds the kernel's
/// lock of all renames taken by itself and answers ESTALE (`d_splice_alias`; NFS does the same); a
/// lookup outside of a rename tells the kernel where the directory is now.
pub fn is_repeated(step: &Step, out: &Outcome) -> bool {
    matches!(step.op, Op::Rename { .. }) && out.ret == -i64::from(libc::ESTALE)
}

/// Takes out what is not compared when [`ACTOR`] is elsewhere.
pub fn blur(step: &Step, out: &mut Outcome) {
    if matches!(step.op, Op::Getcwd) {
        *out = Outcome { violations: std::mem::take(&mut out.violations), ..Outcome::default() };
    } else if step.actor == ACTOR {
        out.fields.clear();
        out.data.clear();
        out.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(actor: u8, base: Base, path: &[u8]) -> Step {
        let loc = Loc { base, path: path.to_vec() };
        Step { actor, probe: false, op: Op::Rmdir { loc } }
    }

    #[test]
    fn only_what_both_machines_agree_on() {
        assert!(fits(&step(ACTOR, Base::Root, b"a/b")));
        assert!(!fits(&step(ACTOR, Base::Cwd, b"a")), "it has no working directory");
        assert!(!fits(&step(ACTOR, Base::Root, b"a/../b")));
        assert!(fits(&step(0, Base::Root, b"a/../b")));
        assert!(
            !fits(&step(0, Base::Dir(1), b"../b")),
            "where that directory lies by now, the kernel cannot know"
        );
        assert!(fits(&step(0, Base::Dir(1), b"..b")));
        let read = Op::Read { slot: 0, len: 1 };
        assert!(!fits(&Step { actor: ACTOR, probe: false, op: read.clone() }));
        assert!(fits(&Step { actor: 0, probe: false, op: read }));
    }

    #[test]
    fn of_its_calls_the_result_counts() {
        let mut out = Outcome::of(Ok(0));
        out.field("size", 7);
        let mut mine = out.clone();
        blur(&step(0, Base::Root, b"a"), &mut mine);
        assert_eq!(mine, out);
        blur(&step(ACTOR, Base::Root, b"a"), &mut out);
        assert_eq!(out, Outcome::of(Ok(0)));
    }
}
