# A part of gateway.sh for the night: other clients, slow ones, many connections.
# shellcheck shell=bash disable=SC2034,SC2154

echo "-- a snapshot; a volume that is one bucket"
"$KESTREL" snapshot create "$volume" before >/dev/null
gateway "$volume"
s3 "s3.put_object(Bucket='bucket', Key='after', Body=b'1')"
stop
cp -p "$volume/gateway.keys" "$WORK/keys"
check "starts at a snapshot" gateway "$volume@before" --access-keys "$WORK/keys"
check "a snapshot, read-only" s3 "
assert code(s3.get_object, Bucket='bucket', Key='after') == 'NoSuchKey'
assert s3.get_object(Bucket='bucket', Key='up')['ContentLength'] == 5 << 20
assert code(s3.put_object, Bucket='bucket', Key='x', Body=b'1') == 'AccessDenied'
"
stop
check "starts with one bucket" gateway "$volume" --bucket whole
check "a volume that is one bucket" s3 "
assert [b['Name'] for b in s3.list_buckets()['Buckets']] == ['whole']
keys = [one['Key'] for one in s3.list_objects_v2(Bucket='whole')['Contents']]
assert 'bucket/up' in keys and not any(key.startswith('.') for key in keys), keys
assert code(s3.put_object, Bucket='whole', Key='.kestrel-s3/x', Body=b'') == 'InvalidArgument'
assert code(s3.delete_bucket, Bucket='whole') == 'AccessDenied'
"
stop

echo "-- other clients"
volume=$WORK/clients
"$KESTREL" format "$volume" >/dev/null
gateway "$volume"
export AWS_ACCESS_KEY_ID=$S3_KEY AWS_SECRET_ACCESS_KEY=$S3_SECRET AWS_DEFAULT_REGION=us-east-1
mkdir -p "$WORK/tree/a/b" "$WORK/back"
for n in $(seq 200); do echo "file $n" >"$WORK/tree/a/f$n"; done
head -c 40000000 /dev/urandom >"$WORK/tree/a/b/large"
same_tree() {
    diff -r "$WORK/tree" "$1"
}
if command -v aws >/dev/null; then
    cli=(aws --endpoint-url "$S3_URL")
    check "aws: make a bucket" "${cli[@]}" s3 mb s3://cli
    check "aws: sync there" "${cli[@]}" s3 sync --quiet "$WORK/tree" s3://cli/tree
    check "aws: nothing more to sync" test -z "$("${cli[@]}" s3 sync "$WORK/tree" s3://cli/tree)"
    check "aws: sync back" "${cli[@]}" s3 sync --quiet s3://cli/tree "$WORK/back"
    check "aws: the same" same_tree "$WORK/back"
    check "aws: a list" prints 'PRE tree/' "${cli[@]}" s3 ls s3://cli
    check "aws: move" "${cli[@]}" s3 mv --quiet s3://cli/tree/a/b/large s3://cli/moved
    check "aws: remove all" "${cli[@]}" s3 rm --quiet --recursive s3://cli
    check "aws: remove the bucket" "${cli[@]}" s3 rb s3://cli
else
    echo "SKIPPED: the AWS CLI is not installed (pip install awscli)"
fi
if command -v rclone >/dev/null; then
    remote=":s3,provider=Other,endpoint='$S3_URL',access_key_id=$S3_KEY"
    remote=$remote,secret_access_key=$S3_SECRET:
    check "rclone: copy there" rclone copy -q "$WORK/tree" "${remote}rclone/tree"
    check "rclone: check" rclone check -q "$WORK/tree" "${remote}rclone/tree"
    check "rclone: copy within" rclone copy -q "${remote}rclone/tree" "${remote}rclone/other"
    check "rclone: check the copy" rclone check -q "${remote}rclone/tree" "${remote}rclone/other"
    check "rclone: purge" rclone purge -q "${remote}rclone"
else
    echo "SKIPPED: rclone is not installed (apt-get install rclone)"
fi

echo "-- slow clients"
check "slow clients are cut off" "$PYTHON" - <<EOF
import socket, sys, time
sys.path.insert(0, "$here")
from s3client import *
where = ("127.0.0.1", int("$S3_URL".rsplit(":", 1)[1]))
client().create_bucket(Bucket="slow")
silent = [socket.create_connection(where) for _ in range(20)]
heads = [socket.create_connection(where) for _ in range(20)]
for line in heads:
    line.sendall(b"GET / HTTP/1.1\r\n")
names = signed("PUT", "/slow/k", payload="UNSIGNED-PAYLOAD")
names["content-length"] = "100"
head = "PUT /slow/k HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in names.items()) + "\r\n"
bodies = [socket.create_connection(where) for _ in range(20)]
for line in bodies:
    line.sendall(head.encode() + b"half")
end = time.time() + 75
for line in silent + heads + bodies:
    line.settimeout(max(1, end - time.time()))
    while line.recv(1000):
        pass
assert code(client().head_object, Bucket="slow", Key="k") == "404"
EOF
stop
check "fsck after other clients" "$KESTREL" fsck "$volume" --data
