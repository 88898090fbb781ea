# A part of gateway.sh for the night: kill -9 between two steps of a request.
# shellcheck shell=bash disable=SC2154

# leftovers VOLUME: what is in the directory of files that are about to replace others.
leftovers() {
    local whole=$WORK/leftovers
    mkdir -p "$whole"
    stop
    "$KESTREL" mount "$1" "$whole" >/dev/null 9>&- || return
    find "$whole/.kestrel-s3/replacing" -type f 2>&1 || true
    umount_volume "$whole"
}
for point in gateway.replace gateway.joined; do
    KESTREL_CRASH_AT=$point:1 gateway "$volume"
    s3 "
up, tag = open(sys.argv[1]).read().split()
try:
    s3.put_object(Bucket='bucket', Key='old', Body=b'n' * 100)
    s3.complete_multipart_upload(Bucket='bucket', Key='up', UploadId=up,
                                 MultipartUpload={'Parts': [{'PartNumber': 1, 'ETag': tag}]})
except Exception:
    sys.exit()
sys.exit('it was not killed')
" "$WORK/upload" && ok "killed at $point" || fail "killed at $point"
    while alive "$S3_PID"; do sleep 0.02; done
    check "serves again after $point" gateway "$volume"
    check "nothing half after $point" s3 "
keys = [one['Key'] for one in s3.list_objects_v2(Bucket='bucket')['Contents']]
assert 'up' not in keys, keys
size = s3.head_object(Bucket='bucket', Key='old')['ContentLength']
assert size in (500_000, 3_000_000, 100), size
"
    check "leftovers of $point are removed" test -z "$(leftovers "$volume")"
    stop
done
