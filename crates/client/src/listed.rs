//! Attributes that came with listings, for the look-ups of the process that lists.
//!
//! `ls -l`, `find`, `du` and `rm -r` list a directory and look at each name by a call of its own.
//! The client answers these look-ups from pages of attributes: one request for each page instead of
//! one for each name.
//!
//! **How long.** A page serves the thread and user that list, through a directory handle that is
//! still open, for at most [`ListedAttributes::ttl`] after it was asked for. Whatever anybody
//! changes through this client is not answered from a page: [`ListedAttributes::changing`]. So what
//! a thread is told may be behind what another *client* changed since, by at most that time; a call
//! that opens a file, or comes through another thread, or after the directory was closed, asks the
//! node.
//!
//! **When.** Only a thread that has looked at one name of a directory it lists gets a page with the
//! second.
//!
//! **The directory itself.** A walk to such a name by a path goes through the name of the
//! directory. That it leads there is believed for the same time ([`Listing::reached`]).
//!
//! **Memory.** All pages together hold at most [`ENTRIES_MAX`] entries of some 350 bytes
//! ([`ENTRY_BYTES`]), or fewer if so told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_types::acl::XATTR_ACCESS;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Op, Reply, SetAttr, Subject};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::caller::Caller;

/// Most entries in the pages of one client, unless told otherwise.
pub const ENTRIES_MAX: usize = 128 * 1024;

/// What an entry takes, bytes.
pub const ENTRY_BYTES: usize = 384;

/// Listings that are known at the same time, at most.
const LISTINGS_MAX: usize = 1024;

/// What a listing has to say about a name.
#[derive(Debug, PartialEq, Eq)]
pub enum ListedLookup {
    /// Its attributes.
    Inode(Box<Inode>),
    /// Nothing, but the page that begins after this name may have them: `Listing::begin`.
    Page(Option<Name>),
    /// Nothing.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    inode: Box<Inode>,
    /// When its page was asked for.
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// The process that lists.
    caller: Option<Caller>,
    /// The names that pages begin after. The first page begins after none.
    starts: BTreeSet<Name>,
    /// Last name listed.
    upto: Option<Name>,
    /// A name was looked at.
    looked: bool,
    /// When each page was asked for last.
    pages: FxHashMap<Option<Name>, Instant>,
    entries: FxHashMap<Name, Entry>,
    names: FxHashMap<InodeId, Name>,
    /// A page is under way.
    fetching: bool,
    /// And is of no use any more.
    outdated: bool,
    /// It has had pages.
    paged: bool,
    /// The node and name by which its reader last found the directory, and when that was asked for.
    reached: Option<(u64, Name, Instant)>,
    /// By which threads it is known.
    threads: Vec<u32>,
    /// What was changed meanwhile.
    changed_names: FxHashSet<Name>,
    changed_inodes: FxHashSet<InodeId>,
    closed: bool,
}

impl State {
    fn forget_name(&mut self, name: &Name) {
        self.reached.take_if(|(_, reached, _)| reached == name);
        if let Some(entry) = self.entries.remove(name) {
            self.names.remove(&entry.inode.ino);
        }
        if self.fetching {
            self.changed_names.insert(name.clone());
        }
    }

    fn forget_inode(&mut self, ino: InodeId) {
        if let Some(name) = self.names.remove(&ino) {
            self.entries.remove(&name);
        }
        if self.fetching {
            self.changed_inodes.insert(ino);
        }
    }

    fn clear(&mut self) {
        let State { pages, entries, names, reached, .. } = self;
        (*pages, *entries, *names, *reached) = Default::default();
    }
}

/// What is known of a directory that is open and listed.
#[derive(Debug, Default)]
pub struct Listing {
    state: Mutex<State>,
}

impl Listing {
    /// Its reader was given the names after `after`, up to `last`.
    pub fn listed(&self, after: Option<&Name>, last: Option<&Name>) {
        let mut state = self.state.lock();
        state.starts.extend(after.cloned());
        if state.upto.as_ref() < last {
            state.upto = last.cloned();
        }
    }

    /// What is known about a name that `caller` looks at.
    pub fn look(&self, caller: Caller, name: &Name, now: Instant, ttl: Duration) -> ListedLookup {
        let mut state = self.state.lock();
        if state.caller != Some(caller) || state.upto.as_ref().is_none_or(|upto| upto < name) {
            return ListedLookup::Nothing;
        }
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < ttl;
        if let Some(entry) = state.entries.get(name).filter(|entry| is_fresh(entry.since)) {
            return ListedLookup::Inode(entry.inode.clone());
        }
        let start = state.starts.range::<Name, _>(..name).next_back().cloned();
        let looked = std::mem::replace(&mut state.looked, true);
        match state.pages.get(&start) {
            Some(since) if is_fresh(*since) => ListedLookup::Nothing,
            _ if looked && !state.fetching => ListedLookup::Page(start),
            _ => ListedLookup::Nothing,
        }
    }

    /// `caller` found the directory by this name, as he asked at `since`. It counts where pages do.
    pub fn reached(&self, caller: Caller, by: (u64, &Name), since: Instant) {
        let mut state = self.state.lock();
        if state.paged && state.caller == Some(caller) {
            state.reached = Some((by.0, by.1.clone(), since));
        }
    }

    /// Whether `caller` found it by this name a short time ago.
    pub fn is_reached(
        &self,
        caller: Caller,
        by: (u64, &Name),
        now: Instant,
        ttl: Duration,
    ) -> bool {
        let state = self.state.lock();
        state.caller == Some(caller)
            && state.reached.as_ref().is_some_and(|(node, name, since)| {
                (*node, name) == by && now.saturating_duration_since(*since) < ttl
            })
    }

    /// The page that begins after `start` is about to be asked for.
    fn begin(&self, start: Option<Name>, now: Instant) {
        let mut state = self.state.lock();
        (state.fetching, state.outdated) = (true, false);
        state.changed_names.clear();
        state.changed_inodes.clear();
        state.pages.insert(start, now);
    }

    /// Takes in a page that was asked for at `since`, of which at most `room` entries; how many
    /// more there are now.
    fn supply(
        &self,
        page: Vec<(Name, Box<Inode>)>,
        since: Instant,
        room: usize,
        ttl: Duration,
    ) -> isize {
        let mut state = self.state.lock();
        state.fetching = false;
        if state.closed || state.outdated {
            return 0;
        }
        let before = state.entries.len();
        // What is too old is in nobody's way, but takes room.
        let State { entries, names, changed_names, changed_inodes, .. } = &mut *state;
        entries.retain(|_, entry| {
            let stays = since.saturating_duration_since(entry.since) < ttl;
            if !stays {
                names.remove(&entry.inode.ino);
            }
            stays
        });
        let most = entries.len().saturating_add(room);
        for (name, inode) in page {
            let changed = changed_names.contains(&name) || changed_inodes.contains(&inode.ino);
            if !changed && entries.len() < most {
                names.insert(inode.ino, name.clone());
                entries.insert(name, Entry { inode, since });
            }
        }
        entries.len() as isize - before as isize
    }
}

/// What an operation changes, as far as pages are concerned.
#[derive(Debug, Default, Clone)]
pub struct ListingChange {
    names: Vec<Name>,
    inode: Option<InodeId>,
    /// It may change the permission to search a directory.
    permits: bool,
}

impl ListingChange {
    fn of(op: &Op) -> Option<Self> {
        let mut change = Self::default();
        match op {
            // An open counts in no attribute; the one that truncates does.
            Op::Release(_) | Op::Compact { .. } | Op::Sweep(_) => return None,
            Op::Open(_, flags) | Op::OpenAt(_, flags) if !flags.truncate => return None,
            Op::Rename(from, to, _) => change.names = vec![from.name.clone(), to.name.clone()],
            Op::Link(inode, place) => {
                (change.names, change.inode) = (vec![place.name.clone()], Some(inode.ino));
            }
            op if !op.is_numbered() => return None,
            op => match op.subject() {
                Subject::Path(place) => change.names.push(place.name.clone()),
                Subject::Inode(inode) | Subject::Held(inode) => change.inode = Some(inode.ino),
                Subject::Open(ino) | Subject::Number(ino) => change.inode = Some(ino),
                Subject::Volume => return None,
            },
        }
        change.permits = match op {
            Op::SetAttr(_, SetAttr { mode, uid, gid, .. }) => {
                mode.is_some() || uid.or(*gid).is_some()
            }
            Op::SetXattr(_, name, ..) | Op::RemoveXattr(_, name) => **name == *XATTR_ACCESS,
            _ => false,
        };
        Some(change)
    }
}

/// A thread and the inode that it was last told of from a page, which has no extended attribute,
/// and until when that is so.
type Plain = (u32, InodeId, Instant);

/// Slots for [`Plain`], by thread.
const PLAIN_SLOTS: usize = 256;

/// All listings of a client.
#[derive(Debug)]
pub struct ListedAttributes {
    /// By thread and directory.
    listings: RwLock<FxHashMap<(u32, InodeId), Arc<Listing>>>,
    /// Listings that have pages, or are about to.
    paged: AtomicUsize,
    /// Entries in all pages, and how many there may be.
    entries: AtomicUsize,
    entries_max: usize,
    plain: Box<[Mutex<Option<Plain>>]>,
    /// Nanoseconds.
    ttl: AtomicU64,
}

impl Default for ListedAttributes {
    fn default() -> Self {
        Self::new(ENTRIES_MAX)
    }
}

impl ListedAttributes {
    /// Pages of at most so many entries together.
    pub fn new(entries_max: usize) -> Self {
        Self {
            listings: RwLock::default(),
            paged: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            entries_max,
            plain: std::iter::repeat_with(Mutex::default).take(PLAIN_SLOTS).collect(),
            ttl: AtomicU64::new(0),
        }
    }

    /// From now on pages serve for so long; zero: there are none.
    pub fn set_ttl(&self, ttl: Duration) {
        let nanos = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        self.ttl.store(nanos, Ordering::Relaxed);
    }

    /// How long a page serves after it was asked for.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Relaxed))
    }

    /// `caller` lists a directory through a handle.
    pub fn lists(&self, caller: Caller, dir: InodeId, listing: &Arc<Listing>) {
        if caller.pid == 0 || self.ttl().is_zero() {
            return;
        }
        let key = (caller.pid, dir);
        {
            let mut state = listing.state.lock();
            if state.caller != Some(caller) {
                state.caller = Some(caller);
                self.entries.fetch_sub(state.entries.len(), Ordering::Relaxed);
                state.clear();
                state.outdated = true;
            }
        }
        if self.listings.read().get(&key).is_some_and(|known| Arc::ptr_eq(known, listing)) {
            return;
        }
        let mut listings = self.listings.write();
        if listings.len() < LISTINGS_MAX || listings.contains_key(&key) {
            listings.insert(key, listing.clone());
            listing.state.lock().threads.push(caller.pid);
        }
    }

    /// A handle was closed.
    pub fn closed(&self, dir: InodeId, listing: &Arc<Listing>) {
        let threads = std::mem::take(&mut listing.state.lock().threads);
        if !threads.is_empty() {
            let mut listings = self.listings.write();
            for thread in threads {
                let key = (thread, dir);
                if listings.get(&key).is_some_and(|known| Arc::ptr_eq(known, listing)) {
                    listings.remove(&key);
                }
                // Of changes that come while there are no pages nothing is told.
                let slot = &self.plain[thread as usize % PLAIN_SLOTS];
                slot.lock().take_if(|(plain, ..)| *plain == thread);
            }
        }
        let mut state = listing.state.lock();
        state.closed = true;
        if std::mem::take(&mut state.paged) {
            self.paged.fetch_sub(1, Ordering::SeqCst);
        }
        self.entries.fetch_sub(state.entries.len(), Ordering::Relaxed);
        state.clear();
    }

    /// The listing that a thread has of a directory.
    pub fn of(&self, caller: Caller, dir: InodeId) -> Option<Arc<Listing>> {
        self.listings.read().get(&(caller.pid, dir)).cloned()
    }

    /// A page of a listing is about to be asked for.
    pub fn begin(&self, listing: &Listing, start: Option<Name>, now: Instant) {
        if !std::mem::replace(&mut listing.state.lock().paged, true) {
            self.paged.fetch_add(1, Ordering::SeqCst);
        }
        listing.begin(start, now);
    }

    /// It has come, or failed and is empty.
    pub fn supply(&self, listing: &Listing, page: Vec<(Name, Box<Inode>)>, since: Instant) {
        let room = self.entries_max.saturating_sub(self.entries.load(Ordering::Relaxed));
        match listing.supply(page, since, room, self.ttl()) {
            more @ 0.. => self.entries.fetch_add(more.unsigned_abs(), Ordering::Relaxed),
            fewer => self.entries.fetch_sub(fewer.unsigned_abs(), Ordering::Relaxed),
        };
    }

    /// What a request changes, to be told when it is over and before anybody else hears; none if
    /// there never are pages. There may be one by then that was read before, also if there is none
    /// now.
    pub fn changing(&self, op: &Op) -> Option<ListingChange> {
        if self.ttl().is_zero() {
            return None;
        }
        ListingChange::of(op)
    }

    /// What was changed is not answered from pages that are here or under way. Where the change is
    /// of the permission to search a directory, nothing is.
    pub fn changed(&self, change: &ListingChange, reply: &Reply) {
        if self.paged.load(Ordering::SeqCst) == 0 {
            return;
        }
        let is_of_file =
            |reply: &Reply| matches!(reply, Ok(Answer::Inode(inode)) if inode.kind != Kind::Dir);
        if change.permits && !is_of_file(reply) {
            return self.forget_all();
        }
        for listing in self.listings.read().values() {
            let mut state = listing.state.lock();
            let before = state.entries.len();
            change.names.iter().for_each(|name| state.forget_name(name));
            change.inode.iter().for_each(|ino| state.forget_inode(*ino));
            self.entries.fetch_sub(before - state.entries.len(), Ordering::Relaxed);
        }
        if let Some(ino) = change.inode {
            self.forget_plain(|(_, plain, _)| *plain == ino);
        }
    }

    /// Forgets all pages: a process that asks from now on may have been told of changes by others.
    pub fn forget_all(&self) {
        if self.paged.load(Ordering::SeqCst) == 0 {
            return;
        }
        for listing in self.listings.read().values() {
            let mut state = listing.state.lock();
            self.entries.fetch_sub(state.entries.len(), Ordering::Relaxed);
            state.clear();
            state.outdated = true;
        }
        self.forget_plain(|_| true);
    }

    /// A thread was told of an inode from a page of this listing.
    pub fn told(&self, caller: Caller, inode: &Inode, now: Instant) {
        let plain = (!inode.xattrs).then(|| (caller.pid, inode.ino, now + self.ttl()));
        *self.plain[caller.pid as usize % PLAIN_SLOTS].lock() = plain;
    }

    /// Whether an inode has no extended attribute, by what a thread was last told from a page.
    pub fn is_plain(&self, caller: Caller, ino: InodeId, now: Instant) -> bool {
        if caller.pid == 0 || self.paged.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let slot = self.plain[caller.pid as usize % PLAIN_SLOTS].lock();
        slot.is_some_and(|(thread, plain, until)| {
            (thread, plain) == (caller.pid, ino) && now < until
        })
    }

    fn forget_plain(&self, is_gone: impl Fn(&Plain) -> bool) {
        for slot in &self.plain {
            slot.lock().take_if(|plain| is_gone(plain));
        }
    }
}

#[cfg(test)]
mod tests;
