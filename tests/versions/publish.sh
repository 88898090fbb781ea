#!/usr/bin/env bash
# Published versions: a tree of everything is published and compared with itself, by every
# attribute and byte, and again after the live tree has changed or gone; what is done with versions;
# publications that kill -9 ends; damage; and bad input.
#
# VERSIONS_BUCKET=1: of a volume that a bucket has all of, by its URL. Versions are mounted there by
# a machine that has nothing else of the volume (a machine is a state directory).
set -euo pipefail
if [ -n "${VERSIONS_BUCKET:-}" ]; then
    . "$(dirname "$0")/../s3/lib.sh"
else
    . "$(dirname "$0")/../lib.sh"
fi
needs_kestrel

py=$ROOT/tests/versions/publish.py
volume=$WORK/volume mnt=$WORK/mnt ver=$WORK/ver ver2=$WORK/ver2 copy=$WORK/copy
old=$WORK/old deep=$WORK/below
# Publications that are killed, and about how many files each of them has.
ROUNDS=${ROUNDS:-6} FILES=${FILES:-24000}
mkdir "$mnt" "$ver" "$ver2" "$old" "$deep"
# Users other than root run it, too.
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"

# k COMMAND…: kestrel on the machine that writes. reader COMMAND…: on another, if there is one.
k() {
    KESTREL_STATE_DIR=$WORK/a timeout 120 "$KESTREL" "$@"
}
reader() {
    KESTREL_STATE_DIR=$WORK/b timeout 120 "$KESTREL" "$@"
}
# as USER COMMAND…
as() {
    timeout 60 setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"
}
py() {
    timeout 120 python3 "$py" "$@"
}
# soon COMMAND…: it succeeds within ten seconds.
soon() {
    wait_until 6 "$@" || "$@"
}
not() {
    ! "$@"
}
same() {
    [ "$1" = "$2" ] || {
        echo "$1 is not $2"
        return 1
    }
}

if [ -n "${VERSIONS_BUCKET:-}" ]; then
    vol=$(volume_url versions/main) query=$(volume_url '')
    query=${query#*\?} base=s3://$S3_BUCKET/versions/main
    k format "$vol" --grace 1s >/dev/null
else
    # What is not needed any more is deleted soon.
    make_volume "$volume" --grace 1s
    vol=$volume base=$volume query=''
    [ -z "$SERVING" ] || vol=$(serve_url "$volume") base=$(serve_url "$volume")
fi

# version NAME: what is mounted. place PATH: a directory of the volume without a mount.
version() {
    echo "$base//$1${query:+?$query}"
}
place() {
    echo "$base:/${1:-}${query:+?$query}"
}
# The live volume is mounted, and served if it is a served one; and not.
up() {
    if [ -n "${VERSIONS_BUCKET:-}" ]; then
        k mount "$vol" "$mnt" --allow-other >/dev/null
    else
        mount_volume "$volume" "$mnt"
    fi
}
down() {
    umount_volume "$mnt"
    [ -z "$SERVING" ] || stop_server "$volume"
}
# A server that runs, without a mount, if it is a served volume.
only_served() {
    umount_volume "$mnt"
}
pid_of_mount() {
    volume_pid "$mnt" 2>/dev/null || true
}
# kill_all: kill -9 of the mount and of the server, if there is one.
kill_all() {
    if [ -n "${VERSIONS_BUCKET:-}" ]; then
        kill_pid "$(pid_of_mount)"
        umount -l "$mnt"
    else
        kill_mount "$volume" "$mnt"
    fi
}
fsck_live() {
    k fsck "$vol" --data
}
gc_live() {
    k gc "$vol" --delete --grace 0s
}
# show NAME DIR [MOUNT OPTION…]: mounts a version.
show() {
    reader mount "$(version "$1")" "$2" --allow-other "${@:3}"
}
hide() {
    reader umount "$1"
}
# hex TEXT; manifest NAME: its file in the store; data NAME: the directory of its data.
hex() {
    printf %s "$1" | od -An -v -tx1 | tr -d ' \n'
}
store() {
    find "$WORK" -xdev -type d -path '*/versions/name' -not -path "$mnt/*" | head -n 1 |
        sed 's,/name$,,'
}
manifest() {
    echo "$(store)/name/$(hex "$1")"
}
data() {
    echo "$(store)/data/$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["id"])' "$(manifest "$1")")"
}
# listed [PREFIX]: the names of all versions, in one line.
listed() {
    reader version list "$vol" "${1:-}" --json | python3 -c '
import json, sys
print(*[one["name"] for one in json.load(sys.stdin)["versions"]])'
}
# field NAME EXPRESSION: of `version info --json`, as Python prints it.
field() {
    reader version info "$vol" "$1" --json | python3 -c "
import json, sys
one = json.load(sys.stdin)
print($2)"
}
# held DIR: the snapshots of a directory that stay, with the number of tags on each.
held() {
    k snapshot list "$1" --json | python3 -c '
import json, sys
found = json.load(sys.stdin)["snapshots"]
print(*["%s:%d" % (one["shown"], len(one["holds"])) for one in found if not one["removing"]])'
}
# left: how many versions have data in the store: as many as have names.
left() {
    # What a killed process was writing is not an object; it goes after an hour.
    find "$(store)/data" -type f -not -name '.new-*' -printf '%P\n' | cut -d/ -f1 | sort -u | wc -l
}
# equals TEXT DIR: it is as the tree was, and as the copy.
equals() {
    py list "$2" >"$WORK/listing" 2>"$WORK/listing.err" || true
    check "$1: every attribute, link and byte" py same "$WORK/live" "$WORK/listing"
    [ ! -s "$WORK/listing.err" ] || { cat "$WORK/listing.err" && fail "$1: the listing"; }
    check "$1: diff -r" timeout 60 diff -r --no-dereference --exclude=special "$copy" "$2"
}

up
mkdir "$mnt/tree" "$mnt/outside"
py make "$mnt/tree" "$mnt/outside/out"

echo "-- a tree of everything"
check "a snapshot of a person" k snapshot create "$mnt/tree" given
# Not yet stored: a publication of now has what was written before it.
exec 8>"$mnt/tree/sizes/open"
head -c 50000 /dev/zero | tr '\0' o >&8
py list "$mnt/tree" live >"$WORK/live"
mkdir "$copy"
(cd "$mnt/tree" && find . -mindepth 1 -maxdepth 1 -not -name special -exec cp -a --sparse=auto \
    -t "$copy" {} +)
check "publish" k publish "$mnt/tree" all@1 --json
cp "$WORK/check.out" "$WORK/all.json"
exec 8>&-
sub=$mnt/tree/many inode=$(stat -c %i "$mnt/tree")
check "it counts files" same "$(field all@1 'one["files"]')" \
    "$(find "$mnt/tree" -not -type d -printf . | wc -c)"
check "and directories" same "$(field all@1 'one["directories"]')" \
    "$(find "$mnt/tree" -type d -printf . | wc -c)"
check "publish says so, too" same "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["files"])' "$WORK/all.json")" "$(field all@1 'one["files"]')"
check "mounted while the volume is" show all@1 "$old"
equals "published" "$old"
check "a name outside of the tree is not counted" same "$(stat -c %h "$old/links/out")" 1
check "names inside are" same "$(stat -c %h "$old/links/one")" 3
check "there is no .snap in it" test ! -e "$old/.snap"
check "statfs" stat -f "$old"
check "status of it" k status "$old"
check "every change is EROFS" py read-only "$old"
not_private() {
    ! as 2000 cat "$old/attributes/m400" && as 1000 cat "$old/attributes/m400" &&
        as 1234 cat "$old/attributes/acl" && ! as 1235 test -w "$old/attributes/acl"
}
check "permissions and ACLs are looked at" not_private

echo "-- ways to publish"
check "a snapshot that exists" k publish "$mnt/tree@given" given@1
check "a directory below one" k publish "$sub@_given_$inode" below@1
check "the root of the volume" k publish "$mnt" root@1
for name in two@1 two@2 race@1; do check "publish $name" k publish "$sub" "$name"; done
check "a clone" k clone "$mnt/tree" "$mnt/clone"
check "is published at once" k publish "$mnt/clone" clone@1
only_served
check "without a mount" k publish "$(place tree)" url@1
check "a snapshot without a mount" k publish "$(place tree@given)" url@2
check "the root without a mount" k publish "$(place)" url@3
check "it is mounted when nothing is" show url@1 "$ver"
equals "published without a mount" "$ver"
check "and unmounted" hide "$ver"
up
check "the root has the trees" test -d "$mnt/tree"

echo "-- the live tree changes"
py list "$sub" live >"$WORK/live-below"
py churn "$mnt/tree"
check "gc --delete" gc_live
check "fsck --data" fsck_live
equals "after changes" "$old"
check "a mount anew" show all@1 "$ver"
equals "mounted anew" "$ver"
check "a second mount of it" show all@1 "$ver2"
equals "mounted twice" "$ver2"
check "unmounted" hide "$ver2"
check "the first goes on" test -e "$ver/sizes/5000"
check "unmounted" hide "$ver"
check "removed" rm -rf "$mnt/tree" "$mnt/clone" "$mnt/outside"
check "gc --delete" gc_live
check "fsck --data" fsck_live
equals "of a tree that is gone" "$old"
for name in url@1 clone@1 given@1 url@2; do
    check "$name is mounted" show "$name" "$ver2"
    py list "$ver2" >"$WORK/listing" || true
    case $name in
        clone@1) check "$name has its bytes" same "$(py sums "$ver2/many")" \
            "$(py sums "$old/many")" ;;
        # A file of it is of later, and with it the times of its directory.
        *) sed -i '/"path": "sizes\(\/open\)\?",/d; /getfacl/d' "$WORK/listing"
            sed '/"path": "sizes\(\/open\)\?",/d; /getfacl/d' "$WORK/live" >"$WORK/live-given"
            check "$name is what it was" py same "$WORK/live-given" "$WORK/listing" ;;
    esac
    check "$name is unmounted" hide "$ver2"
done
check "below@1 is mounted" show below@1 "$deep"
py list "$deep" >"$WORK/listing" || true
# A file has a name in the tree above it.
grep -v '"path": "big"' "$WORK/listing" >"$WORK/listing-below"
grep -v '"path": "big"' "$WORK/live-below" >"$WORK/live"
check "below@1 is what it was" py same "$WORK/live" "$WORK/listing-below"
check "with one name of a file" same "$(stat -c %h "$deep/big")" 1
check "below@1 is unmounted" hide "$deep"
for name in root@1 url@3; do
    check "$name is mounted" show "$name" "$ver2"
    check "$name has the trees" same "$(py sums "$ver2/tree")" "$(py sums "$old")"
    check "$name has all names of a file" same "$(stat -c %h "$ver2/outside/out")" 2
    check "$name is unmounted" hide "$ver2"
done
# What the copy and the listings are compared with again below.
py list "$old" >"$WORK/live"
mkdir "$mnt/tree"
cp -a "$old/many" "$mnt/tree"

echo "-- verbs"
check "list" same "$(listed)" "all@1 below@1 clone@1 given@1 race@1 root@1 two@1 two@2 url@1 \
url@2 url@3"
check "list of a prefix" same "$(listed two)" "two@1 two@2"
check "list of none" same "$(listed nothing)" ""
check "list for people" prints "^two@1  *20[0-9-]*T[0-9:]*  *[0-9]* " reader version list "$vol"
check "list by a path in the mount" prints "two@1" k version list "$mnt" two
check "list by a mount of a version" prints "two@1" timeout 10 \
    env KESTREL_STATE_DIR="$WORK/a" "$KESTREL" version list "$old" two
check "info" prints "snapshot .*version-.*made for it" reader version info "$vol" two@1
check "info of a snapshot that was given" prints "snapshot *given " \
    reader version info "$vol" given@1
refuses "info of what is not there" "no version nope.*kestrel version list" \
    reader version info "$vol" nope
check "rename" k version rename "$vol" all@1 all@9
check "it has the new name" same "$(listed all)" all@9
equals "the mount goes on" "$old"
refuses "to rename to one that is there" "already" k version rename "$vol" all@9 two@1
refuses "to rename what is not there" "no version" k version rename "$vol" all@1 all@2
refuses "to its own name" "already" k version rename "$vol" url@2 url@2
check "it is there after that" same "$(listed url@2)" url@2
check "it can be mounted" show all@9 "$ver"
check "under its new name" same "$(py sums "$ver/many")" "$(py sums "$old/many")"
check "and unmounted" hide "$ver"
check "renamed back" k version rename "$mnt" all@9 all@1

echo "-- snapshots of versions"
mkdir "$mnt/held"
echo one >"$mnt/held/f"
head -c 9000000 /dev/urandom >"$mnt/held/big"
k snapshot create "$mnt/held" mine >/dev/null
check "publish" k publish "$mnt/held" held@1
own=$(field held@1 'one["snapshot"]')
check "publish one that is given" k publish "$mnt/held@mine" held@2
check "both are held" same "$(held "$mnt/held" | tr ' ' '\n' | sort | xargs)" "mine:1 $own:1"
for name in mine "$own"; do
    refuses "$name is not removed" "held" k snapshot remove "$mnt/held" "$name"
    check "nor by rmdir" not rmdir "$mnt/held/.snap/$name"
done
check "publish the same snapshot twice" k publish "$mnt/held@mine" held@3
check "it is held twice" same "$(held "$mnt/held" | tr ' ' '\n' | grep mine)" mine:2
check "a snapshot is renamed" k snapshot rename "$mnt/held" "$own" other
rm -r "$mnt/held"
gc_live >/dev/null
check "the version is there" show held@1 "$ver"
check "with its bytes" same "$(stat -c %s "$ver/big")" "$(wc -c <"$ver/big")"
mkdir "$mnt/held2"
volume_bytes() {
    find "$WORK" -xdev \( -path "$WORK/store/*" -o -path "$volume*" \) -type f -printf '%s\n' \
        2>/dev/null | awk '{ n += $1 } END { print n }'
}
check "delete" k version delete "$vol" held@1
check "it is not listed" same "$(listed held)" "held@2 held@3"
refuses "nor mounted" "no version of this name.*kestrel version list" show held@1 "$ver2"
timeout 30 cat "$ver/f" >/dev/null 2>&1 || true
check "its mount is unmounted" hide "$ver"
check "delete the others" k version delete "$vol" held@2
check "by a path in the mount" k version delete "$mnt" held@3
all_snapshots() {
    k snapshot list "$vol" --json | python3 -c '
import json, sys
for one in json.load(sys.stdin)["snapshots"]:
    print(one.get("shown"), one["name"], len(one["holds"]), one["removing"])'
}
no_snapshot() {
    ! all_snapshots | grep -q "$1.* False"
}
check "the snapshot made for it goes" soon no_snapshot other
check "the one that was given stays, and is not held" prints "mine.* 0 False" all_snapshots
check "clean up" k version clean "$vol" --older 0s
check "no data of them is left" same "$(left)" "$(listed | wc -w)"
# What the given snapshot still keeps is freed with it.
mkdir "$mnt/freed"
head -c 30000000 /dev/urandom >"$mnt/freed/big"
check "publish" k publish "$mnt/freed" freed@1
rm "$mnt/freed/big"
gc_live >/dev/null
full=$(volume_bytes)
check "delete" k version delete "$vol" freed@1
freed() {
    gc_live >/dev/null
    [ "$(volume_bytes)" -lt $((full - 25000000)) ]
}
check "data is freed" wait_until 40 freed
check "and nothing else" same "$(py sums "$old/many")" "$(py sums "$mnt/tree/many")"

echo "-- users"
install -d -o 1000 -g 1000 -m 755 "$mnt/theirs"
as 1000 bash -c "echo one >'$mnt/theirs/f'"
user() {
    as "$1" env KESTREL_STATE_DIR="$WORK/user-$1" "$WORK/kestrel" "${@:2}"
}
if [ -n "$SERVING" ]; then
    # A path is for root and the user of the mount: others name the server. They write to the
    # store by themselves.
    chmod a+x "$volume" "$volume/objects"
    chmod -R a+rwX "$(store)"
    refuses "another user does not publish it" "owner|permission|permitted" \
        user 1001 publish "$(place theirs)" theirs@1
    check "its owner does" user 1000 publish "$(place theirs)" theirs@1
    check "the version is theirs" same "$(field theirs@1 'one["user"]')" 1000
    refuses "another user does not delete it" "only its publisher, user 1000" \
        user 1001 version delete "$vol" theirs@1
    refuses "nor rename it" "only its publisher, user 1000" \
        user 1001 version rename "$vol" theirs@1 theirs@2
    refuses "nor delete what root has published" "only its publisher, user 0" \
        user 1001 version delete "$vol" two@1
    refuses "nor clean up" "only root" user 1000 version clean "$vol" --older 0s
    check "it is all there" same "$(listed theirs)" theirs@1
    check "the owner renames it" user 1000 version rename "$vol" theirs@1 theirs@2
    check "and deletes it" user 1000 version delete "$vol" theirs@2
    check "its snapshot is gone" soon same "$(held "$mnt/theirs")" ""
else
    only="only root and the user of the mount"
    refuses "another user publishes nothing by a path" "$only" \
        user 1000 publish "$mnt/theirs" theirs@1
    refuses "nor deletes" "$only" user 1001 version delete "$mnt" two@1
    refuses "nor renames" "$only" user 1001 version rename "$mnt" two@1 two@3
    refuses "nor cleans up" "$only" user 1000 version clean "$mnt" --older 0s
    check "it is all there" same "$(listed two)" "two@1 two@2"
fi
check "root may publish it" k publish "$mnt/theirs" theirs@1
check "and delete it" k version delete "$vol" theirs@1

echo "-- nobody serves the volume"
check "a mount of a version" show two@1 "$ver"
down
check "versions that are mounted go on" same "$(py sums "$ver")" "$(py sums "$old/many")"
equals "versions that are mounted" "$old"
check "one is unmounted" hide "$ver"
if [ -n "$SERVING" ]; then
    # Of a cluster the directory of the first node.
    check "mounted by the directory" reader mount "$volume//two@2" "$ver" --allow-other
    check "listed by the directory" prints "two@2" reader version list "$volume"
    refuses "by a server that is not there it is not" "server|refused|reach|answer" \
        show two@2 "$ver2"
else
    check "mounted without the volume" show two@2 "$ver"
fi
check "it has its bytes" same "$(py sums "$ver")" "$(py sums "$old/many")"
up
check "the volume is mounted beside" test -d "$mnt/tree/many"
check "one is unmounted" hide "$ver"

echo "-- bad input"
bad="a name has 1 to 120"
long=$(printf 'n%.0s' {1..121})
for name in "" "a b" a/b @a .a -- $'a\nb' $'a\x01' "a:b" "ä" "$long"; do
    refuses "the name $(printf %q "${name:0:20}")" "$bad" k publish -- "$mnt/tree" "$name"
    [ "$name" = -- ] || refuses "and to rename to it" "$bad" k version rename "$vol" two@1 "$name"
done
longest=${long:1}
check "the longest name" k publish "$mnt/tree/many/d0" "$longest"
check "it is mounted" show "$longest" "$ver"
check "and unmounted" hide "$ver"
check "and deleted" k version delete "$vol" "$longest"
refuses "a name that is taken" "two@1 already.*another name" k publish "$sub" two@1
refuses "a file" "not a directory" k publish "$sub/d1/f1" file@1
refuses "what is not there" "no such file|no directory|neither a volume" k publish "$mnt/no" no@1
refuses "what is not there without a mount" "no directory|no such (file|entry)" \
    k publish "$(place no)" no@1
refuses "a snapshot that is not there" "no snapshot no.*kestrel snapshot list" \
    k publish "$sub@no" no@1
refuses "a directory in no mount" "not in a KestrelFS mount|neither a volume" k publish "$copy" no@1
refuses "a directory of a version" "read-only|version|snapshot" k publish "$old/many" no@1
own=$(field two@1 'one["snapshot"]')
refuses "a directory in a snapshot" "\.snap" k publish "$sub/.snap/$own/d1" no@1
refuses "a version that is not there" "no version of this name.*kestrel version list" \
    show no@1 "$ver"
refuses "a version without a name" "$bad" show "" "$ver"
refuses "a version of a wrong name" "$bad" show "a b" "$ver"
refuses "delete of what is not there" "no version no@1.*kestrel version list" \
    k version delete "$vol" no@1
refuses "versions of what is no volume" "not in a KestrelFS mount" k version list "$copy"
check "nothing came of all this" same "$(listed no)$(listed file)" ""
check "no data is left" same "$(left)" "$(listed | wc -w)"

echo "-- damage"
mkdir "$mnt/d"
for n in $(seq 3000); do echo "$n" >"$mnt/d/name number $n"; done
for name in dam@1 dam@2 dam@3 dam@4 dam@5 dam@6; do k publish "$mnt/d" "$name" >/dev/null; done
table() {
    find "$(data "$1")/table" -type f | sort | head -n 1
}
# broken TEXT NAME: an error, at its mount or when all of it is read, that the log tells.
broken() {
    local log=$WORK/$2.log names
    rm -f "$log"
    if show "$2" "$ver" --log "$log" >"$WORK/broken.out" 2>&1; then
        if names=$(timeout 60 tar -C "$ver" -cf - . 2>"$WORK/broken.err" | tar -t | wc -l) &&
            [ "$names" -gt 3000 ]; then
            fail "$1: all of it was read"
        else
            check "$1: EIO" grep -q "Input/output error" "$WORK/broken.err"
            check "$1: the log tells" grep -q "version $2.*damaged" "$log"
        fi
        check "$1: unmounted" hide "$ver"
    else
        tail -n 1 "$WORK/broken.out" | cut -c1-300
        check "$1: the mount names the version" \
            grep -qE "$2.*(damaged|not there|gone|missing)" "$WORK/broken.out"
    fi
    rm -f "$log"
}
size=$(stat -c %s "$(table dam@1)")
for at in 20 $((size / 3)) $((size / 2)) $((size - 20)); do
    py damage "$(table dam@1)" "$at"
    broken "a table that is damaged at $at" dam@1
    py damage "$(table dam@1)" "$at"
done
check "it is well again" show dam@1 "$ver"
check "with all names" same "$(find "$ver" -type f | wc -l)" 3000
check "and unmounted" hide "$ver"
py cut "$(table dam@2)" $((size / 2))
broken "a cut table" dam@2
py cut "$(table dam@2)" 0
broken "an empty table" dam@2
rm "$(table dam@2)"
broken "a table that is gone" dam@2
check "it is deleted" k version delete "$vol" dam@2
# Manifests. Files are overwritten, for the store keeps attributes with them.
cat "$(manifest dam@3)" >"$WORK/manifest"
wrong() {
    refuses "$1: mount" "$3" show "$2" "$ver"
    refuses "$1: info" "$3" reader version info "$vol" "$2"
    # One version that cannot be read does not hide the others.
    (reader version list "$vol" || true) >"$WORK/list.out" 2>&1
    check "$1: the list has the others" grep -q "^dam@1 " "$WORK/list.out"
}
py damage "$(manifest dam@3)" 100
wrong "a damaged manifest" dam@3 "version dam@3.*damaged"
head -c 100 "$WORK/manifest" | tee "$(manifest dam@3)" >/dev/null
wrong "half a manifest" dam@3 "version dam@3.*damaged"
: >"$(manifest dam@3)"
wrong "an empty manifest" dam@3 "version dam@3"
cat "$WORK/manifest" >"$(manifest dam@3)"
py newer "$(manifest dam@3)"
wrong "a newer manifest" dam@3 "version dam@3.*format 9.*newer"
# A version that is damaged or newer stands in the way of no other.
check "publish beside it" k publish "$mnt/d" beside@1
check "delete beside it" k version delete "$vol" dam@4
check "data of that is gone" same "$(left)" "$(find "$(store)/name" -type f | wc -l)"
check "its snapshot as well" same "$(held "$mnt/d" | tr ' ' '\n' | grep -c '^version-.*:1')" 5
cat "$WORK/manifest" >"$(manifest dam@3)"
check "it is well again" show dam@3 "$ver"
check "and unmounted" hide "$ver"
check "what was left is cleaned up" k version clean "$vol" --older 0s
cat "$(manifest dam@5)" >"$WORK/manifest"
cat "$(manifest dam@1)" >"$(manifest dam@5)"
wrong "a manifest of another name" dam@5 "version dam@5.*another version"
check "to be deleted by root" k version delete "$vol" dam@5
check "it is not there any more" same "$(listed dam@5)" ""
if [ -e "$(store)/name/$(hex dam@5)" ]; then cat "$WORK/manifest" >"$(manifest dam@5)"; fi
for name in dam@1 dam@3 dam@6 beside@1; do
    check "$name is deleted" k version delete "$vol" "$name"
done
k version delete "$vol" dam@5 >/dev/null 2>&1 || true
check "clean up" k version clean "$vol" --older 0s
check "no snapshot is left" soon same "$(held "$mnt/d")" ""

echo "-- at once"
cp -a "$mnt/tree/many" "$mnt/at-once"
both() {
    local one two
    k publish "$mnt/at-once" twin@1 & one=$!
    k publish "$mnt/at-once" twin@2 & two=$!
    wait "$one" && wait "$two"
}
check "two at once of different names" both
won() {
    local n pids=() wins=0
    for n in 1 2 3 4; do
        k publish "$mnt/at-once" race@2 >"$WORK/race.$n" 2>&1 &
        pids+=($!)
    done
    for n in "${pids[@]}"; do if wait "$n"; then wins=$((wins + 1)); fi; done
    cat "$WORK"/race.?
    [ "$wins" = 1 ]
}
check "of four of one name one wins" won
check "and nothing is left of the others" same "$(left)" "$(listed | wc -w)"
check "not even a snapshot" same "$(held "$mnt/at-once" | tr ' ' '\n' | grep -c '^version-')" 3
for name in twin@1 twin@2 race@2; do
    check "$name is whole" reader version info "$vol" "$name"
    # What is damaged would stand in the way of all that follows.
    k version delete "$vol" "$name" >/dev/null 2>&1 ||
        rm -f "$(store)/name/$(hex "$name")"
done
check "clean up" k version clean "$vol" --older 0s

echo "-- killed"
half=$((FILES / 8))
mkdir "$mnt/large"
py many "$mnt/first" $((half / 2))
for n in $(seq 16); do k clone --eager "$mnt/first" "$mnt/large/$n" >/dev/null; done
begin=$(date +%s%N)
check "a large tree" k publish "$mnt/large" large@0
took=$((($(date +%s%N) - begin) / 1000000))
echo "     $took ms for $(field large@0 '"%d files, %d tables" % (one["files"], one["tables"])')"
expected=$(find "$mnt/large" | wc -l)
# whole NAME: it has every name.
whole() {
    show "$1" "$ver" >/dev/null || return
    same "$(find "$ver" | wc -l)" "$expected" || return
    same "$(py sums "$ver/3")" "$(py sums "$mnt/first")" || return
    hide "$ver"
}
check "it is whole" whole large@0
names=large@0
for n in $(seq "$ROUNDS"); do
    what=all
    from=$mnt/large
    if [ -n "$SERVING" ] && [ $((n % 3)) = 1 ]; then what=server; fi
    if [ -n "$SERVING" ] && [ $((n % 3)) = 2 ]; then what=client from=$(place large); fi
    (KESTREL_STATE_DIR=$WORK/a exec "$KESTREL" publish "$from" "large@$n") \
        >"$WORK/killed.out" 2>&1 &
    job=$!
    sleep "$(ms "$(random 0 $((took * 11 / 10)))")"
    case $what in
        all) kill_all ;;
        server) kill_server "$volume" ;;
        # Without a mount the command itself is a client, and publishes.
        client) kill -9 "$job" 2>/dev/null || true ;;
    esac
    case $what in
        all) up ;;
        server) start_server "$volume" ;;
    esac
    status=0
    wait "$job" || status=$?
    found=$(listed "large@$n")
    if [ -n "$found" ]; then
        check "round $n, $what killed: the whole version is there" whole "large@$n"
    else
        check "round $n, $what killed: nothing is there" test "$status" != 0
        echo "     $(tail -n 1 "$WORK/killed.out" | cut -c1-150)"
    fi
    check "clean up" k version clean "$vol" --older 0s
    echo "     $(cat "$WORK/check.out")"
    [ -z "$found" ] || names+=" large@$n"
    check "no data is left" same "$(left)" "$(listed | wc -w)"
    check "nor a snapshot" same "$(held "$mnt/large" | wc -w)" "$(wc -w <<<"$names")"
    if [ -z "$found" ]; then
        check "it is published again" k publish "$mnt/large" "large@$n"
        names+=" large@$n"
        check "and is whole" whole "large@$n"
    fi
    if [ "$n" = 3 ]; then
        for name in $names; do check "$name is deleted" k version delete "$vol" "$name"; done
        names=''
        check "nothing of it is held" soon same "$(held "$mnt/large")" ""
    fi
done

if [ -z "$SERVING" ]; then
    echo "-- kill -9 at named points"
    mkdir "$mnt/points"
    for n in $(seq 200); do echo "$n" >"$mnt/points/$n"; done
    cp -a "$mnt/points" "$WORK/points"
    at_points() {
        show "$1" "$ver" >/dev/null && diff -r "$WORK/points" "$ver" && hide "$ver"
    }
    # dies_at POINT COMMAND…: the mount's process is killed there while it does this.
    dies_at() {
        local point=$1
        shift
        down
        KESTREL_CRASH_AT=$point:1 up
        check "$point: killed" not k "$@"
        umount -l "$mnt"
        up
    }
    for point in held written; do
        dies_at "version.$point" publish "$mnt/points" point@1
        check "$point: no version" same "$(listed point)" ""
        check "$point: cleaned up" k version clean "$vol" --older 0s
        check "$point: no snapshot" soon same "$(held "$mnt/points")" ""
    done
    dies_at version.named publish "$mnt/points" point@1
    check "named: the version is whole" at_points point@1
    dies_at version.renamed version rename "$vol" point@1 point@2
    check "renamed: both names" same "$(listed point)" "point@1 point@2"
    check "renamed: one is deleted" k version delete "$vol" point@1
    check "renamed: the other is whole" at_points point@2
    dies_at version.unnamed version delete "$vol" point@2
    check "unnamed: no version" same "$(listed point)" ""
    check "unnamed: cleaned up" prints "^1 left-over" k version clean "$vol" --older 0s
    check "unnamed: no snapshot" soon same "$(held "$mnt/points")" ""
    check "removed: published" k publish "$mnt/points" point@3
    dies_at version.removed version delete "$vol" point@3
    check "removed: the snapshot is held" test -n "$(held "$mnt/points")"
    check "removed: cleaned up" prints "1 snapshots released" k version clean "$vol" --older 0s
    check "removed: no snapshot" soon same "$(held "$mnt/points")" ""
    check "no data is left" same "$(left)" "$(listed | wc -w)"
fi

echo "-- inputs and clones"
mkdir "$mnt/raw"
echo raw >"$mnt/raw/file"
check "publish" k publish "$mnt/raw" raw@1
check "publish with an input" k publish "$mnt/raw" clean@1 --input raw@1
check "and one with two" k publish "$mnt/raw" set@1 --input clean@1 --input raw@1
refuses "an input that there is not" "input none@1.*no version" \
    k publish "$mnt/raw" bad@1 --input none@1
refuses "one that is there twice" "raw@1 is there twice" \
    k publish "$mnt/raw" bad@1 --input raw@1 --input raw@1
check "neither was published" same "$(listed bad)" ""
check "lineage" same "$(k version lineage "$vol" set@1)" $'set@1\n  clean@1\n    raw@1\n  raw@1'
check "and what is made from one" prints "used by clean@1, set@1" k version lineage "$vol" raw@1
check "an input is renamed" k version rename "$vol" raw@1 raw@old
check "and another is deleted" k version delete "$vol" clean@1
check "lineage" same "$(k version lineage "$vol" set@1)" $'set@1\n  clean@1  (deleted)\n  raw@old'
check "a version is cloned" k clone "$(version set@1)" "$mnt/cloned"
check "and has its file" test "$(cat "$mnt/cloned/file")" = raw
echo more >"$mnt/cloned/file"
check "the version does not change" same "$(cat "$mnt/raw/file")" raw
refuses "a clone of a version that there is not" "no version never@1" \
    k clone "$(version never@1)" "$mnt/cloned-2"
refuses "a clone with a name that is taken" "taken" k clone "$(version set@1)" "$mnt/cloned"
check "a clone without a mount's path" k clone "$(version set@1)" "$(place cloned-3)" --eager
check "and has its file" test "$(cat "$mnt/cloned-3/file")" = raw
k rm -r "$mnt/cloned" "$mnt/cloned-3" "$mnt/raw"
for name in set@1 raw@old; do k version delete "$vol" "$name"; done

echo "-- cleaned up while it is written"
for n in 1 2 3; do
    (sleep "0.0$((n * 2))" && k version clean "$vol" --older 0s >/dev/null 2>&1) &
    job=$!
    if k publish "$mnt/large" "swept@$n" >"$WORK/swept.out" 2>&1; then
        check "it is whole" whole "swept@$n"
        k version delete "$vol" "swept@$n"
    else
        check "it says so: $(tail -n 1 "$WORK/swept.out" | cut -c1-150)" same \
            "$(listed "swept@$n")" ""
    fi
    wait "$job" || true
done
check "clean up" k version clean "$vol" --older 0s
check "no data is left" same "$(left)" "$(listed | wc -w)"
check "nor a snapshot" same "$(held "$mnt/large" | wc -w)" "$(wc -w <<<"$names")"
check "clean up leaves what is recent" k version clean "$vol"

if [ -n "${VERSIONS_BUCKET:-}" ]; then
    echo "-- a cache on a local disk"
    check "publish" k publish "$mnt/first" cached@1
    cache=(--cache-dir "$WORK/cache" --free-space-ratio 0)
    check "mount" show cached@1 "$ver" "${cache[@]}"
    right=$(py sums "$mnt/first")
    check "its names and bytes" same "$(py sums "$ver")" "$right"
    check "unmount" hide "$ver"
    check "mount again" show cached@1 "$ver" "${cache[@]}"
    reset_counts
    check "its names and bytes" same "$(py sums "$ver")" "$right"
    check "ask the store for nothing" same "$(count requests get)" 0
    check "unmount" hide "$ver"
    echo "-- a store that fails"
    for n in 1 2 3 4; do
        faults 'lost-answer:kind=put,rate=0.5'
        check "publish with lost answers" k publish "$mnt/first" "lost@$n"
        check "rename with lost answers" k version rename "$vol" "lost@$n" "found@$n"
        no_faults
        check "it is there" same "$(listed "found@$n")$(listed lost)" "found@$n"
        check "it is mounted" show "found@$n" "$ver"
        check "and whole" same "$(py sums "$ver")" "$(py sums "$mnt/first")"
        check "and unmounted" hide "$ver"
    done
    faults 'status:code=503,error=SlowDown,rate=0.2'
    check "publish to a slow store" k publish "$mnt/first" slow@1
    check "mount from it" show slow@1 "$ver"
    check "its names and bytes" same "$(py sums "$ver")" "$(py sums "$mnt/first")"
    check "and unmounted" hide "$ver"
    no_faults
fi

echo "-- another volume"
if [ -z "${VERSIONS_BUCKET:-}" ] && [ -z "$SERVING" ]; then
    other=$WORK/another
    make_volume "$other"
    cp -r "$(store)" "$other/objects/versions"
    refuses "versions of another volume" "belongs to the volume" \
        reader mount "$other//two@1" "$ver"
    rm -rf "$other"
fi

echo "-- the end"
equals "the first version after all" "$old"
check "and unmounted" hide "$old"
for name in $(listed); do check "delete $name" k version delete "$vol" "$name"; done
check "no version is left" same "$(listed)" ""
check "no data is left" same "$(left)" 0
none_held() {
    ! all_snapshots | grep -v ' 0 ' | grep -q False
}
check "no snapshot is held" soon none_held
check "gc --delete" gc_live
check "unmounts" umount_volume "$mnt"
if [ -n "${VERSIONS_BUCKET:-}" ]; then
    check "fsck --data finds nothing" k fsck "$vol" --data
else
    check "fsck --data finds nothing" fsck_volume "$volume" --data
fi
summary
