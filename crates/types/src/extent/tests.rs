//! Lists against a byte-level model; bounds, limits, compaction windows.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Bytes of a scaled-down chunk that the model covers; positions above it never occur in generated
/// steps.
const SPACE: u32 = 400;

#[derive(Debug, Clone)]
enum Step {
    Write { pos: u32, len: u32, skip: u32, tail: u32, object: u64 },
    Punch { pos: u32, len: u32 },
    Truncate { len: u32 },
    Clone { from: u32, to: u32, len: u32 },
    Compact { pos: u32, len: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..SPACE;
    let len = 1..60u32;
    let step = prop_oneof![
        4 => (at.clone(), len.clone(), 0..9u32, 0..9u32, 1..6u64)
            .prop_map(|(pos, len, skip, tail, object)| Step::Write { pos, len, skip, tail,
                object }),
        1 => (at.clone(), 0..60u32).prop_map(|(pos, len)| Step::Punch { pos, len }),
        1 => at.clone().prop_map(|len| Step::Truncate { len }),
        2 => (at.clone(), at.clone(), len.clone())
            .prop_map(|(from, to, len)| Step::Clone { from, to, len }),
        1 => (at, len).prop_map(|(pos, len)| Step::Compact { pos, len }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The byte-level model: where each byte is stored, as (object, offset of the range, byte within
/// the range).
type Model = Vec<Option<(u64, u32, u32)>>;

fn expand(list: &ExtentList) -> Model {
    let mut bytes = vec![None; 2 * SPACE as usize];
    for piece in list.slice(0, 2 * SPACE) {
        if let Source::Stored { range, skip } = piece.source {
            for i in 0..piece.len {
                bytes[(piece.pos + i) as usize] = Some((range.object, range.offset, skip + i));
            }
        }
    }
    bytes
}

fn count(model: &Model) -> HashMap<u64, i64> {
    let mut by_object = HashMap::new();
    for (object, _, _) in model.iter().flatten() {
        *by_object.entry(*object).or_default() += 1;
    }
    by_object
}

fn check_invariants(list: &ExtentList) {
    for extent in list.extents() {
        assert_eq!(extent.check(), Ok(()));
        assert_ne!(extent.source, Source::Hole);
    }
    for pair in list.extents().windows(2) {
        assert!(pair[0].end() <= pair[1].pos, "{pair:?}");
        assert!(!pair[0].continues_in(&pair[1]), "{pair:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn list_agrees_with_a_byte_model(steps in steps()) {
        let mut list = ExtentList::new();
        let mut model: Model = vec![None; 2 * SPACE as usize];
        let mut balance: HashMap<u64, i64> = HashMap::new();
        let mut next_object = 100;
        let mut next_offset = 0;
        for step in steps {
            let mut added: Vec<(u64, i64)> = Vec::new();
            let freed = match step {
                Step::Write { pos, len, skip, tail, object } => {
                    next_offset += 1000;
                    let range = Range { object, offset: next_offset, len: skip + len + tail };
                    for i in 0..len {
                        model[(pos + i) as usize] = Some((object, next_offset, skip + i));
                    }
                    added.push((object, i64::from(len)));
                    list.overlay(Extent { pos, len,
                        source: Source::Stored { range, skip } }).unwrap()
                }
                Step::Punch { pos, len } => {
                    model[pos as usize..(pos + len) as usize].fill(None);
                    list.punch(pos, len).unwrap()
                }
                Step::Truncate { len } => {
                    model[len as usize..].fill(None);
                    list.truncate(len)
                }
                Step::Clone { from, to, len } => {
                    let bytes = model[from as usize..(from + len) as usize].to_vec();
                    for (object, _, _) in bytes.iter().flatten() {
                        added.push((*object, 1));
                    }
                    model[to as usize..(to + len) as usize].copy_from_slice(&bytes);
                    let pieces = list.slice(from, len);
                    list.graft(to, &pieces).unwrap()
                }
                Step::Compact { pos, len } => {
                    next_object += 1;
                    let range = Range { object: next_object, offset: 8, len };
                    let seen = list.slice(pos, len);
                    let mut fresh: Vec<Extent> = Vec::new();
                    for i in 0..len {
                        let byte = &mut model[(pos + i) as usize];
                        if byte.is_some() {
                            *byte = Some((next_object, 8, i));
                            added.push((next_object, 1));
                            match fresh.last_mut() {
                                Some(last) if last.end() == pos + i => last.len += 1,
                                _ => fresh.push(Extent {
                                    pos: pos + i,
                                    len: 1,
                                    source: Source::Stored { range, skip: i },
                                }),
                            }
                        }
                    }
                    let mut other = list.clone();
                    other
                        .overlay(Extent::of_range(pos, Range { object: 99, offset: 0, len: 1 }))
                        .unwrap();
                    let stale = other.slice(pos, len);
                    prop_assert_eq!(
                        list.clone().replace_if(pos, len, &stale, &fresh),
                        Err(ExtentError::Changed)
                    );
                    list.replace_if(pos, len, &seen, &fresh).unwrap()
                }
            };
            check_invariants(&list);
            prop_assert_eq!(&expand(&list), &model);
            for (object, bytes) in added {
                *balance.entry(object).or_default() += bytes;
            }
            for item in freed {
                prop_assert!(item.bytes > 0);
                *balance.entry(item.range.object).or_default() -= i64::from(item.bytes);
            }
            balance.retain(|_, bytes| *bytes != 0);
            prop_assert_eq!(&balance, &count(&model));
            let mut encoded = Vec::new();
            list.encode_into(&mut encoded);
            let mut reader = Reader::new(&encoded);
            prop_assert_eq!(ExtentList::decode(&mut reader), Ok(list.clone()));
            prop_assert_eq!(reader.end(), Ok(()));
            for pos in 0..SPACE {
                for block in [1, 4] {
                    // Blocks beyond the model are holes.
                    let is_data = |at: &u32| {
                        let begin = (at - at % block) as usize;
                        model.iter().skip(begin).take(block as usize).any(Option::is_some)
                    };
                    prop_assert_eq!(list.next_data(pos, block),
                        (pos..model.len() as u32).find(is_data));
                    prop_assert_eq!(Some(list.next_hole(pos, block)),
                        (pos..).find(|at| !is_data(at)));
                }
            }
        }
        let mut last: HashMap<u64, i64> = HashMap::new();
        for item in list.references() {
            *last.entry(item.range.object).or_default() += i64::from(item.bytes);
        }
        prop_assert_eq!(last, balance);
    }

    #[test]
    fn decoding_never_panics(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
        count in 0..9u8
    ) {
        if bytes.len() > 1 {
            (bytes[0], bytes[1]) = (VERSION, count);
        }
        if let Ok(list) = ExtentList::decode(&mut Reader::new(&bytes)) {
            for pair in list.extents().windows(2) {
                prop_assert!(pair[0].end() <= pair[1].pos);
            }
        }
    }

    /// The parts of a request join up to it, around every power of two up to the largest file.
    #[test]
    fn chunk_parts_cover_the_request(
        power in 0..=63u32,
        before in 0..1u64 << 28,
        len in 0..1u64 << 30,
    ) {
        let offset = (1u64 << power).saturating_sub(before);
        let end = (offset + len).min(1 << 63);
        let mut at = offset;
        for part in chunk_parts(offset, end - offset) {
            prop_assert_eq!(at, part.chunk * u64::from(CHUNK_BYTES) + u64::from(part.pos));
            prop_assert_eq!(part.done, at - offset);
            prop_assert!(part.len > 0 && part.pos + part.len <= CHUNK_BYTES);
            at += u64::from(part.len);
        }
        prop_assert_eq!(at, end);
    }
}

/// The last bytes that 64 bits can count are split like all others, and what would lie beyond them
/// is left out.
#[test]
fn chunk_parts_at_the_end_of_64_bits() {
    let parts: Vec<_> = chunk_parts(u64::MAX - 5, 100).collect();
    assert_eq!(parts, [ChunkPart { chunk: (1 << 38) - 1, pos: CHUNK_BYTES - 6, len: 5, done: 0 }]);
    assert_eq!(chunk_parts(u64::MAX, 1).count(), 0);
}

fn stored(pos: u32, len: u32, object: u64) -> Extent {
    Extent::of_range(pos, Range { object, offset: 64, len })
}

#[test]
fn out_of_bounds_is_refused_and_changes_nothing() {
    let mut list = ExtentList::new();
    list.overlay(stored(10, 10, 1)).unwrap();
    let before = list.clone();
    let range = Range { object: 1, offset: 0, len: 10 };
    for bad in [
        Extent::hole(0, 0),
        Extent::hole(CHUNK_BYTES, 1),
        Extent::hole(u32::MAX, u32::MAX),
        stored(CHUNK_BYTES - 1, 2, 1),
        stored(0, 1, 0),
        Extent { pos: 0, len: 5, source: Source::Stored { range, skip: 6 } },
        Extent { pos: 0, len: 5, source: Source::Stored { range, skip: u32::MAX } },
    ] {
        assert_eq!(list.overlay(bad), Err(ExtentError::OutOfBounds), "{bad:?}");
    }
    assert_eq!(list.punch(CHUNK_BYTES, 10), Ok(vec![]));
    assert_eq!(list.punch(u32::MAX, u32::MAX), Ok(vec![]));
    assert_eq!(list, before);
    assert_eq!(list.slice(CHUNK_BYTES, 10), vec![]);
    assert_eq!(list.slice(5, u32::MAX).last().map(Extent::end), Some(CHUNK_BYTES));
}

#[test]
fn full_chunk_has_no_hole() {
    let mut list = ExtentList::new();
    for window in 0..CHUNK_BYTES / WINDOW_BYTES {
        list.overlay(stored(window * WINDOW_BYTES, WINDOW_BYTES, 7 + u64::from(window))).unwrap();
    }
    assert_eq!(list.next_hole(0, 4096), CHUNK_BYTES);
    assert_eq!(list.stored_bytes(), u64::from(CHUNK_BYTES));
    assert_eq!(list.len(), 16);
    assert!(list.windows_to_compact().is_empty());
}

/// Windows with many joins are compacted, and sparse ones are not.
#[test]
fn choice_of_windows_to_compact() {
    let mut list = ExtentList::new();
    // Window 1: 33 touching extents. Window 2: 32. Window 3: 100 runs with gaps.
    for i in 0..33 {
        list.overlay(stored(WINDOW_BYTES + i * 10, 10, 1 + u64::from(i))).unwrap();
    }
    for i in 0..32 {
        list.overlay(stored(2 * WINDOW_BYTES + i * 10, 10, 1 + u64::from(i))).unwrap();
    }
    for i in 0..100 {
        list.overlay(stored(3 * WINDOW_BYTES + i * 20, 10, 1 + u64::from(i))).unwrap();
    }
    assert_eq!(list.windows_to_compact(), vec![WINDOW_BYTES]);
    // An extent that reaches in from the window before counts in both.
    list.overlay(stored(2 * WINDOW_BYTES - 10, 20, 500)).unwrap();
    list.overlay(stored(2 * WINDOW_BYTES + 100, 1, 501)).unwrap();
    assert_eq!(list.windows_to_compact(), vec![WINDOW_BYTES, 2 * WINDOW_BYTES]);
}

#[test]
fn a_list_grows_to_its_limit_and_no_further() {
    let mut list = ExtentList::new();
    for i in 0..EXTENTS_MAX as u32 {
        list.overlay(stored(i * 4, 3, 1 + u64::from(i))).unwrap();
    }
    assert_eq!(list.overlay(stored(EXTENTS_MAX as u32 * 4, 1, 1)), Err(ExtentError::Full));
    assert_eq!(list.punch(5, 1), Err(ExtentError::Full));
    assert_eq!(list.overlay(stored(0, 3, 9)).map(|freed| freed.len()), Ok(1));
    let mut encoded = Vec::new();
    list.encode_into(&mut encoded);
    assert_eq!(ExtentList::decode(&mut Reader::new(&encoded)), Ok(list));
}
