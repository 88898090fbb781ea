//! What a node keeps for clients across a network: their sessions and answers (table `txn`), and
//! where files went that they have open (table `moved`).
//!
//! None of it is part of the tree: a row that is wrong is removed. That costs at most what the row
//! was for: a client that sends a call again after a crash, and has no recorded reply, may get an
//! error that what it made exists already; a client with a file that cannot be found after a
//! restart gets `ESTALE`.

use std::collections::HashSet;

use kestrel_engine::EngineError;
use kestrel_meta::txn::{TxnKey, WINDOW, decode_answer, decode_session};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, Table};
use kestrel_types::wire::ClientId;

use super::Check;
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{DirId, delete, get};

/// Checks both tables.
pub fn check(check: &mut Check<'_>) -> Result<(), EngineError> {
    moved(check)?;
    answers(check)
}

fn moved(check: &mut Check<'_>) -> Result<(), EngineError> {
    for row in check.rows(Table::Moved) {
        let (key, value) = row?;
        check.row("checking places of renamed files");
        let detail = match DirId::decode(&value) {
            _ if !key.suffix.is_empty() => "its key is none".to_owned(),
            // It may be given a name: see `kestrel_meta::ops::tmpfile`.
            Ok(dir_id) if dir_id.parent == 0 => {
                let record = get(check.engine, Key::new(Table::Link, key.id, b""))?;
                match record.map(|bytes| Inode::decode(&mut Reader::new(&bytes))) {
                    Some(Ok(inode)) if inode.nlink == 0 => continue,
                    _ => "it says that the file has no name".to_owned(),
                }
            }
            Ok(dir_id) => {
                let entry = get(check.engine, Key::new(Table::Entry, dir_id.parent, &dir_id.name))?;
                match entry.map(|bytes| Entry::decode(&bytes)) {
                    Some(Ok(Entry::Inode(inode))) if inode.ino == key.id => continue,
                    _ => format!("the file is not at {}", check.path(dir_id.parent, &dir_id.name)),
                }
            }
            Err(why) => why.to_string(),
        };
        remove(check, FindingKind::MovedWrong, format!("#{}", key.id), detail, &key);
    }
    Ok(())
}

fn answers(check: &mut Check<'_>) -> Result<(), EngineError> {
    // Sessions have id 0, so they come first.
    let mut clients: HashSet<ClientId> = HashSet::new();
    for row in check.rows(Table::Txn) {
        let (key, value) = row?;
        check.row("checking sessions and answers");
        let damaged = |why: DecodeError| why.to_string();
        let (path, wrong) = match TxnKey::decode(key.id, &key.suffix) {
            None => (format!("txn #{}", key.id), Some("its key is none".to_owned())),
            Some(TxnKey::Prepared(txn) | TxnKey::Decided(txn)) => {
                let wrong = "this volume is not shared by several nodes".to_owned();
                (format!("transaction {} of node {}", txn.number, txn.node), Some(wrong))
            }
            Some(TxnKey::Session(client)) => {
                let wrong = decode_session(client, &value).err().map(damaged);
                if wrong.is_none() {
                    clients.insert(client);
                }
                (format!("session of {client}"), wrong)
            }
            Some(TxnKey::Answer(client, slot)) => {
                let wrong = match decode_answer(&value) {
                    Err(why) => Some(damaged(why)),
                    Ok((_, Err(_))) => Some("it tells of a failure".to_owned()),
                    Ok((seq, _)) if seq % WINDOW != u64::from(slot) => {
                        Some(format!("it is the one to call {seq}"))
                    }
                    Ok(_) if !clients.contains(&client) => {
                        Some("the client has no session".to_owned())
                    }
                    Ok(_) => None,
                };
                (format!("answer {slot} to {client}"), wrong)
            }
        };
        if let Some(detail) = wrong {
            remove(check, FindingKind::TxnWrong, path, detail, &key);
        }
    }
    Ok(())
}

fn remove(check: &mut Check<'_>, kind: FindingKind, path: String, detail: String, key: &Key) {
    let finding = Finding::new(kind, path, detail);
    check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(key)])));
}
