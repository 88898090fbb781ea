//! What became of a client's numbered calls: the memory behind exactly-once execution.
//!
//! A client numbers its changes 1, 2, 3 … and every call has the number up to which it has all
//! answers. Above that the window records for each number whether it is being executed, or how it
//! was answered. A number that is neither has not been seen since the node started: if the client
//! marks it as sent before, the node looks for its recorded answer first.
//!
//! Invariants: a number is executed only after [`Window::decide`] answered [`CallDecision::Run`],
//! and then not again before [`Window::finish`]; the window spans at most [`WINDOW`] numbers.

use std::collections::VecDeque;

use kestrel_meta::txn::WINDOW;
use kestrel_types::request::{Answer, Reply};

/// The state of a number.
#[derive(Debug, Default)]
enum Slot {
    /// Nothing.
    #[default]
    Unseen,
    /// It is being executed; whether it was sent before, and the call that waits.
    Running { waiter: Waiter, retry: bool },
    /// It was answered like this.
    Answered(Reply),
}

/// A call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    /// The call.
    pub id: u64,
    /// Number of the connection on which it came last.
    pub incarnation: u64,
}

/// What to do with a numbered call.
#[derive(Debug, PartialEq)]
pub enum CallDecision<'a> {
    /// Execute it, and call [`Window::finish`].
    Run,
    /// It has been answered like this.
    Answered(&'a Reply),
    /// It is being executed; the answer will go to this call.
    Running,
    /// The client has confirmed that it has the answer.
    Stale,
    /// It lies beyond the window: the client breaks the protocol.
    Beyond,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Window {
    /// The client has the answers of all numbers up to this one.
    acked: u64,
    /// What became of the numbers after `acked`.
    slots: VecDeque<Slot>,
    running: usize,
    retries_running: usize,
}

impl Window {
    /// Calls being executed.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Of these, those that were sent before.
    pub fn retries_running(&self) -> usize {
        self.retries_running
    }

    /// The client has all answers up to `acked`. (A call that it gave up counts as answered, so its
    /// number may still run.)
    pub fn ack(&mut self, acked: u64) {
        while self.acked < acked {
            match self.slots.pop_front() {
                Some(slot) => {
                    self.acked += 1;
                    self.leave(&slot);
                }
                None => self.acked = acked,
            }
        }
    }

    fn leave(&mut self, slot: &Slot) {
        if let Slot::Running { retry, .. } = slot {
            self.running -= 1;
            self.retries_running -= usize::from(*retry);
        }
    }

    /// A call with number `seq` has come.
    pub fn decide(&mut self, seq: u64, waiter: Waiter, retry: bool) -> CallDecision<'_> {
        let Some(index) = self.index(seq) else { return CallDecision::Stale };
        if index >= WINDOW {
            return CallDecision::Beyond;
        }
        // Below WINDOW, so it fits.
        let index = index as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.slots[index];
        match slot {
            Slot::Answered(reply) => CallDecision::Answered(reply),
            Slot::Running { waiter: waits, .. } => {
                *waits = waiter;
                CallDecision::Running
            }
            Slot::Unseen => {
                *slot = Slot::Running { waiter, retry };
                self.running += 1;
                self.retries_running += usize::from(retry);
                CallDecision::Run
            }
        }
    }

    /// How far after the first number that may be unanswered; `None` before it. (Clients may say
    /// any number.)
    fn index(&self, seq: u64) -> Option<u64> {
        seq.checked_sub(self.acked)?.checked_sub(1)
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let index = self.index(seq)?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    /// The call that waits for the answer of `seq`; `None` if the client has given it up.
    pub fn waiting(&mut self, seq: u64) -> Option<Waiter> {
        match self.slot(seq)? {
            Slot::Running { waiter, .. } => Some(*waiter),
            Slot::Unseen | Slot::Answered(_) => None,
        }
    }

    /// `seq` has been executed: its answer is kept until the client has it; not if `keep` is off,
    /// then a retry executes it again (or finds its record).
    pub fn finish(&mut self, seq: u64, reply: Reply, keep: bool) {
        let Some(slot) = self.slot(seq) else { return };
        if !matches!(slot, Slot::Running { .. }) {
            return;
        }
        let done = if keep { Slot::Answered(reply) } else { Slot::Unseen };
        let before = std::mem::replace(slot, done);
        self.leave(&before);
    }

    /// The session was given up and with it every open: answers that gave or took one are no longer
    /// true.
    pub fn forget_opens(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Answered(Ok(Answer::Opened { .. } | Answer::Done))) {
                *slot = Slot::Unseen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    fn by(id: u64) -> Waiter {
        Waiter { id, incarnation: 1 }
    }

    /// A numbered call is executed once, and repetitions get the same answer.
    #[test]
    fn call_number_executed_once() {
        let mut window = Window::default();
        assert_eq!(window.decide(1, by(10), false), CallDecision::Run);
        assert_eq!(window.decide(1, by(11), true), CallDecision::Running);
        assert_eq!((window.waiting(1), window.running()), (Some(by(11)), 1));
        window.finish(1, Ok(Answer::Done), true);
        assert_eq!((window.waiting(1), window.running()), (None, 0));
        assert_eq!(window.decide(1, by(12), true), CallDecision::Answered(&Ok(Answer::Done)));
        window.ack(1);
        assert_eq!(window.decide(1, by(13), true), CallDecision::Stale);
        assert_eq!(window.decide(0, by(13), true), CallDecision::Stale);
    }

    /// Numbers of calls may be skipped and given up, but not run ahead of the window.
    #[test]
    fn skipped_call_numbers() {
        let mut window = Window::default();
        assert_eq!(window.decide(WINDOW, by(1), false), CallDecision::Run);
        assert_eq!(window.decide(WINDOW + 1, by(2), false), CallDecision::Beyond);
        assert_eq!(window.decide(u64::MAX, by(2), false), CallDecision::Beyond);
        window.ack(WINDOW);
        assert_eq!((window.waiting(WINDOW), window.running()), (None, 0));
        window.finish(WINDOW, Ok(Answer::Done), true);
        assert_eq!(window.decide(WINDOW + 1, by(2), true), CallDecision::Run);
        assert_eq!(window.retries_running(), 1);
        window.ack(u64::MAX);
        assert_eq!(window.decide(u64::MAX, by(3), false), CallDecision::Stale);
        assert_eq!((window.running(), window.retries_running()), (0, 0));
    }

    #[test]
    fn an_answer_that_is_not_kept_runs_again() {
        let mut window = Window::default();
        for seq in 1..=3 {
            assert_eq!(window.decide(seq, by(seq), false), CallDecision::Run);
        }
        window.finish(1, Ok(Answer::Done), false);
        window.finish(2, Ok(Answer::Done), true);
        window.finish(3, Ok(Answer::Bytes(Box::new([]))), true);
        window.forget_opens();
        assert_eq!(window.decide(1, by(1), true), CallDecision::Run);
        assert_eq!(window.decide(2, by(2), true), CallDecision::Run);
        assert!(matches!(window.decide(3, by(3), true), CallDecision::Answered(_)));
    }
}
