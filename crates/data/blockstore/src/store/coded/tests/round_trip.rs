//! What was written is read back, even if the settings have changed meanwhile.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Settings(Coding),
    Put { len: usize, cuts: Vec<usize> },
    Read { object: usize, from: f64, until: f64, cuts: Vec<usize>, how: u8 },
}

fn any_coding() -> impl Strategy<Value = Coding> {
    let methods = prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        (1..=9u8).prop_map(Compression::Zstd)
    ];
    (methods, prop_oneof![Just(None), Just(Some(1)), Just(Some(2))])
        .prop_map(|(compression, write)| coding(compression, write))
}

/// Lengths around every boundary of the format.
fn any_len() -> impl Strategy<Value = usize> {
    let edges = prop_oneof![
        Just(0usize),
        Just(48),
        Just(4096),
        Just(FIRST),
        Just(FIRST + CHUNK),
        Just(FIRST + 5 * CHUNK)
    ];
    prop_oneof![
        0..200usize,
        0..500_000usize,
        (edges, 0..7usize).prop_map(|(edge, more)| (edge + more).saturating_sub(3))
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let cuts = || prop::collection::vec(0..140_000usize, 0..6);
    prop_oneof![
        1 => any_coding().prop_map(Step::Settings),
        2 => (any_len(), cuts()).prop_map(|(len, cuts)| Step::Put { len, cuts }),
        6 => (0..100usize, 0.0..=1.0f64, 0.0..=1.0f64, cuts(), 0..5u8)
            .prop_map(|(object, from, until, cuts, how)| Step::Read { object, from, until, cuts,
                how }),
    ]
}

/// Cuts a length in pieces.
fn pieces(len: usize, cuts: &[usize]) -> Vec<usize> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).chain([0, len]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn put_in_pieces(store: &dyn BlockStore, object: ObjectId, bytes: &[u8], cuts: &[usize]) {
    let mut rest = bytes;
    let parts: Vec<IoSlice<'_>> = pieces(bytes.len(), cuts)
        .into_iter()
        .map(|len| {
            let (part, more) = rest.split_at(len);
            rest = more;
            IoSlice::new(part)
        })
        .collect();
    store.put(object, &parts).unwrap();
}

fn read_in_pieces(
    store: &dyn BlockStore,
    object: ObjectId,
    from: usize,
    len: usize,
    cuts: &[usize],
    how: u8,
) -> Result<Option<Vec<u8>>> {
    let mut buffers: Vec<Vec<u8>> =
        pieces(len, cuts).into_iter().map(|len| vec![0xee; len]).collect();
    let mut parts: Vec<IoSliceMut<'_>> =
        buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    match how {
        0 => store.read_fresh(object, from as u64, &mut parts)?,
        1 => {
            if store.try_read_nowait(object, from as u64, &mut parts)?.is_none() {
                return Ok(None);
            }
        }
        2 => {
            let mut out = vec![0; len];
            let got = store.read_up_to(object, from as u64, &mut out)?;
            out.truncate(got);
            return Ok(Some(out));
        }
        _ => store.read(object, from as u64, &mut parts)?,
    }
    Ok(Some(buffers.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_settings(
        appends in any::<bool>(),
        first in any_coding(),
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let inner = Arc::new(if appends { MemoryStore::new() } else { MemoryStore::put_only() });
        let mut store = coded(&inner, first);
        let mut model: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            match step {
                Step::Settings(coding) => store = coded(&inner, coding),
                Step::Put { len, cuts } => {
                    let written = bytes(len, model.len() as u64);
                    put_in_pieces(&store, model.len() as u64 + 1, &written, &cuts);
                    prop_assert_eq!(store.size(model.len() as u64 + 1).unwrap(), len as u64);
                    model.push(written);
                }
                Step::Read { object, from, until, cuts, how } => {
                    let Some(written) =
                        (!model.is_empty()).then(|| &model[object % model.len()]) else { continue };
                    let offset = |share: f64| (share * written.len() as f64) as usize;
                    let (from, until) = (offset(from.min(until)), offset(from.max(until)));
                    let object = (object % model.len()) as u64 + 1;
                    let got =
                        read_in_pieces(&store, object, from, until - from, &cuts, how).unwrap();
                    match got {
                        Some(got) => prop_assert_eq!(&got, &written[from..until]),
                        None => prop_assert!(how == 1),
                    }
                    // One byte too many is an error, not a byte.
                    prop_assert!(read(&store, object, from, written.len() - from + 1).is_err());
                }
            }
        }
    }
}

/// Without a coding, objects are stored as they come and may be appended to.
#[test]
fn uncoded_objects_and_appends() {
    let inner = Arc::new(MemoryStore::new());
    let plain = coded(&inner, coding(Compression::None, None));
    put(&plain, 1, b"as it is");
    assert_eq!(inner.bytes(1).unwrap(), b"as it is");
    assert!(plain.appends().is_some());
    for coding in codings().into_iter().filter(Coding::changes_objects) {
        assert!(coded(&inner, coding).appends().is_none());
    }
}

#[test]
fn compressed_objects_are_smaller_and_figures_say_so() {
    for (compression, share) in [(Compression::Lz4, 2), (Compression::Zstd(3), 8)] {
        let inner = Arc::new(MemoryStore::put_only());
        let store = coded(&inner, coding(compression, Some(2)));
        let text: Vec<u8> = (0..300_000).map(|at| (at / 9 % 40) as u8).collect();
        put(&store, 1, &text);
        assert!(inner.bytes(1).unwrap().len() < text.len() / share);
        assert_eq!(read(&store, 1, 0, text.len()).unwrap(), text);
        let mut stats = std::collections::BTreeMap::new();
        store.stats(&mut |name, value| {
            stats.insert(name, value);
        });
        assert_eq!(stats["coded_objects_written"], 1);
        assert_eq!(stats["coded_plain_bytes_written"], text.len() as u64);
        assert_eq!(stats["coded_stored_bytes_written"], inner.bytes(1).unwrap().len() as u64);
        assert_eq!(stats["coded_heads_read"], 1);
        assert_eq!(stats["coded_chunks_read"], 5);
    }
}

/// A put leaves an existing object alone, and a deleted object is gone.
#[test]
fn existing_and_deleted_objects() {
    let inner = Arc::new(MemoryStore::put_only());
    let store = coded(&inner, coding(Compression::Zstd(1), Some(1)));
    put(&store, 1, &bytes(1000, 1));
    assert!(matches!(store.put(1, &[IoSlice::new(b"x")]), Err(Error::Exists { object: 1 })));
    assert_eq!(read(&store, 1, 0, 1000).unwrap(), bytes(1000, 1));
    assert!(store.delete(1).unwrap());
    assert!(matches!(read(&store, 1, 0, 1), Err(Error::NotFound { object: 1 })));
    assert!(matches!(store.size(1), Err(Error::NotFound { object: 1 })));
    assert!(!store.delete(1).unwrap());
}
