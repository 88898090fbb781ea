#!/usr/bin/env bash
# Property tests of all crates with other seeds than CI's: each seed is one run of every `proptest!`
# with its own number of cases. Prints each seed; a failure ends it with the command that replays
# it.
#
# SEEDS (default 5): how many seeds, counted from SEED (default: random). PROPTEST_CASES sets one
# number of cases for all tests instead of their own.
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-5} first=${SEED:-$(((RANDOM << 15 | RANDOM) + 1))}

# property_tests CRATE: names of the tests within `proptest!` blocks, which begin and end at the margin of their module.
property_tests() {
    find "$1" -name '*.rs' -exec awk '
        /^ *proptest! *{/ { match($0, /^ */); margin = RLENGTH; inside = 1; next }
        inside && /^ *}$/ { match($0, /^ */); if (RLENGTH == margin) inside = 0 }
        inside && match($0, /^ *fn [a-z0-9_]+\(/) { sub(/^ *fn /, ""); sub(/\(.*/, ""); print }' {} +
}

failed=0 runs=0
for ((seed = first; seed < first + seeds; seed++)); do
    echo "seed $seed"
    for manifest in crates/*/Cargo.toml crates/*/*/Cargo.toml; do
        crate=${manifest%/Cargo.toml}
        mapfile -t names < <(property_tests "$crate")
        [ ${#names[@]} -gt 0 ] || continue
        package=$(sed -n 's/^name = "\(.*\)"/\1/p' "$crate/Cargo.toml" | head -n 1)
        command=(cargo test --locked --quiet -p "$package" --lib --tests -- "${names[@]}")
        runs=$((runs + 1))
        PROPTEST_RNG_SEED=$seed "${command[@]}" || {
            echo "FAIL $package; again: PROPTEST_RNG_SEED=$seed ${PROPTEST_CASES:+PROPTEST_CASES=$PROPTEST_CASES }${command[*]}"
            failed=$((failed + 1))
        }
    done
done
echo "$((runs - failed)) passed, $failed failed"
[ "$failed" = 0 ]
