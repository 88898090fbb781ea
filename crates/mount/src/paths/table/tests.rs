use kestrel_types::ids::ROOT;

use super::*;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn enter(table: &mut Table, parent: u64, text: &str) -> u64 {
    table.enter(parent, &name(text), None)
}

fn path(table: &Table, dir: u64) -> Option<(InodeId, String)> {
    let place = table.place(dir, name("x"))?;
    let dirs: Vec<_> = place.dirs.iter().map(|dir| String::from_utf8_lossy(dir).into_owned()).collect();
    Some((place.base, dirs.join("/")))
}

fn forget(table: &mut Table, id: u64, count: u64) -> Vec<InodeId> {
    let mut unbound = Vec::new();
    table.forget(id, count, &mut |ino| unbound.push(ino));
    unbound
}

fn rename(table: &mut Table, from: (u64, &str), to: (u64, &str), exchange: bool) {
    table.renamed((from.0, &name(from.1)), (to.0, &name(to.1)), (exchange, None), &mut |_| ());
}

#[test]
fn a_name_has_one_node_for_as_long_as_the_kernel_knows_it() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    assert!(is_path(a) && !is_path(ROOT));
    assert_eq!(enter(&mut table, ROOT, "a"), a);
    let b = enter(&mut table, a, "b");
    assert_eq!(path(&table, b), Some((ROOT, "a/b".into())));
    assert_eq!(table.target(b), Target::At(Place::from_path(ROOT, b"a/b").expect("a place")));
    assert_eq!(table.target(17), Target::Inode(17));

    forget(&mut table, a, 2);
    assert_eq!(table.len(), 2, "b lies below it, though its parent's FORGET was faster");
    forget(&mut table, b, 1);
    assert_eq!(table.len(), 0);
    assert_ne!(enter(&mut table, ROOT, "a"), a, "numbers are not used again");
    assert_eq!((table.target(a), table.place(a, name("x"))), (Target::Gone, None));
    assert!(forget(&mut table, a, 1).is_empty());
}

#[test]
fn a_rename_takes_the_subtree_with_it_and_detaches_what_it_replaced() {
    let mut table = Table::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    let (inner, old) = (enter(&mut table, a, "i"), enter(&mut table, b, "new"));
    rename(&mut table, (ROOT, "a"), (b, "new"), false);
    assert_eq!(path(&table, inner), Some((ROOT, "b/new/i".into())));
    assert_eq!((table.target(old), path(&table, old)), (Target::Gone, None));
    assert_ne!(enter(&mut table, ROOT, "a"), a);
    assert_eq!(table.find(b, &name("new")), Some((a, None)));
    forget(&mut table, old, 1);
    assert_eq!(
        table.find(b, &name("new")),
        Some((a, None)),
        "what is detached does not take the name with it"
    );
    rename(&mut table, (b, "new"), (b, "new"), false);
    assert_eq!(table.find(b, &name("new")), Some((a, None)), "two names of one file: nothing happens");
}

#[test]
fn an_exchange_swaps_nodes_of_which_one_may_be_no_directory() {
    let mut table = Table::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    rename(&mut table, (ROOT, "a"), (ROOT, "b"), true);
    assert_eq!((path(&table, a), path(&table, b)), (Some((ROOT, "b".into())), Some((ROOT, "a".into()))));
    rename(&mut table, (ROOT, "a"), (ROOT, "file"), true);
    assert_eq!(path(&table, b), Some((ROOT, "file".into())));
    assert_eq!(table.find(ROOT, &name("a")), None);
    rename(&mut table, (ROOT, "none"), (ROOT, "file"), false);
    assert_eq!(table.target(b), Target::Gone, "a file came in its place");
}

#[test]
fn what_is_moved_away_does_not_keep_its_old_parent() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    let inner = enter(&mut table, a, "i");
    forget(&mut table, a, 1);
    rename(&mut table, (a, "i"), (ROOT, "i"), false);
    assert_eq!(table.len(), 1);
    assert_eq!(path(&table, inner), Some((ROOT, "i".into())));
}

#[test]
fn what_is_open_is_its_directory_wherever_that_is() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    let b = enter(&mut table, a, "b");
    assert_eq!(table.hold(a, 70, false), Held::Newly);
    assert_eq!(table.hold(a, 70, false), Held::Already);
    assert_eq!(table.hold(a, 71, false), Held::Not);
    assert_eq!(path(&table, b), Some((70, "b".into())));
    assert_eq!(table.target(a), Target::Inode(70));
    assert_eq!(table.enter(ROOT, &name("a"), Some(70)), a);
    let other = table.enter(ROOT, &name("a"), Some(71));
    assert_ne!(other, a, "the name means another directory now");
    assert_eq!(path(&table, b), Some((70, "b".into())));
    assert_eq!((table.closed(a), table.closed(a)), (None, None), "it has nothing but its identity");
    assert_eq!(table.target(a), Target::Inode(70));
    forget(&mut table, b, 1);
    assert_eq!(forget(&mut table, a, 2), [70]);
    assert_eq!(table.find(ROOT, &name("a")), Some((other, None)));
}

#[test]
fn what_is_closed_is_its_name_again_unless_somebody_may_work_in_it() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    assert_eq!(table.hold(a, 70, false), Held::Newly);
    assert_eq!(table.closed(a), Some(70));
    assert_eq!(path(&table, a), Some((ROOT, "a".into())));
    assert_eq!(table.hold(a, 71, true), Held::Newly);
    assert_eq!(table.hold(a, 71, false), Held::Already);
    assert_eq!(table.closed(a), None);
    assert_eq!(table.target(a), Target::Inode(71));
    assert_eq!(table.hold(99, 1, true), Held::Not);
}

#[test]
fn an_operation_proves_the_directories_it_went_through() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    let b = enter(&mut table, a, "b");
    let c = enter(&mut table, b, "c");
    table.verified(b, 5);
    assert_eq!([a, b, c].map(|node| table.verified_ms(node)), [5, 5, 0]);
    table.hold(b, 70, false);
    table.verified(c, 9);
    assert_eq!([a, b, c].map(|node| table.verified_ms(node)), [5, 5, 9], "c by way of an identity");
}

#[test]
fn long_paths_are_known_as_such() {
    let mut table = Table::default();
    let long = "n".repeat(255);
    let mut at = ROOT;
    let mut depth = 0;
    while !table.is_long(at) {
        at = enter(&mut table, at, &long);
        depth += 1;
    }
    assert_eq!(depth, LONG_PATH_BYTES.div_ceil(256));
    table.hold(at, 70, true);
    let below = enter(&mut table, at, &long);
    assert!(!table.is_long(below));
}

#[test]
fn only_what_nothing_needs_is_droppable() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    let b = enter(&mut table, a, "b");
    let c = enter(&mut table, a, "c");
    table.hold(c, 70, false);
    for turn in 0..5 {
        assert_eq!(table.droppable(9, turn), [b]);
    }
    assert!(table.droppable(0, 1).is_empty() && Table::default().droppable(9, 1).is_empty());
}

#[test]
fn attributes_are_those_last_seen() {
    let mut table = Table::default();
    let a = enter(&mut table, ROOT, "a");
    assert!(table.last_attr(a).is_none());
    table.seen(a, &Attr { ino: 70, ..Attr::default() });
    assert_eq!(table.last_attr(a).map(|attr| attr.ino), Some(70));
    table.seen(99, &Attr::default());
    assert!(table.last_attr(99).is_none());
}

#[test]
fn what_is_removed_here_stays_what_it_was() {
    let mut table = Table::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    assert!(table.detach(ROOT, &name("a"), Some(70)));
    assert_eq!((table.target(a), table.is_bound(70)), (Target::Inode(70), true));
    assert!(!table.detach(ROOT, &name("a"), Some(70)), "there is no such name any more");
    assert_eq!(table.hold(b, 71, false), Held::Newly);
    let replaced = |table: &mut Table, ino| {
        table.renamed((ROOT, &name("c")), (ROOT, &name("b")), (false, Some(ino)), &mut |_| ())
    };
    assert!(!replaced(&mut table, 72), "it was bound before");
    assert_eq!(table.target(b), Target::Inode(71));
    assert_eq!(forget(&mut table, a, 1), [70]);
    assert!(!table.is_bound(70) && table.is_bound(71));
}

#[test]
fn names_are_lent_where_everybody_may_search() {
    let mut table = Table::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    let c = enter(&mut table, a, "c");
    let dir = |mode| Attr { ino: 70, mode: libc::S_IFDIR | mode, ..Attr::default() };
    assert_eq!(table.lend(c, 100), Lent::Unknown(a));
    assert_eq!(table.lend(a, 100), Lent::Unknown(ROOT));
    table.seen(ROOT, &dir(0o755));
    assert_eq!((table.lend(a, 100), table.lend(c, 100)), (Lent::Yes, Lent::Unknown(a)));
    assert!(table.claim_look(a) && !table.claim_look(a));
    table.seen(a, &dir(0o755));
    assert_eq!(table.lend(c, 110), Lent::Yes);
    assert_eq!(table.changed(a, &dir(0o750), 60), Some(110));
    assert_eq!(table.lend(c, 200), Lent::No);
    // Of a directory further up, too: what is below is believed as long as what is in it.
    assert_eq!(table.changed(ROOT, &dir(0o700), 60), Some(110));
    assert_eq!(table.changed(a, &dir(0o755), 60), None);
    assert_eq!(table.lend(c, 200), Lent::No);
    table.changed(ROOT, &dir(0o755), 60);
    assert_eq!(table.changed(b, &dir(0o750), 60), None, "nobody was lent a name in it");
    assert_eq!(table.changed(99, &dir(0), 60), None);

    // What was lent goes along into a directory that not everybody may search.
    let lent = |table: &Table, parent, text| table.lent_in_private(parent, &name(text), 60);
    assert_eq!(lent(&table, ROOT, "a"), None, "everybody may search the root");
    rename(&mut table, (ROOT, "a"), (b, "a"), false);
    assert_eq!(lent(&table, b, "a"), Some(110), "and what is below");
    assert_eq!(table.lent_in_private(b, &name("a"), 110), None, "it is over");
    assert_eq!(lent(&table, b, "nothing"), None);
    table.seen(b, &dir(0o755));
    assert_eq!(lent(&table, b, "a"), None);
}
