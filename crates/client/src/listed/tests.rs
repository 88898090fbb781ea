use kestrel_types::error::FsError;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Outcome, RenameFlags, XattrFlags};

use super::*;

const TTL: Duration = Duration::from_secs(1);
const DIR: InodeId = 9;
const READER: Caller = Caller { uid: 1, gid: 1, pid: 77 };

fn name(number: usize) -> Name {
    Name::new(format!("f{number:03}").as_bytes()).expect("a name")
}

fn inode(number: usize) -> Box<Inode> {
    Box::new(Inode::new(100 + number as u64, Kind::File, 5, 6))
}

fn page(numbers: std::ops::Range<usize>) -> Vec<(Name, Box<Inode>)> {
    numbers.map(|number| (name(number), inode(number))).collect()
}

struct Fixture {
    all: ListedAttributes,
    listing: Arc<Listing>,
    now: Instant,
}

impl Fixture {
    /// A thread was given twenty names in two batches.
    fn new() -> Self {
        let (all, listing) = (ListedAttributes::default(), Arc::<Listing>::default());
        all.set_ttl(TTL);
        all.lists(READER, DIR, &listing);
        listing.listed(None, Some(&name(9)));
        listing.listed(Some(&name(9)), Some(&name(19)));
        Self { all, listing, now: Instant::now() }
    }

    /// It has looked at one name, and has the page of the first ten.
    fn with_page() -> Self {
        let fixture = Self::new();
        assert_eq!(fixture.look(0), ListedLookup::Nothing);
        assert_eq!(fixture.look(1), ListedLookup::Page(None));
        fixture.all.begin(&fixture.listing, None, fixture.now);
        fixture.all.supply(&fixture.listing, page(0..10), fixture.now);
        fixture
    }

    fn look(&self, number: usize) -> ListedLookup {
        self.listing.look(READER, &name(number), self.now, TTL)
    }

    fn change(&self, op: &Op) {
        let change = self.all.changing(op).expect("pages are there");
        self.all.changed(&change, &Ok(Answer::Inode(inode(3))));
    }
}

#[test]
fn pages_begin_where_batches_did() {
    let fixture = Fixture::with_page();
    assert_eq!(fixture.look(3), ListedLookup::Inode(inode(3)));
    assert_eq!(fixture.look(12), ListedLookup::Page(Some(name(9))));
    assert_eq!(fixture.look(20), ListedLookup::Nothing, "it was not listed");
    fixture.all.begin(&fixture.listing, Some(name(9)), fixture.now);
    fixture.all.supply(&fixture.listing, page(10..12), fixture.now);
    assert_eq!(fixture.look(11), ListedLookup::Inode(inode(11)));
    assert_eq!(
        fixture.look(12),
        ListedLookup::Nothing,
        "the page did not bring it: it is not asked for again"
    );
}

#[test]
fn a_page_serves_its_reader_for_its_time() {
    let fixture = Fixture::with_page();
    let late = fixture.now + TTL;
    assert_eq!(fixture.listing.look(READER, &name(3), late, TTL), ListedLookup::Page(None));
    for other in
        [Caller { pid: 78, ..READER }, Caller { uid: 0, ..READER }, Caller { gid: 0, ..READER }]
    {
        assert_eq!(fixture.listing.look(other, &name(3), fixture.now, TTL), ListedLookup::Nothing);
    }
    // The handle is handed on to another thread.
    fixture.all.lists(Caller { pid: 78, ..READER }, DIR, &fixture.listing);
    assert_eq!(fixture.look(3), ListedLookup::Nothing);
}

#[test]
fn a_closed_directory_has_no_pages() {
    let fixture = Fixture::with_page();
    assert!(fixture.all.of(READER, DIR).is_some());
    fixture.all.closed(DIR, &fixture.listing);
    assert!(fixture.all.of(READER, DIR).is_none());
    assert_eq!(fixture.all.entries.load(Ordering::Relaxed), 0);
    assert_eq!(fixture.all.paged.load(Ordering::Relaxed), 0);
}

/// What is on its way to the node when the first page is asked for may be executed after the page
/// was read.
#[test]
fn changes_that_began_before_there_were_pages() {
    let fixture = Fixture::new();
    let change = fixture.all.changing(&Op::Unlink(PathRef::new(DIR, name(3)))).expect("a change");
    assert_eq!(
        [0, 1].map(|number| fixture.look(number)),
        [ListedLookup::Nothing, ListedLookup::Page(None)]
    );
    fixture.all.begin(&fixture.listing, None, fixture.now);
    fixture.all.supply(&fixture.listing, page(0..10), fixture.now);
    assert_eq!(fixture.look(3), ListedLookup::Inode(inode(3)));
    fixture.all.changed(&change, &Ok(Answer::Done));
    assert_eq!(fixture.look(3), ListedLookup::Nothing);
}

/// A page is given to a process that may search the directory and all above it: when that changes,
/// no page is used, nor one that is under way. The same holds where it is not known what was
/// changed.
#[test]
fn changes_of_who_may_search() {
    let dir = Inode::new(DIR, Kind::Dir, 0, 0);
    let failed = Outcome::Failed(FsError::new(libc::EIO, "no answer"));
    for reply in [Ok(Answer::Inode(Box::new(dir))), Err(failed)] {
        for set in [
            SetAttr { mode: Some(0o700), ..SetAttr::default() },
            SetAttr { uid: Some(3), ..SetAttr::default() },
            SetAttr { gid: Some(3), ..SetAttr::default() },
        ] {
            let fixture = Fixture::with_page();
            fixture.listing.reached(READER, (1, &name(30)), fixture.now);
            fixture.all.begin(&fixture.listing, Some(name(9)), fixture.now);
            let change =
                fixture.all.changing(&Op::SetAttr(InodeRef::by_id(DIR), set)).expect("a change");
            fixture.all.changed(&change, &reply);
            fixture.all.supply(&fixture.listing, page(10..20), fixture.now);
            assert!(
                [3, 13]
                    .iter()
                    .all(|number| !matches!(fixture.look(*number), ListedLookup::Inode(_)))
            );
            assert!(!fixture.listing.is_reached(READER, (1, &name(30)), fixture.now, TTL));
        }
    }
}

/// The handle of a directory is handed on while a page is under way, which was asked for in the
/// name of its former reader.
#[test]
fn a_page_of_a_former_reader() {
    let fixture = Fixture::with_page();
    fixture.all.begin(&fixture.listing, Some(name(9)), fixture.now);
    let other = Caller { pid: 78, ..READER };
    fixture.all.lists(other, DIR, &fixture.listing);
    fixture.all.supply(&fixture.listing, page(10..20), fixture.now);
    assert!(!matches!(
        fixture.listing.look(other, &name(13), fixture.now, TTL),
        ListedLookup::Inode(_)
    ));
}

#[test]
fn changes_here_are_not_answered_from_pages() {
    let changes = [
        Op::Unlink(PathRef::new(DIR, name(3))),
        Op::Rename(PathRef::new(8, name(30)), PathRef::new(DIR, name(3)), RenameFlags::default()),
        Op::SetAttr(InodeRef::by_id(103), SetAttr::default()),
        Op::SetXattr(
            InodeRef::by_id(103),
            b"user.a"[..].into(),
            Box::default(),
            XattrFlags::default(),
        ),
        Op::Link(InodeRef::by_id(103), PathRef::new(8, name(30))),
    ];
    for change in changes {
        let fixture = Fixture::with_page();
        fixture.all.told(READER, &inode(3), fixture.now);
        fixture.change(&change);
        assert_eq!(fixture.look(3), ListedLookup::Nothing, "{change:?}");
        assert_eq!(fixture.look(4), ListedLookup::Inode(inode(4)));
        assert_eq!(fixture.all.entries.load(Ordering::Relaxed), 9);
        let gone = !matches!(change, Op::Unlink(_) | Op::Rename(..));
        assert_eq!(fixture.all.is_plain(READER, 103, fixture.now), !gone);
    }
}

#[test]
fn changes_while_a_page_is_under_way_count() {
    let fixture = Fixture::with_page();
    fixture.all.begin(&fixture.listing, Some(name(9)), fixture.now);
    fixture.change(&Op::Unlink(PathRef::new(DIR, name(11))));
    fixture.change(&Op::SetAttr(InodeRef::by_id(112), SetAttr::default()));
    fixture.all.supply(&fixture.listing, page(10..20), fixture.now);
    assert_eq!(
        [11, 12].map(|number| fixture.look(number)),
        [ListedLookup::Nothing, ListedLookup::Nothing]
    );
    assert_eq!(fixture.look(13), ListedLookup::Inode(inode(13)));
}

#[test]
fn pages_before_a_lock_are_forgotten() {
    let fixture = Fixture::with_page();
    fixture.all.begin(&fixture.listing, Some(name(9)), fixture.now);
    fixture.all.forget_all();
    fixture.all.supply(&fixture.listing, page(10..20), fixture.now);
    assert_eq!(fixture.look(3), ListedLookup::Page(None));
    assert_ne!(fixture.look(13), ListedLookup::Inode(inode(13)));
    assert_eq!(fixture.all.entries.load(Ordering::Relaxed), 0);
}

#[test]
fn entries_are_bounded() {
    let fixture = Fixture::with_page();
    fixture.all.entries.store(ENTRIES_MAX - 3, Ordering::Relaxed);
    fixture.all.begin(&fixture.listing, Some(name(9)), fixture.now);
    fixture.all.supply(&fixture.listing, page(10..20), fixture.now);
    let there =
        (10..20).filter(|number| matches!(fixture.look(*number), ListedLookup::Inode(_))).count();
    assert_eq!(there, 3);
}

#[test]
fn attributes_are_absent_where_a_page_said_so() {
    let fixture = Fixture::with_page();
    fixture.all.told(READER, &inode(3), fixture.now);
    assert!(fixture.all.is_plain(READER, 103, fixture.now));
    assert!(!fixture.all.is_plain(READER, 104, fixture.now));
    assert!(!fixture.all.is_plain(Caller { pid: 78, ..READER }, 103, fixture.now));
    assert!(!fixture.all.is_plain(READER, 103, fixture.now + TTL));
    let with = Inode { xattrs: true, ..*inode(4) };
    fixture.all.told(READER, &with, fixture.now);
    assert!(!fixture.all.is_plain(READER, 104, fixture.now));
    // What is changed while there are no pages is not told.
    fixture.all.told(READER, &inode(3), fixture.now);
    fixture.all.closed(DIR, &fixture.listing);
    let other = Arc::<Listing>::default();
    fixture.all.lists(READER, 10, &other);
    fixture.all.begin(&other, None, fixture.now);
    assert!(!fixture.all.is_plain(READER, 103, fixture.now));
}
