#!/usr/bin/env bash
# Snapshots through a mount: `.snap` as docs/semantics.md says (statements S1 to S9), compared with
# copies by the tools that people use, without a request the second time, after kill -9, and as a
# mount of its own.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt at=$WORK/at copy=$WORK/copy
snapshots=$ROOT/tests/posix/snapshots.py
make_volume "$volume"
mount_volume "$volume" "$mnt"
counted python3 "$snapshots" test "$mnt"

tar_of() {
    tar -C "$1" --sort=name --numeric-owner -cf - . | sha256sum
}

same_tar() {
    [ "$(tar_of "$1")" = "$(tar_of "$2")" ]
}

# find_of DIR: sizes and link counts of directories are each file system's own.
find_of() {
    (cd "$1" && find . -type d -printf '%p %m %u %g %t\n' \
        -o -printf '%p %y %m %n %u %g %s %t %l\n' | sort)
}

same_find() {
    diff <(find_of "$1") <(find_of "$2")
}

# same_rsync ONE OTHER: rsync finds nothing to transfer.
same_rsync() {
    local out
    out=$(rsync -aHX --checksum --delete --dry-run --itemize-changes "$1/" "$2/") || return
    [ -z "$out" ] || { echo "$out" | head -n 20 && return 1; }
}

# equals NAME SNAPSHOT: it is as the copy, by every tool.
equals() {
    check "$1: every attribute, link and byte" python3 "$snapshots" compare "$copy" "$2"
    check "$1: diff -r" diff -r --no-dereference --exclude=fifo "$copy" "$2"
    check "$1: tar" same_tar "$copy" "$2"
    check "$1: find" same_find "$copy" "$2"
    check "$1: rsync -aHX --checksum" same_rsync "$copy" "$2"
}

mkdir "$mnt/tree"
python3 "$snapshots" make "$mnt/tree" 1
cp -a --sparse=auto "$mnt/tree" "$copy"
mkdir "$mnt/tree/.snap/before" "$mnt/.snap/all"
python3 "$snapshots" churn "$mnt/tree" 2
equals "after changes" "$mnt/tree/.snap/before"
check "numbers in it are all different" python3 "$snapshots" numbers "$mnt/tree/.snap/before"
tree=$(stat -c %i "$mnt")
check "the volume's snapshot has it" test -e "$mnt/tree/.snap/_all_$tree/dir0"
check "and is the same" python3 "$snapshots" compare "$copy" "$mnt/tree/.snap/_all_$tree"

check "a second walk sends no request" \
    python3 "$snapshots" quiet "$mnt" "$mnt/tree/.snap/before"
check "cp -a --reflink=auto out of it" cp -a --reflink=auto "$mnt/tree/.snap/before" "$mnt/back"
check "it is the same" python3 "$snapshots" compare "$copy" "$mnt/back"

# git in a snapshot, read-only.
if command -v git >/dev/null; then
    git init -q "$mnt/repository"
    (cd "$mnt/repository" && echo one >file && git add file &&
        git -c user.name=x -c user.email=x@x commit -qm one)
    mkdir "$mnt/repository/.snap/s"
    echo two >"$mnt/repository/file"
    in_git() {
        git -c safe.directory='*' -C "$mnt/repository/.snap/s" "$@"
    }
    check "git status in a snapshot" bash -c "[ -z \"\$(git -c safe.directory='*' \
        -C '$mnt/repository/.snap/s' status --porcelain)\" ]"
    check "git log in a snapshot" in_git log --oneline -1
    check "git fsck in a snapshot" in_git fsck
fi

# A removed snapshot leaves the others alone.
rmdir "$mnt/.snap/all"
refuses "it is gone" 'no such file' ls "$mnt/tree/.snap/_all_$tree"
kill_mount "$volume" "$mnt"
[ -z "$SERVING" ] || start_server "$volume"
mount_volume "$volume" "$mnt"
check "a removed snapshot stays removed" test ! -e "$mnt/.snap/all"
equals "after kill -9" "$mnt/tree/.snap/before"
check "a snapshot is made again" mkdir "$mnt/.snap/all"
number=$(stat -c %i "$mnt/tree")

# As a mount of its own.
umount_volume "$mnt"
what=$volume
[ -z "$SERVING" ] || what=$(serve_url "$volume")
mkdir "$at"
refuses "a snapshot that is not there" "no snapshot.*kestrel snapshot list" \
    "$KESTREL" mount "$what@absent" "$at"
refuses "a directory that is not there" 'no directory' "$KESTREL" mount "$what:/absent@before" "$at"
refuses "a name that no snapshot has" 'cannot be' "$KESTREL" mount "$what@_before" "$at"
"$KESTREL" mount "$what:/tree@before" "$at" --allow-other >/dev/null
equals "mounted" "$at"
check "it is read-only" bash -c "! touch '$at/new' 2>/dev/null && ! mkdir '$at/.snap' 2>/dev/null"
check "there is no .snap in it" test ! -e "$at/.snap"
check "a second walk of it sends no request" python3 "$snapshots" quiet "$at" "$at"
check "status knows it" bash -c "'$KESTREL' status '$at' --json | grep -q '\"read_only\": *true'"
umount_volume "$at"
"$KESTREL" mount "$what@all" "$at" --allow-other >/dev/null
check "inode numbers are the live ones" [ "$(stat -c %i "$at/tree")" = "$number" ]
install -d -m 700 "$WORK/private"
check "the kernel looks at permissions" bash -c "
    find '$at' -perm 600 -type f -user 1000 | head -n 1 | grep -q . &&
    ! setpriv --reuid 2000 --regid 2000 --clear-groups cat \
        \"\$(find '$at' -perm 600 -type f -user 1000 | head -n 1)\" 2>/dev/null"
umount_volume "$at"
if [ -z "$SERVING" ]; then
    # A volume's directory may have an @ in its name.
    mv "$volume" "$volume@all"
    check "a directory with @ is a volume" mount_volume "$volume@all" "$mnt"
    check "as it is now" test -e "$mnt/back"
    umount_volume "$mnt"
    mv "$volume@all" "$volume"
fi
mount_volume "$volume" "$mnt"
close_and_check "$volume" "$mnt"
summary
