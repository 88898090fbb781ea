//! Processors, as the kernel counts them for FUSE over io_uring, and whether the administrator
//! allows it.

use std::fs;
use std::io;

/// Processors that there may ever be, also those that are off: the kernel has a queue for each, and
/// uses none before all are served.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// The fuse module's switch, which belongs to the administrator.
const ENABLE: &str = "/sys/module/fuse/parameters/enable_uring";

/// No machine has more; the kernel's own limit is 8192.
const CPUS_MAX: usize = 8192;

/// Processors that a thread may run on.
#[derive(Clone, Copy)]
pub(super) struct CpuSet(libc::cpu_set_t);

impl CpuSet {
    /// Those of the calling thread; `None` on a machine with more than 1,024.
    pub(super) fn of_thread() -> Option<CpuSet> {
        // SAFETY: bits, for which zeros are valid.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most the bytes of `set`.
        let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        (rc == 0).then_some(CpuSet(set))
    }

    /// Those of `cpus` that are members; `None` when there are none.
    pub(super) fn only(&self, cpus: impl Iterator<Item = u16>) -> Option<CpuSet> {
        // SAFETY: bits, for which zeros are valid.
        let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for cpu in cpus.filter(|cpu| self.contains(*cpu)) {
            // SAFETY: `contains` is false beyond the sets' size.
            unsafe { libc::CPU_SET(usize::from(cpu), &mut only) };
        }
        // SAFETY: initialized above.
        (unsafe { libc::CPU_COUNT(&only) } > 0).then_some(CpuSet(only))
    }

    fn contains(&self, cpu: u16) -> bool {
        // SAFETY: looked at only below the set's size.
        i32::from(cpu) < libc::CPU_SETSIZE && unsafe { libc::CPU_ISSET(usize::from(cpu), &self.0) }
    }

    /// Lets the calling thread run on these only. Where that is refused (a processor went off, a
    /// container was narrowed) it runs where it did: slower, and right.
    pub(super) fn bind_thread(&self) {
        // SAFETY: the kernel reads the bytes of the set.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
    }
}

/// How many queues the kernel has.
pub(super) fn possible() -> io::Result<usize> {
    let text = fs::read_to_string(POSSIBLE).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read {POSSIBLE}: {error}"))
    })?;
    count(&text).ok_or_else(|| io::Error::other(format!("{POSSIBLE} says {:?}", text.trim())))
}

/// Members of a list like `0-3,8,10-11`.
fn count(list: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < CPUS_MAX);
    let mut members = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        members += last.checked_sub(first)? + 1;
    }
    (members <= CPUS_MAX).then_some(members)
}

/// Why the kernel does not offer the transport, and what would help.
pub(crate) fn why_not_offered() -> String {
    match fs::read_to_string(ENABLE) {
        Ok(value) if matches!(value.trim(), "N" | "0") => {
            format!("it is switched off; root may switch it on: echo Y > {ENABLE}")
        }
        Ok(_) => "the kernel does not offer it for this mount".into(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            "this kernel cannot: it needs Linux 6.14 with CONFIG_FUSE_IO_URING".into()
        }
        Err(error) => format!("the kernel does not offer it, and {ENABLE} cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CpuSet {
        fn members(&self) -> Vec<u16> {
            (0..1024).filter(|cpu| self.contains(*cpu)).collect()
        }
    }

    #[test]
    fn threads_bound_and_set_free() {
        let all = CpuSet::of_thread().unwrap();
        let everywhere = all.members();
        let last = *everywhere.last().unwrap();
        let one = all.only([last, 5000].into_iter()).unwrap();
        one.bind_thread();
        let bound = CpuSet::of_thread().unwrap().members();
        all.bind_thread();
        let free = CpuSet::of_thread().unwrap().members();
        assert_eq!((bound, free), (vec![last], everywhere));
        assert!(one.only((0..1024).filter(|cpu| *cpu != last)).is_none());
    }

    #[test]
    fn lists_of_processors() {
        for (list, members) in [("0", 1), ("0-1\n", 2), ("0-3,8,10-11", 7), ("0-8191", 8192)] {
            assert_eq!(count(list), Some(members), "{list}");
        }
        for wrong in ["", "a", "3-1", "0-8192", "0-", "-1", "0-8191,0", "99999999999999999999"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        assert!(possible().unwrap() >= 1);
    }
}
