#!/usr/bin/env bash
# Nodes that are started again under other addresses: the others reach them there, mounts go on with
# what is open and locked and see no error, new mounts and `kestrel cluster status` learn the
# address from any node, and all of that holds over restarts, of all nodes at once too.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
SERVE_OPTIONS=(--lease 20s)
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")
mount_volume "$volume" "$a"
check "all nodes are up" settled "$volume"

# elsewhere NODE [OPTION…]: starts it at a port where it has never been.
declare -A port
elsewhere() {
    local node=$1 try
    shift
    for ((try = 0; try < 20; try++)); do
        read -r "port[$node]" < <(free_ports 1)
        if timeout 120 "$KESTREL" serve "$(node_dir "$volume" "$node")" \
            --listen "127.0.0.1:${port[$node]}" "${SERVE_OPTIONS[@]}" "$@" \
            >"$WORK/serve.out" 2>&1 9>&-; then return; fi
        grep -qi 'address already in use' "$WORK/serve.out" || break
    done
    cat "$WORK/serve.out" && return 1
}
# at NODE ADDRESS [URL]: whether the status has it there, asked at this URL, and everything well. A
# node that starts again is well when its clients have claimed their opens, at the latest after a
# lease: the wait is several times that.
at() {
    wait_until 90 is_at "$@" || { cat "$WORK/status.out" && return 1; }
}
is_at() {
    "$KESTREL" cluster status "${3:-$url}" >"$WORK/status.out" 2>&1 &&
        grep -qE "^ +$1 +$2 " "$WORK/status.out"
}
end_node() { kill -TERM "$(node_pid "$volume" "$1")" && wait_until 60 gone_node "$1"; }
gone_node() { [ -z "$(node_pid "$volume" "$1")" ]; }
url_of() { echo "kestrel://127.0.0.1:$1/${url##*/}"; }

refuses "an address that nobody can connect to" "HOST:PORT" "$KESTREL" serve \
    "$(node_dir "$volume" 2)" --advertise 0.0.0.0:9440
refuses "an address without a port" "HOST:PORT" "$KESTREL" serve "$(node_dir "$volume" 2)" \
    --advertise node2

# What is open, locked and being written when a node goes elsewhere, for as long as it takes.
mkdir "$a/load"
python3 "$ROOT/tests/cluster/elsewhere.py" "$a" 45 >"$WORK/held.out" 2>&1 &
held=$!
kestrel-crashload run --dir "$a/load" --log "$WORK/load.log" --threads 4 --seed 7 --ms 25000 \
    >"$WORK/run.out" 2>&1 &
load=$!
sleep 2
kill_node "$volume" 2
check "a node starts at another address" elsewhere 2
check "the others reach it there" at 2 "127.0.0.1:${port[2]}"
sleep 1
end_node 3
check "another one, which ends cleanly, does" elsewhere 3
check "the others reach it there, too" at 3 "127.0.0.1:${port[3]}"
check "a new mount learns of both from the third" mount_volume "$volume" "$b"
check "it sees the same" test -d "$b/load"
sleep 1
# Back, and away again: the newest start counts.
kill_node "$volume" 2
check "a node goes back to where it was" start_node "$volume" 2
check "and is reached there" settled "$volume"
kill_node "$volume" 2
check "and elsewhere once more" elsewhere 2
check "and is reached there, too" at 2 "127.0.0.1:${port[2]}" "$(url_of "${port[3]}")"
load_ended "$load" "the load saw no error"
all_acknowledged "$a" "$b"

# Two at once: each finds the other by the one that stays.
kill_node "$volume" 2
kill_node "$volume" 3
check "two nodes go elsewhere at once" elsewhere 2
check "the second of them" elsewhere 3
check "all find each other" at 2 "127.0.0.1:${port[2]}"
# All restart where they are now, though the table says otherwise.
for node in 1 2 3; do kill_node "$volume" "$node"; done
start_node "$volume" 1
for node in 2 3; do
    check "node $node starts again where it was last" timeout 120 "$KESTREL" serve \
        "$(node_dir "$volume" "$node")" --listen "127.0.0.1:${port[$node]}" \
        "${SERVE_OPTIONS[@]}"
done
check "all find each other after a restart of all" at 3 "127.0.0.1:${port[3]}"
status=0
wait "$held" || status=$?
counted cat "$WORK/held.out"
[ "$status" = 0 ] || fail "what was held: status $status"

# The node that makes the next table has been told where nodes are; in the table they stay where
# they joined.
check "a table changes while nodes are elsewhere" timeout 60 "$KESTREL" cluster coordinator "$url" \
    --node 2
check "and they are where they were" at 2 "127.0.0.1:${port[2]}"
umount_volume "$b"
check "unmounts" umount_volume "$a"
stop_server "$volume"
check "fsck --data finds nothing" fsck_volume "$volume" --data

# A machine is gone without a word: no packet says that its node has ended, and connections to it
# seem to be there for two thirds of the lease. The node starts on another machine, and mounts do
# not wait for that.
# shellcheck source=tests/cluster/network.sh
. "$(dirname "$0")/network.sh"
make_network 1 2 3 4 a
volume=$WORK/machines
SERVE_HOST="10.99.0.{}"
IN_SERVER=(nsenter "--net=/run/netns/$net{}")
IN_CLIENT=(nsenter "--net=/run/netns/${net}a")
SERVE_OPTIONS=(--lease 120s --access open)
make_volume "$volume"
mount_volume "$volume" "$a"
check "three nodes on machines of their own" settled "$volume"
python3 "$ROOT/tests/cluster/elsewhere.py" "$a" 12 >"$WORK/held.out" 2>&1 &
held=$!
sleep 2
for from in 1 3 4 a; do lose "$from" 2 && lose 2 "$from"; done
kill_node "$volume" 2
check "the node of a lost machine starts on another one" inside 4 timeout 60 "$KESTREL" serve \
    "$(node_dir "$volume" 2)" --listen 0.0.0.0:9440 \
    --advertise "$(address_of 4):9440" "${SERVE_OPTIONS[@]}"
status=0
wait "$held" || status=$?
counted cat "$WORK/held.out"
pause=$(sed -n 's/.*longest pause was \([0-9]*\)\..*/\1/p' "$WORK/held.out")
if [ "$status" = 0 ] && [ "${pause:-99}" -lt 60 ]; then
    ok "nothing waited for a machine that is gone: ${pause} s"
else
    fail "a machine that is gone: status $status, a pause of ${pause:-no} s"
fi
check "the lost machine's node is where it says" settled "$volume"
check "unmounts" umount_volume "$a"
stop_server "$volume"
summary
