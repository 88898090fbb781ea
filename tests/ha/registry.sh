#!/usr/bin/env bash
# Three metadata nodes and a coordinator with its rows in an etcd of three members. The
# coordinator's process is killed and another machine goes on with its rows: directories that go
# into others, changes of the table, one of them under way. Members of etcd are killed, all of etcd
# is away, the coordinator is cut off from it, one way and both: files go on, what the coordinator
# leads waits, nothing is lost. All of it in network namespaces: one for nodes and clients, one for
# etcd.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cluster/network.sh
. "$ROOT/tests/cluster/network.sh"
needs_kestrel
machines=(c e)
ETCD_HOST=$(address_of e)
# shellcheck source=tests/ha/etcd.sh
. "$(dirname "$0")/etcd.sh"
make_network c e
IN_ETCD=(nsenter "--net=/run/netns/${net}e")
printf '#!/bin/sh\nexec nsenter "--net=/run/netns/%sc" "%s" "$@"\n' "$net" "$KESTREL" \
    >"$WORK/kestrel"
chmod 755 "$WORK/kestrel"
KESTREL=$WORK/kestrel

a=$WORK/a b=$WORK/b
mkdir "$a" "$b"
at() { echo "127.0.0.1:944$1"; }
url=kestrel://$(at 1),$(at 2),$(at 3)/registry
registry=$(etcd_url registry/one)
dir() { echo "$WORK/node$1"; }
end_all() {
    local place served
    # Those that watch the others first.
    for place in "$WORK"/node*/ "$WORK"/node*/nodes/*/; do
        served=$(volume_pid "$place" 2>/dev/null)
        [ -z "$served" ] || kill -9 "$served" 2>/dev/null
    done
    heal_all
}
end_network() {
    stop_etcd
    remove_network
}
AT_END=end_all AFTER_ALL=end_network

check "an etcd of three members" etcd_start
nodes=(--node "$(at 1)" --node "$(at 2)" --node "$(at 3)")
refuses "a registry without a coordinator" "--coordinator" "$KESTREL" cluster init "$(dir 1)" \
    "${nodes[@]}" --registry "$registry"
refuses "a registry that is none" "ETCDCTL_PASSWORD" \
    "$KESTREL" cluster init "$(dir 1)" "${nodes[@]}" --coordinator "$(at 4)" \
    --registry "etcd://me:s3cret@127.0.0.1:x/v"
refuses "a registry that is not there" "127.0.0.1:1" \
    "$KESTREL" cluster init "$(dir 1)" "${nodes[@]}" --coordinator "$(at 4)" \
    --registry "etcd://me:s3cret@127.0.0.1:1/v?deadline=1s"
grep -q s3cret "$WORK/refuses.out" && fail "a password was shown"
check "a cluster with its registry there" "$KESTREL" cluster init "$(dir 1)" --name registry \
    --grace 1s --coordinator "$(at 4)" "${nodes[@]}" \
    --registry "$registry"
refuses "another cluster below the same prefix" "another volume" \
    "$KESTREL" cluster init "$WORK/other" "${nodes[@]}" --coordinator "$(at 4)" \
    --registry "$registry"
for node in 2 3 4; do
    "$KESTREL" cluster token "$(dir 1)" | "$KESTREL" cluster join - "$(dir "$node")" \
        --node "$node" >/dev/null || fail "node $node does not join"
done
[ ! -e "$(dir 4)/meta" ] && [ "$(etcd_keys registry/one)" -gt 3 ] &&
    ok "the coordinator has its rows in etcd and none in its directory" ||
    fail "the coordinator's rows"

# serve NODE [OPTION…]
serve() {
    timeout 60 "$KESTREL" serve "$(dir "$1")" "${@:2}" --listen "$(at "$1")" --lease 4s \
        --metadata-memory 64M >"$WORK/serve.out" 2>&1 9>&- ||
        { cat "$WORK/serve.out" && return 1; }
}
for node in 1 2 3 4; do check "node $node serves" serve "$node"; done
all_well() { "$KESTREL" cluster status "$url" >"$WORK/status.out" 2>&1 ||
    { cat "$WORK/status.out" && return 1; }; }
check "all are up" wait_until 30 all_well
check "the status says where the table is kept" grep -qF "$registry" "$WORK/status.out"
mount_at() { timeout 60 "$KESTREL" mount "$url" "$1" --allow-other --no-shortcut --log "$1.log" \
    >/dev/null 9>&-; }
check "a mount" mount_at "$a"
check "another one" mount_at "$b"
mkdir -p "$a"/d{1..9}/sub "$a/into"

# files_go_on WORDS
files_go_on() {
    local round
    for round in 1 2 3; do
        timeout 10 sh -c "
            for i in 1 2 3 4 5 6 7 8; do echo $round >'$a'/d\$i/file-$round && cat '$b'/d\$i/file-$round >/dev/null && ls -l '$b'/d\$i >/dev/null; done
            mkdir '$b'/made-$round && mv '$b'/made-$round '$b'/renamed-$round && stat '$a'/renamed-$round && rmdir '$a'/renamed-$round
            mv '$a'/d1/file-$round '$b'/d2/moved-$round && rm '$b'/d2/moved-$round
        " >"$WORK/away.out" 2>&1 || { cat "$WORK/away.out" && fail "files $1" && return; }
    done
    ok "files go on $1"
}
# moves NUMBER WORDS COMMAND…: a directory that goes into another one waits; the command ends what
# is wrong, and then it has moved.
moves() {
    local number=$1 words=$2 moving
    shift 2
    timeout 90 mv "$a/d$number/sub" "$a/into/moved-$number" &
    moving=$!
    sleep 3
    if alive "$moving"; then
        ok "a directory that goes into another one waits $words"
    else
        fail "it did not wait $words"
    fi
    "$@"
    wait "$moving" && [ -d "$b/into/moved-$number" ] && ok "and then it has moved" ||
        fail "the directory has not moved"
}
balance() { timeout 90 "$KESTREL" cluster balance "$url" --epsilon 0.5; }

check "a directory goes into another one" mv "$a/d1/sub" "$a/into/first"
check "the table can be changed" balance

mkdir -m 700 "$(dir 4b)" && cp -p "$(dir 4)/kestrel.json" "$(dir 4b)/"
refuses "a second process while the first has the rows" "kestrel node 4" timeout 60 "$KESTREL" \
    serve "$(dir 4b)" --listen "$(at 5)"

# Under load: the coordinator's process dies twice, a change of the table is under way, and each
# time another machine goes on by itself. The rows of these are in their own directories: only the
# coordinator's are where others reach them.
leader=4
leader() {
    "$KESTREL" cluster status "$url" --json 2>/dev/null | python3 -c '
import json, sys
print(*(node["process"] for node in json.load(sys.stdin)["nodes"] if node["node"] == int(sys.argv[1]) and node.get("up")))' "$leader"
}
has_moved() { [ -n "$(leader)" ] && [ "$(leader)" != "$1" ] && all_well; }
timeout 300 python3 "$ROOT/tests/cluster/roles.py" "$a" "$b" --stop "$WORK/stop" >"$WORK/load.out" \
    2>&1 &
load=$!
wait_until 30 test -d "$a/load/ready" || { cat "$WORK/load.out" && fail "the load has not begun"; }
for round in 1 2; do
    was=$(leader)
    balance >"$WORK/balance-$round.out" 2>&1 &
    changing=$!
    sleep "$(ms "$(random 10 300)")"
    kill_pid "$was"
    check "another machine goes on with the coordinator's rows ($round)" wait_until 40 has_moved \
        "$was"
    wait "$changing" || true
    check "and the table can be changed" balance
done
check "it is served from its own directory again" serve 4 --take-over
touch "$WORK/stop"
status=0
wait "$load" || status=$?
cat "$WORK/load.out"
[ "$status" = 0 ] && ok "the load saw no error" || fail "the load: $status"
check "all are up again" wait_until 30 all_well

# Two coordinators, one of which leads: a change of the leader outlives its death, too.
check "another coordinator is announced" eval \
    '"$KESTREL" cluster add-node "$(dir 4)" --node "$(at 5)" --role coordinator >"$WORK/token"'
check "it joins" "$KESTREL" cluster join "$WORK/token" "$(dir 5)"
check "and serves" serve 5
check "all are up with it" wait_until 30 all_well
check "it leads" "$KESTREL" cluster coordinator "$url" --node 5
leader=5 was=$(leader=5 && leader)
kill_pid "$was"
check "another machine goes on with the second coordinator's rows" wait_until 40 has_moved "$was"
check "and the table can be changed" balance
check "the first one leads again" "$KESTREL" cluster coordinator "$url" --node 4
check "and the second one leaves" "$KESTREL" cluster remove-node "$url" --node 5
leader=4
check "all are up without it" wait_until 30 all_well

# From here on it is about what waits, not about the process that takes over what has waited.
for node in 1 2 3; do
    "$KESTREL" serve --stop "$(dir "$node")" && serve "$node" --failover off ||
        fail "node $node does not start again"
done
check "nodes that take nobody over are up" wait_until 30 all_well

# Members of etcd die, one at a time.
for member in 1 2 3; do
    etcd_kill "$member"
    check "a directory goes into another one without member $member of etcd" timeout 20 mv \
        "$a/d$((member + 1))/sub" "$a/into/without-$member"
    etcd_run "$member"
    wait_until 30 etcd_answers || fail "member $member does not come back"
done

# All of etcd is away.
for member in 1 2 3; do etcd_kill "$member"; done
# Until the coordinator has no lease any more: it is not renewed once etcd has been silent for as
# long as one lasts.
sleep 5
files_go_on "without etcd"
moves 6 "without etcd" etcd_start
# The coordinator is cut off from it: it is not told anything, cannot say anything, neither.
lose c e
sleep 5
files_go_on "while the coordinator does not hear etcd"
moves 7 "while the coordinator does not hear etcd" heal c
lose e c
sleep 5
moves 8 "while etcd does not hear the coordinator" heal e
check "all are up in the end" wait_until 60 all_well
check "the table can be changed" balance

check "fsck while all serve" "$KESTREL" fsck "$url"
check "a dump while all serve" "$KESTREL" dump "$url" "$WORK/dump"
for mount in "$a" "$b"; do
    timeout 60 "$KESTREL" umount "$mount" >/dev/null || fail "umount $mount"
done
for node in 1 2 3 4; do
    "$KESTREL" serve --stop "$(dir "$node")" || fail "node $node does not end"
done
check "fsck of all nodes at rest" "$KESTREL" fsck --data "$(dir 1)" "$(dir 2)" "$(dir 3)" "$(dir 4)"
check "their dump at rest" "$KESTREL" dump "$(dir 1)" "$WORK/rest" --node "$(dir 2)" \
    --node "$(dir 3)" --node "$(dir 4)"
check "fsck from the other directory" "$KESTREL" fsck "$(dir 1)" "$(dir 2)" "$(dir 3)" "$(dir 4b)"
summary
