#!/usr/bin/env bash
# `kestrel snapshot`: its verbs on a directory in a mount, on a volume by its directory, on one at
# rest and on a served one; what it refuses; what users may that are not root; schedules; and what
# `diff` tells.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
# Users other than root run it, too.
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"
snap=("$KESTREL" snapshot)

# as USER COMMAND…
as() {
    setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"
}
# prints TEXT COMMAND…: exactly this, and it succeeds.
prints() {
    local text=$1 out
    shift
    out=$("$@" 2>&1) || { echo "$out" && return 1; }
    [ "$out" = "$text" ] || { echo "printed: $out" && return 1; }
}
# names DIR…: what a list has, without times and marks, in one line.
names() {
    "${snap[@]}" list "$@" --json | python3 -c '
import json, sys
print(*[one["shown"] for one in json.load(sys.stdin)["snapshots"] if not one["removing"]])'
}
# has LIST DIR: the names there, or what a command says.
has() {
    local found
    found=$(names "$2")
    [ "$found" = "$1" ] || { echo "listed: $found" && return 1; }
}
# field DIR NAME EXPRESSION: of `info --json`, as Python prints it.
field() {
    "${snap[@]}" info "$1" "$2" --json | python3 -c "
import json, sys
one = json.load(sys.stdin)
print($3)"
}
# soon COMMAND…: it succeeds within 30 s.
soon() {
    local end=$((SECONDS + 30))
    until "$@" >"$WORK/soon.out" 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { cat "$WORK/soon.out" && return 1; }
        sleep 0.1
    done
}

mkdir -p "$mnt/d/sub" "$mnt/other"
echo one >"$mnt/d/f"
echo two >"$mnt/d/sub/g"

# Make, list, look at.
check "create prints its path" prints "$mnt/d/.snap/first" "${snap[@]}" create "$mnt/d" first
rm "$mnt/d/f"
check "what was removed is in it" grep -qx one "$mnt/d/.snap/first/f"
check "a second one" "${snap[@]}" create "$mnt/d" second
check "both are listed, the older one first" has "first second" "$mnt/d"
check "as .snap has them" prints "first
second" ls "$mnt/d/.snap"
inode=$(stat -c %i "$mnt/d")
check "a directory below shows them" has "_first_$inode _second_$inode" "$mnt/d/sub"
check "another directory has none" has "" "$mnt/other"
refuses "a list without snapshots says what makes one" 'kestrel snapshot create' \
    bash -c "'$KESTREL' snapshot list '$mnt/other'; exit 1"
check "the working directory" bash -c "cd '$mnt/d' && '$KESTREL' snapshot list | grep -q second"
check "info counts its tree" prints "2 1 9" field "$mnt/d" first \
    'one["tree"]["files"], one["tree"]["directories"], one["tree"]["bytes"] + 1'
check "info for people" bash -c "
    '$KESTREL' snapshot info '$mnt/d' first | grep -q '^snapshot *first'"
check "info of one from above" prints first field "$mnt/d/sub" "_first_$inode" 'one["name"]'

# What is refused, and what the message says.
refuses "a name that is taken" 'kestrel snapshot list' "${snap[@]}" create "$mnt/d" first
refuses "an empty name" '1 to 255 bytes' "${snap[@]}" create "$mnt/d" ""
refuses "a name that is too long" '1 to 255 bytes' "${snap[@]}" create "$mnt/d" \
    "$(printf 'n%.0s' {1..256})"
check "the longest name" "${snap[@]}" create "$mnt/other" "$(printf 'n%.0s' {1..255})"
check "is removed again" "${snap[@]}" remove "$mnt/other" "$(printf 'n%.0s' {1..255})"
for name in a/b . .. @ a@b _a; do
    refuses "the name $name" 'without a slash|no @' "${snap[@]}" create "$mnt/d" "$name"
    refuses "to rename to $name" 'without a slash|no @' "${snap[@]}" rename "$mnt/d" first "$name"
done
wrong_usage() {
    local status=0
    "${snap[@]}" create "$mnt/d" _a 2>/dev/null || status=$?
    [ "$status" = 2 ]
}
check "a wrong name is wrong usage" wrong_usage
refuses "a file" 'not a directory' "${snap[@]}" create "$mnt/d/sub/g" x
refuses "a directory that is not there" 'neither a volume nor' "${snap[@]}" create "$mnt/absent" x
refuses "a directory in no mount" 'not in a KestrelFS mount' "${snap[@]}" create "$WORK" x
refuses "a directory in a snapshot" 'without .snap' "${snap[@]}" create "$mnt/d/.snap/first/sub" x
for act in "remove $mnt/d absent" "rename $mnt/d absent x" "info $mnt/d absent" \
    "hold $mnt/d absent tag" "release $mnt/d absent tag" "release $mnt/d first absent" \
    "diff $mnt/d absent"; do
    # shellcheck disable=SC2086
    refuses "not there: ${act//$mnt/}" 'kestrel snapshot (list|info)' "${snap[@]}" $act
done
refuses "to rename to one that is there" 'kestrel snapshot list' "${snap[@]}" rename "$mnt/d" \
    first second

# Rename, hold, release, remove.
check "rename" "${snap[@]}" rename "$mnt/d" first "new name"
check "it has the new name" has "new name second" "$mnt/d"
check "and is what it was" grep -qx one "$mnt/d/.snap/new name/f"
check "hold" "${snap[@]}" hold "$mnt/d" second paper
check "hold by a second tag" "${snap[@]}" hold "$mnt/d" second thesis
refuses "the same tag again" 'already' "${snap[@]}" hold "$mnt/d" second paper
check "the tags are told" prints "paper thesis" field "$mnt/d" second '*one["holds"]'
check "the list marks it" bash -c "
    '$KESTREL' snapshot list '$mnt/d' | grep -q 'held: paper, thesis'"
refuses "a held one is not removed" 'kestrel snapshot release' "${snap[@]}" remove "$mnt/d" second
refuses "nor by rmdir" 'busy' rmdir "$mnt/d/.snap/second"
check "release" "${snap[@]}" release "$mnt/d" second paper
refuses "one tag is left" 'kestrel snapshot release' "${snap[@]}" remove "$mnt/d" second
check "release the last" "${snap[@]}" release "$mnt/d" second thesis
refuses "of two, the one that is there goes" 'absent|no such|no snapshot|kestrel snapshot list' \
    "${snap[@]}" remove "$mnt/d" absent second
check "it is gone" has "new name" "$mnt/d"
check "remove" "${snap[@]}" remove "$mnt/d" "new name"
check "none is left" has "" "$mnt/d"
check "the name is free" "${snap[@]}" create "$mnt/d" "new name"
check "and is that of the new one" prints "1 1" field "$mnt/d" "new name" \
    'one["tree"]["files"], one["tree"]["directories"]'
"${snap[@]}" remove "$mnt/d" "new name"

# Users. The directory's owner may, others may not; .snap serves those that may not ask the process.
mkdir "$mnt/alice"
chown 1000:1000 "$mnt/alice"
user=("$WORK/kestrel" snapshot)
check "the owner of a directory" as 1000 "${user[@]}" create "$mnt/alice" mine
check "the owner lists it" prints mine as 1000 "${user[@]}" list "$mnt/alice"
refuses "another user" 'owner' as 1001 "${user[@]}" create "$mnt/alice" theirs
refuses "another user that removes" 'owner' as 1001 "${user[@]}" remove "$mnt/alice" mine
refuses "another user that renames" 'owner' as 1001 "${user[@]}" rename "$mnt/alice" mine theirs
refuses "the owner, of a taken name" 'another name' as 1000 "${user[@]}" create "$mnt/alice" mine
refuses "the owner, of an absent one" 'kestrel snapshot list' as 1000 "${user[@]}" remove \
    "$mnt/alice" absent
refuses "the owner, for what .snap cannot" 'root' as 1000 "${user[@]}" hold "$mnt/alice" mine tag
refuses "the owner, for info" 'root' as 1000 "${user[@]}" info "$mnt/alice" mine
check "the owner renames" as 1000 "${user[@]}" rename "$mnt/alice" mine own
check "the owner removes" as 1000 "${user[@]}" remove "$mnt/alice" own

# A volume by its directory, and a removed directory by its number.
check "by the volume's directory" prints "$volume:/d@by-volume" "${snap[@]}" create "$volume:/d" \
    by-volume
check "the mount has it" test -e "$mnt/d/.snap/by-volume/sub/g"
check "the root" "${snap[@]}" create "$volume" whole
check "below another directory" "${snap[@]}" create "$mnt/d/sub" deep
check "all of the volume, with paths" bash -c "
    '$KESTREL' snapshot list '$volume' | grep -q '  /d  by-volume' &&
    '$KESTREL' snapshot list '$volume' | grep -q '  /d/sub  deep' &&
    '$KESTREL' snapshot list '$volume' | grep -q '  /  whole'"
check "its removal" "${snap[@]}" remove "$mnt/d/sub" deep
refuses "a path that leads nowhere" 'no such|not exist' "${snap[@]}" list "$volume:/absent"
refuses "a path to a file" 'not a directory' "${snap[@]}" list "$volume:/d/sub/g"
ln -s d "$mnt/link"
mkdir "$mnt/short-lived"
number=$(stat -c %i "$mnt/short-lived")
check "of a directory that goes" "${snap[@]}" create "$mnt/short-lived" last
rmdir "$mnt/short-lived"
check "its snapshot is listed by number" bash -c "
    '$KESTREL' snapshot list '$volume' | grep -q '  #$number  last'"
check "and removed by number" "${snap[@]}" remove "$volume:#$number" last
refuses "no number" 'inode number' "${snap[@]}" list "$volume:#x"

# Schedules.
check "no schedule" bash -c "'$KESTREL' snapshot schedule '$mnt/d' | grep -q '^off; .*1h=24'"
for rules in 1h 1h=0 0h=1 1x=1 1h=1,60m=2 =1 ""; do
    refuses "the schedule '$rules'" 'period|rule' "${snap[@]}" schedule "$mnt/d" "$rules"
done
refuses "rules and --off" 'cannot be used with' "${snap[@]}" schedule "$mnt/d" 1h=1 --off
refuses "the schedule of a file" 'not a directory' "${snap[@]}" schedule "$mnt/d/sub/g" 1h=1
refuses "a user that is not its owner" 'owner|root' as 1001 "${user[@]}" schedule "$mnt/d" 1h=1
# Old ones, as if the schedule had made them; the third is held, the fourth is none of its own.
for name in auto-1w-2020-01-06T00:00Z auto-1w-2020-01-13T00:00Z auto-1w-2020-01-20T00:00Z \
    auto-1d-2020-01-01T00:00Z; do
    "${snap[@]}" create "$mnt/d" "$name" >/dev/null
done
"${snap[@]}" hold "$mnt/d" auto-1w-2020-01-06T00:00Z keep
# A server hears within minutes of what was set through a mount, and at once of this.
place=$mnt/d
[ -z "$SERVING" ] || place=$volume:/d
check "a schedule reads back in its longest units" prints "1w=2,52w=1" "${snap[@]}" schedule \
    "$place" 364d=1,7d=2
check "it is on record" prints "1w=2,52w=1" "${snap[@]}" schedule "$mnt/d"
check "for programs, too" bash -c "
    '$KESTREL' snapshot schedule '$mnt/d' --json | grep -q '\"schedule\": \"1w=2,52w=1\"'"
check "as an attribute that the owner sets" bash -c "
    [ \"\$(getfattr --only-values -n kestrel.snapshot-schedule '$mnt/d')\" = 1w=2,52w=1 ]"
refuses "the attribute of another user" 'not permitted' as 1001 setfattr \
    -n kestrel.snapshot-schedule -v 1h=1 "$mnt/d"
# made PERIOD: how many snapshots there are with names of that period.
made() {
    names "$mnt/d" | tr ' ' '\n' | grep -c "^auto-$1-2[0-9][0-9][0-9]-" || true
}
kept_two() {
    [ "$(made 1w)" = 3 ] && [ "$(made 52w)" = 1 ] || { names "$mnt/d" && return 1; }
}
check "one was made for each rule, old ones went" soon kept_two
check "the held one and that of no rule stay" bash -c "
    ls '$mnt/d/.snap' | grep -q auto-1w-2020-01-06T00:00Z &&
    ls '$mnt/d/.snap' | grep -q auto-1w-2020-01-20T00:00Z &&
    ! ls '$mnt/d/.snap' | grep -q auto-1w-2020-01-13T00:00Z &&
    ls '$mnt/d/.snap' | grep -q auto-1d-2020-01-01T00:00Z"
check "status tells of it" bash -c "
    '$KESTREL' status '$volume' --json | grep -q '\"scheduled_directories\": *1'"
check "off" "${snap[@]}" schedule "$mnt/d" --off
check "it is off" bash -c "'$KESTREL' snapshot schedule '$mnt/d' | grep -q ^off"
check "what was made stays" kept_two
# Set again; another process takes it up.
"${snap[@]}" schedule "$mnt/d" 1w=2 >/dev/null
kill_mount "$volume" "$mnt"
[ -z "$SERVING" ] || start_server "$volume"
mount_volume "$volume" "$mnt"
# Of several nodes it is taken up by the one that has its row.
taken_up() {
    local node
    for ((node = 1; node <= ${KESTREL_NODES:-1}; node++)); do
        "$KESTREL" status "$(node_dir "$volume" "$node")" --json |
            grep -q '"scheduled_directories": *1' && return
    done
    return 1
}
check "after kill -9 the next process goes on with it" soon taken_up
check "and makes none twice" kept_two
"${snap[@]}" schedule "$mnt/d" --off >/dev/null

# What differs.
mkdir -p "$mnt/t/dir/below" "$mnt/t/away"
for name in same changed touched gone moved dir/below/deep; do echo text >"$mnt/t/$name"; done
head -c 20000000 /dev/urandom >"$mnt/t/large"
ln "$mnt/t/same" "$mnt/t/link"
"${snap[@]}" create "$mnt/t" a >/dev/null
echo other >"$mnt/t/changed"
chmod 600 "$mnt/t/touched"
rm "$mnt/t/gone"
mv "$mnt/t/moved" "$mnt/t/dir/moved there"
mv "$mnt/t/dir/below" "$mnt/t/away/"
mkdir "$mnt/t/made"
echo x >"$mnt/t/made/$(printf 'two\nlines')"
printf x | dd of="$mnt/t/large" bs=1 seek=9000000 conv=notrunc status=none
sync -f "$mnt/t"
"${snap[@]}" create "$mnt/t" b >/dev/null
touch "$mnt/t/later"
tab=$'\t'
expected="R${tab}dir/below/${tab}away/below/
M${tab}changed
R${tab}moved${tab}dir/moved there
-${tab}gone
M${tab}large
+${tab}made/
+${tab}made/two
lines
M${tab}touched"
check "diff" prints "$expected" "${snap[@]}" diff "$mnt/t" a b
check "diff by paths" prints "$expected" "${snap[@]}" diff "$mnt/t/.snap/a" "$mnt/t/.snap/b"
check "diff with now" prints "+${tab}later" "${snap[@]}" diff "$mnt/t" b
exec 7>>"$mnt/t/changed"
printf more >&7
check "S11 diff with now, of a file that is open and not flushed" \
    prints "M${tab}changed
+${tab}later" "${snap[@]}" diff "$mnt/t" b
exec 7>&-
check "backwards" bash -c "'$KESTREL' snapshot diff '$mnt/t' b a | grep -qx '+${tab}gone'"
check "of nothing" prints "" "${snap[@]}" diff "$mnt/t" a a
with_nul() {
    "${snap[@]}" diff "$mnt/t" a b -0 | python3 -c '
import sys
fields = sys.stdin.buffer.read().split(b"\0")
assert fields[-1] == b"" and b"made/two\nlines" in fields, fields
assert fields[:3] == [b"R", b"dir/below/", b"away/below/"], fields'
}
check "with NUL" with_nul
in_json() {
    "${snap[@]}" diff "$mnt/t" a b --json --data | python3 -c '
import json, sys
found = {one["path"]: one for one in json.load(sys.stdin)["differences"]}
assert found["made/two\nlines"]["what"] == "created", found
assert found["dir/moved there"]["from"] == "moved", found
assert found["touched"]["attributes"] and not found["touched"]["content"], found
assert found["changed"]["content"], found
ranges = found["large"]["ranges"]
assert any(at <= 9000000 < at + size for at, size in ranges), ranges
assert sum(size for _, size in ranges) < 5000000, ranges'
}
check "as JSON, with ranges" in_json
check "of a directory below" prints "" "${snap[@]}" diff "$mnt/t/away" \
    "_b_$(stat -c %i "$mnt/t")"
refuses "of different directories" 'different directories' "${snap[@]}" diff "$mnt/t/.snap/a" \
    "$mnt/d/.snap/by-volume"
refuses "without a snapshot" 'give DIR' "${snap[@]}" diff "$mnt/t"

# A diff reads what has changed, whatever else there is.
mkdir "$mnt/many"
for dir in $(seq 200); do
    mkdir "$mnt/many/$dir"
    (cd "$mnt/many/$dir" && touch 1 2 3)
done
mkdir -m 755 "$mnt/many/open" "$mnt/many/x"
mkdir -p "$mnt/many/x/in/deep"
echo linked >"$mnt/many/7/first"
ln "$mnt/many/7/first" "$mnt/many/8/second"
head -c 3000000 /dev/urandom >"$mnt/many/9/freed"
sync -f "$mnt/many"
"${snap[@]}" create "$mnt/many" a >/dev/null
echo more >>"$mnt/many/8/second"
mv "$mnt/many/5/1" "$mnt/many/5/renamed"
mv "$mnt/many/x/in" "$mnt/many/open/in"
rmdir "$mnt/many/x"
chmod 750 "$mnt/many/6"
rm "$mnt/many/9/freed"
touch "$mnt/many/10/new" && rm "$mnt/many/10/new"
mkfifo "$mnt/many/11/fifo"
sync -f "$mnt/many"
requests() { "$KESTREL" stats --once --json "$mnt" |
    sed -n 's/.*"metadata_requests_total": *\([0-9]*\).*/\1/p'; }
expected_many="M${tab}10/
+${tab}11/fifo
R${tab}5/1${tab}5/renamed
M${tab}6/
M${tab}7/first
M${tab}8/second
-${tab}9/freed
R${tab}x/in/${tab}open/in/
-${tab}x/"
before=$(requests)
check "diff of some changes among many names" prints "$expected_many" \
    "${snap[@]}" diff "$mnt/many" a
asked=$(($(requests) - before))
# Of several nodes none knows all that has changed: there it walks.
if [ "${KESTREL_NODES:-1}" = 1 ]; then
    check "and it does not walk ($asked requests)" [ "$asked" -lt 20 ]
fi
"${snap[@]}" create "$mnt/many" b >/dev/null
rm -r "$mnt/many/12"
check "the same between two snapshots" prints "$expected_many" "${snap[@]}" diff "$mnt/many" a b
check "a tree that is gone" prints "$(printf -- '-\t12/%s\n' '' 1 2 3)" \
    "${snap[@]}" diff "$mnt/many" b
check "and back" prints "$(printf '+\t12/%s\n' '' 1 2 3)" bash -c "
    mkdir '$mnt/none' && '$KESTREL' snapshot create '$mnt/many' c >/dev/null &&
    '$KESTREL' snapshot diff '$mnt/many' c b"
check "info tells what removal gives back" prints "True False" field "$mnt/many" a \
    'one["removal"]["bytes"] >= 3000000, one["removal"]["bytes"] > 4000000'
check "info tells it to people" bash -c "
    '$KESTREL' snapshot info '$mnt/many' a | grep -q '^removal *gives back at most'"

# By URL, and with a token that confines.
if [ -n "$SERVING" ]; then
    url=$(serve_url "$volume")
    check "by URL" prints "$url:/t@by-url" "${snap[@]}" create "$url:/t" by-url
    check "the mount has it" test -e "$mnt/t/.snap/by-url/same"
    check "list by URL" has "a b by-url" "$url:/t"
    check "diff by URL" prints "$expected" "${snap[@]}" diff "$url:/t" a b
    check "diff by URL, of many names" prints "$expected_many" "${snap[@]}" diff "$url:/many" a b
    check "remove by URL" "${snap[@]}" remove "$url:/t" by-url
    check "all of the volume by URL, with paths" bash -c "
        '$KESTREL' snapshot list '$url' | grep -q '  /d  by-volume' &&
        '$KESTREL' snapshot list '$url' | grep -q '  /  whole'"
    (umask 077 && "$KESTREL" token create "$volume" --name viewer --read-only >"$WORK/viewer")
    refuses "a read-only token makes none" 'read-only|not allowed' "${snap[@]}" create "$url:/t" x \
        --token-file "$WORK/viewer"
    check "and lists them" bash -c "'$KESTREL' snapshot list '$url:/t' --token-file '$WORK/viewer' |
        grep -q 'Z  a$'"
    (umask 077 && "$KESTREL" token create "$volume" --name tenant --subtree /t >"$WORK/tenant")
    refuses "a token confined to a subtree" 'subtree' "${snap[@]}" list "$url:/" \
        --token-file "$WORK/tenant"
fi

# Through a read-only mount nothing is made.
umount_volume "$mnt"
mount_volume "$volume" "$mnt" --read-only
refuses "a read-only mount" 'read-only' "${snap[@]}" create "$mnt/t" x
check "and it lists" has "a b" "$mnt/t"
umount_volume "$mnt"

# At rest: the verb opens the volume itself.
if [ -z "$SERVING" ]; then
    check "at rest" prints "$volume:/t@rest" "${snap[@]}" create "$volume:/t" rest
    check "list at rest" has "a b rest" "$volume:/t"
    check "diff at rest" prints "$expected" "${snap[@]}" diff "$volume:/t" a b
    check "schedule at rest" prints 1d=7 "${snap[@]}" schedule "$volume:/t" 1d=7
    check "remove at rest" "${snap[@]}" remove "$volume:/t" rest
    check "schedule off at rest" "${snap[@]}" schedule "$volume:/t" --off
fi
mount_volume "$volume" "$mnt"
check "the last ones are intact" cmp "$mnt/t/.snap/a/same" "$mnt/t/.snap/b/link"
close_and_check "$volume" "$mnt"
summary
