//! Waiting for an answer as long as the caller is there.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

use kestrel_types::error::{FsError, FsResult};

use crate::fs::Done;

/// Whether the caller does not wait any more: its thread has got a signal that ends the call. Asked
/// again and again while a call waits.
pub type Gone<'a> = &'a dyn Fn() -> bool;

/// How often a caller is asked whether it is still there. A person that presses Ctrl-C waits at
/// most so long.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Runs an asynchronous call and waits for its result. If the caller goes away before, `undo` gets
/// what the call comes to.
///
/// # Errors
/// Those of the call; `EINTR` if the caller is gone.
pub fn wait_or<T: Send + 'static>(
    gone: Gone<'_>,
    undo: impl FnOnce(T) + Send + 'static,
    call: impl FnOnce(Done<T>),
) -> FsResult<T> {
    // Without room for a value: one that is not taken comes back to the sender.
    let (send, receive) = sync_channel::<FsResult<T>>(1);
    let taken = Arc::new(parking_lot::Mutex::new(true));
    let wanted = taken.clone();
    call(Box::new(move |result| {
        let is_wanted = wanted.lock();
        match result {
            Ok(value) if !*is_wanted => undo(value),
            result => drop(send.send(result)),
        }
    }));
    match next(&receive, gone) {
        Some(result) => result,
        None => {
            let mut is_wanted = taken.lock();
            // It may have come in this moment.
            match receive.try_recv() {
                Ok(result) => result,
                Err(_) => {
                    *is_wanted = false;
                    Err(interrupted())
                }
            }
        }
    }
}

/// [`wait_or`] of a call of which nothing needs a late result.
///
/// # Errors
/// Those of the call; `EINTR` if the caller is gone.
pub fn wait<T: Send + 'static>(gone: Gone<'_>, call: impl FnOnce(Done<T>)) -> FsResult<T> {
    wait_or(gone, drop, call)
}

/// Runs `work` on a thread of its own and waits for its result; none if the caller is gone before,
/// and then `undo` gets the result. Without another thread it runs on this one.
pub fn run_or<T: Send + 'static>(
    gone: Gone<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Option<T> {
    let left = Arc::new(parking_lot::Mutex::new(false));
    let (is_left, (send, receive)) = (left.clone(), sync_channel(1));
    let (give, taken) = sync_channel(1);
    let run = move || {
        let Ok(work): Result<Box<dyn FnOnce() -> T + Send>, _> = taken.recv() else { return };
        let result = work();
        let is_left = is_left.lock();
        match *is_left {
            true => undo(result),
            false => drop(send.send(result)),
        }
    };
    let thread = std::thread::Builder::new().name("kestrel-open".into()).spawn(run);
    if thread.is_err() {
        return Some(work());
    }
    // The thread waits for it.
    let _ = give.send(Box::new(work));
    loop {
        match receive.recv_timeout(ASK_EVERY) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Timeout) if !gone() => {}
            Err(_) => {
                let mut left = left.lock();
                *left = true;
                // It may have come in this moment.
                return receive.try_recv().ok();
            }
        }
    }
}

/// The next value from a channel; none if the caller is gone. A sender that is gone without a value
/// is an error of the value's kind.
fn next<T>(receive: &Receiver<FsResult<T>>, gone: Gone<'_>) -> Option<FsResult<T>> {
    loop {
        match receive.recv_timeout(ASK_EVERY) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return Some(Err(dropped())),
            Err(RecvTimeoutError::Timeout) if gone() => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Answers of a burst of requests, in the order of the requests.
pub struct Burst<T> {
    send: Sender<(usize, T)>,
    receive: Receiver<(usize, T)>,
}

impl<T: Send + 'static> Burst<T> {
    /// Without any answers.
    pub fn new() -> Self {
        let (send, receive) = channel();
        Self { send, receive }
    }

    /// Where the answers go. All clones of it are dropped when the last answer is there.
    pub fn sender(&self) -> Sender<(usize, T)> {
        self.send.clone()
    }

    /// Waits until every sender is gone. `take` gets each answer.
    ///
    /// # Errors
    /// `EINTR` if the caller is gone.
    pub fn collect(self, gone: Gone<'_>, mut take: impl FnMut(usize, T)) -> FsResult<()> {
        drop(self.send);
        loop {
            match self.receive.recv_timeout(ASK_EVERY) {
                Ok((number, answer)) => take(number, answer),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) if gone() => return Err(interrupted()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The error of a call that its caller left.
pub fn interrupted() -> FsError {
    FsError::new(libc::EINTR, "the call was interrupted by a signal")
}

/// The error of a call that nothing answers.
pub fn dropped() -> FsError {
    FsError::new(libc::EIO, "the operation was dropped without an answer")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A caller that is gone does not wait for an answer, and what comes later is undone.
    #[test]
    fn answer_after_its_caller_left() {
        let (undone, told) = mpsc::channel();
        let (keep, kept) = mpsc::channel::<Done<u32>>();
        let undo = move |value| undone.send(value).unwrap();
        let result = wait_or(&|| true, undo, |done| drop(keep.send(done)));
        assert_eq!(result.unwrap_err().errno, libc::EINTR);
        let done = kept.recv().unwrap();
        done(Ok(7));
        assert_eq!(told.recv(), Ok(7));
    }

    /// An answer that comes on another thread, and a completion that is dropped.
    #[test]
    fn answers_in_time() {
        let on_thread = |done: Done<u32>| drop(std::thread::spawn(move || done(Ok(3))));
        assert_eq!(wait(&|| false, on_thread), Ok(3));
        assert_eq!(wait::<u32>(&|| false, drop).unwrap_err().errno, libc::EIO);
    }

    /// A burst ends with its last answer, or when its caller is gone.
    #[test]
    fn burst_of_answers() {
        let burst = Burst::new();
        let send = burst.sender();
        std::thread::spawn(move || (0..3).for_each(|n| send.send((n, n)).unwrap()));
        let mut sum = 0;
        burst.collect(&|| false, |number, answer| sum += number + answer).unwrap();
        assert_eq!(sum, 6);
        let burst = Burst::<u32>::new();
        let _send = burst.sender();
        assert_eq!(burst.collect(&|| true, |_, _| ()).unwrap_err().errno, libc::EINTR);
    }
}
