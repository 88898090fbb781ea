//! The bytes of questions for dentries, and of the answers.

use std::sync::Arc;

use kestrel_meta::stop::Want;
use kestrel_types::acl::{ACLS_BYTES_MAX, Acls};
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::name::NAME_MAX;
use kestrel_types::policy::{PolicyRecord, RECORD_BYTES_MAX};

use super::put_numbered;
use crate::message::Fetched;

pub(super) fn put_want(out: &mut Vec<u8>, want: &Want) {
    match want {
        Want::Name(parent, name) => {
            put_numbered(out, 0, *parent);
            put_string(out, name);
        }
        Want::Id(ino) => put_numbered(out, 1, *ino),
    }
}

pub(super) fn want(r: &mut Reader<'_>) -> Result<Want, DecodeError> {
    match r.u8()? {
        0 => Ok(Want::Name(r.varint()?, r.string(NAME_MAX)?.into())),
        1 => Ok(Want::Id(r.varint()?)),
        _ => Err(DecodeError("an unknown way to ask for a directory")),
    }
}

pub(super) fn put_fetched(out: &mut Vec<u8>, found: &Fetched) {
    match found {
        Fetched::Dir { ino, mode, uid, gid, policy, acls } => {
            let record = policy.encode();
            let tag = match (&record, acls) {
                (_, Some(_)) => 5,
                (Some(_), None) => 4,
                (None, None) => 0,
            };
            put_numbered(out, tag, *ino);
            [u32::from(*mode), *uid, *gid]
                .iter()
                .for_each(|number| put_varint(out, u64::from(*number)));
            if tag != 0 {
                put_string(out, &record.unwrap_or_default());
            }
            acls.iter().for_each(|acls| put_string(out, &acls.encode()));
        }
        Fetched::At(parent, name) => {
            put_numbered(out, 1, *parent);
            put_string(out, name);
        }
        Fetched::None => out.push(2),
        Fetched::Busy => out.push(3),
    }
}

pub(super) fn fetched(r: &mut Reader<'_>) -> Result<Fetched, DecodeError> {
    Ok(match r.u8()? {
        tag @ (0 | 4 | 5) => {
            let (ino, mode) = (r.varint()?, r.varint32()?);
            let mode = u16::try_from(mode).ok();
            let mode = mode.ok_or(DecodeError("mode out of bounds"))?;
            let (uid, gid) = (r.varint32()?, r.varint32()?);
            let policy = match tag {
                0 => PolicyRecord::default(),
                _ => match r.string(RECORD_BYTES_MAX)? {
                    [] if tag == 5 => PolicyRecord::default(),
                    record => PolicyRecord::decode(record)?,
                },
            };
            let acls = match tag {
                5 => Some(Arc::new(Acls::decode(r.string(ACLS_BYTES_MAX)?)?)),
                _ => None,
            };
            Fetched::Dir { ino, mode, uid, gid, policy, acls }
        }
        1 => Fetched::At(r.varint()?, r.string(NAME_MAX)?.into()),
        2 => Fetched::None,
        3 => Fetched::Busy,
        _ => return Err(DecodeError("an unknown answer about a directory")),
    })
}
