#!/usr/bin/env bash
# kill -9 of the server under concurrent load of a mount, again and again, while the load goes on:
# at random instants, and at named points in the code (KESTREL_CRASH_AT). The load sees pauses and
# no error; after each run everything acknowledged is there, on this mount, on a fresh one, and
# after a kill of both; fsck is clean.
#
# CYCLES (default 40), SEED (default: random, printed), THREADS (default 8), KILLS of the server in
# a cycle (default 3)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt fresh=$WORK/fresh
cycles=${CYCLES:-40} threads=${THREADS:-8} kills=${KILLS:-3}
seed=${SEED:-$(date +%s)}
RANDOM=$((seed % 32768))
echo "seed $seed"
# Those that a server passes while clients work.
mapfile -t points < <("$KESTREL" crash-points | grep -E '^(engine|node|reap|server)\.')
# Sessions of killed mounts end soon.
SERVE_OPTIONS=(--lease 4s)
make_volume "$volume" --grace 1s
mount_volume "$volume" "$mnt"

declare -A hit=()
acknowledged=0 killed=0 at_point=0 in_recovery=0

# start_armed POINT COUNT: starts the server with a point armed. If it dies of it while starting, it
# is started without.
start_armed() {
    if [ -n "$1" ]; then
        if KESTREL_CRASH_AT=$1:$2 start_server "$volume" --metadata-memory 16M 2>/dev/null; then
            return
        fi
        in_recovery=$((in_recovery + 1)) hit[$1]=1
    fi
    start_server "$volume"
}

# Whether the server runs, or all nodes do.
all_up() {
    local node
    for ((node = 1; node <= NODES; node++)); do
        [ -n "$(node_pid "$volume" "$node")" ] || return
    done
}

# all_alive PID…
all_alive() {
    local pid
    for pid in "$@"; do alive "$pid" || return; done
}

verify() {
    kestrel-crashload verify --dir "$1" --log "$2" --mode process
}

for ((cycle = 1; cycle <= cycles; cycle++)); do
    before=$FAILED
    mkdir "$mnt/c$cycle"
    kestrel-crashload run --dir "$mnt/c$cycle" --log "$WORK/$cycle.log" --threads "$threads" \
        --seed $((seed + cycle)) \
        --ms $((kills * 2500)) >"$WORK/run.out" 2>&1 &
    load=$!
    # Old trees go while the load runs: deletion is part of it.
    rm -rf "$mnt/c$((cycle - 2))" &
    remover=$!
    point=
    for ((kill = 0; kill < kills; kill++)); do
        pids=()
        for ((node = 1; node <= NODES; node++)); do pids+=("$(node_pid "$volume" "$node")"); done
        # One of them, of several nodes.
        pid=${pids[$(random 0 $((NODES - 1)))]}
        # At an armed point it goes by itself, and is given time. Or another one does, which must
        # not be away for a lease.
        ticks=$(random 2 50)
        [ -z "$point" ] || ticks=150
        for ((; ticks > 0; ticks--)); do
            all_alive "${pids[@]}" || break
            sleep 0.02
        done
        if all_alive "${pids[@]}"; then
            kill_pid "$pid"
            killed=$((killed + 1))
        else
            at_point=$((at_point + 1)) hit[${point:-none}]=1
        fi
        point=
        if [ $((kill % 2)) = 0 ] && [ ${#points[@]} -gt 0 ]; then
            point=${points[$(random 0 $((${#points[@]} - 1)))]}
        fi
        # Some come with every batch, others once a second or more rarely.
        case $point in
            engine.log.* | node.*) count=$(random 1 300) ;;
            *) count=$(random 1 4) ;;
        esac
        start_armed "$point" "$count"
    done
    status=0
    # The armed point of the last start may still be ahead.
    until wait_until 1 gone "$load" && wait_until 1 gone "$remover"; do
        if ! all_up; then
            at_point=$((at_point + 1)) hit[${point:-none}]=1
            start_server "$volume"
        fi
    done
    wait "$load" || status=$?
    wait "$remover" || fail "cycle $cycle: rm -rf failed, seed $seed"
    if [ "$status" != 0 ] || ! grep -q 'ended by: done' "$WORK/run.out"; then
        cat "$WORK/run.out"
        fail "cycle $cycle: the load saw an error, seed $seed"
    fi
    kill_server "$volume" || true
    start_server "$volume"
    if ! verify "$mnt/c$cycle" "$WORK/$cycle.log" >"$WORK/verify.out" 2>&1; then
        cat "$WORK/verify.out"
        fail "cycle $cycle: verify on the same mount, seed $seed"
    fi
    acked=$(sed -n 's/^\([0-9]*\) operations acknowledged.*/\1/p' "$WORK/run.out")
    acknowledged=$((acknowledged + ${acked:-0}))
    if [ $((cycle % 3)) = 0 ]; then
        kill_mount "$volume" "$mnt"
        mount_volume "$volume" "$mnt"
    fi
    mount_volume "$volume" "$fresh"
    if ! verify "$fresh/c$cycle" "$WORK/$cycle.log" >"$WORK/verify.out" 2>&1; then
        cat "$WORK/verify.out"
        fail "cycle $cycle: verify on a fresh mount, seed $seed"
    fi
    umount_volume "$fresh"
    if ! fsck_volume "$volume"; then fail "cycle $cycle: fsck, seed $seed"; fi
    if [ "$FAILED" != "$before" ]; then break; fi
    PASSED=$((PASSED + 1))
    rm -f "$WORK/$((cycle - 2)).log"
done
echo "$PASSED cycles, $acknowledged acknowledged operations, $killed kills, $at_point crashes at points, $in_recovery in recovery"
echo "points reached: ${#hit[@]} of ${#points[@]}: ${!hit[*]}"
close_and_check "$volume" "$mnt"
summary
