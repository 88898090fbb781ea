#!/usr/bin/env bash
# Faults at random, from a seed, while a load works: nodes and the coordinator are killed and
# stopped, handed over and taken back, the database is killed and started again, or its standby
# promoted, members of etcd die. No call fails and nothing acknowledged is lost. What was done and
# how long calls took goes to target/ha-report.json.
#
#   tests/ha/faults.sh [SECONDS]    how long (default 60; the acceptance asks for 600)
#   SEED                            another sequence
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=4
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/lib.sh"
needs_kestrel
ETCD_PORT=$((20000 + RANDOM % 5000 * 2))
. "$(dirname "$0")/etcd.sh"
seconds=${1:-60} seed=${SEED:-1}
# Longer than a process that hangs is waited for: locks outlast that.
SERVE_OPTIONS=(--lease 20s)
report=${REPORT:-$ROOT/target/ha-report.json}
volume=$WORK/volume a=$WORK/a b=$WORK/b
at_end() { end_stand_ins "$WORK/volume"; }
AT_END=at_end AFTER_ALL=stop_etcd

ha_cluster "$volume"
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
mkdir "$a/load" "$a/probe" "$WORK/local"
allow=$(allowances "$b")
python3 "$ROOT/tests/ha/pauses.py" run "$b/probe" "$WORK/pauses" &
probe=$!
kestrel-crashload run --dir "$a/load" --log "$WORK/load.log" --threads 4 --seed "$seed" \
    --ms $((seconds * 1000)) >"$WORK/run.out" 2>&1 &
load=$!
# The same calls on the volume and on the local file system, one after the other, until the time is
# over.
(
    run=0
    while [ "$SECONDS" -lt "$seconds" ]; do
        run=$((run + 1))
        kestrel-compare --a "$b" --b "$WORK/local" --allow "$allow" --ops 300 \
            --seed $((seed * 1000 + run)) \
            >"$WORK/compare.out" 2>&1 || exit 1
    done
) &
compare=$!

RANDOM=$seed
SECONDS=0
events=()
while [ "$SECONDS" -lt $((seconds - 5)) ]; do
    node=$((RANDOM % 4 + 1)) kind=$((RANDOM % 10))
    from=$(now)
    pid=$(serving_pid "$volume" "$node")
    case $kind in
    0 | 1 | 2 | 8 | 9) # A coordinator's holder in etcd lives on for some seconds.
        what="kill node $node"
        kill -9 "$pid"
        wait_for 40 has_moved "$volume" "$node" "$pid" || fail "$what: nobody took it over"
        ;;
    3)
        what="stop node $node for a second"
        kill -STOP "$pid"
        sleep 1
        kill -CONT "$pid"
        ;;
    4)
        what="stop node $node until it is taken over"
        kill -STOP "$pid"
        wait_for 40 has_moved "$volume" "$node" "$pid" || fail "$what: nobody took it over"
        kill -CONT "$pid"
        wait_for 40 gone "$pid" || fail "$what: it did not end"
        ;;
    5)
        member=$((RANDOM % 3 + 1))
        what="kill member $member of etcd"
        etcd_kill "$member"
        sleep 2
        etcd_start || fail "$what: it does not come back"
        ;;
    6)
        what="kill and start PostgreSQL"
        pg_kill "$PRIMARY"
        pg_run "$PRIMARY" "${PORT_OF[$PRIMARY]}" || fail "$what: it does not come back"
        ;;
    7)
        what="kill PostgreSQL and promote its standby"
        before=$PRIMARY
        ha_promote || fail "$what"
        ha_standby "$before" || fail "$what: no new standby"
        ;;
    esac
    wait_for 60 settled "$volume" || fail "$what: not all is well after a minute"
    # Each to its own machine again, so that there is always one where the URL says.
    if [ -n "$(stands_in "$volume" "$node")" ]; then
        start_node "$volume" "$node" --take-over || fail "$what: node $node is not taken back"
        wait_for 60 settled "$volume" || fail "$what: not all is well after a minute"
    fi
    read -r ms errors < <(python3 "$ROOT/tests/ha/pauses.py" longest "$WORK/pauses" "$from")
    [ "$errors" = 0 ] || fail "$what: $errors calls failed"
    echo "     $what: longest call $ms ms"
    events+=("{\"fault\": \"$what\", \"longest_call_ms\": $ms, \"errors\": $errors}")
    sleep 0.$((RANDOM % 10))
done
ok "${#events[@]} faults"

load_ended "$load" "no call of the load failed"
if wait "$compare"; then ok "the same calls had the same answers as on the local file system"; else
    tail -n 30 "$WORK/compare.out"
    fail "calls differ"
fi
kill -TERM "$probe"
wait "$probe" || true
all_acknowledged "$a" "$b"
check "fsck --data while all serve" fsck_volume "$volume" --data
mkdir -p "$(dirname "$report")"
(
    IFS=,
    echo "{\"seed\": $seed, \"seconds\": $seconds, \"injected\": ${#events[@]}, \"failed\": $FAILED, \"faults\": [${events[*]}]}"
) >"$report"
umount_volume "$b"
umount_volume "$a"
summary
