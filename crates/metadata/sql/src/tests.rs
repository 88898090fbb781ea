use std::collections::HashSet;
use std::sync::Arc;

use kestrel_blockstore::named::{MemoryNamed, NamedStore};
use kestrel_bucket::version::{
    VersionManifest, VersionPlace, VersionRegistry, VersionSource, VersionWriter,
};
use kestrel_types::entry::Entry;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{KeyRef, Table};

use super::*;
use crate::tests::collected::Collected;

mod collected {
    use super::*;

    /// Rows as text, their cells with bars between them.
    #[derive(Default)]
    pub struct Collected(pub Vec<String>);

    impl RowSink for Collected {
        fn columns(&mut self, _names: &[&str]) -> std::io::Result<()> {
            Ok(())
        }

        fn row(&mut self, values: &[SqlValue<'_>]) -> std::io::Result<()> {
            let cell = |value: &SqlValue<'_>| match value {
                SqlValue::Null => "null".into(),
                SqlValue::Integer(number) => number.to_string(),
                SqlValue::Real(number) => number.to_string(),
                SqlValue::Text(text) => String::from_utf8_lossy(text).into_owned(),
                SqlValue::Blob(bytes) => format!("{bytes:?}"),
            };
            self.0.push(values.iter().map(cell).collect::<Vec<String>>().join("|"));
            Ok(())
        }
    }
}

/// Directories by number, from 1 on, and names in them: `(directory, name, number, kind)`.
type Tree<'a> = &'a [(u64, &'a [u8], u64, Kind)];

fn registry_with(name: &str, tree: Tree<'_>) -> VersionRegistry {
    let store: Arc<dyn NamedStore> = Arc::new(MemoryNamed::default());
    let registry = VersionRegistry::new(VersionPlace::new(store), [7; 16]);
    let mut writer = VersionWriter::begin(registry.place(), [1; 16]).unwrap();
    let row = |ino, kind| Entry::Inode(Inode { size: ino, ..Inode::new(ino, kind, 0, 1) }).encode();
    writer.put(KeyRef::new(Table::Entry, 0, b""), &row(ROOT, Kind::Dir)).unwrap();
    let mut placed = HashSet::new();
    for (dir, entry, ino, kind) in tree {
        writer.put(KeyRef::new(Table::Entry, *dir, entry), &row(*ino, *kind)).unwrap();
        if *kind == Kind::Dir && placed.insert(*ino) {
            let place = kestrel_meta::view::encode_dir_id(*dir, entry);
            writer.put(KeyRef::new(Table::DirId, *ino, b""), &place).unwrap();
        }
    }
    let snapshot_name = b"s".into();
    let source = VersionSource { dir: 1, snapshot_dir: 1, snapshot: 5, snapshot_name, owned: true };
    let mut manifest = VersionManifest::new(name, &[7; 16], &[1; 16], source);
    manifest.runs = writer.finish().unwrap();
    assert!(registry.publish(&manifest).unwrap());
    registry
}

const TREE: Tree<'static> = &[
    (1, b"a", 2, Kind::Dir),
    (1, b"a-b", 3, Kind::File),
    (2, b"x", 4, Kind::File),
    (2, b"\xff", 5, Kind::File),
    (2, b"d", 6, Kind::Dir),
    (6, b"y", 7, Kind::File),
];

fn rows(database: &Database, sql: &str) -> Vec<String> {
    let mut found = Collected::default();
    database.query(sql, &mut found).unwrap();
    found.0
}

fn database(tree: Tree<'_>) -> Database {
    Database::open(&registry_with("v@1", tree), None, SqlOptions::default()).unwrap()
}

/// A walk finds every path, and a scan without paths as many; paths that are not UTF-8 are BLOBs
/// that patterns find.
#[test]
fn paths_of_a_tree() {
    let database = database(TREE);
    let found = rows(&database, "select path from entries where kind <> 'symlink'");
    assert_eq!(found, ["", "a", "a/d", "a/d/y", "a/x", "[97, 47, 255]", "a-b"]);
    assert_eq!(rows(&database, "select count(*) from entries"), ["7"]);
    assert_eq!(rows(&database, "select path from entries where path glob 'a/?'").len(), 3);
    assert_eq!(rows(&database, "select size from entries where path = x'612fff'"), ["5"]);
    let parents = rows(&database, "select distinct parent from entries order by 1");
    assert_eq!(parents, ["null", "", "a", "a/d"]);
}

/// Conditions that are joined by `or` find an entry once, though the way without paths is taken for
/// one of them.
#[test]
fn conditions_joined_by_or() {
    let database = database(TREE);
    for (condition, wanted) in [
        ("path glob 'a/*' or path glob 'a/d*'", 4),
        ("version = 'v@1' or parent = 'a'", 7),
        ("version = 'v@1' or path like 'A/%'", 7),
    ] {
        let mut found = rows(&database, &format!("select inode from entries where {condition}"));
        assert_eq!(found.len(), wanted, "{condition}");
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), wanted, "{condition}");
    }
}

/// A prefix reads the directories on the way and what it returns.
#[test]
fn rows_read_for_a_prefix() {
    let names: Vec<String> = (0..5000).map(|number| format!("n{number:05}")).collect();
    let mut tree = vec![(1, &b"a"[..], 2, Kind::Dir)];
    let above = |number: usize| number as u64 + 10;
    for (number, name) in names.iter().enumerate() {
        tree.push((1 + number as u64 % 2, name.as_bytes(), above(number), Kind::File));
    }
    let database = database(&tree);
    let before = database.stats().rows;
    assert_eq!(rows(&database, "select path from entries where path glob 'a/n00*'").len(), 500);
    let read = database.stats().rows - before;
    assert!((500..=503).contains(&read), "{read}");
    let before = database.stats().rows;
    assert_eq!(rows(&database, "select size from entries where path = 'a/n00001'").len(), 1);
    assert!(database.stats().rows - before <= 2);
}

/// A directory that is below itself ends a query; it does not walk for ever.
#[test]
fn circle_of_directories() {
    let database = database(&[(1, b"a", 2, Kind::Dir), (2, b"b", 2, Kind::Dir)]);
    let walked = database.query("select path from entries", &mut Collected::default());
    assert!(matches!(&walked, Err(SqlError::Failed(why)) if why.contains("in itself")));
}

/// What is no query, writes or reaches beyond versions is refused when it is prepared.
#[test]
fn statements_that_are_refused() {
    let database = database(TREE);
    for sql in [
        "create table x (a)",
        "insert into entries (path) values ('x')",
        "attach 'x' as y",
        "pragma hard_heap_limit = 0",
        "select load_extension('x')",
        "select 1; select 2",
        "select nope from entries",
        "",
    ] {
        let refused = database.query(sql, &mut Collected::default());
        assert!(matches!(refused, Err(SqlError::Statement(_))), "{sql}: {refused:?}");
    }
    assert_eq!(rows(&database, "select name from pragma_table_info('xattrs')").len(), 4);
}
