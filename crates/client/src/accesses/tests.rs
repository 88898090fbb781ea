use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn accesses(mode: AtimeMode) -> Accesses {
    let accesses = Accesses::default();
    accesses.set(AccessTimes { mode, ..AccessTimes::default() });
    accesses
}

fn file(ino: InodeId, atime: Nanos, changed: Nanos) -> Inode {
    Inode { atime, mtime: changed, ctime: changed, ..Inode::new(ino, Kind::File, 0, 1) }
}

fn counts(accesses: &Accesses, inode: &Inode, now: Nanos) -> bool {
    accesses.counts(inode, (inode.mtime, inode.ctime), now)
}

/// A file that is read all the time is told of once in [`SEND_AFTER`], with its last read.
#[test]
fn reads_between_two_messages() {
    let accesses = accesses(AtimeMode::Strict);
    let mut told = Vec::new();
    for now in (0..20 * SECOND).step_by(SECOND as usize / 10) {
        assert_eq!(accesses.note(7, now), Noted::Waits);
        for unsent in accesses.due(now, false) {
            told.push(unsent.at);
            accesses.answered(7);
        }
    }
    // A read after the message waits as long as the first one did.
    let spaced = told.windows(2).all(|pair| pair[1] - pair[0] >= SEND_AFTER);
    assert!(spaced && told.first() == Some(&SEND_AFTER) && told.len() == 3, "{told:?}");
    assert_eq!(accesses.noted.load(Ordering::Relaxed), 200);
}

/// What is read while a message is on its way is shown, and sent after the answer only.
#[test]
fn reads_beside_a_message() {
    let accesses = accesses(AtimeMode::Strict);
    accesses.note(7, 100);
    let unsent = |at| Some(PendingAccess { ino: 7, at, place: None });
    assert_eq!(accesses.unsent(7), unsent(100));
    let mut inode = file(7, 0, 0);
    accesses.show(&mut inode);
    assert_eq!(inode.atime, 100);
    accesses.note(7, 200);
    assert_eq!((accesses.unsent(7), accesses.due(i64::MAX, true)), (None, Vec::new()));
    accesses.show(&mut inode);
    assert_eq!(inode.atime, 200);
    accesses.answered(7);
    assert_eq!(accesses.unsent(7), unsent(200));
    accesses.answered(7);
    assert!(accesses.all().is_empty());
    // Time that a node tells is not taken back.
    let mut newer = file(7, 300, 0);
    accesses.note(7, 250);
    accesses.show(&mut newer);
    assert_eq!(newer.atime, 300);
}

/// A time that is set comes after what is on its way, and hides what is not.
#[test]
fn reads_before_a_time_is_set() {
    let accesses = accesses(AtimeMode::Strict);
    let gone_on = Arc::new(AtomicU32::new(0));
    let then = || {
        let gone_on = gone_on.clone();
        Box::new(move || {
            gone_on.fetch_add(1, Ordering::SeqCst);
        })
    };
    accesses.note(7, 100);
    accesses.forget(7);
    accesses.settled(7, then());
    assert_eq!((gone_on.load(Ordering::SeqCst), accesses.unsent(7)), (1, None));
    accesses.note(7, 200);
    assert!(accesses.unsent(7).is_some());
    accesses.note(7, 300);
    accesses.forget(7);
    accesses.settled(7, then());
    assert_eq!(gone_on.load(Ordering::SeqCst), 1);
    accesses.answered(7);
    assert_eq!((gone_on.load(Ordering::SeqCst), accesses.unsent(7)), (2, None));
    assert!(accesses.all().is_empty());
}

/// Many files that are read once: each is told of once, and a node that does not answer costs no
/// memory without end.
#[test]
fn reads_of_very_many_files() {
    let accesses = accesses(AtimeMode::Relatime);
    let most = SHARDS * 2 * READS_MAX;
    let mut told = Vec::new();
    for ino in 0..100_000 {
        if let Noted::Send(early) = accesses.note(ino, 5) {
            for unsent in early {
                accesses.answered(unsent.ino);
                told.push(unsent.ino);
            }
        }
    }
    assert!(accesses.all().len() <= most && told.len() >= 100_000 - most);
    told.extend(accesses.due(5, true).iter().map(|unsent| unsent.ino));
    told.sort_unstable();
    assert_eq!(told, (0..100_000).collect::<Vec<_>>());
    // None of the last ones has been answered.
    let lost = (100_000..200_000).filter(|ino| accesses.note(*ino, 6) == Noted::Lost).count();
    assert!(accesses.all().len() <= most && lost >= 100_000 - most);
}

/// Which reads count in each mode.
#[test]
fn reads_that_count() {
    const DAY: Nanos = 86_400 * SECOND;
    let (relative, strict) = (accesses(AtimeMode::Relatime), accesses(AtimeMode::Strict));
    let read = file(7, 10 * SECOND, 9 * SECOND);
    for (inode, now, due) in [
        (file(7, 5, 5), 6, true),
        (file(7, 5, 9), 10, true),
        (read.clone(), 11 * SECOND, false),
        (read.clone(), 10 * SECOND + DAY - 1, false),
        (read.clone(), 10 * SECOND + DAY, true),
        (Inode { ctime: 10 * SECOND, ..read.clone() }, 11 * SECOND, true),
    ] {
        assert_eq!(counts(&relative, &inode, now), due, "{inode:?} {now}");
        assert!(counts(&strict, &inode, now));
        for flags in [InodeFlags::IMMUTABLE, InodeFlags::NO_ATIME] {
            let inode = Inode { flags, ..inode.clone() };
            assert!(!counts(&relative, &inode, now) && !counts(&strict, &inode, now));
        }
    }
    // Never backwards.
    assert!(!counts(&strict, &file(7, 50, 5), 50) && !counts(&relative, &file(7, 50, 60), 49));
}

/// Directories and links count by what was told of them last, and only once after that.
#[test]
fn directories_that_count() {
    let accesses = accesses(AtimeMode::Relatime);
    assert!(accesses.node_counts(7, true, 100) && !accesses.node_counts(7, true, 101));
    let mut dir = Inode { kind: Kind::Dir, ..file(7, 100, 90) };
    accesses.show(&mut dir);
    assert!(!accesses.node_counts(7, true, 102));
    accesses.show(&mut Inode { mtime: 100, ..dir.clone() });
    assert!(accesses.node_counts(7, true, 103));
    accesses.show(&mut Inode { flags: InodeFlags::NO_ATIME, mtime: 110, ..dir });
    assert!(!accesses.node_counts(7, true, 120));
    accesses.set(AccessTimes { mode: AtimeMode::Strict, no_directories: true, read_only: false });
    assert!(!accesses.node_counts(8, true, 5) && accesses.node_counts(8, false, 5));
}

/// Nothing counts by default, on a read-only mount, or after the node has refused.
#[test]
fn access_times_that_are_off() {
    assert!(!Accesses::default().is_on());
    for mode in [AtimeMode::None, AtimeMode::Relatime, AtimeMode::Strict] {
        let accesses = accesses(mode);
        assert_eq!(accesses.is_on(), mode != AtimeMode::None);
        assert_eq!(accesses.refused(), mode != AtimeMode::None);
        assert!(!accesses.is_on() && !accesses.refused());
        accesses.set(AccessTimes { mode, no_directories: true, read_only: true });
        assert!(!accesses.is_on());
    }
}
