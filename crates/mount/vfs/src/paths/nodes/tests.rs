use std::cell::RefCell;

use kestrel_types::ids::ROOT;

use super::*;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

/// Directories that a table's nodes are bound to, as it says.
#[derive(Default)]
struct Bound(RefCell<Vec<InodeId>>);

impl Directories for Bound {
    fn bound(&self, ino: InodeId) {
        self.0.borrow_mut().push(ino);
    }

    fn let_go(&self, ino: InodeId) {
        let mut all = self.0.borrow_mut();
        let at = all.iter().position(|bound| *bound == ino);
        all.remove(at.expect("it was bound"));
    }
}

impl Bound {
    fn are(&self, inodes: &[InodeId]) {
        let mut all = self.0.borrow().clone();
        all.sort_unstable();
        assert_eq!(all, inodes);
    }
}

/// Where nobody looks.
struct Nobody;

impl Directories for Nobody {
    fn bound(&self, _: InodeId) {}

    fn let_go(&self, _: InodeId) {}
}

fn enter(table: &mut PathNodes, parent: u64, text: &str) -> u64 {
    table.enter(parent, &name(text), None, &Nobody)
}

fn path(table: &PathNodes, dir: u64) -> Option<(InodeId, String)> {
    let place = table.place(dir, name("x"))?;
    let dirs: Vec<_> =
        place.dirs.iter().map(|dir| String::from_utf8_lossy(dir).into_owned()).collect();
    Some((place.base, dirs.join("/")))
}

fn forget(table: &mut PathNodes, id: u64, count: u64) {
    table.forget(id, count, &Nobody);
}

fn rename(table: &mut PathNodes, from: (u64, &str), to: (u64, &str), exchange: bool) {
    table.renamed((from.0, &name(from.1)), (to.0, &name(to.1)), (exchange, None), &Nobody);
}

/// A name has one node for as long as the kernel knows it.
#[test]
fn node_of_a_name() {
    let mut table = PathNodes::default();
    let a = enter(&mut table, ROOT, "a");
    assert!(is_path(a) && !is_path(ROOT));
    assert_eq!(enter(&mut table, ROOT, "a"), a);
    let b = enter(&mut table, a, "b");
    assert_eq!(path(&table, b), Some((ROOT, "a/b".into())));
    assert_eq!(table.target(b), NodeTarget::At(PathRef::from_path(ROOT, b"a/b").expect("a place")));
    assert_eq!(table.target(17), NodeTarget::Inode(17));

    forget(&mut table, a, 2);
    assert_eq!(table.len(), 2, "b lies below it, though its parent's FORGET was faster");
    forget(&mut table, b, 1);
    assert_eq!(table.len(), 0);
    assert_ne!(enter(&mut table, ROOT, "a"), a, "numbers are not used again");
    assert_eq!((table.target(a), table.place(a, name("x"))), (NodeTarget::Gone, None));
    forget(&mut table, a, 1);
}

/// A rename takes the subtree with it, and detaches what it replaced.
#[test]
fn rename_of_a_subtree() {
    let mut table = PathNodes::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    let (inner, old) = (enter(&mut table, a, "i"), enter(&mut table, b, "new"));
    rename(&mut table, (ROOT, "a"), (b, "new"), false);
    assert_eq!(path(&table, inner), Some((ROOT, "b/new/i".into())));
    assert_eq!((table.target(old), path(&table, old)), (NodeTarget::Gone, None));
    assert_ne!(enter(&mut table, ROOT, "a"), a);
    assert_eq!(table.find(b, &name("new")), Some((a, None)));
    forget(&mut table, old, 1);
    assert_eq!(
        table.find(b, &name("new")),
        Some((a, None)),
        "what is detached does not take the name with it"
    );
    rename(&mut table, (b, "new"), (b, "new"), false);
    assert_eq!(
        table.find(b, &name("new")),
        Some((a, None)),
        "two names of one file: nothing happens"
    );
}

/// An exchange swaps two nodes, of which one may be no directory.
#[test]
fn exchange_of_a_directory_and_a_file() {
    let mut table = PathNodes::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    rename(&mut table, (ROOT, "a"), (ROOT, "b"), true);
    assert_eq!(
        (path(&table, a), path(&table, b)),
        (Some((ROOT, "b".into())), Some((ROOT, "a".into())))
    );
    rename(&mut table, (ROOT, "a"), (ROOT, "file"), true);
    assert_eq!(path(&table, b), Some((ROOT, "file".into())));
    assert_eq!(table.find(ROOT, &name("a")), None);
    rename(&mut table, (ROOT, "none"), (ROOT, "file"), false);
    assert_eq!(table.target(b), NodeTarget::Gone, "a file came in its place");
}

#[test]
fn what_is_moved_away_does_not_keep_its_old_parent() {
    let mut table = PathNodes::default();
    let a = enter(&mut table, ROOT, "a");
    let inner = enter(&mut table, a, "i");
    forget(&mut table, a, 1);
    rename(&mut table, (a, "i"), (ROOT, "i"), false);
    assert_eq!(table.len(), 1);
    assert_eq!(path(&table, inner), Some((ROOT, "i".into())));
}

#[test]
fn what_is_open_is_its_directory_wherever_that_is() {
    let (mut table, bound) = (PathNodes::default(), Bound::default());
    let a = enter(&mut table, ROOT, "a");
    let b = enter(&mut table, a, "b");
    assert!(table.hold(a, 70, false, &bound) && table.hold(a, 70, false, &bound));
    assert!(!table.hold(a, 71, false, &bound));
    assert_eq!(path(&table, b), Some((70, "b".into())));
    assert_eq!(table.target(a), NodeTarget::Inode(70));
    assert_eq!(table.enter(ROOT, &name("a"), Some(70), &bound), a);
    let other = table.enter(ROOT, &name("a"), Some(71), &bound);
    assert_ne!(other, a, "the name means another directory now");
    assert_eq!(path(&table, b), Some((70, "b".into())));
    table.closed(a, &bound);
    table.closed(a, &bound);
    assert_eq!(table.target(a), NodeTarget::Inode(70), "it has nothing but its identity");
    forget(&mut table, b, 1);
    bound.are(&[70]);
    table.forget(a, 2, &bound);
    bound.are(&[]);
    assert_eq!(table.find(ROOT, &name("a")), Some((other, None)));
}

/// A closed directory is addressed by its name again, unless a process may work in it.
#[test]
fn node_of_a_closed_directory() {
    let (mut table, bound) = (PathNodes::default(), Bound::default());
    let a = enter(&mut table, ROOT, "a");
    assert!(table.hold(a, 70, false, &bound));
    table.closed(a, &bound);
    bound.are(&[]);
    assert_eq!(path(&table, a), Some((ROOT, "a".into())));
    assert!(table.hold(a, 70, true, &bound) && table.hold(a, 70, false, &bound));
    table.closed(a, &bound);
    assert_eq!(table.target(a), NodeTarget::Inode(70));
    bound.are(&[70]);
    assert!(!table.hold(99, 1, true, &bound));
}

#[test]
fn the_kernel_is_told_of_one_directory_for_a_node() {
    let (mut table, bound) = (PathNodes::default(), Bound::default());
    let attr = |ino| DirAttr { attr: Attr { ino, ..Attr::default() }, is_public: false };
    let a = enter(&mut table, ROOT, "a");
    assert!(table.seen(a, &attr(70)) && !table.seen(a, &attr(71)) && table.seen(a, &attr(70)));
    assert_eq!(table.last_attr(a).map(|attr| attr.ino), Some(70));
    // An open that was answered before the name changed; its OPENDIR comes after the next lookup.
    assert!(!table.hold(a, 71, false, &bound));
    assert_eq!(enter(&mut table, ROOT, "a"), a, "in mid-path it is whatever is there");
    bound.are(&[]);
    let other = table.enter(ROOT, &name("a"), Some(71), &bound);
    assert_ne!(other, a);
    bound.are(&[70]);
    assert_eq!(
        (table.target(a), path(&table, other)),
        (NodeTarget::Inode(70), Some((ROOT, "a".into())))
    );
    assert!(table.hold(a, 70, false, &bound) && !table.hold(other, 70, true, &bound));
    assert!(table.hold(other, 71, true, &bound));
    bound.are(&[70, 71]);

    // Attributes were asked for by name, and are those of another.
    let e = table.enter(ROOT, &name("e"), Some(90), &bound);
    assert!(!table.seen(e, &attr(91)));
    table.displaced(e, &bound);
    assert_eq!((table.target(e), table.find(ROOT, &name("e"))), (NodeTarget::Inode(90), None));
    table.displaced(e, &bound);
    table.forget(e, 1, &bound);

    // What was removed is not what it was here.
    let c = table.enter(ROOT, &name("c"), Some(80), &bound);
    table.detach(ROOT, &name("c"), Some(81), &bound);
    assert_eq!(table.target(c), NodeTarget::Inode(80));
    let d = enter(&mut table, ROOT, "d");
    table.detach(ROOT, &name("d"), Some(82), &bound);
    assert!(!table.hold(d, 83, false, &bound) && table.hold(d, 82, false, &bound));
    bound.are(&[70, 71, 80, 82]);
}

/// An operation verifies the directories that its path went through.
#[test]
fn directories_verified_by_an_operation() {
    let mut table = PathNodes::default();
    let a = enter(&mut table, ROOT, "a");
    let b = enter(&mut table, a, "b");
    let c = enter(&mut table, b, "c");
    table.verified(b, 5);
    assert_eq!([a, b, c].map(|node| table.verified_ms(node)), [5, 5, 0]);
    table.hold(b, 70, false, &Nobody);
    table.verified(c, 9);
    assert_eq!([a, b, c].map(|node| table.verified_ms(node)), [5, 5, 9], "c by way of an identity");
}

#[test]
fn long_paths_are_known_as_such() {
    let mut table = PathNodes::default();
    let long = "n".repeat(255);
    let mut at = ROOT;
    let mut depth = 0;
    while !table.is_long(at) {
        at = enter(&mut table, at, &long);
        depth += 1;
    }
    assert_eq!(depth, LONG_PATH_BYTES.div_ceil(256));
    table.hold(at, 70, true, &Nobody);
    let below = enter(&mut table, at, &long);
    assert!(!table.is_long(below));
}

#[test]
fn only_what_nothing_needs_is_droppable() {
    let mut table = PathNodes::default();
    let a = enter(&mut table, ROOT, "a");
    let b = enter(&mut table, a, "b");
    let c = enter(&mut table, a, "c");
    table.hold(c, 70, false, &Nobody);
    for turn in 0..5 {
        assert_eq!(table.droppable(9, turn), [b]);
    }
    assert!(table.droppable(0, 1).is_empty() && PathNodes::default().droppable(9, 1).is_empty());
}

#[test]
fn attributes_are_those_last_seen() {
    let mut table = PathNodes::default();
    let a = enter(&mut table, ROOT, "a");
    assert!(table.last_attr(a).is_none());
    let attr = |ino| DirAttr { attr: Attr { ino, ..Attr::default() }, is_public: false };
    table.seen(a, &attr(70));
    assert_eq!(table.last_attr(a).map(|attr| attr.ino), Some(70));
    table.seen(99, &attr(0));
    assert!(table.last_attr(99).is_none());
}

#[test]
fn what_is_removed_here_stays_what_it_was() {
    let (mut table, bound) = (PathNodes::default(), Bound::default());
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    table.detach(ROOT, &name("a"), Some(70), &bound);
    assert_eq!((table.target(a), table.is_bound(70)), (NodeTarget::Inode(70), true));
    table.detach(ROOT, &name("a"), Some(72), &bound);
    bound.are(&[70]);
    assert!(table.hold(b, 71, false, &bound));
    table.renamed((ROOT, &name("c")), (ROOT, &name("b")), (false, Some(72)), &bound);
    assert_eq!(table.target(b), NodeTarget::Inode(71), "it was bound before");
    table.forget(a, 1, &bound);
    bound.are(&[71]);
    assert!(!table.is_bound(70) && table.is_bound(71));
}

#[test]
fn names_are_lent_where_everybody_may_search() {
    let mut table = PathNodes::default();
    let (a, b) = (enter(&mut table, ROOT, "a"), enter(&mut table, ROOT, "b"));
    let c = enter(&mut table, a, "c");
    let dir = |mode: u32| DirAttr {
        attr: Attr { ino: 70, mode: libc::S_IFDIR | mode, ..Attr::default() },
        is_public: mode & 0o111 == 0o111,
    };
    assert_eq!(table.lend(c, 100), NameTrust::Unknown(a));
    assert_eq!(table.lend(a, 100), NameTrust::Unknown(ROOT));
    table.seen(ROOT, &dir(0o755));
    assert_eq!((table.lend(a, 100), table.lend(c, 100)), (NameTrust::Yes, NameTrust::Unknown(a)));
    assert!(table.claim_look(a) && !table.claim_look(a));
    table.seen(a, &dir(0o755));
    assert_eq!(table.lend(c, 110), NameTrust::Yes);
    assert_eq!(table.changed(a, &dir(0o750), 60), Some(110));
    assert_eq!(table.lend(c, 200), NameTrust::No);
    // Of a directory further up, too: what is below is believed as long as what is in it.
    assert_eq!(table.changed(ROOT, &dir(0o700), 60), Some(110));
    assert_eq!(table.changed(a, &dir(0o755), 60), None);
    assert_eq!(table.lend(c, 200), NameTrust::No);
    table.changed(ROOT, &dir(0o755), 60);
    assert_eq!(table.changed(b, &dir(0o750), 60), None, "nobody was lent a name in it");
    assert_eq!(table.changed(99, &dir(0), 60), None);

    // What was lent goes along into a directory that not everybody may search.
    let lent = |table: &PathNodes, parent, text| table.lent_in_private(parent, &name(text), 60);
    assert_eq!(lent(&table, ROOT, "a"), None, "everybody may search the root");
    rename(&mut table, (ROOT, "a"), (b, "a"), false);
    assert_eq!(lent(&table, b, "a"), Some(110), "and what is below");
    assert_eq!(table.lent_in_private(b, &name("a"), 110), None, "it is over");
    assert_eq!(lent(&table, b, "nothing"), None);
    table.seen(b, &dir(0o755));
    assert_eq!(lent(&table, b, "a"), None);
}

/// The number of a node says which directory it was made for, to a later mount too, unless that was
/// not known then.
#[test]
fn numbers_of_nodes_outlast_the_table() {
    let mut table = PathNodes::starting(1_000);
    let known = table.enter(ROOT, &name("known"), Some(300), &Nobody);
    let faked = enter(&mut table, known, "faked");
    // Another node has the number already.
    let twice = table.enter(ROOT, &name("twice"), Some(300), &Nobody);
    assert_eq!([known, faked, twice].map(directory_of), [Some(300), None, None]);
    assert_eq!(table.directory_of(twice), Some(300), "it was told");
    let later = PathNodes::starting(2_000);
    assert_eq!([known, faked, twice].map(|id| later.directory_of(id)), [Some(300), None, None]);
}

/// A directory that is made where the kernel tried to walk before gets a number that contains its
/// own, though the kernel has not told yet that it forgot the node of the walk. What still walks
/// through that node reaches the directory. A node that an operation went through keeps its number.
#[test]
fn nodes_of_walks_in_vain_make_way() {
    let (mut table, bound) = (PathNodes::starting(1_000), Bound::default());
    let tried = table.enter(ROOT, &name("a"), None, &bound);
    let below = table.enter(tried, &name("b"), None, &bound);
    let made = table.enter(ROOT, &name("a"), Some(300), &bound);
    assert_eq!((directory_of(tried), directory_of(made)), (None, Some(300)));
    assert_eq!(
        (table.target(tried), path(&table, below)),
        (NodeTarget::Inode(300), Some((300, "b".into())))
    );
    for node in [tried, below] {
        table.forget(node, 1, &bound);
    }
    bound.are(&[]);

    let used = table.enter(ROOT, &name("used"), None, &bound);
    table.verified(used, 5);
    assert_eq!(table.enter(ROOT, &name("used"), Some(400), &bound), used);
    assert_eq!(table.enter(ROOT, &name("used"), Some(400), &bound), used, "also once it was told");
}

/// What the kernel found by a handle becomes the node of the name that is looked up for it, and
/// keeps its directory.
#[test]
fn nodes_found_by_handle_get_their_names() {
    let (mut table, bound) = (PathNodes::starting(1_000), Bound::default());
    let id = node_of(300).expect("it fits");
    assert_eq!(table.by_handle(300, Some(id), &bound), Some(id));
    assert_eq!(table.target(id), NodeTarget::Inode(300));
    assert_eq!(table.name_of(id), None);
    let above = table.by_handle(200, None, &bound).expect("the directory above");
    assert_eq!(table.enter(ROOT, &name("above"), Some(200), &bound), above);
    assert_eq!(table.enter(above, &name("dir"), Some(300), &bound), id);
    assert_eq!(table.name_of(id), Some((above, name("dir"))));
    bound.are(&[200, 300]);
    // A node that is another directory's is refused, and nothing is counted.
    assert_eq!(table.by_handle(301, Some(id), &bound), None);
    for (node, count) in [(id, 2), (above, 2)] {
        table.forget(node, count, &bound);
    }
    assert_eq!(table.len(), 0);
    bound.are(&[]);
}
