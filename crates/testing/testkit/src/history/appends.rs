//! Appending: what is in a log to which several clients append with `O_APPEND` and no lock, and
//! what a reader of it sees.
//!
//! An append is write and close, or write and fsync; a read is open, read, close. When the append
//! has returned, its record is in the log once, behind all records with appends that had returned
//! before it began, and stays there. So every read that begins later sees it, and sees such records
//! in the order that the last read finds. Records with an append under way may be seen anywhere, or
//! not: they move while a read goes on. Those that failed are in the log once or not at all.
//!
//! Of several mounts one shows the bytes of an append where they would be if it were alone until
//! its client has heard where they are, so reads beside an append on the same mount are not judged,
//! and others only on request; the last read always is.

use std::collections::HashMap;

use super::RecordedCall;

/// A call on the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Appends this record, which no other append has.
    Append(u64),
    /// Reads all.
    Read,
}

/// The records that a read saw; nothing for an append.
pub type Answer = Vec<u64>;

/// What the records of a read may not be, with the event that shows it. The last read has to come
/// after all appends.
///
/// Thread N is on mount N modulo `mounts`. If there are several, reads other than the last are
/// judged only if `strict`.
pub fn violations(
    events: &[RecordedCall<Call, Answer>],
    mounts: usize,
    strict: bool,
) -> Vec<(usize, String)> {
    let reads = || events.iter().enumerate().filter(|(_, event)| event.call == Call::Read);
    let last = reads().filter_map(|(_, read)| Some((read.begin, read.answer.as_ref()?))).max();
    let place: HashMap<u64, usize> = last
        .iter()
        .flat_map(|(_, log)| log.iter().enumerate().map(|(at, record)| (*record, at)))
        .collect();
    let appends: HashMap<u64, &RecordedCall<Call, Answer>> = events
        .iter()
        .filter_map(|event| match event.call {
            Call::Append(record) => Some((record, event)),
            Call::Read => None,
        })
        .collect();
    let meets = |read: &RecordedCall<Call, Answer>, append: &RecordedCall<Call, Answer>| {
        let over = if append.answer.is_some() { append.end } else { u64::MAX };
        append.thread % mounts == read.thread % mounts
            && append.begin <= read.end
            && over >= read.begin
    };
    let is_alone =
        |read: &RecordedCall<Call, Answer>| !appends.values().any(|append| meets(read, append));
    let is_last =
        |read: &RecordedCall<Call, Answer>| last.is_some_and(|(begin, _)| begin == read.begin);
    let is_accepted =
        reads().filter(|(_, read)| mounts < 2 || is_last(read) || (strict && is_alone(read)));
    is_accepted.filter_map(|(at, read)| Some((at, complaint(read, &appends, &place)?))).collect()
}

fn complaint(
    read: &RecordedCall<Call, Answer>,
    appends: &HashMap<u64, &RecordedCall<Call, Answer>>,
    place: &HashMap<u64, usize>,
) -> Option<String> {
    let log = read.answer.as_ref()?;
    let mut seen = HashMap::new();
    for (at, record) in log.iter().enumerate() {
        match appends.get(record) {
            None => return Some(format!("record {record:#x}, which nobody appended")),
            Some(append) if append.begin > read.end => {
                return Some(format!("record {record:#x} before it was appended"));
            }
            Some(append) => {
                let under_way = append.answer.is_some() && append.end >= read.begin;
                if seen.insert(*record, at).is_some() && !under_way {
                    return Some(format!("record {record:#x} twice"));
                }
            }
        }
    }
    let is_over =
        |append: &RecordedCall<Call, Answer>| append.answer.is_some() && append.end < read.begin;
    let over = || appends.iter().filter(|(_, append)| is_over(append));
    if let Some((lost, _)) = over().find(|(record, _)| !seen.contains_key(record)) {
        return Some(format!("record {lost:#x} is missing although its append was over"));
    }
    let mut stay: Vec<_> =
        over().map(|(record, append)| (seen[record], *record, *append)).collect();
    stay.sort_unstable_by_key(|(at, ..)| *at);
    let mut latest: Option<(u64, u64)> = None;
    for pair in stay.windows(2) {
        if place.get(&pair[0].1) >= place.get(&pair[1].1) {
            return Some(format!(
                "record {:#x} before {:#x}, but not in the end",
                pair[0].1, pair[1].1
            ));
        }
    }
    for (_, record, append) in &stay {
        match latest {
            Some((begin, other)) if append.end < begin => {
                return Some(format!(
                    "record {other:#x} before {record:#x}, although that append was over before"
                ));
            }
            _ => latest = latest.max(Some((append.begin, *record))),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(begin: u64, end: u64, record: u64) -> RecordedCall<Call, Answer> {
        RecordedCall { thread: 0, call: Call::Append(record), answer: Some(Vec::new()), begin, end }
    }

    fn read(begin: u64, end: u64, seen: &[u64]) -> RecordedCall<Call, Answer> {
        RecordedCall { thread: 1, call: Call::Read, answer: Some(seen.to_vec()), begin, end }
    }

    fn is_right(events: &[RecordedCall<Call, Answer>]) -> bool {
        violations(events, 1, true).is_empty()
    }

    #[test]
    fn records_are_there_once_and_in_order() {
        let both = [append(10, 20, 1), append(30, 40, 2)];
        for (log, right) in [
            (&[1, 2][..], true),
            (&[2, 1], false),
            (&[1], false),
            (&[1, 2, 2], false),
            (&[1, 2, 3], false),
            (&[], false),
        ] {
            assert_eq!(is_right(&[&both[..], &[read(50, 60, log)]].concat()), right, "{log:?}");
        }
    }

    #[test]
    fn records_under_way_may_be_anywhere() {
        let events = [append(10, 20, 1), append(15, 40, 2), append(15, 60, 3)];
        let is_accepted = |log: &[u64]| {
            is_right(&[&events[..], &[read(30, 35, log), read(70, 80, &[2, 1, 3])]].concat())
        };
        assert!(is_accepted(&[1]) && is_accepted(&[1, 3, 2]) && is_accepted(&[2, 1]));
        assert!(!is_accepted(&[2]) && !is_accepted(&[1, 1, 2]));
    }

    #[test]
    fn what_is_over_stays_where_it_is() {
        let events = [append(10, 20, 1), append(10, 20, 2)];
        let is_accepted = |early: &[u64], last: &[u64]| {
            is_right(&[&events[..], &[read(30, 35, early), read(70, 80, last)]].concat())
        };
        assert!(is_accepted(&[1, 2], &[1, 2]) && is_accepted(&[2, 1], &[2, 1]));
        assert!(!is_accepted(&[1, 2], &[2, 1]));
    }

    #[test]
    fn reads_beside_an_append_on_the_same_mount() {
        let events = [append(10, 20, 1), read(15, 25, &[7]), read(30, 40, &[1])];
        assert_eq!(violations(&events, 2, true).len(), 1, "the reader is on the other mount");
        assert_eq!(violations(&events, 2, false).len(), 0);
        let same = events.map(|event| RecordedCall { thread: 0, ..event });
        assert_eq!((violations(&same, 2, true).len(), violations(&same, 1, false).len()), (0, 1));
    }

    #[test]
    fn a_failed_append_is_there_once_or_not() {
        let mut failed = append(10, 20, 1);
        failed.answer = None;
        let is_accepted = |log: &[u64]| is_right(&[failed.clone(), read(30, 40, log)]);
        assert!(is_accepted(&[]) && is_accepted(&[1]) && !is_accepted(&[1, 1]));
    }
}
