#!/usr/bin/env bash
# No single point of failure, for real: three metadata nodes with their rows in PostgreSQL, which
# has a synchronous standby, and a coordinator with its rows in an etcd of three members, all on
# this machine. A load works on one mount, and a loop of small calls on another. One process of each
# kind is killed (kill -9): a node, the coordinator, the database's primary, a member of etcd.
# Others go on in their place. Then every acknowledged change is looked for (a log outside has
# them), fsck looks at everything, and a table tells how long calls took meanwhile.
#
#   LOAD_MS=40000   how long the load works
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
KESTREL_NODES=4
. "$ROOT/tests/lib.sh"
. "$ROOT/tests/ha/lib.sh"
# Even, and below the ports that outgoing connections get.
ETCD_PORT=$((20000 + RANDOM % 5000 * 2))
. "$ROOT/tests/ha/etcd.sh"
begun=$SECONDS
export KESTREL_RUNTIME_DIR=$WORK/run
mkdir "$WORK/run"
volume=$WORK/volume a=$WORK/a b=$WORK/b
at_end() { end_stand_ins "$WORK/volume"; }
AT_END=at_end AFTER_ALL=stop_etcd

echo "== PostgreSQL with a synchronous standby, etcd of three members; kestrel cluster init, join, serve, mount twice"
ha_cluster "$volume"
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
mkdir "$a/load" "$a/probe"
python3 "$ROOT/tests/ha/pauses.py" run "$b/probe" "$WORK/pauses" &
probe=$!
kestrel-crashload run --dir "$a/load" --log "$WORK/load.log" --threads 4 --seed 7 \
    --ms "${LOAD_MS:-40000}" >"$WORK/run.out" 2>&1 &
load=$!
sleep 2
table=()

# told KIND FROM STAND-IN: a line of the table.
told() {
    local ms errors
    read -r ms errors < <(python3 "$ROOT/tests/ha/pauses.py" longest "$WORK/pauses" "$2")
    table+=("$(printf '%-24s %10s %8s   %s' "$1" "$ms" "$errors" "$3")")
    [ "$errors" = 0 ] || fail "$1: $errors calls failed"
}

# taken_over KIND NODE
taken_over() {
    local pid from
    pid=$(serving_pid "$volume" "$2")
    from=$(now)
    kill -9 "$pid"
    check "$1 $2 (process $pid) is killed, and taken over" wait_for 30 has_moved "$volume" "$2" \
        "$pid"
    sleep 1
    told "$1 $2" "$from" "$("$KESTREL" cluster status "$(serve_url "$volume")" | sed -n "s/^node $2 is served in place of its own process, /process $(serving_pid "$volume" "$2") /p")"
}

echo "== one of each kind is killed under load"
told "before" 0 "nobody has died yet"
taken_over node 2
taken_over coordinator 4
mkdir "$a/one" "$a/two"
check "what the coordinator leads goes on: a directory goes into another one" mv "$a/one" "$a/two/"
from=$(now)
etcd_kill 1
sleep 2
check "a member of etcd is killed: a directory goes into another one" mv "$a/two/one" "$a/one"
told "etcd member" "$from" "the other two"
from=$(now)
check "the database's primary is killed, and the standby promoted" ha_promote
check "all is well" wait_for 40 settled "$volume"
sleep 1
told "PostgreSQL primary" "$from" "the standby, promoted 0.3 s later by hand"

echo "== what is there"
load_ended "$load" "no call of the load failed"
kill -TERM "$probe"
wait "$probe" || true
all_acknowledged "$a" "$b"
check "fsck --data while all serve" fsck_volume "$volume" --data
umount_volume "$b"
umount_volume "$a"
echo
printf '%-24s %10s %8s   %s\n' killed "pause ms" errors "in its place"
printf '%s\n' "${table[@]}"
echo
echo "$((SECONDS - begun)) s"
summary
