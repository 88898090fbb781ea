//! Objects that were changed behind the engine's back, and the bytes of the formats.

use kestrel_types::hex::{from_hex, to_hex};

use super::*;
use crate::log::{LogRecord, RowChanges};
use crate::manifest::Manifest;
use crate::table::{TableHead, TableIdentity, TableWriter};

/// Any byte of any object that is cut off or changed is found out: rows are right, or there is an
/// error that names the object.
#[test]
fn damaged_objects() {
    let fill = |store: Arc<MemoryNamed>| {
        let engine = open_on(store, false).unwrap();
        for number in 0..90u32 {
            commit(&engine, vec![put(1, &number.to_be_bytes(), &[number as u8; 60])]);
            engine.sync().unwrap();
        }
        until("flushed", || engine.stats().flushes > 1);
        content(&engine)
    };
    let mut rng = Rng::new(7);
    for round in 0..120 {
        let store = made();
        let expected = fill(store.clone());
        let names: Vec<(String, u64)> = store
            .list("meta/0/")
            .unwrap()
            .into_iter()
            .filter(|(n, _)| !n.ends_with("holder"))
            .collect();
        let (name, len) = rng.pick(&names).clone();
        let at = rng.below(len) as usize;
        store.damage(&name, |mut bytes| {
            match round % 2 {
                0 => bytes.truncate(at),
                _ => bytes[at] ^= 1 << rng.below(8),
            }
            bytes
        });
        let opened = open_on(store, false);
        let found = opened.and_then(|engine| {
            engine.forget();
            let mut rows = ExpectedRows::new();
            engine.scan_table(Table::Entry, None, &mut |key, value| {
                let mut bytes = Vec::new();
                key.encode_into(&mut bytes);
                rows.insert(bytes, value.to_vec());
                std::ops::ControlFlow::Continue(())
            })?;
            Ok(rows)
        });
        match found {
            Ok(rows) => assert_eq!(rows, expected, "round {round}: {name}"),
            Err(EngineError::Corrupt(why) | EngineError::Refused(why)) => {
                assert!(why.contains("metadata in a bucket"), "{why}");
            }
            Err(why) => panic!("round {round}: {name}: {why}"),
        }
    }
}

/// A log object that the store has lost is missed: the rows of later ones are not given up in
/// silence, nor is the object's place taken.
#[test]
fn lost_log_object() {
    let store = made();
    let process = process::Process::new(store.clone());
    let engine = open_on(process.clone(), false).unwrap();
    for number in 0..9u32 {
        commit(&engine, vec![put(1, &number.to_be_bytes(), b"row")]);
        engine.sync().unwrap();
    }
    let expected = content(&engine);
    process.kill();
    drop(engine);
    let names = store.list("meta/0/log/").unwrap();
    let lost = &names[names.len() - 3].0;
    let kept = store.read(lost).unwrap().unwrap().bytes;
    store.remove(lost).unwrap();
    for _ in 0..2 {
        let why = expect_err(open_on(store.clone(), true));
        let is_named = why.to_string().contains(&format!("{lost} is missing"));
        assert!(matches!(why, EngineError::Corrupt(_)) && is_named, "{why}");
    }
    assert!(store.create(lost, kept).unwrap());
    assert_eq!(content(&open_on(store, true).unwrap()), expected);
}

/// A table or a log object in the place of another one is found out.
#[test]
fn swapped_objects() {
    let identity = |id| TableIdentity { uuid: UUID, node: 0, id };
    let table = |id, value: &[u8]| {
        let mut writer = TableWriter::new(identity(id));
        writer.add(b"\x01\0\0\0\0\0\0\0\x01name", Some(value));
        writer.finish()
    };
    let ((one, record), (two, _)) = (table(1, b"1"), table(2, b"2"));
    let head = &one[record.head as usize..];
    assert!(TableHead::decode(identity(1), record.head, head).is_ok());
    let other = &two[record.head as usize..];
    assert!(TableHead::decode(identity(1), record.head, other).is_err());
    let decoded = TableHead::decode(identity(1), record.head, head).unwrap();
    let (offset, len) = decoded.place(0).unwrap();
    let range = offset as usize..(offset + len) as usize;
    assert!(decoded.decode_block(0, &one[range.clone()]).is_ok());
    assert!(decoded.decode_block(0, &two[range]).is_err());
    let object = LogRecord::default().encode((&UUID, 0), 5);
    assert!(LogRecord::decode((&UUID, 0), 5, &object).is_ok());
    for (uuid, node, number) in [(UUID, 0, 6), (UUID, 1, 5), (*b"another volume..", 0, 5)] {
        assert!(LogRecord::decode((&uuid, node), number, &object).is_err());
    }
}

/// Bytes that were changed, with a checksum that matches: rows or an error, and never a panic, as
/// of a program that writes something else.
#[test]
fn wrong_objects_with_right_checksums() {
    let identity = TableIdentity { uuid: UUID, node: 0, id: 1 };
    let mut writer = TableWriter::new(identity);
    let mut record = LogRecord { epoch: 1, position: 2, nonce: 3, rows: RowChanges::new() };
    for number in 0..50u32 {
        let mut key = b"\x01\0\0\0\0\0\0\0\x01".to_vec();
        key.extend_from_slice(&number.to_be_bytes());
        let value = (number % 3 > 0).then(|| number.to_be_bytes().repeat(40));
        writer.add(&key, value.as_deref());
        record.rows.insert(key.into(), value.map(Into::into));
    }
    let (table, of_table) = writer.finish();
    let head_at = of_table.head as usize;
    let head = TableHead::decode(identity, of_table.head, &table[head_at..]).unwrap();
    let (offset, len) = head.place(0).unwrap();
    let block = table[offset as usize..(offset + len) as usize].to_vec();
    let log = record.encode((&UUID, 0), 5).to_vec();
    let mut rng = Rng::new(11);
    for _ in 0..20_000 {
        let mut changed = |bytes: &[u8], sum: &dyn Fn(&[u8]) -> u32| {
            let mut bytes = bytes[..bytes.len() - 4].to_vec();
            for _ in 0..rng.range(1, 4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            if rng.percent(10) {
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            }
            let sum = sum(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            bytes
        };
        let bytes = changed(&log, &crc32c::crc32c);
        let _ = LogRecord::decode((&UUID, 0), 5, &bytes);
        let bytes = changed(&block, &|bytes| identity.checksum(offset, &[bytes]));
        if let Ok(block) = head.decode_block(0, &bytes) {
            let keys = (0..block.rows()).map(|row| block.row(row).unwrap().0);
            assert!(keys.is_sorted());
        }
        let bytes = changed(&table[head_at..], &|bytes| identity.checksum(of_table.head, &[bytes]));
        if let Ok(head) = TableHead::decode(identity, of_table.head, &bytes) {
            head.may_have(b"\x01any");
            assert!((0..head.blocks()).all(|block| head.place(block).is_some()));
        }
    }
}

/// Objects of a newer format are refused by that, and not called damaged.
#[test]
fn newer_formats() {
    let mut object = LogRecord::default().encode((&UUID, 0), 5).to_vec();
    object[8] = 2;
    let why = expect_err(LogRecord::decode((&UUID, 0), 5, &object));
    assert!(matches!(why, EngineError::Refused(_)), "{why}");
    let text = String::from_utf8(Manifest::new(&UUID, 0).encode()).unwrap();
    let newer = text.replace("\"format\":1", "\"format\":2");
    let why = expect_err(Manifest::decode(newer.as_bytes()));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("format 2")), "{why}");
    let other = text.replace("kestrelfs-metadata", "something");
    assert!(matches!(expect_err(Manifest::decode(other.as_bytes())), EngineError::Refused(_)));
    let identity = TableIdentity { uuid: UUID, node: 0, id: 1 };
    let mut writer = TableWriter::new(identity);
    writer.add(b"\x01\0\0\0\0\0\0\0\x01name", None);
    let (mut table, record) = writer.finish();
    let version = table.len() - 48;
    table[version] = 2;
    let why = TableHead::decode(identity, record.head, &table[record.head as usize..]);
    assert!(matches!(expect_err(why), EngineError::Refused(_)));
}

/// Objects as they were written by the first version that had the format are read for ever.
#[test]
fn objects_of_the_first_version() {
    let bytes = |digits: &str| from_hex(digits.trim()).unwrap();
    let key: &[u8] = b"\x01\0\0\0\0\0\0\0\x01name";
    let rows = RowChanges::from([(key.into(), Some((*b"value").into()))]);
    let record = LogRecord { epoch: 2, position: 3, nonce: 4, rows };
    let log = bytes(include_str!("vectors/log.hex"));
    assert_eq!(LogRecord::decode((&UUID, 1), 5, &log).unwrap(), record);
    let text = include_str!("vectors/manifest.json").trim();
    let manifest = Manifest::decode(text.as_bytes()).unwrap();
    assert_eq!(manifest.encode(), text.as_bytes());
    let table = bytes(include_str!("vectors/table.hex"));
    let of_table = &manifest.runs[0][0];
    let identity = TableIdentity { uuid: UUID, node: 1, id: of_table.id };
    let head = &table[of_table.head as usize..];
    let head = TableHead::decode(identity, of_table.head, head).unwrap();
    let (offset, len) = head.place(0).unwrap();
    let block = &table[offset as usize..(offset + len) as usize];
    let block = head.decode_block(0, block).unwrap();
    assert!(head.may_have(key) && head.may_have(&of_table.last));
    assert_eq!(block.row(0), Some((key, Some(&b"value"[..]))));
    assert_eq!(block.row(1), Some((&b"\x01\0\0\0\0\0\0\0\x01other"[..], None)));
    assert_eq!(block.row(2), None);
}

/// Writes the objects of the test above anew, for a new version of the formats.
#[test]
#[ignore = "writes files of the source tree"]
fn write_objects() {
    let key: &[u8] = b"\x01\0\0\0\0\0\0\0\x01name";
    let rows = RowChanges::from([(key.into(), Some((*b"value").into()))]);
    let record = LogRecord { epoch: 2, position: 3, nonce: 4, rows };
    let mut writer = TableWriter::new(TableIdentity { uuid: UUID, node: 1, id: 2 << 32 | 3 });
    writer.add(key, Some(b"value"));
    writer.add(b"\x01\0\0\0\0\0\0\0\x01other", None);
    let (table, of_table) = writer.finish();
    let mut manifest = Manifest::new(&UUID, 1);
    manifest.runs = vec![vec![of_table]];
    let text = String::from_utf8(manifest.encode()).unwrap();
    for (name, text) in [
        ("log.hex", to_hex(&record.encode((&UUID, 1), 5))),
        ("table.hex", to_hex(&table)),
        ("manifest.json", text),
    ] {
        let path = format!("{}/src/tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, text + "\n").unwrap();
    }
}
