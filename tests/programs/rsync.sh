#!/usr/bin/env bash
# rsync --checksum twice: the second run finds nothing to transfer. Then changes, deletions, and
# back again.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
mkdir "$WORK/source"
cp -a /usr/share/doc/. "$WORK/source"/ 2>/dev/null || true
cp -a /usr/lib/python3 "$WORK/source"/ 2>/dev/null || true
head -c 20000000 /dev/urandom >"$WORK/source/large"
count=$(find "$WORK/source" | wc -l)

# Any line of --itemize-changes is something that was not as it should be.
nothing_to_do() {
    local out
    out=$(rsync -aHX --checksum --delete --itemize-changes "$1" "$2")
    [ -z "$out" ] || { head -n 20 <<<"$out" && false; }
}
change() {
    head -c 100 /dev/urandom | dd of="$WORK/source/large" bs=1 seek=12345678 conv=notrunc \
        status=none
    rm -rf "$WORK/source/python3"
    echo new >"$WORK/source/new"
    chmod 600 "$WORK/source/new"
}
check "first run ($count entries)" rsync -aHX --checksum "$WORK/source/" "$mnt/copy/"
check "second run transfers nothing" nothing_to_do "$WORK/source/" "$mnt/copy/"
change
check "after changes" rsync -aHX --checksum --delete --inplace --no-whole-file "$WORK/source/" \
    "$mnt/copy/"
check "nothing is left to transfer" nothing_to_do "$WORK/source/" "$mnt/copy/"
check "back to the local file system" rsync -aHX "$mnt/copy/" "$WORK/back/"
check "and it is the same" nothing_to_do "$WORK/source/" "$WORK/back/"
close_and_check "$volume" "$mnt"
summary
