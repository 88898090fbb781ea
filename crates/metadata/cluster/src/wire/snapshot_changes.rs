//! The bytes of questions about two snapshots, and of the answers.

use kestrel_meta::history::changes::{Found, Group};
use kestrel_meta::node::told::{
    ChangesPart, ChangesQuestion, ChangesWanted, GROWN_MAX, MomentRows, RowsWanted,
};
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::ids::InodeId;
use kestrel_types::key::PREFIX_LEN;
use kestrel_types::name::Name;
use kestrel_types::stat::DirStat;

use super::{
    boolean, cursor, key, list, name, put_cursor, put_ids, put_key, put_list, put_row, row,
};

// What is asked, and told. Numbers are never given to another one.
const GROUPS: u8 = 1;
const GROWN: u8 = 2;
const ROWS: u8 = 3;

// What a group says.
const IS_DIR: u8 = 1;
const HAS_GONE: u8 = 2;
const IS_LINK: u8 = 4;
const IS_COMPLETE: u8 = 8;

/// Least bytes of a share: its directory, and the length of its row.
const SHARE_MIN: usize = 2;

/// Most bytes of a share's row.
const SHARE_MAX: usize = 64;

pub(super) fn put_question(out: &mut Vec<u8>, asked: &ChangesQuestion) {
    let (older, newer) = asked.moments;
    put_varint(out, older);
    put_varint(out, newer);
    match &asked.wanted {
        ChangesWanted::Groups(from, limit) => {
            out.push(GROUPS);
            put_cursor(out, Some(from));
            put_varint(out, *limit as u64);
        }
        ChangesWanted::Grown(places, limit) => {
            out.push(GROWN);
            put_list(out, places, |out, (dir, after)| {
                put_varint(out, *dir);
                put_after(out, after.as_ref());
            });
            put_varint(out, *limit as u64);
        }
        ChangesWanted::Rows(older, newer) => {
            out.push(ROWS);
            put_wanted(out, older);
            put_wanted(out, newer);
        }
    }
}

pub(super) fn question(r: &mut Reader<'_>) -> Result<ChangesQuestion, DecodeError> {
    let moments = (r.varint()?, r.varint()?);
    let wanted = match r.u8()? {
        GROUPS => {
            let from = cursor(r)?.ok_or(DecodeError("no cursor"))?;
            ChangesWanted::Groups(from, limit(r)?)
        }
        GROWN => {
            let places = list(r, 2, |r| Ok((r.varint()?, after(r)?)))?;
            if places.len() > GROWN_MAX {
                return Err(DecodeError("new names of too many directories at once"));
            }
            ChangesWanted::Grown(places, limit(r)?)
        }
        ROWS => ChangesWanted::Rows(wanted(r)?, wanted(r)?),
        _ => return Err(DecodeError("an unknown question about two snapshots")),
    };
    Ok(ChangesQuestion { moments, wanted })
}

pub(super) fn put_part(out: &mut Vec<u8>, part: &ChangesPart) {
    match part {
        ChangesPart::Groups(groups, next) => {
            out.push(GROUPS);
            put_list(out, groups, put_group);
            put_cursor(out, next.as_ref());
        }
        ChangesPart::Grown(pages) => {
            out.push(GROWN);
            put_list(out, pages, |out, (names, next)| {
                put_list(out, names, put_name);
                put_after(out, next.as_ref());
            });
        }
        ChangesPart::Rows(older, newer) => {
            out.push(ROWS);
            put_rows(out, older);
            put_rows(out, newer);
        }
    }
}

pub(super) fn part(r: &mut Reader<'_>) -> Result<ChangesPart, DecodeError> {
    Ok(match r.u8()? {
        GROUPS => ChangesPart::Groups(list(r, 3, group)?, cursor(r)?),
        GROWN => ChangesPart::Grown(list(r, 2, |r| Ok((list(r, 2, name)?, after(r)?)))?),
        ROWS => ChangesPart::Rows(rows(r)?, rows(r)?),
        _ => return Err(DecodeError("an unknown answer about two snapshots")),
    })
}

fn limit(r: &mut Reader<'_>) -> Result<usize, DecodeError> {
    Ok(r.varint32()? as usize)
}

fn put_name(out: &mut Vec<u8>, name: &Name) {
    put_string(out, name.as_bytes());
}

fn put_after(out: &mut Vec<u8>, after: Option<&Name>) {
    out.push(u8::from(after.is_some()));
    after.iter().for_each(|name| put_name(out, name));
}

fn after(r: &mut Reader<'_>) -> Result<Option<Name>, DecodeError> {
    Ok(if boolean(r)? { Some(name(r)?) } else { None })
}

fn put_wanted(out: &mut Vec<u8>, wanted: &RowsWanted) {
    put_varint(out, wanted.keys.len() as u64);
    wanted.keys.iter().for_each(|key| put_key(out, key));
    put_ids(out, &wanted.dirs.iter().copied().collect::<Vec<InodeId>>());
}

fn wanted(r: &mut Reader<'_>) -> Result<RowsWanted, DecodeError> {
    let keys = list(r, PREFIX_LEN + 1, key)?.into_iter().collect();
    let dirs = list(r, 1, Reader::varint)?.into_iter().collect();
    Ok(RowsWanted { keys, dirs })
}

fn put_rows(out: &mut Vec<u8>, told: &MomentRows) {
    put_list(out, &told.rows, |out, (key, value)| put_row(out, key, value.as_deref()));
    put_list(out, &told.shares, |out, (dir, share)| {
        put_varint(out, *dir);
        put_string(out, &share.encode());
    });
}

fn rows(r: &mut Reader<'_>) -> Result<MomentRows, DecodeError> {
    let share = |r: &mut Reader<'_>| Ok((r.varint()?, DirStat::decode(r.string(SHARE_MAX)?)?));
    Ok(MomentRows { rows: list(r, PREFIX_LEN + 2, row)?, shares: list(r, SHARE_MIN, share)? })
}

fn put_group(out: &mut Vec<u8>, group: &Group) {
    let Group { id, names, found, is_link, is_complete } = group;
    put_varint(out, *id);
    let flags = [
        (found.is_dir, IS_DIR),
        (found.has_gone, HAS_GONE),
        (*is_link, IS_LINK),
        (*is_complete, IS_COMPLETE),
    ];
    out.push(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
    put_list(out, names, put_name);
}

fn group(r: &mut Reader<'_>) -> Result<Group, DecodeError> {
    let (id, flags) = (r.varint()?, r.u8()?);
    if flags & !(IS_DIR | HAS_GONE | IS_LINK | IS_COMPLETE) != 0 {
        return Err(DecodeError("unknown flags of changes"));
    }
    let found = Found { is_dir: flags & IS_DIR != 0, has_gone: flags & HAS_GONE != 0 };
    let (is_link, is_complete) = (flags & IS_LINK != 0, flags & IS_COMPLETE != 0);
    Ok(Group { id, names: list(r, 2, name)?, found, is_link, is_complete })
}
