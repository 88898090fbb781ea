#!/usr/bin/env bash
# Three metadata nodes that serve one volume to two mounts: how a cluster is formed and what is
# refused, what one mount does seen from the other (two.py), what depends on where things lie
# (nodes.py), nodes that are killed under load and started again, what is told of one that is away,
# locks of all kinds over a restart of all nodes.
#
# KILLS of a node under load (default 6)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
lease=5 kills=${KILLS:-6}
SERVE_OPTIONS=(--lease "${lease}s")
make_volume "$volume" --grace 1s
stop_server "$volume"
mkdir "$WORK/mnt"
url=$(serve_url "$volume")

second=$(node_dir "$volume" 2)
refuses "fsync is refused for several nodes" commit \
    "$KESTREL" cluster init "$WORK/no" --node 127.0.0.1:1 --node 127.0.0.1:2 --durability fsync
refuses "a number that is out of range" "1 to 3" sh \
    -c "'$KESTREL' cluster token '$volume' | '$KESTREL' cluster join - '$WORK/no' --node 4"
refuses "a damaged token" "not whole" sh -c "'$KESTREL' cluster token '$volume' | cut -c1-99 | '$KESTREL' cluster join - '$WORK/no' --node 2"
for verb in "mount $second $WORK/mnt" "status $second" "compact $second"; do
    # shellcheck disable=SC2086 # words
    refuses "kestrel ${verb%% *} of one node's part" "only a part of the volume" "$KESTREL" $verb
done
for verb in "gc $second" "dump $second $WORK/no" "load $WORK/no $second" \
    "config $second --compress lz4" "key rotate $second"; do
    # shellcheck disable=SC2086 # words
    refuses "kestrel ${verb%% *} without all nodes" "missing are 1 |No such file" "$KESTREL" $verb
done
refuses "kestrel format of one node's part" "node 2 of a cluster" "$KESTREL" format "$second" \
    --force
refuses "fsck without all nodes" "missing are 1 .*, 3" "$KESTREL" fsck "$second"
check "a new cluster is clean" fsck_volume "$volume"
start_server "$volume"
check "a new cluster is clean while it serves" fsck_volume "$volume"

mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
check "all nodes are up" settled "$volume"
refuses "a second process for a node" "in use by process" "$KESTREL" serve "$second" \
    --listen 127.0.0.1:0
refuses "a node that is up cannot join again" "has joined" \
    sh -c "'$KESTREL' cluster token '$volume' | '$KESTREL' cluster join - '$WORK/no' --node 2"

counted python3 "$ROOT/tests/cluster/two.py" "$a" "$b"
counted python3 "$ROOT/tests/cluster/nodes.py" "$a" "$b"
check "fsck while all serve" fsck_volume "$volume" --data

# A node is away: what it does not own goes on, and everybody is told.
kill_node "$volume" 3
status=0
"$KESTREL" cluster status "$url" >"$WORK/status.out" 2>&1 || status=$?
if [ "$status" = 1 ] && grep -qE '^ +3 .* down ' "$WORK/status.out"; then
    ok "a node that is away is told of"
else
    cat "$WORK/status.out"
    fail "the status of a cluster with a node that is away: exit code $status"
fi
start_node "$volume" 3

# Nodes are killed under load; the load sees pauses and no error.
mkdir "$a/load"
kestrel-crashload run --dir "$a/load" --log "$WORK/load.log" --threads 6 --seed 5 \
    --ms $((kills * 2500)) >"$WORK/run.out" 2>&1 &
load=$!
for ((kill = 0; kill < kills; kill++)); do
    sleep "$(ms "$(random 300 1500)")"
    node=$((kill % 3 + 1))
    kill_node "$volume" "$node" || fail "node $node was not there"
    sleep "$(ms "$(random 0 500)")"
    start_node "$volume" "$node"
done
load_ended "$load" "$kills nodes killed under load"
all_acknowledged "$a" "$b"
check "fsck after the kills" fsck_volume "$volume"

# What the tests of locks run while they go on.
kill_script "$volume" >"$WORK/kill-server"
cat >"$WORK/start-server" <<SH
for dir in "$volume" "$second" "$(node_dir "$volume" 3)"; do
    for try in 1 2 3 4 5; do
        "$KESTREL" serve "\$dir" ${SERVE_OPTIONS[*]} >/dev/null && continue 2
        sleep 0.2
    done
    exit 1
done
SH
counted python3 "$ROOT/tests/cluster/locks.py" "$a" "$b" --kill-server "bash $WORK/kill-server" \
    --start-server "sh $WORK/start-server" \
    --mount-a-pid "$(server_pid "$a")" --lease "$lease"
# The last test killed the first mount.
umount -l "$a"
umount_volume "$b"
stop_server "$volume"
check "fsck --data of all nodes at rest" fsck_volume "$volume" --data
summary
