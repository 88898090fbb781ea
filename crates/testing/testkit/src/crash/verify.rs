//! What must be left after a crash, and what is.
//!
//! A thread's operations happened one after another, so what is left must be its state after some
//! operation `k`, the one after that perhaps half done. Which `k` are allowed is what the
//! durability promise says: after the death of the process, only the last acknowledged one; after a
//! power loss in mode `fsync`, any from the last acknowledged sync on.

use std::collections::{BTreeMap, BTreeSet};

use crate::crash::log::{Log, Logged, show_op};
use crate::crash::model::{Inode, Node, Op, Piece, State, bytes_of, len_of};
use crate::crash::observe::{Found, FoundFile, Tree};

/// What was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Every acknowledged operation survives (kill -9; power loss in mode `commit`).
    Acknowledged,
    /// Everything up to the last acknowledged sync, and everything acknowledged more than so many
    /// milliseconds before the end of the log.
    Synced {
        /// The bound in milliseconds, if there is one.
        within_ms: Option<u64>,
    },
}

/// The judgement.
#[derive(Clone, Debug, Default)]
pub struct CrashReport {
    /// Acknowledged operations that were looked at.
    pub acknowledged: usize,
    /// Acknowledged operations that are gone as the promise allows.
    pub lost_allowed: usize,
    /// Operations in flight that happened.
    pub in_flight_done: usize,
    /// Everything that breaks the promise.
    pub broken: Vec<String>,
}

/// What survived of a thread: the operations `smallest` and `largest` that fit (as counts of
/// operations).
struct Survived {
    smallest: usize,
    largest: usize,
}

/// Judges a tree by its log.
pub fn verify(log: &Log, tree: &Tree, durability: Durability) -> CrashReport {
    let mut crash_report = CrashReport::default();
    let mut survived = BTreeMap::new();
    for path in tree.keys() {
        match owner(path) {
            Some(thread) if log.threads.contains_key(&thread) => {}
            None if path == "shared" => {}
            _ => crash_report.broken.push(format!("{path} was never made")),
        }
    }
    for (&thread, ops) in &log.threads {
        let mine: Tree = tree
            .iter()
            .filter(|(p, _)| owner(p) == Some(thread))
            .map(|(p, f)| (p.clone(), f.clone()))
            .collect();
        let acked = ops.iter().filter(|l| l.acked.is_some()).count();
        crash_report.acknowledged += acked;
        match check_thread(ops, &mine, first_allowed(ops, acked, log.last_ms, durability)) {
            Ok(found) => {
                crash_report.lost_allowed += acked.saturating_sub(found.largest);
                crash_report.in_flight_done += found.largest.saturating_sub(acked);
                survived.insert(thread, found);
            }
            Err(lines) => {
                crash_report.broken.push(format!("thread {thread}: {}", lines.join("\n    ")));
            }
        }
    }
    crash_report.broken.extend(order_broken(log, &survived));
    crash_report
}

/// The thread that a name belongs to.
fn owner(path: &str) -> Option<u64> {
    let name = path.strip_prefix("shared/").unwrap_or(path);
    let digits = name.strip_prefix('t')?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// How many operations must have survived at least.
fn first_allowed(ops: &[Logged], acked: usize, last_ms: u64, durability: Durability) -> usize {
    match durability {
        Durability::Acknowledged => acked,
        Durability::Synced { within_ms } => {
            let old = |ms: u64| within_ms.is_some_and(|within| ms + within < last_ms);
            let must = |l: &Logged| l.acked.is_some_and(|(_, ms)| l.op.is_sync() || old(ms));
            ops.iter().rposition(must).map_or(0, |i| i + 1)
        }
    }
}

fn check_thread(ops: &[Logged], tree: &Tree, first: usize) -> Result<Survived, Vec<String>> {
    let mut state = State::default();
    ops[..first].iter().for_each(|l| state.apply(&l.op));
    let all: BTreeSet<String> = state.nodes.keys().chain(tree.keys()).cloned().collect();
    let mut wrong: BTreeSet<String> = all.into_iter().filter(|p| !fits(&state, tree, p)).collect();
    let mut fitting: Option<Survived> = None;
    let mut best: Option<(usize, usize)> = None;
    for k in first..=ops.len() {
        let next = ops.get(k).map(|l| &l.op);
        if wrong.is_empty() || next.is_some_and(|op| half_done(&state, op, tree, &wrong)) {
            let smallest = fitting.map_or(k, |f: Survived| f.smallest);
            fitting = Some(Survived { smallest, largest: k });
        } else if best.as_ref().is_none_or(|(n, _)| wrong.len() <= *n) {
            best = Some((wrong.len(), k));
        }
        if let Some(op) = next {
            let mut touched: BTreeSet<String> = state.touched(op).into_iter().collect();
            state.apply(op);
            touched.extend(state.touched(op));
            for path in touched {
                if fits(&state, tree, &path) {
                    wrong.remove(&path);
                } else {
                    wrong.insert(path);
                }
            }
        }
    }
    fitting.ok_or_else(|| {
        let Some((_, k)) = best else { return Vec::new() };
        let mut state = State::default();
        ops[..k.min(ops.len())].iter().for_each(|l| state.apply(&l.op));
        let all: BTreeSet<String> = state.nodes.keys().chain(tree.keys()).cloned().collect();
        let wrong = all.into_iter().filter(|p| !fits(&state, tree, p)).collect();
        complaints(ops, k, &state, tree, &wrong)
    })
}

fn complaints(
    ops: &[Logged],
    k: usize,
    state: &State,
    tree: &Tree,
    wrong: &BTreeSet<String>,
) -> Vec<String> {
    const SHOWN: usize = 8;
    let mut lines = vec![format!(
        "what is there fits no allowed state; nearest is after {k} of {} operations:",
        ops.len()
    )];
    for path in wrong.iter().take(SHOWN) {
        lines.push(format!("{path}: {}", difference(state, tree, path)));
        let about = |l: &&Logged| {
            state.touched(&l.op).contains(path) || show_op(&l.op).split(' ').any(|w| w == path)
        };
        if let Some(last) = ops[..k.min(ops.len())].iter().rev().take(3000).find(about) {
            lines.push(format!("  last touched by: {}", show_op(&last.op)));
        }
    }
    if wrong.len() > SHOWN {
        lines.push(format!("and {} names more", wrong.len() - SHOWN));
    }
    if let Some(next) = ops.get(k) {
        let acked = if next.acked.is_some() { "acknowledged" } else { "in flight" };
        lines.push(format!("the next operation ({acked}) was: {}", show_op(&next.op)));
    }
    lines
}

/// Whether a name is as the state says.
fn fits(state: &State, tree: &Tree, path: &str) -> bool {
    match (state.nodes.get(path), tree.get(path)) {
        (None, None) | (Some(Node::Dir), Some(Found::Dir)) => true,
        (Some(Node::Symlink(target)), Some(Found::Symlink(found))) => target.as_bytes() == found,
        (Some(Node::File(ino)), Some(Found::File(file))) => {
            let names = state.names_of(*ino);
            let same = |name: &String| {
                matches!(tree.get(name),
                    Some(Found::File(other)) if other.ino == file.ino)
            };
            state.inodes.get(ino).is_some_and(|inode| file_fits(inode, file))
                && file.nlink == names.len() as u64
                && names.iter().all(same)
        }
        _ => false,
    }
}

fn file_fits(inode: &Inode, file: &FoundFile) -> bool {
    let (sure, most) = (len_of(&inode.content), len_of(&inode.content) + len_of(&inode.pending));
    let len = file.bytes.len() as u64;
    if len < sure || len > most || file.xattrs.len() != inode.xattrs.len() {
        return false;
    }
    let value = |&(key, len): &(u64, u64)| bytes_of(&[Piece { key, skip: 0, len }]);
    inode.xattrs.iter().all(|(name, spec)| file.xattrs.get(name) == Some(&value(spec)))
        && bytes_of(&[&inode.content[..], &inode.pending[..]].concat()).starts_with(&file.bytes)
}

/// Whether what is wrong with the state is just that `op`, which writes data, got half way: the
/// file made or emptied, and the data there up to some byte.
fn half_done(before: &State, op: &Op, tree: &Tree, wrong: &BTreeSet<String>) -> bool {
    let mut after = before.clone();
    after.apply(op);
    let (path, from, emptied) = match op {
        Op::Write { path, .. } => (path, 0, true),
        Op::Append { path, .. } => {
            (path, before.inode(path).map_or(0, |(_, i)| len_of(&i.content)), false)
        }
        Op::Overwrite { path, off, .. } => (path, *off, false),
        _ => return false,
    };
    let Some((ino, inode)) = after.inode(path) else { return false };
    let names = after.names_of(ino);
    if !wrong.iter().all(|p| names.contains(p)) {
        return false;
    }
    let new = bytes_of(&inode.content);
    let old = if emptied {
        Vec::new()
    } else {
        before.inode(path).map_or_else(Vec::new, |(_, i)| bytes_of(&i.content))
    };
    names.iter().all(|name| {
        let Some(Found::File(file)) = tree.get(name) else { return false };
        let rest = Inode { content: Vec::new(), pending: Vec::new(), xattrs: inode.xattrs.clone() };
        let bare = FoundFile { bytes: Vec::new(), ..file.clone() };
        let linked =
            names.iter().all(|n| matches!(tree.get(n), Some(Found::File(o)) if o.ino == file.ino));
        file_fits(&rest, &bare)
            && linked
            && file.nlink == names.len() as u64
            && is_mix(&file.bytes, &old, &new, from as usize)
    })
}

/// Whether `found` is `old` with the new bytes from `from` on up to some point.
fn is_mix(found: &[u8], old: &[u8], new: &[u8], from: usize) -> bool {
    let agree = found.iter().zip(new).take_while(|(a, b)| a == b).count();
    if agree < from.min(found.len()) {
        return false;
    }
    // New up to `agree`, old from there on; the length is old's, or further by what is new.
    found.len() >= old.len().min(new.len())
        && found.len() <= old.len().max(agree)
        && found.get(agree..).unwrap_or_default() == old.get(agree..found.len()).unwrap_or_default()
}

fn difference(state: &State, tree: &Tree, path: &str) -> String {
    let found = match tree.get(path) {
        None => "missing".to_string(),
        Some(Found::Dir) => "a directory".into(),
        Some(Found::Symlink(to)) => format!("a link to {}", String::from_utf8_lossy(to)),
        Some(Found::Bad(what)) => what.clone(),
        Some(Found::File(file)) => {
            if let Some((ino, inode)) = state.inode(path) {
                return file_difference(state, ino, inode, file);
            }
            format!("a file of {} bytes", file.bytes.len())
        }
    };
    let expected = match state.nodes.get(path) {
        None => "nothing".to_string(),
        Some(Node::Dir) => "a directory".into(),
        Some(Node::Symlink(to)) => format!("a link to {to}"),
        Some(Node::File(ino)) => {
            format!("a file of {} bytes", state.inodes.get(ino).map_or(0, |i| len_of(&i.content)))
        }
    };
    format!("found {found}, expected {expected}")
}

fn file_difference(state: &State, ino: u64, inode: &Inode, file: &FoundFile) -> String {
    let expected = bytes_of(&[&inode.content[..], &inode.pending[..]].concat());
    let mut out = format!("found {} bytes, expected {}", file.bytes.len(), len_of(&inode.content));
    if !inode.pending.is_empty() {
        out.push_str(&format!(" to {}", expected.len()));
    }
    if let Some(at) = file.bytes.iter().zip(&expected).position(|(a, b)| a != b) {
        let wrong = file.bytes.iter().zip(&expected).filter(|(a, b)| a != b);
        let zeros = wrong.clone().filter(|(a, _)| **a == 0).count();
        out.push_str(&format!(
            "; {} bytes wrong from {at} on, {zeros} of them zero",
            wrong.count()
        ));
    }
    let names = state.names_of(ino).len();
    if file.nlink != names as u64 {
        out.push_str(&format!("; link count {}, names {names}", file.nlink));
    }
    let value = |&(key, len): &(u64, u64)| bytes_of(&[Piece { key, skip: 0, len }]);
    for (name, spec) in &inode.xattrs {
        match file.xattrs.get(name) {
            None => out.push_str(&format!("; {name} is missing")),
            Some(found) if *found != value(spec) => {
                out.push_str(&format!("; {name} has another value"))
            }
            Some(_) => {}
        }
    }
    for name in file.xattrs.keys().filter(|n| !inode.xattrs.contains_key(*n)) {
        out.push_str(&format!("; {name} should not be there"));
    }
    out
}

/// What survives is a prefix of what was acknowledged, over all threads: an operation that survived
/// began after a lost one had been acknowledged.
fn order_broken(log: &Log, survived: &BTreeMap<u64, Survived>) -> Vec<String> {
    let mut out = Vec::new();
    for (&lost_thread, lost) in survived {
        // The first operation that is certainly lost.
        let Some(gone) = log.threads[&lost_thread].get(lost.largest) else { continue };
        let Some((acked_at, _)) = gone.acked else { continue };
        for (&thread, kept) in survived.iter().filter(|(t, _)| **t != lost_thread) {
            // The last operation that is certainly there.
            let Some(there) =
                kept.smallest.checked_sub(1).and_then(|i| log.threads[&thread].get(i))
            else {
                continue;
            };
            if there.intent_at > acked_at {
                out.push(format!(
                    "not a prefix: thread {lost_thread} lost \"{}\", acknowledged before thread \
                     {thread} began \"{}\", which survived",
                    show_op(&gone.op),
                    show_op(&there.op)
                ));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
