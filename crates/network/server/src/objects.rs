//! Object numbers that clients were given and may still come to refer to.
//!
//! A client stores bytes under a number first and refers to them later; in between no row of the
//! node refers to them. So an object is in use while its number was given to a living session and
//! is not below the number up to which that client is done.

use std::collections::BTreeMap;

use kestrel_types::ids::ObjectId;

use crate::config::OBJECT_RANGES_MAX;

/// A stretch of numbers of one session.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// First number after it.
    end: ObjectId,
    holder: u64,
}

/// What one session has.
#[derive(Debug, Default)]
struct Holder {
    /// Numbers below are done with.
    floor: ObjectId,
    /// First numbers of its stretches.
    starts: BTreeMap<ObjectId, ()>,
}

/// Numbers by session. Invariant: stretches do not overlap, none is empty, and each is in both
/// maps.
#[derive(Debug, Default)]
pub struct Objects {
    stretches: BTreeMap<ObjectId, Stretch>,
    holders: BTreeMap<u64, Holder>,
}

impl Objects {
    /// Whether a session may take another stretch.
    pub fn has_room(&self, holder: u64) -> bool {
        self.holders.get(&holder).is_none_or(|held| held.starts.len() < OBJECT_RANGES_MAX)
    }

    /// A session was given `count` numbers from `first` on. A claim of numbers of another session
    /// is ignored.
    pub fn give(&mut self, holder: u64, first: ObjectId, count: u32) {
        let Some(end) = first.checked_add(u64::from(count)).filter(|end| *end > first) else {
            return;
        };
        let below = self.stretches.range(..end).next_back();
        if below.is_some_and(|(_, stretch)| stretch.end > first) || !self.has_room(holder) {
            return;
        }
        let held = self.holders.entry(holder).or_default();
        // Numbers are handed out in order, so a client that is alone has one stretch.
        if let Some((start, stretch)) = self.stretches.range_mut(..first).next_back()
            && stretch.end == first
            && stretch.holder == holder
            && held.starts.contains_key(start)
        {
            stretch.end = end;
            return;
        }
        held.starts.insert(first, ());
        self.stretches.insert(first, Stretch { end, holder });
    }

    /// A session is done with all numbers below `floor`.
    pub fn raise(&mut self, holder: u64, floor: ObjectId) {
        let Some(held) = self.holders.get_mut(&holder) else {
            return;
        };
        if floor <= held.floor {
            return;
        }
        held.floor = floor;
        while let Some((start, ())) = held.starts.first_key_value() {
            match self.stretches.get(start) {
                Some(stretch) if stretch.end > floor => break,
                _ => {
                    self.stretches.remove(start);
                    held.starts.pop_first();
                }
            }
        }
    }

    /// A session has ended.
    pub fn end(&mut self, holder: u64) {
        if let Some(held) = self.holders.remove(&holder) {
            for start in held.starts.keys() {
                self.stretches.remove(start);
            }
        }
    }

    /// Whether a client may still come to refer to the object.
    pub fn in_use(&self, object: ObjectId) -> bool {
        let Some((_, stretch)) = self.stretches.range(..=object).next_back() else { return false };
        object < stretch.end
            && self.holders.get(&stretch.holder).is_some_and(|held| object >= held.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Object numbers are in use until their client has finished with them or is gone.
    #[test]
    fn object_numbers_in_use() {
        let mut objects = Objects::default();
        objects.give(1, 10, 5);
        objects.give(1, 15, 5);
        objects.give(2, 20, 5);
        objects.give(1, 25, 5);
        assert_eq!(objects.stretches.len(), 3);
        let used = |objects: &Objects| {
            (0..40).filter(|object| objects.in_use(*object)).collect::<Vec<_>>()
        };
        assert_eq!(used(&objects), (10..30).collect::<Vec<_>>());
        objects.raise(1, 17);
        assert_eq!(used(&objects), (17..30).collect::<Vec<_>>());
        objects.raise(1, 12);
        assert_eq!(used(&objects), (17..30).collect::<Vec<_>>());
        objects.raise(1, 22);
        assert_eq!((used(&objects), objects.stretches.len()), ((20..30).collect::<Vec<_>>(), 2));
        objects.end(2);
        assert_eq!(used(&objects), (25..30).collect::<Vec<_>>());
        objects.raise(1, u64::MAX);
        assert!(objects.stretches.is_empty());
    }

    #[test]
    fn a_claim_cannot_take_numbers_of_another_session() {
        let mut objects = Objects::default();
        objects.give(1, 10, 10);
        objects.give(2, 15, 10);
        objects.give(2, 5, 100);
        objects.give(2, u64::MAX, 1);
        objects.give(2, 0, 0);
        objects.end(1);
        assert!((0..200).all(|object| !objects.in_use(object)));
    }
}
