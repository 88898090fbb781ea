#!/usr/bin/env bash
# The same random system calls on a mount and on a local file system, compared call by call. A
# failing sequence is shrunk and printed with the command that replays it.
#
# COMPARE_OPS: calls of a run (default 20000); COMPARE_SEEDS: runs (default 4); COMPARE_SEED: the
# first seed.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

. "$ROOT/tests/posix/hardening.sh"

volume=$WORK/volume mnt=$WORK/mnt
ops=${COMPARE_OPS:-20000} seeds=${COMPARE_SEEDS:-4} first=${COMPARE_SEED:-1}
make_volume "$volume"
# Only this script holds the lock: neither the serving process nor the judge.
mount_volume "$volume" "$mnt" 9>&-
allow=$(allowances "$mnt")
mkdir "$WORK/local" "$WORK/tmpfs"
mount -t tmpfs tmpfs "$WORK/tmpfs"

compare() {
    kestrel-compare --a "$mnt" --allow "$allow" --ops "$ops" "$@" 9>&-
}

for ((seed = first; seed < first + seeds; seed++)); do
    # Both references: a difference to one that the other shares is no fault of the mount.
    reference=$WORK/local
    [ $((seed % 2)) = 0 ] && reference=$WORK/tmpfs
    if compare --b "$reference" --seed "$seed"; then
        ok "seed $seed against $(basename "$reference")"
    else
        fail "seed $seed"
    fi
done
if compare --b "$WORK/local" --seed $((first + 1000)) --workers 4; then
    ok "four at once, each in its subtree"
else
    fail "four at once, seeds from $((first + 1000))"
fi
close_and_check "$volume" "$mnt"
summary
