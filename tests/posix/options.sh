#!/usr/bin/env bash
# Options of mount(8) on a mount that is there (-o remount), and those it knows for all file
# systems.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"

# options_are PATTERN: what the kernel says of the mount.
options_are() {
    findmnt -n -o VFS-OPTIONS,FS-OPTIONS "$mnt" | grep -qE "$1"
}

source_of() {
    findmnt -n -o SOURCE "$mnt"
}

# remounts WAY OPTIONS: by this program itself; by mount(8), which finds it in a directory of the
# system where it has been put for this one call (in a mount name space of its own).
remounts() {
    case $1 in
    kestrel) "$KESTREL" mount "$(source_of)" "$mnt" -o "remount,$2" ;;
    mount) in_system_path mount -o "remount,$2" "$mnt" ;;
    esac
}

# in_system_path COMMAND…
in_system_path() {
    # shellcheck disable=SC2016
    unshare -m --propagation slave bash \
        -c 'mount -t tmpfs none /usr/local/sbin && cp "$0" /usr/local/sbin/kestrel && "$@"' \
        "$KESTREL" "$@"
}

mount_volume "$volume" "$mnt"
echo before >"$mnt/file"
for way in kestrel mount; do
    check "$way: remount,ro" remounts "$way" ro
    check "$way: it is read-only" options_are '(^|[ ,])ro,'
    refuses "$way: a write" 'read-only' bash -c "echo x >'$mnt/new'"
    check "$way: status says so" bash \
        -c "'$KESTREL' status '$mnt' --json | grep -q '\"read_only\": *true'"
    check "$way: reads go on" grep -q . "$mnt/file"
    check "$way: remount,rw" remounts "$way" rw
    check "$way: a write" bash -c "echo $way >'$mnt/file' && grep -q $way '$mnt/file'"
    check "$way: status says so" bash \
        -c "'$KESTREL' status '$mnt' --json | grep -q '\"read_only\": *false'"
done
# These are of the mount, not of the file system: in a name space of its own mount(8) would change
# its copy.
check "nodiratime, noexec" remounts kestrel nodiratime,noexec,acl
check "they are there" options_are 'noexec.*nodiratime|nodiratime.*noexec'
check "what was not named stays" options_are 'nosuid,nodev'
check "exec, diratime" remounts kestrel exec,diratime
check "they are gone" options_are '^rw,nosuid,nodev,noatime '
exec 9>>"$mnt/file"
refuses "remount,ro while a file is open for writing" 'open for writing' remounts kestrel ro
exec 9>&-
refuses "remount,noacl" 'noacl' remounts kestrel noacl
refuses "remount,max_read" 'max_read' remounts kestrel max_read=65536
refuses "another volume" 'is mounted there' "$KESTREL" mount "$WORK" "$mnt" -o remount,ro
close_and_check "$volume" "$mnt"

# A mount that began read-only stores what is written once it is not.
mount_volume "$volume" "$mnt" --read-only
refuses "a write to a read-only mount" 'read-only' bash -c "echo x >'$mnt/new'"
check "remount,rw of a mount that began read-only" remounts kestrel rw
exec 9>"$mnt/kept"
echo bytes >&9
# Statement D2 of docs/semantics.md.
sleep 3
kill_mount "$volume" "$mnt"
exec 9>&-
mount_volume "$volume" "$mnt"
check "what was written is there" grep -q bytes "$mnt/kept"
close_and_check "$volume" "$mnt"
summary
