//! Loops over requests.
//!
//! An embedded volume answers on the thread that asks, before the call returns; a served one
//! answers later, on another thread. A completion that asks for the next piece itself would go one
//! level deeper on the stack with each piece of an embedded volume, and how many there are depends
//! on the file. [`repeat`] does the same at one depth.

use std::sync::Arc;

use kestrel_types::error::FsResult;
use parking_lot::Mutex;

use super::Done;

/// What follows a pass of a loop.
pub(super) enum LoopStep<S, T> {
    /// Another pass.
    Again(S),
    /// The end.
    End(FsResult<T>),
}

/// Where a pass says what follows it. Called exactly once, on any thread.
pub(super) type Next<S, T> = Box<dyn FnOnce(LoopStep<S, T>) + Send>;

/// What has become of a pass.
enum Pass<S, T> {
    /// The call of the body has not returned.
    Called,
    /// It said what follows before it returned.
    Told(LoopStep<S, T>),
    /// It returned before: the thread that says what follows goes on with the loop.
    Left(Done<T>),
    /// The loop is elsewhere.
    Over,
}

/// Calls `body` with `state`, and again with what it says, until it says that this is the end;
/// `done` hears of that. Needs no more of the stack than one pass does.
pub(super) fn repeat<S, T, B>(mut state: S, body: B, done: Done<T>)
where
    S: Send + 'static,
    T: Send + 'static,
    B: Fn(S, Next<S, T>) + Send + Sync + Clone + 'static,
{
    loop {
        let pass = Arc::new(Mutex::new(Pass::Called));
        let (told, rest) = (pass.clone(), body.clone());
        let next = move |step| {
            let mut place = told.lock();
            match std::mem::replace(&mut *place, Pass::Over) {
                Pass::Left(done) => {
                    drop(place);
                    match step {
                        LoopStep::Again(state) => repeat(state, rest, done),
                        LoopStep::End(result) => done(result),
                    }
                }
                _ => *place = Pass::Told(step),
            }
        };
        body(state, Box::new(next));
        let mut place = pass.lock();
        match std::mem::replace(&mut *place, Pass::Over) {
            Pass::Told(LoopStep::Again(next)) => {
                drop(place);
                state = next;
            }
            Pass::Told(LoopStep::End(result)) => {
                drop(place);
                return done(result);
            }
            _ => {
                *place = Pass::Left(done);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A million passes that answer at once, later, or by turns give the same result on a small
    /// stack.
    #[test]
    fn loop_of_a_million_passes() {
        for later_every in [0, 1, 3] {
            let work = move || {
                let (send, receive) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
                let (told, heard) = mpsc::channel();
                let body = move |(at, sum): (u64, u64), next: Next<(u64, u64), u64>| {
                    let step = match at {
                        1_000_000 => LoopStep::End(Ok(sum)),
                        _ => LoopStep::Again((at + 1, sum + at)),
                    };
                    match later_every != 0 && at % later_every == 0 {
                        true => {
                            send.send(Box::new(move || next(step))).expect("it is received below")
                        }
                        false => next(step),
                    }
                };
                repeat(
                    (0, 0),
                    body,
                    Box::new(move |sum| told.send(sum).expect("it is received below")),
                );
                for answer in receive {
                    answer();
                }
                assert_eq!(heard.recv().expect("the loop has ended"), Ok(499_999_500_000));
            };
            let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(work);
            thread.expect("a thread starts").join().expect("its stack is enough");
        }
    }
}
