#!/usr/bin/env bash
# kill -9 of the mounting process under concurrent load. In every second cycle at a random instant,
# in the others at a named point in the code (KESTREL_CRASH_AT): a point not seen yet is given the
# time it needs (deletion waits for its turn, rows go to disk when memory is full). After each, fsck
# is clean and every acknowledged operation is there: the log that the workload keeps outside proves
# it. In the end every point that a mount passes by itself has been reached.
#
# CYCLES (default 200), SEED (default: random, printed), THREADS (default 8)
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
cycles=${CYCLES:-200} threads=${THREADS:-8}
seed=${SEED:-$(date +%s)}
RANDOM=$((seed % 32768))
echo "seed $seed"

# Those that a mount passes without a cache, a re-packing or an administrator: the others are
# provoked by tests/s3/points.sh, crates/cli/tests/online.rs and keys.rs. Here each would wait for
# nothing in every round.
points=()
mapfile -t points < <("$KESTREL" crash-points |
    grep -E '^(engine|bucket|node|data|client\.flush|client\.compact|reap)\.')
# Metadata elsewhere passes no points of the embedded engine's.
case "${KESTREL_METADATA:-}" in
    '') others='^bucket' ;;
    # Those of a log directory are for tests/bucket/logdir.sh.
    bucket) others='^(engine|bucket\.local)' ;;
    *) others='^(bucket|engine)' ;;
esac
mapfile -t points < <(printf '%s\n' "${points[@]}" | grep -vE "$others")
declare -A hit=()
acknowledged=0 at_point=0 in_recovery=0

# background_work DIR: what makes the rare points come: small writes all over a file, until slices
# are folded, and more files within their records than 16 MiB of memory for metadata hold, until
# rows go to disk. Ends when the mount does. DIR is there: made here, it could be made below the
# mount when that has died first.
background_work() {
    python3 - "$1" <<'PY'
import os, random, sys
try:
    file = os.open(f"{sys.argv[1]}/stack", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(file, bytes(1 << 20), 0)
    for n in range(8000):
        with open(f"{sys.argv[1]}/{n}", "wb") as small:
            small.write(os.urandom(4096))
        if n % 10 == 0:
            os.pwrite(file, os.urandom(700), random.randrange(1 << 20))
            os.fsync(file)
except OSError:
    pass
PY
}

# A short grace period, so that the deletion of data is crashed into as well.
make_volume "$volume" --grace 1s

# closed VOLUME: its last mount stored everything and said so.
closed() {
    grep -oE '( serves on | closed$)' "$1/mount.log" | tail -n 1 | grep -q closed
}

# remove_leftovers CYCLE: what removals that were killed have left of older trees, or the volume
# grows from cycle to cycle and all the time goes to fsck. The tree before CYCLE's stays: the next
# cycle looks at it once more and removes it under load.
remove_leftovers() {
    find "$mnt" -mindepth 1 -maxdepth 1 ! -name "c$1" ! -name "c$(($1 - 1))" -exec rm -rf {} +
}

# keep_evidence CYCLE: the volume, the log and what was found, outside $WORK.
keep_evidence() {
    local to=${KESTREL_EVIDENCE:-$ROOT/target/crash-evidence}/kill-$seed-$1
    mkdir -p "$to"
    umount_volume "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null || true
    cp -a "$volume" "$WORK"/*.log "$WORK"/*.out "$to"/ 2>/dev/null || true
    echo "evidence: $to"
}

for ((cycle = 1; cycle <= cycles; cycle++)); do
    before=$FAILED
    point=
    if [ $((cycle % 2)) = 0 ] && [ ${#points[@]} -gt 0 ]; then
        point=${points[$(((cycle / 2) % ${#points[@]}))]}
        # Some points come once a second, others with every batch.
        count=$(random 1 "$(random 1 "$(random 1 2000)")")
        [ -n "${hit[$point]:-}" ] || count=1
        export KESTREL_CRASH_AT=$point:$count
    fi
    if ! mount_volume "$volume" "$mnt" ${point:+--metadata-memory 16M} 2>"$WORK/mount.out"; then
        # The point was reached while opening: a crash in recovery. Then it must come up without.
        umount -l "$mnt" 2>/dev/null || true
        if [ -n "$point" ]; then
            in_recovery=$((in_recovery + 1)) hit[$point]=1
        else
            cat "$WORK/mount.out"
            fail "cycle $cycle: does not mount"
            keep_evidence "$cycle"
            break
        fi
        unset KESTREL_CRASH_AT
        mount_volume "$volume" "$mnt"
    fi
    unset KESTREL_CRASH_AT
    # The last cycle's tree once more: what was settled stays.
    for old in $((cycle - 1)) $((cycle - 2)); do
        # No log: the mount died before the load began.
        { [ -d "$mnt/c$old" ] && [ -e "$WORK/$old.log" ]; } || continue
        kestrel-crashload verify --dir "$mnt/c$old" --log "$WORK/$old.log" --mode process \
            >"$WORK/verify.out" 2>&1 && continue
        # The armed point may be reached here as well: then the mount is gone and proves nothing.
        [ -n "$point" ] && ! alive "$pid" && continue
        [ -n "$point" ] && ! stat "$mnt" >/dev/null 2>&1 && continue
        cat "$WORK/verify.out"
        fail "cycle $cycle: the tree of cycle $old, seed $seed"
    done
    if [ "$FAILED" != "$before" ]; then
        keep_evidence "$cycle"
        break
    fi
    if pid=$(volume_pid "$volume") && mkdir "$mnt/c$cycle" 2>/dev/null; then
        length=$(random 50 700)
        patient='' worker=''
        if [ -n "$point" ] && [ -z "${hit[$point]:-}" ]; then
            patient=1 length=6500
            # Fails if the mount has died already: then so does the work.
            mkdir "$mnt/work$cycle" 2>/dev/null || true
            background_work "$mnt/work$cycle" 2>/dev/null &
            worker=$!
        fi
        kestrel-crashload run --dir "$mnt/c$cycle" --log "$WORK/$cycle.log" --threads "$threads" \
            --seed $((seed + cycle)) \
            --ms $((length + 3000)) >"$WORK/run.out" 2>&1 &
        load=$!
        # On a busy machine it may take longer to begin than the mount is to live.
        load_begun "$load" "$WORK/$cycle.log"
        # Old trees go while the load runs: deletion is part of it.
        rm -rf "$mnt/c$((cycle - 2))" "$mnt/work$((cycle - 2))" 2>/dev/null &
        remover=$!
        load_status=0 clean=
        if [ -n "$patient" ]; then
            for ((tick = 0; tick < length / 50; tick++)); do
                alive "$pid" || break
                sleep 0.05
            done
            if alive "$pid"; then
                # Nothing may be busy when it is unmounted: the load ends first.
                wait "$load" || load_status=$?
                wait "$remover" || true
                wait "$worker" || true
                load=
                timeout 60 "$KESTREL" umount "$mnt" >/dev/null 2>&1 || true
                closed "$volume" && clean=1
            fi
        else
            sleep "$(ms "$length")"
        fi
        if [ -n "$point" ] && [ -z "$clean" ] && ! alive "$pid"; then
            at_point=$((at_point + 1)) hit[$point]=1
        fi
        if [ -z "$clean" ]; then
            kill_mount "$volume" "$mnt" "$pid"
        fi
        # It must be gone before the next mount, or it would go on there.
        [ -z "$worker" ] || wait "$worker" || true
        if [ -n "$load" ]; then
            wait "$remover" || true
            wait "$load" || load_status=$?
        fi
        # With an armed point the mount may be gone before the load has begun: that is no fault.
        if [ "$load_status" != 0 ] &&
            ! { [ -n "$point" ] && grep -q '^kestrel-crashload: .*\(ENOTCONN\|ECONNABORTED\)' \
            "$WORK/run.out"; }; then
            cat "$WORK/run.out"
            fail "cycle $cycle: wrong while the mount was alive, seed $seed"
        fi
        acked=$(sed -n 's/^\([0-9]*\) operations acknowledged.*/\1/p' "$WORK/run.out")
        acknowledged=$((acknowledged + ${acked:-0}))
    else
        [ -z "$point" ] || { at_point=$((at_point + 1)) hit[$point]=1; }
        umount -l "$mnt" 2>/dev/null || true
    fi
    if ! fsck_volume "$volume"; then
        fail "cycle $cycle: fsck, seed $seed ${point:+at $point:$count}"
    fi
    if [ -e "$WORK/$cycle.log" ]; then
        mount_volume "$volume" "$mnt"
        if ! kestrel-crashload verify --dir "$mnt/c$cycle" --log "$WORK/$cycle.log" --mode process \
            >"$WORK/verify.out" 2>&1; then
            cat "$WORK/verify.out"
            fail "cycle $cycle: verify, seed $seed ${point:+at $point:$count}"
        fi
        remove_leftovers "$cycle"
        umount_volume "$mnt"
        rm -f "$WORK/$((cycle - 2)).log"
    fi
    if [ "$FAILED" != "$before" ]; then
        keep_evidence "$cycle"
        break
    fi
    PASSED=$((PASSED + 1))
    [ $((cycle % 20)) != 0 ] ||
        echo "cycle $cycle: $acknowledged operations acknowledged so far, all there"
done
echo "$PASSED cycles, $acknowledged acknowledged operations, $at_point crashes at points, $in_recovery in recovery"
missed=()
for point in "${points[@]}"; do [ -n "${hit[$point]:-}" ] || missed+=("$point"); done
echo "points reached: ${#hit[@]} of ${#points[@]}; not reached: ${missed[*]:-none}"
# One may be missed: not all can be provoked, and a busy machine gets less done in its time.
[ "$cycles" -lt 60 ] || check "all points but one at most were reached" test ${#missed[@]} -le 1
check "fsck --data at the end" fsck_volume "$volume" --data
summary
