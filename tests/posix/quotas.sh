#!/usr/bin/env bash
# Quotas through a mount, as docs/semantics.md says (statements Q1 to Q9): every call at a limit,
# at an edge, users and groups, df, the verbs, after kill -9, and compared with project quotas of
# XFS where the kernel has them.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
quotas=$ROOT/tests/posix/quotas.py
make_volume "$volume"
mount_volume "$volume" "$mnt"
chmod 777 "$mnt"
mkdir -m 777 "$mnt/a" "$mnt/outside"

quota() {
    "$KESTREL" quota "$@"
}

# append FILE: a byte more, by a program that looks at what close says (echo in a shell does not).
append() {
    dd if=/dev/zero of="$1" bs=1 count=1 oflag=append conv=notrunc status=none
}

# Limits and edges.
check "a quota is set" quota set "$mnt/a" --size 1M --files 8
check "every call at the limits" python3 "$quotas" limits "$mnt/a" "$mnt/outside"
check "every call at the edge" python3 "$quotas" edge "$mnt/a" "$mnt/outside"
check "df shows it" prints '^ *1024 +8$' bash -c "df -k --output=size,itotal '$mnt/a' | tail -n 1"
check "df elsewhere does not" bash -c "[ \"\$(df -k --output=size '$mnt/outside' | tail -n 1)\" \
    -gt 1024 ]"

# Nested: all of them count, and df shows the one that ends first.
mkdir -p "$mnt/a/b/c"
check "a nested quota" quota set "$mnt/a/b" --size 64K
head -c 65536 /dev/zero >"$mnt/a/b/c/file"
refuses "the inner one" 'quota exceeded' append "$mnt/a/b/c/file"
check "the outer one goes on" bash -c "head -c 65536 /dev/zero >'$mnt/a/file'"
check "both count it" prints '128 KiB' quota get "$mnt/a"
check "df below both" prints '^ *64$' bash -c "df -k --output=size '$mnt/a/b/c' | tail -n 1"
check "the inner one is removed" quota remove "$mnt/a/b"
check "and limits no more" append "$mnt/a/b/c/file"
refuses "get of none" 'no quota' quota get "$mnt/a/b"

# Users and groups; root is limited by a directory as everybody is.
as() {
    setpriv --reuid="$1" --regid="$2" --clear-groups "${@:3}"
}
check "of a user" quota set "$mnt" --user 4001 --files 2
check "of a group" quota set "$mnt" --group 4100 --size 10K
check "two files" as 4001 4100 touch "$mnt/outside/u1" "$mnt/u2"
refuses "a third" 'quota exceeded' as 4001 4100 touch "$mnt/u3"
refuses "the group's bytes" 'quota exceeded' as 4002 4100 bash -c "head -c 20000 /dev/zero \
    >'$mnt/g1'"
check "they are listed" prints '^user 4001' quota list "$mnt"
refuses "anybody else does not handle them" 'only root|superuser' \
    as 4001 4100 "$KESTREL" quota set "$mnt/a" --size 2M
rm -f "$mnt/outside/u1" "$mnt/u2" "$mnt/g1"
quota remove "$mnt" --user 4001
quota remove "$mnt" --group 4100

# The volume: df of its root, and another errno.
check "of the volume" quota set "$mnt" --volume --size 1M
refuses "no space" 'no space left' bash -c "head -c 2000000 /dev/zero >'$mnt/outside/large'"
check "df of the root" prints '^ *1024$' bash -c "df -k --output=size '$mnt' | tail -n 1"
rm -f "$mnt/outside/large"
quota remove "$mnt" --volume

# Soft limits.
check "a soft limit" quota set "$mnt/a" --soft-files 1 --grace 1h
touch "$mnt/a/soft"
check "its time is told" prints '"files": "20' quota get "$mnt/a" --json
quota set "$mnt/a" --grace 0s --soft-files 1
sleep 1.1
refuses "after the grace period" 'quota exceeded' touch "$mnt/a/softer"
check "no soft limit" quota set "$mnt/a" --soft-files none
check "below what is used" quota set "$mnt/a" --size 1K
refuses "nothing grows" 'quota exceeded' append "$mnt/a/file"
check "everything shrinks" bash -c ">'$mnt/a/file'"

# What is refused, and why.
refuses "no limit" 'name a limit' quota set "$mnt/a"
refuses "a negative one" 'unexpected argument|not a size|not a number' \
    quota set "$mnt/a" --size -1
refuses "one that overflows" 'at most|too large' quota set "$mnt/a" --size 16000P
refuses "an unknown user" 'no user' quota set "$mnt" --user no-such-user --size 1
refuses "a file" 'not a directory' quota set "$mnt/a/file" --size 1
refuses "a clone into it" 'quota|cluster has no clones' \
    "$KESTREL" clone "$mnt/outside" "$mnt/a/clone"

# Exact after kill -9.
quota set "$mnt/a" --size 300K --files 60
for cycle in 1 2 3; do
    for writer in 1 2 3; do
        python3 "$quotas" fill "$mnt/a" 20 >"$WORK/fill.$writer" 2>&1 &
    done
    sleep 0.$((cycle * 3))
    kill_mount "$volume" "$mnt"
    wait
    mount_volume "$volume" "$mnt"
    check "cycle $cycle: what counts is what there is" quota check "$mnt"
    check "cycle $cycle: within the limits" bash -c "
        [ \"\$(find '$mnt/a' -mindepth 1 | wc -l)\" -le 60 ] &&
        [ \"\$(find '$mnt/a' -type f -printf '%s\n' |
            awk '{ sum += \$1 } END { print sum + 0 }')\" -le 307200 ]"
done

# XFS, call by call.
image=$WORK/xfs.image xfs=$WORK/xfs
mkdir -p "$xfs" "$mnt/compared"
if command -v mkfs.xfs xfs_quota >/dev/null && truncate -s 400M "$image" &&
    mkfs.xfs -q "$image" && mount -o loop,prjquota "$image" "$xfs" 2>/dev/null; then
    mkdir "$xfs/compared" "$xfs/compared/dir"
    xfs_quota -x -c "project -s -p $xfs/compared/dir 7" -c 'limit -p bhard=1m ihard=9 7' "$xfs" \
        >/dev/null
    mkdir "$mnt/compared/dir"
    quota set "$mnt/compared/dir" --size 1M --files 8
    python3 "$quotas" calls "$xfs/compared/dir" >"$WORK/xfs.calls"
    python3 "$quotas" calls "$mnt/compared/dir" >"$WORK/own.calls"
    check "the same calls end as on XFS" diff "$WORK/xfs.calls" "$WORK/own.calls"
    umount "$xfs"
else
    echo "skipped: no project quotas of XFS on this kernel to compare with"
fi

# At rest.
check "unmounts" umount_volume "$mnt"
if [ -z "$SERVING" ]; then
    check "list at rest" prints '/a' quota list "$volume"
    check "check at rest" quota check "$volume" --repair
    check "dump and load keep them" bash -c "
        '$KESTREL' dump '$volume' '$WORK/dump' && '$KESTREL' load '$WORK/dump' '$WORK/loaded' \
            --objects '$volume/objects' &&
        '$KESTREL' quota check '$WORK/loaded' && '$KESTREL' quota list '$WORK/loaded' | grep /a"
fi
check "fsck --data finds nothing" fsck_volume "$volume" --data
summary
