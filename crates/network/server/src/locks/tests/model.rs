//! Locks as one would write them down to explain them: an array of bytes for each owner, a list of
//! waiting calls.

use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};

use crate::locks::{LockOwner, Ticket};

/// Bytes of a file in the model. A BSD lock is on byte 0.
pub const BYTES: u64 = 12;

#[derive(Debug, Clone)]
struct Holding {
    owner: LockOwner,
    ino: u64,
    kind: LockKind,
    bytes: [Option<LockMode>; BYTES as usize],
}

#[derive(Debug, Clone)]
struct Wait {
    owner: LockOwner,
    span: LockSpan,
    call: Option<u64>,
}

#[derive(Debug, Default, Clone)]
pub struct Model {
    locks: Vec<Holding>,
    waits: Vec<Wait>,
}

fn bytes_of(span: &LockSpan) -> std::ops::RangeInclusive<usize> {
    match span.kind {
        LockKind::Posix => span.start as usize..=span.end as usize,
        LockKind::Flock => 0..=0,
    }
}

impl Model {
    /// Owners that hold what excludes this.
    fn in_the_way(&self, owner: LockOwner, span: &LockSpan) -> Vec<LockOwner> {
        let excludes = |held: LockMode| held == LockMode::Write || span.mode == LockMode::Write;
        self.locks
            .iter()
            .filter(|held| held.owner != owner && held.ino == span.ino && held.kind == span.kind)
            .filter(|held| bytes_of(span).any(|at| held.bytes[at].is_some_and(excludes)))
            .map(|held| held.owner)
            .collect()
    }

    fn write(&mut self, owner: LockOwner, span: &LockSpan, mode: Option<LockMode>) {
        let same =
            |held: &Holding| held.owner == owner && held.ino == span.ino && held.kind == span.kind;
        if !self.locks.iter().any(same) {
            let bytes = [None; BYTES as usize];
            self.locks.push(Holding { owner, ino: span.ino, kind: span.kind, bytes });
        }
        for held in self.locks.iter_mut().filter(|held| same(held)) {
            held.bytes[bytes_of(span)].fill(mode);
        }
        self.locks.retain(|held| held.bytes.iter().any(Option::is_some));
    }

    fn wake(&mut self, woken: &mut Vec<Ticket>) {
        while let Some(at) =
            self.waits.iter().position(|wait| self.in_the_way(wait.owner, &wait.span).is_empty())
        {
            let wait = self.waits.remove(at);
            self.write(wait.owner, &wait.span, Some(wait.span.mode));
            woken.extend(wait.call.map(|call| Ticket { session: wait.owner.session, call }));
        }
    }

    fn reaches(&self, from: LockOwner, to: LockOwner, seen: &mut Vec<LockOwner>) -> bool {
        if from == to {
            return true;
        }
        if seen.contains(&from) {
            return false;
        }
        seen.push(from);
        let waits = self
            .waits
            .iter()
            .filter(|wait| wait.owner == from && wait.span.kind == LockKind::Posix);
        waits
            .flat_map(|wait| self.in_the_way(from, &wait.span))
            .any(|next| self.reaches(next, to, seen))
    }

    /// The errno; or whether it waits.
    pub fn set(
        &mut self,
        owner: LockOwner,
        span: &LockSpan,
        call: Option<u64>,
        woken: &mut Vec<Ticket>,
    ) -> Result<bool, i32> {
        if let Some(call) = call {
            let orphan =
                |wait: &&mut Wait| wait.owner == owner && wait.span == *span && wait.call.is_none();
            if let Some(wait) = self.waits.iter_mut().find(orphan) {
                wait.call = Some(call);
                return Ok(true);
            }
        }
        let holders = self.in_the_way(owner, span);
        if holders.is_empty() {
            self.write(owner, span, Some(span.mode));
            self.wake(woken);
            return Ok(false);
        }
        if span.kind == LockKind::Flock {
            self.write(owner, span, None);
            self.wake(woken);
        }
        let Some(call) = call else { return Err(libc::EAGAIN) };
        if span.kind == LockKind::Posix
            && holders.iter().any(|holder| self.reaches(*holder, owner, &mut Vec::new()))
        {
            return Err(libc::EDEADLK);
        }
        self.waits.push(Wait { owner, span: *span, call: Some(call) });
        Ok(true)
    }

    pub fn unlock(&mut self, owner: LockOwner, span: &LockSpan, woken: &mut Vec<Ticket>) {
        self.write(owner, span, None);
        self.wake(woken);
    }

    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let before = self.waits.len();
        self.waits
            .retain(|wait| wait.owner.session != ticket.session || wait.call != Some(ticket.call));
        self.waits.len() < before
    }

    pub fn orphan(&mut self, session: u64) {
        self.waits
            .iter_mut()
            .filter(|wait| wait.owner.session == session)
            .for_each(|wait| wait.call = None);
    }

    pub fn end(&mut self, session: u64, woken: &mut Vec<Ticket>) {
        self.waits.retain(|wait| wait.owner.session != session);
        self.locks.retain(|held| held.owner.session != session);
        self.wake(woken);
    }

    /// The first run of bytes of another owner that excludes this: (owner, mode, first, last).
    pub fn test(
        &self,
        owner: LockOwner,
        span: &LockSpan,
    ) -> Option<(LockOwner, LockMode, u64, u64)> {
        let mut runs = Vec::new();
        for held in &self.locks {
            if held.owner == owner || held.ino != span.ino || held.kind != span.kind {
                continue;
            }
            let mut at = 0;
            while at < held.bytes.len() {
                let Some(mode) = held.bytes[at] else {
                    at += 1;
                    continue;
                };
                let first = at;
                while held.bytes.get(at) == Some(&Some(mode)) {
                    at += 1;
                }
                let overlaps = bytes_of(span).any(|byte| (first..at).contains(&byte));
                if overlaps && (mode == LockMode::Write || span.mode == LockMode::Write) {
                    runs.push((first as u64, held.owner, mode, at as u64 - 1));
                }
            }
        }
        let (first, owner, mode, last) = runs.into_iter().min_by_key(|run| (run.0, run.1))?;
        match span.kind {
            LockKind::Posix => Some((owner, mode, first, last)),
            LockKind::Flock => Some((owner, mode, 0, LOCK_END)),
        }
    }

    pub fn waits(&self) -> usize {
        self.waits.len()
    }

    /// Clients with a broken connection.
    pub fn orphans(&self) -> Vec<(LockOwner, LockSpan)> {
        let orphans = self.waits.iter().filter(|wait| wait.call.is_none());
        orphans.map(|wait| (wait.owner, wait.span)).collect()
    }

    pub fn calls(&self) -> Vec<Ticket> {
        let call = |wait: &Wait| wait.call.map(|call| Ticket { session: wait.owner.session, call });
        self.waits.iter().filter_map(call).collect()
    }

    /// Runs of bytes, all owners together.
    pub fn ranges(&self) -> usize {
        let runs = |held: &Holding| {
            (0..held.bytes.len())
                .filter(|at| {
                    held.bytes[*at].is_some() && (*at == 0 || held.bytes[at - 1] != held.bytes[*at])
                })
                .count()
        };
        self.locks.iter().map(runs).sum()
    }
}
