#!/usr/bin/env bash
# A cluster that balances by itself: a name that many directories have is spread without anybody
# asking, every byte is where it was, and when the files are deleted the exception goes. Nothing is
# done while a node is away, nor for a node that was drained. What is told of it.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
SERVE_OPTIONS=(--lease 4s --balance every=2s)
make_volume "$volume" --grace 1s
url=$(serve_url "$volume")
refuses "a pace that is none" "every=10m, or off" "$KESTREL" serve "$volume" --balance 5m
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
check "all nodes are up and have leases" settled "$volume"

# told FIELD: of what the node that leads changes tells of balancing. Its status is not good while a
# node is away.
told() {
    { "$KESTREL" cluster status "$url" --json || true; } | python3 -c 'import json, sys
print(next(n["balance"].get(sys.argv[1]) for n in json.load(sys.stdin)["nodes"] if (n.get("balance") or {}).get("leads")))' "$1"
}

# exceptions: how many the table has.
exceptions() {
    "$KESTREL" cluster status "$url" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["exceptions"])'
}

# Conditions for wait_until.
has_exceptions() { [ "$(exceptions)" -gt 0 ]; }
has_none() { [ "$(exceptions)" = 0 ]; }
finds() { grep -qE -- "$1" <(told found); }

check "with nothing in it there is nothing to do" wait_until 20 finds "nothing to do"
check "a name in 2,500 directories" python3 - "$a" <<'PY'
import os, sys
top = f"{sys.argv[1]}/hot"
os.mkdir(top)
for number in range(2500):
    os.mkdir(f"{top}/dir-{number}")
    for name in ["Makefile", f"other-{number}"]:
        with open(f"{top}/dir-{number}/{name}", "w") as file:
            file.write(f"{number} {name}")
PY
check "it becomes an exception by itself" wait_until 60 has_exceptions
check "and that is enough" wait_until 60 finds "nothing to do"
"$KESTREL" cluster status "$url" --count >"$WORK/status.out"
check "no node has more than its part" "$KESTREL" cluster balance "$url" --dry-run
grep -q "nothing to do" "$WORK/check.out" && ok "the verb finds nothing to do either" ||
    { cat "$WORK/check.out" && fail "the verb would do something"; }
grep -qE 'balancing: every 2 s; [0-9]+ s ago: nothing to do' "$WORK/status.out" &&
    grep -qE 'balancing: .* ago: "Makefile" with [0-9,]+ entries: spread' "$WORK/status.out" &&
    ok "the status tells" || { cat "$WORK/status.out" && fail "the status does not tell"; }
grep -q 'balancing: "Makefile"' "$volume/serve.log" && ok "so does the log" ||
    fail "the log does not tell"
check "everything is where it was" python3 - "$b" <<'PY'
import os, sys
top = f"{sys.argv[1]}/hot"
assert len(os.listdir(top)) == 2500
for number in range(2500):
    for name in ["Makefile", f"other-{number}"]:
        with open(f"{top}/dir-{number}/{name}") as file:
            assert file.read() == f"{number} {name}", (number, name)
PY
"$KESTREL" stats "$url" --once --json >"$WORK/stats.json"
check "figures" python3 - "$WORK/stats.json" <<'PY'
import json, sys
stats = json.load(open(sys.argv[1]))
wanted = {"cluster_nodes": 3, "cluster_nodes_up": 3, "cluster_lease_held": 3, "cluster_coordinates": 1, "cluster_slots": 16384}
for name, value in wanted.items():
    assert stats[name] == value, (name, stats[name])
for name in ["cluster_balance_looks_total", "cluster_balance_changes_total", "cluster_exceptions", "cluster_messages_sent_total"]:
    assert stats[name] > 0, name
PY

# Nothing is done while a node is away.
kill_node "$volume" 3
check "that a node is away is told" wait_until 30 finds "node 3 is away"
start_node "$volume" 3
check "all nodes are up again" settled "$volume"
check "and balancing goes on" wait_until 30 finds "nothing to do"

# A node that was drained is left alone.
check "a node is drained" "$KESTREL" cluster drain "$url" --node 2
sleep 5
"$KESTREL" cluster status "$url" --json >"$WORK/drained.json"
check "it gets nothing by itself" python3 -c 'import json, sys
assert [n["slots"] for n in json.load(open(sys.argv[1]))["nodes"] if n["node"] == 2] == [0]' \
    "$WORK/drained.json"

check "the files go" rm -r "$a/hot"
check "so does the exception" wait_until 60 has_none
check "switched off, it says so" sh -c "kill -TERM $(node_pid "$volume" 1)"
wait_until 60 gone "$(node_pid "$volume" 1)" || true
SERVE_OPTIONS=(--lease 4s --balance off)
start_node "$volume" 1
check "all nodes are up" settled "$volume"
"$KESTREL" cluster status "$url" >"$WORK/status.out"
grep -q 'balancing: off' "$WORK/status.out" && ok "off is told" ||
    { cat "$WORK/status.out" && fail "off is not told"; }
umount_volume "$a"
umount_volume "$b"
check "fsck of all nodes" fsck_volume "$volume" --data
stop_server "$volume"
summary
