//! The tree: every directory hangs on the root, exactly once.

use std::ops::ControlFlow;

use kestrel_engine::EngineError;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::{Key, Table};

use super::{Check, World, find_records};
use crate::finding::{Act, Finding, FindingKind, Stage};

/// Entries of one file that is no directory, at most, that one check moves.
const MOVES_MAX: usize = 10_000;

pub fn check(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    for dir in &world.parents {
        if world.is_dir(*dir) {
            continue;
        }
        if *dir == 0 || world.inodes.contains(*dir) {
            entries_of_a_file(check, *dir)?;
            continue;
        }
        let finding = Finding::new(
            FindingKind::DirectoryMissing,
            check.dir_path(*dir),
            format!("there are entries in directory {dir}, which has no record"),
        );
        check.found(finding.with(
            Stage::Tree,
            format!("directory created as /lost+found/#{dir}"),
            Act::AdoptDirectory(*dir),
        ));
    }
    cycles(check, world)
}

/// What is below the number of a file (or of nothing that a directory may have) is moved, entry by
/// entry.
fn entries_of_a_file(check: &mut Check<'_>, ino: u64) -> Result<(), EngineError> {
    let mut moves = Vec::new();
    check.engine.scan(Table::Entry, ino, None, &mut |suffix, value, _| {
        let root = ino == 0 && suffix.is_empty();
        if let (false, Ok(entry)) = (root, Entry::decode(value)) {
            moves.push((Key::new(Table::Entry, ino, suffix), entry));
        }
        if moves.len() < MOVES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    for (key, entry) in moves {
        let path = check.path(ino, &key.suffix);
        let detail = format!("the entry lies in {ino}, which is not a directory");
        let fix = "moved to /lost+found";
        let finding = Finding::new(FindingKind::DirectoryMissing, path, detail);
        check.found(finding.with(Stage::Tree, fix, Act::AdoptEntry(key, entry)));
    }
    Ok(())
}

/// State of a directory while cycles are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    /// On the way up that is being walked.
    Walked,
    /// Its way up ends somewhere.
    Done,
}

fn cycles(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    let mut marks = vec![Mark::New; world.dirs.len()];
    let mut broken: Vec<InodeId> = Vec::new();
    for start in 0..world.dirs.len() {
        let mut walked = Vec::new();
        let mut at = Some(start);
        while let Some(index) = at {
            match marks[index] {
                Mark::Done => break,
                Mark::Walked => {
                    let from = walked.iter().position(|seen| *seen == index).unwrap_or(0);
                    let members = walked[from..].iter().map(|index: &usize| world.dirs[*index].0);
                    broken.extend(members.min());
                    break;
                }
                Mark::New => {
                    marks[index] = Mark::Walked;
                    walked.push(index);
                    let parent = world.dirs[index].1;
                    at = if parent == ROOT { None } else { world.index_of(parent) };
                }
            }
        }
        for index in walked {
            marks[index] = Mark::Done;
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    broken.sort_unstable();
    let records = find_records(check, &|ino| broken.binary_search(&ino).is_ok())?;
    for ino in &broken {
        let detail = format!("directory {ino} is below itself");
        let mut finding = Finding::new(FindingKind::DirectoryCycle, format!("#{ino}"), detail);
        if let Some((key, entry)) = records.get(ino).and_then(|records| records.first()) {
            let act = Act::AdoptEntry(key.clone(), entry.clone());
            finding = finding.with(Stage::Tree, format!("moved to /lost+found/#{ino}"), act);
        }
        check.found(finding);
    }
    Ok(())
}
