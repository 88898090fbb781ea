//! What a token allows, as nodes have it on record (`docs/format.md`, "Records of tokens").
//!
//! **Records only ever allow less.** Each node has all records, and nodes give each other what they
//! have, in any order and as often as they like ([`TokenRecord::merge`]): a token that somebody
//! knows to be revoked is revoked, and it ends at the earliest time that somebody knows of.

use std::fmt;

use crate::clock::Nanos;
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::ids::InodeId;

/// Version of the records.
const VERSION: u8 = 1;

/// Longest name of a token, bytes.
pub const NAME_MAX: usize = 64;

/// Longest path of a subtree, bytes.
pub const SUBTREE_MAX: usize = 1024;

/// Most ranges of users, and of groups, and most users that stand for another one.
pub const RANGES_MAX: usize = 64;

/// Most tokens of a volume, those that are revoked and have not been forgotten included.
pub const TOKENS_MAX: usize = 4096;

/// The number of a token: 8 random bytes. It is no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub [u8; 8]);

impl TokenId {
    /// Reads 16 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let plain =
            text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(text, 16)
            .ok()
            .filter(|_| plain)
            .map(|number| Self(number.to_be_bytes()))
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Users or groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ids {
    /// All there are.
    #[default]
    All,
    /// Those within these ranges, both ends included: ascending, apart from each other.
    Ranges(Box<[(u32, u32)]>),
}

impl Ids {
    /// Those within any of these ranges.
    ///
    /// # Errors
    /// If one ends before it begins, there are none, or more than [`RANGES_MAX`].
    pub fn of(mut ranges: Vec<(u32, u32)>) -> Result<Self, &'static str> {
        if ranges.is_empty() || ranges.len() > RANGES_MAX {
            return Err("1 to 64 ranges");
        }
        if ranges.iter().any(|(first, last)| first > last) {
            return Err("a range that ends before it begins");
        }
        ranges.sort_unstable();
        let mut apart: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match apart.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last)
                }
                _ => apart.push((first, last)),
            }
        }
        Ok(Self::Ranges(apart.into()))
    }

    /// Whether this one is among them.
    pub fn has(&self, id: u32) -> bool {
        match self {
            Self::All => true,
            Self::Ranges(ranges) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&id))
            }
        }
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Ranges(ranges) = self else { return f.write_str("all") };
        for (at, (first, last)) in ranges.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// A directory that a token is confined to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subtree {
    /// The directory: where its name goes, it goes with it.
    pub dir: InodeId,
    /// Its path when the token was made, for people; at most [`SUBTREE_MAX`] bytes.
    pub path: String,
}

/// What is on record of a token. What proves that somebody has it cannot be made from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its number.
    pub id: TokenId,
    /// For people: 1 to [`NAME_MAX`] bytes, no control characters.
    pub name: String,
    /// When it was made, wall time.
    pub issued: Nanos,
    /// When it ends; never, if there is none.
    pub expires: Option<Nanos>,
    /// When it was revoked, if it was.
    pub revoked: Option<Nanos>,
    /// What proofs are checked by: a hash of a hash of its secret.
    pub verifier: [u8; 32],
    /// Nothing may be changed.
    pub read_only: bool,
    /// The volume may be administered.
    pub admin: bool,
    /// The only directory there is.
    pub subtree: Option<Subtree>,
    /// Users that may be claimed.
    pub uids: Ids,
    /// Groups that may be claimed.
    pub gids: Ids,
    /// User and group that root stands for.
    pub squash: Option<(u32, u32)>,
    /// Users that stand for others: claimed and meant, ascending by the former.
    pub map: Box<[(u32, u32)]>,
}

impl TokenRecord {
    /// One that allows everything but to administer, and never ends.
    pub fn new(id: TokenId, name: &str, verifier: [u8; 32], issued: Nanos) -> Self {
        Self {
            id,
            name: name.into(),
            issued,
            expires: None,
            revoked: None,
            verifier,
            read_only: false,
            admin: false,
            subtree: None,
            uids: Ids::All,
            gids: Ids::All,
            squash: None,
            map: Box::default(),
        }
    }

    /// Why it is of no use at this time, if it is of none.
    pub fn ended(&self, now: Nanos) -> Option<Ended> {
        match (self.revoked, self.expires) {
            (Some(_), _) => Some(Ended::Revoked),
            (None, Some(expires)) if expires <= now => Some(Ended::Expired),
            _ => None,
        }
    }

    /// Takes over what another node knows of the same token. True if that was news.
    pub fn merge(&mut self, other: &Self) -> bool {
        debug_assert_eq!(self.id, other.id);
        let earliest = |one: Option<Nanos>, two: Option<Nanos>| one.into_iter().chain(two).min();
        let merged = Self {
            expires: earliest(self.expires, other.expires),
            revoked: earliest(self.revoked, other.revoked),
            ..self.clone()
        };
        let news = merged != *self;
        *self = merged;
        news
    }

    /// Its row.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.id.0);
        put_string(&mut out, self.name.as_bytes());
        out.extend_from_slice(&self.issued.to_be_bytes());
        for time in [self.expires, self.revoked] {
            out.push(u8::from(time.is_some()));
            out.extend_from_slice(&time.unwrap_or(0).to_be_bytes());
        }
        out.extend_from_slice(&self.verifier);
        out.push(u8::from(self.read_only) | u8::from(self.admin) << 1);
        let (dir, path) = self.subtree.as_ref().map_or((0, ""), |tree| (tree.dir, &tree.path));
        put_varint(&mut out, dir);
        put_string(&mut out, path.as_bytes());
        for ids in [&self.uids, &self.gids] {
            match ids {
                Ids::All => put_varint(&mut out, 0),
                Ids::Ranges(ranges) => put_pairs(&mut out, ranges, 1),
            }
        }
        put_pairs(&mut out, self.squash.as_slice(), 0);
        put_pairs(&mut out, &self.map, 0);
        out.into()
    }

    /// Reads what [`TokenRecord::encode`] wrote.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        if r.u8()? != VERSION {
            return Err(DecodeError("a record of a token of an unknown format version"));
        }
        let mut id = TokenId([0; 8]);
        id.0.copy_from_slice(r.bytes(8)?);
        let name = name(r.string(NAME_MAX)?)?;
        let issued = r.i64()?;
        let (expires, revoked) = (time(r)?, time(r)?);
        let mut verifier = [0; 32];
        verifier.copy_from_slice(r.bytes(32)?);
        let flags = r.u8()?;
        if flags > 3 {
            return Err(DecodeError("unknown flags of a token"));
        }
        let (dir, path) = (r.varint()?, text(r.string(SUBTREE_MAX)?)?);
        let subtree = (dir != 0).then_some(Subtree { dir, path });
        let (uids, gids) = (ids(r)?, ids(r)?);
        let squash = match *pairs(r)? {
            [] => None,
            [pair] => Some(pair),
            _ => return Err(DecodeError("a token for which root stands for several users")),
        };
        let map = pairs(r)?;
        if !map.is_sorted_by(|one, two| one.0 < two.0) {
            return Err(DecodeError("a token for which one user stands for several"));
        }
        reader.end()?;
        let (read_only, admin) = (flags & 1 != 0, flags & 2 != 0);
        Ok(Self {
            id,
            name,
            issued,
            expires,
            revoked,
            verifier,
            read_only,
            admin,
            subtree,
            uids,
            gids,
            squash,
            map,
        })
    }
}

/// Why a token is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its time is over.
    Expired,
    /// Somebody has revoked it.
    Revoked,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        })
    }
}

/// Whether a token may bear this name.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    String::from_utf8(bytes.into()).map_err(|_| DecodeError("a text that is not UTF-8"))
}

fn name(bytes: &[u8]) -> Result<String, DecodeError> {
    text(bytes)
        .and_then(|name| is_name(&name).then_some(name).ok_or(DecodeError("no name of a token")))
}

fn time(r: &mut Reader<'_>) -> Result<Option<Nanos>, DecodeError> {
    let (is_one, time) = (r.u8()?, r.i64()?);
    match (is_one, time) {
        (0, 0) => Ok(None),
        (1, time) => Ok(Some(time)),
        _ => Err(DecodeError("neither a time nor none")),
    }
}

/// Pairs after their number, to which `more` is added.
fn put_pairs(out: &mut Vec<u8>, pairs: &[(u32, u32)], more: u64) {
    put_varint(out, pairs.len() as u64 + more);
    for (one, two) in pairs {
        put_varint(out, u64::from(*one));
        put_varint(out, u64::from(*two));
    }
}

fn pairs(r: &mut Reader<'_>) -> Result<Box<[(u32, u32)]>, DecodeError> {
    let count = r.varint()?;
    some_pairs(r, count)
}

fn some_pairs(r: &mut Reader<'_>, count: u64) -> Result<Box<[(u32, u32)]>, DecodeError> {
    if count > RANGES_MAX as u64 {
        return Err(DecodeError("too many users of a token"));
    }
    (0..count).map(|_| Ok((r.varint32()?, r.varint32()?))).collect()
}

fn ids(r: &mut Reader<'_>) -> Result<Ids, DecodeError> {
    let count = r.varint()?;
    if count == 0 {
        return Ok(Ids::All);
    }
    let ranges = some_pairs(r, count - 1)?.into_vec();
    match Ids::of(ranges.clone()) {
        Ok(ids) if ids == Ids::Ranges(ranges.into()) => Ok(ids),
        _ => Err(DecodeError("ranges of users out of order")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TokenRecord {
        TokenRecord {
            id: TokenId([1, 2, 3, 4, 5, 6, 7, 8]),
            name: "gpu farm".into(),
            issued: 5,
            expires: Some(700),
            revoked: None,
            verifier: [9; 32],
            read_only: true,
            admin: false,
            subtree: Some(Subtree { dir: 77, path: "/data/sets".into() }),
            uids: Ids::of(vec![(1000, 1999), (0, 0)]).unwrap(),
            gids: Ids::All,
            squash: Some((65_534, 65_534)),
            map: [(500, 1500)].into(),
        }
    }

    #[test]
    fn records_come_back_and_damage_is_noticed() {
        for record in [
            record(),
            TokenRecord {
                subtree: None,
                uids: Ids::All,
                gids: Ids::of(vec![(5, 6)]).unwrap(),
                squash: None,
                map: [].into(),
                expires: None,
                revoked: Some(3),
                admin: true,
                ..record()
            },
        ] {
            let bytes = record.encode();
            assert_eq!(TokenRecord::decode(&bytes), Ok(record));
            for len in 0..bytes.len() {
                assert!(TokenRecord::decode(&bytes[..len]).is_err(), "{len}");
            }
            assert!(TokenRecord::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn what_somebody_knows_to_be_over_is_over() {
        let (mut one, two) =
            (record(), TokenRecord { expires: Some(300), revoked: Some(9), ..record() });
        assert_eq!((one.ended(699), one.ended(700)), (None, Some(Ended::Expired)));
        assert!(one.merge(&two) && !one.merge(&record()) && !one.merge(&two));
        assert_eq!(
            (one.expires, one.revoked, one.ended(0)),
            (Some(300), Some(9), Some(Ended::Revoked))
        );
        let mut never = TokenRecord { expires: None, ..record() };
        assert!(never.merge(&record()) && never.expires == Some(700));
    }

    #[test]
    fn ranges_are_put_in_order() {
        let ids = Ids::of(vec![(5, 9), (0, 0), (10, 12), (20, u32::MAX), (30, 40)]).unwrap();
        assert_eq!(ids.to_string(), format!("0,5-12,20-{}", u32::MAX));
        for (id, has) in
            [(0, true), (1, false), (5, true), (12, true), (13, false), (u32::MAX, true)]
        {
            assert_eq!(ids.has(id), has, "{id}");
        }
        assert!(Ids::of(vec![(2, 1)]).is_err() && Ids::of(Vec::new()).is_err());
    }

    #[test]
    fn numbers_are_hexadecimal() {
        let id = TokenId([0, 0x1f, 0, 0, 0, 0, 0, 0xab]);
        assert_eq!(TokenId::parse(&id.to_string()), Some(id));
        for text in ["", "1f", "+01f0000000000ab", "001F0000000000AB", "001f0000000000ab0"] {
            assert_eq!(TokenId::parse(text), None);
        }
    }
}
