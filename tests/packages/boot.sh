#!/bin/bash
# Run by deb.sh as a service of a container that systemd has booted and where the package is
# installed: the units, a line of /etc/fstab, an upgrade while all of it runs, the removal. $1 is
# the package to upgrade to.
set -u
passed=0 failed=0
check() {
    local text=$1 out
    shift
    if out=$("$@" 2>&1); then
        passed=$((passed + 1)) && echo "ok   booted: $text"
    else
        failed=$((failed + 1))
        printf '%s\nFAIL booted: %s\n' "$out" "$text"
    fi
}
fails() {
    ! "$@"
}
until_so() {
    local try
    for ((try = 0; try < 600; try++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    return 1
}
pid_of() {
    systemctl show -P MainPID "$1"
}
as_kestrel() {
    runuser -u kestrel -- "$@"
}
examples=/usr/share/doc/kestrel/examples
home=/var/lib/kestrel/serve

check "the user of the services is there" getent passwd kestrel
check "and its directory" test "$(stat -c '%U %a' "$home")" = "kestrel 750"
check "a volume of that user" as_kestrel kestrel format "$home/photos" --name photos
cp "$examples/serve.toml" /etc/kestrel/photos.toml
cp "$examples/mount.env" /etc/kestrel/photos.mount.env
cp "$examples/gateway.env" /etc/kestrel/photos.gateway.env
check "kestrel-serve@ starts" systemctl start kestrel-serve@photos
check "it says what it serves" bash -c \
    "systemctl show -P StatusText kestrel-serve@photos | grep -q 'serves at kestrel://'"
check "not as root" test "$(stat -c %U "/proc/$(pid_of kestrel-serve@photos)")" = kestrel
mkdir -p /mnt/photos /mnt/fstab
check "kestrel-mount@ starts" systemctl start kestrel-mount@photos
check "the mount is there by then" findmnt -t fuse.kestrel /mnt/photos
check "a file is written" bash -c 'echo text >/mnt/photos/file'
as_kestrel kestrel token create "$home/photos" --name s3 >/etc/kestrel/photos.s3-tokens
chown kestrel /etc/kestrel/photos.s3-tokens && chmod 600 /etc/kestrel/photos.s3-tokens
check "kestrel-gateway@ starts" systemctl start kestrel-gateway@photos
check "it answers, and lets nobody in without a key" bash -c \
    'exec 5<>/dev/tcp/127.0.0.1/9460 && printf "GET / HTTP/1.0\r\nHost: x\r\n\r\n" >&5 &&
     grep -q "AccessDenied" <&5'
check "its access log is there" until_so grep -q '"status":403' /var/log/kestrel/photos-s3.log

# Restarts.
check "the server restarts" systemctl restart kestrel-serve@photos
check "the mount has gone on" grep -qx text /mnt/photos/file
kill -9 "$(pid_of kestrel-mount@photos)"
check "a mount that is killed comes back" until_so bash -c \
    'systemctl is-active -q kestrel-mount@photos && grep -qx text /mnt/photos/file'

# systemd makes a mount unit of a line of /etc/fstab.
echo "kestrel://127.0.0.1/photos /mnt/fstab kestrel _netdev,nofail,wait=30s,attr-timeout=0 0 0" \
    >>/etc/fstab
systemctl daemon-reload
check "a line of /etc/fstab is a unit" systemctl start mnt-fstab.mount
check "it has the file" grep -qx text /mnt/fstab/file
check "it is one of those that come with the network" \
    test -e /run/systemd/generator/remote-fs.target.wants/mnt-fstab.mount

# An upgrade while all of it runs, with a file open on each mount.
exec 6<>/mnt/photos/open 7<>/mnt/fstab/open-too
processes() {
    pid_of kestrel-serve@photos && pid_of kestrel-mount@photos && pid_of kestrel-gateway@photos
}
before=$(processes)
check "an upgrade" dpkg -i "$1"
check "no process has been started again" test "$before" = "$(processes)"
check "open files are written" bash -c 'echo more >&6 && echo more >&7'
check "one mount has gone on" grep -qx text /mnt/photos/file
check "the other, too" grep -qx more /mnt/fstab/open
exec 6<&- 7<&-
check "a restart" systemctl restart kestrel-serve@photos
check "takes the new program" test \
    "$(readlink "/proc/$(pid_of kestrel-serve@photos)/exe")" = /usr/bin/kestrel
check "mounts have gone on" grep -qx text /mnt/photos/file

check "the mount unit of /etc/fstab stops" systemctl stop mnt-fstab.mount
check "kestrel-mount@ stops" systemctl stop kestrel-mount@photos
check "nothing is mounted" fails grep ' fuse.kestrel ' /proc/mounts
check "what was written is there" bash -c \
    'systemctl start kestrel-mount@photos && grep -qx more /mnt/photos/open-too'
check "a busy mount stops, too, when its user is done" bash -c \
    'exec 8</mnt/photos/file; (sleep 1; exec 8<&-) & exec 8<&-; systemctl stop kestrel-mount@photos'

# Removal: services end, purge leaves the volume and the token.
systemctl enable -q kestrel-serve@photos
check "removal" dpkg --remove kestrel
check "servers have ended" fails systemctl is-active -q kestrel-serve@photos
check "settings are there" test -e /etc/kestrel/photos.toml
check "purge" dpkg --purge kestrel
check "they are gone, with what enabled them" fails bash -c \
    'ls /etc/kestrel/*.toml /etc/kestrel/*.env /var/log/kestrel \
        /etc/systemd/system/*/kestrel-serve@photos.service'
check "the volume is there" test -e "$home/photos/kestrel.json"
check "its user, too" getent passwd kestrel
check "the token is there" test -s /etc/kestrel/photos.s3-tokens
check "nothing has failed" bash -c '! systemctl --failed --plain --no-legend | grep kestrel'
echo "$passed passed, $failed failed"
