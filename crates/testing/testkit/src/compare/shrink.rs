//! Makes a failing sequence short: delta debugging over the recorded steps, each try in fresh
//! directories.

/// Removes as many of `items` as it can while `fails` stays true. `fails` is told the indices that
/// are kept, in order; it may answer false for any reason (such as no time left), and then they
/// stay.
///
/// `doubtful` are the indices that most likely do not matter: one try is made without all of them.
pub fn shrink(
    len: usize,
    doubtful: &[usize],
    mut fails: impl FnMut(&[usize]) -> bool,
) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..len).collect();
    let likely: Vec<usize> = kept.iter().copied().filter(|i| !doubtful.contains(i)).collect();
    if likely.len() < kept.len() && !likely.is_empty() && fails(&likely) {
        kept = likely;
    }
    let mut parts = 2;
    while kept.len() >= 2 {
        let size = kept.len().div_ceil(parts);
        let mut removed = false;
        // From the end: later steps matter least.
        let mut start = (kept.len() - 1) / size * size;
        loop {
            let end = (start + size).min(kept.len());
            let rest: Vec<_> = [&kept[..start.min(kept.len())], &kept[end..]].concat();
            if start < end && !rest.is_empty() && fails(&rest) {
                kept = rest;
                removed = true;
            }
            if start == 0 {
                break;
            }
            start -= size.min(start);
        }
        if !removed && size == 1 {
            break;
        }
        parts = if removed { parts.max(2) } else { (parts * 2).min(kept.len().max(2)) };
        parts = parts.min(kept.len().max(2));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_few_that_matter() {
        for needed in [vec![3], vec![0, 99], vec![10, 11, 50, 77], vec![99]] {
            let mut runs = 0;
            let kept = shrink(100, &[5, 6], |kept| {
                runs += 1;
                needed.iter().all(|n| kept.contains(n))
            });
            assert_eq!(kept, needed);
            assert!(runs < 400, "{runs} runs");
        }
    }

    #[test]
    fn keeps_everything_when_nothing_can_go() {
        assert_eq!(shrink(5, &[1], |_| false), vec![0, 1, 2, 3, 4]);
        assert_eq!(shrink(1, &[], |_| true), vec![0]);
    }
}
