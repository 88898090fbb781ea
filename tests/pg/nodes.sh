#!/usr/bin/env bash
# Three metadata nodes with their rows in one PostgreSQL database: how they are formed and what is
# refused, which node has which session, a process that is stopped, nodes and the database killed
# under load, dumps that are loaded into nodes of other numbers and engines, and back.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3 KESTREL_METADATA=postgres
. "$(dirname "$0")/../lib.sh"
needs_kestrel
# What becomes of nodes that nobody takes over (tests/ha has the others).
SERVE_OPTIONS=(--lease 4s --failover off)
volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")

# holder NODE: the process that has the shard of a node.
holder() {
    psql_at "$PG_PORT" \
        "SELECT a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
        WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint << 32 | l.objid::bigint = hashtextextended('kestrelfs volume $1', 0)"
}
# is_held NODE, is_free NODE
is_held() { [ -n "$(holder "$1")" ]; }
is_free() { [ -z "$(holder "$1")" ]; }

for node in 1 2 3; do
    check "node $node has its rows there and says who it is" \
        test "$(holder $node | cut -d' ' -f1-4)" = "kestrel node $node $(node_pid "$volume" $node)"
    dir=$(node_dir "$volume" $node)
    check "and none in its directory, which root alone reads" test ! -e "$dir/meta" \
        -a "$(stat -c %a "$dir/kestrel.json")" = 600
done
refuses "the schema is the volume's" "another volume" \
    "$KESTREL" cluster init "$WORK/no" --node 127.0.0.1:1 --node 127.0.0.1:2 \
    --metadata "$(pg_url volume)"
mkdir "$WORK/copy" && cp "$(node_dir "$volume" 2)/kestrel.json" "$WORK/copy/"
refuses "a copy of a node's directory while the node runs" 'kestrel node 2' timeout 60 "$KESTREL" \
    serve "$WORK/copy" --listen 127.0.0.1:0
check "all nodes are up" settled "$volume"
check "no node is away after that" "$KESTREL" cluster status "$url"

mount_volume "$volume" "$mnt"
mkdir "$mnt/d"
for n in $(seq 100); do echo "$n" >"$mnt/d/$n"; done
head -c 3000000 /dev/urandom >"$mnt/big"
sum=$(sha256sum <"$mnt/big")

# A process that is stopped has no shard any more, and when it goes on gets it back, as nobody else
# has come.
pid=$(node_pid "$volume" 2)
kill -STOP "$pid"
check "the shard of a stopped process is free" wait_until 20 is_free 2
kill -CONT "$pid"
check "and its own again when it goes on" wait_until 20 is_held 2
check "all nodes are up" settled "$volume"
check "files are there" test "$(cat "$mnt/d/77")" = 77

# A node that has lost its directory joins again, and its rows stay as they are.
third=$(node_dir "$volume" 3)
kill_node "$volume" 3
mv "$third" "$WORK/lost"
check "the node joins again" bash \
    -c "'$KESTREL' cluster token '$volume' | '$KESTREL' cluster join - '$third' --node 3"
rm -r "$third"
mv "$WORK/lost" "$third"
start_node "$volume" 3
check "all nodes are up" settled "$volume"
check "all files are there" test "$(find "$mnt/d" -type f | wc -l)" = 100

# Nodes and the database die under load: no call fails, nothing acknowledged is lost.
mkdir "$mnt/load"
kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 4 --seed 7 --ms 16000 \
    >"$WORK/run.out" 2>&1 &
load=$!
for node in 1 2 3; do
    sleep 1
    kill_node "$volume" "$node" || fail "node $node was not there"
    # Once for longer than anybody has a lease.
    if [ "$node" = 2 ]; then pg_kill one && sleep 7 && pg_run one "$PG_PORT"; fi
    start_node "$volume" "$node"
    sleep 1
    pg_kill one
    pg_run one "$PG_PORT"
done
check "no call failed" wait "$load"
check "operations were acknowledged meanwhile" grep -E '^[0-9]{2,} operations acknowledged' \
    "$WORK/run.out"
check "what was acknowledged is there" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
check "fsck while all serve" fsck_volume "$volume" --data
kill_mount "$volume" "$mnt"
pg_kill one
pg_run one "$PG_PORT"
check "fsck at rest after kill -9 of all" fsck_volume "$volume" --data
mount_volume "$volume" "$mnt"
check "what was acknowledged is there" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
check "a dump while all serve" "$KESTREL" dump "$url" "$WORK/three.dump"
check "unmounts" umount_volume "$mnt"
stop_server "$volume"
check "so does the node that formed the cluster" bash \
    -c "'$KESTREL' cluster token '$volume' | '$KESTREL' cluster join - '$WORK/first' --node 1"
check "and has its rows" "$KESTREL" fsck "$WORK/first" "$(node_dir "$volume" 2)" \
    "$(node_dir "$volume" 3)"

# others VOLUME: the directories of its nodes but the first.
others() {
    for ((node = 2; node <= NODES; node++)); do node_dir "$1" "$node"; done
}
# move DUMP OBJECTS VOLUME: a dump into the nodes of a new volume.
move() {
    # shellcheck disable=SC2046 # a word a directory
    check "into $(basename "$3")" "$KESTREL" load "$1" "$3" $(others "$3") --objects "$2"
    check "fsck of $(basename "$3")" fsck_volume "$3" --data
}
# Without servers: loads and checks are of nodes at rest.
SERVING=''
check "into one node with a directory" "$KESTREL" load "$WORK/three.dump" "$WORK/single" \
    --objects "$volume/objects"
check "and from there into one with a database" bash \
    -c "$KESTREL dump $WORK/single $WORK/single.dump && \
    $KESTREL load $WORK/single.dump $WORK/alone --objects $volume/objects --metadata '$(pg_url \
    alone)'"
check "fsck of that" "$KESTREL" fsck "$WORK/alone" --data
NODES=2 KESTREL_METADATA=''
make_volume "$WORK/two"
SERVING=1
move "$WORK/three.dump" "$volume/objects" "$WORK/two"
check "a dump of two nodes with directories" "$KESTREL" dump "$WORK/two" "$WORK/two.dump" \
    --node "$(node_dir "$WORK/two" 2)"
NODES=3 KESTREL_METADATA=postgres SERVING=''
make_volume "$WORK/again"
SERVING=1
move "$WORK/two.dump" "$WORK/two/objects" "$WORK/again"
mount_volume "$WORK/again" "$mnt"
check "every byte is there" test "$(sha256sum <"$mnt/big")" = "$sum" -a "$(cat "$mnt/d/77")" = 77
close_and_check "$WORK/again" "$mnt"
summary
