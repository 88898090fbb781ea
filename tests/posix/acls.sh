#!/usr/bin/env bash
# POSIX ACLs through a mount, as docs/semantics.md says: call by call beside ext4 and XFS, at
# two mounts where a server serves the volume, by setfacl and getfacl, kept by cp, rsync and tar, in
# snapshots, and after dump and load.
#
# ACL_OPS: calls of a comparison (default 1500); ACL_SEEDS: comparisons (default 2).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt other=$WORK/mnt
acls=$ROOT/tests/posix/acls.py
ops=${ACL_OPS:-1500} seeds=${ACL_SEEDS:-2}
make_volume "$volume"
mount_volume "$volume" "$mnt"
if [ -n "$SERVING" ]; then
    other=$WORK/other
    mount_volume "$volume" "$other"
fi
mkdir "$mnt/rules"
counted python3 "$acls" rules "$mnt/rules" "$other/rules"
mkdir -p "$mnt/passed/"{1..20}
touch "$mnt/passed/"{1..20}/x
chown 1001 "$mnt/passed/"{1..20}
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
check "owners of directories that were only passed" python3 "$acls" passed "$mnt/passed"

for kind in ext4 xfs; do
    mkdir "$WORK/$kind"
    truncate -s 300M "$WORK/$kind.image"
    "mkfs.$kind" -q "$WORK/$kind.image"
    mount -o loop "$WORK/$kind.image" "$WORK/$kind"
done
for ((seed = 1; seed <= seeds; seed++)); do
    kind=ext4
    [ $((seed % 2)) = 1 ] || kind=xfs
    reference=$WORK/$kind/$seed
    mkdir "$mnt/compare$seed" "$reference"
    check "$ops calls beside $kind, seed $seed" \
        python3 "$acls" compare "$mnt/compare$seed" "$reference" --ops "$ops" --seed "$seed"
done

# What people use. The names of users and groups are numbers, so that no account is needed.
tree=$mnt/tree
of() { (cd "$1" && getfacl -R -n -p -P . | sort); }
same() { diff <(of "$1") <(of "$2"); }
mkdir -p "$tree/dir/sub"
setfacl -m u:1001:rwx,g:2001:rx,m::rx "$tree/dir"
setfacl -d -m u:1001:rwx,g:2001:rx,o::- "$tree/dir" "$tree/dir/sub"
echo text >"$tree/dir/file"
echo text >"$tree/dir/sub/file"
mkdir "$tree/dir/sub/deeper"
echo plain >"$tree/plain"
check "setfacl and getfacl" eval 'getfacl -n -p "$tree/dir/file" |
    grep -qx "user:1001:rwx	*#effective:rw-"'
check "ls shows that there is an ACL" eval 'ls -l "$tree/dir/file" | grep -q "^-rw-rw----+"'
check "ls shows that there is none" eval 'ls -l "$tree/plain" | grep -q "^-rw-r--r-- "'
of "$tree" >"$WORK/before"
check "cp -a" eval 'cp -a "$tree" "$mnt/cp" && same "$tree" "$mnt/cp"'
check "cp -a to a local file system" eval 'cp -a "$tree" "$WORK/cp" && same "$tree" "$WORK/cp"'
check "cp -a from there" eval 'cp -a "$WORK/cp" "$mnt/back" && same "$tree" "$mnt/back"'
check "rsync -aA" eval 'rsync -aA "$tree/" "$mnt/rsync" && same "$tree" "$mnt/rsync" &&
    [ -z "$(rsync -aAi "$tree/" "$mnt/rsync")" ]'
check "tar --acls" eval 'mkdir "$mnt/tar" && tar -C "$tree" --acls -cf - . |
    tar -C "$mnt/tar" --acls -xpf - && same "$tree" "$mnt/tar"'
check "setfacl --restore" eval '(cd "$tree" && getfacl -R -n . >"$WORK/acls" &&
    setfacl -R -b . && [ "$(getfacl -R -n . | grep -c :1001:)" = 0 ] &&
    setfacl --restore="$WORK/acls") && of "$tree" | diff "$WORK/before" -'

if [ -z "$LOCAL" ]; then
    mkdir "$mnt/.snap/acls"
    setfacl -R -b "$tree"
    past=$mnt/.snap/acls/tree
    check "a snapshot shows the ACLs of then" eval 'of "$past" | diff "$WORK/before" -'
    check "and enforces them" eval 'setpriv --reuid 1001 --regid 1001 --clear-groups \
        cat "$past/dir/sub/file" && ! setpriv --reuid 1009 --regid 1009 --clear-groups \
        cat "$past/dir/sub/file"'
    setfacl --restore="$WORK/acls" 2>/dev/null || (cd "$tree" && setfacl --restore="$WORK/acls")
fi
if [ -z "$LOCAL" ] && [ -z "$SERVING" ]; then
    check "a mount of the snapshot enforces them, too" eval '
        umount_volume "$mnt" && mount_volume "$volume@acls" "$mnt" &&
        of "$tree" | diff "$WORK/before" - &&
        setpriv --reuid 1001 --regid 1001 --clear-groups cat "$tree/dir/sub/file" &&
        ! setpriv --reuid 1009 --regid 1009 --clear-groups cat "$tree/dir/sub/file"'
    umount_volume "$mnt"
    check "dump and load" eval '"$KESTREL" dump "$volume" "$WORK/dump" &&
        "$KESTREL" load "$WORK/dump" "$WORK/loaded" --objects "$volume/objects"'
    mount_volume "$WORK/loaded" "$WORK/reloaded" --read-only
    check "a loaded dump has the ACLs" eval 'of "$WORK/reloaded/tree" | diff "$WORK/before" -'
    umount_volume "$WORK/reloaded"
    mount_volume "$volume" "$mnt"
fi
[ "$other" = "$mnt" ] || umount_volume "$other"
close_and_check "$volume" "$mnt"
summary
