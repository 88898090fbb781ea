#!/usr/bin/env bash
# A volume that a bucket has all of, named by its URL alone: made on one machine and mounted on
# another (a machine is a state directory here), settings that both change, a process killed within
# format, a lost state directory, snapshots by URL, credentials in a file, and bad input.
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"
mnt=$WORK/mnt mnt2=$WORK/mnt2
url=$(volume_url home/photos) query=$(volume_url '')
query=${query#*\?} base=s3://$S3_BUCKET/home/photos
mkdir "$mnt" "$mnt2"

# on MACHINE COMMAND…: kestrel on that machine.
on() {
    local machine=$1
    shift
    KESTREL_STATE_DIR=$WORK/$machine timeout 120 "$KESTREL" "$@"
}
on_a() { on a "$@"; }
on_b() { on b "$@"; }
# the state directory of a machine
state() {
    echo "$WORK/$1"/"$S3_BUCKET"-photos-*
}
descriptor=$STORE_DIR/$S3_BUCKET/home/photos/meta/descriptor

echo "-- no volume"
refuses "a bucket without a volume" "no KestrelFS volume here.*kestrel format 's3://" \
    on_a mount "$url" "$mnt"
refuses "status of it" "no KestrelFS volume here" on_a status "$url"
check "nothing is left of that here" test ! -e "$WORK/a"
refuses "a bucket that there is not" "no.*bucket" on_a format "s3://nothere/x?$query"
check "nothing is left of that here" test -z "$(ls "$WORK/a" 2>/dev/null)"
refuses "--metadata besides" "leave --metadata out" on_a format "$url" --metadata "$url"
refuses "durability fsync" "commit" on_a format "$url" --durability fsync
refuses "two slashes in a prefix" "slash" on_a format "s3://$S3_BUCKET/a//b?$query"
refuses "two slashes at the end" "slash" on_a format "s3://$S3_BUCKET/a//?$query"
refuses "a space" "prefix has" on_a format "s3://$S3_BUCKET/a b?$query"
refuses "an @" "prefix has" on_a format "s3://$S3_BUCKET/a@b?$query"
secret_url="s3://ID:hushhush@$S3_BUCKET/a"
refuses "credentials in the URL" "credentials do not belong" on_a mount "$secret_url" "$mnt"
check "they are not repeated" not grep -q hushhush "$WORK/refuses.out"
refuses "a cluster" "takes a directory" on_a cluster init "$url" --node 127.0.0.1:1
touch "$WORK/file"
refuses "a state directory that cannot be made" "state directory cannot be made" \
    env KESTREL_STATE_DIR="$WORK/file/below" "$KESTREL" format "$url"
refuses "a state directory that is relative" "absolute" \
    env KESTREL_STATE_DIR=below "$KESTREL" format "$url"
refuses "wrong credentials" "credentials|SignatureDoesNotMatch|denied|permission" \
    env AWS_SECRET_ACCESS_KEY=hushhush KESTREL_STATE_DIR="$WORK/a" "$KESTREL" mount "$url" "$mnt"
check "they are not repeated" not grep -q hushhush "$WORK/refuses.out"
refuses "no credentials" "credentials" env -u AWS_SECRET_ACCESS_KEY -u AWS_ACCESS_KEY_ID \
    HOME="$WORK/empty" KESTREL_STATE_DIR="$WORK/a" "$KESTREL" mount "$url" "$mnt"

echo "-- two machines"
check "format" on_a format "$url" --name pictures
check "the descriptor is in the bucket" grep -q '"pictures"' "$descriptor"
check "the state directory is the user's alone" test "$(stat -c %a "$(state a)")" = 700
refuses "a second format" "the volume \"pictures\" is there.*--force" on_b format "$url"
check "mount on A" on_a mount "$url" "$mnt"
mkdir "$mnt/d"
for n in $(seq 30); do echo "$n" >"$mnt/d/$n"; done
head -c 2000000 /dev/urandom >"$mnt/big"
sum=$(sha256sum <"$mnt/big")
refuses "a second mount on A" "in use by process" on_a mount "$url" "$mnt2"
refuses "a mount on B meanwhile" "process .* on .*--take-over" on_b mount "$url" "$mnt2"
refuses "format --force meanwhile" "has the volume open" on_b format "$url" --force
check "status by URL" prints "mounted" on_a status "$url"
check "stats by URL" on_a stats "$url" --once
check "du by URL" on_a du --volume "$url" /d
check "a snapshot by URL" on_a snapshot create "$url" monday
check "options are changed by URL" on_a mount "$url" "$mnt" -o remount,ro
check "and back" on_a mount "$url" "$mnt" -o remount,rw
check "the list of snapshots by URL" prints monday on_a snapshot list "$url"
faults 'status:code=503,error=SlowDown,rate=1'
check "a process is asked without the store" on_a status "$url"
no_faults
check "umount without the state directory's name" "$KESTREL" umount "$mnt"
check "mount on B by the URL alone" on_b mount "$url" "$mnt2"
check "all files are there" test "$(cat "$mnt2"/d/* | sort -n | tail -n 1)" = 30
check "every byte is there" same "$(sha256sum <"$mnt2/big")" "$sum"
rm "$mnt2/big"
pid=$(KESTREL_STATE_DIR=$WORK/b volume_pid "$url")
check "taken over on A" on_a mount "$url" "$mnt" --take-over
refuses "B writes nothing any more" "error" touch "$mnt2/stale"
kill -9 "$pid"
umount -l "$mnt2" || true
check "umount" "$KESTREL" umount "$mnt"

echo "-- settings"
check "B changes a setting" on_b config "$url" --compress zstd
check "A sees it when it mounts" on_a mount "$url" "$mnt"
check "A has it" prints "compression *zstd" on_a config "$url"
check "umount" "$KESTREL" umount "$mnt"
check "A changes another one" on_a config "$url" --atime relatime
check "and both are there" prints "compression *zstd" on_a config "$url"
check "B has both at its next change" prints "access times *relatime" \
    on_b config "$url" --compress zstd
check "fsck by URL" on_b fsck "$url" --data
check "gc by URL" on_b gc "$url"
check "dump by URL" on_b dump "$url" "$WORK/dump"
loaded=$(volume_url home/loaded)
check "load by URL" on_a load "$WORK/dump" "$loaded" --objects "$url"
check "loaded again it is refused" not on_a load "$WORK/dump" "$loaded"
check "fsck of it on B" on_b fsck "$loaded" --data
check "dumps into the store by URL" on_a backup now "$url"
check "and their list" on_b backup list "$url"
check "info by URL" on_b info --volume "$url" /d/3
rm -r "$WORK/b"
check "a lost state directory comes back" on_b mount "$url" "$mnt"
check "all files are there" test "$(cat "$mnt/d/30")" = 30
check "umount" "$KESTREL" umount "$mnt"

echo "-- snapshots by URL"
check "a snapshot is mounted" on_b mount "$base@monday?$query" "$mnt"
check "it has what was removed" same "$(sha256sum <"$mnt/big")" "$sum"
check "umount" "$KESTREL" umount "$mnt"
check "a snapshot of a directory" on_b snapshot create "$base:/d?$query" tuesday
check "is listed" prints tuesday on_b snapshot list "$url:/d"
check "and mounted" on_b mount "$base:/d@tuesday?$query" "$mnt"
check "and has its files" test "$(cat "$mnt/7")" = 7
check "umount" "$KESTREL" umount "$mnt"
check "a clone of it" on_b clone "$base:/d@tuesday?$query" "$base:/copy?$query" --eager
check "has its files" prints 7 on_b ls "$base:/copy?$query"
check "and is removed" on_b rm -r "$base:/copy?$query"
refuses "a snapshot that there is not" "no snapshot|not found|does not exist|no such" \
    on_b mount "$base@never?$query" "$mnt"

echo "-- another way to the bucket"
other="$base?endpoint=${S3_ENDPOINT/127.0.0.1/localhost}&region=us-east-1"
check "by another endpoint" on c mount "$other" "$mnt"
check "the copy has that twice" test "$(grep -c localhost "$WORK"/c/*/kestrel.json)" = 2
check "the bucket does not" not grep -q localhost "$descriptor"
check "umount" "$KESTREL" umount "$mnt"
printf '[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n' "$AWS_ACCESS_KEY_ID" \
    "$AWS_SECRET_ACCESS_KEY" >"$WORK/credentials"
bare() {
    env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY HOME="$WORK/empty" \
        KESTREL_STATE_DIR="$WORK/d" timeout 120 "$KESTREL" "$@"
}
cd "$WORK"
check "credentials from a file alone" bare mount "$url" "$mnt" --credentials credentials
check "umount" bare umount "$mnt"
cd /
check "and without naming it again" bare config "$url" --atime none
check "fsck" bare fsck "$url"
check "no file has the secret" not grep -rqs "$AWS_SECRET_ACCESS_KEY" "$WORK"/[abcd]
mv "$WORK/credentials" "$WORK/moved"
refuses "without the file" credentials bare fsck "$url"

echo "-- served"
check "serve by URL" on_a serve "$url" --listen 127.0.0.1:0 --access open
check "its process ends" on_a serve "$url" --stop
authority() {
    on "$1" cluster ca "$url" | grep -o 'sha256:[0-9a-f]*'
}
check "the volume's authority is one for both machines" same "$(authority a)" "$(authority b)"
check "and has a fingerprint" test -n "$(authority a)"

echo "-- format"
# killed_at POINT COMMAND…: kestrel on machine A does not get beyond that point.
killed_at() {
    local status=0
    KESTREL_CRASH_AT=$1 KESTREL_STATE_DIR=$WORK/a "$KESTREL" "${@:2}" || status=$?
    test "$status" = 137
}
for point in begun removed made published; do
    check "killed at format.$point" killed_at "format.$point" format "$url" --force
    [ $point = published ] || refuses "then there is no volume" "not come to its end" \
        on_b mount "$url" "$mnt"
done
check "and again" on_a format "$url" --force
beside=$(find "$(dirname "$descriptor")" -mindepth 1 -maxdepth 1 -printf '%f ')
check "rows of one node are there" test "$(echo "$beside" | xargs -n 1 | sort | xargs)" = \
    "0 descriptor"
check "no object of others is there" test -z "$(objects home/photos)"
on_b mount "$url" "$mnt" >"$WORK/anew" 2>&1 || fail "B does not mount: $(cat "$WORK/anew")"
check "B mounts what was formatted anew, and says so" grep -q "formatted anew" "$WORK/anew"
check "it is empty" test -z "$(ls -A "$mnt")"
check "umount" "$KESTREL" umount "$mnt"
new=$(volume_url home/race)
on_a format "$new" >"$WORK/one" 2>&1 & one=$!
on_b format "$new" >"$WORK/two" 2>&1 & two=$!
wins=0
for pid in $one $two; do
    if wait "$pid"; then wins=$((wins + 1)); fi
done
cat "$WORK/one" "$WORK/two" | sed 's/^/     /' | cut -c1-200
check "of two formats at once one wins" test "$wins" = 1
check "and its volume is whole" on_b fsck "$new" --data

lost=$(volume_url home/lost)
faults 'lost-answer:kind=put,rate=0.3'
check "format with lost answers" on_a format "$lost"
for level in 1 2 3 4; do
    check "a change with lost answers" on_a config "$lost" --compress "zstd:$level"
done
no_faults
check "the last change is in the bucket" prints "compression *zstd:4" on_b config "$lost"

echo "-- damage"
cp "$descriptor" "$WORK/descriptor"
damaged() {
    cat "$2" >"$descriptor"
    refuses "$1" "$3" on_b mount "$url" "$mnt"
}
sed 's/"relatime"/"strictatime"/; s/"photos"/"fotos"/' "$WORK/descriptor" >"$WORK/bad"
damaged "a damaged descriptor" "$WORK/bad" "meta/descriptor.*damaged"
head -c 100 "$WORK/descriptor" >"$WORK/bad"
damaged "half a descriptor" "$WORK/bad" "meta/descriptor.*damaged"
sed 's/"format_version": 1/"format_version": 9/' "$WORK/descriptor" >"$WORK/bad"
damaged "a newer descriptor" "$WORK/bad" "newer"
echo '{"magic": "something"}' >"$WORK/bad"
damaged "something else" "$WORK/bad" "not describe"
refuses "format --force of what cannot be read" "damaged" on_b format "$url" --force
cat "$WORK/descriptor" >"$descriptor"
check "it is well again" on_b fsck "$url"
summary
