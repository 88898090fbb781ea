//! Rows as JSON objects, and back. What does not come back byte for byte when read is written as
//! raw bytes instead, so a dump loses nothing, also of rows this version does not understand.

use std::sync::Arc;

use kestrel_types::acl::Acls;
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{Extent, ExtentList, Source};
use kestrel_types::inode::{Data, Inode, InodeFlags, Kind};
use kestrel_types::key::{Key, SUFFIX_MAX, Table};
use kestrel_types::policy::Policy;
use kestrel_types::range::Range;
use kestrel_types::stat::{DirStat, ObjStat};
use serde_json::{Map, Value, json};

use crate::rows::{DirId, decode_ceiling, decode_xattr, encode_ceiling, encode_xattr};

type Object = Map<String, Value>;

/// Names of the tables, by number.
const TABLES: [(&str, Table); 17] = [
    ("system", Table::System),
    ("entry", Table::Entry),
    ("dirstat", Table::DirStat),
    ("dirid", Table::DirId),
    ("subdir", Table::Subdir),
    ("link", Table::Link),
    ("chunk", Table::Chunk),
    ("xattr", Table::Xattr),
    ("objstat", Table::ObjStat),
    ("reap", Table::Reap),
    ("moved", Table::Moved),
    ("txn", Table::Txn),
    ("sweep", Table::Sweep),
    ("history", Table::History),
    ("clone", Table::Clone),
    ("quota", Table::Quota),
    ("feed", Table::Feed),
];

/// A row.
pub fn row(key: &Key, bytes: &[u8]) -> Value {
    let mut object = key_object(key);
    match value_fields(key.table, bytes) {
        Some(fields) if parse_value(key.table, &fields).is_some_and(|again| *again == *bytes) => {
            object.extend(fields)
        }
        _ => {
            object.insert("raw_hex".into(), hex(bytes).into());
        }
    }
    Value::Object(object)
}

/// A row's removal.
pub fn deleted(key: &Key) -> Value {
    let mut object = key_object(key);
    object.insert("deleted".into(), true.into());
    Value::Object(object)
}

/// Key and value (`None`: removed) of what [`row`] or [`deleted`] wrote; `None` if it is neither.
pub fn parse(value: &Value) -> Option<(Key, Option<Box<[u8]>>)> {
    let object = value.as_object()?;
    let key = parse_key(object)?;
    if object.get("deleted").is_some() {
        return Some((key, None));
    }
    let bytes = match object.get("raw_hex") {
        Some(text) => unhex(text.as_str()?)?.into(),
        None => parse_value(key.table, object)?,
    };
    Some((key, Some(bytes)))
}

fn key_object(key: &Key) -> Object {
    let table = TABLES[key.table as usize].0;
    let mut object = Object::new();
    object.insert("table".into(), table.into());
    if let Some(fields) = key_fields(key) {
        let mut typed = object.clone();
        typed.extend(fields);
        if parse_key(&typed).as_ref() == Some(key) {
            return typed;
        }
    }
    object.insert("id".into(), key.id.into());
    object.insert("suffix_hex".into(), hex(&key.suffix).into());
    object
}

/// Field that holds the key's id, and what its suffix is.
fn key_shape(table: Table) -> Option<(&'static str, Suffix)> {
    Some(match table {
        Table::System => ("id", Suffix::Text("record")),
        Table::Entry => ("parent", Suffix::Text("name")),
        Table::DirStat => ("dir", Suffix::U16("worker")),
        Table::DirId => ("dir", Suffix::None),
        Table::Subdir => ("dir", Suffix::U64("child")),
        Table::Link => ("ino", Suffix::None),
        Table::Chunk => ("ino", Suffix::U64("chunk")),
        Table::Xattr => ("ino", Suffix::Text("name")),
        Table::ObjStat => ("object", Suffix::U16("worker")),
        Table::Reap => ("due", Suffix::U64("object")),
        Table::Sweep => ("ino", Suffix::U64("chunk")),
        Table::Moved | Table::Txn | Table::History | Table::Clone | Table::Quota | Table::Feed => {
            return None;
        }
    })
}

enum Suffix {
    None,
    U16(&'static str),
    U64(&'static str),
    Text(&'static str),
}

fn key_fields(key: &Key) -> Option<Object> {
    let (id, suffix) = key_shape(key.table)?;
    let mut object = Object::new();
    object.insert(id.into(), key.id.into());
    match suffix {
        Suffix::None => {}
        Suffix::U16(name) => {
            object.insert(name.into(), u16::from_be_bytes((*key.suffix).try_into().ok()?).into());
        }
        Suffix::U64(name) => {
            object.insert(name.into(), u64::from_be_bytes((*key.suffix).try_into().ok()?).into());
        }
        Suffix::Text(name) => put_bytes(&mut object, name, &key.suffix),
    }
    Some(object)
}

fn parse_key(object: &Object) -> Option<Key> {
    let name = object.get("table")?.as_str()?;
    let table = TABLES.iter().find(|(known, _)| *known == name)?.1;
    if let Some(suffix) = object.get("suffix_hex") {
        let suffix = unhex(suffix.as_str()?).filter(|suffix| suffix.len() <= SUFFIX_MAX)?;
        return Some(Key::new(table, object.get("id")?.as_u64()?, &suffix));
    }
    let (id, suffix) = key_shape(table)?;
    let id = object.get(id)?.as_u64()?;
    let number = |name: &str| object.get(name)?.as_u64();
    Some(match suffix {
        Suffix::None => Key::new(table, id, &[]),
        Suffix::U16(name) => Key::new(table, id, &u16::try_from(number(name)?).ok()?.to_be_bytes()),
        Suffix::U64(name) => Key::new(table, id, &number(name)?.to_be_bytes()),
        Suffix::Text(name) => {
            let suffix = get_bytes(object, name).filter(|suffix| suffix.len() <= SUFFIX_MAX)?;
            Key::new(table, id, &suffix)
        }
    })
}

fn value_fields(table: Table, bytes: &[u8]) -> Option<Object> {
    let mut object = Object::new();
    match table {
        Table::System => {
            object.insert("next".into(), decode_ceiling(bytes).ok()?.into());
        }
        Table::Entry => match Entry::decode(bytes).ok()? {
            Entry::Inode(inode) => {
                object.insert("inode".into(), inode_object(&inode));
            }
            Entry::Link { ino, kind } => {
                object.insert("link".into(), ino.into());
                object.insert("kind".into(), kind_name(kind).into());
            }
        },
        Table::Link => {
            object.insert(
                "inode".into(),
                inode_object(&Inode::decode(&mut Reader::new(bytes)).ok()?),
            );
        }
        Table::DirStat => {
            let stat = DirStat::decode(bytes).ok()?;
            for (name, value) in [
                ("children", stat.children),
                ("subdirs", stat.subdirs),
                ("bytes", stat.bytes),
                ("mtime", stat.mtime),
            ] {
                object.insert(name.into(), value.into());
            }
            object.insert("change".into(), stat.change.into());
        }
        Table::DirId => {
            let dir_id = DirId::decode(bytes).ok()?;
            object.insert("parent".into(), dir_id.parent.into());
            put_bytes(&mut object, "name", &dir_id.name);
        }
        Table::Chunk => {
            let list = ExtentList::decode(&mut Reader::new(bytes)).ok()?;
            let extents = list.extents().iter().filter_map(|extent| match extent.source {
                Source::Hole => None,
                Source::Stored { range, skip } => Some(json!([
                    extent.pos,
                    extent.len,
                    range.object,
                    range.offset,
                    range.len,
                    skip
                ])),
            });
            object.insert("extents".into(), extents.collect());
        }
        Table::Xattr => put_bytes(&mut object, "value", decode_xattr(bytes).ok()?),
        Table::ObjStat => {
            object.insert("referenced".into(), ObjStat::decode(bytes).ok()?.referenced.into());
        }
        Table::Subdir | Table::Reap | Table::Sweep if bytes.is_empty() => {}
        Table::Subdir
        | Table::Reap
        | Table::Sweep
        | Table::Moved
        | Table::Txn
        | Table::History
        | Table::Clone
        | Table::Quota
        | Table::Feed => return None,
    }
    Some(object)
}

fn parse_value(table: Table, object: &Object) -> Option<Box<[u8]>> {
    let signed = |name: &str| object.get(name)?.as_i64();
    let number = |name: &str| object.get(name)?.as_u64();
    Some(match table {
        Table::System => encode_ceiling(number("next")?),
        Table::Entry => match object.get("inode") {
            Some(inode) => Entry::Inode(parse_inode(inode)?).encode(),
            None => Entry::Link { ino: number("link")?, kind: parse_kind(object.get("kind")?)? }
                .encode(),
        },
        Table::Link => {
            let mut out = Vec::new();
            parse_inode(object.get("inode")?)?.encode_into(&mut out);
            out.into()
        }
        Table::DirStat => DirStat {
            children: signed("children")?,
            subdirs: signed("subdirs")?,
            bytes: signed("bytes")?,
            mtime: signed("mtime")?,
            change: number("change")?,
        }
        .encode(),
        Table::DirId => {
            DirId { parent: number("parent")?, name: get_bytes(object, "name")?.into() }.encode()
        }
        Table::Chunk => parse_extents(object.get("extents")?)?,
        Table::Xattr => encode_xattr(&get_bytes(object, "value")?),
        Table::ObjStat => ObjStat { referenced: signed("referenced")? }.encode(),
        Table::Subdir | Table::Reap | Table::Sweep => Box::new([]),
        Table::Moved | Table::Txn | Table::History | Table::Clone | Table::Quota | Table::Feed => {
            return None;
        }
    })
}

fn parse_extents(value: &Value) -> Option<Box<[u8]>> {
    let mut list = ExtentList::new();
    for extent in value.as_array()? {
        let fields: Vec<u64> =
            extent.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        let [pos, len, object, offset, range_len, skip] = fields.try_into().ok()?;
        let small = |value: u64| u32::try_from(value).ok();
        let range = Range { object, offset: small(offset)?, len: small(range_len)? };
        let source = Source::Stored { range, skip: small(skip)? };
        list.overlay(Extent { pos: small(pos)?, len: small(len)?, source }).ok()?;
    }
    let mut out = Vec::new();
    list.encode_into(&mut out);
    Some(out.into())
}

const KINDS: [(&str, Kind); 7] = [
    ("file", Kind::File),
    ("dir", Kind::Dir),
    ("symlink", Kind::Symlink),
    ("fifo", Kind::Fifo),
    ("char", Kind::Char),
    ("block", Kind::Block),
    ("socket", Kind::Socket),
];

fn kind_name(kind: Kind) -> &'static str {
    KINDS.iter().find(|(_, known)| *known == kind).map_or("unknown", |(name, _)| name)
}

fn parse_kind(value: &Value) -> Option<Kind> {
    let name = value.as_str()?;
    KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

fn inode_object(inode: &Inode) -> Value {
    let mut object = Object::new();
    let mut field = |name: &str, value: Value| {
        object.insert(name.into(), value);
    };
    field("ino", inode.ino.into());
    field("kind", kind_name(inode.kind).into());
    field("mode", format!("{:04o}", inode.mode).into());
    field("uid", inode.uid.into());
    field("gid", inode.gid.into());
    field("nlink", inode.nlink.into());
    field("rdev", inode.rdev.into());
    field("size", inode.size.into());
    field("atime", inode.atime.into());
    field("mtime", inode.mtime.into());
    field("ctime", inode.ctime.into());
    field("btime", inode.btime.into());
    field("change", inode.change.into());
    field("data_change", inode.data_change.into());
    field("xattrs", inode.xattrs.into());
    if inode.flags != InodeFlags::default() {
        field("flags", inode.flags.bits().into());
    }
    if let Some(acls) = &inode.acls {
        field("acls_hex", hex(&acls.encode()).into());
    }
    match &inode.data {
        Data::None => {}
        Data::Inline(bytes) => put_bytes(&mut object, "inline", bytes),
        Data::Packed { range, visible } => {
            object.insert("packed".into(), json!([range.object, range.offset, range.len, visible]));
        }
        Data::Chunked => {
            object.insert("chunked".into(), true.into());
        }
    }
    Value::Object(object)
}

fn parse_inode(value: &Value) -> Option<Inode> {
    let object = value.as_object()?;
    let number = |name: &str| object.get(name)?.as_u64();
    let small = |name: &str| u32::try_from(number(name)?).ok();
    let time = |name: &str| object.get(name)?.as_i64();
    let data = if let Some(packed) = object.get("packed") {
        let fields: Vec<u64> =
            packed.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        let [object, offset, len, visible] = fields.try_into().ok()?;
        let small = |value: u64| u32::try_from(value).ok();
        Data::Packed {
            range: Range { object, offset: small(offset)?, len: small(len)? },
            visible: small(visible)?,
        }
    } else if object.get("chunked").is_some() {
        Data::Chunked
    } else {
        get_bytes(object, "inline").map_or(Data::None, |bytes| Data::Inline(bytes.into()))
    };
    Some(Inode {
        ino: number("ino")?,
        kind: parse_kind(object.get("kind")?)?,
        mode: u16::from_str_radix(object.get("mode")?.as_str()?, 8).ok()?,
        uid: small("uid")?,
        gid: small("gid")?,
        nlink: small("nlink")?,
        rdev: small("rdev")?,
        size: number("size")?,
        atime: time("atime")?,
        mtime: time("mtime")?,
        ctime: time("ctime")?,
        btime: time("btime")?,
        change: number("change")?,
        data_change: number("data_change")?,
        xattrs: object.get("xattrs")?.as_bool()?,
        flags: match object.get("flags") {
            None => InodeFlags::default(),
            Some(bits) => InodeFlags::from_bits(u8::try_from(bits.as_u64()?).ok()?)?,
        },
        acls: match object.get("acls_hex") {
            None => None,
            Some(text) => Some(Arc::new(Acls::decode(&unhex(text.as_str()?)?).ok()?)),
        },
        data,
        effective: Policy::default(),
    })
}

/// Bytes as text if they are, else as `NAME_hex`.
fn put_bytes(object: &mut Object, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.into(), text.into()),
        Err(_) => object.insert(format!("{name}_hex"), hex(bytes).into()),
    };
}

fn get_bytes(object: &Object, name: &str) -> Option<Vec<u8>> {
    match object.get(name) {
        Some(text) => Some(text.as_str()?.as_bytes().to_vec()),
        None => unhex(object.get(&format!("{name}_hex"))?.as_str()?),
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(
            |pair| {
                if let [high, low] = pair { Some(digit(high)? << 4 | digit(low)?) } else { None }
            },
        )
        .collect()
}
