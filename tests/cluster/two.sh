#!/usr/bin/env bash
# Two mounts of one served volume: what one writes the other reads (close-to-open), names change
# under both, locks of all kinds, what becomes of them when the server, a mount or the time is
# killed, and of names that change under a mount far from the server.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
lease=3
SERVE_OPTIONS=(--lease "${lease}s")
make_volume "$volume"
mount_volume "$volume" "$a"
mount_volume "$volume" "$b"
# What the tests of locks run while they go on.
kill_script "$volume" >"$WORK/kill-server"
cat >"$WORK/start-server" <<SH
for try in 1 2 3 4 5; do
    "$KESTREL" serve "$volume" --listen "$(serve_address "$volume")" ${SERVE_OPTIONS[*]} >/dev/null && exit
    sleep 0.2
done
exit 1
SH

counted python3 "$ROOT/tests/cluster/two.py" "$a" "$b"

# A third mount, which a relay keeps 40 ms away from the server.
far=$WORK/far way=40
kestrel-relay --to "$(serve_address "$volume")" --delay-us "${way}000" >"$WORK/relay.out" 9>&- &
relay=$!
until grep -q : "$WORK/relay.out"; do sleep 0.01; done
mkdir "$far"
"$KESTREL" mount "kestrel://$(cat "$WORK/relay.out")/$(basename "$volume")" "$far" \
    --allow-other "${MODE_OPTIONS[@]}" \
    --log "$WORK/far.log" >/dev/null 9>&-
counted python3 "$ROOT/tests/cluster/late.py" "$a" "$far" "$way"
umount_volume "$far"
kill "$relay"

counted python3 "$ROOT/tests/cluster/locks.py" "$a" "$b" --kill-server "bash $WORK/kill-server" \
    --start-server "sh $WORK/start-server" \
    --mount-a-pid "$(server_pid "$a")" --lease "$lease"
# The last test killed the first mount.
umount -l "$a"
close_and_check "$volume" "$b"
summary
