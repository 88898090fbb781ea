#!/usr/bin/env bash
# A full disk gives ENOSPC, loses nothing that was acknowledged, lets files be deleted, and the
# volume works again when there is space. Three times over, on a small loop-mounted file system.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

disk=$WORK/disk mnt=$WORK/mnt volume=$WORK/disk/volume
mkdir -p "$disk" "$mnt"
truncate -s 1G "$WORK/image"
mkfs.ext4 -q -F -m 0 "$WORK/image"
mount -o loop "$WORK/image" "$disk"
make_volume "$volume" --grace 1s
mount_volume "$volume" "$mnt"

# Writes 1 MiB files until it cannot; prints how many are complete. Each is acknowledged only when
# close and rename were.
fill() {
    python3 - "$mnt/$1" <<'PY'
import errno, hashlib, os, sys
where, count = sys.argv[1], 0
os.mkdir(where)
try:
    while count < 1000:
        data = hashlib.shake_128(f"{where}/{count}".encode()).digest(1 << 20)
        with open(f"{where}/new", "wb") as file:
            file.write(data)
            file.flush()
            if count % 4 == 0:
                os.fsync(file.fileno())
        os.rename(f"{where}/new", f"{where}/{count}")
        count += 1
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
print(count)
PY
}

# Every acknowledged file is there, byte by byte.
all_there() {
    python3 - "$mnt/$1" "$2" <<'PY'
import hashlib, sys
where, count = sys.argv[1], int(sys.argv[2])
for i in range(count):
    with open(f"{where}/{i}", "rb") as file:
        data = file.read()
    # The name that it was written under is part of the content.
    if data != hashlib.shake_128(f"{where}/{i}".encode()).digest(1 << 20):
        sys.exit(f"{where}/{i}: wrong content, {len(data)} bytes")
PY
}

deletes() {
    rm -rf "${mnt:?}/$1"
}

usable() {
    local i
    # The space comes back after the grace period.
    for ((i = 0; i < 30; i++)); do
        if dd if=/dev/zero of="$mnt/probe" bs=1M count=40 status=none 2>/dev/null; then
            rm "$mnt/probe"
            return 0
        fi
        rm -f "$mnt/probe"
        sleep 1
    done
    df -h "$disk" "$mnt"
    return 1
}

# Deleted files give their space back one after the other when their grace is over; the next round
# needs room for its files.
roomy() {
    local i
    for ((i = 0; i < 300; i++)); do
        [ "$(df -BM --output=avail "$disk" | tail -n 1 | tr -dc 0-9)" -lt 200 ] || return 0
        sleep 0.1
    done
    df -h "$disk" "$mnt"
    return 1
}

for round in 1 2 3; do
    count=$(fill "f$round") || count=0
    if [ "$count" -gt 50 ] && [ "$count" -lt 1000 ]; then
        ok "round $round: full after $count files"
    else
        fail "round $round: $count files, then no ENOSPC or too early"
    fi
    check "round $round: every acknowledged file is there" all_there "f$round" "$count"
    if [ "$round" = 2 ]; then
        # Dying while full must not make it worse.
        kill_mount "$volume" "$mnt"
        check "round $round: fsck of the full volume" fsck_volume "$volume"
        check "round $round: mounts while full" mount_volume "$volume" "$mnt"
        if ! mountpoint -q "$mnt"; then
            summary
            exit 1
        fi
        check "round $round: every file is there after kill -9" all_there "f$round" "$count"
    fi
    check "round $round: deletes while full" deletes "f$round"
    check "round $round: usable when there is space again" usable
    check "round $round: the space is back" roomy
done

# Names of a clone come into being while the disk is full, or an error says why not. What could not
# come into being does so when there is space.
many=2000
# Makes small files until not even rows fit.
fill_rows() {
    python3 - "$mnt/rows" <<'PY'
import errno, os, sys
os.mkdir(sys.argv[1])
try:
    for i in range(1000000):
        with open(f"{sys.argv[1]}/{i:0240}", "w") as file:
            file.write("x" * 1000)
except OSError as error:
    sys.exit(error.errno != errno.ENOSPC)
sys.exit("no ENOSPC")
PY
}
listed() {
    local found
    found=$(find "$1" -name 'f*' -type f 2>"$WORK/find.err" | wc -l) || found=0
    [ "$found" != "$many" ] || return 0
    grep -q 'No space left on device' "$WORK/find.err"
}
whole() {
    diff -r "$mnt/many" "$1"
}
mkdir "$mnt/many"
python3 - "$mnt/many" "$many" <<'PY'
import os, sys
for dir in range(4):
    os.mkdir(f"{sys.argv[1]}/{dir}")
for i in range(int(sys.argv[2])):
    with open(f"{sys.argv[1]}/{i % 4}/f{i:0200}", "w") as file:
        file.write(str(i))
PY
check "a clone is made" "$KESTREL" clone "$mnt/many" "$mnt/clone"
count=$(fill f4) || count=0
[ "$count" -gt 50 ] || fail "no ENOSPC with a clone"
check "full of small files, too" fill_rows
check "C6 a clone on a full disk has all names or says why not" listed "$mnt/clone"
if "$KESTREL" clone "$mnt/many" "$mnt/late" 2>"$WORK/clone.err"; then
    ok "C6 a clone is made on the full disk"
else
    check "C6 no clone without space" grep -qi 'space' "$WORK/clone.err"
    check "C6 nothing of it is left" test ! -e "$mnt/late"
    "$KESTREL" clone "$mnt/many" "$mnt/late" || true
fi
kill_mount "$volume" "$mnt"
check "C6 mounts while full, with clones" mount_volume "$volume" "$mnt"
check "C6 deletes beside clones while full" rm -rf "$mnt/f4" "$mnt/rows"
check "usable when there is space again" usable
check "C6 the clone is whole" whole "$mnt/clone"
[ ! -e "$mnt/late" ] || check "C6 the late clone is whole" whole "$mnt/late"
check "C6 clones are deleted" rm -rf "$mnt/clone" "$mnt/late" "$mnt/many"
check "the space is back" roomy

# The random load until it is full, with many small things at once.
kestrel_load() {
    mkdir "$mnt/load"
    kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 4 --seed 5 --seconds 40
}
dd if=/dev/zero of="$mnt/ballast" bs=1M count=700 status=none || true
check "random load on a nearly full disk" kestrel_load
check "verify of the random load" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
check "delete everything" rm -rf "$mnt/load" "$mnt/ballast"
close_and_check "$volume" "$mnt"
summary
