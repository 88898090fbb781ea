#!/usr/bin/env bash
# A memory limit is kept: in control groups of 128 MiB, 256 MiB and 1 GiB a mount writes three large
# files at once, reads them back, makes many small files and lists them, and a server answers many
# who create and list. Nothing is killed for memory, and what the processes hold stays below the
# bound that they tell.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

# Control groups, of version 2 if that hierarchy has the memory.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    GROUPS_AT=/sys/fs/cgroup LIMIT=memory.max ANON=anon
    grep -qw memory /sys/fs/cgroup/cgroup.subtree_control ||
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
else
    GROUPS_AT=/sys/fs/cgroup/memory LIMIT=memory.limit_in_bytes ANON=rss
fi
GROUP=$GROUPS_AT/kestrel-test-$$

# remove_group: when nothing is in it any more.
remove_group() {
    local try
    for ((try = 0; try < 100; try++)); do
        [ -d "$GROUP" ] || return 0
        rmdir "$GROUP" 2>/dev/null || sleep 0.1
    done
}
AFTER_ALL=remove_group

# make_group MIB: a new one with this limit; fails where that cannot be.
make_group() {
    remove_group
    { mkdir "$GROUP" && [ -e "$GROUP/$LIMIT" ] && echo $(($1 << 20)) >"$GROUP/$LIMIT"; } \
        2>/dev/null || return
    # Memory that is swapped out would not count.
    if [ -e "$GROUP/memory.swap.max" ]; then echo 0 >"$GROUP/memory.swap.max"; fi
}

if ! make_group 128; then
    echo "skipped: no control groups that limit memory can be made at $GROUPS_AT"
    summary
    exit
fi

# kestrel itself, in the group.
REAL=$(realpath "$KESTREL")
LIMITED=$WORK/limited
printf '#!/bin/sh\necho $$ >%s/cgroup.procs\nexec %s "$@"\n' "$GROUP" "$REAL" >"$LIMITED"
chmod +x "$LIMITED"

in_group() {
    local KESTREL=$LIMITED
    "$@"
}

killed() {
    cat "$GROUP/memory.events" "$GROUP/memory.oom_control" 2>/dev/null |
        awk '$1 == "oom_kill" { sum += $2 } END { print sum + 0 }'
}

# watch: notes the most that the group's processes held that cannot be given back.
watch() {
    local now most=0
    while [ -d "$GROUP" ]; do
        now=$(awk -v name="$ANON" '$1 == name { print $2 }' "$GROUP/memory.stat" 2>/dev/null) ||
            true
        [ "${now:-0}" -le "$most" ] || most=$now
        echo "$most" >"$WORK/most.new"
        mv "$WORK/most.new" "$WORK/most"
        sleep 0.2
    done
}

# within PLACE: nothing was killed, and the most is below the bound that the process tells.
within() {
    local bound
    [ "$(killed)" = 0 ] || { echo "killed for memory: $(killed)"; return 1; }
    bound=$("$REAL" status "$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["memory"]["bound_bytes"])')
    echo "most $(($(cat "$WORK/most") >> 20)) MiB, bound $((bound >> 20)) MiB"
    [ "$(cat "$WORK/most")" -le "$bound" ]
}

cat >"$WORK/load.py" <<'PY'
"""load.py write|read FILE BYTES: content of the file's own, no two MiB alike; load.py small|check DIR FROM UNTIL: small files."""
import os, random, sys

verb, path = sys.argv[1:3]
if verb in ("small", "check"):
    for number in range(int(sys.argv[3]), int(sys.argv[4])):
        content = (str(number) + "\n").encode() * (200 + number % 1500)
        with open(f"{path}/{number}", "wb" if verb == "small" else "rb") as file:
            if verb == "small":
                file.write(content)
            else:
                assert file.read() == content, number
    sys.exit()

# Half of it compresses.
seed = random.Random(os.path.basename(path)).randbytes(1 << 19)
pieces = int(sys.argv[3]) >> 20
with open(path, "wb" if verb == "write" else "rb", buffering=0) as file:
    for number in range(pieces):
        want = number.to_bytes(8, "little") + seed + b"kestrel." * 65535
        left = memoryview(want)
        while left:
            if verb == "write":
                left = left[file.write(left):]
            else:
                got = file.read(len(left))
                assert got and got == left[:len(got)], number
                left = left[len(got):]
PY

# together VERB ARGUMENTS…: three at a time, one for each of mnt/1, mnt/2, mnt/3.
together() {
    local file jobs=() status=0
    for file in 1 2 3; do
        python3 "$WORK/load.py" "$1" "$mnt/$file" "$2" &
        jobs+=($!)
    done
    for file in "${jobs[@]}"; do wait "$file" || status=1; done
    return $status
}

# crowd VERB DIR: four processes with 750 files each.
crowd() {
    local at jobs=() status=0
    for at in 0 750 1500 2250; do
        python3 "$WORK/load.py" "$1" "$2" "$at" $((at + 750)) &
        jobs+=($!)
    done
    for at in "${jobs[@]}"; do wait "$at" || status=1; done
    return $status
}

# a_mount NAME LIMIT_MIB FILE_MIB [FORMAT OPTION…]
a_mount() {
    local name=$1 limit=$2 bytes=$(($3 << 20)) volume watcher
    shift 3
    volume=$WORK/$(tr -c 'a-z0-9\n' - <<<"$name") mnt=$WORK/mnt
    make_group "$limit"
    make_volume "$volume" "$@"
    in_group mount_volume "$volume" "$mnt" || { fail "$name: mounts"; return; }
    watch &
    watcher=$!
    check "$name: three files of $((bytes >> 20)) MiB are written at once" together write "$bytes"
    mkdir "$mnt/small"
    check "$name: small files are made" crowd small "$mnt/small"
    check "$name: and are within the bound" within "$volume"
    umount_volume "$mnt"
    in_group mount_volume "$volume" "$mnt"
    check "$name: three files are read at once" together read "$bytes"
    check "$name: small files are read" crowd check "$mnt/small"
    check "$name: and listed" sh -c '[ "$(ls -l "$1" | wc -l)" = 3001 ]' sh "$mnt/small"
    check "$name: and reading is within the bound" within "$volume"
    umount_volume "$mnt"
    kill "$watcher"
    wait "$watcher" 2>/dev/null || true
    rm -rf "$volume"
}

# a_server LIMIT_MIB
a_server() {
    local volume=$WORK/served$1 mnt=$WORK/mnt watcher jobs=() job
    make_group "$1"
    "$REAL" format "$volume" >/dev/null
    in_group start_server "$volume"
    "$REAL" mount "$(serve_url "$volume")" "$mnt" >/dev/null
    watch &
    watcher=$!
    mkdir "$mnt/small"
    check "server, $1 MiB: small files are made" crowd small "$mnt/small"
    for job in 1 2 3 4 5 6 7 8; do
        ls -lR "$mnt" >"$WORK/list.$job" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || fail "server, $1 MiB: a listing"; done
    check "server, $1 MiB: all listings have all files" sh \
        -c '[ "$(cat "$1"/list.? | grep -c "^-")" = 24000 ]' sh "$WORK"
    check "server, $1 MiB: and it is within the bound" within "$volume"
    "$REAL" umount "$mnt" >/dev/null
    kill "$watcher"
    wait "$watcher" 2>/dev/null || true
    stop_server "$volume"
}

make_group 32
refuses "too small a limit is told" "allows 32 MiB of memory.*64 MiB" sh -c '
    "$2" format "$3" >/dev/null && mkdir "$4" && "$1" mount "$3" "$4"' sh "$LIMITED" "$REAL" \
        "$WORK/tiny" "$WORK/tiny.mnt"

a_mount "mount, 128 MiB" 128 140
a_mount "mount, 256 MiB" 256 270
if [ "${KESTREL_STORE:-}" != s3 ]; then
    a_mount "mount, 1 GiB" 1024 360
    a_mount "compressed, 128 MiB" 128 64 --compress zstd
    for limit in 128 256 1024; do a_server "$limit"; done
fi
summary
