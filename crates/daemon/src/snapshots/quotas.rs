//! Answers to questions about quotas, for `kestrel quota`: acts of [`super::answer`].
//!
//! A subject is `{"kind": "directory", "id": …, "path": …}`; `user`, `group` and `volume` likewise.
//! Limits that there are not are left out or `null`.

use kestrel_client::fs::unexpected;
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::quota::{GRACE_DEFAULT, QuotaInfo, QuotaLimits, QuotaSubject, QuotaUsage};
use kestrel_types::request::{Answer, Op};
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use crate::ask::path_value;
use crate::logger::utc;

/// The path of a directory, if it can be told.
pub type PathOf<'a> = &'a dyn Fn(InodeId) -> Option<Vec<u8>>;

/// What a question is about: a user, a group, the volume, or the directory that it names.
fn subject_of(
    question: &Value,
    dir: impl FnOnce() -> Result<InodeId, String>,
) -> Result<QuotaSubject, String> {
    let number = |value: &Value| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or("the question has no number of a user or group")
    };
    Ok(match (&question["user"], &question["group"], &question["volume"]) {
        (Value::Null, Value::Null, Value::Null) => QuotaSubject::Dir(dir()?),
        (Value::Null, Value::Null, _) => QuotaSubject::Volume,
        (Value::Null, group, _) => QuotaSubject::Group(number(group)?),
        (user, ..) => QuotaSubject::User(number(user)?),
    })
}

/// The limits that a quota has after `question`: what it does not name stays as it is.
fn limits_of(question: &Value, before: QuotaLimits) -> Result<QuotaLimits, String> {
    let limit = |name: &str, before: Option<u64>| match question.get(name) {
        None => Ok(before),
        Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or(format!("{name}: not a limit")),
    };
    let grace = match question.get("grace") {
        None => before.grace,
        Some(value) => {
            let seconds = value.as_u64().and_then(|seconds| u32::try_from(seconds).ok());
            seconds.ok_or("grace: not a number of seconds")?
        }
    };
    let limits = QuotaLimits {
        bytes: limit("bytes", before.bytes)?,
        files: limit("files", before.files)?,
        soft_bytes: limit("soft_bytes", before.soft_bytes)?,
        soft_files: limit("soft_files", before.soft_files)?,
        grace,
    };
    if limits.is_valid() { Ok(limits) } else { Err("a limit is at most 8 EiB - 1".into()) }
}

fn usage(used: &QuotaUsage) -> Value {
    json!({ "files": used.files.max(0), "bytes": used.bytes.max(0) })
}

fn described(info: &QuotaInfo, path_of: PathOf<'_>) -> Value {
    let (kind, id) = match info.of {
        QuotaSubject::Dir(dir) => ("directory", Some(dir)),
        QuotaSubject::User(uid) => ("user", Some(uid.into())),
        QuotaSubject::Group(gid) => ("group", Some(gid.into())),
        QuotaSubject::Volume => ("volume", None),
    };
    let path = match info.of {
        QuotaSubject::Dir(dir) => path_of(dir),
        _ => None,
    };
    let since = |at: Nanos| (at != 0).then(|| utc(at));
    let QuotaLimits { bytes, files, soft_bytes, soft_files, grace } = info.limits;
    json!({
        "kind": kind,
        "id": id,
        "path": path.map(|path| path_value(&path)),
        "limits": {
            "bytes": bytes,
            "files": files,
            "soft_bytes": soft_bytes,
            "soft_files": soft_files,
            "grace_seconds": grace,
        },
        "used": usage(&info.used),
        "above_soft_since": { "bytes": since(info.since.bytes), "files": since(info.since.files) },
        "counted": info.counted.as_ref().map(usage),
    })
}

fn ask(calls: &SnapshotCalls<'_>, op: Op) -> Result<Vec<QuotaInfo>, String> {
    match calls.ask(None, op) {
        Ok(Answer::Quotas(quotas)) => Ok(quotas),
        Ok(Answer::Done) => Ok(Vec::new()),
        Ok(other) => Err(unexpected(&other).reason.into()),
        Err(FsError { reason, .. }) => Err(reason.into()),
    }
}

/// Answers a question with the act `quota-set`, `quota-remove`, `quota-get`, `quota-list` or
/// `quota-check`.
///
/// # Errors
/// In words.
pub fn answer(
    calls: &SnapshotCalls<'_>,
    path_of: PathOf<'_>,
    question: &Value,
    dir: impl FnOnce() -> Result<InodeId, String>,
) -> Result<Value, String> {
    let listed = |quotas: Vec<QuotaInfo>| {
        let quotas: Vec<Value> = quotas.iter().map(|info| described(info, path_of)).collect();
        json!({ "quotas": quotas })
    };
    match question["act"].as_str() {
        Some("quota-list") => ask(calls, Op::QuotaList(None)).map(listed),
        Some("quota-check") => {
            let repair = question["repair"] == true;
            ask(calls, Op::QuotaCheck { repair }).map(listed)
        }
        act => {
            let of = subject_of(question, dir)?;
            let known = || {
                let all = ask(calls, Op::QuotaList(None))?;
                Ok::<_, String>(all.into_iter().find(|info| info.of == of))
            };
            match act {
                Some("quota-set") => {
                    let none = QuotaLimits { grace: GRACE_DEFAULT, ..QuotaLimits::default() };
                    let before = known()?.map_or(none, |info| info.limits);
                    let limits = Box::new(limits_of(question, before)?);
                    ask(calls, Op::QuotaSet(of, limits)).map(listed)
                }
                Some("quota-remove") => ask(calls, Op::QuotaRemove(of)).map(listed),
                _ => match known()? {
                    Some(info) => Ok(listed(vec![info])),
                    None => Err("it has no quota; `kestrel quota list` shows those that there \
                                 are"
                    .into()),
                },
            }
        }
    }
}
