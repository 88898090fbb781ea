#!/usr/bin/env bash
# One damaged place costs what was there, not the volume: flipped bits in every kind of small record
# are mended by opening the volume; damage in the log and in the sorted runs is gone around by
# `kestrel fsck --salvage`, which makes a new volume and names by path what it could not recover.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt saved=$WORK/saved
FILES=${FILES:-6000}
mkdir -p "$mnt"

# A volume with rows in the sorted runs and in the log: little memory for metadata, so that rows are
# flushed.
fill() {
    "$KESTREL" format "$volume" >/dev/null
    "$KESTREL" mount "$volume" "$mnt" --metadata-memory 16M >/dev/null
    python3 - "$mnt" "$FILES" <<'PY'
import os, sys
mnt, files = sys.argv[1], int(sys.argv[2])
for number in range(files):
    directory = f"{mnt}/d{number // 500:03}"
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/f{number:05}", "wb") as file:
        file.write(b"%05d" % number * (600 if number % 3 else 8000))
PY
    "$KESTREL" umount "$mnt"
    cp -a "$volume" "$saved"
}

restore() {
    rm -rf "$volume" "$WORK/new"
    cp -a "$saved" "$volume"
}

# flip FILE FROM TO COUNT SEED: flips one bit at each of COUNT places between bytes FROM and TO (0:
# the end).
flip() {
    python3 - "$@" <<'PY'
import os, random, sys
path, low, high, count, seed = sys.argv[1], *map(int, sys.argv[2:])
random.seed(seed)
with open(path, "r+b") as file:
    size = os.path.getsize(path)
    for _ in range(count):
        at = random.randrange(low, min(high, size) or size)
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ (1 << random.randrange(8))]))
PY
}

# compare [LOSSES]: every file reads as written, or is missing and what fsck said was lost names it
# or its directory.
compare() {
    python3 - "$mnt" "$FILES" "${1:-/dev/null}" <<'PY'
import os, re, sys
mnt, files, losses = sys.argv[1], int(sys.argv[2]), open(sys.argv[3]).read()
lost = set(re.findall(r"^lost: (\S+):", losses, re.M))
between = re.search(r"between (?:the beginning|name and attributes|attributes|extents|other)", losses)
gone = 0
for number in range(files):
    path = f"/d{number // 500:03}/f{number:05}"
    wanted = b"%05d" % number * (600 if number % 3 else 8000)
    try:
        found = open(mnt + path, "rb").read()
    except FileNotFoundError:
        gone += 1
        if not between and path not in lost and os.path.dirname(path) not in lost:
            sys.exit(f"{path} is gone and nothing named it")
        continue
    if found != wanted and path not in lost and not between:
        sys.exit(f"{path} has other bytes and nothing named it")
if gone > files // 10:
    sys.exit(f"{gone} of {files} files are gone for one damaged place")
print(f"{files - gone} files as written, {gone} gone and named")
PY
}

fill
check "the volume has sorted runs" sh -c 'ls "$1"/meta/runs/tables | grep -q .' sh "$volume"

# Small records: any bit, and the volume is as it was.
seed=1
small() {
    local name=$1 from=$2 to=$3
    restore
    flip "$volume/$name" "$from" "$to" 1 "$seed"
    seed=$((seed + 1))
    if "$KESTREL" mount "$volume" "$mnt" >"$WORK/mount.out" 2>&1 && compare >"$WORK/compare.out" \
        2>&1; then
        ok "a flipped bit in $name: mounted, all as written"
    else
        tail -5 "$WORK/mount.out" "$WORK/compare.out"
        fail "a flipped bit in $name"
    fi
    "$KESTREL" umount "$mnt" 2>/dev/null || true
    check "and fsck finds nothing after that" "$KESTREL" fsck "$volume"
}
current=$(basename "$(ls "$saved"/meta/runs/v*)")
segments=$(cd "$saved" && ls meta/log/*.log)
for name in kestrel.json kestrel.json.copy meta/log/checkpoint meta/log/checkpoint.copy \
    meta/log/epoch meta/log/epoch.copy \
    meta/runs/current "meta/runs/$current" meta/runs/manifest.copy; do
    small "$name" 0 0
    small "$name" 0 0
done
for segment in $segments; do
    small "$segment" 0 64
done

# What has no second copy: the old volume stays as it is, the new one has all but what was damaged.
salvage() {
    local what=$1
    find "$volume" -type f -not -name lock -not -name '*.log' -exec sha256sum {} + |
        sort >"$WORK/before"
    if "$KESTREL" fsck "$volume" --salvage "$WORK/new" >"$WORK/salvage.out" 2>&1; then :; fi
    if ! grep -q 'rows recovered' "$WORK/salvage.out"; then
        tail -5 "$WORK/salvage.out"
        fail "salvage after $what"
        return
    fi
    find "$volume" -type f -not -name lock -not -name '*.log' -exec sha256sum {} + |
        sort >"$WORK/after"
    check "salvage after $what changes nothing of the old volume" cmp "$WORK/before" "$WORK/after"
    check "the new volume is whole" "$KESTREL" fsck --data "$WORK/new"
    "$KESTREL" mount "$WORK/new" "$mnt" >/dev/null
    if compare "$WORK/salvage.out" >"$WORK/compare.out" 2>&1 && echo new >"$mnt/new" &&
        [ "$(cat "$mnt/new")" = new ]; then
        ok "salvage after $what: $(tail -n 1 "$WORK/compare.out")"
    else
        head -20 "$WORK/salvage.out"
        tail -3 "$WORK/compare.out"
        fail "salvage after $what"
    fi
    "$KESTREL" umount "$mnt"
}

restore
salvage "no damage"
check "and loses nothing" sh -c '! grep -q "^lost:" "$1"' sh "$WORK/salvage.out"
restore
rm "$volume"/meta/log/checkpoint "$volume"/meta/log/checkpoint.copy
salvage "both checkpoints gone"
restore
rm "$volume"/meta/runs/current "$volume"/meta/runs/manifest.copy
salvage "both manifests gone"
for table in $(cd "$saved" && ls -S meta/runs/tables | head -n 2); do
    for round in 1 2; do
        restore
        flip "$volume/meta/runs/tables/$table" 0 0 1 "$((seed += 1))"
        salvage "a flipped bit in table $table ($round)"
    done
done
for segment in $segments; do
    restore
    flip "$volume/$segment" 4096 60000 3 "$((seed += 1))"
    salvage "three flipped bits in $segment"
done
restore
truncate -s 20000 "$volume/meta/runs/tables/$(ls -S "$saved/meta/runs/tables" | head -n 1)"
if "$KESTREL" fsck "$volume" --salvage "$WORK/new" >"$WORK/salvage.out" 2>&1; then
    fail "a table that is cut off costs nothing"
else
    check "a table that is cut off is named" grep -q '^lost: .*tables/' "$WORK/salvage.out"
fi
refuses "a salvage into a directory that is not empty" 'not empty' "$KESTREL" fsck "$volume" \
    --salvage "$saved"
summary
