//! Names of objects in a store (`docs/format/objects.md`, "Keys").
//!
//! `objects/<pp>/<oooooooooooooooo>`: the object's number in 16 lower-case hex digits below a
//! prefix of two, the top byte of a hash of the number. The prefix spreads consecutive numbers over
//! the partitions of an object store and over 256 directories of a local one. No key is a directory
//! prefix of another.

use kestrel_types::ids::ObjectId;

/// What every key begins with.
pub const ROOT: &str = "objects";

/// A file at the root of a store in a directory that is no object: a server that serves the volume
/// to clients that reach the same directory leaves a word there by which they recognize it.
pub const MARKER: &str = ".kestrel-served";

/// What lies below the place of a volume's objects and is no object: the store of its dumps, laid
/// out like one of objects.
pub const DUMPS: &str = "dumps";

/// What lies there besides: the published versions of the volume (`docs/format/versions.md`).
pub const VERSIONS: &str = "versions";

/// Below the place of objects in a directory: the directory of the tier `archive`, laid out
/// likewise.
pub const ARCHIVE: &str = "archive";

/// A file at the root of both directories once there was a tier `archive`.
pub const TIER_MARKER: &str = ".kestrel-tier";

/// Number of prefixes.
pub const PREFIXES: usize = 256;

/// The prefix of an object: the top byte of the finalizer of SplitMix64 (Steele, Lea, Flood, 2014),
/// which is part of the format and pinned by the test vectors below.
pub fn prefix(object: ObjectId) -> u8 {
    let mut x = object;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 56) as u8
}

/// The key of an object.
pub fn key(object: ObjectId) -> String {
    format!("{ROOT}/{:02x}/{object:016x}", prefix(object))
}

/// The object a key names, if it is exactly what [`key`] makes.
pub fn parse(key: &str) -> Option<ObjectId> {
    let (prefix_digits, name) = key.strip_prefix(ROOT)?.strip_prefix('/')?.split_once('/')?;
    let object = parse_name(name)?;
    (parse_prefix(prefix_digits)? == prefix(object)).then_some(object)
}

/// The number in the last part of a key.
pub(crate) fn parse_name(name: &str) -> Option<ObjectId> {
    if name.len() != 16 || !is_lower_hex(name) {
        return None;
    }
    u64::from_str_radix(name, 16).ok().filter(|object| *object != 0)
}

/// The number in the middle part of a key.
pub fn parse_prefix(digits: &str) -> Option<u8> {
    if digits.len() != 2 || !is_lower_hex(digits) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_pinned() {
        assert_eq!(key(1), "objects/56/0000000000000001");
        assert_eq!(key(2), "objects/db/0000000000000002");
        assert_eq!(key(0x1234_5678_9abc_def0), "objects/96/123456789abcdef0");
        assert_eq!(key(u64::MAX), "objects/b4/ffffffffffffffff");
    }

    #[test]
    fn only_keys_of_ours_parse() {
        let good = key(77);
        assert_eq!(parse(&good), Some(77));
        for bad in [
            "",
            "objects",
            "objects/",
            "objects/00/",
            "objects/56/0000000000000000",
            "x/56/0000000000000001",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(parse("objects/57/0000000000000001"), None);
        assert_eq!(parse("objects/56/+000000000000001"), None);
        assert_eq!(parse(&key(0xabc).to_uppercase()), None);
        assert_eq!(parse(&format!("{good}/x")), None);
    }

    proptest! {
        #[test]
        fn keys_parse_back(object in 1..=u64::MAX) {
            prop_assert_eq!(parse(&key(object)), Some(object));
        }
    }
}
