//! Limits of the process that serves a mount.

/// Raises the soft limit on open descriptors to the hard one: the block store keeps some hundred
/// objects open, and unsynced ones beside them (at most about 1,100 in all).
pub fn raise_descriptor_limit() {
    // SAFETY: rlimit is plain data for which zeros are valid.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0
        || limit.rlim_cur >= limit.rlim_max
    {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above. If it is refused, the store closes idle objects earlier.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        log::debug!("the limit on open descriptors stays: {}", std::io::Error::last_os_error());
    }
}
