#!/usr/bin/env bash
# The tools on a volume in a store, while it is mounted and written to: gc, fsck, compact, warmup,
# key rotation, info.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

volume=$WORK/vol mnt=$WORK/mnt
count=120 sizes=5000,60000,100000,3000000
"$KESTREL" key create "$WORK/key" >/dev/null
"$KESTREL" key create "$WORK/key2" >/dev/null
export KESTREL_KEY_FILE=$WORK/key
make_volume "$volume" --grace 1s
mount_volume "$volume" "$mnt" --cache-dir "$WORK/cache"
"$TREE" write "$mnt/keep" $count $sizes

echo "== with writers at work"
mkdir "$mnt/load"
kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 6 --seed 5 --seconds 15 \
    >"$WORK/run.out" 2>&1 &
load=$!
for round in 1 2; do
    check "round $round: gc --delete while files are written" "$KESTREL" gc "$volume" \
        --delete --grace 2s
    check "round $round: fsck of the mounted volume" fsck_volume "$volume"
    check "round $round: compact" "$KESTREL" compact "$volume"
done
check "fsck --data of the mounted volume" fsck_volume "$volume" --data
if wait $load; then ok "the load: $(tail -n 1 "$WORK/run.out")"; else
    cat "$WORK/run.out"
    fail "the load"
fi
check "the load is as acknowledged" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
check "and so are the files of before" "$TREE" check "$mnt/keep" $count $sizes

echo "== packs with little alive"
mkdir "$mnt/packs"
"$TREE" write "$mnt/packs" 400 20000 --threads 32
"$TREE" write "$mnt/survivors" 40 20000 --threads 1
# Nine of ten go: what is left of each pack is worth rewriting.
python3 - "$mnt/packs" <<'PY'
import os, sys
for number in range(400):
    if number % 10:
        os.unlink(f"{sys.argv[1]}/file{number}")
PY
sleep 2
# bytes of all objects of the volume
stored() {
    # Some go while they are looked at.
    { objects vol | xargs -r stat -c %s 2>/dev/null || true; } |
        awk '{ sum += $1 } END { print sum + 0 }'
}
was=$(stored)
check "compact" "$KESTREL" compact "$volume"
sleep 3
check "gc --delete" "$KESTREL" gc "$volume" --delete --grace 0s
check "packs with little alive were rewritten: $was to $(stored) bytes" is_more \
    "$((was - 4000000))" "$(stored)"
check "what was alive in them is right" "$TREE" check "$mnt/packs" 400 20000 --only 'file*0'

echo "== warmup and info"
"$KESTREL" warmup "$mnt/keep" --evict >/dev/null
"$KESTREL" warmup "$mnt/keep" >/dev/null
"$KESTREL" warmup "$mnt/keep" --check >"$WORK/check.txt"
check "warmup --check tells that all is cached" grep -q '100' "$WORK/check.txt"
remount "$volume" "$mnt" --cache-dir "$WORK/cache"
printf '%s\n' "$mnt/keep/file1" "$mnt/keep/file3" | "$KESTREL" warmup --from-file - >/dev/null
reset_counts
check "reads after warmup" "$TREE" check "$mnt/keep" $count $sizes
check "ask the store for nothing" same "$(count requests get)" 0
"$KESTREL" info "$mnt/keep/file3" >"$WORK/info.txt"
check "info tells the key in the store" grep -qE 'objects/[0-9a-f]{2}/[0-9a-f]{16}' "$WORK/info.txt"

echo "== compression and encryption, changed while there is data"
umount_volume "$mnt"
check "config --compress zstd" "$KESTREL" config "$volume" --compress zstd
mount_volume "$volume" "$mnt"
yes 'a line that compresses well' | head -c 20000000 >"$WORK/text" || true
before=$(stored)
cp "$WORK/text" "$mnt/text"
check "it compresses" is_more $((before + 4000000)) "$(stored)"
remount "$volume" "$mnt"
check "it reads back" cmp "$WORK/text" "$mnt/text"
check "old files read back" "$TREE" check "$mnt/keep" $count $sizes
close_and_check "$volume" "$mnt"

make_volume "$WORK/secret" --compress lz4 --encrypt --key-file "$WORK/key"
mount_volume "$WORK/secret" "$mnt" --cache-dir "$WORK/cache"
cp "$WORK/text" "$mnt/text"
"$TREE" write "$mnt/s" 20 $sizes
umount_volume "$mnt"
check "no text in the store" not grep -rq 'a line that compresses' "$STORE_DIR/$S3_BUCKET/secret"
check "nor in the cache" not grep -rq 'a line that compresses' "$WORK/cache"
reset_counts
check "key rotate" "$KESTREL" key rotate "$WORK/secret" --key-file "$WORK/key" \
    --new-key-file "$WORK/key2"
check "it rewrites no data" same "$(count requests put)" 0
refuses "the old key is of no use any more" 'key' "$KESTREL" mount "$WORK/secret" "$mnt" \
    --key-file "$WORK/key"
export KESTREL_KEY_FILE=$WORK/key2
mount_volume "$WORK/secret" "$mnt"
check "old data with the new key" "$TREE" check "$mnt/s" 20 $sizes
check "new data" "$TREE" write "$mnt/s2" 20 $sizes
close_and_check "$WORK/secret" "$mnt"

echo "== dump and load"
"$KESTREL" dump "$volume" "$WORK/dump" >/dev/null
# As after a lost machine: the dump and the bucket are left.
mv "$volume" "$WORK/lost"
check "load into another prefix" "$KESTREL" load "$WORK/dump" "$WORK/restored" \
    --objects "$(volume_url vol)" --storage "$(volume_url restored)"
mount_volume "$WORK/restored" "$mnt"
check "everything is there" "$TREE" check "$mnt/keep" $count $sizes
close_and_check "$WORK/restored" "$mnt"

check "objbench finds this store fit" "$KESTREL" objbench "$(volume_url bench)" --only check
faults list-cut:skip=1
check "and one with listings that end too early not" not "$KESTREL" objbench "$(volume_url bench)" \
    --only check
no_faults
summary
