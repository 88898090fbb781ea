#!/usr/bin/env bash
# A volume with several clients, for real: one process serves its metadata, two mounts use it. A tree of 80,000 small files is
# ingested through one mount while the server is killed (kill -9) and started again in the middle; the other mount reads every
# file back in random order and verifies it. Then fsck, online over the network and of the volume at rest.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
KESTREL=${KESTREL:-$ROOT/target/release/kestrel}
TREE=${KESTREL_TREE:-${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}/tree}
PROCESSES=${PROCESSES:-4}

work=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-demo-cluster.XXXXXX")
volume=$work/volume
export KESTREL_RUNTIME_DIR=$work/run
cleanup() {
    status=$?
    trap - EXIT INT TERM
    for mnt in "$work/one" "$work/two"; do
        mountpoint -q "$mnt" && { "$KESTREL" umount --force "$mnt" >/dev/null 2>&1 || true; }
    done
    "$KESTREL" serve --stop "$volume" >/dev/null 2>&1 || true
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mkdir "$work/one" "$work/two" "$work/run"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=kestrel://127.0.0.1:$port/demo
echo "== kestrel format, serve, mount twice"
"$KESTREL" format "$volume" --name demo
"$KESTREL" serve "$volume" --listen "127.0.0.1:$port"
"$KESTREL" mount "$url" "$work/one"
"$KESTREL" mount "$url" "$work/two"
python3 "$ROOT/scripts/demo_cluster.py" "$TREE" "$work/one" "$work/two" "$PROCESSES" "$KESTREL" "$volume" "127.0.0.1:$port"
echo "== kestrel status"
"$KESTREL" status "$url"
echo "== kestrel fsck, online, over the network"
"$KESTREL" fsck "$url"
echo "== kestrel umount, twice; the server ends"
"$KESTREL" umount "$work/one"
"$KESTREL" umount "$work/two"
"$KESTREL" serve --stop "$volume"
echo "== kestrel fsck --data of the volume at rest"
"$KESTREL" fsck --data "$volume"
