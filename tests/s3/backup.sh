#!/usr/bin/env bash
# Dumps in the block store: taken on a schedule by a mount, by one server and by the coordinator of
# three nodes, with files in use; retention; the metadata is lost, and what lies in the bucket
# restores the volume, also an encrypted one; what was cut short is none.
set -euo pipefail
# shellcheck source=tests/s3/lib.sh
. "$(dirname "$0")/lib.sh"

a=$WORK/a
sizes=100,5000,60000,300000,3000000

# dumps PLACE: how many complete ones there are.
dumps() {
    "$KESTREL" backup list "$1" --json |
        python3 -c 'import json, sys; print(len(json.load(sys.stdin)["dumps"]))'
}

has_dumps() {
    [ "$(dumps "$1")" -ge "$2" ]
}

# restored NAME FROM [LOAD OPTION…]: fetches the newest dump of what lies in the bucket, makes a
# volume of it and looks at its files.
restored() {
    local name=$1 from=$2
    shift 2
    check "fetch by the URL of the store alone" "$KESTREL" backup fetch "$from" "$WORK/$name.dump"
    check "load" "$KESTREL" load "$WORK/$name.dump" "$WORK/$name" --objects "$from" \
        --storage "$(volume_url "$name")" "$@"
    mount_volume "$WORK/$name" "$a"
    check "every byte is there" "$TREE" check "$a/files" 12 $sizes
    umount_volume "$a"
    check "fsck --data" "$KESTREL" fsck --data "$WORK/$name"
}

echo "== a mount"
make_volume "$WORK/one" --grace 1h
mount_volume "$WORK/one" "$a" --dump-every 1s --dump-keep 2
check "files" "$TREE" write "$a/files" 12 $sizes
sync -f "$a"
check "dumps come by themselves" wait_until 30 has_dumps "$WORK/one" 2
newest=$("$KESTREL" backup list "$WORK/one" | awk 'END { print $1 }')
# newer: one that was begun after the files were there.
newer() {
    [ "$("$KESTREL" backup list "$WORK/one" | awk 'END { print $1 }')" -gt "$newest" ]
}
check "and go on" wait_until 30 newer
sleep 2
check "no more than two stay" test "$(dumps "$WORK/one")" -le 3
check "a status tells" grep -q '"keep": 2' <("$KESTREL" status "$WORK/one" --json)
check "and figures" is_more "$(stat_of "$a" store_dumps_total)" 1
check "one by hand, while it is mounted" "$KESTREL" backup now "$WORK/one"
umount_volume "$a"
check "one by hand, at rest" "$KESTREL" backup now "$WORK/one"
check "prune" "$KESTREL" backup prune "$WORK/one" --keep 1
check "one is left" same "$(dumps "$WORK/one")" 1
check "gc finds nothing wrong with them" "$KESTREL" gc "$WORK/one"
check "nor does fsck" "$KESTREL" fsck --data "$WORK/one"
rm -rf "$WORK/one"
check "the URL of the store lists them" same "$(dumps "$(volume_url one)")" 1
restored again "$(volume_url one)"
refuses "a dump that is not there" "no complete dump 5" "$KESTREL" backup fetch \
    "$(volume_url one)" "$WORK/none" --dump 5
refuses "a file that exists" "exists" "$KESTREL" backup fetch "$(volume_url one)" "$WORK/again.dump"
refuses "a store without any" "no volume" "$KESTREL" backup list "$(volume_url nothing)"
refuses "a mount from elsewhere" "the volume's server" "$KESTREL" mount kestrel://127.0.0.1:1/x \
    "$a" --dump-every 1h
refuses "a pace that is none" "is not a duration" "$KESTREL" mount "$WORK/again" "$a" \
    --dump-every often

echo "== encrypted, served"
"$KESTREL" key create "$WORK/key" >/dev/null
SERVING=1 SERVE_OPTIONS=(--dump-every 1s)
export KESTREL_KEY_FILE=$WORK/key
make_volume "$WORK/secret" --encrypt
mount_volume "$WORK/secret" "$a"
check "files" "$TREE" write "$a/files" 12 $sizes
touch "$a/a name that nobody should read"
check "by URL" "$KESTREL" backup now "$(serve_url "$WORK/secret")"
check "listed by URL" has_dumps "$(serve_url "$WORK/secret")" 1
umount_volume "$a"
stop_server "$WORK/secret"
check "no name in the store" not grep -rq 'a name that nobody' "$STORE_DIR/$S3_BUCKET/secret"
rm -rf "$WORK/secret"
SERVING=''
refuses "without the key" "is encrypted" env -u KESTREL_KEY_FILE "$KESTREL" backup fetch \
    "$(volume_url secret)" "$WORK/none"
restored secret2 "$(volume_url secret)"
unset KESTREL_KEY_FILE

echo "== three nodes"
SERVING=1 NODES=3 SERVE_OPTIONS=(--lease 3s --dump-every 2s --dump-keep 3)
make_volume "$WORK/three" --grace 1h
mount_volume "$WORK/three" "$a"
check "files" "$TREE" write "$a/files" 12 $sizes
sync -f "$a"
before=$(dumps "$(volume_url three)" 2>/dev/null || echo 0)
more() {
    [ "$(dumps "$(volume_url three)" 2>/dev/null || echo 0)" -gt "$before" ]
}
check "the coordinator takes dumps of all" wait_until 60 more
check "by URL" "$KESTREL" backup now "$(serve_url "$WORK/three")"
umount_volume "$a"
for node in 1 2 3; do kill_node "$WORK/three" "$node"; done
check "of nodes at rest" "$KESTREL" backup now "$(node_dir "$WORK/three" 1)" \
    --node "$(node_dir "$WORK/three" 2)" \
    --node "$(node_dir "$WORK/three" 3)"
for node in 1 2 3; do rm -rf "$(node_dir "$WORK/three" "$node")"; done
SERVING='' NODES=1
restored three2 "$(volume_url three)"

summary
