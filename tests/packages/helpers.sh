# shellcheck shell=bash
# Sourced by packages.sh in a mount name space in which mount(8) and umount(8) find their helpers,
# and run by deb.sh within a chroot where the package is installed: VOLUME and MNT are $4 and $5.
# It prints its own summary.
volume=$4 mnt=$5
passed=0 failed=0
ok() {
    passed=$((passed + 1)) && echo "ok   $*"
}
check() {
    local text=$1 out
    shift
    if out=$("$@" 2>&1); then
        ok "$text"
    else
        failed=$((failed + 1))
        printf '%s\nFAIL %s\n' "$out" "$text"
    fi
}
fails() {
    ! "$@"
}
mounted() {
    findmnt -n -t fuse.kestrel "$mnt"
}
gone() {
    ! mounted
}
options_are() {
    findmnt -n -o VFS-OPTIONS "$mnt" | grep -qE "$1"
}

check "mount -t kestrel" mount -t kestrel "$volume" "$mnt" -o noexec
check "it is a mount" mounted
check "noexec; suid and dev, as mount(8) has them" options_are '^rw,noexec,'
check "a file is written" bash -c "echo text >'$mnt/file'"
check "mount -o remount,ro" mount -o remount,ro "$mnt"
check "then nothing can be written" fails bash -c "echo text >'$mnt/file' 2>/dev/null"
check "umount returns when the volume is free" umount "$mnt"
check "it is no mount any more" gone
check "flags are options: data-cache, log" mount -t kestrel "$volume" "$mnt" \
    -o "data-cache=8M,log=$volume/other.log,nosuid,nodev"
check "the log is that one" grep -q 'serves on' "$volume/other.log"
check "nosuid, nodev" options_are 'nosuid,nodev'
check "mount -o remount,ro" mount -o remount,ro "$mnt"
check "what is not named stays" options_are '^ro,nosuid,nodev'
check "the file is there" grep -qx text "$mnt/file"
check "a volume is mounted once" fails mount -t kestrel "$volume" "$mnt"
exec 8<"$mnt/file"
check "umount of a busy mount fails" fails umount "$mnt"
check "umount -l takes it away" umount -l "$mnt"
exec 8<&-
check "it is no mount any more" gone
check "an option that is none" fails mount -t kestrel "$volume" "$mnt" -o foregroun
check "a value that is none" fails mount -t kestrel "$volume" "$mnt" -o deadline=never

printf '%s %s kestrel noauto,_netdev,nofail,wait=10s,atime=relatime 0 0\n' "$volume" "$mnt" \
    >>/etc/fstab
for ((try = 0; try < 600; try++)); do
    mount "$mnt" >/dev/null 2>&1 && break
    sleep 0.1
done
check "a line of /etc/fstab" mounted
check "umount" umount "$mnt"
sed -i 's/noauto,//' /etc/fstab
check "mount -a" mount -a -t kestrel
check "it is a mount" mounted
check "mount -a again changes nothing" mount -a -t kestrel
check "one mount" test "$(findmnt -n -t fuse.kestrel "$mnt" | wc -l)" = 1
check "umount -f" umount -f "$mnt"
check "it is no mount any more" gone
sed -i "\|^$volume |d" /etc/fstab
printf '%s %s fuse.kestrel nosuid,nodev,noauto 0 0\n' "$volume" "$mnt" >>/etc/fstab
for ((try = 0; try < 600; try++)); do
    mount "$mnt" >/dev/null 2>&1 && break
    sleep 0.1
done
check "a line with the type fuse.kestrel" mounted
check "umount" umount "$mnt"
sed -i "\|^$volume |d" /etc/fstab
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
