#!/usr/bin/env bash
# git: a repository made on the spot, cloned, changed, collected and checked on the mount.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t \
    GIT_COMMITTER_EMAIL=t@example.org
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME=$WORK

make_repository() {
    git init -q -b main "$1"
    cd "$1"
    local i
    for ((i = 0; i < 30; i++)); do
        mkdir -p "dir$((i % 7))"
        seq $((i * 100)) $((i * 137 + 500)) >"dir$((i % 7))/file$i"
        seq $i 2000 >shared
        git add -A
        git commit -q -m "commit $i"
        [ $((i % 10)) != 9 ] || git tag "v$i"
    done
    cd /
}

work_in_clone() {
    cd "$mnt/clone"
    git checkout -q -b topic HEAD~5
    echo topic >>shared
    git commit -q -am topic
    git checkout -q main
    git merge -q -s ours -m merge topic
    git gc -q --prune=now --aggressive
    git repack -q -a -d -f
    git fsck --full --strict
    [ -z "$(git status --porcelain)" ]
    cd /
}

check "a repository is made on the mount" make_repository "$mnt/origin"
check "clone" git clone -q --no-local "$mnt/origin" "$mnt/clone"
check "branch, merge, gc, fsck" work_in_clone
check "clone with hard links" git clone -q "$mnt/origin" "$mnt/linked"
check "fsck of the linked clone" git -C "$mnt/linked" fsck --full
check "clone out to the local file system" git clone -q --no-local "$mnt/clone" "$WORK/out"
check "same tree" diff -r --exclude=.git "$mnt/clone" "$WORK/out"
close_and_check "$volume" "$mnt"
summary
