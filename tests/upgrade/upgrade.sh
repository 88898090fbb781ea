#!/usr/bin/env bash
# Supervised mounts: `kestrel upgrade` replaces the process behind a mount again and again while
# programs use it, and none of their calls fails (load.py). Programs that cannot take a mount over
# leave it as it was, or give it back. What ends a mount: SIGTERM, umount, a killed supervisor and
# then a killed process. With KESTREL_SERVE=1 of a volume that a server serves.
#
# UPGRADES: how often (default 4).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

UPGRADES=${UPGRADES:-4}
volume=$WORK/volume mnt=$WORK/mnt stop=$WORK/stop
upgrade() { timeout 150 "$KESTREL" upgrade "$@"; }

# status_of FIELD: of the mount, a number.
status_of() {
    "$KESTREL" status "$mnt" --json | sed -n "s/.*\"$1\": *\\([0-9][0-9]*\\).*/\\1/p" | head -n 1
}

make_volume "$volume"

echo "-- what cannot be supervised"
mkdir "$mnt"
place=$volume
[ -z "$SERVING" ] || place=$(serve_url "$volume")
refuses "a mount that is to outlive a crash" "supervised=upgrade" \
    "$KESTREL" mount "$place" "$mnt" --supervised
refuses "rings" "leave one of the two out" \
    "$KESTREL" mount "$place" "$mnt" --supervised=upgrade --transport uring
refuses "auto_unmount" "leave one of the two out" \
    "$KESTREL" mount "$place" "$mnt" --supervised=upgrade -o auto_unmount

echo "-- a mount without a supervisor"
mount_volume "$volume" "$mnt"
refuses "is not upgraded" "supervised=upgrade" upgrade "$mnt"
umount_volume "$mnt"

mount_volume "$volume" "$mnt" --supervised=upgrade
check "the mount has a supervisor" prints '"generation": 0' "$KESTREL" status "$mnt" --json

echo "-- $UPGRADES upgrades under load"
mkdir "$mnt/load"
python3 "$ROOT/tests/upgrade/load.py" "$mnt/load" "$stop" "${SEED:-1}" >"$WORK/load.out" 2>&1 &
load=$!
sleep 2
for ((number = 1; number <= UPGRADES; number++)); do
    cp "$KESTREL" "$WORK/kestrel-$number"
    before=$(status_of pid)
    check "upgrade $number" upgrade --program "$WORK/kestrel-$number" "$mnt"
    rm -f "$WORK/kestrel-$((number - 1))"
    after=$(status_of pid)
    [ "$before" != "$after" ] || fail "the same process serves"
    [ "$(readlink "/proc/$after/exe")" = "$WORK/kestrel-$number" ] ||
        fail "$(readlink "/proc/$after/exe") serves"
    sleep "$(awk "BEGIN { print 0.2 * ($number % 4) }")"
done

echo "-- programs that cannot take over"
serving=$(status_of pid)
refuses "no kestrel" "no kestrel that takes mounts over" upgrade --program /bin/true "$mnt"
refuses "a file that is no program" "cannot take the mount over" \
    upgrade --program "$ROOT/README.md" "$mnt"
if [ "$(status_of pid)" = "$serving" ]; then
    ok "the process before serves"
else
    fail "another process serves"
fi
cat >"$WORK/broken" <<'PROGRAM'
#!/bin/sh
[ "$1" = takes-over ] && echo '{"takes_over": [1]}' && exit 0
exit 3
PROGRAM
chmod +x "$WORK/broken"
refuses "a program that fails" "has not taken the mount over.*goes on" \
    upgrade --program "$WORK/broken" "$mnt"
serving=$(status_of pid)
if [ "$(readlink "/proc/$serving/exe" | sed 's/ (deleted)//')" = "$WORK/kestrel-$UPGRADES" ]; then
    ok "the program before serves again"
else
    fail "$(readlink "/proc/$serving/exe") serves"
fi
check "the program that runs the command" upgrade "$mnt"
[ "$(readlink "/proc/$(status_of pid)/exe")" = "$(readlink -f "$KESTREL")" ] ||
    fail "another program serves"
sleep 1

touch "$stop"
wait "$load" || true
counted cat "$WORK/load.out"

echo "-- what ends a mount"
supervisor=$(awk '/^PPid:/ { print $2 }' "/proc/$(status_of pid)/status")
kill -TERM "$supervisor"
while alive "$supervisor"; do sleep 0.01; done
if grep -qs " $mnt " /proc/self/mounts; then
    fail "still mounted after SIGTERM of the supervisor"
else
    ok "SIGTERM of the supervisor unmounts"
fi
check "fsck --data finds nothing" fsck_volume "$volume" --data

mount_volume "$volume" "$mnt" --supervised=upgrade
serving=$(status_of pid)
supervisor=$(awk '/^PPid:/ { print $2 }' "/proc/$serving/status")
echo written >"$mnt/written"
kill -9 "$supervisor"
while alive "$supervisor"; do sleep 0.01; done
check "without its supervisor a mount goes on" grep -q written "$mnt/written"
refuses "and is not upgraded" "supervisor of this mount was killed" upgrade "$mnt"
umount_volume "$mnt"

mount_volume "$volume" "$mnt" --supervised=upgrade
serving=$(status_of pid)
supervisor=$(awk '/^PPid:/ { print $2 }' "/proc/$serving/status")
kill -9 "$serving"
while alive "$supervisor"; do sleep 0.01; done
refuses "after a crash the mount point is dead" "not connected" ls "$mnt"
umount -l "$mnt"
mount_volume "$volume" "$mnt"
check "what was stored is there" grep -q written "$mnt/written"
close_and_check "$volume" "$mnt"
summary
