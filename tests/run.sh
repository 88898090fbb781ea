#!/usr/bin/env bash
# Runs the test suites, with sizes for CI (2 cores), or those that are named.
#
#   tests/run.sh                     the suites of CI
#   tests/run.sh kill compare        these
#   tests/run.sh --list [--nightly]  the names of all suites, or of those that only run at night
#   KESTREL_NIGHTLY=1 tests/run.sh   all, in the sizes of the night (`make test-all`)
#
# Programs are those of `make test-build` in target/ci; $KESTREL and $KESTREL_JUDGES name others.
#
# Most suites wait for processes, disks and clocks, and use a small part of the processors.
# $LANES (default 3) of them run at a time, in the order of the lists below. Beside them run, one
# at a time at the lowest priority (nice 19), those of $beside, which need processor time and no
# clock. At the end those of $quiet run, two at a time.
#
# The line of a suite appears when it has ended; its output goes to target/test-logs/NAME.log. In
# the end come the ten longest suites, and how much processor time each used: that, and not the
# time on the clock, is what a suite costs on a machine of its own. target/test-report.json has the
# same of all. Environment of the suites (CYCLES, FSX_OPS, COMPARE_OPS, …) overrides the sizes
# below. Then the failed checks are named once more. The last line is "N passed, N failed".
# Interrupted, the script ends the suites, which clean up after themselves.
#
# Nothing here fails by chance of a random number: property tests draw from $PROPTEST_RNG_SEED
# (`make proptest` explores other seeds).
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
target=${CARGO_TARGET_DIR:-$ROOT/target}
export KESTREL=${KESTREL:-$target/ci/kestrel}
export KESTREL_JUDGES=${KESTREL_JUDGES:-$target/ci}
logs=$ROOT/target/test-logs
report=$ROOT/target/test-report.json
mkdir -p "$logs"
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20261121}

# among WORD LIST…: the list has the word. (A pipe into grep -q fails by chance with pipefail.)
among() {
    local word
    for word in "${@:2}"; do [ "$word" != "$1" ] || return 0; done
    return 1
}

# size CI NIGHT: the first in CI, the second at night.
size() {
    if [ "${KESTREL_NIGHTLY:-}" = 1 ]; then echo "$2"; else echo "$1"; fi
}

# NAME SECONDS COMMAND…: the seconds are a limit, several times what it takes. The long ones come
# first, so that no lane has one left at the end. 16 crash points: in 100 cycles of `kill` each is
# reached three times.
suites=(
    "kill 4800 env CYCLES=${CYCLES:-$(size 100 400)} tests/crash/kill.sh"
    "rust 1800 tests/rust.sh"
    "fuzz 2400 env FUZZ_SECONDS=${FUZZ_SECONDS:-$(size 15 300)} fuzz/run.sh"
    "sim-nodes 7200 $KESTREL_JUDGES/kestrel-sim --nodes 3 --cpu-seconds ${SIM_NODES_SECONDS:-$(size 360 3600)}"
    "sim 3600 $KESTREL_JUDGES/kestrel-sim --cpu-seconds ${SIM_SECONDS:-$(size 180 1800)}"
    "fsx 3600 env FSX_OPS=${FSX_OPS:-$(size 15000 100000)} tests/posix/fsx.sh"
    "compare 1800 env COMPARE_OPS=${COMPARE_OPS:-$(size 12000 40000)} tests/posix/compare.sh"
    "semantics 600 tests/posix/semantics.sh"
    "policies 300 tests/posix/policies.sh"
    "access-times 600 tests/posix/access_times.sh"
    "acls 600 tests/posix/acls.sh"
    "handles 300 tests/posix/handles.sh"
    "snapshots 300 tests/posix/snapshots.sh"
    "clones 300 tests/posix/clones.sh"
    "quotas 300 tests/posix/quotas.sh"
    "remove 600 tests/posix/remove.sh"
    "trash 600 tests/posix/trash.sh"
    "watch 600 tests/posix/watch.sh"
    "snapshot-verbs 300 tests/posix/snapshot_verbs.sh"
    "large-dirs 900 env NAMES=${NAMES:-$(size 100000 500000)} tests/posix/large-dirs.sh"
    "options 300 tests/posix/options.sh"
    "pjdfstest 300 tests/posix/pjdfstest.sh"
    "stress-ng 1800 env STRESS_SECONDS=${STRESS_SECONDS:-$(size 5 20)} tests/posix/stress-ng.sh"
    "fio 600 tests/posix/fio.sh"
    "power 900 tests/crash/power.sh"
    "full-disk 600 tests/crash/full-disk.sh"
    "corrupt 600 tests/crash/corrupt.sh"
    "salvage 1800 tests/crash/salvage.sh"
    "leftovers 300 tests/crash/leftovers.sh"
    "supervised 300 env UPGRADES=${UPGRADES:-$(size 4 40)} tests/upgrade/upgrade.sh"
    "memory 600 tests/crash/memory.sh"
)
# The same on a volume in an object store, and what only concerns one.
suites+=(
    "s3-proxy 120 tests/s3/proxy.sh"
    "s3-pjdfstest 300 env KESTREL_STORE=s3 tests/posix/pjdfstest.sh"
    "s3-policies 300 env KESTREL_STORE=s3 tests/posix/policies.sh"
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
    "s3-backup 300 tests/s3/backup.sh"
    "s3-tiers 600 tests/s3/tiers.sh"
    "s3-memory 600 env KESTREL_STORE=s3 tests/crash/memory.sh"
)
# A served volume, several clients.
suites+=(
    "cluster-history 600 env OPS=1000 ROUNDS=2 tests/cluster/history.sh"
)
# The same on a volume that a server serves, and what only concerns one.
serve="env KESTREL_SERVE=1"
suites+=(
    "serve-semantics 600 $serve tests/posix/semantics.sh"
    "serve-policies 300 $serve tests/posix/policies.sh"
    "serve-acls 600 $serve tests/posix/acls.sh"
    "serve-access-times 600 $serve tests/posix/access_times.sh"
    "serve-handles 300 $serve tests/posix/handles.sh"
    "serve-snapshots 300 $serve tests/posix/snapshots.sh"
    "serve-clones 300 $serve tests/posix/clones.sh"
    "serve-quotas 300 $serve tests/posix/quotas.sh"
    "serve-remove 600 $serve tests/posix/remove.sh"
    "serve-trash 600 $serve tests/posix/trash.sh"
    "serve-watch 600 $serve tests/posix/watch.sh"
    "serve-tiers 600 $serve tests/s3/tiers.sh"
    "serve-snapshot-verbs 300 $serve tests/posix/snapshot_verbs.sh"
    "serve-large-dirs 900 $serve NAMES=${NAMES:-$(size 20000 200000)} tests/posix/large-dirs.sh"
    "serve-options 300 $serve tests/posix/options.sh"
    "serve-pjdfstest 300 $serve tests/posix/pjdfstest.sh"
    "serve-fsx 600 $serve FSX_OPS=${SERVE_FSX_OPS:-1000} tests/posix/fsx.sh"
    "serve-compare 600 $serve COMPARE_OPS=${SERVE_COMPARE_OPS:-1500} COMPARE_SEEDS=2 tests/posix/compare.sh"
    "serve-supervised 300 $serve UPGRADES=${UPGRADES:-$(size 4 40)} tests/upgrade/upgrade.sh"
    "serve-kill 900 env CYCLES=${SERVE_CYCLES:-4} tests/cluster/kill.sh"
    "serve-two 600 tests/cluster/two.sh"
    "serve-shared 300 env KESTREL_NODES=1 tests/cluster/shared.sh"
    "nodes-shared 300 env KESTREL_NODES=3 tests/cluster/shared.sh"
    "serve-partition 600 tests/cluster/partition.sh"
    "tls 600 tests/cluster/tls.sh"
    "serve-bad-input 600 tests/cluster/bad-input.sh"
    "serve-contact 300 tests/cluster/contact.sh"
    "serve-tokens 300 tests/cluster/tokens.sh"
    "serve-admin 600 tests/cluster/serve-admin.sh"
    "serve-strangers 300 tests/cluster/strangers.sh"
    "serve-subtree 300 tests/cluster/subtree.sh"
    "serve-git 900 $serve tests/programs/git.sh"
    "serve-sqlite 900 $serve CYCLES=${SERVE_CYCLES:-$(size 2 4)} tests/programs/sqlite.sh"
)
# The same on a volume that three metadata nodes serve, and what only concerns several.
nodes="env KESTREL_NODES=3"
suites+=(
    "nodes 900 tests/cluster/nodes.sh"
    "nodes-supervised 300 $nodes UPGRADES=${UPGRADES:-$(size 3 20)} tests/upgrade/upgrade.sh"
    "nodes-change 900 tests/cluster/nodes-change.sh"
    "nodes-subtree 300 $nodes tests/cluster/subtree.sh"
    "nodes-fence 600 tests/cluster/fence.sh"
    "nodes-leave 900 tests/cluster/leave.sh"
    "nodes-balance 600 tests/cluster/balance.sh"
    "nodes-elsewhere 600 tests/cluster/elsewhere.sh"
    "nodes-roles 600 tests/cluster/roles.sh"
    "nodes-admin 900 tests/cluster/nodes-admin.sh"
    "nodes-semantics 600 $nodes tests/posix/semantics.sh"
    "nodes-acls 600 $nodes env ACL_OPS=600 tests/posix/acls.sh"
    "nodes-cuts 900 tests/cluster/snapshots.sh"
    "nodes-snapshots 600 $nodes tests/posix/snapshots.sh"
    "nodes-clones 600 $nodes tests/posix/clones.sh"
    "nodes-remove 900 $nodes FILES=${FILES:-3000} tests/posix/remove.sh"
    "nodes-trash 900 $nodes FILES=${FILES:-300} tests/posix/trash.sh"
    "nodes-quotas 600 $nodes tests/posix/quotas.sh"
    "nodes-limits 900 env FILES=$(size 600 10000) WRITERS=$(size 16 64) tests/cluster/quotas.sh"
    "nodes-watch 300 $nodes tests/posix/watch.sh"
    "nodes-tiers 600 $nodes tests/s3/tiers.sh"
    "nodes-snapshot-verbs 600 $nodes tests/posix/snapshot_verbs.sh"
    "nodes-policies 300 $nodes tests/posix/policies.sh"
    "nodes-access-times 600 $nodes tests/posix/access_times.sh"
    "nodes-handles 300 $nodes NAMES=${NAMES:-$(size 2000 17000)} tests/posix/handles.sh"
    "nodes-large-dirs 900 $nodes NAMES=${NAMES:-$(size 20000 200000)} tests/posix/large-dirs.sh"
    "nodes-pjdfstest 600 $nodes tests/posix/pjdfstest.sh"
    "nodes-fsx 900 $nodes FSX_OPS=${NODES_FSX_OPS:-1000} tests/posix/fsx.sh"
    "nodes-compare 900 $nodes COMPARE_OPS=${NODES_COMPARE_OPS:-1500} COMPARE_SEEDS=2 tests/posix/compare.sh"
    "nodes-kill 900 $nodes CYCLES=${NODES_CYCLES:-3} tests/cluster/kill.sh"
    "nodes-history 600 $nodes OPS=500 ROUNDS=1 tests/cluster/history.sh"
    "nodes-cut 600 tests/cluster/cut.sh"
    "nodes-s3 600 tests/s3/nodes.sh"
    "nodes-git 900 $nodes tests/programs/git.sh"
    "nodes-sqlite 900 $nodes CYCLES=2 tests/programs/sqlite.sh"
)
# What the coordinator knows in etcd.
suites+=(
    "registry 600 tests/ha/registry.sh"
)
# Metadata in PostgreSQL.
pg="env KESTREL_METADATA=postgres"
suites+=(
    "pg-volume 300 tests/pg/volume.sh"
    "pg-standby 300 tests/pg/standby.sh"
    "pg-semantics 600 $pg tests/posix/semantics.sh"
    "pg-handles 300 $pg tests/posix/handles.sh"
    "pg-compare 600 $pg COMPARE_OPS=${PG_COMPARE_OPS:-1000} COMPARE_SEEDS=1 tests/posix/compare.sh"
    "pg-kill 600 $pg CYCLES=${PG_CYCLES:-4} tests/crash/kill.sh"
    "pg-nodes 600 tests/pg/nodes.sh"
    "ha-failover 600 tests/ha/failover.sh"
    "ha-faults 600 tests/ha/faults.sh ${HA_SECONDS:-60}"
    "ha-partitions 600 tests/ha/partitions.sh"
    "pg-nodes-semantics 600 env KESTREL_METADATA=postgres KESTREL_NODES=3 tests/posix/semantics.sh"
    "pg-nodes-snapshots 600 env KESTREL_METADATA=postgres KESTREL_NODES=3 tests/posix/snapshots.sh"
    "pg-nodes-compare 600 env KESTREL_METADATA=postgres KESTREL_NODES=3 COMPARE_OPS=${PG_COMPARE_OPS:-1000} COMPARE_SEEDS=1 tests/posix/compare.sh"
)
# Metadata in a bucket.
bucket="env KESTREL_METADATA=bucket"
encrypted="$bucket KESTREL_ENCRYPT=1"
storm="env STORM=$(size 2 20) LATENCY=$(size 0 20) PROCESSES=$(size 3 12)"
compare="COMPARE_OPS=${BUCKET_COMPARE_OPS:-1000} COMPARE_SEEDS=1"
suites+=(
    "bucket-volume 300 tests/bucket/volume.sh"
    "bucket-home 300 tests/bucket/home.sh"
    "bucket-encrypted 300 tests/bucket/encrypted.sh"
    "bucket-logdir 600 env CYCLES=${LOGDIR_CYCLES:-$(size 2 40)} tests/bucket/logdir.sh"
    "bucket-follow 300 $storm tests/bucket/follow.sh"
    "versions 300 env ROUNDS=$(size 3 12) tests/versions/publish.sh"
    "versions-s3 600 env VERSIONS_BUCKET=1 ROUNDS=$(size 3 12) tests/versions/publish.sh"
    "jobs 600 env DAGS=$(size 2 20) tests/jobs/jobs.sh"
    "ranks 600 env FILES=$(size 400 10000) tests/jobs/ranks.sh"
    "ranks-s3 900 env JOBS_BUCKET=1 tests/jobs/ranks.sh"
    "jobs-servers 600 env STORMS=$(size 2 20) tests/jobs/servers.sh"
    "jobs-servers-s3 900 env JOBS_BUCKET=1 STORMS=$(size 1 10) tests/jobs/servers.sh"
    "jobs-servers-encrypted 600 env KESTREL_ENCRYPT=1 STORMS=1 tests/jobs/servers.sh"
    "jobs-s3 900 env JOBS_BUCKET=1 DAGS=$(size 1 10) tests/jobs/jobs.sh"
    "curators 300 tests/versions/curators.sh"
    "curators-encrypted 300 env KESTREL_ENCRYPT=1 tests/versions/curators.sh"
    "sql 300 tests/versions/sql.sh"
    "sql-s3 300 env VERSIONS_BUCKET=1 QUERIES=600 tests/versions/sql.sh"
    "versions-compact 900 env ROUNDS=$(size 3 12) BIG=$(size 0 3000000) tests/versions/compact.sh"
    "versions-served 300 $serve tests/versions/publish.sh"
    "versions-nodes 600 $nodes tests/versions/publish.sh"
    "c-library 600 env C_SECONDS=$(size 3 30) C_KILLS=$(size 3 20) tests/access/c.sh"
    "hadoop 1800 env HADOOP_SPARK=$(size '' 1) tests/access/hadoop.sh"
    "wheel 900 tests/access/python.sh"
    "wheel-all 1800 env PYTHON_ALL=1 tests/access/python.sh"
    "wheel-torch 2400 env PYTHON_TORCH=1 tests/access/python.sh"
    "bucket-semantics 600 $bucket tests/posix/semantics.sh"
    "bucket-handles 300 $bucket tests/posix/handles.sh"
    "bucket-pjdfstest 300 $bucket tests/posix/pjdfstest.sh"
    "bucket-compare 600 $bucket $compare tests/posix/compare.sh"
    "bucket-kill 900 $bucket CYCLES=${BUCKET_CYCLES:-6} tests/crash/kill.sh"
    "bucket-failover 600 $bucket tests/ha/failover.sh"
    "bucket-encrypted-kill 900 $encrypted CYCLES=${BUCKET_CYCLES:-6} tests/crash/kill.sh"
    "bucket-encrypted-failover 600 $encrypted tests/ha/failover.sh"
    "bucket-nodes-semantics 600 $bucket KESTREL_NODES=3 tests/posix/semantics.sh"
    "bucket-nodes-snapshots 600 $bucket KESTREL_NODES=3 tests/posix/snapshots.sh"
    "bucket-nodes-compare 600 $bucket KESTREL_NODES=3 $compare tests/posix/compare.sh"
)
# Clients of S3 and WebDAV.
suites+=(
    "gateway 300 env GATEWAY_NIGHT= tests/access/gateway.sh"
    "gateway-night 1200 env GATEWAY_NIGHT=1 GATEWAY_KILLS=20 tests/access/gateway.sh"
    "nfs 300 tests/access/nfs.sh"
    "nfs-served 300 $serve tests/access/nfs.sh"
    "webdav 300 env WEBDAV_NIGHT= tests/access/webdav.sh"
    "webdav-night 600 env WEBDAV_NIGHT=1 tests/access/webdav.sh"
)
# Volumes for containers.
suites+=("csi 900 tests/access/csi.sh")
# What is installed.
suites+=(
    "packages 600 tests/packages/packages.sh"
    "deb 1800 tests/packages/deb.sh"
)
for script in tests/programs/*.sh; do
    suites+=("$(basename "$script" .sh) 900 $script")
done
# Suites that only run another suite on another kind of volume, without a case of their own, where
# other suites of CI have the same calls and the same kind of volume (s3-pjdfstest: pjdfstest and
# s3-compare). They run when they are named or with KESTREL_NIGHTLY=1.
at_night=(s3-pjdfstest nodes-git nodes-sqlite pg-semantics pg-handles pg-nodes-compare)
at_night+=(pg-nodes-snapshots bucket-handles bucket-pjdfstest bucket-nodes-semantics)
at_night+=(bucket-nodes-snapshots bucket-nodes-compare bucket-failover)
at_night+=(bucket-encrypted-kill bucket-encrypted-failover)
at_night+=(versions-served versions-nodes versions-compact sql-s3 jobs-s3 ranks-s3)
at_night+=(jobs-servers jobs-servers-s3 jobs-servers-encrypted)
at_night+=(curators curators-encrypted)
at_night+=(nfs-served gateway-night webdav-night wheel wheel-all wheel-torch hadoop csi deb)
# The other ways to serve the kernel (tests/shortcut/modes.sh). All suites above are in shortcut
# mode where the machine allows it, and take requests from /dev/fuse. Names:
# [plain-][uring-][serve-]SUITE. Those of $modes_in_ci run in CI, all others at night.
export KESTREL_TRANSPORT=${KESTREL_TRANSPORT:-device}
modes_in_ci=(plain-semantics plain-serve-compare uring-semantics uring-fsx uring-serve-compare
    plain-uring-pjdfstest)
for mode in plain- uring- plain-uring-; do
    for where in "" serve-; do
        for suite in semantics pjdfstest fsx compare git sqlite; do
            name=$mode$where$suite words=env script=tests/posix/$suite.sh
            case $mode in plain-*) words+=" KESTREL_SHORTCUT=off" ;; *) \
                words+=" KESTREL_SHORTCUT=on" ;; esac
            case $mode in *uring-) words+=" KESTREL_TRANSPORT=uring" ;; esac
            [ -z "$where" ] || words+=" KESTREL_SERVE=1"
            case $suite in
                fsx) words+=" FSX_OPS=${MODE_FSX_OPS:-500}" ;;
                compare) words+=" COMPARE_OPS=${MODE_COMPARE_OPS:-1500} COMPARE_SEEDS=2" ;;
                sqlite) words+=" CYCLES=${MODE_CYCLES:-2}" script=tests/programs/$suite.sh ;;
                git) script=tests/programs/$suite.sh ;;
            esac
            suites+=("$name 900 $words $script")
            among "$name" "${modes_in_ci[@]}" || at_night+=("$name")
        done
    done
done
# What only concerns the shortcut.
suites+=(
    "shortcut-cases 300 tests/shortcut/cases.sh"
    "shortcut-actors 900 env ACTOR_OPS=${ACTOR_OPS:-2500} HISTORY_OPS=${HISTORY_OPS:-500} tests/shortcut/actors.sh"
    "shortcut-fallback 300 tests/shortcut/fallback.sh"
    "uring-shortcut-cases 300 env KESTREL_TRANSPORT=uring tests/shortcut/cases.sh"
    "plain-shortcut-actors 900 env KESTREL_SHORTCUT=off tests/shortcut/actors.sh"
)
at_night+=(plain-shortcut-actors)
# Files that the kernel reads by itself from the disk cache.
suites+=("passthrough 600 tests/passthrough/passthrough.sh")
# Those that use all the processor time they get, and that no clock judges: beside the others.
beside=(sim-nodes sim stress-ng)
# Those that fill a disk, take it away, or judge by a clock: at the end, two at a time.
quiet=(power full-disk s3-cache serve-partition nodes-cut)

names=()
for suite in "${suites[@]}"; do names+=("${suite%% *}"); done
if [ "${1:-}" = --list ]; then
    if [ "${2:-}" = --nightly ]; then names=("${at_night[@]}"); fi
    printf '%s\n' "${names[@]}"
    exit
fi
for name in "$@"; do
    if ! among "$name" "${names[@]}"; then
        echo "no such suite: $name (tests/run.sh --list)" >&2
        exit 2
    fi
done

if [ ! -x "$KESTREL" ] || [ ! -x "$KESTREL_JUDGES/kestrel-sim" ]; then
    echo "$KESTREL or $KESTREL_JUDGES/kestrel-sim is not there: run make test-build first" >&2
    exit 2
fi

# counts LOG: what passed and failed, from "N passed, N failed" and from cargo's own lines.
counts() {
    awk '
        /^[0-9]+ passed, [0-9]+ failed$/ { plain_passed = $1; plain_failed = $3; plain = 1 }
        /^test result:/ { for (i = 2; i <= NF; i++) { if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1) } }
        END { if (plain) print plain_passed, plain_failed; else print p + 0, f + 0 }' "$1"
}

# unfinished LOG: what ran when the suite was ended: tests of cargo that began and did not end, else
# the last line that says how far it was.
unfinished() {
    awk '
        /^     Running |^   Doc-tests / { at = $0 }
        /^test .* has been running for over/ { slow[$2] = 1 }
        /^test .* \.\.\. / { delete slow[$2] }
        /^(ok|FAIL) / { at = "the check after: " $0 }
        END {
            for (test in slow) { print "running: " test; named = 1 }
            if (!named && at != "") print "running: " at
        }' "$1"
}

json_text() {
    python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()), end="")'
}

# wanted NAME: it is to be run.
wanted() {
    if [ ${#only[@]} -gt 0 ]; then
        among "$1" "${only[@]}"
    else
        [ "${KESTREL_NIGHTLY:-}" = 1 ] || ! among "$1" "${at_night[@]}"
    fi
}

is_quiet() {
    among "$1" "${quiet[@]}"
}

is_beside() {
    among "$1" "${beside[@]}"
}

failure_lines='^FAIL|^error|panicked|^test .* FAILED'
passed=0 failed=0
declare -A running=() started=() limits=() entries=()
costs=() failed_checks=()

# begin SUITE: starts it beside those that run.
begin() {
    local name limit command
    read -r name limit command <<<"$1"
    ! is_beside "$name" || command="nice -n 19 $command"
    rm -f "$logs/$name.cpu"
    # Jobs of a script ignore ^C, and what ignores it at its start cannot be told not to: the suites
    # are to have their own way. Word splitting is meant: the command is a list of words without
    # quotes.
    # shellcheck disable=SC2086
    timeout --kill-after=60 "$limit" env --default-signal=INT,QUIT tests/cost.py "$logs/$name.cpu" \
        $command >"$logs/$name.log" 2>&1 </dev/null &
    running[$!]=$name started[$name]=$SECONDS limits[$name]=$limit
}

# await: the next suite that ends, and its report.
await() {
    local pid status=0 name log seconds cpu good bad failures lines
    wait -n -p pid "${!running[@]}" || status=$?
    name=${running[$pid]}
    unset "running[$pid]"
    log=$logs/$name.log
    seconds=$((SECONDS - started[$name]))
    # Not there: the suite was killed at its limit.
    cpu=$(cat "$logs/$name.cpu" 2>/dev/null || echo null)
    costs+=("$seconds $cpu $name")
    read -r good bad < <(counts "$log")
    # A suite that ends badly, or tested nothing without saying why, has failed whatever it counted.
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    if [ "$((good + bad))" = 0 ] && ! grep -q '^skipped' "$log"; then bad=1; fi
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$bad" = 0 ]; then
        printf 'ok   %-16s %5d passed             %4d s\n' "$name" "$good" "$seconds"
        failures='""'
    else
        printf 'FAIL %-16s %5d passed %4d failed %4d s  %s\n' "$name" "$good" "$bad" "$seconds" \
            "$log"
        lines=$(grep -E "$failure_lines" "$log" | cut -c1-200 | head -n 10 || true)
        failed_checks+=("$name: ${lines:-exit status $status without a failed check}")
        # What a check has printed stands before its line.
        grep -E -B 12 "$failure_lines" "$log" | cut -c1-300 | head -n 40 |
            sed 's/^/       /' || true
        tail -n 40 "$log" | cut -c1-300 | sed 's/^/       | /'
        if [ "$status" = 124 ] || [ "$status" = 137 ]; then
            echo "       not finished after ${limits[$name]} s"
            unfinished "$log" | cut -c1-200 | sed 's/^/       /'
        fi
        [ "$name" != rust ] || echo "       property tests: PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
        failures=$({ grep -E "$failure_lines" "$log" || tail -n 20 "$log"; } | head -n 40 |
            json_text)
    fi
    entries[$name]="{\"name\":\"$name\",\"passed\":$good,\"failed\":$bad,\"seconds\":$seconds,\"cpu_seconds\":$cpu,\"status\":$status,\"log\":\"${log#"$ROOT"/}\",\"failures\":$failures}"
}

# Each suite is the child of a timeout, which passes on to it and to what it started what it is
# told.
interrupted() {
    trap '' INT TERM
    echo "interrupted: ending ${running[*]:-nothing}" >&2
    [ ${#running[@]} = 0 ] || kill -TERM "${!running[@]}" 2>/dev/null || true
    wait
    exit 130
}
trap interrupted INT TERM

# in_lanes: how many run that are not beside the others.
in_lanes() {
    local name count=0
    for name in "${running[@]}"; do is_beside "$name" || count=$((count + 1)); done
    echo "$count"
}

# begin_beside: the next of those beside the others, unless one runs.
begin_beside() {
    [ ${#waiting[@]} -gt 0 ] && [ "$(in_lanes)" = ${#running[@]} ] || return 0
    begin "${waiting[0]}"
    waiting=("${waiting[@]:1}")
}

# in_turn LANES IS: runs the suites of which the function IS is true, so many at a time.
in_turn() {
    local lanes=$1 is=$2 suite name
    for suite in "${suites[@]}"; do
        name=${suite%% *}
        if ! wanted "$name" || ! "$is" "$name"; then continue; fi
        while [ "$(in_lanes)" -ge "$lanes" ]; do await; begin_beside; done
        begin "$suite"
    done
    while [ ${#running[@]} -gt 0 ]; do await; begin_beside; done
}

is_usual() {
    ! is_quiet "$1" && ! is_beside "$1"
}

only=("$@") waiting=()
for suite in "${suites[@]}"; do
    name=${suite%% *}
    ! wanted "$name" || ! is_beside "$name" || waiting+=("$suite")
done
begin_beside
in_turn "${LANES:-3}" is_usual
in_turn 2 is_quiet

echo "longest suites: seconds on the clock, seconds of processor time, name"
printf '%s\n' "${costs[@]}" | sort -rn | head -n 10 | while read -r seconds cpu name; do
    printf '%7d %9s  %s\n' "$seconds" "$cpu" "$name"
done
total_cpu=$(printf '%s\n' "${costs[@]}" |
    awk '$2 != "null" { sum += $2 } END { printf "%.0f", sum }')
echo "$SECONDS s on the clock, $total_cpu s of processor time in ${#costs[@]} suites"

report_entries=()
for name in "${names[@]}"; do
    [ -z "${entries[$name]:-}" ] || report_entries+=("${entries[$name]}")
done
(
    IFS=,
    printf '{"passed":%d,"failed":%d,"seconds":%d,"cpu_seconds":%d,"suites":[%s]}\n' \
        "$passed" "$failed" "$SECONDS" "$total_cpu" "${report_entries[*]}"
) >"$report"
# Again at the end, where the part of a long output that is kept has them.
[ "$failed" = 0 ] || printf 'failed: %s\n' "${failed_checks[@]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
