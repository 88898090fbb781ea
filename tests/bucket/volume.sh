#!/usr/bin/env bash
# A volume with its metadata in a bucket, as an administrator meets it: made, mounted, checked,
# dumped and loaded; which process opens it twice, which takes it over, from another machine too; a
# store that ignores conditions, fails, and loses answers; damaged and removed objects; how many
# requests there are.
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"
volume=$WORK/volume mnt=$WORK/mnt
url=$(volume_url meta)
refuses "durability fsync is not to be had" 'commit' "$KESTREL" format "$volume" --metadata "$url" \
    --durability fsync
refuses "a URL without a bucket" 's3://BUCKET' "$KESTREL" format "$volume" --metadata s3://
refuses "a URL of nothing that keeps metadata" 'postgres://USER' "$KESTREL" format "$volume" \
    --metadata "redis://x"
refuses "a bucket that there is not" 'no bucket' timeout 60 "$KESTREL" format "$volume" \
    --metadata "${url/kestrel\/meta/other/meta}"
check "nothing is left of that" test ! -e "$volume/kestrel.json"

refuses "a store without conditional puts" 'ignores If-None-Match' timeout 60 "$KESTREL" format \
    "$volume" --metadata "$url&conditional-put=false"

check "format, with file data below the same prefix" "$KESTREL" format "$volume" \
    --metadata "$url" --storage "$url"
check "there is no metadata in the directory" test ! -e "$volume/meta"
refuses "another volume does not go to the same prefix" 'belongs to node 0 of the volume' \
    "$KESTREL" format "$WORK/other" --metadata "$url"
check "nothing is left of that" test ! -e "$WORK/other/kestrel.json"

mount_volume "$volume" "$mnt"
mkdir "$mnt/d"
for n in $(seq 200); do echo "$n" >"$mnt/d/$n"; done
head -c 3000000 /dev/urandom >"$mnt/big"
sum=$(sha256sum <"$mnt/big")
pid=$(volume_pid "$volume")
check "the status names the bucket" grep -q "metadata *s3://$S3_BUCKET/meta" \
    <("$KESTREL" status "$mnt")

# The same descriptor in another directory, as on another machine, has only the bucket's word.
mkdir "$WORK/copy" "$WORK/mnt2" && cp "$volume/kestrel.json" "$WORK/copy/"
refuses "a second mount is refused, and told by which process" \
    "process $pid on .*--take-over" timeout 60 "$KESTREL" mount "$WORK/copy" "$WORK/mnt2"
check "taken over by name" "$KESTREL" mount "$WORK/copy" "$WORK/mnt2" --allow-other --take-over
check "all files are there" test "$(find "$WORK/mnt2/d" -type f | wc -l)" = 200
refuses "a process that was replaced writes nothing" 'error|fehler' timeout 60 touch "$mnt/stale"
check "it says so" grep -q 'taken this metadata over' "$volume/mount.log"
check "nothing of it is seen" test ! -e "$WORK/mnt2/stale"
echo new >"$WORK/mnt2/new"
kill -9 "$pid" && umount -l "$mnt"
check "unmounts" umount_volume "$WORK/mnt2"

# A process that is stopped for longer than any lease, while another one has the volume and flushes.
mount_volume "$volume" "$mnt"
echo before >"$mnt/before"
pid=$(volume_pid "$volume")
kill -STOP "$pid"
check "the volume of a stopped process is taken over" "$KESTREL" mount "$WORK/copy" "$WORK/mnt2" \
    --allow-other --take-over
check "what it had acknowledged is there" test "$(cat "$WORK/mnt2/before")" = before
mkdir "$WORK/mnt2/many"
for n in $(seq 1200); do echo "$n" >"$WORK/mnt2/many/$n"; done
kill -CONT "$pid"
refuses "a process that goes on writes nothing" 'error|fehler' timeout 60 touch "$mnt/stale"
check "nothing of it is seen" test ! -e "$WORK/mnt2/stale"
check "nothing of the other one is lost" test "$(find "$WORK/mnt2/many" -type f | wc -l)" = 1200
kill -9 "$pid" && umount -l "$mnt"
check "unmounts" umount_volume "$WORK/mnt2"

# A process of this machine that is dead is known to be; one of another machine is waited for.
mount_volume "$volume" "$mnt"
kill_mount "$volume" "$mnt"
check "after kill -9 it is mounted again at once" mount_volume "$volume" "$mnt"
check "fsck while it is mounted" fsck_volume "$volume"
umount_volume "$mnt"
check "fsck --data finds nothing" fsck_volume "$volume" --data

echo "-- requests"
mount_volume "$volume" "$mnt"
reset_counts
kestrel-crashload run --dir "$mnt/d" --log "$WORK/some.log" --threads 16 --seed 3 --ms 3000 \
    >"$WORK/some.out" 2>&1
puts=$(count requests put) made=$(grep -oE '^[0-9]+ operations' "$WORK/some.out" | cut -d' ' -f1)
echo "     $puts PUTs for $made operations of 16 threads"
check "commits are put together" test "$puts" -lt "$made"
reset_counts
sleep 11
puts=$(count requests put)
check "an idle mount sends a PUT each five seconds" test "$puts" -ge 1 -a "$puts" -le 8
umount_volume "$mnt"
reset_counts
mount_volume "$volume" "$mnt"
gets=$(count requests get)
echo "     $gets GETs to open"

echo "-- tables in a disk cache"
umount_volume "$mnt"
cache=$WORK/cache
with_cache() {
    mount_volume "$volume" "$mnt" --metadata-memory 16M ${1:+--cache-dir "$1"}
}
attributes() {
    find "$mnt/large" -type f | sort | xargs getfattr -d --absolute-names | sha256sum
}
# reads_attributes CACHE: in $gets, how many requests the rows take after a start.
reads_attributes() {
    with_cache "$1"
    reset_counts
    [ "$(attributes)" = "$sum_large" ] || fail "other attributes with the cache $1"
    gets=$(count requests get)
    umount_volume "$mnt"
}
with_cache "$cache"
mkdir "$mnt/large"
# Some memtables.
python3 -c '
import os, sys
for number in range(150):
    path = f"{sys.argv[1]}/{number}"
    open(path, "x").close()
    os.setxattr(path, "user.large", os.urandom(60000))' "$mnt/large"
sum_large=$(attributes)
umount_volume "$mnt"
reads_attributes "$cache" && made=$gets
reads_attributes "" && without=$gets
reads_attributes "$WORK/cache2" && first=$gets
reads_attributes "$WORK/cache2" && with=$gets
echo "     $without GETs for the rows; $first with an empty cache, $with after that, $made with a" \
    "cache that has what was written"
check "tables are read from the disk that were read before" test "$with" -lt $((without / 10))
check "and those that were written" test "$made" -lt $((without / 10))
find "$WORK/cache2" -type f -size +32k -print0 | xargs -0 python3 -c '
import os, sys
for path in sys.argv[1:]:
    with open(path, "r+b") as file:
        for at in range(20000, os.path.getsize(path), 65536):
            file.seek(at)
            file.write(b"harm")'
reads_attributes "$WORK/cache2"
check "damage on the disk is read anew ($gets GETs)" test "$gets" -gt "$with"
rm -rf "$cache"
mount_volume "$volume" "$mnt"

echo "-- faults"
mkdir "$mnt/load"
faults 'lost-answer:kind=put,rate=0.2' 'status:code=500,error=InternalError,rate=0.1' \
    'wrong-bytes:rate=0.02'
kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 4 --seed 7 --ms 5000 \
    >"$WORK/run.out" 2>&1 || fail "a call failed: $(cat "$WORK/run.out")"
no_faults
check "operations were acknowledged meanwhile" grep -E '^[0-9]{2,} operations acknowledged' \
    "$WORK/run.out"
kill_mount "$volume" "$mnt"
mount_volume "$volume" "$mnt"
check "everything acknowledged is there" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
check "every byte is there" test "$(sha256sum <"$mnt/big")" = "$sum" -a "$(cat "$mnt/d/77")" = 77
umount_volume "$mnt"
check "fsck --data finds nothing" fsck_volume "$volume" --data

echo "-- dump and load"
check "dump" "$KESTREL" dump "$volume" "$WORK/dump"
check "loaded into a directory" "$KESTREL" load "$WORK/dump" "$WORK/embedded" \
    --storage "file://$WORK/objects" --objects "$url"
check "and from there into a bucket" bash -c "'$KESTREL' dump '$WORK/embedded' '$WORK/dump2' &&
    '$KESTREL' load '$WORK/dump2' '$WORK/again' --objects '$WORK/objects' \
    --metadata '$(volume_url again)'"
for place in "$WORK/embedded" "$WORK/again"; do
    check "fsck of $(basename "$place")" fsck_volume "$place" --data
done
mount_volume "$WORK/again" "$mnt"
check "every byte is there" test "$(sha256sum <"$mnt/big")" = "$sum" -a "$(cat "$mnt/d/77")" = 77
umount_volume "$mnt"
check "gc" "$KESTREL" gc "$WORK/again"

echo "-- damage"
meta=$STORE_DIR/$S3_BUCKET/again/meta/0
object=$(find "$meta/log" -type f | sort | tail -n 2 | head -n 1)
cp "$object" "$WORK/object"
printf X | dd of="$object" bs=1 seek=40 conv=notrunc status=none
refuses "a damaged object of the log, by its name" "log/$(basename "$object")" \
    "$KESTREL" fsck "$WORK/again"
cp "$WORK/object" "$object"
check "it is well again" fsck_volume "$WORK/again"
cp "$meta/manifest" "$WORK/manifest"
# The server keeps what belongs to an object in attributes of the file: it stays the same file.
sed 's/"format":1/"format":9/' "$WORK/manifest" >"$meta/manifest"
refuses "a newer format" "format 9.* newer" "$KESTREL" fsck "$WORK/again"
cat "$WORK/manifest" >"$meta/manifest"
mv "$meta/manifest" "$meta/../elsewhere"
refuses "metadata that is not there" "no metadata of node 0" "$KESTREL" fsck "$WORK/again"
mv "$meta/../elsewhere" "$meta/manifest"
check "it is well again" fsck_volume "$WORK/again"

check "format --force removes what is there" "$KESTREL" format "$WORK/again" --force
check "nothing is left in the bucket" test -z "$(find "$meta" -type f)"
summary
