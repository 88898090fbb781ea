#!/usr/bin/env bash
# Nodes that leave a cluster. Four nodes under load (change_load.py), with files that are open, one
# of them deleted, and one that is appended to: the fourth leaves, no operation fails, every byte is
# verified. Its process ends by itself. Then one that was only announced, one that joined, one that
# was added and lost before it came; at last all but one. What is refused, and in which words. A
# smaller cluster from a dump of it.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=4
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b idle=$WORK/idle
SERVE_OPTIONS=(--lease 4s)
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")
for mount in "$a" "$b" "$idle"; do mount_volume "$volume" "$mount"; done

# remove NODE [OPTION…]
remove() {
    local node=$1
    shift
    timeout 200 "$KESTREL" cluster remove-node "$url" --node "$node" --timeout 120s "$@"
}

# members: the numbers of the nodes, by the present table.
members() {
    "$KESTREL" cluster status "$url" --json |
        python3 -c 'import json, sys; print(*[n["node"] for n in json.load(sys.stdin)["nodes"]])'
}

# are_members NUMBER…
are_members() {
    local found
    found=$(members) && [ "$found" = "$*" ] && ok "the nodes are $*" ||
        fail "the nodes are ${found:-unknown}, not $*"
}

# figures: what the volume holds, as clients and as its nodes tell it.
figures() {
    stat -f -c "%b %c %d" "$a" && df --output=iused "$a" | tail -n 1
    "$KESTREL" status "$url" --json |
        python3 -c 'import json, sys; s = json.load(sys.stdin); print(*[s[n] for n in ("files", "directories", "bytes")])'
    du -s --apparent-size "$a" | cut -f 1
}

# announce: a node at a free port; its token goes to $WORK/token, its number to stdout.
announce() {
    read -r port < <(free_ports 1)
    "$KESTREL" cluster add-node "$volume" --node "127.0.0.1:$port" --json >"$WORK/announced" &&
        python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); open(sys.argv[2], "w").write(s["token"]); print(s["node"])' \
            "$WORK/announced" "$WORK/token"
}

# A file that is appended to, and one that has been deleted, from before the node leaves until
# after.
cat >"$WORK/appender.py" <<'PY'
import os, sys, time
here, there, stop = sys.argv[1:4]
fds = [os.open(f"{here}/appended-{n}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for n in range(12)]
gone = [os.open(f"{there}/gone-{n}", os.O_RDWR | os.O_CREAT) for n in range(12)]
for number in range(12):
    os.unlink(f"{here}/gone-{number}")
lines = 0
while not os.path.exists(stop):
    for number, fd in enumerate(fds):
        os.write(fd, b"%011d\n" % lines)
    for fd in gone:
        os.pwrite(fd, b"%011d\n" % lines, 12 * lines)
    if lines % 50 == 0:
        for fd in fds + gone:
            os.fsync(fd)
    lines += 1
    time.sleep(0.01)
expected = b"".join(b"%011d\n" % line for line in range(lines))
for number, fd in enumerate(fds):
    os.close(fd)
    assert open(f"{there}/appended-{number}", "rb").read() == expected, number
for fd in gone:
    assert os.pread(fd, len(expected) + 1, 0) == expected
    os.close(fd)
PY

# Files that are open and read only when a file appears. (Not held by this script: what it starts
# would hold them, too.)
cat >"$WORK/holder.py" <<'PY'
import os, sys, time
base, name, stop = sys.argv[1:4]
fds = [os.open(f"{base}/kept/{number}/{name}", os.O_RDONLY) for number in range(20)]
open(f"{stop}.begun", "w").close()
while not os.path.exists(stop):
    time.sleep(0.1)
for number, fd in enumerate(fds):
    assert os.read(fd, 1 << 20).decode() == f"{number} {name}" * 500
PY

python3 - "$a" <<'PY'
import os, sys
for number in range(200):
    os.makedirs(f"{sys.argv[1]}/kept/{number}")
    for name in range(3):
        with open(f"{sys.argv[1]}/kept/{number}/{name}", "w") as file:
            file.write(f"{number} {name}" * 500)
PY
check_kept() {
    python3 - "$1" <<'PY'
import os, sys
base = f"{sys.argv[1]}/kept"
assert sorted(os.listdir(base)) == sorted(map(str, range(200)))
for number in range(200):
    assert sorted(os.listdir(f"{base}/{number}")) == ["0", "1", "2"]
    for name in range(3):
        assert open(f"{base}/{number}/{name}").read() == f"{number} {name}" * 500
PY
}
python3 "$WORK/holder.py" "$idle" 0 "$WORK/read" &
holder=$!
wait_until 30 test -e "$WORK/read.begun"

refuses "the node that leads changes cannot leave" "node 1 leads changes" remove 1
refuses "a node that is not there" "no such node" remove 9
refuses "and one that does not leave does not stay" "not leaving" remove 2 --undo

python3 "$ROOT/tests/cluster/change_load.py" "$a" "$b" "$WORK/stop" >"$WORK/load.out" 2>&1 &
load=$!
python3 "$WORK/appender.py" "$a" "$b" "$WORK/stop" >"$WORK/appender.out" 2>&1 &
appender=$!
# Names below a directory with a change feed, by both mounts.
watch_py=$ROOT/tests/posix/watch.py
mkdir "$a/fed"
"$KESTREL" policy set "$a/fed" feed=1d
mkdir "$a/fed/shared"
python3 "$watch_py" load "$a/fed" 1 10 >"$WORK/fed.1" &
fed=($!)
python3 "$watch_py" load "$b/fed" 2 10 >"$WORK/fed.2" &
fed+=($!)
sleep 3
fourth=$(node_pid "$volume" 4)
check "a node leaves under load" remove 4
are_members 1 2 3
check "its process ends by itself" wait_until 60 gone "$fourth"
grep -q "node 4 has left the cluster" "$(node_dir "$volume" 4)/serve.log" && ok "and says why" ||
    fail "its log does not say why"
sleep 2
touch "$WORK/stop"
wait "$load" || true
counted cat "$WORK/load.out"
if wait "$appender"; then ok "what was appended, and what was deleted, is complete"; else
    cat "$WORK/appender.out"
    fail "what was appended, or deleted"
fi
check "changes below a feed went on" wait "${fed[@]}"
# fed TOP FILE: the events that are kept of the feed there.
fed() { timeout 120 "$KESTREL" watch "$1" --since oldest --no-wait --json | grep '"event"' >"$2"; }
check "none failed" grep -c ' changes$' "$WORK/fed.1" "$WORK/fed.2"
fed "$a/fed" "$WORK/fed.json"
check "the feed has those of the node that left" python3 "$watch_py" mirror "$a/fed" \
    "$WORK/fed.json"
NODES=3
refuses "it does not start again" "node 4 has left the cluster" start_node "$volume" 4
check "who removes it once more is told so" remove 4
check "fsck --data while all serve" fsck_volume "$volume" --data
touch "$WORK/read"
check "a mount that did nothing meanwhile reads what it has open" wait "$holder"
check "and what there is" check_kept "$idle"

stop_server "$volume"
check "fsck --data at rest" fsck_volume "$volume" --data
refuses "the directory of the one that has left is refused" \
    "node 4 has left the cluster: leave its directory out" \
    "$KESTREL" fsck "$(node_dir "$volume" 1)" "$(node_dir "$volume" 2)" "$(node_dir "$volume" 3)" \
    "$(node_dir "$volume" 4)"
check "the others start again" start_server "$volume"
check "and reach each other" settled "$volume"
are_members 1 2 3
check "and have everything" check_kept "$b"
check "a dump of all that are left" "$KESTREL" dump "$url" "$WORK/left.dump"
check "is one of the whole" "$KESTREL" load "$WORK/left.dump" "$WORK/one" \
    --objects "$volume/objects"
fed "$WORK/one:/fed" "$WORK/fed-one.json"
check "with the feed" cmp "$WORK/fed.json" "$WORK/fed-one.json"

# The dump has numbers that node 4 made. In a cluster of three the next node is the fourth, and
# makes none of them again.
fewer=$WORK/fewer
make_cluster "$fewer" --grace 1s
check "it is loaded into three other nodes" "$KESTREL" load "$WORK/left.dump" "$fewer" \
    "$(node_dir "$fewer" 2)" "$(node_dir "$fewer" 3)" \
    --objects "$volume/objects"
check "these start" start_server "$fewer"
mount_volume "$fewer" "$WORK/mnt-fewer"
refuses "events of a node that is not there are gone" 'not kept any more' \
    "$KESTREL" watch "$WORK/mnt-fewer/fed" --no-wait \
    --since "$(sed -nE '1s/.*"cursor":"([^"]*)".*/\1/p' "$WORK/fed.json")"
mkdir "$WORK/mnt-fewer/fed/new"
check "new ones are told" sh -c \
    "'$KESTREL' watch '$WORK/mnt-fewer/fed' --since oldest --no-wait | grep 'create .* new$'"
read -r port < <(free_ports 1)
"$KESTREL" cluster add-node "$fewer" --node "127.0.0.1:$port" >"$WORK/fewer.token"
"$KESTREL" cluster join "$WORK/fewer.token" "$(node_dir "$fewer" 4)" >/dev/null
check "another node 4 joins" start_node "$fewer" 4
NODES=4
check "its counters are above what was made under its number" fsck_volume "$fewer" --data
NODES=3
check "and gets its part" "$KESTREL" cluster balance "$(serve_url "$fewer")"
check "it is used" cp -r "$WORK/mnt-fewer/kept" "$WORK/mnt-fewer/copied"
sync -f "$WORK/mnt-fewer"
NODES=4
check "fsck --data finds nothing" fsck_volume "$fewer" --data
umount_volume "$WORK/mnt-fewer"
stop_server "$fewer"
NODES=3

check "gc finds nothing" sh -c "'$KESTREL' gc '$url' | grep -q '^0 leaked'"

# One that is only announced.
[ "$(announce)" = 5 ] && ok "its number is not used again" || fail "its number is used again"
check "a node that was announced is taken back" remove 5
"$KESTREL" cluster join "$WORK/token" "$WORK/volume-node5" >/dev/null
timeout 5 "$KESTREL" serve "$WORK/volume-node5" --foreground >"$WORK/fifth.out" 2>&1 || true
are_members 1 2 3

# One that joins, and leaves while nothing else happens: what the volume holds stays the same.
[ "$(announce)" = 6 ] && ok "nor that of one that never came" || fail "another number"
"$KESTREL" cluster join "$WORK/token" "$(node_dir "$volume" 6)" >/dev/null
check "a node joins" start_node "$volume" 6
check "and gets its part" "$KESTREL" cluster balance "$url"
check "it is used" cp -r "$a/kept" "$a/copied"
check "half of that goes" sh -c "rm -r '$b'/copied/1*"
sync -f "$a"
before=$(figures)
sixth=$(node_pid "$volume" 6)
check "it leaves" remove 6
check "its process ends, too" wait_until 60 gone "$sixth"
after=$(figures)
[ "$before" = "$after" ] && ok "the volume holds what it did" || fail "$before became $after"
are_members 1 2 3
check "fsck --data while all serve" fsck_volume "$volume" --data

# One that is added, and lost before it hears of that: nobody reaches it where it says that it is.
[ "$(announce)" = 7 ] && ok "the next one is announced" || fail "another number"
read -r elsewhere nowhere < <(free_ports 2)
"$KESTREL" cluster join "$WORK/token" "$(node_dir "$volume" 7)" >/dev/null
timeout 100 "$KESTREL" serve "$(node_dir "$volume" 7)" --foreground --listen \
    "127.0.0.1:$elsewhere" \
    --advertise "127.0.0.1:$nowhere" >"$WORK/seventh.out" 2>&1 &
seventh=$!
is_added() { [ "$(members)" = "1 2 3 7" ]; }
check "a node is added that nobody reaches" wait_until 60 is_added
sleep 1
kill -9 "$(node_pid "$volume" 7)" "$seventh" 2>/dev/null || true
wait "$seventh" 2>/dev/null || true
check "it is taken out again" remove 7
are_members 1 2 3
check "clients go on" check_kept "$a"
refuses "it does not come any more" "has left the cluster" timeout 60 "$KESTREL" serve \
    "$(node_dir "$volume" 7)" --foreground

# A client that has a file open at a node while it is away: it is waited for, by name.
third=$(node_pid "$volume" 3)
mount=$(server_pid "$idle")
# Somewhere among these are files of node 3.
python3 "$WORK/holder.py" "$idle" 1 "$WORK/read-again" &
holder=$!
wait_until 30 test -e "$WORK/read-again.begun"
kill -STOP "$mount"
timeout 100 "$KESTREL" cluster remove-node "$url" --node 3 --timeout 2s >"$WORK/waits.out" 2>&1 &&
    waits=0 || waits=$?
kill -CONT "$mount"
"$KESTREL" cluster status "$url" >"$WORK/status.out" || true
grep -qE '^ +3 .* leaving ' "$WORK/status.out" && ok "the status says that it is leaving" ||
    { cat "$WORK/status.out" && fail "the status does not say so"; }
[ "$waits" != 0 ] && grep -q "open files\|kestrel mount" "$WORK/waits.out" &&
    ok "who is waited for is named" ||
    { cat "$WORK/waits.out" && fail "nobody is named"; }
check "it stays after all" remove 3 --undo
check "and gets a part again" "$KESTREL" cluster balance "$url"
touch "$WORK/read-again"
check "what is open can be read" wait "$holder"

# Nodes are killed while one leaves, the one that leads it and the one that leaves among them.
mkdir "$a/again"
python3 "$WORK/appender.py" "$a/again" "$b/again" "$WORK/stop-again" >"$WORK/appender.out" 2>&1 &
appender=$!
for victim in 1 2 itself; do
    node=$(announce)
    "$KESTREL" cluster join "$WORK/token" "$(node_dir "$volume" "$node")" >/dev/null
    check "node $node joins" start_node "$volume" "$node"
    check "and gets its part" "$KESTREL" cluster balance "$url"
    cp -r "$a/kept/7" "$a/again/$node"
    [ "$victim" != itself ] || victim=$node
    remove "$node" --timeout 20s >"$WORK/killed.out" 2>&1 &
    removing=$!
    sleep "$(ms "$(random 100 3000)")"
    kill_node "$volume" "$victim" || true
    if start_node "$volume" "$victim" 2>"$WORK/started.out"; then
        ok "node $victim, killed while node $node leaves, starts"
    else
        grep -q "has left the cluster" "$WORK/started.out" &&
            ok "node $node had left when it was killed" ||
            { cat "$WORK/started.out" && fail "node $victim does not start"; }
    fi
    wait "$removing" || true
    check "it leaves" remove "$node"
    are_members 1 2 3
done
touch "$WORK/stop-again"
if wait "$appender"; then ok "what was appended meanwhile is complete"; else
    cat "$WORK/appender.out"
    fail "what was appended meanwhile"
fi

# All but one.
check "the third leaves" remove 3
check "and ends" wait_until 60 gone "$third"
check "the second leaves" remove 2
are_members 1
refuses "the last one stays" "node 1 leads changes" remove 1
check "everything is there" check_kept "$a"
check "and is to be changed" sh \
    -c "mkdir '$b/last' && cp -r '$a/kept/1' '$b/last' && rm -r '$a/copied'"
for mount in "$a" "$b" "$idle"; do
    check "unmounts $(basename "$mount")" umount_volume "$mount"
done
NODES=1
stop_server "$volume"
check "fsck --data in the end" timeout 300 "$KESTREL" fsck "$volume" --data
summary
