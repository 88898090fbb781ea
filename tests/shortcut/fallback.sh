#!/usr/bin/env bash
# Where walk hints cannot be had, the mount serves plain lookups, and status and log say why: no
# privileges, no kernel types, no tracepoint, switched off. With fentry in place of the tracepoint
# the shortcut works.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

mnt=$WORK/mnt
mkdir -p "$mnt"

# works DIR: a deep walk, right and by absent names.
works() {
    local dir=$1/x/y/z
    mkdir -p "$dir" && echo deep >"$dir/file" && [ "$(cat "$dir/file")" = deep ] &&
        mv "$1/x" "$1/w" &&
        [ "$(cat "$1/w/y/z/file")" = deep ] && [ ! -e "$dir/file" ] &&
        ! cat "$1/absent/../w/y/z/file" 2>/dev/null &&
        ln -s w "$1/link" && [ "$(cat "$1/link/y/z/file")" = deep ]
}

# says_why VOLUME DIR PATTERN: it is a plain mount, and tells the reason.
says_why() {
    local volume=$1 dir=$2 pattern=$3 why
    [ "$(status_field "$dir" shortcut)" = False ] || { echo "it has the shortcut" && return 1; }
    why=$(status_field "$dir" shortcut_why)
    echo "why: $why"
    grep -qiE -- "$pattern" <<<"$why" && grep -qF -- "$why" "$volume/mount.log" &&
        grep -qF -- "$why" <<<"$("$KESTREL" status "$dir")"
}

# plain TEXT PATTERN COMMAND…: mounts with the command before `kestrel mount`, and looks.
plain() {
    local text=$1 pattern=$2 volume=$WORK/volume-$((PASSED + FAILED))
    shift 2
    make_volume "$volume"
    check "$text: mounts" timeout 60 "${@:-env}" "$KESTREL" mount "$volume" "$mnt" --allow-other
    check "$text: says why it is plain" says_why "$volume" "$mnt" "$pattern"
    cat "$WORK/check.out"
    check "$text: works" works "$mnt"
    check "$text: unmounts" umount_volume "$mnt"
    check "$text: fsck" fsck_volume "$volume" --data
}

volume=$WORK/off
make_volume "$volume"
mount_volume "$volume" "$mnt" --no-shortcut
check "--no-shortcut: says so" says_why "$volume" "$mnt" 'no-shortcut|switched off'
check "--no-shortcut: works" works "$mnt"
close_and_check "$volume" "$mnt"

plain "no tracepoint and no fentry" 'tracepoint|KESTREL_WALK_HINTS' env KESTREL_WALK_HINTS=none

# Users that may not load programs into the kernel: an ordinary user with a mount that fusermount3
# makes, in a mount namespace of its own, where users may open /dev/fuse.
as_user() {
    # shellcheck disable=SC2016 # expanded by the inner shells
    unshare --mount bash -c '
        set -e
        mknod "$WORK/fuse" c 10 229 && chmod 666 "$WORK/fuse" && mount --bind "$WORK/fuse" /dev/fuse
        mkdir -m 777 "$WORK/of-user" && cp "$KESTREL" "$WORK/of-user/kestrel"
        exec setpriv --reuid nobody --regid nogroup --clear-groups env "HOME=$WORK/of-user" bash -ec "
            cd $WORK/of-user && mkdir mnt
            ./kestrel format volume >/dev/null
            ./kestrel mount volume mnt >/dev/null
            trap \"./kestrel umount mnt\" EXIT
            ./kestrel status mnt | grep -i shortcut
            ./kestrel status mnt --json | grep -q \"\\\"shortcut\\\": *false\"
            grep -qi \"CAP_BPF\\|privilege\" volume/mount.log
            works mnt"'
}
export -f works
export WORK KESTREL
check "an ordinary user: plain, says why, and works" as_user
cat "$WORK/check.out"
check "an ordinary user: fsck" fsck_volume "$WORK/of-user/volume" --data

# The kernel does not tell its types: hidden from the mount in a mount namespace of its own, so
# everything happens in there.
# shellcheck disable=SC2016 # expanded by the inner shell
hidden() {
    unshare --mount bash -c '
        set -e
        mount --bind /dev/null /sys/kernel/btf/vmlinux
        "$KESTREL" mount "$1" "$2" --allow-other >/dev/null
        trap "\"$KESTREL\" umount \"$2\" >/dev/null" EXIT
        "$KESTREL" status "$2"
        "$KESTREL" status "$2" --json | grep -q "\"shortcut\": *false"
        works "$2"' hidden "$1" "$mnt"
}
make_volume "$WORK/no-btf"
check "no kernel types: plain, and works" hidden "$WORK/no-btf"
grep -i shortcut "$WORK/check.out" || true
check "no kernel types: log says why" grep -qi 'btf\|types' "$WORK/no-btf/mount.log"
check "no kernel types: fsck" fsck_volume "$WORK/no-btf" --data

# The other way to attach.
volume=$WORK/fentry
make_volume "$volume"
KESTREL_WALK_HINTS=fentry mount_volume "$volume" "$mnt"
if [ "$(status_field "$mnt" shortcut)" = True ]; then
    check "fentry: works" works "$mnt"
    cold() {
        mkdir -p "$mnt/p/q/r/s"
        echo 1 >"$mnt/p/q/r/s/file"
        umount_volume "$mnt"
        KESTREL_WALK_HINTS=fentry mount_volume "$volume" "$mnt"
        local before after
        before=$(requests "$mnt")
        cat "$mnt/p/q/r/s/file"
        after=$(requests "$mnt")
        echo "$((after - before)) requests"
        [ $((after - before)) -le 3 ] # one, and what reading and closing it takes
    }
    requests() { "$KESTREL" stats --once --json "$1" |
        sed -n 's/.*"metadata_requests_total": *\([0-9]*\).*/\1/p'; }
    check "fentry: a deep walk is one request" cold
    cat "$WORK/check.out"
else
    echo "fentry cannot be had: $(status_field "$mnt" shortcut_why)"
    check "fentry: works all the same" works "$mnt"
fi
close_and_check "$volume" "$mnt"
summary
