#!/usr/bin/env bash
# Mounts with --read-only of a volume in a bucket follow the one that writes. Followers reach the
# store by a proxy of their own, which refuses whatever would change something. Writers are killed
# and replaced, followers stopped, the store goes away; what followers show is compared with what
# the writer acknowledged (follow.py).
#
# STORM: seconds of each storm of changes (default 2). PROCESSES: how many make them (3). LATENCY:
# milliseconds of every request (0).
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"
storm=${STORM:-2} latency=${LATENCY:-0} processes=${PROCESSES:-3}
py=$ROOT/tests/bucket/follow.py
export KESTREL_RUNTIME_DIR=$WORK/run
kestrel-s3proxy serve --store "unix:$WORK/s3.sock" --log "$WORK/reader.log" \
    >"$WORK/reader.out" 2>"$WORK/proxy.err" 9>&- &
reader_pid=$!
disown
stopped=
# A mount that stands still would hold the end up.
go_on() {
    [ -z "$stopped" ] || kill -CONT "$stopped" 2>/dev/null || true
}
end_reader() {
    kill "$reader_pid"
}
AT_END=go_on AFTER_ALL=end_reader
wait_until 30 grep -q listening "$WORK/reader.out"
read -r _ reader _ reader_control <"$WORK/reader.out"

url=$(volume_url followed) query=$(volume_url '')
query=${query#*\?}
read_url=${url/$S3_ENDPOINT/http://$reader} read_base=s3://$S3_BUCKET/followed
refusing='status:code=403,error=AccessDenied,kind=put+copy+delete+delete-many+multipart'
slow=
[ "$latency" = 0 ] || slow="latency:ms=$latency"
# reader_faults RULE…: of followers, beside that nothing may be written
reader_faults() {
    kestrel-s3proxy rules --control "$reader_control" --set "$refusing $slow $*"
}
on() {
    local machine=$1
    shift
    KESTREL_STATE_DIR=$WORK/$machine timeout 120 "$KESTREL" "$@"
}
# follows DIR [OPTION…]
follows() {
    KESTREL_STATE_DIR=$WORK/reader timeout 60 "$KESTREL" mount "$read_url" "$1" --read-only "${@:2}"
}
# the process of a follower
pid_of() {
    "$KESTREL" status "$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'
}
# status_of DIR FIELD: of what a follower says about following
status_of() {
    "$KESTREL" status "$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["follows"].get(sys.argv[1]))' "$2"
}
w=$WORK/w f1=$WORK/f1 f2=$WORK/f2 f3=$WORK/f3 log=$WORK/log
mkdir "$w" "$f1" "$f2" "$f3"
: >"$log"
reader_faults
# shellcheck disable=SC2086
faults $slow

on a format "$url" >/dev/null
refuses "no volume at another prefix" "no KestrelFS volume here" \
    on reader mount "s3://$S3_BUCKET/nothing?${query/$S3_ENDPOINT/http:\/\/$reader}" "$f1" \
    --read-only
refuses "--take-over besides" "leave one of the two out" follows "$f1" --take-over
refuses "--follow-every without --read-only" "with --read-only" on a mount "$url" "$w" \
    --follow-every 1s
check "a follower without a writer" follows "$f1"
check "of an empty volume" test -z "$(ls -A "$f1")"
# Small memtables: the log goes into tables again and again.
check "a writer beside it" on a mount "$url" "$w" --metadata-memory 16M
check "more followers" follows "$f2" --follow-every 200ms --cache-dir "$WORK/cache"
check "and one by -o ro" on reader mount "$read_url" "$f3" -o ro
mkdir "$w/d" && ln -s target "$w/link" && setfattr -n user.a -v b "$w/d" && ln "$w/link" "$w/d/hard"
head -c 3000000 /dev/urandom >"$w/big"
# A memtable and more.
python3 -c '
import os, sys
for number in range(48):
    path = f"{sys.argv[1]}/d/{number}"
    open(path, "x").close()
    os.setxattr(path, "user.large", os.urandom(60000))' "$w"

echo "-- a storm"
# watched DIR BOUND: in the background, over the next storm
watched() {
    python3 "$py" watch "$1" "$log" "$((storm + 1))" "$2" "$1.late" >"$1.out" 2>&1 &
    watchers+=("$!:$1")
}
# waits for them
watchers_end() {
    local one
    for one in "${watchers[@]}"; do
        check "$(basename "${one#*:}") shows moments of the writer ($1)" wait "${one%%:*}" ||
            true
        tail -n 1 "${one#*:}.out" | sed 's/^/     /'
    done
    watchers=()
}
watchers=()
bound=$(python3 -c "print(1.6 + 12 * $latency / 1000)")
watched "$f1" "$(python3 -c "print(1 + $bound)")"
watched "$f2" "$(python3 -c "print(0.2 + $bound)")"
watched "$f3" "$(python3 -c "print(1 + $bound)")"
check "changes" python3 "$py" storm "$w" "$log" "$storm" "$processes"
watchers_end "changes"
for follower in "$f1" "$f2" "$f3"; do
    check "$(basename "$follower") has all of it" python3 "$py" same "$w" "$follower" 5
done
check "tables were written and merged meanwhile" is_more "$(status_of "$f1" manifest_revision)" 4
check "status says that it follows" prints "follows *the writer of epoch" "$KESTREL" status "$f1"

echo "-- what is asked of a follower"
check "du" "$KESTREL" du "$f1"
check "info" prints "3,000,000" "$KESTREL" info "$f1/big"
check "stats" "$KESTREL" stats "$f1" --once
check "a snapshot is made by the writer" "$KESTREL" snapshot create "$w" monday
check "and listed by a follower" wait_until 5 prints monday "$KESTREL" snapshot list "$f2"
check "and read" cmp "$w/big" "$f2/.snap/monday/big"
refuses "no snapshot is made" "mount the volume for writing" "$KESTREL" snapshot create "$f1" x
refuses "nothing is published" "mount the volume for writing" "$KESTREL" publish "$f1" v1
refuses "nothing is written" "Read-only" touch "$f1/x"
refuses "no remount for writing" "without --read-only" \
    on reader mount "$read_url" "$f1" -o remount,rw
snap=$WORK/snap
mkdir "$snap"
check "a snapshot is mounted beside the writer" on reader mount \
    "$read_base@monday?${read_url#*\?}" "$snap" --read-only
check "and has its files" cmp "$w/big" "$snap/big"
check "umount" "$KESTREL" umount "$snap"

echo "-- another writer takes over, a follower stands still"
stopped=$(pid_of "$f3")
kill -STOP "$stopped"
watched "$f1" 9
watched "$f2" 9
python3 "$py" storm "$w" "$log" "$storm" "$processes" >"$WORK/storm.out" 2>&1 &
storming=$!
sleep 1
kill -9 "$(KESTREL_STATE_DIR=$WORK/a volume_pid "$url")"
umount -l "$w"
wait "$storming" || true
check "another machine takes over" on b mount "$url" "$w" --take-over --metadata-memory 16M
check "changes go on" python3 "$py" storm "$w" "$log" 1 "$processes"
watchers_end "takeover"
kill -CONT "$stopped"
check "a stopped follower shows nothing old when it goes on" python3 "$py" same "$w" "$f3" 0.5
check "the others have all of it" python3 "$py" same "$w" "$f2" 5

echo "-- the store goes away"
at=$(cat "$f1/p0/counter" | head -c 8)
reader_faults 'status:code=503,error=SlowDown'
echo later >"$w/later"
check "status says so" wait_until 10 prints "is not up to date" "$KESTREL" status "$f2"
check "what is in memory is still shown" test "$(head -c 8 "$f2/p0/counter")" = "$at"
reader_faults
check "it goes on when the store is back" wait_until 20 test -e "$f2/later"
check "and the status is well" wait_until 5 not prints "not up to date" "$KESTREL" status "$f2"
check "and so are the others" wait_until 10 test -e "$f1/later" -a -e "$f3/later"

echo "-- idle"
"$KESTREL" umount "$f2"
"$KESTREL" umount "$f3"
"$KESTREL" umount "$w"
# The directories of the volume's objects and of its tables.
check "a follower with a cache keeps tables there" \
    test "$(find "$WORK/cache" -mindepth 1 -maxdepth 1 -type d | wc -l)" = 2
# The follower has heard of the end of the writer, and has opened its tables.
sleep 2.5
requests() {
    kestrel-s3proxy counts --control "$reader_control" | python3 -c '
import json, sys
print(sum(json.load(sys.stdin)["requests"].values()))'
}
before=$(requests)
sleep 2
idle=$(($(requests) - before))
check "two requests a look without changes ($idle in 2 s)" test "$idle" -le 8
[ "$idle" -le 8 ] || tail -n "$idle" "$WORK/reader.log"

echo "-- the volume is formatted anew"
check "format" on b format "$url" --force
check "the follower says so" wait_until 10 prints "belongs to node 0 of the volume" \
    "$KESTREL" status "$f1"
refuses "and shows nothing" "Stale" ls "$f1"
check "it unmounts" "$KESTREL" umount "$f1"
check "the new volume is followed" follows "$f1"
check "and is empty" test -z "$(ls -A "$f1")"
check "umount" "$KESTREL" umount "$f1"
echo "-- an encrypted volume"
"$KESTREL" key create "$WORK/key" >/dev/null
export KESTREL_KEY_FILE=$WORK/key
secret=${url/followed/secret} read_url=${read_url/followed/secret}
check "format" on a format "$secret" --encrypt --compress zstd
check "a writer" on a mount "$secret" "$w"
check "a follower" follows "$f1" --follow-every 200ms
head -c 200000 /dev/zero >"$w/big"
cp -a "$py" "$w/"
check "has all of it" python3 "$py" same "$w" "$f1" 5
"$KESTREL" umount "$f1"
"$KESTREL" umount "$w"
refused=$(kestrel-s3proxy counts --control "$reader_control" | python3 -c '
import json, sys
found = json.load(sys.stdin)["requests"]
print(sum(found.get(kind, 0) for kind in ("put", "copy", "delete", "delete-many", "multipart")))')
check "no follower has tried to write" test "$refused" = 0
summary
