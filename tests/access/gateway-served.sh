# A part of gateway.sh: tokens of a served volume beside a mount; TLS, limits, metrics, the end.
# shellcheck shell=bash disable=SC2034,SC2154

echo "-- a served volume: tokens, and a mount beside it"
served=$WORK/served mnt=$WORK/mnt
"$KESTREL" format "$served" >/dev/null
serve_port=$(free_ports 1)
"$KESTREL" serve "$served" --listen "127.0.0.1:$serve_port" --access tokens >"$WORK/serve.out" 9>&-
serve_pid=$(sed -n 's/.*process \([0-9]*\).*/\1/p' "$WORK/serve.out")
served_end() {
    at_end
    kill -9 "$serve_pid" 2>/dev/null
}
AT_END=served_end
url=kestrel://127.0.0.1:$serve_port/served
umask 077
token() {
    "$KESTREL" token create "$served" --name "$1" "${@:2}" >"$WORK/$1.token"
}
token all
mkdir "$mnt"
"$KESTREL" mount "$url" "$mnt" --token-file "$WORK/all.token" >/dev/null 9>&-
mkdir -p "$mnt/tenants/seven/inner" "$mnt/outer"
echo outside >"$mnt/outer/secret"
token reader --read-only
token seven --subtree /tenants/seven
token short --expires 90d
cat "$WORK"/{all,reader,seven,short}.token >"$WORK/tokens"
# key NAME: its access key and secret.
key() {
    read -r S3_KEY S3_SECRET < <("$KESTREL" token s3 --json --token-file "$WORK/$1.token" |
        python3 -c 'import json, sys
found = json.load(sys.stdin)
print(found["access_key"], found["secret"])')
}
check "starts with tokens" gateway "$url" --tokens "$WORK/tokens"
key all
check "a token is an access key" s3 "
s3.create_bucket(Bucket='bucket')
s3.put_object(Bucket='bucket', Key='d/by-s3', Body=b'from s3')
assert {b['Name'] for b in s3.list_buckets()['Buckets']} == {'bucket', 'outer', 'tenants'}
"
check "the mount sees the object" test "$(cat "$mnt/bucket/d/by-s3")" = "from s3"
echo -n "from the mount" >"$mnt/bucket/d/by-mount"
check "a file is an object, with an ETag that is no MD5" s3 "
got = s3.get_object(Bucket='bucket', Key='d/by-mount')
assert got['Body'].read() == b'from the mount'
assert '-' in got['ETag'], got['ETag']
assert s3.head_object(Bucket='bucket', Key='d/by-mount')['ETag'] == got['ETag']
"
echo -n "changed by it" >"$mnt/bucket/d/by-s3"
check "an ETag does not outlive its content" s3 "
got = s3.get_object(Bucket='bucket', Key='d/by-s3')
assert got['Body'].read() == b'changed by it'
assert '-' in got['ETag'], got['ETag']
"
ln -s /outer "$mnt/bucket/link"
ln -s /outer/secret "$mnt/bucket/file-link"
check "links lead nowhere" s3 "
for key in ['link/secret', 'file-link', 'link']:
    assert code(s3.get_object, Bucket='bucket', Key=key) == 'NoSuchKey', key
keys = [one['Key'] for one in s3.list_objects_v2(Bucket='bucket')['Contents']]
assert keys == ['d/by-mount', 'd/by-s3'], keys
"
key reader
check "a token that may only read" s3 "
assert s3.get_object(Bucket='bucket', Key='d/by-s3')['Body'].read() == b'changed by it'
assert code(s3.put_object, Bucket='bucket', Key='x', Body=b'1') == 'AccessDenied'
assert code(s3.delete_object, Bucket='bucket', Key='d/by-s3') == 'AccessDenied'
assert code(s3.create_bucket, Bucket='another') == 'AccessDenied'
"
key seven
check "a token for a directory" s3 "
assert [b['Name'] for b in s3.list_buckets()['Buckets']] == ['inner']
s3.put_object(Bucket='inner', Key='k', Body=b'tenant')
for bucket in ['bucket', 'outer', 'tenants']:
    assert code(s3.list_objects_v2, Bucket=bucket) == 'NoSuchBucket', bucket
assert code(s3.get_object, Bucket='inner', Key='../../outer/secret') != 'ok'
"
check "the mount sees its object" test "$(cat "$mnt/tenants/seven/inner/k")" = tenant
key short
check "a token before it is revoked" s3 "s3.list_buckets()"
"$KESTREL" token revoke "$served" short >/dev/null
revoked() {
    s3 "assert code(s3.list_objects_v2, Bucket='bucket') != 'ok'"
}
check "a token that was revoked" wait_until 10 revoked
token late
key late
check "a token that the gateway does not have" s3 "
assert code(s3.list_buckets) == 'InvalidAccessKeyId'"
cat "$WORK/late.token" >>"$WORK/tokens"
knows_late() {
    s3 "s3.list_buckets()"
}
check "it has it when its file does" wait_until 10 knows_late
stop
umount_volume "$mnt"
kill "$serve_pid"
while alive "$serve_pid"; do sleep 0.02; done
AT_END=at_end
check "fsck of the served volume" "$KESTREL" fsck "$served" --data

echo "-- TLS, limits, metrics, snapshots, the end"
volume=$WORK/killed
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=s3 \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$WORK/s3.key" -out "$WORK/s3.pem" 2>/dev/null
refuses "other machines are served with TLS" 'certificate' "$KESTREL" gateway "$volume" \
    --listen 0.0.0.0:9460
metrics=$(free_ports 1)
check "starts with TLS" gateway "$volume" --listen-tls on --tls-cert "$WORK/s3.pem" \
    --tls-key "$WORK/s3.key" --metrics "127.0.0.1:$metrics" --max-connections 5
S3_URL=https://${S3_URL#http://}
check "HTTPS" env S3_CA="$WORK/s3.pem" "$PYTHON" -c "
import sys
sys.path.insert(0, '$here')
from s3client import *
assert client().get_object(Bucket='bucket', Key='up')['ContentLength'] == 5 << 20"
check "no clear text beside it" s3_refused "http://${S3_URL#https://}"
check "metrics" prints 'kestrel_gateway_operations_total{operation="GetObject"} 1' \
    curl -s "http://127.0.0.1:$metrics/metrics"
check "metrics of the volume beside them" prints '^kestrel_uptime_seconds' \
    curl -s "http://127.0.0.1:$metrics/metrics"
stop
check "starts with few connections" gateway "$volume" --max-connections 5
check "one connection too many is told to slow down" "$PYTHON" -c "
import socket, sys
where = ('127.0.0.1', int('$S3_URL'.rsplit(':', 1)[1]))
lines = [socket.create_connection(where, timeout=5) for _ in range(5)]
import time
time.sleep(0.3)
more = socket.create_connection(where, timeout=5)
assert b'503' in more.recv(1000)
"
check "an answer under way is finished at the end" s3 "
import signal, time
body = s3.get_object(Bucket='bucket', Key='up')['Body']
first = body.read(1000)
os.kill(int(os.environ['S3_PID']), signal.SIGTERM)
time.sleep(0.5)
assert first + body.read() == b'p' * (5 << 20)
"
wait_until 10 gone_pid "$S3_PID" && ok "it ends" || fail "it does not end"
