//! What the manual pages say, bounds, and many locks.

use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};

use super::{flock, posix};
use crate::locks::{LockCounts, LockLimits, LockOwner, Locks, Set, Ticket};

const READ: LockMode = LockMode::Read;
const WRITE: LockMode = LockMode::Write;

fn set(locks: &mut Locks, session: u64, span: LockSpan, call: Option<u64>) -> Result<Set, i32> {
    let mut woken = Vec::new();
    let result = locks.set(session, &span, call, &mut woken).map_err(|error| error.errno);
    assert_eq!(woken, []);
    result
}

fn unlock(locks: &mut Locks, session: u64, span: LockSpan) -> Vec<Ticket> {
    let mut woken = Vec::new();
    let owner = LockOwner { session, id: span.owner };
    locks.unlock(owner, span.ino, span.kind, (span.start, span.end), &mut woken).expect("room");
    woken
}

/// When two readers upgrade their locks, the second one gets a deadlock error.
#[test]
fn upgrade_of_two_readers() {
    let mut locks = Locks::default();
    for session in [1, 2] {
        assert_eq!(set(&mut locks, session, posix(1, READ, 0, 9), None), Ok(Set::Granted));
    }
    assert_eq!(set(&mut locks, 1, posix(1, WRITE, 0, 9), Some(1)), Ok(Set::Waiting));
    assert_eq!(set(&mut locks, 2, posix(1, WRITE, 5, 5), Some(2)), Err(libc::EDEADLK));
    assert_eq!(unlock(&mut locks, 2, posix(1, READ, 0, 9)), [Ticket { session: 1, call: 1 }]);
}

/// When a session ends, its locks go to the waiters in their order.
#[test]
fn waiters_after_the_end_of_a_session() {
    let mut locks = Locks::default();
    assert_eq!(set(&mut locks, 1, posix(1, WRITE, 9, 9), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 1, posix(2, READ, 0, 0), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 2, posix(1, WRITE, 0, 9), Some(1)), Ok(Set::Waiting));
    // Only one of the ranges of the session that ends is in the way of this one.
    assert_eq!(set(&mut locks, 2, posix(2, READ, 0, 9), Some(2)), Ok(Set::Waiting));
    let mut woken = Vec::new();
    locks.end_session(1, &mut woken);
    assert_eq!(woken, [Ticket { session: 2, call: 1 }]);
}

/// A circle over files and sessions is found wherever it closes, in the first file or the last.
#[test]
fn deadlock_over_files_and_sessions() {
    let mut locks = Locks::default();
    let of_file = |ino: u64| LockSpan { ino, ..posix(1, WRITE, 0, 0) };
    const MEMBERS: u64 = 50;
    for member in 1..=MEMBERS {
        assert_eq!(set(&mut locks, member, of_file(member), None), Ok(Set::Granted));
    }
    for member in 1..MEMBERS {
        assert_eq!(set(&mut locks, member, of_file(member + 1), Some(9)), Ok(Set::Waiting));
    }
    assert_eq!(set(&mut locks, MEMBERS, of_file(1), Some(9)), Err(libc::EDEADLK));
    // Without waiting it is no deadlock but busy.
    assert_eq!(set(&mut locks, MEMBERS, of_file(1), None), Err(libc::EAGAIN));
    assert!(locks.cancel(7, 9));
    assert_eq!(set(&mut locks, MEMBERS, of_file(1), Some(9)), Ok(Set::Waiting));
}

/// A BSD lock that cannot be converted at once is lost.
#[test]
fn failed_conversion_of_a_bsd_lock() {
    let mut locks = Locks::default();
    for session in [1, 2] {
        assert_eq!(set(&mut locks, session, flock(1, READ), None), Ok(Set::Granted));
    }
    assert_eq!(set(&mut locks, 1, flock(1, WRITE), None), Err(libc::EAGAIN));
    assert_eq!(locks.session_counts(1), LockCounts::default());
    // Alone, it goes both ways at once.
    assert_eq!(set(&mut locks, 2, flock(1, WRITE), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 1, flock(1, READ), Some(4)), Ok(Set::Waiting));
    let mut woken = Vec::new();
    assert_eq!(locks.set(2, &flock(1, READ), None, &mut woken), Ok(Set::Granted));
    assert_eq!(woken, [Ticket { session: 1, call: 4 }], "a downgrade lets readers in");
}

#[test]
fn the_two_kinds_do_not_see_each_other() {
    let mut locks = Locks::default();
    assert_eq!(set(&mut locks, 1, flock(1, WRITE), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 2, posix(1, WRITE, 0, LOCK_END), None), Ok(Set::Granted));
    assert_eq!(locks.test(3, &flock(1, READ)).map(|held| held.owner), Some(1));
}

/// Waiting locks are granted in order, and those of readers together.
#[test]
fn order_of_waiting_locks() {
    let mut locks = Locks::default();
    assert_eq!(set(&mut locks, 1, posix(1, WRITE, 0, 99), None), Ok(Set::Granted));
    for (session, mode) in [(2, READ), (3, WRITE), (4, READ), (5, WRITE)] {
        assert_eq!(
            set(&mut locks, session, posix(1, mode, 0, 99), Some(session)),
            Ok(Set::Waiting)
        );
    }
    let woken = unlock(&mut locks, 1, posix(1, WRITE, 0, 99));
    assert_eq!(woken.iter().map(|ticket| ticket.session).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(unlock(&mut locks, 2, posix(1, READ, 0, 99)), []);
    let mut woken = Vec::new();
    locks.end_session(4, &mut woken);
    assert_eq!(woken, [Ticket { session: 3, call: 3 }]);
}

#[test]
fn wait_after_a_broken_connection() {
    let mut locks = Locks::default();
    let all = |owner| posix(owner, WRITE, 0, LOCK_END);
    assert_eq!(set(&mut locks, 1, all(1), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 2, all(1), Some(1)), Ok(Set::Waiting));
    assert_eq!(set(&mut locks, 3, all(1), Some(1)), Ok(Set::Waiting));
    locks.orphan_waits(2);
    assert!(!locks.cancel(2, 1), "nobody is there to be told");
    // Comes again under another number, first in line still.
    assert_eq!(set(&mut locks, 2, all(1), Some(8)), Ok(Set::Waiting));
    assert_eq!(locks.counts().waits, 2);
    assert_eq!(unlock(&mut locks, 1, all(1)), [Ticket { session: 2, call: 8 }]);
    // Granted while there was no connection: held, as the repeated request finds.
    locks.orphan_waits(3);
    assert_eq!(unlock(&mut locks, 2, all(1)), []);
    assert_eq!(set(&mut locks, 3, all(1), Some(9)), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 2, all(1), None), Err(libc::EAGAIN));
}

#[test]
fn bounds_end_in_enolck_and_closing_always_works() {
    let limits =
        LockLimits { ranges_max: 6, session_ranges_max: 4, waits_max: 2, session_waits_max: 1 };
    let mut locks = Locks::new(limits);
    for at in 0..4 {
        assert_eq!(
            set(&mut locks, 1, posix(1, WRITE, at * 10, at * 10 + 4), None),
            Ok(Set::Granted)
        );
    }
    assert_eq!(set(&mut locks, 1, posix(2, READ, 99, 99), None), Err(libc::ENOLCK));
    let hole = (LockOwner { session: 1, id: 1 }, (2, 2));
    let refused = locks.unlock(hole.0, 1, LockKind::Posix, hole.1, &mut Vec::new());
    assert_eq!(refused.map_err(|error| error.errno), Err(libc::ENOLCK));
    assert_eq!(set(&mut locks, 2, posix(1, READ, 50, 50), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 2, posix(1, READ, 60, 60), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 3, posix(1, READ, 70, 70), None), Err(libc::ENOLCK));
    locks.release_owner(hole.0, 1, LockKind::Posix, &mut Vec::new());
    assert_eq!(set(&mut locks, 3, posix(1, READ, 0, LOCK_END), None), Ok(Set::Granted));
    assert_eq!(set(&mut locks, 1, posix(1, WRITE, 0, 0), Some(1)), Ok(Set::Waiting));
    assert_eq!(set(&mut locks, 1, posix(1, WRITE, 1, 1), Some(2)), Err(libc::ENOLCK));
    assert_eq!(set(&mut locks, 2, posix(1, WRITE, 1, 1), Some(3)), Ok(Set::Waiting));
    assert_eq!(set(&mut locks, 4, posix(1, WRITE, 1, 1), Some(4)), Err(libc::ENOLCK));
    assert_eq!(locks.counts(), LockCounts { ranges: 3, waits: 2 });
}

#[test]
fn nonsense_is_refused() {
    let mut locks = Locks::default();
    assert_eq!(set(&mut locks, 1, posix(1, READ, 5, 4), None), Err(libc::EINVAL));
    assert_eq!(set(&mut locks, 1, posix(1, READ, 0, LOCK_END + 1), None), Err(libc::EINVAL));
    assert_eq!(set(&mut locks, 1, LockSpan { end: 5, ..flock(1, READ) }, None), Err(libc::EINVAL));
    assert_eq!(locks.counts(), LockCounts::default());
}

/// Quadratic time would show: 100,000 ranges of one owner, then of as many, each found, refused,
/// and taken away.
#[test]
fn a_hundred_thousand_ranges() {
    const RANGES: u64 = 100_000;
    let mut locks = Locks::default();
    for at in 0..RANGES {
        let owner = if at % 2 == 0 { 0 } else { at };
        assert_eq!(
            set(&mut locks, 1, posix(owner, WRITE, at * 10, at * 10 + 5), None),
            Ok(Set::Granted)
        );
    }
    for at in (0..RANGES).rev() {
        assert_eq!(
            set(&mut locks, 2, posix(1, READ, at * 10 + 5, at * 10 + 9), None),
            Err(libc::EAGAIN)
        );
        assert_eq!(
            set(&mut locks, 2, posix(1, READ, at * 10 + 7, at * 10 + 7), None),
            Ok(Set::Granted)
        );
    }
    assert_eq!(locks.counts().ranges, 2 * RANGES as usize);
    // One that covers all of one's own takes their place.
    locks.end_session(1, &mut Vec::new());
    assert_eq!(set(&mut locks, 2, posix(1, WRITE, 0, LOCK_END), None), Ok(Set::Granted));
    assert_eq!(locks.counts().ranges, 1);
    for waiter in 0..1000 {
        assert_eq!(
            set(&mut locks, 3, posix(waiter, WRITE, 0, LOCK_END), Some(waiter)),
            Ok(Set::Waiting)
        );
    }
    let mut woken = Vec::new();
    locks.end_session(2, &mut woken);
    assert_eq!(woken, [Ticket { session: 3, call: 0 }]);
}
