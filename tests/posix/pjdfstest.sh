#!/usr/bin/env bash
# pjdfstest (crate, pinned by scripts/install-deps.sh) on a mount. Failures that are expected stand in
# expected-failures.txt, a name and a reason a line; one that passes meanwhile fails this suite, so that the list shrinks.
. "$(dirname "$0")/../lib.sh"

# A second file system for the tests that cross devices, and a place whose parents everybody may search.
mkdir -p "$WORK/second"
mount -t tmpfs -o size=16m tmpfs "$WORK/second"
chmod 755 "$WORK" "$WORK/second"
cat >"$WORK/config.toml" <<'TOML'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
stat_st_birthtime = {}

[settings]
naptime = 0.001
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
TOML

for durability in fsync commit; do
    new_volume "volume-$durability" --durability "$durability"
    mount_volume
    chmod 755 "$MNT"
    timeout 600 "$TOOLS/bin/pjdfstest" -c "$WORK/config.toml" -p "$MNT" -s "$WORK/second" >"$WORK/out" 2>&1 || true
    tail -n 1 "$WORK/out"
    grep -oE '^[a-z_:0-9]+ +(ok|FAILED|failed|skipped)' "$WORK/out" | awk '{ print $2, $1 }' >"$WORK/results" || true
    passed=$(grep -c '^ok ' "$WORK/results" || true)
    sed -E 's/#.*//; s/[[:space:]].*//; /^$/d' "$(dirname "$0")/expected-failures.txt" | sort >"$WORK/expected"
    grep -iE '^failed ' "$WORK/results" | cut -d' ' -f2 | sort >"$WORK/failed" || true
    comm -13 "$WORK/expected" "$WORK/failed" >"$WORK/unexpected"
    comm -23 "$WORK/expected" "$WORK/failed" >"$WORK/better"
    if [ "$passed" -lt 380 ]; then
        tail -n 20 "$WORK/out"
        fail "$durability: only $passed tests passed"
    elif [ -s "$WORK/unexpected" ] || ! grep -q 'Summary: 0 failed\|expected failures' "$WORK/out"; then
        cat "$WORK/unexpected"
        fail "$durability: unexpected failures"
    elif [ -s "$WORK/better" ]; then
        cat "$WORK/better"
        fail "$durability: expected failures that pass; take them off the list"
    else
        ok "$durability: $passed tests"
    fi
    umount_volume
    check "$durability: fsck" check_volume || true
done
summary
