//! Changes of the references that metadata holds on objects, gathered by an operation before it
//! books them.

use kestrel_types::extent::Released;
use kestrel_types::ids::ObjectId;

/// Changes of references, by object: bytes added less bytes released.
#[derive(Debug, Default)]
pub struct RefDeltas(Vec<(ObjectId, i64)>);

impl RefDeltas {
    /// Adds references.
    pub fn add(&mut self, object: ObjectId, bytes: u32) {
        self.change(object, i64::from(bytes));
    }

    /// Releases references.
    pub fn release(&mut self, released: Released) {
        self.change(released.range.object, -i64::from(released.bytes));
    }

    fn change(&mut self, object: ObjectId, bytes: i64) {
        // Neighbours usually refer to the same object; duplicates further away are merged before
        // use.
        match self.0.last_mut() {
            Some((last, sum)) if *last == object => *sum += bytes,
            _ => self.0.push((object, bytes)),
        }
    }

    /// Brings it into order: one item an object, none that is zero.
    pub fn merge(&mut self) {
        self.0.sort_unstable_by_key(|(object, _)| *object);
        self.0.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        self.0.retain(|(_, bytes)| *bytes != 0);
    }

    /// Keeps those of objects with this number or a higher one.
    pub fn keep_from(&mut self, first: ObjectId) {
        self.0.retain(|(object, _)| *object >= first);
    }

    /// Changes by object.
    pub fn items(&self) -> &[(ObjectId, i64)] {
        &self.0
    }
}
