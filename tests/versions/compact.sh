#!/usr/bin/env bash
# Compaction of published versions in a bucket: the version that is made has the same names,
# attributes and bytes in one run of tables; workers and whole commands are killed, at named points
# and at random, and the same command goes on where they ended; other machines join; either version
# is deleted; what came to nothing is cleaned up.
#
# ROUNDS: kills at random (default 3). BIG: names of a version of several runs (default 0: none).
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"
rounds=${ROUNDS:-3} big=${BIG:-0}
py=$ROOT/tests/versions/publish.py
mnt=$WORK/mnt ver=$WORK/ver
mkdir "$mnt" "$ver"

# on MACHINE COMMAND…: kestrel there; a machine is a state directory. k: on the one that writes.
on() {
    KESTREL_STATE_DIR=$WORK/$1 timeout 120 "$KESTREL" "${@:2}"
}
k() {
    on a "$@"
}
py() {
    timeout 120 python3 "$py" "$@"
}
vol=$(volume_url versions/compact) query=$(volume_url '')
query=${query#*\?} base=s3://$S3_BUCKET/versions/compact
version() {
    echo "$base//$1?$query"
}
# compact FROM INTO [OPTION…]
compact() {
    k version compact "$(version "$1")" --into "$2" --patience 1s "${@:3}"
}
# field NAME EXPRESSION: of `version info --json`, as Python prints it.
field() {
    on b version info "$vol" "$1" --json | python3 -c "
import json, sys
one = json.load(sys.stdin)
print($2)"
}
listed() {
    on b version list "$vol" --json | python3 -c '
import json, sys
print(*[one["name"] for one in json.load(sys.stdin)["versions"]])'
}
store=$STORE_DIR/$S3_BUCKET/versions/compact/versions
# stored: how many versions have data. plans: how many compactions are under way.
stored() {
    find "$store/data" -mindepth 2 -type f -printf '%P\n' 2>/dev/null | cut -d/ -f1 | sort -u |
        wc -l
}
plans() {
    find "$store/compaction" -type f 2>/dev/null | wc -l
}
# strays NAME: objects of a version that are neither its tables nor its writer's.
strays() {
    local all
    all=$(find "$store/data/$(field "$1" 'one["id"]')" -type f | wc -l)
    echo $((all - $(field "$1" 'one["tables"]') - 1))
}
# tags: on the snapshots of the tree.
tags() {
    k snapshot list "$vol" --json | python3 -c '
import json, sys
print(sum(len(one["holds"]) for one in json.load(sys.stdin)["snapshots"]))'
}
columns='path, kind, size, mode, uid, gid, nlink, inode, mtime_ns, ctime_ns, atime_ns, target'
# rows QUERY: what it finds, to be compared; a query that fails fails.
rows() {
    on b sql "$vol" "$1" --csv >"$WORK/rows" && tail -n +2 "$WORK/rows"
}
# equal ONE OTHER: queries of both have the same rows, and the second has one run.
equal() {
    local what pair one two found
    for what in "$columns from entries" "path, name, value from xattrs"; do
        found=$(rows "select $what where version = '$1' limit 1") || return
        [ -n "$found" ] || [ "${what##* }" = xattrs ] || return
        for pair in "$1 $2" "$2 $1"; do
            two=${pair#* } one=${pair% *}
            found=$(rows "select $what where version = '$one'
                except select $what where version = '$two'") || return
            same "$found" "" || return
        done
    done
    same "$(field "$1" 'one["rows"], one["files"], one["directories"], one["bytes"]')" \
        "$(field "$2" 'one["rows"], one["files"], one["directories"], one["bytes"]')" &&
        same "$(field "$2" 'one["runs"]')" 1
}
show() {
    on b mount "$(version "$1")" "$ver"
}
hide() {
    on b umount "$ver"
}
# mounted NAME: it is what the live tree was.
mounted() {
    show "$1" && py list "$ver/tree" >"$WORK/listing" && hide &&
        py same "$WORK/live" "$WORK/listing"
}

k format "$vol" --grace 1s >/dev/null
k mount "$vol" "$mnt" >/dev/null
mkdir -p "$mnt/all/tree" "$mnt/outside"
py make "$mnt/all/tree" "$mnt/outside/out"
# Enough for several partitions. Listing them takes long.
py many "$mnt/all/more" 12000
k publish "$mnt/all" in@1 >/dev/null
show in@1
py list "$ver/tree" >"$WORK/live"
hide

echo "-- what is made"
check "compact" compact in@1 out@1 --partitions 9 --workers 3 --json
made=$(cat "$WORK/check.out")
check "in nine partitions" same "$(python3 -c '
import json, sys
one = json.loads(sys.argv[1])
print(one["partitions"], one["partitions_found"], one["tables"])' "$made")" "9 0 9"
check "with the same rows" equal in@1 out@1
check "and the same tree in a mount" mounted out@1
check "the input is what it was" mounted in@1
check "it is of the input" same "$(field out@1 'one["inputs"][0]["name"]')" in@1
check "lineage" prints "used by out@1" on b version lineage "$vol" in@1
check "nothing else is in the store" same "$(strays out@1) $(plans) $(stored)" "0 0 2"
check "both hold the snapshot" same "$(tags)" 2
check "the same command again" prints "earlier command" compact in@1 out@1
check "in as many partitions as fit" compact in@1 one@1
check "one" same "$(field one@1 'one["tables"], one["runs"]')" "1 1"
check "a compacted version is compacted" compact out@1 again@1 --workers 2 --partitions 4
check "with the same rows" equal in@1 again@1

echo "-- refusals"
refuses "a name that is taken" "already" compact in@1 in@1
refuses "the same of another input" "already" compact out@1 one@1
refuses "no version" "no version nope" compact nope out@2
refuses "a volume alone" "VOLUME//NAME" k version compact "$vol" --into out@2
refuses "a bad name" "a name has" compact in@1 'a b'
refuses "no worker" "from 1 to" compact in@1 out@2 --workers 0
refuses "no partition" "from 1 to" compact in@1 out@2 --partitions 0
refuses "too little patience" "from 1s" k version compact "$(version in@1)" --into out@2 \
    --patience 10ms
refuses "to join none" "without --join" on b version compact "$(version in@1)" --into out@2 --join
check "nothing came of it" same "$(listed) $(stored) $(plans)" "again@1 in@1 one@1 out@1 4 0"
for name in out@1 one@1 again@1; do check "$name is deleted" k version delete "$vol" "$name"; done
check "its tag goes with it" same "$(tags)" 1

echo "-- kill -9 at named points"
# dies POINT INTO [OPTION…]
dies() {
    (export KESTREL_CRASH_AT=$1 && compact in@1 "$2" --partitions 9 "${@:3}") || [ $? = 137 ]
}
n=0
for point in compact.planned:1 compact.claimed:1 compact.claimed:4 compact.written:1 \
    compact.written:5 compact.recorded:1 compact.recorded:9 version.named:1 compact.named:1; do
    n=$((n + 1))
    check "killed at $point" dies "$point" "point@$n" --workers 1
    done_before=$(find "$store" -name '*-done' | wc -l)
    if [ "${point%.*}" = compact ] && [ "$point" != compact.named:1 ]; then
        check "no version" same "$(listed)" in@1
    fi
    check "the same command goes on" compact in@1 "point@$n" --partitions 9 --workers 1 --json
    found=$(python3 -c 'import json, sys; print(json.load(sys.stdin).get("partitions_found"))' \
        <"$WORK/check.out")
    # One that has its name is not looked at again.
    check "and does nothing twice" same "${found/None/$done_before}" "$done_before"
    check "with the same rows" equal in@1 "point@$n"
    check "nothing is left" same "$(strays "point@$n") $(plans)" "0 0"
    check "deleted" k version delete "$vol" "point@$n"
done
refuses "all of three workers are killed" "no worker is left; the same command goes on" \
    env KESTREL_CRASH_AT=compact.written:2 KESTREL_STATE_DIR="$WORK/a" "$KESTREL" version compact \
    "$(version in@1)" --into all@1 --patience 5s --partitions 9 --workers 3
check "what they did is there" same "$(find "$store" -name '*-done' | wc -l)" 3
check "another machine goes on" on b version compact "$(version in@1)" --into all@1 --join
check "with the same rows" equal in@1 all@1
check "deleted" k version delete "$vol" all@1
k umount "$mnt"
KESTREL_CRASH_AT=compact.held:1 k mount "$vol" "$mnt" >/dev/null
check "the process that has the volume is killed" not compact in@1 held@1
umount -l "$mnt"
k mount "$vol" "$mnt" --take-over >/dev/null
check "nothing has begun" same "$(listed) $(plans)" "in@1 0"
check "clean up" k version clean "$vol" --older 0s
check "one tag is left" same "$(tags)" 1

echo "-- killed at random"
faults "latency:ms=15"
for n in $(seq "$rounds"); do
    (KESTREL_STATE_DIR=$WORK/a exec "$KESTREL" version compact "$(version in@1)" \
        --into "kill@$n" --patience 1s --partitions 12 --workers 3) >"$WORK/killed.out" 2>&1 &
    first=$!
    begun=
    wait_until 20 test -e "$store/compaction" && begun=1
    [ -z "$begun" ] || (KESTREL_STATE_DIR=$WORK/b exec "$KESTREL" version compact \
        "$(version in@1)" --into "kill@$n" --join --workers 2) >"$WORK/joined.out" 2>&1 &
    second=$!
    for _ in 1 2 3; do
        sleep "$(ms "$(random 50 400)")"
        # Children of both, and now and then the commands.
        victims=$(pgrep -P "$first,$second" | shuf -n 1) || true
        [ "$(random 0 3)" != 0 ] || victims+=" $first"
        [ "$(random 0 3)" != 0 ] || victims+=" $second"
        # shellcheck disable=SC2086
        [ -z "$victims" ] || kill -9 $victims 2>/dev/null || true
    done
    wait "$first" || true
    wait "$second" || true
    tables=$(find "$store" -name '*-done' -exec cat {} + | grep -o '"id":[0-9]*' | sort) || true
    done_before=$(wc -w <<<"$tables")
    check "round $n: the same command goes on behind $done_before" \
        compact in@1 "kill@$n" --workers 2
    check "with the same rows" equal in@1 "kill@$n"
    ids=$(python3 -c 'import json, sys
for one in json.load(open(sys.argv[1]))["runs"][0]:
    print("\"id\":%d" % one["id"])' \
        "$store/name/$(printf %s "kill@$n" | od -An -v -tx1 | tr -d ' \n')" | sort)
    check "what was done is not done again" same \
        "$(comm -23 <(sed '/^$/d' <<<"$tables") - <<<"$ids")" ""
    check "deleted" k version delete "$vol" "kill@$n"
done
faults
check "clean up" k version clean "$vol" --older 0s
check "one version is left" same "$(stored) $(plans) $(tags)" "1 0 1"

echo "-- leftovers"
check "killed" dies compact.recorded:3 left@1 --workers 1
check "clean up leaves what is new" k version clean "$vol"
check "so it is there" same "$(stored) $(plans) $(tags)" "2 1 2"
check "clean up" k version clean "$vol" --older 0s
check "now it is gone" same "$(stored) $(plans) $(tags)" "1 0 1"
check "the same command begins anew" compact in@1 left@1 --partitions 3 --json
check "with nothing found" same "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["partitions_found"])' "$WORK/check.out")" 0
check "killed when another one takes the name" dies compact.recorded:9 taken@1 --workers 1
check "it is taken" k publish "$mnt/outside" taken@1
refuses "to go on" "already" compact in@1 taken@1
check "clean up" k version clean "$vol" --older 0s
check "nothing is left of it" same "$(stored) $(plans) $(tags)" "3 0 3"
check "the other one has the name" same "$(field taken@1 'one["inputs"]')" "[]"
check "deleted" k version delete "$vol" taken@1
check "the other input is what it was" equal in@1 left@1

echo "-- either one is deleted"
check "compact" compact in@1 second@1 --partitions 5
rm -r "$mnt/all"
check "the output goes" k version delete "$vol" left@1
k gc "$vol" --delete --grace 0s >/dev/null
check "the input is what it was" mounted in@1
check "the input goes" k version delete "$vol" in@1
k gc "$vol" --delete --grace 0s >/dev/null
check "the output is what the input was" mounted second@1
check "fsck --data" k fsck "$vol" --data
check "lineage" prints "in@1  .deleted" on b version lineage "$vol" second@1
check "the output goes, too" k version delete "$vol" second@1
check "nothing is left" same "$(stored) $(plans) $(tags)" "0 0 0"
no_snapshot() {
    same "$(k snapshot list "$vol" --json | python3 -c '
import json, sys
print(len([one for one in json.load(sys.stdin)["snapshots"] if not one["removing"]]))')" 0
}
check "not even a snapshot" no_snapshot

if [ "$big" != 0 ]; then
    echo "-- several runs"
    mkdir "$mnt/large"
    py many "$mnt/first" 5000
    for n in $(seq $((big / 5000))); do
        k clone --eager "$mnt/first" "$mnt/large/$n" >/dev/null
    done
    check "publish" k publish "$mnt/large" large@1
    echo "     $(field large@1 '"%d rows, %d runs, %d tables" % (one["rows"], one["runs"],
        one["tables"])')"
    check "of several runs" is_more "$(field large@1 'one["runs"]')" 1
    begin=$(date +%s%N)
    check "compact" compact large@1 large@2 --workers 2
    echo "     $((($(date +%s%N) - begin) / 1000000)) ms"
    check "with the same rows" equal large@1 large@2
fi
k umount "$mnt"
summary
