//! Bringing to the volume what programs stored through writable shared maps of a live copy.
//!
//! Such stores reach the copy only, and no event tells of them; so the copy is compared with the
//! volume, chunk by chunk: by checksum where the volume's is known, else by its bytes. What differs
//! is written to the volume like any write. Nothing else makes them differ while the turn is held
//! and no change is pending.
//!
//! A page of the copy that is read while somebody stores to it is of some moment in between, as
//! with msync on a local file system.

use std::ops::Range;
use std::sync::Arc;

use kestrel_client::fs::{CHUNK_BYTES, chunk_sum, wait};
use kestrel_types::error::FsResult;

use super::Passthrough;
use super::open_inode::{Live, OpenInode, failed};

/// What is compared, and so written, at a time, bytes: the unit of maps.
const PAGE_BYTES: usize = 4096;

impl Passthrough {
    /// Brings stores to the volume. Waits.
    ///
    /// # Errors
    /// Those of reading and writing; what was not brought is found again the next time.
    pub(super) fn collect(
        self: &Arc<Self>,
        node: &Arc<OpenInode>,
        live: &Arc<Live>,
    ) -> FsResult<()> {
        let Some(writer) = live.writer.get() else { return Ok(()) };
        let _turn = node.turn.lock();
        let len = live.len().map_err(|error| failed("looking at", &error))?;
        for chunk in 0..len.div_ceil(CHUNK_BYTES) {
            let at = chunk * CHUNK_BYTES;
            let bytes =
                live.read(at, CHUNK_BYTES as usize).map_err(|error| failed("reading", &error))?;
            let sum = chunk_sum(&bytes);
            if live.sum(chunk) == Some(sum) {
                continue;
            }
            let stored = wait(|done| self.fs.read(writer, at, bytes.len(), done))?;
            for part in differences(&bytes, &stored) {
                self.fs.write(writer, at + part.start as u64, &bytes[part], false)?;
            }
            live.set_sum(chunk, sum);
        }
        Ok(())
    }
}

/// Where `new` differs from `old`, in runs of whole pages; only as far as both reach.
fn differences(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let len = new.len().min(old.len());
    let mut found: Vec<Range<usize>> = Vec::new();
    for from in (0..len).step_by(PAGE_BYTES) {
        let to = (from + PAGE_BYTES).min(len);
        if new[from..to] == old[from..to] {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.end == from => last.end = to,
            _ => found.push(from..to),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_whole_pages_in_runs() {
        let old = vec![0; 5 * PAGE_BYTES + 100];
        let mut new = old.clone();
        assert!(differences(&new, &old).is_empty());
        new[PAGE_BYTES] = 1;
        new[3 * PAGE_BYTES - 1] = 1;
        new[5 * PAGE_BYTES + 99] = 1;
        assert_eq!(
            differences(&new, &old),
            [PAGE_BYTES..3 * PAGE_BYTES, 5 * PAGE_BYTES..5 * PAGE_BYTES + 100]
        );
        let cut = differences(&new, &old[..PAGE_BYTES + 1]);
        assert_eq!((cut.len(), cut[0].clone()), (1, PAGE_BYTES..PAGE_BYTES + 1));
        assert!(differences(&new, &[]).is_empty());
    }
}
