//! Messages that are too large to be sent: a member that waits for one must hear of it, or it would
//! wait, and send again, until its deadline.

use kestrel_meta::locks::TxnId;
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;
use kestrel_types::wire::TooLarge;

use super::ClusterNode;
use super::message::snapshot_reads::SnapshotReadMessage;
use super::message::{Message, Vote};
use crate::message::changes::ChangeMessage;

/// What an operation fails with that needs such a message.
fn too_large(why: TooLarge) -> FsError {
    let text = format!(
        "metadata: this concerns several nodes and too many rows at once: {why}; nothing has \
         changed"
    );
    FsError::because(libc::EFBIG, text)
}

impl ClusterNode {
    /// A message was not sent, and never will be.
    pub(super) fn unsent(&mut self, to: NodeId, message: Message, why: TooLarge) {
        if !std::mem::replace(&mut self.told_unsent, true) {
            log::warn!(
                "metadata: a message to node {to} was not sent: {why}; the operation that needs it \
                 fails (later ones are not \
                 logged). Work on fewer or smaller things at a time"
            );
        }
        match message {
            Message::Lent { txn, .. } => {
                self.decide(to, txn, false, 0);
                self.send(to, Message::Voted(txn, Vote::Failed(too_large(why))));
            }
            Message::Borrow { txn, .. } | Message::Prepare { txn, .. } => {
                self.fail(txn, too_large(why))
            }
            Message::Invalidate(changes) => {
                changes.into_iter().for_each(|(txn, _)| self.fail(txn, too_large(why)));
            }
            Message::Change(ChangeMessage::Rows { attempt, .. }) => {
                self.decline(attempt, too_large(why))
            }
            Message::Forward { number, .. } => self.answer(number, Err(too_large(why).into())),
            Message::Forwarded { number, .. } => {
                let reply = Err(too_large(why).into());
                self.send(to, Message::Forwarded { number, reply });
            }
            Message::SnapshotRead(SnapshotReadMessage::Rows { id, .. }) => {
                self.answer(id.number, Err(too_large(why).into()));
            }
            Message::SnapshotRead(SnapshotReadMessage::GotRows { id, .. }) => {
                self.send(to, Message::SnapshotRead(SnapshotReadMessage::TooLarge(id)));
            }
            // The others have a few bytes, and a name at most, or a table, which fits.
            _ => {}
        }
    }

    /// Ends a transaction that is not decided.
    fn fail(&mut self, txn: TxnId, why: FsError) {
        let Some((ticket, lead)) = self.led(txn) else { return };
        if !lead.is_decided() {
            self.give_up(ticket);
            self.answer(ticket, Err(why.into()));
        }
    }
}
