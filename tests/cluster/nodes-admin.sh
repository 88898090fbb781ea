#!/usr/bin/env bash
# What an administrator does with a volume that three metadata nodes share: info, stats, config and
# warm-up; dumps of it while it is used and at rest, loaded into a volume of one node and into
# another three, and back; fsck and compact while files change; gc that keeps everything and takes
# what was planted; and that nothing of this is done to a part of a volume.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
trees=(python3 "$ROOT/tests/cluster/trees.py")
make_volume "$volume" --grace 1s
mount_volume "$volume" "$mnt" --cache-dir "$WORK/cache"
url=$(serve_url "$volume")

# says TEXT PATTERN COMMAND…: it succeeds and says something that matches.
says() {
    local text=$1 pattern=$2
    shift 2
    if "$@" >"$WORK/said.out" 2>&1 && grep -qE "$pattern" "$WORK/said.out"; then ok "$text"; else
        tail -n 30 "$WORK/said.out"
        fail "$text"
    fi
}

# node_dirs VOLUME: the directories of all nodes.
node_dirs() {
    local node
    for node in 1 2 3; do node_dir "$1" "$node"; done
}
# others VOLUME: --node and the directories of all but the first.
others() {
    echo --node "$(node_dir "$1" 2)" --node "$(node_dir "$1" 3)"
}

mkdir "$mnt/tree" "$mnt/busy"
check "a tree with files of all kinds" "${trees[@]}" make "$mnt/tree"
sync -f "$mnt"

echo "== info, stats, config, warmup"
# A name there has a line feed.
files=$(find "$mnt/tree" ! -type d -printf x | wc -c) dirs=$(find "$mnt/tree" -mindepth 1 -type d \
    -printf x | wc -c)
says "info of a tree through the mount" "in the tree  $files files, $dirs directories" "$KESTREL" \
    info "$mnt/tree"
says "the same by URL" "in the tree  $files files, $dirs directories" "$KESTREL" info \
    --volume "$url" /tree
says "the same by a node's directory" "in the tree  $files files" "$KESTREL" info \
    --volume "$(node_dir "$volume" 2)" /tree
says "du of it through the mount" "in .*$files files and $dirs directories" "$KESTREL" du \
    "$mnt/tree"
says "du of it by URL" "in .*$files files and $dirs directories" "$KESTREL" du --volume "$url" \
    /tree --top 3
says "du of it by user" "[1-9][0-9,]* +root$" "$KESTREL" du --volume "$url" /tree --owners user
says "info of a large file" "layout +chunked" "$KESTREL" info "$mnt/tree/d7/large"
says "info of a file with two names by URL" "layout +packed" "$KESTREL" info --volume "$url" \
    /tree/d2/link-4
refuses "info of nothing" "no such entry" "$KESTREL" info --volume "$url" /tree/nothing
says "stats of all nodes" "^3 127.0.0.1" "$KESTREL" stats "$url" --once
"$KESTREL" stats "$url" --once --json >"$WORK/stats.json"
check "their sum is a sum" python3 - "$WORK/stats.json" <<'PY'
import json, sys
stats = json.load(open(sys.argv[1]))
parts = [node["figures"]["metadata_requests_total"] for node in stats["nodes"]]
assert len(parts) == 3 and all(parts) and sum(parts) == stats["metadata_requests_total"], (parts, stats["metadata_requests_total"])
PY
says "config by URL" "compression  none" "$KESTREL" config "$url"
says "warmup through the mount" "cached" "$KESTREL" warmup "$mnt/tree"
says "and all is near then" "100 %" "$KESTREL" warmup "$mnt/tree" --check

echo "== a dump while files change"
"${trees[@]}" change "$mnt/busy" 25 >"$WORK/steps" &
change=$!
wait_until 10 test -s "$WORK/steps"
for round in 1 2 3; do
    sleep 1
    from=$(tail -n 1 "$WORK/steps")
    check "dump $round" "$KESTREL" dump "$url" "$WORK/busy$round.dump"
    to=$(tail -n 1 "$WORK/steps")
    echo "$from $to" >"$WORK/busy$round.steps"
done
if wait "$change"; then
    ok "the changes go on meanwhile: $(tail -n 1 "$WORK/steps") steps"
else
    fail "a change failed"
fi
NODES=1 SERVING=
for round in 1 2 3; do
    read -r from to <"$WORK/busy$round.steps"
    says "load of dump $round into a volume of one node" "loaded and verified" \
        "$KESTREL" load "$WORK/busy$round.dump" "$WORK/one$round" --objects "$volume/objects"
    cat "$WORK/said.out"
    check "fsck of it" "$KESTREL" fsck "$WORK/one$round" --data
    mount_volume "$WORK/one$round" "$WORK/mnt-one"
    check "it is what was there at one moment, from step $from to $to" "${trees[@]}" judge \
        "$WORK/mnt-one/busy" "$from" "$to"
    check "and the tree as it is" "${trees[@]}" compare "$mnt/tree" "$WORK/mnt-one/tree"
    umount_volume "$WORK/mnt-one"
done
NODES=3 SERVING=1

echo "== fsck while files change"
mkdir "$mnt/again"
"${trees[@]}" change "$mnt/again" 20 >"$WORK/steps" &
change=$!
for round in $(seq 8); do
    check "fsck $round of what is being changed finds nothing" fsck_volume "$volume"
done
check "nor with --data" fsck_volume "$volume" --data
if wait "$change"; then
    ok "the changes go on meanwhile: $(tail -n 1 "$WORK/steps") steps"
else
    fail "a change failed"
fi

echo "== compact while files change"
sparse=(python3 "$ROOT/tests/cluster/sparse.py")
mount_volume "$volume" "$WORK/mnt-beside"
mkdir "$mnt/sparse"
check "files of which most are removed" "${sparse[@]}" make "$mnt/sparse"
sync -f "$mnt"
says "compact tells what there is to do" "[1-9][0-9]* objects less than half in use" "$KESTREL" \
    compact "$url" --dry-run
"${sparse[@]}" hold "$WORK/mnt-beside/sparse" "$WORK/compacted" >"$WORK/held" 2>&1 &
hold=$!
wait_until 20 grep -q holding "$WORK/held"
"${sparse[@]}" churn "$mnt/sparse" "$WORK/churned" >"$WORK/churn" 2>&1 &
churn=$!
refuses "of one node's directory it is not done" "only a part|in use" "$KESTREL" compact \
    "$(node_dir "$volume" 2)"
before=$(du -sk "$volume/objects" 2>/dev/null | cut -f1) || true
says "compact as a client of the nodes" "[1-9][0-9]* references moved" "$KESTREL" compact "$url"
cat "$WORK/said.out"
touch "$WORK/churned"
if wait "$churn"; then
    ok "files are written, renamed and removed meanwhile: $(tail -n 1 "$WORK/churn")"
else
    cat "$WORK/churn" && fail "churn"
fi
check "every byte is as written" "${sparse[@]}" judge "$mnt/sparse"
check "also through another mount" "${sparse[@]}" judge "$WORK/mnt-beside/sparse"
says "by a path in the mount: what is left" "references moved" "$KESTREL" compact "$mnt/sparse"
check "and what was changed meanwhile" "$KESTREL" compact "$url"
says "nothing is left to do then" "^0 objects less than half in use" "$KESTREL" compact "$url" \
    --dry-run
says "also of files in many pieces" "^0 chunks in many pieces" "$KESTREL" compact "$url" --dry-run
# When the grace period is over, what was moved is gone from where it was.
smaller() { [ "$(du -sk "$volume/objects" | cut -f1)" -lt $((before - 30000)) ]; }
if wait_until 60 smaller; then
    ok "objects that were hardly in use are deleted"
else
    fail "they are still there: $before before"
fi
touch "$WORK/compacted"
if wait "$hold"; then
    ok "who has files open reads them on"
else
    cat "$WORK/held" && fail "who has files open"
fi
check "fsck --data after it" fsck_volume "$volume" --data
umount_volume "$WORK/mnt-beside"
rm -r "$mnt/sparse"

echo "== into other nodes"
# A file that is removed and still open is in a dump, and what it needs is deleted when it is
# closed: before the load, perhaps. Only a volume at rest tells of such files.
none_removed_open() {
    rm -rf "$WORK/look" "$WORK/look.dump"
    "$KESTREL" dump "$url" "$WORK/look.dump" &&
        "$KESTREL" load "$WORK/look.dump" "$WORK/look" --objects "$volume/objects" &&
        "$KESTREL" fsck "$WORK/look" >"$WORK/look.out" && ! grep -q open-unlinked "$WORK/look.out"
}
check "nothing that was removed is open any more" wait_until 60 none_removed_open
rm -rf "$WORK/look" "$WORK/look.dump"
check "dump of all" "$KESTREL" dump "$url" "$WORK/all.dump"
refuses "one that is there is not replaced" "exists" "$KESTREL" dump "$url" "$WORK/all.dump"
refuses "of a directory of one node that runs" "in use" "$KESTREL" dump "$volume" "$WORK/no"
other=$WORK/other
make_cluster "$other"
mapfile -t dirs < <(node_dirs "$other")
refuses "load into two of three nodes" "missing are 3" "$KESTREL" load "$WORK/all.dump" \
    "${dirs[0]}" "${dirs[1]}"
says "load into three nodes" "loaded and verified" "$KESTREL" load "$WORK/all.dump" "${dirs[@]}" \
    --objects "$volume/objects"
refuses "a second time" "holds files" "$KESTREL" load "$WORK/all.dump" "${dirs[@]}"
check "fsck of the nodes at rest" fsck_volume "$other" --data
mount_volume "$other" "$WORK/mnt-other"
check "all is the same" "${trees[@]}" compare "$mnt" "$WORK/mnt-other"
check "new files among the old" sh -c "cd '$WORK/mnt-other/tree' && mkdir new && cp d1/file-4.bin new/ && mv d3/renamed-7 new/ && ln d2/link-3 new/ &&
    rm -r d6 && echo more >>d7/large && truncate -s 1000000 whole && cmp d1/file-4.bin new/file-4.bin"
check "fsck while they serve" fsck_volume "$other" --data
umount_volume "$WORK/mnt-other"
stop_server "$other"
check "fsck at rest again" fsck_volume "$other" --data
# shellcheck disable=SC2046 # words
check "a dump at rest" "$KESTREL" dump "$other" "$WORK/rest.dump" $(others "$other")
says "into one node" "loaded and verified" "$KESTREL" load "$WORK/rest.dump" "$WORK/single" \
    --objects "$other/objects"
check "fsck of it" "$KESTREL" fsck "$WORK/single" --data
NODES=1 SERVING=
mount_volume "$WORK/single" "$WORK/mnt-single"
echo one >"$WORK/mnt-single/made-on-one-node"
mkdir "$WORK/mnt-single/dir-made-on-one-node"
cp "$WORK/mnt-single/tree/whole" "$WORK/mnt-single/dir-made-on-one-node/"
umount_volume "$WORK/mnt-single"
check "a dump of that" "$KESTREL" dump "$WORK/single" "$WORK/single.dump"
NODES=3 SERVING=1
third=$WORK/third
make_cluster "$third"
mapfile -t dirs < <(node_dirs "$third")
says "and into three nodes again" "loaded and verified" "$KESTREL" load "$WORK/single.dump" \
    "${dirs[@]}" --objects "$WORK/single/objects"
mount_volume "$third" "$WORK/mnt-third"
start_server "$other"
mount_volume "$other" "$WORK/mnt-other"
check "the tree has come through all of it" "${trees[@]}" compare "$WORK/mnt-other/tree" \
    "$WORK/mnt-third/tree"
check "files of numbers of one node are changed and removed" sh \
    -c "cd '$WORK/mnt-third' && echo more >>made-on-one-node && mv made-on-one-node x &&
    [ \"\$(cat x)\" = 'one
more' ] && rm x && mv dir-made-on-one-node y && rm -r y && for i in \$(seq 300); do echo \$i >new\$i; done && rm new*"
umount_volume "$WORK/mnt-third"
umount_volume "$WORK/mnt-other"
check "fsck --data" fsck_volume "$third" --data
stop_server "$third"
check "and at rest" fsck_volume "$third" --data

echo "== gc"
objects=$volume/objects
# object_path NUMBER: where an object lies.
object_path() {
    python3 - "$1" <<'PY'
import sys
number, mask = int(sys.argv[1]), (1 << 64) - 1
x = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
print("%02x/%016x" % ((x ^ x >> 31) >> 56, number))
PY
}
sample=$(find "$objects" -type f -size +0 ! -name 'kestrel*' -print -quit)
# Numbers that no node has made up yet.
plant=$objects/$(object_path $((0x0200000000100003)))
mkdir -p "$(dirname "$plant")"
cp "$sample" "$plant"
touch -d '3 hours ago' "$plant"
says "gc finds what was planted and deletes nothing" "^1 leaked" "$KESTREL" gc "$url"
[ -e "$plant" ] && ok "it is still there" || fail "it is gone"
sync -f "$mnt"
before=$(find "$objects" -type f 2>/dev/null | wc -l) || true
says "gc --delete has the nodes delete it" "^1 deleted" "$KESTREL" gc "$url" --delete
[ ! -e "$plant" ] && ok "it is gone" || fail "it is still there"
[ "$(find "$objects" -type f | wc -l)" -ge $((before - 1)) ] && ok "and nothing else" ||
    fail "more is gone"
check "without grace while files are written" sh \
    -c "cp -r '$mnt/tree/d1' '$mnt/copy' & '$KESTREL' gc '$url' --delete --grace 0s && wait"
check "what was written meanwhile is there" diff -r "$mnt/tree/d1" "$mnt/copy"
check "with no grace" "$KESTREL" gc "$url" --delete --grace 0s
check "fsck --data after gc" fsck_volume "$volume" --data
NODES=1 SERVING=
mount_volume "$WORK/one3" "$WORK/mnt-one"
NODES=3 SERVING=1
check "the tree is as in the dump" "${trees[@]}" compare "$mnt/tree" "$WORK/mnt-one/tree"
umount_volume "$WORK/mnt-one"

echo "== while a node is away"
kill_node "$volume" 2
for verb in "gc $url --delete" "dump $url $WORK/no" "info --volume $url /tree"; do
    # shellcheck disable=SC2086 # words
    refuses "kestrel ${verb%% *} says which node is away" \
        "node 2|:[0-9]+: .*refused|no connection" timeout 120 "$KESTREL" $verb
done
[ ! -e "$WORK/no" ] && ok "no dump of a part" || fail "a part was dumped"
says "stats tells of it" "does not answer" "$KESTREL" stats "$url" --once
start_node "$volume" 2

echo "== settings"
umount_volume "$mnt"
stop_server "$volume"
mapfile -t dirs < <(node_dirs "$volume")
refuses "config of one node" "missing are" "$KESTREL" config "${dirs[0]}" --compress zstd
# shellcheck disable=SC2046 # words
says "config of all nodes" "zstd" "$KESTREL" config "${dirs[0]}" $(others "$volume") \
    --compress zstd:3
chattr +i "${dirs[2]}" 2>/dev/null && {
    # shellcheck disable=SC2046 # words
    refuses "a node that does not take it is named" "$(basename "${dirs[2]}")" "$KESTREL" config \
        "${dirs[0]}" $(others "$volume") --compress lz4
    chattr -i "${dirs[2]}"
    says "and no other has taken it" "zstd" "$KESTREL" config "${dirs[0]}"
}
mount_volume "$volume" "$mnt"
says "all nodes have it" "zstd" "$KESTREL" config "$url"
check "compressed files" sh -c "yes 'a line' | head -c 3000000 >'$mnt/text' && yes 'a line' | head -c 3000000 | cmp - '$mnt/text'"
umount_volume "$mnt"
stop_server "$volume"
# At rest nobody is asked.
plant=$objects/$(object_path $((0x0200000000100004)))
mkdir -p "$(dirname "$plant")"
cp "$sample" "$plant" && touch -d '3 hours ago' "$plant"
says "gc of the nodes at rest" "^1 deleted" "$KESTREL" gc "${dirs[@]}" --delete
check "fsck --data of all nodes at rest" fsck_volume "$volume" --data
summary
