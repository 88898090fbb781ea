//! Plants damage of every kind in a volume, and expects the check to find it and the repair to mend
//! it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::several::Several;
use common::*;
use kestrel_admin::check::{Options, ReadData};
use kestrel_admin::finding::{FindingKind as K, Severity};
use kestrel_admin::references::{Reference, Seen, for_each};
use kestrel_admin::rows::{
    DirId, INODES, encode_ceiling, encode_shares_with_history, encode_xattr, put,
};
use kestrel_blockstore::object::placed_check;
use kestrel_blockstore::store::BlockStore;
use kestrel_engine::Mutation;
use kestrel_meta::node::{Node, NodeConfig};
use kestrel_types::clock::SystemClock;
use kestrel_types::entry::Entry;
use kestrel_types::extent::Extent;
use kestrel_types::feed::{
    FeedEvent, FeedEventKind, FeedPosition, FeedRow, decode_feed_mark, encode_feed_mark,
};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::quota::{QuotaLimits, QuotaRow, QuotaSubject, QuotaUsage};
use kestrel_types::snapshot::{HISTORY_SHARE, SnapshotInfo, encode_history, history_key};
use kestrel_types::stat::ObjStat;

/// Plants damage, expects exactly these kinds of errors, repairs, and expects no errors.
fn mends(name: &str, plant: impl Fn(&Volume), expected: &[K]) -> Volume {
    let volume = Volume::new();
    plant(&volume);
    let before = volume.all();
    let mut found = volume.kinds();
    found.retain(|kind| kind.severity() == Severity::Error);
    let mut wanted = expected.to_vec();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{name}: {:#?}", volume.check().0);
    assert_eq!(volume.all(), before, "{name}: a check changes nothing");
    let (left, done) = volume.repair();
    assert!(
        left.iter().all(|finding| finding.kind.severity() == Severity::Info),
        "{name}: {left:#?}"
    );
    assert!(done > 0, "{name}");
    assert_eq!(volume.check().1.errors(), 0, "{name}");
    assert_eq!(volume.repair().1, 0, "{name}: a second repair has nothing to do");
    mends_nodes(name, plant, expected, &volume);
    volume
}

/// Plants it in what three nodes share, and expects them to end up with what one node does.
fn mends_nodes(name: &str, plant: impl Fn(&Volume), expected: &[K], alone: &Volume) {
    let damaged = Volume::new();
    plant(&damaged);
    let nodes = Several::of(&damaged);
    let before = nodes.all();
    // What is a matter of each node is checked node by node.
    let of_whole = |kind: &K| {
        !matches!(kind, K::SystemWrong | K::TxnWrong | K::DirStatWrong | K::ObjStatWrong)
    };
    let mut found: Vec<K> = nodes.check().into_iter().map(|finding| finding.kind).collect();
    found.retain(|kind| kind.severity() == Severity::Error && of_whole(kind));
    found.sort_unstable();
    let mut wanted: Vec<K> = expected.iter().copied().filter(of_whole).collect();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{name}, three nodes: {:#?}", nodes.check());
    assert!(nodes.all() == before, "{name}: a check changes nothing");
    let (left, _) = nodes.repair().unwrap();
    assert!(
        left.iter().all(|finding| finding.kind.severity() == Severity::Info),
        "{name}: {left:#?}"
    );
    assert_eq!(nodes.content(), Several::of(alone).content(), "{name}: as one node repairs it");
    let repaired = nodes.all();
    assert_eq!(nodes.repair().unwrap(), (left, 0), "{name}: a second repair has nothing to do");
    assert!(nodes.all() == repaired, "{name}: and changes nothing");
}

/// Number of the directory at `/lost+found`.
fn lost_found(volume: &Volume) -> u64 {
    Entry::decode(&volume.value(Table::Entry, ROOT, b"lost+found").expect("lost+found"))
        .unwrap()
        .ino()
}

#[test]
fn a_healthy_volume_has_no_findings() {
    let volume = Volume::new();
    let (findings, totals) = volume.check();
    assert_eq!(findings, []);
    assert_eq!((totals.files, totals.dirs, totals.bytes), (7, 4, 5 + 90 + 200_000 + 30 + 3));
    assert_eq!((totals.objects, totals.referenced_bytes), (3, 130 + 100_000 + 30));
    assert_eq!((totals.stored_objects, totals.leaked_objects), (3, 0));
    assert_eq!(volume.repair(), (vec![], 0));
}

/// Sparse files with sizes that make the sums of a directory wrap around are no damage.
#[test]
fn sparse_files_with_sizes_that_wrap_the_sums() {
    let volume = Volume::new();
    let sparse = |ino| inode(ino, Kind::File, 5 << 60, Data::None);
    volume.apply(vec![
        entry(A, "huge1", sparse(30)),
        entry(A, "huge2", sparse(31)),
        dir_stat(A, 0, 6, 2, 95 + (5 << 60)),
        dir_stat(A, 3, 0, -1, 5 << 60),
    ]);
    assert_eq!(volume.check().0, []);
}

#[test]
fn small_windows_of_objects_find_the_same() {
    let volume = Volume::new();
    volume.apply(vec![obj_stat(3, 0, 1), obj_stat(1 << 60, 0, 5)]);
    volume.store.delete(2).unwrap();
    let whole = volume.check();
    for window_objects in [1, 2, 3] {
        let mut options =
            Options { store: Some(&volume.store), window_objects, ..Options::default() };
        assert_eq!(volume.check_with(&mut options), whole);
    }
}

#[test]
fn a_missing_root_is_written_anew() {
    mends("missing", |v| v.delete(Table::Entry, 0, b""), &[K::RootMissing]);
    mends(
        "damaged",
        |v| v.apply(vec![put(Table::Entry, 0, b"", Box::new([9]))]),
        &[K::RootMissing],
    );
}

#[test]
fn a_damaged_entry_of_a_file_is_kept_as_bytes() {
    let garbage: Box<[u8]> = Box::new(*b"\x01garbage");
    let volume = mends(
        "file",
        |v| v.apply(vec![put(Table::Entry, C, b"empty", garbage.clone())]),
        &[K::EntryDamaged],
    );
    let kept =
        volume.value(Table::Entry, lost_found(&volume), b"#100.damaged-record").expect("kept");
    let Entry::Inode(inode) = Entry::decode(&kept).unwrap() else { panic!() };
    assert_eq!(inode.data, Data::Inline(garbage.clone()));
}

/// A repair puts a damaged entry of a directory back in its place.
#[test]
fn repair_of_damaged_directory_entry() {
    let volume = mends(
        "directory",
        |v| v.apply(vec![put(Table::Entry, A, b"b", Box::new([77; 9]))]),
        &[K::EntryDamaged, K::DirStatWrong, K::SubdirDangling, K::DirectoryMissing],
    );
    assert_eq!(Entry::peek(&volume.value(Table::Entry, A, b"b").unwrap()), Ok((B, Kind::Dir)));
}

#[test]
fn a_lost_directory_is_found_again() {
    let lose = |v: &Volume| {
        v.delete(Table::Entry, A, b"b");
        v.delete(Table::DirId, B, b"");
        v.delete(Table::Subdir, A, &B.to_be_bytes());
        v.apply(vec![dir_stat(A, 3, -2, -2, 0)]);
    };
    let volume = mends("lost", lose, &[K::DirectoryMissing]);
    let record = volume.value(Table::Entry, lost_found(&volume), b"#17").expect("in lost+found");
    assert_eq!(Entry::peek(&record), Ok((B, Kind::Dir)));
}

#[test]
fn names_that_cannot_be_are_moved() {
    for name in [&b"x/y"[..], b"..", b"nul\0", &[b'n'; 256]] {
        let plant = |v: &Volume| {
            v.delete(Table::Entry, C, b"empty");
            v.apply(vec![put(
                Table::Entry,
                C,
                name,
                Entry::Inode(inode(EMPTY, Kind::File, 0, Data::None)).encode(),
            )]);
        };
        let volume = mends("name", plant, &[K::NameInvalid]);
        assert!(volume.value(Table::Entry, lost_found(&volume), b"#25").is_some());
    }
}

#[test]
fn two_records_of_one_file_get_numbers_of_their_own() {
    let older =
        Inode { change: 1, ..inode(PACKED, Kind::File, 4, Data::Inline((*b"same").into())) };
    let plant =
        |v: &Volume| v.apply(vec![entry(C, "twin", older.clone()), dir_stat(C, 1, 2, 0, 4)]);
    let volume = mends("twins", plant, &[K::InodeDuplicate]);
    assert_eq!(Entry::peek(&volume.value(Table::Entry, A, b"packed").unwrap()).unwrap().0, PACKED);
    assert_eq!(Entry::peek(&volume.value(Table::Entry, C, b"twin").unwrap()).unwrap().0, 100);
}

/// The check reports two chunked records of one file, and the repair leaves both alone.
#[test]
fn two_chunked_records_of_one_file() {
    let volume = Volume::new();
    volume.apply(vec![
        entry(C, "twin", inode(BIG, Kind::File, 0, Data::Chunked)),
        dir_stat(C, 1, 2, 0, 0),
    ]);
    let (left, _) = volume.repair();
    assert_eq!(left.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [K::InodeDuplicate]);
}

#[test]
fn a_directory_with_two_names_keeps_the_recorded_one() {
    let plant = |v: &Volume| {
        v.apply(vec![
            entry(ROOT, "b2", Inode { change: 99, ..dir(B) }),
            dir_stat(ROOT, 1, 2, 1, 0),
        ]);
    };
    let volume = mends("names", plant, &[K::DirectoryDuplicate, K::DirIdWrong, K::SubdirMissing]);
    assert!(volume.value(Table::Entry, ROOT, b"b2").is_none());
    assert!(volume.value(Table::Entry, A, b"b").is_some());
}

#[test]
fn hard_links() {
    let plant = |v: &Volume| v.apply(vec![link(C, "gone", 77), dir_stat(C, 1, 2, 0, 0)]);
    mends("dangling", plant, &[K::LinkDangling]);

    let recount = |nlink: u32| {
        let data = Data::Packed { range: range(3, 0, 30), visible: 30 };
        put(
            Table::Link,
            LINKED,
            &[],
            encode_inode(&Inode { nlink, ..inode(LINKED, Kind::File, 30, data) }),
        )
    };
    mends("count", |v| v.apply(vec![recount(5)]), &[K::LinkCountWrong]);

    let unnamed = |v: &Volume| {
        v.delete(Table::Entry, A, b"h1");
        v.delete(Table::Entry, ROOT, b"h2");
        v.apply(vec![dir_stat(A, 3, -2, -1, 0), dir_stat(ROOT, 1, 0, 0, 0)]);
    };
    let volume = mends("unreachable", unnamed, &[K::InodeUnreachable]);
    assert!(volume.value(Table::Entry, lost_found(&volume), b"#23").is_some());

    let volume = Volume::new();
    unnamed(&volume);
    volume.apply(vec![recount(0)]);
    assert_eq!(volume.kinds(), [K::OpenUnlinked]);
    assert_eq!(volume.check().1.errors(), 0);

    let wrong = Inode { nlink: 3, ..inode(EMPTY, Kind::File, 0, Data::None) };
    mends("only name", |v| v.apply(vec![entry(C, "empty", wrong.clone())]), &[K::LinkCountWrong]);
}

/// A policy that the root's record does not know of is noted there; one that cannot be read is told
/// of.
#[test]
fn policies_of_directories() {
    let with = |bytes: &[u8]| Inode { data: Data::Inline(bytes.into()), ..dir(B) };
    let plant = |v: &Volume| v.apply(vec![entry(A, "b", with(&[1, 1, 1, 2]))]);
    let volume = mends("unmarked", plant, &[K::PolicyUnmarked]);
    let root = volume.value(Table::Entry, 0, b"").unwrap();
    let Ok(Entry::Inode(root)) = Entry::decode(&root) else { panic!("no root") };
    assert!(root.policy().unwrap().in_use);

    let volume = Volume::new();
    volume.apply(vec![entry(A, "b", with(&[9]))]);
    assert_eq!(volume.kinds(), [K::InodeInvalid, K::PolicyUnmarked]);
}

/// What counts towards quotas is counted anew, and rows that cannot be read go.
#[test]
fn quotas_counted_anew() {
    let volume = Volume::new();
    let of = QuotaSubject::Dir(A);
    let row = |row: QuotaRow, value: Box<[u8]>| {
        let key = row.key();
        put(key.table, key.id, &key.suffix, value)
    };
    let record = row(QuotaRow::Record(of), QuotaLimits::default().encode());
    let share = |files| {
        let usage = QuotaUsage { files, bytes: 0 };
        row(QuotaRow::Share(of, 0), usage.encode())
    };
    volume.apply(vec![record, share(99)]);
    assert_eq!(volume.kinds(), [K::QuotaWrong]);
    assert_eq!(volume.repair().1, 1);
    assert_eq!(volume.check().0, []);
    volume.apply(vec![row(QuotaRow::Since(of), [9].into())]);
    assert_eq!(volume.kinds(), [K::QuotaWrong]);
    assert_eq!(volume.repair().1, 1);
    assert_eq!(volume.check().0, []);
}

/// A damaged row of a change feed goes, and readers of before it hear that.
#[test]
fn damaged_feed() {
    let volume = Volume::new();
    let row = |row: FeedRow, value: Box<[u8]>| put(Table::Feed, A, &row.suffix(), value);
    let at = |stamp| FeedPosition { stamp, ..FeedPosition::default() };
    let event = FeedEvent {
        kind: FeedEventKind::Create,
        ino: B,
        file: Kind::File,
        path: b"b"[..].into(),
        to: None,
    };
    let good = |stamp| row(FeedRow::Event(at(stamp)), event.encode());
    volume.apply(vec![row(FeedRow::Start, encode_feed_mark(5)), good(10), good(20)]);
    assert_eq!(volume.check().0, []);
    volume.apply(vec![row(FeedRow::Event(at(15)), [9].into())]);
    assert_eq!(volume.kinds(), [K::FeedDamaged]);
    volume.repair();
    assert_eq!(volume.check().0, []);
    let mark = |volume: &Volume| {
        decode_feed_mark(&volume.value(Table::Feed, A, &FeedRow::Trimmed(0).suffix()).unwrap())
    };
    assert_eq!(mark(&volume), Ok(15));
    // One that said from where on there are events: none may be missing.
    volume
        .apply(vec![row(FeedRow::Trimmed(0), [1].into()), put(Table::Feed, A, b"xyz", [].into())]);
    assert_eq!(volume.kinds(), [K::FeedDamaged]);
    volume.repair();
    assert_eq!(volume.check().0, []);
    assert_eq!(mark(&volume), Ok(20));
}

/// The check reports a damaged link record, and the repair touches nothing else.
#[test]
fn damaged_link_record() {
    let volume = Volume::new();
    volume.apply(vec![put(Table::Link, LINKED, &[], Box::new([1, 2]))]);
    let before = volume.all();
    let kinds = volume.kinds();
    assert!(kinds.contains(&K::LinkDamaged) && !kinds.contains(&K::LinkDangling), "{kinds:?}");
    volume.repair();
    assert_eq!(volume.all(), before, "accounts are left alone while a reference may be hidden");
}

#[test]
fn cycles_are_cut() {
    let plant = |v: &Volume| {
        v.delete(Table::Entry, A, b"b");
        v.delete(Table::Subdir, A, &B.to_be_bytes());
        v.apply(dir_rows(C, "loop", B));
        v.apply(vec![dir_stat(A, 3, -2, -2, 0), dir_stat(C, 1, 2, 1, 0)]);
    };
    let volume = mends("cycle", plant, &[K::DirectoryCycle]);
    assert!(volume.value(Table::Entry, lost_found(&volume), b"#17").is_some());
    let own = |v: &Volume| {
        v.delete(Table::Entry, B, b"c");
        v.delete(Table::Subdir, B, &C.to_be_bytes());
        v.apply(dir_rows(C, "self", C));
        v.apply(vec![dir_stat(B, 1, 1, 0, 200_000), dir_stat(C, 1, 2, 1, 0)]);
    };
    mends("self", own, &[K::DirectoryCycle]);
}

#[test]
fn entries_below_a_file_are_moved() {
    let plant = |v: &Volume| {
        v.apply(vec![entry(PACKED, "below", inode(40, Kind::File, 0, Data::None))]);
        v.apply(dir_rows(PACKED, "deep", 41));
        v.apply(vec![
            entry(41, "x", inode(42, Kind::File, 0, Data::None)),
            dir_stat(41, 0, 1, 0, 0),
        ]);
    };
    let volume = mends("below a file", plant, &[K::DirectoryMissing, K::DirectoryMissing]);
    assert!(volume.value(Table::Entry, lost_found(&volume), b"#40").is_some());
    assert!(volume.value(Table::Entry, 41, b"x").is_some());
}

#[test]
fn rows_that_follow_from_entries_are_derived_again() {
    mends("no place", |v| v.delete(Table::DirId, B, b""), &[K::DirIdWrong]);
    mends(
        "damaged place",
        |v| v.apply(vec![put(Table::DirId, B, &[], Box::new([7]))]),
        &[K::DirIdWrong],
    );
    let elsewhere = DirId { parent: ROOT, name: (*b"x").into() }.encode();
    mends(
        "wrong place",
        |v| v.apply(vec![put(Table::DirId, B, &[], elsewhere.clone())]),
        &[K::DirIdWrong],
    );
    mends(
        "place of nothing",
        |v| v.apply(vec![put(Table::DirId, 66, &[], elsewhere.clone())]),
        &[K::DirIdDangling],
    );
    mends("not listed", |v| v.delete(Table::Subdir, A, &B.to_be_bytes()), &[K::SubdirMissing]);
    let listed = |id: u64, child: u64| put(Table::Subdir, id, &child.to_be_bytes(), Box::new([]));
    mends("listed twice", |v| v.apply(vec![listed(ROOT, B)]), &[K::SubdirDangling]);
    mends("listed in nothing", |v| v.apply(vec![listed(66, 67)]), &[K::SubdirDangling]);
}

#[test]
fn sums_of_directories() {
    mends("wrong", |v| v.apply(vec![dir_stat(A, 0, 6, 2, 95)]), &[K::DirStatWrong]);
    mends("missing", |v| v.delete(Table::DirStat, C, &[0, 1]), &[K::DirStatWrong]);
    mends(
        "damaged",
        |v| v.apply(vec![put(Table::DirStat, C, &[0, 1], Box::new([1]))]),
        &[K::DirStatWrong],
    );
    mends("of nothing", |v| v.apply(vec![dir_stat(66, 0, 0, 0, 0)]), &[K::DirStatDangling]);
    let empty = |v: &Volume| {
        v.apply(dir_rows(ROOT, "e", 50));
        v.apply(vec![dir_stat(50, 0, 1, 0, 0), dir_stat(ROOT, 1, 2, 1, 0)]);
    };
    mends("of an empty directory", empty, &[K::DirStatWrong]);
}

#[test]
fn extents() {
    let chunk = |ino: u64, number: u64| {
        put(
            Table::Chunk,
            ino,
            &number.to_be_bytes(),
            encode_list(&[Extent::of_range(0, range(2, 0, 10))]),
        )
    };
    let account = || obj_stat(2, 0, 100_010);
    let volume =
        mends("of no file", |v| v.apply(vec![chunk(66, 1), account()]), &[K::ChunkDangling]);
    let adopted = volume.value(Table::Entry, lost_found(&volume), b"#66").expect("adopted");
    let Entry::Inode(adopted) = Entry::decode(&adopted).unwrap() else { panic!() };
    assert_eq!((adopted.size, adopted.data), ((64 << 20) + 10, Data::Chunked));
    mends("of a packed file", |v| v.apply(vec![chunk(PACKED, 0), account()]), &[K::ChunkDangling]);
    mends("beyond the end", |v| v.apply(vec![chunk(BIG, 1), account()]), &[K::ChunkBeyondEnd]);

    // Cut off and on their way out: they count as references, and nothing else is reported of them.
    let sweep = |ino: u64, number: u64| put(Table::Sweep, ino, &number.to_be_bytes(), Box::new([]));
    let volume = Volume::new();
    volume.apply(vec![
        chunk(BIG, 1),
        chunk(66, 0),
        obj_stat(2, 0, 100_020),
        sweep(BIG, 1),
        sweep(66, 0),
    ]);
    assert_eq!(volume.check().0, []);
    mends(
        "of a sweep that names no chunk",
        |v| v.apply(vec![put(Table::Sweep, BIG, b"", Box::new([]))]),
        &[K::RowUnknown],
    );

    let volume = Volume::new();
    volume.apply(vec![put(Table::Chunk, BIG, &0u64.to_be_bytes(), Box::new([1, 200]))]);
    let before = volume.all();
    let (left, done) = volume.repair();
    assert!(left.iter().any(|finding| finding.kind == K::ChunkDamaged) && done == 0);
    assert_eq!(volume.all(), before);
}

#[test]
fn what_is_kept_for_clients() {
    use kestrel_meta::txn::{
        SessionRecord, answer_key, encode_answer, encode_session, session_key,
    };
    use kestrel_types::request::{Answer, Outcome};
    use kestrel_types::wire::ClientId;
    let (client, gone) = (ClientId([7; 16]), ClientId([8; 16]));
    let record = SessionRecord { client, since: NOW, who: "host".into(), ended: None };
    let row =
        |key: kestrel_types::key::Key, value: Box<[u8]>| put(key.table, key.id, &key.suffix, value);
    let session = || row(session_key(client), encode_session(&record));
    let answer =
        |client, at, seq| row(answer_key(client, at), encode_answer(seq, &Ok(Answer::Done)));
    let moved = |ino, parent, name: &[u8]| {
        put(Table::Moved, ino, b"", DirId { parent, name: name.into() }.encode())
    };
    let healthy = Volume::new();
    healthy.apply(vec![
        session(),
        answer(client, 3, 3),
        answer(client, 4, 4100),
        moved(INLINE, A, b"inline"),
    ]);
    assert_eq!(healthy.check().0, []);

    mends(
        "a session that is damaged, and so an answer",
        |v| {
            v.apply(vec![answer(client, 3, 3), row(session_key(client), Box::new([9]))]);
        },
        &[K::TxnWrong, K::TxnWrong],
    );
    mends("an answer to nobody", |v| v.apply(vec![session(), answer(gone, 3, 3)]), &[K::TxnWrong]);
    mends(
        "an answer in the wrong slot",
        |v| v.apply(vec![session(), answer(client, 3, 4)]),
        &[K::TxnWrong],
    );
    mends(
        "a failure as an answer",
        |v| {
            let failure = encode_answer(3, &Err(Outcome::NeedGroups));
            v.apply(vec![session(), row(answer_key(client, 3), failure)]);
        },
        &[K::TxnWrong],
    );
    mends(
        "an answer that is damaged",
        |v| {
            v.apply(vec![session(), row(answer_key(client, 3), Box::new([1, 2]))]);
        },
        &[K::TxnWrong],
    );
    mends(
        "a key that is none",
        |v| v.apply(vec![put(Table::Txn, 5, b"x", Box::new([]))]),
        &[K::TxnWrong],
    );
    for (what, row) in [
        ("to another file's place", moved(INLINE, A, b"packed")),
        ("to no place", moved(INLINE, A, b"nothing")),
        ("of nothing", moved(66, A, b"inline")),
        ("that lets a file with a name have one", moved(INLINE, 0, b"")),
        ("that is damaged", put(Table::Moved, INLINE, b"", Box::new([9]))),
        ("with a key that is none", put(Table::Moved, INLINE, b"x", Box::new([]))),
    ] {
        mends(what, |v| v.apply(vec![row.clone()]), &[K::MovedWrong]);
    }
}

#[test]
fn extended_attributes() {
    mends(
        "of nothing",
        |v| v.apply(vec![put(Table::Xattr, 66, b"user.x", encode_xattr(b"v"))]),
        &[K::XattrDangling],
    );
    for ino in [PACKED, LINKED] {
        let plant =
            |v: &Volume| v.apply(vec![put(Table::Xattr, ino, b"user.x", encode_xattr(b"v"))]);
        mends("unmarked", plant, &[K::XattrUnmarked]);
    }
    let volume = Volume::new();
    volume.apply(vec![put(Table::Xattr, INLINE, b"user.x", Box::new([9]))]);
    assert_eq!(volume.kinds(), [K::XattrDamaged]);
}

#[test]
fn accounts_of_objects() {
    mends("wrong", |v| v.apply(vec![obj_stat(1, 0, 1)]), &[K::ObjStatWrong]);
    mends("missing", |v| v.delete(Table::ObjStat, 3, &[0, 1]), &[K::ObjStatWrong]);
    mends("of nothing", |v| v.apply(vec![obj_stat(9, 0, 4)]), &[K::ObjStatWrong]);
    mends(
        "damaged",
        |v| v.apply(vec![put(Table::ObjStat, 3, &[0, 1], Box::new([]))]),
        &[K::ObjStatWrong],
    );
}

#[test]
fn counters() {
    mends(
        "inodes",
        |v| v.apply(vec![put(Table::System, 0, INODES, encode_ceiling(20))]),
        &[K::SystemWrong],
    );
    mends("objects", |v| v.delete(Table::System, 0, b"objects"), &[K::SystemWrong]);
    let both = |v: &Volume| {
        v.delete(Table::System, 0, INODES);
        v.apply(vec![put(Table::Entry, C, b"empty", Box::new([]))]);
    };
    mends("before numbers are taken", both, &[K::SystemWrong, K::EntryDamaged]);
}

#[test]
fn volume_wide_records() {
    mends("no clock", |v| v.delete(Table::System, 0, b"clock"), &[K::SystemWrong]);
    mends(
        "clock behind",
        |v| v.apply(vec![put(Table::System, 0, b"clock", encode_ceiling(7))]),
        &[K::SystemWrong],
    );
    mends("no number of workers", |v| v.delete(Table::System, 0, b"shares"), &[K::SystemWrong]);
    mends("root's place", |v| v.delete(Table::DirId, ROOT, b""), &[K::DirIdWrong]);
    mends(
        "a share that nobody reads",
        |v| v.apply(vec![dir_stat(A, 9, 0, 0, 0)]),
        &[K::DirStatWrong],
    );
    mends("an account that nobody reads", |v| v.apply(vec![obj_stat(1, 9, 0)]), &[K::ObjStatWrong]);
    let usage = |files: i64, bytes: i64| {
        let sums = [files, 3, bytes].map(i64::to_be_bytes).concat();
        put(Table::System, 0, b"usage", [&[1], &sums[..]].concat().into())
    };
    let volume = Volume::new();
    volume.apply(vec![usage(7, 200_128)]);
    assert_eq!(volume.check().0, []);
    let leased = Volume::new();
    leased.apply(vec![put(Table::System, 0, b"lease", encode_ceiling(60_000_000_000))]);
    assert_eq!(leased.check().0, []);
    mends(
        "a damaged lease",
        |v| v.apply(vec![put(Table::System, 0, b"lease", [1].into())]),
        &[K::SystemWrong],
    );
    mends("wrong sums", |v| v.apply(vec![usage(8, 200_128)]), &[K::SystemWrong]);
    mends(
        "damaged sums",
        |v| v.apply(vec![put(Table::System, 0, b"usage", Box::new([9]))]),
        &[K::SystemWrong],
    );
}

#[test]
fn objects_in_the_store() {
    let volume = Volume::new();
    volume.store.delete(3).unwrap();
    let (findings, _) = volume.check();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].kind, findings[0].path.as_str()), (K::ObjectMissing, "/h2"));

    let volume = Volume::new();
    volume.store.tamper(1, |bytes| bytes.truncate(100));
    let (findings, _) = volume.check();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].kind, findings[0].path.as_str()), (K::ObjectShort, "/a/b/big"));

    let volume = Volume::new();
    volume.store.put(40, &[std::io::IoSlice::new(b"leaked")]).unwrap();
    volume.store.put(41, &[std::io::IoSlice::new(b"scheduled")]).unwrap();
    volume.apply(vec![put(Table::Reap, 5, &41u64.to_be_bytes(), Box::new([]))]);
    let (findings, totals) = volume.check();
    assert_eq!(findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [K::ObjectsLeaked]);
    assert_eq!((totals.leaked_objects, totals.leaked_bytes, totals.scheduled_objects), (1, 6, 1));
    assert_eq!(totals.errors(), 0);
}

#[test]
fn data_is_verified_when_asked() {
    let volume = Volume::new();
    write_frames(&volume);
    let read = ReadData { threads: 3, go_on: &|| true };
    let check = || {
        volume.check_with(&mut Options {
            store: Some(&volume.store),
            data: Some(read),
            ..Options::default()
        })
    };
    let (findings, totals) = check();
    assert_eq!((findings.len(), totals.verified_bytes), (0, 90 + 50 + 30 + 100_000));
    // One byte of a range of several frames, and one of two ranges that are read together.
    volume.store.tamper(2, |bytes| bytes[70_000] ^= 1);
    let (findings, totals) = check();
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].kind, findings[0].path.as_str()), (K::DataCorrupt, "/a/b/big"));
    assert_eq!(totals.verified_bytes, 90 + 50 + 30);
    volume.store.tamper(1, |bytes| bytes[5] ^= 1);
    let (findings, totals) = check();
    assert_eq!((findings.len(), totals.verified_bytes), (2, 50 + 30));
    assert_eq!(findings[0].path, "/a/packed");
    // What no caller waits for is not read.
    let none = ReadData { threads: 3, go_on: &|| false };
    let mut options =
        Options { store: Some(&volume.store), data: Some(none), ..Options::default() };
    assert_eq!(volume.check_with(&mut options).1.verified_bytes, 0);
}

/// Gives the fixture's objects the frames that its files refer to.
fn write_frames(volume: &Volume) {
    let frame_bytes = kestrel_types::range::FRAME_BYTES as usize;
    let write = for_each(&volume.engine, &mut |seen| {
        let Seen::Reference(Reference { range, .. }) = seen else { return };
        let data = vec![7; range.len as usize];
        let mut at = range.offset as usize;
        for (frame, part) in data.chunks(frame_bytes).enumerate() {
            let check =
                placed_check(crc32c::crc32c(part), range.object, range.offset, frame as u32);
            volume.store.tamper(range.object, |bytes| {
                bytes.resize(bytes.len().max(at + part.len() + 4), 0);
                bytes[at..at + part.len()].copy_from_slice(part);
                bytes[at + part.len()..at + part.len() + 4].copy_from_slice(&check.to_be_bytes());
            });
            at += part.len() + 4;
        }
    });
    write.unwrap();
}

#[test]
fn everything_at_once_is_mended() {
    let volume = Volume::new();
    volume.delete(Table::Entry, 0, b"");
    volume.delete(Table::Entry, ROOT, b"a");
    volume.delete(Table::System, 0, INODES);
    volume.apply(vec![
        put(Table::Entry, A, b"b", Box::new([77; 9])),
        put(Table::DirStat, A, &[0, 0], Box::new([])),
        put(Table::DirId, C, &[], Box::new([])),
        link(B, "gone", 78),
        put(Table::Xattr, 79, b"user.y", encode_xattr(b"")),
        obj_stat(1, 5, 17),
    ]);
    let (left, done) = volume.repair();
    assert!(done > 5 && left.is_empty(), "{left:#?}");
    assert_eq!(volume.check().1.errors(), 0);
    assert_eq!(Entry::peek(&volume.value(Table::Entry, ROOT, b"a").unwrap()), Ok((A, Kind::Dir)));
}

/// A snapshot, what a file was at it, and the account of that.
fn with_snapshot(volume: &Volume) -> SnapshotInfo {
    let name = |text: &[u8]| Name::new(text).unwrap();
    let info = SnapshotInfo {
        id: 500,
        dir: A,
        name: name(b"monday"),
        created: NOW,
        removing: false,
        cutting: false,
        hidden: false,
        holds: vec![name(b"backup")],
        clones: Vec::new(),
    };
    let then = inode(77, Kind::File, 90, Data::Packed { range: range(1, 0, 90), visible: 90 });
    let old = Entry::Inode(then).encode();
    let of = KeyRef::new(Table::Entry, A, b"gone");
    let rows = [(info.key(), info.encode()), (history_key(of, 500), encode_history(Some(&old)))];
    let stat = ObjStat { referenced: 90 }.encode();
    let shares = put(Table::System, 0, b"shares", encode_shares_with_history(4));
    let rows = rows.into_iter().map(|(key, value)| Mutation { key, value: Some(value) });
    let account = put(Table::ObjStat, 1, &HISTORY_SHARE.to_be_bytes(), stat);
    volume.apply(rows.chain([shares, account]).collect());
    info
}

/// Damage of snapshots and of history, and what becomes of it: these kinds are found, and these
/// are left after a repair.
fn history_damage(name: &str, plant: impl Fn(&Volume, &SnapshotInfo), found: &[K], left: &[K]) {
    let volume = Volume::new();
    let info = with_snapshot(&volume);
    plant(&volume, &info);
    assert_eq!(volume.kinds(), found, "{name}: {:#?}", volume.check().0);
    let remaining: Vec<K> = volume.repair().0.into_iter().map(|finding| finding.kind).collect();
    assert_eq!(remaining, left, "{name}");
    assert_eq!(volume.repair().1, 0, "{name}: a second repair has nothing to do");
    Node::open(Arc::new(volume.engine), Arc::new(SystemClock), NodeConfig::default()).unwrap();
}

/// Records of snapshots and rows of table `history`.
#[test]
fn history_of_snapshots() {
    let volume = Volume::new();
    let before = volume.check().1.referenced_bytes;
    with_snapshot(&volume);
    let (found, totals) = volume.check();
    assert_eq!((found, totals.referenced_bytes), (vec![], before + 90));

    let history = |suffix: &[u8]| history_key(KeyRef::new(Table::Entry, A, suffix), 500);
    let row = |key: Key, value: &[u8]| vec![Mutation { key, value: Some(value.into()) }];
    history_damage(
        "a damaged record",
        |v, info| v.apply(row(info.key(), b"x")),
        &[K::SystemWrong, K::HistoryDangling],
        &[],
    );
    history_damage(
        "no record",
        |v, info| v.delete(Table::System, 0, &info.key().suffix),
        &[K::HistoryDangling],
        &[],
    );
    history_damage(
        "a number of workers that keeps no program away",
        |v, _| v.apply(vec![put(Table::System, 0, b"shares", encode_ceiling(4))]),
        &[K::SystemWrong],
        &[],
    );
    history_damage(
        "an account",
        |v, _| v.delete(Table::ObjStat, 1, &HISTORY_SHARE.to_be_bytes()),
        &[K::ObjStatWrong],
        &[],
    );
    history_damage(
        "a clock behind a snapshot",
        |v, _| v.apply(vec![put(Table::System, 0, b"clock", encode_ceiling(400))]),
        &[K::SystemWrong],
        &[],
    );
    history_damage(
        "a key that is none",
        |v, _| v.apply(row(Key::new(Table::History, A, b"\x01x"), b"")),
        &[K::RowUnknown],
        &[],
    );
    let there_is_none = encode_history(None);
    for (name, value) in [("a value", &b"\x07"[..]), ("a row", &b"\x01\x01damaged"[..])] {
        history_damage(
            name,
            |v, _| v.apply(row(history(b"other"), value)),
            &[K::HistoryDamaged],
            &[K::HistoryDamaged],
        );
    }
    let volume = Volume::new();
    with_snapshot(&volume);
    volume.apply(row(history(b"other"), &there_is_none));
    assert_eq!(volume.kinds(), []);
}
