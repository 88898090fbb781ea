//! How one LOOKUP is answered.

use std::sync::Arc;

use kestrel_client::fs::{Caller, Protected};
use kestrel_fuse::Entry;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::OpenFlags;
use kestrel_walkhint::{Hint, HintResult, Intent, Lookup};

use super::{Counters, Paths};
use crate::convert;

/// How a LOOKUP is answered.
pub enum LookupPlan {
    /// With this errno: a walk that measures the hints.
    Probe(i32),
    /// "A directory", without asking.
    Fake(Entry),
    /// "No such entry", without asking: CREATE follows, which creates or opens whatever is there.
    LeaveToCreate,
    /// By asking for it to be opened too: OPEN follows.
    Open {
        /// Where it is.
        place: PathRef,
        /// How the OPEN will ask.
        flags: OpenFlags,
        /// Only a directory will do (`O_DIRECTORY`), which is said before any permission is looked
        /// at.
        directory: bool,
        /// What the caller will do with it.
        then: WalkUse,
    },
    /// By asking.
    Ask {
        /// Where it is.
        place: PathRef,
        /// What for.
        purpose: Purpose,
        /// What the caller will do with it.
        then: WalkUse,
    },
    /// The directory is gone.
    Gone,
}

/// What a walk will do with what is at its end, as far as that may be refused in a sticky
/// directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkUse {
    /// A symbolic link is followed.
    follow: bool,
    /// It would have been created, and is opened.
    create: bool,
}

impl WalkUse {
    fn of(hint: &Hint) -> Self {
        let Intent { create, exclusive, follow, .. } = hint.intent;
        Self { follow, create: create && !exclusive }
    }

    /// What has to be checked before the kernel learns of this inode.
    pub fn protected(self, caller: Caller, inode: &Inode) -> Option<Protected> {
        let concerned = if inode.kind == Kind::Symlink { self.follow } else { self.create };
        concerned.then(|| Protected::from(caller, inode)).flatten()
    }
}

/// What the answer to a LOOKUP is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Anything, which what came with a listing may answer.
    Look,
    /// Anything, as it is now: an open, or the kernel walks again.
    Fresh,
    /// A call that makes the name. Only if what it sends then is answered `ESTALE`, the kernel
    /// walks again.
    Create,
    /// A call that keeps what is found, if it is a directory, without opening it.
    Keep,
}

/// Whether an operation below will carry a path through this component. After one that only `.`
/// follows the kernel may answer by itself: `mkdir` of `absent/.` would be `EEXIST`.
fn names_something(rest: &[u8]) -> bool {
    rest.split(|byte| *byte == b'/').any(|part| !part.is_empty() && part != b".")
}

impl Paths {
    /// Decides on a LOOKUP.
    pub fn plan(self: &Arc<Self>, caller: Caller, lookup: Lookup, name: &Name) -> LookupPlan {
        let dir = lookup.nodeid;
        if dir == ROOT
            && let Some(errno) = self.hints.probe(&lookup, name.as_bytes())
        {
            return LookupPlan::Probe(errno);
        }
        let told = self.hints.take(&lookup, name.as_bytes());
        let purpose = if told == HintResult::Creation { Purpose::Create } else { Purpose::Look };
        let Some(hint) = told.walk() else {
            Counters::count(&self.counters.unhinted);
            return self.ask(dir, name, purpose, WalkUse::default());
        };
        if hint.may_fake() && names_something(&hint.rest) {
            if self.may_be_directory(dir, name) {
                Counters::count(&self.counters.faked);
                return LookupPlan::Fake(self.fake(dir, name));
            }
            if let Some(entry) = self.listed_directory(caller, dir, name) {
                Counters::count(&self.counters.faked);
                return LookupPlan::Fake(entry);
            }
        }
        if !hint.follows && !hint.revalidate && hint.intent.open {
            return self.open(&hint, lookup, name);
        }
        Counters::count(&self.counters.hinted);
        let fresh = hint.revalidate || hint.intent.open;
        let purpose = if fresh { Purpose::Fresh } else { Purpose::Look };
        let purpose = if hint.keeps { Purpose::Keep } else { purpose };
        self.ask(dir, name, purpose, WalkUse::of(&hint))
    }

    /// Whether a name in mid-path may be taken for a directory's.
    fn may_be_directory(&self, dir: u64, name: &Name) -> bool {
        if self.links.has(dir, name) || self.files.has(dir, name) {
            return false;
        }
        let table = self.table.read();
        let bound = table.find(dir, name).is_some_and(|(_, identity)| identity.is_some());
        !bound && !table.is_long(dir)
    }

    /// The last name of a path that will be opened.
    fn open(&self, hint: &Hint, lookup: Lookup, name: &Name) -> LookupPlan {
        let dir = lookup.nodeid;
        let forecast = hint.open_flags.map(|flags| flags as i32);
        let there = self.files.has(dir, name);
        if hint.intent.create && !there && !hint.intent.directory {
            // A caller that only reads may do so on a read-only mount, of which the mount process
            // need not know: there the kernel would not send CREATE.
            let writes = forecast.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY);
            if writes {
                Counters::count(&self.counters.left_to_create);
                return LookupPlan::LeaveToCreate;
            }
        }
        Counters::count(&self.counters.hinted);
        let opens = |flags: &i32| flags & (libc::O_TRUNC | libc::O_EXCL) == 0;
        match forecast.filter(opens) {
            // A directory or link is not opened for O_CREAT, but would be named by another error.
            Some(flags)
                if lookup.tid != 0
                    && !self.links.has(dir, name)
                    && (there || !hint.intent.create) =>
            {
                let (flags, directory) =
                    (convert::open_flags(flags as u32, false), hint.intent.directory);
                let place = self.place(dir, name.clone());
                place.map_or(LookupPlan::Gone, |place| LookupPlan::Open {
                    place,
                    flags,
                    directory,
                    then: WalkUse::of(hint),
                })
            }
            _ => self.ask(dir, name, Purpose::Fresh, WalkUse::of(hint)),
        }
    }

    fn ask(&self, dir: u64, name: &Name, purpose: Purpose, then: WalkUse) -> LookupPlan {
        let place = self.place(dir, name.clone());
        place.map_or(LookupPlan::Gone, |place| LookupPlan::Ask { place, purpose, then })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_followed_by_a_name_is_in_mid_path() {
        for (rest, follows) in [
            (&b""[..], false),
            (b".", false),
            (b"./", false),
            (b".//./", false),
            (b"..", true),
            (b"./x", true),
            (b".x/", true),
        ] {
            assert_eq!(names_something(rest), follows, "{}", rest.escape_ascii());
        }
    }
}
