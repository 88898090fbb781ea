#!/usr/bin/env bash
# Runs the test suites, with sizes for CI (below 32 minutes on 2 cores; the s3 suites below 8, those of served volumes below
# 6), or those that are named.
#
#   tests/run.sh                  all
#   tests/run.sh kill compare     these
#   tests/run.sh --list           their names
#
# The output of each goes to target/test-logs/NAME.log, a report to target/test-report.json. Environment of the suites
# (CYCLES, FSX_OPS, COMPARE_OPS, …) overrides the sizes below. The last line is "N passed, N failed".
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
target=${CARGO_TARGET_DIR:-$ROOT/target}
export KESTREL=${KESTREL:-$target/release/kestrel}
export KESTREL_JUDGES=${KESTREL_JUDGES:-$target/release}
logs=$ROOT/target/test-logs
report=$ROOT/target/test-report.json
mkdir -p "$logs"

# NAME SECONDS COMMAND…: the seconds are a limit, several times what it takes.
suites=(
    "rust 1800 cargo test --workspace --locked --quiet --no-fail-fast"
    "fuzz 900 fuzz/run.sh"
    "sim 1200 cargo run --locked --quiet --release -p kestrel-sim -- --seconds ${SIM_SECONDS:-60}"
    "semantics 300 tests/posix/semantics.sh"
    "pjdfstest 300 tests/posix/pjdfstest.sh"
    "fsx 900 tests/posix/fsx.sh"
    "compare 900 tests/posix/compare.sh"
    "stress-ng 900 tests/posix/stress-ng.sh"
    "fio 600 tests/posix/fio.sh"
    "kill 2400 tests/crash/kill.sh"
    "power 900 tests/crash/power.sh"
    "full-disk 600 tests/crash/full-disk.sh"
    "corrupt 600 tests/crash/corrupt.sh"
)
# The same on a volume in an object store, and what only concerns one.
suites+=(
    "s3-proxy 120 tests/s3/proxy.sh"
    "s3-pjdfstest 300 env KESTREL_STORE=s3 tests/posix/pjdfstest.sh"
    "s3-fsx 600 env KESTREL_STORE=s3 FSX_OPS=${S3_FSX_OPS:-1000} tests/posix/fsx.sh"
    "s3-compare 600 env KESTREL_STORE=s3 COMPARE_OPS=${S3_COMPARE_OPS:-1500} COMPARE_SEEDS=2 tests/posix/compare.sh"
    "s3-kill 1200 env KESTREL_STORE=s3 CYCLES=${S3_CYCLES:-8} tests/crash/kill.sh"
    "s3-points 900 tests/s3/points.sh"
    "s3-faults 600 tests/s3/faults.sh"
    "s3-trust 600 tests/s3/trust.sh"
    "s3-cache 600 tests/s3/cache.sh"
    "s3-bad-input 600 tests/s3/bad-input.sh"
    "s3-admin 600 tests/s3/admin.sh"
    "s3-requests 300 tests/s3/requests.sh"
)
# A served volume, several clients.
suites+=(
    "cluster-history 600 env OPS=1000 ROUNDS=2 tests/cluster/history.sh"
)
# The same on a volume that a server serves, and what only concerns one: below 6 minutes.
serve="env KESTREL_SERVE=1"
suites+=(
    "serve-semantics 300 $serve tests/posix/semantics.sh"
    "serve-pjdfstest 300 $serve tests/posix/pjdfstest.sh"
    "serve-fsx 600 $serve FSX_OPS=${SERVE_FSX_OPS:-1000} tests/posix/fsx.sh"
    "serve-compare 600 $serve COMPARE_OPS=${SERVE_COMPARE_OPS:-1500} COMPARE_SEEDS=2 tests/posix/compare.sh"
    "serve-kill 900 env CYCLES=${SERVE_CYCLES:-4} tests/cluster/kill.sh"
    "serve-two 600 tests/cluster/two.sh"
    "serve-partition 600 tests/cluster/partition.sh"
    "serve-bad-input 600 tests/cluster/bad-input.sh"
    "serve-git 900 $serve tests/programs/git.sh"
    "serve-sqlite 900 $serve CYCLES=${SERVE_CYCLES:-4} tests/programs/sqlite.sh"
)
for script in tests/programs/*.sh; do
    suites+=("$(basename "$script" .sh) 900 $script")
done

names=()
for suite in "${suites[@]}"; do names+=("${suite%% *}"); done
if [ "${1:-}" = --list ]; then
    printf '%s\n' "${names[@]}"
    exit
fi
for name in "$@"; do
    if ! printf '%s\n' "${names[@]}" | grep -qxF -- "$name"; then
        echo "no such suite: $name (tests/run.sh --list)" >&2
        exit 2
    fi
done

# counts LOG: what passed and failed, from "N passed, N failed" and from cargo's own lines.
counts() {
    awk '
        /^[0-9]+ passed, [0-9]+ failed$/ { plain_passed = $1; plain_failed = $3; plain = 1 }
        /^test result:/ { for (i = 2; i <= NF; i++) { if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1) } }
        END { if (plain) print plain_passed, plain_failed; else print p + 0, f + 0 }' "$1"
}

json_text() {
    python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()), end="")'
}

passed=0 failed=0 entries=()
for suite in "${suites[@]}"; do
    read -r name limit command <<<"$suite"
    [ $# = 0 ] || printf '%s\n' "$@" | grep -qxF -- "$name" || continue
    log=$logs/$name.log
    start=$SECONDS
    status=0
    # Word splitting is meant: the command is a list of words without quotes.
    # shellcheck disable=SC2086
    timeout --kill-after=60 "$limit" $command >"$log" 2>&1 </dev/null || status=$?
    seconds=$((SECONDS - start))
    read -r good bad < <(counts "$log")
    # A suite that ends badly, or tested nothing without saying why, has failed whatever it counted.
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    if [ "$((good + bad))" = 0 ] && ! grep -q '^skipped' "$log"; then bad=1; fi
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$bad" = 0 ]; then
        printf 'ok   %-12s %5d passed             %4d s\n' "$name" "$good" "$seconds"
        failures='""'
    else
        printf 'FAIL %-12s %5d passed %4d failed %4d s  %s\n' "$name" "$good" "$bad" "$seconds" "$log"
        grep -E '^FAIL|^error|panicked|^test .* FAILED' "$log" | head -n 12 | sed 's/^/       /' || true
        tail -n 40 "$log" | cut -c1-300 | sed 's/^/       | /'
        [ "$status" != 124 ] || echo "       not finished after $limit s"
        failures=$({ grep -E '^FAIL|^error|panicked|^test .* FAILED' "$log" || tail -n 20 "$log"; } | head -n 40 | json_text)
    fi
    entries+=("{\"name\":\"$name\",\"passed\":$good,\"failed\":$bad,\"seconds\":$seconds,\"status\":$status,\"log\":\"${log#"$ROOT"/}\",\"failures\":$failures}")
done

(
    IFS=,
    printf '{"passed":%d,"failed":%d,"seconds":%d,"suites":[%s]}\n' "$passed" "$failed" "$SECONDS" "${entries[*]}"
) >"$report"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
