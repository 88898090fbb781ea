#!/usr/bin/env bash
# stress-ng's file-system stressors with --verify, one after another.
#
# STRESS_SECONDS: seconds for each (default 8).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

cd "$WORK" # one of the stressors leaves a file in the working directory
volume=$WORK/volume mnt=$WORK/mnt
seconds=${STRESS_SECONDS:-8}
stressors=(dentry dir dirdeep dirmany filename flock fpunch getdent link locka lockf lockofd open \
    rename symlink utime xattr
    iomix)
make_volume "$volume"
mount_volume "$volume" "$mnt"
for stressor in "${stressors[@]}"; do
    mkdir -p "$mnt/$stressor"
    # A stressor that does not end by itself is a failure too, not a hang.
    if timeout $((seconds * 3 + 60)) stress-ng "--$stressor" 2 --verify --timeout "${seconds}s" \
        --temp-path "$mnt/$stressor" \
        --metrics-brief --oomable >"$WORK/stress.out" 2>&1 &&
        ! grep -qE ' fail: | error: ' "$WORK/stress.out"; then
        ok "$stressor"
    else
        tail -n 20 "$WORK/stress.out"
        fail "$stressor"
    fi
    rm -rf "${mnt:?}/$stressor"
done
close_and_check "$volume" "$mnt"
summary
