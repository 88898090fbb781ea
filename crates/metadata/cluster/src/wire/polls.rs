//! The bytes of questions to all members, and of the answers.

use kestrel_balancer::load_report::{LoadReport, NameCount};
use kestrel_meta::feeds::{FeedPart, FeedPlace, FeedQuestion};
use kestrel_meta::node::{ReferencePart, TreePart};
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::feed::{FEED_PATH_MAX, FeedEvent, FeedPosition, POSITION_BYTES};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::Name;
use kestrel_types::request::{DirEntry, Outcome};
use kestrel_types::snapshot_changes::SnapshotUsage;
use kestrel_types::wire::{decode_reply, encode_reply};

use super::{
    boolean, clones, cursor, failure, list, name, put_cursor, put_ids, put_list, put_numbered,
    quotas, snapshot_changes,
};
use crate::message::polls::{PollAnswer, PollQuestion, TreePosition, Weight};

// What a poll asks, and its answer says. Numbers are never given to another one.
const USAGE: u8 = 1;
const HELD: u8 = 2;
const TREE: u8 = 3;
const WEIGH: u8 = 4;
const CONFIRM: u8 = 5;
const FORGET: u8 = 6;
const ENTRIES: u8 = 7;
const LOCATE: u8 = 8;
const AT: u8 = 9;
const FEED: u8 = 10;
const REMOVAL: u8 = 11;
const FAILED: u8 = 12;
const QUOTAS: u8 = 13;
const PARENTS: u8 = 14;
const COUNT: u8 = 15;
const CLONES: u8 = 16;
const CHANGES: u8 = 17;

/// Least bytes of a position and an event: its kind, type and inode, and the length of its path.
const FEED_EVENT_MIN: usize = POSITION_BYTES + 4;

/// Shares of an object are below: those of all nodes can be added up.
const PART_MAX: u64 = 1 << 52;

pub(super) fn put_question(out: &mut Vec<u8>, question: &PollQuestion) {
    match question {
        PollQuestion::Usage => out.push(USAGE),
        PollQuestion::Held(files) => put_about(out, HELD, files),
        PollQuestion::Tree(dirs, after) => {
            put_about(out, TREE, dirs);
            out.push(u8::from(after.is_some()));
            after.iter().for_each(|place| put_place(out, place));
        }
        PollQuestion::Weigh(round, objects) => put_round(out, WEIGH, *round, objects),
        PollQuestion::Confirm(round, objects) => put_round(out, CONFIRM, *round, objects),
        PollQuestion::Forget(round, objects) => put_round(out, FORGET, *round, objects),
        PollQuestion::Entries => out.push(ENTRIES),
        PollQuestion::Locate(files, after) => {
            put_about(out, LOCATE, files);
            put_name_after(out, after.as_ref());
        }
        PollQuestion::Feed(asked) => {
            let FeedQuestion { place: FeedPlace { feed, path }, after, limit } = &**asked;
            put_numbered(out, FEED, *feed);
            put_string(out, path);
            out.extend_from_slice(&after.to_bytes());
            put_varint(out, u64::from(*limit));
        }
        PollQuestion::Removal(snapshot, node, after) => {
            put_numbered(out, REMOVAL, *snapshot);
            put_varint(out, u64::from(*node));
            put_cursor(out, after.as_ref());
        }
        PollQuestion::Quotas(of) => {
            out.push(QUOTAS);
            out.push(u8::from(of.is_some()));
            of.iter().for_each(|of| put_list(out, of, quotas::put_subject));
        }
        PollQuestion::Clones(ending) => put_about(out, CLONES, ending),
        PollQuestion::Parents(dirs) => put_about(out, PARENTS, dirs),
        PollQuestion::Count(count, at) => {
            out.push(COUNT);
            quotas::put_count(out, count, at);
        }
        PollQuestion::Changes(asked) => {
            out.push(CHANGES);
            snapshot_changes::put_question(out, asked);
        }
        PollQuestion::At(snapshot, question) => {
            put_numbered(out, AT, *snapshot);
            put_question(out, question);
        }
    }
}

pub(super) fn question(r: &mut Reader<'_>) -> Result<PollQuestion, DecodeError> {
    Ok(match r.u8()? {
        USAGE => PollQuestion::Usage,
        HELD => PollQuestion::Held(ids(r)?),
        TREE => tree(r)?,
        WEIGH => PollQuestion::Weigh(r.varint()?, ids(r)?),
        CONFIRM => PollQuestion::Confirm(r.varint()?, ids(r)?),
        FORGET => PollQuestion::Forget(r.varint()?, ids(r)?),
        ENTRIES => PollQuestion::Entries,
        LOCATE => PollQuestion::Locate(ids(r)?, name_after(r)?),
        FEED => {
            let place = FeedPlace { feed: r.varint()?, path: r.string(FEED_PATH_MAX)?.into() };
            let (after, limit) = (FeedPosition::decode_from(r)?, r.varint32()?);
            PollQuestion::Feed(Box::new(FeedQuestion { place, after, limit }))
        }
        REMOVAL => PollQuestion::Removal(r.varint()?, r.varint32()?, cursor(r)?),
        QUOTAS => PollQuestion::Quotas(if boolean(r)? {
            Some(list(r, 2, quotas::subject)?)
        } else {
            None
        }),
        CLONES => PollQuestion::Clones(ids(r)?),
        PARENTS => PollQuestion::Parents(ids(r)?),
        COUNT => {
            let (count, at) = quotas::count(r)?;
            PollQuestion::Count(count, at)
        }
        CHANGES => PollQuestion::Changes(Box::new(snapshot_changes::question(r)?)),
        AT => {
            let snapshot = r.varint()?;
            let question = match r.u8()? {
                TREE => tree(r)?,
                LOCATE => PollQuestion::Locate(ids(r)?, name_after(r)?),
                _ => return Err(DecodeError("a question that is not about a snapshot")),
            };
            PollQuestion::At(snapshot, Box::new(question))
        }
        _ => return Err(DecodeError("an unknown question")),
    })
}

fn tree(r: &mut Reader<'_>) -> Result<PollQuestion, DecodeError> {
    Ok(PollQuestion::Tree(ids(r)?, if boolean(r)? { Some(place(r)?) } else { None }))
}

pub(super) fn put_answer(out: &mut Vec<u8>, answer: &PollAnswer) {
    match answer {
        PollAnswer::Usage(figures) => {
            out.push(USAGE);
            put_figures(out, figures);
        }
        PollAnswer::Held(files) => put_about(out, HELD, files),
        PollAnswer::Tree(TreePart { sum, children, more, based, clones }) => {
            out.push(TREE);
            put_figures(out, sum);
            put_list(out, children, put_place);
            put_ids(out, based);
            out.push(u8::from(*clones));
            out.push(u8::from(*more));
        }
        PollAnswer::Weighed(weights) => {
            out.push(WEIGH);
            put_list(out, weights, put_weight);
        }
        PollAnswer::Confirmed(objects) => put_about(out, CONFIRM, objects),
        PollAnswer::Done => out.push(FORGET),
        PollAnswer::Feed(part) => {
            let FeedPart { began, trimmed, complete, events, more } = &**part;
            put_numbered(out, FEED, *began);
            put_varint(out, *trimmed);
            put_varint(out, *complete);
            out.push(u8::from(more.is_some()));
            more.iter().for_each(|position| out.extend_from_slice(&position.to_bytes()));
            put_list(out, events, |out, (position, event)| {
                out.extend_from_slice(&position.to_bytes());
                event.encode_into(out);
            });
        }
        PollAnswer::Removal(SnapshotUsage { rows, bytes, next }) => {
            put_numbered(out, REMOVAL, *rows);
            put_varint(out, *bytes);
            put_cursor(out, next.as_ref());
        }
        PollAnswer::Quotas(parts) => {
            out.push(QUOTAS);
            quotas::put_parts(out, parts);
        }
        PollAnswer::Clones(report) => {
            out.push(CLONES);
            clones::put_report(out, report);
        }
        PollAnswer::Parents(found) => {
            out.push(PARENTS);
            put_list(out, found, |out, (dir, parent)| {
                put_varint(out, *dir);
                put_varint(out, *parent);
            });
        }
        PollAnswer::Changes(part) => {
            out.push(CHANGES);
            snapshot_changes::put_part(out, part);
        }
        PollAnswer::Counted(page) => {
            out.push(COUNT);
            quotas::put_page(out, page);
        }
        PollAnswer::Failed(why) => {
            out.push(FAILED);
            encode_reply(&Err(Outcome::Failed(why.clone())), out);
        }
        PollAnswer::Gone => out.push(AT),
        PollAnswer::Located(found, next) => {
            out.push(LOCATE);
            put_list(out, found, |out, (dir, DirEntry { name, ino, kind })| {
                put_varint(out, *dir);
                put_varint(out, *ino);
                out.push(*kind as u8);
                put_string(out, name.as_bytes());
            });
            put_name_after(out, next.as_ref());
        }
        PollAnswer::Entries(LoadReport { node, entries, names }) => {
            put_numbered(out, ENTRIES, u64::from(*node));
            put_varint(out, *entries);
            put_list(out, names, |out, NameCount { name, entries }| {
                put_string(out, name.as_bytes());
                put_varint(out, *entries);
            });
        }
    }
}

pub(super) fn answer(r: &mut Reader<'_>) -> Result<PollAnswer, DecodeError> {
    Ok(match r.u8()? {
        USAGE => PollAnswer::Usage(figures(r)?),
        HELD => PollAnswer::Held(ids(r)?),
        TREE => {
            let (sum, children, based) = (figures(r)?, list(r, 2, place)?, ids(r)?);
            let (clones, more) = (boolean(r)?, boolean(r)?);
            PollAnswer::Tree(TreePart { sum, children, more, based, clones })
        }
        WEIGH => PollAnswer::Weighed(list(r, 1, weight)?),
        CONFIRM => PollAnswer::Confirmed(ids(r)?),
        FORGET => PollAnswer::Done,
        ENTRIES => {
            let (node, entries) = (r.varint32()?, r.varint()?);
            PollAnswer::Entries(LoadReport { node, entries, names: list(r, 3, name_count)? })
        }
        FEED => {
            let (began, trimmed, complete) = (r.varint()?, r.varint()?, r.varint()?);
            let more = if boolean(r)? { Some(FeedPosition::decode_from(r)?) } else { None };
            let event = |r: &mut Reader<'_>| {
                Ok((FeedPosition::decode_from(r)?, FeedEvent::decode_from(r)?))
            };
            let events = list(r, FEED_EVENT_MIN, event)?;
            PollAnswer::Feed(Box::new(FeedPart { began, trimmed, complete, events, more }))
        }
        QUOTAS => PollAnswer::Quotas(quotas::parts(r)?),
        CLONES => PollAnswer::Clones(clones::report(r)?),
        PARENTS => PollAnswer::Parents(list(r, 2, |r| Ok((r.varint()?, r.varint()?)))?),
        COUNT => PollAnswer::Counted(Box::new(quotas::page(r)?)),
        CHANGES => PollAnswer::Changes(Box::new(snapshot_changes::part(r)?)),
        FAILED => PollAnswer::Failed(failure(decode_reply(r)?)?),
        REMOVAL => PollAnswer::Removal(SnapshotUsage {
            rows: r.varint()?,
            bytes: r.varint()?,
            next: cursor(r)?,
        }),
        LOCATE => PollAnswer::Located(list(r, 5, located)?, name_after(r)?),
        AT => PollAnswer::Gone,
        _ => return Err(DecodeError("an unknown answer")),
    })
}

fn located(r: &mut Reader<'_>) -> Result<(InodeId, DirEntry), DecodeError> {
    let (dir, ino) = (r.varint()?, r.varint()?);
    let kind = Kind::from_u8(r.u8()?).ok_or(DecodeError("unknown file type"))?;
    Ok((dir, DirEntry { name: name(r)?, ino, kind }))
}

fn put_name_after(out: &mut Vec<u8>, after: Option<&(InodeId, Name)>) {
    out.push(u8::from(after.is_some()));
    after.iter().for_each(|(dir, name)| {
        put_varint(out, *dir);
        put_string(out, name.as_bytes());
    });
}

fn name_after(r: &mut Reader<'_>) -> Result<Option<(InodeId, Name)>, DecodeError> {
    Ok(if boolean(r)? { Some((r.varint()?, name(r)?)) } else { None })
}

fn put_about(out: &mut Vec<u8>, kind: u8, ids: &[u64]) {
    out.push(kind);
    put_ids(out, ids);
}

fn put_round(out: &mut Vec<u8>, kind: u8, round: u64, objects: &[u64]) {
    out.push(kind);
    put_varint(out, round);
    put_ids(out, objects);
}

fn ids(r: &mut Reader<'_>) -> Result<Vec<u64>, DecodeError> {
    list(r, 1, Reader::varint)
}

fn put_figures(out: &mut Vec<u8>, figures: &[i64; 3]) {
    figures.iter().for_each(|figure| out.extend_from_slice(&figure.to_be_bytes()));
}

fn figures(r: &mut Reader<'_>) -> Result<[i64; 3], DecodeError> {
    Ok([r.i64()?, r.i64()?, r.i64()?])
}

fn put_place(out: &mut Vec<u8>, (index, child): &TreePosition) {
    put_varint(out, u64::from(*index));
    put_varint(out, *child);
}

fn place(r: &mut Reader<'_>) -> Result<TreePosition, DecodeError> {
    Ok((r.varint32()?, r.varint()?))
}

fn name_count(r: &mut Reader<'_>) -> Result<NameCount, DecodeError> {
    Ok(NameCount { name: name(r)?, entries: r.varint()? })
}

fn put_weight(out: &mut Vec<u8>, weight: &Weight) {
    match weight {
        Weight::Used => out.push(0),
        Weight::Part(ReferencePart::None) => out.push(1),
        Weight::Part(ReferencePart::Bytes(bytes)) => {
            out.push(2);
            out.extend_from_slice(&bytes.to_be_bytes());
        }
        Weight::Part(ReferencePart::Damaged) => out.push(3),
    }
}

fn weight(r: &mut Reader<'_>) -> Result<Weight, DecodeError> {
    Ok(match r.u8()? {
        0 => Weight::Used,
        1 => Weight::Part(ReferencePart::None),
        2 => {
            let bytes = Some(r.i64()?).filter(|bytes| bytes.unsigned_abs() < PART_MAX);
            Weight::Part(ReferencePart::Bytes(bytes.ok_or(DecodeError("a share out of bounds"))?))
        }
        3 => Weight::Part(ReferencePart::Damaged),
        _ => return Err(DecodeError("an unknown weight")),
    })
}
