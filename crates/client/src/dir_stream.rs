//! Listing a directory through an open handle, with cookies that stay valid while others create, rename and unlink.
//!
//! A node lists by name, in batches; the kernel continues from a cookie, usually the one after the last entry it took, but
//! `seekdir` may bring any cookie of this handle. A cookie is the number of a batch and an index in it. The handle keeps
//! the entries of the newest batch, and of every older one the name it began after and a 32-bit hash of each name: 4 bytes
//! an entry, so that even a directory of ten million entries costs a reader 40 MB. Going back to an older batch lists it
//! again and returns those entries that were in it the first time: what existed all the while is returned exactly once
//! (`readdir(3p)`), what was created or removed meanwhile may or may not be.

use kestrel_types::name::Name;
use kestrel_types::request::DirEntry;

/// Entries asked for at once; an index must fit the cookie's low 16 bits.
pub const BATCH_ENTRIES: usize = 1024;

/// Cookie after `.`.
const AFTER_DOT: u64 = 1;

/// Cookie after `..`; cookies of entries are above it.
const AFTER_DOTDOT: u64 = 2;

const INDEX_BITS: u32 = 16;

#[derive(Debug)]
struct Batch {
    /// The name the batch begins after.
    after: Option<Name>,
    /// A hash of each name in it, in order.
    hashes: Vec<u32>,
    /// Whether the directory ended with it.
    end: bool,
}

#[derive(Debug, Default)]
struct Relisted {
    /// Last name listed.
    upto: Option<Name>,
    /// Index in the batch's hashes to compare from.
    from: usize,
    kept: Vec<(DirEntry, u64)>,
}

/// What to do to continue from a cookie.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next entry is `.` or `..` (`true` for `..`); the cookie after it follows.
    Dot(bool, u64),
    /// These entries come next, each with the cookie after it.
    Entries(Vec<(DirEntry, u64)>),
    /// Ask the node for the batch that begins after this name, then [`DirStream::supply`] it.
    Fetch(Option<Name>),
    /// Nothing follows.
    End,
}

/// The state of one open directory.
#[derive(Debug, Default)]
pub struct DirStream {
    batches: Vec<Batch>,
    /// Entries of one batch with their cookies.
    held: Option<(usize, Vec<(DirEntry, u64)>)>,
    /// Last name of the newest batch, where the next one begins.
    tail: Option<Name>,
    /// A cookie after which nothing of its batch is left, and the cookie at the batch's end that stands for it.
    emptied: Option<(u64, u64)>,
    /// Batch that is being fetched.
    wanted: usize,
    /// What a batch that is being listed again has brought so far: new names may have moved its last entries out of reach
    /// of one answer.
    relisted: Option<Relisted>,
}

impl DirStream {
    /// What continues the listing at `cookie`. Cookie 0 starts afresh and sees the directory as it is now.
    pub fn at(&mut self, cookie: u64) -> Step {
        let cookie = match self.emptied {
            Some((emptied, end)) if emptied == cookie => end,
            _ => cookie,
        };
        match cookie {
            0 => {
                *self = Self::default();
                return Step::Dot(false, AFTER_DOT);
            }
            AFTER_DOT => return Step::Dot(true, AFTER_DOTDOT),
            _ => {}
        }
        let (mut number, mut index) = (0, 0);
        if cookie > AFTER_DOTDOT {
            number = ((cookie >> INDEX_BITS) as usize).saturating_sub(1);
            index = (cookie & ((1 << INDEX_BITS) - 1)) as usize;
        }
        if let Some(batch) = self.batches.get(number)
            && index >= batch.hashes.len()
        {
            if batch.end {
                return Step::End;
            }
            (number, index) = (number + 1, 0);
        }
        if number > self.batches.len() {
            return Step::End; // a cookie this handle never gave out
        }
        if let Some((held, entries)) = &self.held
            && *held == number
        {
            let from = entries.partition_point(|(_, after)| *after <= encode(number, index));
            if from < entries.len() {
                return Step::Entries(entries[from..].to_vec());
            }
            // The rest of a batch that was listed again is gone; go on with the one that follows.
            return match self.batches.get(number) {
                Some(batch) if !batch.end => {
                    let end = encode(number, batch.hashes.len());
                    self.emptied = Some((cookie, end));
                    self.at(end)
                }
                _ => Step::End,
            };
        }
        if self.wanted != number {
            (self.wanted, self.relisted) = (number, None);
        }
        if let Some(Relisted { upto: Some(upto), .. }) = &self.relisted {
            return Step::Fetch(Some(upto.clone()));
        }
        Step::Fetch(match self.batches.get(number) {
            Some(batch) => batch.after.clone(),
            None => self.tail.clone(),
        })
    }

    /// Takes in the batch that [`Step::Fetch`] asked for.
    pub fn supply(&mut self, after: Option<Name>, entries: Vec<DirEntry>, end: bool) {
        let number = self.wanted;
        let last = entries.last().map(|entry| entry.name.clone());
        let Some(batch) = self.batches.get(number) else {
            let hashes = entries.iter().map(|entry| hash(entry.name.as_bytes())).collect();
            self.batches.push(Batch { after, hashes, end: end || entries.is_empty() });
            self.tail = last;
            let held =
                entries.into_iter().enumerate().map(|(index, entry)| (entry, encode(number, index + 1)));
            self.held = Some((number, held.collect()));
            return;
        };
        // Listed again: keep what was in the batch the first time, in the places it had.
        let mut relisted = self.relisted.take().unwrap_or_default();
        for entry in entries {
            let wanted = hash(entry.name.as_bytes());
            if let Some(at) = batch.hashes[relisted.from..].iter().position(|seen| *seen == wanted) {
                relisted.from += at + 1;
                relisted.kept.push((entry, encode(number, relisted.from)));
            }
        }
        let batch_last = self.batches.get(number + 1).map_or(&self.tail, |next| &next.after);
        if end || last.is_none() || last >= *batch_last {
            self.held = Some((number, relisted.kept));
        } else {
            relisted.upto = last;
            self.relisted = Some(relisted);
        }
    }
}

fn encode(number: usize, index: usize) -> u64 {
    (number as u64 + 1) << INDEX_BITS | index as u64
}

/// FNV-1a; collisions only matter among the thousand names of one batch that is listed again.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_types::inode::Kind;
    use std::collections::BTreeSet;

    fn listing(names: &BTreeSet<Vec<u8>>, after: &Option<Name>) -> (Vec<DirEntry>, bool) {
        let mut rest =
            names.iter().filter(|name| after.as_ref().is_none_or(|after| name.as_slice() > after.as_bytes()));
        let entries: Vec<_> = rest
            .by_ref()
            .take(BATCH_ENTRIES)
            .map(|name| DirEntry { name: Name::new(name).unwrap(), ino: 20, kind: Kind::File })
            .collect();
        (entries, rest.next().is_none())
    }

    fn step(stream: &mut DirStream, names: &BTreeSet<Vec<u8>>, cookie: u64) -> Step {
        for _ in 0..4 {
            match stream.at(cookie) {
                Step::Fetch(after) => {
                    let (entries, end) = listing(names, &after);
                    stream.supply(after, entries, end);
                }
                step => return step,
            }
        }
        panic!("no progress at cookie {cookie:#x}");
    }

    fn names(count: usize) -> BTreeSet<Vec<u8>> {
        (0..count).map(|i| format!("file{i:06}").into_bytes()).collect()
    }

    #[test]
    fn every_entry_comes_once_however_few_are_taken_at_a_time() {
        for (count, take) in [(0, 1), (1, 1), (1024, 3), (1025, 1024), (5000, 7), (5000, 5000)] {
            let names = names(count);
            let (mut stream, mut cookie, mut seen) = (DirStream::default(), 0, Vec::new());
            loop {
                match step(&mut stream, &names, cookie) {
                    Step::Dot(_, next) => cookie = next,
                    Step::Entries(entries) => {
                        for (entry, next) in entries.into_iter().take(take) {
                            seen.push(entry.name.as_bytes().to_vec());
                            cookie = next;
                        }
                    }
                    Step::End => break,
                    Step::Fetch(_) => unreachable!(),
                }
            }
            assert_eq!(seen, names.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn going_back_returns_the_same_entries_less_those_removed() {
        let mut all = names(5000);
        let (mut stream, mut cookie, mut cookies) = (DirStream::default(), 0, Vec::new());
        loop {
            match step(&mut stream, &all, cookie) {
                Step::Dot(_, next) => cookie = next,
                Step::Entries(entries) => {
                    for (entry, next) in entries {
                        cookies.push((entry.name.as_bytes().to_vec(), next));
                        cookie = next;
                    }
                }
                Step::End => break,
                Step::Fetch(_) => unreachable!(),
            }
        }
        for at in [0, 500, 1023, 1024, 3000] {
            all.remove(&cookies[at].0);
            all.insert([&cookies[at].0[..], b"-new"].concat());
        }
        for start in [0, 499, 500, 1022, 1023, 2999, 4999] {
            let mut cookie = cookies[start].1;
            let mut seen = Vec::new();
            loop {
                match step(&mut stream, &all, cookie) {
                    Step::Entries(entries) => {
                        for (entry, next) in entries {
                            seen.push(entry.name.as_bytes().to_vec());
                            cookie = next;
                        }
                    }
                    Step::End => break,
                    other => panic!("{other:?}"),
                }
            }
            let stable: Vec<_> = cookies[start + 1..]
                .iter()
                .map(|(name, _)| name)
                .filter(|name| all.contains(*name))
                .collect();
            let seen: Vec<_> = seen.iter().filter(|name| !name.ends_with(b"-new")).collect();
            assert_eq!(seen, stable, "from {start}");
        }
    }

    #[test]
    fn a_foreign_cookie_ends_the_listing() {
        assert_eq!(DirStream::default().at(99 << 16), Step::End);
    }
}
