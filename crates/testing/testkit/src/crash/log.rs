//! The log that a workload keeps outside the file system under test.
//!
//! One line each: `H name value` (header), `I thread seq ms operation…` before a call, then
//! `A thread seq ms` when it succeeded, or `E thread seq ms ERRNO` when it failed (the mount died:
//! it may or may not have happened).

use std::collections::BTreeMap;

use crate::crash::model::Op;

/// An operation as the log tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// What was to be done.
    pub op: Op,
    /// Position of the intent in the log, counted in lines.
    pub intent_at: usize,
    /// Position and milliseconds of the acknowledgement.
    pub acked: Option<(usize, u64)>,
}

/// A whole log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The operations of each thread, in order. Only the last can lack its acknowledgement.
    pub threads: BTreeMap<u64, Vec<Logged>>,
    /// Milliseconds of the last line.
    pub last_ms: u64,
}

impl Log {
    /// Reads a log. A torn last line is ignored, anything else that does not fit is an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut log = Self::default();
        let complete = text.rfind('\n').map_or(0, |i| i + 1);
        for (at, line) in text[..complete].lines().enumerate() {
            let bad = || format!("line {}: cannot be read: {line}", at + 1);
            let words: Vec<&str> = line.split(' ').collect();
            let number =
                |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok()).ok_or_else(bad);
            if words[0] == "H" {
                continue;
            }
            let (thread, seq, ms) = (number(1)?, number(2)? as usize, number(3)?);
            let ops = log.threads.entry(thread).or_default();
            log.last_ms = ms;
            match words[0] {
                "I" => {
                    let open = ops.last().is_some_and(|l: &Logged| l.acked.is_none());
                    if open || seq != ops.len() {
                        return Err(format!("line {}: out of order: {line}", at + 1));
                    }
                    let op = parse_op(&words[4..]).ok_or_else(bad)?;
                    ops.push(Logged { op, intent_at: at, acked: None });
                }
                "A" => ops.get_mut(seq).ok_or_else(bad)?.acked = Some((at, ms)),
                "E" => {}
                _ => return Err(bad()),
            }
        }
        Ok(log)
    }
}

/// The operation as a line of the log.
pub fn show_op(op: &Op) -> String {
    let tail = |sync: &bool| if *sync { "sync" } else { "nosync" };
    match op {
        Op::Create { path, ino } => format!("create {path} {ino}"),
        Op::Write { path, ino, key, len, sync } => {
            format!("write {path} {ino} {key} {len} {}", tail(sync))
        }
        Op::Append { path, key, len, sync } => format!("append {path} {key} {len} {}", tail(sync)),
        Op::Overwrite { path, off, key, len } => format!("overwrite {path} {off} {key} {len}"),
        Op::Truncate { path, len } => format!("truncate {path} {len}"),
        Op::Rename { from, to } => format!("rename {from} {to}"),
        Op::Exchange { from, to } => format!("exchange {from} {to}"),
        Op::Link { from, to } => format!("link {from} {to}"),
        Op::Unlink { path } => format!("unlink {path}"),
        Op::Symlink { target, path } => format!("symlink {target} {path}"),
        Op::Mkdir { path } => format!("mkdir {path}"),
        Op::Rmdir { path } => format!("rmdir {path}"),
        Op::SetXattr { path, name, key, len } => format!("setxattr {path} {name} {key} {len}"),
        Op::RemoveXattr { path, name } => format!("removexattr {path} {name}"),
        Op::Hold { path } => format!("hold {path}"),
        Op::HoldAppend { key, len } => format!("holdappend {key} {len}"),
        Op::HoldSync => "holdsync".into(),
        Op::HoldClose => "holdclose".into(),
        Op::SyncDir { path } => format!("syncdir {path}"),
        Op::Sync => "sync".into(),
    }
}

fn parse_op(words: &[&str]) -> Option<Op> {
    let number = |word: &str| word.parse::<u64>().ok();
    let sync = |word: &str| match word {
        "sync" => Some(true),
        "nosync" => Some(false),
        _ => None,
    };
    let s = str::to_string;
    Some(match *words {
        ["create", path, ino] => Op::Create { path: s(path), ino: number(ino)? },
        ["write", path, ino, key, len, tail] => Op::Write {
            path: s(path),
            ino: number(ino)?,
            key: number(key)?,
            len: number(len)?,
            sync: sync(tail)?,
        },
        ["append", path, key, len, tail] => {
            Op::Append { path: s(path), key: number(key)?, len: number(len)?, sync: sync(tail)? }
        }
        ["overwrite", path, off, key, len] => {
            Op::Overwrite { path: s(path), off: number(off)?, key: number(key)?, len: number(len)? }
        }
        ["truncate", path, len] => Op::Truncate { path: s(path), len: number(len)? },
        ["rename", from, to] => Op::Rename { from: s(from), to: s(to) },
        ["exchange", from, to] => Op::Exchange { from: s(from), to: s(to) },
        ["link", from, to] => Op::Link { from: s(from), to: s(to) },
        ["unlink", path] => Op::Unlink { path: s(path) },
        ["symlink", target, path] => Op::Symlink { target: s(target), path: s(path) },
        ["mkdir", path] => Op::Mkdir { path: s(path) },
        ["rmdir", path] => Op::Rmdir { path: s(path) },
        ["setxattr", path, name, key, len] => {
            Op::SetXattr { path: s(path), name: s(name), key: number(key)?, len: number(len)? }
        }
        ["removexattr", path, name] => Op::RemoveXattr { path: s(path), name: s(name) },
        ["hold", path] => Op::Hold { path: s(path) },
        ["holdappend", key, len] => Op::HoldAppend { key: number(key)?, len: number(len)? },
        ["holdsync"] => Op::HoldSync,
        ["holdclose"] => Op::HoldClose,
        ["syncdir", path] => Op::SyncDir { path: s(path) },
        ["sync"] => Op::Sync,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::model::State;
    use crate::crash::plan::Planner;

    #[test]
    fn every_operation_survives_the_log() {
        let (mut planner, mut state) = (Planner::new(3, 0), State::default());
        let (mut text, mut ops) = (String::from("H seed 3\n"), Vec::new());
        for seq in 0..3000 {
            let op = planner.next(&state);
            state.apply(&op);
            text.push_str(&format!("I 0 {seq} 5 {}\nA 0 {seq} 6\n", show_op(&op)));
            ops.push(op);
        }
        let log = Log::parse(&text).unwrap();
        let read: Vec<_> = log.threads[&0].iter().map(|l| l.op.clone()).collect();
        assert_eq!(read, ops);
        assert!(log.threads[&0].iter().all(|l| l.acked.is_some()));
    }

    #[test]
    fn a_torn_tail_is_ignored_and_nonsense_is_not() {
        let log = Log::parse("I 0 0 1 mkdir a\nA 0 0 2\nI 0 1 3 mkd").unwrap();
        assert_eq!(log.threads[&0].len(), 1);
        assert!(Log::parse("I 0 0 1 fly away\n").is_err());
        assert!(Log::parse("I 0 5 1 mkdir a\n").is_err());
        assert!(Log::parse("nonsense\n").is_err());
    }
}
