//! Listing a directory through an open handle, with cookies that stay valid while others create,
//! rename and unlink.
//!
//! A node lists by name, in batches; the kernel continues from a cookie, usually the one after the
//! last entry it took, but `seekdir` may bring any cookie of this handle. A cookie is the number of
//! a batch and an index in it. The handle keeps the entries of the newest batch, and of every older
//! one the names it lies between and a 32-bit hash of each name: 4 bytes an entry, so that even a
//! directory of ten million entries costs a reader 40 MB. Going back to an older batch lists it
//! again and returns those entries that were in it the first time: what existed all the while is
//! returned exactly once (`readdir(3p)`), what was created or removed meanwhile may or may not be.
//!
//! Cookie 0 begins a new pass, which sees the directory as it is then. What was given out before
//! stays valid: a pass lists every batch afresh, takes the number of the old batch where nothing
//! has changed in it, and a new number where something has. Batches that no pass leads to any more
//! are dropped by the next cookie 0 when there are many.
//!
//! An NFS server opens the directory anew for each piece of a listing, and seeks to a cookie of a
//! handle that it has closed. So the batches of such handles are kept for a while, for all handles
//! of the directory ([`KeptPositions`]), and have different numbers.

mod kept;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use kestrel_types::error::FsResult;
use kestrel_types::name::Name;
use kestrel_types::request::DirEntry;

pub use self::kept::KeptPositions;
use crate::handover::{BatchNote, HexBytes, StreamNote};

/// Entries asked for at once; an index must fit the cookie's low 16 bits.
/// Its unit tests list directories of a few thousand names, which must come in several batches.
pub const BATCH_ENTRIES: usize = if cfg!(test) { 1024 } else { 4096 };

/// Entries handed out at once: a reader that takes fewer has the rest copied again.
const STEP_ENTRIES: usize = 256;

/// Cookie after `.`.
const AFTER_DOT: u64 = 1;

/// Cookie after `..`; cookies of entries are above it.
const AFTER_DOTDOT: u64 = 2;

const INDEX_BITS: u32 = 16;

/// Hashes of older passes that are kept in any case when a new pass begins: 4 MiB.
const RETAINED_MIN: usize = 1 << 20;

/// Most hashes of one handle, 256 MiB. Beyond, only the newest batch keeps its cookies.
const RETAINED_MAX: usize = 1 << 26;

#[derive(Debug, Clone)]
struct Batch {
    /// The name the batch begins after.
    after: Option<Name>,
    /// Its last name; that of `after` if it is empty.
    last: Option<Name>,
    /// A hash of each name in it, in order.
    hashes: Arc<[u32]>,
    /// Whether the directory ended with it.
    end: bool,
    /// The batch that follows.
    next: Option<Link>,
}

/// Which batch came next, and in which pass that was so.
#[derive(Debug, Clone, Copy)]
struct Link {
    pass: u64,
    number: u64,
}

#[derive(Debug, Default)]
struct Relisted {
    /// Last name listed.
    upto: Option<Name>,
    /// Index in the batch's hashes to compare from.
    from: usize,
    kept: Vec<(DirEntry, u64)>,
}

/// A request for a page of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// The name the page begins after.
    pub after: Option<Name>,
    page: Page,
}

/// What a page is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    /// This batch, once more.
    Again(u64),
    /// The batch that follows this one; `None`: the first of the pass.
    Following(Option<u64>),
}

/// What to do to continue from a cookie.
#[derive(Debug, PartialEq, Eq)]
pub enum ListingStep {
    /// The next entry is `.` or `..` (`true` for `..`); the cookie after it follows.
    Dot(bool, u64),
    /// These entries come next, each with the cookie after it.
    Entries(Vec<(DirEntry, u64)>),
    /// Ask the node for this page, then [`DirStream::supply`] it.
    Fetch(Fetch),
    /// Nothing follows.
    End,
    /// This handle never gave out the cookie, or has forgotten it.
    Unknown,
}

/// The state of one open directory.
#[derive(Debug, Default)]
pub struct DirStream {
    /// Batches by number.
    batches: BTreeMap<u64, Batch>,
    /// The number of the next batch.
    numbers: Arc<AtomicU64>,
    /// How many batches were forgotten.
    dropped: u64,
    /// Counts the cookies 0.
    pass: u64,
    /// The first batch.
    first: Option<Link>,
    /// Entries of one batch with their cookies.
    held: Option<(u64, Vec<(DirEntry, u64)>)>,
    /// A cookie, and the last batch in which nothing is left after it.
    emptied: Option<(u64, u64)>,
    /// Page that is being fetched.
    wanted: Option<Fetch>,
    /// What a batch that is being listed again has brought so far: new names may have moved its
    /// last entries out of reach of one answer.
    relisted: Option<(u64, Relisted)>,
    /// Hashes in all batches.
    retained: usize,
    /// Entries listed in this pass.
    listed: usize,
    /// The most entries that were listed in a pass.
    longest: usize,
    /// The end was reached.
    ended: bool,
    /// It has batches of other handles.
    resumed: bool,
    /// The directory does not change: a first pass gives the same cookies through each handle.
    stays: bool,
}

impl DirStream {
    /// The listing, written down: its cookies stay valid. Entries are listed again.
    pub fn note(&self) -> StreamNote {
        let hex = |name: &Option<Name>| name.as_ref().map(|name| HexBytes::new(name.as_bytes()));
        let link = |link: &Option<Link>| link.map(|link| (link.pass, link.number));
        let batch = |(number, batch): (&u64, &Batch)| BatchNote {
            number: *number,
            after: hex(&batch.after),
            last: hex(&batch.last),
            hashes: batch.hashes.to_vec(),
            end: batch.end,
            next: link(&batch.next),
        };
        StreamNote {
            batches: self.batches.iter().map(batch).collect(),
            next: self.numbers.load(Ordering::Relaxed),
            dropped: self.dropped,
            pass: self.pass,
            first: link(&self.first),
            listed: (self.listed, self.longest),
            ended: self.ended,
            resumed: self.resumed,
            stays: self.stays,
        }
    }

    /// Goes on with a listing that was written down.
    ///
    /// # Errors
    /// `EINVAL` if a name is none.
    pub fn of_note(note: &StreamNote) -> FsResult<Self> {
        let name = |hex: &Option<HexBytes>| hex.as_ref().map(HexBytes::name).transpose();
        let link = |link: Option<(u64, u64)>| link.map(|(pass, number)| Link { pass, number });
        let batch = |batch: &BatchNote| {
            let made = Batch {
                after: name(&batch.after)?,
                last: name(&batch.last)?,
                hashes: batch.hashes.as_slice().into(),
                end: batch.end,
                next: link(batch.next),
            };
            Ok((batch.number, made))
        };
        let batches = note.batches.iter().map(batch).collect::<FsResult<BTreeMap<_, _>>>()?;
        Ok(Self {
            retained: batches.values().map(|batch| batch.hashes.len()).sum(),
            batches,
            numbers: Arc::new(AtomicU64::new(note.next)),
            dropped: note.dropped,
            pass: note.pass,
            first: link(note.first),
            listed: note.listed.0,
            longest: note.listed.1,
            ended: note.ended,
            resumed: note.resumed,
            stays: note.stays,
            ..Self::default()
        })
    }

    /// The directory does not change, so a cookie of another handle is found by listing up to it.
    pub fn stays_as_it_is(&mut self) {
        self.stays = true;
    }

    /// What continues the listing at `cookie`. Cookie 0 starts afresh and sees the directory as it
    /// is now.
    pub fn at(&mut self, cookie: u64) -> ListingStep {
        let step = self.step(cookie);
        self.ended |= step == ListingStep::End;
        step
    }

    fn step(&mut self, cookie: u64) -> ListingStep {
        match cookie {
            0 => {
                self.begin_pass();
                return ListingStep::Dot(false, AFTER_DOT);
            }
            AFTER_DOT => return ListingStep::Dot(true, AFTER_DOTDOT),
            _ => {}
        }
        if let Some((emptied, number)) = self.emptied
            && emptied == cookie
        {
            return self.following(cookie, Some(number));
        }
        if cookie == AFTER_DOTDOT {
            return self.following(cookie, None);
        }
        let index = (cookie & ((1 << INDEX_BITS) - 1)) as usize;
        let Some(number) = (cookie >> INDEX_BITS).checked_sub(1) else {
            return ListingStep::Unknown;
        };
        match self.batch(number) {
            None if self.stays && self.dropped == 0 => {
                let last = self.batches.keys().next_back().copied();
                self.following(cookie, last)
            }
            None => ListingStep::Unknown,
            Some(batch) if index >= batch.hashes.len() => self.following(cookie, Some(number)),
            Some(_) => self.within(cookie, number, index),
        }
    }

    /// What continues the listing after batch `number`; after `..` if there is none.
    fn following(&mut self, cookie: u64, number: Option<u64>) -> ListingStep {
        let before = number.and_then(|number| self.batch(number));
        if before.is_some_and(|batch| batch.end) {
            return ListingStep::End;
        }
        match self.link(number) {
            // As it was in an earlier pass is not as it is now.
            Some(link) if link.pass == self.pass && self.batch(link.number).is_some() => {
                self.within(cookie, link.number, 0)
            }
            _ => {
                let after = before.and_then(|batch| batch.last.clone());
                self.fetch(Fetch { after, page: Page::Following(number) })
            }
        }
    }

    /// What continues the listing at an index in a batch that is known.
    fn within(&mut self, cookie: u64, number: u64, index: usize) -> ListingStep {
        if let Some((held, entries)) = &self.held
            && *held == number
        {
            let from = entries.partition_point(|(_, after)| *after <= encode(number, index));
            if from < entries.len() {
                let upto = entries.len().min(from + STEP_ENTRIES);
                return ListingStep::Entries(entries[from..upto].to_vec());
            }
            // The rest of a batch that was listed again is gone; go on with the one that follows.
            self.emptied = Some((cookie, number));
            return self.following(cookie, Some(number));
        }
        let after = match &self.relisted {
            Some((relisted, Relisted { upto: Some(upto), .. })) if *relisted == number => {
                Some(upto.clone())
            }
            _ => {
                self.relisted = None;
                self.batch(number).and_then(|batch| batch.after.clone())
            }
        };
        self.fetch(Fetch { after, page: Page::Again(number) })
    }

    fn fetch(&mut self, fetch: Fetch) -> ListingStep {
        self.wanted = Some(fetch.clone());
        ListingStep::Fetch(fetch)
    }

    /// Takes in the page that [`ListingStep::Fetch`] asked for. One that is not wanted any more,
    /// because its caller was killed and another one asked, is dropped.
    pub fn supply(&mut self, fetch: Fetch, entries: Vec<DirEntry>, end: bool) {
        if self.wanted.take_if(|wanted| *wanted == fetch).is_none() {
            return;
        }
        match fetch.page {
            Page::Following(before) => self.add(before, fetch.after, entries, end),
            Page::Again(number) => self.compare(number, entries, end),
        }
    }

    /// Takes in the batch that follows `before`, under the number it had in an earlier pass if it
    /// is the same.
    fn add(&mut self, before: Option<u64>, after: Option<Name>, entries: Vec<DirEntry>, end: bool) {
        let hashes: Arc<[u32]> = entries.iter().map(|entry| hash(entry.name.as_bytes())).collect();
        let end = end || entries.is_empty();
        let last = entries.last().map(|entry| entry.name.clone()).or_else(|| after.clone());
        let same = |batch: &Batch| batch.last == last && batch.end == end && batch.hashes == hashes;
        let known = self.link(before).map(|link| link.number);
        self.listed += entries.len();
        let number = match known.filter(|number| self.batch(*number).is_some_and(same)) {
            Some(number) => number,
            None => {
                self.forget_beyond(RETAINED_MAX);
                self.retained += hashes.len();
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                self.batches.insert(number, Batch { after, last, hashes, end, next: None });
                number
            }
        };
        let link = Some(Link { pass: self.pass, number });
        match before {
            None => self.first = link,
            Some(before) => {
                if let Some(batch) = self.batch_mut(before) {
                    batch.next = link;
                }
            }
        }
        let held = entries
            .into_iter()
            .enumerate()
            .map(|(index, entry)| (entry, encode(number, index + 1)));
        self.held = Some((number, held.collect()));
    }

    /// Takes in a page of a batch that is listed again: keeps what was in the batch the first time,
    /// in the places it had.
    fn compare(&mut self, number: u64, entries: Vec<DirEntry>, end: bool) {
        let mut relisted = match self.relisted.take() {
            Some((again, relisted)) if again == number => relisted,
            _ => Relisted::default(),
        };
        let Some(batch) = self.batch(number) else { return };
        let listed: Vec<_> = entries.iter().map(|entry| hash(entry.name.as_bytes())).collect();
        let places: FxHashMap<_, _> =
            listed.iter().enumerate().map(|(place, hash)| (*hash, place)).collect();
        let last = entries.last().map(|entry| entry.name.clone());
        for (place, entry) in entries.into_iter().enumerate() {
            let rest = &batch.hashes[relisted.from..];
            let Some(at) = rest.iter().position(|seen| *seen == listed[place]) else { continue };
            // A new name with the hash of one further on: those between them are yet to come.
            if rest[..at].iter().any(|skipped| places.get(skipped).is_some_and(|at| *at > place)) {
                continue;
            }
            relisted.from += at + 1;
            relisted.kept.push((entry, encode(number, relisted.from)));
        }
        if end || last.is_none() || last >= batch.last {
            self.held = Some((number, relisted.kept));
        } else {
            relisted.upto = last;
            self.relisted = Some((number, relisted));
        }
    }

    /// Begins a new pass.
    fn begin_pass(&mut self) {
        self.pass += 1;
        self.longest = self.longest.max(std::mem::take(&mut self.listed));
        (self.held, self.emptied, self.wanted, self.relisted) = (None, None, None, None);
        self.forget_beyond(RETAINED_MIN + 2 * self.longest);
    }

    /// Drops all batches but the newest if there are more hashes than `most`.
    fn forget_beyond(&mut self, most: usize) {
        if self.retained > most {
            let Some((&newest, _)) = self.batches.last_key_value() else { return };
            self.dropped += self.batches.len() as u64 - 1;
            self.batches = self.batches.split_off(&newest);
            self.retained = self.batches.values().map(|batch| batch.hashes.len()).sum();
        }
    }

    fn batch(&self, number: u64) -> Option<&Batch> {
        self.batches.get(&number)
    }

    fn batch_mut(&mut self, number: u64) -> Option<&mut Batch> {
        self.batches.get_mut(&number)
    }

    /// What followed a batch when that was last listed; `None`: what was the first.
    fn link(&self, number: Option<u64>) -> Option<Link> {
        match number {
            None => self.first,
            Some(number) => self.batch(number)?.next,
        }
    }
}

fn encode(number: u64, index: usize) -> u64 {
    (number + 1) << INDEX_BITS | index as u64
}

/// FNV-1a; collisions only matter among the thousand names of one batch that is listed again.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
