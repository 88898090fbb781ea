#!/usr/bin/env bash
# A log directory in front of metadata in a bucket (`kestrel mount --log-dir`): what it acknowledges
# survives kill -9 at the named points, a store that is away, and a mount without the option; what
# another machine sees; what is told and kept when another machine took the volume over; directories
# that are not suitable.
#
# CYCLES (default 20): kills at named points
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"
mnt=$WORK/mnt mnt2=$WORK/mnt2 logs=$WORK/logs
url=$(volume_url logdir/photos) query=$(volume_url '')
query=${query#*\?} base=s3://$S3_BUCKET/logdir/photos
mkdir "$mnt" "$mnt2"

on() {
    local machine=$1
    shift
    KESTREL_STATE_DIR=$WORK/$machine timeout 120 "$KESTREL" "$@"
}
on_a() { on a "$@"; }
on_b() { on b "$@"; }
# mount_a OPTION…: uploads are as late as can be.
mount_a() { on_a mount "$url" "$mnt" --upload-every 1h "$@"; }
# kill_a [PID]
kill_a() {
    local pid=${1:-}
    [ -n "$pid" ] || pid=$(KESTREL_STATE_DIR=$WORK/a volume_pid "$url")
    kill -9 "$pid"
    while alive "$pid"; do sleep 0.01; done
    umount -l "$mnt" 2>/dev/null || true
}
note() { echo "$WORK"/a/*/log-dir.json; }
behind() { on_a status "$url" --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["upload_backlog"]["bytes"])'; }
# files DIR N: N files with their number in them, each synced.
files() {
    python3 - "$1" "$2" <<'PY'
import os, sys
for n in range(int(sys.argv[2])):
    file = os.open(f"{sys.argv[1]}/{n}", os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(file, str(n).encode())
    os.fsync(file)
PY
}
# every_file DIR N: files made them.
every_file() {
    [ "$(find "$1" -type f | wc -l)" = "$2" ] && [ "$(cat "$1/$(($2 - 1))")" = $(($2 - 1)) ]
}

check "format" on_a format "$url" --name pictures

echo "-- unsuitable directories"
touch "$WORK/file"
mkdir "$WORK/full" && mount -t tmpfs -o size=128k none "$WORK/full"
refuses "a file" "not a directory" mount_a --log-dir "$WORK/file"
refuses "a directory that cannot be made" "making" mount_a --log-dir "$WORK/no/where"
refuses "a full disk" "no space left" mount_a --log-dir "$WORK/full"
mount -o remount,ro "$WORK/full"
refuses "a disk that is read-only" "read-only" mount_a --log-dir "$WORK/full"
umount "$WORK/full"
check "a volume with metadata on disk" "$KESTREL" format "$WORK/plain"
refuses "with a log directory" "metadata in a bucket" "$KESTREL" mount "$WORK/plain" "$mnt" \
    --log-dir "$logs"
refuses "a time that makes no sense" "10ms to 1h" on_a mount "$url" "$mnt" --log-dir "$logs" \
    --upload-every 2h
check "nothing is left of that" not ls "$(note)"

echo "-- behind"
check "mount" mount_a --log-dir "$logs"
mkdir "$mnt/d"
reset_counts
files "$mnt/d" 100
puts=$(count requests put)
check "changes cost no requests ($puts PUTs for 100 files)" test "$puts" -le 4
check "the status says how much is behind" prints "log directory *.* not in the bucket yet" \
    on_a status "$url"
check "so do the metrics" is_more "$(KESTREL_STATE_DIR=$WORK/a stat_of "$url" \
    engine_upload_backlog_bytes)" 10000
other=$(volume_url logdir/other)
check "another volume" on_b format "$other"
refuses "the same directory for it" "in use by another process" \
    on_b mount "$other" "$mnt2" --log-dir "$logs"
kill_a
refuses "and when the process is gone" "a directory of its own" \
    on_b mount "$other" "$mnt2" --log-dir "$logs"
refuses "another directory for the volume" "kept changes in $logs" \
    mount_a --log-dir "$WORK/logs2"
mv "$logs" "$WORK/away"
refuses "a directory that is gone" "bring it back" on_a mount "$url" "$mnt"
mv "$WORK/away" "$logs"
check "a mount without the option finds it" on_a mount "$url" "$mnt" --upload-every 1h
check "every file is there" every_file "$mnt/d" 100
check "umount" on_a umount "$mnt"
check "nothing is remembered" not ls "$(note)"
check "another machine has all of it" on_b mount "$url" "$mnt2"
check "every file is there" every_file "$mnt2/d" 100
check "umount" on_b umount "$mnt2"

echo "-- what others see"
check "mount" mount_a --log-dir "$logs"
mkdir "$mnt/v" && echo one >"$mnt/v/f" && head -c 300000 /dev/urandom >"$mnt/v/big"
check "a version is published" on_a publish "$mnt/v" set@1
check "its files are there for others" on_b mount "$base//set@1?$query" "$mnt2"
check "all of them" cmp "$mnt/v/big" "$mnt2/big"
check "umount" "$KESTREL" umount "$mnt2"
kill_a
check "its snapshot is in the bucket, too" on_b mount "$url" "$mnt2" --take-over
check "the version has its snapshot" prints set@1 on_b version list "$url"
check "gc finds nothing that it should not" on_b fsck "$url"
check "umount" on_b umount "$mnt2"
check "nothing was lost by that" mount_a --log-dir "$logs"
head -c 3000000 /dev/urandom >"$mnt/gone" && sync -f "$mnt" && on_a umount "$mnt"
check "mount" mount_a --log-dir "$logs"
rm "$mnt/gone"
on_a gc "$url" >/dev/null
kill_a
check "objects go when the bucket knows" on_b mount "$url" "$mnt2" --take-over
check "fsck --data on another machine" on_b fsck "$url" --data
check "umount" on_b umount "$mnt2"

echo "-- takeover"
check "mount" mount_a --log-dir "$logs" --discard-log
rm -rf "$logs"/*.aside-*
mkdir "$mnt/old"
on_a umount "$mnt"
check "mount" mount_a --log-dir "$logs"
files "$mnt/old" 20
pid=$(KESTREL_STATE_DIR=$WORK/a volume_pid "$url")
check "taken over by another machine" on_b mount "$url" "$mnt2" --take-over
check "which has the last moment that was uploaded" test -z "$(ls "$mnt2/old")"
echo new >"$mnt2/new"
wait_until 10 not touch "$mnt/late" 2>/dev/null || fail "the first machine does not notice"
check "the first one acknowledges nothing" not touch "$mnt/later"
kill_a "$pid"
check "umount" on_b umount "$mnt2"
refuses "its changes are not mixed in" "batches \([0-9]+ bytes\).*not in the volume" \
    mount_a --log-dir "$logs"
refuses "also without the option" "--discard-log" on_a mount "$url" "$mnt"
check "they are still there" test -e "$logs/kestrel-log/owner.json"
check "and are set aside when that is wanted" mount_a --log-dir "$logs" --discard-log
check "under another name" test -e "$logs/kestrel-log.aside-1/owner.json"
check "the volume is that of the other machine" test "$(cat "$mnt/new")" = new
check "umount" on_a umount "$mnt"

echo "-- a store that is away"
check "mount" on_a mount "$url" "$mnt" --log-dir "$logs" --upload-every 100ms
mkdir "$mnt/away"
sleep 0.5
faults 'status:code=503,error=SlowDown,rate=1'
files "$mnt/away" 50
check "changes go on" test "$(ls "$mnt/away" | wc -l)" = 50
check "and are kept" is_more "$(behind)" 1000
no_faults
nothing_behind() { [ "$(behind)" = 0 ]; }
check "they are uploaded when it is back" wait_until 20 nothing_behind
check "umount" on_a umount "$mnt"

echo "-- a disk that becomes full"
mkdir "$WORK/small" && mount -t tmpfs -o size=40m none "$WORK/small"
check "mount" mount_a --log-dir "$WORK/small/log"
mkdir "$mnt/small" && files "$mnt/small" 20
head -c 60m /dev/zero >"$WORK/small/filler" 2>/dev/null || true
full() { ! touch "$mnt/grown.$SECONDS.$RANDOM"; }
wait_until 20 full || fail "a full disk takes changes"
refuses "no space on a full disk" "no space left" touch "$mnt/one-more"
check "removals go on" rm "$mnt/small/3"
rm "$WORK/small/filler"
not_full() { touch "$mnt/again"; }
check "changes go on when there is room" wait_until 20 not_full
kill_a
check "mount after a kill" mount_a
check "nothing is lost" test "$(cat "$mnt/small/19")" = 19 -a -e "$mnt/again" -a ! -e "$mnt/small/3"
check "umount" on_a umount "$mnt"
umount "$WORK/small"

echo "-- kills"
points=(engine.log.appended engine.sync.before engine.sync.after bucket.local.synced
    bucket.log.before bucket.log.put bucket.local.checked bucket.claim.manifest bucket.claim.fence
    bucket.local.claimed)
for ((cycle = 0; cycle < ${CYCLES:-20}; cycle++)); do
    # A step that meets all of them, and soon different ones.
    point=${points[$((cycle * 3 % ${#points[@]}))]}
    on_a mount "$url" "$mnt" --log-dir "$logs" --upload-every 200ms >/dev/null
    rm -rf "$mnt/load" && mkdir "$mnt/load"
    kill_a
    # In the middle of a load, or of the next opening.
    case $point in
        *claim* | *checked) count=1 ;;
        *) count=$((RANDOM % 40 + 1)) ;;
    esac
    rm -f "$WORK/load.log"
    if KESTREL_CRASH_AT=$point:$count on_a mount "$url" "$mnt" --upload-every 20ms >/dev/null \
        2>&1; then
        kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 4 \
            --seed "$cycle" --ms 700 >"$WORK/run.out" 2>&1 || true
        umount -l "$mnt" 2>/dev/null || true
    else
        umount -l "$mnt" 2>/dev/null || true
    fi
    on_a mount "$url" "$mnt" >/dev/null || fail "$point: does not mount"
    if [ -s "$WORK/load.log" ]; then
        check "killed at $point: everything acknowledged is there" kestrel-crashload verify \
            --dir "$mnt/load" --log "$WORK/load.log" --mode process
    else
        check "killed at $point: the volume is there" test "$(cat "$mnt/new")" = new
    fi
    on_a umount "$mnt" || fail "$point: umount"
done
check "fsck --data finds nothing" on_b fsck "$url" --data
summary
