#!/usr/bin/env bash
# What people get wrong, and what others do to the store behind our back: clear errors that name
# file and object, other files keep working, nothing is deleted.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

volume=$WORK/vol mnt=$WORK/mnt
count=40 sizes=5000,100000,6000000
make_volume "$volume"
mount_volume "$volume" "$mnt"
"$TREE" write "$mnt/a" $count $sizes
umount_volume "$mnt"
mkdir -p "$mnt"
before=$(objects vol | wc -l)

echo "== addresses"
format() {
    "$KESTREL" format "$WORK/none" --storage "$1"
}
refuses "credentials in the URL" 'credential|secret|user' format \
    "s3://me:secret@$S3_BUCKET/p?endpoint=$S3_ENDPOINT"
refuses "a key in the URL" 'access.?key|credential|unknown' format \
    "s3://$S3_BUCKET/p?endpoint=$S3_ENDPOINT&access-key=x"
refuses "an unknown parameter" 'endpont' format "s3://$S3_BUCKET/p?endpont=$S3_ENDPOINT"
refuses "no bucket" 'bucket' format "s3:///p?endpoint=$S3_ENDPOINT"
refuses "a scheme of others" 'gs://|storage|scheme' format "gs://bucket/p"
refuses "a missing bucket" 'no-such-bucket' format \
    "s3://no-such-bucket/p?endpoint=$S3_ENDPOINT&region=us-east-1&path-style=true"
refuses "nobody listens there" '127\.0\.0\.1:9' timeout 100 "$KESTREL" format "$WORK/none" \
    --storage "s3://bucket/p?endpoint=http://127.0.0.1:9&region=us-east-1&path-style=true"
check "no volume came of it" not test -e "$WORK/none/kestrel.json"

echo "== credentials and clocks"
refuses "a wrong secret" 'secret|signature|credential|denied' env AWS_SECRET_ACCESS_KEY=wrong \
    "$KESTREL" mount "$volume" "$mnt"
refuses "an unknown key" 'key|credential|denied' env AWS_ACCESS_KEY_ID=nobody "$KESTREL" mount \
    "$volume" "$mnt"
refuses "no credentials at all" 'credential' env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY \
    "$KESTREL" mount "$volume" "$mnt"
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$AWS_ACCESS_KEY_ID" \
    "$AWS_SECRET_ACCESS_KEY" >"$WORK/credentials"
chmod 600 "$WORK/credentials"
with_file() {
    env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY "$KESTREL" mount "$volume" "$mnt" \
        --credentials "$WORK/credentials" --allow-other
}
check "credentials from a file" with_file
check "they work" "$TREE" check "$mnt/a" $count $sizes
umount_volume "$mnt"
check "none of them is in the volume" not grep -rqF "$AWS_SECRET_ACCESS_KEY" "$volume"
faults status:code=403,error=RequestTimeTooSkewed
refuses "a clock that is wrong" 'clock|time' "$KESTREL" mount "$volume" "$mnt"
faults status:code=403
refuses "access denied" 'denied|403|permission' "$KESTREL" mount "$volume" "$mnt"
no_faults

echo "== stores of others"
url=$(volume_url vol)
refuses "another volume is there already" 'volume' "$KESTREL" format "$WORK/second" --storage "$url"
make_volume "$WORK/third"
root=$STORE_DIR/$S3_BUCKET
mv "$root/vol" "$root/swap"
mv "$root/third" "$root/vol"
mv "$root/swap" "$root/third"
refuses "the store was swapped for another volume's" 'belongs|another|other volume' "$KESTREL" \
    mount "$volume" "$mnt"
refuses "gc neither" 'belongs|another|other volume' "$KESTREL" gc "$volume" --delete --grace 0s
refuses "nor fsck --repair" 'belongs|another|other volume' "$KESTREL" fsck "$volume" --repair
mv "$root/vol" "$root/swap"
mv "$root/third" "$root/vol"
mv "$root/swap" "$root/third"
mv "$root/vol" "$root/away"
refuses "the store was emptied" 'marker|empty|no volume|kestrel-volume' "$KESTREL" mount "$volume" \
    "$mnt"
refuses "gc of an emptied store" . "$KESTREL" gc "$volume" --delete --grace 0s
mv "$root/away" "$root/vol"
check "nothing was deleted" same "$(objects vol | wc -l)" "$before"
mount_volume "$volume" "$mnt"
check "and everything is there" "$TREE" check "$mnt/a" $count $sizes
umount_volume "$mnt"

echo "== objects changed behind our back"
# damage WHAT: does it to every fifth object, as versitygw's own files.
damage() {
    python3 - "$root/vol/objects" "$1" <<'PY'
import os, sys
found = sorted(os.path.join(at, name) for at, _, names in os.walk(sys.argv[1]) for name in names)
for path in found[::5]:
    size = os.path.getsize(path)
    if sys.argv[2] == "deleted":
        os.unlink(path)
    elif sys.argv[2] == "shortened":
        os.truncate(path, size * 2 // 3)
    elif sys.argv[2] == "lengthened":
        with open(path, "ab") as file:
            file.write(b"x" * 1000)
    elif sys.argv[2] == "flipped":
        with open(path, "r+b") as file:
            file.seek(size // 2)
            byte = file.read(1)
            file.seek(size // 2)
            file.write(bytes([byte[0] ^ 4]))
PY
}
for what in deleted shortened flipped lengthened; do
    rm -rf "$WORK/good"
    cp -a "$root/vol" "$WORK/good"
    damage "$what"
    left=$(objects vol | wc -l)
    refused=some
    # What lies behind the end of an object is nobody's data: every file is right.
    [ "$what" = lengthened ] && refused=any
    mount_volume "$volume" "$mnt"
    check "$what: errors for the files that lie there, all others are right" "$TREE" \
        check "$mnt/a" $count $sizes --refused "$refused"
    check "$what: new files work" "$TREE" write "$mnt/new-$what" 5 $sizes
    umount_volume "$mnt"
    if "$KESTREL" fsck "$volume" --data >"$WORK/fsck.out" 2>&1; then
        [ "$what" = lengthened ] || fail "$what: fsck --data finds nothing"
    elif grep -q 'file[0-9]' "$WORK/fsck.out" && grep -qE '[0-9a-f]{16}|object' "$WORK/fsck.out"; \
        then
        ok "$what: fsck --data names files and objects"
    else
        tail -n 20 "$WORK/fsck.out"
        fail "$what: fsck --data names no file and object"
    fi
    check "$what: nothing was deleted" is_more "$(($(objects vol | wc -l) + 1))" "$left"
    cp -a "$WORK/good/." "$root/vol/"
done
mount_volume "$volume" "$mnt"
check "with the objects put back all files are right" "$TREE" check "$mnt/a" $count $sizes
close_and_check "$volume" "$mnt"

echo "== keys"
"$KESTREL" key create "$WORK/key" >/dev/null
"$KESTREL" key create "$WORK/wrong" >/dev/null
make_volume "$WORK/secret" --encrypt --key-file "$WORK/key"
mount_volume "$WORK/secret" "$mnt" --key-file "$WORK/key"
"$TREE" write "$mnt/s" 10 $sizes
umount_volume "$mnt"
refuses "no key" 'key' "$KESTREL" mount "$WORK/secret" "$mnt"
refuses "a wrong key" 'key' "$KESTREL" mount "$WORK/secret" "$mnt" --key-file "$WORK/wrong"
refuses "fsck with a wrong key repairs nothing" 'key' "$KESTREL" fsck "$WORK/secret" \
    --data --repair --key-file "$WORK/wrong"
echo nonsense >"$WORK/nonsense"
chmod 600 "$WORK/nonsense"
refuses "no key in the file" 'nonsense' "$KESTREL" mount "$WORK/secret" "$mnt" \
    --key-file "$WORK/nonsense"
cp "$WORK/key" "$WORK/open"
chmod 644 "$WORK/open"
refuses "a key that everybody can read" 'mode|permission|chmod|others' "$KESTREL" mount \
    "$WORK/secret" "$mnt" --key-file "$WORK/open"
mount_volume "$WORK/secret" "$mnt" --key-file "$WORK/key"
check "the right key" "$TREE" check "$mnt/s" 10 $sizes
umount_volume "$mnt"
summary
