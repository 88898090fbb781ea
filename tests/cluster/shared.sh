#!/usr/bin/env bash
# Programs that share files between two mounts (SQLite, a Maildir, a log), while nodes are killed
# with -9 and started again.
#
# SECONDS_EACH (default 12): how long they run. SEED (default: random, printed). KESTREL_NODES
# (default 3).
set -euo pipefail
KESTREL_SERVE=1
export KESTREL_NODES=${KESTREL_NODES:-3}
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
seed=${SEED:-$(date +%s)} seconds=${SECONDS_EACH:-12}
RANDOM=$((seed % 32768))
echo "seed $seed"
SERVE_OPTIONS=(--lease 6s)
make_volume "$volume"
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"

python3 "$ROOT/tests/cluster/shared.py" "$a" "$b" --seconds "$seconds" >"$WORK/shared.out" 2>&1 &
load=$!
kills=0
end=$(($(date +%s) + seconds))
while alive "$load" && [ "$(date +%s)" -lt "$end" ]; do
    sleep "1.$(random 0 9)"
    alive "$load" || break
    node=$(random 1 "$NODES")
    kill_node "$volume" "$node" || fail "node $node was not there"
    # A server that is alone has its port from the script, a node of a cluster from its directory.
    if [ "$NODES" = 1 ]; then start_server "$volume"; else start_node "$volume" "$node"; fi
    kills=$((kills + 1))
done
wait "$load" || true
echo "$kills nodes killed"
counted cat "$WORK/shared.out"
umount_volume "$a"
close_and_check "$volume" "$b"
summary
