#!/usr/bin/env bash
# The cases of the VFS shortcut (cases.py) on a served volume: a mount in shortcut mode, a plain mount of the same volume and a
# local directory must answer the same, and calls must cost the requests they should. Then on an embedded volume.
#
# ONLY: names of cases, with wildcards.
set -euo pipefail
export KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel

only=()
for name in ${ONLY:-}; do only+=(--only "$name"); done
export KESTREL WORK
cases() {
    python3 "$ROOT/tests/shortcut/cases.py" "$@" "${only[@]}"
}
# count: what cases.py said, added to ours.
count() {
    local passed=0 failed=1
    cases "$@" >"$WORK/cases.out" 2>&1 || true
    cat "$WORK/cases.out"
    read -r passed failed < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$WORK/cases.out" | tail -n 1) || true
    PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed))
}

volume=$WORK/volume
make_volume "$volume"
mount_volume "$volume" "$WORK/maker" --no-shortcut
mkdir "$WORK/local" "$WORK/local-too"
mount --bind "$WORK/local" "$WORK/local-too"
mkdir "$WORK/maker/of-shortcut" "$WORK/maker/of-plain"
for tree in "$WORK/maker/of-shortcut" "$WORK/maker/of-plain" "$WORK/local"; do cases prepare "$tree"; done
mount_volume "$volume" "$WORK/plain" --no-shortcut
mount_volume "$volume" "$WORK/shortcut"
needs_shortcut "$WORK/shortcut"
count run --side "shortcut=$WORK/shortcut/of-shortcut=$WORK/maker/of-shortcut" \
    --side "plain=$WORK/plain/of-plain=$WORK/maker/of-plain" --side "local=$WORK/local=$WORK/local-too"
check "unmounts" umount_volume "$WORK/shortcut"
check "unmounts the plain one" umount_volume "$WORK/plain"
close_and_check "$volume" "$WORK/maker"

# What concerns one mount only, on an embedded volume.
# shellcheck disable=SC2034 # lib.sh reads it
SERVING=
volume=$WORK/embedded
rm -rf "$WORK/local" && mkdir "$WORK/local"
make_volume "$volume"
mount_volume "$volume" "$WORK/mnt" --no-shortcut
cases prepare "$WORK/mnt"
cases prepare "$WORK/local"
umount_volume "$WORK/mnt"
mount_volume "$volume" "$WORK/mnt"
echo "embedded"
count run --side "shortcut=$WORK/mnt" --side "local=$WORK/local"
close_and_check "$volume" "$WORK/mnt"
summary
