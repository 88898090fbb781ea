#!/usr/bin/env bash
# Three metadata nodes, of which one is stopped, killed, or all but one are: directories are renamed
# without a node that none of their rows is at, in bounded time, and when it goes on nobody finds
# them where they were; alone of three a node serves no path. Clients see pauses and no errors.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
SERVE_OPTIONS=(--lease 20s)
make_volume "$volume" --grace 1s
# The first mount's kernel keeps what it has seen: a rename asks for nothing but the new name, while
# a stat of a directory needs all nodes.
mount_volume "$volume" "$a" --no-shortcut --entry-timeout 1h --attr-timeout 1h
mount_volume "$volume" "$b"
check "all nodes are up and have leases" settled "$volume"

cat >"$WORK/start-node" <<SH
case \$1 in
$(for node in 1 2 3; do echo "$node) exec '$KESTREL' serve '$(node_dir "$volume" "$node")' ${SERVE_OPTIONS[*]} ;;"; done)
esac
SH
for node in 1 2 3; do node_pid "$volume" "$node" >"$WORK/pid-$node"; done
counted python3 "$ROOT/tests/cluster/fence.py" "$a" "$b" --pids "$WORK/pid-" \
    --start "$WORK/start-node" --status "$KESTREL cluster status $(serve_url "$volume") --json"
check "all nodes are up again" settled "$volume"
check "fsck of all nodes" fsck_volume "$volume" --data
umount_volume "$a"
umount_volume "$b"
stop_server "$volume"
summary
