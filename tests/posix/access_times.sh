#!/usr/bin/env bash
# Access times (docs/semantics.md, A2): each mode of a mount beside a local file system mounted
# alike, what they cost, what a volume says, remounts, read-only mounts, and mounts of one volume
# that hear of each other.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt other=$WORK/other local=$WORK/local
times() { counted python3 "$ROOT/tests/posix/access_times.py" "$@"; }
mode_of() { "$KESTREL" status "$mnt" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["access_times"])'; }
# is_mode MODE DIRECTORIES: what the mount says.
is_mode() { [ "$(mode_of)" = "{'directories': $2, 'mode': '$1'}" ] || { mode_of && false; }; }
# moved FILE: whether a read changes its access time.
moved() {
    touch -a -d '2001-01-01' "$1" && local before && before=$(stat -c %x "$1")
    cat "$1" >/dev/null && [ "$(stat -c %x "$1")" != "$before" ]
}
stays() { ! moved "$1"; }

make_volume "$volume"
mkdir "$local"
for mode in none relatime strict; do
    word=${mode/none/noatime} word=${word/strict/strictatime}
    echo "-- $mode, as -o $word and as --atime"
    mount -t tmpfs -o "$word" none "$local"
    mount_volume "$volume" "$mnt" -o "$word"
    times compare "$mnt/$mode" "$local"
    times rules "$mnt/rules" "$mode"
    umount_volume "$mnt"
    umount "$local"
    mount_volume "$volume" "$mnt" --atime "$mode"
    times count "$mnt/count" "$mode" "$KESTREL" stats "$mnt" --once --json
    umount_volume "$mnt"
done

echo "-- none by default, and what a remount makes of it"
mount_volume "$volume" "$mnt"
echo content >"$mnt/file"
mkdir "$mnt/dir"
check "none by default" is_mode none True
check "the kernel shows it" findmnt -n -O noatime "$mnt"
check "a read" stays "$mnt/file"
check "remount,strictatime" "$KESTREL" mount "$(findmnt -n -o SOURCE "$mnt")" "$mnt" \
    -o remount,strictatime,nodiratime
check "it is strict" is_mode strict False
check "a read moves" moved "$mnt/file"
remount() { "$KESTREL" mount "$(findmnt -n -o SOURCE "$mnt")" "$mnt" -o "remount,$1"; }
check "remount,ro" remount ro
before=$(stat -c %x "$mnt/file")
cat "$mnt/file" >/dev/null
check "a read of a read-only mount" [ "$(stat -c %x "$mnt/file")" = "$before" ]
check "remount,rw" remount rw
check "strict has stayed" is_mode strict False
check "remount,noatime,diratime" remount noatime,diratime
check "it is none" is_mode none True
check "a read after that" stays "$mnt/file"
check "remount,atime=relatime" remount atime=relatime
check "it is relatime" is_mode relatime True
check "a read after that moves" moved "$mnt/file"
refuses "remount,atime=always" 'unknown option' remount atime=always
before=$(stat -c %x "$mnt/file")
umount_volume "$mnt"

echo "-- a read-only mount; what was read last is kept"
mount_volume "$volume" "$mnt" --read-only --atime strict
check "the last read before the mount ended" [ "$(stat -c %x "$mnt/file")" = "$before" ]
cat "$mnt/file" >/dev/null
check "a read" [ "$(stat -c %x "$mnt/file")" = "$before" ]
umount_volume "$mnt"

if [ -n "$SERVING" ]; then
    echo "-- two mounts"
    mount_volume "$volume" "$mnt" --atime strict
    mount_volume "$volume" "$other" --atime relatime
    times follows "$mnt/file" "$other/file"
    umount_volume "$other"
    umount_volume "$mnt"
elif [ "${KESTREL_METADATA:-}" != postgres ]; then
    echo "-- what a volume says"
    check "config --atime" "$KESTREL" config "$volume" --atime relatime
    check "config shows it" bash \
        -c "'$KESTREL' config '$volume' --json | grep -q '\"atime\": \"relatime\"'"
    mount_volume "$volume" "$mnt"
    check "a mount follows" is_mode relatime True
    umount_volume "$mnt"
    mount_volume "$volume" "$mnt" -o noatime
    check "its own option goes before" is_mode none True
    umount_volume "$mnt"
    check "format --atime" "$KESTREL" format "$WORK/strict" --atime strict
    mount_volume "$WORK/strict" "$mnt"
    check "a mount of that follows" is_mode strict True
    umount_volume "$mnt"
fi
check "fsck --data finds nothing" fsck_volume "$volume" --data
summary
