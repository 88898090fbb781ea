#!/usr/bin/env bash
# The cases of the VFS shortcut (cases.py) on a served volume: a mount in shortcut mode, a plain
# mount of the same volume and a local directory must answer the same, and calls must cost the
# requests they should. Then on an embedded volume.
#
# ONLY: names of cases, with wildcards.
set -euo pipefail
export KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel

only=()
for name in ${ONLY:-}; do only+=(--only "$name"); done
export KESTREL WORK
cases() {
    python3 "$ROOT/tests/shortcut/cases.py" "$@" "${only[@]}"
}

volume=$WORK/volume
make_volume "$volume"
mount_volume "$volume" "$WORK/maker" --no-shortcut
mkdir "$WORK/local" "$WORK/local-too"
mount --bind "$WORK/local" "$WORK/local-too"
mkdir "$WORK/maker/of-shortcut" "$WORK/maker/of-plain"
for tree in "$WORK/maker/of-shortcut" "$WORK/maker/of-plain" "$WORK/local"; do
    cases prepare "$tree"
done
mount_volume "$volume" "$WORK/plain" --no-shortcut
mount_volume "$volume" "$WORK/shortcut"
needs_shortcut "$WORK/shortcut"
counted cases run --side "shortcut=$WORK/shortcut/of-shortcut=$WORK/maker/of-shortcut" \
    --side "plain=$WORK/plain/of-plain=$WORK/maker/of-plain" \
    --side "local=$WORK/local=$WORK/local-too"
check "unmounts" umount_volume "$WORK/shortcut"
check "unmounts the plain one" umount_volume "$WORK/plain"
close_and_check "$volume" "$WORK/maker"

# What concerns one mount only, on an embedded volume.
# shellcheck disable=SC2034 # lib.sh reads it
SERVING=
volume=$WORK/embedded
rm -rf "$WORK/local" && mkdir "$WORK/local"
make_volume "$volume"
mount_volume "$volume" "$WORK/mnt" --no-shortcut
cases prepare "$WORK/mnt"
cases prepare "$WORK/local"
umount_volume "$WORK/mnt"
mount_volume "$volume" "$WORK/mnt"
echo "embedded"
counted cases run --side "shortcut=$WORK/mnt" --side "local=$WORK/local"

# asked DIR: requests for attributes while 20 files are opened, looked at and read to their end,
# slowly.
asked() {
    PYTHONPATH="$ROOT/tests/shortcut" python3 - "$1" <<'END'
import os, sys, time

from harness import Side

mount = sys.argv[1]
side = Side("shortcut", mount, None)
for number in range(20):
    with open(f"{mount}/asked{number}", "wb") as file:
        file.write(b"x" * 5000)
before = side.requests()["getattr"]
for number in range(20):
    handle = os.open(f"{mount}/asked{number}", os.O_RDONLY)
    # Longer than some ticks of the kernel's clock.
    time.sleep(0.03)
    assert os.fstat(handle).st_size == 5000
    assert os.read(handle, 8192) == b"x" * 5000 and os.read(handle, 8192) == b""
    os.close(handle)
print(side.requests()["getattr"] - before)
END
}
embedded_asks() {
    [ "$(asked "$WORK/mnt")" = "$1" ]
}
check "attributes that only this kernel changes are not asked for again" embedded_asks 0
close_and_check "$volume" "$WORK/mnt"
mount_volume "$volume" "$WORK/mnt" --attr-timeout 0
check "but where that is wanted, for each stat and each read" embedded_asks 60
umount_volume "$WORK/mnt"
summary
