//! Listings through one handle, against a directory in memory.

use super::*;
use kestrel_types::inode::Kind;
use std::collections::BTreeSet;
use std::ops::Bound;

fn listing(names: &BTreeSet<Vec<u8>>, after: &Option<Name>) -> (Vec<DirEntry>, bool) {
    let from = after.as_ref().map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_bytes()));
    let mut rest = names.range::<[u8], _>((from, Bound::Unbounded));
    let entries: Vec<_> = rest
        .by_ref()
        .take(BATCH_ENTRIES)
        .map(|name| DirEntry { name: Name::new(name).unwrap(), ino: 20, kind: Kind::File })
        .collect();
    (entries, rest.next().is_none())
}

fn step(stream: &mut DirStream, names: &BTreeSet<Vec<u8>>, cookie: u64) -> ListingStep {
    for _ in 0..4 {
        match stream.at(cookie) {
            ListingStep::Fetch(fetch) => {
                let (entries, end) = listing(names, &fetch.after);
                stream.supply(fetch, entries, end);
            }
            step => return step,
        }
    }
    panic!("no progress at cookie {cookie:#x}");
}

fn names(count: usize) -> BTreeSet<Vec<u8>> {
    (0..count).map(|i| format!("file{i:06}").into_bytes()).collect()
}

/// Each entry of a directory comes once, however few are taken at a time.
#[test]
fn directory_listing_in_small_steps() {
    for (count, take) in [(0, 1), (1, 1), (1024, 3), (1025, 1024), (5000, 7), (5000, 5000)] {
        let names = names(count);
        let (mut stream, mut cookie, mut seen) = (DirStream::default(), 0, Vec::new());
        loop {
            match step(&mut stream, &names, cookie) {
                ListingStep::Dot(_, next) => cookie = next,
                ListingStep::Entries(entries) => {
                    for (entry, next) in entries.into_iter().take(take) {
                        seen.push(entry.name.as_bytes().to_vec());
                        cookie = next;
                    }
                }
                ListingStep::End => break,
                ListingStep::Fetch(_) | ListingStep::Unknown => unreachable!(),
            }
        }
        assert_eq!(seen, names.into_iter().collect::<Vec<_>>());
    }
}

/// Memory of a listing of 300,000 names is a hash of 4 bytes for each and the entries of one batch,
/// and going back to any of its batches takes one page.
#[test]
fn memory_and_pages_of_a_large_listing() {
    let count = 300_000;
    let names = names(count);
    let (mut stream, mut cookie, mut marks) = (DirStream::default(), 0, Vec::new());
    let mut listed = 0;
    loop {
        match step(&mut stream, &names, cookie) {
            ListingStep::Dot(_, next) => cookie = next,
            ListingStep::Entries(entries) => {
                listed += entries.len();
                cookie = entries.last().unwrap().1;
                if listed % 10_000 < entries.len() {
                    marks.push((cookie, listed));
                }
            }
            ListingStep::End => break,
            ListingStep::Fetch(_) | ListingStep::Unknown => unreachable!(),
        }
        let held = stream.held.as_ref().map_or(0, |(_, entries)| entries.len());
        assert!(held <= BATCH_ENTRIES && stream.retained <= listed.next_multiple_of(BATCH_ENTRIES));
    }
    assert_eq!((listed, stream.retained), (count, count));
    assert_eq!(size_of_val(&stream.batches[&0].hashes[0]), 4);
    assert_eq!(stream.batches.len(), count.div_ceil(BATCH_ENTRIES));
    for (cookie, listed) in marks.into_iter().rev().skip(1) {
        let (mut pages, name) = (0, format!("file{listed:06}"));
        let entries = loop {
            match stream.at(cookie) {
                ListingStep::Fetch(fetch) => {
                    pages += 1;
                    let (entries, end) = listing(&names, &fetch.after);
                    stream.supply(fetch, entries, end);
                }
                ListingStep::Entries(entries) => break entries,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((entries[0].0.name.as_bytes(), pages), (name.as_bytes(), 1));
    }
}

/// In a directory that stays as it is, a cookie of one handle leads another one to the same entry.
#[test]
fn cookies_of_another_handle() {
    let names = names(3000);
    let (mut first, mut cookie, mut given) = (DirStream::default(), 0, Vec::new());
    loop {
        match step(&mut first, &names, cookie) {
            ListingStep::Dot(_, next) => cookie = next,
            ListingStep::Entries(entries) => {
                cookie = entries.last().unwrap().1;
                given.extend(entries);
            }
            ListingStep::End => break,
            ListingStep::Fetch(_) | ListingStep::Unknown => unreachable!(),
        }
    }
    for at in [0, 1000, 1023, 1024, 2998] {
        let mut other = DirStream::default();
        assert_eq!(step(&mut other, &names, given[at].1), ListingStep::Unknown);
        let mut other = DirStream::default();
        other.stays_as_it_is();
        let ListingStep::Entries(entries) = step(&mut other, &names, given[at].1) else {
            panic!("nothing after entry {at}");
        };
        assert_eq!(entries[0], given[at + 1]);
    }
    let mut other = DirStream::default();
    other.stays_as_it_is();
    assert_eq!(step(&mut other, &names, given[2999].1), ListingStep::End);
}

/// After a seek back a directory stream returns the same entries, without those that were removed.
#[test]
fn seek_back_in_directory_stream() {
    let mut all = names(5000);
    let (mut stream, mut cookie, mut cookies) = (DirStream::default(), 0, Vec::new());
    loop {
        match step(&mut stream, &all, cookie) {
            ListingStep::Dot(_, next) => cookie = next,
            ListingStep::Entries(entries) => {
                for (entry, next) in entries {
                    cookies.push((entry.name.as_bytes().to_vec(), next));
                    cookie = next;
                }
            }
            ListingStep::End => break,
            ListingStep::Fetch(_) | ListingStep::Unknown => unreachable!(),
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
                ListingStep::Entries(entries) => {
                    for (entry, next) in entries {
                        seen.push(entry.name.as_bytes().to_vec());
                        cookie = next;
                    }
                }
                ListingStep::End => break,
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

/// A cookie that a handle never gave out is not the end.
#[test]
fn cookie_that_was_never_given_out() {
    for cookie in [3, 77, 99 << 16, u64::MAX] {
        assert_eq!(DirStream::default().at(cookie), ListingStep::Unknown);
    }
}

/// Takes a few entries at a cookie through a handle of its own, as an NFS server does.
fn piece(
    kept: &KeptPositions,
    names: &BTreeSet<Vec<u8>>,
    cookie: u64,
    take: usize,
) -> Option<(Vec<Vec<u8>>, u64)> {
    let (mut stream, mut seen, mut at) = (DirStream::default(), Vec::new(), cookie);
    while seen.len() < take {
        kept.begin(7, &mut stream);
        match step(&mut stream, names, at) {
            ListingStep::Dot(_, next) => at = next,
            ListingStep::Entries(entries) => {
                for (entry, next) in entries.into_iter().take(take - seen.len()) {
                    seen.push(entry.name.as_bytes().to_vec());
                    at = next;
                }
            }
            ListingStep::End => break,
            ListingStep::Unknown if kept.resume(7, at, &mut stream) => {}
            ListingStep::Unknown => return None,
            ListingStep::Fetch(_) => unreachable!(),
        }
    }
    kept.keep(7, &stream);
    Some((seen, at))
}

/// A listing in pieces, each through a handle of its own, while names come and go and other
/// listings are under way: names that stay come exactly once.
#[test]
fn listings_of_many_handles() {
    for seed in 1..4 {
        let kept = KeptPositions::default();
        let mut random = Random(seed);
        let mut names = names(3000);
        let mut listings = vec![(0, Vec::new()); 3];
        let mut complete = 0;
        for _ in 0..600 {
            let (cookie, seen) = &mut listings[random.below(3)];
            let take = 1 + random.below(200);
            let (some, next) = piece(&kept, &names, *cookie, take).unwrap();
            (*cookie, complete) = (next, complete + usize::from(some.len() < take));
            let is_over = some.len() < take;
            seen.extend(some);
            if is_over {
                let stays: Vec<_> = seen.iter().filter(|name| !name.contains(&b'x')).collect();
                let all: Vec<_> = names.iter().filter(|name| !name.contains(&b'x')).collect();
                assert_eq!(stays, all, "seed {seed}");
                (*cookie, *seen) = (0, Vec::new());
            }
            for _ in 0..3 {
                let other = format!("file{:06}x{}", random.below(3000), random.below(9));
                if !names.remove(other.as_bytes()) {
                    names.insert(other.into_bytes());
                }
            }
        }
        assert!(complete > 3, "{complete} listings");
    }
}

/// What is kept is bounded, and a cookie that is forgotten does not lead anywhere else later.
#[test]
fn bound_of_kept_positions() {
    let (kept, names) = (KeptPositions::default(), names(2000));
    let (_, first) = piece(&kept, &names, 0, 10).unwrap();
    for dir in 100..1200 {
        let mut stream = DirStream::default();
        kept.begin(dir, &mut stream);
        let entries = step(&mut stream, &names, AFTER_DOTDOT);
        assert!(matches!(entries, ListingStep::Entries(_)));
        kept.keep(dir, &stream);
    }
    assert_eq!(piece(&kept, &names, first, 10), None);
    let (_, second) = piece(&kept, &names, 0, 10).unwrap();
    assert_ne!(first, second);
    assert_eq!(piece(&kept, &names, first, 10), None);
}

/// Handles that numbered their batches alike before anything was kept: a cookie of one does not
/// lead to the other's entries.
#[test]
fn batches_of_the_same_number() {
    let kept = KeptPositions::default();
    let (mut one, mut other) = (DirStream::default(), DirStream::default());
    let mut names = names(2000);
    step(&mut one, &names, AFTER_DOTDOT);
    names.remove(b"file000003".as_slice());
    step(&mut other, &names, AFTER_DOTDOT);
    kept.keep(7, &one);
    assert!(piece(&kept, &names, encode(0, 5), 1).is_some());
    kept.keep(7, &other);
    assert_eq!(piece(&kept, &names, encode(0, 5), 1), None);
}

/// Reads one entry at a cookie, as readdir(3) after seekdir(3) does.
fn read_one(
    stream: &mut DirStream,
    names: &BTreeSet<Vec<u8>>,
    cookie: u64,
) -> Option<(Vec<u8>, u64)> {
    match step(stream, names, cookie) {
        ListingStep::Dot(parent, next) => {
            Some((if parent { b"..".to_vec() } else { b".".to_vec() }, next))
        }
        ListingStep::Entries(entries) => {
            entries.first().map(|(entry, next)| (entry.name.as_bytes().to_vec(), *next))
        }
        ListingStep::End => None,
        ListingStep::Fetch(_) | ListingStep::Unknown => unreachable!(),
    }
}

/// The whole listing from a cookie: each entry with the cookie before it, and the cookie at the
/// end.
fn read_all(
    stream: &mut DirStream,
    names: &BTreeSet<Vec<u8>>,
    mut cookie: u64,
) -> (Vec<(Vec<u8>, u64)>, u64) {
    let mut seen = Vec::new();
    loop {
        match step(stream, names, cookie) {
            ListingStep::Dot(parent, next) => {
                seen.push((if parent { b"..".to_vec() } else { b".".to_vec() }, cookie));
                cookie = next;
            }
            ListingStep::Entries(entries) => {
                for (entry, next) in entries {
                    seen.push((entry.name.as_bytes().to_vec(), cookie));
                    cookie = next;
                }
            }
            ListingStep::End => return (seen, cookie),
            ListingStep::Fetch(_) | ListingStep::Unknown => unreachable!(),
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Any cookie leads to the entry that it was given out before, whatever was listed in between, also
/// from the start.
#[test]
fn random_cookies_of_one_handle() {
    let names = names(4000);
    let mut stream = DirStream::default();
    let (cookies, end) = read_all(&mut stream, &names, 0);
    assert_eq!(cookies.len(), 4002);
    let mut random = Random(17);
    for round in 0..3000 {
        let at = if round % 50 == 0 { 0 } else { random.below(cookies.len()) };
        let (name, cookie) = &cookies[at];
        let found = read_one(&mut stream, &names, *cookie).map(|(name, _)| name);
        assert_eq!(found.as_ref(), Some(name), "round {round}, cookie {cookie:#x}");
    }
    assert_eq!(read_one(&mut stream, &names, end), None);
    assert_eq!(stream.retained, 4000, "an unchanged directory costs nothing more");
}

/// The same while names come and go, with cookies of several passes: names that stay are found
/// exactly once.
#[test]
fn random_cookies_of_a_changing_directory() {
    let stays = |name: &Vec<u8>| name.starts_with(b"file") && !name.contains(&b'x');
    for seed in 1..4 {
        let mut random = Random(seed);
        let mut names = names(2600);
        names.extend((0..1400).map(|i| format!("g{:06}", i * 5).into_bytes()));
        let mut stream = DirStream::default();
        let mut cookies = read_all(&mut stream, &names, 0).0;
        for round in 0..800 {
            for other in [
                format!("file{:06}x{}", random.below(2600), random.below(9)),
                format!("g{:06}", random.below(7000)),
            ] {
                if !names.remove(other.as_bytes()) {
                    names.insert(other.into_bytes());
                }
            }
            if round % 100 == 99 {
                let (fresh, _) = read_all(&mut stream, &names, 0);
                let seen: Vec<_> = fresh[2..].iter().map(|(name, _)| name).collect();
                assert_eq!(seen, names.iter().collect::<Vec<_>>(), "a new pass sees what is there");
                cookies.extend(fresh);
            }
            let (name, cookie) = &cookies[2 + random.below(cookies.len() - 2)];
            if *cookie < AFTER_DOTDOT {
                continue;
            }
            let rest = read_all(&mut stream, &names, *cookie).0;
            let seen: Vec<_> =
                rest.iter().map(|(name, _)| name).filter(|name| stays(name)).collect();
            let all: Vec<_> = names.range(name.clone()..).filter(|name| stays(name)).collect();
            assert_eq!(seen, all, "seed {seed}, round {round}: the rest from {cookie:#x}");
        }
    }
}

/// A program that rewinds for ever in a directory that changes does not take memory for ever.
#[test]
fn rewinding_for_ever_is_bounded() {
    let mut names = names(3000);
    let mut stream = DirStream::default();
    for round in 0..700 {
        names.insert(format!("a{round:06}").into_bytes());
        names.remove(&format!("a{:06}", round - 10).into_bytes());
        let last = read_all(&mut stream, &names, 0).1;
        assert_eq!(read_one(&mut stream, &names, last), None);
        assert!(stream.retained <= RETAINED_MIN + 3 * 3100, "{}", stream.retained);
    }
    assert!(stream.dropped > 0, "the bound was never reached");
}

/// The answer for a caller that was killed comes after another caller has asked for something else.
#[test]
fn answer_that_nobody_wants() {
    let names = names(4000);
    let mut stream = DirStream::default();
    let cookies = read_all(&mut stream, &names, 0).0;
    let (early, late) = (&cookies[10], &cookies[3000]);
    let ListingStep::Fetch(first) = stream.at(early.1) else {
        panic!("the first batch is not held")
    };
    assert_eq!(read_one(&mut stream, &names, late.1).map(|(name, _)| name).as_ref(), Some(&late.0));
    let (entries, end) = listing(&names, &first.after);
    stream.supply(first, entries, end);
    for (name, cookie) in [late, early] {
        assert_eq!(
            read_one(&mut stream, &names, *cookie).map(|(name, _)| name).as_ref(),
            Some(name)
        );
    }
}

/// A name that comes has the hash of one further on: nothing between the two is passed over.
#[test]
fn new_name_with_a_known_hash() {
    let names = names(1500);
    let mut stream = DirStream::default();
    let (cookies, _) = read_all(&mut stream, &names, 0);
    const NEAR: &[u8] = b"file0000011add8a46f96098";
    assert_eq!(hash(NEAR), hash(b"file000855"));
    let mut changed = names.clone();
    changed.insert(NEAR.to_vec());
    let (rest, _) = read_all(&mut stream, &changed, cookies[2].1);
    let seen: Vec<_> =
        rest.iter().map(|(name, _)| name).filter(|name| names.contains(*name)).collect();
    assert_eq!(seen, names.iter().collect::<Vec<_>>());
}
