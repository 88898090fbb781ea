//! Questions to the node as a whole: the control protocol, carried by the same connections.

use std::sync::Arc;

use kestrel_rpc::handler::Outbox;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::token::TokenRecord;
use kestrel_types::wire::{
    Answered, Checksum, JSON_BYTES_MAX, ReplyTo, ToClient, encode_to_client,
};

use crate::grant::Grant;
use crate::session::Session;

/// Answers questions.
pub trait Admin: Send + Sync {
    /// Takes a question, JSON text of at most [`JSON_BYTES_MAX`] bytes that is not checked further.
    /// Must not block: what takes long is done on a thread of its own.
    fn submit(&self, question: Box<[u8]>, asker: AdminRequester);
}

/// The asker, and the way back. Dropping it unanswered leaves the asker waiting until its deadline.
pub struct AdminRequester {
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) checksum: Checksum,
    pub(crate) session: Arc<Session>,
    pub(crate) peer: Arc<str>,
    pub(crate) grant: Option<Arc<Grant>>,
    pub(crate) incarnation: u64,
    pub(crate) id: u64,
    pub(crate) map_version: u64,
}

impl AdminRequester {
    /// The asker's name, for people.
    pub fn who(&self) -> String {
        self.session.state.lock().who.clone()
    }

    /// Where from.
    pub fn from(&self) -> &str {
        &self.peer
    }

    /// The token that was shown, if one was.
    pub fn token(&self) -> Option<&TokenRecord> {
        self.grant.as_ref().map(|grant| &grant.record)
    }

    /// The error for the requester if the token has ended since: until its session is given up,
    /// which is soon.
    pub fn ended(&self) -> Option<FsError> {
        let grant = self.grant.as_ref()?;
        Some(grant.why_ended(grant.ended()?))
    }

    /// Sends a message before the answer is ready. False if the requester is not connected any
    /// more: then nothing waits for the answer either.
    pub fn event(&self, json: &[u8]) -> bool {
        let listens = self.session.state.lock().is_current(self.incarnation);
        if listens && json.len() <= JSON_BYTES_MAX {
            self.send(&ToClient::Event { id: self.id, json: json.into() });
        }
        listens
    }

    /// Gives the answer, JSON text.
    pub fn answer(self, answer: FsResult<Box<[u8]>>) {
        self.send(&ToClient::Reply(ReplyTo {
            id: self.id,
            table: self.map_version,
            answered: Answered::Admin(answer),
        }));
    }

    fn send(&self, message: &ToClient) {
        let mut frame = Vec::new();
        // Only an event can be too large, and its length has been checked.
        if encode_to_client(message, self.checksum, &mut frame).is_ok() {
            self.outbox.send(&frame);
        }
    }
}
