//! What to remove from a cache directory: a policy without I/O.
//!
//! **Between volumes.** A volume that was not used for [`IDLE_AFTER`] has no share: its files go
//! first, oldest first. Volumes in use share what there is by max-min fairness (water filling): a
//! volume that needs less than an equal share keeps all it has, and what it leaves is shared by the
//! others. So yesterday's job never starves today's, and a lone job has the whole disk.
//!
//! **Within a volume.** Files that were not read again after their first minute are on probation
//! (the mode bit marks the others, see `crate::object::REUSED_BIT`). They go first, in the order
//! they came, as long as they hold more than a tenth of the volume's bytes; then the reused ones
//! go, least recently used first. So a scan through much data passes through its tenth and leaves
//! what is read again and again alone (S3-FIFO: Yang, Zhang, Qiu, Yue, Rashmi, 2023; here without
//! ghosts, because nothing is recorded that a restart would lose).
//!
//! Nothing is in a cache file that is not in the store. Write-back, when it comes, must keep what
//! the store does not have under other names: only names of cache files are ever listed, and so
//! removed (`crate::disk::scan`).

use kestrel_types::clock::{Nanos, SECOND};

/// A volume is in use for so long after its last fill or reuse.
pub const IDLE_AFTER: Nanos = 600 * SECOND;

/// Files on probation keep at least one in so many of a volume's bytes while others have to go.
const PROBATION_SHARE: u64 = 10;

/// A cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheFile {
    /// Number of its volume, from 0.
    pub volume: usize,
    /// Bytes of disk.
    pub bytes: u64,
    /// Last fill or reuse.
    pub touched: Nanos,
    /// Whether it was read again after its first minute.
    pub is_reused: bool,
}

/// Which files to remove so that `need` bytes are freed, in this order; all of them if they hold
/// less.
pub fn plan(files: &[CacheFile], need: u64, now: Nanos) -> Vec<usize> {
    let volumes = files.iter().map(|file| file.volume + 1).max().unwrap_or(0);
    let mut bytes = vec![0; volumes];
    let mut touched = vec![Nanos::MIN; volumes];
    for file in files {
        bytes[file.volume] += file.bytes;
        touched[file.volume] = touched[file.volume].max(file.touched);
    }
    let is_idle: Vec<bool> =
        touched.iter().map(|touched| now.saturating_sub(*touched) > IDLE_AFTER).collect();
    let mut plan = Vec::new();
    let mut left = need;

    let mut idle: Vec<usize> =
        (0..files.len()).filter(|index| is_idle[files[*index].volume]).collect();
    idle.sort_by_key(|index| (files[*index].touched, *index));
    for index in idle {
        if left == 0 {
            return plan;
        }
        left = left.saturating_sub(files[index].bytes);
        plan.push(index);
    }

    let active: Vec<usize> =
        (0..volumes).filter(|volume| !is_idle[*volume] && bytes[*volume] > 0).collect();
    let held: u64 = active.iter().map(|volume| bytes[*volume]).sum();
    let level = water_level(
        active.iter().map(|volume| bytes[*volume]).collect(),
        held.saturating_sub(left),
    );
    for volume in active {
        if left == 0 {
            break;
        }
        // The last one may pay less: those before it freed whole files.
        let over = bytes[volume].saturating_sub(level).min(left);
        let of_volume = (0..files.len()).filter(|index| files[*index].volume == volume).collect();
        let freed = plan_volume(files, of_volume, over, &mut plan);
        left = left.saturating_sub(freed);
    }
    plan
}

/// The level at which `Σ min(held, level)` is `capacity`, rounded down.
fn water_level(mut held: Vec<u64>, capacity: u64) -> u64 {
    held.sort_unstable();
    let mut left = capacity;
    for (index, bytes) in held.iter().enumerate() {
        let share = left / (held.len() - index) as u64;
        if *bytes > share {
            return share;
        }
        left -= bytes;
    }
    u64::MAX
}

/// Chooses among the files of one volume; bytes freed.
fn plan_volume(
    files: &[CacheFile],
    mut of_volume: Vec<usize>,
    need: u64,
    plan: &mut Vec<usize>,
) -> u64 {
    of_volume.sort_by_key(|index| (files[*index].touched, *index));
    let sum = |indexes: &[usize]| indexes.iter().map(|index| files[*index].bytes).sum::<u64>();
    let (reused, probation): (Vec<usize>, Vec<usize>) =
        of_volume.into_iter().partition(|index| files[*index].is_reused);
    let (mut reused_bytes, mut probation_bytes) = (sum(&reused), sum(&probation));
    let (mut reused, mut probation) =
        (reused.into_iter().peekable(), probation.into_iter().peekable());
    let mut freed = 0;
    while freed < need {
        let is_probation_large =
            probation_bytes > (probation_bytes + reused_bytes) / PROBATION_SHARE;
        let from_probation =
            probation.peek().is_some() && (is_probation_large || reused.peek().is_none());
        let (from, bytes) = if from_probation {
            (&mut probation, &mut probation_bytes)
        } else {
            (&mut reused, &mut reused_bytes)
        };
        let Some(index) = from.next() else { break };
        *bytes -= files[index].bytes;
        freed += files[index].bytes;
        plan.push(index);
    }
    freed
}

#[cfg(test)]
mod tests;
