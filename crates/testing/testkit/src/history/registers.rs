//! Close-to-open: what a read of a file that is overwritten in place may see.
//!
//! A write is open, write, close; a read is open, read, close. Between them nothing is promised: a
//! reader on the writer's own mount may see the bytes before the close, one on another mount after.
//! So a read may give the bytes of any write that began before the read ended, unless another write
//! began after that one had ended, and ended before the read began: then every open sees the later
//! one, or one that is later still. All writes cover the same bytes, so these are never mixed.

use super::RecordedCall;

/// A call on one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Overwrites it with these bytes, which no other write has.
    Write(u64),
    /// Reads it.
    Read,
}

/// What it said: a read what it saw, a write what it wrote.
pub type Answer = u64;

/// What a file holds before the first write.
pub const INITIAL: u64 = 0;

/// The reads that saw what they must not, with the reason.
pub fn violations(events: &[RecordedCall<Call, Answer>]) -> Vec<(usize, String)> {
    let reads = events.iter().enumerate().filter(|(_, event)| event.call == Call::Read);
    reads.filter_map(|(at, read)| Some((at, complaint(read, events)?))).collect()
}

fn complaint(
    read: &RecordedCall<Call, Answer>,
    events: &[RecordedCall<Call, Answer>],
) -> Option<String> {
    let seen = read.answer?;
    let writes = || events.iter().filter(|event| matches!(event.call, Call::Write(_)));
    // When the write that the read saw was over; one without an answer may not be over yet.
    let over = if seen == INITIAL {
        0
    } else {
        match writes().find(|write| write.call == Call::Write(seen)) {
            None => return Some(format!("read {seen:#x}, which nobody wrote")),
            Some(write) if write.begin > read.end => {
                return Some(format!("read {seen:#x} before it was written"));
            }
            Some(write) if write.answer.is_none() => return None,
            Some(write) => write.end,
        }
    };
    let later = writes()
        .find(|write| write.answer.is_some() && write.begin > over && write.end < read.begin)?;
    let Call::Write(token) = later.call else { return None };
    Some(format!(
        "read {seen:#x}, but {token:#x} was written after that and closed before the read began"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(begin: u64, end: u64, token: u64) -> RecordedCall<Call, Answer> {
        RecordedCall { thread: 0, call: Call::Write(token), answer: Some(token), begin, end }
    }

    fn read(begin: u64, end: u64, seen: u64) -> RecordedCall<Call, Answer> {
        RecordedCall { thread: 1, call: Call::Read, answer: Some(seen), begin, end }
    }

    fn wrong(events: &[RecordedCall<Call, Answer>]) -> Vec<usize> {
        violations(events).into_iter().map(|(at, _)| at).collect()
    }

    #[test]
    fn what_was_closed_is_seen_by_every_later_open() {
        let writes = [write(10, 20, 1), write(30, 40, 2)];
        for (read, right) in [
            (read(0, 5, 0), true),
            (read(0, 5, 1), false),
            (read(0, 15, 1), true),
            (read(21, 25, 1), true),
            (read(21, 25, 0), false),
            (read(21, 25, 2), false),
            (read(35, 50, 1), true),
            (read(35, 50, 2), true),
            (read(35, 50, 0), false),
            (read(41, 50, 1), false),
            (read(41, 50, 9), false),
        ] {
            let events = [writes.as_slice(), std::slice::from_ref(&read)].concat();
            assert_eq!(wrong(&events).is_empty(), right, "{read:?}");
        }
    }

    #[test]
    fn writes_that_overlap_may_win_in_either_order() {
        for seen in [1, 2] {
            assert!(wrong(&[write(10, 30, 1), write(20, 25, 2), read(40, 50, seen)]).is_empty());
        }
        let unknown = RecordedCall { answer: None, ..write(10, 20, 1) };
        for seen in [1, 2] {
            assert!(wrong(&[unknown.clone(), write(30, 40, 2), read(50, 60, seen)]).is_empty());
        }
        assert_eq!(wrong(&[unknown, write(30, 40, 2), read(50, 60, 0)]), [2]);
    }
}
