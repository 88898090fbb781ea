#!/usr/bin/env bash
# Executes docs/semantics.md on a mount, statement by statement.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
python3 "$ROOT/tests/posix/semantics.py" "$mnt" >"$WORK/out" 2>&1 || true
cat "$WORK/out"
read -r passed failed < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$WORK/out" | tail -n 1) || true
PASSED=$((PASSED + ${passed:-0})) FAILED=$((FAILED + ${failed:-1}))
close_and_check "$volume" "$mnt"
summary
