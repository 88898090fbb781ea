//! Sequence numbers of a client's calls: which are given out, which have their answer.

use std::collections::VecDeque;

use super::WINDOW;

/// Numbers 1, 2, 3 and so on. Those up to `acked` are done with.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Every number up to this one has its answer, or was given up.
    acked: u64,
    /// Those after it that are given out: whether they are done with. The first one never is.
    done: VecDeque<bool>,
}

impl Numbers {
    pub fn new() -> Self {
        Self { acked: 0, done: VecDeque::new() }
    }

    /// Numbers after `acked`: the calls before were another process's.
    pub fn after(acked: u64) -> Self {
        Self { acked, ..Self::new() }
    }

    /// The next number; none while the window is full.
    pub fn next(&mut self) -> Option<u64> {
        if self.done.len() as u64 >= WINDOW {
            return None;
        }
        self.done.push_back(false);
        Some(self.acked + self.done.len() as u64)
    }

    /// A number has its answer, or its caller has given up.
    pub fn finish(&mut self, number: u64) {
        let Some(index) = number.checked_sub(self.acked + 1) else { return };
        if let Some(done) = usize::try_from(index).ok().and_then(|index| self.done.get_mut(index)) {
            *done = true;
        }
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.acked += 1;
        }
    }

    pub fn acked(&self) -> u64 {
        self.acked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_moves_with_the_oldest_unanswered_number() {
        let mut numbers = Numbers::new();
        let all: Vec<u64> = std::iter::from_fn(|| numbers.next()).collect();
        assert_eq!(all, (1..=WINDOW).collect::<Vec<_>>());
        numbers.finish(2);
        assert_eq!((numbers.acked(), numbers.next()), (0, None));
        numbers.finish(1);
        assert_eq!(
            (numbers.acked(), numbers.next(), numbers.next()),
            (2, Some(WINDOW + 1), Some(WINDOW + 2))
        );
        numbers.finish(1);
        numbers.finish(WINDOW + 9);
        assert_eq!((numbers.acked(), numbers.next()), (2, None));
    }
}
