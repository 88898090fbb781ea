//! Questions about the tokens of a volume: `{"verb": "token", "action": …}`. The secret of a token
//! never comes here: the asker makes it, and tells what it is verified by.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use kestrel_admin::info;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::fs::Fs;
use kestrel_engine::Engine;
use kestrel_server::tokens::Tokens;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Request};
use kestrel_types::token::{Ids, RANGES_MAX, SUBTREE_MAX, Subtree, TokenId, TokenRecord, is_name};
use serde_json::{Value, json};

use super::serving::Serving;
use crate::logger::utc;
use crate::token_file::export;

/// How long the other nodes are waited for to know of a change.
const CONFIRM_TIME: Duration = Duration::from_secs(3);

/// Time between two looks whether they do.
const LOOK: Duration = Duration::from_millis(20);

/// How long the directory of a subtree is looked for.
const FIND_TIME: Duration = Duration::from_secs(20);

/// Finds a directory by its path from the root.
type Find<'a> = &'a dyn Fn(&str) -> Result<InodeId, String>;

/// Answers a question to a process that has the volume open.
///
/// # Errors
/// In words.
pub fn answer(serving: &Serving, question: &Value) -> Result<Value, String> {
    let find = |path: &str| find(&serving.volume.fs, path);
    let answer = match serving.clients.get() {
        Some(clients) => act(clients.door.server().tokens(), question, &find),
        None => act(&Arc::new(at_rest(serving.volume.engine.clone())?), question, &find),
    };
    with_authority(answer?, question, &serving.volume.dir)
}

/// Answers one about a volume that nobody has open but this process.
///
/// # Errors
/// In words.
pub fn answer_at_rest(
    engine: Arc<dyn Engine>,
    dir: &Path,
    question: &Value,
) -> Result<Value, String> {
    let find = |path: &str| {
        let found =
            info::find_path(&*engine, path.as_bytes()).map_err(|why| format!("{path}: {why}"))?;
        directory(path, found.ino, found.kind)
    };
    with_authority(act(&Arc::new(at_rest(engine.clone())?), question, &find)?, question, dir)
}

/// Adds to the answer to a maker of a token by what the volume's servers are known. The volume gets
/// a secret for that if it has none.
fn with_authority(mut answer: Value, question: &Value, dir: &Path) -> Result<Value, String> {
    if question["action"] == "create" {
        let authority = Descriptor::authority_at(dir).map_err(|why| why.to_string())?;
        answer["authority"] = authority.fingerprint().to_string().into();
    }
    Ok(answer)
}

fn at_rest(engine: Arc<dyn Engine>) -> Result<Tokens, String> {
    Tokens::read(engine).map_err(|why| why.to_string())
}

fn directory(path: &str, ino: InodeId, kind: Kind) -> Result<InodeId, String> {
    match (kind, ino) {
        (Kind::Dir, ROOT) => Err("the root is no subtree: leave --subtree out".into()),
        (Kind::Dir, ino) => Ok(ino),
        _ => Err(format!("{path}: not a directory; give the path of one, from the volume's root")),
    }
}

/// Asks the metadata where a path leads.
fn find(fs: &Arc<Fs>, path: &str) -> Result<InodeId, String> {
    let place = PathRef::from_path(ROOT, path.as_bytes())
        .map_err(|why| format!("{path}: {}", why.reason))?;
    let (answered, answer) = mpsc::channel();
    let done = Box::new(move |reply| drop(answered.send(reply)));
    fs.metadata().submit(Request { creds: Creds::root(), op: Op::Lookup(place) }, done);
    match answer.recv_timeout(FIND_TIME) {
        Ok(Ok(Answer::Entry { inode, .. })) => directory(path, inode.ino, inode.kind),
        Ok(Err(Outcome::Failed(FsError { reason, .. }))) => Err(format!("{path}: {reason}")),
        Ok(Err(Outcome::Symlink { .. })) => {
            Err(format!("{path}: a symbolic link is on the way; give the path without it"))
        }
        Ok(_) => Err(format!("{path}: not a directory")),
        Err(_) => Err(format!("{path}: the metadata does not answer")),
    }
}

fn act(tokens: &Arc<Tokens>, question: &Value, find: Find<'_>) -> Result<Value, String> {
    let now = SystemClock.now();
    let told = |why: FsError| why.reason.to_string();
    match question["action"].as_str() {
        Some("list") => {
            let told: Vec<Value> =
                tokens.all().iter().map(|record| describe(record, now)).collect();
            Ok(json!({ "tokens": told }))
        }
        Some("export") => Ok(export(&tokens.all())),
        Some("show") => Ok(describe(&one(tokens, question)?, now)),
        Some("create") => {
            let record = wanted(question, now, find)?;
            if tokens.record(record.id).is_some() {
                return Err("there is a token of that number".into());
            }
            if tokens
                .all()
                .iter()
                .any(|other| other.name == record.name && other.ended(now).is_none())
            {
                return Err(format!(
                    "there is a token {:?} already: choose another name",
                    record.name
                ));
            }
            tokens.learn(vec![record.clone()], now).map_err(told)?;
            Ok(confirmed(tokens, describe(&record, now)))
        }
        Some("revoke") => {
            let record = one(tokens, question)?;
            let revoked = TokenRecord { revoked: Some(record.revoked.unwrap_or(now)), ..record };
            tokens.learn(vec![revoked.clone()], now).map_err(told)?;
            Ok(confirmed(tokens, describe(&revoked, now)))
        }
        Some("prune") => {
            let pruned = tokens.prune(now).map_err(told)?;
            Ok(confirmed(tokens, json!({ "pruned": pruned })))
        }
        _ => Err("tokens are listed, shown, exported, created, revoked and pruned".into()),
    }
}

/// The token that a question names, by its number or by a name that only one has.
fn one(tokens: &Tokens, question: &Value) -> Result<TokenRecord, String> {
    let named = question["token"].as_str().ok_or("the question names no token")?;
    if let Some(record) = TokenId::parse(named).and_then(|id| tokens.record(id)) {
        return Ok(record);
    }
    let mut bear: Vec<TokenRecord> =
        tokens.all().into_iter().filter(|record| record.name == named).collect();
    // Of a name that was given again the present one is meant.
    let now = SystemClock.now();
    if bear.len() > 1 && bear.iter().any(|record| record.ended(now).is_none()) {
        bear.retain(|record| record.ended(now).is_none());
    }
    match bear.len() {
        0 => Err(format!("there is no token {named}; `kestrel token list` shows all")),
        1 => Ok(bear.remove(0)),
        _ => Err(format!("several tokens are called {named}: give the number of one")),
    }
}

/// Waits until the other nodes know, and adds which do.
fn confirmed(tokens: &Tokens, mut answer: Value) -> Value {
    let begun = Instant::now();
    loop {
        let (known, missing) = tokens.confirmed();
        if missing.is_empty() || begun.elapsed() >= CONFIRM_TIME {
            answer["confirmed_by"] = known.into();
            answer["not_confirmed_by"] = missing.into();
            return answer;
        }
        std::thread::sleep(LOOK);
    }
}

/// The record of a token that is to be made.
fn wanted(question: &Value, now: Nanos, find: Find<'_>) -> Result<TokenRecord, String> {
    let text = |name: &str| question[name].as_str();
    let id = text("id").and_then(TokenId::parse).ok_or("the question gives the token no number")?;
    let name = text("name").filter(|name| is_name(name));
    let name = name.ok_or("a token has a name of 1 to 64 bytes without control characters")?;
    let verifier: Option<Vec<u8>> = question["verifier"]
        .as_array()
        .map(|bytes| bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect());
    let verifier = verifier.and_then(|bytes| bytes.try_into().ok());
    let subtree = match text("subtree") {
        None => None,
        Some(path) if path.len() > SUBTREE_MAX => {
            return Err("the path of a subtree has 1024 bytes at most".into());
        }
        Some(path) => Some(Subtree { dir: find(path)?, path: path.into() }),
    };
    let mut map = pairs(&question["map"])?;
    if map.len() > RANGES_MAX {
        return Err(format!("a token has {RANGES_MAX} users at most that stand for others"));
    }
    map.sort_unstable();
    if map.windows(2).any(|two| two[0].0 == two[1].0) {
        return Err("one user cannot stand for two others".into());
    }
    // An administrator can do what these forbid.
    if question["admin"] == true && (question["read_only"] == true || subtree.is_some()) {
        return Err("an administrator is neither read-only nor confined to a subtree".into());
    }
    let squash = pairs(&question["squash"])?;
    if squash.len() > 1 {
        return Err("root stands for one user".into());
    }
    Ok(TokenRecord {
        id,
        name: name.into(),
        issued: now,
        expires: question["expires"].as_i64(),
        revoked: None,
        verifier: verifier.ok_or("the question does not say what the token is verified by")?,
        read_only: question["read_only"] == true,
        admin: question["admin"] == true,
        subtree,
        uids: ids(&question["uids"])?,
        gids: ids(&question["gids"])?,
        squash: squash.first().copied(),
        map: map.into(),
    })
}

fn pairs(value: &Value) -> Result<Vec<(u32, u32)>, String> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let pair = |value: &Value| {
        number(&value[0]).zip(number(&value[1])).ok_or("no pair of users".to_string())
    };
    value.as_array().into_iter().flatten().map(pair).collect()
}

fn ids(value: &Value) -> Result<Ids, String> {
    match value {
        Value::Null => Ok(Ids::All),
        ranges => Ids::of(pairs(ranges)?).map_err(Into::into),
    }
}

/// What is told of a token.
fn describe(record: &TokenRecord, now: Nanos) -> Value {
    json!({
        "id": record.id.to_string(),
        "name": record.name,
        "state": record.ended(now).map_or("valid".into(), |ended| ended.to_string()),
        "issued": utc(record.issued),
        "expires": record.expires.map(utc),
        "revoked": record.revoked.map(utc),
        "read_only": record.read_only,
        "admin": record.admin,
        "subtree": record.subtree.as_ref().map(|tree| tree.path.clone()),
        "subtree_inode": record.subtree.as_ref().map(|tree| tree.dir),
        "uids": record.uids.to_string(),
        "gids": record.gids.to_string(),
        "squash_root": record.squash.map(|(uid, gid)| format!("{uid}:{gid}")),
        "map_uid": record.map.iter().map(|(from, to)| format!("{from}:{to}")).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_again_is_not_made() {
        let question = |pairs: usize| {
            let map: Vec<_> = (0..pairs).map(|user| json!([user, 1000])).collect();
            json!({ "id": "0102030405060708", "name": "a", "verifier": vec![7; 32], "map": map })
        };
        let record = wanted(&question(RANGES_MAX), 5, &|_| Ok(2)).unwrap();
        assert_eq!(TokenRecord::decode(&record.encode()), Ok(record));
        for limit in ["read_only", "subtree"] {
            let mut question = question(0);
            question["admin"] = true.into();
            question[limit] = if limit == "subtree" { "/a".into() } else { true.into() };
            assert!(wanted(&question, 5, &|_| Ok(2)).unwrap_err().contains("administrator"));
        }
        assert!(wanted(&question(RANGES_MAX + 1), 5, &|_| Ok(2)).unwrap_err().contains("64 users"));
    }
}
