#!/usr/bin/env bash
# Bad input to a real server: corrupt, truncated, oversized, replayed, out-of-order and
# wrong-version frames (hostile.py), a second server on one volume, servers and mounts of what is
# not there. Clear errors, no damage, and everybody else is served.
#
# SEED (default 1), MUTATIONS (default 1000)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
# Lines about refused connections above their limit are told at this level.
SERVE_OPTIONS+=(--log-level debug)
make_volume "$volume"
mount_volume "$volume" "$mnt"
echo probe >"$mnt/probe"
pid=$(server_pid "$volume")

counted python3 "$ROOT/tests/cluster/hostile.py" --host 127.0.0.1 --port "${SERVE_PORT[$volume]}" \
    --volume volume --log "$volume/serve.log" \
    --probe "$mnt/probe" --seed "${SEED:-1}" --mutations "${MUTATIONS:-1000}"
check "the server is the same process" test "$(server_pid "$volume")" = "$pid"
no_panic() {
    ! grep -n 'panicked' "$volume/serve.log"
}
check "nothing panicked" no_panic

mkdir "$WORK/elsewhere"
refuses "a second server on the volume" 'in use|locked|serves|already' timeout 60 "$KESTREL" serve \
    "$volume" --listen 127.0.0.1:0
refuses "an embedded mount of a served volume" 'in use|locked|serves|already' timeout 60 \
    "$KESTREL" mount "$volume" "$WORK/elsewhere"
"$KESTREL" format "$WORK/another" >/dev/null
refuses "an address that is taken" 'address already in use' timeout 60 "$KESTREL" serve \
    "$WORK/another" --listen "$(serve_address "$volume")"
refuses "a volume that is not served there" 'no-such' timeout 60 "$KESTREL" mount \
    "kestrel://$(serve_address "$volume")/no-such" "$WORK/elsewhere"
refuses "nobody listens" 'refused|not answer|no server' timeout 60 "$KESTREL" mount \
    kestrel://127.0.0.1:1/volume "$WORK/elsewhere" --deadline 2s
refuses "a host that is none" 'no-such-host' timeout 60 "$KESTREL" mount \
    kestrel://no-such-host.invalid/volume "$WORK/elsewhere" --deadline 2s
refuses "a URL without a volume" 'kestrel://' timeout 60 "$KESTREL" mount kestrel://127.0.0.1 \
    "$WORK/elsewhere"
check "the mount still works" grep -q . "$mnt/probe"
close_and_check "$volume" "$mnt"
summary
