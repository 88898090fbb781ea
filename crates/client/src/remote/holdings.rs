//! What a session stands for: what is open, locked and being written here, kept so that it can be claimed again from a
//! server that has lost it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kestrel_net::remote::Holder;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::name::InodeRef;
use kestrel_types::wire::{
    LockSpan, RECLAIM_ITEMS_MAX, Reclaim, ReclaimOpen, ReclaimReply, SessionState, Welcome,
};
use parking_lot::Mutex;

use super::opens::Opens;
use crate::fs::Fs;
use crate::object_ids::ObjectNumbers;
use crate::storage::Offer;

/// What this client holds.
pub struct Holdings {
    /// The volume's servers, for the log.
    server: String,
    /// Identity of the volume; known since the first welcome.
    uuid: OnceLock<String>,
    /// Open files.
    pub opens: Opens,
    /// Object numbers.
    pub numbers: ObjectNumbers,
    /// Who knows places and locks, once it exists. Before that nothing is held.
    fs: OnceLock<Weak<Fs>>,
    /// Locks of each part of the reclaim under way.
    claimed: Mutex<Vec<Vec<InodeId>>>,
}

impl Holdings {
    /// Of a client that has nothing yet.
    pub fn new(server: String) -> Self {
        Self {
            server,
            uuid: OnceLock::new(),
            opens: Opens::default(),
            numbers: ObjectNumbers::remembered(),
            fs: OnceLock::new(),
            claimed: Mutex::default(),
        }
    }

    /// Tells who holds it. Once.
    pub fn belongs_to(&self, fs: &Arc<Fs>) {
        let _ = self.fs.set(Arc::downgrade(fs));
    }

    fn fs(&self) -> Option<Arc<Fs>> {
        self.fs.get()?.upgrade()
    }

    fn oldest(&self) -> ObjectId {
        // Before the file system exists there is no object.
        self.fs().map_or(0, |fs| fs.packer().oldest_open())
    }
}

impl Holder for Holdings {
    fn welcomed(&self, welcome: &Welcome) -> Result<(), String> {
        let offer = Offer::from_json(&welcome.descriptor, &self.server).map_err(|why| why.to_string())?;
        let uuid = offer.descriptor(&self.server).map_err(|why| why.to_string())?.uuid;
        if *self.uuid.get_or_init(|| uuid.clone()) != uuid {
            return Err(format!(
                "another volume (uuid {uuid}) is served at {} now; serve the old one there, or mount again",
                self.server
            ));
        }
        Ok(())
    }

    fn reclaim(&self, lost: SessionState) -> Vec<Reclaim> {
        let fs = self.fs();
        let file = |ino| fs.as_ref().map_or(InodeRef::by_id(ino), |fs| fs.last_seen(ino));
        let opens: Vec<ReclaimOpen> = self
            .opens
            .all()
            .into_iter()
            .map(|(ino, open)| ReclaimOpen { file: file(ino), count: open.count, linkable: open.linkable })
            .collect();
        let locks = match (&fs, lost) {
            (Some(fs), SessionState::Known | SessionState::Restarted) => fs.locks_to_reclaim(),
            (Some(fs), SessionState::New | SessionState::Expired) => {
                // Others may have had them meanwhile.
                log::warn!("{}: away for longer than the lease: locks are lost (EIO)", self.server);
                fs.locks_lost();
                Vec::new()
            }
            (None, _) => Vec::new(),
        };
        let oldest = self.oldest();
        let objects = self.numbers.held_from(oldest);
        let parts = parts(opens, locks, objects, oldest);
        let files = |part: &Reclaim| part.locks.iter().map(|lock| lock.ino).collect();
        *self.claimed.lock() = parts.iter().map(files).collect();
        parts
    }

    fn reclaimed(&self, replies: Vec<ReclaimReply>, _lost: SessionState) {
        let claimed = std::mem::take(&mut *self.claimed.lock());
        let (mut opens, mut unlocked) = (0, Vec::new());
        for (part, reply) in claimed.into_iter().zip(replies) {
            match reply {
                Ok(reclaimed) => {
                    opens += reclaimed.lost_opens.len();
                    reclaimed.lost_opens.into_iter().for_each(|ino| self.opens.lost(ino));
                    let at = |at: u32| part.get(usize::try_from(at).ok()?).copied();
                    unlocked.extend(reclaimed.lost_locks.into_iter().filter_map(at));
                }
                Err(why) => {
                    log::error!("{}: what was open could not be claimed again: {why}", self.server);
                    unlocked.extend(part);
                }
            }
        }
        if opens > 0 || !unlocked.is_empty() {
            log::warn!(
                "{}: {opens} open files are gone (ESTALE), {} locks are lost (EIO)",
                self.server,
                unlocked.len()
            );
        }
        if let Some(fs) = self.fs() {
            fs.locks_reclaimed(&unlocked);
        }
    }

    fn oldest_open_object(&self) -> ObjectId {
        self.oldest()
    }

    fn outage(&self, why: &str) {
        log::warn!("{}: the metadata server does not answer: {why}; calls wait for it", self.server);
    }

    fn restored(&self, after: Duration) {
        log::info!("{}: the metadata server answers again after {after:.1?}", self.server);
    }
}

/// Cuts a reclaim into messages. At least one, and only the last is marked as such.
fn parts(
    opens: Vec<ReclaimOpen>,
    locks: Vec<LockSpan>,
    objects: Vec<(ObjectId, u32)>,
    oldest_open_object: ObjectId,
) -> Vec<Reclaim> {
    let (mut opens, mut locks, mut objects) = (opens.into_iter(), locks.into_iter(), objects.into_iter());
    let mut parts = Vec::new();
    loop {
        let part = Reclaim {
            opens: opens.by_ref().take(RECLAIM_ITEMS_MAX).collect(),
            locks: locks.by_ref().take(RECLAIM_ITEMS_MAX).collect(),
            objects: objects.by_ref().take(RECLAIM_ITEMS_MAX).collect(),
            oldest_open_object,
            last: opens.len() == 0 && locks.len() == 0 && objects.len() == 0,
        };
        let last = part.last;
        parts.push(part);
        if last {
            return parts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reclaim_of_any_size_is_cut_into_messages_with_one_last() {
        let open = |ino| ReclaimOpen { file: InodeRef::by_id(ino), count: 1, linkable: false };
        for (count, messages) in [(0, 1), (1, 1), (RECLAIM_ITEMS_MAX, 1), (RECLAIM_ITEMS_MAX + 1, 2)] {
            let opens: Vec<_> = (0..count as u64).map(open).collect();
            let parts = parts(opens.clone(), Vec::new(), vec![(7, 9)], 7);
            assert_eq!(parts.len(), messages);
            assert!(parts.iter().rev().skip(1).all(|part| !part.last) && parts[messages - 1].last);
            assert_eq!(parts.iter().flat_map(|part| part.opens.clone()).collect::<Vec<_>>(), opens);
            assert_eq!(parts[0].objects, [(7, 9)]);
        }
    }
}
