//! Many files with one burst of requests. What comes back is memory of the library's, until the
//! program gives it back.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use kestrel_client::native::{Buffer, DirEntry, NativeCalls};
use kestrel_types::error::FsResult;
use kestrel_types::inode::Inode;

use crate::arguments::{check_flags, paths};
use crate::boundary::{CallError, CallResult, guarded, guarded_free, tell};
use crate::handles;
use crate::names::NOFOLLOW;
use crate::structs::{kestrel_attributes, kestrel_content, kestrel_listing, kestrel_name};
use crate::volume::OpenVolume;

/// Where the answers of a batch go.
///
/// # Safety
/// Not NULL, it points to as many `T`, which are the call's alone.
unsafe fn answers<'a, T>(given: *mut T, count: usize) -> CallResult<&'a mut [MaybeUninit<T>]> {
    match (given.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CallError::new(libc::EFAULT, "the place of the answers is NULL")),
        // SAFETY: says the caller.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts_mut(given.cast(), count) }),
    }
}

/// Runs a batch: how many of it failed. The text of the first one is this thread's.
///
/// # Safety
/// `given` and `out` are as for [`paths`] and [`answers`].
unsafe fn batch<T, C>(
    (name, volume): (&'static str, i64),
    (given, count): (*const *const c_char, usize),
    out: *mut C,
    call: impl FnOnce(NativeCalls<'_>, &[&[u8]]) -> Vec<FsResult<T>>,
    mut show: impl FnMut(FsResult<T>) -> C,
) -> CallResult<i64> {
    // SAFETY: as of this function.
    let (paths, out) = unsafe { (paths(given, count)?, answers(out, count)?) };
    let volume = handles::get::<OpenVolume>(volume)?;
    let results = volume.run(|calls| CallResult::Ok(call(calls, &paths)))?;
    let mut failed = 0;
    for ((place, result), path) in out.iter_mut().zip(results).zip(paths) {
        if let Err(why) = &result {
            if failed == 0 {
                tell(name, &CallError::from(why.clone()).about(path));
            }
            failed += 1;
        }
        place.write(show(result));
    }
    Ok(failed)
}

/// The owner of bytes that a program sees.
fn content_of(result: FsResult<Buffer>) -> kestrel_content {
    let none = kestrel_content {
        data: std::ptr::null(),
        len: 0,
        error: 0,
        reserved0: 0,
        owner: std::ptr::null_mut(),
    };
    match result {
        Ok(bytes) => {
            let bytes = Box::new(bytes);
            let (data, len) = (bytes.as_ptr().cast(), bytes.len() as u64);
            let owner = Box::into_raw(bytes).cast();
            kestrel_content { data, len, owner, ..none }
        }
        Err(error) => kestrel_content { error: -error.errno, ..none },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_read_many(
    volume: i64,
    given: *const *const c_char,
    count: usize,
    out: *mut kestrel_content,
) -> i64 {
    guarded("kestrel_read_many", || {
        let call = |calls: NativeCalls<'_>, paths: &[&[u8]]| calls.read_many(paths);
        let name = ("kestrel_read_many", volume);
        // SAFETY: kestrel.h says what the pointers are.
        unsafe { batch(name, (given, count), out, call, content_of) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_contents_free(given: *mut kestrel_content, count: usize) {
    // SAFETY: kestrel.h says that they are those of kestrel_read_many, which has made the owners.
    unsafe {
        free_each::<_, Buffer>(given, count, |content| {
            (content.data, content.len) = (std::ptr::null(), 0);
            &mut content.owner
        });
    }
}

/// Gives back what `count` answers of a batch own. One that was given back owns nothing any more.
///
/// # Safety
/// `given` is null or points to so many answers, and what `empty` finds in one, if it is not null,
/// is a boxed `Owner`.
unsafe fn free_each<Answer, Owner>(
    given: *mut Answer,
    count: usize,
    empty: impl Fn(&mut Answer) -> &mut *mut c_void,
) {
    guarded_free(|| {
        if given.is_null() {
            return;
        }
        for at in 0..count {
            // SAFETY: as the caller says.
            unsafe {
                let owner = std::mem::replace(empty(&mut *given.add(at)), std::ptr::null_mut());
                if !owner.is_null() {
                    drop(Box::from_raw(owner.cast::<Owner>()));
                }
            }
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_stat_many(
    volume: i64,
    given: *const *const c_char,
    count: usize,
    flags: c_int,
    out: *mut kestrel_attributes,
    errors: *mut c_int,
) -> i64 {
    guarded("kestrel_stat_many", || {
        check_flags(flags, NOFOLLOW)?;
        let call =
            |calls: NativeCalls<'_>, paths: &[&[u8]]| calls.stat_many(paths, flags & NOFOLLOW == 0);
        // SAFETY: kestrel.h says what the pointers are.
        let mut errors = unsafe { answers(errors, count) }?.iter_mut();
        let show = |result: FsResult<Inode>| {
            if let Some(place) = errors.next() {
                place.write(result.as_ref().err().map_or(0, |why| -why.errno));
            }
            result.as_ref().map_or_else(|_| Default::default(), kestrel_attributes::of)
        };
        let name = ("kestrel_stat_many", volume);
        // SAFETY: as above.
        unsafe { batch(name, (given, count), out, call, show) }
    })
}

/// The names of a directory that a program sees, with their bytes.
struct NameList {
    names: Vec<kestrel_name>,
    /// What the names point to.
    _bytes: Vec<u8>,
}

fn listing_of(result: FsResult<Vec<DirEntry>>) -> kestrel_listing {
    let none = kestrel_listing {
        names: std::ptr::null(),
        count: 0,
        error: 0,
        reserved0: 0,
        owner: std::ptr::null_mut(),
    };
    let entries = match result {
        Ok(entries) => entries,
        Err(error) => return kestrel_listing { error: -error.errno, ..none },
    };
    let mut bytes = Vec::new();
    for entry in &entries {
        bytes.extend_from_slice(entry.name.as_bytes());
        bytes.push(0);
    }
    let mut start = bytes.as_ptr();
    let mut names = Vec::with_capacity(entries.len());
    for entry in &entries {
        let len = entry.name.as_bytes().len();
        names.push(kestrel_name {
            name: start.cast(),
            ino: entry.ino,
            name_len: len as u32,
            r#type: entry.kind.dirent_type().into(),
        });
        // Behind the name's NUL; behind the last one nothing is read.
        start = start.wrapping_add(len + 1);
    }
    let list = Box::new(NameList { names, _bytes: bytes });
    let (names, count) = (list.names.as_ptr(), list.names.len() as u64);
    kestrel_listing { names, count, owner: Box::into_raw(list).cast::<c_void>(), ..none }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_list_many(
    volume: i64,
    given: *const *const c_char,
    count: usize,
    out: *mut kestrel_listing,
) -> i64 {
    guarded("kestrel_list_many", || {
        let call = |calls: NativeCalls<'_>, paths: &[&[u8]]| calls.list_many(paths);
        let name = ("kestrel_list_many", volume);
        // SAFETY: kestrel.h says what the pointers are.
        unsafe { batch(name, (given, count), out, call, listing_of) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_listings_free(given: *mut kestrel_listing, count: usize) {
    // SAFETY: kestrel.h says that they are those of kestrel_list_many, which has made the owners.
    unsafe {
        free_each::<_, NameList>(given, count, |listing| {
            (listing.names, listing.count) = (std::ptr::null(), 0);
            &mut listing.owner
        });
    }
}
