use proptest::prelude::*;

use super::*;
use crate::pages::PageSet;

const MIB: u64 = 1024 * 1024;

fn policy(credit: u64) -> SpanPolicy {
    SpanPolicy::new(SpanConfig { credit, ..SpanConfig::default() })
}

#[test]
fn the_first_requests_fetch_what_was_asked_for() {
    let policy = policy(64 * MIB);
    for requests in 0..2 {
        assert_eq!(policy.plan(&(10..12), requests, None, |_| false), 10..12);
    }
    assert_eq!(policy.plan(&(10..12), 2, None, |_| false), 8..16);
    assert_eq!(policy.plan(&(10..12), 4, None, |_| false), 0..32);
    assert_eq!(policy.plan(&(200..203), 6, None, |_| false), 128..256);
    assert_eq!(policy.plan(&(200..203), 6, Some(210), |_| false), 128..210);
}

#[test]
fn what_is_here_ends_a_span() {
    let policy = policy(64 * MIB);
    assert_eq!(policy.plan(&(10..12), 6, None, |page| page == 5 || page == 20), 6..20);
    assert_eq!(policy.plan(&(10..12), 6, None, |_| true), 10..12);
}

/// With an empty budget nothing is fetched ahead, and use of fetched bytes fills the budget.
#[test]
fn budget_for_fetching_ahead() {
    let mut policy = policy(2 * PAGE_BYTES);
    assert_eq!(policy.plan(&(10..12), 6, None, |_| false), 10..14);
    policy.fetched(0, 2 * PAGE_BYTES);
    assert_eq!(policy.plan(&(10..12), 6, None, |_| false), 10..12);
    policy.used(PAGE_BYTES);
    assert_eq!(policy.plan(&(10..12), 6, None, |_| false), 10..16);
}

/// What a run of reads costs: requests, and bytes fetched.
fn run(
    reads: &[(usize, Range<u32>)],
    objects: usize,
    pages: u32,
    config: SpanConfig,
) -> (u64, u64) {
    let mut policy = SpanPolicy::new(config);
    let mut here = vec![PageSet::default(); objects];
    let mut ahead = vec![PageSet::default(); objects];
    let mut requests = vec![0; objects];
    let (mut gets, mut bytes) = (0, 0);
    for (object, wanted) in reads {
        for page in wanted.clone() {
            if ahead[*object].remove(page) {
                policy.used(PAGE_BYTES);
            }
        }
        if here[*object].contains_all(wanted.clone()) {
            continue;
        }
        let plan = policy
            .plan(wanted, requests[*object], Some(pages), |page| here[*object].contains(page));
        for page in plan.clone().filter(|page| !wanted.contains(page)) {
            ahead[*object].insert(page);
        }
        plan.clone().for_each(|page| here[*object].insert(page));
        let (wanted, fetched) =
            (u64::from(wanted.end - wanted.start), u64::from(plan.end - plan.start));
        policy.fetched(wanted * PAGE_BYTES, (fetched - wanted) * PAGE_BYTES);
        requests[*object] += 1;
        gets += 1;
        bytes += fetched * PAGE_BYTES;
    }
    (gets, bytes)
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn an_epoch_over_packs_needs_few_requests() {
    // 10,000 files of 4 pages in 64 packs, each once, in random order.
    let mut order: Vec<(usize, Range<u32>)> = (0..10_000u32)
        .map(|file| ((file / 157) as usize, file % 157 * 3..file % 157 * 3 + 4))
        .collect();
    let mut state = 5;
    for i in (1..order.len()).rev() {
        order.swap(i, random(&mut state) as usize % (i + 1));
    }
    let (gets, bytes) = run(&order, 64, 512, SpanConfig::default());
    assert!(gets < 1500, "{gets} requests for 10,000 files");
    assert!(bytes < 64 * 18 * MIB, "{bytes} bytes of 1 GiB");
}

/// Random reads of much data fetch little beyond what they request.
#[test]
fn excess_bytes_of_random_reads() {
    // 20,000 reads of 3 pages over 40 GiB in blocks of 4 MiB.
    let mut state = 1;
    let reads: Vec<(usize, Range<u32>)> = (0..20_000)
        .map(|_| {
            let page = random(&mut state) as u32 % 125;
            (random(&mut state) as usize % 10_240, page..page + 3)
        })
        .collect();
    let config = SpanConfig { credit: 64 * MIB, ..SpanConfig::default() };
    let (_, bytes) = run(&reads, 10_240, 128, config);
    let requested = 20_000 * 3 * PAGE_BYTES;
    assert!(bytes < requested * 3 / 2 + 64 * MIB, "{bytes} bytes fetched for {requested}");
}

proptest! {
    #[test]
    fn waste_is_bounded_by_the_account(
        reads in prop::collection::vec((0..20usize, 0..120u32, 1..8u32), 1..300),
        credit in 0..64u64,
    ) {
        let config =
            SpanConfig { credit: credit * PAGE_BYTES, earnings: 0, ..SpanConfig::default() };
        let reads: Vec<_> =
            reads.into_iter().map(|(object, page, len)| (object, page..page + len)).collect();
        let requested: u64 =
            reads.iter().map(|(_, range)| u64::from(range.end - range.start) * PAGE_BYTES).sum();
        let (_, bytes) = run(&reads, 20, 128, config);
        prop_assert!(bytes <= requested + requested / 8 + credit * PAGE_BYTES);
    }

    #[test]
    fn a_plan_contains_what_was_wanted_and_stays_aligned(
        start in 0..1000u32, len in 1..200u32, requests in 0..10u32, end in 0..1300u32,
        here in 0..1200u32,
    ) {
        let wanted = start..start + len;
        let end = end.max(wanted.end);
        let plan = policy(1 << 30).plan(&wanted, requests, Some(end), |page| page == here);
        prop_assert!(plan.start <= wanted.start && plan.end >= wanted.end && plan.end <= end);
        prop_assert!(wanted.contains(&here) || !plan.contains(&here));
        prop_assert!(plan.end - plan.start <= len.max(1) + 2 * 128);
    }
}
