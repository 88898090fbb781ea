#!/usr/bin/env bash
# `kestrel gateway`: the calls of an S3 client against it and against versitygw, with a list of the
# differences; rights of access keys; input that is none; kill -9 in the middle of writes; tokens
# of a served volume beside a mount; TLS, limits, metrics, access log, an orderly end. With
# GATEWAY_NIGHT=1 also points at which it kills itself, snapshots, a volume that is one bucket, the
# AWS CLI, rclone and slow clients.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$ROOT/tests/access
unset AWS_SESSION_TOKEN AWS_PROFILE
export AWS_EC2_METADATA_DISABLED=true PYTHONDONTWRITEBYTECODE=1

# A Python with boto3: the machine's, or one of ours.
PYTHON=python3
if ! python3 -c 'import boto3' 2>/dev/null; then
    PYTHON=$ROOT/target/gateway-venv/bin/python3
    if ! "$PYTHON" -c 'import boto3' 2>/dev/null; then
        echo "installing boto3 into target/gateway-venv"
        if ! { python3 -m venv "$ROOT/target/gateway-venv" && "$PYTHON" -m pip install -q \
            boto3; } >"$WORK/pip.out" 2>&1; then
            tail -n 5 "$WORK/pip.out"
            echo "skipped: boto3 can't be installed on this machine: nothing was tested"
            rm -rf "$ROOT/target/gateway-venv"
            summary
            exit
        fi
    fi
fi

# gateway VOLUME OPTION…: starts one; sets S3_URL, S3_PID, and S3_KEY and S3_SECRET where it has a
# file of keys.
gateway() {
    local volume=$1 port
    shift
    port=$(free_ports 1)
    timeout 60 "$KESTREL" gateway "$volume" --listen "127.0.0.1:$port" "$@" \
        >"$WORK/gateway.out" 2>&1 9>&- || { cat "$WORK/gateway.out" && return 1; }
    S3_PID=$(sed -n 's/.*process \([0-9]*\).*/\1/p' "$WORK/gateway.out")
    S3_URL=http://127.0.0.1:$port
    if [ -e "$volume/gateway.keys" ]; then
        read -r S3_KEY S3_SECRET < <(grep -v '#' "$volume/gateway.keys")
    fi
    export S3_URL S3_PID S3_KEY S3_SECRET
}
# stop [SIGNAL]: ends it, and waits for its end.
stop() {
    [ -n "${S3_PID:-}" ] || return 0
    kill "-${1:-TERM}" "$S3_PID" 2>/dev/null || true
    while alive "$S3_PID"; do sleep 0.02; done
    S3_PID=
}
VERSITY_PID=
at_end() {
    [ -z "${S3_PID:-}" ] || kill -9 "$S3_PID" 2>/dev/null
    [ -z "$VERSITY_PID" ] || kill -9 "$VERSITY_PID" 2>/dev/null
}
AT_END=at_end
not_in() {
    ! grep -qE "$2" "$1"
}
gone_pid() {
    ! alive "$1"
}
# s3_refused URL: nothing of S3 is there.
s3_refused() {
    ! curl -sf "$1" >/dev/null
}
# s3 PYTHON…: a few lines with a client.
s3() {
    (cd "$here" && "$PYTHON" -c "
import os, sys
from s3client import *
s3 = client()
$1" "${@:2}")
}

echo "-- calls, beside versitygw"
volume=$WORK/volume
"$KESTREL" format "$volume" >/dev/null
check "starts" gateway "$volume" --metrics "127.0.0.1:$(free_ports 1)"
check "the first start tells a key" grep -q "access key $S3_KEY" "$WORK/gateway.out"
check "the file of keys is its owner's alone" test "$(stat -c %a "$volume/gateway.keys")" = 600
check "another process hears of it" prints 'holds' "$KESTREL" status "$volume"
refuses "a second gateway to the volume" 'in use' "$KESTREL" gateway "$volume" --listen \
    "127.0.0.1:$(free_ports 1)"
mkdir "$WORK/versity"
port=$(free_ports 1)
versitygw --port "127.0.0.1:$port" --quiet --access versity --secret only-for-tests \
    posix "$WORK/versity" >"$WORK/versitygw.log" 2>&1 9>&- &
VERSITY_PID=$!
disown
(cd "$here" && "$PYTHON" gateway_calls.py calls-bucket) >"$WORK/ours" 2>"$WORK/err" ||
    { cat "$WORK/err" && fail "the calls"; }
wait_until 30 curl -s "http://127.0.0.1:$port"
(cd "$here" && S3_URL=http://127.0.0.1:$port S3_KEY=versity S3_SECRET=only-for-tests \
    "$PYTHON" gateway_calls.py calls-bucket) >"$WORK/theirs" 2>"$WORK/err" ||
    { cat "$WORK/err" && fail "the calls to versitygw"; }
kill -9 "$VERSITY_PID"
VERSITY_PID=
counted "$here/compare.py" "$WORK/ours" "$WORK/theirs" "$here/gateway-differences.txt"

echo "-- access, input, atomicity"
stop
echo "READER reader-secret-1 read-only" >>"$volume/gateway.keys"
export S3_READER=READER S3_READER_SECRET=reader-secret-1
for part in access hostile atomic; do
    "$KESTREL" format "$WORK/$part" >/dev/null
    cp -p "$volume/gateway.keys" "$WORK/$part"
    check "starts for $part" gateway "$WORK/$part" --write-buffer 32M
    cd "$here"
    counted "$PYTHON" gateway_checks.py "$part"
    cd "$WORK"
    stop
    check "fsck after $part" "$KESTREL" fsck "$WORK/$part" --data
done
check "no signature is in the access log" not_in "$WORK/access/gateway-access.log" \
    'X-Amz-Signature=[0-9a-f]'
check "the access log names who did what" grep -q '"key":"READER".*"status":403' \
    "$WORK/access/gateway-access.log"

echo "-- kill -9"
volume=$WORK/killed
"$KESTREL" format "$volume" >/dev/null
gateway "$volume" --write-buffer 16M
s3 "
s3.create_bucket(Bucket='bucket')
s3.put_object(Bucket='bucket', Key='old', Body=b'o' * 500_000)
up = s3.create_multipart_upload(Bucket='bucket', Key='up')['UploadId']
tag = s3.upload_part(Bucket='bucket', Key='up', UploadId=up, PartNumber=1, Body=b'p' * (5 << 20))
open(sys.argv[1], 'w').write(up + ' ' + tag['ETag'])
" "$WORK/upload"
for ((kill = 0; kill < ${GATEWAY_KILLS:-1}; kill++)); do
    s3 "
import itertools, threading
def puts(number):
    mine = client()
    for turn in itertools.count():
        key = ['old', 'new/%d' % number][turn % 2]
        mine.put_object(Bucket='bucket', Key=key, Body=bytes([97 + number]) * 3_000_000)
def parts(number):
    mine = client()
    for turn in itertools.count(2):
        mine.upload_part(Bucket='bucket', Key='up', UploadId=sys.argv[1], PartNumber=turn % 50 + 2,
                         Body=b'q' * 6_000_000)
for run in (puts, puts, parts):
    threading.Thread(target=run, args=(threading.active_count(),), daemon=True).start()
import time
print('begun', flush=True)
time.sleep(60)
" "$(cut -d' ' -f1 "$WORK/upload")" >"$WORK/load.out" 2>/dev/null &
    load=$!
    wait_until 20 grep -q begun "$WORK/load.out"
    sleep "0.$((RANDOM % 5 + 3))"
    stop KILL
    kill -9 "$load" 2>/dev/null || true
    check "serves again after kill -9" gateway "$volume" --write-buffer 16M
    check "whole objects after kill -9" s3 "
for one in s3.list_objects_v2(Bucket='bucket')['Contents']:
    body = s3.get_object(Bucket='bucket', Key=one['Key'])['Body'].read()
    assert len(set(body)) == 1 and len(body) in (500_000, 3_000_000), one
    assert hashlib.md5(body).hexdigest() == one['ETag'].strip('\"'), one
"
done
stop
[ -z "${GATEWAY_NIGHT:-}" ] || . "$here/gateway-points.sh"
gateway "$volume"
check "an upload goes on after all that" s3 "
up, tag = open(sys.argv[1]).read().split()
s3.complete_multipart_upload(Bucket='bucket', Key='up', UploadId=up,
                             MultipartUpload={'Parts': [{'PartNumber': 1, 'ETag': tag}]})
assert s3.get_object(Bucket='bucket', Key='up')['Body'].read() == b'p' * (5 << 20)
assert not s3.list_multipart_uploads(Bucket='bucket').get('Uploads')
" "$WORK/upload"
stop
check "fsck after kills" "$KESTREL" fsck "$volume" --data

. "$here/gateway-served.sh"
[ -z "${GATEWAY_NIGHT:-}" ] || . "$here/gateway-night.sh"
summary
