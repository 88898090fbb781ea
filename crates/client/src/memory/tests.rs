use std::fs;

use proptest::prelude::*;

use super::*;

/// A directory with the files that a process sees.
struct Seen(tempfile::TempDir);

impl Seen {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(dir)
    }

    fn limit(&self) -> (u64, Option<String>) {
        let limit = MemoryLimit::read(self.0.path());
        let by = match limit.by {
            LimitedBy::Machine => None,
            LimitedBy::Group(path) => Some(path.to_string_lossy().into_owned()),
        };
        (limit.bytes / MIB, by)
    }
}

const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:        2097152 kB\nMemFree:  1 kB\n");
const V2: (&str, &str) = (
    "proc/self/mountinfo",
    "24 1 8:1 / / rw - ext4 /dev/vda rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 \
     cgroup2 rw\n",
);

/// Of a group and those above it the least counts, of both files.
#[test]
fn every_group_of_version_2_limits() {
    let group = ("proc/self/cgroup", "0::/a/b/c\n");
    let high = ("sys/fs/cgroup/a/b/memory.high", "209715200\n");
    let files = [
        MEMINFO,
        V2,
        group,
        ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
        ("sys/fs/cgroup/a/b/c/memory.high", "max\n"),
        ("sys/fs/cgroup/a/memory.max", "524288000\n"),
        high,
    ];
    assert_eq!(Seen::new(&files).limit(), (200, Some("/sys/fs/cgroup/a/b/memory.high".into())));
    assert_eq!(Seen::new(&files[..6]).limit(), (500, Some("/sys/fs/cgroup/a/memory.max".into())));
    assert_eq!(Seen::new(&files[..5]).limit(), (2048, None));
    let shown = MemoryLimit::read(Seen::new(&files).0.path()).to_string();
    assert_eq!(shown, "/sys/fs/cgroup/a/b/memory.high allows 200 MiB of memory");
}

/// In a container the group's own directory is mounted, under whatever name.
#[test]
fn groups_of_version_1_and_containers() {
    let mounts = "1 0 0:1 / / rw - ext4 x rw\n\
        2 1 0:2 /docker/x /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        3 1 0:3 /docker/x /sys/fs/cgroup/mem\\040ory ro master:2 - cgroup cgroup rw,memory\n";
    let seen = |group: &str, bytes: &str| {
        let below = "sys/fs/cgroup/mem ory/memory.limit_in_bytes";
        Seen::new(&[
            MEMINFO,
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", group),
            (below, bytes),
        ])
        .limit()
    };
    let here = Some("/sys/fs/cgroup/mem ory/memory.limit_in_bytes".to_string());
    assert_eq!(seen("5:cpu:/\n4:memory:/docker/x\n", "134217728\n"), (128, here.clone()));
    assert_eq!(
        seen("4:hugetlb,memory:/docker/x/below\n", "134217728\n"),
        (128, here.clone()),
        "that above limits"
    );
    assert_eq!(
        seen("4:memory:/elsewhere\n", "134217728\n"),
        (128, here),
        "what is mounted is all there is"
    );
    assert_eq!(seen("4:memory:/docker/x\n", "9223372036854771712\n"), (2048, None), "no limit");
    assert_eq!(seen("4:cpu:/docker/x\n", "134217728\n"), (2048, None), "not of memory");
}

/// Nothing of it, or nonsense, is no limit and no panic.
#[test]
fn what_cannot_be_read_does_not_limit() {
    assert_eq!(Seen::new(&[]).limit(), (u64::MAX / MIB, None));
    let nonsense = [
        ("proc/self/cgroup", "0\n::\n0::x\n"),
        ("proc/self/mountinfo", " - \na b c d e - cgroup2\n"),
    ];
    assert_eq!(Seen::new(&nonsense).limit(), (u64::MAX / MIB, None));
    let outside = [MEMINFO, V2, ("proc/self/cgroup", "0::/../../x\n"), ("x/memory.max", "1\n")];
    assert_eq!(Seen::new(&outside).limit(), (2048, None));
}

/// With enough memory every budget is what it was before there were plans.
#[test]
fn defaults_with_enough_memory() {
    for limit in [3 << 30, 24 << 30, u64::MAX] {
        for work in [Work::Mount, Work::Serve] {
            let plan = MemoryPlan::new(limit, work, Wanted::default());
            assert!(!plan.is_short, "{limit}");
            assert_eq!((plan.metadata_bytes, plan.dirty_bytes_max), (512 * MIB, 256 * MIB));
            assert_eq!((plan.replica_bytes, plan.data_cache_bytes), (64 * MIB, 256 * MIB));
            assert_eq!((plan.read_kept_bytes, plan.coding_kept_bytes), (32 * MIB, 40 * MIB));
            assert_eq!((plan.head_bytes, plan.fill_bytes_max), (32 * MIB, 64 * MIB));
            assert_eq!((plan.read_bytes(), plan.io_threads(64), plan.uploads(32)), (None, 64, 32));
            assert_eq!(plan.fetch_bytes(4 * MIB), 4 * MIB);
        }
    }
}

/// Budgets that are set are granted, whether they fit or not, and the others make room.
#[test]
fn what_is_wanted_is_granted() {
    let wanted = Wanted { metadata_bytes: Some(64 * MIB), ..Wanted::default() };
    let free = MemoryPlan::new(512 * MIB, Work::Mount, Wanted::default());
    let set = MemoryPlan::new(512 * MIB, Work::Mount, wanted);
    assert_eq!(set.metadata_bytes, 64 * MIB);
    assert!(free.metadata_bytes > 64 * MIB && set.dirty_bytes_max > free.dirty_bytes_max);
    let wanted =
        Wanted { dirty_bytes_max: Some(256 * MIB), data_cache_bytes: Some(0), ..Wanted::default() };
    let plan = MemoryPlan::new(200 * MIB, Work::Mount, wanted);
    assert_eq!((plan.dirty_bytes_max, plan.data_cache_bytes), (256 * MIB, 0));
    assert!(plan.is_short && plan.metadata_bytes < 32 * MIB, "{plan:?}");
    assert!(plan.bound > 200 * MIB, "{}", plan.bound);
    // On a large machine what is wanted takes nothing from the others, though it takes nearly all.
    let wanted = Wanted { metadata_bytes: Some(40 << 30), ..Wanted::default() };
    let plan = MemoryPlan::new(64 << 30, Work::Mount, wanted);
    assert_eq!((plan.is_short, plan.dirty_bytes_max), (false, 256 * MIB));
}

proptest! {
    /// All budgets together stay below the limit, grow with it, and never become too small to work
    /// with.
    #[test]
    fn budgets_fit_every_limit(limit in LIMIT_MIN..4 << 30, more in 0u64..1 << 30, serves: bool) {
        let work = if serves { Work::Serve } else { Work::Mount };
        let plan = MemoryPlan::new(limit, work, Wanted::default());
        let larger = MemoryPlan::new(limit + more, work, Wanted::default());
        prop_assert!(plan.bound <= limit, "{} of {limit}", plan.bound);
        prop_assert!(limit < 96 * MIB || plan.bound <= limit - limit / 4 + PARTS.len() as u64);
        for part in &PARTS {
            let (now, then) =
                (*(part.place)(&mut plan.clone()), *(part.place)(&mut larger.clone()));
            prop_assert!(part.least <= now && now <= then && then <= part.default);
        }
        prop_assert!(plan.uploads(32) >= 2 && plan.io_threads(64) >= 4
            && plan.fetch_bytes(4 * MIB) >= 128 << 10);
        prop_assert!(plan.io_threads(1) == 1 && plan.uploads(1) == 1);
    }
}
