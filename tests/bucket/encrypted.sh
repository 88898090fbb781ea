#!/usr/bin/env bash
# An encrypted volume that a bucket has all of: no name, attribute or byte of a file can be read in
# the bucket, neither in its metadata nor in published versions; machines with the key read all of
# it, also after kill -9, a rotation of keys and a setting that changed; what was exchanged in the
# bucket is refused. And versions of an encrypted volume in a directory.
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"
mnt=$WORK/mnt ver=$WORK/ver
url=$(volume_url secret/photos) query=$(volume_url '')
query=${query#*\?} base=s3://$S3_BUCKET/secret/photos
bucket=$STORE_DIR/$S3_BUCKET/secret/photos
mkdir "$mnt" "$ver"

# on MACHINE COMMAND…: kestrel on that machine, with the key; without: without it.
on() {
    local machine=$1
    shift
    KESTREL_KEY_FILE=${KEY:-$WORK/key} KESTREL_STATE_DIR=$WORK/$machine timeout 120 "$KESTREL" "$@"
}
without() {
    env -u KESTREL_KEY_FILE KESTREL_STATE_DIR="$WORK/b" timeout 120 "$KESTREL" "$@"
}
off() {
    "$KESTREL" umount "$1"
}
# tree DIR NAME: names, attributes and bytes that bear NAME.
tree() {
    mkdir "$1"
    for n in $(seq 300); do echo "content $2" >"$1/$2-$n"; done
    ln -s "target-$2" "$1/link"
    touch "$1/attribute"
    setfattr -n "user.$2" -v "value-$2" "$1/attribute"
    for _ in $(seq 40000); do echo "many lines $2"; done >"$1/large"
}
# sums DIR: of names and bytes.
sums() {
    (cd "$1" && find . | sort && getfattr -d attribute && readlink link &&
        find . -type f -print0 | sort -z | xargs -0 sha256sum) | sha256sum
}
# digits TEXT: its bytes as hexadecimal digits.
digits() {
    printf %s "$1" | od -An -v -tx1 | tr -d ' \n'
}
# hidden NAME [DIR]: nothing in the store has it.
hidden() {
    local text
    for text in "$1" "$(digits "$1")"; do
        ! grep -rlF "$text" "${2:-$bucket}" | grep . || return
    done
}
# put FILE OBJECT: the object becomes what the file has. The server keeps attributes with a file.
put() {
    cat "$1" >"$2"
}

echo "-- what the bucket has"
"$KESTREL" key create "$WORK/key" >/dev/null
refuses "format --encrypt without a key" "key" without format "$url" --encrypt
check "format" on a format "$url" --encrypt
check "mount" on a mount "$url" "$mnt" --metadata-memory 16M --cache-dir "$WORK/cache"
tree "$mnt/apple" apple
# A memtable and more.
mkdir "$mnt/apples"
python3 -c '
import os, sys
for number in range(60):
    path = f"{sys.argv[1]}/apple-{number}"
    open(path, "x").close()
    os.setxattr(path, "user.apple", b"apple" + os.urandom(60000))' "$mnt/apples"
check "a snapshot" on a snapshot create "$mnt/apple" monday
right=$(sums "$mnt/apple")
check "publish" on a publish "$mnt/apple" first@1
check "publish a snapshot" on a publish "$mnt/apple@monday" second@1
check "what is written is in the bucket" sync -f "$mnt"
check "no name, attribute or byte can be read" hidden apple
check "there are tables" test -n "$(find "$bucket/meta/0/table" -type f)"
check "nor in the disk cache, which has tables and data" hidden apple "$WORK/cache"
check "it has both" test "$(find "$WORK/cache" -mindepth 1 -maxdepth 1 -type d | wc -l)" = 2
kill_pid "$(KESTREL_KEY_FILE=$WORK/key KESTREL_STATE_DIR=$WORK/a volume_pid "$url")"
umount -l "$mnt"

echo "-- with the key and without"
refuses "a mount without the key" "is encrypted; give its key" without mount "$url" "$mnt"
refuses "fsck without it" "is encrypted; give its key" without fsck "$url"
refuses "a version without it" "is encrypted; give its key" \
    without mount "$base//first@1?$query" "$ver"
refuses "version info without it" "is encrypted; give its key" without version info "$url" first@1
"$KESTREL" key create "$WORK/other" >/dev/null
refuses "another key" "not the key of volume" env KESTREL_KEY_FILE="$WORK/other" \
    KESTREL_STATE_DIR="$WORK/b" "$KESTREL" mount "$url" "$mnt"
check "mount on another machine after kill -9" on b mount "$url" "$mnt" --take-over
check "all of it is there" same "$(sums "$mnt/apple")" "$right"
for name in first@1 second@1; do
    check "$name is mounted" on c mount "$base//$name?$query" "$ver"
    check "$name is whole" same "$(sums "$ver")" "$right"
    check "$name is unmounted" off "$ver"
done
check "versions are listed" prints "first@1" on c version list "$url"
refuses "a read-only mount without the key" "is encrypted; give its key" \
    without mount "$url" "$ver" --read-only
check "a read-only mount beside the writer" on c mount "$url" "$ver" --read-only
check "it shows all of it" same "$(sums "$ver/apple")" "$right"
check "and is unmounted" off "$ver"
check "renamed" on b version rename "$url" second@1 third@1
check "and deleted" on b version delete "$url" third@1

echo "-- tables of metadata"
mkdir "$mnt/many"
python3 - "$mnt/many" <<'END'
import os, sys
for n in range(1500):
    fd = os.open(f"{sys.argv[1]}/banana-{n}-{'x' * 200}", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"content banana " * 200)
    os.close(fd)
END
check "umount" off "$mnt"
check "mount with little memory" on b mount "$url" "$mnt" --metadata-memory 16M
python3 - "$mnt/many" <<'END'
import os, sys
for n in range(700):
    os.rename(f"{sys.argv[1]}/banana-{n}-{'x' * 200}", f"{sys.argv[1]}/cherry-{n}")
END
check "umount" off "$mnt"
check "there are tables" test -n "$(find "$bucket/meta/0/table" -type f)"
for name in apple banana cherry; do check "no $name in them" hidden "$name"; done
check "fsck --data finds nothing" on a fsck "$url" --data
check "dump" on a dump "$url" "$WORK/dump"
check "load" on a load "$WORK/dump" "$(volume_url secret/loaded)" --objects "$url"
check "no name in the new one" hidden banana "$STORE_DIR/$S3_BUCKET/secret/loaded"
check "fsck of it" on b fsck "$(volume_url secret/loaded)" --data

echo "-- exchanged objects"
logs=("$bucket"/meta/0/log/*)
newest=${logs[-1]}
cp "$newest" "$WORK/newest"
cp "$newest" "$WORK/bad"
printf X | dd of="$WORK/bad" bs=1 seek=70 conv=notrunc status=none
put "$WORK/bad" "$newest"
refuses "a damaged object of the log" "log/$(basename "$newest").*does not decrypt" \
    on a fsck "$url"
printf 'kstlog\0\0 nonsense that is not encrypted' >"$WORK/bad"
put "$WORK/bad" "$newest"
refuses "one that is not encrypted" "log/$(basename "$newest").*is not encrypted" on a fsck "$url"
if [ "${#logs[@]}" -gt 1 ]; then
    put "${logs[-2]}" "$newest"
    refuses "another one in its place" "log/$(basename "$newest")" on a fsck "$url"
fi
put "$WORK/newest" "$newest"
cp "$bucket/meta/0/manifest" "$WORK/manifest"
printf 'KSTENCN\n\0\0\0\11\0\0\100\0' >"$WORK/bad"
tail -c +17 "$WORK/manifest" >>"$WORK/bad"
put "$WORK/bad" "$bucket/meta/0/manifest"
refuses "a newer format" "manifest.*format 9.* newer" on a fsck "$url"
put "$WORK/manifest" "$bucket/meta/0/manifest"
check "it is well again" on a fsck "$url" --data
name=$bucket/versions/name/$(digits first@1)
cp "$name" "$WORK/name"
printf '{"magic":"kestrelfs-version","format":1}' >"$WORK/bad"
put "$WORK/bad" "$name"
refuses "a manifest that is not encrypted" "is not encrypted" \
    on c mount "$base//first@1?$query" "$ver"
put "$WORK/name" "$name"

echo "-- keys and settings"
"$KESTREL" key create "$WORK/key-2" >/dev/null
check "rotation" on a key rotate "$url" --new-key-file "$WORK/key-2"
KEY=$WORK/key-2
check "mount with the new key" on a mount "$url" "$mnt"
check "all of it is there" same "$(sums "$mnt/apple")" "$right"
tree "$mnt/date" date
date=$(sums "$mnt/date")
check "publish" on a publish "$mnt/date" second@1
check "umount" off "$mnt"
check "not even what came after can be read" hidden date
check "the version of before is mounted" on c mount "$base//first@1?$query" "$ver"
check "and whole" same "$(sums "$ver")" "$right"
check "and unmounted" off "$ver"
check "encryption is turned off" on a config "$url" --no-encrypt
check "mount" on a mount "$url" "$mnt"
tree "$mnt/elder" elder
check "publish" on a publish "$mnt/elder" third@1
elder=$(sums "$mnt/elder")
check "umount" off "$mnt"
check "what came after is in the clear" not hidden elder
check "encryption is turned on" on a config "$url" --encrypt
check "mount" on b mount "$url" "$mnt"
check "all of it is there" same "$(sums "$mnt/apple")$(sums "$mnt/date")$(sums "$mnt/elder")" \
    "$right$date$elder"
check "umount" off "$mnt"
for name in second@1 third@1; do
    check "$name is mounted" on c mount "$base//$name?$query" "$ver"
    check "and unmounted" off "$ver"
done

echo "-- given up without the key"
check "format --force" without format "$url" --force
new='meta/0/\|descriptor\|kestrel-volume'
check "nothing of it is left" test -z "$(find "$bucket" -type f | grep -v "$new")"

echo "-- a volume in a directory"
KEY=$WORK/key
secret=$WORK/secret
check "format" on a format "$secret" --encrypt
check "mount" on a mount "$secret" "$mnt"
tree "$mnt/fig" fig
right=$(sums "$mnt/fig")
check "publish" on a publish "$mnt/fig" fig@1
check "no name or byte of it can be read in the store" hidden fig "$secret/objects/versions/data"
check "the version is mounted" on c mount "$secret//fig@1" "$ver"
check "and whole" same "$(sums "$ver")" "$right"
check "and unmounted" off "$ver"
table=$(find "$secret/objects/versions/data" -path '*/table/*' -type f)
python3 - "$table" <<'END'
import sys
with open(sys.argv[1], "r+b") as table:
    data = bytearray(table.read())
    data[len(data) // 2] ^= 1
    data[-30] ^= 1
    table.seek(0)
    table.write(data)
END
refuses "a damaged table" "table/0.*does not decrypt" on c mount "$secret//fig@1" "$ver"
check "umount" off "$mnt"
summary
