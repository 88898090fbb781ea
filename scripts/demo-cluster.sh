#!/usr/bin/env bash
# A volume with several metadata nodes and several clients, for real: three processes serve its
# metadata, a fourth only coordinates, two mounts use it. A part of the demo's tree is ingested
# through one mount; meanwhile a node is killed (kill -9) and started again, and another node joins
# and is given its part. The other mount, which knew of three nodes, reads every file back in random
# order and verifies it. Then fsck, online over the network and of all nodes at rest.
#
#   FILES=20000    how many files; `all` of the tree are 78,580
#   PROCESSES=8    that write and read
#   NODES=1        one server, to which nothing is added
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
KESTREL=${KESTREL:-${CARGO_TARGET_DIR:-$ROOT/target}/release/kestrel}
TREE=${KESTREL_TREE:-${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}/tree}
FILES=${FILES:-20000}
PROCESSES=${PROCESSES:-8}
NODES=${NODES:-3}

begun=$SECONDS
work=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-demo-cluster.XXXXXX")
dirs=()
# With room for the coordinator and the one that joins.
for ((node = 1; node <= NODES; node++)); do dirs+=("$work/node$node"); done
dirs+=("$work/coordinator" "$work/node$((NODES + 2))")
serving=$NODES
export KESTREL_RUNTIME_DIR=$work/run
cleanup() {
    status=$?
    trap - EXIT INT TERM
    for mnt in "$work/one" "$work/two"; do
        mountpoint -q "$mnt" && { "$KESTREL" umount --force "$mnt" >/dev/null 2>&1 || true; }
    done
    for dir in "${dirs[@]}"; do
        [ ! -d "$dir" ] || "$KESTREL" serve --stop "$dir" >/dev/null 2>&1 || true
    done
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mkdir "$work/one" "$work/two" "$work/run"
mapfile -t addresses < <(python3 - "${#dirs[@]}" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in held:
    one.bind(("127.0.0.1", 0))
    print(f"127.0.0.1:{one.getsockname()[1]}")
PY
)
url=kestrel://$(IFS=, && echo "${addresses[*]:0:NODES}")/demo
if [ "$NODES" = 1 ]; then
    echo "== kestrel format, serve, mount twice"
    "$KESTREL" format "${dirs[0]}" --name demo
    joins=()
else
    echo "== kestrel cluster init, join, serve, mount twice"
    nodes=()
    for address in "${addresses[@]:0:NODES}"; do nodes+=(--node "$address"); done
    "$KESTREL" cluster init "${dirs[0]}" --name demo "${nodes[@]}" \
        --coordinator "${addresses[NODES]}" >/dev/null
    serving=$((NODES + 1))
    for ((node = 2; node <= serving; node++)); do
        "$KESTREL" cluster token "${dirs[0]}" | "$KESTREL" cluster join - "${dirs[node - 1]}" \
            --node "$node"
    done
    joins=(--coordinator "${dirs[NODES]}" --joins "${dirs[NODES + 1]}" "${addresses[NODES + 1]}")
fi
for ((node = 0; node < serving; node++)); do
    "$KESTREL" serve "${dirs[node]}" --listen "${addresses[node]}"
done
"$KESTREL" mount "$url" "$work/one"
"$KESTREL" mount "$url" "$work/two"
python3 "$ROOT/scripts/demo_cluster.py" "$TREE" "$work/one" "$work/two" --url "$url" \
    --kestrel "$KESTREL" --files "$FILES" \
    --processes "$PROCESSES" --dies "${dirs[NODES / 2]}" "${addresses[NODES / 2]}" "${joins[@]}"
echo "== kestrel status"
"$KESTREL" status "$url"
echo "== kestrel fsck, online, over the network"
"$KESTREL" fsck "$url"
echo "== kestrel umount, twice; the servers end"
"$KESTREL" umount "$work/one"
"$KESTREL" umount "$work/two"
volumes=()
for dir in "${dirs[@]}"; do [ ! -d "$dir" ] || volumes+=("$dir"); done
for dir in "${volumes[@]}"; do "$KESTREL" serve --stop "$dir"; done
echo "== kestrel fsck --data of the volume at rest"
"$KESTREL" fsck --data "${volumes[@]}"
echo "== all of it took $((SECONDS - begun)) s"
