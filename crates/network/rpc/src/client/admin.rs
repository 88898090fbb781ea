//! Questions of the control protocol: long, rare, with messages before the answer.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::wire::{Answered, Body};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::reentrancy::ReentrancyGuard;
use super::{CallCompletion, Remote};
use crate::session::{CallDeadline, CallId};

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminError(pub FsError);

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.reason)
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// What comes back.
enum AdminMessage {
    Event(Box<[u8]>),
    Answer(FsResult<Box<[u8]>>),
}

/// Questions that wait for their answers.
#[derive(Default)]
pub(super) struct PendingQuestions(Mutex<FxHashMap<CallId, Sender<AdminMessage>>>);

impl PendingQuestions {
    /// A message before the answer. A caller that does not listen any more does not need it.
    pub fn event(&self, id: CallId, json: Box<[u8]>) {
        if let Some(waiting) = self.0.lock().get(&id) {
            let _ = waiting.send(AdminMessage::Event(json));
        }
    }

    pub fn end(&self, id: CallId, result: FsResult<Answered>) {
        let Some(waiting) = self.0.lock().remove(&id) else { return };
        let answer = result.and_then(|answered| match answered {
            Answered::Admin(answer) => answer,
            _ => Err(FsError::new(
                libc::EIO,
                "the metadata server answered something that was not asked",
            )),
        });
        let _ = waiting.send(AdminMessage::Answer(answer));
    }
}

impl Remote {
    /// Asks a question of the control protocol and waits for the answer, at most `limit`;
    /// `on_event` gets the messages before the answer. A question is never sent twice: if the
    /// connection is lost, so is the answer. Not from within completions.
    ///
    /// # Errors
    /// If there is no answer, or it is no JSON.
    pub fn admin(
        &self,
        question: &Value,
        limit: Option<Duration>,
        on_event: &mut dyn FnMut(Value),
    ) -> Result<Value, AdminError> {
        let shared = &self.shared;
        debug_assert!(!ReentrancyGuard::of(shared).is_on(), "a completion must not wait");
        let limit =
            limit.and_then(|limit| Nanos::try_from(limit.as_nanos()).ok()).unwrap_or(Nanos::MAX);
        let deadline = CallDeadline::Connection(shared.now().saturating_add(limit));
        let question = question.to_string().into_bytes().into_boxed_slice();
        let (waiting, messages) = channel();
        shared.with_link(|link| {
            let id = link.submit(Body::Admin(question), deadline, CallCompletion::Admin);
            // Under the link's lock: no answer can come before this.
            shared.admin.0.lock().insert(id, waiting);
        });
        loop {
            match messages.recv() {
                Ok(AdminMessage::Event(json)) => on_event(parse(&json)?),
                Ok(AdminMessage::Answer(answer)) => return parse(&answer.map_err(AdminError)?),
                Err(_) => {
                    return Err(AdminError(FsError::new(
                        libc::ESHUTDOWN,
                        "the connection has been closed",
                    )));
                }
            }
        }
    }
}

fn parse(json: &[u8]) -> Result<Value, AdminError> {
    serde_json::from_slice(json).map_err(|error| {
        AdminError(FsError::because(
            libc::EIO,
            format!("the metadata server's answer is no JSON: {error}"),
        ))
    })
}
