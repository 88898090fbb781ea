#!/usr/bin/env bash
# Three metadata nodes and a coordinator without rows, each from a TOML file. The coordinator is
# killed: files, lookups, creates, listings go on, a new mount comes; directories that go into other
# ones, and changes of the table, wait for it. Its role is handed over under load (roles.py), to and
# fro, with kills in the middle, and the one that had it first leaves. What is refused, and in which
# words.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

a=$WORK/a b=$WORK/b c=$WORK/c
mkdir "$a" "$b" "$c" "$WORK/settings"
read -ra ports < <(free_ports 5)
addresses=()
for port in "${ports[@]}"; do addresses+=("127.0.0.1:$port"); done
# The first mounts are told of the nodes, the last one of the coordinator.
url=kestrel://${addresses[0]},${addresses[1]},${addresses[2]}/roles
dir() { echo "$WORK/node$1"; }

"$KESTREL" cluster init "$(dir 1)" --name roles --grace 1s --coordinator "${addresses[3]}" \
    --node "${addresses[0]}" --node "${addresses[1]}" --node "${addresses[2]}" >"$WORK/init.out"
for node in 2 3 4; do
    "$KESTREL" cluster token "$(dir 1)" | "$KESTREL" cluster join - "$(dir "$node")" \
        --node "$node" >/dev/null
done

# settings NODE ROLE: its file; paths in it are from where it lies.
settings() {
    printf 'volume = "../node%s"\nlease = "4s"\nrole = "%s"\n\n[process]\nlog-level = "info"\nmetadata-memory = "64M"\n' "$1" "$2" \
        >"$WORK/settings/$1.toml"
}
for node in 1 2 3; do settings "$node" metadata; done
settings 4 coordinator

serve() { timeout 60 "$KESTREL" serve --config "$WORK/settings/$1.toml" >"$WORK/serve.out" \
    2>&1 9>&- || { cat "$WORK/serve.out" && return 1; }; }
pid() { volume_pid "$(dir "$1")" 2>/dev/null || true; }
end_node() { kill_pid "$(pid "$1")"; }
end_all() {
    local node
    for node in 1 2 3 4 5; do
        [ -z "$(pid "$node")" ] || kill -9 "$(pid "$node")" 2>/dev/null
    done
}
AT_END=end_all
all_well() { "$KESTREL" cluster status "$url" >"$WORK/status.out" 2>&1 ||
    { cat "$WORK/status.out" && return 1; }; }
role_of() { "$KESTREL" cluster status "$url" | awk -v node="$1" '$1 == node { print $3 }'; }
is() { [ "$2" = "$3" ] && ok "$1: $2" || fail "$1: $2, not $3"; }
# hand NODE [SECONDS]: within that time, over kills of nodes.
hand() {
    local until=$((SECONDS + ${2:-40}))
    while ! timeout 60 "$KESTREL" cluster coordinator "$url" --node "$1" >"$WORK/hand.out" 2>&1; do
        [ "$SECONDS" -lt "$until" ] || { cat "$WORK/hand.out" && return 1; }
        sleep 0.5
    done
}

refuses "a metadata node's directory as a coordinator's" "the cluster has node 1 as metadata" \
    "$KESTREL" serve --config "$WORK/settings/1.toml" --role coordinator
echo 'leese = "4s"' >"$WORK/settings/wrong.toml"
refuses "a key that there is not" \
    "wrong.toml, line 1: there is no key \"leese\"; keys are access, advertise, audit" \
    "$KESTREL" serve "$(dir 1)" --config "$WORK/settings/wrong.toml"
"$KESTREL" serve --config "$WORK/settings/4.toml" --check --lease 7s >"$WORK/check.out" 2>&1 || true
if grep -q "node 4 (coordinator) of volume \"roles\" would be served at ${addresses[3]}" \
    "$WORK/check.out" && grep -q '^lease 7 s, grace 7 s' "$WORK/check.out" &&
    [ -z "$(pid 4)" ]; then ok "--check says what would be served"; else
    cat "$WORK/check.out"
    fail "--check"
fi
for node in 1 2 3 4; do check "node $node serves as its file says" serve "$node"; done
check "all are up, and the coordinator needs no lease" wait_until 30 all_well
is "role of node 1" "$(role_of 1)" metadata
is "role of node 4" "$(role_of 4)" 'coordinator*'

mount_at() { timeout 60 "$KESTREL" mount "$1" "$2" --allow-other --no-shortcut --log "$2.log" \
    >/dev/null 9>&-; }
check "a mount" mount_at "$url" "$a"
check "a mount that knows only the coordinator's address" mount_at \
    "kestrel://${addresses[3]}/roles" "$b"
mkdir -p "$a"/d{1..8}/sub "$a/into"
is "slots of the coordinator" "$("$KESTREL" cluster status "$url" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["nodes"][3]["slots"])')" 0

# The coordinator is away.
end_node 4
for round in 1 2 3; do
    timeout 10 sh -c "
        for i in 1 2 3 4 5 6 7 8; do echo $round >'$a'/d\$i/file-$round && cat '$b'/d\$i/file-$round >/dev/null && ls -l '$b'/d\$i >/dev/null; done
        mkdir '$b'/made-$round && mv '$b'/made-$round '$b'/renamed-$round && stat '$a'/renamed-$round && rmdir '$a'/renamed-$round && mv '$a'/d1/file-$round '$b'/d2/moved-$round
    " >"$WORK/away.out" 2>&1 &&
        ok "files, listings, lookups, creates and renames go on without it ($round)" ||
        { cat "$WORK/away.out" && fail "without the coordinator ($round)"; }
done
check "a mount comes without it" mount_at "$url" "$c"
timeout 60 mv "$a/d3/sub" "$a/into/moved" &
moves=$!
(timeout 60 "$KESTREL" cluster balance "$url" --epsilon 0.5 >"$WORK/balance.out" 2>&1 &&
    touch "$WORK/balanced" || true) &
balances=$!
sleep 3
# Not by a look at the directories: a client that looks at one that is about to move waits for it.
if alive "$moves" && [ ! -e "$WORK/balanced" ]; then
    ok "a directory that goes into another one waits, and so does a change of the table"
else
    fail "something went on that the coordinator leads"
fi
check "the coordinator is started again" serve 4
wait "$moves" && [ -d "$b/into/moved" ] && ok "the directory has moved" ||
    fail "the directory has not moved"
wait "$balances" || true
check "the table can be changed" timeout 60 "$KESTREL" cluster balance "$url" --epsilon 0.5

# Under load, to and fro.
timeout 300 python3 "$ROOT/tests/cluster/roles.py" "$a" "$b" --stop "$WORK/stop" >"$WORK/load.out" \
    2>&1 &
load=$!
wait_until 30 test -d "$a/load/ready" || { cat "$WORK/load.out" && fail "the load has not begun"; }
for to in 1 4 2 3; do check "node $to leads from now on" hand "$to"; done
is "role of node 3" "$(role_of 3)" 'metadata*'
refuses "the coordinator cannot leave" "leads changes of this cluster; have another one" \
    "$KESTREL" cluster remove-node "$url" --node 3
refuses "add-node where nobody leads" "node 3 leads changes of this cluster, at ${addresses[2]}" \
    "$KESTREL" cluster add-node "$(dir 1)" --node "${addresses[4]}"
refuses "a node that there is not" "no such node" "$KESTREL" cluster coordinator "$url" --node 9
# Announced at one coordinator, and known to the coordinators that follow.
"$KESTREL" cluster add-node "$(dir 3)" --node "${addresses[4]}" --role coordinator >"$WORK/token" \
    2>/dev/null
for kill in 1 2 3; do
    # Either of the two is killed in the middle.
    from=$([ $((kill % 2)) = 1 ] && echo 3 || echo 1) to=$([ $((kill % 2)) = 1 ] && echo 1 ||
        echo 3)
    victim=$([ "$(random 0 1)" = 1 ] && echo "$from" || echo "$to")
    hand "$to" >"$WORK/hand-$kill.out" 2>&1 &
    handing=$!
    sleep "$(ms "$(random 100 700)")"
    end_node "$victim"
    sleep 0.3
    serve "$victim" || fail "node $victim does not start"
    wait "$handing" && ok "node $to leads, though node $victim was killed meanwhile" ||
        { cat "$WORK/hand-$kill.out" && fail "the role did not go to node $to"; }
done
touch "$WORK/stop"
status=0
wait "$load" || status=$?
cat "$WORK/load.out"
[ "$status" = 0 ] && ok "the load saw no error" || fail "the load: $status"

# The token is of a time when another node led: a node that joins asks all.
settings 5 coordinator
check "one that was announced before joins" "$KESTREL" cluster join "$WORK/token" "$(dir 5)"
check "it is taken in" serve 5
check "all five are up" wait_until 30 all_well
is "role of node 5" "$(role_of 5)" coordinator
check "node 5 leads" hand 5
check "node 4, the first coordinator, is removed" timeout 120 "$KESTREL" cluster remove-node \
    "$url" --node 4
ended_4() { [ -z "$(pid 4)" ]; }
check "its process ends" wait_until 30 ended_4
check "a directory goes into another one" mv "$b/d4/sub" "$b/into/last"
check "fsck while all serve" "$KESTREL" fsck "$url"
for mount in "$a" "$b" "$c"; do
    timeout 60 "$KESTREL" umount "$mount" >/dev/null || fail "umount $mount"
done
for node in 1 2 3 5; do
    "$KESTREL" serve --config "$WORK/settings/$node.toml" --stop || fail "node $node does not end"
done
check "fsck of all nodes at rest" "$KESTREL" fsck --data "$(dir 1)" "$(dir 2)" "$(dir 3)" "$(dir 5)"
summary
