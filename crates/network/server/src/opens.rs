//! The files that a client has open, counted as the node counts them.

use kestrel_types::ids::InodeId;
use rustc_hash::FxHashMap;

/// How a client has one file open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Opens not yet given back.
    pub count: u32,
    /// One of them was for writing. (A release does not name one of several, so this lasts until
    /// all are given back.)
    pub write: bool,
}

/// Files by number. Invariants: no count is zero; `total` is the sum of all.
#[derive(Debug, Default)]
pub struct Opens {
    files: FxHashMap<InodeId, Held>,
    total: usize,
}

impl Opens {
    /// How the client has `ino` open.
    pub fn get(&self, ino: InodeId) -> Held {
        self.files.get(&ino).copied().unwrap_or_default()
    }

    /// Opens, several of one file included.
    pub fn total(&self) -> usize {
        self.total
    }

    /// `count` opens more.
    pub fn add(&mut self, ino: InodeId, count: u32, write: bool) {
        if count > 0 {
            let held = self.files.entry(ino).or_default();
            let more = count.min(u32::MAX - held.count);
            held.count += more;
            held.write |= write;
            self.total += more as usize;
        }
    }

    /// Gives back `count` opens, or as many as there are; how many, and how the file was open
    /// before.
    pub fn take(&mut self, ino: InodeId, count: u32) -> (u32, Held) {
        let Some(held) = self.files.get_mut(&ino) else { return (0, Held::default()) };
        let before = *held;
        let taken = count.min(before.count);
        held.count -= taken;
        self.total -= taken as usize;
        if held.count == 0 {
            self.files.remove(&ino);
        }
        (taken, before)
    }

    /// Everything that is open, in order of the numbers.
    pub fn all(&self) -> Vec<(InodeId, Held)> {
        let mut all: Vec<_> = self.files.iter().map(|(ino, held)| (*ino, *held)).collect();
        all.sort_unstable_by_key(|(ino, _)| *ino);
        all
    }

    /// Gives back everything: each file as often as it was open.
    pub fn take_all(&mut self) -> Vec<(InodeId, u32)> {
        let all = self.all();
        *self = Self::default();
        all.into_iter().map(|(ino, held)| (ino, held.count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_client_alone() {
        let mut opens = Opens::default();
        opens.add(16, 1, true);
        opens.add(16, 2, false);
        assert_eq!(opens.take(16, 1), (1, Held { count: 3, write: true }));
        assert_eq!(opens.get(16), Held { count: 2, write: true });
        assert_eq!(opens.take(16, 5), (2, Held { count: 2, write: true }));
        assert_eq!((opens.get(16), opens.total()), (Held::default(), 0));
        assert_eq!(opens.take(16, 1), (0, Held::default()));
        opens.add(18, 1, false);
        opens.add(17, 2, false);
        assert_eq!(opens.total(), 3);
        assert_eq!(opens.take_all(), [(17, 2), (18, 1)]);
        assert_eq!(opens.total(), 0);
    }
}
