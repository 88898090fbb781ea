//! A directory as block store with a second one, on cheaper disks, as its tier `archive`.
//!
//! The second is the subdirectory [`key::ARCHIVE`] of the first: a mount, or a symbolic link to
//! wherever it is. Both are laid out alike. An object is in one of them. While it is moved it is in
//! both, whole: the copy gets its name when it is complete and durable, and only then the other one
//! goes. So a crash leaves two equal objects at most, and the next move or deletion takes the other
//! away. An object that a process still appends to is locked, and not moved.
//!
//! **A disk that is not mounted** would look like an empty directory, and its objects as lost. Both
//! directories have a mark ([`key::TIER_MARKER`]) from when the tier was there first; without the
//! second mark the store does not open.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::path::Path;

use bytes::Bytes;
use kestrel_types::crash;
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;

use super::local::{LocalConfig, LocalStore};
use super::{
    AppendStore, Appender, BlockStore, LIST_PAGE_MAX, Page, PutOptions, RestoreSpeed, RestoreState,
    TierState, TieredStore, Usage, key,
};
use crate::error::{Error, Result};

/// What a mark says.
const MARK: &[u8] = b"A directory of objects with the tier archive. KestrelFS\n";

/// See the module's header.
pub struct TieredDirs {
    standard: LocalStore,
    archive: LocalStore,
}

fn failed(source: io::Error) -> Error {
    Error::from_io("opening the directory of the tier archive", None, source)
}

fn write_mark(dir: &Path) -> io::Result<()> {
    let mut file = File::create(dir.join(key::TIER_MARKER))?;
    file.write_all(MARK)?;
    file.sync_all()?;
    File::open(dir)?.sync_all()
}

impl TieredDirs {
    /// Whether the store in a directory has, or had, a second one.
    ///
    /// # Errors
    /// Those of looking.
    pub fn is_one(dir: &Path) -> io::Result<bool> {
        let is_there = |name| match fs::symlink_metadata(dir.join(name)) {
            Ok(_) => Ok(true),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(why) => Err(why),
        };
        Ok(is_there(key::ARCHIVE)? || is_there(key::TIER_MARKER)?)
    }

    /// Opens both directories. `config` is for each, but not the bytes that stay free, of which
    /// the second keeps none.
    ///
    /// # Errors
    /// If the second is not there, or not mounted.
    pub fn open(dir: &Path, config: LocalConfig) -> Result<Self> {
        let second = dir.join(key::ARCHIVE);
        if !second.is_dir() {
            let why = format!("{}: there is no such directory; mount it", second.display());
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, why)));
        }
        let is_marked = |dir: &Path| dir.join(key::TIER_MARKER).exists();
        match (is_marked(dir), is_marked(&second)) {
            (true, true) => {}
            (true, false) => {
                let why = format!(
                    "{}: it is not the directory that it was; mount its disk",
                    second.display()
                );
                return Err(failed(io::Error::other(why)));
            }
            (false, _) => {
                write_mark(&second).and_then(|()| write_mark(dir)).map_err(failed)?;
            }
        }
        let of_second = LocalConfig { reserve_bytes: 0, ..config };
        Ok(Self {
            standard: LocalStore::open(dir, config)?,
            archive: LocalStore::open(&second, of_second)?,
        })
    }

    /// What the first directory says; where it does not have the object, what the second says.
    fn either<T>(&self, mut ask: impl FnMut(&LocalStore, Tier) -> Result<T>) -> Result<T> {
        match ask(&self.standard, Tier::Standard) {
            // It may have been moved while it was asked: once more after the second.
            Err(Error::NotFound { .. }) => match ask(&self.archive, Tier::Archive) {
                Err(Error::NotFound { .. }) => ask(&self.standard, Tier::Standard),
                other => other,
            },
            other => other,
        }
    }
}

impl TieredStore for TieredDirs {
    fn check_tier(&self, tier: Tier) -> Result<()> {
        match tier {
            Tier::Standard | Tier::Archive => Ok(()),
            tier => Err(Error::NoTier { tier, why: "it is a directory with an archive".into() }),
        }
    }

    fn tier_of(&self, object: ObjectId) -> Result<TierState> {
        let (tier, size) = self.either(|dir, tier| Ok((tier, dir.size(object)?)))?;
        // A disk is read at once.
        let restore = match tier {
            Tier::Archive => RestoreState::Restored,
            _ => RestoreState::None,
        };
        Ok(TierState { tier: Some(tier), restore, size: Some(size) })
    }

    fn move_to(&self, object: ObjectId, _from: &TierState, tier: Tier) -> Result<()> {
        self.check_tier(tier)?;
        let (from, to) = match tier {
            Tier::Archive => (&self.standard, &self.archive),
            _ => (&self.archive, &self.standard),
        };
        match to.take_copy(object, from) {
            Ok(locked) => {
                crash::point("tier.linked");
                // The copy is whole: nothing was appended since.
                from.delete(object)?;
                drop(locked);
                Ok(())
            }
            // It is there already, and only there.
            Err(Error::NotFound { .. }) => to.size(object).map(drop),
            Err(error) => Err(error),
        }
    }

    fn restore(&self, object: ObjectId, _days: u32, _speed: RestoreSpeed) -> Result<RestoreState> {
        match self.tier_of(object)?.restore {
            RestoreState::Restored => Ok(RestoreState::Restored),
            _ => Err(Error::Invalid { what: "the object is in no archive" }),
        }
    }
}

impl BlockStore for TieredDirs {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        refuse_present(&self.archive, object)?;
        self.standard.put(object, parts)
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        match options.tier {
            Some(Tier::Archive) => {
                refuse_present(&self.standard, object)?;
                self.archive.put_shared(object, parts)
            }
            _ => {
                refuse_present(&self.archive, object)?;
                self.standard.put_shared(object, parts)
            }
        }
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        Some(self)
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        Some(self)
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.either(|dir, _| dir.read(object, offset, parts))
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        match self.standard.try_read_nowait(object, offset, parts) {
            Err(Error::NotFound { .. }) => {
                match self.archive.try_read_nowait(object, offset, parts) {
                    // Whether it is anywhere shows where it can be waited for.
                    Err(Error::NotFound { .. }) => Ok(None),
                    other => other,
                }
            }
            other => other,
        }
    }

    fn prefetch(&self, object: ObjectId, offset: u64, len: u64) -> bool {
        let at = if self.standard.size(object).is_ok() { &self.standard } else { &self.archive };
        at.prefetch(object, offset, len)
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.either(|dir, _| dir.size(object))
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        let archived = self.archive.delete(object)?;
        Ok(self.standard.delete(object)? || archived)
    }

    fn sync(&self) -> Result<()> {
        self.standard.sync()?;
        self.archive.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.standard.sync_objects(objects)?;
        self.archive.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let limit = limit.clamp(1, LIST_PAGE_MAX);
        let (one, other) = (self.standard.list(after, limit)?, self.archive.list(after, limit)?);
        Ok(merged(one, other, limit))
    }

    fn usage(&self) -> Result<Usage> {
        let (standard, archive) = (self.standard.usage()?, self.archive.usage()?);
        Ok(Usage { written: standard.written + archive.written, ..standard })
    }
}

impl AppendStore for TieredDirs {
    fn create(&self, object: ObjectId) -> Result<Box<dyn Appender>> {
        refuse_present(&self.archive, object)?;
        self.standard.create(object)
    }
}

/// Two objects of one number must never be: after power loss numbers may be handed out again of
/// which objects are left.
fn refuse_present(dir: &LocalStore, object: ObjectId) -> Result<()> {
    match dir.size(object) {
        Err(Error::NotFound { .. }) => Ok(()),
        Ok(_) => Err(Error::Exists { object }),
        Err(error) => Err(error),
    }
}

/// One page of two that begin at the same place; an object that is in both comes once.
fn merged(one: Page, other: Page, limit: usize) -> Page {
    let end = [&one.next, &other.next].into_iter().flatten().min().cloned();
    let more = one.next.is_some() || other.next.is_some();
    let mut objects = [one.objects, other.objects].concat();
    objects.sort_by_cached_key(|info| key::key(info.object));
    objects.dedup_by_key(|info| info.object);
    // Behind where one of the pages ends, names of it may be missing.
    if let Some(end) = &end {
        objects.retain(|info| key::key(info.object) <= *end);
    }
    let is_cut = objects.len() > limit;
    objects.truncate(limit);
    let next = match (is_cut, objects.last()) {
        (true, Some(last)) => Some(key::key(last.object)),
        _ => end.filter(|_| more),
    };
    Page { objects, unknown: [one.unknown, other.unknown].concat(), next }
}

#[cfg(test)]
mod tests;
