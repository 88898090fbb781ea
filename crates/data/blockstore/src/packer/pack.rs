//! Writing rounds: into the open pack of a pack stream, or as an object of their own.
//!
//! Every round that is begun ends with places or an error, also if the store panics: others wait
//! for its members, and the thread that writes it goes on to the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kestrel_types::crash;
use kestrel_types::ids::ObjectId;
use kestrel_types::range::Range;

use super::queue::Submission;
use super::{ObjectIds, PackerConfig, PackerStats, Pin, Pins, StoredRange};
use crate::error::{Error, Result};
use crate::frame::Gather;
use crate::object::{MEMBER_BYTES, MemberHeader, ObjectHeader, ObjectKind, VolumeId};
use crate::store::{Appender, BlockStore};

/// Numbers tried when the store already holds objects of those handed out (as after a power loss
/// that took back the allocation of numbers, but not the objects).
const NUMBERS_TRIED_MAX: usize = 100_000;

/// An object that still grows.
struct OpenPack {
    appender: Box<dyn Appender>,
    pin: Pin,
}

/// The thread that holds its lock may append to its pack.
#[derive(Default)]
pub(super) struct PackStream {
    open: Option<OpenPack>,
    /// Rounds since the pack was looked at for idleness.
    rounds: u64,
}

impl PackStream {
    pub fn is_sealed(&self) -> bool {
        self.open.is_none()
    }

    pub fn seal(&mut self) {
        self.open = None;
    }

    /// Seals the pack if it took nothing since the last call.
    pub fn seal_if_idle(&mut self) {
        if std::mem::take(&mut self.rounds) == 0 {
            self.seal();
        }
    }
}

/// Writes rounds to the store.
pub(super) struct PackWriter {
    pub store: Arc<dyn BlockStore>,
    pub ids: Arc<dyn ObjectIds>,
    volume: VolumeId,
    pack_bytes: u64,
    pub pins: Arc<Pins>,
    pub stats: PackerStats,
}

/// What a round becomes: its bytes and where each member's frames will be.
struct Plan {
    gather: Gather,
    ranges: Vec<Range>,
}

impl PackWriter {
    pub fn new(store: Arc<dyn BlockStore>, ids: Arc<dyn ObjectIds>, config: &PackerConfig) -> Self {
        Self {
            store,
            ids,
            volume: config.volume,
            pack_bytes: config.pack_bytes,
            pins: Arc::default(),
            stats: PackerStats::default(),
        }
    }

    /// Lays a round out from byte `at` of an object on.
    fn plan(
        &self,
        object: ObjectId,
        kind: ObjectKind,
        at: u64,
        round: &[Submission],
    ) -> Result<Plan> {
        let mut gather = Gather::default();
        let mut ranges = Vec::with_capacity(round.len());
        if at == 0 {
            gather.small(&ObjectHeader { kind, volume: self.volume, object }.encode());
        }
        for member in round {
            let too_large = Error::Invalid { what: "object beyond 4 GiB" };
            let header_at = u32::try_from(at + gather.len()).map_err(|_| too_large.clone())?;
            let offset = header_at.checked_add(MEMBER_BYTES as u32).ok_or(too_large)?;
            // The packer refused payloads beyond 16 MiB.
            let len = member.payload.len() as u32;
            gather.small(&MemberHeader { inode: member.inode, len }.encode(object, header_at));
            gather.frames(&member.payload, &member.checks, object, offset);
            ranges.push(Range { object, offset, len });
        }
        Ok(Plan { gather, ranges })
    }

    fn count(&self, round: &[Submission]) {
        self.stats.rounds.fetch_add(1, Ordering::Relaxed);
        self.stats.members.fetch_add(round.len() as u64, Ordering::Relaxed);
        let bytes: usize = round.iter().map(|member| member.payload.len()).sum();
        self.stats.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Begins an object under a number the store does not know.
    fn begin<R>(&self, mut begin: impl FnMut(ObjectId) -> Result<R>) -> Result<(ObjectId, R)> {
        let mut taken = Error::Invalid { what: "no object number is free" };
        for _ in 0..NUMBERS_TRIED_MAX {
            // From before the number is taken until `begin` has pinned the object.
            let _beginning = self.pins.begin(self.ids.floor());
            let object = self.ids.next()?;
            match begin(object) {
                Err(error @ Error::Exists { .. }) => taken = error,
                Err(error) => return Err(error),
                Ok(begun) => {
                    self.stats.objects.fetch_add(1, Ordering::Relaxed);
                    return Ok((object, begun));
                }
            }
        }
        Err(taken)
    }

    /// Appends a round to the pack stream's pack, beginning and sealing packs as needed. All
    /// members or none.
    pub fn write_round(
        &self,
        stream: &mut PackStream,
        round: &[Submission],
    ) -> Result<Vec<StoredRange>> {
        // A pack stream gives its pack away while it appends: after a panic it is sealed, as after
        // any failure.
        match unpanicked(|| self.append_round(stream, round)) {
            Err(Error::Io { .. } | Error::NotFound { .. }) => {
                unpanicked(|| self.append_round(stream, round))
            }
            other => other,
        }
        .inspect(|_| self.count(round))
    }

    fn append_round(
        &self,
        stream: &mut PackStream,
        round: &[Submission],
    ) -> Result<Vec<StoredRange>> {
        let bytes: usize = round.iter().map(|member| member.payload.len()).sum();
        let is_over = |pack: &OpenPack| {
            pack.appender.len() + bytes as u64 > self.pack_bytes
                || self.ids.is_lost(pack.pin.object())
        };
        if stream.open.as_ref().is_some_and(is_over) {
            stream.seal();
        }
        let mut pack = match stream.open.take() {
            Some(pack) => pack,
            None => self.begin_pack()?,
        };
        let object = pack.pin.object();
        let at = pack.appender.len();
        let plan = self.plan(object, ObjectKind::Pack, at, round)?;
        crash::point("data.pack.before-write");
        if let Err(error) = pack.appender.append(&plan.gather.slices()) {
            self.stats.failures.fetch_add(1, Ordering::Relaxed);
            if at == 0 {
                // No caller has a range in it. If it cannot be removed, listing finds it.
                drop(pack);
                let _ = self.store.delete(object);
            }
            return Err(error);
        }
        crash::point("data.pack.written");
        let stored = stored_ranges(plan.ranges, &self.pins.pin(object));
        stream.rounds += 1;
        if pack.appender.len() < self.pack_bytes {
            stream.open = Some(pack);
        }
        Ok(stored)
    }

    fn begin_pack(&self) -> Result<OpenPack> {
        let appends =
            self.store.appends().ok_or(Error::Invalid { what: "the store cannot append" })?;
        // Pinned before it exists, so that no listing finds it without its pin.
        let create = |object| {
            let pin = self.pins.pin(object);
            Ok(OpenPack { appender: appends.create(object)?, pin })
        };
        Ok(self.begin(create)?.1)
    }

    /// Writes a round as one whole object, with the options of its first member. All members or
    /// none.
    pub fn write_object(&self, round: &[Submission]) -> Result<Vec<StoredRange>> {
        let kind = if round.len() == 1 { ObjectKind::Block } else { ObjectKind::Pack };
        let put = |object| {
            // Pinned before it exists, so that no listing finds it without its pin.
            let pin = self.pins.pin(object);
            let plan = self.plan(object, kind, 0, round)?;
            crash::point("data.pack.before-write");
            let parts = plan.gather.into_shared();
            let options = round.first().map(|member| member.options).unwrap_or_default();
            self.store.put_with(object, &parts, options)?;
            crash::point("data.pack.written");
            Ok(stored_ranges(plan.ranges, &pin))
        };
        let done = match unpanicked(|| self.begin(put)) {
            Err(Error::Io { .. }) => unpanicked(|| self.begin(put)),
            other => other,
        };
        match done {
            Ok((_, stored)) => {
                self.count(round);
                Ok(stored)
            }
            Err(error) => {
                self.stats.failures.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

/// Turns a panic of the store (the hook prints it) into a failure of the round. What it left behind
/// is an object without references, which garbage collection finds.
fn unpanicked<T>(write: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        Err(Error::Remote {
            during: "storing data",
            object: None,
            why: "a defect: the thread that wrote it panicked; see the log and report it".into(),
        })
    })
}

fn stored_ranges(ranges: Vec<Range>, pin: &Pin) -> Vec<StoredRange> {
    ranges.into_iter().map(|range| StoredRange { range, pin: pin.clone() }).collect()
}
