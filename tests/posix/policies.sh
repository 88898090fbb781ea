#!/usr/bin/env bash
# Policies of directories on real mounts: `kestrel policy`, what copies carry, what a second walk of
# an immutable tree asks, what another client sees, bytes in the store, dump and load. The
# statements of docs/semantics.md are executed by semantics.py.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
policy() { "$KESTREL" policy "$@"; }
says() { [ "$(policy get "$1" consistency | awk '{ print $2, $3 }')" = "$2" ]; }
value() { getfattr --only-values -n kestrel.consistency "$1" 2>/dev/null; }
requests() { "$KESTREL" stats --once --json "$mnt" |
    sed -n 's/.*"metadata_requests_total": *\([0-9]*\).*/\1/p'; }

mkdir -p "$mnt/set/train/deep" "$mnt/other"
echo content >"$mnt/set/train/file"
check "nothing is set: the default counts" says "$mnt/set" "strict default"
check "set" policy set "$mnt/set" consistency=close-to-open
check "get tells which directory says it" says "$mnt/set/train/deep" "close-to-open $mnt/set"
check "get of a file: what its directory hands down" says "$mnt/set/train/file" \
    "close-to-open $mnt/set"
check "the nearest one counts" eval 'policy set "$mnt/set/train" consistency=strict &&
    says "$mnt/set/train/deep" "strict $mnt/set/train"'
check "get --json" eval 'policy get "$mnt/set/train/deep" --json | python3 -c "
import json, sys
assert json.load(sys.stdin)[\"consistency\"][\"value\"] == \"strict\""'
check "get of all fields" eval '[ "$(policy get "$mnt/set/train/deep" | awk "{ print \$1, \$2 }" |
    paste -sd ,)" = "consistency strict,compression as-volume,trash none,feed none,tier standard" ]'
check "list" eval '[ "$(policy list "$mnt" | wc -l)" = 2 ]'
check "list --json" eval 'policy list "$mnt" --json | python3 -c "
import json, sys
assert [row[\"policy\"][\"consistency\"] for row in json.load(sys.stdin)] == [
    \"close-to-open\", \"strict\"]"'
check "unset" eval 'policy unset "$mnt/set/train" consistency &&
    says "$mnt/set/train" "close-to-open $mnt/set"'

refuses "unset of what is not set" "does not say consistency itself" \
    policy unset "$mnt/set/train" consistency
refuses "an unknown field" "fields: consistency" policy set "$mnt/set" none=1
refuses "an unknown value" "strict, close-to-open or immutable" \
    policy set "$mnt/set" consistency=none
refuses "a value that is too long" "strict, close-to-open or immutable" \
    policy set "$mnt/set" "consistency=$(printf '%070000d' 1)"
refuses "an unknown compression" "lz4, zstd or zstd:LEVEL" policy set "$mnt/set" compression=gzip
refuses "no value" "FIELD=VALUE" policy set "$mnt/set" consistency
refuses "a file" "only directories" policy set "$mnt/set/train/file" consistency=strict
refuses "a path outside every mount" "not in a KestrelFS mount" policy get "$WORK"
refuses "a path that is not there" "No such file" policy get "$mnt/none"
refuses "another user" "only the owner" setpriv --reuid 1000 --regid 1000 --clear-groups \
    "$KESTREL" policy set "$mnt/set" consistency=strict

# What copies carry: close-to-open, and not that something is immutable.
policy set "$mnt/other" consistency=immutable
check "cp -a carries it" eval 'cp -a "$mnt/set" "$mnt/cp" &&
    [ "$(value "$mnt/cp")" = close-to-open ]'
check "tar carries it" eval 'mkdir "$mnt/tar" &&
    tar -C "$mnt" --xattrs --xattrs-include="*" -cf - set |
    tar -C "$mnt/tar" --xattrs --xattrs-include="*" -xf - &&
    [ "$(value "$mnt/tar/set")" = close-to-open ]'
if command -v rsync >/dev/null; then
    check "rsync -X carries it" eval 'rsync -aX "$mnt/set" "$mnt/rsync" &&
        [ "$(value "$mnt/rsync/set")" = close-to-open ]'
fi
check "a copy of an immutable tree is not immutable" eval 'cp -a "$mnt/other" "$mnt/copy" &&
    touch "$mnt/copy/new"'

# An immutable tree that is read again.
mkdir "$mnt/big"
for dir in $(seq 20); do
    mkdir "$mnt/big/$dir"
    (cd "$mnt/big/$dir" && seq 100 | xargs touch)
done
policy set "$mnt/big" consistency=immutable
echo 2 >/proc/sys/vm/drop_caches
walk() { find "$mnt/big" -printf '%p %s %m %u\n' | sort >"$1"; }
walk "$WORK/first"
before=$(requests) && walk "$WORK/second" && after=$(requests)
asked=$((after - before))
check "a second walk of 2,021 names asks nothing of what is below ($asked requests)" \
    [ "$asked" -le 6 ]
check "and finds the same" eval '[ "$(wc -l <"$WORK/second")" = 2021 ] &&
    cmp "$WORK/first" "$WORK/second"'
refuses "changes below it" "not permitted" touch "$mnt/big/1/new"
refuses "removal" "not permitted" rm -r "$mnt/big"
check "nothing of it is gone" eval 'walk "$WORK/third" && cmp "$WORK/first" "$WORK/third"'

# How data is compressed shows in the store. Each directory gets a large file, and small ones that
# are packed.
stored() { { find "$WORK" -path '*objects/??/*' -type f -printf '%s\n' 2>/dev/null || true; } |
    awk '{ sum += $1 } END { print sum + 0 }'; }
# coded write|check DIRECTORY SEED: 60 files of some 26 kB and one of 8 MB that compress.
coded() { python3 -c '
import random, sys
how, top, seed = sys.argv[1:]
draw = random.Random(7)
words = [b"%012x " % draw.getrandbits(48) for _ in range(97)]
draw = random.Random(seed)
for name, count in [("large", 600_000)] + [(f"small{number}", 2000) for number in range(60)]:
    content = b"".join(draw.choices(words, k=count))
    with open(f"{top}/{name}", "wb" if how == "write" else "rb") as file:
        if how == "write":
            file.write(content)
        elif file.read() != content:
            sys.exit(f"{name} is not what was written")
' "$@"; }
fill() { coded write "$1" "$2" && sync -f "$1"; }
filled_right() { coded check "$1" "$2"; }
declare -A grown
for value in unset none lz4 zstd zstd:9; do
    dir=$mnt/coded/$value/below
    mkdir -p "$dir"
    [ "$value" = unset ] || policy set "$mnt/coded/$value" "compression=$value"
    before=$(stored)
    fill "$dir" "$value"
    grown[$value]=$(($(stored) - before))
done
check "a level that is not named is shown" eval \
    '[ "$(policy get "$mnt/coded/zstd/below/large" compression | awk "{ print \$2 }")" = zstd:3 ]'
plain=${grown[unset]}
check "what is not compressed is as long as it was ($plain, ${grown[none]} bytes)" \
    [ "$plain" -gt 6500000 -a "${grown[none]}" -gt 6500000 ]
check "lz4 saves a third (${grown[lz4]} bytes)" [ "${grown[lz4]}" -lt $((plain * 2 / 3)) ]
check "zstd saves more (${grown[zstd]} bytes)" [ "${grown[zstd]}" -lt "${grown[lz4]}" ]
check "zstd:9 as well (${grown[zstd:9]} bytes)" [ "${grown[zstd:9]}" -lt "${grown[lz4]}" ]
before=$(stored)
policy set "$mnt/coded/zstd" compression=none
fill "$mnt/coded/zstd/below" again
check "set anew, it counts for what is written then" [ $(($(stored) - before)) -gt 6500000 ]
policy unset "$mnt/coded/lz4" compression
mv "$mnt/coded/zstd:9/below" "$mnt/coded/moved"
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
for dir in unset none lz4; do
    check "all is read after a mount: $dir" filled_right "$mnt/coded/$dir/below" "$dir"
done
check "what was stored before is read" filled_right "$mnt/coded/moved" zstd:9
check "and what replaced it" filled_right "$mnt/coded/zstd/below" again
check "cp -a carries it" eval 'policy set "$mnt/coded/lz4" compression=lz4 &&
    cp -a "$mnt/coded/lz4" "$mnt/coded/copied" &&
    [ "$(getfattr --only-values -n kestrel.compression "$mnt/coded/copied")" = lz4 ]'

if [ -n "$SERVING" ]; then
    # A mount that has only seen plain objects, and is not told of the policy.
    other=$WORK/other
    mount_volume "$volume" "$other"
    mkdir "$mnt/coded/later"
    policy set "$mnt/coded/later" compression=zstd
    fill "$mnt/coded/later" later
    check "a mount of before reads plain files" filled_right "$other/coded/unset/below" unset
    mv "$mnt/coded/later" "$mnt/coded/unset/later"
    policy unset "$mnt/coded/unset/later" compression
    check "and compressed ones" filled_right "$other/coded/unset/later" later
    umount_volume "$other"
fi

if [ -n "$SERVING" ]; then
    there=$WORK/there
    mount_volume "$volume" "$there"
    refuses "changes through another mount" "not permitted" touch "$there/big/1/1"
    exec 5>>"$there/set/train/file"
    policy set "$mnt/set" consistency=immutable
    refuses "bytes of a descriptor of before" "not permitted" \
        bash -c 'echo late >&5; exec python3 -c "import os; os.fsync(5)"'
    exec 5>&- || true
    policy unset "$mnt/set" consistency
    check "what is unset counts at the other mount at once" touch "$there/set/train/deep/new"
    check "and what was written late is not there" \
        eval '[ "$(cat "$mnt/set/train/file")" = content ]'
    umount_volume "$there"
fi

# They are part of what is kept, dumped and loaded.
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
refuses "changes after a new mount" "not permitted" touch "$mnt/big/1/new"
check "the policy is unset" policy unset "$mnt/big" consistency
check "and the tree can be changed" eval 'touch "$mnt/big/1/new" && rm -r "$mnt/big"'
close_and_check "$volume" "$mnt"
if [ -z "$SERVING" ] && [ "${KESTREL_STORE:-}" != s3 ] && [ "${KESTREL_METADATA:-}" = "" ]; then
    check "dump and load" eval '"$KESTREL" dump "$volume" "$WORK/dump" &&
        "$KESTREL" load "$WORK/dump" "$WORK/loaded" --objects "$volume/objects"'
    mount_volume "$WORK/loaded" "$mnt"
    refuses "changes of a loaded volume" "not permitted" touch "$mnt/other/new"
    check "compressed files of the loaded volume" filled_right "$mnt/coded/moved" zstd:9
    check "what the loaded volume says" says "$mnt/set/train" "close-to-open $mnt/set"
    close_and_check "$WORK/loaded" "$mnt"
fi
summary
