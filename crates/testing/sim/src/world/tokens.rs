//! Clients with tokens: these end, by time or because somebody revokes them, and nothing is carried
//! out that is asked with one that has.

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
    pub(super) fn new_token(&mut self, dice: &mut Prng) -> Option<(Arc<Token>, Option<Nanos>)> {
        let (id, secret) = (dice.bits(), dice.bits());
        let text = format!("kestrel-token:1:{id:016x}:{secret:064x}:-");
        let token = Token::parse(&text).expect("what reveal writes");
        let wall = self.agenda.clock.now();
        let ends = self.troubled && dice.chance(50);
        let expires = ends.then(|| wall + dice.between(2, 30) * SECOND);
        let record = TokenRecord::new(token.id, "sim", token.verifier(), wall);
        self.host.learn(TokenRecord { expires, ..record }).then(|| (Arc::new(token), expires))
    }

    /// Whether a client's token has ended.
    pub(super) fn is_outlived(&self, place: usize) -> bool {
        self.clients[place].expires.is_some_and(|expires| expires <= self.agenda.clock.now())
    }

    /// A call was answered that was asked with a token that had ended.
    pub(super) fn judge_late(&mut self, place: usize, call: usize, reply: &Reply) {
        let late = self.history.records[call].late;
        if late == Some(self.clock_set_back) && !is_refused(reply) {
            self.fail(format!(
                "call {call} of client {place} was asked with a token that had ended: {reply:?}"
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
