//! Quotas: what their rows say against the names and inodes of the volume.

use kestrel_engine::EngineError;
use kestrel_meta::node::compare_quotas;
use kestrel_meta::quotas::name;
use kestrel_types::codec::DecodeError;
use kestrel_types::key::Table;
use kestrel_types::quota::{OverSince, QuotaLimits, QuotaRow, QuotaUsage, decode_home};

use super::{Check, readable};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::delete;

/// Looks at every row, and counts if all of them can be read.
pub fn check(check: &mut Check<'_>) -> Result<(), EngineError> {
    let (mut is_any, mut damaged) = (false, Vec::new());
    for row in check.rows(Table::Quota) {
        let (key, value) = row?;
        is_any = true;
        check.row("checking quotas");
        if let Err(why) = decode(key.id, &key.suffix, &value) {
            let path = format!("quota {} {}", key.id, readable(&key.suffix));
            let finding = Finding::new(FindingKind::QuotaWrong, path, why.to_string());
            damaged.push(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
        }
    }
    let (counts, share) = (is_any && damaged.is_empty(), u16::from_be_bytes(check.share));
    damaged.into_iter().for_each(|finding| check.found(finding));
    // What cannot be read of names and inodes has findings of its own; sums come after these.
    let Some(found) = counts.then(|| compare_quotas(check.engine, share).ok()).flatten() else {
        return Ok(());
    };
    if found.rows.is_empty() {
        return Ok(());
    }
    let mut details: Vec<String> = Vec::new();
    for (of, says, is) in &found.usage {
        details.push(format!(
            "{}: {} files and {} bytes, where there are {} and {}",
            name(*of),
            says.files,
            says.bytes,
            is.files,
            is.bytes
        ));
    }
    if !found.homes.is_empty() {
        details.push(format!("{} files with several names are charged wrong", found.homes.len()));
    }
    let finding = Finding::new(FindingKind::QuotaWrong, "quotas", details.join("; "));
    check.found(finding.with(Stage::Sums, "counted anew", Act::Rows(found.rows)));
    Ok(())
}

/// Reads a row as what it should be.
pub fn decode(id: u64, suffix: &[u8], value: &[u8]) -> Result<(), DecodeError> {
    match QuotaRow::of(id, suffix).ok_or(DecodeError("a row that no quota has"))? {
        QuotaRow::Record(_) => QuotaLimits::decode(value).map(drop),
        QuotaRow::Share(..) => QuotaUsage::decode(value).map(drop),
        QuotaRow::Since(_) => OverSince::decode(value).map(drop),
        QuotaRow::Home(_) | QuotaRow::Above(_) => decode_home(value).map(drop),
    }
}
