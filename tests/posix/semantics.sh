#!/usr/bin/env bash
# Executes docs/semantics.md on a mount, statement by statement.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
counted python3 "$ROOT/tests/posix/semantics.py" "$mnt"
close_and_check "$volume" "$mnt"
summary
