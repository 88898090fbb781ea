//! What threads were told last, to be held against what they ask next.
//!
//! For `rmdir` and for a `rename` onto a directory the kernel looks the name up, and when it hears
//! that the name is gone it takes the directory it was told of for dead: every name in it is
//! `ENOENT` from then on. If another client has given the name to another directory in the
//! meantime, that would be the wrong one. So the operation says which directory the thread was told
//! of, and the metadata refuses to remove another (`ESTALE`): the kernel looks again.
//!
//! A thread that is not in here any more, or never was, asks for whatever is there, as without this
//! table.

use kestrel_types::ids::InodeId;
use kestrel_types::name::Name;
use parking_lot::Mutex;

/// Threads with known last lookups, at most.
const SLOTS: usize = 256;

struct Lookup {
    thread: u32,
    dir: u64,
    name: Name,
    found: InodeId,
}

/// The directories that threads looked up last.
pub struct LastLookups {
    slots: Box<[Mutex<Option<Lookup>>]>,
}

impl Default for LastLookups {
    fn default() -> Self {
        Self { slots: std::iter::repeat_with(Mutex::default).take(SLOTS).collect() }
    }
}

impl LastLookups {
    fn slot(&self, thread: u32) -> &Mutex<Option<Lookup>> {
        &self.slots[thread as usize % SLOTS]
    }

    /// A thread is about to be told that a directory is at this name. Threads of other PID
    /// namespaces are all number 0.
    pub fn note(&self, thread: u32, dir: u64, name: &Name, found: InodeId) {
        if thread != 0 {
            *self.slot(thread).lock() = Some(Lookup { thread, dir, name: name.clone(), found });
        }
    }

    /// What the thread was told last, if that was about this name.
    pub fn take(&self, thread: u32, dir: u64, name: &Name) -> Option<InodeId> {
        let lookup = self.slot(thread).lock().take()?;
        ((lookup.thread, lookup.dir) == (thread, dir) && lookup.name == *name)
            .then_some(lookup.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_answer_to_a_thread_counts() {
        let told = LastLookups::default();
        let [a, b] = [b"a", b"b"].map(|name| Name::new(name).expect("a name"));
        let other = 7 + SLOTS as u32;
        told.note(7, 1, &a, 70);
        told.note(7, 1, &b, 71);
        assert_eq!(
            told.take(7, 1, &a),
            None,
            "the target of a rename was looked up after its source, and was no directory"
        );
        told.note(7, 1, &a, 70);
        assert_eq!((told.take(7, 1, &a), told.take(7, 1, &a)), (Some(70), None));
        told.note(7, 1, &a, 70);
        assert_eq!(told.take(7, 2, &a), None);
        told.note(7, 1, &a, 70);
        told.note(other, 1, &a, 72);
        assert_eq!(
            (told.take(7, 1, &a), told.take(other, 1, &a)),
            (None, None),
            "one made the other forgotten"
        );
        told.note(0, 1, &a, 70);
        assert_eq!(told.take(0, 1, &a), None);
    }
}
