#!/usr/bin/env bash
# What cost other systems the trust of their users, each as a test that fails on the broken
# behaviour. The volume lies in an object store behind a proxy that fails on purpose.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

volume=$WORK/vol mnt=$WORK/mnt
files=1100 # more than a page of a listing of their objects

echo "== gc after a partial listing (juicedata/juicefs#6479)"
make_volume "$volume" --grace 1s
mount_volume "$volume" "$mnt"
"$TREE" write "$mnt/live" $files 5000 --threads 1
umount_volume "$mnt"
# What is written from here on is known to the store and not to the metadata that is put back:
# leaked objects.
cp -a "$volume" "$WORK/old"
mount_volume "$volume" "$mnt"
"$TREE" write "$mnt/leaked" $files 5000 --threads 1
umount_volume "$mnt"
rm -rf "$volume"
mv "$WORK/old" "$volume"
all=$(objects vol | wc -l)
check "more than two pages of objects" is_more "$all" 2000

# collect_fails NAME RULE…: gc refuses under these faults and deletes nothing.
collect_fails() {
    local name=$1
    shift
    faults "$@"
    reset_counts
    refuses "$name" . "$KESTREL" gc "$volume" --delete --grace 0s
    check "$name: nothing was deleted" same \
        "$(count requests delete) $(count requests delete-many) $(objects vol | wc -l)" "0 0 $all"
    no_faults
}
collect_fails "a page of the listing fails" status:code=403,kind=list,skip=1
collect_fails "the listing repeats a page" list-repeat:skip=1
# Flipped bytes in the sorted runs and the log: some rows cannot be read.
cp -a "$volume" "$WORK/good"
python3 - "$volume/meta" <<'PY'
import os, sys
for root, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(root, name)
        size = os.path.getsize(path)
        if size > 8192:
            with open(path, "r+b") as file:
                for at in range(4096, size, 50_000):
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 0x10]))
PY
collect_fails "rows of the metadata cannot be read"
rm -rf "$volume"
mv "$WORK/good" "$volume"

# A listing that lies without a way to notice it must not make anything look missing.
for lie in list-gap:count=1 list-cut:skip=1; do
    faults "$lie"
    check "$lie: fsck --repair believes no listing alone" fsck_volume "$volume" --repair
done
no_faults
mount_volume "$volume" "$mnt"
check "every file is there" "$TREE" check "$mnt/live" $files 5000
check "gc --delete with a complete listing, while mounted" "$KESTREL" gc "$volume" \
    --delete --grace 0s
check "it deleted about what was leaked" is_more $((all - files + 100)) "$(objects vol | wc -l)"
remount "$volume" "$mnt"
check "every file is there after gc" "$TREE" check "$mnt/live" $files 5000
rm -rf "$mnt/live"

echo "== zeros instead of data (juicedata/juicefs#5038, openzfs/zfs#15526)"
if python3 "$ROOT/tests/s3/zeros.py" "$mnt" "$KESTREL"; then
    ok "append, overwrite, compaction, copies of dirty files"
else
    fail "zeros.py"
fi
faults latency:ms=15,jitter=30
if python3 "$ROOT/tests/s3/zeros.py" "$mnt" "$KESTREL"; then
    ok "the same with a slow store"
else
    fail "zeros.py with a slow store"
fi
no_faults
close_and_check "$volume" "$mnt"

echo "== right length, wrong bytes (Alluxio/alluxio#18753)"
cache=$WORK/cache
mount_volume "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
"$TREE" write "$mnt/read" 60 5000,100000,3000000
remount "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
"$TREE" check "$mnt/read" 60 5000,100000,3000000 >/dev/null
remount "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
flip() {
    python3 - "$1" <<'PY'
import os, sys
hit = 0
for root, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(root, name)
        size = os.path.getsize(path)
        if name.endswith(".json") or size < 4000:
            continue
        times = os.stat(path)
        with open(path, "r+b") as file:
            for at in range(2000, size, 40_000):
                file.seek(at)
                byte = file.read(1)
                if byte:
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 0x01]))
                    hit += 1
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
sys.exit(0 if hit > 50 else f"only {hit} places in the cache")
PY
}
check "bytes flipped all over the cache" flip "$cache"
check "no reader sees them" "$TREE" check "$mnt/read" 60 5000,100000,3000000
check "they were noticed" is_more "$(stat_of "$mnt" cache_disk_corrupt)" 10
remount "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
faults wrong-bytes:rate=0.2 short:rate=0.1 long:rate=0.1 truncate:rate=0.1
"$KESTREL" warmup "$mnt/read" --evict >/dev/null
check "wrong, short, long and cut answers of the store reach no reader" "$TREE" check "$mnt/read" \
    60 5000,100000,3000000
no_faults
umount_volume "$mnt"
mount_volume "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
check "nor did they get into the cache" "$TREE" check "$mnt/read" 60 5000,100000,3000000

echo "== an upload error swallowed by close"
faults status:code=403,kind=put+part+multipart
check "fsync says that the upload failed, and close does" python3 "$ROOT/tests/s3/uploads.py" \
    fail "$mnt"

echo "== eviction of what is not yet durable"
mkdir "$WORK/flags"
python3 "$ROOT/tests/s3/uploads.py" hold "$mnt" "$WORK/flags" &
holder=$!
check "fsync says that nothing was stored" wait_until 90 test -e "$WORK/flags/told"
# The cache and the memory are asked for room meanwhile.
"$KESTREL" warmup "$mnt/read" --evict >/dev/null || true
check "reads meanwhile" "$TREE" check "$mnt/read" 60 5000,100000,3000000
no_faults
touch "$WORK/flags/go"
check "it is still there, and the next fsync stores it" wait $holder
remount "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
check "it is there after a remount" python3 "$ROOT/tests/s3/uploads.py" verify "$mnt"

echo "== a dead store and unkillable processes"
remount "$volume" "$mnt" --cache-dir "$cache" --data-cache 1M
"$KESTREL" warmup "$mnt/read" --evict >/dev/null
cat "$mnt/read/file0" >"$WORK/file0"
faults hang
cat "$mnt/read/file2" >/dev/null &
reader=$!
dd if=/dev/urandom of="$mnt/hanging" bs=100K count=1 conv=fsync status=none &
writer=$!
wait_until 30 is_more "$(count in_flight_max get)" 0 || true
check "names, attributes and directories answer meanwhile" ls -lR "$mnt/read"
mkdir "$mnt/meanwhile"
check "so does what is cached" cmp "$mnt/read/file0" "$WORK/file0"
kill -9 $reader $writer
check "a reader that waits for the store can be killed" wait_until 40 gone $reader
check "so can a writer" wait_until 40 gone $writer
check "the mount answers" rmdir "$mnt/meanwhile"
no_faults
check "everything works when the store is back" "$TREE" check "$mnt/read" 60 5000,100000,3000000
rm -f "$mnt/hanging"
close_and_check "$volume" "$mnt"
summary
