//! The tables beside the tree: rows of things that do not exist, rows that cannot be decoded.

use std::collections::HashMap;

use kestrel_engine::EngineError;
use kestrel_types::codec::Reader;
use kestrel_types::extent::{CHUNK_BYTES, ExtentList};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::FILE_SIZE_MAX;
use kestrel_types::key::{Key, Table};
use kestrel_types::request::{XATTR_NAME_MAX, XATTR_VALUE_MAX};

use super::{Check, World};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{DirId, Row, decode_xattr, delete, put};

pub fn check(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    dir_ids(check, world)?;
    subdirs(check, world)?;
    chunks(check, world)?;
    xattrs(check, world)
}

fn dir_ids(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    for row in check.rows(Table::DirId) {
        let (key, value) = row?;
        check.row("checking places of directories");
        // A place that is wrong was found when its directory's entry was looked at.
        if world.is_dir(key.id) && key.suffix.is_empty() {
            continue;
        }
        // A directory without its record is put back before its `dirid` row is checked.
        if world.parents.binary_search(&key.id).is_ok() {
            continue;
        }
        let detail = match DirId::decode(&value) {
            Ok(dir_id) => format!("no directory is at {}", check.path(dir_id.parent, &dir_id.name)),
            Err(why) => why.to_string(),
        };
        let finding = Finding::new(FindingKind::DirIdDangling, format!("#{}", key.id), detail);
        check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
    }
    Ok(())
}

fn subdirs(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    for row in check.rows(Table::Subdir) {
        let (key, _) = row?;
        check.row("checking lists of subdirectories");
        let child = <[u8; 8]>::try_from(&*key.suffix).map(u64::from_be_bytes);
        let listed = |child: InodeId| {
            // Where a directory with two names belongs is decided first.
            child != ROOT
                && (world.parent_of(child) == Some(key.id) || world.duplicates.contains(child))
        };
        if child.is_ok_and(listed) {
            continue;
        }
        let detail = child.map_or("not a number".to_string(), |child| {
            format!("directory {child} is not below it")
        });
        let finding = Finding::new(FindingKind::SubdirDangling, check.dir_path(key.id), detail);
        check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
    }
    Ok(())
}

/// The extents of one file, as far as they can be decoded.
struct File {
    ino: InodeId,
    keys: Vec<Key>,
    end: u64,
    damaged: bool,
}

/// Table `sweep`: from which chunk on rows of a file were cut off and are on their way out.
fn cut_off(check: &mut Check<'_>) -> Result<HashMap<InodeId, u64>, EngineError> {
    let mut cut_off = HashMap::new();
    for row in check.rows(Table::Sweep) {
        let (key, _) = row?;
        match <[u8; 8]>::try_from(&*key.suffix) {
            // The lowest comes first.
            Ok(first) => {
                cut_off.entry(key.id).or_insert(u64::from_be_bytes(first));
            }
            Err(_) => {
                let (path, what) = (format!("#{}", key.id), "its key names no chunk");
                let finding = Finding::new(FindingKind::RowUnknown, path, what);
                check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
            }
        }
    }
    Ok(cut_off)
}

fn chunks(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    let cut_off = cut_off(check)?;
    let mut stray_file: Option<File> = None;
    for row in check.rows(Table::Chunk) {
        let row = row?;
        let number = <[u8; 8]>::try_from(&*row.0.suffix).map(u64::from_be_bytes);
        let is_cut_off =
            cut_off.get(&row.0.id).zip(number.ok()).is_some_and(|(first, number)| number >= *first);
        if is_cut_off {
            // The node goes on deleting them when the volume is mounted.
            continue;
        }
        if let Some(file) = stray_file.take_if(|file| file.ino != row.0.id) {
            dangling(check, world, &file);
        }
        chunk(check, world, row, &mut stray_file);
    }
    if let Some(file) = stray_file {
        dangling(check, world, &file);
    }
    Ok(())
}

/// Looks at one chunk; collects those of files that should not have any in `stray_file`.
fn chunk(check: &mut Check<'_>, world: &World, (key, value): Row, stray_file: &mut Option<File>) {
    check.row("checking extents");
    let number = <[u8; 8]>::try_from(&*key.suffix).map(u64::from_be_bytes);
    let first = number.ok().and_then(|number| number.checked_mul(u64::from(CHUNK_BYTES)));
    let mut reader = Reader::new(&value);
    let list = ExtentList::decode(&mut reader).and_then(|list| reader.end().map(|()| list));
    let size = world.size_of_chunked(key.id);
    let path = format!("#{} chunk {}", key.id, number.unwrap_or(u64::MAX));
    let (Some(first), Ok(mut list)) = (first, list) else {
        check.found(Finding::new(
            FindingKind::ChunkDamaged,
            path,
            format!("{} bytes cannot be decoded; reads of this chunk fail", value.len()),
        ));
        if let (None, Some(stray_file)) = (size, stray_file) {
            stray_file.damaged = true;
        }
        return;
    };
    let Some(size) = size else {
        let file = stray_file.get_or_insert(File {
            ino: key.id,
            keys: Vec::new(),
            end: 0,
            damaged: false,
        });
        file.end = file.end.max(first.saturating_add(u64::from(list.end())).min(FILE_SIZE_MAX));
        file.keys.push(key);
        return;
    };
    let end = first.saturating_add(u64::from(list.end()));
    if end > size {
        let keep = u32::try_from(size.saturating_sub(first)).unwrap_or(CHUNK_BYTES);
        list.truncate(keep);
        let row = if list.is_empty() {
            delete(&key)
        } else {
            let mut right = Vec::new();
            list.encode_into(&mut right);
            put(key.table, key.id, &key.suffix, right.into())
        };
        let detail = format!("extents reach to {end}, the file to {size}");
        let finding = Finding::new(FindingKind::ChunkBeyondEnd, path, detail);
        check.found(finding.with(
            Stage::Derived,
            "cut at the end of the file",
            Act::Rows(vec![row]),
        ));
    }
}

/// Extents of a file that has none are dropped; those of no file at all become one.
fn dangling(check: &mut Check<'_>, world: &World, file: &File) {
    let path = format!("#{}", file.ino);
    if world.unjudged.contains(file.ino) || check.clones.is_copied(file.ino) {
        return;
    }
    if world.inodes.contains(file.ino) {
        let detail = format!("{} chunks of a file with its content elsewhere", file.keys.len());
        let rows = file.keys.iter().map(delete).collect();
        let finding = Finding::new(FindingKind::ChunkDangling, path, detail);
        check.found(finding.with(Stage::Derived, "removed", Act::Rows(rows)));
    } else {
        let detail = format!(
            "{} chunks up to byte {} of a file without a record",
            file.keys.len(),
            file.end
        );
        let mut finding = Finding::new(FindingKind::ChunkDangling, path, detail);
        if !file.damaged {
            let fix = format!("made a file: /lost+found/#{}", file.ino);
            finding = finding.with(Stage::Tree, fix, Act::AdoptExtents(file.ino, file.end));
        }
        check.found(finding);
    }
}

fn xattrs(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    for row in check.rows(Table::Xattr) {
        let (key, value) = row?;
        check.row("checking extended attributes");
        let path = format!("#{} {}", key.id, crate::rows::readable(&key.suffix));
        if check.clones.is_copied(key.id) {
            continue;
        }
        if !world.inodes.contains(key.id) {
            let finding = Finding::new(FindingKind::XattrDangling, path, "there is no such inode");
            check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
            continue;
        }
        let named = (1..=XATTR_NAME_MAX).contains(&key.suffix.len());
        match decode_xattr(&value) {
            Ok(bytes) if named && bytes.len() <= XATTR_VALUE_MAX => {}
            Ok(bytes) => {
                let detail =
                    format!("name of {} bytes, value of {}", key.suffix.len(), bytes.len());
                check.found(Finding::new(FindingKind::XattrDamaged, path, detail));
            }
            Err(why) => check.found(Finding::new(FindingKind::XattrDamaged, path, why.to_string())),
        }
    }
    Ok(())
}
