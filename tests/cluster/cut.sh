#!/usr/bin/env bash
# Three metadata nodes and two clients in network namespaces of their own, joined by a bridge. Links
# between two nodes, between a client and a node, of one node to all, are cut, both ways and one
# way, lose packets at random, and heal, under loads with a log outside and a history that is
# judged. Then longer cuts: what needs no node that is cut off goes on, what does waits, and ends
# with EIO at its deadline (cut.py).
#
# SEED (default: random, printed), ROUNDS of cuts under load (default 9), LONGEST of them in
# milliseconds (default 1800)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cluster/network.sh
. "$(dirname "$0")/network.sh"
needs_kestrel

seed=${SEED:-$(date +%s)} rounds=${ROUNDS:-9}
RANDOM=$((seed % 32768))
echo "seed $seed"
volume=$WORK/volume a=$WORK/a b=$WORK/b
lease=4 deadline=3
make_network 1 2 3 a b

SERVE_HOST="10.99.0.{}"
IN_SERVER=(nsenter "--net=/run/netns/$net{}")
SERVE_OPTIONS=(--lease "${lease}s" --access open)
make_volume "$volume" --grace 1s
IN_CLIENT=(nsenter "--net=/run/netns/${net}a")
mount_volume "$volume" "$a"
IN_CLIENT=(nsenter "--net=/run/netns/${net}b")
mount_volume "$volume" "$b" --deadline ${deadline}s
check "two clients and three nodes in namespaces" settled "$volume"

# cut ONE OTHER…: no packet between ONE and the OTHERs arrives.
cut() {
    local other one=$1
    for other in "${@:2}"; do lose "$one" "$other" && lose "$other" "$one"; done
}

# Two ways each, or one: lose NODE FROM.
cuts=(
    "cut 1 2" "cut a 2" "lose 3 1" "cut 3 1 2 a b" "lose 1 b" "cut 2 3" "lose b 3" "cut 1 2 3 a b" \
        "lose 2 1"
)

# loads NAME SEED MILLISECONDS: begins a load on one mount and a history on both.
loads() {
    mkdir "$a/$1" "$a/$1-history"
    kestrel-crashload run --dir "$a/$1" --log "$WORK/$1.log" --threads 4 --seed "$2" --ms "$3" \
        >"$WORK/$1.out" 2>&1 &
    load=$!
    timeout 300 kestrel-history run --dir "$a/$1-history" --dir "$b/$1-history" --threads 4 \
        --seed "$2" \
        --ops $(($3 / 50)) --pause-us 40000 >"$WORK/$1-history.out" 2>&1 &
    history=$!
}

# judged NAME TEXT: what the loads saw was right, and what they were told is there.
judged() {
    check "$2: the load saw no error" wait "$load"
    check "$2: it was not cut short" grep -q 'ended by: done' "$WORK/$1.out"
    tail -n 3 "$WORK/$1.out"
    check "$2: two mounts' history is linearizable" wait "$history"
    cat "$WORK/$1-history.out"
    for mount in "$a" "$b"; do
        check "$2: everything acknowledged is at $(basename "$mount")" \
            kestrel-crashload verify --dir "$mount/$1" --log "$WORK/$1.log" --mode process
    done
    check "$2: fsck" fsck_volume "$volume"
}

loads cuts "$seed" $((rounds * (600 + ${LONGEST:-1800} / 2)))
for ((round = 0; round < rounds; round++)); do
    sleep "$(ms "$(random 100 600)")"
    ${cuts[$((round % ${#cuts[@]}))]}
    # Longer than a lender waits for a silent leader, now and then; shorter than the deadline of the
    # second client.
    sleep "$(ms "$(random 100 "${LONGEST:-1800}")")"
    heal_all
done
judged cuts "$rounds cuts"

for which in "${machines[@]}"; do
    for from in "${machines[@]}"; do
        [ "$which" = "$from" ] || lose "$which" "$from" -m statistic --mode random \
            --probability 0.02
    done
done
loads lossy $((seed + 1)) 4000
wait_until 30 gone "$load" || true
wait_until 60 gone "$history" || true
heal_all
judged lossy "2 % of all packets lost"

counted python3 "$ROOT/tests/cluster/cut.py" "$a" "$b" --network "$net" --deadline "$deadline"

check "unmounts the first" umount_volume "$a"
check "fsck --data while all serve" fsck_volume "$volume" --data
check "unmounts the second" umount_volume "$b"
stop_server "$volume"
check "fsck --data of all nodes at rest" fsck_volume "$volume" --data
summary
