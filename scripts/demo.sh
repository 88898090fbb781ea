#!/usr/bin/env bash
# The main job, for real: format a volume, mount it, ingest a tree of 80,000 small files with
# several processes, read every file back in random order from several processes, verify every byte
# against the source, say how fast it was.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
KESTREL=${KESTREL:-${CARGO_TARGET_DIR:-$ROOT/target}/release/kestrel}
TREE=${KESTREL_TREE:-${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}/tree}
PROCESSES=${PROCESSES:-4}

work=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-demo.XXXXXX")
volume=$work/volume mnt=$work/mnt
cleanup() {
    status=$?
    trap - EXIT INT TERM
    mountpoint -q "$mnt" && { "$KESTREL" umount "$mnt" >/dev/null 2>&1 ||
        "$KESTREL" umount --force "$mnt" || true; }
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mkdir "$mnt"
echo "== kestrel format"
"$KESTREL" format "$volume" --name demo
echo "== kestrel mount"
"$KESTREL" mount "$volume" "$mnt"
python3 "$ROOT/scripts/demo.py" "$TREE" "$mnt" "$PROCESSES" "$KESTREL" "$volume"
echo "== kestrel info"
"$KESTREL" info "$mnt"
echo "== kestrel umount"
"$KESTREL" umount "$mnt"
echo "== kestrel fsck --data"
"$KESTREL" fsck --data "$volume"
