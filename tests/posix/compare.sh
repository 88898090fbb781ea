#!/usr/bin/env bash
# The same random system calls on a mount and on a local file system, compared call by call. A failing sequence is shrunk
# and printed with the command that replays it.
#
# COMPARE_OPS: calls of a run (default 20000); COMPARE_SEEDS: runs (default 4); COMPARE_SEED: the first seed.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

# The kernel's hardening of sticky directories (protected_symlinks and the like) is done in its own permission checks, which a
# FUSE file system that checks permissions itself does not pass through. It is no part of POSIX: switched off while runs
# like this one last; the last of them restores it. That of hard links is on: the daemon does it itself.
hardening=/run/lock/kestrel-compare
harden=(fs.protected_symlinks fs.protected_regular fs.protected_fifos fs.protected_hardlinks)
restore_hardening() {
    # The file stays until the next boot: what was set before the first run is what every run restores.
    if flock -n -x 9; then sysctl -q -p "$hardening.saved"; fi
}
exec 9>>"$hardening"
# shellcheck disable=SC2034 # lib.sh calls it
AT_END=restore_hardening
flock -s 9
[ -s "$hardening.saved" ] || sysctl "${harden[@]}" >"$hardening.saved"
sysctl -q fs.protected_symlinks=0 fs.protected_regular=0 fs.protected_fifos=0 fs.protected_hardlinks=1

volume=$WORK/volume mnt=$WORK/mnt
ops=${COMPARE_OPS:-20000} seeds=${COMPARE_SEEDS:-4} first=${COMPARE_SEED:-1}
make_volume "$volume"
# Only this script holds the lock: neither the serving process nor the judge.
mount_volume "$volume" "$mnt" 9>&-
mkdir "$WORK/local" "$WORK/tmpfs"
mount -t tmpfs tmpfs "$WORK/tmpfs"

compare() {
    kestrel-compare --a "$mnt" --allow "$ROOT/tests/posix/compare-allow.txt" --ops "$ops" "$@" 9>&-
}

for ((seed = first; seed < first + seeds; seed++)); do
    # Both references: a difference to one that the other shares is no fault of the mount.
    reference=$WORK/local
    [ $((seed % 2)) = 0 ] && reference=$WORK/tmpfs
    if compare --b "$reference" --seed "$seed"; then ok "seed $seed against $(basename "$reference")"; else fail "seed $seed"; fi
done
if compare --b "$WORK/local" --seed $((first + 1000)) --workers 4; then
    ok "four at once, each in its subtree"
else
    fail "four at once, seeds from $((first + 1000))"
fi
close_and_check "$volume" "$mnt"
summary
