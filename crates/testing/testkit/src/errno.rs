//! Names of errno values, for reports and for the list of allowances.

macro_rules! names {
    ($($name:ident)*) => {
        const NAMES: &[(i32, &str)] = &[$((libc::$name, stringify!($name))),*];
    };
}

names!(
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
    ELOOP ENODATA EOVERFLOW EOPNOTSUPP EPROTO ESTALE EDQUOT ENOTCONN ECONNABORTED ECONNRESET
    ETIMEDOUT ECANCELED EUCLEAN EREMOTEIO ECONNREFUSED ESHUTDOWN EILSEQ
);

/// `ENOENT` and the like; the number when it has no name here.
pub fn name(errno: i32) -> String {
    NAMES
        .iter()
        .find(|(n, _)| *n == errno)
        .map_or_else(|| format!("errno {errno}"), |(_, s)| (*s).to_string())
}

/// The number of a name.
pub fn number(name: &str) -> Option<i32> {
    NAMES.iter().find(|(_, s)| *s == name).map(|(n, _)| *n)
}
