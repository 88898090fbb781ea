#!/usr/bin/env bash
# Snapshots of a volume that three nodes serve: one instant over all nodes while two mounts write,
# with nodes that are killed while snapshots and clones are made and read; snapshots while the
# placement map changes, after a node has joined and another was drained; fsck, dump and load with
# snapshots (docs/semantics.md: statements S10 and C7).
#
# KILLS of a node while snapshots are made (default 3)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b copy=$WORK/copy
py=$ROOT/tests/cluster/snapshots.py trees=$ROOT/tests/posix/snapshots.py
kills=${KILLS:-3}
SERVE_OPTIONS=(--lease 4s)
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
check "all nodes are up" settled "$volume"

# equals NAME SNAPSHOT: it is as the copy.
equals() {
    check "$1: every attribute, link and byte" python3 "$trees" compare "$copy" "$2"
    check "$1: diff -r" diff -r --no-dereference --exclude=fifo "$copy" "$2"
}

# A snapshot by one mount is there at the other, and at once as it was.
mkdir "$a/tree"
python3 "$trees" make "$a/tree" 1
cp -a --sparse=auto "$a/tree" "$copy"
check "mkdir in .snap" mkdir "$a/tree/.snap/before"
check "it is there at the other mount" test -d "$b/tree/.snap/before"
python3 "$trees" churn "$b/tree" 2
equals "after changes" "$b/tree/.snap/before"
check "rename at the other mount" mv "$b/tree/.snap/before" "$b/tree/.snap/kept"
check "it has the new name here" test -d "$a/tree/.snap/kept"

# One instant, while nodes are killed.
mkdir "$a/w" "$a/w/one" "$a/w/other" "$a/clones"
for number in $(seq 0 15); do mkdir "$a/w/one/$number" "$a/w/other/$number"; done
mkdir "$WORK/run" "$a/w/.snap/empty"
python3 "$py" write "$WORK/run/stop" "$a/w/one" "$b/w/other" >"$WORK/write.out" 2>&1 &
writer=$!
python3 "$py" take "$WORK/run/stop" "$b/w" "$WORK/run/list" >"$WORK/take.out" 2>&1 &
taker=$!
python3 "$py" read "$WORK/run/stop" "$a/tree/.snap/kept" "$copy" >"$WORK/read.out" 2>&1 &
reader=$!
python3 "$py" clone "$WORK/run/stop" "$a/w" "$a/clones" "$WORK/run/clones" \
    >"$WORK/clone.out" 2>&1 &
cloner=$!
python3 "$py" compare "$WORK/run/stop" "$b/w" empty >"$WORK/compare.out" 2>&1 &
comparer=$!
sleep 2
for ((kill = 0; kill < kills; kill++)); do
    node=$((kill % 3 + 1))
    kill_node "$volume" "$node" || fail "node $node was not there"
    sleep "$(ms "$(random 0 500)")"
    start_node "$volume" "$node"
    sleep 1
done
touch "$WORK/run/stop"
check "no call of the writer failed" wait "$writer"
check "no snapshot failed" wait "$taker"
check "no read of a snapshot failed" wait "$reader"
check "no clone failed" wait "$cloner"
check "S10 each comparison with now is of one instant" wait "$comparer"
cat "$WORK/compare.out"
cat "$WORK/take.out"
check "each is one instant" python3 "$py" judge "$a/w" "$WORK/run/list"
check "at the other mount, too" python3 "$py" judge "$b/w" "$WORK/run/list"
cat "$WORK/clone.out"
check "C7 each clone is one instant" python3 "$py" judge "$b/clones" "$WORK/run/clones"
check "C7 and at the other mount" python3 "$py" judge "$a/clones" "$WORK/run/clones"

# A clone needs all nodes.
kill_node "$volume" 3
refuses "C7 a clone without a node" 'cluster status' \
    "$KESTREL" clone "$a/tree" "$a/clones/early"
check "C7 nothing of it is there" test ! -e "$b/clones/early"
start_node "$volume" 3
check "C7 with all nodes it is made" "$KESTREL" clone "$a/tree@kept" "$a/clones/late"
equals "C7 the clone" "$b/clones/late"

# The placement map changes: history goes with its rows.
read -r port < <(free_ports 1)
fourth=$(node_dir "$volume" 4)
check "a node is announced" sh \
    -c "'$KESTREL' cluster add-node '$volume' --node '127.0.0.1:$port' >'$WORK/token'"
check "it joins" "$KESTREL" cluster join "$WORK/token" "$fourth"
NODES=4
check "it serves" start_node "$volume" 4
NODE_ADDRESSES[$volume]+=",127.0.0.1:$port"
changes "it gets its part" "$KESTREL" cluster balance "$url"
equals "after a node has joined" "$a/tree/.snap/kept"
check "each is one instant still" python3 "$py" judge "$b/w" "$WORK/run/list"
mkdir "$b/late"
python3 "$trees" make "$b/late" 3
rm -rf "$copy" && cp -a --sparse=auto "$b/late" "$copy"
check "a snapshot with four nodes" mkdir "$b/late/.snap/four"
python3 "$trees" churn "$a/late" 4
equals "of four nodes" "$a/late/.snap/four"
mkdir "$b/late/.snap/five"
differs() {
    "$KESTREL" snapshot diff "$1" four five
}
differs "$a/late" >"$WORK/told"
check "a diff of four nodes" test -s "$WORK/told"
changes "a node is drained" "$KESTREL" cluster drain "$url" --node 2
equals "after a node was drained" "$b/late/.snap/four"
check "the same diff" cmp <(differs "$b/late") "$WORK/told"
check "fsck while all serve" fsck_volume "$volume" --data

# What is removed goes, at all nodes.
for name in $(ls "$a/w/.snap"); do rmdir "$a/w/.snap/$name"; done
check "none is listed" test -z "$(ls "$b/w/.snap")"
equals "after removals" "$a/late/.snap/four"

# By a dump, and as a mount of its own.
check "a dump while all serve" "$KESTREL" dump "$url" "$WORK/dump"
umount_volume "$a"
umount_volume "$b"
"$KESTREL" mount "$url:/late@four" "$b" --allow-other >/dev/null
equals "mounted" "$b"
umount_volume "$b"
stop_server "$volume"
check "fsck --data of all nodes at rest" fsck_volume "$volume" --data
SERVING=''
check "the dump goes into one node" "$KESTREL" load "$WORK/dump" "$WORK/single" \
    --objects "$volume/objects"
check "the same diff of one node" cmp <(differs "$WORK/single:/late") "$WORK/told"
"$KESTREL" mount "$WORK/single:/late@four" "$b" --allow-other >/dev/null
equals "of one node" "$b"
umount_volume "$b"
summary
