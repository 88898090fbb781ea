//! Histories of a register that are known to be right or wrong, and random ones judged a second
//! time by trying all orders.

use super::*;
use crate::rng::Rng;

/// A register with compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Register(u8);

#[derive(Debug, Clone, Copy)]
enum Call {
    Read,
    Write(u8),
    Swap(u8, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Value(u8),
    Done,
    No,
}

impl Model for Register {
    type Call = Call;
    type Answer = Answer;

    fn step(&self, call: &Call, answer: Option<&Answer>) -> Option<Self> {
        let (next, says) = match *call {
            Call::Read => (self.0, Answer::Value(self.0)),
            Call::Write(value) => (value, Answer::Done),
            Call::Swap(old, new) if old == self.0 => (new, Answer::Done),
            Call::Swap(..) => (self.0, Answer::No),
        };
        answer.is_none_or(|answer| *answer == says).then_some(Register(next))
    }
}

type Events = Vec<RecordedCall<Call, Answer>>;

fn event(
    thread: usize,
    begin: u64,
    end: u64,
    call: Call,
    answer: Answer,
) -> RecordedCall<Call, Answer> {
    RecordedCall { thread, call, answer: Some(answer), begin, end }
}

fn linearizable(events: &Events) -> bool {
    match check(Register(0), events) {
        Linearity::Linearizable { .. } => true,
        Linearity::Violation { .. } => false,
        Linearity::Unknown => panic!("too large: {events:?}"),
    }
}

use Answer::{Done, Value};
use Call::{Read, Write};

#[test]
fn what_overlaps_may_happen_in_any_order() {
    let write = event(0, 0, 10, Write(1), Done);
    for seen in [0, 1] {
        assert!(linearizable(&vec![write.clone(), event(1, 5, 6, Read, Value(seen))]));
    }
    assert!(!linearizable(&vec![write.clone(), event(1, 5, 6, Read, Value(2))]));
    // Touching at one nanosecond counts as overlapping.
    assert!(linearizable(&vec![write, event(1, 10, 12, Read, Value(0))]));
}

#[test]
fn what_has_returned_has_happened() {
    let write = event(0, 0, 10, Write(1), Done);
    assert!(!linearizable(&vec![write.clone(), event(1, 11, 12, Read, Value(0))]), "stale");
    // New, then old again, both during the write.
    let back = vec![write, event(1, 2, 3, Read, Value(1)), event(2, 4, 5, Read, Value(0))];
    assert!(!linearizable(&back), "time runs backwards");
}

#[test]
fn a_violation_names_the_call_that_nothing_explains() {
    let events = vec![
        event(0, 0, 1, Write(1), Done),
        event(1, 2, 20, Write(2), Done),
        event(2, 3, 4, Read, Value(7)),
        event(0, 5, 6, Read, Value(2)),
    ];
    let Linearity::Violation { event, pending, before } = check(Register(0), &events) else {
        panic!("not found")
    };
    assert_eq!((event, pending, before), (2, vec![1], vec![Register(1)]));
}

#[test]
fn a_call_without_an_answer_may_happen_later_or_never() {
    let unknown = RecordedCall { thread: 0, call: Write(1), answer: None, begin: 0, end: 5 };
    for values in [[0, 0], [1, 1], [0, 1]] {
        let [first, second] = values;
        let reads =
            vec![event(1, 10, 11, Read, Value(first)), event(1, 12, 13, Read, Value(second))];
        assert!(linearizable(&[vec![unknown.clone()], reads].concat()));
    }
    let reads = vec![event(1, 10, 11, Read, Value(1)), event(1, 12, 13, Read, Value(0))];
    assert!(!linearizable(&[vec![unknown], reads].concat()));
}

#[test]
fn it_says_so_when_it_is_too_much() {
    let unknown = |at| RecordedCall { thread: 0, call: Write(1), answer: None, begin: at, end: at };
    let events: Events = (0..=PENDING_MAX as u64).map(unknown).collect();
    assert_eq!(check(Register(0), &events), Linearity::Unknown);
}

/// All orders that respect time, one after the other.
fn by_trying(state: &Register, left: &mut Events) -> bool {
    if left.iter().all(|event| event.answer.is_none()) {
        return true;
    }
    let first_end = left.iter().filter(|event| event.answer.is_some()).map(|event| event.end).min();
    for at in 0..left.len() {
        if first_end.is_some_and(|end| left[at].begin > end) {
            continue;
        }
        let event = left.remove(at);
        let fits = state
            .step(&event.call, event.answer.as_ref())
            .is_some_and(|next| by_trying(&next, left));
        left.insert(at, event);
        if fits {
            return true;
        }
    }
    false
}

#[test]
fn it_agrees_with_trying_all_orders() {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..4000 {
        let mut rng = Rng::new(seed);
        let mut events: Events = Vec::new();
        for thread in 0..3 {
            let mut now = rng.below(4);
            for _ in 0..2 + rng.below(2) {
                let end = now + 1 + rng.below(6);
                let (call, answer) = match rng.below(4) {
                    0 => (Write(rng.below(3) as u8), Done),
                    1 => (
                        Call::Swap(rng.below(3) as u8, rng.below(3) as u8),
                        *rng.pick(&[Done, Answer::No]),
                    ),
                    _ => (Read, Value(rng.below(3) as u8)),
                };
                let answer = (!rng.percent(10)).then_some(answer);
                events.push(RecordedCall { thread, call, answer, begin: now, end });
                now = end + 1 + rng.below(3);
            }
        }
        let expected = by_trying(&Register(0), &mut events.clone());
        assert_eq!(linearizable(&events), expected, "seed {seed}: {events:?}");
        *(if expected { &mut right } else { &mut wrong }) += 1;
    }
    assert!(right > 200 && wrong > 200, "{right} right, {wrong} wrong");
}
