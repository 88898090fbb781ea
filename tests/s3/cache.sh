#!/usr/bin/env bash
# The cache near the compute, on disks that are too small, that fill up and that fail: reads are
# right, and go on. It survives restarts and kill -9, and several volumes share it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

volume=$WORK/vol mnt=$WORK/mnt disk=$WORK/disk
count=60 sizes=5000,100000,5000000 # about 102 MB
make_volume "$volume"

# cold DIR: no byte of the data is in memory, all of it is read; GETs that it took.
read_all() {
    reset_counts
    "$TREE" check "$1" $count $sizes >"$WORK/tree.out" 2>&1 || {
        cat "$WORK/tree.out"
        return 1
    }
    count requests get
}

# late DIR: how often its cache was passed by because a disk failed, had no room or answered too
# late.
late() {
    local figure sum=0
    for figure in cache_disk_errors cache_disk_bypassed cache_disk_dropped_writes; do
        sum=$((sum + $(stat_of "$1" $figure)))
    done
    echo $sum
}

# from_cache DIR: reads everything, and the store is not asked. A disk that answers too late is
# passed by for a while, as it should be on a machine that stands still for a second: then, and only
# then, it is warmed up and read again.
from_cache() {
    local gets before
    for _ in 1 2 3 4 5; do
        before=$(late "$1")
        gets=$(read_all "$1") && same "${gets##*$'\n'}" 0 && return
        "$KESTREL" stats "$1" --once --json | grep -E 'cache_disk|store_get'
        [ "$(late "$1")" -gt "$before" ] || break
        sleep 2
        "$KESTREL" warmup "$1" || true
    done
    grep WARN "$volume/mount.log" | tail -n 5
    return 1
}

echo "== it survives restarts and kill -9"
cache=(--cache-dir "$WORK/cache" --data-cache 1M)
mount_volume "$volume" "$mnt" "${cache[@]}"
"$TREE" write "$mnt/a" $count $sizes
remount "$volume" "$mnt" "${cache[@]}"
"$KESTREL" warmup "$mnt/a" >/dev/null
check "after warmup the store is not asked" from_cache "$mnt/a"
remount "$volume" "$mnt" "${cache[@]}"
check "nor after a restart" from_cache "$mnt/a"
kill_mount "$volume" "$mnt"
mount_volume "$volume" "$mnt" "${cache[@]}"
check "nor after kill -9" from_cache "$mnt/a"
"$TREE" check "$mnt/a" $count $sizes >/dev/null &
reader=$!
"$KESTREL" warmup "$mnt/a" --evict >/dev/null
"$TREE" check "$mnt/a" $count $sizes >/dev/null &
other=$!
sleep 0.3
kill_mount "$volume" "$mnt"
wait $reader || true
wait $other || true
mount_volume "$volume" "$mnt" "${cache[@]}"
check "kill -9 while it is filled: reads are right" read_all "$mnt/a"
umount_volume "$mnt"

echo "== several directories, one of them lost"
two=(--cache-dir "$WORK/one" --cache-dir "$WORK/two" --data-cache 1M)
mount_volume "$volume" "$mnt" "${two[@]}"
"$KESTREL" warmup "$mnt/a" >/dev/null
check "from two directories" from_cache "$mnt/a"
# The mount may still be making whole copies there.
until_so rm -rf "$WORK/two" 2>/dev/null
check "one is removed under it: reads are right" read_all "$mnt/a"
remount "$volume" "$mnt" "${two[@]}"
check "and after a restart" read_all "$mnt/a"
umount_volume "$mnt"

echo "== copied from elsewhere"
make_volume "$WORK/other"
mount_volume "$WORK/other" "$WORK/mnt2" "${cache[@]}"
"$TREE" write "$WORK/mnt2/b" $count $sizes
umount_volume "$WORK/mnt2"
cp -a "$WORK/cache" "$WORK/copied"
# Every volume's directory gets the files of another: the numbers of their objects are the same.
python3 - "$WORK/copied" <<'PY'
import os, shutil, sys
root = sys.argv[1]
volumes = [name for name in sorted(os.listdir(root)) if os.path.isdir(f"{root}/{name}") and len(name) >= 32]
if len(volumes) < 2:
    sys.exit(f"{volumes}: wanted the directories of two volumes")
one, two = (f"{root}/{name}" for name in volumes[:2])
os.rename(one, f"{root}/swap")
os.rename(two, one)
os.rename(f"{root}/swap", two)
PY
mount_volume "$volume" "$mnt" --cache-dir "$WORK/copied" --data-cache 1M
check "another volume's files in the cache harm nobody" read_all "$mnt/a"
umount_volume "$mnt"

echo "== a small disk that fills up"
mkdir -p "$disk"
truncate -s 64M "$WORK/image"
mkfs.ext4 -q -F -m 0 "$WORK/image"
mount -o loop "$WORK/image" "$disk"
small=(--cache-dir "$disk/cache" --free-space-ratio 0 --data-cache 1M)
mount_volume "$volume" "$mnt" "${small[@]}"
check "more data than the disk holds: reads are right" read_all "$mnt/a"
check "again" read_all "$mnt/a"
check "files written meanwhile are right" "$TREE" write "$mnt/c" $count $sizes
check "and are read right" "$TREE" check "$mnt/c" $count $sizes
# Somebody else takes all that is left.
dd if=/dev/zero of="$disk/ballast" bs=1M status=none 2>/dev/null || true
check "full of somebody else's data" read_all "$mnt/a"
rm "$disk/ballast"
check "and after that" read_all "$mnt/a"
umount_volume "$mnt"

echo "== --cache-size is kept"
mount_volume "$volume" "$mnt" --cache-dir "$WORK/bounded" --cache-size 32M --data-cache 1M
check "a scan of more than it holds" read_all "$mnt/a"
umount_volume "$mnt"
used=$(du -sm "$WORK/bounded" | cut -f1)
check "$used MB in use of 32" is_more 40 "$used"

echo "== a disk that fails"
umount "$disk"
truncate -s 1G "$WORK/image2"
mkfs.xfs -q -f "$WORK/image2"
mount -o loop "$WORK/image2" "$disk"
mount_volume "$volume" "$mnt" --cache-dir "$disk/cache" --data-cache 1M
"$KESTREL" warmup "$mnt/a" >/dev/null
check "before it fails" from_cache "$mnt/a"
xfs_io -x -c shutdown "$disk"
check "every read and write of the disk fails: reads are right" read_all "$mnt/a"
check "files written meanwhile are right" "$TREE" write "$mnt/d" $count $sizes
check "and are read right" "$TREE" check "$mnt/d" $count $sizes
check "the disk is out of service" is_more \
    "$(($(stat_of "$mnt" cache_disk_bypassed) + $(stat_of "$mnt" cache_disk_errors)))" 0
umount_volume "$mnt"
umount "$disk"
mount -o loop "$WORK/image2" "$disk"
mount_volume "$volume" "$mnt" --cache-dir "$disk/cache" --data-cache 1M
check "the disk is back, with what it kept" read_all "$mnt/a"

echo "== two volumes on one directory"
mount_volume "$WORK/other" "$WORK/mnt2" --cache-dir "$disk/cache" --data-cache 1M
check "one" read_all "$mnt/a"
check "and the other" read_all "$WORK/mnt2/b"
# Writes to a busy cache disk may be left out: warmup brings what is missing.
"$KESTREL" warmup "$mnt/a" "$WORK/mnt2/b" >/dev/null
check "both at once from the cache: one" from_cache "$mnt/a"
check "both at once from the cache: the other" from_cache "$WORK/mnt2/b"
umount_volume "$WORK/mnt2"
close_and_check "$volume" "$mnt"
summary
