#!/usr/bin/env bash
# File handles (name_to_handle_at, open_by_handle_at): valid while the mount lives, after its caches
# were dropped, and after restarts of the mount and, of a served volume, of the server; ESTALE of
# what is gone. With more names than a search reads at once.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
handles() { counted python3 "$ROOT/tests/posix/handles.py" "$1" "$mnt/handles" "$WORK/state"; }

make_volume "$volume"
mount_volume "$volume" "$mnt"
mkdir "$mnt/handles" "$mnt/many"
# A search reads 16,384 names for one request.
(cd "$mnt/many" && seq -f 'n%.0f' "${NAMES:-17000}" | xargs touch)
handles make
echo "-- in the same mount"
handles open
echo "-- without the kernel's caches"
echo 2 >/proc/sys/vm/drop_caches
handles open
echo "-- after a restart of the mount"
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
handles open
echo "-- after a crash of everything"
kill_mount "$volume" "$mnt"
mount_volume "$volume" "$mnt"
handles open
echo "-- of directories that the kernel passed first"
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
handles pass
close_and_check "$volume" "$mnt"
summary
