//! What differs between two moments of a tree.
//!
//! Directories are told apart by their inode numbers, entries by (directory, name): what a moved
//! directory holds has not changed by the move. Entries that only one tree has are matched by inode
//! number at the end; a pair is a rename.
//!
//! [`diff`] takes what nodes tell of directories that both trees have, and reads nothing else but
//! what is below directories that only one tree has. It takes time and memory in proportion to what
//! differs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;

/// One of the two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first one.
    Before,
    /// The second one.
    After,
}

/// What two moments of an inode are compared by. The access time is none of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InodeSummary {
    /// Mode, owner, group, device, flags.
    pub attributes: [u64; 5],
    /// Bytes.
    pub size: u64,
    /// Names of a file.
    pub nlink: u32,
    /// Stamp of the last change of the content.
    pub data_change: u64,
    /// Last change of content, nanoseconds. A directory's moves with its entries.
    pub mtime: i64,
    /// Last change of attributes, nanoseconds. A directory's moves with its entries.
    pub ctime: i64,
}

/// An entry of a directory at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its inode's number.
    pub ino: InodeId,
    /// Its type.
    pub kind: Kind,
    /// Its inode; none of a directory, which comes with its own listing.
    pub inode: Option<InodeSummary>,
}

/// A directory at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirListing {
    /// The directory itself.
    pub own: InodeSummary,
    /// Its entries, in order of their names.
    pub entries: Vec<ListedEntry>,
}

/// The two trees.
pub trait Trees {
    /// Why one cannot be read.
    type Error;

    /// A directory of one of them.
    ///
    /// # Errors
    /// If it cannot be read.
    fn list(&mut self, side: Side, dir: InodeId) -> Result<DirListing, Self::Error>;
}

/// A name in one of the trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Path from the common directory, without a slash at its ends; empty for that directory.
    pub path: Box<[u8]>,
    /// The directory that has the name; the common directory's own number for itself.
    pub dir: InodeId,
    /// The name there.
    pub name: Box<[u8]>,
}

/// What has become of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Only the second tree has it.
    Created,
    /// Only the first tree has it.
    Removed,
    /// Both have it, with the same inode, which has changed.
    Changed {
        /// Its bytes have, or may have.
        content: bool,
        /// Its attributes have: mode, owner, group, times, extended attributes.
        attributes: bool,
    },
    /// The inode had this name in the first tree.
    Renamed(Place),
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The name: in the second tree, of what was removed in the first one.
    pub place: Place,
    /// What has become of it.
    pub change: Change,
    /// Type.
    pub kind: Kind,
    /// Inode number.
    pub ino: InodeId,
}

/// A directory that both trees have, and those of its names that may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedListing {
    /// Its number.
    pub dir: InodeId,
    /// Its path in the first tree.
    pub path_before: Box<[u8]>,
    /// Its path in the second tree.
    pub path_after: Box<[u8]>,
    /// It has another name, or another directory above.
    pub renamed: bool,
    /// The directory in the first tree, with the names that may have changed.
    pub before: DirListing,
    /// The directory in the second tree, likewise.
    pub after: DirListing,
}

/// All differences, sorted by path, where `changed` has all directories of which a name or the
/// directory itself may have changed, or that were moved, each once. `trees` are asked for what is
/// below directories that only one of them has.
///
/// # Errors
/// If one of the trees cannot be read.
pub fn diff<T: Trees>(
    trees: &mut T,
    changed: &[ChangedListing],
) -> Result<Vec<Difference>, T::Error> {
    let dirs = changed.iter().map(|listing| listing.dir);
    let mut comparison = Comparison { both: dirs.collect(), ..Comparison::default() };
    for listing in changed {
        let ChangedListing { dir, path_before, path_after, renamed, before, after } = listing;
        let pair = Pair {
            dir: *dir,
            before: path_before.as_ref().into(),
            after: path_after.as_ref().into(),
            renamed: *renamed,
        };
        comparison.compare(&pair, before, after);
    }
    comparison.compare_rest(trees)?;
    Ok(comparison.finish())
}

/// A directory that both trees have, with its path in each.
struct Pair {
    dir: InodeId,
    before: Arc<[u8]>,
    after: Arc<[u8]>,
    /// Its own name, or the directory above, is another one.
    renamed: bool,
}

/// An entry that one tree has under this name and the other has not.
struct Loose {
    place: Place,
    kind: Kind,
    ino: InodeId,
    inode: Option<InodeSummary>,
}

/// A directory that was read for being below one that only one tree has.
struct ReadDir {
    /// The directory above.
    parent: InodeId,
    path: Arc<[u8]>,
    listing: DirListing,
}

type ReadDirs = HashMap<InodeId, ReadDir>;

#[derive(Default)]
struct Comparison {
    gone: Vec<Loose>,
    new: Vec<Loose>,
    changed: Vec<Difference>,
    /// Directories that both trees have and that are compared as pairs, though they were moved.
    both: HashSet<InodeId>,
}

impl Comparison {
    /// Compares a directory at both moments, without what is below the directories in it.
    fn compare(&mut self, pair: &Pair, before: &DirListing, after: &DirListing) {
        let loose = self.gone.len() + self.new.len();
        let (mut olds, mut news) =
            (before.entries.iter().peekable(), after.entries.iter().peekable());
        loop {
            let order = match (olds.peek(), news.peek()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let old = if order.is_le() { olds.next() } else { None };
            let new = if order.is_ge() { news.next() } else { None };
            match (old, new) {
                (Some(old), Some(new)) if old.ino == new.ino => {
                    if let (Some(was), Some(is)) = (&old.inode, &new.inode)
                        && let Some(change) = changed(was, is, has_other_times(was, is, false))
                    {
                        let place = place(pair.dir, &pair.after, new);
                        let (kind, ino) = (new.kind, new.ino);
                        self.changed.push(Difference { place, change, kind, ino });
                    }
                }
                (old, new) => {
                    self.gone.extend(old.map(|old| loose_of(pair.dir, &pair.before, old)));
                    self.new.extend(new.map(|new| loose_of(pair.dir, &pair.after, new)));
                }
            }
        }
        // The times of a directory move with its entries, which are told of by themselves.
        let same_entries = self.gone.len() + self.new.len() == loose;
        let times = has_other_times(&before.own, &after.own, pair.renamed);
        if let Some(change) = changed(&before.own, &after.own, same_entries && times) {
            let place = place_of_dir(pair);
            self.changed.push(Difference { place, change, kind: Kind::Dir, ino: pair.dir });
        }
    }

    /// Reads all that is below the directories that are still loose in one tree, and compares what
    /// both trees have there.
    fn compare_rest<T: Trees>(&mut self, trees: &mut T) -> Result<(), T::Error> {
        let before = self.read_below(trees, Side::Before)?;
        let mut after = self.read_below(trees, Side::After)?;
        for (dir, old) in before {
            match after.remove(&dir) {
                Some(new) => {
                    let renamed = old.parent != new.parent || name_of(&old) != name_of(&new);
                    let pair = Pair { dir, before: old.path, after: new.path, renamed };
                    self.compare(&pair, &old.listing, &new.listing);
                }
                None => {
                    let entries = old.listing.entries.iter();
                    self.gone.extend(entries.map(|entry| loose_of(dir, &old.path, entry)));
                }
            }
        }
        for (dir, new) in after {
            let entries = new.listing.entries.iter();
            self.new.extend(entries.map(|entry| loose_of(dir, &new.path, entry)));
        }
        Ok(())
    }

    fn read_below<T: Trees>(&self, trees: &mut T, side: Side) -> Result<ReadDirs, T::Error> {
        let loose = if side == Side::Before { &self.gone } else { &self.new };
        let is_alone = |kind: Kind, ino: InodeId| kind == Kind::Dir && !self.both.contains(&ino);
        let mut dirs: Vec<(InodeId, InodeId, Arc<[u8]>)> = loose
            .iter()
            .filter(|loose| is_alone(loose.kind, loose.ino))
            .map(|loose| (loose.ino, loose.place.dir, Arc::from(&*loose.place.path)))
            .collect();
        let mut read = ReadDirs::new();
        while let Some((dir, parent, path)) = dirs.pop() {
            let listing = trees.list(side, dir)?;
            let below = listing.entries.iter().filter(|entry| is_alone(entry.kind, entry.ino));
            dirs.extend(below.map(|entry| (entry.ino, dir, join(&path, &entry.name))));
            read.insert(dir, ReadDir { parent, path, listing });
        }
        Ok(read)
    }

    /// Matches what is loose by inode number, and sorts.
    fn finish(mut self) -> Vec<Difference> {
        let by_path = |one: &Loose, other: &Loose| one.place.path.cmp(&other.place.path);
        self.gone.sort_by(by_path);
        self.new.sort_by(by_path);
        let mut names: HashMap<InodeId, Vec<Loose>> = HashMap::new();
        for gone in self.gone.into_iter().rev() {
            names.entry(gone.ino).or_default().push(gone);
        }
        let mut out = self.changed;
        for Loose { place, kind, ino, inode } in self.new {
            let Some(old) = names.get_mut(&ino).and_then(Vec::pop) else {
                out.push(Difference { place, change: Change::Created, kind, ino });
                continue;
            };
            let both = old.inode.as_ref().zip(inode.as_ref());
            let change =
                both.and_then(|(was, is)| changed(was, is, has_other_times(was, is, true)));
            if let Some(change) = change {
                out.push(Difference { place: place.clone(), change, kind, ino });
            }
            out.push(Difference { place, change: Change::Renamed(old.place), kind, ino });
        }
        let rest = names.into_values().flatten();
        out.extend(rest.map(|Loose { place, kind, ino, .. }| Difference {
            place,
            change: Change::Removed,
            kind,
            ino,
        }));
        let rank = |one: &Difference| match one.change {
            Change::Removed => 0,
            Change::Renamed(_) => 1,
            Change::Created => 2,
            Change::Changed { .. } => 3,
        };
        out.sort_by(|one, other| {
            one.place.path.cmp(&other.place.path).then(rank(one).cmp(&rank(other)))
        });
        out
    }
}

/// What has changed of an inode, if anything; `times`: its times say that something has.
fn changed(was: &InodeSummary, is: &InodeSummary, times: bool) -> Option<Change> {
    let content = was.data_change != is.data_change || was.size != is.size;
    // A change of the content changes all times; so does another name.
    let by_times = times && !content && was.nlink == is.nlink;
    let attributes = was.attributes != is.attributes || by_times;
    (content || attributes).then_some(Change::Changed { content, attributes })
}

/// A rename itself changes the time of the last change of attributes.
fn has_other_times(was: &InodeSummary, is: &InodeSummary, renamed: bool) -> bool {
    was.mtime != is.mtime || !renamed && was.ctime != is.ctime
}

fn join(dir: &[u8], name: &[u8]) -> Arc<[u8]> {
    if dir.is_empty() {
        return Arc::from(name);
    }
    [dir, b"/", name].concat().into()
}

fn place(dir: InodeId, path: &[u8], entry: &ListedEntry) -> Place {
    Place { path: Box::from(&*join(path, &entry.name)), dir, name: entry.name.clone() }
}

/// The name of a directory in the one above.
fn name_of(dir: &ReadDir) -> &[u8] {
    dir.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The place of a directory itself. Its name is that of its path; nothing looks it up by it.
fn place_of_dir(pair: &Pair) -> Place {
    let name = pair.after.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    Place { path: Box::from(&*pair.after), dir: pair.dir, name: name.into() }
}

fn loose_of(dir: InodeId, path: &[u8], entry: &ListedEntry) -> Loose {
    let ListedEntry { ino, kind, inode, .. } = entry.clone();
    Loose { place: place(dir, path, entry), kind, ino, inode }
}

/// Parts of a file that differ: `(offset, bytes)`, in order, apart from each other.
pub fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut out: BTreeMap<u64, u64> = BTreeMap::new();
    for (offset, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
        let end = offset.saturating_add(len);
        match out.last_entry() {
            Some(mut last) if *last.get() >= offset => {
                let whole = end.max(*last.get());
                last.insert(whole);
            }
            _ => {
                out.insert(offset, end);
            }
        }
    }
    out.into_iter().map(|(offset, end)| (offset, end - offset)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A tree: entries by (directory, name), inodes by number.
    #[derive(Clone, Default)]
    struct Tree {
        entries: BTreeMap<(InodeId, Vec<u8>), (InodeId, Kind)>,
        inodes: HashMap<InodeId, InodeSummary>,
    }

    const ROOT: InodeId = 1;

    impl Tree {
        fn add(&mut self, dir: InodeId, name: &str, ino: InodeId, kind: Kind) {
            self.entries.insert((dir, name.into()), (ino, kind));
            self.inodes.entry(ino).or_default();
        }

        fn list(&self, dir: InodeId) -> DirListing {
            let own = self.inodes.get(&dir).cloned().unwrap_or_default();
            let of_dir = self.entries.range((dir, Vec::new())..(dir + 1, Vec::new()));
            let entries = of_dir.map(|((_, name), (ino, kind))| ListedEntry {
                name: name.clone().into(),
                ino: *ino,
                kind: *kind,
                inode: (*kind != Kind::Dir).then(|| self.inodes[ino].clone()),
            });
            DirListing { own, entries: entries.collect() }
        }

        fn dirs(&self) -> Vec<InodeId> {
            let below = self.entries.values().filter(|(_, kind)| *kind == Kind::Dir);
            std::iter::once(ROOT).chain(below.map(|(ino, _)| *ino)).collect()
        }

        fn is_below(&self, mut dir: InodeId, above: InodeId) -> bool {
            while dir != above {
                let parent = self.entries.iter().find(|(_, (ino, _))| *ino == dir);
                let Some(((parent, _), _)) = parent else { return false };
                dir = *parent;
            }
            true
        }
    }

    struct Both(Tree, Tree);

    impl Trees for Both {
        type Error = String;

        fn list(&mut self, side: Side, dir: InodeId) -> Result<DirListing, String> {
            let tree = if side == Side::Before { &self.0 } else { &self.1 };
            Ok(tree.list(dir))
        }
    }

    /// What differs, where all names are told.
    fn all_differences(before: &Tree, after: &Tree) -> Vec<Difference> {
        let changed = changes(before, after, u64::MAX);
        diff(&mut Both(before.clone(), after.clone()), &changed).unwrap()
    }

    fn lines(before: &Tree, after: &Tree) -> Vec<String> {
        let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
        let found = all_differences(before, after);
        let line = |one: &Difference| match &one.change {
            Change::Created => format!("+ {}", text(&one.place.path)),
            Change::Removed => format!("- {}", text(&one.place.path)),
            Change::Changed { content, attributes } => {
                format!(
                    "M{}{} {}",
                    u8::from(*content),
                    u8::from(*attributes),
                    text(&one.place.path)
                )
            }
            Change::Renamed(from) => format!("R {} {}", text(&from.path), text(&one.place.path)),
        };
        found.iter().map(line).collect()
    }

    /// Each kind of difference, as it is told.
    #[test]
    fn kinds_of_differences() {
        let mut before = Tree::default();
        before.add(ROOT, "d", 2, Kind::Dir);
        before.add(2, "kept", 3, Kind::File);
        before.add(2, "gone", 4, Kind::File);
        before.add(2, "old", 5, Kind::File);
        before.add(2, "replaced", 6, Kind::File);
        before.add(ROOT, "tree", 8, Kind::Dir);
        before.add(8, "in", 9, Kind::File);
        let mut after = before.clone();
        assert_eq!(lines(&before, &after), [""; 0]);
        after.entries.remove(&(2, b"gone".into()));
        after.entries.remove(&(2, b"old".into()));
        after.entries.remove(&(ROOT, b"tree".into()));
        after.add(ROOT, "new name", 5, Kind::File);
        after.add(2, "replaced", 7, Kind::File);
        after.add(2, "moved", 8, Kind::Dir);
        after.inodes.get_mut(&3).unwrap().data_change = 7;
        let found = lines(&before, &after);
        let expected = [
            "- d/gone",
            "M10 d/kept",
            "R tree d/moved",
            "- d/replaced",
            "+ d/replaced",
            "R d/old new name",
        ];
        assert_eq!(found, expected);
        // A time alone is a change of attributes, but of a directory with other entries.
        for ino in [2, 3, 8, 9] {
            after.inodes.get_mut(&ino).unwrap().ctime = 5;
            after.inodes.get_mut(&ino).unwrap().data_change = 0;
        }
        assert!(lines(&before, &after).contains(&"M01 d/kept".into()));
        assert!(lines(&before, &after).contains(&"M01 d/moved/in".into()));
        assert!(
            !lines(&before, &after).iter().any(|line| line == "M01 d" || line == "M01 d/moved")
        );
    }

    /// Two directories that change places are two renames.
    #[test]
    fn directories_that_swap() {
        let mut before = Tree::default();
        before.add(ROOT, "a", 2, Kind::Dir);
        before.add(2, "b", 3, Kind::Dir);
        before.add(3, "f", 4, Kind::File);
        let mut after = Tree::default();
        after.add(ROOT, "b", 3, Kind::Dir);
        after.add(3, "a", 2, Kind::Dir);
        after.add(3, "f", 4, Kind::File);
        assert_eq!(lines(&before, &after), ["R a/b b", "R a b/a"]);
    }

    /// Whatever happens between two moments, what is told is the difference of the sets of names.
    #[test]
    fn names_of_random_trees() {
        for seed in 0..400u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut draw = |below: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % below as u64) as usize
            };
            let (mut tree, mut next) = (Tree::default(), 2);
            let mut before = tree.clone();
            for step in 0..80 {
                if step == 40 {
                    before = tree.clone();
                }
                let dirs = tree.dirs();
                let (dir, name) = (dirs[draw(dirs.len())], format!("n{}", draw(4)));
                let keys: Vec<_> = tree.entries.keys().cloned().collect();
                let target = (dir, name.clone().into_bytes());
                let is_full = tree.entries.contains_key(&target);
                match draw(4) {
                    0 | 1 if !is_full => {
                        let kind = if draw(2) == 0 { Kind::Dir } else { Kind::File };
                        tree.add(dir, &name, next, kind);
                        next += 1;
                    }
                    2 if !is_full && !keys.is_empty() => {
                        let from = keys[draw(keys.len())].clone();
                        let (ino, kind) = tree.entries[&from];
                        if kind != Kind::Dir || !tree.is_below(dir, ino) {
                            tree.entries.remove(&from);
                            tree.entries.insert(target, (ino, kind));
                        }
                    }
                    3 if !keys.is_empty() => {
                        let gone = keys[draw(keys.len())].clone();
                        let (ino, _) = tree.entries[&gone];
                        if !keys.iter().any(|(dir, _)| *dir == ino) {
                            tree.entries.remove(&gone);
                        }
                    }
                    _ => {}
                }
            }
            check_names(&before, &tree, seed);
            for _ in 0..8 {
                let inodes: Vec<InodeId> = tree.inodes.keys().copied().collect();
                let ino = inodes[draw(inodes.len())];
                let inode = tree.inodes.entry(ino).or_default();
                match draw(4) {
                    0 => inode.data_change += 1,
                    1 => inode.attributes[0] += 1,
                    2 => inode.mtime += 1,
                    _ => inode.ctime += 1,
                }
            }
            check_changes(&before, &tree, seed);
        }
    }

    fn check_names(before: &Tree, after: &Tree, seed: u64) {
        let found = all_differences(before, after);
        let names = |tree: &Tree| -> BTreeSet<_> {
            tree.entries.iter().map(|((dir, name), (ino, _))| (*dir, name.clone(), *ino)).collect()
        };
        let (old, new) = (names(before), names(after));
        let (mut gone, mut made) = (BTreeSet::new(), BTreeSet::new());
        for one in &found {
            let key = |place: &Place| (place.dir, place.name.to_vec(), one.ino);
            match &one.change {
                Change::Created => assert!(made.insert(key(&one.place)), "seed {seed}"),
                Change::Removed => assert!(gone.insert(key(&one.place)), "seed {seed}"),
                Change::Renamed(from) => {
                    assert!(made.insert(key(&one.place)) && gone.insert(key(from)), "seed {seed}");
                }
                Change::Changed { .. } => panic!("seed {seed}: {one:?}"),
            }
        }
        assert_eq!(gone, old.difference(&new).cloned().collect(), "seed {seed}");
        assert_eq!(made, new.difference(&old).cloned().collect(), "seed {seed}");
        // What is gone and made is a rename, as far as the numbers are the same.
        let left = found.iter().filter(|one| one.change == Change::Removed);
        let left: BTreeSet<_> = left.map(|one| one.ino).collect();
        assert!(found.iter().all(|one| one.change != Change::Created || !left.contains(&one.ino)));
    }

    /// What a node tells of two trees: the directories that both have, with all names that differ
    /// and, by the bits of `noise`, some more.
    fn changes(before: &Tree, after: &Tree, noise: u64) -> Vec<ChangedListing> {
        let places = |tree: &Tree| -> HashMap<InodeId, (InodeId, Vec<u8>)> {
            let dirs = tree.entries.iter().filter(|(_, (_, kind))| *kind == Kind::Dir);
            let places = dirs.map(|((dir, name), (ino, _))| (*ino, (*dir, name.clone())));
            places.chain([(ROOT, (0, Vec::new()))]).collect()
        };
        let (olds, news) = (places(before), places(after));
        let path = |places: &HashMap<InodeId, (InodeId, Vec<u8>)>, mut dir| {
            let mut path = Vec::new();
            while dir != ROOT {
                let (parent, name) = &places[&dir];
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                path = [name, slash, &path].concat();
                dir = *parent;
            }
            path
        };
        let mut out = Vec::new();
        for dir in olds.keys().filter(|dir| news.contains_key(*dir)) {
            let (mut old, mut new) = (before.list(*dir), after.list(*dir));
            let is_noise = |name: &[u8]| noise >> (name[name.len() - 1] % 64) & 1 == 1;
            let same: BTreeSet<_> = old
                .entries
                .iter()
                .filter(|entry| new.entries.contains(entry) && !is_noise(&entry.name))
                .map(|entry| entry.name.clone())
                .collect();
            old.entries.retain(|entry| !same.contains(&entry.name));
            new.entries.retain(|entry| !same.contains(&entry.name));
            let renamed = olds[dir] != news[dir];
            if renamed || old != new || noise >> (dir % 64) & 1 == 1 {
                out.push(ChangedListing {
                    dir: *dir,
                    path_before: path(&olds, *dir).into(),
                    path_after: path(&news, *dir).into(),
                    renamed,
                    before: old,
                    after: new,
                });
            }
        }
        out
    }

    /// Trees of which nothing is read but what only one of them has.
    struct OnlyOne(Both, HashSet<InodeId>);

    impl Trees for OnlyOne {
        type Error = String;

        fn list(&mut self, side: Side, dir: InodeId) -> Result<DirListing, String> {
            assert!(!self.1.contains(&dir), "{dir} is in both trees");
            self.0.list(side, dir)
        }
    }

    /// Names that have not changed need not be told.
    fn check_changes(before: &Tree, after: &Tree, seed: u64) {
        let all = all_differences(before, after);
        let both: HashSet<_> = before.dirs().into_iter().collect();
        let both = after.dirs().into_iter().filter(|dir| both.contains(dir)).collect();
        let mut trees = OnlyOne(Both(before.clone(), after.clone()), both);
        let changed = changes(before, after, seed);
        assert_eq!(diff(&mut trees, &changed).unwrap(), all, "seed {seed}");
    }

    /// Ranges that touch are one.
    #[test]
    fn ranges_in_order() {
        let found = merged(vec![(10, 5), (0, 0), (3, 2), (5, 1), (12, 1), (15, 1), (u64::MAX, 9)]);
        assert_eq!(found, [(3, 3), (10, 6), (u64::MAX, 0)]);
    }
}
