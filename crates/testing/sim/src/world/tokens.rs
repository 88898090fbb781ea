//! Clients with tokens: these end, by time or by a revocation, and no call is carried out with one
//! that has.

use std::sync::Arc;

use kestrel_rpc::token::Token;
use kestrel_types::clock::{Clock, Nanos, SECOND};
use kestrel_types::request::{Outcome, Reply};
use kestrel_types::token::TokenRecord;
use kestrel_types::wire::Answered;

use super::World;
use crate::event_queue::Scene;
use crate::prng::Prng;

impl World {
    /// A token for a client, if one is needed, and when it ends. One that is made when the faults
    /// are over does not.
    pub(super) fn new_token(&mut self, prng: &mut Prng) -> Option<(Arc<Token>, Option<Nanos>)> {
        let (id, secret) = (prng.bits(), prng.bits());
        let text = format!("kestrel-token:1:{id:016x}:{secret:064x}:-");
        let token = Token::parse(&text).expect("what reveal writes");
        let wall = self.queue.clock.now();
        let ends = self.troubled && prng.chance(50);
        let expires = ends.then(|| wall + prng.between(2, 30) * SECOND);
        let record = TokenRecord::new(token.id, "sim", token.verifier(), wall);
        self.host.learn(TokenRecord { expires, ..record }).then(|| (Arc::new(token), expires))
    }

    /// Whether a client's token has ended.
    pub(super) fn is_outlived(&self, client_index: usize) -> bool {
        self.clients[client_index].expires.is_some_and(|expires| expires <= self.queue.clock.now())
    }

    /// A call was answered that came with a token that had ended.
    pub(super) fn check_late(&mut self, client_index: usize, call: usize, reply: &Reply) {
        let late = self.history.records[call].late;
        if late == Some(self.clock_set_back) && !is_refused(reply) {
            self.fail(format!(
                "call {call} of client {client_index} was asked with a token that had ended: {reply:?}"
            ));
        }
    }
}

/// Whether a token was the reason not to do something.
pub(super) fn is_refused(reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if why.errno == libc::EACCES
        && why.reason.contains("token"))
}

/// The same of any answer.
pub(super) fn is_refusal(answer: &Answered) -> bool {
    match answer {
        Answered::Op(reply) => is_refused(reply),
        Answered::Lock(Err(why)) => why.errno == libc::EACCES && why.reason.contains("token"),
        _ => false,
    }
}
