//! Clones of a volume that several nodes share ([`kestrel_meta::clones`]).
//!
//! | file | what it has |
//! | --- | --- |
//! | `clones/finish.rs` | the background, and the end of a clone |
//! | `clones/give.rs` | the home of a directory has it get its names |
//!
//! The record of a clone is part of that of its snapshot, so every member has it. The row that says
//! where the names of a directory come from is at the directory's home.
//!
//! **A request that needs names** waits, at whichever member leads it, and its member asks the home
//! for them, again and again until the home says that the directory has them all. The home reads
//! the source at the snapshot, some names at a time, from all members, and has them come into being
//! by a transaction. All rows that it writes are new, or nobody looks at them before the directory
//! has no base; so a crash of any member leaves a directory with some of its names, and the home
//! goes on behind these. When the directory has all, a last transaction takes its base away, as a
//! change of a directory: every member forgets it before.
//!
//! **Names are no change of the volume**: what such a transaction writes is committed below the
//! layer that keeps history, at the participants, too.
//!
//! **A clone of the present** is one of a snapshot that nobody sees, which all members make at one
//! instant ([`crate::snapshots`]). If the transaction that makes the clone does not come about, the
//! leader of snapshots removes that.
//!
//! **The end.** The leader of snapshots asks all members what they have of each clone. Only a
//! directory without names can bring forth another one, so if nobody has any, and if between two
//! rounds of answers no row of a clone has come to any member, nobody will. Then files of it lose
//! the names that have not come into being, and after that the record goes.

mod finish;
mod give;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::clone::CloneId;
use kestrel_types::ids::InodeId;

use super::{ClusterNode, RESEND};
use finish::Round;
use give::{Giving, Wanted};

/// So often the background looks for what is left, and the leader asks: a clone ends after two of
/// its rounds at the earliest.
pub(super) const INTERVAL: Nanos = 50 * MILLISECOND;

/// Pause before the background tries again what has failed.
const PAUSE: Nanos = 5 * SECOND;

/// What a member knows of clones besides their records.
#[derive(Default)]
pub(super) struct Clones {
    /// Directories that requests here wait for.
    wanted: BTreeMap<InodeId, Wanted>,
    /// Directories that get their names from here: this member is their home.
    giving: BTreeMap<InodeId, Giving>,
    /// Files of clones that lose names from here.
    ending_links: BTreeSet<(CloneId, InodeId)>,
    /// Clones of which the leader says that no directory lacks names.
    ending: BTreeSet<CloneId>,
    /// When the background goes on.
    due: Nanos,
    /// Counts what rows of clones came here, or were agreed to.
    changes: AtomicU64,
    /// At the leader: what members said.
    round: Round,
}

impl Clones {
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.giving.is_empty() && self.ending_links.is_empty()
    }

    /// Nothing is under way any more: the member has stopped for good.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl ClusterNode {
    /// The placement map is another one: directories may have another home.
    pub(super) fn clones_by_table(&mut self) {
        let sent = self.now - RESEND;
        self.clones.wanted.values_mut().for_each(|wanted| wanted.sent = sent);
        self.clones.round = Round::default();
    }
}
