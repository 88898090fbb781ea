#!/usr/bin/env bash
# A cluster that changes under load: a node is added to three, gets its part, hot names become
# exceptions, nodes are killed in the middle of a change, the fourth is drained. No operation of the
# load fails (change_load.py), every byte is verified through the other mount, and a mount that did
# nothing meanwhile goes on. What is refused, and in which words.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b idle=$WORK/idle
SERVE_OPTIONS=(--lease 4s)
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
mount_volume "$volume" "$idle"

# json FIELD: of what comes from `kestrel cluster … --json`.
json() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# slots NODE: how many it owns, by the present table.
slots() {
    "$KESTREL" cluster status "$url" --json |
        python3 -c 'import json, sys; print(next(n["slots"] for n in json.load(sys.stdin)["nodes"] if n["node"] == int(sys.argv[1])))' "$1"
}

# changes TEXT COMMAND…: a change of the table. What is locked at the wrong moment keeps it from
# happening, so it is tried again.
changes() {
    local text=$1 try
    shift
    for ((try = 0; try < 8; try++)); do
        if timeout 120 "$@" >"$WORK/change.out" 2>&1; then
            ok "$text"
            return
        fi
        grep -qE "locks|not up|no connection|does not answer" "$WORK/change.out" || break
        sleep 1
    done
    cat "$WORK/change.out"
    fail "$text"
}

# Many directories with the same name in them.
python3 - "$a" <<'PY'
import os, sys
for number in range(400):
    os.makedirs(f"{sys.argv[1]}/hot/{number}")
    for name in ["Makefile"] + [f"other-{number}-{more}" for more in range(2)]:
        with open(f"{sys.argv[1]}/hot/{number}/{name}", "w") as file:
            file.write(f"{number} {name}")
PY
exec 8<"$idle/hot/7/Makefile"

# What is refused.
read -r port other < <(free_ports 2)
fourth=$(node_dir "$volume" 4)
refuses "add-node at a node that does not lead" "node 1 leads" \
    "$KESTREL" cluster add-node "$(node_dir "$volume" 2)" --node "127.0.0.1:$port"
refuses "add-node with an address that only listens" "connect to it" "$KESTREL" cluster add-node \
    "$volume" --node "0.0.0.0:$port"
refuses "drain of a node that is not there" "no such node" "$KESTREL" cluster drain "$url" --node 9
refuses "balance without a node that is not there" "no such node" "$KESTREL" cluster balance \
    "$url" --without 9
kill_node "$volume" 3
refuses "add-node while a node is down says which" "waiting for node 3" "$KESTREL" cluster \
    add-node "$volume" --node "127.0.0.1:$port" --wait 2s
refuses "and gives up" "not up after 2 s: node 3" "$KESTREL" cluster add-node "$volume" \
    --node "127.0.0.1:$port" --wait 2s
refuses "balance while a node is down says which" "node 3" "$KESTREL" cluster balance "$url"
start_node "$volume" 3

touch "$WORK/begun"
python3 "$ROOT/tests/cluster/change_load.py" "$a" "$b" "$WORK/stop" >"$WORK/load.out" 2>&1 &
load=$!
sleep 2

# A fourth node.
check "a node is announced" sh \
    -c "'$KESTREL' cluster add-node '$volume' --node '127.0.0.1:$port' >'$WORK/token'"
check "it joins" "$KESTREL" cluster join "$WORK/token" "$fourth"
refuses "its token is of no other node" "that of node 4" "$KESTREL" cluster join "$WORK/token" \
    "$WORK/no" --node 3
NODES=4
check "it serves when it has joined" start_node "$volume" 4
NODE_ADDRESSES[$volume]+=",127.0.0.1:$port"
[ "$(slots 4)" = 0 ] && ok "it owns nothing" || fail "it owns $(slots 4) slots"
refuses "its token does not make a second one" "has joined" "$KESTREL" cluster join "$WORK/token" \
    "$WORK/no"
refuses "a second process for it" "in use by process" "$KESTREL" serve "$fourth" \
    --listen 127.0.0.1:0

check "what balance would do is told" "$KESTREL" cluster balance "$url" --dry-run
changes "it gets its part" "$KESTREL" cluster balance "$url"
[ "$(slots 4)" -gt 3000 ] && ok "it owns a quarter of the slots" || fail "it owns $(slots 4) slots"
changes "hot names become exceptions" "$KESTREL" cluster balance "$url" --epsilon 0.002
"$KESTREL" cluster status "$url" >"$WORK/status.out" || fail "the status is not good"
grep -qE '^table [0-9]+, [1-9][0-9]* exceptions' "$WORK/status.out" && ok "they are told of" ||
    { cat "$WORK/status.out" && fail "no exceptions"; }

# Nodes are killed while the table changes.
for node in 2 4 1; do
    if [ "$(slots 4)" = 0 ]; then command=(balance "$url"); else command=(drain "$url" --node 4); fi
    timeout 120 "$KESTREL" cluster "${command[@]}" >"$WORK/killed.out" 2>&1 &
    change=$!
    sleep "$(ms "$(random 50 600)")"
    kill_node "$volume" "$node" || fail "node $node was not there"
    sleep "$(ms "$(random 0 500)")"
    check "node $node, killed in the middle of a change, starts" start_node "$volume" "$node"
    wait "$change" || true
    changes "after that ${command[0]} goes through" "$KESTREL" cluster "${command[@]}"
done
changes "the fourth node gets its part" "$KESTREL" cluster balance "$url"

# A lock that is held keeps its slot where it is, and says so: one of the nodes cannot be drained.
exec 7<"$idle/hot/7/Makefile"
flock 7
kept=
for node in 1 2 3 4; do
    timeout 120 "$KESTREL" cluster drain "$url" --node "$node" >"$WORK/locked.out" 2>&1 && continue
    grep -q "keeps locks of" "$WORK/locked.out" && kept=$node
    break
done
if [ -n "$kept" ]; then ok "a file that is locked stays where it is"; else
    cat "$WORK/locked.out"
    fail "nobody said that a file is locked"
fi
flock -u 7
changes "without it everybody gets a part again" "$KESTREL" cluster balance "$url"

changes "the fourth node is drained" "$KESTREL" cluster drain "$url" --node 4
[ "$(slots 4)" = 0 ] && ok "it owns nothing any more" || fail "it owns $(slots 4) slots"
sleep 1
touch "$WORK/stop"
wait "$load" || true
counted cat "$WORK/load.out"

# The mount that slept.
[ "$(cat <&8)" = "7 Makefile" ] && ok "a mount that did nothing meanwhile reads what it has open" ||
    fail "it does not"
exec 7<&- 8<&-
check "and what there is" python3 - "$idle" <<'PY'
import os, sys
for number in range(400):
    base = f"{sys.argv[1]}/hot/{number}"
    assert len(os.listdir(base)) == 3
    assert open(f"{base}/Makefile").read() == f"{number} Makefile"
    os.rename(f"{base}/Makefile", f"{base}/index.html")
    open(f"{base}/new", "w").write("new")
PY
check "fsck --data while all serve" fsck_volume "$volume" --data
stop_server "$volume"
check "all nodes start again with the table they have" start_server "$volume"
check "and reach each other" settled "$volume"

# An old copy of the fourth node, and one that is made anew.
stop_server "$volume"
check "fsck --data at rest" fsck_volume "$volume" --data
start_server "$volume"
kill_node "$volume" 4
check "its token makes a directory while it is down" "$KESTREL" cluster join "$WORK/token" \
    "$WORK/anew"
refuses "but the others know that it is another one" "is not the node 4 that this cluster knows" \
    "$KESTREL" serve "$WORK/anew"
start_node "$volume" 4
for mount in "$a" "$b" "$idle"; do
    check "unmounts $(basename "$mount")" umount_volume "$mount"
done
stop_server "$volume"
check "fsck --data in the end" fsck_volume "$volume" --data
summary
