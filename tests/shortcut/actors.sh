#!/usr/bin/env bash
# A mount in shortcut mode while another mount of the volume renames, replaces, removes and re-owns
# what it walks through: call by call against a local file system (kestrel-compare --elsewhere), and
# all at once (kestrel-history: linearizable).
#
# ACTOR_OPS: calls of a comparison (default 4000); ACTOR_SEEDS (default 2); ACTOR_SEED: the first;
# HISTORY_OPS: calls of each of 6 threads (default 1000). KESTREL_SHORTCUT=off: the same on plain
# mounts.
set -euo pipefail
export KESTREL_SERVE=1 KESTREL_SHORTCUT=${KESTREL_SHORTCUT:-on}
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b plain=$WORK/plain
ops=${ACTOR_OPS:-4000} seeds=${ACTOR_SEEDS:-2} first=${ACTOR_SEED:-1}
# The kernel's own hardening of sticky directories is off while this runs: see compare.sh.
. "$ROOT/tests/posix/hardening.sh"
make_volume "$volume"
mount_volume "$volume" "$a" 9>&-
mount_volume "$volume" "$b" 9>&-
mount_volume "$volume" "$plain" --no-shortcut 9>&-
mkdir "$WORK/local"
allow=$(allowances "$a")

for ((seed = first; seed < first + seeds; seed++)); do
    # The other mount is one of the same kind, or a plain one.
    other=$b
    [ $((seed % 2)) = 0 ] && other=$plain
    check "seed $seed, changed by the mount $(basename "$other")" kestrel-compare --a "$a" \
        --elsewhere "$other" --b "$WORK/local" \
        --allow "$allow" --ops "$ops" --seed "$seed" 9>&-
done

history() {
    timeout 300 kestrel-history run --threads 6 --ops "${HISTORY_OPS:-1000}" "$@" 2>&1
}
for ((seed = first; seed < first + seeds; seed++)); do
    check "one mount, seed $seed" history --dir "$a" --seed "$seed"
    cat "$WORK/check.out"
    check "two mounts, seed $seed" history --dir "$a" --dir "$b" --seed $((seed + 100))
    cat "$WORK/check.out"
    check "with a plain mount, seed $seed" history --dir "$a" --dir "$plain" --seed $((seed + 200))
    cat "$WORK/check.out"
done
umount_volume "$a"
umount_volume "$b"
close_and_check "$volume" "$plain"
summary
