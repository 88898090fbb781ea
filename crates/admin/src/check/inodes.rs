//! The first walk: every entry and every inode, alone and against what points at it.

use kestrel_engine::EngineError;
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::{Name, PATH_MAX};
use kestrel_types::policy::{Policy, PolicyRecord};

use super::shares::{ShareWalk, Sums};
use super::{Check, World, clones, find_records};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{DirId, delete, get_all, put};

/// Directories of which the derived rows are looked up together.
const LOOKUP_BATCH: usize = 512;

/// Walks table `entry`, and the directories' shares beside it.
pub fn walk(check: &mut Check<'_>) -> Result<World, EngineError> {
    let mut world = World::default();
    let mut shares = ShareWalk::new(check);
    let mut group: Option<(InodeId, Sums)> = None;
    let mut lookups = Vec::new();
    let (mut root, mut unmarked, mut policies) = (false, None, false);
    for row in check.rows(Table::Entry) {
        let (key, value) = row?;
        check.row("checking entries");
        let entry = Entry::decode(&value);
        if key.id == 0 && key.suffix.is_empty() {
            root = is_root(&entry);
            if let (true, Ok(Entry::Inode(inode))) = (root, &entry) {
                note_inode(&mut world, inode);
                check_inode(check, &key, inode);
                unmarked = Some(inode.clone()).filter(|root| !is_marked(root));
            }
            continue;
        }
        if group.is_none_or(|(dir, _)| dir != key.id) {
            if let Some((dir, sums)) = group {
                shares.compare(Some(dir), sums, &mut world.sums)?;
            }
            world.parents.push(key.id);
            group = Some((key.id, Sums::default()));
        }
        let Some((_, sums)) = group.as_mut() else { continue };
        match entry {
            Ok(Entry::Inode(inode)) => {
                sums.add(&inode);
                entry_inode(check, &mut world, &key, &inode);
                if inode.kind == Kind::Dir {
                    policies |= inode.policy().map_or(true, |said| said.own != Policy::default());
                    clones::directory(check, &mut world, &key, &inode);
                    lookups.push((inode.ino, key.id, key.suffix.clone()));
                }
                check_name(check, &key, Entry::Inode(inode));
            }
            Ok(Entry::Link { ino, kind }) => {
                sums.children += 1;
                check.totals.files += 1;
                world.references.entry(ino).or_insert((0, kind)).0 += 1;
                check_name(check, &key, Entry::Link { ino, kind });
            }
            Err(why) => {
                sums.children += 1;
                let finding = Finding::new(
                    FindingKind::EntryDamaged,
                    check.path(key.id, &key.suffix),
                    format!("the record of {} bytes: {why}", value.len()),
                );
                let fix = "its bytes are kept as a file in /lost+found";
                check.found(finding.with(Stage::Tree, fix, Act::AdoptBytes(key, value)));
            }
        }
        if lookups.len() >= LOOKUP_BATCH {
            derived(check, &mut lookups)?;
        }
    }
    derived(check, &mut lookups)?;
    if let Some((dir, sums)) = group {
        shares.compare(Some(dir), sums, &mut world.sums)?;
    }
    shares.compare(None, Sums::default(), &mut world.sums)?;
    if let Some(root) = unmarked.filter(|_| policies) {
        mark_policies(check, root);
    }
    if !root {
        let finding = Finding::new(
            FindingKind::RootMissing,
            "/",
            "there is no valid record of the root directory",
        );
        check.found(finding.with(
            Stage::Tree,
            "a new record written, with mode 0755",
            Act::NewRoot,
        ));
    }
    check.totals.dirs = world.dirs.len() as u64 + 1;
    world.dirs.sort_unstable();
    world.dirs.dedup_by_key(|dir| dir.0);
    Ok(world)
}

fn is_root(entry: &Result<Entry, kestrel_types::codec::DecodeError>) -> bool {
    matches!(entry, Ok(Entry::Inode(inode)) if inode.ino == ROOT && inode.kind == Kind::Dir)
}

/// Whether nodes look for policies; a record that cannot be read is told of by [`check_inode`].
fn is_marked(root: &Inode) -> bool {
    root.policy().is_ok_and(|record| record.in_use)
}

fn mark_policies(check: &mut Check<'_>, mut root: Inode) {
    let detail = "directories have policies, and the root's record does not say so";
    let finding = Finding::new(FindingKind::PolicyUnmarked, "/", detail);
    let Ok(record) = root.policy() else { return check.found(finding) };
    root.set_policy(PolicyRecord { in_use: true, ..record });
    let rows = vec![put(Table::Entry, 0, &[], Entry::Inode(root).encode())];
    check.found(finding.with(Stage::Derived, "noted in it", Act::Rows(rows)));
}

fn note_inode(world: &mut World, inode: &Inode) {
    if !world.inodes.insert(inode.ino) {
        world.duplicates.insert(inode.ino);
    }
    if inode.xattrs {
        world.marked.insert(inode.ino);
    }
    world.newest_change = world.newest_change.max(inode.change).max(inode.data_change);
    if inode.data == Data::Chunked {
        world.chunked.push((inode.ino, inode.size));
    }
}

/// An inode that has its record in an entry.
fn entry_inode(check: &mut Check<'_>, world: &mut World, key: &Key, inode: &Inode) {
    note_inode(world, inode);
    if inode.kind == Kind::Dir {
        world.dirs.push((inode.ino, key.id));
    } else {
        check.totals.files += 1;
        check.totals.bytes = check.totals.bytes.wrapping_add(inode.size);
        if inode.nlink != 1 {
            let right = Inode { nlink: 1, ..inode.clone() };
            let rows = vec![put(key.table, key.id, &key.suffix, Entry::Inode(right).encode())];
            let detail = format!("the record counts {} names; it is the only one", inode.nlink);
            let finding =
                Finding::new(FindingKind::LinkCountWrong, check.path(key.id, &key.suffix), detail);
            check.found(finding.with(Stage::Derived, "set to 1", Act::Rows(rows)));
        }
    }
    check_inode(check, key, inode);
}

/// What is wrong with an inode in itself.
fn contradiction(inode: &Inode) -> Option<String> {
    let size = inode.size;
    if let Some(acls) = &inode.acls {
        if inode.kind == Kind::Symlink || acls.default.is_some() && inode.kind != Kind::Dir {
            return Some(format!("an ACL that a {:?} cannot have", inode.kind));
        }
        if !inode.xattrs {
            return Some("an ACL in a record that denies extended attributes".into());
        }
    }
    match (&inode.data, inode.kind) {
        (Data::Inline(target), Kind::Symlink) => {
            let len = target.len();
            (len == 0 || len > PATH_MAX || len as u64 != size)
                .then(|| format!("a symbolic link of {size} bytes with a target of {len}"))
        }
        (_, Kind::Symlink) => Some("a symbolic link without target".into()),
        (Data::None, _) => None,
        (Data::Inline(_), Kind::Dir) => inode.policy().err().map(|why| why.to_string()),
        (data, Kind::File) => match data {
            Data::Inline(bytes) if bytes.len() as u64 > size => {
                Some(format!("{} bytes inline in a file of {size}", bytes.len()))
            }
            Data::Packed { visible, .. } if u64::from(*visible) > size => {
                Some(format!("{visible} bytes packed in a file of {size}"))
            }
            _ => None,
        },
        (_, kind) => Some(format!("content in a {kind:?}")),
    }
}

fn check_inode(check: &mut Check<'_>, key: &Key, inode: &Inode) {
    if let Some(what) = contradiction(inode) {
        let path = if key.table == Table::Link {
            format!("#{}", inode.ino)
        } else {
            check.path(key.id, &key.suffix)
        };
        check.found(Finding::new(FindingKind::InodeInvalid, path, what));
    }
}

fn check_name(check: &mut Check<'_>, key: &Key, entry: Entry) {
    if let Err(why) = Name::check(&key.suffix) {
        let path = check.path(key.id, &key.suffix);
        let finding = Finding::new(FindingKind::NameInvalid, path, why.reason);
        check.found(finding.with(
            Stage::Tree,
            "moved to /lost+found",
            Act::AdoptEntry(key.clone(), entry),
        ));
    }
}

/// Compares directories' entries with their rows in `dirid` and `subdir`.
fn derived(
    check: &mut Check<'_>,
    dirs: &mut Vec<(InodeId, InodeId, Box<[u8]>)>,
) -> Result<(), EngineError> {
    let mut keys = Vec::with_capacity(dirs.len() * 2);
    for (ino, parent, _) in dirs.iter() {
        keys.push(Key::new(Table::DirId, *ino, &[]));
        keys.push(Key::new(Table::Subdir, *parent, &ino.to_be_bytes()));
    }
    let values = get_all(check.engine, &keys)?;
    for ((ino, parent, name), rows) in dirs.drain(..).zip(values.chunks(2)) {
        let [dir_id, listed] = rows else { continue };
        let right = DirId { parent, name };
        let found = dir_id.as_deref().map(DirId::decode);
        if found.as_ref().is_none_or(|found| found.as_ref() != Ok(&right)) {
            let detail = match found {
                None => "its place is not recorded".to_string(),
                Some(Err(why)) => format!("its place: {why}"),
                Some(Ok(other)) => {
                    format!("its place says {}", check.path(other.parent, &other.name))
                }
            };
            let rows = vec![put(Table::DirId, ino, &[], right.encode())];
            let finding =
                Finding::new(FindingKind::DirIdWrong, check.path(parent, &right.name), detail);
            check.found(finding.with(Stage::Derived, "written from its entry", Act::Rows(rows)));
        }
        if listed.is_none() {
            let rows = vec![put(Table::Subdir, parent, &ino.to_be_bytes(), Box::new([]))];
            let detail = "not listed as subdirectory of its parent";
            let finding =
                Finding::new(FindingKind::SubdirMissing, check.path(parent, &right.name), detail);
            check.found(finding.with(Stage::Derived, "listed", Act::Rows(rows)));
        }
    }
    Ok(())
}

/// Walks table `link`.
pub fn links(check: &mut Check<'_>, world: &mut World) -> Result<(), EngineError> {
    for row in check.rows(Table::Link) {
        let (key, value) = row?;
        check.row("checking links");
        let path = format!("#{}", key.id);
        let mut reader = Reader::new(&value);
        let inode = match Inode::decode(&mut reader).and_then(|inode| reader.end().map(|()| inode))
        {
            Ok(inode) if inode.ino == key.id && key.suffix.is_empty() => inode,
            Ok(_) => {
                let what = "the record is another inode's";
                check.found(Finding::new(FindingKind::LinkDamaged, path, what));
                continue;
            }
            Err(why) => {
                let what = format!("the record of {} bytes: {why}", value.len());
                check.found(Finding::new(FindingKind::LinkDamaged, path, what));
                // Its names are not dangling, they lead to something damaged.
                world.references.remove(&key.id);
                world.inodes.insert(key.id);
                world.unjudged.insert(key.id);
                continue;
            }
        };
        note_inode(world, &inode);
        check_inode(check, &key, &inode);
        let names = world.references.remove(&key.id).map_or(0, |(count, _)| count);
        if names > 0 {
            check.totals.bytes = check.totals.bytes.wrapping_add(inode.size);
        }
        let missing = check.clones.missing_names(key.id);
        match (names, inode.nlink) {
            // A clone has not given it all its names.
            (names, nlink) if missing > 0 && names.saturating_add(missing) == nlink => {}
            (0, 0) => {
                check.totals.orphans += 1;
                check.totals.orphan_bytes = check.totals.orphan_bytes.wrapping_add(inode.size);
                // Of a volume in use it is open now, as it may be.
                if check.live.is_none() {
                    let detail =
                        format!("{} bytes; it was open when the volume stopped", inode.size);
                    check.found(Finding::new(FindingKind::OpenUnlinked, path, detail));
                }
            }
            (0, nlink) => {
                let detail = format!("it counts {nlink} names; there are none");
                let act = Act::AdoptLink(inode.ino, inode.kind);
                let fix = format!("named /lost+found/#{}", inode.ino);
                check.found(Finding::new(FindingKind::InodeUnreachable, path, detail).with(
                    Stage::Tree,
                    fix,
                    act,
                ));
            }
            (names, nlink) if names != nlink => {
                let mut right = Vec::new();
                Inode { nlink: names, ..inode }.encode_into(&mut right);
                let rows = vec![put(Table::Link, key.id, &[], right.into())];
                let detail = format!("it counts {nlink} names; there are {names}");
                let finding = Finding::new(FindingKind::LinkCountWrong, path, detail);
                check.found(finding.with(
                    Stage::Derived,
                    format!("set to {names}"),
                    Act::Rows(rows),
                ));
            }
            _ => {}
        }
    }
    world.chunked.sort_unstable();
    let dangling = std::mem::take(&mut world.references);
    for ino in dangling.keys() {
        world.dangling.insert(*ino);
    }
    unmarked(check, world)
}

/// Finds inodes with extended attributes and a record that denies it.
fn unmarked(check: &mut Check<'_>, world: &mut World) -> Result<(), EngineError> {
    let mut last = 0;
    for row in check.rows(Table::Xattr) {
        let (key, _) = row?;
        if key.id != last && world.inodes.contains(key.id) && !world.marked.contains(key.id) {
            world.unmarked.insert(key.id);
        }
        last = key.id;
    }
    Ok(())
}

/// Reports what concerns inodes of which only the number was read: walks the entries again if there
/// are any.
pub fn locate(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    let sets = [&world.duplicates, &world.dangling, &world.unmarked];
    if sets.iter().all(|set| set.is_empty()) {
        return Ok(());
    }
    let records = find_records(check, &|ino| sets.iter().any(|set| set.contains(ino)))?;
    for (ino, mut records) in records {
        if world.dangling.contains(ino) {
            for (key, _) in records.extract_if(.., |(_, entry)| matches!(entry, Entry::Link { .. }))
            {
                let detail = format!("a hard link to inode {ino}, which does not exist");
                let finding = Finding::new(
                    FindingKind::LinkDangling,
                    check.path(key.id, &key.suffix),
                    detail,
                );
                check.found(finding.with(Stage::Tree, "removed", Act::Rows(vec![delete(&key)])));
            }
        }
        records.retain(|(_, entry)| matches!(entry, Entry::Inode(_)));
        if world.duplicates.contains(ino) {
            duplicates(check, ino, records)?;
        } else if world.unmarked.contains(ino)
            && let Some((key, Entry::Inode(inode))) = records.pop()
        {
            let right = Entry::Inode(Inode { xattrs: true, ..inode });
            unmarked_found(check, &key, right.encode());
        }
    }
    unmarked_links(check, world)
}

fn unmarked_found(check: &mut Check<'_>, key: &Key, right: Box<[u8]>) {
    let path = if key.table == Table::Link {
        format!("#{}", key.id)
    } else {
        check.path(key.id, &key.suffix)
    };
    let rows = vec![put(key.table, key.id, &key.suffix, right)];
    let finding =
        Finding::new(FindingKind::XattrUnmarked, path, "its record denies its extended attributes");
    check.found(finding.with(Stage::Derived, "marked", Act::Rows(rows)));
}

/// Hard-linked inodes have their records elsewhere.
fn unmarked_links(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    if world.unmarked.is_empty() {
        return Ok(());
    }
    for row in check.rows(Table::Link) {
        let (key, value) = row?;
        if !world.unmarked.contains(key.id) {
            continue;
        }
        if let Ok(inode) = Inode::decode(&mut Reader::new(&value)) {
            let mut right = Vec::new();
            Inode { xattrs: true, ..inode }.encode_into(&mut right);
            unmarked_found(check, &key, right.into());
        }
    }
    Ok(())
}

/// Several records of one inode. A directory stays where its `dirid` row has it (else where it was
/// last changed); a file's newest record keeps the number.
fn duplicates(
    check: &mut Check<'_>,
    ino: InodeId,
    mut records: Vec<(Key, Entry)>,
) -> Result<(), EngineError> {
    let change = |entry: &Entry| if let Entry::Inode(inode) = entry { inode.change } else { 0 };
    let is_dir = records.iter().any(|(_, entry)| entry.kind() == Kind::Dir);
    let stored = get_all(
        check.engine,
        &[Key::new(Table::DirId, ino, &[]), Key::new(Table::Link, ino, &[])],
    )?;
    let dir_id = stored[0].as_deref().and_then(|bytes| DirId::decode(bytes).ok());
    let is_at_dir_id =
        |key: &Key| dir_id.as_ref().is_some_and(|p| p.parent == key.id && p.name == key.suffix);
    records
        .sort_by_key(|(key, entry)| (entry.kind() == Kind::Dir, is_at_dir_id(key), change(entry)));
    if ino == ROOT {
        // The root's record lies at a key of its own and is not among these.
    } else if stored[1].is_none() || is_dir {
        records.pop();
    }
    for (key, entry) in records {
        let path = check.path(key.id, &key.suffix);
        let Entry::Inode(inode) = entry else { continue };
        if inode.kind == Kind::Dir {
            let finding = Finding::new(
                FindingKind::DirectoryDuplicate,
                path,
                format!("directory {ino} has other names"),
            );
            check.found(finding.with(
                Stage::Tree,
                "this name removed",
                Act::Rows(vec![delete(&key)]),
            ));
            continue;
        }
        let mut finding = Finding::new(
            FindingKind::InodeDuplicate,
            path,
            format!("inode {ino} has another record"),
        );
        if inode.data != Data::Chunked {
            // Chunks are keyed by number: which of two chunked records they belong to cannot be
            // found out.
            finding =
                finding.with(Stage::Tree, "given a number of its own", Act::Renumber(key, inode));
        }
        check.found(finding);
    }
    Ok(())
}
