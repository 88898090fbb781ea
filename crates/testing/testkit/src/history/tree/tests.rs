//! The model against hand-made histories: right ones, and those of file systems with faults.

use super::super::linear::{Linearity, check};
use super::*;
use crate::rng::Rng;

type Events = Vec<RecordedCall<Call, Answer>>;

/// Calls one after the other.
fn sequence(calls: &[(Call, Answer)]) -> Events {
    let event = |(at, (call, answer)): (usize, &(Call, Answer))| {
        let begin = 10 * at as u64;
        RecordedCall { thread: 0, call: call.clone(), answer: Some(*answer), begin, end: begin + 5 }
    };
    calls.iter().enumerate().map(event).collect()
}

/// Adds a call by another thread with this interval.
fn during(events: &mut Events, begin: u64, end: u64, call: Call, answer: Answer) {
    events.push(RecordedCall { thread: 1 + events.len(), call, answer: Some(answer), begin, end });
}

fn linearizable(events: &Events) -> bool {
    matches!(check(Tree::default(), events), Linearity::Linearizable { .. })
}

const D0: At = At::Root(0);
const D1: At = At::Root(1);
const F0: At = At::Root(3);
const F1: At = At::Root(4);
const GONE: Answer = Answer::Failed(libc::ENOENT);

use Answer::*;
use Call::*;

fn moved(from: At, to: At) -> Call {
    Rename { from, to, no_replace: false, repeated: false }
}

fn file(ino: u64) -> Answer {
    Found { dir: false, ino }
}

#[test]
fn a_file_system_alone_says_what_linux_says() {
    let sub = At::Sub(20, 0);
    let events = sequence(&[
        (Create(F0), Ino(Some(10))),
        (Create(F0), Failed(libc::EEXIST)),
        (Stat(F0), file(10)),
        (Read(F0), Content(0)),
        (Publish { ino: 11, token: 7, to: F0 }, Done),
        (Read(F0), Content(7)),
        (Mkdir(0), Done),
        (Mkdir(0), Failed(libc::EEXIST)),
        (OpenDir(0), Ino(Some(20))),
        (Unlink(D0), Failed(libc::EISDIR)),
        (Read(D0), Failed(libc::EISDIR)),
        (Create(sub), Ino(Some(12))),
        (Rmdir(0), Failed(libc::ENOTEMPTY)),
        (moved(D0, D1), Done),
        (OpenDir(1), Ino(Some(20))),
        (List(Some(20)), Names(1)),
        (moved(sub, F1), Done),
        (List(None), Names(0b11010)),
        (moved(F1, D1), Failed(libc::EISDIR)),
        (moved(D1, F1), Failed(libc::ENOTDIR)),
        (Rename { from: F0, to: F1, no_replace: true, repeated: false }, Failed(libc::EEXIST)),
        (moved(F0, F0), Done),
        (Rmdir(1), Done),
        (Stat(sub), GONE),
        (Create(sub), GONE),
        (moved(F0, sub), GONE),
        (OpenDir(1), GONE),
        (Mkdir(3 - 2), Done),
        (OpenDir(1), Ino(Some(21))),
        (Rmdir(0), GONE),
        (Rmdir(1), Done),
        (moved(F0, F1), Done),
        (Stat(F1), file(11)),
        (Unlink(F1), Done),
        (List(None), Names(0)),
    ]);
    assert!(linearizable(&events), "{:?}", check(Tree::default(), &events));
    // And nothing else: each other errno, or a success, at any place is noticed.
    for at in 0..events.len() {
        for other in [
            GONE,
            Failed(libc::EEXIST),
            Failed(libc::EACCES),
            Done,
            Content(1),
            Names(0b100),
            file(77),
        ] {
            let mut events = events.clone();
            // To open a directory that was never seen before gives it that number, whatever it is.
            if events[at].answer != Some(other) {
                events[at].answer = Some(other);
                assert!(!linearizable(&events), "{:?} said {other:?}", events[at].call);
            }
        }
    }
}

#[test]
fn a_rename_is_one_step() {
    let start = [
        (Publish { ino: 10, token: 1, to: F0 }, Done),
        (Publish { ino: 11, token: 2, to: F1 }, Done),
    ];
    let rename = |events: &mut Events| during(events, 100, 200, moved(F0, F1), Done);
    let seen = |first: (At, Answer), second: (At, Answer)| {
        let mut events = sequence(&start);
        rename(&mut events);
        during(&mut events, 110, 120, Stat(first.0), first.1);
        during(&mut events, 130, 140, Stat(second.0), second.1);
        linearizable(&events)
    };
    assert!(seen((F0, file(10)), (F1, file(10))), "in between");
    assert!(seen((F0, GONE), (F1, file(10))), "after");
    assert!(!seen((F0, GONE), (F1, file(11))), "neither here nor there: a rename in two steps");
    assert!(!seen((F1, file(10)), (F0, file(10))), "at both places");
    assert!(!seen((F1, GONE), (F1, file(10))), "the target was away: unlink and then rename");
}

#[test]
fn stale_answers_after_a_call_returned_are_found() {
    let start = [(Publish { ino: 10, token: 1, to: F0 }, Done)];
    for (call, answer, stale) in [
        (Unlink(F0), Done, (Stat(F0), file(10))),
        (Publish { ino: 11, token: 2, to: F0 }, Done, (Read(F0), Content(1))),
        (Publish { ino: 11, token: 2, to: F0 }, Done, (Stat(F0), GONE)),
        (Mkdir(0), Done, (Stat(D0), GONE)),
        (moved(F0, F1), Done, (List(None), Names(0b1000))),
    ] {
        let mut events = sequence(&start);
        during(&mut events, 100, 110, call, answer);
        during(&mut events, 120, 130, stale.0.clone(), stale.1);
        assert!(!linearizable(&events), "{stale:?}");
        events[2].begin = 105;
        let concurrent = linearizable(&events);
        // While the call runs the same answer is right, unless the name was never away.
        assert_eq!(concurrent, stale != (Stat(F0), GONE), "{stale:?}");
    }
}

#[test]
fn lost_and_doubled_calls_are_found() {
    // Two exclusive creations of one name.
    let mut both = Vec::new();
    during(&mut both, 0, 10, Create(F0), Ino(Some(10)));
    during(&mut both, 5, 15, Create(F0), Ino(Some(11)));
    assert!(!linearizable(&both));
    // Two removals of one file.
    let mut twice = sequence(&[(Create(F0), Ino(Some(10)))]);
    during(&mut twice, 20, 30, Unlink(F0), Done);
    during(&mut twice, 25, 35, Unlink(F0), Done);
    assert!(!linearizable(&twice));
    // An acknowledged creation that a restart lost.
    assert!(!linearizable(&sequence(&[(Create(F0), Ino(Some(10))), (Stat(F0), GONE)])));
    // A file in a directory that was removed as empty.
    let mut lost = sequence(&[(Mkdir(0), Done), (OpenDir(0), Ino(Some(20)))]);
    during(&mut lost, 100, 110, Create(At::Sub(20, 0)), Ino(Some(12)));
    during(&mut lost, 105, 115, Rmdir(0), Done);
    assert!(!linearizable(&lost));
    // A retried creation that found its own first execution.
    let mut retried = Vec::new();
    during(&mut retried, 0, 10, Create(F0), Failed(libc::EEXIST));
    during(&mut retried, 20, 30, Stat(F0), file(10));
    assert!(!linearizable(&retried));
}

#[test]
fn a_call_without_an_answer_may_have_happened() {
    for seen in [file(10), GONE] {
        let mut events = Vec::new();
        during(&mut events, 20, 30, Stat(F0), seen);
        events.push(RecordedCall { thread: 0, call: Create(F0), answer: None, begin: 0, end: 10 });
        assert!(linearizable(&events));
        during(&mut events, 40, 50, Stat(F0), GONE);
        assert_eq!(linearizable(&events), seen == GONE);
    }
}

/// What a correct file system answers: the call happens at one moment of its interval.
fn answer(tree: &Tree, call: &Call, fresh: &mut u64) -> (Answer, Tree) {
    let errnos = [libc::ENOENT, libc::EEXIST, libc::EISDIR, libc::ENOTDIR, libc::ENOTEMPTY];
    *fresh += 1;
    let mut said = vec![Done, Ino(Some(*fresh))];
    said.extend((0..=*fresh).flat_map(|ino| [false, true].map(|dir| Found { dir, ino })));
    said.extend((0..=*fresh).flat_map(|number| [Ino(Some(number)), Content(number)]));
    said.extend((0..32).map(Names));
    said.extend(errnos.map(Failed));
    let possible = said.into_iter().find_map(|said| Some((said, tree.step(call, Some(&said))?)));
    possible.unwrap_or_else(|| panic!("no answer to {call:?} in {tree:?}"))
}

fn any_call(rng: &mut Rng, dirs: &[u64], fresh: &mut u64) -> Call {
    let at = |rng: &mut Rng| match dirs {
        [.., _] if rng.percent(40) => At::Sub(*rng.pick(dirs), rng.below(2) as usize),
        _ => At::Root(rng.below(5) as usize),
    };
    let name = rng.below(DIR_NAMES as u64) as usize;
    match rng.below(9) {
        0 => Create(at(rng)),
        1 => {
            *fresh += 1;
            Publish { ino: *fresh, token: *fresh, to: at(rng) }
        }
        2 => Unlink(at(rng)),
        3 => Mkdir(name),
        4 => Rmdir(name),
        5 => moved(At::Root(3 + rng.below(2) as usize), at(rng)),
        6 => Stat(at(rng)),
        7 => OpenDir(name),
        _ => Read(at(rng)),
    }
}

/// Random histories of a correct file system pass; with one answer swapped for another's most do
/// not.
#[test]
fn histories_of_correct_and_faulty_systems() {
    let mut found = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut tree, mut fresh, mut now) = (Tree::default(), 100, 0);
        let (mut events, mut dirs) = (Events::new(), Vec::new());
        let mut free = [0; 4];
        for _ in 0..120 {
            // It happens now; it began at any time since the thread's last call ended, and ends a
            // little later.
            now += 1 + rng.below(8);
            let thread = rng.below(4) as usize;
            if free[thread] >= now {
                continue;
            }
            let call = any_call(&mut rng, &dirs, &mut fresh);
            let (answer, next) = answer(&tree, &call, &mut fresh);
            if let (OpenDir(_), Ino(Some(ino))) = (&call, answer) {
                dirs.push(ino);
            }
            tree = next;
            let (begin, end) = (rng.range(free[thread] + 1, now), now + rng.below(20));
            events.push(RecordedCall { thread, call, answer: Some(answer), begin, end });
            free[thread] = end;
        }
        assert!(linearizable(&events), "seed {seed}: {:?}", check(Tree::default(), &events));
        let changed = rng.below(events.len() as u64) as usize;
        events[changed].answer = Some(match events[changed].answer {
            Some(Failed(_)) => Done,
            Some(Found { .. } | Content(_) | Ino(_)) => GONE,
            _ => Failed(libc::EEXIST),
        });
        found += usize::from(!linearizable(&events));
    }
    assert!(found > 40, "only {found} of 60 faults found");
}

/// A rename may find that both names are the file that another rename is moving.
#[test]
fn rename_of_a_file_renamed_meanwhile() {
    let event = |thread, call, answer, begin, end| RecordedCall {
        thread,
        call,
        answer: Some(answer),
        begin,
        end,
    };
    let mut events = vec![
        event(0, Create(F0), Ino(Some(10)), 0, 1),
        event(1, moved(F0, F1), Done, 2, 5),
        event(2, moved(F0, F1), Done, 3, 6),
    ];
    assert!(!linearizable(&events));
    mark_repeated(&mut events);
    assert!(linearizable(&events));
    // One after the other nothing of the kind can happen.
    events[2].begin = 6;
    mark_repeated(&mut events);
    assert!(!linearizable(&events));
}
