//! How much memory this process may use, and its division among the budgets.
//!
//! The limit is the smallest of the machine's memory and of what the process's control group and
//! every group above it allow: `memory.max` and `memory.high` of cgroup v2, `memory.limit_in_bytes`
//! of v1. [`MemoryPlan::new`] divides it: pure arithmetic. With enough memory every budget has its
//! default. With less each keeps a smallest size, and all of them share the rest in proportion to
//! their defaults, so that together they stay below three quarters of the limit.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// Least memory that a mount or a server is started with, bytes.
pub const LIMIT_MIN: u64 = 64 * MIB;

/// What a process takes beside its budgets, bytes: code, threads, tables of what is open.
const BASE_BYTES: u64 = 20 * MIB;

/// Most of a limit that stays free, bytes; of a small one it is a quarter.
const SPARE_MAX: u64 = 1 << 30;

/// A limit of a version 1 group above this means that there is none.
const UNLIMITED_V1: u64 = 1 << 60;

/// Where a limit comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitedBy {
    /// The machine has no more memory.
    Machine,
    /// This file of a control group.
    Group(PathBuf),
}

/// How much memory a process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// What says so.
    pub by: LimitedBy,
}

impl MemoryLimit {
    /// The limit of this process. What cannot be read does not limit.
    pub fn of_process() -> Self {
        Self::read(Path::new("/"))
    }

    /// The same with the files of `/proc` and of the control groups below another directory.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let machine = machine_bytes(&text("proc/meminfo")).unwrap_or(u64::MAX);
        let mut least = Self { bytes: machine, by: LimitedBy::Machine };
        for (group, files) in groups(&text("proc/self/cgroup"), &text("proc/self/mountinfo")) {
            for dir in group.ancestors() {
                for file in files {
                    let path = dir.join(file);
                    let said =
                        fs::read_to_string(root.join(path.strip_prefix("/").unwrap_or(&path)));
                    let bytes = said.ok().and_then(|text| text.trim().parse().ok());
                    if let Some(bytes) =
                        bytes.filter(|bytes| *bytes < least.bytes.min(UNLIMITED_V1))
                    {
                        least = Self { bytes, by: LimitedBy::Group(path) };
                    }
                }
                if dir == group.mount_point {
                    break;
                }
            }
        }
        least
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.bytes / MIB;
        match &self.by {
            LimitedBy::Machine => write!(f, "the machine has {mib} MiB of memory"),
            LimitedBy::Group(file) => write!(f, "{} allows {mib} MiB of memory", file.display()),
        }
    }
}

/// `MemTotal` of `/proc/meminfo`, bytes.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The directory of a control group.
struct Group {
    dir: PathBuf,
    /// Groups above this are not to be seen.
    mount_point: PathBuf,
}

impl Group {
    fn ancestors(&self) -> impl Iterator<Item = &Path> {
        self.dir.ancestors()
    }
}

/// The groups that limit this process's memory, and the files of each that may say so.
fn groups(cgroup: &str, mountinfo: &str) -> Vec<(Group, &'static [&'static str])> {
    let mut found: Vec<(Group, &'static [&'static str])> = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (kind, files): (_, &[&str]) = match controllers {
            "" => ("cgroup2", &["memory.max", "memory.high"]),
            some if some.split(',').any(|one| one == "memory") => {
                ("cgroup", &["memory.limit_in_bytes"])
            }
            _ => continue,
        };
        let mount = mountinfo.lines().find_map(|line| Hierarchy::parse(line, kind));
        if let Some(hierarchy) = mount {
            found.push((hierarchy.group(Path::new(path)), files));
        }
    }
    found
}

/// A mounted hierarchy of control groups.
struct Hierarchy {
    /// The group that is mounted.
    root: PathBuf,
    mount_point: PathBuf,
}

impl Hierarchy {
    /// Reads a line of `/proc/self/mountinfo`, if it is about a hierarchy of this kind that has to
    /// do with memory.
    fn parse(line: &str, kind: &str) -> Option<Self> {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let (fstype, options) = (what.next()?, what.nth(1)?);
        if fstype != kind
            || (kind == "cgroup" && !options.split(',').any(|option| option == "memory"))
        {
            return None;
        }
        let mut place = place.split(' ').skip(3).map(unescaped);
        Some(Self { root: place.next()?, mount_point: place.next()? })
    }

    /// The directory of a group. Of one outside of what is mounted, only the mounted one can be
    /// seen.
    fn group(self, path: &Path) -> Group {
        let below = path.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let is_inside = !below.components().any(|part| part == std::path::Component::ParentDir);
        let dir = self.mount_point.join(if is_inside { below } else { Path::new("") });
        Group { dir, mount_point: self.mount_point }
    }
}

/// A path of `/proc/self/mountinfo`, which has blanks, tabs, line ends and backslashes as `\040`
/// and so on.
fn unescaped(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsStr::from_bytes(&out))
}

/// What a process does with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Mounts a volume: file data passes through it.
    Mount,
    /// Serves metadata to others.
    Serve,
}

/// Budgets that somebody has set; the others share what these leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// [`MemoryPlan::metadata_bytes`].
    pub metadata_bytes: Option<u64>,
    /// [`MemoryPlan::dirty_bytes_max`].
    pub dirty_bytes_max: Option<u64>,
    /// [`MemoryPlan::data_cache_bytes`].
    pub data_cache_bytes: Option<u64>,
}

/// The budgets of a process. The default has those of a process with enough memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Metadata rows.
    pub metadata_bytes: u64,
    /// The namespace replica.
    pub replica_bytes: u64,
    /// Bytes written and not yet stored and committed. As many again may be under way in coded
    /// form.
    pub dirty_bytes_max: u64,
    /// Verified frames of file data; a store near by has a smaller default.
    pub data_cache_bytes: u64,
    /// Reads of the kernel that are under way. At its default it is not kept, see
    /// [`MemoryPlan::is_short`].
    pub read_bytes_max: u64,
    /// Memory kept for the next reads.
    pub read_kept_bytes: u64,
    /// Memory kept for coding objects.
    pub coding_kept_bytes: u64,
    /// Heads of coded objects.
    pub head_bytes: u64,
    /// What waits to be written to the disk cache.
    pub fill_bytes_max: u64,
    /// Attributes that came with listings.
    pub listed_bytes: u64,
    /// What is known of snapshots.
    pub snapshot_bytes: u64,
    /// What the kernel knows by number; inodes at the default are not counted.
    pub known_bytes: u64,
    /// Buffers that the kernel's requests come in.
    pub transport_bytes: u64,
    /// Answers of a server that its clients have not taken.
    pub unsent_bytes: u64,
    /// What all of them, the process beside them included, come to at most.
    pub bound: u64,
    /// There is less memory than the defaults take.
    pub is_short: bool,
}

/// A budget to divide: its place, smallest size and default, what a byte of it really takes, in
/// quarters, and the work that makes use of it.
struct Part {
    place: fn(&mut MemoryPlan) -> &mut u64,
    least: u64,
    default: u64,
    quarters: u64,
    works: &'static [Work],
}

const BOTH: &[Work] = &[Work::Mount, Work::Serve];
const MOUNT: &[Work] = &[Work::Mount];
const SERVE: &[Work] = &[Work::Serve];

/// Of [`PARTS`], those that somebody may set.
const METADATA: usize = 0;
const DIRTY: usize = 2;
const DATA_CACHE: usize = 3;

/// All budgets. Rows lie in many small pieces of memory, and blocks of the runs that are being
/// written come beside them. Written bytes are in memory twice while they are coded.
static PARTS: [Part; 14] = [
    Part {
        place: |plan| &mut plan.metadata_bytes,
        least: 16 * MIB,
        default: 512 * MIB,
        quarters: 5,
        works: BOTH,
    },
    Part {
        place: |plan| &mut plan.replica_bytes,
        least: MIB,
        default: 64 * MIB,
        quarters: 4,
        works: BOTH,
    },
    Part {
        place: |plan| &mut plan.dirty_bytes_max,
        least: 4 * MIB,
        default: 256 * MIB,
        quarters: 8,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.data_cache_bytes,
        least: 2 * MIB,
        default: 256 * MIB,
        quarters: 5,
        works: BOTH,
    },
    Part {
        place: |plan| &mut plan.read_bytes_max,
        least: 2 * MIB,
        default: 128 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.read_kept_bytes,
        least: MIB / 2,
        default: 32 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.coding_kept_bytes,
        least: MIB,
        default: 40 * MIB,
        quarters: 4,
        works: BOTH,
    },
    Part {
        place: |plan| &mut plan.head_bytes,
        least: MIB / 2,
        default: 32 * MIB,
        quarters: 4,
        works: BOTH,
    },
    Part {
        place: |plan| &mut plan.fill_bytes_max,
        least: MIB,
        default: 64 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.listed_bytes,
        least: MIB,
        default: 48 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.snapshot_bytes,
        least: MIB,
        default: 48 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.known_bytes,
        least: 4 * MIB,
        default: 128 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.transport_bytes,
        least: 2 * MIB,
        default: 160 * MIB,
        quarters: 4,
        works: MOUNT,
    },
    Part {
        place: |plan| &mut plan.unsent_bytes,
        least: 4 * MIB,
        default: 512 * MIB,
        quarters: 4,
        works: SERVE,
    },
];

impl Default for MemoryPlan {
    fn default() -> Self {
        Self::new(u64::MAX, Work::Mount, Wanted::default())
    }
}

impl MemoryPlan {
    /// Divides `limit` bytes. What is wanted is granted as it is, whether it fits or not.
    pub fn new(limit: u64, work: Work, wanted: Wanted) -> Self {
        let mut plan = Self {
            metadata_bytes: 0,
            replica_bytes: 0,
            dirty_bytes_max: 0,
            data_cache_bytes: 0,
            read_bytes_max: 0,
            read_kept_bytes: 0,
            coding_kept_bytes: 0,
            head_bytes: 0,
            fill_bytes_max: 0,
            listed_bytes: 0,
            snapshot_bytes: 0,
            known_bytes: 0,
            transport_bytes: 0,
            unsent_bytes: 0,
            bound: BASE_BYTES,
            is_short: false,
        };
        let fixed = |index: usize| match index {
            METADATA => wanted.metadata_bytes,
            DIRTY => wanted.dirty_bytes_max,
            DATA_CACHE => wanted.data_cache_bytes,
            _ => None,
        };
        let taken = |part: &Part, bytes: u64| bytes.saturating_mul(part.quarters) / 4;
        // What a budget that nobody has set may grow by, and what all have to begin with.
        let (mut begin, mut growth) = (BASE_BYTES, 0u64);
        for (index, part) in PARTS.iter().enumerate() {
            let counts = part.works.contains(&work);
            if counts {
                begin = begin.saturating_add(taken(part, fixed(index).unwrap_or(part.least)));
                growth += fixed(index).map_or(taken(part, part.default - part.least), |_| 0);
            }
        }
        let room = (limit - (limit / 4).min(SPARE_MAX)).saturating_sub(begin);
        // Whatever somebody wants, the others get along.
        let room = if begin > limit / 2 && wanted != Wanted::default() {
            room.max(limit / 8)
        } else {
            room
        };
        plan.is_short = room < growth;
        for (index, part) in PARTS.iter().enumerate() {
            let counts = part.works.contains(&work);
            let grown = u128::from(part.default - part.least) * u128::from(room)
                / u128::from(growth.max(1));
            let bytes = match fixed(index) {
                Some(bytes) => bytes,
                None if !plan.is_short => part.default,
                None if counts => {
                    part.least + grown.min(u128::from(part.default - part.least)) as u64
                }
                None => part.least,
            };
            *(part.place)(&mut plan) = bytes;
            if counts {
                plan.bound = plan.bound.saturating_add(taken(part, bytes));
            }
        }
        plan
    }

    /// The same where there is enough memory, else how many bytes of reads may be under way.
    pub fn read_bytes(&self) -> Option<u64> {
        self.is_short.then_some(self.read_bytes_max)
    }

    /// Most threads that fetch file data from a store across a network, of `most`.
    pub fn io_threads(&self, most: usize) -> usize {
        self.threads(self.read_bytes_max, 512 << 10, 4, most)
    }

    /// Most uploads at a time, of `most`.
    pub fn uploads(&self, most: usize) -> usize {
        self.threads(self.dirty_bytes_max, 2 * MIB, 2, most)
    }

    /// Largest request of the disk cache, bytes, of `most`.
    pub fn fetch_bytes(&self, most: u64) -> u64 {
        if !self.is_short {
            return most;
        }
        (self.read_bytes_max / 8).clamp(128 << 10, most)
    }

    fn threads(&self, bytes: u64, each: u64, least: usize, most: usize) -> usize {
        if !self.is_short {
            return most;
        }
        usize::try_from(bytes / each).unwrap_or(usize::MAX).clamp(least.min(most), most)
    }
}

#[cfg(test)]
mod tests;
