//! Reads every stored byte that a file refers to.

use kestrel_data::{Error, ErrorKind};
use kestrel_types::range::Range;

use super::objects::file_of;
use super::{Check, CheckError, Verify};
use crate::finding::{Finding, FindingKind};
use crate::references::{Reference, Seen, for_each};

pub fn check(check: &mut Check<'_>, verify: &mut Verify<'_>) -> Result<(), CheckError> {
    let engine = check.engine;
    let mut found = Vec::new();
    let mut bytes = 0;
    // Extents that were cut or cloned point into one range several times, most often one after the other.
    let mut last: Option<Range> = None;
    // A store that does not answer says nothing about what it holds.
    let mut silent: Option<Error> = None;
    let progress = &mut check.progress;
    for_each(engine, &mut |seen| {
        let Seen::Reference(Reference { row, range, .. }) = seen else { return };
        if last == Some(range) || silent.is_some() {
            return;
        }
        last = Some(range);
        match verify(range) {
            Ok(()) => bytes += u64::from(range.len),
            // Reported when the store was listed.
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why @ Error::Remote { .. }) => silent = Some(why),
            Err(why) if why.kind() == ErrorKind::Deadline => silent = Some(why),
            Err(why) => {
                let detail = format!("object {} from byte {}: {why}", range.object, range.offset);
                found.push(Finding::new(FindingKind::DataCorrupt, file_of(engine, row), detail));
            }
        }
        progress("verifying bytes", bytes);
    })?;
    check.totals.verified_bytes = bytes;
    for finding in found {
        check.found(finding);
    }
    silent.map_or(Ok(()), |why| Err(why.into()))
}
