#!/usr/bin/env bash
# `kestrel csi`: csi-sanity with real mounts of a served volume; what containers get of it
# (csi_calls.py), over kill -9 of the driver; manifests and chart.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$ROOT/tests/access
export PYTHONDONTWRITEBYTECODE=1
TOOLS=${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}

if ! "$ROOT/scripts/install-deps.sh" --csi >"$WORK/tools.out" 2>&1; then
    tail -n 5 "$WORK/tools.out"
    echo "skipped: csi-sanity can't be built on this machine: nothing was tested"
    summary
    exit
fi

"$KESTREL" format "$WORK/volume" --name photos >/dev/null
port=$(python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
"$KESTREL" serve "$WORK/volume" --listen "127.0.0.1:$port" >"$WORK/serve.out"
url=kestrel://127.0.0.1:$port/photos
socket=$WORK/csi.sock
export KESTREL_RUNTIME_DIR=$WORK/run

DRIVER=
start_driver() {
    "$KESTREL" csi --endpoint "unix://$socket" --node-id node-17 --url "$url" \
        --state-dir "$WORK/state" >>"$WORK/csi.log" 2>&1 &
    DRIVER=$!
    until [ -S "$socket" ] || ! alive "$DRIVER"; do sleep 0.02; done
}
end() {
    [ -z "$DRIVER" ] || kill -9 "$DRIVER" 2>/dev/null
    "$KESTREL" serve --stop "$WORK/volume" >/dev/null 2>&1
}
# Mounts go first: they would wait for the server.
AFTER_ALL=end
start_driver
check "the driver serves" test -S "$socket"
check "its socket is the superuser's alone" test "$(stat -c %a "$socket")" = 600

# sanity: ends with the line of ginkgo: "… | N Passed | M Failed | …".
sanity() {
    "$TOOLS/bin/csi-sanity" --csi.endpoint "unix://$socket" --csi.mountdir "$WORK/sanity/pod" \
        --csi.stagingdir "$WORK/sanity/stage" --ginkgo.no-color >"$WORK/sanity.out" 2>&1 || {
        grep -A 12 '\[FAILED\]\|\[FAIL\]\|\[PANIC' "$WORK/sanity.out" | head -n 120
        tail -n 30 "$WORK/sanity.out"
    }
    sed -nE 's/.* ([0-9]+) Passed \| ([0-9]+) Failed.*/\1 passed, \2 failed/p' \
        "$WORK/sanity.out" | tail -n 1
}
mkdir "$WORK/sanity"
counted sanity
check "it has left no mount but the driver's own" test "$(work_mounts | wc -l)" = 1

# A client of the spec's file.
venv=$ROOT/target/csi-venv
if ! "$venv/bin/python3" -c 'import grpc_tools, grpc, yaml' 2>/dev/null; then
    echo "installing grpcio and PyYAML into target/csi-venv"
    { python3 -m venv "$venv" && "$venv/bin/pip" install -q grpcio-tools PyYAML; } \
        >"$WORK/pip.out" 2>&1 || true
fi
mkdir "$WORK/stubs" "$WORK/pods" "$WORK/staged"
if "$venv/bin/python3" -m grpc_tools.protoc -I "$ROOT/crates/access/csi/proto" \
    --python_out "$WORK/stubs" --grpc_python_out "$WORK/stubs" csi.proto 2>"$WORK/pip.out"; then
    calls() {
        "$venv/bin/python3" "$here/csi_calls.py" "$WORK/stubs" "$socket" "$WORK" "$url" "$1"
    }
    counted calls before
    kill -9 "$DRIVER"
    wait "$DRIVER" 2>/dev/null || true
    start_driver
    counted calls after
    counted "$venv/bin/python3" "$here/csi_manifests.py" "$KESTREL" "$ROOT/deploy/kubernetes"
else
    tail -n 3 "$WORK/pip.out"
    echo "no grpcio to be had here: what containers get, and manifests, were not tested"
fi
check "no panic" bash -c "! grep panicked '$WORK/csi.log'"
kill "$DRIVER"
wait "$DRIVER" 2>/dev/null || true
for mount in $(work_mounts); do check "unmounts" umount_volume "$mount"; done
"$KESTREL" serve --stop "$WORK/volume" >/dev/null
check "fsck --data finds nothing" fsck_volume "$WORK/volume" --data
summary
