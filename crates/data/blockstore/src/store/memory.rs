//! Objects in memory: for tests. It can append or not (then it counts as remote, as an object
//! store), and forget on purpose what was not synced.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;
use parking_lot::RwLock;

use super::key;
use super::{
    AppendStore, Appender, BlockStore, LIST_PAGE_MAX, ObjectInfo, Page, PutOptions, RestoreSpeed,
    RestoreState, TierState, TieredStore, Usage, total_len,
};
use crate::error::{Error, Result};

#[derive(Default, Clone)]
struct Object {
    bytes: Vec<u8>,
    /// How many of them a crash leaves; none if the object was never synced.
    durable: Option<usize>,
    tier: Option<Tier>,
    restore: RestoreState,
}

impl Object {
    fn state(&self) -> TierState {
        TierState {
            tier: self.tier.or(Some(Tier::Standard)),
            restore: self.restore,
            size: Some(self.bytes.len() as u64),
        }
    }
}

/// Keys sort like this pair.
type Objects = Arc<RwLock<BTreeMap<(u8, ObjectId), Object>>>;

fn sort_key(object: ObjectId) -> (u8, ObjectId) {
    (key::prefix(object), object)
}

/// A block store in memory.
#[derive(Default)]
pub struct MemoryStore {
    objects: Objects,
    put_only: bool,
    tiers: bool,
}

impl MemoryStore {
    /// An empty store that can append, like a local directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that takes whole objects only and makes them durable at once, like an object
    /// store.
    pub fn put_only() -> Self {
        Self { put_only: true, ..Self::default() }
    }

    /// Such a store that has all tiers. What an archive is asked for is there after
    /// [`MemoryStore::end_restores`].
    pub fn with_tiers() -> Self {
        Self { tiers: true, ..Self::put_only() }
    }

    /// Archives have made readable what they were asked for.
    pub fn end_restores(&self) {
        for object in self.objects.write().values_mut() {
            if object.restore == RestoreState::UnderWay {
                object.restore = RestoreState::Restored;
            }
        }
    }

    /// Power loss: forgets every byte that was not synced.
    pub fn crash(&self) {
        let mut objects = self.objects.write();
        objects.retain(|_, object| object.durable.is_some());
        for object in objects.values_mut() {
            object.bytes.truncate(object.durable.unwrap_or(0));
        }
    }

    /// Changes stored bytes behind everybody's back.
    pub fn tamper(&self, object: ObjectId, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(found) = self.objects.write().get_mut(&sort_key(object)) {
            change(&mut found.bytes);
        }
    }

    /// A copy of the object's bytes.
    pub fn bytes(&self, object: ObjectId) -> Option<Vec<u8>> {
        self.objects.read().get(&sort_key(object)).map(|found| found.bytes.clone())
    }

    fn create_empty(&self, object: ObjectId) -> Result<()> {
        match self.objects.write().entry(sort_key(object)) {
            std::collections::btree_map::Entry::Occupied(_) => Err(Error::Exists { object }),
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(Object::default());
                Ok(())
            }
        }
    }
}

fn append(
    objects: &Objects,
    object: ObjectId,
    parts: &[IoSlice<'_>],
    durable: bool,
) -> Result<u64> {
    let mut objects = objects.write();
    let found = objects.get_mut(&sort_key(object)).ok_or(Error::NotFound { object })?;
    let at = found.bytes.len();
    for part in parts {
        found.bytes.extend_from_slice(part);
    }
    if durable {
        found.durable = Some(found.bytes.len());
    }
    Ok(at as u64)
}

impl BlockStore for MemoryStore {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        self.create_empty(object)?;
        append(&self.objects, object, parts, self.put_only).map(drop)
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        self.put_shared(object, parts)?;
        if let Some(found) = self.objects.write().get_mut(&sort_key(object)) {
            found.tier = options.tier.filter(|_| self.tiers);
        }
        Ok(())
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        self.tiers.then_some(self)
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        if self.put_only { None } else { Some(self) }
    }

    fn is_remote(&self) -> bool {
        self.put_only
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        let objects = self.objects.read();
        let found = objects.get(&sort_key(object)).ok_or(Error::NotFound { object })?;
        if !found.state().is_readable() {
            return Err(Error::Archived { object });
        }
        let short =
            Error::Corrupt { object, offset, what: "the object is shorter than what was stored" };
        let Some(mut rest) = usize::try_from(offset).ok().and_then(|at| found.bytes.get(at..))
        else {
            return Err(short);
        };
        for part in parts {
            let Some((head, tail)) = rest.split_at_checked(part.len()) else { return Err(short) };
            part.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        if self.put_only { Ok(None) } else { self.read(object, offset, parts).map(Some) }
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        let objects = self.objects.read();
        objects
            .get(&sort_key(object))
            .map(|found| found.bytes.len() as u64)
            .ok_or(Error::NotFound { object })
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        Ok(self.objects.write().remove(&sort_key(object)).is_some())
    }

    fn sync(&self) -> Result<()> {
        for object in self.objects.write().values_mut() {
            object.durable = Some(object.bytes.len());
        }
        Ok(())
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        let mut stored = self.objects.write();
        for object in objects {
            if let Some(found) = stored.get_mut(&sort_key(*object)) {
                found.durable = Some(found.bytes.len());
            }
        }
        Ok(())
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let from = match after {
            None => Bound::Unbounded,
            Some(cursor) => Bound::Excluded(sort_key(
                key::parse(cursor).ok_or(Error::Invalid { what: "listing cursor" })?,
            )),
        };
        let limit = limit.clamp(1, LIST_PAGE_MAX);
        let objects = self.objects.read();
        let mut found = objects.range((from, Bound::Unbounded));
        let mut page = Page::default();
        for (&(_, object), stored) in found.by_ref().take(limit) {
            page.objects.push(ObjectInfo { object, size: stored.bytes.len() as u64, modified: 0 });
        }
        page.next = found.next().and(page.objects.last()).map(|last| key::key(last.object));
        Ok(page)
    }

    fn usage(&self) -> Result<Usage> {
        let bytes: usize = self.objects.read().values().map(|object| object.bytes.len()).sum();
        Ok(Usage { capacity: None, free: None, written: bytes as i64 })
    }
}

impl TieredStore for MemoryStore {
    fn check_tier(&self, _tier: Tier) -> Result<()> {
        Ok(())
    }

    fn tier_of(&self, object: ObjectId) -> Result<TierState> {
        let objects = self.objects.read();
        objects.get(&sort_key(object)).map(Object::state).ok_or(Error::NotFound { object })
    }

    fn move_to(&self, object: ObjectId, _from: &TierState, tier: Tier) -> Result<()> {
        let mut objects = self.objects.write();
        let found = objects.get_mut(&sort_key(object)).ok_or(Error::NotFound { object })?;
        if !found.state().is_readable() {
            return Err(Error::Archived { object });
        }
        (found.tier, found.restore) = (Some(tier), RestoreState::None);
        Ok(())
    }

    fn restore(&self, object: ObjectId, _days: u32, _speed: RestoreSpeed) -> Result<RestoreState> {
        let mut objects = self.objects.write();
        let found = objects.get_mut(&sort_key(object)).ok_or(Error::NotFound { object })?;
        if !found.tier.is_some_and(Tier::is_archive) {
            return Err(Error::Invalid { what: "the object is in no archive" });
        }
        if found.restore == RestoreState::None {
            found.restore = RestoreState::UnderWay;
        }
        Ok(found.restore)
    }
}

impl AppendStore for MemoryStore {
    fn create(&self, object: ObjectId) -> Result<Box<dyn Appender>> {
        self.create_empty(object)?;
        Ok(Box::new(MemoryAppender { objects: Arc::clone(&self.objects), object, len: 0 }))
    }
}

struct MemoryAppender {
    objects: Objects,
    object: ObjectId,
    len: u64,
}

impl Appender for MemoryAppender {
    fn len(&self) -> u64 {
        self.len
    }

    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<u64> {
        let at = append(&self.objects, self.object, parts, false)?;
        self.len = at + total_len(parts) as u64;
        Ok(at)
    }
}
