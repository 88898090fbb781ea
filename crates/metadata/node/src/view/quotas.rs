//! Charging quotas for what an operation changed ([`crate::quotas`]).
//!
//! - An entry counts towards the quotas of all directories above it, and its inode towards those of
//!   its user, its group and the volume.
//! - A file in table `link` belongs to no directory. Its *home*, a row of table `quota`, names the
//!   directory with the quota that counts its bytes: of the name it had when it came there.
//! - As under project quotas of XFS, neither a directory nor a file that has or had several names
//!   moves over a quota's edge, nor does a file get a name beyond it: `EXDEV`. What is removed
//!   moves to the trash all the same, and out of it; bytes of such a file count there as before.

use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::InodeRef;
use kestrel_types::quota::{
    QuotaInfo, QuotaRow, QuotaSubject, QuotaUsage, decode_home, encode_home,
};
use kestrel_types::request::{Op, Request};

use super::{At, InodeUse, View, damaged};
use crate::quotas::{
    ChargeIndex, ChargeScratch, ChargedName, Charges, Owners, QuotaCharges, QuotaTable,
};
use crate::rows::{Counted, CountedChange, Value};
use crate::stop::{Run, Stop, fail};

/// Changes of what is in the rows of quotas.
struct Sums<'t> {
    table: &'t QuotaTable,
    charges: &'t mut Charges,
    changes: &'t mut Vec<(ChargeIndex, QuotaUsage)>,
}

impl Sums<'_> {
    fn add(&mut self, of: QuotaSubject, files: i64, bytes: i64) {
        let Some(quota) = self.table.all.get(&of) else { return };
        let (at, change) = (self.charges.index(quota), QuotaUsage { files, bytes });
        match self.changes.iter_mut().find(|(known, _)| *known == at) {
            Some((_, sum)) => *sum = sum.plus(change),
            None => self.changes.push((at, change)),
        }
    }

    fn add_owner(&mut self, counted: &Counted, sign: i64) {
        let Some((uid, gid)) = counted.owner else { return };
        let bytes = sign.wrapping_mul(counted.bytes);
        for of in [QuotaSubject::User(uid), QuotaSubject::Group(gid), QuotaSubject::Volume] {
            self.add(of, sign, bytes);
        }
    }
}

/// Whether an operation may exceed the limits of users and groups.
fn owners(request: &Request) -> Owners {
    match &request.op {
        Op::SetAttr(_, set)
            if request.creds.uid == 0 && (set.uid.is_some() || set.gid.is_some()) =>
        {
            Owners::Free
        }
        _ => Owners::Limited,
    }
}

impl View<'_> {
    /// Charges what the operation that ran has changed. Fails with `EDQUOT`, or `ENOSPC` by the
    /// volume's quota, if that is not allowed, and with `EXDEV` for what stays on its side of a
    /// quota's edge.
    pub fn charge_quotas(&mut self, request: &Request) -> Run<()> {
        let mut charges = std::mem::take(&mut self.effects.charges);
        let mut scratch = std::mem::take(&mut self.effects.charge_scratch);
        let charged = self.sum_up(&mut charges, &mut scratch).and_then(|_| {
            if scratch.changes.is_empty() {
                return Ok(());
            }
            let (owners, quotas) = (owners(request), &self.core.quotas);
            charges.charge(quotas, &scratch.changes, owners, self.now).map_err(Stop::from)
        });
        scratch.clear();
        (self.effects.charges, self.effects.charge_scratch) = (charges, scratch);
        charged
    }

    /// As [`View::charge_quotas`], of an operation on rows of several nodes: the member that
    /// decides it charges.
    pub fn quota_charges(&mut self, request: &Request) -> Run<QuotaCharges> {
        let owners = owners(request);
        if !self.core.quotas.in_use() {
            let version = self.core.quotas.table().version;
            return Ok(QuotaCharges { version, own: Vec::new(), owners });
        }
        let mut charges = std::mem::take(&mut self.effects.charges);
        let mut scratch = std::mem::take(&mut self.effects.charge_scratch);
        let summed = self.sum_up(&mut charges, &mut scratch).map(|version| {
            let own = charges.named(&scratch.changes);
            QuotaCharges { version, own, owners }
        });
        scratch.clear();
        (self.effects.charges, self.effects.charge_scratch) = (charges, scratch);
        summed
    }

    /// Adds up what the operation did to the rows of quotas. The number of the set of quotas.
    fn sum_up(&mut self, charges: &mut Charges, scratch: &mut ChargeScratch) -> Run<u64> {
        let ChargeScratch { counted, gone, come, changes } = scratch;
        self.rows.counted_changes(counted).map_err(|why| damaged("entry", &why))?;
        let table = self.core.quotas.table();
        if counted.is_empty() {
            return Ok(table.version);
        }
        charges.begin(&table);
        let mut sums = Sums { table: &table, charges, changes };
        for CountedChange { dir, old, new } in &*counted {
            let Some(dir) = dir else { continue };
            let under = if table.dirs == 0 { None } else { self.nearest_quota(&table, *dir)? };
            for (counted, sign, names) in [(old, -1, &mut *gone), (new, 1, &mut *come)] {
                let Some(counted) = counted else { continue };
                sums.add_owner(counted, sign);
                if let Some(under) = under {
                    sums.add(QuotaSubject::Dir(under), sign, sign.wrapping_mul(counted.bytes));
                }
                names.push(ChargedName { counted: *counted, under });
            }
        }
        for CountedChange { old, new, .. } in counted.iter().filter(|change| change.dir.is_none()) {
            old.iter().for_each(|counted| sums.add_owner(counted, -1));
            new.iter().for_each(|counted| sums.add_owner(counted, 1));
        }
        if table.dirs > 0 {
            self.charge_homes(&mut sums, counted, gone)?;
            self.check_edges(&table, gone, come)?;
        }
        Ok(table.version)
    }

    /// Bytes of files in table `link`, and where they are charged.
    fn charge_homes(
        &mut self,
        sums: &mut Sums<'_>,
        changes: &[CountedChange],
        gone: &[ChargedName],
    ) -> Run<()> {
        for CountedChange { old, new, .. } in changes.iter().filter(|change| change.dir.is_none()) {
            let Some(ino) = old.or(*new).map(|counted| counted.ino) else { continue };
            // What comes to table `link` has no home yet.
            let before = if old.is_some() { self.home(ino)? } else { None };
            let after = match (old, new) {
                (_, None) => None,
                (Some(_), Some(_)) => before,
                (None, Some(_)) => {
                    let name = gone.iter().find(|name| name.counted.ino == ino);
                    match (name, self.effects.unnamed) {
                        (Some(name), _) => name.under,
                        (None, Some((unnamed, dir))) if unnamed == ino => {
                            self.nearest_quota(sums.table, dir)?
                        }
                        (None, _) => None,
                    }
                }
            };
            if let (Some(home), Some(old)) = (before, old) {
                sums.add(QuotaSubject::Dir(home), 0, old.bytes.wrapping_neg());
            }
            if let (Some(home), Some(new)) = (after, new) {
                sums.add(QuotaSubject::Dir(home), 0, new.bytes);
            }
            if before != after {
                let row = after.map_or(Value::Absent, |home| Value::Bytes(encode_home(home)));
                let key = QuotaRow::Home(ino).key();
                let cell = self.rows.cell(key.table, key.id, &key.suffix);
                self.put(cell, row);
            }
        }
        Ok(())
    }

    /// Fails with `EXDEV` if a directory, or a file in table `link`, comes under other quotas.
    fn check_edges(
        &mut self,
        table: &QuotaTable,
        gone: &[ChargedName],
        come: &[ChargedName],
    ) -> Run<()> {
        for ChargedName { counted, under } in come {
            let before = gone.iter().find(|name| name.counted.ino == counted.ino);
            let was_under = match before {
                Some(before) if counted.is_dir => before.under,
                _ if counted.owner.is_none() => self.home(counted.ino)?,
                _ => continue,
            };
            // A directory that is kept is empty; bytes of a file count in the trash where they did.
            let is_kept = self.effects.kept == Some(counted.ino);
            if was_under != *under && !(is_kept && table.dir(counted.ino).is_none()) {
                return Err(fail(
                    libc::EXDEV,
                    "a directory, or a file with several names, does not move over the edge of a \
                     quota: copy it",
                ));
            }
        }
        Ok(())
    }

    /// The directory of the quota that counts the bytes of a file in table `link`.
    fn home(&mut self, ino: InodeId) -> Run<Option<InodeId>> {
        let key = QuotaRow::Home(ino).key();
        let cell = self.rows.cell(key.table, key.id, &key.suffix);
        match self.bytes(cell)? {
            Some(row) => decode_home(row).map(Some).map_err(|why| damaged("quota", &why)),
            None => Ok(None),
        }
    }

    /// The nearest directory with a quota, from this one up.
    fn nearest_quota(&mut self, table: &QuotaTable, dir: InodeId) -> Run<Option<InodeId>> {
        let forgotten = self.core.replica.forgotten();
        let keeps = self.effects.dirs_changed.is_empty();
        if keeps && let Some(under) = self.walks.quota(forgotten, table.version, dir) {
            return Ok(under);
        }
        let mut at = dir;
        let under = loop {
            if table.dir(at).is_some() {
                break Some(at);
            }
            if at == ROOT {
                break None;
            }
            at = self.dir(at)?.parent;
        };
        if keeps {
            self.walks.keep_quota(forgotten, table.version, dir, under);
        }
        Ok(under)
    }

    /// Fails with `EOPNOTSUPP` if a clone may not be made in a directory: what comes into being
    /// later is not charged.
    pub fn check_clone_quotas(&mut self, dir: InodeId) -> Run<()> {
        if !self.core.quotas.in_use() {
            return Ok(());
        }
        let table = self.core.quotas.table();
        if table.all.len() > table.dirs || self.nearest_quota(&table, dir)?.is_some() {
            return Err(fail(
                libc::EOPNOTSUPP,
                "no clone is made where a quota counts: copy with cp -a --reflink",
            ));
        }
        Ok(())
    }

    /// The quotas that count for a directory's names, or for a file's content.
    pub fn quotas_above(&mut self, asked: &InodeRef) -> Run<Vec<QuotaInfo>> {
        let table = self.core.quotas.table();
        if table.all.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.find(asked, InodeUse::Read)?;
        let under = match (&found.at, &asked.seen) {
            (At::Dir(_), _) => self.nearest_quota(&table, found.inode.ino)?,
            (At::Name { parent, .. }, _) => self.nearest_quota(&table, *parent)?,
            (At::Link { .. }, Some((parent, _))) => self.nearest_quota(&table, *parent)?,
            (At::Link { .. }, None) => None,
        };
        let mut found = Vec::new();
        let mut at = under.and_then(|dir| table.dir(dir));
        while let Some(quota) = at {
            found.push(quota.info());
            at = quota.above.as_ref();
        }
        found.extend(table.all.get(&QuotaSubject::Volume).map(|quota| quota.info()));
        if self.core.cluster.is_some() && !found.is_empty() {
            return Err(Stop::Quotas(found.iter().map(|info| info.of).collect()));
        }
        Ok(found)
    }
}
