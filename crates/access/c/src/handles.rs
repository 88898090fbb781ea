//! Numbers for what is open. A number that is not open any more is found out, as it is never used
//! twice: it is a place in the table, and how often that place was used.

use std::any::Any;
use std::sync::Arc;

use kestrel_client::native::NativeVolume;
use parking_lot::RwLock;

use crate::boundary::{CallError, CallResult};

/// Something that has handles.
pub trait Handled: Any + Send + Sync {
    /// Its kind, for people.
    fn kind() -> &'static str
    where
        Self: Sized;

    /// The volume that it is open in, by a number that no two volumes have at a time.
    fn volume(&self) -> Option<usize>;

    /// Ends its use, as its volume is closed: nothing uses it any more.
    ///
    /// # Errors
    /// Those of storing what was written.
    fn end(&self, volume: &NativeVolume) -> CallResult<()>;
}

/// What a handle is of.
pub type Object = Arc<dyn Handled>;

/// A place of the table.
struct Slot {
    /// How often it was used: the upper half of its handle.
    used: u32,
    object: Option<Object>,
}

struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { slots: Vec::new(), free: Vec::new() });

/// Most uses of a place: a handle is positive.
const USED_MAX: u32 = i32::MAX as u32;

fn handle_of(slot: u32, used: u32) -> i64 {
    (i64::from(used) << 32) | i64::from(slot)
}

impl Table {
    fn slot(&self, handle: i64) -> Option<&Slot> {
        let at = (handle & i64::from(u32::MAX)) as usize;
        self.slots.get(at).filter(|slot| handle > 0 && i64::from(slot.used) == handle >> 32)
    }
}

/// Opens a handle.
///
/// # Errors
/// `EMFILE` if there are four billion.
pub fn add<T: Handled>(object: Arc<T>) -> CallResult<i64> {
    let mut table = TABLE.write();
    let slot = match table.free.pop() {
        Some(slot) => slot,
        None => {
            let slot = u32::try_from(table.slots.len())
                .map_err(|_| CallError::new(libc::EMFILE, "too many handles are open"))?;
            table.slots.push(Slot { used: 0, object: None });
            slot
        }
    };
    let place = &mut table.slots[slot as usize];
    place.used += 1;
    place.object = Some(object);
    Ok(handle_of(slot, place.used))
}

fn not_open<T: Handled>(handle: i64, found: Option<&Object>) -> CallError {
    let why = match found {
        Some(_) => "it is the handle of something else",
        None => "it is not open: it was closed, or is no handle",
    };
    CallError::new(libc::EBADF, why).about(format!("{} {handle}", T::kind()))
}

/// What a handle is of.
///
/// # Errors
/// `EBADF` if it is not open, or open as something else.
pub fn get<T: Handled>(handle: i64) -> CallResult<Arc<T>> {
    let table = TABLE.read();
    let found = table.slot(handle).and_then(|slot| slot.object.as_ref());
    let any = |object: Object| -> Arc<dyn Any + Send + Sync> { object };
    let of_kind = found.cloned().and_then(|object| any(object).downcast().ok());
    of_kind.ok_or_else(|| not_open::<T>(handle, found))
}

/// Closes a handle: only one of several threads that do so gets what it was of.
///
/// # Errors
/// As for [`get`].
pub fn take<T: Handled>(handle: i64) -> CallResult<Arc<T>> {
    let found = get::<T>(handle)?;
    let mut table = TABLE.write();
    let is_open = table.slot(handle).is_some_and(|slot| slot.object.is_some());
    if !is_open {
        return Err(not_open::<T>(handle, None));
    }
    close(&mut table, handle);
    Ok(found)
}

fn close(table: &mut Table, handle: i64) -> Option<Object> {
    let at = (handle & i64::from(u32::MAX)) as u32;
    let slot = &mut table.slots[at as usize];
    let object = slot.object.take();
    if slot.used < USED_MAX {
        table.free.push(at);
    }
    object
}

/// Closes the handles of what is open in a volume, and tells what they were of.
pub fn take_all_in(volume: usize) -> Vec<Object> {
    let mut table = TABLE.write();
    let wanted = |(at, slot): (usize, &Slot)| {
        let object = slot.object.as_ref()?;
        (object.volume() == Some(volume)).then(|| handle_of(at as u32, slot.used))
    };
    let handles: Vec<i64> = table.slots.iter().enumerate().filter_map(wanted).collect();
    handles.into_iter().filter_map(|handle| close(&mut table, handle)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tested;

    impl Handled for Tested {
        fn kind() -> &'static str {
            "test"
        }
        fn volume(&self) -> Option<usize> {
            Some(7)
        }
        fn end(&self, _: &NativeVolume) -> CallResult<()> {
            Ok(())
        }
    }

    struct Other;

    impl Handled for Other {
        fn kind() -> &'static str {
            "other"
        }
        fn volume(&self) -> Option<usize> {
            None
        }
        fn end(&self, _: &NativeVolume) -> CallResult<()> {
            Ok(())
        }
    }

    /// A handle that was closed stays so when its place is used again; only one of two closes
    /// succeeds, and a handle of another kind is none.
    #[test]
    fn handles_that_are_not_open() {
        let first = add(Arc::new(Tested)).unwrap();
        assert!(first > 0 && get::<Tested>(first).is_ok());
        let wrong = get::<Other>(first).err().unwrap();
        assert_eq!((wrong.errno, &*wrong.why), (libc::EBADF, "it is the handle of something else"));
        assert!(take::<Tested>(first).is_ok() && take::<Tested>(first).is_err());
        let second = add(Arc::new(Tested)).unwrap();
        assert!(second != first && get::<Tested>(first).is_err() && take::<Tested>(second).is_ok());
        for none in [0, -1, i64::MIN, i64::MAX, 1] {
            assert_eq!(get::<Tested>(none).err().unwrap().errno, libc::EBADF);
        }
        let third = add(Arc::new(Tested)).unwrap();
        assert!(take_all_in(7).len() == 1 && get::<Tested>(third).is_err());
    }
}
