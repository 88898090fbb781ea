//! What is known about a directory, and until when the kernel believes names in it.
//!
//! We check permissions when the kernel asks for something; what it believes without asking,
//! everybody may pass. So a name is believed only where everybody may search every directory on the
//! way to it ([`Seen::lend`], asked of each of them), and for a bounded time: a lease (Gray,
//! Cheriton, SOSP 1989). A caller that takes that right away here gets its answer when the lease is
//! over ([`Seen::changed`]).
//!
//! Of what is believed we do not hear when somebody takes hold of it (`O_PATH`, which a later
//! `openat` may start from). A process that has hold of a directory may go on from there whatever
//! becomes of the way to it. So before the right is taken away nothing more is lent
//! ([`Seen::recall`]), and what is lent below is bound to its identity.
//!
//! Pure: times are given, in milliseconds since any start.

use kestrel_fuse::Attr;
use kestrel_types::inode::Inode;
use kestrel_types::perm::EXEC;

use crate::convert;

/// Search permission for everybody, unless an access control list says otherwise.
pub const SEARCH_ALL: u32 = 0o111;

/// What the kernel is told of a directory, and whether everybody may search it.
#[derive(Debug, Clone, Copy)]
pub struct DirAttr {
    /// What the kernel is told.
    pub attr: Attr,
    /// Everybody may search it: its mode says so, and it has no access control list.
    pub is_public: bool,
}

impl DirAttr {
    /// Of a directory with this inode.
    pub fn of(inode: &Inode) -> Self {
        Self { attr: convert::attr(inode), is_public: inode.all_may(EXEC as u16) }
    }
}

/// A directory, as last seen.
#[derive(Debug, Default)]
pub struct Seen {
    dir: Option<Box<DirAttr>>,
    /// Somebody is about to find them out.
    is_awaited: bool,
    /// Names in it and below may be believed until then.
    lent_until_ms: u64,
    /// Callers that are about to take the right to search it away.
    recalls: u32,
}

impl Seen {
    /// Its attributes, if they were ever seen.
    pub fn attr(&self) -> Option<Attr> {
        self.dir.as_deref().map(|dir| dir.attr)
    }

    /// Notes attributes that somebody asked for. Answers may overtake each other: what is older is
    /// no news.
    pub fn note(&mut self, dir: &DirAttr) {
        let newer = |old: Attr| old.ino == dir.attr.ino && old.ctime > dir.attr.ctime;
        if !self.attr().is_some_and(newer) {
            self.dir = Some(Box::new(*dir));
        }
    }

    /// Notes attributes that were changed here. When names in it are believed no more, if that has
    /// to be waited for.
    pub fn changed(&mut self, dir: &DirAttr, now_ms: u64) -> Option<u64> {
        self.note(dir);
        (self.lends() != Some(true) && self.lent_until_ms > now_ms).then_some(self.lent_until_ms)
    }

    /// Lets the kernel believe a name in it or below until then, if it lends them.
    pub fn lend(&mut self, until_ms: u64) -> Option<bool> {
        let lends = self.lends();
        if lends == Some(true) {
            self.lent_until_ms = self.lent_until_ms.max(until_ms);
        }
        lends
    }

    /// Whether names in it may be believed: everybody has the right to search it. `None`: its
    /// attributes were never seen.
    pub fn lends(&self) -> Option<bool> {
        self.dir.as_ref().map(|dir| dir.is_public && self.recalls == 0)
    }

    /// Nothing is lent from now on, until [`Seen::recalled`]; whether anything ever was.
    pub fn recall(&mut self) -> bool {
        self.recalls += 1;
        self.lent_until_ms > 0
    }

    /// The caller that recalled is done.
    pub fn recalled(&mut self) {
        self.recalls = self.recalls.saturating_sub(1);
    }

    /// Until when names in it or below are believed, at most.
    pub fn lent_until_ms(&self) -> u64 {
        self.lent_until_ms
    }

    /// Its attributes are wanted and no thread asks for them: the caller will.
    pub fn claim_look(&mut self) -> bool {
        self.dir.is_none() && !std::mem::replace(&mut self.is_awaited, true)
    }

    /// Nothing was found out.
    pub fn looked_in_vain(&mut self) {
        self.is_awaited = false;
    }
}

#[cfg(test)]
mod tests {
    use kestrel_fuse::Timestamp;

    use super::*;

    fn dir(mode: u32, sec: i64) -> DirAttr {
        let ctime = Timestamp { sec, ..Timestamp::default() };
        let attr = Attr { ino: 7, mode: libc::S_IFDIR | mode, ctime, ..Attr::default() };
        DirAttr { attr, is_public: mode & SEARCH_ALL == SEARCH_ALL }
    }

    #[test]
    fn names_are_believed_where_everybody_may_search() {
        for (mode, lends) in
            [(0o755, true), (0o711, true), (0o750, false), (0o701, false), (0o644, false)]
        {
            let mut seen = Seen::default();
            assert_eq!(seen.lend(10), None);
            seen.note(&dir(mode, 1));
            assert_eq!(seen.lend(10), Some(lends), "{mode:o}");
            assert_eq!(seen.lent_until_ms(), if lends { 10 } else { 0 });
        }
    }

    #[test]
    fn who_takes_the_right_away_waits() {
        let mut seen = Seen::default();
        seen.note(&dir(0o755, 1));
        assert_eq!((seen.lend(100), seen.lend(90)), (Some(true), Some(true)));
        assert_eq!(seen.changed(&dir(0o711, 2), 50), None, "everybody may still search it");
        assert_eq!(seen.changed(&dir(0o700, 3), 50), Some(100));
        assert_eq!(seen.lend(200), Some(false));
        assert_eq!(
            seen.changed(&dir(0o600, 4), 99),
            Some(100),
            "nor has the next one an answer before"
        );
        assert_eq!(seen.changed(&dir(0o600, 4), 100), None);
    }

    #[test]
    fn answers_that_were_overtaken_change_nothing() {
        let mut seen = Seen::default();
        assert_eq!(seen.changed(&dir(0o700, 5), 0), None);
        seen.note(&dir(0o755, 4));
        assert_eq!(seen.lends(), Some(false));
        seen.note(&dir(0o755, 5));
        assert_eq!(seen.lends(), Some(true));
        let private = dir(0o700, 1);
        seen.note(&DirAttr { attr: Attr { ino: 8, ..private.attr }, ..private });
        assert_eq!(seen.lends(), Some(false), "another directory");
    }

    #[test]
    fn nothing_is_lent_while_somebody_recalls() {
        let mut seen = Seen::default();
        seen.note(&dir(0o755, 1));
        assert!(!seen.recall(), "nothing was lent");
        assert_eq!(seen.lend(100), Some(false));
        seen.recalled();
        assert_eq!(seen.lend(100), Some(true));
        assert!(seen.recall() && seen.recall());
        seen.recalled();
        assert_eq!(seen.lend(200), Some(false));
    }

    #[test]
    fn one_finds_out() {
        let mut seen = Seen::default();
        assert!(seen.claim_look() && !seen.claim_look());
        seen.looked_in_vain();
        assert!(seen.claim_look());
        seen.note(&dir(0o755, 1));
        seen.looked_in_vain();
        assert!(!seen.claim_look());
    }
}
