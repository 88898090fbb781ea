#!/usr/bin/env bash
# Clones through a mount, as docs/semantics.md says (statements C1 to C5): compared with copies by
# the tools that people use, changed, cloned again, finished in the background, after kill -9.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt copy=$WORK/copy
snapshots=$ROOT/tests/posix/snapshots.py
make_volume "$volume"
mount_volume "$volume" "$mnt"

clone() {
    "$KESTREL" clone "$@"
}

# same_rsync ONE OTHER: rsync finds nothing to transfer.
same_rsync() {
    local out
    out=$(rsync -aHX --checksum --delete --dry-run --itemize-changes "$1/" "$2/") || return
    [ -z "$out" ] || { echo "$out" | head -n 20 && return 1; }
}

tar_of() {
    tar -C "$1" --sort=name --numeric-owner -cf - . | sha256sum
}

same_tar() {
    [ "$(tar_of "$1")" = "$(tar_of "$2")" ]
}

# equals NAME CLONE [COPY]: it is as the copy, by every tool.
equals() {
    local like=${3:-$copy}
    check "$1: every attribute, link and byte" python3 "$snapshots" compare "$like" "$2"
    check "$1: diff -r" diff -r --no-dereference --exclude=fifo "$like" "$2"
    check "$1: tar" same_tar "$like" "$2"
    check "$1: rsync -aHX --checksum" same_rsync "$like" "$2"
}

mkdir "$mnt/tree"
python3 "$snapshots" make "$mnt/tree" 1
cp -a --sparse=auto "$mnt/tree" "$copy"
mkdir "$mnt/tree/.snap/before"
check "a clone is made" clone "$mnt/tree" "$mnt/first"
# From here on the source changes while the clone lacks names.
python3 "$snapshots" churn "$mnt/tree" 2
equals "of the present" "$mnt/first"
check "a clone of a snapshot" clone "$mnt/tree@before" "$mnt/second"
rmdir "$mnt/tree/.snap/before"
check "its snapshot is gone" test ! -e "$mnt/tree/.snap/before"
equals "of a snapshot that was removed" "$mnt/second"
check "numbers are its own" bash -c "
    ! comm -12 <(find '$mnt/first' -printf '%i\n' | sort -u) \
        <(find '$mnt/second' -printf '%i\n' | sort -u) | grep -q ."

# A clone of a clone, and a snapshot of one that lacks names.
check "a clone of a clone" clone "$mnt/second" "$mnt/third"
mkdir "$mnt/third/.snap/at"
python3 "$snapshots" churn "$mnt/third" 3
equals "a snapshot of it" "$mnt/third/.snap/at"
equals "its source" "$mnt/second"
check "a clone that waits" clone --eager "$mnt/second" "$mnt/eager"
equals "finished" "$mnt/eager"

# What is removed, and what stays.
check "du counts what is not there yet" bash -c "
    clone='$mnt/counted'; '$KESTREL' clone '$mnt/second' \"\$clone\" &&
    [ \"\$('$KESTREL' info -r \"\$clone\" --json | grep -o '\"files\": *[0-9]*' | head -n 1)\" = \
      \"\$('$KESTREL' info -r '$mnt/second' --json | grep -o '\"files\": *[0-9]*' | head -n 1)\" ]"
refuses "a clone is not empty" 'not empty' rmdir "$mnt/counted"
check "it is removed" rm -rf "$mnt/counted"
check "the source is removed" rm -rf "$mnt/first"

if command -v git >/dev/null; then
    git init -q "$mnt/repository"
    (cd "$mnt/repository" && echo one >file && git add file &&
        git -c user.name=x -c user.email=x@x commit -qm one)
    clone "$mnt/repository" "$mnt/worktree"
    check "git status in a clone" bash -c "[ -z \"\$(git -c safe.directory='*' \
        -C '$mnt/worktree' status --porcelain)\" ]"
    check "git commit in a clone" bash -c "cd '$mnt/worktree' && echo two >file &&
        git -c safe.directory='*' -c user.name=x -c user.email=x@x commit -qam two"
    check "git fsck in its source" git -c safe.directory='*' -C "$mnt/repository" fsck
fi

# What is refused, and why.
refuses "into itself" 'into itself' clone "$mnt/second" "$mnt/second/inside"
refuses "onto something" 'taken' clone "$mnt/second" "$mnt/eager"
refuses "a file" 'only directories' clone "$mnt/worktree/file" "$mnt/file"
refuses "another mount" 'another mount' clone "$mnt/second" "$WORK/elsewhere"
refuses "no such source" 'neither a volume nor a directory' clone "$mnt/absent" "$mnt/new"
refuses "no such snapshot" 'no snapshot' clone "$mnt/second@absent" "$mnt/new"
refuses "a source in a snapshot" 'lies in a snapshot' clone "$mnt/third/.snap/at" "$mnt/new"
refuses "a place in a snapshot" '' clone "$mnt/second" "$mnt/third/.snap/at/new"
refuses "a directory that is not there" 'No such file' clone "$mnt/second" "$mnt/absent/new"

# kill -9 while a clone lacks names.
check "one more" clone "$mnt/second" "$mnt/killed"
kill_mount "$volume" "$mnt"
[ -z "$SERVING" ] || start_server "$volume"
mount_volume "$volume" "$mnt"
equals "after kill -9" "$mnt/killed"
umount_volume "$mnt"
if [ -z "$SERVING" ]; then
    check "a volume at rest" clone --eager "$volume:/second" "$volume:/rest"
    refuses "of another volume" 'must lie in the volume' clone "$volume:/second" "/rest"
fi
mount_volume "$volume" "$mnt"
[ -n "$SERVING" ] || equals "at rest" "$mnt/rest"
close_and_check "$volume" "$mnt"
summary
