//! Quotas in requests and answers.

use super::basic::{self, WireWriter, flags};
use crate::codec::{DecodeError, Reader};
use crate::quota::{OverSince, QuotaInfo, QuotaLimits, QuotaSubject, QuotaUsage};

// First byte of a subject, as in a row.
const DIR: u8 = 1;
const USER: u8 = 2;
const GROUP: u8 = 3;
const VOLUME: u8 = 4;

pub(super) fn put_subject(of: QuotaSubject, w: &mut WireWriter<'_>) {
    match of {
        QuotaSubject::Dir(ino) => {
            w.u8(DIR);
            w.varint(ino);
        }
        QuotaSubject::User(uid) => {
            w.u8(USER);
            w.varint(uid.into());
        }
        QuotaSubject::Group(gid) => {
            w.u8(GROUP);
            w.varint(gid.into());
        }
        QuotaSubject::Volume => w.u8(VOLUME),
    }
}

pub(super) fn subject(r: &mut Reader<'_>) -> Result<QuotaSubject, DecodeError> {
    let number = |value| u32::try_from(value).map_err(|_| DecodeError("user or group too large"));
    Ok(match r.u8()? {
        DIR => QuotaSubject::Dir(r.varint()?),
        USER => QuotaSubject::User(number(r.varint()?)?),
        GROUP => QuotaSubject::Group(number(r.varint()?)?),
        VOLUME => QuotaSubject::Volume,
        _ => return Err(DecodeError("quota of an unknown kind")),
    })
}

pub(super) fn put_limits(limits: &QuotaLimits, w: &mut WireWriter<'_>) {
    let all = limits.all();
    let mask = (0..4).map(|bit| u8::from(all[bit].is_some()) << bit).sum();
    w.u8(mask);
    all.into_iter().flatten().for_each(|limit| w.varint(limit));
    w.varint(limits.grace.into());
}

pub(super) fn limits(r: &mut Reader<'_>) -> Result<QuotaLimits, DecodeError> {
    let mask = flags(r, 15)?;
    let mut all = [None; 4];
    for (bit, limit) in all.iter_mut().enumerate() {
        if mask & 1 << bit != 0 {
            *limit = Some(r.varint()?);
        }
    }
    let [bytes, files, soft_bytes, soft_files] = all;
    let grace =
        u32::try_from(r.varint()?).map_err(|_| DecodeError("grace period of a quota too long"))?;
    let limits = QuotaLimits { bytes, files, soft_bytes, soft_files, grace };
    if limits.is_valid() { Ok(limits) } else { Err(DecodeError("limit of a quota too large")) }
}

fn put_usage(usage: &QuotaUsage, w: &mut WireWriter<'_>) {
    w.fixed(usage.files.to_be_bytes());
    w.fixed(usage.bytes.to_be_bytes());
}

fn usage(r: &mut Reader<'_>) -> Result<QuotaUsage, DecodeError> {
    Ok(QuotaUsage { files: r.i64()?, bytes: r.i64()? })
}

pub(super) fn put_info(w: &mut WireWriter<'_>, info: &QuotaInfo) {
    put_subject(info.of, w);
    put_limits(&info.limits, w);
    put_usage(&info.used, w);
    w.fixed(info.since.bytes.to_be_bytes());
    w.fixed(info.since.files.to_be_bytes());
    w.u8(info.counted.is_some().into());
    if let Some(counted) = &info.counted {
        put_usage(counted, w);
    }
}

pub(super) fn info(r: &mut Reader<'_>) -> Result<QuotaInfo, DecodeError> {
    Ok(QuotaInfo {
        of: subject(r)?,
        limits: limits(r)?,
        used: usage(r)?,
        since: OverSince { bytes: r.i64()?, files: r.i64()? },
        counted: if basic::boolean(r)? { Some(usage(r)?) } else { None },
    })
}
