#!/usr/bin/env bash
# Quotas of a volume that three nodes serve (statement Q11): many writers at a limit over two mounts
# are let through exactly, also while nodes are killed; what counts is exact after that, after a
# node has joined and another has left, in a dump, and in a volume that the dump was loaded into.
#
# FILES at the limit (default 1500), WRITERS (default 16), KILLS of a node (default 3)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
py=$ROOT/tests/cluster/quotas.py
# remove-node has a timeout of its own.
CHANGE_SECONDS=200
files=${FILES:-1500} writers=${WRITERS:-16} kills=${KILLS:-3}
SERVE_OPTIONS=(--lease 4s)
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
check "all nodes are up" settled "$volume"

quota() {
    timeout 120 "$KESTREL" quota "$@"
}

# A quota of a tree that is there, by one mount; it counts at the other.
mkdir -p "$a/tree/d/e"
for number in $(seq 1 40); do echo some >"$a/tree/d/e/$number"; done
ln "$a/tree/d/e/1" "$a/tree/d/linked"
check "a quota is set" quota set "$a/tree" --size 1M --files 50
check "it counts what is there" prints '"files": 43' quota get "$b/tree" --json
check "what counts is what there is" quota check "$b"
for number in $(seq 1 7); do touch "$b/tree/$number"; done
refuses "one more by either mount" 'quota exceeded' touch "$a/tree/8"
refuses "one more" 'quota exceeded' touch "$b/tree/8"
rm "$a/tree/1"
check "what one mount frees the other uses" touch "$b/tree/8"
check "df shows it" prints '^ *1024 +50$' bash -c "df -k --output=size,itotal '$b/tree/d' |
    tail -n 1"

# Writers at a limit.
mkdir "$a/race"
check "a limit for many" quota set "$a/race" --files "$files"
check "exactly so many fit" python3 "$py" race "$writers" "$files" "$a/race" "$b/race"
check "and count" quota check "$a"
rm -r "$a/race"

# Nodes are killed under writers.
mkdir "$b/churn"
check "a limit" quota set "$b/churn" --files 60
python3 "$py" churn $((kills * 4 + 4)) 60 "$a/churn" "$b/churn" >"$WORK/churn.out" 2>&1 &
churn=$!
sleep 1
for ((kill = 0; kill < kills; kill++)); do
    node=$((kill % 3 + 1))
    kill_node "$volume" "$node" || fail "node $node was not there"
    sleep "$(ms "$(random 0 500)")"
    start_node "$volume" "$node"
    sleep 3
done
check "never more than the limit" wait "$churn"
cat "$WORK/churn.out"
check "all nodes are up again" settled "$volume"
check "what counts is what there is after that" quota check "$a"
mkdir "$a/after"
check "a limit after that" quota set "$a/after" --files 100
check "all of it can be used" python3 "$py" race 4 100 "$a/after" "$b/after"

# A quota is made and removed while a node is killed.
for point in quota-set.recorded quota-set.before-record quota-part.returned; do
    kill_node "$volume" 3 || fail "node 3 was not there"
    KESTREL_CRASH_AT=$point start_node "$volume" 3
    mkdir -p "$a/$point"
    quota set "$a/$point" --files 3 >"$WORK/set.out" 2>&1 &
    setter=$!
    (for number in 1 2 3 4 5; do touch "$b/$point/$number" 2>/dev/null || true; done) &
    toucher=$!
    sleep 1
    kill_node "$volume" 3 || true
    start_node "$volume" 3
    wait "$toucher"
    wait "$setter" || quota set "$a/$point" --files 3 >/dev/null
    check "$point: what counts is what there is" quota check "$b"
    for number in 1 2 3 4 5; do touch "$b/$point/$number" 2>/dev/null || true; done
    check "$point: nothing above what was there" \
        bash -c "[ \"\$(ls '$a/$point' | wc -l)\" -ge 3 ]"
    refuses "$point: nothing grows" 'quota exceeded' touch "$a/$point/more"
done

# The placement map changes.
read -r port < <(free_ports 1)
fourth=$(node_dir "$volume" 4)
check "a node is announced" sh \
    -c "'$KESTREL' cluster add-node '$volume' --node '127.0.0.1:$port' >'$WORK/token'"
check "it joins" "$KESTREL" cluster join "$WORK/token" "$fourth"
NODES=4
check "it serves" start_node "$volume" 4
NODE_ADDRESSES[$volume]+=",127.0.0.1:$port"
changes "it gets its part" "$KESTREL" cluster balance "$url"
check "after a node has joined" quota check "$a"
refuses "its limits hold" 'quota exceeded' touch "$b/after/more"
changes "a node leaves" "$KESTREL" cluster remove-node "$url" --node 2 --timeout 120s
check "after it has left" quota check "$b"
refuses "the limits hold" 'quota exceeded' touch "$a/after/more"
rm "$a/after"/w0-0
check "and room is found" touch "$b/after/more"
check "fsck while all serve" fsck_volume "$volume"

# By a dump.
check "a dump" "$KESTREL" dump "$url" "$WORK/dump"
umount_volume "$a"
umount_volume "$b"
SERVING=''
check "it goes into one node" "$KESTREL" load "$WORK/dump" "$WORK/single" \
    --objects "$volume/objects"
check "with its quotas" prints '/after' quota list "$WORK/single"
check "which are exact" quota check "$WORK/single"
summary
