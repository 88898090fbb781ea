//! The object with the aliases of directories that a job's inputs have in common
//! (`docs/format/versions.md`, "Versions that jobs made").

use kestrel_blockstore::named::NamedObject;
use kestrel_engine::EngineError;

use super::{VersionId, VersionPlace, damaged, failed};
use crate::health::read_checked;
use crate::tree::layer::Aliases;

/// The name of the object, below that of the version or job.
const ALIASES: &str = "aliases";

const MAGIC: &[u8; 8] = b"ksalias\0";
const VERSION: u32 = 1;
/// Magic, version and number of pairs.
const HEAD_BYTES: usize = 20;
const PAIR_BYTES: usize = 16;

fn encode(id: &VersionId, aliases: &Aliases) -> Vec<u8> {
    let pairs = aliases.pairs();
    let mut out = Vec::with_capacity(HEAD_BYTES + PAIR_BYTES * pairs.len() + 4);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
    for (alias, number) in pairs {
        out.extend_from_slice(&alias.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
    }
    let sum = crc32c::crc32c_append(crc32c::crc32c(id), &out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

fn decode(id: &VersionId, name: &str, count: u64, bytes: &[u8]) -> Result<Aliases, EngineError> {
    let bad = |why: &str| damaged(name, why);
    let (text, sum) = bytes.split_last_chunk().ok_or_else(|| bad("it is cut short"))?;
    let (head, pairs) =
        text.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| bad("it is cut short"))?;
    let (magic, rest) = head.split_at(MAGIC.len());
    let (version, told) = rest.split_at(4);
    if magic != MAGIC {
        return Err(bad("these are no aliases"));
    }
    if version != VERSION.to_le_bytes() {
        return Err(EngineError::Refused(format!(
            "{name} has a format that is not known to this program; use a newer one"
        )));
    }
    if crc32c::crc32c_append(crc32c::crc32c(id), text) != u32::from_le_bytes(*sum) {
        return Err(bad("its checksum does not match"));
    }
    let (pairs, rest) = pairs.as_chunks::<PAIR_BYTES>();
    if !rest.is_empty() || pairs.len() as u64 != count || told != count.to_le_bytes() {
        return Err(bad("it has other aliases than its manifest says"));
    }
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let pair = |pair: &[u8; PAIR_BYTES]| (number(&pair[..8]), number(&pair[8..]));
    Ok(Aliases::new(pairs.iter().map(pair)))
}

/// Writes the aliases of a job, if there are any.
///
/// # Errors
/// The store's.
pub fn write_aliases(
    place: &VersionPlace,
    id: &VersionId,
    aliases: &Aliases,
) -> Result<(), EngineError> {
    if aliases.is_empty() {
        return Ok(());
    }
    let name = VersionPlace::part_of(id, ALIASES);
    let made = place.store().create(&name, encode(id, aliases).into());
    if made.map_err(|why| failed(&**place.store(), &why))? {
        return Ok(());
    }
    // Another worker of a compaction has written it.
    match read_aliases(place, id, aliases.pairs().len() as u64)? == *aliases {
        true => Ok(()),
        false => Err(damaged(&name, "it was not read back as it was written")),
    }
}

/// Writes the aliases of a job, which has so many, for another one on the same base.
///
/// # Errors
/// As for [`read_aliases`] and [`write_aliases`].
pub fn copy_aliases(
    place: &VersionPlace,
    from: &VersionId,
    to: &VersionId,
    count: u64,
) -> Result<(), EngineError> {
    match count {
        0 => Ok(()),
        count => write_aliases(place, to, &read_aliases(place, from, count)?),
    }
}

/// Reads the aliases of a version or job, which has so many.
///
/// # Errors
/// The store's, `Corrupt`, and `Refused` for a newer format.
pub fn read_aliases(
    place: &VersionPlace,
    id: &VersionId,
    count: u64,
) -> Result<Aliases, EngineError> {
    let name = VersionPlace::part_of(id, ALIASES);
    let decode = |found: &NamedObject| decode(id, &name, count, &found.bytes);
    let found = read_checked(&**place.store(), &name, decode)?;
    found.map(|(aliases, _)| aliases).ok_or_else(|| damaged(&name, "it is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aliases are read as they were written; a flipped bit, a cut, another version's and a newer
    /// format are found.
    #[test]
    fn damaged_aliases() {
        let aliases = Aliases::new([(30, 20), (40, 20), (50, 21)]);
        let id = [9; 16];
        let good = encode(&id, &aliases);
        assert_eq!(decode(&id, "a", 3, &good).unwrap(), aliases);
        assert!(decode(&[8; 16], "a", 3, &good).is_err());
        assert!(decode(&id, "a", 2, &good).is_err());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&id, "a", 3, &bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(decode(&id, "a", 3, &good[..len]).is_err(), "length {len}");
        }
        let mut newer = good;
        newer[8] = 2;
        assert!(matches!(decode(&id, "a", 3, &newer), Err(EngineError::Refused(_))));
    }
}
