//! Answers to questions of `kestrel publish` and `kestrel version`.
//!
//! | act | further fields | answer |
//! | --- | --- | --- |
//! | `version-publish` | directory, `snapshot` or `null`, `name`, `inputs`: names | the version |
//! | `version-hold` | `version`: name, `id`: of one that is made from it | `{"user": number}` |
//! | `version-clone` | directory, `volume`: identity, `version`: name, `name` | `{"dir": number}` |
//! | `version-rename` | `name`, `to` | `null` |
//! | `version-delete` | `name` | `null` |
//! | `version-clean` | `older`: seconds | counts: `removed`, `released`, `objects` |
//!
//! **What keeps a version's data.** A version refers to the file data of the volume and copies
//! none. Its snapshot keeps that data: a tag with the version's identity holds the snapshot, so
//! neither a person nor a schedule removes it, and gc and fsck know nothing of versions. The tag is
//! put on before any table is written and taken away after the version's name is gone. A process
//! that was killed in between leaves a tag, and `version-clean` finds it: the version has no
//! objects.
//!
//! **Versions that jobs made** have objects of their own, with numbers of the job, and need the
//! versions below them, which stay as long as they do. Their objects go with them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use kestrel_blockstore::store::list_all;
use kestrel_client::descriptor::random;
use kestrel_client::job::remove_objects;
use kestrel_client::storage::Storage;
use kestrel_client::version::{
    Publication, PublishError, VersionFigures, VersionId, VersionInput, VersionManifest,
    VersionRegistry, VersionSource, VersionWriter, check_name, publish, remove_old_plans,
};
use kestrel_engine::EngineError;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::crash;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::ids::{InodeId, job_of_object};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::snapshot::SnapshotInfo;
use serde_json::{Value, json};

use super::calls::{SnapshotCalls, clone_told, told};
use super::named::{directory, find_snapshot, name_of};
use crate::ask::path_value;
use crate::logger::utc;

/// How tags of versions begin; the identity follows.
const TAG: &str = "version-";

/// Bytes of the identity that are in the name of a snapshot that is made for a version.
const OWNED_BYTES: usize = 4;

/// How often a publication tells how far it has come.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Answers one question.
///
/// # Errors
/// In words, with what to do.
pub fn answer(
    calls: &SnapshotCalls<'_>,
    storage: &Storage,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    if let Some(job) = storage.job() {
        return Err(format!(
            "this is the namespace of job {job}, which becomes a version by `kestrel job publish`; \
             for all else about versions name the volume itself"
        ));
    }
    let registry = || storage.versions().map_err(|why| why.to_string());
    match question["act"].as_str().unwrap_or_default() {
        "version-publish" => make(calls, storage, question, tell),
        "version-hold" => hold_for(calls, storage, question),
        "version-clone" => clone_version(calls, &registry()?, question),
        "version-rename" => {
            let (registry, to) = (registry()?, text(question, "to")?);
            check_name(&to)?;
            let found = own_version(calls, &registry, &text(question, "name")?)?;
            if to == found.name {
                return Err(format!("the version's name is {to} already"));
            }
            match registry.rename(&found, &to).map_err(|why| why.to_string())? {
                true => Ok(Value::Null),
                false => Err(taken(&to)),
            }
        }
        "version-delete" => {
            let (registry, name) = (registry()?, text(question, "name")?);
            if calls.creds().uid == 0
                && matches!(registry.find(&name), Err(EngineError::Corrupt(_)))
            {
                // Its data and snapshot are left over, for `kestrel version clean`.
                let removed = registry.remove_damaged(&name);
                return removed.map(|()| Value::Null).map_err(|why| why.to_string());
            }
            let found = own_version(calls, &registry, &name)?;
            if registry.remove(&found).map_err(|why| why.to_string())? {
                crash::point("version.removed");
                match found.changes() {
                    Some(changes) => {
                        let live = registry.live_jobs().map_err(|why| why.to_string())?;
                        if !live.contains(&changes.base.job) {
                            remove_objects_of(storage, &HashSet::from([changes.base.job]))?;
                        }
                    }
                    None => {
                        let root = SnapshotCalls::as_root(calls.fs());
                        release(&root, &found.source, &found.id_bytes())?;
                    }
                }
            }
            Ok(Value::Null)
        }
        "version-clean" => {
            let older = question["older"].as_u64().ok_or("the question has no age")?;
            let mut done = clean(calls, &registry()?, Duration::from_secs(older))?;
            done["objects"] = clean_objects(&registry()?, storage)?.into();
            Ok(done)
        }
        other => Err(format!(
            "the serving process does not know {other:?}; it may be older than this program"
        )),
    }
}

/// A version for programs.
pub fn describe(version: &VersionManifest) -> Value {
    let VersionFigures { files, directories, bytes } = version.figures;
    json!({
        "name": version.name,
        "id": version.id,
        "created": utc(version.created),
        "created_ns": version.created,
        "user": version.user,
        "inputs": version.inputs().iter().map(|input| json!({ "name": input.name, "id": input.id }))
            .collect::<Vec<Value>>(),
        "files": files,
        "directories": directories,
        "bytes": bytes,
        "tables": version.tables(),
        "table_bytes": version.table_bytes(),
        "runs": version.runs.len(),
        "rows": version.rows,
        "job": version.changes().map(|changes| changes.base.job),
        "below": version.changes().map(|changes| {
            changes.base.layers.iter().map(|layer| layer.name.as_str()).collect::<Vec<&str>>()
        }),
        "dir": version.source.dir,
        "snapshot": path_value(&version.source.snapshot_name),
        "snapshot_id": version.source.snapshot,
    })
}

fn text(question: &Value, field: &str) -> Result<String, String> {
    let text = question[field].as_str().ok_or_else(|| format!("the question has no {field}"))?;
    Ok(text.to_string())
}

fn taken(name: &str) -> String {
    format!("there is a version {name} already, and a version never changes; choose another name")
}

fn tag_of(id: &VersionId) -> Result<Name, String> {
    Name::new(format!("{TAG}{}", to_hex(id)).as_bytes()).map_err(|why| why.reason.to_string())
}

/// The version of a name, for its publisher and root.
fn own_version(
    calls: &SnapshotCalls<'_>,
    registry: &VersionRegistry,
    name: &str,
) -> Result<VersionManifest, String> {
    let found = registry.find(name).map_err(|why| why.to_string())?;
    let found = found.ok_or_else(|| {
        format!("there is no version {name}; `kestrel version list` shows those that there are")
    })?;
    let user = calls.creds().uid;
    if user != 0 && user != found.user {
        return Err(format!(
            "version {name}: only its publisher, user {}, and root may",
            found.user
        ));
    }
    Ok(found)
}

/// The versions that a publisher says that its version is made from.
fn inputs_of(registry: &VersionRegistry, question: &Value) -> Result<Vec<VersionInput>, String> {
    let names = question["inputs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let input = |name: &Value| {
        let name = name.as_str().ok_or("an input of the question is no name")?;
        let found = registry.find(name).map_err(|why| why.to_string())?;
        let found =
            found.ok_or_else(|| format!("input {name}: there is no version of this name"))?;
        Ok(VersionInput { id: found.id, name: found.name })
    };
    names.iter().map(input).collect()
}

/// Makes a clone of what a version was made from, in the live tree.
fn clone_version(
    calls: &SnapshotCalls<'_>,
    registry: &VersionRegistry,
    question: &Value,
) -> Result<Value, String> {
    let volume = to_hex(registry.volume());
    if question["volume"] != *volume {
        return Err(format!(
            "the version is of the volume {}, and the clone would lie in {volume}; clone within \
             one volume, or copy from a mount of the version",
            question["volume"].as_str().unwrap_or("?")
        ));
    }
    let found = own_version(calls, registry, &text(question, "version")?)?;
    if found.changes().is_some() {
        return Err(format!(
            "version {} was made by a job, and is not part of the live tree: copy from a mount of \
             it, or go on from it with `kestrel job run … --input {}`",
            found.name, found.name
        ));
    }
    let VersionSource { dir, snapshot, .. } = found.source;
    let place = PathRef::new(directory(calls, question)?, name_of(question, "name")?);
    let made = calls.clone_dir((dir, Some(snapshot)), place).map_err(|why| match why.errno {
        libc::ENOENT | libc::ESTALE => format!(
            "{}; the directory that the version was made from may be gone: copy from a mount of \
             the version",
            why.reason
        ),
        _ => clone_told(&why),
    })?;
    Ok(json!({ "dir": made.ino }))
}

/// The snapshot to publish: the one that is named as `.snap` shows it, or a new one.
fn snapshot_for(
    calls: &SnapshotCalls<'_>,
    dir: InodeId,
    question: &Value,
    id: &VersionId,
) -> Result<(SnapshotInfo, bool), String> {
    if question["snapshot"].is_null() {
        calls.flush_all();
        let name = Name::new(format!("{TAG}{}", to_hex(&id[..OWNED_BYTES])).as_bytes());
        let name = name.map_err(|why| why.reason.to_string())?;
        return calls.create(dir, name).map(|made| (made, true)).map_err(|why| told(&why));
    }
    let shown = name_of(question, "snapshot")?;
    find_snapshot(calls, dir, &shown, |one| !one.removing).map(|one| (one, false))
}

fn make(
    calls: &SnapshotCalls<'_>,
    storage: &Storage,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let name = text(question, "name")?;
    check_name(&name)?;
    let registry = storage.versions_to_publish().map_err(|why| why.to_string())?;
    if registry.find(&name).map_err(|why| why.to_string())?.is_some() {
        return Err(taken(&name));
    }
    let inputs = inputs_of(&registry, question)?;
    let dir = directory(calls, question)?;
    let id: VersionId = random().map_err(|why| why.to_string())?;
    let (snapshot, owned) = snapshot_for(calls, dir, question, &id)?;
    let source = VersionSource {
        dir,
        snapshot_dir: snapshot.dir,
        snapshot: snapshot.id,
        snapshot_name: snapshot.name.as_bytes().to_vec(),
        owned,
    };
    let mut settled = true;
    // The writer's object first: `version-clean` takes a tag without objects for left over.
    let writer = VersionWriter::begin(registry.place(), id).map_err(|why| why.to_string());
    let held = writer.and_then(|writer| {
        let held = calls.hold(snapshot.dir, snapshot.name, tag_of(&id)?, true);
        crash::point("version.held");
        // The bucket must not have a version without the snapshot that keeps its data.
        let held = held.and_then(|()| calls.fs().upload());
        held.map(|()| writer).map_err(|why| told(&why))
    });
    let published = held.and_then(|writer| {
        let (user, source) = (calls.creds().uid, source.clone());
        let what = Publication { name: name.clone(), id, source, inputs, user };
        let mut told = Instant::now();
        let mut progress = |done: &VersionFigures| {
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tell(&json!({ "files": done.files, "directories": done.directories }));
            }
        };
        publish(calls.fs(), &registry, (writer, what), &mut progress).map_err(|why| match why {
            PublishError::Taken => taken(&name),
            PublishError::Failed(why) => why.to_string(),
            PublishError::Unsettled(why) => {
                settled = false;
                format!(
                    "{why}; {name} may have been published: look with `kestrel version list`; if \
                     it is not there, publish again, and `kestrel version clean` removes what is \
                     left"
                )
            }
        })
    });
    match published {
        Ok(manifest) => Ok(describe(&manifest)),
        Err(why) => {
            // What cannot be taken back now is left over, for `kestrel version clean`. A version
            // that may have its name keeps its tables and its snapshot.
            if settled {
                let _ = registry.remove_data(&id);
                let _ = release(calls, &source, &id);
            }
            Err(why)
        }
    }
}

/// Holds the snapshot of a version for another one with the same data, which is to be made. The
/// object of that one's writer is there from then on.
fn hold_for(
    calls: &SnapshotCalls<'_>,
    storage: &Storage,
    question: &Value,
) -> Result<Value, String> {
    let registry = storage.versions_to_publish().map_err(|why| why.to_string())?;
    let found = own_version(calls, &registry, &text(question, "version")?)?;
    let id = from_hex(&text(question, "id")?).and_then(|id| VersionId::try_from(id).ok());
    let id = id.ok_or("the question has no identity")?;
    // First, as for a version that is published.
    VersionWriter::begin(registry.place(), id).map_err(|why| why.to_string())?;
    let held = snapshot_of(calls, &found.source).and_then(|snapshot| {
        let snapshot = snapshot.ok_or_else(|| {
            format!("the snapshot that keeps the data of {} is gone; publish anew", found.name)
        })?;
        let held = calls.hold(snapshot.dir, snapshot.name, tag_of(&id)?, true);
        crash::point("compact.held");
        held.and_then(|()| calls.fs().upload()).map_err(|why| told(&why))
    });
    match held {
        Ok(()) => Ok(json!({ "user": calls.creds().uid })),
        Err(why) => {
            // Its tag, if it was made after all, is left over, for `kestrel version clean`.
            let _ = registry.remove_data(&id);
            Err(why)
        }
    }
}

/// The snapshot that keeps the data of a version. It may have another name by now.
fn snapshot_of(
    calls: &SnapshotCalls<'_>,
    source: &VersionSource,
) -> Result<Option<SnapshotInfo>, String> {
    // That of a directory that was removed is known to the volume alone.
    let found = calls.list(Some(source.snapshot_dir), false);
    let found = found.or_else(|_| calls.list(None, false)).map_err(|why| told(&why))?;
    Ok(found.into_iter().find(|one| one.id == source.snapshot))
}

/// Takes a version's tag off its snapshot, and removes the snapshot if it was made for the version.
fn release(
    calls: &SnapshotCalls<'_>,
    source: &VersionSource,
    id: &VersionId,
) -> Result<(), String> {
    let Some(snapshot) = snapshot_of(calls, source)? else { return Ok(()) };
    release_snapshot(calls, &snapshot, tag_of(id)?, source.owned)
}

fn release_snapshot(
    calls: &SnapshotCalls<'_>,
    snapshot: &SnapshotInfo,
    tag: Name,
    owned: bool,
) -> Result<(), String> {
    match calls.hold(snapshot.dir, snapshot.name.clone(), tag, false) {
        Ok(()) => {}
        Err(why) if why.errno == libc::ENOENT => {}
        Err(why) => return Err(told(&why)),
    }
    if !owned || snapshot.removing {
        return Ok(());
    }
    match calls.remove(snapshot.dir, snapshot.name.clone()) {
        Ok(()) => Ok(()),
        // Another tag, of a person, holds it by now.
        Err(why) if matches!(why.errno, libc::ENOENT | libc::EBUSY) => Ok(()),
        Err(why) => Err(told(&why)),
    }
}

/// Whether a snapshot was made for a version, by its name, and none of the versions that are there.
fn is_owned(snapshot: &SnapshotInfo, there: &HashSet<VersionId>) -> bool {
    let digits = snapshot.name.as_bytes().strip_prefix(TAG.as_bytes());
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let Some(begin) = digits.and_then(from_hex).filter(|begin| begin.len() == OWNED_BYTES) else {
        return false;
    };
    !snapshot.removing && !there.iter().any(|id| id.starts_with(&begin))
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Removes the objects of jobs that nothing needs any more. How many.
fn remove_objects_of(storage: &Storage, jobs: &HashSet<u32>) -> Result<u64, String> {
    let is_to_go = |object| job_of_object(object).is_some_and(|job| jobs.contains(&job));
    remove_objects(&*storage.store, &is_to_go).map_err(|why| why.to_string())
}

/// Removes the objects of all jobs that are not there any more and have left no version. How many.
fn clean_objects(registry: &VersionRegistry, storage: &Storage) -> Result<u64, String> {
    let mut jobs = HashSet::new();
    for page in list_all(&*storage.store) {
        let page = page.map_err(|why| why.to_string())?;
        jobs.extend(page.objects.iter().filter_map(|info| job_of_object(info.object)));
    }
    if jobs.is_empty() {
        return Ok(0);
    }
    // Behind the listing: a job that was begun since has none of these objects.
    let live = registry.live_jobs().map_err(|why| why.to_string())?;
    jobs.retain(|job| !live.contains(job));
    if jobs.is_empty() { Ok(0) } else { remove_objects_of(storage, &jobs) }
}

/// Removes what publications, compactions and deletions that were cut short have left.
fn clean(
    calls: &SnapshotCalls<'_>,
    registry: &VersionRegistry,
    older: Duration,
) -> Result<Value, String> {
    if calls.creds().uid != 0 {
        return Err("only root may clean up".into());
    }
    let failed = |why: EngineError| why.to_string();
    // Before the objects are listed: a version with a tag by now has its objects already.
    let snapshots = calls.list(None, false).map_err(|why| told(&why))?;
    let mut removed = 0;
    for id in registry.leftovers(older).map_err(failed)? {
        registry.remove_data(&id).map_err(failed)?;
        removed += 1;
    }
    remove_old_plans(registry).map_err(failed)?;
    let there = registry.data_ids().map_err(failed)?;
    let mut released = 0;
    let before = SystemClock.now().saturating_sub(nanos(older));
    for snapshot in snapshots {
        // Made for a version that has come to nothing, or that a person held when it was deleted.
        if snapshot.holds.is_empty()
            && !snapshot.hidden
            && snapshot.created <= before
            && is_owned(&snapshot, &there)
        {
            match calls.remove(snapshot.dir, snapshot.name.clone()) {
                Ok(()) => released += 1,
                Err(why) if matches!(why.errno, libc::ENOENT | libc::EBUSY) => {}
                Err(why) => return Err(told(&why)),
            }
            continue;
        }
        for tag in snapshot.holds.clone() {
            let id = tag.as_bytes().strip_prefix(TAG.as_bytes());
            let id = id.and_then(|id| std::str::from_utf8(id).ok()).and_then(from_hex);
            let Some(id) = id.and_then(|id| VersionId::try_from(id).ok()) else { continue };
            if !there.contains(&id) {
                let owned = format!("{TAG}{}", to_hex(&id[..OWNED_BYTES]));
                let owned = snapshot.name.as_bytes() == owned.as_bytes();
                release_snapshot(calls, &snapshot, tag, owned)?;
                released += 1;
            }
        }
    }
    Ok(json!({ "removed": removed, "released": released }))
}
