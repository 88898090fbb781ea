#!/usr/bin/env bash
# Is what several clients see at once linearizable? kestrel-history on two mounts of one served
# volume: undisturbed, and while the server is killed with -9 and started again in the middle. No
# call may fail for that, and nothing may happen twice.
#
# SEED (default: random, printed), OPS of a thread (default 1500), ROUNDS undisturbed and with kills
# (default 3 each)
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
seed=${SEED:-$(date +%s)} ops=${OPS:-1500} rounds=${ROUNDS:-3}
RANDOM=$((seed % 32768))
echo "seed $seed"
SERVE_OPTIONS=(--lease 4s)
make_volume "$volume"
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"

# history SEED [OPTION…]: its verdict; says which calls nothing explains.
history() {
    local seed=$1
    shift
    timeout 300 kestrel-history run --dir "$a" --dir "$b" --threads 6 --ops "$ops" --seed "$seed" \
        "$@" 2>&1
}

for ((round = 1; round <= rounds; round++)); do
    check "two mounts, seed $((seed + round))" history $((seed + round))
    cat "$WORK/check.out"
done

check "two mounts, files overwritten in place, seed $seed" history "$seed" --overwriting 70
cat "$WORK/check.out"

for ((round = 1; round <= rounds; round++)); do
    history $((seed + 100 + round)) --pause-us 8000 >"$WORK/history.out" &
    load=$!
    kills=0
    while alive "$load"; do
        sleep "0.$(random 3 9)"
        alive "$load" || break
        kill_server "$volume"
        start_server "$volume"
        kills=$((kills + 1))
        sleep 1
    done
    check "two mounts, the server killed $kills times, seed $((seed + 100 + round))" wait "$load"
    cat "$WORK/history.out"
    check "each call had its answer all the same" grep -q '; 0 without an answer' \
        "$WORK/history.out"
done

umount_volume "$a"
# The judge can be trusted: what a kernel that keeps names for a second sees is not linearizable,
# and it says so.
mount_volume "$volume" "$a" --entry-timeout 1s
judged() {
    local status=0
    history "$seed" >"$WORK/history.out" || status=$?
    [ "$status" = 1 ] && grep -q 'NOT LINEARIZABLE' "$WORK/history.out"
}
check "names that one mount keeps for a second are noticed" judged

umount_volume "$a"
close_and_check "$volume" "$b"
summary
