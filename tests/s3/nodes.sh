#!/usr/bin/env bash
# Three metadata nodes over an object store, in plain, and compressed and encrypted: files of all
# sizes through two mounts, nodes killed under load and while files go, a store that fails; what
# nothing refers to any more goes from the bucket, whichever nodes referred to it, and nothing else;
# who has not the key is refused.
#
# KILLS of a node under load (default 2), SEED
set -euo pipefail
# shellcheck disable=SC2034 # lib.sh reads it
KESTREL_NODES=3
. "$(dirname "$0")/lib.sh"

seed=${SEED:-$(date +%s)} kills=${KILLS:-2}
RANDOM=$((seed % 32768))
echo "seed $seed"
a=$WORK/a b=$WORK/b
count=24 sizes=100,5000,60000,300000,3000000,9000000
# shellcheck disable=SC2034 # lib.sh reads it
SERVE_OPTIONS=(--lease 3s)

# kills VOLUME COUNT: nodes are killed and started again, one after the other.
kills() {
    local kill node
    for ((kill = 0; kill < $2; kill++)); do
        sleep "$(ms "$(random 200 900)")"
        node=$((kill % 3 + 1))
        kill_node "$1" "$node" || fail "node $node was not there"
        sleep "$(ms "$(random 0 400)")"
        start_node "$1" "$node"
    done
}

# No object of the volume is left in the bucket.
is_empty() {
    [ -z "$(objects "$1")" ]
}

# works NAME [FORMAT OPTION…]: all of it on a volume of this name.
works() {
    local name=$1 volume=$WORK/$1 kept load status=0
    shift
    echo "== $name"
    make_volume "$volume" --grace 1s "$@"
    mount_volume "$volume" "$a" --cache-dir "$WORK/cache-$name"
    mount_volume "$volume" "$b"
    check "files of all sizes, written at one mount" "$TREE" write "$a/files" $count $sizes
    check "read at the other" "$TREE" check "$b/files" $count $sizes

    # The node that renames, links and copies is not the one that made the objects.
    mkdir "$b/moved"
    for ((number = 0; number < count; number += 4)); do
        mv "$b/files/file$number" "$b/moved/other$number"
        ln "$a/moved/other$number" "$a/moved/link$number"
        cp "$b/moved/link$number" "$b/moved/copy$number"
        mv "$a/moved/other$number" "$a/files/file$number"
    done
    check "after renames over nodes" "$TREE" check "$a/files" $count $sizes
    check "links and copies" cmp "$a/moved/copy4" "$b/files/file4"

    mkdir "$a/load"
    kestrel-crashload run --dir "$a/load" --log "$WORK/$name.log" --threads 4 --seed "$seed" \
        --ms $((kills * 1800)) \
        >"$WORK/run.out" 2>&1 &
    load=$!
    kills "$volume" "$kills"
    wait "$load" || status=$?
    [ "$status" = 0 ] || cat "$WORK/run.out"
    check "$kills nodes killed under load: no error" test "$status" = 0
    check "it was not cut short" grep -q 'ended by: done' "$WORK/run.out"
    check "everything acknowledged is there" kestrel-crashload verify --dir "$b/load" \
        --log "$WORK/$name.log" --mode process
    check "the files of before as well" "$TREE" check "$b/files" $count $sizes
    check "fsck --data while all serve" fsck_volume "$volume" --data

    # Half of what there is goes, from both mounts and with nodes killed; the store refuses
    # deletions for a while.
    kept=$(objects "$name" | wc -l)
    faults status:code=503,kind=delete+delete-many,rate=0.5
    (rm -rf "$a/load" "$a/moved") &
    load=$!
    kills "$volume" 2
    check "removed while nodes were killed" wait "$load"
    no_faults
    check "objects of what went are gone: fewer than $kept" wait_until 60 fewer_than "$name" "$kept"
    check "those of what stayed are not" "$TREE" check "$b/files" $count $sizes
    remount "$volume" "$a"
    check "as a fresh mount sees it" "$TREE" check "$a/files" $count $sizes
    check "fsck --data" fsck_volume "$volume" --data

    rm -rf "$b/files"
    check "with the last file the last object goes" last_goes "$volume" "$name"
    [ -z "$(objects "$name")" ] || left_over "$volume" "$name"
    check "a new file after that" "$TREE" write "$a/again" 4 $sizes
    check "is read" "$TREE" check "$b/again" 4 $sizes
}

# last_goes VOLUME NAME: all objects go. A client that was cut off for longer than its lease stores
# again what it had not committed yet; the first copy waits for a collection of leftovers.
last_goes() {
    if grep -q 'longer than the lease' "$WORK"/client-[ab]/mount.log; then
        wait_until 30 fewer_than "$2" 10 &&
            "$KESTREL" gc "$(serve_url "$1")" --delete --grace 0s || return
    fi
    wait_until 90 is_empty "$2"
}

# left_over VOLUME NAME: what is known of objects that should have gone.
left_over() {
    local object
    objects "$2" | head -n 5 | while read -r object; do
        echo "$object"
        grep -h "${object##*/}" "$WORK"/*.log | tail -n 5 || true
    done
    fsck_volume "$1" --data || true
    cat "$WORK/fsck.out"
}

# fewer_than NAME COUNT
fewer_than() {
    [ "$(objects "$1" | wc -l)" -lt "$2" ]
}

# ends VOLUME: how each of them ends.
ends() {
    umount_volume "$a"
    umount_volume "$b"
    stop_server "$1"
    check "fsck --data of all nodes at rest" fsck_volume "$1" --data
}

works plain
ends "$WORK/plain"

"$KESTREL" key create "$WORK/key" >/dev/null
"$KESTREL" key create "$WORK/wrong" >/dev/null
export KESTREL_KEY_FILE=$WORK/key
works secret --compress lz4 --encrypt

secret=$WORK/secret
mkdir -p "$WORK/mnt"
yes 'a line that nobody should read' | head -c 3000000 >"$a/text" || true
sync "$a/text"
check "no text in the store" not grep -rq 'a line that nobody' "$STORE_DIR/$S3_BUCKET/secret"
check "nor in the cache" not grep -rq 'a line that nobody' "$WORK/cache-secret"
second=$(node_dir "$secret" 2)
kill_node "$secret" 2
refuses "a node without the key" 'key' env -u KESTREL_KEY_FILE "$KESTREL" serve "$second" \
    "${SERVE_OPTIONS[@]}"
refuses "a node with another key" 'key' "$KESTREL" serve "$second" "${SERVE_OPTIONS[@]}" \
    --key-file "$WORK/wrong"
start_node "$secret" 2
refuses "a client without the key" 'key' env -u KESTREL_KEY_FILE "$KESTREL" mount \
    "$(serve_url "$secret")" "$WORK/mnt"
refuses "a client with another key" 'key' "$KESTREL" mount "$(serve_url "$secret")" "$WORK/mnt" \
    --key-file "$WORK/wrong"
refuses "fsck --data with another key" 'key' "$KESTREL" fsck "$(serve_url "$secret")" \
    --data --key-file "$WORK/wrong"
refuses "rotating the keys of one node" 'missing are' "$KESTREL" key rotate "$second" \
    --new-key-file "$WORK/wrong"
check "the others have gone on" cmp "$a/text" "$b/text"
ends "$secret"
refuses "fsck at rest without the key" 'key' env -u KESTREL_KEY_FILE "$KESTREL" fsck "$secret" \
    "$second" "$(node_dir "$secret" 3)" --data
summary
