//! Pages of the objects of a bucket.

use kestrel_types::error::FsResult;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Answer, Op};
use s3s::S3Result;

use crate::account::{Account, is_absent, optional};
use crate::attributes::{OBJECT_XATTR, ObjectAttributes};
use crate::error::failed;
use crate::walk::{KeyWalk, Listed, Step};

/// Most keys of a page: S3's limit.
pub const PAGE_KEYS_MAX: usize = 1000;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct ListRequest {
    /// Only keys that begin so.
    pub prefix: String,
    /// Keys that have this text after the prefix are one common prefix up to it.
    pub delimiter: Option<String>,
    /// From where on.
    pub after: Option<Position>,
    /// Most keys and common prefixes.
    pub count: usize,
}

/// A key or common prefix after which a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// The keys after this one.
    Key(String),
    /// The keys after all that begin so.
    Prefix(String),
}

impl Position {
    /// The text of it.
    pub fn text(&self) -> &str {
        match self {
            Self::Key(text) | Self::Prefix(text) => text,
        }
    }

    /// As a continuation token.
    pub fn token(&self) -> String {
        let kind = if matches!(self, Self::Key(_)) { 'k' } else { 'p' };
        format!("{kind}{}", kestrel_types::hex::to_hex(self.text().as_bytes()))
    }

    /// Reads a continuation token.
    pub fn parse(token: &str) -> Option<Self> {
        let (kind, digits) = token.split_at_checked(1)?;
        if digits.len() % 2 != 0 || !digits.is_ascii() {
            return None;
        }
        let bytes: Vec<u8> = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok())
            .collect::<Option<_>>()?;
        let text = String::from_utf8(bytes).ok()?;
        match kind {
            "k" => Some(Self::Key(text)),
            "p" => Some(Self::Prefix(text)),
            _ => None,
        }
    }
}

/// An object of a page.
#[derive(Debug, Clone)]
pub struct ListedObject {
    /// Its key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Last change of the content, nanoseconds since 1970.
    pub mtime: i64,
    /// Its ETag.
    pub etag: String,
}

/// A page.
#[derive(Debug, Clone, Default)]
pub struct ListPage {
    /// Objects, by key.
    pub objects: Vec<ListedObject>,
    /// Common prefixes, in their order.
    pub prefixes: Vec<String>,
    /// Where the next page begins; none if this is the last one.
    pub next: Option<Position>,
}

/// A page before the attributes of its objects are known.
struct Keys {
    objects: Vec<(String, Listed)>,
    prefixes: Vec<String>,
    last: Option<Position>,
}

impl Keys {
    fn count(&self) -> usize {
        self.objects.len() + self.prefixes.len()
    }

    /// Whether a key is within the common prefix that came last.
    fn has(&self, key: &str) -> bool {
        matches!(&self.last, Some(Position::Prefix(prefix)) if key.starts_with(prefix.as_str()))
    }
}

impl Account {
    /// Lists a page of a bucket, in the byte order of keys.
    ///
    /// # Errors
    /// `NoSuchBucket`; the metadata's.
    pub fn list(&self, bucket: &str, request: &ListRequest) -> S3Result<ListPage> {
        let bucket = self.bucket(bucket)?;
        if request.count == 0 {
            return Ok(ListPage::default());
        }
        let after = request.after.as_ref().map(|after| after.text().as_bytes());
        let is_whole = matches!(request.after, Some(Position::Prefix(_)));
        KeyWalk::new(self, bucket, request.prefix.as_bytes(), after, is_whole)
            .and_then(|walk| self.page(walk, request))
            .map_err(failed)
    }

    fn page(&self, mut walk: KeyWalk<'_>, request: &ListRequest) -> FsResult<ListPage> {
        let mut keys = Keys {
            objects: Vec::new(),
            prefixes: Vec::new(),
            last: request.after.clone().filter(|after| matches!(after, Position::Prefix(_))),
        };
        let mut is_truncated = false;
        while let Some(step) = walk.advance()? {
            let (listed, is_dir) = match step {
                Step::Object(listed) => (listed, false),
                Step::Directory(listed) => (listed, true),
            };
            // S3's keys are UTF-8; other names have none.
            let Ok(key) = String::from_utf8(listed.key.clone()) else { continue };
            if keys.has(&key) {
                continue;
            }
            let common = common_prefix(&key, request);
            if is_dir && common.is_none() {
                walk.enter(&listed)?;
                continue;
            }
            if is_dir && !walk.has_keys(&listed)? {
                continue;
            }
            if keys.count() == request.count {
                is_truncated = true;
                break;
            }
            match common {
                Some(prefix) => {
                    keys.last = Some(Position::Prefix(prefix.clone()));
                    keys.prefixes.push(prefix);
                }
                None => {
                    keys.last = Some(Position::Key(key.clone()));
                    keys.objects.push((key, listed));
                }
            }
        }
        let next = keys.last.take().filter(|_| is_truncated);
        Ok(ListPage { objects: self.describe(keys.objects)?, prefixes: keys.prefixes, next })
    }

    /// The attributes of objects. What was removed meanwhile is left out.
    fn describe(&self, keys: Vec<(String, Listed)>) -> FsResult<Vec<ListedObject>> {
        let at = |(key, listed): &(String, Listed)| {
            let name = key.rsplit('/').next().unwrap_or_default();
            let seen = Name::new(name.as_bytes()).ok();
            InodeRef { ino: listed.ino, seen: seen.map(|name| (listed.dir, name)) }
        };
        let places: Vec<InodeRef> = keys.iter().map(at).collect();
        let answers = self.ask_many(places.iter().cloned().map(Op::GetAttr).collect());
        let mut found: Vec<(String, Inode)> = Vec::with_capacity(keys.len());
        let mut with_xattrs = Vec::new();
        for (((key, _), at), answer) in keys.into_iter().zip(places).zip(answers) {
            match answer.and_then(kestrel_client::fs::into_inode) {
                Ok(inode) => {
                    if inode.xattrs {
                        with_xattrs.push(Op::GetXattr(at, OBJECT_XATTR.into()));
                    }
                    found.push((key, inode));
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut values = self.ask_many(with_xattrs).into_iter();
        let mut objects = Vec::with_capacity(found.len());
        for (key, inode) in found {
            let value = match inode.xattrs {
                true => optional(values.next().unwrap_or(Ok(Answer::Bytes(Box::default()))))?,
                false => None,
            };
            let attributes = value.map(|value| ObjectAttributes::decode(&value));
            let etag = attributes.unwrap_or_default().etag_of(&inode);
            let size = if inode.kind == Kind::Dir { 0 } else { inode.size };
            objects.push(ListedObject { key, size, mtime: inode.mtime, etag });
        }
        Ok(objects)
    }
}

/// The common prefix that a key belongs to.
fn common_prefix(key: &str, request: &ListRequest) -> Option<String> {
    let delimiter = request.delimiter.as_deref().filter(|text| !text.is_empty())?;
    let rest = key.strip_prefix(request.prefix.as_str())?;
    let at = rest.find(delimiter)?;
    Some(key[..request.prefix.len() + at + delimiter.len()].to_string())
}
