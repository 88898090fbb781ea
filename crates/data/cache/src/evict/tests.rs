use proptest::prelude::*;

use super::*;

const NOW: Nanos = 1_000_000 * SECOND;

fn file(volume: usize, bytes: u64, age: i64, is_reused: bool) -> CacheFile {
    CacheFile { volume, bytes, touched: NOW - age * SECOND, is_reused }
}

/// Bytes that each volume is left with.
fn left(files: &[CacheFile], plan: &[usize], volumes: usize) -> Vec<u64> {
    let mut left = vec![0; volumes];
    for (index, file) in files.iter().enumerate().filter(|(index, _)| !plan.contains(index)) {
        let _ = index;
        left[file.volume] += file.bytes;
    }
    left
}

#[test]
fn nothing_to_free_removes_nothing() {
    assert!(plan(&[file(0, 10, 5, false), file(1, 10, 5000, false)], 0, NOW).is_empty());
    assert!(plan(&[], 10, NOW).is_empty());
}

#[test]
fn an_idle_volume_goes_first_oldest_first() {
    let files = [
        file(0, 10, 5, false),
        file(1, 10, 700, true),
        file(1, 10, 900, true),
        file(0, 10, 1000, false),
    ];
    assert_eq!(plan(&files, 1, NOW), [2]);
    assert_eq!(plan(&files, 20, NOW), [2, 1]);
    assert_eq!(plan(&files, 21, NOW), [2, 1, 3]);
    assert_eq!(plan(&files, 1000, NOW), [2, 1, 3, 0]);
}

/// Eviction brings the volumes in use to equal shares, and volumes below their share keep all.
#[test]
fn equal_shares_of_volumes_in_use() {
    let mut files = Vec::new();
    for (volume, count) in [(0, 100), (1, 60), (2, 10)] {
        files.extend((0..count).map(|i| file(volume, 1, i, false)));
    }
    assert_eq!(left(&files, &plan(&files, 30, NOW), 3), [70, 60, 10]);
    assert_eq!(left(&files, &plan(&files, 90, NOW), 3), [35, 35, 10]);
    assert_eq!(left(&files, &plan(&files, 149, NOW), 3), [7, 7, 7]);
}

#[test]
fn scan_resistance() {
    let mut files: Vec<CacheFile> = (0..80).map(|i| file(0, 1, 300 + i, true)).collect();
    files.extend((0..120).map(|i| file(0, 1, i, false)));
    let plan = plan(&files, 100, NOW);
    assert!(plan.iter().all(|index| !files[*index].is_reused));
    // The scan's files go in the order they came.
    assert_eq!(plan[..3], [199, 198, 197]);
}

#[test]
fn without_a_scan_the_least_recently_used_go() {
    let mut files: Vec<CacheFile> = (0..95).map(|i| file(0, 1, i, true)).collect();
    files.extend((0..5).map(|i| file(0, 1, i, false)));
    assert_eq!(plan(&files, 3, NOW), [94, 93, 92]);
}

#[test]
fn times_in_the_future_are_no_harm() {
    let files = [file(0, 10, -5000, false), file(1, 10, 5, false)];
    assert_eq!(plan(&files, 20, NOW).len(), 2);
}

fn any_file() -> impl Strategy<Value = CacheFile> {
    (0..4usize, 1..1000u64, -10..2000i64, any::<bool>())
        .prop_map(|(volume, bytes, age, is_reused)| file(volume, bytes, age, is_reused))
}

proptest! {
    #[test]
    fn enough_is_freed_and_little_more(
        files in prop::collection::vec(any_file(), 0..200), need in 0..100_000u64,
    ) {
        let plan = plan(&files, need, NOW);
        let mut once = plan.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), plan.len(), "a file is removed twice");
        let freed: u64 = plan.iter().map(|index| files[*index].bytes).sum();
        let held: u64 = files.iter().map(|file| file.bytes).sum();
        prop_assert!(freed >= need.min(held));
        // Every volume may give one file too much.
        prop_assert!(freed < need + 4 * 1000 || freed == held);
    }

    #[test]
    fn eviction_from_volumes_above_their_share(
        files in prop::collection::vec(any_file(), 1..200), need in 1..100_000u64,
    ) {
        let plan = plan(&files, need, NOW);
        let newest = |volume| {
            files.iter().filter(|file| file.volume == volume).map(|file| file.touched).max()
        };
        let is_idle =
            |volume| newest(volume).is_none_or(|touched: Nanos| NOW - touched > IDLE_AFTER);
        let (before, after) = (left(&files, &[], 4), left(&files, &plan, 4));
        for loser in (0..4).filter(|volume| after[*volume] < before[*volume] && !is_idle(*volume)) {
            for other in (0..4).filter(|volume| *volume != loser && after[*volume] > 0) {
                prop_assert!(!is_idle(other), "an idle volume keeps bytes");
                // Files have at most 999 bytes; each volume before it may have given one too much.
                prop_assert!(after[other] < after[loser] + 4 * 1000);
            }
        }
    }
}
