#!/usr/bin/env bash
# Large directories: what `ls -f`, `find` and the pages of `kestrel ls` tell is what was made, also
# while other processes create and remove names, and in a snapshot; `rm -rf` while others list
# leaves nothing; what `kestrel ls` refuses. And which directories grow, by `kestrel du`.
#
# NAMES: how many names (default 20000).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
NAMES=${NAMES:-20000}
make_volume "$volume"
mount_volume "$volume" "$mnt"
# Users other than root run it, too.
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"
dirs() { counted python3 "$ROOT/tests/posix/large_dirs.py" "$KESTREL" "$1" "${@:2}"; }
as_user() {
    setpriv --reuid 1234 --regid 1234 --clear-groups "${@}"
}

mkdir "$mnt/d"
dirs make "$mnt/d" "$NAMES"
echo "-- as it is"
dirs listings "$mnt/d" "$mnt/d" "$NAMES"
echo "-- while others create and remove"
dirs churn "$mnt/d" "$NAMES"

echo "-- snapshot"
mkdir "$mnt/d/.snap/one"
rm "$mnt/d/n000001" "$mnt/d/n000100"
echo new >"$mnt/d/n000001"
dirs listings "$mnt/d/.snap/one" "$mnt/d/.snap/one" "$NAMES"

echo "-- odd names, attributes"
mkdir "$mnt/odd" "$mnt/odd/sub"
dirs odd "$mnt/odd"

echo "-- refused"
list=("$KESTREL" ls)
refuses "a file" "not a directory" "${list[@]}" "$mnt/d/n000002"
refuses "nothing" "No such file" "${list[@]}" "$mnt/none"
refuses "no mount" "not in a KestrelFS mount" "${list[@]}" /
refuses "the directory of snapshots" "snapshot list" "${list[@]}" "$mnt/d/.snap"
refuses "no name" "not a valid name" "${list[@]}" "$mnt/d" --after ""
refuses "a path for a name" "not a valid name" "${list[@]}" "$mnt/d" --after a/b
refuses "a name too long" "255" "${list[@]}" "$mnt/d" --after "$(printf 'x%.0s' {1..256})"
refuses "no entries" "0 is not in" "${list[@]}" "$mnt/d" --limit 0
refuses "another user by a path in the mount" "only root and the user of the mount" \
    as_user "$WORK/kestrel" ls "$mnt/d"
if [ -n "$SERVING" ]; then
    url=$(serve_url "$volume")
    dirs listings "$url:/d/.snap/one" "$mnt/d/.snap/one" "$NAMES"
    chmod 700 "$mnt/odd"
    refuses "no permission to list" "permission" as_user "$WORK/kestrel" ls "$url:/odd"
    chmod 755 "$mnt/odd"
    refuses "nothing by URL" "no such" "${list[@]}" "$url:/none"
    refuses "a file by URL" "not a directory" "${list[@]}" "$url:/d/n000002"
fi

echo "-- growth"
mkdir -p "$mnt/grown/a" "$mnt/grown/b"
head -c 1000 /dev/zero >"$mnt/grown/a/x"
head -c 2000 /dev/zero >"$mnt/grown/b/y"
refuses "growth without a snapshot" "no snapshot" \
    "$KESTREL" du "$mnt/grown" --top 9 --by growth
mkdir "$mnt/grown/.snap/base"
head -c 5000 /dev/zero >"$mnt/grown/a/z"
rm "$mnt/grown/b/y"
mkdir "$mnt/grown/new"
head -c 300 /dev/zero >"$mnt/grown/new/w"
# growth COMMAND…: path, bytes and files of each directory that is not as it was.
growth() {
    "$KESTREL" du "$@" --top 9 --by growth --json | python3 -c '
import json, sys
for one in json.load(sys.stdin)["dirs"]:
    grown = (one["growth_bytes_here"], one["growth_files_here"])
    if any(grown):
        print(one["path"], *grown)' | tr '\n' ' '
}
# grows TEXT EXPECTED COMMAND…
grows() {
    local found
    found=$(growth "${@:3}")
    if [ "$found" = "$2" ]; then ok "$1"; else fail "$1: $found"; fi
}
grows "since the newest snapshot" "a 5000 1 new 300 1 b -2000 -1 " "$mnt/grown"
mkdir "$mnt/grown/.snap/later"
head -c 7 /dev/zero >>"$mnt/grown/b/v"
grows "since a later one" "b 7 1 " "$mnt/grown"
grows "since the first one" "a 5000 1 new 300 1 b -1993 0 " "$mnt/grown" --since base
check "growth for people" "$KESTREL" du "$mnt/grown" --top 2 --by growth --since base
refuses "growth since no snapshot" "no snapshot" \
    "$KESTREL" du "$mnt/grown" --top 9 --by growth --since none
refuses "--since without growth" "for --by growth" "$KESTREL" du "$mnt/grown" --top 9 --since base
[ -z "$SERVING" ] ||
    grows "by URL" "a 5000 1 new 300 1 b -1993 0 " --volume "$url" /grown --since base
echo "-- rm -rf while others list"
dirs remove "$mnt/d"
if [ -z "$SERVING" ]; then
    echo "-- at rest"
    umount_volume "$mnt"
    check "at rest, by the volume's directory" "${list[@]}" "$volume:/odd" --limit 1
    grows "growth at rest" "a 5000 1 new 300 1 b -1993 0 " --volume "$volume" /grown --since base
    mount_volume "$volume" "$mnt"
fi
rmdir "$mnt/grown/.snap/"*
close_and_check "$volume" "$mnt"
summary
