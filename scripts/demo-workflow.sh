#!/usr/bin/env bash
# The workflow of the DeltaFS paper (section 8.2, Figure 12), for real: seven jobs one after the
# other on a volume in an S3 server (versitygw), each with the version of the one before as its
# input, and as many new files as that has. Processes of a job log for themselves; each version is
# published, compacted, and its whole listing verified. The same again with jobs that do not see
# each other's files. Beside it: what creating the files through one served node costs.
#
# FILES: files of the first version (10000). STAGES: jobs (7).
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
KESTREL=${KESTREL:-${CARGO_TARGET_DIR:-$ROOT/target}/release/kestrel}
TOOLS=${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}
OUT=${OUT:-${CARGO_TARGET_DIR:-$ROOT/target}/bench/workflow.json}

work=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-demo-workflow.XXXXXX")
store=
cleanup() {
    status=$?
    trap - EXIT INT TERM
    for mnt in "$work"/*.mnt; do
        mountpoint -q "$mnt" && { "$KESTREL" umount "$mnt" >/dev/null 2>&1 ||
            "$KESTREL" umount --force "$mnt" || true; }
    done
    "$KESTREL" serve "$work/served" --stop >/dev/null 2>&1 || true
    [ -z "$store" ] || kill "$store" 2>/dev/null || true
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

export AWS_ACCESS_KEY_ID=kestreldemo AWS_SECRET_ACCESS_KEY=only-for-the-demo
export KESTREL_STATE_DIR=$work/state
mkdir -p "$work/store/demo" "$(dirname "$OUT")"
port=$(python3 \
    -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$TOOLS/bin/versitygw" --port "127.0.0.1:$port" --access "$AWS_ACCESS_KEY_ID" \
    --secret "$AWS_SECRET_ACCESS_KEY" --quiet posix "$work/store" >/dev/null 2>&1 &
store=$!
for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.1
done
python3 "$ROOT/scripts/demo_workflow.py" "$KESTREL" "$work" \
    "s3://demo/workflow?endpoint=http://127.0.0.1:$port&region=us-east-1&path-style=true" "$OUT"
