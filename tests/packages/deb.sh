#!/usr/bin/env bash
# The Debian package in a clean Debian 12 (debootstrap): installation, manual pages, `mount -t
# kestrel`, /etc/fstab, an upgrade while a volume is mounted, removal, purge; then the units under a
# systemd that boots in a container (systemd-nspawn). The packages are built twice with the same
# bytes.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$ROOT/tests/packages
cd "$ROOT"
root=$WORK/root
# Else that of the commit, which may be another one by the second build.
export SOURCE_DATE_EPOCH=1796000000

for tool in debootstrap dpkg-shlibdeps; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is missing: run" \
        "scripts/install-deps.sh --test" && summary && exit; }
done
mirror=http://deb.debian.org/debian
if ! debootstrap --variant=minbase --include=man-db,systemd,systemd-sysv bookworm "$root" \
    "$mirror" >"$WORK/debootstrap.out" 2>&1; then
    tail -n 5 "$WORK/debootstrap.out"
    echo "skipped: no clean Debian to be had from $mirror: nothing was tested"
    summary
    exit
fi

# The packages; those of the second revision are what is upgraded to.
deb() {
    scripts/deb.sh --binary "$KESTREL" --out "$WORK/$1" "${@:2}"
}
check "packages are built" deb one
tail -n 3 "$WORK/check.out"
check "again" deb again
check "the same binary gives the same bytes" diff -r "$WORK/one" "$WORK/again"
check "of another revision" deb two --revision 2 --compress none
if command -v lintian >/dev/null; then
    # What is no fault here: no bug asked for the package, and a stop at removal is meant.
    no_faults="initial-upload-closes-no-bugs,maintainer-script-calls-systemctl"
    # The CI build has none of its own.
    no_faults+=",debug-file-with-no-debug-symbols"
    check "lintian finds nothing" lintian --no-cfg --allow-root --fail-on warning,error \
        --suppress-tags "$no_faults" "$WORK"/one/*.deb
else
    echo "no lintian here"
fi
cp "$WORK"/one/kestrel_*.deb "$root/one.deb"
cp "$WORK"/two/kestrel_*.deb "$root/two.deb"
cp "$WORK"/one/kestrel-dbgsym_*.deb "$root/dbgsym.deb"
cp "$here/helpers.sh" "$here/boot.sh" "$root/"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"

in_root() {
    chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
# What is on the disk, but for dpkg's own records.
tree() {
    (cd "$root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/apt \
        -o -path ./var/cache -o -path ./var/log/apt -o -path ./var/log/dpkg.log \
        -o -path ./var/log/alternatives.log -o -path ./proc -o -path ./sys -o -path ./dev \
        -o -path ./tmp -o -path ./run -o -path ./vol -o -path ./mnt \) -prune -o -print |
        grep -v -- '^\./etc/.*-$' | LC_ALL=C sort)
}
mkdir -p "$root/mnt/vol"
tree >"$WORK/before"
cp "$root/etc/passwd" "$WORK/passwd"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t proc none "$root/proc"
mount -t sysfs none "$root/sys"
let_go() {
    local dir
    for dir in "$root/sys" "$root/proc" "$root/dev"; do umount -R -l "$dir" 2>/dev/null; done
}
AT_END=let_go

check "it is installed" in_root apt-get install -y -qq --no-install-recommends /one.deb
cp "$WORK/check.out" "$WORK/apt.out"
check "and nothing else" test "$(grep -c '^Setting up' "$WORK/apt.out")" = 1
check "its symbols" in_root dpkg -i /dbgsym.deb
check "they are those of the program" bash -c \
    "[ -e '$root/usr/lib/debug/.build-id/'\"\$(readelf -n '$root/usr/bin/kestrel' |
        sed -n 's/.*Build ID: \(..\)\(.*\)/\1\/\2.debug/p')\" ]"
check "and go" in_root dpkg --purge kestrel-dbgsym
check "kestrel --version" prints '^kestrel [0-9]' in_root kestrel --version
check "man kestrel-mount" prints 'kestrel-mount - Mount a volume' in_root man kestrel-mount
check "man mount.kestrel" prints '_netdev' in_root man mount.kestrel
check "man umount.fuse.kestrel" prints '_netdev' in_root man umount.fuse.kestrel
check "whatis" prints 'kestrel-umount \(1\)' in_root man -f kestrel-umount
check "a volume" in_root kestrel format /vol
cp "$root/etc/fstab" "$WORK/fstab" 2>/dev/null || : >"$WORK/fstab"
counted in_root bash -u /helpers.sh - - - /vol /mnt/vol

# Upgrade and removal with a volume mounted and files open.
check "mount -t kestrel" in_root mount -t kestrel /vol /mnt/vol -o allow_other
exec 8>"$root/mnt/vol/open"
pid=$(volume_pid "$root/vol")
check "an upgrade while it is mounted" in_root dpkg -i /two.deb
check "the version is the new one" prints '^Version: .*-2$' in_root dpkg -s kestrel
echo line >&8
check "the mount goes on: an open file" grep -qx line "$root/mnt/vol/open"
check "the mount goes on: a new one" bash -c "echo text >'$root/mnt/vol/new'"
check "by the same process" test "$(volume_pid "$root/vol")" = "$pid"
exec 8>&-
check "umount" in_root umount /mnt/vol
check "mount by the new program" in_root mount -t kestrel /vol /mnt/vol
check "what was written is there" grep -qx text "$root/mnt/vol/new"
pid=$(volume_pid "$root/vol")
check "installing it again" in_root dpkg -i /two.deb
postinst=/var/lib/dpkg/info/kestrel.postinst
check "a script that runs twice" in_root sh -c "$postinst configure 1 && $postinst configure"
check "removal while it is mounted" in_root dpkg --remove kestrel
check "the mount goes on" grep -qx text "$root/mnt/vol/new"
check "umount without the helper" in_root umount /mnt/vol
while alive "$pid"; do sleep 0.05; done
check "purge" in_root dpkg --purge kestrel
let_go
tree >"$WORK/after"
check "a purge leaves nothing" diff "$WORK/before" "$WORK/after"
check "no user" diff "$WORK/passwd" "$root/etc/passwd"
check "the volume is there, and whole" fsck_volume "$root/vol" --data

# The units, under a systemd of their own.
if ! command -v systemd-nspawn >/dev/null; then
    echo "no systemd-nspawn here: the units are not started"
    summary
    exit
fi
rm -f "$root/usr/sbin/policy-rc.d"
check "it is installed again" in_root dpkg -i /one.deb
cat >"$root/etc/systemd/system/kestrel-boot.service" <<'END'
[Unit]
After=multi-user.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/bash /boot.sh /two.deb
StandardOutput=file:/boot.out
StandardError=file:/boot.out
TimeoutStartSec=300
END
wants=$root/etc/systemd/system/multi-user.target.wants
mkdir -p "$wants"
ln -s ../kestrel-boot.service "$wants/kestrel-boot.service"
# A network of its own: the ports are those of the examples.
timeout 400 systemd-nspawn -q -D "$root" --boot --register=no --keep-unit --private-network \
    --bind=/dev/fuse --console=pipe >"$WORK/boot.out" 2>&1 </dev/null || true
if [ -s "$root/boot.out" ]; then
    counted cat "$root/boot.out"
else
    tail -n 20 "$WORK/boot.out"
    echo "no systemd boots in a container here: the units are not started"
fi
summary
