//! Processor time: of the whole machine, so that servers, kernel threads and interrupts are counted
//! wherever the work is done, and of this process and its children.

use std::fs;

/// Processor time used since some moment in the past, microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu {
    /// User, nice, system, interrupt and soft-interrupt time of all processors (`/proc/stat`); in
    /// steps of 10 ms.
    pub machine_us: u64,
    /// User and system time of this process and its ended children.
    pub process_us: u64,
}

impl Cpu {
    /// The time used so far.
    pub fn now() -> Self {
        Self { machine_us: machine_us(), process_us: rusage_us(libc::RUSAGE_SELF) }
    }

    /// The time used since `start`.
    pub fn since(start: &Cpu) -> Self {
        let now = Self::now();
        Self {
            machine_us: now.machine_us.saturating_sub(start.machine_us),
            process_us: now.process_us.saturating_sub(start.process_us),
        }
    }
}

fn machine_us() -> u64 {
    // SAFETY: sysconf takes no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick_us = 1_000_000 / u64::try_from(ticks).unwrap_or(100).max(1);
    fs::read_to_string("/proc/stat").map_or(0, |text| busy_ticks(&text)) * tick_us
}

/// Ticks that the first line of `/proc/stat` counts as work: user, nice, system, irq, softirq; not
/// idle, iowait, steal, and not guest (which user already contains).
fn busy_ticks(stat: &str) -> u64 {
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> =
        line.split_ascii_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect();
    [0, 1, 2, 5, 6].iter().filter_map(|index| fields.get(*index)).sum()
}

/// User and system time as getrusage(2) has it for this process, its children that have ended, or
/// this thread; microseconds.
pub fn rusage_us(who: i32) -> u64 {
    // SAFETY: all zeros is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes and outlives the call.
    if unsafe { libc::getrusage(who, &mut usage) } != 0 {
        return 0;
    }
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_counts() {
        assert_eq!(
            busy_ticks("cpu  1 20 300 4000 50000 600000 7000000 8 9 10\ncpu0 1 1 1\n"),
            7_600_321
        );
        assert_eq!(busy_ticks(""), 0);
        let before = Cpu::now();
        let mut sum = 0u64;
        for i in 0..50_000_000u64 {
            sum = sum.wrapping_add(std::hint::black_box(i));
        }
        std::hint::black_box(sum);
        let used = Cpu::since(&before);
        assert!(used.process_us > 0);
    }
}
