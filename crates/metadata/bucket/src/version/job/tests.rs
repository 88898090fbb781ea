use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_blockstore::named::MemoryNamed;
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_testkit::rng::Rng;
use kestrel_types::key::{Key, KeyRef, Table};

use super::*;
use crate::tree::layer::{NumberSpan, OwnsRow};
use crate::version::{LayerRecord, VersionWriter};

const VOLUME: Uuid = [7; 16];
const JOB: VersionId = [8; 16];

/// Tables with values that are read as they are stored.
const TABLES: [Table; 4] = [Table::DirStat, Table::Subdir, Table::Chunk, Table::Xattr];

type Model = BTreeMap<Key, Vec<u8>>;

fn random_key(rng: &mut Rng, (first, end): (u64, u64)) -> Key {
    let table = *rng.pick(&TABLES);
    let suffix = match table {
        Table::Subdir => rng.range(first, end - 1).to_be_bytes().to_vec(),
        Table::DirStat => vec![0, rng.below(4) as u8],
        _ => vec![b'a' + rng.below(20) as u8; rng.range(1, 9) as usize],
    };
    Key::new(table, rng.range(first, end - 1), &suffix)
}

fn random_value(rng: &mut Rng, table: Table) -> Vec<u8> {
    let len = if table == Table::Subdir { 0 } else { rng.below(300) };
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// A version with random rows, some of them deleted, of the numbers `spans`.
fn write_layer(place: &VersionPlace, rng: &mut Rng, id: u8, spans: &[NumberSpan]) -> LayerRecord {
    let mut writer = VersionWriter::begin(place, [id; 16]).unwrap();
    let mut rows = BTreeMap::new();
    for _ in 0..400 {
        let span = rng.pick(spans).clone();
        let key = random_key(rng, (span.first, span.end));
        let value = random_value(rng, key.table);
        rows.insert(key, (rng.below(4) > 0).then_some(value));
    }
    for (key, value) in rows {
        let mut bytes = Vec::new();
        key.borrow().encode_into(&mut bytes);
        writer.put_encoded(&bytes, value.as_deref()).unwrap();
    }
    let (id, name) = (to_hex(&[id; 16]), format!("v{id}"));
    let runs = writer.finish().unwrap();
    LayerRecord { id, name, job: 0, numbers: spans.to_vec(), runs }
}

fn owner_of(key: KeyRef<'_>, servers: u32) -> u32 {
    let mut bytes = Vec::new();
    key.encode_into(&mut bytes);
    1 + crc32c::crc32c(&bytes) % servers
}

fn all_of(engine: &dyn Engine) -> Model {
    let mut found = Model::new();
    for table in TABLES {
        let visited = engine.scan_table(table, None, &mut |key, value| {
            assert!(found.insert(key.to_owned(), value.to_vec()).is_none(), "a row twice");
            ControlFlow::Continue(())
        });
        visited.unwrap();
    }
    found
}

/// What servers see of scans from random places on is together what the model has.
fn check(servers: &[BucketEngine], model: &Model, rng: &mut Rng) {
    let count = servers.len() as u32;
    let mut whole = Model::new();
    for (server, engine) in (1..).zip(servers) {
        for (key, value) in all_of(engine) {
            assert_eq!(owner_of(key.borrow(), count), server, "{key:?} is not its own");
            assert!(whole.insert(key, value).is_none(), "two servers see a row");
        }
    }
    assert_eq!(&whole, model);
    for _ in 0..50 {
        let Some(at) = model.keys().nth(rng.below(model.len() as u64) as usize) else { return };
        let after = Some(&*at.suffix).filter(|_| rng.below(2) > 0);
        let mut found = Vec::new();
        for engine in servers {
            let visited = engine.scan(at.table, at.id, after, &mut |suffix, value, _| {
                found.push((suffix.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            });
            visited.unwrap();
        }
        found.sort();
        let of_id = model.iter().filter(|(key, _)| (key.table, key.id) == (at.table, at.id));
        let behind = of_id.filter(|(key, _)| after.is_none_or(|after| *key.suffix > *after));
        let expected: Vec<_> =
            behind.map(|(key, value)| (key.suffix.to_vec(), value.clone())).collect();
        assert_eq!(found, expected, "{at:?} after {after:?}");
        for (server, engine) in (1..).zip(servers) {
            let mut seen = None;
            let read = engine.get_many(&[at.borrow()], &mut |_, row| {
                seen = row.value.map(<[u8]>::to_vec);
            });
            read.unwrap();
            let is_own = owner_of(at.borrow(), count) == server;
            assert_eq!(seen.as_ref(), model.get(at).filter(|_| is_own));
        }
    }
}

/// Several servers of a job see together what one server sees, and each row at its owner alone,
/// whatever they change, and after they were opened again.
#[test]
fn rows_of_several_servers() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let place = VersionPlace::new(Arc::new(MemoryNamed::default()));
        let span = |id: u8, first, end| NumberSpan { id: to_hex(&[id; 16]), first, end };
        // The second one was written when its numbers were others, and knows those of a third one.
        let lower = write_layer(&place, &mut rng, 1, &[span(1, 16, 60)]);
        let upper = write_layer(&place, &mut rng, 2, &[span(1, 16, 60), span(2, 60, 90)]);
        let other = write_layer(&place, &mut rng, 3, &[span(3, 16, 50)]);
        let numbers = vec![span(1, 16, 60), span(2, 60, 90), span(3, 200, 234)];
        let mut layers = vec![upper, lower];
        layers.insert(rng.below(3) as usize, other);
        let base = JobBase { job: 1, numbers, aliases: 0, layers };
        let record = JobRecord::new((&VOLUME, &JOB), "job@1", Vec::new(), base);
        let jobs = JobRegistry::new(place, VOLUME);
        let options = BucketOptions { memory_bytes: 512 << 10, ..BucketOptions::default() };
        let nothing: BeforeSync = Arc::new(|| Ok(()));
        jobs.create_rows(&record).unwrap();
        let mut model = all_of(&jobs.open(&record, options, nothing.clone()).unwrap());
        jobs.remove_server_rows(&record, 0).unwrap();
        let count = rng.range(1, 5) as u32;
        (1..=count).for_each(|server| jobs.create_server_rows(&record, server).unwrap());
        let open = |server: u32| {
            let owns: OwnsRow = Arc::new(move |key| owner_of(key, count) == server);
            jobs.open_server(&record, (server, Some(owns)), options, nothing.clone()).unwrap()
        };
        for _ in 0..3 {
            let servers: Vec<BucketEngine> = (1..=count).map(open).collect();
            check(&servers, &model, &mut rng);
            for _ in 0..300 {
                let key = match rng.below(2) {
                    0 => random_key(&mut rng, (16, 250)),
                    _ => model.keys().nth(rng.below(model.len() as u64) as usize).unwrap().clone(),
                };
                let value = (rng.below(2) > 0).then(|| random_value(&mut rng, key.table));
                match &value {
                    Some(value) => drop(model.insert(key.clone(), value.clone())),
                    None => drop(model.remove(&key)),
                }
                let server = &servers[owner_of(key.borrow(), count) as usize - 1];
                let change = Mutation { key, value: value.map(Into::into) };
                server.commit(BatchKind::Growing, vec![change]).unwrap();
            }
            servers.iter().for_each(|server| server.settle().unwrap());
            check(&servers, &model, &mut rng);
        }
    }
}

/// A record of a job with several servers is read as it was written, tells no secret, and has a
/// format that older programs do not know.
#[test]
fn records_with_servers() {
    let record = || {
        JobRecord::new(
            (&VOLUME, &JOB),
            "job@1",
            Vec::new(),
            JobBase { job: 3, ..JobBase::default() },
        )
    };
    let servers = JobServers { placement: "0011".into(), secret: "5ec3e7".into(), workers: 8 };
    let [alone, several] = [record(), record().with_servers(servers)];
    for (record, format) in [(&alone, "\"format\":1"), (&several, "\"format\":2")] {
        let bytes = record.encode();
        assert!(String::from_utf8_lossy(&bytes).contains(format));
        let read = JobRecord::decode(3, &VOLUME, &bytes).unwrap();
        assert_eq!(read.encode(), bytes);
        assert_eq!((&read.servers, &read.base), (&record.servers, &record.base));
    }
    assert!(!format!("{several:?}").contains("5ec3e7"));
    let mixed = JobRecord { format: FORMAT, ..several };
    assert!(JobRecord::decode(3, &VOLUME, &document::encode(&mixed)).is_err());
}

/// Addresses of servers are replaced, and the rows of servers count until they were gathered.
#[test]
fn addresses_and_gathered_rows() {
    let jobs = JobRegistry::new(VersionPlace::new(Arc::new(MemoryNamed::default())), VOLUME);
    let base = JobBase { job: 3, ..JobBase::default() };
    let servers = JobServers { placement: "00".into(), secret: "00".into(), workers: 8 };
    let record = JobRecord::new((&VOLUME, &JOB), "job@1", Vec::new(), base).with_servers(servers);
    for (server, address) in [(1, "a:1"), (12, "b:2"), (1, "c:3"), (1, "c:3")] {
        jobs.set_address(&record, server, address).unwrap();
    }
    let expected = [(1, "c:3".to_string()), (12, "b:2".to_string())];
    assert_eq!(jobs.addresses(&record).unwrap(), expected.into());
    assert!(jobs.servers(&record).unwrap().is_some());
    jobs.set_gathered(&record).unwrap();
    jobs.set_gathered(&record).unwrap();
    assert!(jobs.servers(&record).unwrap().is_none());
    jobs.remove_rows(&record.id_bytes()).unwrap();
    assert!(jobs.addresses(&record).unwrap().is_empty());
}
