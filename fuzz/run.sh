#!/usr/bin/env bash
# Fuzzes the wire protocols, of clients and between nodes, and which clients are let in: each target
# for FUZZ_SECONDS (default 20) from the corpus in the repository.
#
#   fuzz/run.sh                         all targets
#   fuzz/run.sh messages -runs=1000000  one target, with options of libFuzzer
#
# Needs neither cargo-fuzz nor a nightly compiler: coverage is a pass of LLVM's that the stable
# compiler runs when told to. (`cargo fuzz run messages` works as well and adds the address
# sanitizer; types has no unsafe code.) What is found beyond the corpus goes to target/fuzz/; an
# input that fails is left there as crash-…, and replayed by giving it as an argument. The last line
# is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd .. && pwd)
out=${CARGO_TARGET_DIR:-$root/target}/fuzz
seconds=${FUZZ_SECONDS:-20}
host=$(rustc -vV | sed -n 's/^host: //p')
targets=(messages stream envelopes handshake)
options=("-max_total_time=$seconds")
if [ $# -gt 0 ]; then
    targets=("$1")
    shift
    [ $# = 0 ] || options=("$@")
fi

# The flags are given for the target only, so that build scripts and libFuzzer itself are not
# instrumented.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
    cargo build --quiet --release --locked --target "$host" --target-dir "$out"

passed=0 failed=0
for target in "${targets[@]}"; do
    mkdir -p "$out/$target"
    if "$out/$host/release/$target" -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -artifact_prefix="$out/" \
        -print_final_stats=1 "${options[@]}" "$out/$target" "corpus/$target"; then
        passed=$((passed + 1))
    else
        echo "FAIL $target: see the input that crash- or oom- names above"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
