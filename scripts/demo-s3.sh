#!/usr/bin/env bash
# The main job on an object store, for real: start an S3 server (versitygw), format a volume that
# keeps its files there, ingest the demo's tree with several processes, read every file back in
# random order, verified: cold from the store, warm from the cache directory. Shows requests, hit
# rates and throughput; then gc and fsck.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
KESTREL=${KESTREL:-${CARGO_TARGET_DIR:-$ROOT/target}/release/kestrel}
TOOLS=${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}
TREE=${KESTREL_TREE:-$TOOLS/tree}
PROCESSES=${PROCESSES:-4}

work=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-demo-s3.XXXXXX")
volume=$work/volume mnt=$work/mnt store=
cleanup() {
    status=$?
    trap - EXIT INT TERM
    mountpoint -q "$mnt" && { "$KESTREL" umount "$mnt" >/dev/null 2>&1 ||
        "$KESTREL" umount --force "$mnt" || true; }
    [ -z "$store" ] || kill "$store" 2>/dev/null || true
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

export AWS_ACCESS_KEY_ID=kestreldemo AWS_SECRET_ACCESS_KEY=only-for-the-demo
mkdir -p "$mnt" "$work/store/demo"
port=$(python3 \
    -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
echo "== versitygw on 127.0.0.1:$port"
"$TOOLS/bin/versitygw" --port "127.0.0.1:$port" --keep-alive --quiet --access "$AWS_ACCESS_KEY_ID" \
    --secret "$AWS_SECRET_ACCESS_KEY" posix "$work/store" >"$work/versitygw.log" 2>&1 &
store=$!
for _ in $(seq 100); do
    curl -s -o /dev/null "http://127.0.0.1:$port/" && break
    sleep 0.1
done
kill -0 "$store" || { cat "$work/versitygw.log" && exit 1; }

echo "== kestrel format"
"$KESTREL" format "$volume" --name demo \
    --storage "s3://demo/files?endpoint=http://127.0.0.1:$port&region=us-east-1&path-style=true"
python3 "$ROOT/scripts/demo_s3.py" "$TREE" "$mnt" "$PROCESSES" "$KESTREL" "$volume" "$work"
echo "== kestrel gc --delete, mounted"
"$KESTREL" gc "$volume" --delete
echo "== kestrel fsck --data, mounted"
"$KESTREL" fsck --data "$volume"
echo "== kestrel umount"
"$KESTREL" umount "$mnt"
echo "== kestrel fsck, unmounted"
"$KESTREL" fsck "$volume"
