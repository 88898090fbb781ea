#!/usr/bin/env bash
# `kestrel rm -r` as docs/semantics.md says (statements R1 to R8): what goes, what stays, which
# users may (beside rm(1) on a local file system), open files, snapshots and clones of what is
# removed, below quotas, and after kill -9 at each point.
#
# FILES: files of the large tree (default 20000); JUDGED: random trees (default 60).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
FILES=${FILES:-20000} JUDGED=${JUDGED:-60}
helper=$ROOT/tests/posix/remove.py
make_volume "$volume"
mount_volume "$volume" "$mnt"
# Users other than root run it, too.
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"

remove() { "$KESTREL" rm -r "$@"; }

# all_gone: waits until nothing that was removed is left.
all_gone() {
    local try
    for ((try = 0; try < 1200; try++)); do
        [ -e "$mnt/.trash" ] || return 0
        sleep 0.05
    done
    find "$mnt/.trash" | head
    return 1
}

inodes_used() { df --output=iused "$mnt" | tail -n 1 | tr -d ' '; }

echo "-- what goes, and what stays"
echo kept >"$WORK/outside"
used=$(inodes_used)
python3 "$helper" make "$mnt/tree" "$FILES"
ln -s "$WORK/outside" "$mnt/tree/outside"
ln "$mnt/tree/0/0/f0" "$mnt/hard"
refuses "a directory without -r" '-r removes it' "$KESTREL" rm "$mnt/tree"
names_of() { find "$1" ! -type d -printf x | wc -c; }
names=$(names_of "$mnt/tree")
check "a dry run counts" prints "\"files\": $names, .*false, .*false" \
    bash -c "'$KESTREL' rm -r --dry-run --json '$mnt/tree' | python3 -c '
import json, sys
one = json.load(sys.stdin)[0]
print(json.dumps({key: one[key] for key in (\"files\", \"removed\", \"background\")}))'"
check "and removes nothing" [ "$(names_of "$mnt/tree")" = "$names" ]
check "the tree is removed" prints 'removed; the space is given back' remove "$mnt/tree"
check "its name is gone at once" [ ! -e "$mnt/tree" ]
check "the rest is gone soon" all_gone
check "links were not followed" grep -qx kept "$WORK/outside"
check "a hard link elsewhere stays" [ "$(stat -c %h "$mnt/hard")" = 1 ]
check "a file" remove "$mnt/hard"
check "no inode is left over" [ "$(inodes_used)" = "$used" ]
mkdir "$mnt/one" "$mnt/two"
check "several, one of them absent" bash -c "! '$KESTREL' rm -r --eager '$mnt/one' '$mnt/absent' \
    '$mnt/two' && [ ! -e '$mnt/one' ] && [ ! -e '$mnt/two' ]"
refuses "what is absent" 'nothing of this name' remove "$mnt/absent"
check "unless forced" remove -f "$mnt/absent" "$mnt/absent/below"

echo "-- open files"
counted python3 "$helper" open "$KESTREL" "$mnt"

echo "-- refused"
mkdir -p "$mnt/stays/deep/immutable" "$mnt/stays/a"
touch "$mnt/stays/a/f"
refuses "the root" 'root of a volume stays' remove /
refuses "no name of its own" 'its own name' remove "$mnt/stays/.."
refuses "outside of a mount" 'not in a KestrelFS mount' remove "$WORK/outside"
chattr +i "$mnt/stays/deep/immutable"
refuses "an immutable directory" 'deep/immutable: it is immutable.*nothing was' remove "$mnt/stays"
chattr -i "$mnt/stays/deep/immutable"
touch "$mnt/stays/deep/appended"
chattr +a "$mnt/stays/deep/appended"
refuses "an append-only file" 'deep/appended: .*append only' remove "$mnt/stays"
chattr -a "$mnt/stays/deep/appended"
check "a policy" "$KESTREL" policy set "$mnt/stays/deep" consistency=immutable
refuses "below an immutable policy" 'stays/deep: .*immutable' remove "$mnt/stays"
check "no policy" "$KESTREL" policy unset "$mnt/stays/deep" consistency
mount -t tmpfs none "$mnt/stays/a"
refuses "with something mounted in it" 'is mounted at.*/stays/a' remove "$mnt/stays"
umount "$mnt/stays/a"
check "nothing of it went" [ -e "$mnt/stays/deep/appended" ]
mkdir "$mnt/stays/.snap/kept"
refuses "in a snapshot" 'in a snapshot' remove "$mnt/stays/.snap/kept/deep"
refuses "another user by a path in the mount" 'only root and the user of the mount' \
    setpriv --reuid 1234 --regid 1234 --clear-groups "$WORK/kestrel" rm -r "$mnt/stays"
if [ -z "$SERVING" ]; then
    umount_volume "$mnt"
    mount_volume "$volume" "$mnt" --read-only
    refuses "through a mount that is read-only" 'mounted read-only' remove "$mnt/stays"
    umount_volume "$mnt"
    mount_volume "$volume" "$mnt"
fi
check "what a snapshot has" remove --eager "$mnt/stays/deep"
check "stays in the snapshot" [ -e "$mnt/stays/.snap/kept/deep/appended" ]
rmdir "$mnt/stays/.snap/kept"

if [ -n "$SERVING" ]; then
    echo "-- beside rm(1)"
    mkdir "$WORK/local"
    counted python3 "$helper" judge "$WORK/kestrel" "$(serve_url "$volume")" "$mnt" "$WORK/local" \
        "$JUDGED"
fi

if [ "$NODES" = 1 ]; then
    echo "-- clones"
    mkdir -p "$mnt/source/a/b"
    seq 500 | xargs -I{} touch "$mnt/source/a/b/{}"
    "$KESTREL" clone "$mnt/source" "$mnt/clone" >/dev/null
    check "a clone" remove --eager "$mnt/clone"
    check "its source stays" bash -c "[ \"\$(ls '$mnt/source/a/b' | wc -l)\" = 500 ]"
    "$KESTREL" clone "$mnt/source" "$mnt/clone" >/dev/null
    check "a source" remove --eager "$mnt/source"
    check "its clone stays" bash -c "[ \"\$(ls '$mnt/clone/a/b' | wc -l)\" = 500 ]"

    echo "-- in place"
    mkdir -p "$mnt/limited/tree/a"
    touch "$mnt/limited/tree/a/"{1..300}
    "$KESTREL" quota set "$mnt/limited" --files 400 >/dev/null
    check "below a quota" prints 'removed$' remove "$mnt/limited/tree"
    check "the quota has it back" prints ' 0 +- +400' "$KESTREL" quota get "$mnt/limited"
    mkdir -p "$mnt/full/a/b"
    all_gone
    "$KESTREL" quota set "$mnt" --volume --files 1 >/dev/null
    check "where no directory can be made" prints 'removed$' remove "$mnt/full"
    "$KESTREL" quota remove "$mnt" --volume >/dev/null
fi
all_gone
mkdir -p "$mnt/.trash" "$mnt/foreign/a/b"
check "where .trash is somebody else's" prints 'removed$' remove "$mnt/foreign"
rmdir "$mnt/.trash"

echo "-- kill -9"
python3 "$helper" make "$mnt/tree" "$FILES"
check "a tree is removed" remove "$mnt/tree"
kill_mount "$volume" "$mnt"
[ -z "$SERVING" ] || start_server "$volume"
mount_volume "$volume" "$mnt"
check "its name stays away after kill -9" [ ! -e "$mnt/tree" ]
check "and the rest goes" all_gone
if [ -z "$SERVING" ]; then
    for point in removal.renamed:1 removal.step:1 removal.step:3; do
        python3 "$helper" make "$mnt/tree" 12000
        umount_volume "$mnt"
        KESTREL_CRASH_AT=$point mount_volume "$volume" "$mnt"
        pid=$(volume_pid "$volume")
        remove "$mnt/tree" >/dev/null 2>&1 || true
        while alive "$pid"; do sleep 0.01; done
        umount -l "$mnt"
        mount_volume "$volume" "$mnt"
        check "the name is gone after a death at $point" [ ! -e "$mnt/tree" ]
        check "and the rest goes" all_gone
    done
    mkdir -p "$mnt/rest/a"
    touch "$mnt/rest/a/"{1..1000}
    umount_volume "$mnt"
    check "at rest" remove "$volume:/rest"
    mount_volume "$volume" "$mnt"
    check "nothing is left over at rest" [ ! -e "$mnt/.trash" ]
fi
close_and_check "$volume" "$mnt"
summary
