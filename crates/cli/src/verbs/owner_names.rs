//! Names of users and groups on this machine.

use std::ptr;

/// A user's name on this machine, or the number.
pub fn user_name(uid: u64) -> String {
    name_of(uid, |uid, name, size| {
        let mut found = ptr::null_mut();
        // SAFETY: all zeros are a record that says nothing.
        let mut record: libc::passwd = unsafe { std::mem::zeroed() };
        // SAFETY: the record and the buffer of `size` bytes outlive the call and what is read.
        let failed = unsafe { libc::getpwuid_r(uid, &mut record, name, size, &mut found) };
        (failed == 0 && !found.is_null()).then_some(record.pw_name.cast_const())
    })
}

/// A group's name on this machine, or the number.
pub fn group_name(gid: u64) -> String {
    name_of(gid, |gid, name, size| {
        let mut found = ptr::null_mut();
        // SAFETY: all zeros are a record that says nothing.
        let mut record: libc::group = unsafe { std::mem::zeroed() };
        // SAFETY: the record and the buffer of `size` bytes outlive the call and what is read.
        let failed = unsafe { libc::getgrgid_r(gid, &mut record, name, size, &mut found) };
        (failed == 0 && !found.is_null()).then_some(record.gr_name.cast_const())
    })
}

fn name_of(
    id: u64,
    look: impl FnOnce(u32, *mut libc::c_char, usize) -> Option<*const libc::c_char>,
) -> String {
    let mut buffer = vec![0 as libc::c_char; 16 << 10];
    let (space, size) = (buffer.as_mut_ptr(), buffer.len());
    let found = u32::try_from(id).ok().and_then(|id| look(id, space, size));
    let Some(name) = found.filter(|name| !name.is_null()) else { return id.to_string() };
    // SAFETY: it points to a string that ends in NUL, in the buffer.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of users and groups, and numbers of those that have none.
    #[test]
    fn names_of_owners() {
        assert_eq!((user_name(0), group_name(0)), ("root".into(), "root".into()));
        assert_eq!(user_name(4_000_000_123), "4000000123");
    }
}
