//! Tiers of the objects that files lie in: which they are, moving them where policies say, and
//! having archives make them readable.
//!
//! **Moving.** An object that only files below the paths refer to, all of which belong in one tier,
//! is copied there by the store, in its place: no reference changes, and until the copy is whole
//! the object is as it was. What files elsewhere refer to as well must stay readable for them: the
//! bytes of the files below are stored again, in their tier, and their references moved as a
//! compaction does it ([`super::repack`]). What is in its tier already is left alone, so a run that
//! was cut off is resumed by repeating it.
//!
//! **A guess and its proof.** Whether others refer to an object follows from the node's account of
//! it: the bytes that all references together count. An account that is behind what was read can
//! only make an object look shared, and then each reference is moved by itself, if it is still what
//! was seen.
//!
//! **Bounds.** 24 bytes of memory an object; [`REQUESTS`] requests to the store at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_admin::fragmented;
use kestrel_blockstore::store::{RestoreSpeed, RestoreState, TierState, TieredStore};
use kestrel_blockstore::{Error, ErrorKind, PutOptions};
use kestrel_engine::cancellable::CancellableScan;
use kestrel_engine::{Engine, EngineError};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::tier::Tier;
use parking_lot::Mutex;

use super::Fs;
use super::repack::{CompactOptions, Compacted, plan};
use super::storing::NO_TIERS;

/// Requests to the store at a time.
const REQUESTS: usize = 16;

const ENDED: FsError = FsError::new(libc::EINTR, "it was ended; what it did stays done");

/// What to do with the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierAct {
    /// Tell where they are.
    Status,
    /// Move them where the policies of the files' directories say, or tell what there is to move.
    Migrate {
        /// Only tell.
        dry_run: bool,
    },
    /// Ask archives for them.
    Restore {
        /// How long they stay readable, days.
        days: u32,
        /// How soon they are.
        speed: RestoreSpeed,
    },
}

/// Which objects, and how.
pub struct TierOptions<'a> {
    /// The metadata to look at, if other processes serve the volume: its own without.
    pub rows: Option<&'a dyn Engine>,
    /// The files at or below these paths (`/` between names).
    pub paths: &'a [Vec<u8>],
    /// Asked often, with the bytes moved since it was asked last; may sleep. False ends the work.
    pub go_on: &'a (dyn Fn(u64) -> bool + Sync),
}

/// Objects and the bytes of files in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierSum {
    /// Objects.
    pub objects: u64,
    /// Bytes of the files below the paths in them.
    pub bytes: u64,
}

impl TierSum {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// What was found and done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierReport {
    /// By tier, where the objects were found; those of a tier without a name here under `None`.
    pub found: BTreeMap<Option<Tier>, TierSum>,
    /// In an archive, and not asked for.
    pub archived: TierSum,
    /// In an archive that is making them readable.
    pub restoring: TierSum,
    /// In an archive, and readable for a while.
    pub restored: TierSum,
    /// By tier, what the store copied there, or will.
    pub moved: BTreeMap<Tier, TierSum>,
    /// Objects that others refer to as well: the bytes of the files are stored again, or will be.
    pub shared: TierSum,
    /// To be restored before they can be moved.
    pub unreadable: TierSum,
    /// A process still writes to them: they stay for now.
    pub in_use: TierSum,
    /// What could not be asked, moved or restored: the log says why.
    pub failed: TierSum,
}

/// What files below the paths have in an object.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    bytes: u64,
    wanted: Wanted,
}

/// Where the files that an object has bytes of belong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Wanted {
    /// It is not known.
    #[default]
    Unknown,
    /// All of them there.
    In(Tier),
    /// In several tiers.
    Several,
}

impl Wanted {
    fn and(self, tier: Option<Tier>) -> Self {
        match (self, tier) {
            (_, None) => self,
            (Self::Unknown, Some(tier)) => Self::In(tier),
            (Self::In(known), Some(tier)) if known == tier => self,
            _ => Self::Several,
        }
    }
}

/// What is to be done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    /// It is where it belongs, or that is not known.
    None,
    /// The store copies it.
    Copy(Tier),
    /// The bytes of the files are stored again.
    StoreAgain,
    /// It has to be restored first.
    Restore,
}

/// How an object was found, and what was done with it.
type Dealt = kestrel_blockstore::Result<(TierState, Move)>;

/// Decides what is to be done with an object. `is_own`: nothing else refers to it.
fn decide(state: &TierState, wanted: Wanted, is_own: impl FnOnce() -> bool) -> Move {
    match wanted {
        Wanted::Unknown => Move::None,
        Wanted::In(tier) if state.tier == Some(tier) => Move::None,
        _ if !state.is_readable() => Move::Restore,
        Wanted::In(tier) if is_own() => Move::Copy(tier),
        Wanted::In(_) | Wanted::Several => Move::StoreAgain,
    }
}

impl Fs {
    /// Looks at the objects that the files at or below some paths lie in, moves them or asks
    /// archives for them. Runs on the caller's thread, beside everything else.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the store has no tiers, `EBUSY` if a compaction or another move runs,
    /// `EINTR` if it was told to end, and what keeps it from reading the metadata. Single objects
    /// that cannot be dealt with are counted.
    pub fn tier_files(
        self: &Arc<Self>,
        options: &TierOptions<'_>,
        act: TierAct,
        tell: &mut dyn FnMut(&'static str, u64),
    ) -> FsResult<TierReport> {
        let store = self.store.clone();
        let tiers = store.tiers().ok_or(NO_TIERS)?;
        let moves = matches!(act, TierAct::Migrate { dry_run: false });
        let busy = FsError::new(libc::EBUSY, "a compaction or move runs already: wait for it");
        let _alone = match moves {
            true => Some(self.background.compacting.try_lock().ok_or(busy)?),
            false => None,
        };
        let go_on = || match (options.go_on)(0) {
            true => Ok(()),
            false => Err(EngineError::Refused("it was ended".into())),
        };
        let why = "the volume is served by another process, which is the one to ask";
        let rows = self.rows_or_own(options.rows, why)?;
        let engine = CancellableScan::new(rows, &go_on);
        if moves {
            // Objects that this process appends to could not be moved.
            self.packer.seal_all();
        }
        tell("looking for the files' objects", 0);
        let shares = self.shares(&engine, options.paths, act)?;
        let mut report = TierReport::default();
        let mut shared = Vec::new();
        // In parts, so that the caller hears of them and can end it.
        for part in shares.chunks(REQUESTS * 4) {
            let mut bytes = 0;
            for (object, share, done) in self.deal_with(&engine, tiers, part, act) {
                match done {
                    Ok((state, Move::StoreAgain)) => {
                        report.count(&state, share.bytes, Move::StoreAgain);
                        shared.push(object);
                    }
                    Ok((state, what)) => {
                        bytes += if matches!(what, Move::Copy(_)) { share.bytes } else { 0 };
                        report.count(&state, share.bytes, what);
                    }
                    Err(Error::InUse { .. }) => report.in_use.add(share.bytes),
                    // Deleted meanwhile: no file lies in it any more.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => {
                        log::warn!("{error}");
                        report.failed.add(share.bytes);
                    }
                }
            }
            tell("dealing with objects", part.len() as u64);
            if !(options.go_on)(bytes) {
                return Err(ENDED);
            }
        }
        if moves && !shared.is_empty() {
            self.store_shared_again(&engine, options, shared, &mut report, tell)?;
        }
        Ok(report)
    }

    /// What the files at or below some paths have in which objects, by their numbers.
    fn shares(
        self: &Arc<Self>,
        engine: &dyn Engine,
        paths: &[Vec<u8>],
        act: TierAct,
    ) -> FsResult<Vec<(ObjectId, Share)>> {
        let failed =
            |why: kestrel_admin::info::InfoError| FsError::because(libc::EIO, why.to_string());
        let mut policies: BTreeMap<InodeId, PutOptions> = BTreeMap::new();
        if matches!(act, TierAct::Migrate { .. }) {
            let mut dirs = BTreeSet::new();
            let note = &mut |reference: fragmented::Reference| {
                dirs.insert(reference.dir);
            };
            fragmented::references_below(engine, paths, note).map_err(failed)?;
            policies = self.put_options(dirs);
        }
        let mut shares: HashMap<ObjectId, Share> = HashMap::new();
        fragmented::references_below(engine, paths, &mut |reference| {
            let share = shares.entry(reference.object).or_default();
            share.bytes += u64::from(reference.bytes);
            let policy = policies.get(&reference.dir);
            let tier = policy.map(|options| options.tier.unwrap_or(Tier::Standard));
            share.wanted = share.wanted.and(tier);
        })
        .map_err(failed)?;
        let mut shares: Vec<_> = shares.into_iter().collect();
        shares.sort_unstable_by_key(|(object, _)| *object);
        Ok(shares)
    }

    /// Deals with some objects, several at a time.
    fn deal_with(
        &self,
        engine: &dyn Engine,
        tiers: &dyn TieredStore,
        shares: &[(ObjectId, Share)],
        act: TierAct,
    ) -> Vec<(ObjectId, Share, Dealt)> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((object, share)) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                let is_own = || {
                    let all = kestrel_admin::info::referenced_bytes(engine, *object);
                    all.is_ok_and(|all| u64::try_from(all) == Ok(share.bytes))
                };
                let dealt = deal_with_one(tiers, (*object, share), act, is_own);
                done.lock().push((*object, *share, dealt));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..REQUESTS.min(shares.len()) {
                scope.spawn(work);
            }
        });
        done.into_inner()
    }

    /// Stores the bytes of the files again that lie in objects which others refer to as well.
    fn store_shared_again(
        self: &Arc<Self>,
        engine: &dyn Engine,
        options: &TierOptions<'_>,
        shared: Vec<ObjectId>,
        report: &mut TierReport,
        tell: &mut dyn FnMut(&'static str, u64),
    ) -> FsResult<()> {
        let users = fragmented::users_below(engine, options.paths, &shared, false)
            .map_err(|why| FsError::because(libc::EIO, why.to_string()))?;
        let (_, pieces) = plan(users);
        let repacking = CompactOptions {
            rows: options.rows,
            paths: None,
            grace: 0,
            dry_run: false,
            is_worth: &|_| true,
            go_on: options.go_on,
        };
        let mut done = Compacted::default();
        self.repack(pieces, &repacking, &mut done, tell)?;
        report.failed.objects += done.failed;
        Ok(())
    }
}

/// Looks at an object and does what is to be done with it by requests to the store.
fn deal_with_one(
    tiers: &dyn TieredStore,
    (object, share): (ObjectId, &Share),
    act: TierAct,
    is_own: impl FnOnce() -> bool,
) -> Dealt {
    let state = tiers.tier_of(object)?;
    match act {
        TierAct::Status => Ok((state, Move::None)),
        TierAct::Migrate { dry_run } => {
            let what = decide(&state, share.wanted, is_own);
            if let (Move::Copy(tier), false) = (what, dry_run) {
                kestrel_types::crash::point("tier.before-copy");
                tiers.move_to(object, &state, tier)?;
                kestrel_types::crash::point("tier.copied");
            }
            Ok((state, what))
        }
        TierAct::Restore { days, speed } => {
            let is_asked = state.tier.is_some_and(Tier::is_archive);
            let restore = match is_asked {
                true => tiers.restore(object, days, speed)?,
                false => RestoreState::None,
            };
            Ok((TierState { restore, ..state }, Move::None))
        }
    }
}

impl TierReport {
    fn count(&mut self, state: &TierState, bytes: u64, what: Move) {
        self.found.entry(state.tier).or_default().add(bytes);
        if state.tier.is_some_and(Tier::is_archive) {
            let sum = match state.restore {
                RestoreState::None => &mut self.archived,
                RestoreState::UnderWay => &mut self.restoring,
                RestoreState::Restored => &mut self.restored,
            };
            sum.add(bytes);
        }
        match what {
            Move::None => {}
            Move::Copy(tier) => self.moved.entry(tier).or_default().add(bytes),
            Move::StoreAgain => self.shared.add(bytes),
            Move::Restore => self.unreadable.add(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of an object by its tier, where its files belong, and what else refers to it.
    #[test]
    fn moves_of_objects() {
        let state = |tier, restore| TierState { tier: Some(tier), restore, size: Some(1) };
        let standard = state(Tier::Standard, RestoreState::None);
        let archived = state(Tier::Archive, RestoreState::None);
        let restored = state(Tier::Archive, RestoreState::Restored);
        let to = |tier| Wanted::Unknown.and(Some(tier));
        let several = to(Tier::Archive).and(Some(Tier::Standard));
        for (state, wanted, is_own, expected) in [
            (standard, Wanted::Unknown, true, Move::None),
            (standard, to(Tier::Standard), false, Move::None),
            (standard, to(Tier::Archive), true, Move::Copy(Tier::Archive)),
            (standard, to(Tier::Archive), false, Move::StoreAgain),
            (standard, several, true, Move::StoreAgain),
            (archived, to(Tier::Archive), true, Move::None),
            (archived, to(Tier::Standard), true, Move::Restore),
            (archived, several, true, Move::Restore),
            (restored, to(Tier::Standard), true, Move::Copy(Tier::Standard)),
            (TierState { tier: None, ..standard }, several, true, Move::StoreAgain),
        ] {
            assert_eq!(decide(&state, wanted, || is_own), expected, "{state:?} {wanted:?}");
        }
        assert_eq!(to(Tier::Archive).and(None), to(Tier::Archive));
    }
}
